"""A whole Qwen3-VL that can speak: found and checked at once, its weights on a device when they are first needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from demerit.errors import BadInput
from demerit.models.vlm.checkpoint import Checkpoint, read_checkpoint, tokenizer_path
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.hub import located
from demerit.models.vlm.identity import identity
from demerit.models.vlm.layouts import CONFIG
from demerit.models.vlm.memory import within_memory
from demerit.models.vlm.network import Network
from demerit.models.vlm.places import device_named, dtype_named, said_of, warn_of_a_slow_place
from demerit.models.vlm.prompt import TEMPLATE, Tokens, check_tokens
from demerit.models.vlm.stored import has_weights, read_json
from demerit.models.vlm.video import Bounds

FAMILY = "qwen3_vl"
ENDS = ("<|im_end|>", "<|endoftext|>")
"""tokens that end an answer"""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A checkpoint with a tokenizer, and where it runs."""

    checkpoint: Checkpoint
    shape: VLMShape
    tokens: Tokens
    bounds: Bounds
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def open(
        cls,
        name_or_path: str,
        revision: str | None = None,
        *,
        adapter: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        missing: str = "",
    ) -> Backbone:
        """Find a checkpoint and check its every name and shape; no weights are read yet.

        Args:
            name_or_path: a folder or a hub id.
            revision: on the hub.
            adapter: folder or hub id of a LoRA adapter to merge.
            device: `cuda`, `cuda:1`, `cpu`; by default a GPU where there is one.
            dtype: bfloat16 or float32; by default bfloat16 on a GPU.
            missing: what to say of a checkpoint of another family, a clause.
        """
        where = device_named(device)
        kind = dtype_named(dtype, where)
        _check_family(name_or_path, revision, missing)
        checkpoint = read_checkpoint(name_or_path, revision, adapter=adapter)
        shape = VLMShape.from_config(checkpoint.config)
        expected = shape.expected(read_out=True)
        checkpoint.check(expected)
        warn_of_a_slow_place(expected, where, device)
        tokens = Tokens.read(tokenizer_path(checkpoint))
        check_tokens(tokens, shape, name_or_path)
        return cls(checkpoint, shape, tokens, Bounds.of(checkpoint.folder), where, kind)

    @cached_property
    def network(self) -> Network:
        """The weights, on the device."""
        with within_memory(f"Loading {self.checkpoint.folder}"):
            expected = self.shape.expected(read_out=True)
            return Network(self.shape, dict(self.checkpoint.tensors(self.device, self.dtype, expected)))

    @cached_property
    def stops(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self.tokens.id(name) for name in ENDS)

    @property
    def facts(self) -> dict[str, str]:
        """Where and how it runs, for what is said of a reward."""
        return said_of(self.device, self.dtype)

    @property
    def revision(self) -> str:
        """The hub's commit and the version of everything around the prompt."""
        return f"{self.checkpoint.commits} {TEMPLATE}"

    def identity(self, *more: str) -> str:
        """Identify weights and way of asking."""
        return identity(self.checkpoint, self.shape, self.tokens, self.dtype, repr(self.bounds), *more)


def _check_family(name_or_path: str, revision: str | None, missing: str) -> None:
    """Refuse a checkpoint of another family before gigabytes of it are fetched."""
    folder = located(name_or_path, revision, weights=False)
    if not (folder / CONFIG).is_file():
        return  # an adapter alone: it names its model
    family = read_json(folder / CONFIG).get("model_type")
    if family != FAMILY and not _is_ours(folder):
        got = f"one of the family {family}" + (f": {missing}" if missing else "")
        raise BadInput(name_or_path, f"a checkpoint of the Qwen3-VL family ({FAMILY})", got)


def _is_ours(folder: Path) -> bool:
    """Whether only an adapter is here, so that the model's own config is elsewhere."""
    return not has_weights(folder) and (folder / "adapter_config.json").is_file()
