"""How a team does: each rater's speed, gold answers and agreement with others; items that people disagree about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from demerit.evaluate.metrics.bootstrap import Measure
from demerit.evaluate.metrics.rater_agreement import cohen_kappa, krippendorff_alpha
from demerit.use.annotate.work import read_newest_answers
from demerit.use.people.database import Database

FIELDS: Mapping[str, tuple[str, str]] = {
    "success": ("Success or failure", "nominal"),
    "grade": ("Grade", "ordinal"),
    "better": ("The better of two", "nominal"),
}
"""what is compared between raters: its name, and the kind of scale"""


@dataclass(frozen=True)
class Judgement:
    """What one person says about one item, as far as it can be compared with others."""

    item: int
    kind: str
    episode: str
    other: str
    person: str
    is_owner: bool
    seconds: float
    says: Mapping[str, Any]
    """the fields of `FIELDS` that the answer states"""
    note: str
    gold: Mapping[str, Any] | None


@dataclass
class RaterSummary:
    """One rater's work."""

    name: str
    answers: int = 0
    seconds: float = 0.0
    """median time of an answer"""
    gold_right: int = 0
    gold: int = 0
    kappa: Mapping[str, float] = field(default_factory=dict)
    """mean agreement with each other rater beyond chance, by field"""


@dataclass(frozen=True)
class Disagreement:
    """An item that people answered differently."""

    item: int
    kind: str
    episode: str
    other: str
    fields: tuple[str, ...]
    answers: tuple[Judgement, ...]


def read_judgements(database: Database) -> list[Judgement]:
    """Read the newest answer of each person to each item, oldest first."""
    return [
        Judgement(
            row.item,
            row.kind,
            row.episode,
            row.other,
            row.name,
            row.role == "owner",
            row.seconds,
            _says(row.body, bool(row.swapped)),
            row.body.get("note", ""),
            row.gold,
        )
        for row in read_newest_answers(database)
    ]


def summarize_raters(judgements: Sequence[Judgement]) -> list[RaterSummary]:
    """Summarize each rater's work, by name."""
    found = []
    for name in sorted({one.person for one in judgements}):
        own = [one for one in judgements if one.person == name]
        gold = [_matches(one) for one in own if one.gold is not None]
        kappa = {what: value for what in FIELDS if (value := _mean_kappa(judgements, name, what)) is not None}
        times = [one.seconds for one in own]
        found.append(RaterSummary(name, len(own), median(times), sum(gold), len(gold), kappa))
    return found


def measure_agreement(judgements: Sequence[Judgement]) -> dict[str, Measure]:
    """Measure Krippendorff's alpha over all raters, for each field that two of them stated about one item."""
    people = sorted({one.person for one in judgements})
    found = {}
    for what, (_, scale) in FIELDS.items():
        table: dict[int, list[Any]] = {}
        for one in judgements:
            if what in one.says:
                table.setdefault(one.item, [None] * len(people))[people.index(one.person)] = one.says[what]
        if any(sum(value is not None for value in row) > 1 for row in table.values()):
            metric: Any = scale
            found[what] = krippendorff_alpha(list(table.values()), metric).measure()
    return found


def find_disagreements(judgements: Sequence[Judgement]) -> list[Disagreement]:
    """List the items with different answers that no owner has answered afterwards."""
    by_item: dict[int, list[Judgement]] = {}
    for one in judgements:
        if one.gold is None:
            by_item.setdefault(one.item, []).append(one)
    found = []
    for item, answers in by_item.items():
        fields = tuple(
            what for what in FIELDS if _differ([one.says[what] for one in answers if what in one.says], what)
        )
        if fields and not answers[-1].is_owner:
            first = answers[0]
            found.append(Disagreement(item, first.kind, first.episode, first.other, fields, tuple(answers)))
    return found


def _says(body: Mapping[str, Any], swapped: bool) -> dict[str, Any]:
    known = {name: body[name] for name in ("success", "grade") if body.get(name) is not None}
    verdict = body.get("verdict")
    if verdict in ("left", "right", "tie"):
        known["better"] = "tie" if verdict == "tie" else "a" if (verdict == "left") != swapped else "b"
    return known


def _matches(one: Judgement) -> bool:
    gold = {name: value for name, value in (one.gold or {}).items() if name in FIELDS}
    return all(one.says.get(name) == value for name, value in gold.items())


def _mean_kappa(judgements: Sequence[Judgement], name: str, what: str) -> float | None:
    own = {one.item: one.says[what] for one in judgements if one.person == name and what in one.says}
    values = []
    for other in {one.person for one in judgements} - {name}:
        pairs = [
            (own[one.item], one.says[what])
            for one in judgements
            if one.person == other and one.item in own and what in one.says
        ]
        if pairs:
            first, second = zip(*pairs, strict=True)
            measure = cohen_kappa(first, second, "quadratic" if what == "grade" else "none").measure()
            values += [measure.value] if measure.known else []
    return sum(values) / len(values) if values else None


def _differ(values: Sequence[Any], what: str) -> bool:
    """Whether two answers differ; grades next to each other do not."""
    if what == "grade":
        return bool(values) and max(values) - min(values) > 1
    return len(set(values)) > 1
