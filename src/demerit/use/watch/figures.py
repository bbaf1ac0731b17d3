"""The figures of a watch: which episodes to look at, success over time, drift; as a page and for Prometheus."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pvariance
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from demerit.data.episode import count_episodes
from demerit.data.reward import WARNED, VerdictCounts
from demerit.decide.interval import Share
from demerit.models.score_summary import PATH
from demerit.use.watch.alarms import MEASURES, AlarmCondition, Webhook
from demerit.use.watch.watcher import WatchedEpisode, Watcher
from demerit.web.media import EpisodeMedia, media_routes
from demerit.web.metrics import Figure, figures_text, send_metrics
from demerit.web.pages import fill, render
from demerit.web.server import make_app

SHOWN = 8
RECENT = 20
"""episodes behind a point of a curve, and on the newer side of a drift"""
REFERENCE = 50
"""first episodes that a drift is measured against"""
DRIFTED = 3.0
"""standard errors that are called a drift"""
WIDTH, HEIGHT, POINTS = 600, 120, 300
Rows = Sequence[WatchedEpisode]


def pick_to_watch(rows: Rows, most: int = SHOWN) -> list[WatchedEpisode]:
    """Return the episodes to look at: failures, guesses and unscored ones, the lowest values first."""
    doubtful = [row for row in rows if row.success is False or row.verdict.reason in (*WARNED, "not scored")]
    return sorted(doubtful, key=lambda row: (bool(row.unscored), row.value or 0.0, -row.recorded))[:most]


def count_rate(rows: Rows, outcome: str = "success") -> Share:
    """Return the share of successes, or of another outcome of MEASURES, among the judged episodes."""
    judged = [value for row in rows if (value := MEASURES[outcome](row)) is not None]
    return Share.count(int(sum(judged)), len(judged))


def measure_drift(rows: Rows, reference: int = REFERENCE) -> list[dict[str, Any]]:
    """Compare the newest RECENT episodes with the first `reference` ones, and familiarity with its calibration.

    Familiarity is a percentile: of episodes like those that the model learned from, it is uniform from 0 to 1.
    Episodes that are more familiar than usual are no drift (`is_far`). `errors` are standard errors.
    """
    drifts: list[dict[str, Any]] = []
    values = [row.value for row in rows if row.value is not None]
    first, last = values[:reference], values[-RECENT:]
    if len(values) >= len(first) + RECENT and len(first) >= RECENT and pvariance(first) > 0:
        error = math.sqrt(pvariance(first) * (1 / len(first) + 1 / len(last)))
        errors = (fmean(last) - fmean(first)) / error
        facts = {"measure": "value", "recent": fmean(last), "usual": fmean(first), "against": f"the first {len(first)}"}
        drifts.append({**facts, "errors": errors, "is_far": abs(errors) > DRIFTED})
    familiar = [row.familiarity for row in rows if row.familiarity is not None][-RECENT:]
    if len(familiar) == RECENT:
        errors = (fmean(familiar) - 0.5) / math.sqrt(1 / 12 / RECENT)
        facts = {"measure": "familiarity", "recent": fmean(familiar), "against": "what the model learned from"}
        drifts.append({**facts, "usual": 0.5, "errors": errors, "is_far": errors < -DRIFTED})
    return drifts


def draw_curves(rows: Rows, low: float | None, high: float | None, outcome: str = "success") -> dict[str, str]:
    """Return SVG points of the means over RECENT episodes, for each measure that is known, and the band of `outcome`.

    `low` and `high` are the range of the model's values; without it, values are not drawn.
    """
    points: dict[str, str] = {}
    for name in (outcome, "value", "familiarity"):
        numbers = [value for row in rows if (value := MEASURES[name](row)) is not None]
        if name == "value":
            numbers = [] if low is None or high is None else [(value - low) / (high - low) for value in numbers]
        ends = range(len(numbers), min(5, len(numbers)) - 1, -max(1, len(numbers) // POINTS))
        spans = [numbers[max(0, end - RECENT) : end] for end in reversed(ends)] if numbers else []
        if len(spans) > 1:
            points[name] = " ".join(_points([fmean(span) for span in spans]))
            if name == outcome:
                bands = [Share.count(int(sum(span)), len(span)) for span in spans]
                below = _points([band.low for band in bands])[::-1]
                points["band"] = " ".join([*_points([band.high for band in bands]), *below])
    return points


def _points(values: Sequence[float]) -> list[str]:
    step = WIDTH / (len(values) - 1)
    return [f"{i * step:.1f},{HEIGHT * (1 - min(max(value, 0.0), 1.0)):.1f}" for i, value in enumerate(values)]


class WatchPage:
    """The page of a watch: the page, its parts, `/metrics`, thumbnails and clips."""

    def __init__(
        self,
        watcher: Watcher,
        media: EpisodeMedia,
        conditions: Sequence[AlarmCondition] = (),
        webhook: Webhook | None = None,
        window: int = 200,
    ) -> None:
        """`window` is the number of newest episodes that the page is about."""
        self.watcher, self.media, self.conditions, self.webhook = watcher, media, conditions, webhook
        self.window = window

    def app(self) -> Starlette:
        """Return the application."""

        def show(request: Request) -> Response:
            return HTMLResponse(render("watch.html.j2", scripts=("watch.js",), **self.parts()))

        routes = [
            Route("/", show),
            Route("/body", lambda request: HTMLResponse(fill("watch_body.html.j2", **self.parts()))),
            Route("/metrics", lambda request: send_metrics(self.metrics())),
        ]
        return make_app([*routes, *media_routes(self.media, lambda place: self.watcher.episodes[place])])

    def parts(self) -> dict[str, Any]:
        """Return the variables of the templates."""
        state, card = self.watcher.state, self.watcher.model.card
        rows = state.rows[-self.window :]
        unscored = {row.id: PATH.sub("", row.unscored) for row in rows if row.unscored}
        return {
            "name": self.watcher.root.name,
            "model": card.name,
            "state": state,
            "rows": rows,
            "picks": pick_to_watch(rows),
            "doubtful": len(pick_to_watch(rows, len(rows))),
            "count": count_episodes,
            "outcome": self.watcher.outcome,
            "rate": count_rate(rows, self.watcher.outcome),
            "rate_of_all": count_rate(state.rows, self.watcher.outcome),
            "kinds": count_kinds(rows),
            "verdicts": count_verdicts(rows),
            "reasons": [
                (reason, number, next(id for id in unscored if unscored[id] == reason))
                for reason, number in Counter(unscored.values()).most_common()
            ],
            "drift": measure_drift(state.rows),
            "curves": draw_curves(state.rows, card.low, card.high, self.watcher.outcome),
            "recent": RECENT,
            "size": (WIDTH, HEIGHT),
            "conditions": [
                (condition, condition.measured(state.rows), condition.holds(state.rows))
                for condition in self.conditions
            ],
            "webhook": self.webhook,
            "clock": lambda seconds: time.strftime("%H:%M:%S", time.localtime(seconds)),
        }

    def metrics(self) -> str:
        """Return the figures in Prometheus' text format."""
        state, hook = self.watcher.state, self.webhook
        rows = state.rows[-self.window :]
        outcome = self.watcher.outcome
        rate = count_rate(rows, outcome)
        means = {
            name: [value for row in rows if (value := MEASURES[name](row)) is not None]
            for name in ("value", "familiarity")
        }
        ends = {"value": rate.value, "low": rate.low, "high": rate.high} if rate.n else {}
        drift = {row["measure"]: row["errors"] for row in measure_drift(state.rows)}
        states = {condition.text: float(condition.holds(state.rows)) for condition in self.conditions}
        figures: list[Figure] = [
            ("info", "The model that scores.", "model", {self.watcher.model.card.name: 1}),
            ("episodes", "Episodes with a stored reward.", "", {"": len(state.rows)}),
            ("scored_total", "Episodes scored by this process.", "", {"": state.scored}),
            ("last_scored_timestamp_seconds", "When the newest reward was stored.", "", {"": state.scored_at}),
            ("waiting", "Episodes that are not complete or not scored yet.", "", {"": len(state.waiting)}),
            ("unscored", "Episodes of the window without a value.", "", {"": sum(bool(row.unscored) for row in rows)}),
            ("judged", "Episodes of the window with a verdict.", "", {"": rate.n}),
            (f"{outcome}_ratio", f"Share of {outcome} in the window, with its 95% interval.", "end", ends),
            *(
                (f"{name}_mean", f"Mean {name} of the window.", "", {"": fmean(means[name])})
                for name in means
                if means[name]
            ),
            ("failures", "Episodes of the window by kind of failure.", "kind", count_kinds(rows)),
            ("drift_errors", "Standard errors from the usual mean.", "measure", drift),
            ("alarm", "Whether a condition holds.", "condition", states),
            ("failed_looks_total", "Looks at the folder that failed.", "", {"": state.failures}),
            ("up", "Whether the last look succeeded.", "", {"": float(not state.problem)}),
            ("webhook_failures_total", "Messages not delivered.", "", {"": None if hook is None else hook.failed}),
            ("webhook_delivered_total", "Messages delivered.", "", {"": None if hook is None else hook.delivered}),
        ]
        return figures_text("demerit_watch_", figures)


def count_verdicts(rows: Rows) -> VerdictCounts:
    """Count the verdicts, with the warnings that belong to them."""
    return VerdictCounts.of_verdicts(
        (row.verdict for row in rows), dict.fromkeys(row.caution for row in rows if row.caution)
    )


def count_kinds(rows: Rows) -> dict[str, int]:
    """Count kinds of failure, the most frequent first."""
    return dict(Counter(row.kind for row in rows if row.kind and not row.success).most_common())
