"""The metadata of a LeRobot dataset: info.json, tasks and episodes, and outcomes from label columns.

v2 keeps tasks and episodes as lines of JSON, v3 as parquet. LeRobot defines no outcome columns; the ones read here are
conventions, and the outcome names its column.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from demerit.data.dataset import Problem
from demerit.data.episode import LABEL_SOURCES, LabelSource, Outcome
from demerit.data.stages import StagePlan, StageSpan, place_stages, share_progress, trim_stages
from demerit.errors import BadInput

VERSIONS = ("v2.0", "v2.1", "v3.0")
NEWER = re.compile(r"v3\.[1-9]\d{0,3}")
"""versions that are read as v3.0 with a note; LeRobot counts the first number up when old readers cannot read it"""
IMAGES_PREFIX = "observation.images."
FRAME_SUCCESS = "next.success"
# Bookkeeping and outcome columns, which are not signals.
NOT_SIGNALS = frozenset(
    {"timestamp", "frame_index", "episode_index", "index", "task_index", "next.done", FRAME_SUCCESS}
)
HIGHEST_FPS = 100_000
PADDED = re.compile(r"(0\d{1,2})?d?")
"""format of a number in a path"""
NUMBERS = re.compile(r"(float|int|uint)\d+|bool")
CARD_LICENCE = re.compile(r"^license:[ \t]*['\"]?([^\s'\"\[]+)", re.MULTILINE)
CARD_LICENCE_NAME = re.compile(r"^license_name:[ \t]*['\"]?([^\n'\"]+?)['\"]?[ \t]*$", re.MULTILINE)
"""used by cards whose licence is `other`"""
CARD_BYTES = 65536


@dataclass(frozen=True)
class LeRobotInfo:
    """The checked content of meta/info.json."""

    root: Path
    version: str
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    """column or video key to its dtype, shape and names"""
    data_path: str
    video_path: str
    """templates of paths below the root"""
    chunks_size: int
    robot_type: str
    total_episodes: int | None
    splits: Mapping[str, range]
    """split to its episode indices"""
    unread_splits: tuple[str, ...] = ()
    """splits whose episode ranges cannot be parsed"""

    @property
    def is_v3(self) -> bool:
        """Whether many episodes share a file."""
        return self.version.startswith("v3.")

    def cameras(self) -> dict[str, str]:
        """Camera name to feature key, in file order; depth maps are skipped."""
        keys = [key for key, feature in self.features.items() if _is_camera(feature)]
        short = [key.removeprefix(IMAGES_PREFIX) for key in keys]
        return {name if short.count(name) == 1 else key: key for name, key in zip(short, keys, strict=True)}

    def signals(self) -> dict[str, str]:
        """Signal name to column: every numeric feature that is not in NOT_SIGNALS."""
        keys = [key for key, feature in self.features.items() if key not in NOT_SIGNALS and _is_numeric(feature)]
        return {("state" if key == "observation.state" and "state" not in keys else key): key for key in keys}

    def is_video(self, key: str) -> bool:
        """Whether a camera's frames are in video files (else inside the data files)."""
        return self.features[key].get("dtype") == "video"

    def split_of(self, episode: int) -> str:
        """The first split with this episode; empty if none."""
        return next((name for name, indices in self.splits.items() if episode in indices), "")


def read_info(path: str | Path) -> LeRobotInfo:
    """Read and check meta/info.json."""
    root = Path(path).expanduser().absolute()
    raw = _read_object(root)
    version = raw.get("codebase_version")
    if version not in VERSIONS and not (isinstance(version, str) and NEWER.fullmatch(version)):
        versions = f"{', '.join(VERSIONS)} or another v3"
        raise BadInput(f"codebase_version in {root / 'meta/info.json'}", versions, repr(version))
    fps = _field(raw, root, "fps", (int, float))
    if not 0 < fps <= HIGHEST_FPS:
        raise BadInput(f"fps in {root / 'meta/info.json'}", f"a positive number up to {HIGHEST_FPS}", fps)
    features = _field(raw, root, "features", dict)
    for key, feature in features.items():
        if not isinstance(feature, dict):
            raise BadInput(f"feature {key!r} in {root / 'meta/info.json'}", "an object with a dtype", repr(feature))
    splits, unread = _splits(raw.get("splits"))
    chunks_size, total = whole_number(raw.get("chunks_size")), whole_number(raw.get("total_episodes"))
    return LeRobotInfo(
        root=root,
        version=version,
        fps=float(fps),
        features=features,
        data_path=_template(raw, root, "data_path", version),
        # null for datasets of images
        video_path=_template(raw, root, "video_path", version) if raw.get("video_path") else "",
        chunks_size=chunks_size if chunks_size and chunks_size > 0 else 1000,
        robot_type=str(raw.get("robot_type") or ""),
        total_episodes=total,
        splits=splits,
        unread_splits=unread,
    )


