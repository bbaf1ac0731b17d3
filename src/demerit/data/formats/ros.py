"""ROS bags and MCAP files as episodes.

A bag is an episode, or several: cut where a marker topic says so, or at long gaps. The first camera in the order of
names, those on a hand or wrist last, is the main one. Signals hold their latest value at each of its frames.

    JointState                       TOPIC.position, .velocity, .effort: a column per joint, by name
    Float32, Float64, ...MultiArray  TOPIC
    Twist, Wrench, Pose (Stamped), Odometry    TOPIC: a column per number

The names of the columns are in the tag `columns of SIGNAL`.
"""

from __future__ import annotations

import math
import os
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from demerit.data.dataset import NO_INSTRUCTION, Problem, Record
from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.formats import BAG_SUFFIXES, is_bag
from demerit.data.formats.bag_file import FOLDER_FACTS, BagError, BagFile, bag_state, open_bag
from demerit.data.formats.bag_frames import CAMERA_TYPES, BagFrames, CameraTrack, TrackBuilder, index_frames, read_stamp
from demerit.data.formats.label_file import COLUMNS, LabelCells, LabelRow, printable, read_outcomes, read_rows, text
from demerit.data.formats.marks import TOPICS, join_marks, read_texts
from demerit.data.formats.videos import FolderReader, find_label_files, read_origin, report_others
from demerit.data.frames import Frames
from demerit.errors import BadInput

Clock = Literal["header", "receive"]
TASK_NAMES = ("instruction", *COLUMNS["instruction"])
"""how a topic or a note of the recorder is called that has the instruction"""
GENERIC_PARTS = frozenset("compressed image image_raw image_color image_rect image_rect_color video color rgb".split())
"""ends of topics that do not name a camera"""
BEGIN_WORDS, END_WORDS = frozenset({"start", "begin", "true"}), frozenset({"stop", "end", "false", ""})
JUMP = 10**9
"""nanoseconds by which a clock may run ahead of another from one message to the next"""
VECTOR, ROTATION = ("x", "y", "z"), ("x", "y", "z", "w")


