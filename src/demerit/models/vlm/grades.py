"""RoboReward's grades: read off the answer token's logits in one forward pass, or written out token by token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from demerit.errors import BadInput
from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.decode import Answer, greedy
from demerit.models.vlm.memory import within_memory
from demerit.models.vlm.network import Seen
from demerit.models.vlm.prompt import ANSWER, CUT, Block, Tokens, laid_out, user_turn
from demerit.models.vlm.room import Room
from demerit.models.vlm.tree import separate
from demerit.models.vlm.video import Clip, look_at_pairs, pairs_of, video_pieces, video_size

GRADES = (1, 2, 3, 4, 5)
LONGEST = 64
"""tokens of an answer at which it is cut off; the published ones have five"""
GRADE = re.compile(r"ANSWER\s*:\s*([1-5])(?![\d.])", re.IGNORECASE)
PLAIN, FORCED = "", "forced"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Graded:
    """How likely each grade is."""

    likely: Floats
    """of the five grades, given that the answer is one of them"""
    mass: float
    """probability that the answer is one of them, given that it begins as it should"""
    form: float
    """probability that it begins as it should"""

    @property
    def expected(self) -> float:
        """The mean grade."""
        return float(self.likely @ np.array(GRADES))

    @property
    def deviation(self) -> float:
        """The grade's standard deviation."""
        spread = (np.array(GRADES) - self.expected) ** 2
        return float(np.sqrt(self.likely @ spread))

    @property
    def top(self) -> int:
        """The likeliest grade."""
        return GRADES[int(self.likely.argmax())]


def grade_in(text: str) -> int | None:
    """Return the grade on the answer line, None where there is none; a number elsewhere is no grade."""
    found = GRADE.findall(text)
    return int(found[-1]) if found else None


def choices(tokens: Tokens, lead: str, begin: str, options: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find where answers part: the tokens that all of them begin with, and the one token of each that follows.

    A space before a digit may be a token of its own or a part of the digit's, as the tokenizer has it; so the answers
    are tokenized whole and compared.
    """
    whole = [tokens.ids(lead + begin + option) for option in options]
    length = 0
    while all(len(one) > length for one in whole) and len({one[length] for one in whole}) == 1:
        length += 1
    ends = [one[length:] for one in whole]
    if any(len(one) != 1 for one in ends) or len({one[0] for one in ends}) != len(options):
        raise BadInput("tokenizer.json", f"one token for each of {list(options)} behind {begin!r}", ends)
    return tuple(whole[0][:length]), tuple(one[0] for one in ends)


class Grader:
    """A RoboReward checkpoint at work."""

    def __init__(self, backbone: Backbone, prompt: str, answer: str, at_once: int | None = None) -> None:
        """Take the words that the checkpoint was trained with, how its answer begins, and how much is done at once."""
        self._backbone, self._prompt, self._at_once = backbone, prompt, at_once
        begun, self._digits = choices(backbone.tokens, ANSWER, answer, [str(grade) for grade in GRADES])
        self._opened = backbone.tokens.ids(ANSWER)
        if begun[: len(self._opened)] != tuple(self._opened):
            raise BadInput("tokenizer.json", f"the answer's first token behind {ANSWER!r}", begun)
        self._begun = begun

    @cached_property
    def room(self) -> Room:
        """How many tokens of prompts are answered side by side."""
        return Room.beside(self._backbone.network, asked=self._at_once, keeping=True)

    def size(self, clip: Clip) -> tuple[int, int]:
        """Return the pixels that a video's frames are resized to."""
        height, width = clip.frames.shape[1:3]
        factor = self._backbone.shape.vision.factor
        return video_size(len(clip), height, width, factor=factor, bounds=self._backbone.bounds)

    def likely(self, clip: Clip, task: str) -> Graded:
        """Read the distribution of the grade off one forward pass, the answer's beginning given."""
        with within_memory("Grading a video"):
            blocks = (*self._blocks(clip, task, 0), Block(self._begun))
            seen = self._seen(clip, 0)
            start = sum(map(len, blocks)) - len(self._begun)
            first = len(self._opened) - 1  # the token before the answer's first
            wanted = [(0, start + at) for at in range(first, len(self._begun))]
            network = self._backbone.network
            logits = network.language.words(network.states(separate([blocks]), seen, wanted))
            return self._graded(logits.log_softmax(-1).double().cpu())

    def _graded(self, said: Tensor) -> Graded:
        """Take log-probabilities at the answer's tokens: the last is the grade's."""
        written = torch.tensor(self._begun[len(self._opened) :])
        form = said[:-1].gather(1, written[:, None]).sum().exp()
        grades = said[-1, list(self._digits)]
        return Graded(grades.softmax(0).numpy(), float(grades.exp().sum()), float(form))

    def written(self, clips: Sequence[Clip], tasks: Sequence[str], begin: str = PLAIN) -> list[str]:
        """Decode answers, several videos side by side; with begin = FORCED the answer's beginning is given."""
        asked = list(zip(clips, tasks, strict=True))
        lengths = [sum(map(len, self._blocks(clip, task, 0))) for clip, task in asked]
        what = f"Writing answers to {len(asked)} videos"
        said = self.room.worked(what, lengths, lambda some: self._decoded(asked[some], begin))
        return list(chain.from_iterable(said))

    def _decoded(self, asked: Sequence[tuple[Clip, str]], begin: str) -> list[str]:
        opening = self._begun if begin == FORCED else tuple(self._opened)
        seen: Seen | None = None
        prompts = []
        for at, (clip, task) in enumerate(asked):
            more = self._seen(clip, at)
            seen = more if seen is None else seen.and_also(more)
            prompts.append((*self._blocks(clip, task, at), Block(opening)))
        said = greedy(self._backbone.network, separate(prompts), seen, stops=self._backbone.stops, most=LONGEST)
        return [self._text(one, opening) for one in said]

    def _text(self, answer: Answer, opening: tuple[int, ...]) -> str:
        return self._backbone.tokens.text([*opening[len(self._opened) :], *answer.ids])

    def _seen(self, clip: Clip, name: int) -> Seen:
        pairs = pairs_of(len(clip))
        keys = [(name, at) for at in range(len(pairs))]
        return look_at_pairs(self._backbone.network, clip.frames, pairs, keys, self.size(clip))

    def _blocks(self, clip: Clip, task: str, name: int) -> tuple[Block, ...]:
        """Lay the question out, all but the opening of the answer."""
        pairs = pairs_of(len(clip))
        keys = [(name, at) for at in range(len(pairs))]
        grid = self._backbone.shape.vision.grid(*self.size(clip))
        asked = user_turn(*video_pieces(pairs, keys, clip.seconds, grid), self._prompt.format(task=task))
        return laid_out([*asked, CUT], self._backbone.tokens, self._backbone.shape)
