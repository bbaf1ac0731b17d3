"""What every training run needs: a device, a stop that saves first, a check for NaN, and errors for a full disk."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from demerit.data.files import atomic_folder
from demerit.errors import BadInput, StoreError, UnknownName, WriteError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STDERR = 2


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
