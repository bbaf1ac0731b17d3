"""Frames as files: parquet, npz, and the sidecars that LeRobot and RLinf read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from demerit.data.episode import safe_name
from demerit.data.files import atomic_file, make_folder
from demerit.errors import StoreError
from demerit.use.write.frames import FrameRewards

PROGRESS = "sarm_progress.parquet"
WEIGHTS = "sample_weights.parquet"
TEXTS = ("episode", "prompt")


def frame_columns(frames: FrameRewards) -> dict[str, npt.NDArray[Any]]:
    """The columns of a table with a row per kept frame."""
    spans = frames.spans
    columns: dict[str, npt.NDArray[Any]] = {
        "index": frames.index,
        "episode_index": frames.places[spans.owner],
        "frame_index": frames.frame,
        "value": frames.value.astype(np.float32),
        "reward": frames.reward.astype(np.float32),
        "return": frames.returns.astype(np.float32),
        "advantage": frames.advantage.astype(np.float32),
        "done": spans.is_last,
    }
    if frames.weight is not None:
        columns["weight"] = frames.weight.astype(np.float32)
    return columns


def write_parquet(frames: FrameRewards, dest: Path) -> None:
    """Write a row per kept frame, with the episode's id and success (null where unknown)."""
    owner = pa.array(frames.spans.owner.astype(np.int32))
    ids = pa.DictionaryArray.from_arrays(owner, pa.array([one.id for one in frames.episodes], pa.string()))
    success = pa.array([one.success for one in frames.episodes], pa.bool_()).take(owner)
    _write_table(dest, {"episode": ids, **frame_columns(frames), "success": success})


def write_npz(frames: FrameRewards, dest: Path) -> None:
    """Write the same arrays, with the ids and lengths of the episodes; success is 1, 0 or -1 (unknown) per episode."""
    _check_new(dest)
    make_folder(dest.parent)
    known = {True: 1, False: 0, None: -1}
    success = np.array([known[one.success] for one in frames.episodes], dtype=np.int8)
    ids, tasks = (np.array([getattr(one, name) for one in frames.episodes], dtype=str) for name in ("id", "task"))
    about = {"episode": ids, "task": tasks, "length": frames.spans.lengths, "success": success}
    with atomic_file(dest) as partial, open(partial, "wb") as file:
        np.savez(file, allow_pickle=False, **frame_columns(frames), **about)


def write_sidecars(frames: FrameRewards, folder: Path, tag: str, renumbered: bool = False) -> list[Path]:
    """Write what trainers read next to a LeRobot dataset; return the files.

    `sarm_progress.parquet` for LeRobot's RA-BC, `sample_weights.parquet` (every frame; dropped and unscored ones weigh
    0), and RLinf's `meta/returns_TAG.parquet`. With unscored frames only the weights are written: RA-BC would give
    those frames full weight, and returns would not be numbers.

    Args:
        frames: what to write.
        folder: where to; other files in it stay.
        tag: the end of the name of RLinf's file.
        renumbered: the kept episodes are the whole dataset, numbered from 0.
    """
    assert frames.progress is not None and frames.weight is not None
    owner = frames.spans.owner
    index = np.arange(len(owner)) if renumbered else frames.index
    place = {"episode_index": owner if renumbered else frames.places[owner], "frame_index": frames.frame}
    weights = np.zeros(len(owner) if renumbered else int(frames.lengths.sum()), dtype=np.float32)
    weights[index] = frames.weight
    progress = frames.progress.astype(np.float32)
    tables: dict[Path, Mapping[str, Any]] = {folder / WEIGHTS: {"index": np.arange(len(weights)), "weight": weights}}
    if not np.isnan(progress).any():
        # LeRobot reads the column of its head mode, which is "sparse" unless set.
        tables[folder / PROGRESS] = {"index": index, **place, "progress_sparse": progress, "progress_dense": progress}
        tasks = pa.array([one.task for one in frames.episodes], pa.string()).take(pa.array(owner))
        numbers = {"return": frames.returns.astype(np.float32), "reward": frames.reward.astype(np.float32)}
        tables[folder / f"meta/returns_{safe_name(tag)}.parquet"] = {**place, **numbers, "prompt": tasks}
    for path in tables:
        _check_new(path)
    for path, columns in tables.items():
        _write_table(path, columns)
    return list(tables)


def read_weights(path: str | Path) -> npt.NDArray[np.float32]:
    """Read `sample_weights.parquet`: the weight of each frame by its index, 0 for frames that are not in the file."""
    try:
        table = pq.read_table(path, columns=["index", "weight"])
    except (OSError, KeyError, pa.ArrowException) as error:
        raise StoreError(path, f"it is not a file of sample weights ({str(error).splitlines()[0]})") from None
    index, weight = (table.column(name).to_numpy() for name in ("index", "weight"))
    if index.min(initial=0) < 0 or not np.isfinite(weight).all() or weight.min(initial=0) < 0:
        raise StoreError(path, "it has negative indices, or weights that are not 0 or more")
    weights = np.zeros(int(index.max(initial=-1)) + 1, dtype=np.float32)
    weights[index] = weight
    return weights


def _write_table(path: Path, columns: Mapping[str, Any]) -> None:
    _check_new(path)
    make_folder(path.parent)
    with atomic_file(path) as partial:
        # numbers hardly repeat: dictionaries of them cost five times the time
        pq.write_table(pa.table(dict(columns)), partial, use_dictionary=[name for name in TEXTS if name in columns])


def _check_new(path: Path) -> None:
    if path.exists():
        raise StoreError(path, "it exists; nothing is overwritten")
