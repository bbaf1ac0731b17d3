"""Thresholds that end an episode, with a guarantee: calibrated on whole labelled episodes, seen frame by frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from demerit.data.episode import Episode
from demerit.data.labels import Outcome
from demerit.data.reward import Reward
from demerit.data.seen import seen_by
from demerit.errors import BadInput
from demerit.evaluate.metrics.success import conformal_threshold, failures_needed
from demerit.models.protocol import LiveReward, Prepares, RewardModel
from demerit.training.selection import LabelSelection
from demerit.use.detect import Detector, calibrate_detector
from demerit.use.gym.scheme import EpisodeThreshold, RewardScheme, ThresholdEvidence
from demerit.use.gym.watch import EpisodeWatch, load

Floats = npt.NDArray[np.float64]


def find_success_threshold(
    model: str | RewardModel,
    episodes: Iterable[Episode],
    risk: float = 0.05,
    confidence: float | None = 0.9,
    stride: int = 1,
    in_a_row: int = 2,
    use_test_split: bool = False,
) -> EpisodeThreshold:
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
    loaded = load(model)
    selection, seen = LabelSelection(use_test_split=use_test_split), seen_by(loaded)
    known, found = 0, []
    for episode in filter(None, map(selection.take, episodes)):
        outcome = episode.outcome
        if outcome is None or outcome.success is not False or was_complete(outcome):
            continue
        if seen.has(episode):
            known += 1
        else:
            found.append(highest_evidence(follow_episode(loaded, episode, stride), in_a_row))
    kind: ThresholdEvidence = "success" if all("success" in one for one in found) else "value"
    bound = conformal_threshold([one[kind] for one in found], risk, confidence)
    if not bound.enough:
        fewest = f"{failures_needed(risk, confidence)} or more ({failures_needed(risk)} with confidence=None)"
        notes = [f"{known} more that the model learned from, which do not count"] if known else []
        got = "; ".join([str(bound.n), *notes, *selection.notes()])
        raise BadInput(f"labelled failures for a risk of {risk:g}", fewest, got)
    return EpisodeThreshold(bound.threshold, kind, risk, confidence, bound.n, in_a_row)


def find_failure_threshold(
    model: str | RewardModel,
    episodes: Iterable[Episode],
    risk: float = 0.05,
    confidence: float | None = 0.9,
    stride: int = 1,
    use_test_split: bool = False,
) -> Detector:
    """Calibrate a detector, for `failure`, that ends at most a share `risk` of successes.

    Args: as `find_success_threshold`; successes count.
    """
    loaded = load(model)
    some = (one for one in episodes if any(label.success for label in one.outcomes))
    scored = ((one, _live_reward(loaded, one, stride)) for one in some)
    selection = LabelSelection(use_test_split=use_test_split)
    return calibrate_detector(scored, loaded.card, loaded.card.name, risk, confidence, seen_by(loaded), selection)


def follow_episode(model: RewardModel, episode: Episode, stride: int = 1) -> list[LiveReward]:
    """Show an episode to a model as an environment does: frames 0, stride ... and the last. Return its answers."""
    names = list(model.looks_at(episode)) if isinstance(model, Prepares) else [episode.main_camera]
    at = choose_looks(episode, stride).tolist()
    views = {name: episode.views[name].take(at) for name in names}
    watch = EpisodeWatch(model, [episode.instruction], RewardScheme())
    shown = [{name: view[i] for name, view in views.items()} for i in range(len(at))]
    return [watch.look(frame if len(names) > 1 else frame[names[0]]).answer for frame in shown]


def _live_reward(model: RewardModel, episode: Episode, stride: int) -> Reward:
    """The live answers about an episode, as one reward."""
    answers = follow_episode(model, episode, stride)
    successes = [answer.success for answer in answers if answer.success is not None]
    success = np.array(successes, np.float32) if len(successes) == len(answers) else None
    return Reward(
        model.card.name,
        episode.id,
        choose_looks(episode, stride),
        np.array([a.value for a in answers], np.float32),
        success,
    )


def choose_looks(episode: Episode, stride: int) -> npt.NDArray[np.int32]:
    """Return the frames that a model is shown."""
    return np.array(sorted({*range(0, len(episode), stride), len(episode) - 1}), dtype=np.int32)


def highest_evidence(answers: Sequence[LiveReward], in_a_row: int) -> dict[ThresholdEvidence, float]:
    """Return the highest number of each kind that an episode keeps for some looks in a row."""
    values = np.array([answer.value for answer in answers])
    found: dict[ThresholdEvidence, Floats] = {"value": values}
    successes = [answer.success for answer in answers if answer.success is not None]
    if len(successes) == len(answers):
        found["success"] = np.array(successes)
    return {kind: highest_kept(numbers, in_a_row) for kind, numbers in found.items()}


def highest_kept(numbers: Floats, in_a_row: int) -> float:
    """Return the highest number that some numbers in a row reach."""
    if not 1 <= in_a_row <= len(numbers):
        raise BadInput("in_a_row", f"1 to {len(numbers)}, the looks of the shortest episode", in_a_row)
    return float(sliding_window_view(numbers, in_a_row).min(axis=1).max())


def was_complete(outcome: Outcome) -> bool:
    """Whether a progress curve reaches 1: success was true for a moment, whatever happened later."""
    return outcome.curve is not None and bool(np.any(outcome.curve >= 1))
