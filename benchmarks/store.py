"""A dataset folder with a million episodes: time and memory to write, open, filter, stream and append.

python benchmarks/store.py [--episodes N] [--small]
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.files import lock_folder
from demerit.data.frames import Frames
from demerit.data.parts import PartWriter
from demerit.data.store import EPISODES, FORMAT_NAME, MANIFEST, SCHEMAS, Store, episode_row
from demerit.data.video import write_video

BATCH = 50_000


def fill(store: Store, episodes: int, video: Path) -> None:
    """Write many rows at a time: a template row with some columns replaced."""
    frames = Frames.from_video(video)
    outcome = Outcome("human", success=True, progress=1.0, curve=np.linspace(0, 1, 12))
    template = episode_row(Episode("x", "put it there", {"main": frames}, (outcome,)), store.root)
    rng = np.random.default_rng(0)
    with lock_folder(store.root):
        parts = PartWriter(store.root / MANIFEST, FORMAT_NAME, store.manifest, SCHEMAS)
        for start in range(0, episodes, BATCH):
            count = min(BATCH, episodes - start)
            table = pa.Table.from_pylist([template], EPISODES).take([0] * count)
            columns = {
                "id": [f"set/episode_{i:08d}" for i in range(start, start + count)],
                "dataset": [f"set{i}" for i in rng.integers(0, 20, count)],
                "instruction": [f"task number {i}" for i in rng.integers(0, 5000, count)],
                "success": [(True, False, None)[i] for i in rng.integers(0, 3, count)],
                "fingerprint": [f"{i:032x}" for i in range(start, start + count)],
            }
            for name, values in columns.items():
                place = table.schema.get_field_index(name)
                table = table.set_column(place, table.schema.field(name), pa.array(values, EPISODES.field(name).type))
            parts.commit({"episodes": table})


def timed(title: str, work: object) -> float:
    start = time.perf_counter()
    result = work()  # type: ignore[operator]
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{title:45s} {seconds:8.3f} s   peak memory {peak:6.0f} MB   {result}")
    return seconds


def in_child(work: object) -> None:
    """Measure in a child process, so that the memory is this task's alone."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        work()  # type: ignore[operator]
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit("a measurement failed")


def append(root: Path, video: Path) -> str:
    before = {path.name: path.stat().st_mtime_ns for path in (root / "episodes").iterdir()}
    with Store(root).writer() as writer:
        for i in range(1000):
            outcomes = (Outcome("human", success=bool(i % 2)),)
            writer.add(Episode(f"new/{i}", "new", {"main": Frames.from_video(video)}, outcomes, Origin(dataset="new")))
    after = {path.name: path.stat().st_mtime_ns for path in (root / "episodes").iterdir()}
    untouched = sum(after.get(name) == when for name, when in before.items())
    return f"{untouched} of {len(before)} parts untouched, {len(Store(root))} episodes"


def main(episodes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        root, video = Path(name) / "set", Path(name) / "v.mp4"
        write_video(video, np.zeros((12, 32, 32, 3), np.uint8))
        in_child(lambda: timed(f"write {episodes:,} rows", lambda: fill(Store.create(root, "set"), episodes, video)))
        size = sum(path.stat().st_size for path in root.rglob("*.parquet")) / 2**20
        print(f"on disk: {size:.0f} MB")
        in_child(lambda: timed("open", lambda: f"{len(Store(root)):,} episodes"))
        where = {"success": False, "dataset": "set7"}
        in_child(lambda: timed("filter by outcome and dataset", lambda: f"{len(Store(root).ids(where)):,} found"))
        in_child(lambda: timed("find one by id", lambda: Store(root).episode(f"set/episode_{episodes - 1:08d}").id))
        in_child(lambda: timed("stream everything", lambda: f"{sum(1 for _ in Store(root).episodes()):,} episodes"))
        in_child(lambda: timed("append 1,000", lambda: append(root, video)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--small", action="store_true", help="2,000 episodes")
    options = parser.parse_args()
    main(2_000 if options.small else options.episodes)
