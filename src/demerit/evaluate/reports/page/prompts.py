"""What prompted models were shown of bad behaviour: descriptions of failures, examples, and what was lacking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from demerit.evaluate.reports.report import Report

DESCRIPTIONS, DESCRIBED_BY, FAILURES, REFERENCES = (
    "failure descriptions",
    "described by",
    "failures shown",
    "references",
)
"""entries of `Reward.given` that prompted models write"""
WRITERS = {"people": "from what people wrote", "records": "from recorded kinds of failure, as nobody wrote anything"}


@dataclass(frozen=True)
class Prompted:
    """One model's contexts over all episodes."""

    model: str
    context: str
    episodes: int
    descriptions: tuple[tuple[str, str, int], ...]
    """each sentence, where it comes from, and in how many prompts it stood; the most frequent first"""
    failures: int
    """different rollouts whose failure frames were shown"""
    references: int
    """different rollouts that were shown with a value per step"""
    lacking: tuple[tuple[str, int], ...]
    """what could not be had, and in how many prompts"""


def prompted(report: Report) -> list[Prompted]:
    """Gather what the prompts of each model held; models whose prompts hold no examples are left out."""
    found = []
    for card in report.cards:
        given = [reward.given for reward in report.rewards_of(card.name).values()]
        told = [one for one in given if one.get("context") not in (None, "none")]
        if told:
            found.append(_prompted(card.name, told))
    return found


def _prompted(model: str, told: list[Any]) -> Prompted:
    sentences = Counter(
        (text, WRITERS.get(one.get(DESCRIBED_BY, ""), "")) for one in told for text in one.get(DESCRIPTIONS, ())
    )
    return Prompted(
        model=model,
        context=str(told[0]["context"]),
        episodes=len(told),
        descriptions=tuple((text, source, count) for (text, source), count in sentences.most_common()),
        failures=_different(name for one in told for name in one.get(FAILURES, ())),
        references=_different(shown["episode"] for one in told for shown in one.get(REFERENCES, ())),
        lacking=tuple(Counter(what for one in told for what in one.get("lacking", ())).most_common()),
    )


def _different(names: Iterable[str]) -> int:
    return len(set(names))
