"""Record what the shipped network was trained on, in assets/compact/seen.json: marks only, no frames.

    python tools/record_seen.py DROID ROBOARENA

The two folders hold the videos that it was trained on. The simulated episodes follow from their seeds: the train split
of metaworld-bad@1 and the two further commands in `python tools/train_compact --help`. The numbers of episodes must be
those of training.json.
"""

import json
import sys
from pathlib import Path

from demerit.data.episode import Episode
from demerit.data.splits import SEEN, SeenEpisodes, hash_simulated
from demerit.models.compact.engine import shipped_folder
from demerit.negatives.sim.splits import HELD_OUT_BEHAVIOURS, HELD_OUT_TASKS, _others, plan
from demerit.negatives.sim.tasks import tasks

EXPERTS, OTHERS = range(1000, 1018), range(1000, 1005)


def list_simulated() -> set[str]:
    """Hash every simulated episode."""
    marks = {hash_simulated(spec.task, spec.behaviour, spec.setting, spec.seed) for spec in plan("train")}
    for task in tasks().values():
        if task.name not in HELD_OUT_TASKS:
            others = [name for name in _others(task, with_held_out=False) if name not in HELD_OUT_BEHAVIOURS]
            marks |= {hash_simulated(task.name, "expert", "varied", seed) for seed in EXPERTS}
            marks |= {hash_simulated(task.name, name, "varied", seed) for name in others for seed in OTHERS}
    return marks


def main(droid: str, roboarena: str) -> None:
    """Write the file."""
    folder = shipped_folder()
    expected = json.loads((folder / "training.json").read_bytes())["episodes"]
    found = {"metaworld": SeenEpisodes.from_hashes(list_simulated())}
    for name, place in (("droid", droid), ("roboarena", roboarena)):
        found[name] = SeenEpisodes.of(Episode.from_video(path) for path in sorted(Path(place).rglob("*.mp4")))
    counts = {name: len(seen.marks) for name, seen in found.items()}
    print(f"marks {counts}, trained on {expected}")
    if counts != expected:
        sys.exit("these are not the episodes that it was trained on")
    (folder / SEEN).write_bytes((found["metaworld"] | found["droid"] | found["roboarena"]).content())


if __name__ == "__main__":
    main(*sys.argv[1:])
