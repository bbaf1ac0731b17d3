"""How long `demerit teach` takes, decoding included, without and with a reader, and how fast the taught models score.

    python benchmarks/teaching.py [--network DIR] [--episodes 10 40 500] [--small]

Episodes of 200 frames of 240 x 320 pixels, H.264, labelled with success. Each run is a process of its own; `again` is a
second run from the feature cache. Scoring is of frames in memory. Readers need torch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from demerit.data.episode import Episode
from demerit.data.video import write_video
from demerit.models import load_model

ALLOWED = {10: 60.0, 40: 180.0, 500: 900.0}
"""seconds that the documentation promises"""
DISTINCT, FRAMES, SMALL_FRAMES, HEIGHT, WIDTH = 40, 200, 12, 240, 320
MAIN = "from demerit.cli import main; main()"


def draw(success: bool, seed: int, frames: int) -> np.ndarray:
    """Draw a block that is pushed to the right on a noisy table."""
    rng = np.random.default_rng(seed)
    course = np.clip(np.linspace(0, 1.2, frames), 0, 1)
    course = course if success else np.minimum(course, rng.uniform(0.1, 0.6))
    table = rng.integers(60, 120, (HEIGHT // 8, WIDTH // 8, 3)).repeat(8, 0).repeat(8, 1)
    images = np.empty((frames, HEIGHT, WIDTH, 3), dtype=np.uint8)
    for image, value in zip(images, course, strict=True):
        image[...] = table + rng.integers(-6, 6, table.shape)
        left = round(20 + value * (WIDTH - 80))
        image[100:140, left : left + 40] = (220, 50, 40)
    return images


def make(folder: Path, count: int, frames: int) -> None:
    """Write the episodes; from the 41st on they are copies with extra bytes at the end, which change only the hash."""
    folder.mkdir()
    lines = ["file,instruction,success"]
    for number in range(count):
        path = folder / f"{number:03d}.mp4"
        if number < DISTINCT:
            write_video(path, draw(number % 2 == 0, number, frames), 20.0)
        else:
            shutil.copyfile(folder / f"{number % DISTINCT:03d}.mp4", path)
            with open(path, "ab") as file:
                file.write((16).to_bytes(4, "big") + b"free" + number.to_bytes(8, "big"))
        lines.append(f"{path.name},push the block to the right,{str(number % 2 == 0).lower()}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


def time_teach(folder: Path, out: Path, *options: str) -> float:
    started = time.monotonic()
    command = [sys.executable, "-c", MAIN, "teach", str(folder), "-o", str(out), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="", help="use this trained network instead of the shipped one")
    parser.add_argument("--episodes", type=int, nargs="+", default=list(ALLOWED))
    parser.add_argument("--small", action="store_true", help="4 short episodes")
    given = parser.parse_args()
    frames = SMALL_FRAMES if given.small else FRAMES
    print(f"{os.cpu_count()} cores, {frames} frames of {HEIGHT} x {WIDTH} per episode\n")
    print("| episodes | head | seconds | promised | again | scored frames/s |\n|---|---|---|---|---|---|")
    for count in [4] if given.small else given.episodes:
        with tempfile.TemporaryDirectory() as place:
            videos = Path(place) / "videos"
            make(videos, count, frames)
            for name, more in (("closed form", ["--no-reader"]), ("with a reader", [])):
                options = [*more, *(["--network", given.network] if given.network else [])]
                model = Path(place) / name.replace(" ", "-")
                first, again = (time_teach(videos, model, *options) for _ in range(2))
                limit = ALLOWED.get(count, "-") if more else "-"
                rate = measure_scoring(model, frames)
                print(f"| {count} | {name} | {first:.1f} | {limit} | {again:.1f} | {rate:.0f} |", flush=True)


def measure_scoring(model: Path, frames: int) -> float:
    """Return the frames per second of three episodes; the best of three runs."""
    taught = load_model(str(model))
    episode = Episode.from_array(np.concatenate([draw(True, seed, frames) for seed in range(3)]), "push the block")
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        taught.score([episode])
        seconds.append(time.perf_counter() - started)
    return 3 * frames / min(seconds)


if __name__ == "__main__":
    main()
