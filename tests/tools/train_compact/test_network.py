"""The network: its memory and the weights it starts with."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import BadInput
from fakes.toy_corpus import SIZE
from train_compact.network import (
    CompactNetwork,
    CompactShape,
    load_imagenet,
    running_maximum,
    start_from_imagenet,
)


@settings(max_examples=25)
@given(frames=st.integers(1, 9), at=st.integers(0, 9), seed=st.integers(0, 10**6))
def test_the_memory_is_a_running_maximum(frames: int, at: int, seed: int) -> None:
    values = np.abs(np.random.default_rng(seed).normal(size=(2, frames, 3))).astype(np.float32)
    state = np.abs(np.random.default_rng(seed + 1).normal(size=(2, 3))).astype(np.float32)
    found = running_maximum(torch.from_numpy(values), torch.from_numpy(state))
    expected = np.maximum.accumulate(np.concatenate([state[:, None], values], axis=1), axis=1)[:, 1:]
    np.testing.assert_array_equal(found.numpy(), expected)
    at = min(at, frames - 1)
    if at:
        early = running_maximum(torch.from_numpy(values[:, :at]), torch.from_numpy(state))
        late = running_maximum(torch.from_numpy(values[:, at:]), early[:, -1])
        np.testing.assert_array_equal(torch.cat([early, late], dim=1).numpy(), found.numpy())


def test_the_tower_starts_with_the_given_image_network() -> None:
    torch.manual_seed(0)
    tower = CompactNetwork(CompactShape(size=SIZE)).tower
    mine = {
        name: value
        for name, value in tower.state_dict().items()
        if name.split(".")[0] not in ("places", "project", "settle")
    }
    theirs = {f"_{name}": torch.ones_like(value) for name, value in mine.items()}
    theirs["_stem.weight"] = torch.ones(32, 3, 3, 3)
    start_from_imagenet(tower, {**theirs, "_fc.weight": torch.zeros(1000, 1280)})
    assert (tower.stem.weight[:, :3] == 1).all() and (tower.stem.weight[:, 3:] == 0).all()
    assert (tower.head[0].weight == 1).all()
    with pytest.raises(BadInput, match=r"_stem\.weight.*shape \(16, 3, 3, 3\)"):
        start_from_imagenet(tower, {**theirs, "_stem.weight": torch.ones(16, 3, 3, 3)})
    theirs.popitem()
    with pytest.raises(BadInput, match="tensors"):
        start_from_imagenet(tower, theirs)


def test_weights_are_read_from_a_file_of_tensors_only(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2, dtype=torch.float16)}, tmp_path / "good.pth")
    assert load_imagenet(tmp_path / "good.pth")["a"].dtype == torch.float32
    torch.save({"a": Path("code")}, tmp_path / "code.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "text.pth").write_text("weights")
    for name in ("code.pth", "list.pth", "text.pth", "absent.pth"):
        with pytest.raises(BadInput, match="tensors"):
            load_imagenet(tmp_path / name)
