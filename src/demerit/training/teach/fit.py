"""fit_head: features and targets to a head, in closed form and in milliseconds.

Examples become rows of one ridge regression (`build_rows`), the regression is solved with exact held-out predictions
(`FactoredRidge`), and the values are put back on the scale of progress (`fit_scale`), or, where failures are only
flagged, on one where a half separates them from successes (`separate_flags`). Penalty, head kind and task corrections
are chosen by the error on held-out groups, with a prior that decides when there are few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Bools, Floats, Ints
from demerit.data.frames import spread
from demerit.errors import BadInput
from demerit.models.taught.features import FeatureLayout
from demerit.models.taught.head import LinearPart, RbfPart, TaughtHead, fill_missing, probability, rbf_kernel
from demerit.training.teach.data import FrameTargets, TeachConfig

EXACT, AT_MOST, AT_LEAST = 0, -1, 1
CONSTANT = 30.0
"""value of the constant column: large, so that its coefficient is hardly penalised"""
READER = "reader"
"""what is said about it in `TaughtHead.about`"""
NOISE = 0.5
"""error of a difference between two heads on one held-out group; it falls with the root of their number"""
LEAST_MIX = 0.05
"""a head that would count less is left out"""
IMPROVEMENT = 0.02
"""relative error reduction needed to prefer another kind of head over the linear one"""
PRIOR_SLOPE = 0.1
"""relative error reduction needed for a penalty ten times off the prior, per prior group and group"""
FEWEST_PER_TASK = 4
"""groups a task needs for its own correction"""
MOST_HELD_OUT = 64
"""groups held out to choose a penalty by, at most"""
SMALLEST = 1e-12
"""eigenvalues below this share of the largest are rounding noise"""
KNOTS = 8
TRUST = 0.8
"""weight of the monotone curve in the scale, with much evidence; the rest is the line"""
HALF_TRUST_AT = 2
"""groups at which that weight is half as much"""
LEAST_SLOPE = 0.2
STOPPED_BLEND = 1.0
"""weight of `done` in a frame's value where recordings stop when the task is done: only the last frames show it"""
HALF, FINISHED = 0.5, 0.95
"""with flags alone: the value that separates failures from successes, and the value of the median success"""
MISSED_SUCCESS = 0.8
"""cost of a success below a half, against a failure above it: rewarding a failure is worse"""
SMOOTHING = 0.5
"""bandwidth of the error shares at a cut, in deviations of the final values times n^(-1/5)"""
NARROWEST = 0.02
ENDS = np.array([0.0, 1.0])


@dataclass(frozen=True, eq=False)
class FitExample:
    """One episode's features (frames, columns) and targets, or a negative made from one, in the same group."""

    x: npt.NDArray[np.floating]
    targets: FrameTargets
    group: str
    task: str = ""
    wrong_task: bool = False
    """paired with another task's instruction: used only for that task's correction"""
    read: Floats | None = None
    """(frames, 2): what a reader that was not trained on the example's group says"""


PreferencePair = tuple[int, int, bool]
"""a preference between two examples: the index of the better one, of the worse one, and whether it is a tie"""


