"""Resizing against exact fractions, pixel by pixel."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import BadInput
from demerit.models.compact.engine import resize_square
from fakes.tiny_network import random_images


def exact_weights(old: int, new: int) -> np.ndarray:
    """Rows: new pixels, columns: old ones."""
    scale = Fraction(old, new)
    matrix = np.zeros((new, old))
    for i in range(new):
        if old > new:
            for j in range(old):
                covered = min(Fraction(j + 1), (i + 1) * scale) - max(Fraction(j), i * scale)
                matrix[i, j] = float(max(covered, Fraction(0)) / scale)
        else:
            centre = (i + Fraction(1, 2)) * scale - Fraction(1, 2)
            left = centre.__floor__()
            for j, weight in ((left, 1 - (centre - left)), (left + 1, centre - left)):
                matrix[i, min(max(j, 0), old - 1)] += float(weight)
    return matrix


@settings(max_examples=50)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 24), st.integers(0, 5))
def test_resizing_equals_area_averages_in_floats(height: int, width: int, side: int, seed: int) -> None:
    images = random_images(2, height, width, seed)
    rows, columns = exact_weights(height, side), exact_weights(width, side)
    exact = np.einsum("ih,nhwc,jw->nijc", rows, images.astype(np.float64), columns)
    small = resize_square(images, side)
    assert small.shape == (2, side, side, 3) and small.dtype == np.uint8
    assert np.abs(small - exact).max() <= 0.5 + 1e-9


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2160, 3840), (1, 4096), (2161, 3), (127, 129)])
def test_any_size_becomes_a_square_and_twice_is_once(height: int, width: int) -> None:
    assert (resize_square(np.full((1, height, width, 3), 77, np.uint8), 128) == 77).all()
    images = random_images(1, height, width)
    small = resize_square(images, 128)
    assert small.shape == (1, 128, 128, 3) and resize_square(small, 128) is small
    resize_square(random_images(1, 50, 60), 128)  # images resized in between leave nothing behind
    np.testing.assert_array_equal(resize_square(images, 128), small)
    for wrong in (np.zeros((4, 4, 3), np.uint8), np.zeros((1, 0, 4, 3), np.uint8), np.zeros((1, 4, 4, 3))):
        with pytest.raises(BadInput):
            resize_square(wrong, 128)
