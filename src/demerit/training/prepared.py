"""A prepared corpus: the frames and labels that training reads. All training loops use it.

    frames.video        a small H.264 video per episode, one after another (storage `video`), or
    frames.raw          uint8 RGB frames, one episode after another (storage `raw`); neither with storage `originals`
    episodes.jsonl      a `CorpusRow` per line, in the same order
    preferences.jsonl   a `CorpusChoice` per line
    prepared.json       what the corpus was made from

`prepare` writes to `FOLDER.partial` and renames it when it is complete. After an interruption it resumes behind the
last complete episode. A GPU machine that reads raw frames needs no video decoder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats32
from demerit.data.dataset import Dataset
from demerit.data.episode import (
    Episode,
    Outcome,
    Preference,
    SourceCounts,
    is_taken,
    name_source,
    normalize_instruction,
    select_labels,
)
from demerit.data.files import lock_folder, make_folder, parse_json, plain, read_json, write_atomic, write_json
from demerit.data.frames import RGB, Frames, Images, Indices, Prepare, frame_source, short_hash
from demerit.data.splits import USE_TEST_SPLIT, SeenEpisodes, mark_episode, normalize_split
from demerit.errors import BadInput, DemeritError, UnknownName, UnreadableVideo
from demerit.negatives.negative import find_grade
from demerit.training.frame_storage import CLIPS, FILES, FRAMES, ResizedFrames, Storage, pack_all

EPISODES, PREFERENCES, PREPARED = "episodes.jsonl", "preferences.jsonl", "prepared.json"
TRAIN, HELD_OUT = "train", "held-out"
"""splits of a corpus: held-out episodes are never trained on, the best weights are chosen by them"""
TEST_SPLIT = "of the test split"
CHECKS = {"due": "not checked by a person yet", "rejected": "rejected by a person"}
"""why episodes are left out, by `Episode.check`"""
ADDED_FACTS = ("sources",)
"""keys of prepared.json that corpora of earlier versions lack"""
NAMED_DUPLICATES = 3
PartUse = Literal["data", "demonstrations", "held-out"]
LineT = TypeVar("LineT")


@dataclass(frozen=True, eq=False)
class CorpusPart:
    """A dataset and how it is used."""

    name: str
    """kept with each episode; several parts may share it"""
    data: Dataset
    use: PartUse = "data"
    """demonstrations are successes by rule; held-out episodes are never trained on"""
    use_test_split: bool = False
    """take episodes of the test split as well; then no figure on that split means anything"""

    def place(self, episode: Episode) -> str:
        """Return an episode's split in the corpus: `train`, `held-out`, or empty where it is left out."""
        split = normalize_split(episode.origin.split)
        if split == "test" and not self.use_test_split:
            return ""
        return HELD_OUT if self.use == HELD_OUT or split == "validation" else TRAIN

    def as_dict(self) -> dict[str, Any]:
        """Describe the part for prepared.json. Reads all labels of the dataset."""
        facts = {"name": self.name, "use": self.use, "address": self.data.address, "episodes": self.data.expected()}
        forced = {"use_test_split": True} if self.use_test_split else {}
        return {**facts, **forced, "labels": hash_labels(self.data)}