def fit_head(
    examples: Sequence[FitExample],
    config: TeachConfig | None = None,
    *,
    pairs: Sequence[PreferencePair] = (),
    layout: FeatureLayout | None = None,
) -> TaughtHead:
    """Fit a head to examples.

    Args:
        examples: features and targets per episode; `targets_of(label, length)` makes targets.
        config: how.
        pairs: preferences between examples.
        layout: which columns belong together; None = all are one part.
    """
    config = config or TeachConfig()
    if not examples:
        raise BadInput("teaching", "at least one example", "none")
    config = config.for_episodes(len(examples))
    if any("unfinished" in example.targets.origins for example in examples):
        config = replace(config, blend=STOPPED_BLEND)
    shared = [example for example in examples if not example.wrong_task]
    if len(shared) != len(examples):
        index = {id(example): i for i, example in enumerate(shared)}
        pairs = [(index[id(examples[better])], index[id(examples[worse])], tie) for better, worse, tie in pairs]
    rows = build_rows(shared, pairs, config)
    if not len(rows):
        raise BadInput("teaching", "frames with targets", "none")
    centre, scale = _standardization(rows, layout, config)
    cameras = 1 if layout is None else len(layout.cameras)
    z, share = fill_missing((rows.frames - centre) * scale, cameras)
    best = _choose_candidate(_fit_candidates(z, share, rows, config))
    facts: dict[str, Any] = {"kind": best.kind, "penalties": list(best.penalties), "left-out error": best.error}
    mix, held_out = 0.0, best.held_out
    if rows.read is not None:
        mix, errors = choose_mix(rows, best.held_out)
        held_out = (1 - mix) * best.held_out + mix * rows.combine(rows.read)
        facts[READER] = {"weight": mix, **errors}
    x, y = _fit_row_scale(rows, held_out, config)
    head = TaughtHead(
        *(centre, scale, best.linear, best.rbf),
        blend=config.blend,
        calibration_x=x,
        calibration_y=y,
        mix=mix,
        about=facts,
        cameras=cameras,
    )
    return _add_task_corrections(head, examples, rows, held_out, config)


def choose_mix(rows: RegressionRows, held_out: Floats) -> tuple[float, dict[str, float]]:
    """Choose the weight of the reader against the closed form by what both say of held-out groups.

    With success flags alone, the error is how badly successes and failures are told apart, whatever the scale; else the
    distance to the labels. With few groups both errors are mostly noise, so the weight stays near a half; it goes to 0
    or 1 as the difference outgrows the noise.
    """
    assert rows.read is not None
    by_flags = _flagged_ends(rows)[2]
    error = _confuse_ends if by_flags else _row_error
    closed, read = (error(rows, np.clip(outputs, 0, 1)) for outputs in (held_out, rows.combine(rows.read)))
    noise = NOISE / math.sqrt(len(np.unique(rows.group)))
    relative = (closed - read) / (1 if by_flags else max(closed + read, SMALLEST))
    mix = float(probability(np.array(relative), 1 / noise, 0.0))
    mix = 0.0 if mix < LEAST_MIX else 1.0 if mix > 1 - LEAST_MIX else round(mix, 2)
    return mix, {"closed form": round(closed, 4), "reader": round(read, 4)}


def confusion(failures: Floats, successes: Floats) -> float:
    """1 - AUROC, smoothed: the mean over all pairs of how far a failure is above a success, in pooled deviations."""
    width = max(NARROWEST, SMOOTHING * float(np.concatenate([failures, successes]).std()))
    apart = successes[:, None] - failures[None, :]
    return float(1 - probability(apart, 1 / width, 0.0).mean())


def _confuse_ends(rows: RegressionRows, outputs: Floats) -> float:
    """How badly an output tells the ends of successes from those of flagged failures."""
    finished, flagged, _ = _flagged_ends(rows)
    ends = outputs[rows.ends].mean(axis=1)
    return confusion(ends[flagged], ends[finished])


def _flagged_ends(rows: RegressionRows) -> tuple[Bools, Bools, bool]:
    """Which ends are finished, which are failures of unknown progress, and whether most failures are such."""
    finished, flagged = rows.y[rows.ends, 1] == 1, rows.bound[rows.ends, 0] == AT_MOST
    return finished, flagged, bool(finished.any()) and bool(2 * flagged.sum() > (~finished).sum())


# Rows


