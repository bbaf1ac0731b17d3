"""Two policies compared by success rate: a model's predictions for all episodes, and labels for a few.

Prediction-powered inference (PPI++). With f the prediction of each of N episodes, y the label of n of them, chosen at
random, and b the slope of y on f (0 or more; PPI++ calls b (1 - n/N) lambda):

    rate      = mean(y) + b (mean of f over all N - mean of f over the n)
    variance  = (residual variance of y - b f) / n + b^2 variance(f) / N

A good model makes the residuals small. A useless one has b near 0, a biased one is corrected by the labels, so the
interval holds whatever the model. Few residuals may be small by luck. So half a success is added that the model gave
its lowest prediction, and half a failure that it gave its highest, and b costs a degree of freedom. Without a model
this is half a success and half a failure, as of Jeffreys. `benchmarks/compare_policies.py` measures coverage.
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

from demerit.data.episode import Episode
from demerit.data.files import atomic_file
from demerit.data.formats.label_file import LabelRow, read_rows, read_success
from demerit.data.frames import short_hash
from demerit.data.labels import is_taken, most_trusted, select_labels
from demerit.data.reward import Reward
from demerit.data.seen import SeenEpisodes
from demerit.errors import BadInput

Z95 = NormalDist().inv_cdf(0.975)
LIKELY = NormalDist().inv_cdf(0.8)
"""a promised number of labels decides with this probability, if the difference is as estimated"""
FEWEST, FIRST = 5, 10
"""labels of each policy: the fewest for an interval (coverage was measured from here on), and how many to begin with"""
ODD = NormalDist().inv_cdf(0.995)
"""standard errors between labelled and other episodes beyond which their random choice is doubted"""
SHEET = ["policy", "episode", "video", "success"]
NEEDED = frozenset(SHEET) - {"video"}


@dataclass(frozen=True)
class RateInterval:
    """A share (or a difference of shares) and its 95% interval."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, variance: float, least: float) -> RateInterval:
        """Return the normal interval, cut at `least` and 1."""
        half = Z95 * math.sqrt(variance)
        return cls(*(min(max(end, least), 1.0) for end in (value, value - half, value + half)))

    def show(self, unit: str) -> str:
        """Return `71% (95%: 62 to 79)`; the unit may be `%` or ` points`."""
        value, low, high = (f"{100 * end:.0f}".replace("-", "−") for end in (self.value, self.low, self.high))
        return f"{value}{unit} (95%: {low} to {high})"


def wilson(successes: float, count: int) -> RateInterval:
    """Return a share with Wilson's 95% interval; NaN, 0 to 1 if there is nothing to count."""
    if not count:
        return RateInterval(math.nan, 0.0, 1.0)
    share, extra = successes / count, Z95**2 / count
    centre = (share + extra / 2) / (1 + extra)
    half = Z95 / (1 + extra) * math.sqrt(share * (1 - share) / count + extra / count / 4)
    return RateInterval(share, min(share, max(centre - half, 0.0)), max(share, min(centre + half, 1.0)))


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
        verdicts = [one for one in episode.outcomes if one.success is not None]
        label = most_trusted(select_labels(verdicts, sources))
        success = label.success if by_hand is None and label is not None else by_hand
        says = reward.success is not None and len(reward.success) > 0 and not np.isnan(reward.success[-1])
        self.ids.append(episode.id)
        self.predictions.append(float(reward.success[-1]) if says and reward.success is not None else reward.final)
        self.labels.append(math.nan if success is None else float(success))
        self.videos.append(str(getattr(episode.main.source, "path", "")))
        self.of_models += success is None and any(is_taken(one, ["model"]) for one in verdicts)

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
    residual: float
    """variance of a label that the predictions leave"""
    explained: float
    """variance of a label that they explain"""
    slope: float
    """what a prediction counts; 0 = only labels count"""
    by_labels: RateInterval
    """the labels alone, with Wilson's interval"""
    is_odd: bool
    """labelled episodes have other predictions than the rest, as if they had not been chosen at random"""

    def variance(self, more: int = 0) -> float:
        """Return the variance of the rate, with so many more labels (as far as there are episodes)."""
        labels = min(self.labels + more, self.episodes)
        return self.residual / (labels + 1) + self.explained / self.episodes

    @property
    def interval(self) -> RateInterval:
        """The rate with its interval."""
        return RateInterval.around(self.rate, self.variance(), 0.0)


