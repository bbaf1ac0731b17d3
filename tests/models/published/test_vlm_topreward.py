"""TOPReward on one shared beginning, against a whole forward pass of the library for every beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.data.episode import Episode
from demerit.errors import BadInput
from demerit.models.check import check_model
from demerit.models.published.topreward import TOPReward
from demerit.models.vlm.prefix_reference import PrefixReference
from demerit.models.vlm.prefixes import Prefixes, encodings_alone, pictures
from demerit.models.vlm.reference import transformers_network
from demerit.models.vlm.video import Clip, look_at_pairs
from fakes.tiny_vlm import tiny_checkpoint, tiny_config, tiny_weights

TASK = "pick up the cup and put it on the plate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("topreward") / "tiny", seed=2, tied=False)


@pytest.fixture(scope="module")
def model(folder: Path) -> TOPReward:
    return TOPReward(path=str(folder), device="cpu")


@pytest.fixture(scope="module")
def straightforward(model: TOPReward) -> PrefixReference:
    weights = tiny_weights(seed=2, tied=False)
    network = transformers_network(tiny_config(tied=False), weights)
    return PrefixReference(model.backbone, model.engine.question, network, weights["lm_head.weight"])


def clip(count: int, height: int = 40, width: int = 70) -> Clip:
    frames = np.random.default_rng(count).integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    return Clip(frames, np.arange(count) * 0.37)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 11])
def test_parity_with_every_beginning_by_itself(model: TOPReward, straightforward: PrefixReference, count: int) -> None:
    ours, theirs = model.engine.likely(clip(count), TASK), straightforward.likely(clip(count), TASK)
    assert ours.shape == (count,)
    assert np.abs(ours - theirs).max() <= 1e-5 * max(1.0, np.abs(theirs).max())
    assert count == 1 or np.ptp(theirs) > 1e-3, "the beginnings must differ to test anything"


@given(st.integers(1, 60))
def test_so_many_encodings_as_frames(count: int) -> None:
    assert len(pictures(count)) == len(set(pictures(count))) == count
    assert encodings_alone(count) == sum((length + 1) // 2 for length in range(1, count + 1))


def test_the_tower_sees_each_picture_once(model: TOPReward, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    vision = model.backbone.network.vision
    honest = vision.features

    def counting(patches: Any, rows: int, columns: int) -> Any:
        looked.append(len(patches))
        return honest(patches, rows, columns)

    monkeypatch.setattr(vision, "features", counting)
    model.engine.likely(clip(16), TASK)
    assert sum(looked) == 16
    assert encodings_alone(16) == 72


@pytest.mark.parametrize("tokens", [1, 90, 300, 100_000])
def test_portions_change_nothing(model: TOPReward, straightforward: PrefixReference, tokens: int) -> None:
    ours = Prefixes(model.backbone, model.engine.question, tokens).likely(clip(11), TASK)
    theirs = straightforward.likely(clip(11), TASK)
    assert np.abs(ours - theirs).max() <= 1e-5 * max(1.0, np.abs(theirs).max())


def as_one_tree(engine: Prefixes, video: Clip) -> np.ndarray:
    """Stem and all branches in one pass, nothing kept, every word of every answer at once."""
    network, asked = engine.backbone.network, engine.asked(video, TASK)
    pairs = pictures(len(video))
    seen = look_at_pairs(network, video.frames, pairs, pairs, engine.size(video))
    states = network.states(asked.tree(), seen, asked.wanted(asked.tree()))
    said = network.language.words(states).log_softmax(-1).double().numpy().reshape(len(video), len(asked.answer), -1)
    return said[:, np.arange(len(asked.answer)), list(asked.answer)].sum(axis=1)


@settings(max_examples=25)
@given(st.integers(1, 9), st.integers(1, 700))
def test_any_portions_say_what_one_tree_says(model: TOPReward, count: int, tokens: int) -> None:
    video = clip(count, 32, 64)
    portioned = Prefixes(model.backbone, model.engine.question, tokens).likely(video, TASK)
    whole = as_one_tree(model.engine, video)
    assert np.abs(portioned - whole).max() <= 1e-5 * max(1.0, np.abs(whole).max())


def watched(engine: Prefixes, monkeypatch: pytest.MonkeyPatch, memory: int = 10**9) -> list[tuple[int, int, int, int]]:
    """Note for every pass: tokens computed, rows of pictures, tokens whose keys were kept, states read."""
    language, passes = engine.backbone.network.language, []
    honest = language._run

    def noting(packed: Any, features: Any, past: Any, *, keep: bool) -> Any:
        kept = 0 if past is None else len(past.layers[0])
        passes.append((packed.tokens, 0 if features is None else len(features), kept, len(packed.wanted)))
        if packed.tokens > memory:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return honest(packed, features, past, keep=keep)

    monkeypatch.setattr(language, "_run", noting)
    return passes


def test_what_is_held_does_not_grow_with_the_beginnings(model: TOPReward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the frames need more passes, each as small as before; beside them only the stem's keys are kept."""
    made = {}
    for count in (40, 160):
        engine = Prefixes(model.backbone, model.engine.question, 600)
        with monkeypatch.context() as patch:
            passes = watched(engine, patch)
            engine.likely(clip(count, 32, 32), TASK)
        asked = engine.asked(clip(count, 32, 32), TASK)
        assert all(rows <= tokens <= 600 for tokens, rows, _, _ in passes)
        assert max(kept for _, _, kept, _ in passes) == sum(map(len, asked.stem))
        assert sum(tokens for tokens, *_ in passes) == asked.tree().tokens, "nothing is computed twice"
        made[count] = len(passes)
    assert made[160] > 3 * made[40]


def test_where_memory_runs_out_it_goes_on_with_less(model: TOPReward, monkeypatch: pytest.MonkeyPatch) -> None:
    calm = model.engine.likely(clip(12), TASK)
    with monkeypatch.context() as patch:
        engine = Prefixes(model.backbone, model.engine.question, 100_000)
        passes = watched(engine, patch, memory=250)
        np.testing.assert_allclose(engine.likely(clip(12), TASK), calm, rtol=1e-5)
        assert max(tokens for tokens, *_ in passes) > 250 >= passes[-1][0], "it began too large and ended small"
    with monkeypatch.context() as patch:
        watched(model.engine, patch, memory=10)
        images = np.zeros((5, 40, 56, 3), np.uint8)
        reward = model.score([Episode.from_array(images, TASK)])[0]
        assert "Asking after each of 5 frames ran out of memory" in reward.why_missing


def test_values_are_raw_and_the_frames_are_said(model: TOPReward) -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 40, 56, 3), dtype=np.uint8)
    reward = model.score([Episode.from_array(images, TASK)])[0]
    assert len(reward.at) == 16
    assert reward.at[-1] == 49
    assert reward.value.max() < 0
    assert reward.given["frames"] == 16
    assert model.card.comparable
    assert (model.card.low, model.card.high) == (None, 0.0)
    assert model.card.name == "topreward-tiny"


def test_keeps_its_contract(folder: Path) -> None:
    report = check_model(TOPReward(path=str(folder), device="cpu", frames=6))
    assert not report.broken, report.broken


def test_no_frames_is_a_sentence(folder: Path) -> None:
    with pytest.raises(BadInput, match="a number from 1 on"):
        TOPReward(path=str(folder), device="cpu", frames=0)