@dataclass(frozen=True, eq=False)
class RegressionRows:
    """The rows of the regression; `combine` turns anything computed per frame into rows."""

    frames: Floats
    """(frames, columns), not standardised"""
    plain: int
    """the first `plain` frames are rows; the others only occur in pairs"""
    differences: tuple[tuple[slice, slice], ...]
    """a row each: frames of the better and of the worse episode"""
    y: Floats
    """(rows, 2): progress and done"""
    bound: npt.NDArray[np.int8]
    """(rows, 2): EXACT, AT_MOST or AT_LEAST"""
    weight: Floats
    group: npt.NDArray[np.str_]
    task: npt.NDArray[np.str_]
    frame_weight: Floats = field(repr=False)
    ends: Ints
    """the row of each example's last frame, where that has a target"""
    read: Floats | None = None
    """(frames, 2): what a reader says that has not seen them"""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.y)

    def combine(self, columns: Floats) -> Floats:
        """Turn (frames, q) into (rows, q): frames as they are; pairs as a difference of means."""
        pairs = [columns[a].mean(axis=0) - columns[b].mean(axis=0) for a, b in self.differences]
        return np.concatenate([columns[: self.plain], np.array(pairs).reshape(len(pairs), columns.shape[1])])

    def constant(self) -> Floats:
        """The constant column; 0 for differences."""
        return np.concatenate([np.full(self.plain, CONSTANT), np.zeros(len(self.differences))])[:, None]

    def satisfy(self, y: Floats, predicted: Floats) -> Floats:
        """Replace targets of satisfied bounds by the prediction: only violated bounds pull."""
        return np.where(
            self.bound == AT_MOST,
            np.minimum(self.y, predicted),
            np.where(self.bound == AT_LEAST, np.maximum(self.y, predicted), y),
        )


def build_rows(examples: Sequence[FitExample], pairs: Sequence[PreferencePair], config: TeachConfig) -> RegressionRows:
    """Choose and weigh the frames of all examples and pairs."""
    blocks = [_example_rows(example, config) for example in examples]
    plain = sum(len(x) for x, *_ in blocks)
    ends, differences, start = [], [], plain
    for better, worse, _ in pairs:
        a, b = (_end_rows(examples[i], config) for i in (better, worse))
        differences.append((slice(start, start + len(a)), slice(start + len(a), start + len(a) + len(b))))
        ends += [a, b]
        start += len(a) + len(b)
    y = [rows[1] for rows in blocks] + [np.array([[0.0 if tie else config.margin, 0.0]]) for _, _, tie in pairs]
    bound = [rows[2] for rows in blocks] + [np.full((1, 2), EXACT if tie else AT_LEAST) for _, _, tie in pairs]
    weight = np.concatenate([*(rows[3] for rows in blocks), np.full(len(pairs), config.weights.pair)])
    group = [np.full(len(rows[0]), example.group) for example, rows in zip(examples, blocks, strict=True)]
    task = [np.full(len(rows[0]), example.task) for example, rows in zip(examples, blocks, strict=True)]
    share = config.weights.pair * len(pairs) / max(1, start - plain)
    frame_weight = np.concatenate([weight[:plain], np.full(start - plain, share)])
    columns, outputs = examples[0].x.shape[1], 0 if examples[0].read is None else 2
    frames = np.concatenate([*(rows[0] for rows in blocks), *ends, np.zeros((0, columns + outputs))])
    sizes = np.array([len(rows[0]) for rows in blocks], dtype=np.int64)
    whole = np.array([bool(example.targets.origin[-1]) for example in examples])
    return RegressionRows(
        frames[:, :columns],
        plain,
        tuple(differences),
        np.concatenate([*y, np.zeros((0, 2))]),
        np.concatenate([*bound, np.zeros((0, 2))]).astype(np.int8),
        weight,
        np.concatenate([*group, np.array([examples[better].group for better, _, _ in pairs], dtype=np.str_)]),
        np.concatenate([*task, np.array([examples[better].task for better, _, _ in pairs], dtype=np.str_)]),
        frame_weight,
        (np.cumsum(sizes) - 1)[whole & (sizes > 0)],
        frames[:, columns:] if outputs else None,
    )


def _example_rows(example: FitExample, config: TeachConfig) -> tuple[Floats, Floats, Ints, Floats]:
    targets = example.targets
    at, weight = targets.choose_rows(config.rows, config.last)
    y = np.stack([targets.value[at], targets.done[at]], axis=1)
    bound = np.stack([np.where(targets.capped[at], AT_MOST, EXACT), np.full(len(at), EXACT)], axis=1)
    return _columns(example, at), y, bound, weight


