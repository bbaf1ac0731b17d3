"""What a network in training says of whole episodes: many at once, in order or in another, told this or that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from demerit.training.compact.corpus import Row
from demerit.training.compact.fit import Fitting, look
from demerit.training.compact.network import progress

Floats = npt.NDArray[np.float32]
Order = Callable[[Row], npt.NDArray[np.int64]]
TOGETHER = 64
"""episodes"""


@dataclass(frozen=True, eq=False)
class Predicted:
    """What was said of an episode, frame by frame."""

    row: Row
    progress: Floats
    success: Floats
    rank: Floats
    features: Floats


def in_order(row: Row) -> npt.NDArray[np.int64]:
    """All frames as they were recorded."""
    return np.arange(row.frames)


def predict(
    fitting: Fitting, rows: Sequence[Row], told: Callable[[Row], str] | None = None, order: Order = in_order
) -> list[Predicted]:
    """Score episodes with the averaged network."""
    predicted: list[Predicted] = []
    for start in range(0, len(rows), TOGETHER):
        predicted += _some(fitting, rows[start : start + TOGETHER], told, order)
    return predicted


@torch.no_grad()
def _some(fitting: Fitting, rows: Sequence[Row], told: Callable[[Row], str] | None, order: Order) -> list[Predicted]:
    orders = [order(row) for row in rows]
    longest = max(map(len, orders))
    # Causal: what is added behind the end of a shorter episode changes nothing before it.
    longer = [np.pad(one, (0, longest - len(one)), mode="edge") for one in orders]
    padded = [one + row.first for one, row in zip(longer, rows, strict=True)]
    seen = fitting.pictures.take(torch.from_numpy(np.stack(padded)).to(fitting.device))
    network = fitting.averaged
    features = look(network, seen)
    words, said = fitting.vocabulary.take([row.instruction if told is None else told(row) for row in rows])
    answer = network.head(features, words, said, torch.zeros(len(rows), network.shape.memory, device=fitting.device))
    columns = (progress(answer.bins), answer.success.sigmoid(), answer.rank, features)
    arrays = [one.float().cpu().numpy() for one in columns]
    return [
        Predicted(row, *(column[number, : len(one)] for column in arrays))
        for number, (row, one) in enumerate(zip(rows, orders, strict=True))
    ]
