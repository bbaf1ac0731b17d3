"""Thresholds that hold for whole episodes."""

from dataclasses import replace

import numpy as np
import pytest

from demerit.data.episode import Episode, Origin
from demerit.data.labels import Outcome
from demerit.data.seen import SeenEpisodes
from demerit.errors import BadInput
from demerit.evaluate.metrics.success import conformal_threshold
from demerit.use.detect import Detector
from demerit.use.gym import EpisodeThreshold, RewardScheme, find_failure_threshold, find_success_threshold
from demerit.use.gym.thresholds import follow_episode
from demerit.use.gym.watch import EpisodeWatch
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
        assert found.at == conformal_threshold(tops, 0.1, confidence).threshold
        assert found == EpisodeThreshold(found.at, "value", 0.1, confidence, 60, in_a_row)
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
    assert found.at == conformal_threshold([brightest(one, 4) for one in episodes], 0.05).threshold
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
