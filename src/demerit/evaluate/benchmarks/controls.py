"""The controls of every report: models that know nothing, and three trivial ones that look clever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import numpy as np

from demerit.evaluate.benchmarks.evidence import Evidence
from demerit.evaluate.benchmarks.risk_questions import risk_expectations
from demerit.evaluate.benchmarks.showings import probes
from demerit.evaluate.metrics.controls import Control, Expectation, Facts, expectations
from demerit.evaluate.reports.report import Line
from demerit.models.protocol import ModelCard

CONTROLS = ("constant", "clock", "random", "change", "motion", "length")
"""names of reward models, in the order in which they are shown"""
ALWAYS_A = "always-a"
"""a comparer that always names the first of two; it stands where people compared two episodes"""


def always_a_card() -> ModelCard:
    """Return the card of the comparer that always names the first."""
    return ModelCard(
        name=ALWAYS_A,
        revision="1",
        licence="Apache-2.0",
        quantity="preference for the first of two",
        low=0.0,
        high=1.0,
        causal=True,
        comparable=True,
        sees_pixels=False,
        reads_instruction=False,
        about="Always says A. Sees nothing; right where people said A.",
    )


def unmet_expectations(evidence: Evidence, lines: list[Line]) -> Iterator[str]:
    """Say which control does not score exactly what theory says: then a measure or the data is broken.

    Expectations that hold only in the mean are left to the reader: of many intervals some miss.
    """
    for name in (*CONTROLS, ALWAYS_A):
        control = name.replace("-", "_")
        if name not in evidence.cards or control not in get_args(Control):
            continue
        table = _expectations(evidence, name, control)  # type: ignore[arg-type]
        for line in lines:
            expected = table.get(line.measure.name)
            if line.model != name or line.part or expected is None or not expected.exact:
                continue
            if not expected.fits(line.measure):
                got, want = f"{line.measure.value:.3f}", f"{expected.value:.3f}"
                yield (
                    f"The control {name} scores {got} in {line.measure.name} where theory says {want} "
                    f"({expected.why}): do not trust this measure on this data."
                )


def _expectations(evidence: Evidence, name: str, control: Control) -> dict[str, Expectation]:
    scored = np.zeros(len(evidence.episodes), bool) if name == ALWAYS_A else ~np.isnan(evidence.finals(name))
    judged = evidence.success[scored & ~np.isnan(evidence.success)]
    verdicts = [one.verdict for one in evidence.preferences if one.verdict != "tie"]
    facts = Facts(
        success_share=float(judged.mean()) if len(judged) else float("nan"),
        a_share=verdicts.count("a") / len(verdicts) if verdicts else float("nan"),
        tasks=len(probes(evidence.episodes)),
    )
    table = expectations(control, facts)
    table |= risk_expectations(evidence, name)
    if name == ALWAYS_A:
        table["both_orders_agreement"] = table["judgement_agreement_both_orders"]
    if name in ("constant", "clock"):
        table["failure_latency"] = Expectation(float("nan"), True, "it never falls, so that it is never late")
    return table