def _end_rows(example: FitExample, config: TeachConfig) -> Floats:
    return _columns(example, slice(-config.ending(len(example.x)), None))


def _columns(example: FitExample, at: Ints | slice) -> Floats:
    """Some frames' features, with what the reader says, if there is one, as further columns."""
    x = np.asarray(example.x[at], dtype=np.float64)
    return x if example.read is None else np.concatenate([x, example.read[at]], axis=1)


def _standardization(rows: RegressionRows, layout: FeatureLayout | None, config: TeachConfig) -> tuple[Floats, Floats]:
    """Return centre and scale of the columns.

    A column that hardly moves in the few taught episodes must not explode on others, so every deviation is
    damped: sqrt(sd^2 + (damping * typical sd)^2), typical over the columns of one part of one camera.
    Frames without a camera (NaN) do not count for its columns.
    """
    columns = rows.frames.shape[1]
    centre, variance = np.zeros(columns), np.zeros(columns)
    width = columns if layout is None else columns // len(layout.cameras)
    for block in (slice(start, start + width) for start in range(0, columns, width)):
        there = ~np.isnan(rows.frames[:, block]).all(axis=1)
        frames, weight = rows.frames[there, block], rows.frame_weight[there]
        centre[block] = weight / weight.sum() @ frames
        variance[block] = weight / weight.sum() @ (frames - centre[block]) ** 2
    weights = np.full(columns, 1 / np.sqrt(columns)) if layout is None else layout.scales(config.parts)
    widths = [columns] if layout is None else list(layout.widths) * len(layout.cameras)
    scale = np.zeros(columns)
    for start, stop in pairwise(np.concatenate([[0], np.cumsum(widths)]).tolist()):
        block = slice(start, stop)
        typical = float(np.sqrt(variance[block].mean()))
        deviation = np.sqrt(variance[block] + (config.damping * typical) ** 2)
        scale[block] = weights[block] / deviation if typical > 0 else 0.0
    return centre, scale


# Ridge regression


@dataclass(frozen=True, eq=False)
class FactoredRidge:
    """Ridge regression, B = argmin sum_i |y_i - x_i B|^2 + penalty |B|^2, factored once for all penalties and targets.

    With X = Z V', V'V = I and Z'Z = diag(s): B = V diag(1 / (s + penalty)) Z' y, and the fitted values are H y with
    H = Z diag(1 / (s + penalty)) Z'. Holding out a group g and refitting misses its rows by (I - H_gg)^-1 (y_g -
    (H y)_g), so held-out predictions need no second fit.
    """

    z: Floats
    """(rows, r)"""
    s: Floats
    """(r,)"""
    v: Floats
    """(columns, r)"""

    def coefficients(self, y: Floats, penalty: float) -> Floats:
        """Return B."""
        return np.asarray(self.v @ self._shrink(y, penalty))

    def predict(self, y: Floats, penalty: float) -> Floats:
        """Return X B."""
        return np.asarray(self.z @ self._shrink(y, penalty))

    def held_out(self, y: Floats, penalty: float, groups: list[Ints]) -> Floats:
        """Predict each group's rows by a fit on all other groups."""
        out = self.predict(y, penalty)
        root = self.z / np.sqrt(self.s + penalty)
        for rows in groups:
            mine = root[rows]
            # I - H_gg is positive definite, but rounding can make it singular for a tiny penalty
            left = np.eye(len(rows)) - mine @ mine.T
            try:
                missed = np.linalg.solve(left, y[rows] - out[rows])
            except np.linalg.LinAlgError:
                missed = np.linalg.lstsq(left, y[rows] - out[rows], rcond=None)[0]
            out[rows] = y[rows] - missed
        return out

    def _shrink(self, y: Floats, penalty: float) -> Floats:
        return np.asarray((self.z.T @ y) / (self.s + penalty)[:, None])


