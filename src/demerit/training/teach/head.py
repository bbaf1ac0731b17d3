"""fit: features and targets to a head, in closed form and in milliseconds.

What can be chosen (penalty, linear or rbf, corrections per task) is chosen by how well groups are predicted that were
left out, with a prior that decides where there are few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from demerit.data.frames import spread
from demerit.errors import BadInput
from demerit.models.taught.features import Layout
from demerit.models.taught.head import Head, Linear, Rbf, likeness
from demerit.training.teach.ridge import Factored, factored, members
from demerit.training.teach.rows import AT_LEAST, AT_MOST, CONSTANT, EXACT, Example, Pair, Rows, rows_of, standardised
from demerit.training.teach.scale import scale_of
from demerit.training.teach.settings import Settings
from demerit.training.teach.targets import Target

Floats = npt.NDArray[np.float64]
CHANGE_OF_MIND = 0.02
"""by how much another kind of head has to be better than the linear one"""
PRIOR_SLOPE = 0.1
"""how much better a penalty ten times off the prior has to be, per group of the prior and group of evidence"""
FEWEST_PER_TASK = 4
"""groups that a task must have for a correction of its own"""
MOST_LEFT_OUT = 64
"""groups that are left out to choose by; with more of them the choice is clear enough"""


def fit(
    features: Sequence[npt.NDArray[np.floating]],
    targets: Sequence[Target],
    settings: Settings | None = None,
    *,
    groups: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    pairs: Sequence[Pair] = (),
    layout: Layout | None = None,
) -> Head:
    """Fit a head.

    Args:
        features: a (frames, columns) array per episode.
        targets: as many; `target_of(label, length)` makes one.
        settings: how.
        groups: what was recorded together, a name per episode; None = every episode is a group of its own.
        tasks: which task each episode is an attempt at; several tasks get corrections of their own.
        pairs: preferences between episodes.
        layout: which columns belong together; None = all are one part.
    """
    named = groups if groups is not None else [str(i) for i in range(len(features))]
    of = tasks if tasks is not None else [""] * len(features)
    examples = [Example(x, t, g, k) for x, t, g, k in zip(features, targets, named, of, strict=True)]
    return fit_examples(examples, settings, pairs=pairs, layout=layout)


def fit_examples(
    examples: Sequence[Example],
    settings: Settings | None = None,
    *,
    pairs: Sequence[Pair] = (),
    layout: Layout | None = None,
) -> Head:
    """Fit a head to examples, views of examples included."""
    settings = settings or Settings()
    if not examples:
        raise BadInput("teaching", "at least one example", "none")
    settings = settings.thinned(len(examples))
    shared = [one for one in examples if not one.told]
    if len(shared) != len(examples):
        places = {id(one): i for i, one in enumerate(shared)}
        pairs = [Pair(places[id(examples[p.better])], places[id(examples[p.worse])], p.tie) for p in pairs]
    rows = rows_of(shared, pairs, settings)
    if not len(rows):
        raise BadInput("teaching", "frames with targets", "none")
    centre, scale = standardised(rows, layout, settings)
    z = (rows.frames - centre) * scale
    best = _chosen(_candidates(z, rows, settings))
    at, worth = _scaled(rows, best.left_out, settings)
    head = Head(centre, scale, best.linear, best.rbf, blend=settings.blend, places=at, worth=worth, about=best.facts())
    return _with_tasks(head, examples, rows, best.left_out, settings)


def _scaled(rows: Rows, left_out: Floats, settings: Settings) -> tuple[Floats, Floats]:
    """Find the scale on which values are progress again, by what left-out groups turned out to be worth."""
    plain = slice(0, rows.plain)
    exact = (rows.bound[plain, 0] == EXACT) & ~np.isnan(left_out[plain]).any(axis=1)
    said = np.clip(left_out[plain][exact], 0, 1)
    value = (1 - settings.blend) * said[:, 0] + settings.blend * said[:, 1]
    groups = len(np.unique(rows.group[plain][exact]))
    return scale_of(value, rows.y[plain][exact, 0], rows.weight[plain][exact], groups, settings.belief)


@dataclass(frozen=True, eq=False)
class _Candidate:
    """One kind of head with the penalty that suits it."""

    kind: str
    linear: Linear | None
    rbf: Rbf | None
    left_out: Floats
    """predictions for rows whose group was left out; those of the fit itself where there is one group"""
    error: float
    penalties: tuple[float, ...]

    def facts(self) -> dict[str, object]:
        return {"kind": self.kind, "penalties": list(self.penalties), "left-out error": self.error}


def _candidates(z: Floats, rows: Rows, settings: Settings) -> list[_Candidate]:
    groups = len(np.unique(rows.group))
    wanted = {"linear", "rbf", "both"} if settings.kind == "auto" else {settings.kind}
    if settings.kind == "auto" and groups < settings.rbf_from:
        wanted = {"linear"}
    found: list[_Candidate] = []
    linear = _linear(z, rows, settings) if wanted & {"linear", "both"} else None
    rbf = _rbf(z, rows, settings) if wanted & {"rbf", "both"} else None
    found += [one for one in (linear, rbf) if one is not None and one.kind in wanted]
    if linear is not None and rbf is not None and "both" in wanted:
        mean = (linear.left_out + rbf.left_out) / 2
        penalties = (*linear.penalties, *rbf.penalties)
        found.append(_Candidate("both", linear.linear, rbf.rbf, mean, _error(rows, mean), penalties))
    return found


def _chosen(candidates: Sequence[_Candidate]) -> _Candidate:
    best = candidates[0]
    for one in candidates[1:]:
        if one.error < best.error * (1 - CHANGE_OF_MIND):
            best = one
    return best


def _linear(z: Floats, rows: Rows, settings: Settings) -> _Candidate:
    coefficients, left_out, penalty = _regressed(np.concatenate([rows.combine(z), rows.constant()], 1), rows, settings)
    linear = Linear(coefficients[:-1], coefficients[-1] * CONSTANT)
    return _Candidate("linear", linear, None, left_out, _error(rows, left_out), (penalty,))


def _rbf(z: Floats, rows: Rows, settings: Settings) -> _Candidate:
    """Nystroem's way: as many columns as remembered frames, whose products are the kernel's values."""
    order = np.random.default_rng(settings.seed).permutation(len(z))[: settings.landmarks]
    near = z[np.sort(order)]
    apart = -np.log(np.maximum(likeness(near, near, 1.0), 1e-300))
    typical = float(np.median(apart[np.triu_indices(len(near), 1)])) if len(near) > 1 else 1.0
    found = []
    for width in settings.widths:
        gamma = 1 / (2 * width**2 * max(typical, 1e-9))
        s, vectors = np.linalg.eigh(likeness(near, near, gamma))
        root = vectors / np.sqrt(np.maximum(s, 1e-8))
        columns = np.concatenate([rows.combine(likeness(z, near, gamma) @ root), rows.constant()], axis=1)
        coefficients, left_out, penalty = _regressed(columns, rows, settings)
        rbf = Rbf(near, gamma, root @ coefficients[:-1], coefficients[-1] * CONSTANT)
        found.append(_Candidate("rbf", None, rbf, left_out, _error(rows, left_out), (penalty,)))
    return min(found, key=lambda one: one.error)


def _regressed(columns: Floats, rows: Rows, settings: Settings) -> tuple[Floats, Floats, float]:
    """Choose the penalty, fit, and predict what was left out."""
    weight = np.sqrt(rows.weight)[:, None]
    fac = factored(columns * weight)
    groups = members(rows.group)
    penalty = settings.prior if len(settings.grid) > 1 else settings.grid[0]
    if len(groups) >= settings.choose_from and len(settings.grid) > 1:
        some = [groups[i] for i in spread(len(groups), MOST_LEFT_OUT)]
        errors = {p: _error(rows, _left_out(fac, rows, p, settings, some)) for p in settings.grid}
        penalty = min(errors, key=lambda p: _prior(p, len(groups), settings) * errors[p])
    y = _settled(fac, rows, penalty, settings)
    left_out = _left_out(fac, rows, penalty, settings, groups, y)
    return fac.coefficients(y, penalty), left_out, penalty


def _prior(penalty: float, groups: int, settings: Settings) -> float:
    return 1 + PRIOR_SLOPE * settings.prior_groups / groups * math.log10(penalty / settings.prior) ** 2


def _settled(fac: Factored, rows: Rows, penalty: float, settings: Settings) -> Floats:
    """Weighted targets with bounds settled: what keeps a bound does not pull, what breaks it is pulled back to it."""
    weight = np.sqrt(rows.weight)[:, None]
    y = rows.y * weight
    if bool((rows.bound != 0).any()):
        for _ in range(settings.rounds):
            y = rows.satisfied(rows.y, fac.fitted(y, penalty) / weight) * weight
    return y


def _left_out(
    fac: Factored,
    rows: Rows,
    penalty: float,
    settings: Settings,
    groups: list[npt.NDArray[np.int64]],
    y: Floats | None = None,
) -> Floats:
    """Predictions per row of these groups, NaN for the others; with a single group nothing can be left out."""
    y = _settled(fac, rows, penalty, settings) if y is None else y
    if len(groups) < 2:  # noqa: PLR2004
        return fac.fitted(y, penalty) / np.sqrt(rows.weight)[:, None]
    out = np.full(y.shape, np.nan)
    asked = np.concatenate(groups)
    out[asked] = fac.left_out(y, penalty, groups)[asked]
    return out / np.sqrt(rows.weight)[:, None]


def _error(rows: Rows, predicted: Floats) -> float:
    """Weighted mean square of what is missed; a bound that is kept is not missed, and a NaN was not asked."""
    missed = rows.satisfied(rows.y, predicted) - predicted
    missed = np.where((rows.bound == AT_MOST) | (rows.bound == AT_LEAST), missed, rows.y - predicted)
    square = (missed**2).sum(axis=1)
    asked = ~np.isnan(square)
    return float(rows.weight[asked] @ square[asked] / rows.weight[asked].sum())


def _with_tasks(head: Head, examples: Sequence[Example], rows: Rows, left_out: Floats, settings: Settings) -> Head:
    """Add corrections per task, fitted to what was missed of left-out groups; none where they do not help."""
    names = list(dict.fromkeys(one.task for one in examples if not one.told))
    plain = slice(0, rows.plain)
    lessons = []
    for name in names:
        mine = np.flatnonzero(rows.task[plain] == name)
        if len(names) > 1 and len(np.unique(rows.group[mine])) >= FEWEST_PER_TASK:
            lessons.append((name, *_task_rows(head, examples, rows, left_out, name, mine, settings)))
    if not lessons:
        return head
    factors = [(factored(x * w), residual * w, members(group)) for _, x, residual, w, group in lessons]
    scores = {math.inf: sum(float((y**2).sum()) for _, y, _ in factors)}
    for penalty in settings.grid:
        scores[penalty] = sum(float(((f.left_out(y, penalty, g) - y) ** 2).sum()) for f, y, g in factors)
    best = min(scores, key=lambda one: scores[one])
    if scores[best] > (1 - CHANGE_OF_MIND) * scores[math.inf]:
        return head
    tasks = {}
    corrected = left_out.copy()
    for (name, _, _, w, _), (f, y, g) in zip(lessons, factors, strict=True):
        coefficients = f.coefficients(y, best)
        tasks[name] = Linear(coefficients[:-1], coefficients[-1] * CONSTANT)
        mine = np.flatnonzero(rows.task[plain] == name)
        corrected[mine] += (f.left_out(y, best, g) / w)[: len(mine)]
    places, worth = _scaled(rows, corrected, settings)
    return replace(head, tasks=tasks, places=places, worth=worth, about={**head.about, "penalty per task": best})


def _task_rows(
    head: Head,
    examples: Sequence[Example],
    rows: Rows,
    left_out: Floats,
    name: str,
    mine: npt.NDArray[np.int64],
    settings: Settings,
) -> tuple[Floats, Floats, Floats, npt.NDArray[np.str_]]:
    """One task's frames, and other tasks' under its words: columns, what was missed, root weights, groups."""
    x, y = [rows.frames[mine]], [rows.satisfied(rows.y, left_out)[mine] - left_out[mine]]
    weight, group = [rows.weight[mine]], [rows.group[mine]]
    told = [one for one in examples if one.told and one.task == name]
    if told:
        other = rows_of(told, (), settings)
        x.append(other.frames)
        y.append(other.y - head.raw(other.frames))
        weight.append(other.weight)
        group.append(other.group)
    z = (np.concatenate(x) - head.centre) * head.scale
    columns = np.concatenate([z, np.full((len(z), 1), CONSTANT)], axis=1)
    return columns, np.concatenate(y), np.sqrt(np.concatenate(weight))[:, None], np.concatenate(group)
