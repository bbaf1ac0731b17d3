"""Clips: their frames, instructions and targets."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demerit.errors import BadInput
from demerit.training.prepared import CorpusRow, PreparedCorpus
from fakes.toy_corpus import compact_corpus, small_config
from train_compact.clips import (
    ClipSampler,
    TrainingClip,
    distinctive_words,
    is_for_training,
    sample_forward,
    sample_rewind,
)
from train_compact.config import CompactTrainConfig


def sample_clips(
    corpus: PreparedCorpus, config: CompactTrainConfig, seed: int
) -> Iterator[tuple[CorpusRow, TrainingClip]]:
    """Every clip of a step with the episode that it shows."""
    for group in ClipSampler(corpus, config).sample(np.random.default_rng(seed)):
        for clip in group:
            yield next(row for row in corpus.rows if row.first <= clip.frames[0] < row.first + row.frames), clip


def progress_of(row: CorpusRow) -> np.ndarray:
    return np.linspace(0, 1, row.frames) if row.kind == "demonstration" else row.progress


shares = st.floats(0, 0.5)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), rewind=shares, wrong=shares, unsaid=shares, cut=shares, frames=st.integers(4, 9))
def test_targets_follow_the_frames(
    seed: int, rewind: float, wrong: float, unsaid: float, cut: float, frames: int
) -> None:
    corpus = compact_corpus((1, 2, 5, 12))
    changes = {"rewind": rewind, "wrong_words": wrong, "unsaid": unsaid, "cut": cut, "frames": frames, "groups": 6}
    for row, clip in sample_clips(corpus, small_config(**changes), seed):
        places = clip.frames - row.first
        assert len(places) == frames
        assert places[0] == 0
        assert places.min() >= 0 and places.max() < row.frames
        np.testing.assert_allclose(clip.own, progress_of(row)[places], atol=1e-6)
        is_wrong = clip.instruction not in ("", row.instruction)
        assert not is_wrong or row.kind in ("demonstration", "model")
        np.testing.assert_array_equal(clip.progress, np.zeros(frames) if is_wrong else clip.own)
        assert clip.weight == (0.5 if row.kind == "model" else 1.0) * (0.5 if is_wrong else 1.0)
        assert clip.task == (row.task if row.kind == "measured" else "")
        if is_wrong:
            assert not distinctive_words(row.instruction) & distinctive_words(clip.instruction)
            assert (clip.success == 0).all()
        elif row.kind == "measured":
            np.testing.assert_array_equal(clip.success, clip.own >= 0.9999)
        elif row.kind == "model":
            assert np.isnan(clip.success).all()
        else:
            sure = ~np.isnan(clip.success)
            np.testing.assert_array_equal(sure, (clip.own >= 0.97) | (clip.own <= 0.7))
            np.testing.assert_array_equal(clip.success[sure], clip.own[sure] >= 0.97)


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(4, 12), st.integers(0, 10**6), st.sampled_from([0.0, 1.0]))
def test_forward_clips_do_not_go_back_and_rewound_ones_do(length: int, frames: int, seed: int, cut: float) -> None:
    config = small_config(frames=frames, cut=cut)
    forward = sample_forward(length, config, np.random.default_rng(seed))
    assert forward[0] == 0 and (np.diff(forward) >= 0).all()
    assert length // 4 <= forward[-1] < length
    assert cut == 1.0 or forward[-1] == length - 1
    back = sample_rewind(length, config, np.random.default_rng(seed))
    turn = int(back.argmax())
    assert len(back) == frames and back.min() >= 0 and back.max() < length
    assert (np.diff(back[: turn + 1]) >= 0).all() and (np.diff(back[turn:]) <= 0).all()
    assert length < 4 or back[-1] < back.max()


def test_without_another_instruction_none_is_wrong() -> None:
    corpus = compact_corpus()
    only = tuple(row for row in corpus.rows if row.task == "judged")
    config = small_config(rewind=0.0, wrong_words=1.0, unsaid=0.0, groups=10)
    for row, clip in sample_clips(replace(corpus, rows=only), config, 0):
        assert clip.instruction == row.instruction
        np.testing.assert_array_equal(clip.progress, clip.own)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), fold=st.integers(0, 2), task=st.sampled_from(["press", "lift"]))
def test_what_is_held_out_is_never_sampled(seed: int, fold: int, task: str) -> None:
    corpus = compact_corpus((8, 9, 10, 12, 13))
    splits = ["train", "validation", "test", "held-out", "", "train"]
    rows = tuple(replace(row, split=splits[number % 6]) for number, row in enumerate(corpus.rows))
    corpus = replace(corpus, rows=rows)
    config = small_config(held_out_tasks=[task], fold=fold, groups=8, wrong_words=0.5)
    for row, _ in sample_clips(corpus, config, seed):
        assert row.task != task and row.split != "held-out"
        assert row.kind != "measured" or row.split in ("train", "")
        key = {"demonstration": row.site, "model": row.instruction}.get(row.kind)
        assert key is None or sum(key.encode()) % 3 != fold


def test_failures_can_be_excluded() -> None:
    for row in compact_corpus().rows:
        expected = row.kind != "measured" or bool(row.success)
        assert is_for_training(row, small_config(failures=False)) is expected
    with pytest.raises(BadInput, match="none of which the configuration"):
        ClipSampler(compact_corpus(split="held-out"), small_config())
