"""Critics that compare: pictures among words, several such questions side by side, answers as signed percentages."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import torch

from demerit.data.frames import Images
from demerit.errors import BadInput
from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.decode import greedy
from demerit.models.vlm.language import Features
from demerit.models.vlm.network import Seen
from demerit.models.vlm.prompt import ANSWER, CUT, Block, Picture, Piece, laid_out, user_turn
from demerit.models.vlm.room import Room
from demerit.models.vlm.sending import ready
from demerit.models.vlm.tree import shared

MARK = "<image>"
LONGEST = 32
"""tokens of an answer at which it is cut off; a signed percentage in its tags has about ten"""
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

    def __init__(self, backbone: Backbone, prompt: str, system: str = "", at_once: int | None = None) -> None:
        """Take the words that the checkpoint was trained with; <image> stands for each picture.

        Args:
            backbone: the network, with words.
            prompt: the question.
            system: what comes before it, if anything.
            at_once: tokens computed together; what fits, if none is given.
        """
        self.backbone, self._prompt, self._system, self._at_once = backbone, prompt, system, at_once

    @cached_property
    def room(self) -> Room:
        """How many tokens of questions are answered side by side."""
        return Room.beside(self.backbone.network, asked=self._at_once, keeping=True)

    def grids(self, pictures: Mapping[Hashable, Images]) -> dict[Hashable, tuple[int, int]]:
        """Return the rows and columns of each picture's tokens."""
        return {key: self.backbone.shape.vision.grid(*picture.shape[:2]) for key, picture in pictures.items()}

    def look(self, pictures: Mapping[Hashable, Images]) -> Seen:
        """Encode (height, width, 3) pictures once each, equal sizes together."""
        network = self.backbone.network
        alike: dict[tuple[int, ...], list[Hashable]] = defaultdict(list)
        for key, picture in pictures.items():
            alike[picture.shape].append(key)
        seen: Seen | None = None
        for keys in alike.values():
            more = network.look(self._batches([pictures[key] for key in keys]), keys)
            seen = more if seen is None else seen.and_also(more)
        if seen is None:
            raise BadInput("pictures", "at least one picture", "none")
        return seen

    def _batches(self, pictures: Sequence[Images]) -> Iterator[torch.Tensor]:
        for start in range(0, len(pictures), TOGETHER):
            yield ready(np.stack(pictures[start : start + TOGETHER]), self.backbone.device)

    def answers(
        self, questions: Sequence[Sequence[Hashable]], task: str, pictures: Mapping[Hashable, Images]
    ) -> list[str]:
        """Ask about several rows of pictures; what questions share is computed once, as far as they are asked together.

        Pictures are encoded when they are first asked about, and let go when no later question shows them.

        Args:
            questions: the keys of each question's pictures, as many as the prompt has places.
            task: the instruction.
            pictures: by key, sides multiples of a token's.
        """
        grids = self.grids(pictures)
        prompts = [self.blocks(keys, task, grids) for keys in questions]
        last = {key: at for at, keys in enumerate(questions) for key in keys}
        shown: Seen | None = None

        def ask(some: slice) -> list[str]:
            nonlocal shown
            seen = self._also(shown, {key: pictures[key] for keys in questions[some] for key in keys})
            found = greedy(self.backbone.network, shared(prompts[some]), seen, stops=self.backbone.stops, most=LONGEST)
            shown = only(seen, {key: math.prod(grids[key]) for key in seen.rows if last[key] >= some.stop})
            return [self.backbone.tokens.text(one.ids) for one in found]

        what = f"Asking {len(questions)} questions about pictures"
        lengths = [sum(map(len, blocks)) for blocks in prompts]
        return list(chain.from_iterable(self.room.worked(what, lengths, ask)))

    def _also(self, shown: Seen | None, pictures: Mapping[Hashable, Images]) -> Seen:
        """Encode what was not seen yet."""
        new = {key: picture for key, picture in pictures.items() if shown is None or key not in shown.rows}
        if shown is None:
            return self.look(new)
        return shown.and_also(self.look(new)) if new else shown

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


def only(seen: Seen, sizes: Mapping[Hashable, int]) -> Seen | None:
    """Keep some pictures, each of so many rows; the memory of the others is free."""
    if not sizes:
        return None
    rows = torch.cat([torch.arange(size) + seen.rows[key] for key, size in sizes.items()]).to(seen.features.rows.device)
    starts = np.cumsum([0, *sizes.values()]).tolist()
    with torch.inference_mode():
        features = Features(seen.features.rows[rows], tuple(layer[rows] for layer in seen.features.deep))
    return Seen(features, dict(zip(sizes, starts, strict=False)))
