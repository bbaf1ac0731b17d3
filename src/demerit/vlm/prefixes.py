"""How likely a yes is after every beginning of a video, each frame encoded once and the shared beginning computed once.

A video is read in pairs of frames. The beginning that ends with frame k shares all its whole pairs with every longer
one, so the pairs are one stem; what hangs on it at each frame is the question, after an odd number of frames behind a
picture of the last frame paired with itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput
from demerit.vlm.backbone import Backbone
from demerit.vlm.memory import within_memory
from demerit.vlm.prompt import Block, Piece, laid_out
from demerit.vlm.tree import Tree, separate, trunk
from demerit.vlm.video import PAIR, Clip, look_at_pairs, pairs_of, video_pieces, video_size

OPENING = "<|im_start|>user\n"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Question:
    """The words around a task, and the answer whose probability is read."""

    statement: str
    question: str
    answer: str

    def asked(self, task: str) -> str:
        """Write the words that come behind the video."""
        return f"{self.statement}{task}{self.question}"


@dataclass(frozen=True)
class Asked:
    """A tree of questions, the tokens that are read and those that must be said there."""

    tree: Tree
    wanted: list[tuple[int, int]]
    answer: tuple[int, ...]


class Prefixes:
    """A Qwen3-VL that says after every frame how likely the answer is."""

    def __init__(self, backbone: Backbone, question: Question) -> None:
        """Take a network with words, and what it is asked."""
        self.backbone, self.question = backbone, question

    def size(self, clip: Clip) -> tuple[int, int]:
        """Return the pixels of every frame: those of the whole video, for all of its beginnings."""
        height, width = clip.frames.shape[1:3]
        factor = self.backbone.shape.vision.factor
        return video_size(len(clip), height, width, factor=factor, bounds=self.backbone.bounds)

    def likely(self, clip: Clip, task: str) -> Floats:
        """Return the log-probability of the answer after each frame: (frames,)."""
        with within_memory(f"Asking after each of {len(clip)} frames"):
            network = self.backbone.network
            pairs = pictures(len(clip))
            seen = look_at_pairs(network, clip.frames, pairs, pairs, self.size(clip))
            asked = self.asked(clip, task)
            states = network.states(asked.tree, seen, asked.wanted)
            said = network.language.words(states).log_softmax(-1).double().cpu().numpy()
        rows = said.reshape(len(clip), len(asked.answer), -1)
        return np.asarray(rows[:, np.arange(len(asked.answer)), list(asked.answer)].sum(axis=1))

    def asked(self, clip: Clip, task: str) -> Asked:
        """Lay the stem and the questions out."""
        grid = self.backbone.shape.vision.grid(*self.size(clip))
        question, answer = answer_tokens(self.backbone, self.question, task)
        ask = Block((*question, *answer[:-1]))
        whole = [pair for pair in pairs_of(len(clip)) if pair[0] != pair[1]]
        stem = self._video(whole, clip, grid, opened=True)
        branches = []
        for last in range(len(clip)):
            seen = (last + 1) // PAIR
            rest = self._video([(last, last)], clip, grid, opened=not seen) if last % PAIR == 0 else ()
            branches.append((seen, (*rest, ask)))
        tree = trunk(stem, branches) if stem else separate([blocks for _, blocks in branches])
        first = len(question) - 1
        wanted = [
            (end, sum(map(len, tree.segments[end].blocks)) - len(ask) + first + at)
            for end in tree.ends
            for at in range(len(answer))
        ]
        return Asked(tree, wanted, answer)

    def _video(
        self, pairs: Sequence[tuple[int, int]], clip: Clip, grid: tuple[int, int], *, opened: bool
    ) -> tuple[Block, ...]:
        if not pairs:
            return ()
        pieces: list[Piece] = list(video_pieces(pairs, pairs, clip.seconds, grid))
        return laid_out([OPENING, *pieces] if opened else pieces, self.backbone.tokens, self.backbone.shape)


def pictures(count: int) -> list[tuple[int, int]]:
    """Name the pictures that so many frames need: whole pairs, and every other frame with itself; `count` in all."""
    whole = [pair for pair in pairs_of(count) if pair[0] != pair[1]]
    alone = [(at, at) for at in range(0, count, PAIR)]
    return [*whole, *alone]


def encodings_alone(count: int) -> int:
    """Count the pictures that are encoded when every beginning of a video is asked about by itself."""
    return sum(len(pairs_of(length)) for length in range(1, count + 1))


def answer_tokens(backbone: Backbone, question: Question, task: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens of the question and those of the answer, which must not melt into each other."""
    asked = backbone.tokens.ids(question.asked(task))
    whole = backbone.tokens.ids(question.asked(task) + question.answer)
    if whole[: len(asked)] != asked or len(whole) == len(asked):
        raise BadInput("tokenizer.json", f"an answer {question.answer!r} of its own tokens", whole[-len(asked) :])
    return tuple(asked), tuple(whole[len(asked) :])