def estimate_rate(predictions: npt.ArrayLike, labels: npt.ArrayLike) -> PolicyRate:
    """Estimate a success rate; a label is 1, 0 or NaN. An episode without a prediction gets the mean of the others."""
    f, labels = np.array(predictions, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    f[np.isnan(f)] = 0.0 if np.isnan(f).all() else np.nanmean(f)
    known = ~np.isnan(labels)
    y, n, rest, variance = labels[known], int(known.sum()), f[~known], float(f.var())
    weights, ys, fs = np.append(np.ones(n), [0.5, 0.5]), np.append(y, [1, 0]), np.append(f[known], [f.min(), f.max()])
    y_mean, f_mean = np.average(ys, weights=weights), np.average(fs, weights=weights)
    slope, is_tuned = 0.0, bool(len(rest)) and variance > 0
    if is_tuned:
        slope = max(0.0, float(weights @ ((fs - f_mean) * (ys - y_mean)) / (weights @ (fs - f_mean) ** 2)))
    squares = float(weights @ (ys - y_mean - slope * (fs - f_mean)) ** 2)
    by_chance = math.sqrt(variance / n + variance / len(rest)) if n and len(rest) else math.inf
    return PolicyRate(
        rate=float(y_mean + slope * (f.mean() - f_mean)),
        labels=n,
        episodes=len(f),
        residual=squares / max(n - is_tuned, 1),
        explained=slope**2 * variance,
        slope=slope,
        by_labels=wilson(float(y.sum()), n),
        is_odd=variance > 0 and abs(f[known].sum() / max(n, 1) - f[~known].sum() / max(len(rest), 1)) > ODD * by_chance,
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
    def difference(self) -> RateInterval:
        """Rate of b minus rate of a."""
        return RateInterval.around(self.b.rate - self.a.rate, self.a.variance() + self.b.variance(), -1.0)

    @property
    def by_labels(self) -> RateInterval:
        """The difference by labels alone, with Newcombe's interval."""
        a, b = self.a.by_labels, self.b.by_labels
        gap, low = b.value - a.value, math.hypot(b.value - b.low, a.high - a.value)
        return RateInterval(gap, gap - low, gap + math.hypot(b.high - b.value, a.value - a.low))

    @property
    def sign(self) -> int:
        """1 if b is better, -1 if a is, 0 if that is not decided."""
        found = self.difference
        return 0 if not self.has_enough or found.low <= 0 <= found.high else int(math.copysign(1, found.value))

    def labels_needed(self) -> tuple[int, int] | None:
        """Return how many more labels of a and b would probably decide it; None = not even all of them."""
        left = [one.episodes - one.labels for one in (self.a, self.b)]
        if not self.has_enough:
            return min(max(FIRST - self.a.labels, 0), left[0]), min(max(FIRST - self.b.labels, 0), left[1])
        for more in range(1, max(left) + 1):
            error = math.sqrt(self.a.variance(more) + self.b.variance(more))
            if abs(self.b.rate - self.a.rate) >= (Z95 + LIKELY) * error:
                return min(more, left[0]), min(more, left[1])
        return None

    def episodes_needed(self) -> float:
        """Return how many labelled episodes of each policy would probably decide it."""
        gap, variance = self.b.rate - self.a.rate, sum(one.residual + one.explained for one in (self.a, self.b))
        return variance * ((Z95 + LIKELY) / gap) ** 2 if gap else math.inf


def compare(a: PolicyRollouts, b: PolicyRollouts) -> PolicyComparison:
    """Compare two policies."""
    for one in (a, b):
        if not one.ids:
            got = f"{one.taught}, all of which the model learned from" if one.taught else "none"
            raise BadInput(f"policy {one.name!r}", "episodes to compare", got)
    return PolicyComparison(estimate_rate(a.predictions, a.labels), estimate_rate(b.predictions, b.labels))


def read_sheet(path: Path) -> dict[tuple[str, str], bool | None]:
    """Read a sheet of labels, by policy and episode; None = still empty. A file that does not exist has no rows."""
    found: dict[tuple[str, str], bool | None] = {}
    for row in read_rows(path) if path.exists() else ():
        cells: Mapping[str, object] = row.fields if isinstance(row, LabelRow) else {}
        if not isinstance(row, LabelRow) or not NEEDED <= set(cells):
            where = row.where if isinstance(row, LabelRow) else row.detail
            raise BadInput(str(path), f"a row with the columns {', '.join(SHEET)}", where)
        found[str(cells["policy"]), str(cells["episode"])] = read_success(row.where, cells["success"])
    return found


def extend_sheet(path: Path, rows: Iterable[tuple[str, str, str]]) -> None:
    """Append rows to fill in (policy, episode, video) to a sheet; what is in it stays as it is."""
    text = (path.read_text("utf-8-sig") if path.exists() else "").lstrip() or ",".join(SHEET) + "\n"
    header = next(csv.reader(text.splitlines()[:1]))
    if not NEEDED <= set(header):
        raise BadInput(str(path), f"the columns {', '.join(SHEET)}", ", ".join(header))
    with atomic_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        file.write(text if text.endswith("\n") else text + "\n")
        table = csv.DictWriter(file, header, extrasaction="ignore", lineterminator="\n")
        table.writerows(dict(zip(SHEET, row, strict=False)) for row in rows)