@dataclass(frozen=True, eq=False)
class CorpusRow:
    """An episode of the corpus."""

    id: str
    source: str
    """name of the part it comes from"""
    instruction: str
    kind: str
    """measured: a progress curve; demonstration: a success without one; model: a model's curve; outcome: the rest"""
    success: bool | None
    progress: Floats32
    """(frames,), 0 to 1; NaN where unknown"""
    times: Floats32
    """(frames,), seconds"""
    grade: int | None = None
    task: str = ""
    """episodes of one task are comparable; the task's name or the instruction"""
    site: str = ""
    group: str = ""
    split: str = ""
    """`train` or `held-out`; compact corpora of earlier versions have the dataset's own name"""
    facts: Floats32 | None = None
    """(frames, k) numbers measured by a simulator; NaN where unknown"""
    marks: tuple[str, ...] = ()
    """of the whole episode (see `demerit.data.splits`); none in a corpus of an earlier version"""
    part: int = 0
    start: int = 0
    """offset of its frames in frames.raw or frames.video, in bytes"""
    height: int = 0
    width: int = 0
    stored: int | None = None
    """bytes that its frames take; None = every pixel"""
    digest: str = ""
    """hash of its video, or of the original's frames; empty = not needed for raw frames"""
    original: Mapping[str, Any] | None = None
    """where its frames are, if they were not copied: kind, fields and indices of a `Frames`"""

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(self.progress)

    @property
    def final(self) -> float:
        """Progress at the end: 1 for successes, NaN where unknown."""
        return 1.0 if self.success else float(self.progress[-1])

    @property
    def frame_bytes(self) -> int:
        """Size of one frame."""
        return self.height * self.width * RGB

    @property
    def end(self) -> int:
        """Offset behind its last frame, in bytes."""
        return self.start + (self.frames * self.frame_bytes if self.stored is None else self.stored)

    @property
    def first(self) -> int:
        """Number of its first frame in a corpus whose frames all have one size."""
        return self.start // self.frame_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; NaN becomes null."""
        return dict(plain(self))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CorpusRow:
        """Read what `as_dict` wrote; raises ValueError or TypeError for anything else."""
        arrays = {name: np.array(values[name], np.float32) for name in ("progress", "times")}
        if values["facts"] is not None:
            arrays["facts"] = np.array(values["facts"], np.float32)
        row = cls(**{**values, **arrays, "marks": tuple(values.get("marks", ()))})
        numbers = (row.start, row.height, row.width, row.stored or 0)
        if not row.progress.shape == row.times.shape == (row.frames,) or not all(type(n) is int for n in numbers):
            raise ValueError("not a row")
        return row


@dataclass(frozen=True)
class CorpusChoice:
    """A preference between two episodes of the corpus that have one instruction and one split."""

    better: int
    """number of the row"""
    worse: int
    source: str
    """label source: human, simulator ..."""

    def line(self) -> str:
        """Write one line of JSON."""
        return json.dumps(vars(self), sort_keys=True)


