"""What the pictures of a lesson look like: copies of one video, two scenes or robots, labels that do not fit.

Distances are between the network's features, so they also find copies that were encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from demerit.models.taught.head import Floats

SNAPSHOTS = 8
"""frames of an episode that are compared, spread evenly"""
COPY = 0.6
"""two episodes are copies when no snapshot differs by more than this share of the movement within them"""
SAME = 1e-4
"""share of the features' size that is rounding: still pictures that are equal are copies too"""
APART = 2.2
"""two looks: their centres are this many times farther apart than the tighter one is wide"""
FEWEST_IN_LOOK = 3
MOST_DOUBTFUL, FEWEST_TO_DOUBT = 5, 5
"""labels listed at most; successes and failures needed to doubt one by its value"""


def take_snapshots(towers: Sequence[Sequence[npt.NDArray[np.floating]]]) -> Floats:
    """Return (episodes, snapshots, features), from the features of every frame by episode and camera."""
    return np.stack([np.concatenate([_pick(camera) for camera in cameras], axis=1) for cameras in towers])


def _pick(camera: npt.NDArray[np.floating]) -> Floats:
    at = np.linspace(0, len(camera) - 1, SNAPSHOTS).round().astype(int)
    return np.asarray(camera[at], dtype=np.float64)


def distances(a: Floats, b: Floats) -> Floats:
    """Return the distance of each row of `a` to each row of `b`."""
    squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(squared, 0)))


def find_copies(snapshots: Floats, tasks: Sequence[str]) -> list[int]:
    """Return, for each episode, the first one of the same task that it is a copy of; its own number if there is none.

    The largest difference counts and not the mean: a success and a failure may differ at their ends alone.
    """
    apart = np.max([distances(rows, rows) for rows in snapshots.transpose(1, 0, 2)], axis=0)
    centres = snapshots.mean(axis=1, keepdims=True)
    moved = np.linalg.norm(snapshots - centres, axis=2).mean(axis=1)
    size = np.linalg.norm(snapshots, axis=2).mean()
    alike = apart <= COPY * np.sqrt(moved[:, None] * moved[None, :]) + SAME * size
    alike &= np.array(tasks)[:, None] == np.array(tasks)[None, :]
    first = list(range(len(snapshots)))
    for i in range(len(snapshots)):
        first[i] = first[int(np.flatnonzero(alike[i, : i + 1] | (np.arange(i + 1) == i))[0])]
    return first


def split_looks(firsts: Floats, groups: Sequence[str]) -> list[int]:
    """Return 0 or 1 for each episode: which of two looks it has; all 0 if they look alike.

    First frames (episodes, pooled features) are split by two means, one point per group, so that many episodes of one
    scene are no look.
    """
    names = list(dict.fromkeys(groups))
    of_group = np.array([names.index(group) for group in groups])
    points = np.stack([firsts[of_group == number].mean(axis=0) for number in range(len(names))])
    side = _split_in_two(points)
    sides = [points[side], points[~side]]
    if min(map(len, sides)) < FEWEST_IN_LOOK:
        return [0] * len(groups)
    spread = [float(((rows - rows.mean(axis=0)) ** 2).sum()) / (len(rows) - 1) for rows in sides]
    gap = float(((sides[0].mean(axis=0) - sides[1].mean(axis=0)) ** 2).sum())
    gap -= sum(s / len(rows) for s, rows in zip(spread, sides, strict=True))  # what chance adds
    if gap <= APART**2 * min(spread):
        return [0] * len(groups)
    return [int(one) for one in (side != side[0])[of_group]]


def _split_in_two(points: Floats) -> npt.NDArray[np.bool_]:
    centred = points - points.mean(axis=0)
    side = centred @ np.linalg.svd(centred, full_matrices=False)[2][0] > 0
    for _ in range(20):
        if side.all() or not side.any():
            break
        centres = np.stack([points[side].mean(axis=0), points[~side].mean(axis=0)])
        nearer = distances(points, centres)
        moved = nearer[:, 0] < nearer[:, 1]
        if (moved == side).all():
            break
        side = moved
    return np.asarray(side, dtype=np.bool_)


def doubt_labels(values: Floats, success: Floats, copies: Sequence[int], names: Sequence[str]) -> dict[str, str]:
    """Return episodes whose label may be wrong, and why; copies with the other label first, then the least fitting.

    A label does not fit when the held-out value (NaN = none) lies beyond the median of the other label.
    """
    found: dict[str, str] = {}
    for i, first in enumerate(copies):
        others = [j for j, other in enumerate(copies) if other == first and {success[i], success[j]} == {0.0, 1.0}]
        if others:
            found[names[i]] = f"it looks the same as {names[others[0]]}, which is labelled the other way"
    known = ~np.isnan(values)
    good, bad = values[known & (success == 1)], values[known & (success == 0)]
    if min(len(good), len(bad)) >= FEWEST_TO_DOUBT and np.median(good) > np.median(bad):
        beyond = np.where(success == 1, np.median(bad) - values, values - np.median(good))
        known &= (beyond >= 0) & ~np.isnan(success)
        for i in sorted(np.flatnonzero(known).tolist(), key=lambda i: -beyond[i]):
            label, other = ("success", "failure") if success[i] else ("failure", "success")
            found.setdefault(names[i], f"a {label} that models which had not seen it rate like a typical {other}")
    return dict(list(found.items())[:MOST_DOUBTFUL])
