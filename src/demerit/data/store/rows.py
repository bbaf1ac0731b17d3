"""Episodes, preferences and problems as parquet rows, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from demerit.data.dataset import Problem
from demerit.data.episode import Edit, Episode, Origin
from demerit.data.frames import Frames, FrameSource, frame_source
from demerit.data.labels import Event, Outcome, Preference
from demerit.errors import StoreError

_event = pa.struct([("kind", pa.string()), ("first", pa.int32()), ("last", pa.int32()), ("note", pa.string())])
_outcome = pa.struct(
    [
        ("source", pa.string()),
        ("by", pa.string()),
        ("success", pa.bool_()),
        ("progress", pa.float64()),
        ("grade", pa.int8()),
        ("curve", pa.list_(pa.float32())),
        ("events", pa.list_(_event)),
        ("note", pa.string()),
    ]
)
_view = pa.struct(
    [
        ("camera", pa.string()),
        ("kind", pa.string()),
        ("path", pa.string()),
        ("fields", pa.string()),
        ("indices", pa.list_(pa.int32())),
    ]
)
_edit = pa.struct([("name", pa.string()), ("params", pa.string()), ("seed", pa.int64())])
_signal = pa.struct(
    [("name", pa.string()), ("dtype", pa.string()), ("shape", pa.list_(pa.int32())), ("data", pa.binary())]
)

ORIGIN_COLUMNS = ("dataset", "revision", "licence", "embodiment", "site", "split", "group", "parent")

EPISODES = pa.schema(
    [
        ("id", pa.string()),
        ("instruction", pa.string()),
        *((name, pa.string()) for name in ORIGIN_COLUMNS),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("cameras", pa.list_(pa.string())),
        ("frames", pa.int32()),
        ("seconds", pa.float64()),
        # The most trusted outcome again, flat, so that filters need not open the nested columns.
        ("success", pa.bool_()),
        ("progress", pa.float64()),
        ("grade", pa.int8()),
        ("vouched_by", pa.string()),
        ("has_curve", pa.bool_()),
        ("fingerprint", pa.string()),
        ("views", pa.list_(_view)),
        ("outcomes", pa.list_(_outcome)),
        ("edits", pa.list_(_edit)),
        ("signals", pa.list_(_signal)),
    ]
)
# Signals are by far the largest column; they are read only when somebody asks for one.
LIGHT_COLUMNS = [name for name in EPISODES.names if name != "signals"]
FILTER_COLUMNS = ("id", "instruction", *ORIGIN_COLUMNS, "success", "grade", "vouched_by")

PREFERENCES = pa.schema([(name, pa.string()) for name in ("a", "b", "verdict", "source", "why", "by")])
PROBLEMS = pa.schema(
    [
        ("kind", pa.string()),
        ("episode", pa.string()),
        ("detail", pa.string()),
        ("kept", pa.bool_()),
        ("episodes", pa.int32()),
    ]
)


def episode_row(episode: Episode, root: Path) -> dict[str, Any]:
    """Write an episode as a row; files inside `root` are named relative to it."""
    outcome = episode.outcome
    times = episode.main.times()
    return {
        "id": episode.id,
        "instruction": episode.instruction,
        **{name: getattr(episode.origin, name) for name in ORIGIN_COLUMNS},
        "tags": list(episode.origin.tags.items()),
        "cameras": list(episode.views),
        "frames": len(episode),
        "seconds": float(times[-1]) if len(times) else 0.0,
        "success": outcome and outcome.success,
        "progress": outcome and outcome.progress,
        "grade": outcome and outcome.grade,
        "vouched_by": outcome and outcome.source,
        "has_curve": any(account.curve is not None for account in episode.outcomes),
        "fingerprint": episode.fingerprint(),
        "views": [_view_row(camera, frames, root) for camera, frames in episode.views.items()],
        "outcomes": [_outcome_row(account) for account in episode.outcomes],
        "edits": [
            {"name": edit.name, "params": json.dumps(dict(edit.params), sort_keys=True), "seed": edit.seed}
            for edit in episode.edits
        ],
        "signals": [_signal_row(name, values) for name, values in episode.signals.items()],
    }


def row_episode(row: Mapping[str, Any], root: Path, signals: Mapping[str, npt.NDArray[Any]]) -> Episode:
    """Rebuild an episode from its row."""
    origin = Origin(**{name: row[name] for name in ORIGIN_COLUMNS}, tags=dict(row["tags"]))
    return Episode(
        id=row["id"],
        instruction=row["instruction"],
        views={view["camera"]: _row_view(view, root) for view in row["views"]},
        outcomes=tuple(_row_outcome(account) for account in row["outcomes"]),
        origin=origin,
        signals=signals,
        edits=tuple(Edit(edit["name"], json.loads(edit["params"]), edit["seed"]) for edit in row["edits"]),
    )


def preference_row(preference: Preference) -> dict[str, Any]:
    """Write a preference as a row."""
    return {name: getattr(preference, name) for name in PREFERENCES.names}


def problem_row(problem: Problem) -> dict[str, Any]:
    """Write a problem as a row."""
    return {name: getattr(problem, name) for name in PROBLEMS.names}


@dataclass(frozen=True)
class StoredSignals(Mapping[str, npt.NDArray[Any]]):
    """One episode's signals, read from its part when first asked for."""

    path: str
    row: int

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Read one signal."""
        for signal in self._rows():
            if signal["name"] == name:
                values = np.frombuffer(signal["data"], dtype=np.dtype(signal["dtype"]))
                return values.reshape(signal["shape"])
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return (signal["name"] for signal in self._rows())

    def __len__(self) -> int:
        """How many signals there are."""
        return len(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        return _signals_of(self.path, self.row)


@lru_cache(maxsize=16)
def _signals_of(path: str, row: int) -> list[dict[str, Any]]:
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if row < rows:
                    column = file.read_row_group(group, columns=["signals"]).column(0)
                    return list(column.slice(row, 1).to_pylist()[0])
                row -= rows
    except (OSError, pa.ArrowException) as error:
        raise StoreError(path, f"signals can no longer be read from it ({error})") from error
    raise StoreError(path, f"it has no row {row}")


def _view_row(camera: str, frames: Frames, root: Path) -> dict[str, Any]:
    path, fields = _address(frames.source, root)
    return {"camera": camera, "kind": frames.source.kind, "path": path, "fields": fields, "indices": frames.indices}


def _address(source: FrameSource, root: Path) -> tuple[str, str]:
    fields = source.describe()
    path = Path(fields.pop("path"))
    address = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    return address, json.dumps({name: value for name, value in fields.items() if value is not None})


def _row_view(view: Mapping[str, Any], root: Path) -> Frames:
    source = frame_source(view["kind"], {"path": str(root / view["path"]), **json.loads(view["fields"])})
    indices = view["indices"]
    return Frames(source, None if indices is None else np.asarray(indices, dtype=np.int32))


def _outcome_row(outcome: Outcome) -> dict[str, Any]:
    row = {name: getattr(outcome, name) for name in ("source", "by", "success", "progress", "grade", "note", "curve")}
    row["events"] = [vars(event) for event in outcome.events]
    return row


def _row_outcome(row: Mapping[str, Any]) -> Outcome:
    curve = row["curve"]
    events = tuple(Event(**event) for event in row["events"])
    # Parquet keeps NaN; an absent curve is None.
    known = {**row, "events": events, "curve": None if curve is None else np.asarray(curve, dtype=np.float32)}
    return Outcome(**known)


def _signal_row(name: str, values: npt.NDArray[Any]) -> dict[str, Any]:
    contiguous = np.ascontiguousarray(values)
    return {
        "name": name,
        "dtype": contiguous.dtype.str,
        "shape": list(contiguous.shape),
        "data": contiguous.tobytes(),
    }
