"""A Qwen3-VL network on one device: pictures to features, trees of blocks to states."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from demerit.errors import BadInput
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.images import pair_patches, patches
from demerit.models.vlm.language import Features, Keys, Language
from demerit.models.vlm.packed import Packed, Past, pack
from demerit.models.vlm.pointwise import Pointwise, can_compile
from demerit.models.vlm.tree import Tree
from demerit.models.vlm.vision import Vision

PAIRS = 5
"""dimensions of a batch whose pictures are two frames each"""


@dataclass(frozen=True)
class Seen:
    """Features of some pictures, and the row where each begins."""

    features: Features
    rows: dict[Hashable, int]

    def and_also(self, more: Seen) -> Seen:
        """Put another's pictures behind these."""
        shift = len(self.features)
        joined = Features(
            torch.cat([self.features.rows, more.features.rows]),
            tuple(torch.cat(pair) for pair in zip(self.features.deep, more.features.deep, strict=True)),
        )
        return Seen(joined, {**self.rows, **{key: row + shift for key, row in more.rows.items()}})


class Network:
    """Runs exactly what the checkpoint defines, each picture and each shared beginning once."""

    def __init__(
        self,
        shape: VLMShape,
        weights: Mapping[str, Tensor],
        *,
        compiled: bool | None = None,
        in_eight_bits: bool = False,
    ) -> None:
        """Take canonical weights (`language_model.*`, `visual.*`, perhaps `lm_head.weight`), all on one device.

        Args:
            shape: from config.json.
            weights: already on the device and in the type that everything is computed in.
            compiled: melt the small sums into kernels; by default on a GPU, but not in float32, which is asked for
                when digits matter more than time.
            in_eight_bits: the language model multiplies in eight bits: an approximation.
        """
        text = {
            name.removeprefix("language_model."): w for name, w in weights.items() if not name.startswith("visual.")
        }
        seeing = {name.removeprefix("visual."): w for name, w in weights.items() if name.startswith("visual.")}
        self.shape = shape
        self.device = text["embed_tokens.weight"].device
        self.dtype = text["embed_tokens.weight"].dtype
        pointwise = Pointwise(self._worth_compiling() if compiled is None else compiled)
        self.language = Language(shape.text, text, pointwise, in_eight_bits=in_eight_bits)
        self.vision = Vision(shape.vision, seeing, pointwise)

    def _worth_compiling(self) -> bool:
        return self.device.type == "cuda" and self.dtype != torch.float32 and can_compile()

    @torch.inference_mode()
    def look(self, batches: Iterable[Tensor], keys: Iterable[Hashable]) -> Seen:
        """Encode pictures.

        Args:
            batches: uint8 (pictures, height, width, 3), sides multiples of the factor, all of one size; for videos
                (pictures, 2, height, width, 3), two frames a picture.
            keys: one name a picture, at least as many as there are pictures.
        """
        parts, size = [], None
        for batch in batches:
            size = size or batch.shape[-3:-1]
            if batch.shape[-3:-1] != size:
                raise BadInput("pictures", "pictures of one size", {tuple(size), tuple(batch.shape[-3:-1])})
            parts.append(self._encoded(batch))
        if size is None:
            raise BadInput("pictures", "at least one picture", "none")
        rows, columns = self.shape.vision.grid(*size)
        each = rows * columns
        features = Features(
            torch.cat([part.rows for part in parts]),
            tuple(torch.cat(layer) for layer in zip(*(part.deep for part in parts), strict=True)),
        )
        return Seen(features, {key: row for row, key in zip(range(0, len(features), each), keys, strict=False)})

    def _encoded(self, batch: Tensor) -> Features:
        vision = self.shape.vision
        on_device = batch.to(self.device, non_blocking=True)
        if batch.ndim == PAIRS:
            flat = pair_patches(*on_device.unbind(1), patch=vision.patch, merge=vision.merge)
        else:
            flat = patches(on_device, patch=vision.patch, merge=vision.merge, temporal=vision.temporal)
        return self.vision.features(flat, *vision.grid(*batch.shape[-3:-1]))

    @torch.inference_mode()
    def states(self, tree: Tree, seen: Seen | None, wanted: Sequence[tuple[int, int]]) -> Tensor:
        """Return the last states of (segment, token) pairs: (wanted, hidden)."""
        packed = self._packed(tree, seen, wanted)
        return self.language.states(packed, seen.features if seen else None)

    @torch.inference_mode()
    def states_and_keys(
        self, tree: Tree, seen: Seen | None, wanted: Sequence[tuple[int, int]], past: tuple[Past, Keys] | None = None
    ) -> tuple[Tensor, Keys, Packed]:
        """Return the wanted states, the keys of all new tokens, and how the tokens were laid."""
        packed = self._packed(tree, seen, wanted, past[0] if past else None)
        features = seen.features if seen else None
        states, keys = self.language.states_and_keys(packed, features, past[1] if past else None)
        return states, keys, packed

    def _packed(
        self, tree: Tree, seen: Seen | None, wanted: Sequence[tuple[int, int]], past: Past | None = None
    ) -> Packed:
        return pack(tree, seen.rows if seen else {}, wanted, past)
