"""The losses of the compact network: progress, success, preference, and auxiliary targets for the image tower."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from demerit.training.rewind.train import known_mean
from train_compact.config import CompactTrainConfig
from train_compact.network import CompactNetwork, HeadOutput

CLEAR = 0.05
"""clips whose final progress differs by less are not compared"""


@dataclass(frozen=True, eq=False)
class ClipBatch:
    """The clips of one step on the device: n clips."""

    frames: Tensor
    """(n, frames), numbers in the corpus"""
    progress: Tensor
    success: Tensor
    own: Tensor
    facts: Tensor
    words: Tensor
    instructed: Tensor
    """(n, 1), 1 where there is an instruction"""
    task: Tensor
    """(n,), -1 where there is none"""
    weight: Tensor
    comparable: Tensor
    clips: int
    """clips in a group"""


def compute_losses(
    network: CompactNetwork, features: Tensor, answer: HeadOutput, batch: ClipBatch, config: CompactTrainConfig
) -> dict[str, Tensor]:
    """Compute every loss with its weight; their sum is minimised."""
    found = {"progress": progress_loss(answer.bins, batch.progress, batch.weight)}
    found["success"] = config.success * known_mean(
        functional.binary_cross_entropy_with_logits(answer.success, batch.success.nan_to_num(), reduction="none"),
        ~batch.success.isnan(),
    )
    found["preference"] = config.preference * preference_loss(answer.rank[:, -1], batch)
    found["by_task"] = config.by_task * 10 * task_loss(network.by_task(features).sigmoid(), batch)
    found["taught"] = config.taught * 10 * teaching_loss(features, network.stiffness, batch)
    off = functional.smooth_l1_loss(network.facts(features), batch.facts.nan_to_num(), reduction="none", beta=0.1)
    found["facts"] = config.facts * known_mean(off, ~batch.facts.isnan())
    return found


def progress_loss(logits: Tensor, progress: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy against the two bins next to the true progress, by nearness."""
    last = logits.shape[-1] - 1
    known = ~progress.isnan()
    place = progress.nan_to_num().clamp(0, 1) * last
    low = place.floor().clamp(max=last - 1)
    high_share = place - low
    logs = logits.log_softmax(dim=-1)
    low_log = logs.gather(-1, low.long().unsqueeze(-1)).squeeze(-1)
    high_log = logs.gather(-1, low.long().unsqueeze(-1) + 1).squeeze(-1)
    loss = -((1 - high_share) * low_log + high_share * high_log)
    return known_mean(loss * weight.unsqueeze(1), known)


def task_loss(each: Tensor, batch: ClipBatch) -> Tensor:
    """Squared error of the output of a clip's own task, where it has one; `each` is (n, frames, tasks)."""
    mine = each.gather(2, batch.task.clamp(min=0)[:, None, None].expand(-1, each.shape[1], 1)).squeeze(2)
    counted = (batch.task >= 0)[:, None] & ~batch.own.isnan()
    return known_mean((mine - batch.own.nan_to_num()) ** 2, counted)


def preference_loss(rank: Tensor, batch: ClipBatch) -> Tensor:
    """Bradley-Terry loss over all pairs of a group whose final progress clearly differs."""
    ranks, ends, counted = (by_group(rows, batch) for rows in (rank, batch.progress[:, -1], batch.comparable))
    apart = ends.unsqueeze(2) - ends.unsqueeze(1)
    better = (apart > CLEAR) & counted.unsqueeze(2) & counted.unsqueeze(1)
    return known_mean(functional.softplus(-(ranks.unsqueeze(2) - ranks.unsqueeze(1))), better)


def teaching_loss(features: Tensor, stiffness: Tensor, batch: ClipBatch) -> Tensor:
    """Fit each simulated task by ridge regression on half of its group and return the error on the other half.

    Teaching does the same with the tower's vectors, so they are trained for it, through the solution.
    """
    half = batch.clips // 2
    grouped, own = by_group(features, batch), by_group(batch.own, batch)
    shown, asked = grouped[:, :half].flatten(1, 2), grouped[:, half:].flatten(1, 2)
    said, truth = own[:, :half].flatten(1, 2), own[:, half:].flatten(1, 2)
    # a frame of unknown progress becomes a row of zeros, which does not change the solution
    known = (~said.isnan()).to(features.dtype)
    count = known.sum(dim=1, keepdim=True).clamp(min=1)
    middle = (shown * known.unsqueeze(2)).sum(dim=1, keepdim=True) / count.unsqueeze(2)
    level = said.nan_to_num().sum(dim=1, keepdim=True) / count
    shown, asked = (shown - middle) * known.unsqueeze(2), asked - middle
    width = features.shape[-1]
    kernel = shown @ shown.mT / width
    ridge = functional.softplus(stiffness) * torch.eye(kernel.shape[-1], device=kernel.device)
    weights = torch.linalg.solve(kernel + ridge, ((said.nan_to_num() - level) * known).unsqueeze(2))
    answer = level + (asked @ shown.mT / width @ weights).squeeze(2)
    mine = by_group(batch.task, batch)[:, :1] >= 0
    return known_mean((answer - truth.nan_to_num()) ** 2, mine & ~truth.isnan() & known.any(dim=1, keepdim=True))


def by_group(rows: Tensor, batch: ClipBatch) -> Tensor:
    """Turn (clips, ...) into (groups, clips in a group, ...)."""
    return rows.reshape(-1, batch.clips, *rows.shape[1:])