@dataclass(frozen=True, eq=False)
class PreparedCorpus:
    """All episodes, their frames and the preferences between them."""

    rows: tuple[CorpusRow, ...]
    pixels: npt.NDArray[np.uint8]
    """all raw frames end to end, flat; empty with another storage"""
    choices: tuple[CorpusChoice, ...] = ()
    clips: str = ""
    """path of the file with the small videos"""

    def __post_init__(self) -> None:
        """Refuse choices between rows that do not exist."""
        numbers = range(len(self.rows))
        for choice in self.choices:
            if choice.better == choice.worse or choice.better not in numbers or choice.worse not in numbers:
                raise BadInput(PREFERENCES, f"two different rows from 0 to {len(self.rows) - 1}", choice.line())

    @classmethod
    def load(cls, folder: str | Path) -> PreparedCorpus:
        """Open a prepared folder. Frames stay on disk until they are read."""
        folder = Path(folder)
        missing = [name for name in (EPISODES, PREFERENCES, PREPARED) if not (folder / name).exists()]
        name = None if missing else FILES.get(read_storage(folder))
        missing += [name] if name and not (folder / name).exists() else []
        if missing:
            raise BadInput(str(folder), "a prepared corpus", f"a folder without {', '.join(missing)}")
        rows = _read_lines(folder / EPISODES, CorpusRow.from_dict)
        if not rows:
            raise BadInput(str(folder), "a corpus with episodes", "none")
        if any(row.start != before.end for before, row in pairwise(rows)) or rows[0].start:
            raise BadInput(str(folder / EPISODES), "frames without gaps between episodes (prepare it again)", "gaps")
        size = (folder / name).stat().st_size if name else 0
        if size != rows[-1].end:
            raise BadInput(
                f"{folder / (name or EPISODES)}", f"{rows[-1].end} bytes (prepare it again)", f"{size} bytes"
            )
        choices = _read_lines(folder / PREFERENCES, lambda values: CorpusChoice(**values))
        pixels = np.memmap(folder / FRAMES, np.uint8, "r") if name == FRAMES else np.empty(0, np.uint8)
        return cls(rows, pixels, choices, str(folder.resolve() / CLIPS))

    @classmethod
    def from_arrays(
        cls, rows: Sequence[CorpusRow], images: Sequence[Images], choices: Sequence[CorpusChoice] = ()
    ) -> PreparedCorpus:
        """Make a corpus in memory from rows and the (frames, height, width, 3) images of each."""
        placed: list[CorpusRow] = []
        for row, frames in zip(rows, images, strict=True):
            start = placed[-1].end if placed else 0
            placed.append(replace(row, start=start, height=frames.shape[1], width=frames.shape[2]))
        pixels = np.concatenate([np.ascontiguousarray(frames).reshape(-1) for frames in images])
        return cls(tuple(placed), pixels, tuple(choices))

    def frames(self, number: int) -> Frames:
        """Return the frames of an episode, (height, width, 3) each; nothing is read yet."""
        row = self.rows[number]
        if row.original is not None:
            kind, fields, indices = (row.original[name] for name in ("kind", "fields", "indices"))
            source = ResizedFrames(frame_source(kind, fields), row.height, row.width)
            return Frames(source, np.asarray(indices, np.int32))
        if row.stored is not None:
            fields = {"start": row.start, "size": row.stored, "length": row.frames}
            sides = {"height": row.height, "width": row.width}
            return Frames(frame_source("packed", {"path": self.clips, **fields, **sides}))
        flat = self.pixels[row.start : row.end]
        return Frames.from_array(flat.reshape(row.frames, row.height, row.width, RGB))

    def frame(self, row: int, frame: int) -> Images:
        """Return one (height, width, 3) frame."""
        image: Images = self.frames(row).take([frame])[0]
        return image

    @property
    def is_encoded(self) -> bool:
        """Whether frames must be decoded."""
        return self.rows[0].stored is not None

    @cached_property
    def images(self) -> Images:
        """All frames, (n, height, width, 3), in a corpus whose frames all have one size."""
        return self.pixels.reshape(-1, self.rows[0].height, self.rows[0].width, RGB)

    @cached_property
    def identity(self) -> str:
        """Hash every label and choice, and the video or the last raw frame of each episode."""
        ends = (
            row.digest.encode() or self.frame(number, row.frames - 1).tobytes() for number, row in enumerate(self.rows)
        )
        return short_hash(hash_rows(self.rows).encode(), *ends, *(choice.line().encode() for choice in self.choices))


def hash_rows(rows: Iterable[CorpusRow]) -> str:
    """Hash the labels of rows, wherever their frames are stored."""
    storage = ("marks", "stored", "digest", "original")
    facts = ({name: value for name, value in row.as_dict().items() if name not in storage} for row in rows)
    return short_hash(*(json.dumps({**values, "start": 0}, sort_keys=True).encode() for values in facts))


def collect_seen(rows: Iterable[CorpusRow]) -> SeenEpisodes:
    """Return what a model that is trained on these rows learns from."""
    marks = [row.marks for row in rows]
    return SeenEpisodes.from_hashes((mark for these in marks for mark in these), complete=all(marks))


# Making a corpus


