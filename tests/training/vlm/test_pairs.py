"""Pairs: what is sampled, and with which targets."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from demerit.errors import BadInput, UnknownName
from demerit.training.prepared import CorpusChoice, CorpusRow, PreparedCorpus
from demerit.training.vlm.config import RobometerTrainConfig
from demerit.training.vlm.pairs import (
    PairSampler,
    TrajectoryPair,
    is_better,
    label_success,
    pair_unequal,
    start_at_zero,
)
from fakes.toy_trajectories import vlm_corpus


def sample_by_strategy(corpus: PreparedCorpus, count: int = 400, **changes: Any) -> dict[str, list[TrajectoryPair]]:
    sampler = PairSampler(corpus, RobometerTrainConfig().change(changes))
    rng = np.random.default_rng(0)
    found: dict[str, list[TrajectoryPair]] = {}
    for _ in range(count):
        pair = sampler.sample(rng)
        found.setdefault(pair.strategy, []).append(pair)
    return found


def in_order(pair: TrajectoryPair) -> tuple[Any, Any]:
    return (pair.first, pair.second) if pair.first_is_better else (pair.second, pair.first)


def test_pairs_are_what_the_paper_says() -> None:
    corpus = vlm_corpus()
    found = sample_by_strategy(corpus)
    assert {name: len(pairs) > 60 for name, pairs in found.items()} == dict.fromkeys(found, True)
    for sample in found["expertise"]:
        good, bad = in_order(sample)
        assert corpus.rows[good.row].success and not corpus.rows[bad.row].success
        assert corpus.rows[good.row].instruction == corpus.rows[bad.row].instruction == sample.instruction
        assert good.frames[-1] == corpus.rows[good.row].frames - 1  # outcomes are compared at the end
    for sample in found["instruction"]:
        good, bad = in_order(sample)
        assert corpus.rows[good.row].instruction == sample.instruction != corpus.rows[bad.row].instruction
        assert not bad.progress.any() and not bad.success.any()
        assert np.all(np.diff(good.frames) >= 0)
    for name in ("rewind", "reverse"):
        for sample in found[name]:
            good, bad = in_order(sample)
            assert good.row == bad.row
            assert np.all(np.diff(good.progress) >= 0)
            assert bad.progress[-1] < good.progress[-1]  # decreasing, by the frames that are shown
            whole = corpus.rows[bad.row].progress  # 0 at the clip's first frame, 1 at the episode's end
            start = whole[good.frames[0]]
            assert bad.progress == pytest.approx((whole[bad.frames] - start) / (1 - start), abs=1e-6)
            assert bad.progress[np.argmin(bad.frames)] == 0
    for pairs in found.values():
        share = np.mean([sample.first_is_better for sample in pairs])
        assert 0.3 < share < 0.7  # a coin decides who is A
        assert all(len(side.frames) == 8 for sample in pairs for side in (sample.first, sample.second))
    turned = [np.argmax(sample.second.frames) for sample in found["rewind"] if sample.first_is_better]
    assert len(set(map(int, turned))) > 2  # the turn is anywhere


def test_preferences_count_whatever_the_outcomes() -> None:
    """Rows a and b fail, b with a known end; c succeeds. Somebody chose b over a, c over b, and a over b."""
    plain = [np.full(8, np.nan, np.float32) for _ in range(2)]
    plain[1][-1] = 0.5
    even = ((np.arange(8) + 1) / 8).astype(np.float32)
    times = np.arange(8, dtype=np.float32)
    rows = [
        CorpusRow(id, "lab", "do it", kind, kind == "demonstration", progress, times, split="train")
        for id, kind, progress in zip("abc", ("outcome", "outcome", "demonstration"), (*plain, even), strict=True)
    ]
    choices = [CorpusChoice(better, worse, "human") for better, worse in ((1, 0), (2, 1), (0, 1))]
    corpus = PreparedCorpus.from_arrays(rows, [np.zeros((8, 8, 8, 3), np.uint8)] * 3, choices)
    samples = sample_by_strategy(corpus, 600)["people"]
    better = [in_order(pair) for pair in samples]
    counts = {pair: sum((good.row, bad.row) == pair for good, bad in better) for pair in ((1, 0), (2, 1), (0, 1))}
    assert sum(counts.values()) == len(samples)
    assert min(counts.values()) > 0.2 * len(samples)
    assert 0.4 < np.mean([pair.first_is_better for pair in samples]) < 0.6
    for pair in samples:
        assert (pair.instruction, pair.strategy) == ("do it", "people")
        for side in (pair.first, pair.second):
            assert (len(side.frames), side.frames[-1]) == (8, 7)  # to the true end
            if side.row == 2:  # c is a success: from 0 at the clip's start, and done at the end
                start = side.frames[0]
                assert side.progress == pytest.approx((side.frames - start) / (7 - start))
                assert side.success[-1] == 1
            else:  # a and b are failures: how far is unknown but for what was said of b's end
                ends = side.frames == 7
                assert np.isnan(side.progress[~ends]).all()
                assert (side.progress[ends] == 0.5).all() if side.row == 1 else np.isnan(side.progress[ends]).all()
                assert not side.success.any()
    assert {int(pair.first.frames[0]) for pair in samples} == {0, 1, 2, 3, 4}  # where they begin is free


def test_unknown_progress_is_masked_and_unlabelled_failures_still_compare() -> None:
    corpus = vlm_corpus(measured=False)
    for sample in sample_by_strategy(corpus)["expertise"]:
        known = ~np.isnan(sample.first.progress)
        assert known.all() if corpus.rows[sample.first.row].success else not known.any()
        assert not np.isnan(sample.first.success).all()


def clip_success(row: CorpusRow) -> list[float]:
    return label_success(row, np.arange(row.frames), row.progress, 0.5).tolist()


def test_success_labels() -> None:
    shown_row = vlm_corpus(measured=False).rows[0]
    labels = np.array(clip_success(shown_row))
    assert labels[-1] == 1
    assert not labels[shown_row.progress < 0.5].any()
    assert np.isnan(labels[(shown_row.progress >= 0.5)][:-1]).all()
    failed = vlm_corpus(measured=False).rows[3]
    assert not any(clip_success(failed))
    measured = replace(vlm_corpus().rows[0], progress=np.array([0, 0.5, 1, 1, 1], np.float32))
    assert clip_success(measured) == [0, 0, 1, 1, 1]
    assert np.isnan(clip_success(replace(measured, success=None))).all()


def authors_progress(total: int, frames: list[int], cutoff: float) -> list[float]:
    """Robometer's absolute_first_frame, from the description of its public code."""
    start, done = min(frames), int(cutoff * total + 1e-9)
    return [min(1.0, (frame - start) / max(1, done - start - 1)) for frame in frames]


