"""Columns: checked numpy arrays of one length, the input of every metric."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Labels = Sequence[Hashable] | npt.NDArray[Any]


def numbers(name: str, values: npt.ArrayLike, length: int | None = None) -> Floats:
    """Return a float64 column; None becomes NaN. Raises BadInput for infinity or a wrong length."""
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(name, "one number per row", error) from None
    if column.ndim != 1:
        raise BadInput(name, "one number per row", f"an array of shape {column.shape}")
    if length is not None and len(column) != length:
        raise BadInput(name, f"{length} rows", len(column))
    if bool(np.isinf(column).any()):
        raise BadInput(name, "finite numbers (NaN = unscored)", "an infinite one")
    return column


def flags(name: str, values: npt.ArrayLike, length: int) -> Floats:
    """Return yes/no labels as 1.0, 0.0 and NaN (unknown); raises BadInput for anything else."""
    column = numbers(name, values, length)
    if not bool(np.isin(column[~np.isnan(column)], (0.0, 1.0)).all()):
        raise BadInput(name, "true, false or unknown", "other numbers")
    return column


def rank_codes(labels: Labels | None, length: int, name: str = "clusters") -> tuple[Ints, tuple[Hashable, ...]]:
    """Number the labels in the order of their text; None gives every row its own cluster.

    Codes, and so seeded intervals, do not depend on the order of the rows.
    """
    if labels is None:
        return np.arange(length, dtype=np.int64), tuple(range(length))
    listed = list(labels.tolist() if isinstance(labels, np.ndarray) else labels)
    if len(listed) != length:
        raise BadInput(name, f"{length} labels", len(listed))
    known = tuple(sorted(set(listed), key=lambda label: (str(label), repr(label))))
    position = {label: i for i, label in enumerate(known)}
    return np.array([position[label] for label in listed], dtype=np.int64), known


def pick(labels: Labels | None, keep: Bools) -> list[Hashable] | None:
    """Keep the labels of the chosen rows; None stays None."""
    if labels is None:
        return None
    if len(labels) != len(keep):
        raise BadInput("labels", f"{len(keep)} labels", len(labels))
    return [labels[i] for i in np.flatnonzero(keep).tolist()]


def ratio(above: Floats, below: Floats) -> Floats:
    """Divide; NaN, without a warning, where the divisor is 0."""
    out: Floats = np.full(np.broadcast(above, below).shape, np.nan)
    np.divide(above, below, out=out, where=below != 0)
    return out


def average_ranks(values: Floats) -> Floats:
    """Rank from 1 up; equal values share the mean of the ranks they cover."""
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(size)
    return ((last - size + 1 + last) / 2.0)[group.reshape(-1)]