def factor_ridge(x: Floats) -> FactoredRidge:
    """Factor (rows, columns) by the smaller of X'X and XX'."""
    rows, columns = x.shape
    return factor_dual(x) if rows < columns else factor_primal(x)


def factor_primal(x: Floats) -> FactoredRidge:
    """Factor by X'X."""
    s, v = _drop_noise(*np.linalg.eigh(x.T @ x))
    return FactoredRidge(x @ v, s, v)


def factor_dual(x: Floats) -> FactoredRidge:
    """Factor by XX'."""
    s, u = _drop_noise(*np.linalg.eigh(x @ x.T))
    root = np.sqrt(s)
    return FactoredRidge(u * root, s, x.T @ (u / root))


def _drop_noise(s: Floats, vectors: Floats) -> tuple[Floats, Floats]:
    keep = s > SMALLEST * max(float(s[-1]), SMALLEST) if len(s) else np.zeros(0, bool)
    return s[keep], vectors[:, keep]


def group_rows(groups: npt.ArrayLike) -> list[Ints]:
    """Return the row indices of each group."""
    _, code = np.unique(np.asarray(groups), return_inverse=True)
    order = np.argsort(code, kind="stable")
    return list(np.split(order, np.flatnonzero(np.diff(code[order])) + 1))


# Kinds of head


@dataclass(frozen=True, eq=False)
class _HeadCandidate:
    """One kind of head with its best penalty."""

    kind: str
    linear: LinearPart | None
    rbf: RbfPart | None
    held_out: Floats
    """predictions for rows whose group was held out; those of the fit itself when there is one group"""
    error: float
    penalties: tuple[float, ...]


def _fit_candidates(z: Floats, share: Floats | None, rows: RegressionRows, config: TeachConfig) -> list[_HeadCandidate]:
    groups = len(np.unique(rows.group))
    whole = np.arange(len(z)) if share is None else np.flatnonzero((share == 1).all(axis=1))
    wanted = {"linear", "rbf", "both"} if config.kind == "auto" else {config.kind}
    if (config.kind == "auto" and groups < config.rbf_from) or not len(whole):
        wanted = {"linear"}
    linear = _fit_linear(z, rows, config) if wanted & {"linear", "both"} else None
    rbf = _fit_rbf(z, share, whole, rows, config) if wanted & {"rbf", "both"} else None
    candidates = [candidate for candidate in (linear, rbf) if candidate is not None and candidate.kind in wanted]
    if linear is not None and rbf is not None and "both" in wanted:
        mean = (linear.held_out + rbf.held_out) / 2
        penalties = (*linear.penalties, *rbf.penalties)
        candidates.append(_HeadCandidate("both", linear.linear, rbf.rbf, mean, _row_error(rows, mean), penalties))
    return candidates


def _choose_candidate(candidates: Sequence[_HeadCandidate]) -> _HeadCandidate:
    best = candidates[0]
    for candidate in candidates[1:]:
        if candidate.error < best.error * (1 - IMPROVEMENT):
            best = candidate
    return best


def _fit_linear(z: Floats, rows: RegressionRows, config: TeachConfig) -> _HeadCandidate:
    columns = np.concatenate([rows.combine(z), rows.constant()], 1)
    coefficients, held_out, penalty = _fit_ridge(columns, rows, config)
    linear = LinearPart(coefficients[:-1], coefficients[-1] * CONSTANT)
    return _HeadCandidate("linear", linear, None, held_out, _row_error(rows, held_out), (penalty,))


