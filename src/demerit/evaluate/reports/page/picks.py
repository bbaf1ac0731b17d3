"""Which episodes of a report tell most: failures that models reward, successes that they doubt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

import numpy as np
import numpy.typing as npt

from demerit.evaluate.reports.page.words import models_of, number
from demerit.evaluate.reports.report import Judged, Report

Floats = npt.NDArray[np.float64]
Kind = Literal["over", "under", "other"]
MEDIAN = 0.5
LISTED = 24
"""so many are listed even where fewer videos are embedded"""


@dataclass(frozen=True, eq=False)
class Pick:
    """An episode to look at, and why."""

    index: int
    """its place in the report"""
    episode: Judged
    kind: Kind
    why: str


def finals(report: Report) -> dict[str, Floats]:
    """The final value of every episode by model, NaN where unscored."""
    table = {}
    for card in report.cards:
        rewards = report.rewards_of(card.name)
        values = [rewards[one.id].final if one.id in rewards else math.nan for one in report.episodes]
        table[card.name] = np.array(values, dtype=np.float64)
    return table


def picks(report: Report, most: int) -> list[Pick]:
    """Choose the most telling episodes: two rewarded failures to every doubted success, the models taking turns.

    A failure tells as much as the share of successes that the model scores no higher; it is listed when that is half or
    more (the over-reward rate counts the same episodes). A success mirrors that. The rest is filled by disagreement.
    """
    table = finals(report)
    success = np.array([math.nan if one.success is None else float(one.success) for one in report.episodes])
    # Values that mean nothing across episodes cannot be too high for one; a report of such models only fills by spread.
    names = [card.name for card in report.cards if card.name in models_of(report) and card.comparable]
    over = _in_turns([_mistaken(report, name, table[name], success, "over") for name in names])
    under = _in_turns([_mistaken(report, name, table[name], success, "under") for name in names])
    chosen: dict[int, Pick] = {}
    for group in zip_longest(over[::2], over[1::2], under):
        for pick in group:
            if pick is not None:
                chosen.setdefault(pick.index, pick)
    for pick in _disagreement(report, table):
        chosen.setdefault(pick.index, pick)
    return list(chosen.values())[:most]


def _mistaken(report: Report, model: str, value: Floats, success: Floats, kind: Kind) -> list[Pick]:
    wrong, right = (0.0, 1.0) if kind == "over" else (1.0, 0.0)
    sign = 1.0 if kind == "over" else -1.0
    others = np.sort(sign * value[(success == right) & ~np.isnan(value)])
    rows = np.flatnonzero((success == wrong) & ~np.isnan(value))
    if not len(others) or not len(rows):
        return []
    share = np.searchsorted(others, sign * value[rows], side="right") / len(others)
    order = [int(i) for i in np.lexsort((-sign * value[rows], -share)) if share[i] >= MEDIAN]
    side, typical = ("failure", "success") if kind == "over" else ("success", "failure")
    median = number(float(sign * np.median(others)))
    return [
        Pick(int(rows[i]), report.episodes[rows[i]], kind, f"{model} gives this {side} {number(value[rows[i]])}; "
        f"the median {typical} gets {median}.")
        for i in order
    ]  # fmt: skip


def _in_turns(lists: list[list[Pick]]) -> list[Pick]:
    """First each model's worst, then each one's second; an episode stands once."""
    chosen: dict[int, Pick] = {}
    for group in zip_longest(*lists):
        for pick in group:
            if pick is not None:
                chosen.setdefault(pick.index, pick)
    return list(chosen.values())


def _disagreement(report: Report, table: dict[str, Floats]) -> list[Pick]:
    """Order all episodes by how far apart the models are, each by its own range."""
    names = models_of(report) or list(report.controls)
    scaled = [_scaled(table[name]) for name in names if name in table]
    if not report.episodes or not scaled:
        return []
    stacked = np.stack(scaled)
    known = ~np.isnan(stacked)
    top = np.where(known, stacked, -np.inf).max(axis=0)
    bottom = np.where(known, stacked, np.inf).min(axis=0)
    apart = np.where(known.any(axis=0), top - bottom, -1.0)
    return [Pick(int(i), report.episodes[i], "other", "") for i in np.argsort(-apart, kind="stable")]


def _scaled(values: Floats) -> Floats:
    known = values[~np.isnan(values)]
    if not len(known) or known.max() == known.min():
        return np.asarray(values * 0.0)
    return np.asarray((values - known.min()) / (known.max() - known.min()))
