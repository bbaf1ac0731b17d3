"""Which words are everyday English: what is none of them may be a name that nobody told.

The words are those of the text tower that comes with demerit (`data/compact/words.npz`), with their usual endings, and
the names among them taken out as far as `frequent_names` knows them.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np

from demerit.use.release.frequent_names import ALSO_WORDS, BRANDS, CITIES, FIRST_NAMES, SURNAMES

# Words that begin sentences and are no names; the dataset's own words come on top.
STARTERS = frozenset(
    """
    a about above actually after again all almost also although always an and another any apart arm around as at attempt
    away bad badly because before behind below beside better between block both but by camera can cannot close closed
    clumsy collision completely could did didn do does done down dropped drops during each either end ended episode even
    eventually every everything exactly fail failed fails failure fairly fast few finally fine first for from front goal
    good got grabbed grasp grasped great grip gripper half hand hard has have he her here his hit how however i if in
    incomplete instead into is it its just knocked knocks last later left less lets lifted like looks lost made many
    maybe might missed misses more most moved moves much near nearly needs neither never next nice no nobody none nor
    not nothing now object of off often ok okay on once one only opened opens or other our out over partial partially
    perfect perhaps picked picks place placed places policy poor pretty probably progress pulled pushed put quick quite
    reached reaches really released right robot same second seems several she should since slow slowly so some somehow
    something sometimes somewhat soon started still stopped stops stuck success successful such task than that the their
    them then there these they thing this those though through thus time to too touched towards trial tried tries two
    unable unclear under undone unsafe until up upright us very was we weird well went were what when where which while
    who whole why with within without would wrong yes yet you your
    """.split()
)
OF_ROBOTS = frozenset(
    """
    actuator actuators annotator annotators awkward backlash bimanual bumper calibrated calibration cam cams checkpoint
    clutter cluttered controller controllers dataset datasets depth dof effector encoder end-effector episode episodes
    excessive extrinsics fps framerate gpu gripper grippers hesitate hesitation hover intervention intrinsics jaws
    jitter joystick keyframe keypoint keypoints kinematics lag latency lidar localization misaligned misalignment
    misgrasp mislabeled mislabelled node odometry offset operator operators outlier overexposed overshoot overshot
    payload planner pregrasp pretrained prompt quaternion reachability realsense recalibrate recalibrated regrasp rerun
    reruns reset retried retries retry robotic rollout rollouts ros rotation servo setpoint setup simulator singularity
    suboptimal suction teleop teleoperated teleoperation teleoperator timeout timestep timesteps topple trajectories
    trajectory underexposed unstable upside vacuum vibration vibrations viewpoint vla waypoint waypoints workspace wrist
    """.split()
)
NAMES = FIRST_NAMES | SURNAMES | CITIES | ALSO_WORDS
SHORTEST_STEM = 3
ENDINGS = ("s", "es", "ed", "d", "ing", "ly", "er", "y", "n't", "t")


def is_everyday(word: str) -> bool:
    """Whether a word, in any spelling, is an everyday one and no name that is known."""
    low = word.lower()
    if low in STARTERS or low in OF_ROBOTS or low in BRANDS:
        return True
    return low not in NAMES and is_word(low)


def is_word(low: str) -> bool:
    """Whether a word in small letters, or what is left of it without an ending, is in the vocabulary."""
    known = _vocabulary()
    if len(low) == 1 or low in known or low in STARTERS or low in OF_ROBOTS or low in BRANDS:
        return True
    if "-" in low:
        return all(is_word(part) for part in low.split("-"))
    stems = {low.removesuffix(ending) for ending in ENDINGS if low.endswith(ending)}
    stems |= {f"{stem}e" for stem in stems} | {f"{stem[:-1]}y" for stem in stems if stem.endswith("i")}
    stems |= {stem[:-1] for stem in stems if len(stem) > 1 and stem[-1] == stem[-2]}  # jammed: jam
    # A name with an ending is a name too: "annas", but not what only begins like one.
    return any(
        len(stem) >= SHORTEST_STEM and (stem in known or stem in OF_ROBOTS) and stem not in NAMES for stem in stems
    )


@cache
def _vocabulary() -> frozenset[str]:
    with (files("demerit") / "assets" / "compact" / "words.npz").open("rb") as file, np.load(file) as arrays:
        pieces = arrays["pieces"].tobytes().decode("ascii").split("\n")
    return frozenset(piece for piece in pieces if piece.isalpha())