def _fit_rbf(z: Floats, share: Floats | None, whole: Ints, rows: RegressionRows, config: TeachConfig) -> _HeadCandidate:
    """Nystroem approximation: a column per landmark, whose inner products are kernel values.

    Landmarks are some of the `whole` frames, those with all cameras.
    """
    order = whole[np.random.default_rng(config.seed).permutation(len(whole))[: config.landmarks]]
    near = z[np.sort(order)]
    apart = -np.log(np.maximum(rbf_kernel(near, near, 1.0), 1e-300))
    typical = float(np.median(apart[np.triu_indices(len(near), 1)])) if len(near) > 1 else 1.0
    candidates = []
    for width in config.widths:
        gamma = 1 / (2 * width**2 * max(typical, 1e-9))
        s, vectors = np.linalg.eigh(rbf_kernel(near, near, gamma))
        root = vectors / np.sqrt(np.maximum(s, 1e-8))
        columns = np.concatenate([rows.combine(rbf_kernel(z, near, gamma, share) @ root), rows.constant()], axis=1)
        coefficients, held_out, penalty = _fit_ridge(columns, rows, config)
        rbf = RbfPart(near, gamma, root @ coefficients[:-1], coefficients[-1] * CONSTANT)
        candidates.append(_HeadCandidate("rbf", None, rbf, held_out, _row_error(rows, held_out), (penalty,)))
    return min(candidates, key=lambda candidate: candidate.error)


def _fit_ridge(columns: Floats, rows: RegressionRows, config: TeachConfig) -> tuple[Floats, Floats, float]:
    """Choose the penalty; return coefficients, held-out predictions and the penalty."""
    weight = np.sqrt(rows.weight)[:, None]
    ridge = factor_ridge(columns * weight)
    groups = group_rows(rows.group)
    penalty = config.prior if len(config.grid) > 1 else config.grid[0]
    if len(groups) >= config.choose_from and len(config.grid) > 1:
        some = [groups[i] for i in spread(len(groups), MOST_HELD_OUT)]
        errors = {p: _row_error(rows, _predict_held_out(ridge, rows, p, config, some)) for p in config.grid}
        penalty = min(errors, key=lambda p: _prior_factor(p, len(groups), config) * errors[p])
    y = _settle_bounds(ridge, rows, penalty, config)
    held_out = _predict_held_out(ridge, rows, penalty, config, groups, y)
    return ridge.coefficients(y, penalty), held_out, penalty


def _prior_factor(penalty: float, groups: int, config: TeachConfig) -> float:
    return 1 + PRIOR_SLOPE * config.prior_groups / groups * math.log10(penalty / config.prior) ** 2


def _settle_bounds(ridge: FactoredRidge, rows: RegressionRows, penalty: float, config: TeachConfig) -> Floats:
    """Return weighted targets; satisfied bounds follow the prediction, violated ones pull back to the bound."""
    weight = np.sqrt(rows.weight)[:, None]
    y = rows.y * weight
    if bool((rows.bound != 0).any()):
        for _ in range(config.rounds):
            y = rows.satisfy(rows.y, ridge.predict(y, penalty) / weight) * weight
    return y


def _predict_held_out(
    ridge: FactoredRidge,
    rows: RegressionRows,
    penalty: float,
    config: TeachConfig,
    groups: list[Ints],
    y: Floats | None = None,
) -> Floats:
    """Predict the rows of these groups, NaN for the others; a single group cannot be held out."""
    y = _settle_bounds(ridge, rows, penalty, config) if y is None else y
    if len(groups) < 2:  # noqa: PLR2004
        return ridge.predict(y, penalty) / np.sqrt(rows.weight)[:, None]
    out = np.full(y.shape, np.nan)
    asked = np.concatenate(groups)
    out[asked] = ridge.held_out(y, penalty, groups)[asked]
    return out / np.sqrt(rows.weight)[:, None]


def _row_error(rows: RegressionRows, predicted: Floats) -> float:
    """Weighted mean square error; satisfied bounds count 0, NaN predictions are ignored."""
    missed = rows.satisfy(rows.y, predicted) - predicted
    missed = np.where((rows.bound == AT_MOST) | (rows.bound == AT_LEAST), missed, rows.y - predicted)
    square = (missed**2).sum(axis=1)
    asked = ~np.isnan(square)
    return float(rows.weight[asked] @ square[asked] / rows.weight[asked].sum())


# Corrections per task