def one_demonstration(total: int = 20, source: str = "lab", site: str = "") -> PreparedCorpus:
    even = ((np.arange(total) + 1) / total).astype(np.float32)
    row = CorpusRow("a", source, "do it", "demonstration", True, even, np.arange(total, dtype=np.float32), site=site)
    return PreparedCorpus.from_arrays([replace(row, split="train")], [np.zeros((total, 8, 8, 3), np.uint8)])


@pytest.mark.parametrize("cutoff", [1.0, 0.9, 0.75])
def test_a_clip_starts_at_zero_as_the_authors_have_it(cutoff: float) -> None:
    """[10 .. 19] of 20 goes from 0 to 1, not from .55; the cut-off is where it reaches 1."""
    sampler = PairSampler(one_demonstration(), RobometerTrainConfig(frames=10, cutoffs={"lab": cutoff}))
    for path in (np.arange(10, 20), np.arange(20)[::2], np.arange(9, 2, -1), np.r_[3:15, 13:6:-1]):
        shown = sampler._show(0, path)
        assert shown.progress == pytest.approx(authors_progress(20, shown.frames.tolist(), cutoff), abs=1e-6)
    done = int(cutoff * 20) - 1
    late = sampler._show(0, np.arange(10, 20))
    assert (late.success == 1).tolist() == [frame >= done for frame in late.frames]
    assert late.success[0] == 0 and late.progress[0] == 0
    after = sampler._show(0, np.arange(18, 20))  # begins where nothing remains, unless it is done at the last frame
    assert np.isnan(after.progress).all() == (cutoff < 1) and after.success[-1] == 1