def whole_number(value: object) -> int | None:
    """The value as an integer if it is a whole number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else None


def stays_inside(relative: str) -> bool:
    """Whether a path from the metadata stays below the dataset's root.

    By its words only: links are followed, because download caches are made of links that point outside.
    """
    normal = os.path.normpath(relative.replace("\\", "/"))
    return not (os.path.isabs(normal) or normal == ".." or normal.startswith("../") or re.match(r"[A-Za-z]:", normal))


def read_card_licence(root: Path) -> str:
    """The licence named in the dataset card (README.md); empty if none."""
    try:
        with open(root / "README.md", encoding="utf-8", errors="replace") as card:
            text = card.read(CARD_BYTES)
    except OSError:
        return ""
    front = text.split("\n---", 1)[0] if text.startswith("---") else ""
    licence = CARD_LICENCE.search(front)
    custom_name = CARD_LICENCE_NAME.search(front) if licence and licence.group(1) == "other" else None
    return custom_name.group(1) if custom_name else licence.group(1) if licence else ""


def _is_camera(feature: Mapping[str, Any]) -> bool:
    details = feature.get("info") or feature.get("video_info") or {}
    is_depth = isinstance(details, dict) and bool(details.get("video.is_depth_map"))
    return feature.get("dtype") in ("video", "image") and not is_depth


def _is_numeric(feature: Mapping[str, Any]) -> bool:
    return NUMBERS.fullmatch(str(feature.get("dtype"))) is not None


def _read_object(root: Path) -> dict[str, Any]:
    path = root / "meta" / "info.json"
    try:
        raw = json.loads(path.read_bytes())
    except OSError:
        raise BadInput(f"LeRobot dataset {root}", "a folder with meta/info.json in it", _what_is_there(root)) from None
    except (ValueError, RecursionError) as broken:
        raise BadInput(str(path), "JSON", f"something else ({broken})") from None
    if not isinstance(raw, dict):
        raise BadInput(str(path), "a JSON object", f"a {type(raw).__name__}")
    return raw


def _what_is_there(root: Path) -> str:
    if not root.is_dir():
        return "a file" if root.exists() else "a path that does not exist"
    if (root / "info.json").is_file():
        return f"its meta folder (did you mean {root.parent}?)"
    below = sorted(entry.name for entry in root.iterdir() if (entry / "meta" / "info.json").is_file())
    return f"a folder of datasets (did you mean {root / below[0]}?)" if below else "a folder without it"


def _field(raw: Mapping[str, Any], root: Path, name: str, kind: type | tuple[type, ...]) -> Any:
    value = raw.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = "an object" if kind is dict else "a text" if kind is str else "a number"
        raise BadInput(f"{name} in {root / 'meta/info.json'}", wanted, repr(value))
    return value


def _template(raw: Mapping[str, Any], root: Path, name: str, version: str) -> str:
    """Read a template that is safe to format: known fields only, numbers with at most two digits of width."""
    template = str(_field(raw, root, name, str))
    numbers = ("chunk_index", "file_index") if version.startswith("v3.") else ("episode_chunk", "episode_index")
    try:
        parts = [(key, spec, conversion) for _, key, spec, conversion in Formatter().parse(template)]
    except ValueError:  # a single brace
        parts = [("", "", "")]
    for key, spec, conversion in parts:
        is_number = key in numbers and PADDED.fullmatch(spec or "")
        if key is not None and (conversion or not (is_number or (key == "video_key" and not spec))):
            allowed = f"a path with {{video_key}}, {{{numbers[0]}:03d}}, {{{numbers[1]}:03d}} in it"
            raise BadInput(f"{name} in {root / 'meta/info.json'}", allowed, repr(template))
    return template


def _splits(raw: object) -> tuple[dict[str, range], tuple[str, ...]]:
    splits: dict[str, range] = {}
    unread = []
    for name, text in raw.items() if isinstance(raw, dict) else ():
        bounds = re.fullmatch(r"\s*(\d{1,15})\s*:\s*(\d{1,15})\s*", str(text))
        if bounds:
            splits[str(name)] = range(int(bounds.group(1)), int(bounds.group(2)))
        else:
            unread.append(f"{name}: {text}")
    return splits, tuple(unread)


METADATA_BATCH = 512
PARQUET_ERRORS = (OSError, pa.ArrowException)


@dataclass(frozen=True)
class LeRobotClip:
    """The position of an episode in a camera's video."""

    path: str
    """relative to the dataset's root"""
    start: float | None = None
    stop: float | None = None


