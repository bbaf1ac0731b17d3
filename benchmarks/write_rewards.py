"""Sample weights of a million frames: time to compute, to write and to load, and LeRobot's loader beside it.

    python benchmarks/write_rewards.py [--frames N] [--small]

Run with the Python of `make test-lerobot`, it also times LeRobot's own RABCWeights on the same file.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from demerit.models.protocol import example_card
from demerit.use.write.frames import EpisodeFrames, RewardRecipe, lay_out
from demerit.use.write.tables import PROGRESS, WEIGHTS, read_weights, write_sidecars

EPISODE = 200
"""frames"""


def make_episodes(frames: int) -> list[EpisodeFrames]:
    rng = np.random.default_rng(0)
    curves = np.clip(np.cumsum(rng.normal(0.005, 0.02, (frames // EPISODE, EPISODE)), axis=1), 0, 1)
    nothing = np.zeros(EPISODE, dtype=bool)
    return [
        EpisodeFrames(f"set/episode_{place:06d}", f"task {place % 40}", curve.astype(np.float32), nothing, True)
        for place, curve in enumerate(curves)
    ]


def timed(title: str, work: Callable[[], Any]) -> Any:
    start, busy = time.perf_counter(), time.process_time()
    result = work()
    print(f"{title:50s} {time.perf_counter() - start:8.3f} s, of it computing {time.process_time() - busy:7.3f} s")
    return result


def main(count: int) -> None:
    episodes = make_episodes(count)
    print(f"{count:,} frames in {len(episodes):,} episodes")
    frames = timed(
        "rewards, returns, advantages and weights", lambda: lay_out(episodes, RewardRecipe(), example_card())
    )
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        timed("write the three sidecars, synced to disk", lambda: write_sidecars(frames, place, "mine"))
        weights = timed("load the weights", lambda: read_weights(place / WEIGHTS))
        assert len(weights) == count
        if importlib.util.find_spec("lerobot") is None:
            print("LeRobot's RABCWeights: not installed here (make test-lerobot)")
            return
        from lerobot.utils.rabc import RABCWeights  # type: ignore[import-not-found,unused-ignore]

        timed("load the progress with LeRobot's RABCWeights", lambda: RABCWeights(place / PROGRESS, device="cpu"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--small", action="store_true", help="20,000 frames")
    options = parser.parse_args()
    main(20_000 if options.small else options.frames)
