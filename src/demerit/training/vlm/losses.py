"""What Robometer is trained on: three losses, each an average over a whole update, however it is cut into parts.

    preference   - log p(the better one)                                        mean over the pairs
    progress     - sum over bins of two-hot(target) * log softmax               mean over the frames with a known target
    success      - log p(done) or - log p(not done)                             mean of the two classes' means

The classes' balance and the number of known targets are counted over the update first, over all its parts and machines;
every part then adds its share. A loss weight multiplies its loss, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from demerit.training.vlm.laid import Example
from demerit.training.vlm.recipe import RobometerRecipe


@dataclass(frozen=True)
class Totals:
    """What there is to learn from in an update."""

    pairs: int
    progress: int
    """frames whose progress is known"""
    done: int
    not_done: int

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Totals:
        """Count."""
        progress = np.concatenate([one.targets["progress"] for one in examples])
        success = np.concatenate([one.targets["success"] for one in examples])
        counts = (~np.isnan(progress)).sum(), (success == 1).sum(), (success == 0).sum()
        return cls(len(examples), *(int(one) for one in counts))


def losses(
    answers: Mapping[str, Tensor], targets: Mapping[str, Tensor], totals: Totals, recipe: RobometerRecipe
) -> dict[str, Tensor]:
    """Compute a part's share of each loss, weighted; all shares of an update together are its loss.

    Args:
        answers: logits: `preference` (pairs,), `progress` (frames, bins), `success` (frames,).
        targets: `preference` 1 where the first is better, 0 where the second is; `progress` and `success` at the same
            frames, NaN where nobody knows.
        totals: of the update.
        recipe: the weights.
    """
    said = {name: one.float() for name, one in answers.items()}
    preferred = F.binary_cross_entropy_with_logits(said["preference"], targets["preference"], reduction="sum")
    return {
        "preference": recipe.preference * preferred / totals.pairs,
        "progress": recipe.progress * binned(said["progress"], targets["progress"]).sum() / max(1, totals.progress),
        "success": recipe.success * balanced(said["success"], targets["success"], totals),
    }


def two_hot(targets: Tensor, bins: int) -> Tensor:
    """Share each target between the two bins next to it, by nearness; bins stand at 0, 1/(bins - 1), ..., 1."""
    place = targets.clamp(0, 1) * (bins - 1)
    low = place.floor().clamp(max=bins - 2).long()
    high_share = (place - low).unsqueeze(-1)
    shares = torch.zeros(*targets.shape, bins, device=targets.device, dtype=targets.dtype)
    shares.scatter_(-1, low.unsqueeze(-1), 1 - high_share)
    return shares.scatter_add_(-1, low.unsqueeze(-1) + 1, high_share)


def binned(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every frame; 0 where the target is not known."""
    shares = two_hot(targets.nan_to_num(), logits.shape[-1])
    each = -(shares * logits.log_softmax(-1)).sum(-1)
    return torch.where(targets.isnan(), torch.zeros_like(each), each)


def balanced(logits: Tensor, targets: Tensor, totals: Totals) -> Tensor:
    """Average within each class, then over the classes that there are."""
    each = F.binary_cross_entropy_with_logits(logits, targets.nan_to_num(), reduction="none")
    classes = [(targets == 1, totals.done), (targets == 0, totals.not_done)]
    there = [(mine, count) for mine, count in classes if count]
    means = [(each * mine).sum() / count for mine, count in there]
    return torch.stack(means).sum() / len(means) if means else each.sum() * 0
