"""Robometer: progress and success at every frame, and which of two videos is better.

For every time t the authors' protocol shows eight frames spread over 0..t and reads the value at the last one. Here
each frame is encoded once and the windows of all t share their prefixes; the answers are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from demerit.data.arrays import Floats32
from demerit.data.files import read_json
from demerit.data.frames import Images, Indices
from demerit.errors import BadInput
from demerit.models.vlm.backbone import (
    MOST_TOKENS,
    OpenCheckpoint,
    TokenBudget,
    check_prompts,
    choose_device,
    choose_dtype,
    warn_if_slow,
    within_memory,
)
from demerit.models.vlm.checkpoint import HEAD, TRAINING, UNUSED_HEAD, read_checkpoint, tokenizer_path
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.images import grid_size, prefetch_frames, split_batches
from demerit.models.vlm.layers import EIGHT_BITS, KeySlots
from demerit.models.vlm.network import ImageFeatures, VLMNetwork
from demerit.models.vlm.prefix_tree import separate_tree, shared_tree, window
from demerit.models.vlm.prompt import (
    CUT,
    ImageSlot,
    Piece,
    PromptTokenizer,
    TokenBlock,
    build_blocks,
    check_added_tokens,
    check_tokenizer,
    load_prompts,
    user_turn,
)

FEWEST, MOST = 4 * 32 * 32, 16384 * 32 * 32
"""bounds of an image's pixels in the authors' loader"""
PROGRESS, SPLIT, PREFERENCE = "<|prog_token|>", "<|split_token|>", "<|pref_token|>"
HEADS = ("progress", "success", "preference")


@dataclass(frozen=True)
class RobometerHead:
    """Linear, layer norm, gelu, linear (dropout is for training only)."""

    into: tuple[Tensor, Tensor]
    norm: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]

    @classmethod
    def from_weights(cls, name: str, weights: Mapping[str, Tensor]) -> RobometerHead:
        """Take the weights of `progress_head`, `success_head` or `preference_head`."""

        def part(at: int) -> tuple[Tensor, Tensor]:
            return weights[f"{name}_head.{at}.weight"], weights[f"{name}_head.{at}.bias"]

        return cls(part(0), part(1), part(4))

    def __call__(self, states: Tensor) -> Tensor:
        """Return (states, outputs)."""
        x = F.linear(states, *self.into)
        x = F.gelu(F.layer_norm(x, x.shape[-1:], *self.norm))
        return F.linear(x, *self.out)


def expected_heads(hidden: int, bins: int) -> dict[str, tuple[int, ...]]:
    """Return the heads' weights and shapes; the pooling weights are in the file but never used."""
    half = hidden // 2
    shapes: dict[str, tuple[int, ...]] = {UNUSED_HEAD: (1, hidden)}
    for name, out in zip(HEADS, (bins, 1, 1), strict=True):
        shapes |= {f"{name}_head.0.weight": (half, hidden), f"{name}_head.0.bias": (half,)}
        shapes |= {f"{name}_head.1.weight": (half,), f"{name}_head.1.bias": (half,)}
        shapes |= {f"{name}_head.4.weight": (out, half), f"{name}_head.4.bias": (out,)}
    return shapes


def expected_progress(logits: Tensor) -> Tensor:
    """Return the expected progress in 0..1 under the softmax of (states, bins)."""
    places = torch.linspace(0, 1, logits.shape[-1], device=logits.device)
    return logits.float().softmax(-1) @ places


@dataclass(frozen=True)
class RobometerProtocol:
    """How a checkpoint is prompted."""

    frames: int = 8
    also_progress: bool = True
    """preference prompts also ask for the first video's progress, as in training"""

    @property
    def identity(self) -> str:
        """The text that stands for the protocol in a model's identity; changing it makes stored rewards stale."""
        return f"Protocol(frames={self.frames}, also_progress={self.also_progress})"

    def progress_pieces(self, instruction: str, images: Sequence[ImageSlot]) -> list[Piece]:
        """Ask for progress: one block per image, each ending in the token that is read."""
        return user_turn(load_prompts("robometer")["progress"].format(task=instruction), *_show(images, 1))

    def preference_pieces(
        self, instruction: str, first: Sequence[ImageSlot], second: Sequence[ImageSlot]
    ) -> list[Piece]:
        """Ask which video is better; the last block but one ends in the token that is read."""
        prompts = load_prompts("robometer")
        ask = prompts["preference"] + (prompts["also_progress"] if self.also_progress else "")
        return user_turn(
            ask.format(task=instruction),
            prompts["first"],
            *_show(first, 1),
            SPLIT,
            prompts["second"],
            *_show(second, 1 + len(first)),
            prompts["ask"],
            PREFERENCE,
            CUT,
        )


