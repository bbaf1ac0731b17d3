"""Open a checkpoint: check every name and shape at once, put the weights on a device when they are first needed.

A token batch is picked that fits in memory; it is halved after an out-of-memory error.
"""

from __future__ import annotations

import hashlib
import math
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from demerit.data.files import read_json
from demerit.data.frames import short_hash
from demerit.data.splits import SEEN, SeenEpisodes
from demerit.errors import BadInput, OutOfMemory, PerformanceWarning
from demerit.models.vlm.checkpoint import CONFIG, TRAINING, Checkpoint, is_adapter, read_checkpoint, tokenizer_path
from demerit.models.vlm.config import QWEN3, QWEN25, VLMShape
from demerit.models.vlm.hub import locate_checkpoint
from demerit.models.vlm.images import VideoBounds
from demerit.models.vlm.layers import EIGHT_BITS, can_compile
from demerit.models.vlm.network import VLMNetwork
from demerit.models.vlm.prompt import TEMPLATE, PromptTokenizer, check_tokenizer

if TYPE_CHECKING:
    from demerit.models.vlm.network import VLMNetwork

MOST_TOKENS = 131_072
"""computed together on a large GPU"""
FEWEST_TOKENS = 4096
"""smallest budget to choose or remember; below this a layer is slow and saves little memory"""
ON_A_CPU = 8192
SHARE = 0.6
"""of the free memory that tokens may take"""
CPU_OUT_OF_MEMORY = "can't allocate memory"
"""torch's message on a CPU"""

Made = TypeVar("Made")


@contextmanager
def within_memory(what: str) -> Iterator[None]:
    """Turn an out-of-memory error inside the block into OutOfMemory(what, ...); other errors pass.

    The failed attempt's tensors are freed, so that the caller may retry with less.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        detail = _detail(error)
        # the traceback keeps every local tensor of the failed frames alive
        traceback.clear_frames(error.__traceback__)
        failed = OutOfMemory(what, detail)
    else:
        return
    # raised outside the handler, so that the old error is not kept as its context
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise failed


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and CPU_OUT_OF_MEMORY in str(error)


def _detail(error: BaseException) -> str:
    """Keep the allocator's figures (its first two sentences), not its advice."""
    sentences = " ".join(str(error).split()).removeprefix("CUDA out of memory. ").split(". ")
    return ". ".join(sentences[:2]).rstrip(".") or type(error).__name__


@dataclass
class TokenBudget:
    """How many tokens are computed together."""

    tokens: int = MOST_TOKENS

    def __post_init__(self) -> None:
        """Require at least one token."""
        if self.tokens < 1:
            raise BadInput("at_once", "a number of tokens >= 1", self.tokens)

    @classmethod
    def choose(cls, network: VLMNetwork, *, asked: int | None = None, keeping: bool = False) -> TokenBudget:
        """Choose what fits in a GPU's memory next to the weights; few tokens on a CPU.

        Args:
            network: its weights are on the device already.
            asked: a number of tokens that overrides the choice.
            keeping: the keys of all layers are kept, for decoding.
        """
        if asked is not None:
            return cls(asked)
        if network.device.type != "cuda":
            return cls(ON_A_CPU)
        size = torch.finfo(network.dtype).bits // 8
        fits = int(SHARE * _free_bytes(network.device) / (numbers_per_token(network.shape, keeping=keeping) * size))
        return cls(max(FEWEST_TOKENS, min(MOST_TOKENS, fits)))

    def portion(self, lengths: Sequence[int], start: int = 0) -> slice:
        """Return the items from `start` on that fit together; at least one."""
        total, end = 0, start
        while end < len(lengths) and (end == start or total + lengths[end] <= self.tokens):
            total += lengths[end]
            end += 1
        return slice(start, end)

    def run(self, what: str, lengths: Sequence[int], work: Callable[[slice], Made]) -> list[Made]:
        """Work through items portion by portion; after an out-of-memory error, continue with half as much.

        Finished portions are kept, and later calls start with the smaller budget. It is an error only if a single item
        does not fit.

        Args:
            what: names the work in the error.
            lengths: tokens of each item.
            work: computes one portion; may be called again for part of a portion that ran out of memory.
        """
        results: list[Made] = []
        start, less = 0, TokenBudget(self.tokens)
        while start < len(lengths):
            some = less.portion(lengths, start)
            try:
                with within_memory(what):
                    results.append(work(some))
            except OutOfMemory:
                if some.stop - some.start == 1:
                    raise
                less.tokens = sum(lengths[some]) // 2
                self.tokens = min(self.tokens, max(FEWEST_TOKENS, less.tokens))
            else:
                start = some.stop
        return results


