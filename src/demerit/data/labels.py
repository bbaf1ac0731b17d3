"""Labels: what happened in an episode, the source of that information, and which sources a command takes.

A command or recipe names the sources it takes, e.g. `human, simulator, model:validated`:

    human simulator rule edit    labels of that source
    model:validated              labels of models that were confirmed: `Outcome.by` contains `, validated by WHO` or the
                                 prompts' name of `demerit relabel` (`, relabel-2.1a2b3c`), which writes no others
    model                        every label of a model, confirmed or not
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput, UnknownName

LabelSource = Literal["human", "simulator", "rule", "edit", "model"]
"""The source of a label, most trusted first: a person, measured physics, a rule (demonstrations are successes), an edit
(a video cut in half is half done), a model."""

LABEL_SOURCES: tuple[LabelSource, ...] = get_args(LabelSource)

VALIDATED = "model:validated"
SOURCE_NAMES: tuple[str, ...] = (*LABEL_SOURCES[:-1], VALIDATED, "model")
"""what a recipe or `--label-sources` may name"""
NOT_A_MODEL: tuple[str, ...] = LABEL_SOURCES[:-1]
"""the sources that models are measured by"""
TRAINED_SOURCES: tuple[str, ...] = (*NOT_A_MODEL, VALIDATED)
"""the sources that models are trained on by default"""
_CONFIRMED = re.compile(r"(?:^|, )(?:relabel-\d+\.[0-9a-f]+|validated by \S)")

Verdict = Literal["a", "b", "tie"]


@dataclass(frozen=True)
class Event:
    """A failure visible from frame `first` to frame `last` (inclusive); `kind` is a name of the failure taxonomy."""

    kind: str
    first: int
    last: int
    note: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise BadInput(f"event {self.kind!r}", "0 <= first <= last", (self.first, self.last))


@dataclass(frozen=True, eq=False)
class Outcome:
    """The label of an episode by one source. None and NaN mean unknown; nothing is filled in."""

    source: LabelSource
    success: bool | None = None
    progress: float | None = None
    """progress at the end, 0 to 1"""
    grade: int | None = None
    """1 (nothing done) to 5 (done as asked)"""
    curve: npt.NDArray[np.float32] | None = None
    """progress at every frame, 0 to 1, NaN where unknown"""
    events: tuple[Event, ...] = ()
    note: str = ""
    """free text; never shown to a model under evaluation"""
    by: str = ""
    """name of the person, simulator, rule or model"""

    def __post_init__(self) -> None:
        if self.source not in LABEL_SOURCES:
            raise BadInput("outcome source", f"one of {', '.join(LABEL_SOURCES)}", repr(self.source))
        if self.progress is not None and not 0 <= self.progress <= 1:
            raise BadInput("progress", "a number from 0 to 1", self.progress)
        if self.grade is not None and self.grade not in (1, 2, 3, 4, 5):
            raise BadInput("grade", "a whole number from 1 to 5", self.grade)
        if self.curve is not None:
            object.__setattr__(self, "curve", _check_curve(self.curve))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Outcome):
            return NotImplemented
        if self.curve is None or other.curve is None:
            same_curve = self.curve is other.curve
        else:
            same_curve = np.array_equal(self.curve, other.curve, equal_nan=True)
        return same_curve and self._facts() == other._facts()

    __hash__ = None  # type: ignore[assignment]  # curves are arrays

    def __str__(self) -> str:
        """The label in a few words: 'human Ada: success, grade 5'."""
        known = {None: [], True: ["success"], False: ["failure"]}[self.success]
        known += [f"progress {self.progress:g}"] if self.progress is not None else []
        known += [f"grade {self.grade}"] if self.grade is not None else []
        known += ["a curve"] if self.curve is not None else []
        known += [f"{event.kind} at {event.first}" for event in self.events]
        known += ["a note"] if self.note else []
        return f"{self.source} {self.by}".strip() + f": {', '.join(known) or 'nothing'}"

    def _facts(self) -> tuple[object, ...]:
        return (self.source, self.success, self.progress, self.grade, self.events, self.note, self.by)


def most_trusted(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the outcome with the most trusted source; the first of equals."""
    return min(outcomes, key=lambda outcome: LABEL_SOURCES.index(outcome.source), default=None)


@dataclass(frozen=True)
class Preference:
    """A choice between two episodes."""

    a: str
    b: str
    verdict: Verdict
    """the better episode, or a tie"""
    source: LabelSource
    why: str = ""
    by: str = ""

    def __post_init__(self) -> None:
        if self.a == self.b:
            raise BadInput("preference", "two different episodes", f"{self.a!r} twice")
        if self.verdict not in get_args(Verdict):
            raise BadInput("preference verdict", "'a', 'b' or 'tie'", repr(self.verdict))
        if self.source not in LABEL_SOURCES:
            raise BadInput("preference source", f"one of {', '.join(LABEL_SOURCES)}", repr(self.source))

    @property
    def better(self) -> str | None:
        """The id of the better episode, None for a tie."""
        return {"a": self.a, "b": self.b, "tie": None}[self.verdict]


# The choice of sources


Label = TypeVar("Label", Outcome, Preference)


def name_source(label: Outcome | Preference) -> str:
    """Return the label's source: one of `SOURCE_NAMES`."""
    return VALIDATED if label.source == "model" and _CONFIRMED.search(label.by) else label.source


def is_taken(label: Outcome | Preference, sources: Sequence[str]) -> bool:
    """Whether a label's source is among the given ones; `model` includes `model:validated`."""
    return label.source in sources or name_source(label) in sources


def select_labels(labels: Iterable[Label], sources: Sequence[str]) -> tuple[Label, ...]:
    """Keep the labels of these sources."""
    return tuple(label for label in labels if is_taken(label, sources))


def check_sources(sources: Sequence[str], what: str = "label source") -> tuple[str, ...]:
    """Return the names without repetitions; an unknown name is refused, and so is no name at all."""
    for name in sources:
        if name not in SOURCE_NAMES:
            raise UnknownName(what, str(name), SOURCE_NAMES)
    if not sources:
        raise BadInput(f"{what}s", f"some of {', '.join(SOURCE_NAMES)}", "none")
    return tuple(dict.fromkeys(sources))


@dataclass
class SourceCounts:
    """How many labels were taken and dropped, by source."""

    taken: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, labels: Iterable[Outcome | Preference], sources: Sequence[str]) -> None:
        """Count labels."""
        for label in labels:
            (self.taken if is_taken(label, sources) else self.dropped)[name_source(label)] += 1

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return plain values."""
        return {"taken": dict(self.taken), "dropped": dict(self.dropped)}

    def __str__(self) -> str:
        """List both: `12 human, 3 model:validated; not used: 4 model (--label-sources takes them)`."""
        taken, dropped = (
            ", ".join(f"{counts[name]} {name}" for name in SOURCE_NAMES if counts[name])
            for counts in (self.taken, self.dropped)
        )
        more = f"; not used: {dropped} (--label-sources takes them)" if dropped else ""
        return (taken or "none") + more


def _check_curve(curve: npt.ArrayLike) -> npt.NDArray[np.float32]:
    values = np.array(curve, dtype=np.float32)
    if values.ndim != 1:
        raise BadInput("curve", "one number per frame", f"an array of shape {values.shape}")
    known = values[~np.isnan(values)]
    if known.size and (known.min() < 0 or known.max() > 1):
        raise BadInput("curve", "progress from 0 to 1 (NaN where unknown)", f"{known.min():g} to {known.max():g}")
    values.setflags(write=False)
    return values
