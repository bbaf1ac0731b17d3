"""How long `demerit teach` takes, decoding included: 10, 40 and 500 episodes.

    python benchmarks/teaching.py [--network DIR] [--episodes 10 40 500] [--small]

Episodes of 200 frames of 240 x 320 pixels, H.264, labelled with success. Each run is a process of its own; `again` is a
second run from the feature cache.
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

from demerit.data.video import write_video

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


def time_teach(folder: Path, out: Path, network: str) -> float:
    started = time.monotonic()
    more = ["--network", network] if network else []
    command = [sys.executable, "-c", MAIN, "teach", str(folder), "-o", str(out), *more]
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
    print("| episodes | seconds | promised | frames/s, everything included | again |\n|---|---|---|---|---|")
    for count in [4] if given.small else given.episodes:
        with tempfile.TemporaryDirectory() as place:
            videos, model = Path(place) / "videos", Path(place) / "model"
            make(videos, count, frames)
            first, again = (time_teach(videos, model, given.network) for _ in range(2))
        limit = ALLOWED.get(count)
        print(f"| {count} | {first:.1f} | {limit or '-'} | {count * frames / first:.0f} | {again:.1f} |", flush=True)


if __name__ == "__main__":
    main()