@dataclass(frozen=True)
class LeRobotEntry:
    """The metadata of an episode. None = unknown."""

    index: int
    tasks: tuple[str, ...]
    length: int | None
    data: str
    """the data file, relative to the dataset's root"""
    clips: Mapping[str, LeRobotClip]
    """feature key to video"""
    labels: Mapping[str, Any] = field(default_factory=dict)
    """episode-level label columns"""


def read_entries(info: LeRobotInfo, labels: Sequence[str]) -> Iterator[LeRobotEntry | Problem]:
    """Stream the episodes' metadata in the dataset's order."""
    return _rows_of_parquet(info, labels) if info.is_v3 else _lines_of_json(info, labels)


def read_tasks(info: LeRobotInfo) -> tuple[dict[int, str], list[Problem]]:
    """Read the tasks by index, and the problems."""
    return _tasks_parquet(info) if info.is_v3 else _tasks_json(info)


def episode_columns(info: LeRobotInfo) -> list[str]:
    """List the episode-level columns, from the first line or file."""
    if info.is_v3:
        for path in _metadata_files(info):
            try:
                return [str(name) for name in pq.read_schema(path).names]
            except PARQUET_ERRORS:
                continue
        return []
    records = (record for _, record in json_lines(info.root / "meta/episodes.jsonl") if isinstance(record, dict))
    return list(next(records, {}))


