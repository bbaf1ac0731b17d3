"""A small drawn dataset for tests: a gripper, a block and a goal, with successes and failures."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.frames import Images
from demerit.data.video import Encoding, write_video

SIZE = 96
FRAMES = 32
FPS = 8.0
COLOURS = {"red": (200, 60, 50), "blue": (60, 90, 200), "yellow": (225, 190, 60)}
GOALS = {"green square": (90, 160, 90), "white tray": (235, 235, 230)}
ENCODING = Encoding(gop=8, options={"crf": "24", "preset": "slow"})

TABLE, STEEL = (170, 140, 110), (50, 50, 56)

Numbers = npt.NDArray[np.float64]
Paint = tuple[int, int, int]


@dataclass(frozen=True)
class Behaviour:
    """What the gripper does: how far it carries the block (0 to 1 of the way), and what it does then."""

    success: bool
    carries_to: float
    goes_back: bool = False
    grasps: bool = True
    event: str = ""
    note: str = ""


BEHAVIOURS = {
    "success": Behaviour(True, 1.0),
    "drops": Behaviour(False, 0.5, event="dropped", note="lets go half-way and carries on with an empty hand"),
    "misses": Behaviour(False, 0.0, grasps=False, event="missed grasp", note="closes beside the block"),
    "stops short": Behaviour(False, 0.75, event="wrong place", note="puts the block down before the goal"),
    "undoes it": Behaviour(False, 1.0, goes_back=True, event="undone", note="takes the block away again"),
}


def make_sample(folder: str | Path, repeats: int = 3, seed: int = 0) -> Path:
    """Draw the dataset: a folder of videos with a `labels.jsonl`. The same seed draws the same images."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    lines = []
    for name, behaviour in BEHAVIOURS.items():
        for number in range(repeats):
            colour, goal = list(COLOURS)[number % len(COLOURS)], list(GOALS)[number % len(GOALS)]
            images, curve = draw_episode(behaviour, colour, goal, rng)
            file = f"{name.replace(' ', '-')}-{number}.mp4"
            write_video(folder / file, images, FPS, ENCODING)
            lines.append(_label(file, behaviour, f"put the {colour} block on the {goal}", curve))
    (folder / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def draw_episode(behaviour: Behaviour, colour: str, goal: str, rng: np.random.Generator) -> tuple[Images, Numbers]:
    """Draw one episode; return its images and the block's progress at each frame (0 to 1)."""
    start, end = rng.uniform([14, 22], [26, 74]), rng.uniform([66, 22], [82, 74])
    gripper, carried = _course(behaviour)
    block = start + carried[:, None] * (end - start)
    approach = np.clip(gripper, 0, 1)[:, None]
    off = np.array([0.0, 14.0]) if not behaviour.grasps else np.zeros(2)
    hand = np.where(gripper[:, None] < 1, (1 - approach) * [48, 6] + approach * (start + off), 0)
    moving = np.clip(gripper - 1, 0, None)[:, None]
    hand = np.where(gripper[:, None] >= 1, start + off + moving * (end - start), hand)
    shade = int(rng.integers(-12, 12))
    paints = (COLOURS[colour], GOALS[goal])
    images = np.stack([_picture(h, b, end, paints=paints, shade=shade) for h, b in zip(hand, block, strict=True)])
    return images, carried


def _course(behaviour: Behaviour) -> tuple[Numbers, Numbers]:
    """Where the gripper is (0 home, 1 at the block, 2 at the goal) and how far the block is, frame by frame."""
    reach, carry = np.linspace(0, 1, 10), np.linspace(1, 2, 14)
    end = FRAMES - len(reach) - len(carry)
    after = np.linspace(2, 1.1, end) if behaviour.goes_back else np.full(end, 2.0)
    gripper = np.concatenate([reach, carry, after])
    carried = np.clip(gripper - 1, 0, behaviour.carries_to)
    if not behaviour.goes_back:
        carried = np.maximum.accumulate(carried)
    if behaviour.carries_to in (0.0, 0.75):
        stop = 1 + behaviour.carries_to
        gripper = np.where(gripper > stop, stop, gripper) if behaviour.carries_to else gripper
    return gripper, carried


def _picture(hand: Numbers, block: Numbers, goal: Numbers, *, paints: tuple[Paint, Paint], shade: int) -> Images:
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    grain = shade + (x * 7 + y * 3) % 11
    image: Images = (grain[..., None] + TABLE).astype(np.uint8)
    for centre, half_width, half_height, paint in (
        (goal, 12, 12, paints[1]),
        (block, 7, 7, paints[0]),
        (hand * [1, 0.5] - [0, 5], 2, hand[1] / 2 - 5, STEEL),
        (hand - [9, 0], 2, 9, STEEL),
        (hand - [-9, 0], 2, 9, STEEL),
        (hand - [0, 10], 11, 2, STEEL),
    ):
        image[(abs(x - centre[0]) <= half_width) & (abs(y - centre[1]) <= half_height)] = paint
    return image


def failure_events(behaviour: Behaviour) -> list[dict[str, Any]]:
    """The failure is seen from the moment at which the block and the hand part ways."""
    gripper, _ = _course(behaviour)
    first = int(np.argmax(gripper)) + 1 if behaviour.goes_back else int(np.argmax(gripper >= 1 + behaviour.carries_to))
    facts = {"kind": behaviour.event, "first": first, "last": min(first + 4, FRAMES - 1)}
    return [facts] if behaviour.event else []


def _label(file: str, behaviour: Behaviour, instruction: str, curve: Numbers) -> dict[str, Any]:
    return {
        "file": file,
        "instruction": instruction,
        "success": behaviour.success,
        "progress": round(float(curve[-1]), 3),
        "curve": [round(float(value), 3) for value in curve],
        "events": failure_events(behaviour),
        "note": behaviour.note,
        **{"curve_source": "rule", "curve_by": "drawing", "source": "rule", "by": "drawing"},
    }