class PreparePlan(Protocol):
    """What a model keeps of an episode."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """The model's name (`model`) and the numbers that decide which frames are kept."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The label sources that are taken (see `demerit.data.episode`)."""

    @property
    def without(self) -> tuple[str, ...]:
        """Edits whose episodes are left out: counterfactual, clip ..."""

    @property
    def has_preferences(self) -> bool:
        """Whether preferences are kept."""

    @property
    def has_grades(self) -> bool:
        """Whether every episode needs a grade; then a success without one is grade 5."""

    @property
    def resize(self) -> Prepare:
        """Makes images smaller. Runs in the decoding process, so it must be picklable."""

    def choose_frames(self, episode: Episode) -> Indices:
        """Return the numbers of the frames that are kept."""

    def label(self, episode: Episode, frames: Indices, part: CorpusPart) -> CorpusRow | str:
        """Label an episode, or return why it cannot be trained on. It has labels of `sources` only."""


@dataclass
class PrepareProgress:
    """Episodes prepared so far, and why others were skipped."""

    episodes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    grades: Counter[str] = field(default_factory=Counter)
    """of all episodes that were read, also of those that were skipped"""
    labels: SourceCounts = field(default_factory=SourceCounts)


def prepare(
    parts: Sequence[CorpusPart],
    folder: str | Path,
    plan: PreparePlan,
    on_progress: Callable[[PrepareProgress], None] = lambda progress: None,
    workers: int = 2,
    storage: Storage = "raw",
) -> PreparedCorpus:
    """Write a corpus, or open it if it exists; one that was made from other data or numbers is refused.

    Args:
        parts: The datasets.
        folder: Where the corpus goes. It appears when it is complete.
        plan: Which frames and labels are kept.
        on_progress: Called after every episode.
        workers: Processes that decode and encode; 0 does it in this one.
        storage: How frames are kept. A corpus of an earlier version, which has raw frames, is opened as it is.
    """
    if storage not in get_args(Storage):
        raise UnknownName("storage", storage, get_args(Storage))
    folder = Path(folder)
    provenance = {**plan_facts(plan), "parts": [part.as_dict() for part in parts], "storage": storage}
    if not folder.exists():
        check_test_split(parts)
        check_held_out(parts)
        unfinished = make_folder(folder.with_name(folder.name + ".partial"))
        with lock_folder(unfinished):
            if _has_content(unfinished / EPISODES):
                _check_provenance(unfinished, provenance)
            write_json(unfinished / PREPARED, provenance)
            progress = PrepareProgress()
            _write_corpus(unfinished, parts, plan, progress, on_progress, workers, storage)
            write_json(unfinished / PREPARED, {**provenance, **_count(progress)})
            (unfinished / ".lock").unlink()
            os.replace(unfinished, folder)
    if "storage" not in read_provenance(folder):
        provenance["storage"] = "raw"
    _check_provenance(folder, provenance)
    return PreparedCorpus.load(folder)


def open_corpus(folder: str | Path, plan: PreparePlan) -> PreparedCorpus:
    """Open a corpus that was prepared with the same numbers."""
    corpus = PreparedCorpus.load(folder)
    provenance = read_provenance(folder)
    for name, value in plan_facts(plan).items():
        if provenance.get(name, value if name in ADDED_FACTS else None) != value:
            hint = "" if name == "model" else f" (--set {name}=... changes the configuration)"
            raise BadInput(str(folder), f"a corpus with {name} {value}{hint}", f"{name} {provenance.get(name)}")
    return corpus


def plan_facts(plan: PreparePlan) -> dict[str, Any]:
    """Return everything that decides which episodes, labels and frames are kept."""
    without = {"without": list(plan.without)} if plan.without else {}
    return {**plan.facts, "sources": list(plan.sources), **without}


def read_provenance(folder: str | Path) -> dict[str, Any]:
    """Read what a corpus was made from."""
    return read_json(Path(folder) / PREPARED, "what a corpus was made from (JSON)")