def _show(images: Sequence[ImageSlot], number: int) -> Iterator[Piece]:
    for at, image in enumerate(images, number):
        yield from (load_prompts("robometer")["picture"].format(number=at), image, PROGRESS, CUT)


def image_size(height: int, width: int, factor: int) -> tuple[int, int]:
    """Return the pixels that a frame is resized to: its own, rounded to whole tokens."""
    return grid_size(height, width, factor=factor, low=FEWEST, high=MOST)


@dataclass(frozen=True)
class RobometerOutput:
    """Progress (0..1) and probability of success at some frames."""

    at: Indices
    progress: Floats32
    success: Floats32


class RobometerEngine:
    """A Robometer checkpoint, ready to score."""

    def __init__(
        self,
        network: VLMNetwork,
        heads: Mapping[str, Tensor],
        tokens: PromptTokenizer,
        protocol: RobometerProtocol | None = None,
        at_once: int = MOST_TOKENS,
    ) -> None:
        """Put the parts together.

        Args:
            network: the backbone.
            heads: weights of the three heads by name.
            tokens: the tokenizer with Robometer's own tokens added.
            protocol: how the checkpoint is prompted.
            at_once: tokens computed together; fewer take less memory and a little more time.
        """
        self.network, self.tokens, self.protocol = network, tokens, protocol or RobometerProtocol()
        self._progress, self._success, self._preference = (RobometerHead.from_weights(name, heads) for name in HEADS)
        self.budget = TokenBudget(at_once)
        self.slots = KeySlots(network.shape.text, network.device, network.dtype)

    def encode(self, frames: Images | Iterable[Images], name: str = "") -> tuple[ImageFeatures, tuple[int, int]]:
        """Encode every frame once under the key (name, index); also return an image's token rows and columns."""
        batches = iter(split_batches(frames) if isinstance(frames, np.ndarray) else frames)
        first = next(batches)
        size = image_size(first.shape[1], first.shape[2], self.network.shape.vision.factor)
        ready = prefetch_frames(chain([first], batches), size, "pil", self.network.device)
        return self.network.encode(ready, ((name, at) for at in count())), self.network.shape.vision.grid(*size)

    def dense(
        self, frames: Images | Iterable[Images], instruction: str, stride: int = 1, what: str = "Scoring a video"
    ) -> RobometerOutput:
        """Score every frame from the frames up to it; fewer windows at a time where memory runs out.

        Args:
            frames: (frames, height, width, 3), or batches of that, read in the background.
            instruction: the task.
            stride: score only every N-th frame, and the last.
            what: names the work in an out-of-memory error.
        """
        with within_memory(what):
            images, grid = self.encode(frames)
        prompt = WindowPrompt(self, instruction, grid)
        at = np.unique([*range(0, len(images.rows), stride), len(images.rows) - 1]).astype(np.int32)
        windows = [window(int(last), self.protocol.frames) for last in at]
        # counted as if nothing were shared, which is an upper bound
        lengths = [prompt.length] * len(windows)
        states = self.budget.run(what, lengths, lambda some: self.states(prompt, images, windows[some]))
        return self.read_heads(torch.cat(states), at)

    def read_heads(self, states: Tensor, at: Indices) -> RobometerOutput:
        """Read progress and success off one state per frame."""
        with torch.inference_mode():
            progress = expected_progress(self._progress(states))
            success = self._success(states).float().sigmoid().squeeze(-1)
        return RobometerOutput(at, progress.cpu().numpy(), success.cpu().numpy())

    def states(self, prompt: WindowPrompt, images: ImageFeatures, some: Sequence[tuple[int, ...]]) -> Tensor:
        """Return the states to read for windows: (windows, hidden)."""
        tree = shared_tree([prompt.blocks(frames) for frames in some])
        return self.network.states(tree, images, tree.last_tokens())

    def compare(self, first: Images, second: Images, instruction: str) -> float:
        """Return the probability that the first video is better, asked in this order."""
        parts, slots = [], []
        for name, frames in (("a", first), ("b", second)):
            chosen = window(len(frames) - 1, self.protocol.frames)
            used = sorted(set(chosen))
            images, grid = self.encode(frames[used], name)
            parts.append(images)
            slots.append([ImageSlot((name, used.index(frame)), *grid) for frame in chosen])
        pieces = self.protocol.preference_pieces(instruction, *slots)
        tree = separate_tree([build_blocks(pieces, self.tokens, self.network.shape)[:-1]])
        state = self.network.states(tree, parts[0].append(parts[1]), tree.last_tokens())
        with torch.inference_mode():
            return float(self._preference(state).float().sigmoid())


