"""Time, memory and disk space to make 100,000 negatives.

    python benchmarks/negatives.py [--episodes N] [--small]

Every episode has its own video file (hard links to one).
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.frames import Frames
from demerit.data.store import Store
from demerit.data.video import write_video
from demerit.negatives.job import make_negatives
from demerit.negatives.mix import DEFAULT_MIX, Mix, Pool

FRAMES = 100
COLOURS = ("red", "green", "blue", "white", "black", "grey", "pink", "brown", "yellow", "purple")
THINGS = ("block", "cup", "plate", "spoon", "sponge", "marker", "towel", "bottle", "lid", "bowl")
PLACES = ("shelf", "drawer", "box", "sink", "tray", "table", "basket", "rack", "stove", "counter")


def fill(root: Path, episodes: int) -> Store:
    """Set up a dataset: 1,000 instructions, 50 scenes, two splits. Not measured."""
    video = root / "one.mp4"
    write_video(video, np.zeros((FRAMES, 64, 64, 3), np.uint8))
    (root / "videos").mkdir()
    store = Store.create(root / "set", "set")
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for i in range(episodes):
            path = root / "videos" / f"{i:06d}.mp4"
            os.link(video, path)
            colour, thing, place = (str(rng.choice(words)) for words in (COLOURS, THINGS, PLACES))
            origin = Origin("set", split="test" if i % 10 == 0 else "train", group=f"scene {i % 50}")
            success = (Outcome("human", success=True),)
            words = f"put the {colour} {thing} in the {place}"
            writer.add(Episode(f"set/{i:06d}", words, {"main": Frames.from_video(path)}, success, origin))
    return Store(store.root)


def clock() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def report(title: str, start: tuple[float, float], note: str = "") -> None:
    wall, cpu = (now - then for now, then in zip(clock(), start, strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{title:40s} {wall:7.2f} s ({cpu:6.2f} s of CPU)   peak memory {peak:4.0f} MB   {note}", flush=True)


def main(episodes: int) -> None:
    mix = Mix.parse(DEFAULT_MIX, per_episode=10, per_dataset=0)
    with tempfile.TemporaryDirectory() as name:
        start = clock()
        store = fill(Path(name), episodes)
        report(f"set up {episodes:,} episodes of {FRAMES} frames", start, "(not measured)")

        start = clock()
        pool = Pool.of(store.episodes())
        report("read the instructions", start)

        some = [episode for _, episode in zip(range(64), store.episodes(), strict=False)]
        lengths = sum(len(episode) for episode in some)  # opens the videos
        start = clock()
        made = sum(1 for episode in some for _ in mix.make(episode, pool))
        report(f"make {made:,} of {lengths:,} frames in memory", start)

        start = clock()
        progress = make_negatives(Dataset(store, "set"), Path(name) / "negatives", mix)
        size = sum(path.stat().st_size for path in (Path(name) / "negatives").rglob("*") if path.is_file())
        report(f"the whole job: {sum(progress.made.values()):,} negatives", start, f"{size / 2**20:.1f} MB on disk")
        print("grades:", {grade: count for grade, count in progress.ladder().items() if count})
        print("not made:", dict(progress.skipped) or "nothing")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--small", action="store_true", help="50 episodes")
    options = parser.parse_args()
    main(50 if options.small else options.episodes)
