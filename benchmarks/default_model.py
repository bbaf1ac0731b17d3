"""How fast `demerit score` gets from videos on disk to rewards on disk, by the processor time of all its processes.

    python benchmarks/default_model.py [--model NAME ...] [--small]

Writes H.264 videos of 240x320 and 128x128 and scores every frame by the command, which starts, decodes, resizes, runs
the model and writes. "once running" leaves out the start: the same command again, with nothing left to score. Figures
are medians over the rounds. The frames/s of two idle cores are not measured but derived, 2 / (processor seconds per
frame): a busy machine changes processor time little and wall time much.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from decode import scene
from demerit.data.video import write_video
from demerit.models.compact.engine import resize_square
from demerit.models.reward_store import RewardStore

SIZES = {"240x320": (240, 320), "128x128": (128, 128)}
EPISODES, FRAMES, ROUNDS, DISTINCT = 12, 200, 3, 4


def write_videos(folder: Path, size: tuple[int, int], episodes: int, frames: int) -> Path:
    """Write a few different videos; the others are hard links to them."""
    folder.mkdir(parents=True)
    for i in range(DISTINCT):
        images = [resize_square(image[None], max(size))[0, : size[0], : size[1]] for image in scene(i, frames)]
        write_video(folder / f"{i:03d}.mp4", np.stack(images), 30)
    for i in range(DISTINCT, episodes):
        os.link(folder / f"{i % DISTINCT:03d}.mp4", folder / f"{i:03d}.mp4")
    return folder


def run_command(model: str, videos: Path, out: Path) -> float:
    """Score by the command; return the processor seconds of it and its decoding processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "demerit", "score", str(videos), "--model", model, "--rewards", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(run.stderr)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime


def measure(model: str, videos: Path, out: Path, frames: int) -> tuple[float, float]:
    """Return milliseconds of processor time per frame, with the start and once running."""
    whole, start = (run_command(model, videos, out) for _ in range(2))
    (folder,) = out.iterdir()
    assert sum(int(np.isfinite(reward.value).sum()) for reward in RewardStore(folder)) == frames
    return 1000 * whole / frames, 1000 * (whole - start) / frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["default"], metavar="NAME", help="as `demerit score --model`")
    parser.add_argument("--small", action="store_true", help="4 short videos, one round")
    given = parser.parse_args()
    episodes, frames, rounds = (DISTINCT, 16, 1) if given.small else (EPISODES, FRAMES, ROUNDS)
    print(f"{episodes} episodes of {frames} frames, median of {rounds} rounds; frames/s derived for two idle cores\n")
    print("| model | video | processor ms per frame | once running | frames/s | once running |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        folders = {title: write_videos(Path(scratch) / title, size, episodes, frames) for title, size in SIZES.items()}
        for place, model in enumerate(given.model):
            for title, videos in folders.items():
                outs = [Path(scratch) / f"{place}-{title}-{number}" for number in range(rounds)]
                found = [measure(model, videos, out, episodes * frames) for out in outs]
                costs = [statistics.median(column) for column in zip(*found, strict=True)]
                cells = [*(f"{cost:.2f}" for cost in costs), *(f"{2000 / cost:.0f}" for cost in costs)]
                print(f"| {model} | {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
