"""Thresholds with a guarantee: calibrated on labelled episodes, so that at most a chosen share passes by mistake."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from demerit.data.arrays import Floats
from demerit.data.episode import Episode, Outcome
from demerit.data.splits import LabelSelection, recording_of, seen_by
from demerit.decide.guarantee import Guarantee
from demerit.errors import BadInput, BadReward
from demerit.models import load_model
from demerit.models.live import start_live
from demerit.models.protocol import LiveReward, Prepares, RewardModel

ThresholdEvidence = Literal["value", "success", "drop"]
"""the number compared: the value, the probability of success, or how far the value fell below its highest so far"""


@dataclass(frozen=True)
class Threshold:
    """An episode is called a success where its number reaches `at`; in a live episode, at several looks in a row."""

    at: float
    """+inf = too few calibration episodes for a guarantee: nothing passes"""
    evidence: ThresholdEvidence
    """a `drop` calls an episode a failure"""
    risk: float
    """share of the opposite episodes that reach it by mistake"""
    confidence: float | None
    """probability that the share holds, over calibration sets; None = it holds on average over them"""
    episodes: int
    """scored calibration episodes"""
    in_a_row: int = 1
    """looks in a row that must reach it"""

    @property
    def enough(self) -> bool:
        """Whether there were enough calibration episodes for a guarantee."""
        return math.isfinite(self.at)

    @property
    def guarantee(self) -> Guarantee:
        """What it promises."""
        mistake = "successes are called a failure" if self.evidence == "drop" else "failures are called a success"
        return Guarantee(self.risk, mistake, self.episodes, self.confidence)

    def is_reached(self, answer: LiveReward, highest: float) -> bool:
        """Whether a model's answer reaches it; `highest` is the highest value of the episode so far."""
        if self.evidence != "success":
            return (highest - answer.value if self.evidence == "drop" else answer.value) >= self.at
        if answer.success is None:
            raise BadInput("the threshold", "a model that gives a probability of success, as it was calibrated", "none")
        return answer.success >= self.at


def failures_needed(risk: float, confidence: float | None = None) -> int:
    """Return how many calibration failures a threshold at this risk needs: with fewer, it is +inf."""
    if confidence is not None:
        return math.ceil(math.log(1 - confidence) / math.log(1 - risk) - 1e-9)
    return math.ceil(1 / risk - 1e-9) - 1


def affordable_risk(failures: int) -> float:
    """Return the smallest risk that this many calibration failures can guarantee, rounded up to two digits."""
    return math.ceil(100 / (failures + 1) - 1e-9) / 100


def conformal_threshold(
    failures: npt.ArrayLike,
    risk: float,
    confidence: float | None = None,
    evidence: ThresholdEvidence = "value",
    in_a_row: int = 1,
) -> Threshold:
    """Calibrate a threshold t so that P(score >= t | failure) <= risk for a new failure.

    With n calibration scores s_(1) <= ... <= s_(n) and k = n + 1 - floor(risk (n + 1)): t is the next number above
    s_(k), and +inf when k > n. A new exchangeable failure exceeds s_(k) with a probability of at most
    1 - k / (n + 1) <= risk, ties or not. The guarantee needs exchangeable failures: it does not carry over to other
    tasks, robots or cameras, and it holds on average over calibration sets.

    With a confidence c, k is the smallest rank with P(Binomial(n, risk) <= n - k) <= 1 - c. The share of all failures
    above s_(k) is Beta(n + 1 - k, k) distributed (at most, with ties), and exceeds the risk with that probability.

    Args:
        failures: scores of human-rejected episodes that are not among the test episodes, NaN = unscored.
        risk: the allowed share of failures that pass, between 0 and 1.
        confidence: the share of calibration sets for which it holds, between 0 and 1; None = on average over them.
        evidence: what the scores are.
        in_a_row: looks in a row that must reach it, in a live episode.
    """
    for name, share in (("risk", risk), ("confidence", risk if confidence is None else confidence)):
        if not 0 < share < 1:
            raise BadInput(name, "a number between 0 and 1", share)
    scores = np.asarray(failures, dtype=np.float64).reshape(-1)
    ordered = np.sort(scores[~np.isnan(scores)])
    n = len(ordered)
    if confidence is None:
        allowed = math.floor(risk * (n + 1) + 1e-9)  # the slack undoes rounding: 0.29 * 100 is below 29
    else:
        allowed = int(np.sum(np.cumsum(_binomial(n, risk)) <= 1 - confidence + 1e-12))
    rank = n + 1 - allowed
    at = math.inf if rank > n else float(np.nextafter(ordered[rank - 1], np.inf))
    return Threshold(at, evidence, risk, confidence, n, in_a_row)


