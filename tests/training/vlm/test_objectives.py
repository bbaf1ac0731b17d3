"""Losses computed by hand, and prompts that equal those of scoring."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau  # type: ignore[import-untyped]

from demerit.errors import BadInput
from demerit.models.published.roboreward import parse_grade
from demerit.training.prepared import PreparedCorpus
from demerit.training.vlm.config import RobometerTrainConfig, RoboRewardTrainConfig
from demerit.training.vlm.objectives import GradesObjective, PairsObjective, PairTotals, TrainingExample, pair_losses
from fakes.toy_trajectories import WordTokens, tiny_start, vlm_corpus


def by_hand(
    logits: dict[str, np.ndarray], targets: dict[str, np.ndarray], config: RobometerTrainConfig
) -> dict[str, float]:
    """Compute the losses with plain loops."""
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    preferred = zip(logits["preference"], targets["preference"], strict=True)
    pairs = [-np.log(sigmoid(x) if y else 1 - sigmoid(x)) for x, y in preferred]
    frames = []
    for bins, target in zip(logits["progress"], targets["progress"], strict=True):
        if np.isnan(target):
            continue
        likely = np.exp(bins) / np.exp(bins).sum()
        centres = np.linspace(0, 1, len(bins))
        nearness = np.maximum(0, 1 - np.abs(centres - target) * (len(bins) - 1))
        frames.append(-(nearness * np.log(likely)).sum())
    judged = list(zip(logits["success"], targets["success"], strict=True))
    done = [-np.log(sigmoid(x)) for x, y in judged if y == 1]
    not_done = [-np.log(1 - sigmoid(x)) for x, y in judged if y == 0]
    classes = [np.mean(losses) for losses in (done, not_done) if losses]
    return {
        "preference": config.preference * np.mean(pairs),
        "progress": config.progress * (np.mean(frames) if frames else 0.0),
        "success": config.success * (np.mean(classes) if classes else 0.0),
    }


def make_targets(
    seed: int, pairs: int = 6, frames: int = 4, bins: int = 10
) -> tuple[dict[str, Any], list[TrainingExample]]:
    rng = np.random.default_rng(seed)
    logits = {
        "preference": rng.normal(size=pairs),
        "progress": rng.normal(size=(pairs * frames, bins)),
        "success": rng.normal(size=pairs * frames),
    }
    none = np.empty(0, np.int64)
    examples = []
    for _ in range(pairs):
        progress = rng.random(frames).astype(np.float32)
        progress[rng.random(frames) < 0.3] = np.nan
        success = rng.choice([0, 0, 0, 1, np.nan], frames).astype(np.float32)
        better = np.array([rng.integers(2)], np.float32)
        targets = {"preference": better, "progress": progress, "success": success}
        examples.append(TrainingExample(none, none, none.astype(bool), (), none, targets))
    return logits, examples


def joined(examples: list[TrainingExample]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([example.targets[name] for example in examples]) for name in examples[0].targets}


def tensors(arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.asarray(array)).double() for name, array in arrays.items()}


@pytest.mark.parametrize(("seed", "known"), [(0, True), (1, True), (2, False)])
def test_losses_equal_those_computed_by_hand(seed: int, known: bool) -> None:
    config = RobometerTrainConfig(preference=0.7, progress=2.0, success=0.3)
    logits, examples = make_targets(seed)
    for example in () if known else examples:
        example.targets["progress"][:] = example.targets["success"][:] = np.nan
    found = pair_losses(tensors(logits), tensors(joined(examples)), PairTotals.count(examples), config)
    for name, value in by_hand(logits, joined(examples), config).items():
        assert float(found[name]) == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_losses_do_not_depend_on_how_an_update_is_divided(cut: int) -> None:
    """Classes are balanced over the update, not within a part."""
    config = RobometerTrainConfig()
    logits, examples = make_targets(3)
    totals = PairTotals.count(examples)
    whole = pair_losses(tensors(logits), tensors(joined(examples)), totals, config)
    sums = dict.fromkeys(whole, 0.0)
    for start in range(0, 6, cut):
        some = slice(start, start + cut)
        frames = slice(start * 4, (start + cut) * 4)
        part = {"preference": logits["preference"][some]}
        part |= {name: logits[name][frames] for name in ("progress", "success")}
        shares = pair_losses(tensors(part), tensors(joined(examples[some])), totals, config)
        sums = {name: sums[name] + float(share) for name, share in shares.items()}
    assert sums == pytest.approx({name: float(loss) for name, loss in whole.items()}, rel=1e-6)


def test_targets_belong_to_the_tokens_that_are_read() -> None:
    corpus, start = vlm_corpus((8, 9)), tiny_start()
    objective = PairsObjective(corpus, RobometerTrainConfig(frames=4), start.tokens, start.shape)
    example = objective.draw(0)[0]
    tokens = WordTokens()
    read = [tokens.id("<|prog_token|>")] * 4 + [tokens.id("<|pref_token|>")]
    assert example.ids[example.wanted].tolist() == read
    assert int(example.is_image.sum()) == 8 * 4
    assert len(example.images) == 8
    assert {int(id) for id in example.ids[example.is_image]} == {start.shape.image_token}
    again = objective.draw(0)[0]
    assert np.array_equal(example.ids, again.ids)
    assert example.images == again.images
    assert any(other.images != example.images for other in objective.draw(1))


def test_held_out_episodes_are_ranked_within_an_instruction() -> None:
    """Two instructions with two successes and two failures each: 4 comparable pairs in each."""
    corpus, start = vlm_corpus((8, 9)), tiny_start()
    rows = tuple(replace(row, split="held-out") if row.frames == 8 else row for row in corpus.rows)
    learned = PairsObjective(replace(corpus, rows=rows), RobometerTrainConfig(frames=4), start.tokens, start.shape)
    assert [len(pairs) for pairs in learned.ranked.values()] == [1, 1]
    rows = (*corpus.rows, *(replace(row, split="held-out") for row in corpus.rows))
    objective = PairsObjective(replace(corpus, rows=rows), RobometerTrainConfig(frames=4), start.tokens, start.shape)
    assert objective.validation == list(range(8, 16))
    assert objective.sampler.rows == list(range(8))  # never trained on
    truth = [1.0 if rows[number].success else 0.0 for number in objective.validation]
    assert objective.held_out_error(truth) == 0.0
    assert objective.held_out_error([1 - value for value in truth]) == 1.0
    assert objective.held_out_error([0.3] * 8) == 0.5  # all equal
    one_swap = [1.0, 0.2, 0.5, 0.0, *truth[4:]]  # the second success is below the first failure: 1 of 4 in one task
    assert objective.held_out_error(one_swap) == 1 / 8
    taus = [kendalltau([1, 1, 0, 0], one_swap[:4]).statistic, 1.0]
    pairs_that_count = 4 / np.sqrt(4 * 6)  # tau-b divides by the tied labels too
    assert 1 - 2 * objective.held_out_error(one_swap) == pytest.approx(np.mean([taus[0] / pairs_that_count, 1.0]))
    assert np.isnan(objective.held_out_error([np.nan] * 8))
    example = objective.held_out[0]
    tokens = WordTokens()
    assert example.ids[example.wanted].tolist() == [tokens.id("<|prog_token|>")] * 5
    assert [image.frames for image in example.images] == [(0,), (2,), (5,), (7,)]
    logits = torch.full((2 * 4, 10), -20.0)
    logits[3, 9] = logits[7, 0] = 20.0  # the last frame of each
    assert objective.judge({"progress": logits}, {}).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    nothing = PairsObjective(corpus, RobometerTrainConfig(frames=4), start.tokens, start.shape)
    assert nothing.held_out == []


def test_graded_episodes_come_once_per_epoch() -> None:
    corpus, start = vlm_corpus(), tiny_start(robometer=False)
    objective = GradesObjective(corpus, RoboRewardTrainConfig(batch=4), start.tokens, start.shape)
    assert objective.updates == 9  # three epochs of twelve in fours
    first, second = (
        [drawn.images[0].row for step in three for drawn in objective.draw(step)] for three in ((0, 1, 2), (3, 4, 5))
    )
    assert sorted(first) == sorted(second) == list(range(12)) and first != second
    example = objective.example(0)
    assert example.targets["words"].tolist() == [*example.ids[example.wanted[0] + 1 :].tolist()]
    assert example.targets["words"][-1] == start.tokens.id("<|im_end|>")
    assert example.targets["words"][-2] == objective.digits[4]
    assert parse_grade("ANSWER: 5") == example.targets["grade"][0]
    logits = torch.zeros(len(example.wanted), 351)
    logits[-2, objective.digits[2]] = 5.0
    targets = {name: torch.from_numpy(target) for name, target in example.targets.items()}
    assert objective.judge({"words": logits}, targets).tolist() == [2.0]  # it says 3 of 5
    loss = objective.losses({"words": logits}, targets, objective.totals([example]))["answer"]
    each = -torch.log_softmax(logits.double(), -1)[range(len(example.wanted)), targets["words"]]
    assert float(loss) == pytest.approx(float(each.mean()), rel=1e-5)
    ungraded = PreparedCorpus(tuple(replace(row, grade=None) for row in corpus.rows), corpus.pixels)
    with pytest.raises(BadInput, match="grade"):
        GradesObjective(ungraded, RoboRewardTrainConfig(), start.tokens, start.shape)


def test_a_one_frame_clip_is_an_example() -> None:
    corpus, start = vlm_corpus(), tiny_start(robometer=False)
    row = replace(corpus.rows[0], progress=np.array([np.nan], np.float32), times=np.zeros(1, np.float32), grade=1)
    short = PreparedCorpus((row,), corpus.pixels[: row.frame_bytes])
    example = GradesObjective(short, RoboRewardTrainConfig(), start.tokens, start.shape).example(0)
    assert [image.frames for image in example.images] == [(0, 0)]  # shown twice, as in scoring
    assert example.targets["grade"].tolist() == [1.0]