def _add_task_corrections(
    head: TaughtHead, examples: Sequence[FitExample], rows: RegressionRows, held_out: Floats, config: TeachConfig
) -> TaughtHead:
    """Add corrections per task, fitted to the held-out residuals; none when they do not help.

    With flags alone most residuals are about the way to a success, which flags leave open. So there they must also tell
    held-out successes from failures better, by more than the noise.
    """
    names = list(dict.fromkeys(example.task for example in examples if not example.wrong_task))
    plain = slice(0, rows.plain)
    residuals = []
    for name in names:
        mine = np.flatnonzero(rows.task[plain] == name)
        if len(names) > 1 and len(np.unique(rows.group[mine])) >= FEWEST_PER_TASK:
            residuals.append((name, *_task_residuals(head, examples, rows, held_out, name, mine, config)))
    if not residuals:
        return head
    factors = [(factor_ridge(x * w), residual * w, group_rows(group)) for _, x, residual, w, group in residuals]
    scores = {math.inf: sum(float((y**2).sum()) for _, y, _ in factors)}
    for penalty in config.grid:
        scores[penalty] = sum(float(((f.held_out(y, penalty, g) - y) ** 2).sum()) for f, y, g in factors)
    best = min(scores, key=lambda penalty: scores[penalty])
    if scores[best] > (1 - IMPROVEMENT) * scores[math.inf]:
        return head
    tasks = {}
    corrected = held_out.copy()
    for (name, _, _, w, _), (f, y, g) in zip(residuals, factors, strict=True):
        coefficients = f.coefficients(y, best)
        tasks[name] = LinearPart(coefficients[:-1], coefficients[-1] * CONSTANT)
        mine = np.flatnonzero(rows.task[plain] == name)
        corrected[mine] += (f.held_out(y, best, g) / w)[: len(mine)]
    if _flagged_ends(rows)[2]:
        gain = _confuse_ends(rows, np.clip(held_out, 0, 1)) - _confuse_ends(rows, np.clip(corrected, 0, 1))
        if gain <= NOISE / math.sqrt(len(np.unique(rows.group))):
            return head
    x, y = _fit_row_scale(rows, corrected, config)
    about = {**head.about, "penalty per task": best}
    return replace(head, tasks=tasks, calibration_x=x, calibration_y=y, about=about)


def _task_residuals(
    head: TaughtHead,
    examples: Sequence[FitExample],
    rows: RegressionRows,
    held_out: Floats,
    name: str,
    mine: Ints,
    config: TeachConfig,
) -> tuple[Floats, Floats, Floats, npt.NDArray[np.str_]]:
    """One task's frames, and other tasks' under its instruction: columns, residuals, root weights, groups."""
    x, y = [rows.frames[mine]], [rows.satisfy(rows.y, held_out)[mine] - held_out[mine]]
    weight, group = [rows.weight[mine]], [rows.group[mine]]
    wrong = [example for example in examples if example.wrong_task and example.task == name]
    if wrong:
        other = build_rows(wrong, (), config)
        x.append(other.frames)
        y.append(other.y - head.raw(other.frames, read=other.read))
        weight.append(other.weight)
        group.append(other.group)
    z = head.standardize(np.concatenate(x))
    columns = np.concatenate([z, np.full((len(z), 1), CONSTANT)], axis=1)
    return columns, np.concatenate(y), np.sqrt(np.concatenate(weight))[:, None], np.concatenate(group)


# The scale of progress


def _fit_row_scale(rows: RegressionRows, held_out: Floats, config: TeachConfig) -> tuple[Floats, Floats]:
    plain = slice(0, rows.plain)
    exact = (rows.bound[plain, 0] == EXACT) & ~np.isnan(held_out[plain]).any(axis=1)
    predicted = np.clip(held_out[plain][exact], 0, 1)
    value = (1 - config.blend) * predicted[:, 0] + config.blend * predicted[:, 1]
    groups = len(np.unique(rows.group[plain][exact]))
    final = np.clip(held_out[rows.ends], 0, 1)
    final = (1 - config.blend) * final[:, 0] + config.blend * final[:, 1]
    finished, flagged, by_flags = _flagged_ends(rows)
    if by_flags:
        return separate_flags(final[flagged], final[finished])
    return fit_scale(value, rows.y[plain][exact, 0], rows.weight[plain][exact], groups, config.belief)


