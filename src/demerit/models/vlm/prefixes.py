"""How likely a yes is after every beginning of a video, each frame encoded once and the shared beginning computed once.

A video is read in pairs of frames. The beginning that ends with frame k shares all its whole pairs with every longer
one, so the pairs are one stem; what hangs on it at each frame is the question, after an odd number of frames behind a
picture of the last frame paired with itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from demerit.data.frames import Images
from demerit.errors import BadInput
from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.images import resized
from demerit.models.vlm.language import Keys
from demerit.models.vlm.network import Seen
from demerit.models.vlm.packed import Past, pack
from demerit.models.vlm.prompt import Block, Piece, laid_out
from demerit.models.vlm.room import Room
from demerit.models.vlm.tree import Tree, separate, trunk
from demerit.models.vlm.video import PAIR, Clip, look_at_pairs, pairs_of, video_pieces, video_size

EVERY = slice(None)
OPENING = "<|im_start|>user\n"
READ = 64
"""answers whose words are read together: each has a number for 150,000 words"""
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
    """The shared pairs, what hangs on them after each frame, and the tokens that must be said there."""

    stem: tuple[Block, ...]
    branches: tuple[tuple[int, tuple[Block, ...]], ...]
    """how many blocks of the stem it sees, and its own"""
    answer: tuple[int, ...]

    def tree(self, some: slice = EVERY, *, kept: bool = False) -> Tree:
        """Lay some branches out, with the stem or on one that was computed before."""
        branches = self.branches[some]
        return trunk(self.stem, branches, kept=kept) if self.stem else separate([blocks for _, blocks in branches])

    def wanted(self, tree: Tree) -> list[tuple[int, int]]:
        """Name the tokens that are read: each stands before one of the answer's."""
        lengths = [(end, sum(map(len, tree.segments[end].blocks))) for end in tree.ends]
        return [(end, length - len(self.answer) + at) for end, length in lengths for at in range(len(self.answer))]


class Prefixes:
    """A Qwen3-VL that says after every frame how likely the answer is.

    The stem's keys are kept while the branches are computed, as many at a time as there is room for; of a branch
    nothing is kept but its answer.
    """

    def __init__(self, backbone: Backbone, question: Question, at_once: int | None = None) -> None:
        """Take a network with words, what it is asked, and how many tokens are computed together (what fits)."""
        self.backbone, self.question, self._at_once = backbone, question, at_once

    @cached_property
    def room(self) -> Room:
        """How many tokens are computed together."""
        return Room.beside(self.backbone.network, asked=self._at_once)

    def size(self, clip: Clip) -> tuple[int, int]:
        """Return the pixels of every frame: those of the whole video, for all of its beginnings."""
        height, width = clip.frames.shape[1:3]
        factor = self.backbone.shape.vision.factor
        return video_size(len(clip), height, width, factor=factor, bounds=self.backbone.bounds)

    def likely(self, clip: Clip, task: str) -> Floats:
        """Return the log-probability of the answer after each frame: (frames,)."""
        what = f"Asking after each of {len(clip)} frames"
        asked = self.asked(clip, task)
        frames = resized(clip.frames, self.size(clip), "torch")
        keys = self._stem(asked.stem, frames, what)
        lengths = [sum(map(len, blocks)) for _, blocks in asked.branches]
        said = self.room.worked(what, lengths, lambda some: self._branches(asked, some, frames, keys))
        return np.concatenate(said)

    def _stem(self, stem: tuple[Block, ...], frames: Images, what: str) -> Keys | None:
        """Compute the keys of all whole pairs, some at a time."""
        keys: Keys | None = None

        def grow(some: slice) -> None:
            nonlocal keys
            before, blocks = stem[: some.start], stem[some]
            done, length = (sum(map(len, part)) for part in (before, blocks))
            past = (Past(done, np.arange(done), sum(block.advance for block in before)), keys) if keys else None
            seen = self._seen(blocks, frames)
            _, more, _ = self.backbone.network.states_and_keys(separate([blocks]), seen, [(0, length - 1)], past)
            keys = keys.joined(more) if keys else more

        self.room.worked(what, list(map(len, stem)), grow)
        return keys

    @torch.inference_mode()
    def _branches(self, asked: Asked, some: slice, frames: Images, keys: Keys | None) -> Floats:
        """Ask after some of the frames."""
        tree = asked.tree(some, kept=keys is not None)
        seen = self._seen([block for _, blocks in asked.branches[some] for block in blocks], frames)
        past = Past(sum(map(len, asked.stem)), np.empty(0, np.int64), 0) if keys else None
        packed = pack(tree, seen.rows if seen else {}, asked.wanted(tree), past)
        language = self.backbone.network.language
        states = language.states(packed, seen.features if seen else None, keys)
        answer = torch.tensor(asked.answer, device=states.device).repeat(READ)[:, None]
        said = [
            language.words(each).log_softmax(-1).gather(1, answer[: len(each)])
            for each in torch.split(states, READ * len(asked.answer))
        ]
        return np.asarray(torch.cat(said).view(-1, len(asked.answer)).double().sum(1).cpu().numpy())

    def _seen(self, blocks: Sequence[Block], frames: Images) -> Seen | None:
        """Encode the pictures in some blocks; frames have their size already."""
        pairs = cast("list[tuple[int, int]]", [block.picture.key for block in blocks if block.picture])
        return look_at_pairs(self.backbone.network, frames, pairs, pairs, frames.shape[1:3]) if pairs else None

    def asked(self, clip: Clip, task: str) -> Asked:
        """Lay the stem and the questions out."""
        grid = self.backbone.shape.vision.grid(*self.size(clip))
        question, answer = answer_tokens(self.backbone, self.question, task)
        ask = Block((*question, *answer[:-1]))
        whole = [pair for pair in pairs_of(len(clip)) if pair[0] != pair[1]]
        branches = []
        for last in range(len(clip)):
            seen = (last + 1) // PAIR
            rest = self._video([(last, last)], clip, grid, opened=not seen) if last % PAIR == 0 else ()
            branches.append((seen, (*rest, ask)))
        return Asked(self._video(whole, clip, grid, opened=True), tuple(branches), answer)

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
