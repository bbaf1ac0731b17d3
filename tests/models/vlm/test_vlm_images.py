"""Pictures for the vision tower: sizes, resizing and patches against transformers' own and against plain loops."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from demerit.errors import BadInput
from demerit.models.vlm.images import grid_size, pair_patches, patches, resized, video_patches

LOW, HIGH = 256 * 256, 4096 * 4096  # what Qwen3-VL's processor is published with


def noise(n: int, height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def processor(**changes: object) -> Qwen2VLImageProcessorPil:
    middle = [0.5, 0.5, 0.5]
    facts = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "image_mean": middle, "image_std": middle}
    return Qwen2VLImageProcessorPil(**{**facts, "size": {"shortest_edge": LOW, "longest_edge": HIGH}, **changes})


# sizes


@settings(max_examples=400)
@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.sampled_from([28, 32]),
    st.integers(1, 300_000),
    st.integers(1, 2_000_000),
)
def test_sizes_are_those_of_transformers(height: int, width: int, factor: int, low: int, room: int) -> None:
    high = low + room
    try:
        expected = smart_resize(height, width, factor=factor, min_pixels=low, max_pixels=high)
    except ValueError:
        with pytest.raises(BadInput, match="within 200 times each other"):
            grid_size(height, width, factor=factor, low=low, high=high)
        return
    assert grid_size(height, width, factor=factor, low=low, high=high) == expected


@pytest.mark.parametrize(
    ("given_size", "size"),
    # 240 / 32 = 7.5 goes to the even 8, and 80 = 2.5 * 32 to the even 2
    [((240, 320), (256, 320)), ((480, 640), (480, 640)), ((224, 224), (256, 256)), ((1080, 80), (1088, 64))],
)
def test_halves_go_to_the_even_multiple(given_size: tuple[int, int], size: tuple[int, int]) -> None:
    assert grid_size(*given_size, factor=32, low=LOW, high=HIGH) == size


def test_impossible_sizes_are_sentences() -> None:
    with pytest.raises(BadInput, match="at least one pixel on each side, got 0 x 5"):
        grid_size(0, 5, factor=32, low=LOW, high=HIGH)
    with pytest.raises(BadInput, match="within 200 times each other, got 1 x 300"):
        grid_size(1, 300, factor=32, low=LOW, high=HIGH)
    with pytest.raises(BadInput, match="round to 32 pixels or more, got 10 x 100"):
        grid_size(10, 100, factor=32, low=0, high=HIGH)


# resizing


def test_pillow_resizing_is_pillows() -> None:
    frames = noise(5, 45, 70)
    expected = [np.asarray(Image.fromarray(one).resize((96, 64), Image.Resampling.BICUBIC)) for one in frames]
    assert np.array_equal(resized(frames, (64, 96), "pil"), np.stack(expected))


@pytest.mark.parametrize("size", [(64, 96), (32, 32)])
def test_torch_resizing_is_the_batched_interpolation_of_planes(size: tuple[int, int]) -> None:
    """The processors stack frames as contiguous planes; ours go one by one as they lie in memory: same bytes."""
    frames = noise(5, 45, 70)
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous()
    expected = torch.nn.functional.interpolate(planes, size, mode="bicubic", align_corners=False, antialias=True)
    assert np.array_equal(resized(frames, size, "torch"), expected.permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize("how", ["pil", "torch"])
def test_a_frame_does_not_depend_on_its_neighbours(how: str) -> None:
    frames = noise(9, 40, 50)
    together = resized(frames, (64, 64), how)  # type: ignore[arg-type]
    for at in (0, 4, 8):
        assert np.array_equal(resized(frames[at : at + 1], (64, 64), how)[0], together[at])  # type: ignore[arg-type]


def test_the_two_ways_differ_by_a_grey_level_at_most_and_do_differ() -> None:
    frames = noise(3, 240, 320)
    pil, other = (resized(frames, (256, 320), how).astype(int) for how in ("pil", "torch"))  # type: ignore[arg-type]
    assert 0 < np.abs(pil - other).max() <= 2


def test_nothing_to_resize_copies_nothing() -> None:
    frames = noise(2, 64, 96)
    assert resized(frames, (64, 96), "pil") is frames
    assert resized(frames[:0], (32, 32), "torch").shape == (0, 32, 32, 3)


def test_resizing_refuses_what_it_cannot_read() -> None:
    with pytest.raises(BadInput, match="uint8 of shape"):
        resized(noise(1, 8, 8).astype(np.float32), (32, 32), "pil")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"one of \['pil', 'torch'\], got 'nearest'"):
        resized(noise(1, 8, 8), (32, 32), "nearest")  # type: ignore[arg-type]


# patches


@pytest.mark.parametrize("size", [(64, 96), (256, 320), (32, 32)])
def test_patches_are_those_of_the_picture_processor(size: tuple[int, int]) -> None:
    """Bit for bit with the bytes centred in one step, as the fused processors do it."""
    frames = noise(3, *size)
    fused = processor(do_resize=False, do_rescale=False, image_mean=[127.5] * 3, image_std=[127.5] * 3)
    expected = fused(images=list(frames), return_tensors="pt")
    ours = patches(torch.from_numpy(frames), patch=16, merge=2, temporal=2)
    assert ours.dtype == torch.float32
    assert torch.equal(ours.flatten(0, 1), expected["pixel_values"])
    assert expected["image_grid_thw"].tolist() == [[1, size[0] // 16, size[1] // 16]] * 3
    # the Pillow processor itself scales to 0..1 first, which rounds once more
    apart = processor(do_resize=False)(images=list(frames), return_tensors="pt")["pixel_values"]
    assert (ours.flatten(0, 1) - apart).abs().max() <= 2**-22


def test_the_whole_way_is_the_processors() -> None:
    frames = noise(2, 150, 333)
    size = grid_size(150, 333, factor=32, low=LOW, high=HIGH)
    ours = patches(torch.from_numpy(resized(frames, size, "pil")), patch=16, merge=2, temporal=2)
    theirs = processor(do_rescale=False, image_mean=[127.5] * 3, image_std=[127.5] * 3)
    assert torch.equal(ours.flatten(0, 1), theirs(images=list(frames), return_tensors="pt")["pixel_values"])


def by_loops(clip: NDArray[np.uint8], patch: int, merge: int) -> NDArray[np.float32]:
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


@settings(max_examples=25)
@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([2, 4]),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_videos_are_cut_as_loops_cut_them(n: int, tall: int, wide: int, patch: int, merge: int, temporal: int) -> None:
    frames = noise(n, tall * patch * merge, wide * patch * merge, seed=n)
    ours = video_patches(torch.from_numpy(frames), patch=patch, merge=merge, temporal=temporal)
    whole = np.concatenate([frames, *([frames[-1:]] * (-n % temporal))])
    expected = [by_loops(whole[at : at + temporal], patch, merge) for at in range(0, len(whole), temporal)]
    assert np.array_equal(ours.numpy(), np.stack(expected))


def test_pairs_pictures_and_videos_agree() -> None:
    frames = torch.from_numpy(noise(5, 64, 32))
    sizes = {"patch": 16, "merge": 2}
    pairs = pair_patches(frames[[0, 2, 4]], frames[[1, 3, 4]], **sizes)
    assert torch.equal(pairs, video_patches(frames, **sizes, temporal=2))
    assert torch.equal(pair_patches(frames, frames, **sizes), patches(frames, **sizes, temporal=2))


def test_patches_refuse_odd_sizes_and_other_kinds() -> None:
    frames = torch.from_numpy(noise(2, 48, 64))
    with pytest.raises(BadInput, match=r"multiples of 32 \(see grid_size\), got 48 x 64"):
        patches(frames, patch=16, merge=2, temporal=2)
    with pytest.raises(BadInput, match="First frames: expected uint8"):
        pair_patches(frames.float(), frames, patch=16, merge=2)
    with pytest.raises(BadInput, match="the shape of the first ones"):
        pair_patches(frames, frames[:1], patch=16, merge=2)


def test_frames_are_prepared_faster_than_a_large_gpu_takes_them() -> None:
    """A generous floor for slow shared machines: 60 frames a second of 240 x 320, all steps on the processor."""
    frames, best = noise(32, 240, 320), float("inf")
    for _ in range(3):
        began = time.perf_counter()
        patches(torch.from_numpy(resized(frames, (256, 320), "pil")), patch=16, merge=2, temporal=2)
        best = min(best, time.perf_counter() - began)
    assert 32 / best > 60
