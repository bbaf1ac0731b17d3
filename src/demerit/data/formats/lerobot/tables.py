"""The parquet files of a LeRobot v3.0 dataset that is being written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from demerit.data.episode import Episode
from demerit.data.formats.lerobot.info import FRAME_SUCCESS
from demerit.data.formats.lerobot.stats import MEASURES, Moments
from demerit.data.formats.lerobot.video_files import Placement, chunk_and_file
from demerit.data.formats.lerobot.write_plan import Plan

EPISODES_AT_ONCE = 256
ARROW = {"float32": pa.float32(), "int64": pa.int64(), "bool": pa.bool_()}


class TableWriter(pq.ParquetWriter):  # type: ignore[misc]  # pyarrow has no types
    """Parquet's own writer, which gives up on a file that cannot be finished instead of trying once more when dropped.

    That second attempt would fail as well, as a traceback behind the sentence that the user gets.
    """

    def close(self) -> None:
        """Finish the file, or raise once."""
        try:
            super().close()
        finally:
            self.is_open = False


class DataTables:
    """data/chunk-*/file-*.parquet: a row group an episode, as LeRobot writes them."""

    def __init__(self, root: Path, plan: Plan, limit_mb: float) -> None:
        """Nothing is opened yet."""
        self._root, self._limit = root, limit_mb * 1e6
        self._columns = {**plan.numbers(), FRAME_SUCCESS: ("bool", None)}
        self._number = -1
        self._writer: Any = None

    def add(self, columns: Mapping[str, npt.NDArray[Any]], success: bool | None) -> tuple[int, int]:
        """Append an episode's rows and return the chunk and file that they are in."""
        if self._writer is None or self._path(self._number).stat().st_size > self._limit:
            self.close()
            self._number += 1
            self._path(self._number).parent.mkdir(parents=True, exist_ok=True)
            self._writer = TableWriter(self._path(self._number), _data_schema(self._columns))
        frames = len(columns["index"])
        # A success shows on the last frame alone; an unknown outcome is null on all of them.
        verdict = [None] * frames if success is None else [False] * (frames - 1) + [success]
        arrays = [_arrow(columns[key], *kind) for key, kind in self._columns.items() if key != FRAME_SUCCESS]
        self._writer.write_table(
            pa.Table.from_arrays([*arrays, pa.array(verdict, pa.bool_())], schema=self._writer.schema)
        )
        return chunk_and_file(self._number)

    def close(self) -> None:
        """Finish the current file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def drop(self, column: str) -> None:
        """Take a column out of every file, a row group at a time."""
        kept = {key: kind for key, kind in self._columns.items() if key != column}
        for number in range(self._number + 1):
            path = self._path(number)
            with pq.ParquetFile(path) as file, TableWriter(path.with_suffix(".tmp"), _data_schema(kept)) as writer:
                for group in range(file.metadata.num_row_groups):
                    writer.write_table(file.read_row_group(group).select(list(kept)).cast(writer.schema))
            path.with_suffix(".tmp").replace(path)

    def _path(self, number: int) -> Path:
        chunk, file = chunk_and_file(number)
        return self._root / f"data/chunk-{chunk:03d}/file-{file:03d}.parquet"


class EpisodeTable:
    """meta/episodes/chunk-000/file-000.parquet, written some hundred rows at a time."""

    def __init__(self, root: Path, plan: Plan) -> None:
        """Nothing is opened yet."""
        self._path = root / "meta/episodes/chunk-000/file-000.parquet"
        self._kinds = {key: dtype for key, (dtype, _) in plan.numbers().items() if dtype != "bool"}
        self._kinds |= {camera.key: "video" for camera in plan.cameras}
        self._schema = _episode_schema([camera.key for camera in plan.cameras], self._kinds)
        self._waiting: list[dict[str, Any]] = []
        self._writer: Any = None

    def add(
        self,
        episode: Episode,
        *,
        index: int,
        rows: tuple[int, int],
        data: tuple[int, int],
        clips: Mapping[str, Placement],
        stats: Mapping[str, Moments],
    ) -> None:
        """Note one episode."""
        row: dict[str, Any] = {
            "episode_index": index,
            "tasks": [episode.instruction],
            "length": rows[1] - rows[0],
            "data/chunk_index": data[0],
            "data/file_index": data[1],
            "dataset_from_index": rows[0],
            "dataset_to_index": rows[1],
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        for key, clip in clips.items():
            row |= {f"videos/{key}/chunk_index": clip.chunk, f"videos/{key}/file_index": clip.file}
            row |= {f"videos/{key}/from_timestamp": clip.start, f"videos/{key}/to_timestamp": clip.stop}
        for key, kind in self._kinds.items():
            measures = stats[key].measures(kind) or {}
            row |= {f"stats/{key}/{name}": measures.get(name) for name in MEASURES}
        outcome = episode.outcome
        if outcome is not None:
            row |= {"success": outcome.success, "vouched_by": outcome.source}
            row |= {"progress": outcome.progress, "grade": outcome.grade}
        self._waiting.append(row)
        if len(self._waiting) >= EPISODES_AT_ONCE:
            self._flush()

    def close(self) -> None:
        """Write what is waiting and finish the file."""
        if self._waiting:
            self._flush()
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _flush(self) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = TableWriter(self._path, self._schema)
        self._writer.write_table(pa.Table.from_pylist(self._waiting, schema=self._schema))
        self._waiting = []


def write_tasks(path: Path, tasks: Sequence[str]) -> None:
    """Write the tasks so that pandas, which LeRobot reads them with, takes the texts for the index."""
    index = "__index_level_0__"
    column = {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    text = {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object"}
    pandas = {
        "index_columns": [index],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }
        ],
        "columns": [{**column, "metadata": None}, {**text, "metadata": None}],
        "attributes": {},
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    schema = pa.schema([("task_index", pa.int64()), (index, pa.string())], {"pandas": json.dumps(pandas)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with TableWriter(path, schema) as writer:
        writer.write_table(pa.table([list(range(len(tasks))), list(tasks)], schema=schema))


def _data_schema(columns: Mapping[str, tuple[str, int | None]]) -> Any:
    fields, features = [], {}
    for key, (dtype, width) in columns.items():
        value = {"dtype": dtype, "_type": "Value"}
        fields.append((key, ARROW[dtype] if width is None else pa.list_(ARROW[dtype], width)))
        features[key] = value if width is None else {"feature": value, "length": width, "_type": "List"}
    # The datasets library restores its own types from this note.
    return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": features}})})


def _arrow(values: npt.NDArray[Any], dtype: str, width: int | None) -> Any:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1), ARROW[dtype])
    return flat if width is None else pa.FixedSizeListArray.from_arrays(flat, width)


def _episode_schema(cameras: Sequence[str], kinds: Mapping[str, str]) -> Any:
    first = ["data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index"]
    fields = [("episode_index", pa.int64()), ("tasks", pa.list_(pa.string())), ("length", pa.int64())]
    fields += [(name, pa.int64()) for name in first]
    for key in cameras:
        fields += [(f"videos/{key}/{part}", pa.int64()) for part in ("chunk_index", "file_index")]
        fields += [(f"videos/{key}/{part}", pa.float64()) for part in ("from_timestamp", "to_timestamp")]
    for key, kind in kinds.items():
        for measure in MEASURES:
            number = (
                pa.int64() if measure == "count" or (kind == "int64" and measure in ("min", "max")) else pa.float64()
            )
            vector = pa.list_(number)
            is_colour = kind == "video" and measure != "count"
            fields.append((f"stats/{key}/{measure}", pa.list_(pa.list_(vector)) if is_colour else vector))
    fields += [("meta/episodes/chunk_index", pa.int64()), ("meta/episodes/file_index", pa.int64())]
    # Beyond the format: what demerit's reader gets its outcomes back from.
    fields += [("success", pa.bool_()), ("vouched_by", pa.string())]
    fields += [("progress", pa.float64()), ("grade", pa.int64())]
    return pa.schema(fields)