def fit_scale(value: Floats, truth: Floats, weight: Floats, groups: int, belief: float) -> tuple[Floats, Floats]:
    """Map fitted values back to progress: a penalty pulls them to the middle and the blend pulls them down.

    A mix of a line and a monotone curve of medians, fitted to held-out values. It is strictly increasing, so the
    order of episodes stays the same.

    Args:
        value: fitted values (0 to 1) of frames whose group was held out.
        truth: their true progress.
        weight: their weights; an episode counts about 1.
        groups: the number of groups they come from.
        belief: strength of the prior on the identity, in episodes.

    Returns:
        Increasing x and the progress at each x; linear in between.
    """
    if not len(value):
        return ENDS, ENDS
    slope, level = _fit_line(value, truth, weight, belief)
    x = np.unique(np.concatenate([ENDS, np.quantile(value, np.linspace(0, 1, KNOTS))]))
    trust = TRUST * groups / (groups + HALF_TRUST_AT)
    at, median = monotone_medians(value, truth, weight)
    return x, (1 - trust) * (level + slope * x) + trust * np.interp(x, at, median)


def find_cut(failures: Floats, successes: Floats) -> float:
    """Find the cut at which the share of failures above equals MISSED_SUCCESS times the share of successes below.

    The shares are smoothed, so that they change continuously with the cut and it is unique.
    """
    both = np.concatenate([failures, successes])
    width = max(NARROWEST, SMOOTHING * float(both.std()) * len(both) ** -0.2)
    low, high = 0.0, 1.0
    for _ in range(40):
        cut = (low + high) / 2
        above = probability(failures, 1 / width, cut).mean()
        below = 1 - probability(successes, 1 / width, cut).mean()
        low, high = (cut, high) if above > MISSED_SUCCESS * below else (low, cut)
    return (low + high) / 2


def separate_flags(failures: Floats, successes: Floats) -> tuple[Floats, Floats]:
    """Make the scale for failures whose final progress is unknown, from the final values of held-out episodes.

    A half lies at the cut between both, and FINISHED at the median success. Exact rows are successes only and would put
    both near 1.
    """
    cut = float(np.clip(find_cut(failures, successes), NARROWEST, 1 - 3 * NARROWEST))
    typical = float(np.clip(np.median(successes), cut + NARROWEST, 1 - NARROWEST))
    return np.array([0.0, cut, typical, 1.0]), np.array([0.0, HALF, FINISHED, 1.0])


def _fit_line(value: Floats, truth: Floats, weight: Floats, belief: float) -> tuple[float, float]:
    """Fit truth = level + slope value with a prior on slope 1 and level 0."""
    columns = np.stack([value, np.ones_like(value)], axis=1)
    squares = columns.T @ (columns * weight[:, None]) + belief * np.eye(2)
    slope, level = np.linalg.solve(squares, columns.T @ (truth * weight) + belief * np.array([1.0, 0.0]))
    return max(float(slope), LEAST_SLOPE), float(level)


def monotone_medians(value: Floats, truth: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Isotonic regression with absolute error: adjacent points are pooled, each pool at its median.

    Returns the mean value and the median truth of each pool.
    """
    order = np.argsort(value, kind="stable")
    v, y, w = value[order], truth[order], weight[order]
    pools: list[tuple[int, int, float]] = []
    for i in range(len(v)):
        pools.append((i, i + 1, float(y[i])))
        while len(pools) > 1 and pools[-2][2] > pools[-1][2]:
            (start, _, _), (_, stop, _) = pools[-2], pools[-1]
            pools[-2:] = [(start, stop, _weighted_median(y[start:stop], w[start:stop]))]
    at = np.array([np.average(v[start:stop], weights=w[start:stop]) for start, stop, _ in pools])
    return at, np.array([median for *_, median in pools])


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
