"""A new LeRobot v3.0 dataset with rewards. Its videos are links to those of the source, which is not touched."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from demerit.data.arrays import Ints
from demerit.data.dataset import Dataset, Problem
from demerit.data.episode import Episode, Outcome
from demerit.data.files import atomic_folder, make_folder, read_json, write_json
from demerit.data.formats.lerobot.metadata import FRAME_SUCCESS, LeRobotInfo, first_line, read_entries
from demerit.data.formats.lerobot.reader import LeRobotReader
from demerit.data.formats.lerobot.writer import MEASURES, REWARD, Moments, TableWriter, write_lerobot
from demerit.errors import BadInput, StoreError
from demerit.use.write.frames import EpisodeFrames, FrameRewards

DONE = "next.done"
NEW_TYPES = {REWARD: "float32", DONE: "bool", FRAME_SUCCESS: "bool"}
OLD_SIDECARS = ("returns", "advantages", "mixture_config")
"""begins of names of RLinf's files, which are of the source's episodes and rewards"""
LINKED, SYMLINKED = "hard links", "symbolic links, so keep the source"
COPIED = "copied, as this disk has no links"
SKIPPED = "the reader cannot use this episode (demerit inspect shows why)"


def match_entries(reader: LeRobotReader, found: Mapping[str, EpisodeFrames]) -> Iterator[EpisodeFrames]:
    """Yield every episode that the metadata list, in order; one that the reader skipped is unscored."""
    first = 0
    for place, entry in enumerate(read_entries(reader.info, ["dataset_from_index"])):
        if isinstance(entry, Problem) or entry.length is None:
            raise BadInput(f"{reader.info.root}/meta", "the length of every episode", entry)
        stated = entry.labels.get("dataset_from_index", first)
        if (entry.index, stated) != (place, first):
            expected = f"episode {place} with its first frame at {first}: numbered from 0, without gaps"
            raise BadInput(f"{reader.info.root}/meta", expected, f"episode {entry.index} at {stated}")
        id = f"{reader.name}/episode_{entry.index:06d}"
        frames = found.get(id)
        if frames is None or not len(frames.value):
            nothing = np.full(entry.length, np.nan, dtype=np.float32)
            why = SKIPPED if frames is None else frames.why_missing
            frames = EpisodeFrames(id, "; ".join(entry.tasks), nothing, nothing > 0, why_missing=why)
        if len(frames.value) != entry.length:
            raise BadInput(f"episode {id!r}", f"{entry.length} frames, as the metadata say", len(frames.value))
        first += entry.length
        yield frames


def write_linked(
    info: LeRobotInfo, frames: FrameRewards, dest: Path, finish: Callable[[Path], object]
) -> dict[str, int]:
    """Write the dataset with next.reward, next.done and, where the outcome of every episode is known, next.success.

    `finish` is called with the complete folder before it gets its name. Returns how many videos are linked or copied.
    """
    with atomic_folder(dest) as partial:
        links = _link_tree(info.root / "videos", partial / "videos")
        renumber = _Renumbering(frames)
        for place, change, rows in (
            ("data", renumber.data, len(frames.value)),
            ("meta/episodes", renumber.episodes, len(frames.places)),
        ):
            paths = sorted((info.root / place).glob("*/*.parquet"))
            count = sum(_rewrite(path, partial / path.relative_to(info.root), change) for path in paths)
            if count != rows:
                raise BadInput(str(info.root / place), f"{rows} rows of the scored episodes", count)
        for path in [*(info.root / "meta").iterdir(), info.root / "README.md"]:
            if path.is_file() and not path.name.startswith(("info.json", "stats.json", *OLD_SIDECARS)):
                shutil.copyfile(path, partial / path.relative_to(info.root))
        write_json(partial / "meta/stats.json", renumber.stats(info.root, partial))
        write_json(partial / "meta/info.json", renumber.info(info))
        finish(partial)
    return links


def write_encoded(
    dataset: Dataset, frames: FrameRewards, dest: Path, fps: float | None, finish: Callable[[Path], object]
) -> None:
    """Write episodes of any format as LeRobot v3.0; their videos are encoded again."""
    kept = {episode.id: episode for episode in frames.episodes}
    rewards = {episode.id: frames.of(frames.reward, place) for place, episode in enumerate(frames.episodes)}

    def episodes() -> Iterator[Episode]:
        for episode in dataset:
            if episode.id in kept:
                yield _judge(episode, kept[episode.id].success, frames.model)

    with atomic_folder(dest) as partial:
        write_lerobot(episodes(), partial, fps=fps, rewards=rewards, signals=None)
        finish(partial)


def _judge(episode: Episode, success: bool | None, model: str) -> Episode:
    if success is None or (episode.outcome is not None and episode.outcome.success == success):
        return episode
    return replace(episode, outcomes=(Outcome("model", success=success, by=model),))


class _Renumbering:
    """Rewrites tables: rewards in, dropped episodes out, the others numbered from 0."""

    def __init__(self, frames: FrameRewards) -> None:
        self.frames = frames
        self.new = np.full(len(frames.lengths), -1)
        self.new[frames.places] = np.arange(len(frames.places))
        old_first = np.cumsum(frames.lengths) - frames.lengths
        self.shift = frames.spans.starts - old_first[frames.places]
        """how far the frames of each kept episode move"""
        self.columns: dict[str, npt.NDArray[Any]] = {
            REWARD: frames.reward.astype(np.float32),
            DONE: frames.spans.is_last,
        }
        if frames.success is not None:
            self.columns[FRAME_SUCCESS] = frames.success

    def data(self, table: Any) -> Any:
        """Change a table of frames."""
        owner, frame = (table.column(name).to_numpy() for name in ("episode_index", "frame_index"))
        fits = (owner >= 0) & (owner < len(self.new))
        if not fits.all() or not ((frame >= 0) & (frame < self.frames.lengths[owner])).all():
            raise BadInput("data files", "the episodes and frames that the metadata list", "others")
        table, places = self._keep(table, owner)
        flat = self.frames.spans.starts[places] + frame[self.new[owner] >= 0]
        had_done = DONE in table.column_names
        for name, values in self.columns.items():
            if name != DONE or not had_done:
                table = _set(table, name, pa.array(values[flat]))
        table = _set(_set(table, "index", pa.array(flat)), "episode_index", pa.array(places))
        return _describe(table)

    def episodes(self, table: Any) -> Any:
        """Change a table of episodes."""
        old = table.column("episode_index").to_numpy()
        table, places = self._keep(table, old)
        first = self.frames.spans.starts[places]
        ends = first + self.frames.spans.lengths[places]
        for name, values in {"episode_index": places, "dataset_from_index": first, "dataset_to_index": ends}.items():
            table = _set(table, name, pa.array(values))
        moves = {"episode_index": places - old[self.new[old] >= 0], "index": self.shift[places]}
        for name in table.column_names:
            _, _, rest = name.partition("stats/")
            key, _, measure = rest.rpartition("/")
            if key in moves and measure not in ("std", "count"):
                cells = zip(table[name].to_pylist(), moves[key], strict=True)
                table = _set(
                    table, name, pa.array([[x + move for x in cell] for cell, move in cells], table[name].type)
                )
            elif key == REWARD:
                table = table.drop_columns(name)
        measured = [Moments.of(self.frames.of(self.frames.reward, place)).measures("float32") or {} for place in places]
        for name in MEASURES:
            kind = pa.list_(pa.int64() if name == "count" else pa.float64())
            table = _set(table, f"stats/{REWARD}/{name}", pa.array([row.get(name) for row in measured], kind))
        return table

    def info(self, info: LeRobotInfo) -> dict[str, Any]:
        """Return the new meta/info.json."""
        raw = dict(read_json(info.root / "meta/info.json"))
        features = dict(raw["features"])
        for name in self.columns:
            if name != DONE or name not in features:
                features[name] = {"dtype": NEW_TYPES[name], "shape": [1], "names": None}
        raw |= {"features": features, "total_episodes": len(self.frames.places), "total_frames": len(self.frames.value)}
        if self.frames.dropped:
            kept = [
                (name, [int((self.frames.places < end).sum()) for end in (r.start, r.stop)])
                for name, r in info.splits.items()
            ]
            raw["splits"] = {name: f"{start}:{stop}" for name, (start, stop) in kept if stop > start}
        return raw

    def stats(self, source: Path, partial: Path) -> dict[str, Any]:
        """Return the new meta/stats.json; without the dropped episodes, it is computed from those of the others."""
        old = read_json(source / "meta/stats.json") if (source / "meta/stats.json").is_file() else {}
        whole = dict(old) if isinstance(old, dict) else {}
        if self.frames.dropped:
            paths = sorted((partial / "meta/episodes").glob("*/*.parquet"))
            table = pa.concat_tables([pq.read_table(path) for path in paths], promote_options="default")
            whole = {key: _aggregate(table, key, measures) for key, measures in whole.items() if key != REWARD}
        measured = Moments.of(self.frames.reward).measures("float32")
        return {**whole, **({} if measured is None else {REWARD: measured})}

    def _keep(self, table: Any, owner: Ints) -> tuple[Any, Ints]:
        kept = np.flatnonzero(self.new[owner] >= 0)
        return (table if len(kept) == len(owner) else table.take(kept)), self.new[owner[kept]]


def _rewrite(source: Path, target: Path, change: Callable[[Any], Any]) -> int:
    """Change a parquet file row group by row group; one without rows is not written. Returns the number of rows."""
    make_folder(target.parent)
    writer: Any = None
    rows = 0
    try:
        with pq.ParquetFile(source) as file:
            for group in range(file.metadata.num_row_groups):
                table = change(file.read_row_group(group))
                if table.num_rows:
                    writer = writer or TableWriter(target, table.schema)
                    writer.write_table(table)
                    rows += table.num_rows
        return rows
    except (pa.ArrowException, KeyError) as error:
        raise StoreError(source, f"it cannot be read ({first_line(error)})") from None
    finally:
        if writer is not None:
            writer.close()


def _set(table: Any, name: str, values: Any) -> Any:
    """Replace a column, which keeps its type, or append it."""
    place = table.schema.get_field_index(name)
    if place < 0:
        return table.append_column(name, values)
    return table.set_column(
        place, name, values.cast(table.schema.field(place).type) if name not in NEW_TYPES else values
    )


def _describe(table: Any) -> Any:
    """Add the new columns to the types that the datasets library reads from the file's metadata."""
    metadata = table.schema.metadata or {}
    if b"huggingface" not in metadata:
        return table
    facts = json.loads(metadata[b"huggingface"])
    types = {name: {"dtype": kind, "_type": "Value"} for name, kind in NEW_TYPES.items() if name in table.column_names}
    facts.setdefault("info", {}).setdefault("features", {}).update(types)
    return table.replace_schema_metadata({**metadata, b"huggingface": json.dumps(facts).encode()})


