"""Two policies compared by success rate: a model's predictions for all episodes, and labels for a few.

Prediction-powered inference (PPI++). With f the prediction of each of N episodes, y the label of n of them, chosen at
random, b the slope of y on f (0 or more; PPI++ calls b (1 - n/N) lambda) and r the correlation of both:

    rate      = mean(y) + b (mean of f over all N - mean of f over the n)
    variance  = variance(y) / n * (1 - r^2 (1 - n/N))

So the n labels are worth n / (1 - r^2 (1 - n/N)) labels, and the interval is Wilson's for so many. They are never worth
less than n: a model that explains nothing, and a label for every episode, leave the labels alone. Few labels may fit by
luck. So r^2 is adjusted for the degree of freedom that b costs, and a tenth of a success is added that the model gave
its lowest prediction, and a tenth of a failure that it gave its highest. `benchmarks/compare_policies.py` measures
coverage, and chose the tenth.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode, is_taken, most_trusted, select_labels
from demerit.data.files import atomic_file, read_cell, write_csv
from demerit.data.formats.label_file import LabelRow, read_rows, read_success
from demerit.data.frames import short_hash
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes
from demerit.decide.interval import Z95, Share
from demerit.errors import BadInput

LIKELY = NormalDist().inv_cdf(0.8)
"""a promised number of labels decides with this probability, if the difference is as estimated"""
FEWEST, FIRST = 5, 10
"""labels of each policy: the fewest for an interval (coverage was measured from here on), and how many to begin with"""
DOUBT = 0.1
"""weight of a success with the lowest prediction, and of a failure with the highest, as if they had been seen"""
ODD = NormalDist().inv_cdf(0.995)
"""standard errors between labelled and other episodes beyond which their random choice is doubted"""
SHEET = ["policy", "episode", "video", "success"]
NEEDED = frozenset(SHEET) - {"video"}


@dataclass(eq=False)
class PolicyRollouts:
    """The episodes of one policy: a prediction for each, a label for some."""

    name: str
    ids: list[str] = field(default_factory=list)
    predictions: list[float] = field(default_factory=list)
    """higher = more likely a success, in any unit; NaN = unscored"""
    labels: list[float] = field(default_factory=list)
    """1 = success, 0 = failure, NaN = no label"""
    videos: list[str] = field(default_factory=list)
    taught: int = 0
    """episodes left out because the model learned from them"""
    of_models: int = 0
    """episodes whose only verdict is a model's, which is not used"""

    def add(
        self, episode: Episode, reward: Reward, sources: tuple[str, ...], seen: SeenEpisodes, by_hand: bool | None
    ) -> None:
        """Add an episode, unless the model learned from it; `by_hand` is the label of a sheet."""
        if seen.has(episode):
            self.taught += 1
            return
        verdicts = [label for label in episode.labels if label.success is not None]
        label = most_trusted(select_labels(verdicts, sources))
        success = label.success if by_hand is None and label is not None else by_hand
        says = reward.success is not None and len(reward.success) > 0 and not np.isnan(reward.success[-1])
        self.ids.append(episode.id)
        self.predictions.append(float(reward.success[-1]) if says and reward.success is not None else reward.final)
        self.labels.append(math.nan if success is None else float(success))
        self.videos.append(str(getattr(episode.main.source, "path", "")))
        self.of_models += success is None and any(is_taken(verdict, ["model"]) for verdict in verdicts)

    def choose(self, count: int) -> list[tuple[str, str, str]]:
        """Choose episodes to label (policy, id, video), at random, in an order that is the same in every run."""
        rows = zip(self.ids, self.videos, self.labels, strict=True)
        waiting = [(self.name, id, video) for id, video, label in rows if math.isnan(label)]
        return sorted(waiting, key=lambda row: short_hash(f"label/{row[1]}".encode()))[:count]


@dataclass(frozen=True)
class PolicyRate:
    """The success rate of one policy."""

    rate: float
    labels: int
    episodes: int
    explained: float
    """share of the labels' variance that the predictions explain (r^2); 0 = only labels count"""
    slope: float
    """what a prediction counts"""
    by_labels: Share
    """the labels alone, with Wilson's interval"""
    is_odd: bool
    """labelled episodes have other predictions than the rest, as if they had not been chosen at random"""

    def worth(self, more: int = 0) -> float:
        """Return how many labels the labels are worth with the predictions, with so many more of them."""
        labels = min(self.labels + more, self.episodes)
        return labels / (1 - self.explained * (1 - labels / self.episodes))

    def variance(self, more: int = 0) -> float:
        """Return the variance of the rate, with so many more labels (as far as there are episodes)."""
        share = Share.around(self.rate, self.worth(more))
        return ((share.high - share.low) / (2 * Z95)) ** 2

    @property
    def is_counted(self) -> bool:
        """Whether every episode has a label, so that nothing is left to predict."""
        return self.labels == self.episodes

    @property
    def interval(self) -> Share:
        """The rate with its interval; the labels' own where the predictions add nothing."""
        return Share.around(self.rate, self.worth()) if self.explained else self.by_labels


