"""Critics that compare: pictures among words, several such questions side by side, answers as signed percentages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
import torch

from demerit.errors import BadInput
from demerit.frames import Images
from demerit.vlm.backbone import Backbone
from demerit.vlm.decode import greedy
from demerit.vlm.memory import within_memory
from demerit.vlm.network import Seen
from demerit.vlm.prompt import ANSWER, CUT, Block, Picture, Piece, laid_out, user_turn
from demerit.vlm.sending import ready
from demerit.vlm.tree import shared

MARK = "<image>"
LONGEST = 32
"""tokens of an answer at which it is cut off; a signed percentage in its tags has about ten"""
TOKENS_AT_ONCE = 32_768
TOGETHER = 64
"""pictures that go through the vision tower at once"""
HUNDRED = 100.0
TAGGED = re.compile(r"<score>\s*([+-]?\d+(?:\.\d+)?)\s*%?\s*(?:</score>|$)")
BARE = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*%?\s*(?:</score>)?\s*")


def percent_in(text: str) -> float | None:
    """Return a signed percentage as a share from -1 to 1; None where the answer is anything else."""
    tagged = TAGGED.findall(text)
    bare = BARE.fullmatch(text)
    said = tagged[-1] if tagged else bare.group(1) if bare else None
    return None if said is None else min(max(float(said), -HUNDRED), HUNDRED) / HUNDRED


class Critic:
    """A Qwen3-VL that answers questions with pictures in them."""

    def __init__(self, backbone: Backbone, prompt: str, system: str = "") -> None:
        """Take the words that the checkpoint was trained with; <image> stands for each picture."""
        self.backbone, self._prompt, self._system = backbone, prompt, system

    def look(self, pictures: Mapping[Hashable, Images]) -> tuple[Seen, dict[Hashable, tuple[int, int]]]:
        """Encode (height, width, 3) pictures once each, equal sizes together; return the grid of each as well."""
        network = self.backbone.network
        alike: dict[tuple[int, ...], list[Hashable]] = defaultdict(list)
        for key, picture in pictures.items():
            alike[picture.shape].append(key)
        seen: Seen | None = None
        grids: dict[Hashable, tuple[int, int]] = {}
        for shape, keys in alike.items():
            more = network.look(self._batches([pictures[key] for key in keys]), keys)
            seen = more if seen is None else seen.and_also(more)
            grids |= dict.fromkeys(keys, self.backbone.shape.vision.grid(*shape[:2]))
        if seen is None:
            raise BadInput("pictures", "at least one picture", "none")
        return seen, grids

    def _batches(self, pictures: Sequence[Images]) -> Iterator[torch.Tensor]:
        for start in range(0, len(pictures), TOGETHER):
            yield ready(np.stack(pictures[start : start + TOGETHER]), self.backbone.device)

    def answers(
        self, questions: Sequence[Sequence[Hashable]], task: str, pictures: Mapping[Hashable, Images]
    ) -> list[str]:
        """Ask about several rows of pictures; what the questions share is computed once.

        Args:
            questions: the keys of each question's pictures, as many as the prompt has places.
            task: the instruction.
            pictures: by key, sides multiples of a token's.
        """
        said: list[str] = []
        with within_memory(f"Asking {len(questions)} questions about pictures"):
            seen, grids = self.look(pictures)
            prompts = [self.blocks(keys, task, grids) for keys in questions]
            longest = max(sum(map(len, blocks)) for blocks in prompts)
            many = max(1, TOKENS_AT_ONCE // longest)
            for start in range(0, len(prompts), many):
                tree = shared(prompts[start : start + many])
                found = greedy(self.backbone.network, tree, seen, stops=self.backbone.stops, most=LONGEST)
                said += [self.backbone.tokens.text(one.ids) for one in found]
        return said

    def blocks(
        self, keys: Sequence[Hashable], task: str, grids: Mapping[Hashable, tuple[int, int]]
    ) -> tuple[Block, ...]:
        """Lay one question out: a block ends behind every picture."""
        texts = [part.format(task=task) for part in self._prompt.split(MARK)]
        if len(texts) != len(keys) + 1:
            raise BadInput("a question", f"{len(texts) - 1} pictures", len(keys))
        pieces: list[Piece] = [texts[0]]
        for key, text in zip(keys, texts[1:], strict=True):
            pieces += [Picture(key, *grids[key]), CUT, text]
        system = [f"<|im_start|>system\n{self._system}<|im_end|>\n"] if self._system else []
        return laid_out([*system, *user_turn(*pieces, then=ANSWER)], self.backbone.tokens, self.backbone.shape)