def count_grades(folder: str | Path, corpus: PreparedCorpus) -> dict[str, dict[int | None, int]]:
    """Return how many episodes of each grade were read, and how many were kept; empty without graded ones."""
    graded = read_provenance(folder).get("grades", {})
    read: dict[int | None, int] = {int(grade): count for grade, count in graded.items()}
    kept = Counter(row.grade for row in corpus.rows)
    return {"read": read, "kept": {grade: kept[grade] for grade in read}} if read else {}


def read_storage(folder: str | Path) -> Storage:
    """Return how a corpus keeps its frames; earlier versions kept raw ones."""
    storage: Storage = read_provenance(folder).get("storage", "raw")
    if storage not in get_args(Storage):
        expected = f"a storage that this version knows ({', '.join(get_args(Storage))}; prepare it again)"
        raise BadInput(str(Path(folder) / PREPARED), expected, repr(storage))
    return storage


def count_skipped(folder: str | Path) -> dict[str, int]:
    """Return why episodes and preferences were skipped, and how many for each reason."""
    skipped: dict[str, int] = read_provenance(folder).get("left_out", {})
    return skipped


def count_sources(folder: str | Path) -> SourceCounts | None:
    """Return how many labels of each source were taken; None for a corpus of an earlier version."""
    counts = read_provenance(folder).get("label_sources")
    return None if counts is None else SourceCounts(Counter(counts["taken"]), Counter(counts["dropped"]))


def hash_labels(data: Dataset) -> str:
    """Hash every id, instruction, label and preference. Decodes no frame."""
    digest = hashlib.blake2b(digest_size=16)
    for record in data.records():
        digest.update(json.dumps(_label_values(record)).encode() + b"\n")
    return digest.hexdigest()


def check_held_out(parts: Sequence[CorpusPart]) -> None:
    """Refuse held-out episodes that are trained on: equal id and name, or equal instruction and pixels."""
    held_out = [part for part in parts if part.use == HELD_OUT]
    if not held_out:
        return
    trained = [part for part in parts if part.use != HELD_OUT]
    keys = {
        key
        for part in trained
        for episode in part.data
        if part.place(episode) == TRAIN
        for key in _episode_keys(part.name, episode)
    }
    both = [
        f"{part.name}: {episode.id}"
        for part in held_out
        for episode in part.data
        if any(key in keys for key in _episode_keys(part.name, episode))
    ]
    if both:
        more = f" and {len(both) - NAMED_DUPLICATES} more" if len(both) > NAMED_DUPLICATES else ""
        expected = "episodes that are not trained on (use another NAME if equal ids are different episodes)"
        raise BadInput("--held-out", expected, f"{len(both)} that are ({', '.join(both[:NAMED_DUPLICATES])}{more})")


def check_test_split(parts: Sequence[CorpusPart]) -> None:
    """Refuse a dataset of which every episode is of a test split."""
    for part in parts:
        places = (part.place(episode) for episode in part.data)
        if next(places, TRAIN) == "" and not any(places):
            expected = f"episodes that are not of a test split ({USE_TEST_SPLIT} takes them)"
            raise BadInput(f"{part.name} ({part.data.address})", expected, "episodes of a test split alone")


def match_preferences(
    heard: Iterable[tuple[CorpusPart, Preference]],
    rows: Sequence[CorpusRow],
    skipped: Counter[str],
    sources: Sequence[str],
) -> list[CorpusChoice]:
    """Keep preferences of these sources between two rows of one part name, split and instruction; count the others."""
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        places[row.source, row.id].append(number)
    choices = []
    for part, preference in heard:
        a, b = (places[part.name, id] for id in (preference.a, preference.b))
        choice = (
            _match_preference(preference, a, b, rows) if is_taken(preference, sources) else _not_taken([preference])
        )
        if isinstance(choice, str):
            skipped[f"preference: {choice}"] += 1
        else:
            choices.append(choice)
    return choices


