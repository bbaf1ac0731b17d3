"""The fitted part of a taught model: features in, progress and success out. Plain numpy arrays, no pickle.

    z = (x - centre) * scale
    linear   y = z B + b
    rbf      y = sum_j exp(-gamma |z - z_j|^2) A_j + a

y is the mean of the parts present, plus the task's own correction z B_task + b_task. Its columns are progress and
`done` (whether the task is finished), both clipped to 0..1.

With a reader (`demerit.models.taught.features`), y = (1 - mix) y + mix times the reader's outputs, before the
corrections.

With several cameras, z B and |z - z_j|^2 are sums over cameras. Where a camera is missing, they are the mean over those
present times the number of cameras: nothing is assumed about the missing one.

    value      = calibration((1 - blend) progress + blend done), piecewise linear, clipped to 0..1
    p(success) = 1 / (1 + exp(-steep (s - middle))) with s = (1 - b) progress + b done, b = max(blend, 1/2)
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats
from demerit.data.files import read_npz
from demerit.errors import BadInput, StoreError
from demerit.models.familiarity import Familiarity

OUTPUTS = 2
ROWS_AT_ONCE = 4096
FAMILIAR = "familiar."
"""prefix of the arrays of `Familiarity` in the file"""
MOST_BYTES = 1024**3
"""a head of 4096 landmarks and three cameras has less"""


@dataclass(frozen=True, eq=False)
class LinearPart:
    """A linear map with a bias."""

    weights: Floats
    """(columns, 2)"""
    bias: Floats
    """(2,)"""

    def __call__(self, z: Floats) -> Floats:
        """Apply the map to (rows, columns)."""
        return np.asarray(z @ self.weights + self.bias)


@dataclass(frozen=True, eq=False)
class RbfPart:
    """A kernel machine on stored frames (landmarks)."""

    near: Floats
    """(m, columns): the landmarks"""
    gamma: float
    weights: Floats
    """(m, 2)"""
    bias: Floats

    def __call__(self, z: Floats, share: Floats | None = None) -> Floats:
        """Apply it to (rows, columns)."""
        blocks = [slice(i, i + ROWS_AT_ONCE) for i in range(0, len(z), ROWS_AT_ONCE)]
        kernels = (rbf_kernel(z[i], self.near, self.gamma, None if share is None else share[i]) for i in blocks)
        return np.concatenate([kernel @ self.weights for kernel in kernels]) + self.bias


def rbf_kernel(a: Floats, b: Floats, gamma: float, share: Floats | None = None) -> Floats:
    """Return exp(-gamma |a_i - b_j|^2) for all pairs of rows; a and `share` as `fill_missing` returns them."""
    own, other = (a**2).sum(1)[:, None], (b**2).sum(1)[None, :]
    if share is not None:
        own = own / share.max(axis=1, keepdims=True)
        other = share @ (b.reshape(len(b), share.shape[1], -1) ** 2).sum(axis=2).T
    return np.asarray(np.exp(-gamma * np.maximum(own + other - 2 * a @ b.T, 0.0)))


def fill_missing(z: Floats, cameras: int) -> tuple[Floats, Floats | None]:
    """Put 0 for the columns of missing cameras, which are NaN, and multiply the others by cameras / cameras present.

    Also return that factor, (rows, cameras), 0 where a camera is missing; None when no row misses any. A row without
    cameras stays NaN.
    """
    blocks = z.reshape(len(z), cameras, -1)
    there = np.asarray(~np.isnan(blocks).all(axis=2))
    there |= ~there.any(axis=1, keepdims=True)
    if there.all():
        return z, None
    share = there * (cameras / there.sum(axis=1, keepdims=True))
    return (np.where(there[:, :, None], blocks, 0.0) * share[:, :, None]).reshape(z.shape), share


@dataclass(frozen=True, eq=False)
class TaughtHead:
    """Everything that teaching fitted."""

    centre: Floats
    scale: Floats
    linear: LinearPart | None = None
    rbf: RbfPart | None = None
    tasks: Mapping[str, LinearPart] = field(default_factory=dict)
    """corrections by task, when several tasks were taught"""
    steep: float = 8.0
    middle: float = 0.5
    blend: float = 0.0
    calibration_x: Floats = field(default_factory=lambda: np.array([0.0, 1.0]))
    calibration_y: Floats = field(default_factory=lambda: np.array([0.0, 1.0]))
    """the value at each x, increasing; linear in between"""
    familiarity: Familiarity | None = None
    """what the taught episodes look like, standardised; None = unknown (heads of earlier versions, few episodes)"""
    mix: float = 0.0
    """weight of the reader's outputs; 0 = there is no reader"""
    about: Mapping[str, Any] = field(default_factory=dict)
    """what was chosen while fitting; not part of the file"""
    cameras: int = 1
    """cameras whose columns these are, in equal parts; not part of the file"""

    def __post_init__(self) -> None:
        """Validate."""
        if self.linear is None and self.rbf is None:
            raise BadInput("a head", "a linear or an rbf part", "neither")
        if self.centre.shape != self.scale.shape or self.centre.ndim != 1:
            raise BadInput("a head", "a centre and a scale per column", f"{self.centre.shape}, {self.scale.shape}")

    @property
    def columns(self) -> int:
        """Number of features per frame."""
        return len(self.centre)

    def standardize(self, x: npt.ArrayLike) -> Floats:
        """Centre and scale (frames, columns); see `fill_missing`."""
        return self._standardize(x)[0]

    def _standardize(self, x: npt.ArrayLike) -> tuple[Floats, Floats | None]:
        rows = np.asarray(x, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.columns:  # noqa: PLR2004
            raise BadInput("features", f"rows of {self.columns} numbers", f"an array of shape {rows.shape}")
        return fill_missing((rows - self.centre) * self.scale, self.cameras)

    def distances(self, x: npt.ArrayLike) -> Floats:
        """Return how far each frame is from the taught ones; empty where that is unknown."""
        return np.empty(0) if self.familiarity is None else self.familiarity.distances(self.standardize(x))

    def raw(self, x: npt.ArrayLike, task: str = "", read: Floats | None = None) -> Floats:
        """Both outputs at every frame, not clipped: (frames, 2). `read` has the reader's, where there is one."""
        z, share = self._standardize(x)
        outputs = [] if self.linear is None else [self.linear(z)]
        outputs += [] if self.rbf is None else [self.rbf(z, share)]
        total = sum(outputs[1:], start=outputs[0]) / len(outputs)
        if self.mix:
            if read is None:
                raise BadInput("a head", "the reader's outputs", "none")
            total = (1 - self.mix) * total + self.mix * read
        return np.asarray(total + self.tasks[task](z)) if task in self.tasks else np.asarray(total)

    def outputs(self, x: npt.ArrayLike, task: str = "", read: Floats | None = None) -> Floats:
        """Progress and `done` at every frame, 0 to 1: (frames, 2)."""
        return np.clip(self.raw(x, task, read), 0.0, 1.0)

    def progress(self, x: npt.ArrayLike, task: str = "") -> Floats:
        """The value of every frame, 0 to 1."""
        return self.value(self.outputs(x, task))

    def value(self, outputs: Floats) -> Floats:
        """The value of frames from both outputs: (frames, 2) to (frames,)."""
        mixed = (1 - self.blend) * outputs[..., 0] + self.blend * outputs[..., 1]
        return np.asarray(np.clip(np.interp(mixed, self.calibration_x, self.calibration_y), 0, 1))

    def score(self, outputs: Floats) -> Floats:
        """The score behind p(success): a mean of progress and `done`, in which `done` counts half or more."""
        share = max(self.blend, 1 / 2)
        return np.asarray((1 - share) * outputs[..., 0] + share * outputs[..., 1])

    def success(self, outputs: Floats) -> Floats:
        """Probability of success from both outputs."""
        return probability(self.score(outputs), self.steep, self.middle)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return every fitted array by its name in the file."""
        arrays: dict[str, npt.NDArray[Any]] = {"centre": self.centre, "scale": self.scale}
        arrays["scalars"] = np.array([self.steep, self.middle, self.blend])
        arrays["places"], arrays["worth"] = self.calibration_x, self.calibration_y
        if self.linear is not None:
            arrays |= {"linear.weights": self.linear.weights, "linear.bias": self.linear.bias}
        if self.rbf is not None:
            arrays |= {"rbf.near": self.rbf.near, "rbf.weights": self.rbf.weights, "rbf.bias": self.rbf.bias}
            arrays["rbf.gamma"] = np.array([self.rbf.gamma])
        if self.mix:
            arrays["mix"] = np.array([self.mix])
        if self.tasks:
            arrays["tasks.names"] = np.array(list(self.tasks))
            arrays["tasks.weights"] = np.stack([part.weights for part in self.tasks.values()])
            arrays["tasks.bias"] = np.stack([part.bias for part in self.tasks.values()])
        if self.familiarity is not None:
            arrays |= {f"{FAMILIAR}{name}": array for name, array in self.familiarity.arrays().items()}
        return arrays

    def content(self) -> bytes:
        """Return the file's bytes; the same arrays give the same bytes."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **self.arrays())  # type: ignore[arg-type]
        return buffer.getvalue()

    @classmethod
    def load(cls, path: Path) -> TaughtHead:
        """Read a head file; refuse missing, damaged or non-finite arrays."""
        try:
            return cls._from_arrays(read_npz(path, MOST_BYTES))
        except (BadInput, ValueError, TypeError, LookupError) as error:
            if not path.exists():
                raise StoreError(path, "the file is missing, so the model cannot be loaded") from None
            raise StoreError(path, f"damaged, or not the head of a taught model ({error})") from error

    @classmethod
    def _from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> TaughtHead:
        columns = len(arrays["centre"])
        shapes = {"linear.weights": (columns, OUTPUTS), "linear.bias": (OUTPUTS,), "rbf.bias": (OUTPUTS,)}
        for name, array in arrays.items():
            if name in shapes and array.shape != shapes[name]:
                raise ValueError(f"{name} has shape {array.shape} instead of {shapes[name]}")
            if array.dtype.kind == "f" and not bool(np.isfinite(array).all()):
                raise ValueError(f"{name} has non-finite values")
        linear = LinearPart(arrays["linear.weights"], arrays["linear.bias"]) if "linear.weights" in arrays else None
        rbf = None
        if "rbf.near" in arrays:
            gamma = float(arrays["rbf.gamma"][0])
            rbf = RbfPart(arrays["rbf.near"].astype(np.float64), gamma, arrays["rbf.weights"], arrays["rbf.bias"])
            if rbf.near.shape[1] != columns or rbf.weights.shape != (len(rbf.near), OUTPUTS):
                raise ValueError("the rbf arrays have different sizes")
        tasks = {}
        if "tasks.names" in arrays:
            rows = zip(arrays["tasks.names"].tolist(), arrays["tasks.weights"], arrays["tasks.bias"], strict=True)
            tasks = {str(name): LinearPart(weights, bias) for name, weights, bias in rows}
        familiar = {name.removeprefix(FAMILIAR): array for name, array in arrays.items() if name.startswith(FAMILIAR)}
        familiarity = Familiarity.from_arrays(familiar) if familiar else None
        if familiarity is not None:
            familiarity.distances(np.zeros((1, columns)))  # the shapes fit
        steep, middle, blend = (float(number) for number in arrays["scalars"])
        fitted = (arrays["centre"], arrays["scale"], linear, rbf, tasks)
        mix = float(arrays["mix"][0]) if "mix" in arrays else 0.0
        return cls(*fitted, steep, middle, blend, arrays["places"], arrays["worth"], familiarity, mix)


def probability(score: Floats, steep: float, middle: float) -> Floats:
    """1 / (1 + exp(-steep (score - middle)))."""
    return np.asarray(1 / (1 + np.exp(-np.clip(steep * (score - middle), -60, 60))))
