"""Copies, looks and labels that do not fit, from features alone."""

import numpy as np
import pytest

from demerit.training.teach.features import EmbeddedEpisode
from demerit.training.teach.training_set import (
    SNAPSHOTS,
    STILL_CHANGES,
    doubt_labels,
    find_copies,
    measure_change,
    split_looks,
    stop_when_done,
    take_snapshots,
)
from fakes import lesson_data as data


def walks(count: int, seed: int = 0, at: float = 0.0) -> np.ndarray:
    """Snapshots of episodes: each moves from its own start in its own direction."""
    rng = np.random.default_rng(seed)
    start, step = rng.normal(at, 1, (count, 1, 30)), rng.normal(0, 1, (count, 1, 30))
    return start + step * np.linspace(0, 1, SNAPSHOTS)[None, :, None]


def test_copies_are_found_though_encoded_again() -> None:
    different = walks(6)
    noise = np.random.default_rng(1).normal(0, 0.03, different.shape)
    both = np.concatenate([different, different + noise])
    assert find_copies(different, [""] * 6) == list(range(6))
    assert find_copies(both, [""] * 12) == [*range(6), *range(6)]
    assert find_copies(both, ["lift"] * 6 + ["push"] * 6) == list(range(12))


def test_episodes_that_differ_at_the_end_alone_are_no_copies() -> None:
    success = walks(1)
    failure = success.copy()
    failure[:, -1] = failure[:, 0]
    assert find_copies(np.concatenate([success, failure]), ["", ""]) == [0, 1]


def test_still_pictures_are_copies_only_if_equal() -> None:
    still = np.repeat(walks(2)[:, :1], SNAPSHOTS, axis=1)
    assert find_copies(np.concatenate([still, still]), [""] * 4) == [0, 1, 0, 1]


def test_two_robots_are_two_looks_and_one_scene_is_not() -> None:
    both = np.concatenate([walks(5), walks(4, seed=1, at=5)])[:, 0]
    own = [str(number) for number in range(9)]
    assert split_looks(both, own) == [0] * 5 + [1] * 4
    assert split_looks(walks(9)[:, 0], own) == [0] * 9
    assert split_looks(both, ["a"] * 5 + own[5:]) == [0] * 9  # one recording is no look


def test_snapshots_join_cameras_and_need_one_frame() -> None:
    towers = [[np.ones((frames, 3)), np.zeros((frames, 2))] for frames in (1, 40)]
    assert take_snapshots(towers).shape == (2, SNAPSHOTS, 5)


def test_successes_below_every_failure_and_copies_with_both_labels_are_doubted() -> None:
    success = np.repeat([1.0, 0.0], 6)
    values = np.array([0.9, 0.8, 0.9, 0.15, 0.9, 0.05, 0.1, 0.2, 0.1, 0.2, 0.95, 0.3])
    names = list("abcdefghijkl")
    own = list(range(12))
    assert list(doubt_labels(values, success, own, names)) == ["f"]  # not d: below most failures; nor k: a near miss
    assert list(doubt_labels(values, success, [*own[:11], 0], names)) == ["a", "l", "f"]
    assert list(doubt_labels(np.full(12, np.nan), success, own, names)) == []
    assert list(doubt_labels(1 - values, success, own, names)) == []  # a model that ranks the wrong way doubts nothing
    for few in ([0, 1, 5, 6, 7, 8], [0, 1, 2, 3, 4, 5, 6, 7]):  # six labels; two failures
        assert list(doubt_labels(values[few], success[few], own[: len(few)], [names[i] for i in few])) == []


def test_a_recording_that_moves_to_its_end_is_told_from_one_that_waits() -> None:
    rng = np.random.default_rng(0)
    moving = np.cumsum(rng.normal(0, 1, (60, 30)), axis=0)
    moving[-8:] += np.linspace(0, 25, 8)[:, None]  # what decides happens at the end
    waiting = np.concatenate([moving, np.repeat(moving[-1:], 30, axis=0) + rng.normal(0, 0.05, (30, 30))])
    assert measure_change(moving) > STILL_CHANGES > 2 * measure_change(waiting)
    assert measure_change(np.ones((5, 30))) == 0 == measure_change(moving[:1])


@pytest.mark.parametrize(
    ("shares", "stops"),
    [
        ([0.58, 0.6, 0.61, 0.9, 0.95], True),  # the coffee task's right camera: the median of five misses it
        ([0.2, 0.3, 0.66, 0.68, 0.7], False),  # a push seen from close by: the median of five would call it stopped
    ],
)
def test_a_lesson_stops_when_its_successes_change_on_average(shares: list[float], stops: bool) -> None:
    lesson = []
    for number, share in enumerate(shares):
        tower = np.array([1.0] * 8 + [share, share, 0])[:, None]
        assert measure_change(tower) == pytest.approx(share, rel=0.01)
        lesson.append(EmbeddedEpisode(data.episode(True, number), 11, np.arange(11, dtype=np.int32), {"main": tower}))
    assert stop_when_done(lesson) is stops
    assert bool(np.median(shares) >= STILL_CHANGES) is not stops
