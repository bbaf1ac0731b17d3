"""Frames per second of CPU time of second towers, each alone on one thread, and the size of what is kept of them.

    python benchmarks/tower_speed.py droid dinov2-small    # the shipped one, a folder or an ONNX file
    python benchmarks/tower_speed.py                       # the vision tower of Qwen3-VL-4B's shape, random weights
    python benchmarks/tower_speed.py --small               # a small one, seconds

Resizing is not timed. A folder is converted first, which is timed once.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tower", nargs="*", help="droid, an ONNX file or a folder")
    parser.add_argument("--side", type=int, default=256, help="of the images of the random tower")
    parser.add_argument("--small", action="store_true")
    OPTIONS = parser.parse_args()  # before the imports that need extras: --help works without them

import numpy as np

from _vlm_networks import network_config
from demerit.training.teach.features import open_tower
from fakes.tiny_vlm import tiny_checkpoint


def measure(name: str | Path, batches: int) -> None:
    """Print the rate of one tower."""
    start = time.process_time()
    tower = open_tower(name)
    assert tower is not None
    opened, images = time.process_time() - start, np.zeros((8, tower.side, tower.side, 3), np.uint8)
    images[:] = np.random.default_rng(0).integers(0, 256, images.shape)
    tower(images)
    seconds = []
    for _ in range(batches):
        start = time.process_time()
        tower(images)
        seconds.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{Path(name).name}: {tower.side} pixels, {tower.width} features, {len(tower.content) / 2**20:.0f} MiB, "
        f"{8 / float(np.median(seconds)):.2f} frames per second of CPU time, "
        f"opened in {opened:.0f} s of it, at most {peak:.1f} GiB of memory"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "random"
        if OPTIONS.small or not OPTIONS.tower:
            tiny_checkpoint(made, vision=None if OPTIONS.small else network_config(small=False)["vision_config"])
            crop = {"height": OPTIONS.side, "width": OPTIONS.side}
            (made / "preprocessor_config.json").write_text(json.dumps({"crop_size": crop}))
        for tower in OPTIONS.tower or [made]:
            measure(tower, 2 if OPTIONS.small else 5)