def json_lines(path: Path) -> Iterator[tuple[int, object]]:
    """Stream (line number, value or error); empty lines are skipped."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as broken:
                yield number, broken


def _lines_of_json(info: LeRobotInfo, labels: Sequence[str]) -> Iterator[LeRobotEntry | Problem]:
    for number, record in json_lines(info.root / "meta/episodes.jsonl"):
        index = whole_number(record.get("episode_index")) if isinstance(record, dict) else None
        if not isinstance(record, dict) or index is None or index < 0:
            why = str(record) if isinstance(record, Exception) else "it names no episode_index"
            yield Problem("malformed metadata", f"meta/episodes.jsonl line {number}", why, kept=False)
            continue
        fields = {"episode_chunk": index // info.chunks_size, "episode_index": index}
        keys = [key for key in info.cameras().values() if info.is_video(key) and info.video_path]
        yield LeRobotEntry(
            index=index,
            tasks=_texts(record.get("tasks")),
            length=whole_number(record.get("length")),
            data=info.data_path.format(**fields, video_key=""),
            clips={key: LeRobotClip(info.video_path.format(**fields, video_key=key)) for key in keys},
            labels={name: record[name] for name in labels if record.get(name) is not None},
        )


def _rows_of_parquet(info: LeRobotInfo, labels: Sequence[str]) -> Iterator[LeRobotEntry | Problem]:
    for path in _metadata_files(info):
        where = path.relative_to(info.root).as_posix()
        try:
            with pq.ParquetFile(path) as file:
                # Real files have a hundred stats/* columns.
                wanted = [name for name in _wanted_columns(info, labels) if name in set(file.schema_arrow.names)]
                for batch in file.iter_batches(batch_size=METADATA_BATCH, columns=wanted):
                    for row in batch.select(wanted).to_pylist():
                        yield _entry(info, labels, row, where)
        except PARQUET_ERRORS as broken:
            yield Problem("unreadable metadata", where, first_line(broken), kept=False)


def _wanted_columns(info: LeRobotInfo, labels: Sequence[str]) -> list[str]:
    keys = [key for key in info.cameras().values() if info.is_video(key)]
    parts = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    videos = [f"videos/{key}/{part}" for key in keys for part in parts]
    return ["episode_index", "tasks", "length", "data/chunk_index", "data/file_index", *videos, *labels]


def _entry(info: LeRobotInfo, labels: Sequence[str], row: Mapping[str, Any], where: str) -> LeRobotEntry | Problem:
    index = whole_number(row.get("episode_index"))
    chunk, file = whole_number(row.get("data/chunk_index")), whole_number(row.get("data/file_index"))
    if index is None or index < 0 or chunk is None or file is None:
        why = f"a row needs episode_index, data/chunk_index and data/file_index, this one has {index}, {chunk}, {file}"
        return Problem("malformed metadata", where, why, kept=False)
    clips = {}
    for key in info.cameras().values():
        place = {part: whole_number(row.get(f"videos/{key}/{part}")) for part in ("chunk_index", "file_index")}
        start, stop = (row.get(f"videos/{key}/{end}_timestamp") for end in ("from", "to"))
        # Without both ends the clip would include other episodes.
        is_placed = None not in place.values() and _is_moment(start) and _is_moment(stop)
        if info.is_video(key) and info.video_path and is_placed:
            clips[key] = LeRobotClip(info.video_path.format(**place, video_key=key), start, stop)
    return LeRobotEntry(
        index=index,
        tasks=_texts(row.get("tasks")),
        length=whole_number(row.get("length")),
        data=info.data_path.format(chunk_index=chunk, file_index=file, video_key=""),
        clips=clips,
        labels={name: row[name] for name in labels if row.get(name) is not None},
    )


def _is_moment(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _metadata_files(info: LeRobotInfo) -> list[Path]:
    files = (info.root / "meta/episodes").glob("*/*.parquet")
    return sorted(files, key=lambda path: [int(number) for number in re.findall(r"\d+", "/".join(path.parts[-2:]))])


def _tasks_json(info: LeRobotInfo) -> tuple[dict[int, str], list[Problem]]:
    tasks: dict[int, str] = {}
    problems: list[Problem] = []
    try:
        for number, record in json_lines(info.root / "meta/tasks.jsonl"):
            index = whole_number(record.get("task_index")) if isinstance(record, dict) else None
            if isinstance(record, dict) and index is not None and isinstance(record.get("task"), str):
                tasks[index] = record["task"]
                continue
            why = str(record) if isinstance(record, Exception) else "it needs a task_index and a task"
            problems.append(Problem("malformed metadata", f"meta/tasks.jsonl line {number}", why, kept=True))
    except OSError as broken:
        problems.append(Problem("missing tasks", "meta/tasks.jsonl", first_line(broken), kept=True))
    return tasks, problems


def _tasks_parquet(info: LeRobotInfo) -> tuple[dict[int, str], list[Problem]]:
    where = "meta/tasks.parquet"
    try:
        table = pq.read_table(info.root / where)
    except PARQUET_ERRORS as broken:
        kind = "unreadable tasks" if (info.root / where).is_file() else "missing tasks"
        return {}, [Problem(kind, where, first_line(broken), kept=True)]
    text = _text_column(table.schema)
    if text is None or "task_index" not in table.column_names:
        why = f"expected task_index and a column of texts, got {', '.join(table.column_names)}"
        return {}, [Problem("unreadable tasks", where, why, kept=True)]
    pairs = zip(table["task_index"].to_pylist(), table[text].to_pylist(), strict=True)
    return {index: task for index, task in pairs if isinstance(index, int) and task is not None}, []


def _text_column(schema: Any) -> str | None:
    """The texts are a pandas index, whose column name varies."""
    try:
        index_names = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    except (ValueError, AttributeError, RecursionError):
        index_names = []
    texts = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
    likely = [*(name for name in index_names if isinstance(name, str)), "__index_level_0__", "task", *texts]
    return next((name for name in likely if name in texts), None)


def _texts(value: object) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    stripped = [text.strip() for text in values if isinstance(text, str)]
    return tuple(dict.fromkeys(text for text in stripped if text))


def first_line(broken: BaseException) -> str:
    """The first line of a parquet error."""
    lines = str(broken).splitlines()
    return (lines[0] if lines else type(broken).__name__).rstrip(".")


LABEL_COLUMNS = ("success", "vouched_by", "progress", "grade", "quality_label")
QUALITY = {"successful": True, "success": True, "failure": False, "failed": False}


def read_labels(
    labels: Mapping[str, Any], success_key: str | None, frames: npt.NDArray[Any] | None, frame_key: str | None
) -> tuple[tuple[Outcome, ...], list[tuple[str, str]]]:
    """Read episode-level columns and the per-frame success column: outcomes, and (kind, detail) of each problem.

    The label source is a rule named after the column, unless there is a `vouched_by` column. If both agree, the
    episode-level one is kept.
    """
    problems: list[tuple[str, str]] = []
    whole_episode = _of_episode(labels, success_key, problems)
    by_frames = None if frames is None or frame_key is None else _of_frames(frames, frame_key, problems)
    if by_frames is None or (whole_episode is not None and whole_episode.success == by_frames.success):
        return (() if whole_episode is None else (whole_episode,)), problems
    if whole_episode is None:
        return (by_frames,), problems
    if whole_episode.success is not None:
        detail = f"{whole_episode.by or success_key} says {whole_episode.success}, {frame_key} {by_frames.success}"
        problems.append(("outcomes disagree", detail))
    return (whole_episode, by_frames), problems


def _of_episode(labels: Mapping[str, Any], key: str | None, problems: list[tuple[str, str]]) -> Outcome | None:
    value = labels.get(key) if key is not None else None
    success, column = _yes_or_no(value), key
    if value is not None and not _is_missing(value) and success is None:
        problems.append(("unclear outcome", f"{key} is {value!r}, expected true, false, 0 or 1"))
    if success is None and key is not None and labels.get("quality_label") is not None:
        success, column = QUALITY.get(str(labels["quality_label"]).strip().lower()), "quality_label"
    progress = _number(labels, "progress", problems)
    grade = _number(labels, "grade", problems)
    if success is None and progress is None and grade is None:
        return None
    if success is None:
        column = "progress" if progress is not None else "grade"
    source, by = _label_source(labels.get("vouched_by"), f"{column} column", problems)
    return Outcome(source, success=success, progress=progress, grade=None if grade is None else int(grade), by=by)


def _of_frames(frames: npt.NDArray[Any], key: str, problems: list[tuple[str, str]]) -> Outcome | None:
    """True on the last frame is a success, never true is a failure, anything else is unclear."""
    try:
        values = frames.reshape(len(frames)).astype(np.float64)
    except (ValueError, TypeError):
        problems.append(("unclear outcome", f"{key} is not one truth value per frame"))
        return None
    if not len(values) or np.isnan(values).all():
        return None
    by = f"{key} column"
    if set(np.unique(values[~np.isnan(values)])) - {0.0, 1.0}:
        problems.append(("unclear outcome", f"{key} has values other than true and false"))
        return None
    if values[-1] == 1:
        return Outcome("rule", success=True, by=by)
    if not values.any():  # NaN counts as true: an unlabelled frame may have been the success
        return Outcome("rule", success=False, by=by)
    problems.append(("unclear outcome", f"{key} is true or unknown somewhere, and not true on the last frame"))
    return None


def _yes_or_no(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    return {0: False, 1: True}.get(number) if (number := whole_number(value)) is not None else None


def _number(labels: Mapping[str, Any], name: str, problems: list[tuple[str, str]]) -> float | None:
    value = labels.get(name)
    if value is None or _is_missing(value):
        return None
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if fits and (0 <= value <= 1 if name == "progress" else value in (1, 2, 3, 4, 5)):
        return float(value)
    allowed = "a number from 0 to 1" if name == "progress" else "a whole number from 1 to 5"
    problems.append(("unclear outcome", f"{name} is {value!r}, expected {allowed}"))
    return None


def _label_source(value: object, column: str, problems: list[tuple[str, str]]) -> tuple[LabelSource, str]:
    source = next((source for source in LABEL_SOURCES if source == value), None)
    if source is not None:
        return source, ""
    if value is not None:
        problems.append(("unknown voucher", f"vouched_by is {value!r}, expected one of {', '.join(LABEL_SOURCES)}"))
    return "rule", column


def _is_missing(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


# Stages: the columns that LeRobot's SARM trains on (rewards/sarm/processor_sarm.py at commit 02b0da8), and its language
# columns (datasets/language.py at 1683197).

LANGUAGE = "language_persistent"
"""the column of frames with what holds from a moment on: the same list of rows at every frame of an episode"""
STAGE_KINDS = ("dense_", "sparse_", "")
"""the prefixes of SARM's columns, the finest first; those without one are sparse"""
STAGE_COLUMNS = tuple(
    f"{kind}subtask_{part}" for kind in STAGE_KINDS for part in ("names", "start_frames", "end_frames")
)
STAGES_VOUCHED_BY = "stages_vouched_by"
"""the column that our writer adds"""
NO_STAGES = ["task"]
"""what LeRobot's tool writes for a whole episode without stages"""


