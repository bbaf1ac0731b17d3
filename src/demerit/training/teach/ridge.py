"""Ridge regression in closed form, with the predictions for left-out groups exact and nearly free.

    B = argmin sum_i |y_i - x_i B|^2 + penalty |B|^2

X is factored once, whatever the penalty: from the columns' products where there are more rows than columns (primal),
from the rows' where there are fewer (dual). With X = Z V', V'V = I and Z'Z = diag(s):
    B = V diag(1 / (s + penalty)) Z' y       fitted values: H y with H = Z diag(1 / (s + penalty)) Z'
Leaving a group g out and fitting the rest anew misses its rows by (I - H_gg)^-1 (y_g - (H y)_g): no second fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
SMALLEST = 1e-12
"""directions whose share of the largest is below this are numerical noise"""


@dataclass(frozen=True, eq=False)
class Factored:
    """The rows, factored: everything about them that does not depend on penalty or targets."""

    z: Floats
    """(rows, r)"""
    s: Floats
    """(r,)"""
    v: Floats
    """(columns, r)"""

    def coefficients(self, y: Floats, penalty: float) -> Floats:
        """Return B."""
        return np.asarray(self.v @ self._shrunk(y, penalty))

    def fitted(self, y: Floats, penalty: float) -> Floats:
        """Return X B."""
        return np.asarray(self.z @ self._shrunk(y, penalty))

    def left_out(self, y: Floats, penalty: float, groups: list[npt.NDArray[np.int64]]) -> Floats:
        """Predict each group's rows by a fit on all other groups."""
        out = self.fitted(y, penalty)
        root = self.z / np.sqrt(self.s + penalty)
        for rows in groups:
            mine = root[rows]
            # I - H_gg is positive definite; where the penalty is tiny it may come out singular by rounding
            left = np.eye(len(rows)) - mine @ mine.T
            try:
                missed = np.linalg.solve(left, y[rows] - out[rows])
            except np.linalg.LinAlgError:
                missed = np.linalg.lstsq(left, y[rows] - out[rows], rcond=None)[0]
            out[rows] = y[rows] - missed
        return out

    def _shrunk(self, y: Floats, penalty: float) -> Floats:
        return np.asarray((self.z.T @ y) / (self.s + penalty)[:, None])


def factored(x: Floats) -> Factored:
    """Factor the rows, by whichever side is shorter."""
    rows, columns = x.shape
    return dual(x) if rows < columns else primal(x)


def primal(x: Floats) -> Factored:
    """Factor by the products of columns."""
    s, v = np.linalg.eigh(x.T @ x)
    s, v = _kept(s, v)
    return Factored(x @ v, s, v)


def dual(x: Floats) -> Factored:
    """Factor by the products of rows."""
    s, u = np.linalg.eigh(x @ x.T)
    s, u = _kept(s, u)
    root = np.sqrt(s)
    return Factored(u * root, s, x.T @ (u / root))


def members(groups: npt.ArrayLike) -> list[npt.NDArray[np.int64]]:
    """List the rows of each group."""
    return list(_members(np.asarray(groups)))


def _members(groups: npt.NDArray[np.generic]) -> Iterator[npt.NDArray[np.int64]]:
    _, code = np.unique(groups, return_inverse=True)
    order = np.argsort(code, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(code[order])) + 1)


def _kept(s: Floats, vectors: Floats) -> tuple[Floats, Floats]:
    keep = s > SMALLEST * max(float(s[-1]), SMALLEST) if len(s) else np.zeros(0, bool)
    return s[keep], vectors[:, keep]
