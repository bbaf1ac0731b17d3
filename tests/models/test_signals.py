"""Signals as numbers and as features: what is refused, what the features are, that they are causal."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from demerit.data.episode import Episode
from demerit.errors import BadEpisode, BadInput, UnknownName
from demerit.models.signals import add_farthest, are_scales, fit_scales, read_columns, scale_signals


def make_episode(id: str = "one", **signals: Any) -> Episode:
    episode = Episode.from_array(np.zeros((4, 2, 2, 3), np.uint8), "push", id)
    return replace(episode, signals={name: np.asarray(values) for name, values in signals.items()})


def test_scales_are_the_median_and_the_typical_distance_from_it() -> None:
    episodes = [make_episode(force=[0, 0, 0, 10]), make_episode(force=[0, 0, 30, 1e6])]
    assert fit_scales(episodes, ["force", "force"]) == {"force": [[0.0, 30.0]]}  # one huge force changes nothing
    half = make_episode(half=[[7, 0], [7, 0], [7, 3], [7, 0]])  # one of its columns is the same everywhere
    assert fit_scales([half], ["half"]) == {"half": [[7.0, 1.0], [0.0, 3.0]]}
    poses = np.arange(16.0).reshape(4, 2, 2)
    wide = [make_episode(pose=poses), make_episode(pose=poses), make_episode(pose=[1] * 4)]
    assert len(fit_scales(wide, ["pose"])["pose"]) == 4
    with pytest.raises(UnknownName, match="force"):
        fit_scales(episodes, ["forse"])
    with pytest.raises(BadInput, match="finite numbers"):
        fit_scales([make_episode(force=[0, 1, 2, np.nan])], ["force"])
    with pytest.raises(BadInput, match=r"numbers that change.*\[7.0\] at every frame"):  # it would only be needed
        fit_scales([make_episode(still=[7] * 4), make_episode(still=[7] * 4)], ["still"])


def test_features_are_now_and_the_farthest_so_far() -> None:
    episode = make_episode(force=[0.0, -60.0, 30.0, 10.0], hand=np.arange(8.0).reshape(4, 2))
    scales = {"force": [[0.0, 30.0]], "hand": [[0.0, 1.0], [1.0, 2.0]]}
    both = add_farthest(scale_signals(episode, scales))
    now = np.arcsinh([0, -2, 1, 1 / 3])
    assert both.shape == (4, 6)
    np.testing.assert_allclose(both[:, 0], now)
    np.testing.assert_allclose(both[:, 2], np.arcsinh([0, 1, 2, 3]))
    np.testing.assert_allclose(both[:, 3], [0, now[1], now[1], now[1]])


def test_features_do_not_depend_on_later_frames() -> None:
    columns = np.random.default_rng(0).normal(size=(30, 3))
    whole = add_farthest(columns)
    for length in range(1, 30):
        assert np.array_equal(add_farthest(columns[:length]), whole[:length])


@pytest.mark.parametrize(
    ("signals", "word"),
    [
        ({}, "without force"),
        ({"force": np.zeros((4, 2))}, "1 numbers per frame of 'force', as taught"),
        ({"force": [0, 1, np.nan, 3]}, "at frame 2"),
        ({"force": [0, 1, 2]}, "4 values"),
        ({"force": ["a", "b", "c", "d"]}, "numbers"),
    ],
)
def test_what_was_not_taught_is_refused(signals: dict[str, Any], word: str) -> None:
    with pytest.raises((BadEpisode, BadInput), match=word):
        scale_signals(make_episode(**signals), {"force": [[0.0, 1.0]]})


def test_numbers_of_any_shape_are_columns() -> None:
    signals = {"flags": np.array([True, False]), "pose": np.zeros((2, 3, 4)), "one": np.array(3.0)}
    assert read_columns(signals, "flags", 2).tolist() == [[1.0], [0.0]]
    assert read_columns(signals, "pose", 2).shape == (2, 12)
    with pytest.raises(BadInput, match="2 values"):
        read_columns(signals, "one", 2)


@pytest.mark.parametrize(
    "scales", [{"a": [[0.0]]}, {"a": [[0.0, 0.0]]}, {"a": []}, {"a": 3}, {"a": [["x", 1.0]]}, {"a": [[0, 1, 2, 3]]}]
)
def test_damaged_scales_are_found(scales: Any) -> None:
    assert not are_scales(scales)
    assert are_scales({"a": [[0.0, 1.0], [2.0, 0.5]]})
