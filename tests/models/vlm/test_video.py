"""Videos for Qwen3-VL: sizes, timestamps, tokens, positions and states, against transformers."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from demerit.errors import BadInput
from demerit.models.by_time import TimedClip
from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.images import MOST, SETTINGS, VideoBounds, cut_video_patches, resize_frames
from demerit.models.vlm.network import transformers_network
from demerit.models.vlm.prefix_tree import separate_tree
from demerit.models.vlm.prefixes import encode_pairs, frame_pairs, timestamp, video_pieces, video_size
from demerit.models.vlm.prompt import ANSWER, TokenBlock, build_blocks, user_turn
from fakes.tiny_vlm import ID, tiny_checkpoint, tiny_config, tiny_weights


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return Backbone.open(str(tiny_checkpoint(tmp_path_factory.mktemp("video") / "tiny")), device="cpu")


def clip(count: int, height: int = 64, width: int = 96, fps: float = 3.0, seed: int = 0) -> TimedClip:
    frames = np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    return TimedClip(frames, np.arange(count) / fps)


def their_size(count: int, height: int, width: int, bounds: VideoBounds) -> tuple[int, int]:
    """Transformers' rule; importing its module needs torchvision, so the function is taken from its source."""
    path = Path(transformers.__file__).parent / "models/qwen3_vl/video_processing_qwen3_vl.py"
    text = path.read_text()
    start = text.index("def smart_resize")
    names: dict[str, Any] = {"math": math}
    exec(text[start : text.index("\n\n\n", start)], names)
    found = names["smart_resize"](
        num_frames=count, height=height, width=width, factor=32, min_pixels=bounds.low, max_pixels=bounds.high
    )
    return tuple(found)


@given(st.integers(2, 70), st.integers(8, 900), st.integers(8, 900), st.sampled_from([MOST, 8192, 2**17, 3 * 2**18]))
def test_sizes_equal_transformers(count: int, height: int, width: int, high: int) -> None:
    bounds = VideoBounds(min(4096, high), high)
    assert video_size(count, height, width, factor=32, bounds=bounds) == their_size(count, height, width, bounds)


def test_bounds_are_read_or_the_published_ones(tmp_path: Path) -> None:
    assert VideoBounds.from_folder(tmp_path) == VideoBounds(4096, 25165824)
    (tmp_path / SETTINGS).write_text('{"size": {"shortest_edge": 2048, "longest_edge": 65536}}')
    assert VideoBounds.from_folder(tmp_path) == VideoBounds(2048, 65536)
    (tmp_path / SETTINGS).write_text('{"size": 448}')
    with pytest.raises(BadInput, match="shortest_edge and longest_edge"):
        VideoBounds.from_folder(tmp_path)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=12, unique=True), st.sampled_from([1.0, 3.0, 10.0, 29.97]))
def test_timestamps_equal_transformers(indices: list[int], fps: float) -> None:
    indices = sorted(indices)
    theirs = Qwen3VLProcessor._calculate_timestamps(SimpleNamespace(), list(indices), fps, 2)
    ours = [timestamp(pair, np.array(indices) / fps) for pair in frame_pairs(len(indices))]
    assert ours == [f"<{second:.1f} seconds>" for second in theirs]


def asked(
    backbone: Backbone, video: TimedClip
) -> tuple[tuple[TokenBlock, ...], tuple[int, int], list[tuple[int, int]]]:
    shape = backbone.shape.vision
    size = video_size(len(video), *video.frames.shape[1:3], factor=shape.factor, bounds=backbone.bounds)
    pairs = frame_pairs(len(video))
    pieces = video_pieces(pairs, range(len(pairs)), video.seconds, shape.grid(*size))
    blocks = build_blocks(
        user_turn(*pieces, "does this trajectory complete the task?", then=ANSWER), backbone.tokens, backbone.shape
    )
    return blocks, size, pairs


def their_inputs(backbone: Backbone, video: TimedClip, size: tuple[int, int]) -> dict[str, torch.Tensor]:
    """The whole text and the patches of the whole video, as transformers' processor makes them."""
    shape = backbone.shape.vision
    frames = torch.from_numpy(resize_frames(video.frames, size, "torch"))
    patches = cut_video_patches(frames, patch=shape.patch, merge=shape.merge, temporal=shape.temporal)
    rows, columns = size[0] // shape.patch, size[1] // shape.patch
    moments = Qwen3VLProcessor._calculate_timestamps(
        SimpleNamespace(), list(range(len(video))), 1 / video.seconds[1] if len(video) > 1 else 1.0, 2
    )
    tokens = rows * columns // shape.merge**2
    text = "".join(f"<{t:.1f} seconds><|vision_start|>{'<|video_pad|>' * tokens}<|vision_end|>" for t in moments)
    whole = f"<|im_start|>user\n{text}does this trajectory complete the task?<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([backbone.tokens.ids(whole)])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values_videos": patches.flatten(0, 1),
        "video_grid_thw": torch.tensor([[len(moments), rows, columns]]),
        "mm_token_type_ids": 2 * (ids == ID["<|video_pad|>"]).int(),
    }


@pytest.mark.parametrize(("count", "height", "width"), [(1, 64, 96), (2, 48, 80), (5, 96, 64), (6, 70, 70)])
def test_positions_and_states_equal_transformers(backbone: Backbone, count: int, height: int, width: int) -> None:
    video = clip(count, height, width, seed=count)
    blocks, size, pairs = asked(backbone, video)
    inputs = their_inputs(backbone, video, size)
    ours_ids = [token for block in blocks for token in block.ids]
    assert ours_ids == inputs["input_ids"][0].tolist()

    theirs = transformers_network(tiny_config(), tiny_weights())
    positions, _ = theirs.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], video_grid_thw=inputs["video_grid_thw"]
    )
    start, mine = 0, []
    for block in blocks:
        mine.append(block.positions + start)
        start += block.advance
    assert np.array_equal(np.concatenate(mine, axis=1), positions[:, 0].numpy())

    seen = encode_pairs(backbone.network, video.frames, pairs, range(len(pairs)), size)
    wanted = [(0, at) for at in range(len(ours_ids))]
    ours = backbone.network.states(separate_tree([blocks]), seen, wanted)
    with torch.inference_mode():
        expected = theirs(**inputs, use_cache=False).last_hidden_state[0]
    assert float((ours - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
