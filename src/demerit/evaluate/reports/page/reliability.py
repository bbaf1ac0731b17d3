"""Reliability diagrams of the report page: of the episodes given 70%, do 70% succeed?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from demerit.data.reward import Reward
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.calibration import Reliability, reliability
from demerit.evaluate.reports.report import Report
from demerit.models.protocol import ModelCard

DRAWS = Resampling(resamples=2000, alone="rows")
"""whiskers of a picture: fewer draws than a reported interval has"""
SIDE, LARGEST, SMALLEST = 180.0, 9.0, 2.5


@dataclass(frozen=True)
class Point:
    """A bin, in the picture's own units (0,0 is the upper left corner)."""

    x: float
    y: float
    low: float | None
    high: float | None
    radius: float
    text: str


@dataclass(frozen=True)
class Diagram:
    """One model's diagram, or the reason why there is none."""

    model: str
    control: bool
    points: tuple[Point, ...] = ()
    caption: str = ""
    why_not: str = ""


def diagrams(report: Report) -> list[Diagram]:
    """Draw every model; empty when no episode has a known success."""
    if all(episode.success is None for episode in report.episodes):
        return []
    return [_diagram(report, card) for card in report.cards]


def _diagram(report: Report, card: ModelCard) -> Diagram:
    control = card.name in report.controls
    rewards = report.rewards_of(card.name)
    gives_probability = any(reward.success is not None for reward in rewards.values())
    if not gives_probability and (card.low, card.high) != (0.0, 1.0):
        reason = f"its {card.quantity} is no probability and does not run from 0 to 1"
        return Diagram(card.name, control, why_not=reason)
    judged = [episode for episode in report.episodes if episode.success is not None]
    predicted = np.array([_probability(rewards.get(one.id), gives_probability) for one in judged])
    if not np.any(~np.isnan(predicted)):
        return Diagram(card.name, control, why_not="it scored no judged episode")
    success = np.array([float(bool(one.success)) for one in judged])
    bins = reliability(predicted, success, clusters=[one.task for one in judged], resampling=DRAWS)
    quantity = "final probability of success" if gives_probability else f"final {card.quantity}"
    known = bins.count > 0
    error = float(np.sum(bins.count[known] / bins.n * np.abs(bins.predicted[known] - bins.observed[known])))
    return Diagram(card.name, control, _points(bins), f"ECE {error:.2f}, {bins.n} episodes, by {quantity}")


def _probability(reward: Reward | None, by_success: bool) -> float:
    if reward is None or not len(reward.at):
        return math.nan
    if not by_success:
        return min(1.0, max(0.0, reward.final))  # a card allows a rounding slack beyond its range
    return math.nan if reward.success is None else float(reward.success[-1])


def _points(bins: Reliability) -> tuple[Point, ...]:
    points = []
    for i in np.flatnonzero(bins.count):
        share = float(bins.count[i]) / bins.n
        span = "" if math.isnan(bins.low[i]) else f" ({bins.low[i]:.2f} to {bins.high[i]:.2f})"
        text = f"given {bins.predicted[i]:.2f}, succeed {bins.observed[i]:.2f}{span}; {bins.count[i]} episodes"
        low, high = (None if math.isnan(end) else _up(end) for end in (bins.low[i], bins.high[i]))
        radius = round(SMALLEST + (LARGEST - SMALLEST) * math.sqrt(share), 1)
        x = round(float(bins.predicted[i]) * SIDE, 1)
        points.append(Point(x, _up(bins.observed[i]), low, high, radius, text))
    return tuple(points)


def _up(share: float) -> float:
    return round(SIDE * (1 - float(share)), 1)
