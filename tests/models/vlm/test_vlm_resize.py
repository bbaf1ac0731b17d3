"""Pillow's resizing in whole numbers: the same bytes on any device."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from demerit.models.vlm.images import resized
from demerit.models.vlm.resize import pillow_resized

SIDE = st.integers(1, 70)


@given(old=st.tuples(SIDE, SIDE), new=st.tuples(SIDE, SIDE), seed=st.integers(0, 99), hard=st.booleans())
@settings(max_examples=150)
def test_whole_numbers_give_pillows_bytes(old: tuple[int, int], new: tuple[int, int], seed: int, hard: bool) -> None:
    frames = np.random.default_rng(seed).integers(0, 256, (2, *old, 3), dtype=np.uint8)
    if hard:  # edges overshoot and are cut off at 0 and 255
        frames = np.where(frames > 127, 255, 0).astype(np.uint8)
    assert np.array_equal(pillow_resized(torch.from_numpy(frames), new).numpy(), resized(frames, new, "pil"))


def test_one_axis_is_pillows_own_resize() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)
    direct = np.asarray(Image.fromarray(frame).resize((320, 256), Image.Resampling.BICUBIC))
    assert np.array_equal(pillow_resized(torch.from_numpy(frame)[None], (256, 320))[0].numpy(), direct)


def test_the_right_size_is_left_alone() -> None:
    frames = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    assert pillow_resized(frames, (8, 8)) is frames