def _match_preference(
    preference: Preference, a: Sequence[int], b: Sequence[int], rows: Sequence[CorpusRow]
) -> CorpusChoice | str:
    if preference.better is None:
        return "a tie"
    if not (a and b):
        return "an episode that is not in the corpus"
    pairs = [(first, second) for first in a for second in b if rows[first].split == rows[second].split]
    if not pairs:
        return "across splits"
    if len(pairs) > 1:
        return "an id that several episodes have"
    (first, second) = pairs[0]
    if normalize_instruction(rows[first].instruction) != normalize_instruction(rows[second].instruction):
        return "different instructions"
    better, worse = (first, second) if preference.verdict == "a" else (second, first)
    return CorpusChoice(better, worse, preference.source)


def _write_corpus(
    folder: Path,
    parts: Sequence[CorpusPart],
    plan: PreparePlan,
    progress: PrepareProgress,
    on_progress: Callable[[PrepareProgress], None],
    workers: int,
    storage: Storage,
) -> None:
    """Append the episodes that are not there yet, then write the preferences."""
    name = FILES.get(storage, os.devnull)  # joined to a folder, an absolute path stays what it is
    rows = _recover_rows(folder, name)
    keys = {(row.part, row.id) for row in rows}
    heard: list[tuple[CorpusPart, Preference]] = []
    progress.episodes = len(rows)

    def new_episodes() -> Iterator[tuple[CorpusRow, Frames]]:
        for number, part in enumerate(parts):
            for record in part.data.records():
                if isinstance(record, Preference):
                    heard.append((part, record))
                    progress.labels.add([record] if plan.has_preferences else [], plan.sources)
                    continue
                if not _exclude(record, part, plan):
                    progress.labels.add(record.labels, plan.sources)
                grade = find_grade(record.labels, plan.has_grades)
                progress.grades.update([] if grade is None else [str(grade)])
                if (number, record.id) not in keys:
                    labelled = _label_episode(record, part, plan)
                    if isinstance(labelled, str):
                        progress.skipped[labelled] += 1
                    else:
                        yield replace(labelled[0], part=number), labelled[1]

    with (folder / name).open("ab") as frames, (folder / EPISODES).open("ab") as journal:
        for row, packed in pack_all(new_episodes(), plan.resize, storage, workers):
            if isinstance(packed, str):
                progress.skipped["unreadable"] += 1
                continue
            start = rows[-1].end if rows else 0
            content, facts = packed
            rows.append(replace(row, start=start, **facts))
            if content:
                frames.write(content)
                frames.flush()
                os.fsync(frames.fileno())
            journal.write((json.dumps(rows[-1].as_dict()) + "\n").encode())  # last: what it names is complete
            journal.flush()
            progress.episodes = len(rows)
            on_progress(progress)
    if not rows:
        reasons = "; ".join(f"{count} {why}" for why, count in progress.skipped.items()) or "no episodes at all"
        raise BadInput("training data", "episodes with a label that can be trained on", f"none ({reasons})")
    choices = match_preferences(heard, rows, progress.skipped, plan.sources) if plan.has_preferences else []
    write_atomic(folder / PREFERENCES, "".join(f"{choice.line()}\n" for choice in choices).encode())


def _count(progress: PrepareProgress) -> dict[str, dict[str, Any]]:
    counts = {"left_out": dict(progress.skipped), "grades": dict(sorted(progress.grades.items()))}
    return {**counts, "label_sources": progress.labels.as_dict()}


def _exclude(episode: Episode, part: CorpusPart, plan: PreparePlan) -> str:
    """Return why an episode is left out whatever its labels are; empty if it is not."""
    made_by = [f"made by {edit.name}" for edit in episode.edits if edit.name in plan.without]
    reasons = [TEST_SPLIT] if not part.place(episode) else [*made_by, CHECKS.get(episode.check, "")]
    return reasons[0]