def _free_bytes(device: torch.device) -> int:
    """Free memory, including what torch has reserved and not allocated."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def numbers_per_token(shape: VLMShape, *, keeping: bool) -> int:
    """Count the values that a token takes while its layer is computed."""
    text = shape.text
    wide, narrow = text.heads * text.head, text.groups * text.head
    # states twice, queries and keys, and then the raw queries with the gathered context, or the MLP's middle
    passing = 2 * text.hidden + 2 * wide + 2 * narrow + max(wide + 8 * narrow, 3 * text.inner)
    # keys and values of every layer, twice while the next token's are appended
    return passing + (2 * text.layers * 2 * narrow if keeping else 0)


END_TOKENS = ("<|im_end|>", "<|endoftext|>")
"""tokens that end an answer"""
IMAGE_SETTINGS = "preprocessor_config.json"
HAS_EIGHT_BITS = (8, 9)
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
    """eight-bit floats: for the language model's matrix products; all else is bfloat16"""

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
            stored = torch.bfloat16 if self.dtype == EIGHT_BITS else self.dtype
            return dict(self.checkpoint.tensors(self.device, stored, expected, gaps=gaps))


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
        trained: bool = False,
    ) -> Backbone:
        """Find a checkpoint and check every name and shape; no weights are read yet.

        Args:
            name_or_path: a folder or a hub id.
            revision: on the hub.
            adapter: folder or hub id of a LoRA adapter to merge.
            device: `cuda`, `cuda:1`, `cpu`; default: a GPU if there is one.
            dtype: bfloat16, float32 or fp8; default: bfloat16 on a GPU, else float32.
            other_family: explanation to add when the checkpoint is of another family.
            trained: allow a Qwen2.5-VL that `demerit train` wrote.
        """
        where = choose_device(device)
        kind = choose_dtype(dtype, where, eight_bits=True)
        _check_family(name_or_path, revision, other_family, (QWEN3, QWEN25) if trained else (QWEN3,))
        checkpoint = read_checkpoint(name_or_path, revision, adapter=adapter)
        shape = VLMShape.from_config(checkpoint.config)
        check_prompts(checkpoint, shape)
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
            return VLMNetwork(self.shape, weights, eight_bits=self.dtype == EIGHT_BITS)

    @cached_property
    def stops(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self.tokens.id(name) for name in END_TOKENS)

    def identity(self, *more: str) -> str:
        """Hash everything that decides the answers, the video bounds included."""
        return super().identity(self.bounds.identity, *more)


def check_prompts(checkpoint: Checkpoint, shape: VLMShape) -> None:
    """Refuse a Qwen2.5-VL that others trained: its prompts are in another form than those of `demerit train`."""
    written_here = any((folder / TRAINING).is_file() for folder in (checkpoint.folder, *checkpoint.adapters))
    if shape.family != QWEN3 and not written_here:
        expected = "a Qwen3-VL, or a Qwen2.5-VL that demerit train wrote (others were prompted differently)"
        raise BadInput(str(checkpoint.folder), expected, f"a {shape.family} without {TRAINING}")


def _check_family(name_or_path: str, revision: str | None, other_family: str, families: Sequence[str]) -> None:
    """Refuse a checkpoint of another family before its weights are downloaded."""
    folder = locate_checkpoint(name_or_path, revision, weights=False)
    if is_adapter(folder) or not (folder / CONFIG).is_file():
        return  # an adapter: its base model is checked later
    family = read_json(folder / CONFIG).get("model_type")
    if family not in families:
        got = f"one of the family {family}" + (f": {other_family}" if other_family else "")
        raise BadInput(name_or_path, f"a checkpoint of the Qwen3-VL family ({' or '.join(families)})", got)


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


def choose_dtype(name: str | None, device: torch.device, *, eight_bits: bool = False) -> torch.dtype:
    """Return a dtype by name; default: bfloat16 on a GPU, else float32. `eight_bits` allows fp8 on new GPUs."""
    if name is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name == "fp8" and eight_bits:
        if device.type != "cuda" or torch.cuda.get_device_capability(device) < HAS_EIGHT_BITS or not can_compile():
            needs = "fp8 needs a GPU of compute capability 8.9 or more, triton and a C compiler"
            raise BadInput("dtype", f"bfloat16 or float32: {needs}", name)
        return EIGHT_BITS
    if name not in DTYPES:
        known = (*DTYPES, "fp8") if eight_bits else DTYPES
        raise BadInput("dtype", f"one of {', '.join(known)}", repr(name))
    return DTYPES[name]


def warn_if_slow(weights: Mapping[str, Sequence[int]], device: torch.device, asked: str | None) -> None:
    """Warn if a large network runs on a CPU because there is no GPU; not if the CPU was asked for."""
    billions = sum(math.prod(shape) for shape in weights.values()) / 1e9
    if device.type == "cpu" and asked is None and billions > 1:
        message = (
            f"No GPU found: {billions:.1f} billion weights on a CPU take minutes per frame (device=cpu silences this)."
        )
        warnings.warn(message, PerformanceWarning, stacklevel=3)