def _columns(**parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{part.replace('_of_', '.')}.{axis}" for part, axes in parts.items() for axis in axes)


_TWIST, _WRENCH = _columns(linear=VECTOR, angular=VECTOR), _columns(force=VECTOR, torque=VECTOR)
_POSE = _columns(position=VECTOR, orientation=ROTATION)
SIGNAL_TYPES: Mapping[str, tuple[str, ...]] = {
    "geometry_msgs/msg/Twist": _TWIST,
    "geometry_msgs/msg/TwistStamped": tuple(f"twist.{name}" for name in _TWIST),
    "geometry_msgs/msg/Wrench": _WRENCH,
    "geometry_msgs/msg/WrenchStamped": tuple(f"wrench.{name}" for name in _WRENCH),
    "geometry_msgs/msg/Pose": _POSE,
    "geometry_msgs/msg/PoseStamped": tuple(f"pose.{name}" for name in _POSE),
    "nav_msgs/msg/Odometry": tuple(f"pose.pose.{name}" for name in _POSE) + tuple(f"twist.twist.{n}" for n in _TWIST),
    "std_msgs/msg/Float32": ("data",),
    "std_msgs/msg/Float64": ("data",),
}
"""message types that are signals, and the numbers in them"""
ARRAY_TYPES = ("std_msgs/msg/Float32MultiArray", "std_msgs/msg/Float64MultiArray")
JOINTS = "sensor_msgs/msg/JointState"


class SignalSeries:
    """The numbers of a signal. A message may have only some of the columns, as those of several joint publishers."""

    def __init__(self) -> None:
        self._columns: dict[str, tuple[array[int], array[int], array[float]]] = {}
        """receive times, stamps (0 = none) and values of each"""

    def add(self, at: int, stamp: int | None, values: Mapping[str, float]) -> None:
        """Add the numbers of a message."""
        for name, value in values.items():
            received, stamps, numbers = self._columns.setdefault(name, (array("q"), array("q"), array("d")))
            received.append(at)
            stamps.append(stamp or 0)
            numbers.append(value)

    @property
    def names(self) -> str:
        """The columns."""
        return ", ".join(map(printable, self._columns))

    def sample(self, main: CameraTrack, clock: Clock) -> npt.NDArray[np.float64]:
        """The latest value of each column at each image of the main camera, NaN before the first: (n, columns).

        By stamps where both have some by clocks that agree, else by the times of receiving.
        """
        out = np.full((len(main.received), len(self._columns)), np.nan)
        ahead = np.median(main.stamps - main.received)
        for place, (received, stamps, values) in enumerate(
            map(np.asarray, column) for column in self._columns.values()
        ):
            agree = bool(stamps.all()) and abs(np.median(stamps - received) - ahead) < JUMP
            times, moments = (stamps, main.stamps) if agree and clock == "header" else (received, main.received)
            order = np.argsort(times, kind="stable")
            latest = np.searchsorted(times[order], moments, side="right") - 1
            out[latest >= 0, place] = values[order][latest[latest >= 0]]
        return out


@dataclass
class TopicFacts:
    """What `demerit inspect` shows of a topic."""

    type: str
    read_as: str
    """camera, signal, text, or empty: it is not read"""
    messages: int = 0
    first: int = 0
    last: int = 0
    """receive times, nanoseconds"""
    longest_gap: int = 0
    jumps: int = 0
    """how often the clock of the headers went back, or by a second against the receive time"""
    _stamp: int | None = None

    def add(self, at: int, stamp: int | None) -> None:
        """Count a message."""
        if self.messages:
            self.longest_gap = max(self.longest_gap, at - self.last)
            if stamp is not None and self._stamp is not None:
                step = stamp - self._stamp
                self.jumps += step < 0 or abs(step - (at - self.last)) > JUMP
        else:
            self.first = at
        self.messages, self.last, self._stamp = self.messages + 1, at, stamp

    def row(self, topic: str) -> dict[str, Any]:
        """Return plain values."""
        seconds = (self.last - self.first) / 1e9
        return {
            "topic": topic,
            "type": self.type,
            "read as": self.read_as,
            "messages": self.messages,
            "Hz": round((self.messages - 1) / seconds, 2) if seconds else None,
            "longest gap": round(self.longest_gap / 1e9, 3),
            "clock jumps": self.jumps,
        }


@dataclass
class BagScan:
    """A bag, read once without decoding an image."""

    topics: dict[str, TopicFacts] = field(default_factory=dict)
    cameras: dict[str, CameraTrack] = field(default_factory=dict)
    signals: dict[str, SignalSeries] = field(default_factory=dict)
    texts: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    """receive times and values of the topics whose values cut the bag or give its instruction"""
    notes: Mapping[str, str] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    """kinds and details; the bag can be used"""
    damage: str = ""
    """why the messages after `end` cannot be read"""
    end: int = 0
    """receive time of the last message that can be read"""


@lru_cache(maxsize=256)
def scan_bag(path: str, wanted: frozenset[str], _state: tuple[Any, ...]) -> BagScan:
    """Read a bag once; cached. `wanted` topics are kept as texts. Raises BagError if it cannot be opened."""
    scan, builders = BagScan(), dict[str, TrackBuilder]()
    undecoded: Counter[str] = Counter()
    with open_bag(path) as bag:
        scan.notes = bag.texts
        if Path(path).is_dir() and not bag.facts:
            reason = f"there is no {FOLDER_FACTS}: it is still being written, or its recorder was killed"
            scan.problems.append((f"no {FOLDER_FACTS}", reason))
        for name, topic in bag.topics.items():
            is_text = name in wanted or _is_named({*TASK_NAMES, *TOPICS}, name, topic.type)
            read_as = "camera" if topic.type in CAMERA_TYPES else "text" if is_text else ""
            read_as = "signal" if topic.type in (*SIGNAL_TYPES, *ARRAY_TYPES, JOINTS) and not is_text else read_as
            scan.topics[name] = TopicFacts(topic.type, read_as)
        try:
            for at, name, data in bag.messages():
                scan.end = at
                _scan_message(scan, builders, bag, (at, name, data), undecoded)
        except BagError as error:
            scan.damage = str(error)
        count = sum(facts.messages for facts in scan.topics.values())
        if bag.count is not None and bag.count != count and not scan.damage:
            scan.problems.append(("missing messages", f"it has {count} of the {bag.count} messages of its index"))
    for reason, count in undecoded.items():
        scan.problems.append(("unread topic", f"{reason} ({count} messages)"))
    for name, builder in builders.items():
        track = builder.build()
        scan.cameras |= {name: track} if track.keys.any() else {}
        for reason, count in builder.refused.items():
            scan.problems.append(("unread images", f"{count} of {name} are not read: {reason}"))
    return scan


def _scan_message(
    scan: BagScan,
    builders: dict[str, TrackBuilder],
    bag: BagFile,
    message: tuple[int, str, bytes],
    undecoded: Counter[str],
) -> None:
    at, name, data = message
    facts = scan.topics[name]
    if not facts.read_as:
        facts.add(at, None)
        return
    try:
        content = bag.decode(name, data)
        stamp = read_stamp(content)
        if facts.read_as == "camera":
            builders.setdefault(name, TrackBuilder()).add(at, content, CAMERA_TYPES[facts.type])
        elif facts.read_as == "signal":
            for part, values in _numbers(facts.type, content):
                signal = name.strip("/").replace("/", "_") + part
                scan.signals.setdefault(signal, SignalSeries()).add(at, stamp, values)
        else:
            scan.texts.setdefault(name, []).append((at, getattr(content, "data", "start")))
    except (BagError, AttributeError, TypeError, ValueError) as error:
        undecoded[f"{name}: {printable(error)}"] += 1
        stamp = None
    facts.add(at, stamp or None)


def _numbers(kind: str, message: Any) -> Iterator[tuple[str, Mapping[str, float]]]:
    """The signals in a message: the end of the name, and the numbers by column."""
    if kind == JOINTS:
        for part in ("position", "velocity", "effort"):
            values = getattr(message, part)
            if len(values) == len(message.name):
                yield f".{part}", dict(zip(message.name, map(float, values), strict=True))
    elif kind in ARRAY_TYPES:
        yield "", {str(place): float(value) for place, value in enumerate(message.data)}
    else:
        yield "", {name: float(attrgetter(name)(message)) for name in SIGNAL_TYPES[kind]}


def _is_named(names: Collection[str], topic: str, kind: str) -> bool:
    return kind == "std_msgs/msg/String" and topic.rpartition("/")[2] in names


def _list_texts(scan: BagScan, topic: str, names: Collection[str]) -> list[tuple[int, Any]]:
    """List what a topic says; without one, the String topics of these names. Oldest first, with receive times."""
    topics = [topic] if topic else [name for name in scan.texts if _is_named(names, name, scan.topics[name].type)]
    return sorted((message for name in topics for message in scan.texts.get(name, ())), key=itemgetter(0))


@dataclass(frozen=True)
class RosReader(FolderReader):
    """Reads every bag under a folder; a label file adds instructions and labels, in rows that name the bag or episode.

    An instruction comes from the label file, else from `task` (a String topic; by default one called instruction, task,
    language_instruction or prompt), else from the notes of the recorder (custom_data, MCAP metadata).
    """

    format = "ros"
    labels: str | None = field(default=None, kw_only=True)
    clock: Clock = field(default="header", kw_only=True)
    """times by the stamps of the headers, where there are some, or by when messages were received"""
    marker: str = field(default="", kw_only=True)
    """a topic that cuts a bag: true, start or another text begins an episode; false, stop or end ends it"""
    gap: float | None = field(default=None, kw_only=True)
    """cut where no camera has an image for more than these seconds"""
    task: str = field(default="", kw_only=True)
    mark_topic: str = field(default="", kw_only=True)
    """the topic of marks; by default a String topic called mark or marks"""
    only: Sequence[Path] | None = field(default=None, kw_only=True)
    """read only these bags of the folder, with their rows; absolute paths"""

    def __post_init__(self) -> None:
        find_label_files(self.root, self.labels)
        if self.clock not in ("header", "receive"):
            raise BadInput("clock", "header or receive", repr(self.clock))
        try:
            object.__setattr__(self, "gap", None if self.gap is None else float(self.gap))
        except ValueError:
            raise BadInput("gap", "seconds", repr(self.gap)) from None
        if self.gap is not None and (not self.gap > 0 or self.marker):
            raise BadInput("gap", "a positive number of seconds, and no marker with it", self.gap)

    def expected(self) -> int | None:
        """The number of bags; None when they are cut."""
        return None if self.marker or self.gap is not None else len(self._bags())

    def topics(self) -> list[dict[str, Any]]:
        """The topics of every bag, a row each, for `demerit inspect`."""
        rows = []
        for path in self._bags():
            try:
                rows += [{"bag": self._id(path), **facts.row(name)} for name, facts in self._scan(path).topics.items()]
            except BagError:  # reported by `records`
                continue
        return rows

    def records(self) -> Iterator[Record]:
        """Stream the episodes of every bag, by path."""
        label_files = find_label_files(self.root, self.labels)
        yield from report_others(label_files)
        rows: dict[str, LabelRow] = {}
        columns: set[str] = set()
        for row in read_rows(label_files[0]) if label_files else ():
            if isinstance(row, Problem):
                yield row
                continue
            yield from LabelCells(row).misspelt(columns)
            rows.setdefault(self._named_by(row), row)
        names: set[str] = set()
        for path in self._bags():
            for record in self._join_marks(path, self._read_bag(path, rows)):
                if isinstance(record, Problem):
                    names.add(record.episode)
                elif isinstance(record, Episode):
                    names.add(record.id)
                    if label_files and record.id not in rows:
                        detail = f"{label_files[0].name} has no row for it: its outcome is unknown"
                        yield Problem("bag without a row", record.id, detail, kept=True)
                yield record
        for name, row in rows.items():
            if name not in names and self.only is None:
                detail = f"it names {printable(name)!r}, which is no bag or episode of the folder"
                yield Problem("row without a bag", row.where, detail, kept=False)

    def recorded(self, episode: Episode) -> tuple[float, float]:
        """Return when the first and the last image of an episode were received, in seconds since 1970."""
        clip = episode.main.source.describe()
        return clip["first"] / 1e9, clip["last"] / 1e9

    def _join_marks(self, path: Path, records: Iterable[Record]) -> Iterator[Record]:
        """Join the marks in a bag to its episodes."""
        records = list(records)
        if not any(isinstance(record, Episode) for record in records):
            yield from records
            return
        marks, problems = read_texts(_list_texts(self._scan(path), self.mark_topic, TOPICS), self._id(path))
        yield from problems
        yield from join_marks(records, marks, self.recorded, math.inf, self._id(path))

    def _bags(self) -> list[Path]:
        return sorted(bags_under(self.root) if self.only is None else self.only)

    def _id(self, path: Path) -> str:
        inside = path.relative_to(self.root)
        return printable((inside if path.is_dir() else inside.with_suffix("")).as_posix())

    def _named_by(self, row: LabelRow) -> str:
        cells = LabelCells(row)
        path = Path(text(cells.take("file")) or text(cells.take("id")))
        return (path.with_suffix("") if path.suffix.lower() in BAG_SUFFIXES else path).as_posix()

    def _scan(self, path: Path) -> BagScan:
        wanted = frozenset(filter(None, (self.marker, self.task, self.mark_topic)))
        return scan_bag(str(path), wanted, bag_state(str(path)))

    def _read_bag(self, path: Path, rows: Mapping[str, LabelRow]) -> Iterator[Episode | Problem]:
        bag = self._id(path)
        try:
            scan = self._scan(path)
        except BagError as error:
            yield Problem("unreadable bag", bag, str(error), kept=False)
            return
        yield from (Problem(kind, bag, detail, kept=True) for kind, detail in scan.problems)
        if not scan.cameras:
            types = ", ".join(sorted({facts.type or "no schema" for facts in scan.topics.values()})) or "none"
            detail = scan.damage or f"it has no image that can be read (types: {printable(types)})"
            yield Problem("no camera", bag, detail, kept=False)
            return
        clock, reason = choose_clock(scan.cameras) if self.clock == "header" else ("receive", "")
        if reason:
            yield Problem("clock jump", bag, f"{reason}: the times of receiving are used", kept=True)
        spans = list(self._cut(scan))
        if not spans:
            yield Problem("no marker", bag, f"{self.marker} begins no episode in it", kept=False)
        for number, (first, last, word) in enumerate(spans):
            id = bag if len(spans) == 1 and not self.marker else f"{bag}/{number}"
            if scan.damage and last >= scan.end:
                yield Problem("damaged bag", id, scan.damage, kept=False)
                continue
            yield from self._read_span(path, scan, (id, first, min(last, scan.end), word), clock, rows.get(id))

    def _cut(self, scan: BagScan) -> Iterator[tuple[int, int, str]]:
        """Yield the receive times of each episode's first and last message, and what the marker said."""
        images = np.sort(np.concatenate([track.received for track in scan.cameras.values()]))
        begin, end = int(images[0]), scan.end
        if self.gap is not None:
            breaks = np.flatnonzero(np.diff(images) > self.gap * 1e9)
            starts = [begin, *images[breaks + 1].tolist()]
            ends = [*images[breaks].tolist(), end]
            yield from ((start, stop, "") for start, stop in zip(starts, ends, strict=True))
            return
        if not self.marker:
            yield begin, end, ""
            return
        begun: tuple[int, str] | None = None
        for at, value in scan.texts.get(self.marker, ()):
            word = str(value).strip() if isinstance(value, str) else str(bool(value)).lower()
            if begun is not None:
                yield begun[0], at - 1, begun[1]
            begun = None if word.lower() in END_WORDS else (at, "" if word.lower() in BEGIN_WORDS else word)
        if begun is not None:
            yield begun[0], end, begun[1]

    def _read_span(
        self, path: Path, scan: BagScan, span: tuple[str, int, int, str], clock: Clock, row: LabelRow | None
    ) -> Iterator[Episode | Problem]:
        id, first, last, word = span
        names = sorted(scan.cameras, key=lambda name: ("hand" in name or "wrist" in name, name))
        present = [name for name in names if len(scan.cameras[name].cut(first, last).received)]
        for name in names:
            if name not in present:
                detail = f"{name} has no image in it"
                yield Problem("missing camera", id, detail, kept=bool(present))
        if not present:
            return
        tracks = {}
        for name in present:
            key = scan.cameras[name].key_before(first)
            tracks[name] = (key, scan.cameras[name].cut(key, last))
        main = tracks[present[0]][1]
        inside = main.received[main.received >= max(first, tracks[present[0]][0])]
        first, last = int(inside[0]), int(inside[-1])
        views: dict[str, Frames] = {}
        for name, (key, track) in tracks.items():
            index = index_frames(track, main, first, last, clock)
            of_main = "" if track is main else present[0]
            source = BagFrames(str(path), name, first, last, key, clock, of_main, index)
            short = _camera_name(name)
            views[name.strip("/") if short in views else short] = Frames(source)
        problems: list[Problem] = []
        outcomes, instruction, origin = self._read_labels(row, next(iter(views.values())), id, problems)
        instruction = instruction or self._find_task(scan, first, last) or word
        if not instruction:
            problems.append(Problem(NO_INSTRUCTION, id, "no row, topic or note gives one", kept=True))
        shown = main.cut(first, last)
        signals = {name: series.sample(shown, clock) for name, series in scan.signals.items()}
        tags = {f"columns of {name}": series.names for name, series in scan.signals.items()}
        group = origin.group or ("" if id == self._id(path) else self._id(path))
        yield from problems
        origin = replace(origin, group=group, tags={**origin.tags, **tags})
        yield Episode(id, instruction, views, outcomes, origin, signals)

    def _read_labels(
        self, row: LabelRow | None, frames: Frames, id: str, problems: list[Problem]
    ) -> tuple[tuple[Outcome, ...], str, Origin]:
        if row is None:
            return (), "", Origin(dataset=self.name)
        cells = LabelCells(row)
        cells.take("file"), cells.take("id")
        instruction = text(cells.take("instruction"))
        outcomes = read_outcomes(cells, frames, id, problems)
        return outcomes, instruction, read_origin(self.name, cells)

    def _find_task(self, scan: BagScan, first: int, last: int) -> str:
        """The first text of the task topic in the episode, else the last one before it, else the recorder's note."""
        tasks = [(at, str(value)) for at, value in _list_texts(scan, self.task, TASK_NAMES) if at <= last]
        inside = [value for at, value in tasks if at >= first]
        before = [value for at, value in tasks if at < first]
        noted = [scan.notes[name] for name in TASK_NAMES if name in scan.notes]
        return next(iter([*inside, *before[-1:], *noted]), "").strip()


def choose_clock(cameras: Mapping[str, CameraTrack]) -> tuple[Clock, str]:
    """Choose the headers' clock, or the times of receiving and the reason for it."""
    offsets = {}
    for name, track in cameras.items():
        if not track.stamps.all():
            return "receive", f"the headers of {name} have no stamp"
        if back := int((np.diff(track.stamps) < 0).sum()):
            return "receive", f"the stamps of {name} go back {back} times"
        offsets[name] = int(np.median(track.stamps - track.received))
    if max(offsets.values()) - min(offsets.values()) > JUMP:
        return "receive", f"the clocks of {min(offsets, key=offsets.__getitem__)} and others differ by more than 1 s"
    return "header", ""


def _camera_name(topic: str) -> str:
    """Name a camera.

    >>> _camera_name("/camera/front/image_raw/compressed")
    'camera_front'
    """
    parts = topic.strip("/").split("/")
    while len(parts) > 1 and parts[-1] in GENERIC_PARTS:
        parts.pop()
    return "_".join(parts)


def bags_under(root: Path) -> Iterator[Path]:
    """List the bags under a folder, also those of its folders; links to folders are not followed."""
    for folder, inner, names in os.walk(root):
        bags = [name for name in inner if not name.startswith(".") and is_bag(Path(folder, name))]
        yield from (Path(folder, name) for name in bags)
        inner[:] = [name for name in inner if not name.startswith(".") and name not in bags]
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        yield from (path for path in paths if path.suffix.lower() in BAG_SUFFIXES)
