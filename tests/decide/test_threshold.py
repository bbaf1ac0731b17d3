"""Thresholds that hold for whole episodes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.splits import SeenEpisodes
from demerit.decide.detector import Detector, find_failure_threshold
from demerit.decide.threshold import (
    Threshold,
    conformal_threshold,
    failures_needed,
    find_success_threshold,
    follow_episode,
)
from demerit.errors import BadInput
from demerit.negatives import load_negative
from demerit.use.gym.episode import EpisodeWatch, RewardScheme
from fakes.lamp_env import LampModel


def episode(bright: list[int], success: bool, name: str = "x", curve: list[float] | None = None) -> Episode:
    images = np.stack([np.full((4, 4, 3), level, np.uint8) for level in bright])
    found = None if curve is None else np.array(curve, np.float32)
    label = Outcome("human", success=success, curve=found)
    return replace(Episode.from_array(images, "light it", name), outcomes=(label,))


def failures(count: int, seed: int = 0) -> list[Episode]:
    """Episodes that are brightest somewhere in the middle and dark at the end."""
    rng = np.random.default_rng(seed)
    return [episode([0, *rng.integers(0, 250, 3).tolist(), 1], False, f"{seed}-{i}") for i in range(count)]


def brightest(one: Episode, stride: int = 1, in_a_row: int = 2) -> float:
    """Return the value that it keeps for some frames in a row, computed in a loop."""
    values = [answer.value for answer in follow_episode(LampModel(), one, stride)]
    return max(min(values[i : i + in_a_row]) for i in range(len(values) - in_a_row + 1))


def test_it_is_the_conformal_threshold_of_the_brightest_frame_of_each_failure() -> None:
    episodes = [*failures(60), episode([0, 255, 255], True)]
    for confidence, in_a_row in ((0.9, 2), (None, 1), (None, 3)):
        found = find_success_threshold(LampModel(), episodes, 0.1, confidence, in_a_row=in_a_row)
        tops = [brightest(one, in_a_row=in_a_row) for one in episodes[:-1]]
        assert found.at == conformal_threshold(tops, 0.1, confidence).at
        assert found == Threshold(found.at, "value", 0.1, confidence, 60, in_a_row)
    assert found.at > max(follow_episode(LampModel(), one)[-1].value for one in episodes[:-1])


def test_it_holds_on_other_failures() -> None:
    threshold = find_success_threshold(LampModel(), failures(200), risk=0.1)
    others = failures(1000, seed=1)
    assert np.mean([brightest(one) >= threshold.at for one in others]) <= 0.1


def test_a_model_that_gives_probabilities_of_success_is_judged_by_them() -> None:
    found = find_success_threshold(LampModel(gives_success=True), failures(30), confidence=None)
    assert found.evidence == "success"


def test_an_episode_shorter_than_the_looks_in_a_row_is_refused() -> None:
    with pytest.raises(BadInput) as short:
        find_success_threshold(LampModel(), failures(30), confidence=None, in_a_row=6)
    assert short.value.what == "in_a_row"


def test_the_stride_is_that_of_the_environment() -> None:
    episodes = failures(30)
    found = find_success_threshold(LampModel(), episodes, confidence=None, stride=4)
    assert found.at == conformal_threshold([brightest(one, 4) for one in episodes], 0.05).at
    assert len(follow_episode(LampModel(), episodes[0], 3)) == 3  # frames 0, 3 and the last


def test_an_episode_that_was_complete_for_a_moment_is_no_failure() -> None:
    undone = episode([0, 255, 255, 0], False, "undone", curve=[0, 1, 1, 0.2])
    found = find_success_threshold(LampModel(), [*failures(19), undone], confidence=None)
    assert found.episodes == 19 and found.at < 0.99


def test_too_few_episodes_and_those_that_do_not_count_are_said() -> None:
    with pytest.raises(BadInput) as few:
        find_success_threshold(LampModel(), failures(19))
    assert "45" in few.value.expected and few.value.got == "19"
    model, episodes = LampModel(), failures(50)
    model.seen = SeenEpisodes.of(episodes[:10])  # type: ignore[attr-defined]
    with pytest.raises(BadInput) as learned:
        find_success_threshold(model, episodes)
    assert str(learned.value.got).startswith("40; 10 more")
    tested = [replace(one, origin=Origin("x", split="test")) for one in episodes]
    with pytest.raises(BadInput):
        find_success_threshold(LampModel(), tested, risk=0.3, confidence=None)
    assert find_success_threshold(LampModel(), tested, confidence=None, use_test_split=True).episodes == 50


def test_what_was_made_of_one_failure_counts_once() -> None:
    episodes = failures(20)
    lighter = [
        load_negative("recolour")(one, np.random.default_rng(0), levels=[1.2, 1.2, 1.2, 0.0]) for one in episodes
    ]
    with pytest.raises(BadInput) as few:
        find_success_threshold(LampModel(), [*episodes, *lighter], 0.04, None)
    assert few.value.got == "20"
    found = find_success_threshold(LampModel(), [*episodes, *lighter], 0.1, None)
    assert found == find_success_threshold(LampModel(), lighter, 0.1, None)  # the higher of the two
    assert found.at > find_success_threshold(LampModel(), episodes, 0.1, None).at
    moments = [replace(one, origin=replace(one.origin, parent="a long recording")) for one in episodes]
    assert find_success_threshold(LampModel(), moments, 0.1, None).episodes == 20  # different attempts


def rising(count: int) -> list[Episode]:
    return [episode([0, 40 + i, 120 + i, 200 + i, 250], True, f"rise{i}") for i in range(count)]


def test_the_failure_threshold_ends_an_episode_that_stays_behind() -> None:
    dark = failures(3)
    found = find_failure_threshold(LampModel(), [*rising(30), *dark], risk=0.1, confidence=None)
    assert isinstance(found, Detector) and found.schedules[""].successes == 30
    watch = EpisodeWatch(LampModel(), ["light it"], RewardScheme(failure=found))
    looks = [watch.look(np.full((4, 4, 3), level, np.uint8)) for level in (0, 60, 60, 60)]
    assert [look.failed for look in looks] == [False, False, True, True]
    with pytest.raises(BadInput) as few:
        find_failure_threshold(LampModel(), rising(30))
    assert few.value.expected.startswith("45")


def test_the_frames_of_a_detector_are_those_of_the_environment_whatever_the_stride() -> None:
    found = find_failure_threshold(LampModel(), rising(30), risk=0.1, confidence=None, stride=2)
    watch = EpisodeWatch(LampModel(), ["light it"], RewardScheme(failure=found, stride=2))
    looks = [watch.look(np.full((4, 4, 3), level, np.uint8)) for level in (0, 60, 251)]  # frames 0, 2 and 4
    assert [look.failed for look in looks] == [False, True, False]
    other = replace(found, card="another")
    with pytest.raises(BadInput):
        EpisodeWatch(LampModel(), ["light it"], RewardScheme(failure=other))


@pytest.mark.parametrize(("n", "alpha"), [(4, 0.2), (5, 0.4), (6, 0.3), (9, 0.1), (3, 0.3)])
def test_conformal_risk_over_all_ranks_of_a_new_failure(n: int, alpha: float) -> None:
    # n + 1 exchangeable scores: the new one is each of them equally often
    for values in (list(range(n + 1)), [0] * (n + 1), [0, 0, *range(n - 1)]):
        passed = 0
        for new in range(n + 1):
            rest = values[:new] + values[new + 1 :]
            passed += values[new] >= conformal_threshold(rest, alpha).at
        assert passed / (n + 1) <= alpha + 1e-12
        if len(set(values)) == n + 1:  # and no more careful than it must be
            assert passed == math.floor(alpha * (n + 1) + 1e-9)


def test_conformal_needs_enough_failures() -> None:
    few = conformal_threshold([0.1] * 18 + [math.nan], 0.05)
    assert few.at == math.inf and not few.enough and few.episodes == 18
    enough = conformal_threshold(np.linspace(0, 1, 19), 0.05)
    assert enough.enough and enough.at > 1.0
    assert 0.29 * 100 < 29  # in floats; 29 of 100 may pass all the same
    assert conformal_threshold(np.arange(1, 100.0), 0.29).at == np.nextafter(71.0, 72)
    for alpha in (0.0, 1.0, -1.0):
        with pytest.raises(BadInput, match="between 0 and 1"):
            conformal_threshold([1.0], alpha)


@pytest.mark.parametrize(
    ("n", "alpha", "confidence"), [(45, 0.05, 0.9), (97, 0.05, 0.9), (400, 0.1, 0.95), (2000, 0.02, 0.8)]
)
def test_conformal_with_confidence(n: int, alpha: float, confidence: float) -> None:
    """Of all calibration sets, the given share have a threshold whose true risk is at most alpha: exact, by scipy."""
    threshold = conformal_threshold(np.arange(n), alpha, confidence).at
    rank = int(threshold) + 1  # it is just above the score with this rank

    def kept(k: int) -> float:  # the true risk above the k-th of n uniform numbers is Beta(n + 1 - k, k)
        return float(scipy.stats.beta(n + 1 - k, k).cdf(alpha))

    assert kept(rank) >= confidence - 1e-9 > kept(rank - 1)


def test_conformal_with_confidence_needs_more_failures() -> None:
    assert failures_needed(0.05) == 19 and failures_needed(0.05, 0.9) == 45
    assert conformal_threshold(np.arange(45), 0.05, 0.9).enough
    assert not conformal_threshold(np.arange(44), 0.05, 0.9).enough
    with pytest.raises(BadInput):
        conformal_threshold(np.arange(45), 0.05, 1.0)
