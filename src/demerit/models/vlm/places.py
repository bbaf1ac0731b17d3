"""Where a network runs, and in what kind of number."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import torch

from demerit.errors import BadInput, PerformanceWarning

KINDS = {"bfloat16": torch.bfloat16, "bf16": torch.bfloat16, "float32": torch.float32, "fp32": torch.float32}


def device_named(name: str | None) -> torch.device:
    """Return the device of that name; without one, a GPU where there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BadInput("device", "cpu, cuda or cuda:N", repr(name)) from error
    if device.type not in ("cpu", "cuda"):
        raise BadInput("device", "cpu, cuda or cuda:N", repr(name))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise BadInput("device", f"one of this machine's {count} GPUs" if count else "cpu, as there is no GPU", name)
    return device


def warn_of_a_slow_place(weights: Mapping[str, Sequence[int]], device: torch.device, asked: str | None) -> None:
    """Say so where a large network ends up on a processor because there is no GPU; who asked for it knows."""
    billions = sum(math.prod(shape) for shape in weights.values()) / 1e9
    if device.type == "cpu" and asked is None and billions > 1:
        said = (
            f"No GPU was found: {billions:.1f} billion weights on a processor take minutes a frame (device=cpu: go on)."
        )
        warnings.warn(said, PerformanceWarning, stacklevel=3)


def dtype_named(name: str | None, device: torch.device) -> torch.dtype:
    """Return the kind of number of that name; without one, bfloat16 on a GPU and float32 elsewhere."""
    if name is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in KINDS:
        raise BadInput("dtype", f"one of {', '.join(KINDS)}", repr(name))
    return KINDS[name]


def said_of(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """Say where and how a network runs, for what is said of a reward."""
    return {"device": device.type, "dtype": str(dtype).removeprefix("torch.")}
