"""Agreement of raters beyond chance: Cohen's kappa of two, Krippendorff's alpha of any number with missing answers.

Both are 1 - D_o / D_e, the observed disagreement over the one expected by chance: 1 is full agreement, 0 is chance. If
all answers are the same there is none to expect, and the measure is undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from demerit.data.arrays import Bools, Floats
from demerit.errors import BadInput
from demerit.evaluate.metrics.bootstrap import Additive, Labels, Tally, empty_tally, numbers, pick, rank_codes, ratio

Answers = Sequence[Hashable | None]
"""one answer per item or per rater; None or NaN is a missing one"""


def cohen_kappa(
    first: Answers,
    second: Answers,
    weights: Literal["none", "quadratic"] = "none",
    *,
    clusters: Labels | None = None,
) -> Tally:
    """Measure Cohen's kappa: D_o = mean of w(x, y) over items, D_e = sum over answers of p(x) q(y) w(x, y).

    An item that one of the two did not answer counts as unscored.

    Args:
        first: the first rater's answer to each item.
        second: the second rater's answers to the same items.
        weights: "none" takes w = 1 for different answers; "quadratic" takes (x - y)^2 of answers that are numbers.
        clusters: the task of each item, to resample tasks; None resamples items.
    """
    name = "cohen_kappa" if weights == "none" else "cohen_kappa_quadratic"
    codes, values = _encode([first, second], as_numbers=weights == "quadratic")
    keep = np.isnan(codes).sum(axis=0) < 1
    x, y = codes[:, keep]
    if weights == "none":
        one_hot = np.eye(len(values))
        parts = np.concatenate([(x != y)[:, None], one_hot[x.astype(int)], one_hot[y.astype(int)]], axis=1)
    else:
        parts = np.stack([(x - y) ** 2, x**2 + y**2, x, y], axis=1)
    parts = np.concatenate([parts, np.ones((len(parts), 1))], axis=1)

    def finish(sums: Floats) -> Floats:
        n, width = sums[:, -1], len(values)
        if weights == "none":
            expected = n - ratio((sums[:, 1 : width + 1] * sums[:, width + 1 : -1]).sum(axis=1), n)
        else:
            expected = sums[:, 1] - 2 * ratio(sums[:, 2] * sums[:, 3], n)
        return 1 - ratio(sums[:, 0], _drop_rounding(expected, sums.max(axis=1)))

    return _tally(name, parts, finish, keep, clusters)


def krippendorff_alpha(
    answers: Sequence[Answers],
    metric: Literal["nominal", "ordinal", "interval"] = "nominal",
    *,
    clusters: Labels | None = None,
) -> Tally:
    """Measure Krippendorff's alpha, 1 - (n - 1) sum_ck o_ck d_ck / sum_ck n_c n_k d_ck over answers c and k.

    An item with m answers adds 1 / (m - 1) to o_ck for each ordered pair of them; n_c counts the answers c, n all. An
    item with fewer than two answers counts as unscored. Difference d of two answers:

        nominal    1 if they differ
        ordinal    (number of answers from c to k, the two ends counted half)^2
        interval   (c - k)^2

    Args:
        answers: for each item, the answer of each rater.
        metric: the difference d; "ordinal" and "interval" need numbers.
        clusters: the task of each item, to resample tasks; None resamples items.
    """
    codes, values = _encode(answers, as_numbers=metric != "nominal")
    keep = (~np.isnan(codes)).sum(axis=1) > 1
    rows, many = codes[keep], (~np.isnan(codes[keep])).sum(axis=1)
    if metric == "interval":
        total, squares = np.nansum(rows, axis=1), np.nansum(rows**2, axis=1)
        parts = np.stack([2 * (many * squares - total**2) / (many - 1), squares, total, many], axis=1)
    else:
        counts = (rows[:, :, None] == values).sum(axis=1)
        joint = counts[:, :, None] * (counts[:, None, :] - np.eye(len(values)))
        parts = np.concatenate(
            [(joint / (many - 1)[:, None, None]).reshape(len(rows), len(values) ** 2), counts], axis=1
        )

    def finish(sums: Floats) -> Floats:
        if metric == "interval":
            observed, squares, total, n = sums.T
            expected = 2 * (n * squares - total**2)
        else:
            counted = sums[:, len(values) ** 2 :]
            n, below = counted.sum(axis=1), np.cumsum(counted, axis=1) - counted / 2
            apart = (below[:, :, None] - below[:, None, :]) ** 2 if metric == "ordinal" else 1 - np.eye(len(values))
            observed = (sums[:, : len(values) ** 2].reshape(-1, len(values), len(values)) * apart).sum(axis=(1, 2))
            expected = (counted[:, :, None] * counted[:, None, :] * apart).sum(axis=(1, 2))
        return 1 - ratio((n - 1) * observed, _drop_rounding(expected, n * sums.max(axis=1)))

    return _tally(f"krippendorff_alpha_{metric}", parts, finish, keep, clusters)


def _encode(rows: Sequence[Answers], as_numbers: bool) -> tuple[Floats, Floats]:
    """Return answers as numbers from 0 on, NaN where missing, in the shape of `rows`; and the distinct numbers."""
    if len({len(row) for row in rows}) > 1:
        raise BadInput("answers", "rows of one length", sorted({len(row) for row in rows}))
    flat = [answer for row in rows for answer in row]
    has_answer = np.array([answer is not None and answer == answer for answer in flat], dtype=bool)  # noqa: PLR0124
    codes = np.full(len(flat), np.nan)
    replies = [answer for answer, is_there in zip(flat, has_answer, strict=True) if is_there]
    codes[has_answer] = (
        numbers("answers", np.array(replies, dtype=object)) if as_numbers else rank_codes(replies, len(replies))[0]
    )
    codes -= codes[has_answer].min(initial=np.inf) if replies else 0.0
    return codes.reshape(len(rows), -1 if flat else 0), np.unique(codes[has_answer])


def _drop_rounding(values: Floats, scale: Floats) -> Floats:
    return np.where(values > 1e-12 * scale, values, 0.0)


def _tally(name: str, parts: Floats, finish: Callable[[Floats], Floats], keep: Bools, clusters: Labels | None) -> Tally:
    missing = int((~keep).sum())
    if not keep.any():
        return empty_tally(name, "items", missing, "no item has two answers")
    if np.isnan(finish(parts.sum(axis=0, keepdims=True))[0]):
        return replace(empty_tally(name, "items", missing, "all answers are the same"), undefined=len(parts))
    codes, labels = rank_codes(pick(clusters, keep), len(parts))
    return Tally(name, "items", Additive(parts, finish), codes, labels, len(parts), missing)
