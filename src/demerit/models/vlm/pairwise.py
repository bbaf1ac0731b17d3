"""Pairwise critics: prompts that compare images and are answered with a signed percentage (a "hop").

On other backbones than Qwen3-VL, transformers' own networks run, exact and plain rather than fast:

    internvl_chat   InternVL2: VLAC
    qwen2_5_vl      Qwen2.5-VL: the first Robo-Dopamine models

Every prompt encodes its own images, and prompts of equal length are decoded side by side, without padding. No code of
a checkpoint is run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch

from demerit.data.files import read_json
from demerit.data.frames import Images
from demerit.errors import BadInput, NonFiniteOutput
from demerit.models.vlm.backbone import (
    ON_A_CPU,
    Backbone,
    OpenCheckpoint,
    TokenBudget,
    choose_device,
    choose_dtype,
    warn_if_slow,
    within_memory,
)
from demerit.models.vlm.checkpoint import CONFIG, MERGE_FIRST, TOKENIZER, is_adapter, read_other_family
from demerit.models.vlm.hub import locate_checkpoint
from demerit.models.vlm.images import to_pinned
from demerit.models.vlm.internvl2 import InternVL2Shape
from demerit.models.vlm.layers import VisionFeatures
from demerit.models.vlm.network import ImageFeatures, decode_greedily
from demerit.models.vlm.prefix_tree import shared_tree
from demerit.models.vlm.prompt import (
    ANSWER,
    CUT,
    PIECES,
    ImageSlot,
    Piece,
    PromptTokenizer,
    TokenBlock,
    build_blocks,
    read_piece_tokenizer,
    user_turn,
)
from demerit.models.vlm.qwen25 import Qwen25Shape

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
        features: ImageFeatures | None = None
        for keys in by_size.values():
            more = network.encode(self._batches([images[key] for key in keys]), keys)
            features = more if features is None else features.append(more)
        if features is None:
            raise BadInput("images", "at least one image", "none")
        return features

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
            features = self._encode_missing(encoded, {key: images[key] for keys in questions[some] for key in keys})
            backbone = self.backbone
            tree = shared_tree(prompts[some])
            answers = decode_greedily(backbone.network, tree, features, stops=backbone.stops, most=LONGEST)
            encoded = keep_images(
                features, {key: math.prod(grids[key]) for key in features.rows if last[key] >= some.stop}
            )
            return [backbone.tokens.text(answer.ids) for answer in answers]

        what = f"Answering {len(questions)} prompts about images"
        lengths = [sum(map(len, blocks)) for blocks in prompts]
        return list(chain.from_iterable(self.budget.run(what, lengths, ask)))

    def _encode_missing(self, features: ImageFeatures | None, images: Mapping[Hashable, Images]) -> ImageFeatures:
        new = {key: image for key, image in images.items() if features is None or key not in features.rows}
        if features is None:
            return self.encode(new)
        return features.append(self.encode(new)) if new else features

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


PlainShape = InternVL2Shape | Qwen25Shape
ON_A_GPU = 32_768
"""tokens computed together; halved when memory is short"""
FAMILIES: Mapping[str, type[PlainShape]] = {"internvl_chat": InternVL2Shape, "qwen2_5_vl": Qwen25Shape}


def open_backbone(
    name_or_path: str,
    revision: str | None = None,
    *,
    also: str,
    adapter: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    other_family: str = "",
) -> Backbone | PlainBackbone:
    """Open a Qwen3-VL on the fast engine, or a checkpoint of the family `also` on transformers' own network.

    The other arguments are those of `Backbone.open`.
    """
    folder = locate_checkpoint(name_or_path, revision, weights=False)
    if is_adapter(folder) or read_json(folder / CONFIG).get("model_type") != also:
        return Backbone.open(
            name_or_path, revision, adapter=adapter, device=device, dtype=dtype, other_family=other_family
        )
    if adapter is not None:
        raise BadInput("adapter", f"none for a checkpoint of the family {also} ({MERGE_FIRST})", adapter)
    return PlainBackbone.open(name_or_path, revision, device=device, dtype=dtype)


@dataclass(frozen=True, eq=False)
class PlainBackbone(OpenCheckpoint[PlainShape]):
    """A whole network of another family that answers in text."""

    critic: ClassVar[str] = "pairwise:PlainCritic"
    """answers prompts about images with it"""

    @classmethod
    def open(
        cls, name_or_path: str, revision: str | None = None, *, device: str | None = None, dtype: str | None = None
    ) -> PlainBackbone:
        """Find a checkpoint and check every name and shape; no weights are read yet. Arguments as in `Backbone`."""
        where = choose_device(device)
        kind = choose_dtype(dtype, where)
        folder = locate_checkpoint(name_or_path, revision)
        config = read_json(folder / CONFIG)
        family = FAMILIES[config["model_type"]]
        shape = family.from_config(config)
        expected = shape.expected_weights()
        checkpoint = read_other_family(folder, family.layout, family.rename)
        checkpoint.check(expected)
        warn_if_slow(expected, where, device)
        if (folder / TOKENIZER).is_file() or not (folder / PIECES).is_file():
            tokens = PromptTokenizer.read(folder / TOKENIZER)
        else:
            tokens = read_piece_tokenizer(folder)
        shape.check_tokenizer(tokens, name_or_path)
        return cls(checkpoint, shape, tokens, where, kind)

    @property
    def revision(self) -> str:
        """The hub's commits and the version of the chat template."""
        return f"{self.checkpoint.commits} {self.shape.template}"

    @property
    def factor(self) -> int:
        """Image sides must be multiples of it."""
        return self.shape.factor

    @cached_property
    def network(self) -> Any:
        """Transformers' network with the weights, on the device."""
        weights = self.load_weights(self.shape.expected_weights())
        with within_memory(f"Loading {self.checkpoint.folder}"):
            return self.shape.build(weights, self.tokens)

    @cached_property
    def stops(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        return tuple(self.tokens.id(name) for name in self.shape.stops)


class PlainCritic:
    """Answers prompts with images in them; the interface of `PairwiseCritic`."""

    def __init__(self, backbone: PlainBackbone, prompt: str, system: str = "", at_once: int | None = None) -> None:
        """Take the published prompt; arguments as in `PairwiseCritic`."""
        self.backbone, self._prompt = backbone, prompt
        self._system = system or backbone.shape.system
        self.budget = TokenBudget(at_once or (ON_A_GPU if backbone.device.type == "cuda" else ON_A_CPU))

    def spell(self, keys: Sequence[Hashable], task: str, images: Mapping[Hashable, Images]) -> str:
        """Return one prompt as text, with the tokens of its images."""
        if self.backbone.tokens.has_special(task):
            raise BadInput("instruction", "text without special tokens", repr(task))
        texts = [part.format(task=task) for part in self._prompt.split(MARK)]
        if len(texts) != len(keys) + 1:
            raise BadInput("prompt", f"{len(texts) - 1} images", len(keys))
        shape = self.backbone.shape
        spelled = [shape.spell_image(*images[key].shape[:2]) for key in keys]
        return shape.spell_prompt(self._system, "".join(chain(*zip(texts, [*spelled, ""], strict=True))))

    def answers(
        self, questions: Sequence[Sequence[Hashable]], task: str, images: Mapping[Hashable, Images]
    ) -> list[str]:
        """Decode the answers to several prompts greedily.

        Args:
            questions: the image keys of each prompt, as many as it has places.
            task: the instruction.
            images: by key, of the sizes that the network takes.
        """
        prompts = [self.backbone.tokens.ids(self.spell(keys, task, images)) for keys in questions]
        longest = max(map(len, prompts), default=0) + LONGEST
        if longest > self.backbone.shape.longest:
            raise BadInput("prompt", f"at most {self.backbone.shape.longest} tokens with its answer", longest)

        def ask(some: slice) -> list[str]:
            by_length: dict[int, list[int]] = defaultdict(list)
            for at in range(some.start, some.stop):
                by_length[len(prompts[at])].append(at)
            texts: dict[int, str] = {}
            for group in by_length.values():
                pictures = [images[key] for at in group for key in questions[at]]
                texts |= zip(group, self._decode([prompts[at] for at in group], pictures), strict=True)
            return [texts[at] for at in sorted(texts)]

        what = f"Answering {len(questions)} prompts about images"
        return list(chain.from_iterable(self.budget.run(what, [len(ids) for ids in prompts], ask)))

    @torch.inference_mode()
    def _decode(self, prompts: Sequence[Sequence[int]], images: Sequence[Images]) -> list[str]:
        from transformers import GenerationConfig  # noqa: PLC0415  slow to import

        backbone = self.backbone
        ids = torch.tensor(prompts, device=backbone.device)
        settings = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False,
            max_new_tokens=LONGEST,
            eos_token_id=list(backbone.stops),
            pad_token_id=backbone.stops[0],
            return_dict_in_generate=True,
            output_logits=True,
        )
        output = backbone.network.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=settings,
            **backbone.shape.inputs(ids, images),
        )
        if any(bool(logits.isnan().any()) for logits in output.logits):
            raise NonFiniteOutput  # argmax of NaN is a token that may read as a score
        return [self._read(row) for row in output.sequences[:, ids.shape[1] :].tolist()]

    def _read(self, answer: Sequence[int]) -> str:
        end = next((at for at, token in enumerate(answer) if token in self.backbone.stops), len(answer))
        return self.backbone.tokens.text(answer[:end])
