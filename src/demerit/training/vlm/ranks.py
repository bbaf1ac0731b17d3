"""One machine, or several under torchrun: the same run either way.

With several, accelerate spreads the weights over them (FSDP) and every machine computes its own parts of an update.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from demerit.errors import MissingExtra
from demerit.training.compact.on_device import chosen_device
from demerit.training.vlm.network import BLOCKS, Learner, groups_of
from demerit.training.vlm.recipe import Recipe


class Ranks:
    """Who we are among how many, and what all of us know together."""

    def __init__(self, device: str | None = None) -> None:
        """Find out; `device` is cpu or cuda, by default a GPU where there is one."""
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        kind = chosen_device(device).type
        self._accelerator: Any = None
        if self.count > 1:
            self._accelerator = _accelerator(kind)
            self.device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else _CPU
        else:
            self.device = torch.device(kind)

    @property
    def is_first(self) -> bool:
        """Whether we are the one that writes and prints."""
        return self.rank == 0

    def prepared(self, learner: Learner, recipe: Recipe) -> tuple[Learner, torch.optim.Optimizer]:
        """Put what learns in its place, spread over all of us, with an optimiser for it."""
        if self.count == 1:
            placed = learner.to(self.device)
            fused = self.device.type == "cuda"
            return placed, torch.optim.AdamW(groups_of(placed, recipe), fused=fused)
        _spread_by(self._accelerator, recipe, self.device)
        model, optimiser = self._accelerator.prepare(learner, torch.optim.AdamW(groups_of(learner, recipe)))
        return model, optimiser.optimizer

    def clipped(self, learner: Learner, most: float) -> float:
        """Shorten the gradient to `most`, and return how long it was."""
        long = nn.utils.clip_grad_norm_([one for _, one in learner.learning()], most, error_if_nonfinite=False)
        return float(whole(long))

    def added(self, values: Mapping[str, float]) -> dict[str, float]:
        """Add numbers up over all of us."""
        if self.count == 1:
            return dict(values)
        numbers = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(numbers)
        return dict(zip(values, numbers.tolist(), strict=True))

    def is_finite(self, learner: Learner) -> bool:
        """Whether every weight that learns is a number, on every machine."""
        mine = [getattr(one.detach(), "to_local", one.detach)() for _, one in learner.learning()]
        broken = torch.stack([~torch.isfinite(one).all() for one in mine]).sum()
        return self.added({"broken": float(broken)})["broken"] == 0

    def wait(self) -> None:
        """Wait for the others."""
        if self.count > 1:
            torch.distributed.barrier()

    def close(self) -> None:
        """Say good-bye to the others."""
        if self.count > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


_CPU = torch.device("cpu")


def whole(value: Tensor) -> Tensor:
    """Return all of a tensor that may be spread over machines; all of them must ask together."""
    gather = getattr(value, "full_tensor", None)
    return gather() if gather is not None else value


def spread_like(value: Tensor, like: Tensor) -> Tensor:
    """Spread a whole tensor, which every machine has, as another one is."""
    if not hasattr(like, "full_tensor"):
        return value.to(like.device, like.dtype)
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

    there = value.to(like.device, like.dtype)
    return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def gathered(named: Iterable[tuple[str, Tensor]], *, keep: bool) -> dict[str, Tensor]:
    """Bring whole tensors to the processor's memory of those who keep them; all machines must ask together."""
    found = {}
    for name, value in named:
        full = whole(value.detach())
        if keep:
            found[name] = full.to("cpu", copy=True)
    return found


def _accelerator(kind: str) -> Any:
    try:
        from accelerate import Accelerator  # type: ignore[import-untyped]  # noqa: PLC0415  a part of the extra, slow to import
    except ModuleNotFoundError as missing:
        raise MissingExtra("Training on several GPUs", "vlm-train") from missing
    return Accelerator(cpu=kind == "cpu")


def _spread_by(accelerator: Any, recipe: Recipe, device: torch.device) -> None:
    """Tell accelerate to spread weights block by block.

    It offers this for GPUs alone; the same code runs over processors, which is how it is tested.
    """
    from accelerate import FullyShardedDataParallelPlugin  # noqa: PLC0415
    from accelerate.utils import DistributedType  # type: ignore[import-untyped]  # noqa: PLC0415
    from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: PLC0415

    blocks = [*BLOCKS] if recipe.train_vision else [BLOCKS[0]]
    low = recipe.precision == "bfloat16"
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if low else None
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=blocks,
        cpu_ram_efficient_loading=False,
        mixed_precision_policy=policy,
    )
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