def _aggregate(table: Any, key: str, measures: Mapping[str, Any]) -> dict[str, Any]:
    """Combine the statistics of episodes as LeRobot does: quantiles are averaged, weighted by frames."""
    columns = {name: f"stats/{key}/{name}" for name in measures}
    if not set(columns.values()) <= set(table.column_names):
        expected = f"statistics of {key} per episode, which are needed to leave episodes out"
        raise BadInput("meta/episodes", expected, "none")
    rows = [row for row in table.select(list(columns.values())).to_pylist() if None not in row.values()]
    values = {name: np.array([row[column] for row in rows], dtype=np.float64) for name, column in columns.items()}
    shape = (-1,) + (1,) * (values["mean"].ndim - 1)
    share = values["count"].reshape(shape) / values["count"].sum()
    mean = (values["mean"] * share).sum(axis=0)
    total = {name: (numbers * share).sum(axis=0) for name, numbers in values.items()}
    variance = ((values["std"] ** 2 + (values["mean"] - mean) ** 2) * share).sum(axis=0)
    total |= {"min": values["min"].min(axis=0), "max": values["max"].max(axis=0), "std": np.sqrt(variance)}
    total["count"] = values["count"].sum(axis=0).astype(np.int64)
    return {name: numbers.tolist() for name, numbers in total.items()}


def _link_tree(source: Path, target: Path) -> dict[str, int]:
    links: Counter[str] = Counter()
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        place = target / path.relative_to(source)
        make_folder(place.parent)
        for link, kind in ((os.link, LINKED), (os.symlink, SYMLINKED), (shutil.copyfile, COPIED)):
            try:
                link(path.resolve(), place)
                links[kind] += 1
                break
            except OSError:  # another disk, or a file system without links
                if kind == COPIED:
                    raise
    return links
