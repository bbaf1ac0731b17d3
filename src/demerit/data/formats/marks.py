"""Marks: what people pressed while a robot ran, and the episodes that they belong to.

`demerit mark` appends a line for each press to a log; a bag may have a topic with them instead:

    {"mark": "failure", "at": "2026-11-18T14:03:22.481516+00:00", "monotonic": 5123.4, "by": "Ada", "run": "5f0c2a91"}

A verdict (success, failure, retake) belongs to the episode that runs at its moment, else to the one that ended last. An
event belongs to the frame of its moment. Where a format does not say when episodes were recorded, verdicts belong to
them by order, if the numbers agree. What does not fit is reported, and changes no label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode, Event, Outcome
from demerit.data.formats.label_file import detail_of, parse_cell, printable, read_rows, text
from demerit.data.taxonomy import UNKNOWN
from demerit.errors import BadInput, DemeritError, UnknownName, UnreadableVideo

WORDS = ("success", "failure", "retake", "event", "undo")
VERDICTS = {"success": True, "failure": False, "retake": None}
TOPICS = frozenset({"mark", "marks"})
"""how a String topic of a bag is called that has marks"""
PROBLEMS = ("mark of no episode", "mark of no frame", "several verdicts", "retake", "unknown mark", "clock jump")
"""kinds of problems of marks: a person wants to see each of them"""
LATE = 60.0
"""seconds after the end of an episode in which a press is its verdict"""
JUMP = 1.0
"""seconds by which the wall clock may drift from the monotonic one between two presses"""
LONGEST_NAME = 60

Span = tuple[float, float]
"""when an episode was recorded: start and end in seconds since 1970"""


@dataclass(frozen=True)
class Mark:
    """A press."""

    word: str
    """one of WORDS"""
    at: float
    """seconds since 1970"""
    by: str = ""
    run: str = ""
    """the run of `demerit mark`; an undo reaches only its own run"""

    def __str__(self) -> str:
        """The word and the local time, as people say it."""
        return f"{self.word} at {datetime.fromtimestamp(self.at):%Y-%m-%d %H:%M:%S}"


def read_mark(value: Any) -> tuple[str, str]:
    """Read a word, or {"mark": word, "by": name}, that anybody may have sent: the word and the name."""
    facts = value if isinstance(value, dict) else {"mark": value}
    if strange := sorted(map(str, facts.keys() - {"mark", "by"})):
        raise UnknownName("field of a mark", strange[0], ("mark", "by"))
    word, by = str(facts.get("mark", "")).strip().lower(), facts.get("by", "")
    if word not in WORDS:
        raise UnknownName("mark", printable(word)[:LONGEST_NAME], WORDS)
    if not isinstance(by, str) or len(by) > LONGEST_NAME or not by.isprintable():
        raise BadInput("by", f"a name of at most {LONGEST_NAME} characters", ascii(by)[:LONGEST_NAME])
    return word, by.strip()


def apply_undos(marks: Iterable[Mark]) -> list[Mark]:
    """Drop each undo, and the last mark before it of the same run and person that is still there."""
    kept: list[Mark] = []
    for mark in marks:
        if mark.word != "undo":
            kept.append(mark)
            continue
        own = (
            place for place in reversed(range(len(kept))) if (kept[place].run, kept[place].by) == (mark.run, mark.by)
        )
        if (last := next(own, None)) is not None:
            del kept[last]
    return kept


def read_log(path: Path) -> tuple[list[Mark], list[Problem]]:
    """Read a log, undos applied; report lines that are torn and jumps of the wall clock."""
    if not path.is_file():
        raise BadInput("marks", "a log of demerit mark", f"{str(path)!r}, which is no file")
    marks, problems, ahead = list[Mark](), list[Problem](), dict[str, float]()
    for row in read_rows(path):
        if isinstance(row, Problem):
            problems.append(replace(row, kept=True))
            continue
        try:
            word, by = read_mark({"mark": row.fields.get("mark"), "by": row.fields.get("by", "")})
            at = datetime.fromisoformat(row.fields["at"])
            if at.tzinfo is None or not math.isfinite(monotonic := float(row.fields["monotonic"])):
                raise ValueError
        except (DemeritError, KeyError, TypeError, ValueError, OverflowError):
            problems.append(Problem("malformed line", row.where, "it is not a line of demerit mark", kept=True))
            continue
        mark = Mark(word, at.timestamp(), by, text(row.fields.get("run")))
        shift = mark.at - monotonic - ahead.setdefault(mark.run, mark.at - monotonic)
        if abs(shift) > JUMP:
            detail = f"the clock was set by {shift:+.1f} s before the {mark}: check the labels around it"
            problems.append(Problem("clock jump", row.where, detail, kept=True))
        ahead[mark.run] = mark.at - monotonic
        marks.append(mark)
    return apply_undos(marks), problems


def read_texts(texts: Iterable[tuple[int, Any]], where: str) -> tuple[list[Mark], list[Problem]]:
    """Read the texts of a topic, each with its nanoseconds since 1970: the marks, undos applied."""
    marks, problems = list[Mark](), list[Problem]()
    for at, value in texts:
        try:
            word, by = read_mark(parse_cell(value))
        except DemeritError as error:
            problems.append(Problem("unknown mark", where, detail_of(error), kept=True))
            continue
        marks.append(Mark(word, at / 1e9, by))
    return apply_undos(marks), problems


def find_by_time(
    marks: Sequence[Mark], spans: Sequence[Span], late: float = LATE
) -> tuple[list[list[Mark]], list[str]]:
    """Find the marks of each episode by its time; return also a sentence for each mark of none."""
    starts, ends = np.array(spans, dtype=np.float64).reshape(-1, 2).T
    groups, remarks = [list[Mark]() for _ in spans], list[str]()
    for mark in marks:
        places, reason = np.flatnonzero((starts <= mark.at) & (mark.at <= ends)), "no episode ran then"
        before = ends[ends < mark.at]
        if not len(places) and mark.word in VERDICTS and len(before):
            reason = f"the episode before it had ended {mark.at - before.max():.0f} s earlier"
            if mark.at - before.max() <= late:
                places = np.flatnonzero(ends == before.max())
        if len(places) == 1:
            groups[places[0]].append(mark)
        else:
            remarks.append(f"{mark}: {f'{len(places)} episodes ran then' if len(places) else reason}")
    return groups, remarks


def find_by_order(marks: Sequence[Mark], count: int) -> tuple[list[list[Mark]], list[str]]:
    """Give one verdict to each of `count` episodes, in order; to none unless the numbers agree.

    The episodes of retakes are among them, or the recorder has dropped them: whichever makes the numbers agree.
    """
    verdict_marks = [mark for mark in marks if mark.word in VERDICTS]
    kept = [mark for mark in verdict_marks if mark.word != "retake"]
    events = (mark for mark in marks if mark.word not in VERDICTS)
    remarks = [f"{mark}: this format does not say when its episodes were recorded" for mark in events]
    verdicts = verdict_marks if len(verdict_marks) == count else kept
    if verdict_marks and len(verdicts) != count:
        retakes = f" and {len(verdict_marks) - len(kept)} retakes" if len(verdict_marks) > len(kept) else ""
        remarks.append(f"{len(kept)} verdicts{retakes} do not fit {count} episodes, so that none of them is used")
        verdicts = []
    return [[mark] for mark in verdicts] or [[] for _ in range(count)], remarks


def join_marks(
    records: Iterable[Record],
    marks: Sequence[Mark],
    recorded: Callable[[Episode], Span] | None,
    late: float,
    where: str,
) -> Iterator[Record]:
    """Add the marks of each episode to its labels, and drop retakes; what fits no episode is reported as of `where`."""
    records = list(records)
    episodes = [record for record in records if isinstance(record, Episode)] if marks else []
    spans = [recorded(episode) for episode in episodes] if recorded else []
    groups, remarks = find_by_time(marks, spans, late) if recorded else find_by_order(marks, len(episodes))
    yield from (Problem("mark of no episode", where, sentence, kept=True) for sentence in remarks)
    places = iter(range(len(episodes)))
    for record in records:
        if isinstance(record, Episode) and marks:
            place = next(places)
            yield from _judge(record, groups[place], spans[place][0] if spans else 0.0)
        else:
            yield record


def _judge(episode: Episode, marks: Sequence[Mark], start: float) -> Iterator[Record]:
    """Yield an episode with its marks as labels, one for each person; a problem instead of it if it is a retake."""
    verdicts = {by: {mark.word for mark in marks if mark.by == by} & VERDICTS.keys() for by in {m.by: 0 for m in marks}}
    all_words = set().union(*verdicts.values())
    if all_words == {"retake"}:
        detail = "; ".join(str(mark) for mark in marks if mark.word == "retake")
        yield Problem("retake", episode.id, f"{detail}: it is left out", kept=False)
        return
    if len(all_words) > 1 and ("retake" in all_words or any(len(words) > 1 for words in verdicts.values())):
        pressed = ", ".join(str(mark) for mark in marks if mark.word in VERDICTS)
        yield Problem("several verdicts", episode.id, f"none of them is used: {pressed}", kept=True)
        verdicts = {by: set() for by in verdicts}
    outcomes = []
    for by, words in verdicts.items():
        events, problem = _place_events(episode, [m for m in marks if m.by == by and m.word == "event"], start)
        yield from problem
        if words or events:
            outcomes.append(Outcome("human", success=VERDICTS[min(words)] if words else None, events=events, by=by))
    yield replace(episode, outcomes=(*episode.outcomes, *outcomes))


def _place_events(episode: Episode, marks: Sequence[Mark], start: float) -> tuple[tuple[Event, ...], list[Problem]]:
    """Make an event at the frame nearest to each mark."""
    if not marks:
        return (), []
    try:
        times = episode.main.times()
    except UnreadableVideo as error:
        return (), [Problem("mark of no frame", episode.id, f"{marks[0]}: {detail_of(error)}", kept=True)]
    frames = sorted({int(np.abs(times - (mark.at - start)).argmin()) for mark in marks})
    return tuple(Event(UNKNOWN, frame, frame) for frame in frames), []


@dataclass(frozen=True)
class MarkedBy:
    """How the marks of a log are joined to the records of a reader."""

    path: Path
    recorded: Callable[[Episode], Span] | None
    """when an episode was recorded; None = the format does not say"""
    late: float | str = LATE

    @cached_property
    def log(self) -> tuple[list[Mark], list[Problem]]:
        """The marks and the problems of the log."""
        return read_log(self.path)

    @cached_property
    def seconds(self) -> float:
        """After the end of an episode, in which a press is its verdict."""
        try:
            if (seconds := float(self.late)) >= 0:
                return seconds
        except ValueError:
            pass
        raise BadInput("late", "seconds", repr(self.late))

    @property
    def note(self) -> str:
        """Say how the marks find their episodes."""
        how = "the times of recording" if self.recorded else "the order of the episodes"
        return printable(f"{self.path.name}: {len(self.log[0])} marks, joined by {how} (docs/mark.md)")

    def join(self, records: Iterable[Record]) -> Iterator[Record]:
        """Join the marks to the episodes."""
        marks, problems = self.log
        yield from problems
        yield from join_marks(records, marks, self.recorded, self.seconds, printable(self.path.name))
