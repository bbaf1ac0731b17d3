"""Frames as files: parquet, npz, and the sidecars that LeRobot and RLinf read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from demerit.config import read_yaml
from demerit.data.arrays import Floats32
from demerit.data.episode import safe_name
from demerit.data.files import atomic_file, make_folder, write_atomic
from demerit.errors import StoreError
from demerit.use.write.frames import FrameRewards, label_advantages

PROGRESS = "sarm_progress.parquet"
WEIGHTS = "sample_weights.parquet"
MIXTURE = "meta/mixture_config.yaml"
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
    ids = pa.DictionaryArray.from_arrays(owner, pa.array([episode.id for episode in frames.episodes], pa.string()))
    success = pa.array([episode.success for episode in frames.episodes], pa.bool_()).take(owner)
    _write_table(dest, {"episode": ids, **frame_columns(frames), "success": success})


def write_npz(frames: FrameRewards, dest: Path) -> None:
    """Write the same arrays, with the ids and lengths of the episodes; success is 1, 0 or -1 (unknown) per episode."""
    _check_new(dest)
    make_folder(dest.parent)
    codes = {True: 1, False: 0, None: -1}
    success = np.array([codes[episode.success] for episode in frames.episodes], dtype=np.int8)
    ids, tasks = (
        np.array([getattr(episode, name) for episode in frames.episodes], dtype=str) for name in ("id", "task")
    )
    about = {"episode": ids, "task": tasks, "length": frames.spans.lengths, "success": success}
    with atomic_file(dest) as partial, open(partial, "wb") as file:
        np.savez(file, allow_pickle=False, **frame_columns(frames), **about)


def write_sidecars(frames: FrameRewards, folder: Path, tag: str, renumbered: bool = False) -> list[Path]:
    """Write what trainers read next to a LeRobot dataset; return the files.

    `sarm_progress.parquet` for LeRobot's RA-BC, `sample_weights.parquet` (every frame; dropped and unscored ones weigh
    0), and RLinf's `meta/returns_TAG.parquet`. With unscored frames only the weights are written: RA-BC would give
    those frames full weight, and returns would not be numbers. Other files in the folder stay. `renumbered`: the kept
    episodes are the whole dataset, numbered from 0.
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
        tasks = pa.array([episode.task for episode in frames.episodes], pa.string()).take(pa.array(owner))
        numbers = {"return": frames.returns.astype(np.float32), "reward": frames.reward.astype(np.float32)}
        tables[folder / f"meta/returns_{safe_name(tag)}.parquet"] = {**place, **numbers, "prompt": tasks}
    for path in tables:
        _check_new(path)
    for path, columns in tables.items():
        _write_table(path, columns)
    return list(tables)


def write_recap(frames: FrameRewards, folder: Path, tag: str, positive: float) -> list[Path]:
    """Write what the policy step of RLinf's RECAP reads; return the files.

    `meta/advantages_TAG.parquet` has a row for every frame of the dataset: a boolean `advantage`, and the number behind
    it. `meta/mixture_config.yaml` gets the entry `tags: TAG` with the thresholds; what else is in it stays.
    """
    tag, owner = safe_name(tag), frames.spans.owner
    path, config = folder / f"meta/advantages_{tag}.parquet", folder / MIXTURE
    mixture = read_yaml(config, expected="RLinf's settings", loader=yaml.SafeLoader) if config.exists() else {}
    tags = mixture["tags"] = mixture.get("tags") or {}
    if not isinstance(tags, dict) or tag in tags:
        raise StoreError(
            config, f"it has the tag {tag!r}, or tags that are no mapping (--set tag=NAME chooses another)"
        )
    labels, thresholds = label_advantages(frames, positive)
    keys = {"episode_index": frames.places[owner], "frame_index": frames.frame}
    _write_table(path, {**keys, "advantage": labels, "advantage_continuous": frames.advantage})
    # RLinf's tools read one threshold; with several tasks they find it in the table
    unified = {"unified_threshold": next(iter(thresholds.values()))} if len(thresholds) == 1 else {}
    tags[tag] = {**unified, "positive_quantile": positive, "task_thresholds": thresholds, "value_model": frames.model}
    write_atomic(config, yaml.safe_dump(mixture, sort_keys=False, allow_unicode=True).encode())
    return [path, config]


def read_weights(path: str | Path) -> Floats32:
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
