"""How a team does: each rater's speed, gold answers and agreement with others; items that people disagree about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from demerit.decide.interval import Share
from demerit.evaluate.metrics.bootstrap import Measure
from demerit.evaluate.metrics.rater_agreement import cohen_kappa, krippendorff_alpha
from demerit.people.annotate.work import CHECKS, read_newest_answers
from demerit.people.database import Database

FIELDS: Mapping[str, tuple[str, str]] = {
    "success": ("Success or failure", "nominal"),
    "grade": ("Grade", "ordinal"),
    "better": ("The better of two", "nominal"),
    "usable": ("Can be judged", "nominal"),
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


def read_judgements(database: Database) -> list[Judgement]:
    """Read the newest answer of each person to each item, oldest first."""
    judgements = []
    for row in read_newest_answers(database):
        item = (row.item, row.kind, row.episode, row.other, row.name, row.role == "owner", row.seconds)
        judgements.append(Judgement(*item, _says(row.body, bool(row.swapped)), row.body.get("note", ""), row.gold))
    return judgements


def summarize_raters(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """Summarize each rater's work, by name: answers, median seconds, known answers right, mean kappa with others."""
    raters = []
    for name in sorted({judgement.person for judgement in judgements}):
        own = [judgement for judgement in judgements if judgement.person == name]
        gold = [_matches(judgement) for judgement in own if judgement.gold is not None]
        kappa = {what: value for what in FIELDS if (value := _mean_kappa(judgements, name, what)) is not None}
        facts = {"name": name, "answers": len(own), "seconds": median(judgement.seconds for judgement in own)}
        raters.append({**facts, "gold_right": sum(gold), "gold": len(gold), "kappa": kappa})
    return raters


def measure_agreement(judgements: Sequence[Judgement]) -> dict[str, Measure]:
    """Measure Krippendorff's alpha over all raters, for each field that two of them stated about one item."""
    people = sorted({judgement.person for judgement in judgements})
    agreement = {}
    for what, (_, scale) in FIELDS.items():
        table: dict[int, list[Any]] = {}
        for judgement in judgements:
            if what in judgement.says:
                row = table.setdefault(judgement.item, [None] * len(people))
                row[people.index(judgement.person)] = judgement.says[what]
        if any(sum(value is not None for value in row) > 1 for row in table.values()):
            metric: Any = scale
            agreement[what] = krippendorff_alpha(list(table.values()), metric).measure()
    return agreement


def count_accepted(database: Database) -> Share:
    """Return the share of verified labels that people accepted as they were, with its interval."""
    verdicts = [row.body["verdict"] for row in read_newest_answers(database) if row.kind == "verify" and not row.gold]
    return Share.count(verdicts.count("accept"), len(verdicts))


def find_disagreements(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """List the items with different answers that no owner has answered afterwards."""
    by_item: dict[int, list[Judgement]] = {}
    for judgement in judgements:
        if judgement.gold is None:
            by_item.setdefault(judgement.item, []).append(judgement)
    disagreements = []
    for answers in by_item.values():
        fields = tuple(
            what for what in FIELDS if _differ([answer.says[what] for answer in answers if what in answer.says], what)
        )
        if fields and not answers[-1].is_owner:
            disagreements.append({**vars(answers[0]), "fields": fields, "answers": answers})
    return disagreements


def _says(body: Mapping[str, Any], swapped: bool) -> dict[str, Any]:
    says = {name: body[name] for name in ("success", "grade") if body.get(name) is not None}
    verdict = body.get("verdict")
    says |= {"usable": verdict != "reject"} if verdict in CHECKS else {}
    if verdict in ("left", "right", "tie"):
        says["better"] = "tie" if verdict == "tie" else "a" if (verdict == "left") != swapped else "b"
    return says


def _matches(one: Judgement) -> bool:
    gold = {name: value for name, value in (one.gold or {}).items() if name in FIELDS}
    return all(one.says.get(name) == value for name, value in gold.items())


def _mean_kappa(judgements: Sequence[Judgement], name: str, what: str) -> float | None:
    answers = [judgement for judgement in judgements if what in judgement.says]
    own = {judgement.item: judgement.says[what] for judgement in answers if judgement.person == name}
    values = []
    for other in {judgement.person for judgement in judgements} - {name}:
        pairs = [
            (own[answer.item], answer.says[what]) for answer in answers if answer.person == other and answer.item in own
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
