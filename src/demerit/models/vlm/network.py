"""A network on one device (Qwen3-VL, Qwen2.5-VL): images to features, prefix trees to states, prompts to answers."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from demerit.data.arrays import Ints
from demerit.errors import BadInput, NonFiniteOutput
from demerit.models.vlm.config import QWEN25, VLMShape, WindowedVision
from demerit.models.vlm.images import cut_image_patches, cut_pair_patches
from demerit.models.vlm.layers import (
    EagerOps,
    KeyValues,
    Language,
    Vision,
    VisionFeatures,
    assign_weights,
    choose_ops,
)
from demerit.models.vlm.prefix_tree import PackedTree, PastTokens, PrefixTree, ReadGroup, SegmentGroup, pack
from demerit.models.vlm.qwen25 import Qwen25Shape, WindowedTower, empty_network

PAIRS = 5
"""dimensions of a batch whose images are two frames each"""


@dataclass(frozen=True)
class ImageFeatures:
    """Features of some images, and the row at which each starts."""

    features: VisionFeatures
    rows: dict[Hashable, int]

    def append(self, more: ImageFeatures) -> ImageFeatures:
        """Return these images followed by more."""
        shift = len(self.features)
        joined = join_features([self.features, more.features])
        return ImageFeatures(joined, {**self.rows, **{key: row + shift for key, row in more.rows.items()}})


def join_features(parts: Sequence[VisionFeatures]) -> VisionFeatures:
    """Concatenate features."""
    deep = tuple(torch.cat(layer) for layer in zip(*(part.deep for part in parts), strict=True))
    return VisionFeatures(torch.cat([part.rows for part in parts]), deep)


class VLMNetwork:
    """Computes exactly what the checkpoint defines; every image and every shared prefix once."""

    def __init__(
        self, shape: VLMShape, weights: Mapping[str, Tensor], *, eager: bool = False, eight_bits: bool = False
    ) -> None:
        """Take canonical weights (`language_model.*`, `visual.*`, optionally `lm_head.weight`), all on one device.

        Args:
            shape: from config.json.
            weights: on the device, in the dtype to compute in.
            eager: use torch's functions also on a GPU, to compare with.
            eight_bits: round the language model's matrices, and what is multiplied with them, to eight-bit floats.
        """
        text = {
            name.removeprefix("language_model."): w for name, w in weights.items() if not name.startswith("visual.")
        }
        visual = {name.removeprefix("visual."): w for name, w in weights.items() if name.startswith("visual.")}
        self.shape = shape
        self.device = text["embed_tokens.weight"].device
        self.dtype = text["embed_tokens.weight"].dtype
        ops = EagerOps() if eager else choose_ops(self.device, shape.text)
        self.language = Language(shape.text, text, ops, eight_bits=eight_bits)
        self.vision: Vision | WindowedTower
        if isinstance(shape.vision, WindowedVision):
            self.vision = WindowedTower(shape.vision, visual)
        else:
            self.vision = Vision(shape.vision, visual, ops)

    @torch.inference_mode()
    def encode(self, batches: Iterable[Tensor], keys: Iterable[Hashable]) -> ImageFeatures:
        """Encode images.

        Args:
            batches: uint8 (images, height, width, 3), sides multiples of the factor, all of one size; for videos
                (images, 2, height, width, 3), two frames per image.
            keys: one key per image; extra keys are ignored.
        """
        parts, size = [], None
        for batch in batches:
            size = size or batch.shape[-3:-1]
            if batch.shape[-3:-1] != size:
                raise BadInput("images", "images of one size", {tuple(size), tuple(batch.shape[-3:-1])})
            parts.append(self._encode_batch(batch))
        if size is None:
            raise BadInput("images", "at least one image", "none")
        rows, columns = self.shape.vision.grid(*size)
        features = join_features(parts)
        starts = range(0, len(features), rows * columns)
        return ImageFeatures(features, {key: row for row, key in zip(starts, keys, strict=False)})

    def _encode_batch(self, batch: Tensor) -> VisionFeatures:
        vision = self.shape.vision
        on_device = batch.to(self.device, non_blocking=True)
        if batch.ndim == PAIRS:
            flat = cut_pair_patches(*on_device.unbind(1), patch=vision.patch, merge=vision.merge, scale=vision.scale)
        else:
            flat = cut_image_patches(
                on_device, patch=vision.patch, merge=vision.merge, temporal=vision.temporal, scale=vision.scale
            )
        return self.vision.features(flat, *vision.grid(*batch.shape[-3:-1]))

    @torch.inference_mode()
    def states(self, tree: PrefixTree, images: ImageFeatures | None, wanted: Sequence[tuple[int, int]]) -> Tensor:
        """Return the final states of (segment, token) pairs: (wanted, hidden)."""
        packed = pack(tree, images.rows if images else {}, wanted)
        return self.language.states(packed, images.features if images else None)

    @torch.inference_mode()
    def states_and_keys(
        self,
        tree: PrefixTree,
        images: ImageFeatures | None,
        wanted: Sequence[tuple[int, int]],
        past: tuple[PastTokens, KeyValues] | None = None,
    ) -> tuple[Tensor, KeyValues, PackedTree]:
        """Return the wanted states, the keys and values of all new tokens, and the packed tree."""
        packed = pack(tree, images.rows if images else {}, wanted, past[0] if past else None)
        features = images.features if images else None
        states, keys = self.language.states_and_keys(packed, features, past[1] if past else None)
        return states, keys, packed


@dataclass(frozen=True)
class DecodedAnswer:
    """A decoded answer, without its end token."""

    ids: tuple[int, ...]
    finished: bool
    """the model ended it (not the length limit)"""
    least: float = field(default=0.0, compare=False)
    """log-probability of the token that the model was least sure of; 0 for an empty answer"""


@dataclass
class _OpenAnswer:
    """An answer being decoded: the computed tokens it sees, and its next position."""

    number: int
    sees: Ints
    position: int
    ids: list[int] = field(default_factory=list)
    least: float = 0.0

    def close(self, finished: bool) -> DecodedAnswer:
        return DecodedAnswer(tuple(self.ids), finished, self.least)


@torch.inference_mode()
def decode_greedily(
    network: VLMNetwork, tree: PrefixTree, images: ImageFeatures | None, *, stops: Collection[int], most: int
) -> list[DecodedAnswer]:
    """Decode every sequence of a tree greedily, side by side.

    Args:
        network: with an output matrix.
        tree: the prompts; shared prefixes are computed once.
        images: their images.
        stops: tokens that end an answer.
        most: the longest answer, in tokens.

    Returns:
        One answer per sequence.
    """
    states, keys, packed = network.states_and_keys(tree, images, tree.last_tokens())
    sees = {int(row): reading.sees[at] for reading in packed.readings for at, row in enumerate(reading.rows)}
    writing = [_OpenAnswer(number, sees[number], _next_position(tree, end)) for number, end in enumerate(tree.ends)]
    done: dict[int, DecodedAnswer] = {}
    while True:
        logits = network.language.logits(states)
        likeliest = logits.max(-1)
        if bool(likeliest.values.isnan().any()):
            raise NonFiniteOutput  # argmax of NaN is a token that may read as a grade
        logs = (likeliest.values.float() - logits.float().logsumexp(-1)).tolist()
        for answer, token, log in zip(writing, likeliest.indices.tolist(), logs, strict=True):
            if token in stops:
                done[answer.number] = answer.close(finished=True)
            else:
                answer.ids.append(token)
                answer.least = min(answer.least, log)
                if len(answer.ids) == most:
                    done[answer.number] = answer.close(finished=False)
        writing = [answer for answer in writing if answer.number not in done]
        if not writing:
            return [done[number] for number in range(len(tree.ends))]
        states, keys = _decode_step(network, writing, keys)


def _next_position(tree: PrefixTree, at: int) -> int:
    """Return the position of the token after a segment."""
    segment = tree.segments[at]
    position, blocks = 0, segment.blocks
    while True:
        position += sum(block.advance for block in blocks)
        if segment.parent < 0:
            return position
        parent = tree.segments[segment.parent]
        blocks, segment = parent.blocks[: segment.seen], parent


def _decode_step(network: VLMNetwork, writing: Sequence[_OpenAnswer], keys: KeyValues) -> tuple[Tensor, KeyValues]:
    """Compute the newest token of every open answer; answers that see equally many tokens form a group."""
    by_size: dict[int, list[_OpenAnswer]] = defaultdict(list)
    for answer in writing:
        by_size[len(answer.sees)].append(answer)
    row = {answer.number: at for at, answer in enumerate(writing)}
    ordered: list[_OpenAnswer] = []
    groups, readings = [], []
    for size in sorted(by_size):
        start = len(ordered)
        for answer in by_size[size]:
            answer.sees = np.append(answer.sees, len(keys.layers[0]) + len(ordered))
            ordered.append(answer)
        sees = np.stack([answer.sees for answer in by_size[size]])
        groups.append(SegmentGroup(start, len(sees), 1, sees))
        readings.append(ReadGroup(np.array([row[answer.number] for answer in by_size[size]]), sees))
    place = {answer.number: at for at, answer in enumerate(ordered)}
    nothing = np.empty(0, np.int64)
    packed = PackedTree(
        ids=np.array([answer.ids[-1] for answer in ordered], np.int64),
        positions=np.tile(np.array([answer.position for answer in ordered], np.int64), (3, 1)),
        image_at=nothing,
        image_row=nothing,
        groups=tuple(groups),
        wanted=np.array([place[answer.number] for answer in writing], np.int64),
        readings=tuple(readings),
    )
    states, more = network.language.states_and_keys(packed, None, keys)
    for answer in ordered:
        answer.position += 1
    return states, keys.append(more)


def transformers_network(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Any:
    """Build transformers' own network around canonical weights, without copying them."""
    from transformers import Qwen3VLConfig, Qwen3VLModel  # noqa: PLC0415  part of an extra, slow to import

    plain = {name: weight for name, weight in weights.items() if name.startswith(("language_model.", "visual."))}
    if config["model_type"] == QWEN25:
        return assign_weights(empty_network(Qwen25Shape.from_config(config)).model, plain)
    facts = copy.deepcopy(dict(config))  # the library writes into what it is given
    settings = Qwen3VLConfig(**{name: facts[name] for name in facts if name not in ("architectures", "model_type")})
    with torch.device("meta"):
        network: Any = Qwen3VLModel(settings)  # type: ignore[no-untyped-call]
    return assign_weights(network, plain)
