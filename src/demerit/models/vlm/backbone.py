"""Open a checkpoint: check every name and shape at once, put the weights on a device when they are first needed."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from demerit.data.frames import short_hash
from demerit.data.seen import SEEN, SeenEpisodes
from demerit.data.untrusted import read_json
from demerit.errors import BadInput, PerformanceWarning
from demerit.models.vlm.checkpoint import CONFIG, Checkpoint, is_adapter, read_checkpoint, tokenizer_path
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.hub import locate_checkpoint
from demerit.models.vlm.network import VLMNetwork
from demerit.models.vlm.prompt import TEMPLATE, PromptTokenizer, check_tokenizer
from demerit.models.vlm.token_budget import within_memory
from demerit.models.vlm.video import VideoBounds

FAMILY = "qwen3_vl"
END_TOKENS = ("<|im_end|>", "<|endoftext|>")
"""tokens that end an answer"""
IMAGE_SETTINGS = "preprocessor_config.json"
DTYPES = {"bfloat16": torch.bfloat16, "bf16": torch.bfloat16, "float32": torch.float32, "fp32": torch.float32}


Shape = TypeVar("Shape")


@dataclass(frozen=True, eq=False)
class OpenCheckpoint(Generic[Shape]):
    """A checked checkpoint with its tokenizer, and where it runs."""

    checkpoint: Checkpoint
    shape: Shape
    """its repr is part of the model's identity"""
    tokens: PromptTokenizer
    device: torch.device
    dtype: torch.dtype

    @property
    def facts(self) -> dict[str, str]:
        """Device and dtype, for a reward's `given`."""
        return {"device": self.device.type, "dtype": str(self.dtype).removeprefix("torch.")}

    @property
    def revision(self) -> str:
        """The hub's commits and the version of the chat template."""
        return f"{self.checkpoint.commits} {TEMPLATE}"

    @property
    def seen(self) -> SeenEpisodes:
        """The episodes that the checkpoint and its adapters were trained on, where training recorded them."""
        places = (self.checkpoint.folder, *self.checkpoint.adapters)
        return reduce(or_, (SeenEpisodes.read(place / SEEN) for place in places))

    def identity(self, *more: str) -> str:
        """Hash everything that decides the answers; rewards with another identity are stale.

        That is the weight files, each adapter's scale, the network's shape (config.json), the tokenizer, the image
        settings, the dtype, and the caller's own `more`.
        """
        sources = self.checkpoint.sources
        scales = sorted(f"{name} {delta.scale!r}" for name, source in sources.items() for delta in source.deltas)
        settings = self.checkpoint.folder / IMAGE_SETTINGS
        images = hashlib.sha256(settings.read_bytes()).hexdigest() if settings.is_file() else ""
        weights = self.checkpoint.fingerprint()
        parts = (weights, repr(self.shape), self.tokens.fingerprint, images, str(self.dtype), *scales, *more)
        return short_hash("\n".join(parts).encode())

    def load_weights(self, expected: Mapping[str, Sequence[int]], gaps: Sequence[str] = ()) -> dict[str, Tensor]:
        """Read weights onto the device."""
        with within_memory(f"Loading {self.checkpoint.folder}"):
            return dict(self.checkpoint.tensors(self.device, self.dtype, expected, gaps=gaps))


@dataclass(frozen=True, eq=False)
class Backbone(OpenCheckpoint[VLMShape]):
    """A whole Qwen3-VL that answers in text."""

    critic: ClassVar[str] = "pairwise:PairwiseCritic"
    """answers prompts about images with it"""

    bounds: VideoBounds

    @classmethod
    def open(
        cls,
        name_or_path: str,
        revision: str | None = None,
        *,
        adapter: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        other_family: str = "",
    ) -> Backbone:
        """Find a checkpoint and check every name and shape; no weights are read yet.

        Args:
            name_or_path: a folder or a hub id.
            revision: on the hub.
            adapter: folder or hub id of a LoRA adapter to merge.
            device: `cuda`, `cuda:1`, `cpu`; default: a GPU if there is one.
            dtype: bfloat16 or float32; default: bfloat16 on a GPU, else float32.
            other_family: explanation to add when the checkpoint is of another family.
        """
        where = choose_device(device)
        kind = choose_dtype(dtype, where)
        _check_family(name_or_path, revision, other_family)
        checkpoint = read_checkpoint(name_or_path, revision, adapter=adapter)
        shape = VLMShape.from_config(checkpoint.config)
        expected = shape.expected_weights(read_out=True)
        checkpoint.check(expected)
        warn_if_slow(expected, where, device)
        tokens = PromptTokenizer.read(tokenizer_path(checkpoint))
        check_tokenizer(tokens, shape, name_or_path)
        return cls(checkpoint, shape, tokens, where, kind, VideoBounds.from_folder(checkpoint.folder))

    @property
    def factor(self) -> int:
        """Image sides must be multiples of it."""
        return self.shape.vision.factor

    @cached_property
    def network(self) -> VLMNetwork:
        """The weights, on the device."""
        weights = self.load_weights(self.shape.expected_weights(read_out=True))
        with within_memory(f"Loading {self.checkpoint.folder}"):
            return VLMNetwork(self.shape, weights)

    @cached_property
    def stops(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self.tokens.id(name) for name in END_TOKENS)

    def identity(self, *more: str) -> str:
        """Hash everything that decides the answers, the video bounds included."""
        return super().identity(self.bounds.identity, *more)


def _check_family(name_or_path: str, revision: str | None, other_family: str) -> None:
    """Refuse a checkpoint of another family before its weights are downloaded."""
    folder = locate_checkpoint(name_or_path, revision, weights=False)
    if is_adapter(folder) or not (folder / CONFIG).is_file():
        return  # an adapter: its base model is checked later
    family = read_json(folder / CONFIG).get("model_type")
    if family != FAMILY:
        got = f"one of the family {family}" + (f": {other_family}" if other_family else "")
        raise BadInput(name_or_path, f"a checkpoint of the Qwen3-VL family ({FAMILY})", got)


def choose_device(name: str | None) -> torch.device:
    """Return a device by name; default: a GPU if there is one."""
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


def choose_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """Return a dtype by name; default: bfloat16 on a GPU, else float32."""
    if name is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise BadInput("dtype", f"one of {', '.join(DTYPES)}", repr(name))
    return DTYPES[name]


def warn_if_slow(weights: Mapping[str, Sequence[int]], device: torch.device, asked: str | None) -> None:
    """Warn if a large network runs on a CPU because there is no GPU; not if the CPU was asked for."""
    billions = sum(math.prod(shape) for shape in weights.values()) / 1e9
    if device.type == "cpu" and asked is None and billions > 1:
        said = (
            f"No GPU found: {billions:.1f} billion weights on a CPU take minutes per frame (device=cpu silences this)."
        )
        warnings.warn(said, PerformanceWarning, stacklevel=3)