def read_stage_plans(root: Path) -> tuple[dict[str, StagePlan], list[Problem]]:
    """Read how much of a task each stage is, by kind of column: the temporal proportions of SARM, in their order."""
    plans: dict[str, StagePlan] = {}
    problems = []
    for kind in STAGE_KINDS:
        where = f"meta/temporal_proportions_{kind.rstrip('_') or 'sparse'}.json"
        try:
            shares = json.loads((root / where).read_bytes())
            if not shares or not all(0 <= share < math.inf for share in shares.values()):
                raise ValueError("expected an object, stage to share")
            plans[kind] = share_progress(shares)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as broken:
            if kind:
                problems.append(Problem("unreadable proportions", where, first_line(broken), kept=True))
    return plans, problems


def read_stages(
    labels: Mapping[str, Any], plans: Mapping[str, StagePlan], length: int | None
) -> tuple[list[Outcome], list[tuple[str, str]]]:
    """Read the stages of an episode from SARM's columns, whose last frame is inclusive, and (kind, detail) of problems.

    LeRobot's tool for them asks a model; a column STAGES_VOUCHED_BY names another source.
    """
    outcomes: list[Outcome] = []
    problems: list[tuple[str, str]] = []
    for kind in STAGE_KINDS:
        column = f"{kind}subtask_names"
        names, starts, ends = (labels.get(f"{kind}subtask_{part}") for part in ("names", "start_frames", "end_frames"))
        if not names or names == NO_STAGES or (kind == "" and labels.get("sparse_subtask_names")):
            continue
        try:
            spans = [
                StageSpan(name, int(a), int(b)) for name, a, b in zip(names, starts or (), ends or (), strict=True)
            ]
            stages = trim_stages(spans, length)
        except (BadInput, TypeError, ValueError, OverflowError) as bad:
            problems.append(("bad label", f"{column}: {str(bad).removesuffix('.')}"))
            continue
        placed = place_stages(stages, plans.get(kind, {}), False) or stages
        voucher = labels.get(STAGES_VOUCHED_BY)
        source: LabelSource = "model" if voucher is None else _label_source(voucher, column, problems)[0]
        outcomes.append(Outcome(source, by=f"{column} column", stages=placed))
    return outcomes, problems


def read_language(rows: object, fps: float, length: int) -> list[Outcome]:
    """Read the stages of an episode from its language rows of the style `subtask`: each holds until the next."""
    all_rows = rows if isinstance(rows, list) else []
    begins: dict[int, str] = {}
    for row in sorted((row for row in all_rows if _is_subtask(row)), key=lambda row: float(row["timestamp"])):
        begins[round(row["timestamp"] * fps)] = row["content"].strip()
    stages = trim_stages([StageSpan(name, at, length - 1) for at, name in begins.items() if 0 <= at < length], length)
    return [Outcome("model", by=f"{LANGUAGE} column", stages=stages)] if stages else []


def _is_subtask(row: object) -> bool:
    if not isinstance(row, dict) or row.get("style") != "subtask" or not _is_moment(row.get("timestamp")):
        return False
    return isinstance(row.get("content"), str) and bool(row["content"].strip())