class WindowPrompt:
    """The progress prompt for one instruction; windows differ only in their images."""

    def __init__(self, engine: RobometerEngine, instruction: str, grid: tuple[int, int], name: str = "") -> None:
        """Build the prompt for images of (rows, columns) tokens."""
        places = [ImageSlot(("place", at), *grid) for at in range(engine.protocol.frames)]
        pieces = engine.protocol.progress_pieces(instruction, places)
        self._blocks = build_blocks(pieces, engine.tokens, engine.network.shape)[:-1]  # the turn's end is never read
        self.length = sum(len(block) for block in self._blocks)
        self._name = name
        self._made: dict[tuple[int, int], TokenBlock] = {}

    def blocks(self, frames: Sequence[int]) -> tuple[TokenBlock, ...]:
        """Return the blocks of a window."""
        return tuple(self._block(at, frame) for at, frame in enumerate(frames))

    def _block(self, at: int, frame: int) -> TokenBlock:
        if (at, frame) not in self._made:
            self._made[at, frame] = self._blocks[at].with_image((self._name, frame))
        return self._made[at, frame]

    def forget(self, before: int) -> None:
        """Drop blocks of frames before this one, except the first frame."""
        for key in [key for key in self._made if 0 < key[1] < before]:
            del self._made[key]


@dataclass(frozen=True, eq=False)
class RobometerCheckpoint(OpenCheckpoint[VLMShape]):
    """A Robometer checkpoint: backbone, heads, tokenizer with added tokens."""

    protocol: RobometerProtocol
    bins: int

    @classmethod
    def open(
        cls,
        name_or_path: str,
        revision: str | None = None,
        *,
        adapter: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> RobometerCheckpoint:
        """Find a checkpoint and check every name and shape; no weights are read yet. Arguments as in `Backbone`."""
        where = choose_device(device)
        kind = choose_dtype(dtype, where, eight_bits=True)  # before gigabytes are downloaded
        checkpoint = read_checkpoint(name_or_path, revision, adapter=adapter)
        facts = checkpoint.facts
        if facts is None:
            expected = "a Robometer checkpoint, with heads for progress, success and preference"
            raise BadInput(name_or_path, expected, "a plain Qwen3-VL")
        shape = VLMShape.from_config(checkpoint.config)
        check_prompts(checkpoint, shape)
        weights = shape.expected_weights(read_out=False) | expected_heads(shape.text.hidden, facts.bins)
        checkpoint.check(weights, gaps=(UNUSED_HEAD,))
        warn_if_slow(weights, where, device)
        added = load_prompts("robometer")["added_tokens"]
        tokens = PromptTokenizer.read(tokenizer_path(checkpoint), added)
        check_added_tokens(tokens, added, shape, name_or_path)
        check_tokenizer(tokens, shape, name_or_path)
        protocol = RobometerProtocol(facts.frames, facts.also_progress)
        return cls(checkpoint, shape, tokens, where, kind, protocol, facts.bins)

    @property
    def zero_at(self) -> str:
        """Where progress was 0 in a training by demerit: at a `clip`'s or `episode`'s first frame; empty if unknown."""
        for folder in (*reversed(self.checkpoint.adapters), self.checkpoint.folder):
            if (folder / TRAINING).is_file():
                recipe = read_json(folder / TRAINING).get("recipe")
                return str(recipe.get("zero_at", "")) if isinstance(recipe, dict) else ""
        return ""

    def engine(self, at_once: int | None = None) -> RobometerEngine:
        """Load the weights; `at_once` overrides the number of tokens computed together."""
        expected = self.shape.expected_weights(read_out=False) | expected_heads(self.shape.text.hidden, self.bins)
        weights = self.load_weights(expected, gaps=(UNUSED_HEAD,))
        heads = {name: weights.pop(name) for name in list(weights) if HEAD.match(name)}
        with within_memory(f"Loading {self.checkpoint.folder}"):
            network = VLMNetwork(self.shape, weights, eight_bits=self.dtype == EIGHT_BITS)
        weights.clear()  # the network has concatenated many of them; free the originals
        budget = TokenBudget.choose(network, asked=at_once)
        return RobometerEngine(network, heads, self.tokens, self.protocol, budget.tokens)

    def identity(self, *more: str) -> str:
        """Hash everything that decides the answers, the protocol included."""
        return super().identity(self.protocol.identity, *more)