def test_progress_of_the_episode_can_be_asked_for() -> None:
    config = RobometerTrainConfig(frames=10, zero_at="episode", cutoffs={"lab": 0.75})
    shown = PairSampler(one_demonstration(), config)._show(0, np.arange(10, 20))
    assert shown.progress == pytest.approx([*(np.arange(11, 15) / 15), *[1.0] * 6])
    assert np.array_equal(shown.success[:4], [np.nan] * 4, equal_nan=True) and shown.success[4:].all()


def test_measured_progress_is_the_share_of_what_remained() -> None:
    assert start_at_zero(np.array([0.5, 0.4, 0.75, 1], np.float32), 0.5).tolist() == [0, 0, 0.5, 1]
    assert np.isnan(start_at_zero(np.ones(2, np.float32), 1.0)).all()
    assert np.isnan(start_at_zero(np.ones(2, np.float32), float("nan"))).all()


def test_cutoffs_are_found_by_dataset_and_a_misspelt_one_is_refused() -> None:
    rbm = one_demonstration(source="rbm", site="oxe_nyu_rot")
    for cutoffs, first in (({"oxe_nyu_rot": 0.5, "rbm": 0.9}, 9), ({"rbm": 0.9}, 17), ({}, 19)):
        labels = PairSampler(rbm, RobometerTrainConfig(cutoffs=cutoffs)).labels
        assert int(np.argmax(labels[0].progress >= 1)) == first
    with pytest.raises(UnknownName) as caught:
        PairSampler(rbm, RobometerTrainConfig(cutoffs={"oxe_nyu_rto": 0.5}))
    assert caught.value.name == "oxe_nyu_rto"


def test_a_corpus_without_any_pair_is_refused() -> None:
    corpus = vlm_corpus()
    failures = PreparedCorpus(tuple(row for row in corpus.rows if not row.success), corpus.pixels)
    chosen = replace(failures, choices=(CorpusChoice(1, 0, "human"),))
    assert set(sample_by_strategy(chosen)) == {"people"}  # nothing else compares failures
    ends = [replace(corpus.rows[0], success=None, progress=np.array([0, end], np.float32)) for end in (0.5, 0.4, 0.25)]
    assert is_better(ends[0], ends[2], 0.2) and not is_better(ends[0], ends[1], 0.2)
    with pytest.raises(BadInput, match="pairs"):
        PairSampler(failures, RobometerTrainConfig())


def test_unequal_pairs_are_those_that_is_better_finds() -> None:
    rng = np.random.default_rng(0)
    ends = [np.nan, 0.0, 0.1, 0.5, 0.9]
    rows = [
        CorpusRow(str(number), "lab", "do it", "outcome", [True, False, None][number % 3], progress, progress)
        for number, progress in enumerate(rng.choice(ends, (60, 1)).astype(np.float32))
    ]
    groups = [list(range(0, 60, 2)), list(range(1, 60, 2))]
    expected = [(a, b) for group in groups for a in group for b in group if is_better(rows[a], rows[b], 0.2)]
    assert [tuple(pair) for pair in pair_unequal(rows, groups, 0.2).tolist()] == expected
    crowd = pair_unequal([*rows[:1], *[rows[1]] * 200], [list(range(201))], 0.2)
    assert 50 <= (crowd[:, 0] == 0).sum() <= 64  # at most that many for one episode


def test_no_episode_is_compared_with_itself() -> None:
    for apart in (0, -0.1, 1, float("nan")):
        with pytest.raises(BadInput, match="apart"):
            RobometerTrainConfig().change({"apart": apart})
    corpus = vlm_corpus()
    pairs = PairSampler(corpus, RobometerTrainConfig(apart=1e-6)).unequal
    assert len(pairs) and not np.any(pairs[:, 0] == pairs[:, 1])
