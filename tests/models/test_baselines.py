"""The baselines that see pixels or length: their values by hand, and the conformance check."""

from __future__ import annotations

import numpy as np
import pytest

from demerit.data.episode import Episode
from demerit.models import load_model
from demerit.models.baselines import LOOKS, small_grey
from demerit.models.check import check_model


def grey_episode(levels: list[int], size: tuple[int, int] = (40, 60)) -> Episode:
    images = np.zeros((len(levels), *size, 3), np.uint8)
    images[:] = np.array(levels, np.uint8)[:, None, None, None]
    return Episode.from_array(images, "do it", id="grey")


@pytest.mark.parametrize("name", ["change", "motion", "length"])
def test_baselines_pass_the_conformance_check(name: str) -> None:
    report = check_model(load_model(name))
    assert not report.broken, report.broken


def test_change_is_the_distance_to_the_first_frame() -> None:
    reward = load_model("change").score([grey_episode([0, 51, 102, 0])])[0]
    distance = np.array([0, 0.2, 0.4, 0])
    np.testing.assert_allclose(reward.value, distance / (distance + 0.05), rtol=1e-5)


def test_motion_is_the_running_mean_of_the_steps() -> None:
    reward = load_model("motion").score([grey_episode([0, 51, 51, 0])])[0]
    mean = np.array([0, 0.2, 0.1, 0.4 / 3])
    np.testing.assert_allclose(reward.value, mean / (mean + 0.02), rtol=1e-5)


def test_length_depends_only_on_the_number_of_frames() -> None:
    model = load_model("length")
    lengths = [1, 2, 50, 51, 5000, 5001]
    values = [model.score([Episode.from_array(np.zeros((n, 1, 1, 3), np.uint8))])[0].value for n in lengths]
    assert all(len(set(value.tolist())) == 1 for value in values)
    finals = [float(value[-1]) for value in values]
    assert finals == sorted(finals) and len(set(finals)) == len(finals)
    assert finals[0] == pytest.approx(1 / 101)


def test_long_videos_use_32_frames() -> None:
    reward = load_model("change").score([grey_episode([0] * 200, (4, 4))])[0]
    assert len(reward.at) == LOOKS and reward.at[0] == 0 and reward.at[-1] == 199


def test_small_images_are_area_averages() -> None:
    image = np.zeros((1, 64, 64, 3), np.uint8)
    image[:, ::2] = 255  # every other line white: each cell of 2 x 2 is half white
    np.testing.assert_allclose(small_grey(image), 0.5, atol=1e-6)
