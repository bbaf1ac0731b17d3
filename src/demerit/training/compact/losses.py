"""What training asks for: progress by bins, success, who is better, and facts that make the tower look at the task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from demerit.training.compact.network import Answer, Network
from demerit.training.compact.recipe import Recipe

CLEAR = 0.05
"""two clips whose ends differ by less than this are not compared"""


@dataclass(frozen=True, eq=False)
class Batch:
    """The clips of one step on the device; n clips of so many frames."""

    frames: Tensor
    """(n, frames), places in the corpus; the first of each clip is what its frames are compared with"""
    progress: Tensor
    success: Tensor
    own: Tensor
    facts: Tensor
    words: Tensor
    told: Tensor
    task: Tensor
    """(n,), -1 where there is none"""
    weight: Tensor
    comparable: Tensor
    clips: int
    """clips in a group"""


def losses(network: Network, features: Tensor, answer: Answer, batch: Batch, recipe: Recipe) -> dict[str, Tensor]:
    """Compute every loss, weighted; their sum is what is minimised."""
    found = {"progress": binned(answer.bins, batch.progress, batch.weight)}
    found["success"] = recipe.success * known_mean(
        functional.binary_cross_entropy_with_logits(answer.success, batch.success.nan_to_num(), reduction="none"),
        ~batch.success.isnan(),
    )
    found["preference"] = recipe.preference * preferred(answer.rank[:, -1], batch)
    found["by_task"] = recipe.by_task * 10 * by_task(network.by_task(features).sigmoid(), batch)
    found["taught"] = recipe.taught * 10 * taught(features, network.stiffness, batch)
    off = functional.smooth_l1_loss(network.facts(features), batch.facts.nan_to_num(), reduction="none", beta=0.1)
    found["facts"] = recipe.facts * known_mean(off, ~batch.facts.isnan())
    return found


def binned(logits: Tensor, progress: Tensor, weight: Tensor) -> Tensor:
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


def by_task(each: Tensor, batch: Batch) -> Tensor:
    """Squared error of the output that belongs to a clip's own task, where it has one; `each` is (n, frames, tasks)."""
    mine = each.gather(2, batch.task.clamp(min=0)[:, None, None].expand(-1, each.shape[1], 1)).squeeze(2)
    counted = (batch.task >= 0)[:, None] & ~batch.own.isnan()
    return known_mean((mine - batch.own.nan_to_num()) ** 2, counted)


def preferred(rank: Tensor, batch: Batch) -> Tensor:
    """Bradley-Terry over all pairs of a group that clearly differ at their ends."""
    ranks, ends, counted = (by_group(one, batch) for one in (rank, batch.progress[:, -1], batch.comparable))
    apart = ends.unsqueeze(2) - ends.unsqueeze(1)
    better = (apart > CLEAR) & counted.unsqueeze(2) & counted.unsqueeze(1)
    return known_mean(functional.softplus(-(ranks.unsqueeze(2) - ranks.unsqueeze(1))), better)


def taught(features: Tensor, stiffness: Tensor, batch: Batch) -> Tensor:
    """Teach each simulated task by ridge regression on half of its group, and measure the error on the other half.

    This is what teaching will do with the tower's vectors, so they are trained for it through the solution itself.
    """
    half = batch.clips // 2
    grouped, own = by_group(features, batch), by_group(batch.own, batch)
    shown, asked = grouped[:, :half].flatten(1, 2), grouped[:, half:].flatten(1, 2)
    said, truth = own[:, :half].flatten(1, 2), own[:, half:].flatten(1, 2)
    # A frame of which nothing is known becomes a row of zeros: it has no part in the solution.
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


def by_group(rows: Tensor, batch: Batch) -> Tensor:
    """Turn (clips, ...) into (groups, clips in a group, ...)."""
    return rows.reshape(-1, batch.clips, *rows.shape[1:])


def known_mean(values: Tensor, known: Tensor) -> Tensor:
    """Average where something is known; 0 where nothing is."""
    weights = known.to(values.dtype)
    return (values * weights).sum() / weights.sum().clamp(min=1)


def total(found: dict[str, Tensor]) -> Tensor:
    """Add them up."""
    return torch.stack(list(found.values())).sum()


def broken(found: Mapping[str, float], gradient: float) -> str:
    """Say which numbers of an update are none; empty when all are."""
    bad = [f"{name} {value}" for name, value in found.items() if not math.isfinite(value)]
    if bad:
        return f"the loss is no number ({', '.join(bad)})"
    return "" if math.isfinite(gradient) else f"the gradient is no number ({gradient})"