def estimate_rate(predictions: npt.ArrayLike, labels: npt.ArrayLike) -> PolicyRate:
    """Estimate a success rate; a label is 1, 0 or NaN. An episode without a prediction gets the mean of the others."""
    f, labels = np.array(predictions, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    f[np.isnan(f)] = 0.0 if np.isnan(f).all() else np.nanmean(f)
    is_known = ~np.isnan(labels)
    y, n, rest, variance = labels[is_known], int(is_known.sum()), f[~is_known], float(f.var())
    by_labels, slope, explained = Share.count(float(y.sum()), n), 0.0, 0.0
    if len(rest) and variance > 0 and n >= FEWEST:
        weights = np.append(np.ones(n), [DOUBT, DOUBT])
        ys, fs = np.append(y, [1, 0]), np.append(f[is_known], [f.min(), f.max()])
        ys, fs = ys - np.average(ys, weights=weights), fs - np.average(fs, weights=weights)
        together, own = max(0.0, float(weights @ (fs * ys))), float(weights @ fs**2)
        unexplained = (1 - together**2 / own / float(weights @ ys**2)) * (n - 1) / (n - 2)
        if unexplained < 1:
            slope, explained = together / own, 1 - unexplained
    by_chance = math.sqrt(variance / n + variance / len(rest)) if n and len(rest) else math.inf
    return PolicyRate(
        rate=min(max(by_labels.value + slope * float(f.mean() - f[is_known].mean()), 0.0), 1.0)
        if slope
        else by_labels.value,
        labels=n,
        episodes=len(f),
        explained=explained,
        slope=slope,
        by_labels=by_labels,
        is_odd=variance > 0
        and abs(f[is_known].sum() / max(n, 1) - f[~is_known].sum() / max(len(rest), 1)) > ODD * by_chance,
    )


@dataclass(frozen=True)
class PolicyComparison:
    """Policy b against policy a."""

    a: PolicyRate
    b: PolicyRate

    @property
    def has_enough(self) -> bool:
        """Whether both have the labels that an interval needs."""
        return min(self.a.labels, self.b.labels) >= FEWEST

    @property
    def difference(self) -> Share:
        """Rate of b minus rate of a."""
        return _subtract(self.b.interval, self.a.interval)

    @property
    def by_labels(self) -> Share:
        """The difference by labels alone."""
        return _subtract(self.b.by_labels, self.a.by_labels)

    @property
    def sign(self) -> int:
        """1 if b is better, -1 if a is, 0 if that is not decided."""
        gap = self.difference
        return 0 if not self.has_enough or gap.low <= 0 <= gap.high else int(math.copysign(1, gap.value))

    def labels_needed(self) -> tuple[int, int] | None:
        """Return how many more labels of a and b would probably decide it; None = not even all of them."""
        supply = [policy.episodes - policy.labels for policy in (self.a, self.b)]
        if not self.has_enough:
            return min(max(FIRST - self.a.labels, 0), supply[0]), min(max(FIRST - self.b.labels, 0), supply[1])
        for more in range(1, max(supply) + 1):
            error = math.sqrt(self.a.variance(more) + self.b.variance(more))
            if abs(self.b.rate - self.a.rate) >= (Z95 + LIKELY) * error:
                return min(more, supply[0]), min(more, supply[1])
        return None

    def episodes_needed(self) -> float:
        """Return how many labelled episodes of each policy would probably decide it."""
        gap, variance = (
            self.b.rate - self.a.rate,
            sum(policy.variance() * policy.worth() for policy in (self.a, self.b)),
        )
        return variance * ((Z95 + LIKELY) / gap) ** 2 if gap else math.inf


def _subtract(b: Share, a: Share) -> Share:
    """Return b - a with Newcombe's interval."""
    gap, below = b.value - a.value, math.hypot(b.value - b.low, a.high - a.value)
    return Share.difference(gap, gap - below, gap + math.hypot(b.high - b.value, a.value - a.low))


def compare(a: PolicyRollouts, b: PolicyRollouts) -> PolicyComparison:
    """Compare two policies."""
    for policy in (a, b):
        if not policy.ids:
            got = f"{policy.taught}, all of which the model learned from" if policy.taught else "none"
            raise BadInput(f"policy {policy.name!r}", "episodes to compare", got)
    return PolicyComparison(estimate_rate(a.predictions, a.labels), estimate_rate(b.predictions, b.labels))


def read_sheet(path: Path) -> dict[tuple[str, str], bool | None]:
    """Read a sheet of labels, by policy and episode; None = still empty. A file that does not exist has no rows."""
    labels: dict[tuple[str, str], bool | None] = {}
    for row in read_rows(path) if path.exists() else ():
        cells: Mapping[str, object] = row.fields if isinstance(row, LabelRow) else {}
        if not isinstance(row, LabelRow) or not NEEDED <= set(cells):
            where = row.where if isinstance(row, LabelRow) else row.detail
            raise BadInput(str(path), f"a row with the columns {', '.join(SHEET)}", where)
        policy, episode = (read_cell(str(cells[name])) for name in ("policy", "episode"))
        labels[policy, episode] = read_success(row.where, cells["success"])
    return labels


def extend_sheet(path: Path, rows: Iterable[tuple[str, str, str]]) -> None:
    """Append rows to fill in (policy, episode, video) to a sheet; what is in it stays as it is."""
    text = (path.read_text("utf-8-sig") if path.exists() else "").lstrip() or ",".join(SHEET) + "\n"
    header = next(csv.reader(text.splitlines()[:1]))
    if not NEEDED <= set(header):
        raise BadInput(str(path), f"the columns {', '.join(SHEET)}", ", ".join(header))
    with atomic_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        file.write(text if text.endswith("\n") else text + "\n")
        cells = (dict(zip(SHEET, row, strict=False)) for row in rows)
        write_csv(file, ([row.get(name, "") for name in header] for row in cells))
