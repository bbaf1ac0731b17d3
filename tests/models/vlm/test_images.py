"""Image preprocessing, against transformers and Pillow and against plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from demerit.errors import BadInput
from demerit.models.vlm.images import (
    cut_image_patches,
    cut_pair_patches,
    cut_video_patches,
    grid_size,
    pillow_resize,
    resize_frames,
)

LOW, HIGH = 256 * 256, 4096 * 4096  # the bounds of Qwen3-VL's published processor
SIDE = st.integers(1, 70)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are resized by several threads at a time."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def noise(n: int, height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.sampled_from([28, 32]),
    st.integers(1, 300_000),
    st.integers(1, 2_000_000),
)
def test_grid_size_equals_transformers(height: int, width: int, factor: int, low: int, room: int) -> None:
    high = low + room
    try:
        expected = smart_resize(height, width, factor=factor, min_pixels=low, max_pixels=high)
    except ValueError:
        with pytest.raises(BadInput, match="200"):
            grid_size(height, width, factor=factor, low=low, high=high)
        return
    assert grid_size(height, width, factor=factor, low=low, high=high) == expected


def test_pil_resizing_equals_pillow() -> None:
    frames = noise(5, 45, 70)
    expected = [np.asarray(Image.fromarray(frame).resize((96, 64), Image.Resampling.BICUBIC)) for frame in frames]
    assert np.array_equal(resize_frames(frames, (64, 96), "pil"), np.stack(expected))


@pytest.mark.parametrize("size", [(64, 96), (32, 32)])
def test_torch_resizing_equals_batched_interpolation(size: tuple[int, int]) -> None:
    """The processors stack frames as contiguous planes; ours go one by one as they lie in memory: same bytes."""
    frames = noise(5, 45, 70)
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous()
    expected = torch.nn.functional.interpolate(planes, size, mode="bicubic", align_corners=False, antialias=True)
    assert np.array_equal(resize_frames(frames, size, "torch"), expected.permute(0, 2, 3, 1).numpy())


@given(old=st.tuples(SIDE, SIDE), new=st.tuples(SIDE, SIDE), seed=st.integers(0, 99), hard=st.booleans())
def test_integer_resizing_equals_pillow(old: tuple[int, int], new: tuple[int, int], seed: int, hard: bool) -> None:
    frames = np.random.default_rng(seed).integers(0, 256, (2, *old, 3), dtype=np.uint8)
    if hard:  # edges overshoot and are cut off at 0 and 255
        frames = np.where(frames > 127, 255, 0).astype(np.uint8)
    assert np.array_equal(pillow_resize(torch.from_numpy(frames), new).numpy(), resize_frames(frames, new, "pil"))


@pytest.mark.parametrize("size", [(64, 96), (256, 320), (32, 32)])
def test_patches_equal_the_image_processor(size: tuple[int, int]) -> None:
    """Bit for bit with the bytes centred in one step, as the fused processors do it."""
    frames = noise(3, *size)
    cut = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "do_resize": False, "do_rescale": False}
    fused = Qwen2VLImageProcessorPil(**cut, image_mean=[127.5] * 3, image_std=[127.5] * 3)
    expected = fused(images=list(frames), return_tensors="pt")
    ours = cut_image_patches(torch.from_numpy(frames), patch=16, merge=2, temporal=2)
    assert ours.dtype == torch.float32
    assert torch.equal(ours.flatten(0, 1), expected["pixel_values"])
    assert expected["image_grid_thw"].tolist() == [[1, size[0] // 16, size[1] // 16]] * 3


def cut_by_loops(clip: NDArray[np.uint8], patch: int, merge: int) -> NDArray[np.float32]:
    """Rows of one patch in time, (moments, height, width, 3) -> (rows, numbers), in the plainest possible way."""
    moments, height, width, _ = clip.shape
    pixels = (clip.astype(np.float32) - np.float32(127.5)) / np.float32(127.5)
    rows, side = [], patch * merge
    for top in range(0, height, side):
        for left in range(0, width, side):
            for y in range(top, top + side, patch):
                for x in range(left, left + side, patch):
                    cell = pixels[:, y : y + patch, x : x + patch]
                    rows.append(np.concatenate([cell[t, :, :, c].ravel() for c in range(3) for t in range(moments)]))
    return np.stack(rows)


@given(
    n=st.integers(1, 5),
    cell=st.tuples(*[st.integers(1, 3)] * 3),
    patch=st.sampled_from([2, 4]),
    temporal=st.integers(1, 3),
)
def test_video_patches_equal_plain_loops(n: int, cell: tuple[int, int, int], patch: int, temporal: int) -> None:
    tall, wide, merge = cell
    frames = noise(n, tall * patch * merge, wide * patch * merge, seed=n)
    ours = cut_video_patches(torch.from_numpy(frames), patch=patch, merge=merge, temporal=temporal)
    whole = np.concatenate([frames, *([frames[-1:]] * (-n % temporal))])
    expected = [cut_by_loops(whole[at : at + temporal], patch, merge) for at in range(0, len(whole), temporal)]
    assert np.array_equal(ours.numpy(), np.stack(expected))


def test_odd_sizes_filters_and_dtypes_are_refused() -> None:
    for size, low, word in (((0, 5), LOW, "one pixel"), ((1, 300), LOW, "200"), ((10, 100), 0, "round to 32")):
        with pytest.raises(BadInput, match=word):
            grid_size(*size, factor=32, low=low, high=HIGH)
    with pytest.raises(BadInput, match="uint8"):
        resize_frames(noise(1, 8, 8).astype(np.float32), (32, 32), "pil")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="nearest"):
        resize_frames(noise(1, 8, 8), (32, 32), "nearest")  # type: ignore[arg-type]
    frames = torch.from_numpy(noise(2, 48, 64))
    with pytest.raises(BadInput, match="multiples of 32"):
        cut_image_patches(frames, patch=16, merge=2, temporal=2)
    with pytest.raises(BadInput, match="uint8"):
        cut_pair_patches(frames.float(), frames, patch=16, merge=2)
    with pytest.raises(BadInput, match="shape"):
        cut_pair_patches(frames, frames[:1], patch=16, merge=2)
