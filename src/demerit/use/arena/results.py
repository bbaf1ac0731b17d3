"""The results: a dump that anybody can rank again, and how well reward models agree with people."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from demerit.data.labels import Verdict
from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import Measure
from demerit.evaluate.metrics.policy_ranking import PairedComparison, PolicyRanking, rank_policies
from demerit.evaluate.metrics.ranking import judgement_agreement
from demerit.use.arena.tables import MODEL_SCORES
from demerit.use.arena.trials import Trials

VERSION = 1


@dataclass(frozen=True)
class ArenaResults:
    """What is published."""

    ranking: PolicyRanking | None
    """None before the first comparison"""
    trials: int
    sites: int
    excluded: Mapping[str, int]
    """reasons, and how many trials do not count for each"""
    agreement: Mapping[str, Measure]
    """by reward model: how often it prefers what people preferred"""


def make_dump(trials: Trials) -> dict[str, Any]:
    """Return everything that the results are computed from: verdicts, scores of models, no person but the sites."""
    with trials.database.begin() as db:
        scores: dict[str, dict[str, dict[str, float | None]]] = {}
        for row in db.execute(sa.select(MODEL_SCORES)):
            scores.setdefault(row.trial, {}).setdefault(row.model, {})[row.part] = row.value
    rows = [
        {
            "id": row.id,
            "site": row.site_name,
            "first": row.first_name,
            "second": row.second_name,
            "verdict": row.verdict,
            "first_progress": row.first_progress,
            "second_progress": row.second_progress,
            "first_success": row.first_success,
            "second_success": row.second_success,
            "instruction": row.instruction,
            "excluded": row.excluded,
            "models": scores.get(row.id, {}),
        }
        for row in trials.rows()
    ]
    return {"format": "demerit-arena", "version": VERSION, "policies": trials.policies(), "trials": rows}


def write_dump(dump: Mapping[str, Any]) -> str:
    """Write a dump as text, always the same."""
    return json.dumps(dump, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def compute_results(dump: Mapping[str, Any]) -> ArenaResults:
    """Compute the results from a dump alone."""
    if dump.get("format") != "demerit-arena" or dump.get("version") != VERSION:
        raise BadInput(
            "arena dump", f"format demerit-arena, version {VERSION}", (dump.get("format"), dump.get("version"))
        )
    rows = [row for row in dump["trials"] if not row["excluded"]]
    comparisons = [PairedComparison(row["first"], row["second"], _verdict(row), "a", row["site"]) for row in rows]
    excluded: dict[str, int] = {}
    for row in dump["trials"]:
        if row["excluded"]:
            excluded[row["excluded"]] = excluded.get(row["excluded"], 0) + 1
    ranking = rank_policies(comparisons, dump["policies"]) if comparisons else None
    sites = len({row["site"] for row in rows})
    return ArenaResults(ranking, len(rows), sites, excluded, _measure_agreement(rows))


def _measure_agreement(rows: Sequence[Mapping[str, Any]]) -> dict[str, Measure]:
    """Measure, for each model, the share of decided trials in which it gives more to what people preferred."""
    found = {}
    for model in sorted({model for row in rows for model in row["models"]}):
        values = [[_number(row["models"].get(model, {}).get(part)) for part in ("first", "second")] for row in rows]
        verdicts = [_verdict(row) for row in rows]
        margin = [first - second for first, second in values]
        found[model] = judgement_agreement(margin, verdicts, clusters=[row["site"] for row in rows]).measure()
    return found


def _verdict(row: Mapping[str, Any]) -> Verdict:
    verdicts: Mapping[str, Verdict] = {"first": "a", "second": "b", "tie": "tie"}
    return verdicts[row["verdict"]]


def _number(value: float | None) -> float:
    return math.nan if value is None else value
