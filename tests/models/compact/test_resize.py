"""Resizing against exact fractions, pixel by pixel."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import BadInput
from demerit.models.compact.resize import resize_square
from fakes.tiny_network import random_images


def axis_weights(old: int, new: int) -> list[dict[int, Fraction]]:
    scale = Fraction(old, new)
    rows: list[dict[int, Fraction]] = []
    for i in range(new):
        row: dict[int, Fraction] = {}
        if old > new:
            for j in range(old):
                covered = min(Fraction(j + 1), (i + 1) * scale) - max(Fraction(j), i * scale)
                if covered > 0:
                    row[j] = covered / scale
        else:
            centre = (i + Fraction(1, 2)) * scale - Fraction(1, 2)
            left = centre.__floor__()
            for j, weight in ((left, 1 - (centre - left)), (left + 1, centre - left)):
                place = min(max(j, 0), old - 1)
                row[place] = row.get(place, Fraction(0)) + weight
        rows.append(row)
    return rows


def as_matrix(old: int, new: int) -> np.ndarray:
    matrix = np.zeros((new, old))
    for i, row in enumerate(axis_weights(old, new)):
        for j, weight in row.items():
            matrix[i, j] = float(weight)
    return matrix


@settings(max_examples=50)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 24), st.integers(0, 5))
def test_resizing_equals_area_averages_in_floats(height: int, width: int, side: int, seed: int) -> None:
    images = random_images(2, height, width, seed)
    exact = np.einsum("ih,nhwc,jw->nijc", as_matrix(height, side), images.astype(np.float64), as_matrix(width, side))
    small = resize_square(images, side)
    assert small.shape == (2, side, side, 3) and small.dtype == np.uint8
    assert np.abs(small - exact).max() <= 0.5 + 1e-9


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 255))
def test_resizing_keeps_plain_colours_and_is_idempotent(height: int, width: int, level: int) -> None:
    plain = np.full((1, height, width, 3), level, np.uint8)
    assert (resize_square(plain, 128) == level).all()
    once = resize_square(random_images(1, height, width), 128)
    assert resize_square(once, 128) is once


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2160, 3840), (1, 4096), (2161, 3), (127, 129)])
def test_any_size_becomes_a_square(height: int, width: int) -> None:
    images = random_images(1, height, width)
    small = resize_square(images, 128)
    assert small.shape == (1, 128, 128, 3)
    if height >= 128 and width >= 128:
        assert abs(float(small.mean()) - float(images.mean())) < 0.1
    # images that were resized in between leave nothing behind
    resize_square(random_images(1, 50, 60), 128)
    np.testing.assert_array_equal(resize_square(images, 128), small)


@pytest.mark.parametrize(
    "wrong", [np.zeros((4, 4, 3), np.uint8), np.zeros((1, 0, 4, 3), np.uint8), np.zeros((1, 4, 4, 3))]
)
def test_wrong_arrays_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(BadInput, match="uint8"):
        resize_square(wrong, 128)
