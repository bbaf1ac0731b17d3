"""The loop that trains small networks: sample ahead, compute, average. It saves now and then and resumes there.

Every training run needs a device, a stop that saves first, a check for NaN, and errors for a full disk.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from demerit.data.files import atomic_file, atomic_folder, make_folder
from demerit.errors import BadInput, Diverged, StoreError, UnknownName, WriteError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STDERR = 2
OPSET = 17


def choose_device(name: str | None) -> torch.device:
    """Return `cpu` or `cuda`; by default a GPU if there is one."""
    available = torch.cuda.is_available()
    if name not in (None, "cpu", "cuda"):
        raise UnknownName("device", str(name), ["cpu", "cuda"])
    if name == "cuda" and not available:
        raise BadInput("device", "a GPU that torch can use (or cpu)", "cuda, and there is none")
    return torch.device(name or ("cuda" if available else "cpu"))


class StopRequest:
    """Set by the first Ctrl-C or SIGTERM. The second one raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        """Start unset."""
        self.is_set = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True
        # os.write, because the signal may arrive in the middle of a print
        os.write(STDERR, b"\ndemerit: stopping after this update and saving; press Ctrl-C again to stop at once\n")


@contextmanager
def catch_stop() -> Iterator[StopRequest]:
    """Catch stop signals within the block. Outside the main thread nothing is caught."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        signal.signal(number, request.handle)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe_nonfinite(losses: Mapping[str, float], gradient: float) -> str:
    """Name the losses, or the gradient, that are not finite; empty if all are."""
    bad = [f"{name} {value}" for name, value in losses.items() if not math.isfinite(value)]
    if bad:
        return f"the loss is not finite ({', '.join(bad)})"
    return "" if math.isfinite(gradient) else f"the gradient is not finite ({gradient})"


@contextmanager
def explain_full_disk(path: Path, kept: str) -> Iterator[None]:
    """Turn a failed write within the block into a WriteError that ends with `kept`."""
    try:
        yield
    except (StoreError, OSError, RuntimeError) as error:
        # the system's error is the cause of ours, and the context of torch.save's
        cause = error if isinstance(error, OSError) else error.__cause__ or error.__context__
        if not isinstance(cause, OSError):
            raise
        raise WriteError(path, cause.strerror or str(cause), kept) from error


@contextmanager
def write_folder(folder: Path, kept: str) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` on success; see `explain_full_disk`."""
    with explain_full_disk(folder, kept), atomic_folder(folder, overwrite=True) as partial:
        yield partial


def load_tensors(path: str | Path, expected: str) -> dict[str, Any]:
    """Read tensors and plain values that torch.save wrote; refuses pickled objects."""
    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BadInput(str(path), expected, error.strerror or error) from error
    except Exception as error:  # torch raises a dozen kinds
        raise BadInput(str(path), expected, f"another file ({type(error).__name__})") from error
    if not isinstance(values, dict):
        raise BadInput(str(path), expected, type(values).__name__)
    return values


