"""The losses, each computed a second time in another way."""

from typing import Any

import numpy as np
import pytest
import torch

from demerit.training.rewind.data import SIMULATOR_FACTS
from train_compact.losses import (
    ClipBatch,
    known_mean,
    preference_loss,
    progress_loss,
    task_loss,
    teaching_loss,
)


def make_batch(n: int = 8, frames: int = 5, clips: int = 4, seed: int = 0, **other: Any) -> ClipBatch:
    rng = np.random.default_rng(seed)
    curves = rng.random((n, frames))
    curves[rng.random((n, frames)) < 0.3] = np.nan
    known = torch.from_numpy(curves)
    facts: dict[str, Any] = {
        "frames": torch.zeros(n, frames, dtype=torch.long),
        "progress": known,
        "success": (known > 0.5).double(),
        "own": known,
        "facts": torch.full((n, frames, len(SIMULATOR_FACTS)), torch.nan),
        "words": torch.zeros(n, 192),
        "instructed": torch.ones(n, 1),
        "task": torch.tensor([0, 0, 0, 0, -1, -1, -1, -1][:n]),
        "weight": torch.from_numpy(rng.uniform(0.25, 1, n)),
        "comparable": torch.from_numpy(rng.random(n) < 0.8),
    }
    return ClipBatch(**{**facts, **other}, clips=clips)


def test_progress_is_a_cross_entropy_against_the_two_nearest_bins() -> None:
    batch = make_batch()
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(8, 5, 21)))
    found, count = 0.0, 0
    for n in range(8):
        for t in range(5):
            truth = float(batch.progress[n, t])
            if np.isnan(truth):
                continue
            shares_of = np.maximum(0, 1 - np.abs(truth * 20 - np.arange(21)))
            likely = np.exp(logits[n, t].numpy())
            found -= float(batch.weight[n]) * float(shares_of @ np.log(likely / likely.sum()))
            count += 1
    assert float(progress_loss(logits, batch.progress, batch.weight)) == pytest.approx(found / count)


def test_preferences_are_bradley_terry_over_clear_pairs_of_a_group() -> None:
    batch = make_batch(frames=1, seed=3)
    rank = torch.from_numpy(np.random.default_rng(2).normal(size=8))
    costs = []
    for a in range(8):
        for b in range(8):
            clear = float(batch.progress[a, -1]) - float(batch.progress[b, -1]) > 0.05
            if a // 4 == b // 4 and clear and batch.comparable[a] and batch.comparable[b]:
                costs.append(-np.log(1 / (1 + np.exp(float(rank[b] - rank[a])))))
    assert costs
    assert float(preference_loss(rank, batch)) == pytest.approx(np.mean(costs))
    assert float(preference_loss(rank, make_batch(comparable=torch.zeros(8, dtype=torch.bool)))) == 0


def test_the_teaching_loss_is_ridge_regression() -> None:
    batch = make_batch(seed=5)
    features = np.random.default_rng(4).normal(size=(8, 5, 6))
    own = batch.own.numpy()
    x, y = features[:2].reshape(10, 6), own[:2].reshape(10)
    kept = ~np.isnan(y)
    middle, level = x[kept].mean(0), y[kept].mean()
    ridge = np.log1p(np.exp(0.3))
    # (x'x + width * ridge) w = x'y as least squares with rows of sqrt(width * ridge)
    rows = np.vstack([x[kept] - middle, np.sqrt(6 * ridge) * np.eye(6)])
    weights = np.linalg.lstsq(rows, np.concatenate([y[kept] - level, np.zeros(6)]), rcond=None)[0]
    answers = (features[2:4].reshape(10, 6) - middle) @ weights + level
    error = np.nanmean((answers - own[2:4].reshape(10)) ** 2)
    stiffness = torch.tensor(0.3, dtype=torch.float64)
    assert float(teaching_loss(torch.from_numpy(features), stiffness, batch)) == pytest.approx(error)


def test_the_task_loss_reads_the_output_of_the_clips_own_task() -> None:
    each = torch.from_numpy(np.random.default_rng(6).random((8, 5, 2)))
    batch = make_batch(task=torch.tensor([0, 0, 0, 0, 1, 1, -1, -1]))
    errors = [
        (float(each[n, t, batch.task[n]]) - float(batch.own[n, t])) ** 2
        for n in range(6)
        for t in range(5)
        if not batch.own[n, t].isnan()
    ]
    assert float(task_loss(each, batch)) == pytest.approx(np.mean(errors))


def test_unknown_labels_contribute_nothing() -> None:
    nothing = torch.full((8, 5), torch.nan, dtype=torch.float64)
    blank = make_batch(progress=nothing, own=nothing)
    given_ = torch.randn(8, 5, 21, dtype=torch.float64, requires_grad=True)
    rank, stiffness = given_[:, -1, 0], torch.tensor(0.0, dtype=torch.float64)
    found = [progress_loss(given_, blank.progress, blank.weight), preference_loss(rank, blank)]
    found += [teaching_loss(given_, stiffness, blank), task_loss(given_.sigmoid(), blank)]
    assert [float(loss.detach()) for loss in found] == [0.0] * 4
    sum(found).backward()
    assert given_.grad is not None and not given_.grad.any()
    assert float(known_mean(torch.ones(3), torch.zeros(3))) == 0