def _label_episode(episode: Episode, part: CorpusPart, plan: PreparePlan) -> tuple[CorpusRow, Frames] | str:
    if excluded := _exclude(episode, part, plan):
        return excluded
    labelled = replace(episode, outcomes=select_labels(episode.labels, plan.sources))
    try:
        frames = plan.choose_frames(episode)
        row = plan.label(labelled, frames, part)
    except UnreadableVideo:
        return "unreadable"
    if isinstance(row, str):
        return _not_taken(episode.labels) if episode.labels and not labelled.outcomes else row
    row = replace(row, split=part.place(episode), marks=tuple(mark_episode(episode)))
    return row, episode.main.select(frames)


def _not_taken(labels: Iterable[Outcome | Preference]) -> str:
    return f"label source not taken: {', '.join(sorted({name_source(label) for label in labels}))}"


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _recover_rows(folder: Path, name: str) -> list[CorpusRow]:
    """Read the complete rows of an interrupted run and truncate the frames and the rows behind them."""
    rows: list[CorpusRow] = []
    kept, journal, frames = 0, folder / EPISODES, folder / name
    size = frames.stat().st_size if frames.is_file() else 0
    for line in journal.read_bytes().splitlines(keepends=True) if journal.exists() else []:
        try:
            row = CorpusRow.from_dict(parse_json(line, str(journal), nan=True))
        except (BadInput, ValueError, TypeError, KeyError):
            break
        if not line.endswith(b"\n") or row.end > size:
            break
        rows.append(row)
        kept += len(line)
    for path, length in ((frames, rows[-1].end if rows else 0), (journal, kept)):
        if path.is_file():
            os.truncate(path, length)
    return rows


def _check_provenance(folder: Path, provenance: Mapping[str, Any]) -> None:
    facts = {"storage": "raw", **read_provenance(folder)}
    for name, value in provenance.items():
        if facts.get(name, value if name in ADDED_FACTS else None) != value:
            expected = "a corpus of the same data and numbers (name another folder, or remove this one)"
            raise BadInput(str(folder), expected, _describe_change(name, facts.get(name), value))


def _describe_change(name: str, old: Any, new: Any) -> str:
    if name == "parts" and isinstance(old, list) and len(old) == len(new):
        changed = [(was, now) for was, now in zip(old, new, strict=True) if was != now]
        if all({**was, "labels": now["labels"]} == now for was, now in changed):
            names = ", ".join(dict.fromkeys(repr(now["name"]) for _, now in changed))
            return f"one made before labels or instructions of {names} changed"
    return f"{name} {json.dumps(old)}, not {json.dumps(new)}"


def _label_values(record: Episode | Preference) -> list[Any]:
    """Return what can be learned from; notes and names of annotators do not count."""
    if isinstance(record, Preference):
        return ["preference", record.a, record.b, record.verdict, name_source(record)]
    curves = [
        None if outcome.curve is None else short_hash(np.ascontiguousarray(outcome.curve, "<f4").tobytes())
        for outcome in record.labels
    ]
    outcomes = [
        [name_source(outcome), outcome.success, outcome.progress, outcome.grade, curve]
        for outcome, curve in zip(record.labels, curves, strict=True)
    ]
    split, check = normalize_split(record.origin.split), CHECKS.get(record.check)
    rest = [*([] if split == "train" else [split]), *([check] if check else [])]
    return [record.id, record.instruction, outcomes, *rest]


def _episode_keys(name: str, episode: Episode) -> Iterator[tuple[str, str, str]]:
    yield "id", name, episode.id
    try:
        yield "pixels", episode.instruction, episode.main.identity()
    except (DemeritError, OSError):  # an unreadable video is skipped later
        return


def _read_lines(path: Path, parse: Callable[[dict[str, Any]], LineT]) -> tuple[LineT, ...]:
    lines: list[LineT] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            lines.append(parse(parse_json(line, str(path), nan=True)))
        except (BadInput, ValueError, TypeError, KeyError) as error:
            raise BadInput(f"{path}, line {number}", "a line of a prepared corpus (prepare it again)", error) from error
    return tuple(lines)
