"""How fast the default model scores videos: decoding, start-up and writing rewards included.

    python benchmarks/default_model.py [--network DIR] [--small]

Writes H.264 videos of 240x320 and 128x128 and scores every frame as `demerit score` does. Figures are medians over the
rounds. The processor time per frame hardly depends on what else the machine is doing.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from decode import scene
from demerit.data.formats import open_dataset
from demerit.data.video import write_video
from demerit.models.compact import Compact, Engine
from demerit.models.compact.engine import resize_square
from demerit.models.score import ScoreJob, score

SIZES = {"240x320": (240, 320), "128x128": (128, 128)}
EPISODES, FRAMES, ROUNDS, DISTINCT = 12, 100, 3, 4


def write_videos(folder: Path, size: tuple[int, int], episodes: int, frames: int) -> Path:
    """Write a few different videos; the others are hard links to them."""
    folder.mkdir(parents=True)
    for i in range(DISTINCT):
        images = [resize_square(image[None], max(size))[0, : size[0], : size[1]] for image in scene(i, frames)]
        write_video(folder / f"{i:03d}.mp4", np.stack(images), 30)
    for i in range(DISTINCT, episodes):
        os.link(folder / f"{i % DISTINCT:03d}.mp4", folder / f"{i:03d}.mp4")
    return folder


def processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measure(model: Compact, videos: Path, out: Path, frames: int) -> tuple[float, float]:
    """Score once; return frames per second and milliseconds of processor time per frame."""
    start, used = time.perf_counter(), processor_seconds()
    done = score(ScoreJob(model, open_dataset(f"videos:{videos}"), out))
    seconds, spent = time.perf_counter() - start, processor_seconds() - used
    assert done.frames == frames, done.reasons
    return done.frames / seconds, 1000 * spent / done.frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", type=Path, help="a trained network's folder (default: the shipped one)")
    parser.add_argument("--small", action="store_true", help="4 short videos, one round")
    given = parser.parse_args()
    episodes, frames, rounds = (DISTINCT, 16, 1) if given.small else (EPISODES, FRAMES, ROUNDS)
    model = Compact(engine=Engine.load(given.network) if given.network else None)
    print(f"{episodes} episodes of {frames} frames, {os.cpu_count()} cores, median of {rounds} rounds\n")
    print("| video | frames/s | processor ms per frame |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for title, size in SIZES.items():
            videos = write_videos(Path(scratch) / title, size, episodes, frames)
            outs = [Path(scratch) / f"{title}-rewards-{number}" for number in range(rounds)]
            found = [measure(model, videos, out, episodes * frames) for out in outs]
            rate, cost = (statistics.median(column) for column in zip(*found, strict=True))
            print(f"| {title} | {rate:.0f} | {cost:.2f} |")


if __name__ == "__main__":
    main()
