"""The figures of a watch: which episodes to look at, success over time, drift; as a page and for Prometheus."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Any

from demerit.data.episode import count_episodes
from demerit.evaluate.reports.page import environment, render
from demerit.models.score_summary import PATH
from demerit.use.compare import RateInterval, wilson
from demerit.use.view.media import EpisodeMedia
from demerit.use.view.server import Reply, Route, media_routes
from demerit.use.watch.alarms import MEASURES, AlarmCondition, Webhook
from demerit.use.watch.watcher import WatchedEpisode, Watcher

SHOWN = 8
RECENT = 20
"""episodes behind a point of a curve, and on the newer side of a drift"""
DRIFTED = 3.0
"""standard errors that are called a drift"""
WIDTH, HEIGHT, POINTS = 600, 120, 300
Rows = Sequence[WatchedEpisode]


def pick_to_watch(rows: Rows, most: int = SHOWN) -> list[WatchedEpisode]:
    """Return the episodes to look at: failures, guesses and unscored ones, the lowest values first."""
    doubtful = [row for row in rows if row.success is False or row.is_guess or row.unscored]
    return sorted(doubtful, key=lambda row: (bool(row.unscored), row.value or 0.0, -row.recorded))[:most]


def success_rate(rows: Rows) -> tuple[RateInterval, int]:
    """Return the share of successes among the judged ones, with Wilson's interval, and their number."""
    known = [row.success for row in rows if row.success is not None]
    return wilson(sum(known), len(known)), len(known)


@dataclass(frozen=True)
class DriftFigure:
    """How far the newest episodes are from what is usual, in standard errors."""

    measure: str
    recent: float
    usual: float
    against: str
    errors: float

    @property
    def is_far(self) -> bool:
        """Whether this is called a drift; episodes that are more familiar than usual are none."""
        return self.errors < -DRIFTED or (self.errors > DRIFTED and self.measure != "familiarity")


def measure_drift(rows: Rows, reference: int) -> list[DriftFigure]:
    """Compare the newest RECENT episodes with the first `reference` ones, and familiarity with its calibration.

    Familiarity is a percentile: of episodes like those that the model learned from, it is uniform from 0 to 1.
    """
    found = []
    values = [row.value for row in rows if row.value is not None]
    first, last = values[:reference], values[-RECENT:]
    if len(values) >= len(first) + RECENT and len(first) >= RECENT and pvariance(first) > 0:
        error = math.sqrt(pvariance(first) * (1 / len(first) + 1 / len(last)))
        gap = (fmean(last) - fmean(first)) / error
        found.append(DriftFigure("value", fmean(last), fmean(first), f"the first {len(first)}", gap))
    familiar = [row.familiarity for row in rows if row.familiarity is not None][-RECENT:]
    if len(familiar) == RECENT:
        gap = (fmean(familiar) - 0.5) / math.sqrt(1 / 12 / RECENT)
        found.append(DriftFigure("familiarity", fmean(familiar), 0.5, "what the model learned from", gap))
    return found


