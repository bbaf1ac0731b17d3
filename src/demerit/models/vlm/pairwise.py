"""Pairwise critics: prompts that compare images and are answered with a signed percentage (a "hop")."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import torch

from demerit.data.frames import Images
from demerit.errors import BadInput
from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.images import to_pinned
from demerit.models.vlm.language import VisionFeatures
from demerit.models.vlm.network import ImageFeatures, decode_greedily
from demerit.models.vlm.prefix_tree import shared_tree
from demerit.models.vlm.prompt import ANSWER, CUT, ImageSlot, Piece, TokenBlock, build_blocks, user_turn
from demerit.models.vlm.token_budget import TokenBudget

MARK = "<image>"
LONGEST = 32
"""longest answer in tokens; a signed percentage in its tags has about ten"""
TOGETHER = 64
"""images per call of the vision tower"""


class PairwiseCritic:
    """A Qwen3-VL that answers prompts with images in them."""

    def __init__(self, backbone: Backbone, prompt: str, system: str = "", at_once: int | None = None) -> None:
        """Take the published prompt.

        Args:
            backbone: the network.
            prompt: with <image> for each image and {task}.
            system: the system prompt, if any.
            at_once: tokens computed together; default: what fits.
        """
        self.backbone, self._prompt, self._system, self._at_once = backbone, prompt, system, at_once

    @cached_property
    def budget(self) -> TokenBudget:
        """How many tokens of prompts are decoded side by side."""
        return TokenBudget.choose(self.backbone.network, asked=self._at_once, keeping=True)

    def grids(self, images: Mapping[Hashable, Images]) -> dict[Hashable, tuple[int, int]]:
        """Return the token rows and columns of each image."""
        return {key: self.backbone.shape.vision.grid(*image.shape[:2]) for key, image in images.items()}

    def encode(self, images: Mapping[Hashable, Images]) -> ImageFeatures:
        """Encode (height, width, 3) images, equal sizes together."""
        network = self.backbone.network
        by_size: dict[tuple[int, ...], list[Hashable]] = defaultdict(list)
        for key, image in images.items():
            by_size[image.shape].append(key)
        found: ImageFeatures | None = None
        for keys in by_size.values():
            more = network.encode(self._batches([images[key] for key in keys]), keys)
            found = more if found is None else found.append(more)
        if found is None:
            raise BadInput("images", "at least one image", "none")
        return found

    def _batches(self, images: Sequence[Images]) -> Iterator[torch.Tensor]:
        for start in range(0, len(images), TOGETHER):
            yield to_pinned(np.stack(images[start : start + TOGETHER]), self.backbone.device)

    def answers(
        self, questions: Sequence[Sequence[Hashable]], task: str, images: Mapping[Hashable, Images]
    ) -> list[str]:
        """Decode the answers to several prompts; prompts of one batch share their common prefix.

        Images are encoded when a prompt first shows them and dropped after the last one that does.

        Args:
            questions: the image keys of each prompt, as many as it has places.
            task: the instruction.
            images: by key; sides are multiples of a token's.
        """
        grids = self.grids(images)
        prompts = [self.blocks(keys, task, grids) for keys in questions]
        last = {key: at for at, keys in enumerate(questions) for key in keys}
        encoded: ImageFeatures | None = None

        def ask(some: slice) -> list[str]:
            nonlocal encoded
            found = self._encode_missing(encoded, {key: images[key] for keys in questions[some] for key in keys})
            backbone = self.backbone
            tree = shared_tree(prompts[some])
            answers = decode_greedily(backbone.network, tree, found, stops=backbone.stops, most=LONGEST)
            encoded = keep_images(found, {key: math.prod(grids[key]) for key in found.rows if last[key] >= some.stop})
            return [backbone.tokens.text(answer.ids) for answer in answers]

        what = f"Answering {len(questions)} prompts about images"
        lengths = [sum(map(len, blocks)) for blocks in prompts]
        return list(chain.from_iterable(self.budget.run(what, lengths, ask)))

    def _encode_missing(self, known: ImageFeatures | None, images: Mapping[Hashable, Images]) -> ImageFeatures:
        new = {key: image for key, image in images.items() if known is None or key not in known.rows}
        if known is None:
            return self.encode(new)
        return known.append(self.encode(new)) if new else known

    def blocks(
        self, keys: Sequence[Hashable], task: str, grids: Mapping[Hashable, tuple[int, int]]
    ) -> tuple[TokenBlock, ...]:
        """Return one prompt's blocks; a block ends after every image."""
        texts = [part.format(task=task) for part in self._prompt.split(MARK)]
        if len(texts) != len(keys) + 1:
            raise BadInput("prompt", f"{len(texts) - 1} images", len(keys))
        pieces: list[Piece] = [texts[0]]
        for key, text in zip(keys, texts[1:], strict=True):
            pieces += [ImageSlot(key, *grids[key]), CUT, text]
        system = [f"<|im_start|>system\n{self._system}<|im_end|>\n"] if self._system else []
        return build_blocks([*system, *user_turn(*pieces, then=ANSWER)], self.backbone.tokens, self.backbone.shape)


def keep_images(images: ImageFeatures, sizes: Mapping[Hashable, int]) -> ImageFeatures | None:
    """Copy some images (`sizes`: rows of each), so that the others' memory is freed."""
    if not sizes:
        return None
    features = images.features
    rows = torch.cat([torch.arange(size) + images.rows[key] for key, size in sizes.items()]).to(features.rows.device)
    starts = np.cumsum([0, *sizes.values()]).tolist()
    with torch.inference_mode():
        kept = VisionFeatures(features.rows[rows], tuple(layer[rows] for layer in features.deep))
    return ImageFeatures(kept, dict(zip(sizes, starts, strict=False)))