def export_graph(
    graph: nn.Module,
    example: tuple[Tensor, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    dynamic: dict[str, dict[int, str]],
) -> None:
    """Write an ONNX graph; `dynamic` names the axes of any size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the older exporter needs no further package
        warnings.simplefilter("ignore", torch.jit._trace.TracerWarning)
        torch.onnx.export(
            graph.eval(),
            example,
            str(path),
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=dynamic,
            opset_version=OPSET,
            dynamo=False,
        )


CHECKPOINT = "checkpoint.pt"
SAVE_EVERY = 60.0
"""seconds between checkpoints"""
WARM_UP = 150
"""steps"""
AHEAD = 8
"""steps sampled ahead"""
LONGEST_GRADIENT = 2.0
DROPOUT_SEED = 2**62
"""added to the seed of a step, so that dropout and augmentation draw different numbers"""


@dataclass(frozen=True)
class LoopProgress:
    """What is reported while training."""

    step: int
    steps: int
    losses: Mapping[str, float]
    frames_per_second: float

    def __str__(self) -> str:
        """Summarise on one line."""
        losses = " ".join(f"{name} {value:.3f}" for name, value in self.losses.items())
        return f"{self.frames_per_second:.0f} frames/s, {losses}"


LoopReport = Callable[[LoopProgress], None]
NetworkT = TypeVar("NetworkT", bound=nn.Module)
SampleT = TypeVar("SampleT")
BatchT = TypeVar("BatchT", bound=Any)
"""the clips of one step on the device; `frames` (n, frames) are their numbers in the corpus"""


class TrainingLoop(ABC, Generic[NetworkT, SampleT, BatchT]):
    """One training run. A subclass says what is sampled and which losses it has."""

    rates = "rate"
    """names of the learning rates in the configuration, for the advice after a divergence"""

    def __init__(
        self,
        network: NetworkT,
        groups: list[dict[str, Any]],
        folder: Path,
        identity: str,
        *,
        seed: int,
        steps: int,
        average: float,
        decay: float,
    ) -> None:
        """Set up, and resume from the folder's checkpoint if it has the same identity.

        Args:
            network: On its device.
            groups: Parameters, each group with its learning rate `lr`.
            folder: Where checkpoints go.
            identity: Describes the configuration and the episodes.
            seed: Of sampling, augmentation and dropout.
            steps: How long to train.
            average: Decay of the moving average of the weights.
            decay: Weight decay.
        """
        self.network, self.folder, self.identity = network, folder, identity
        self.seed, self.steps, self.average = seed, steps, average
        self.device = next(network.parameters()).device
        make_folder(folder)
        self.averaged = deepcopy(network).eval().requires_grad_(False)
        peaks = [{**group, "peak": group["lr"]} for group in groups]
        self.optimiser = torch.optim.AdamW(peaks, weight_decay=decay, fused=self.device.type == "cuda")
        self.step = 0
        self.saved: int | None = None
        """the step of the checkpoint on disk"""
        self._resume()

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> SampleT:
        """Sample one step. Runs in another thread."""

    @abstractmethod
    def to_batch(self, sample: SampleT) -> BatchT:
        """Move a sample to the device."""

    @abstractmethod
    def compute_losses(self, batch: BatchT, generator: torch.Generator) -> dict[str, Tensor]:
        """Compute every loss with its weight; their sum is minimised. `generator` is for augmentation."""

    def run(self, report: LoopReport | None = None, every: int = 100) -> NetworkT:
        """Train to the end and return the averaged network. Ctrl-C saves after the current step."""
        started = saved = time.monotonic()
        first = self.step
        with catch_stop() as stop, self._batches() as batches:
            for batch in batches:
                losses = self._update(batch)
                if time.monotonic() - saved > SAVE_EVERY:
                    self.save()
                    saved = time.monotonic()
                if report is not None and (self.step % every == 0 or self.step == self.steps):
                    speed = (self.step - first) * batch.frames.numel() / (time.monotonic() - started)
                    report(LoopProgress(self.step, self.steps, losses, speed))
                if stop.is_set:
                    self.save()
                    raise KeyboardInterrupt
        weights = (value for value in self.averaged.state_dict().values() if value.is_floating_point())
        if not all(bool(value.isfinite().all()) for value in weights):
            raise self._divergence_error("the weights are not finite", self.step)
        self.save()
        return self.averaged

    def _update(self, batch: BatchT) -> dict[str, float]:
        factor = learning_rate_factor(self.step, self.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * factor
        self.network.train()
        seed = self.seed * 1_000_003 + self.step
        torch.manual_seed(seed + DROPOUT_SEED)
        try:
            losses = self.compute_losses(batch, torch.Generator(self.device).manual_seed(seed))
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise self._divergence_error("the equations within a loss have no solution", self.step + 1) from error
        self.optimiser.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), LONGEST_GRADIENT)
        *values, gradient = torch.stack([*(loss.detach() for loss in losses.values()), norm]).tolist()
        numbers = dict(zip(losses, values, strict=True))
        if problem := describe_nonfinite(numbers, gradient):
            raise self._divergence_error(problem, self.step + 1)
        self.optimiser.step()
        self._average()
        self.step += 1
        return numbers

    def _average(self) -> None:
        keep = min(self.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.averaged.parameters()), list(self.network.parameters()), 1 - keep)
            for ours, theirs in zip(self.averaged.buffers(), self.network.buffers(), strict=True):
                if ours.is_floating_point():
                    ours.lerp_(theirs, 1 - keep)
                else:
                    ours.copy_(theirs)

    def _divergence_error(self, problem: str, step: int) -> Diverged:
        kept = "Nothing was saved" if self.saved is None else f"The checkpoint of update {self.saved} is kept"
        return Diverged(step, problem, f"{kept}, and no model was written.", self.rates)

    @contextmanager
    def _batches(self) -> Iterator[Iterator[BatchT]]:
        """Sample steps ahead in another thread, each from its own seed."""
        with ThreadPoolExecutor(1) as pool:

            def batches() -> Iterator[BatchT]:
                pending: list[Future[SampleT]] = []
                steps = iter(range(self.step, self.steps))
                for _ in range(self.step, self.steps):
                    while len(pending) < AHEAD and (step := next(steps, None)) is not None:
                        rng = np.random.default_rng([self.seed, step])
                        pending.append(pool.submit(self.sample, rng))
                    yield self.to_batch(pending.pop(0).result())

            try:
                yield batches()
            finally:
                pool.shutdown(cancel_futures=True)

    def save(self) -> None:
        """Write a checkpoint; a crash leaves the last one complete."""
        path = self.folder / CHECKPOINT
        state = {
            "identity": self.identity,
            "step": self.step,
            "network": self.network.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        with atomic_file(path) as partial:
            torch.save(state, partial)
        self.saved = self.step

    def _resume(self) -> None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        state = load_tensors(path, "a checkpoint (remove it to start again)")
        if state.get("identity") != self.identity:
            expected = "a checkpoint of this configuration and these episodes (choose another folder)"
            raise BadInput(str(path), expected, "one of others")
        self.step = self.saved = state["step"]
        self.network.load_state_dict(state["network"])
        self.averaged.load_state_dict(state["averaged"])
        self.optimiser.load_state_dict(state["optimiser"])


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the share of the learning rate: linear warm-up, then a cosine down to 0.01."""
    return min(1.0, (step + 1) / WARM_UP) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / max(1, steps))))