def _binomial(n: int, p: float) -> Floats:
    """Return the probability of 0 .. n hits."""
    k = np.arange(n + 1)
    ways = np.array([math.lgamma(n + 1) - math.lgamma(hits + 1) - math.lgamma(n - hits + 1) for hits in range(n + 1)])
    probabilities: Floats = np.exp(ways + k * math.log(p) + (n - k) * math.log1p(-p))
    return probabilities


# Live episodes


def find_success_threshold(
    model: str | RewardModel,
    episodes: Iterable[Episode],
    risk: float = 0.05,
    confidence: float | None = 0.9,
    stride: int = 1,
    in_a_row: int = 2,
    use_test_split: bool = False,
) -> Threshold:
    """Find the threshold that at most a share `risk` of failures reach, anywhere in the episode.

    A failure whose labelled progress was complete for a moment does not count: success was true then.

    Args:
        model: a model or its name.
        episodes: labelled ones that the model has not learned from; failures count. Also a dataset.
        risk: the share, between 0 and 1.
        confidence: that the share holds for this very threshold; None = it holds on average over calibration sets,
            which takes fewer episodes (19 instead of 45 at a risk of 0.05).
        stride: as in the environment: frames of the episodes per look.
        in_a_row: looks in a row that must reach it; one frame alone is more often a mistake.
        use_test_split: also take episodes of a test split.
    """
    loaded = load_model(model) if isinstance(model, str) else model
    selection, seen = LabelSelection(use_test_split=use_test_split), seen_by(loaded)
    learned, tops = 0, list[tuple[str, dict[ThresholdEvidence, float]]]()
    for episode in filter(None, map(selection.take, episodes)):
        outcome = episode.outcome
        if outcome is None or outcome.success is not False or was_complete(outcome):
            continue
        if seen.has(episode):
            learned += 1
        else:
            top = highest_evidence(follow_episode(loaded, episode, stride), in_a_row)
            tops.append((recording_of(episode), top))
    kind: ThresholdEvidence = "success" if all("success" in top for _, top in tops) else "value"
    highest: dict[str, float] = {}  # what was made of one recording counts once
    for recording, top in tops:
        highest[recording] = max(top[kind], highest.get(recording, -math.inf))
    threshold = conformal_threshold(list(highest.values()), risk, confidence, kind, in_a_row)
    if not threshold.enough:
        fewest = f"{failures_needed(risk, confidence)} or more ({failures_needed(risk)} with confidence=None)"
        notes = [f"{learned} more that the model learned from, which do not count"] if learned else []
        got = "; ".join([str(threshold.episodes), *notes, *selection.notes()])
        raise BadInput(f"labelled failures for a risk of {risk:g}", fewest, got)
    return threshold


def follow_episode(model: RewardModel, episode: Episode, stride: int = 1) -> list[LiveReward]:
    """Show an episode to a model as an environment does: frames 0, stride ... and the last. Return its answers."""
    names = list(model.looks_at(episode)) if isinstance(model, Prepares) else [episode.main_camera]
    at = choose_looks(episode, stride).tolist()
    views = {name: episode.views[name].take(at) for name in names}
    live, answers = start_live(model, episode.instruction), list[LiveReward]()
    for i in range(len(at)):
        frame = {name: view[i] for name, view in views.items()}
        answers.append(check_answer(live.step(frame if len(names) > 1 else frame[names[0]]), model))
    return answers


def check_answer(answer: LiveReward, model: RewardModel) -> LiveReward:
    """Return a live answer; refuse one without a value."""
    if not math.isfinite(answer.value):
        raise BadReward(model.card.name, "live", "it has no value for this frame, and none is made up")
    return answer


def choose_looks(episode: Episode, stride: int) -> npt.NDArray[np.int32]:
    """Return the frames that a model is shown."""
    return np.array(sorted({*range(0, len(episode), stride), len(episode) - 1}), dtype=np.int32)


def highest_evidence(answers: Sequence[LiveReward], in_a_row: int) -> dict[ThresholdEvidence, float]:
    """Return the highest number of each kind that an episode keeps for some looks in a row."""
    columns: dict[ThresholdEvidence, Floats] = {"value": np.array([answer.value for answer in answers])}
    successes = [answer.success for answer in answers if answer.success is not None]
    if len(successes) == len(answers):
        columns["success"] = np.array(successes)
    return {kind: highest_kept(numbers, in_a_row) for kind, numbers in columns.items()}


def highest_kept(numbers: Floats, in_a_row: int) -> float:
    """Return the highest number that some numbers in a row reach."""
    if not 1 <= in_a_row <= len(numbers):
        raise BadInput("in_a_row", f"1 to {len(numbers)}, the looks of the shortest episode", in_a_row)
    return float(sliding_window_view(numbers, in_a_row).min(axis=1).max())


def was_complete(outcome: Outcome) -> bool:
    """Whether a progress curve reaches 1: success was true for a moment, whatever happened later."""
    return outcome.curve is not None and bool(np.any(outcome.curve >= 1))
