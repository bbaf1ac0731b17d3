"""ReWiND's network and objective in torch: an instruction and frames in order, progress at every frame, causal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from demerit.training.compact.losses import known_mean

DROPOUT = 0.1


@dataclass(frozen=True)
class RewindShape:
    """Sizes of a network."""

    features: int
    words: int
    hidden: int
    layers: int
    heads: int


class CausalBlock(nn.Module):
    """Attention to the tokens so far and a feed-forward layer, each normalised afterwards (as in the authors' code)."""

    def __init__(self, hidden: int, heads: int) -> None:
        """Start with random weights."""
        super().__init__()
        self.heads, self.scale = heads, (hidden // heads) ** -0.5
        self.ask = nn.Linear(hidden, 3 * hidden)
        self.join = nn.Linear(hidden, hidden)
        wide = 4 * hidden
        self.think = nn.Sequential(
            nn.Linear(hidden, wide), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(wide, hidden), nn.Dropout(DROPOUT)
        )
        self.drop = nn.Dropout(DROPOUT)
        self.first_normal, self.second_normal = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, tokens: Tensor, later: Tensor) -> Tensor:
        """Compute (n, tokens, hidden); `later` (tokens, tokens) is True where a token may not look."""
        each = self.ask(tokens).reshape(tokens.shape[0], tokens.shape[1], 3 * self.heads, -1).transpose(1, 2)
        queries, keys, values = each.chunk(3, dim=1)
        match = queries @ keys.transpose(2, 3) * self.scale
        seen = match.masked_fill(later, float("-inf")).softmax(dim=-1) @ values
        tokens = self.first_normal(tokens + self.drop(self.join(seen.transpose(1, 2).flatten(2))))
        result: Tensor = self.second_normal(tokens + self.think(tokens))
        return result


class RewindNetwork(nn.Module):
    """Features of frames and an instruction's vector to progress. Only the first frame has a place of its own."""

    def __init__(self, shape: RewindShape) -> None:
        """Start with random weights."""
        super().__init__()
        hidden = shape.hidden
        self.shape = shape
        self.look, self.read = nn.Linear(shape.features, hidden), nn.Linear(shape.words, hidden)
        self.first = nn.Parameter(torch.randn(hidden) * 0.02)
        self.blocks = nn.ModuleList(CausalBlock(hidden, shape.heads) for _ in range(shape.layers))
        self.progress = nn.Sequential(
            nn.Linear(hidden, hidden // 2),
            nn.LayerNorm(hidden // 2),
            nn.GELU(),
            nn.Dropout(DROPOUT),
            nn.Linear(hidden // 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, features: Tensor, words: Tensor) -> Tensor:
        """Compute (n, frames) from 0 to 1, of (n, frames, features) and (n, words)."""
        seen = self.look(features)
        tokens = torch.cat([self.read(words).unsqueeze(1), seen[:, :1] + self.first, seen[:, 1:]], dim=1)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        later = place.unsqueeze(0) > place.unsqueeze(1)
        for block in self.blocks:
            tokens = block(tokens, later)
        progress: Tensor = self.progress(tokens[:, 1:])
        return progress.squeeze(-1)


def rewind_losses(own: Tensor, other: Tensor | None, targets: Tensor, weight: float) -> dict[str, Tensor]:
    """Compute ReWiND's objective, (r_t - target)^2 + (r^-_t)^2, as means over the frames with a target.

    Args:
        own: (n, frames) progress under the clip's instruction.
        other: the same under another task's instruction, which is worth 0; None = not computed.
        targets: t / T, along the rewind where there is one; NaN where unknown or padded.
        weight: of the second term.
    """
    known = ~targets.isnan()
    losses = {"progress": known_mean((own - targets.nan_to_num()) ** 2, known)}
    if other is not None:
        losses["mismatched"] = weight * known_mean(other**2, known)
    return losses
