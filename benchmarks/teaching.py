"""How long teaching takes, decoding included, against what is promised: 10, 40 and 500 episodes.

    python benchmarks/teaching.py [--network DIR] [--episodes 10 40 500]

Episodes of 200 frames of 240 x 320, H.264, a verdict each. Each is taught in a process of its own, from nothing; then
once more from what was kept, which is what ten more labels cost.
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

PROMISED = {10: 60.0, 40: 180.0, 500: 900.0}
DISTINCT, FRAMES, HEIGHT, WIDTH = 40, 200, 240, 320
MAIN = "from demerit.cli import main; main()"


def draw(success: bool, seed: int) -> np.ndarray:
    """A block that is pushed to the right, on a grainy table."""
    rng = np.random.default_rng(seed)
    course = np.clip(np.linspace(0, 1.2, FRAMES), 0, 1)
    course = course if success else np.minimum(course, rng.uniform(0.1, 0.6))
    table = rng.integers(60, 120, (HEIGHT // 8, WIDTH // 8, 3)).repeat(8, 0).repeat(8, 1)
    images = np.empty((FRAMES, HEIGHT, WIDTH, 3), dtype=np.uint8)
    for image, value in zip(images, course, strict=True):
        image[...] = table + rng.integers(-6, 6, table.shape)
        left = round(20 + value * (WIDTH - 80))
        image[100:140, left : left + 40] = (220, 50, 40)
    return images


def make(folder: Path, count: int) -> None:
    """Write the episodes; from the 41st on copies with another tail, which no decoder minds and every hash notices."""
    folder.mkdir()
    lines = ["file,instruction,success"]
    for number in range(count):
        path = folder / f"{number:03d}.mp4"
        if number < DISTINCT:
            write_video(path, draw(number % 2 == 0, number), 20.0)
        else:
            shutil.copyfile(folder / f"{number % DISTINCT:03d}.mp4", path)
            with open(path, "ab") as file:
                file.write((16).to_bytes(4, "big") + b"free" + number.to_bytes(8, "big"))
        lines.append(f"{path.name},push the block to the right,{str(number % 2 == 0).lower()}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


def taught(folder: Path, out: Path, network: str) -> float:
    started = time.monotonic()
    more = ["--network", network] if network else []
    command = [sys.executable, "-c", MAIN, "teach", str(folder), "-o", str(out), *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="", help="another trained network than the one that ships")
    parser.add_argument("--episodes", type=int, nargs="+", default=list(PROMISED))
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, {FRAMES} frames of {HEIGHT} x {WIDTH} an episode")
    print("| episodes | seconds | promised | frames/s, everything included | again |\n|---|---|---|---|---|")
    for count in given.episodes:
        with tempfile.TemporaryDirectory() as place:
            videos, model = Path(place) / "videos", Path(place) / "model"
            make(videos, count)
            first, again = (taught(videos, model, given.network) for _ in range(2))
        limit = PROMISED.get(count)
        print(f"| {count} | {first:.1f} | {limit or '-'} | {count * FRAMES / first:.0f} | {again:.1f} |", flush=True)


if __name__ == "__main__":
    main()
