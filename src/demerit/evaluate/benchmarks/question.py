"""A question to the evidence: one measure, asked of every model in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from demerit.errors import NotApplicable
from demerit.evaluate.benchmarks.evidence import Evidence, Floats
from demerit.evaluate.metrics import Tally
from demerit.evaluate.reports.report import Judged, Line

TWO_SIDES = "accepted and rejected episodes"
NAMED_PARTS: dict[str, Callable[[Judged], str]] = {
    "category": lambda one: one.category,
    "subset": lambda one: one.subset,
    "task": lambda one: one.task,
    "embodiment": lambda one: one.embodiment,
}


@dataclass(frozen=True)
class Question:
    """One measure: which numbers it takes from a model, and how it counts them.

    The two are apart so that a pair of models can be compared on the rows that both have.
    """

    name: str
    numbers: Callable[[Evidence, str], Floats]
    """one number per row of a model, NaN = unscored; NotApplicable(reason) refuses the model"""
    counting: Callable[[Evidence, Floats], Tally]
    needs: str
    """what must be known about the episodes, as a clause: 'accepted and rejected episodes'"""
    across: bool = True
    """it compares the values of different episodes, so it makes no sense for values normalised in each"""
    lower_is_better: bool = False
    by: tuple[str, ...] = ()
    """also asked of each category, subset, task or embodiment by itself"""
    of: Callable[[Evidence], Evidence] | None = None
    """the part of the evidence that it is about; None: all"""
    undefined: Callable[[Evidence, str], int] | None = None
    """how many of the NaN rows are scored, but have no value by the formula"""
    note: Callable[[Evidence, str], str] | None = None
    """what a reader of this model's number must know"""
    beaten_by: tuple[str, ...] = ()
    """controls that reach the top by construction: to be below them says nothing about a model"""
    asks_comparers: bool = False
    """also answered by the comparer that always names the first"""
    only: Callable[[Evidence, str], bool] | None = None
    """the models that it is about; others are passed over without a word"""
    lacking: Callable[[Evidence], str] | None = None
    """why these episodes are too few for it, as the rest of 'NAME is not measured: '; empty when they are not"""

    def tally(self, evidence: Evidence, model: str) -> Tally:
        """Count one model's evidence."""
        tally = self.counting(evidence, self.numbers(evidence, model))
        notes = [tally.note, self.note(evidence, model) if self.note else ""]
        tally = replace(tally, name=self.name, note="; ".join(note for note in notes if note))
        if self.undefined is None:
            return tally
        undefined = self.undefined(evidence, model)
        return replace(tally, undefined=undefined, unscored=tally.unscored - undefined)

    def about(self, evidence: Evidence) -> Evidence:
        """Take the part of the evidence that it is about."""
        return evidence if self.of is None else self.of(evidence)


@dataclass(frozen=True)
class Refused:
    """A model that a question cannot be asked of, and why."""

    question: str
    model: str
    reason: str


def answers(question: Question, evidence: Evidence, models: list[str]) -> Iterator[Line | Refused]:
    """Ask one question of every model, over all and by part. Without labels there is no line at all."""
    about = question.about(evidence)
    for model in models:
        if question.across and not evidence.cards[model].comparable:
            yield Refused(question.name, model, "its values cannot be compared between episodes")
            continue
        try:
            lines = list(_lines(question, about, model))
        except NotApplicable as refusal:
            yield Refused(question.name, model, refusal.reason)
            continue
        yield from lines


def _lines(question: Question, about: Evidence, model: str) -> Iterator[Line]:
    whole = _line(question, about, model, "")
    if whole is None:
        return
    yield whole
    for kind in question.by:
        part_of = NAMED_PARTS[kind]
        for name in sorted({part_of(one) for one in about.episodes} - {""}):
            part = about.where(lambda one, part_of=part_of, name=name: part_of(one) == name)  # type: ignore[misc]
            line = _line(question, part, model, f"{kind}: {name}")
            if line is not None:
                yield line


def _line(question: Question, about: Evidence, model: str, part: str) -> Line | None:
    measure = question.tally(about, model).measure(about.settings.resampling)
    nothing_there = not (measure.n or measure.unscored or measure.undefined)
    return None if nothing_there else Line(model, measure, part)
