"""The baselines that see pixels or length: their values by hand, and the conformance check."""

from collections.abc import Callable

import numpy as np
import pytest

from demerit.data.episode import Episode
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.baselines import LOOKS, small_grey


def grey_episode(levels: list[int], size: tuple[int, int] = (40, 60)) -> Episode:
    images = np.zeros((len(levels), *size, 3), np.uint8)
    images[:] = np.array(levels, np.uint8)[:, None, None, None]
    return Episode.from_array(images, "do it", id="grey")


def test_change_and_motion_by_hand() -> None:
    change = load_model("change").score([grey_episode([0, 51, 102, 0])])[0]
    distance = np.array([0, 0.2, 0.4, 0])
    np.testing.assert_allclose(change.value, distance / (distance + 0.05), rtol=1e-5)
    motion = load_model("motion").score([grey_episode([0, 51, 51, 0])])[0]
    mean = np.array([0, 0.2, 0.1, 0.4 / 3])
    np.testing.assert_allclose(motion.value, mean / (mean + 0.02), rtol=1e-5)


def test_length_depends_only_on_the_number_of_frames() -> None:
    model = load_model("length")
    lengths = [1, 2, 50, 51, 5000, 5001]
    values = [model.score([Episode.from_array(np.zeros((n, 1, 1, 3), np.uint8))])[0].value for n in lengths]
    assert all(len(set(value.tolist())) == 1 for value in values)
    finals = [float(value[-1]) for value in values]
    assert finals == sorted(finals) and len(set(finals)) == len(finals)
    assert finals[0] == pytest.approx(1 / 101)


def test_long_videos_use_32_small_frames() -> None:
    reward = load_model("change").score([grey_episode([0] * 200, (4, 4))])[0]
    assert len(reward.at) == LOOKS and reward.at[0] == 0 and reward.at[-1] == 199
    image = np.zeros((1, 64, 64, 3), np.uint8)
    image[:, ::2] = 255  # every other line white: each cell of 2 x 2 is half white
    np.testing.assert_allclose(small_grey(image), 0.5, atol=1e-6)


def test_clock_constant_and_random(make_episode: Callable[..., Episode]) -> None:
    episode = make_episode("one", frames=4)
    assert load_model("clock").score([episode])[0].value.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert load_model("constant:0.25").score([episode])[0].value.tolist() == [0.25] * 4
    first, again, other = (load_model(f"random:{seed}").score([episode])[0].value.tolist() for seed in (1, 1, 2))
    assert first == again != other
    for name in ("constant:2", "constant:much", "random:x"):
        with pytest.raises(BadInput):
            load_model(name)