def draw_curves(rows: Rows, low: float | None, high: float | None) -> dict[str, str]:
    """Return SVG points of the means over RECENT episodes, for each measure that is known, and the band of success.

    `low` and `high` are the range of the model's values; without it, values are not drawn.
    """
    found: dict[str, str] = {}
    for name in ("success", "value", "familiarity"):
        known = [value for row in rows if (value := MEASURES[name](row)) is not None]
        if name == "value":
            known = [] if low is None or high is None else [(value - low) / (high - low) for value in known]
        ends = range(len(known), min(5, len(known)) - 1, -max(1, len(known) // POINTS))
        spans = [known[max(0, end - RECENT) : end] for end in reversed(ends)] if known else []
        if len(spans) > 1:
            found[name] = " ".join(_points([fmean(span) for span in spans]))
            if name == "success":
                bands = [wilson(sum(span), len(span)) for span in spans]
                below = _points([band.low for band in bands])[::-1]
                found["band"] = " ".join([*_points([band.high for band in bands]), *below])
    return found


def _points(values: Sequence[float]) -> list[str]:
    step = WIDTH / (len(values) - 1)
    return [f"{i * step:.1f},{HEIGHT * (1 - min(max(value, 0.0), 1.0)):.1f}" for i, value in enumerate(values)]


class WatchPage:
    """The routes of a watch: the page, its parts, `/metrics`, thumbnails and clips."""

    def __init__(
        self,
        watcher: Watcher,
        media: EpisodeMedia,
        conditions: Sequence[AlarmCondition] = (),
        webhook: Webhook | None = None,
        window: int = 200,
        reference: int = 50,
    ) -> None:
        """`window` is the number of newest episodes that the page is about, `reference` that of the first ones."""
        self.watcher, self.media, self.conditions, self.webhook = watcher, media, conditions, webhook
        self.window, self.reference = window, reference

    def routes(self) -> dict[str, Route]:
        """Return the routes for a `LocalServer`."""
        return {
            "/": lambda: Reply(render("watch.html.j2", scripts=("watch.js",), **self.parts()), "text/html"),
            "/body": lambda: Reply(environment().get_template("watch_body.html.j2").render(self.parts()), "text/html"),
            "/metrics": lambda: Reply(self.metrics(), "text/plain; version=0.0.4"),
            **media_routes(self.media, lambda place: self.watcher.episodes[place]),
        }

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
            "rate": success_rate(rows),
            "rate_of_all": success_rate(state.rows),
            "kinds": count_kinds(rows),
            "reasons": [
                (reason, number, next(id for id in unscored if unscored[id] == reason))
                for reason, number in Counter(unscored.values()).most_common()
            ],
            "drift": measure_drift(state.rows, self.reference),
            "curves": draw_curves(state.rows, card.low, card.high),
            "recent": RECENT,
            "size": (WIDTH, HEIGHT),
            "conditions": [(one, one.measured(state.rows), one.holds(state.rows)) for one in self.conditions],
            "webhook": self.webhook,
            "clock": lambda seconds: time.strftime("%H:%M:%S", time.localtime(seconds)),
        }

    def metrics(self) -> str:
        """Return the figures in Prometheus' text format."""
        state, hook = self.watcher.state, self.webhook
        rows = state.rows[-self.window :]
        rate, judged = success_rate(rows)
        means = {name: [found for row in rows if (found := MEASURES[name](row)) is not None] for name in MEASURES}
        ends = {"value": rate.value, "low": rate.low, "high": rate.high} if judged else {}
        drift = {one.measure: one.errors for one in measure_drift(state.rows, self.reference)}
        held = {one.text: float(one.holds(state.rows)) for one in self.conditions}
        figures: list[tuple[str, str, str, Mapping[str, float | None]]] = [
            ("info", "The model that scores.", "model", {self.watcher.model.card.name: 1}),
            ("episodes", "Episodes with a stored reward.", "", {"": len(state.rows)}),
            ("scored_total", "Episodes scored by this process.", "", {"": state.scored}),
            ("last_scored_timestamp_seconds", "When the newest reward was stored.", "", {"": state.scored_at}),
            ("waiting", "Episodes that are not complete or not scored yet.", "", {"": len(state.waiting)}),
            ("unscored", "Episodes of the window without a value.", "", {"": sum(bool(row.unscored) for row in rows)}),
            ("judged", "Episodes of the window with a verdict.", "", {"": judged}),
            ("success_ratio", "Share of successes in the window, with its 95% interval.", "end", ends),
            *(
                (f"{name}_mean", f"Mean {name} of the window.", "", {"": fmean(means[name])})
                for name in ("value", "familiarity")
                if means[name]
            ),
            ("failures", "Episodes of the window by kind of failure.", "kind", count_kinds(rows)),
            ("drift_errors", "Standard errors from the usual mean.", "measure", drift),
            ("alarm", "Whether a condition holds.", "condition", held),
            ("failed_looks_total", "Looks at the folder that failed.", "", {"": state.failures}),
            ("up", "Whether the last look succeeded.", "", {"": float(not state.problem)}),
            ("webhook_failures_total", "Messages not delivered.", "", {"": None if hook is None else hook.failed}),
            ("webhook_delivered_total", "Messages delivered.", "", {"": None if hook is None else hook.delivered}),
        ]
        lines = []
        for name, about, label, samples in figures:
            known = {text: value for text, value in samples.items() if value is not None}
            kind = "counter" if name.endswith("_total") else "gauge"
            head = [f"# HELP demerit_watch_{name} {about}", f"# TYPE demerit_watch_{name} {kind}"]
            labels = {text: f'{{{label}="{_escape(text)}"}}' if label else "" for text in known}
            lines += head * bool(known)
            lines += [f"demerit_watch_{name}{labels[text]} {value:.15g}" for text, value in known.items()]
        return "\n".join(lines) + "\n"


def count_kinds(rows: Rows) -> dict[str, int]:
    """Count kinds of failure, the most frequent first."""
    return dict(Counter(row.kind for row in rows if row.kind and not row.success).most_common())


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
