"""The import job: copy a dataset into a demerit folder and record every problem.

Run again, it adds new episodes and brings labels, instructions and origins up to date with the source, in one commit at
the end. Labels that were given in the folder stay.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Dataset, Problem, Problems
from demerit.data.episode import CHECK, Episode, Origin, Outcome, Preference, safe_name
from demerit.data.files import copy_atomic, make_folder, refuse_links
from demerit.data.formats.lerobot.reader import LeRobotReader
from demerit.data.frames import Frames, file_identity, short_hash
from demerit.data.store import (
    ORIGIN_COLUMNS,
    Store,
    StoreWriter,
    label_columns,
    label_hash,
    open_or_create,
    outcome_row,
    preference_row,
    problem_row,
)
from demerit.data.video import EXACT, VideoClip, write_video
from demerit.errors import UnreadableVideo

REPLACED_LABELS = "replaced_labels.jsonl"
"""labels that an import replaced or dropped, one per line"""
FOUND_IN_VIDEOS = ("wrong frame count", "unreadable video")
"""problems of episodes that are in the folder; a later import does not look for them again"""
MOST_EXAMPLES = 20


@dataclass
class ImportProgress:
    """The progress of an import."""

    expected: int | None
    added: int = 0
    kept: int = 0
    """episodes imported by an earlier run"""
    preferences: int = 0
    durable: int = 0
    """episodes in the folder at the end"""
    absent: int = 0
    """episodes in the folder that the source does not have; they stay"""
    unchanged: int = 0
    """kept episodes with the same labels, instruction and origin as before"""
    changes: Counter[str] = field(default_factory=Counter)
    """episodes and preferences by change: labels added, labels changed, labels removed, descriptions changed"""
    examples: list[str] = field(default_factory=list)
    """the first changes, a line each"""
    problems: Problems = field(default_factory=Problems)

    @property
    def seen(self) -> int:
        """The number of processed episodes."""
        return self.added + self.kept + self.problems.skipped()

    def count(self, change: str, what: str, detail: str) -> None:
        """Count a change."""
        self.changes[change] += 1
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append(f"{change}: {what}: {detail}")


def refuse_linked(dataset: Dataset) -> None:
    """Refuse a LeRobot source with links to files elsewhere. Readers of other formats follow no such link."""
    if isinstance(dataset.reader, LeRobotReader):
        refuse_links(dataset.reader.info.root)


def import_dataset(
    dataset: Dataset,
    dest: str | Path,
    *,
    copy: bool = False,
    licence: str = "",
    dry_run: bool = False,
    on_progress: Callable[[ImportProgress], None] = lambda progress: None,
) -> ImportProgress:
    """Import a dataset into a demerit folder. Run it again to resume, or to update labels that changed in the source.

    Args:
        dataset: what to read.
        dest: a new folder, or that of an earlier run of the same import.
        copy: copy videos into the folder; otherwise they are used in place.
        licence: recorded where the dataset has none.
        dry_run: count what would change and write nothing.
        on_progress: called after every record.
    """
    refuse_linked(dataset)
    root = Path(dest).resolve()
    if not dry_run or Store.is_at(root):
        open_or_create(root, dataset.name, licence, source=dataset.address)
    progress = ImportProgress(dataset.expected(), problems=dataset.problems)
    with StoreWriter(root, dry_run) as writer:
        update = FolderUpdate(dataset, writer, progress)
        dataset.on_problem = update.add_problem
        for record in dataset.records():
            if isinstance(record, Preference):
                progress.preferences += update.add_preference(record)
            elif record.id in writer:
                progress.kept += 1
                update.compare(record)
            else:
                progress.added += _add_episode(dataset, writer, record, copy and not dry_run, licence)
            on_progress(progress)
        update.finish()
        progress.durable = writer.commit()
    on_progress(progress)
    return progress


class FolderUpdate:
    """What a run changes in a folder with episodes. Collected while reading, written by `finish` in one commit."""

    def __init__(self, dataset: Dataset, writer: StoreWriter, progress: ImportProgress) -> None:
        self.dataset, self.writer, self.progress = dataset, writer, progress
        self.before: dict[str, tuple[int, str]] = {}
        """frames and state of every episode in the folder"""
        self.seen: set[str] = set()
        self.differing: dict[str, Episode] = {}
        self.preferences: list[Preference] = []
        self.problems: set[tuple[Any, ...]] = set()
        self.given: set[str] = set()
        self.store = Store(writer.root) if Store.is_at(writer.root) else None
        if self.store is not None:
            self.given = self.store.given()
            columns = ["id", "frames", "instruction", *ORIGIN_COLUMNS, "tags", "outcomes"]
            for table in self.store.batches("episodes", columns):
                self.before |= {row["id"]: (row["frames"], _state(row)) for row in table.to_pylist()}

    def add_problem(self, problem: Problem) -> None:
        """Add a problem of the source."""
        self.problems.add(tuple(problem_row(problem).values()))
        self.writer.add(problem)

    def add_preference(self, preference: Preference) -> int:
        """Add a preference between two episodes that are there; return how many were added."""
        absent = [id for id in (preference.a, preference.b) if id not in self.writer]
        if absent:
            detail = f"it compares {absent[0]!r}, which is not in the dataset"
            both = f"{preference.a} / {preference.b}"
            self.dataset.report(Problem("preference without its episode", both, detail, kept=False))
            return 0
        self.preferences.append(preference)
        return 1

    def compare(self, episode: Episode) -> None:
        """Compare an episode of the source with the one in the folder."""
        self.seen.add(episode.id)
        frames, state = self.before[episode.id]
        outcomes = tuple(_fit_labels(self.dataset, episode.id, frames, outcome) for outcome in episode.outcomes)
        fitted = replace(episode, outcomes=outcomes, signals={})
        if _state(_state_row(fitted)) != state:
            self.differing[episode.id] = fitted

    def finish(self) -> None:
        """Write everything that changed."""
        replaced: list[dict[str, Any]] = []
        columns: dict[str, dict[str, Any]] = {}
        if self.store is not None and self.differing:
            for stored in self.store.episodes():
                if stored.id in self.differing:
                    new = self._merge_episode(stored, self.differing[stored.id], replaced)
                    columns |= {stored.id: new} if new else {}
        tables = {**self._merge_preferences(replaced), **self._forget_problems()}
        self.progress.unchanged = self.progress.kept - len(columns)
        self.progress.absent = len(self.before.keys() - self.seen)
        if (columns or tables) and not self.writer.dry_run:
            if replaced:
                lines = (json.dumps(label, ensure_ascii=False, default=np.ndarray.tolist) for label in replaced)
                with open(self.writer.root / REPLACED_LABELS, "a", encoding="utf-8") as file:
                    file.writelines(f"{line}\n" for line in lines)
            self.writer.update(columns, **tables)

    def _merge_episode(self, stored: Episode, source: Episode, replaced: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the columns to change: labels of the source replace all but those that were given in the folder."""
        id, new = stored.id, {}
        own = [label for label in stored.outcomes if label_hash(id, outcome_row(label)) in self.given]
        labels = [label for label in source.outcomes if (label.source, label.by) not in {(o.source, o.by) for o in own}]
        merged = (*own, *labels)
        checks = {name: value for name, value in stored.origin.tags.items() if name.startswith(CHECK)}
        gone = [label for label in stored.outcomes if label not in merged]
        fresh = [label for label in merged if label not in stored.outcomes]
        if gone or fresh:
            new = label_columns(merged, stored.check)
            self._count(id, ", ".join(map(str, gone)), ", ".join(map(str, fresh)))
            replaced += [{"episode": id, **outcome_row(label)} for label in gone]
        licence = source.origin.licence or stored.origin.licence
        origin = replace(source.origin, licence=licence, tags={**source.origin.tags, **checks})
        if (source.instruction, origin) != (stored.instruction, stored.origin):
            new |= self._describe(stored, source.instruction, origin)
        return new

    def _describe(self, stored: Episode, instruction: str, origin: Origin) -> dict[str, Any]:
        columns = {name: getattr(origin, name) for name in ORIGIN_COLUMNS} | {"tags": list(origin.tags.items())}
        detail = "split, group or tags"
        if instruction != stored.instruction:
            try:
                columns["fingerprint"] = replace(stored, instruction=instruction).fingerprint()
            except UnreadableVideo as error:
                detail = f"{error.path}: {error.reason}; its instruction stays the old one"
                self.dataset.report(Problem("unreadable video", stored.id, detail, kept=True))
                return {}
            columns["instruction"] = instruction
            detail = f"instruction {stored.instruction!r} -> {instruction!r}"
        self.progress.count("descriptions changed", stored.id, detail)
        return columns

    def _merge_preferences(self, replaced: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
        """Preferences of the source replace those of the same pair and judge. All others stay."""
        stored = _by_judge(() if self.store is None else self.store.preferences())
        source = _by_judge(self.preferences)
        for (a, b, *judge), now in source.items():
            was = stored.get((a, b, *judge), [])
            if was != now and self.before.keys() >= {a, b}:
                verdicts = (", ".join(f"better: {preference.verdict}" for preference in group) for group in (was, now))
                self._count(f"{a} / {b}", *verdicts)
                replaced += [{"preference": preference_row(preference)} for preference in was if preference not in now]
        merged = stored | source
        return {} if merged == stored else {"preferences": [preference_row(p) for p in chain(*merged.values())]}

    def _forget_problems(self) -> dict[str, list[dict[str, Any]]]:
        """Drop problems of an earlier import that the source no longer has."""
        stored = [] if self.store is None else [problem_row(problem) for problem in self.store.problems()]
        stays = [
            row
            for row in stored
            if tuple(row.values()) in self.problems or (row["kept"] and row["kind"] in FOUND_IN_VIDEOS)
        ]
        if len(stays) == len(stored):
            return {}
        rows = {tuple(row.values()) for row in stays}
        names = stored[0].keys()
        new = [dict(zip(names, values, strict=True)) for values in self.problems if values not in rows]
        return {"problems": stays + new}

    def _count(self, what: str, gone: str, fresh: str) -> None:
        change = "labels changed" if gone and fresh else "labels added" if fresh else "labels removed"
        self.progress.count(change, what, " -> ".join(filter(None, (gone, fresh))))


def _by_judge(preferences: Iterable[Preference]) -> dict[tuple[str, ...], list[Preference]]:
    """Group preferences by pair, label source and judge."""
    groups: dict[tuple[str, ...], list[Preference]] = {}
    for preference in dict.fromkeys(preferences):
        groups.setdefault((preference.a, preference.b, preference.source, preference.by), []).append(preference)
    return groups


def _state_row(episode: Episode) -> dict[str, Any]:
    origin = {name: getattr(episode.origin, name) for name in ORIGIN_COLUMNS}
    outcomes = [outcome_row(outcome) for outcome in episode.outcomes]
    rest = {"id": episode.id, "instruction": episode.instruction, "outcomes": outcomes}
    return {**origin, **rest, "tags": episode.origin.tags.items()}


def _state(row: Mapping[str, Any]) -> str:
    """Hash what an import keeps up to date. The licence is not included: it may come from the command line."""
    origin = [row[name] for name in ORIGIN_COLUMNS if name != "licence"]
    labels = [label_hash(row["id"], outcome) for outcome in row["outcomes"]]
    return short_hash(json.dumps([row["instruction"], origin, sorted(row["tags"]), labels]).encode())


def _add_episode(dataset: Dataset, writer: StoreWriter, episode: Episode, copy: bool, licence: str) -> int:
    """Check videos and labels, report problems, add what can be used."""
    views: dict[str, Frames] = {}
    for camera, frames in episode.views.items():
        try:
            views[camera] = _check_length(dataset, episode, camera, frames)
        except UnreadableVideo as error:
            others = len(episode.views) > 1
            detail = f"camera {camera!r}: {error.path}: {error.reason}"
            dataset.report(Problem("unreadable video", episode.id, detail, kept=others))
    if not views:
        if len(episode.views) > 1:
            dataset.report(Problem("no camera left", episode.id, "none of its videos can be read", kept=False))
        return 0
    if copy:
        views = {camera: copy_frames(frames, writer.root, f"{episode.id}-{camera}") for camera, frames in views.items()}
    origin = episode.origin if episode.origin.licence else replace(episode.origin, licence=licence)
    whole = replace(episode, views=views, origin=origin)
    outcomes = tuple(_fit_labels(dataset, whole.id, len(whole), outcome) for outcome in whole.outcomes)
    writer.add(replace(whole, outcomes=outcomes))
    return 1


def _check_length(dataset: Dataset, episode: Episode, camera: str, frames: Frames) -> Frames:
    """Count the frames of a video and compare with the declared number."""
    clip = frames.source
    if not isinstance(clip, VideoClip):
        len(frames)
        return frames
    index = clip.scan()
    readable = len(index.pts)
    if clip.start is None and clip.stop is None and 0 < readable < index.header_frames:
        # Labels describe the end, and the end is missing.
        raise UnreadableVideo(clip.path, f"it is truncated: it has {readable} of {index.header_frames} frames")
    if clip.length is not None and clip.length != readable:
        detail = f"camera {camera!r}: {clip.length} frames declared, {readable} in the video"
        dataset.report(Problem("wrong frame count", episode.id, detail, kept=True))
        return replace(frames, source=replace(clip, length=readable))
    return frames


def _fit_labels(dataset: Dataset, id: str, length: int, outcome: Outcome) -> Outcome:
    """Drop per-frame labels that do not match the number of frames."""
    if outcome.curve is not None and len(outcome.curve) != length:
        detail = f"a curve of {len(outcome.curve)} values for {length} frames"
        dataset.report(Problem("label does not fit", id, detail, kept=True))
        outcome = replace(outcome, curve=None)
    if any(event.last >= length for event in outcome.events):
        dataset.report(Problem("label does not fit", id, f"an event after frame {length - 1}", kept=True))
        outcome = replace(outcome, events=tuple(event for event in outcome.events if event.last < length))
    if any(stage.last >= length for stage in outcome.stages):
        dataset.report(Problem("label does not fit", id, f"a stage after frame {length - 1}", kept=True))
        outcome = replace(outcome, stages=tuple(stage for stage in outcome.stages if stage.last < length))
    return outcome


def copy_frames(frames: Frames, root: Path, name: str) -> Frames:
    """Copy the frames into the folder: video files unchanged, anything else as a lossless video."""
    folder = make_folder(root / "videos")
    if isinstance(frames.source, VideoClip):
        source = Path(frames.source.path)
        target = folder / f"{safe_name(source.stem)[:80]}-{file_identity(str(source))[:12]}{source.suffix.lower()}"
        if not target.exists():
            copy_atomic(source, target)
        return replace(frames, source=replace(frames.source, path=str(target)))
    target = folder / f"{safe_name(name)[:80]}-{frames.identity()[:12]}.mp4"
    if not target.exists():
        write_video(target, chain.from_iterable(frames.chunks()), encoding=EXACT, times=frames.times().tolist())
    return Frames(VideoClip(str(target)))
