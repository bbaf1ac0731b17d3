"""Arrays on their way to a device."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

WORTH_PINNING = 1 << 20
"""bytes; pinning costs a millisecond, and a copy of less than this is over before that"""


def ready(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Make a tensor of an array, in memory that a GPU can fetch by itself where there is much of it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" and tensor.nbytes >= WORTH_PINNING else tensor


def sent(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Send an array without waiting for the device."""
    return ready(array, device).to(device, non_blocking=True)
