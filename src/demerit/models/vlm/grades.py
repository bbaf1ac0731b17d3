"""RoboReward's grades: read off the answer token's logits in one forward pass, or decoded; also of every prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch

from demerit.data.arrays import Floats
from demerit.errors import BadInput
from demerit.models.by_time import TimedClip
from demerit.models.vlm.backbone import Backbone, TokenBudget, within_memory
from demerit.models.vlm.network import ImageFeatures, decode_greedily
from demerit.models.vlm.prefix_tree import separate_tree
from demerit.models.vlm.prefixes import PrefixReader, encode_pairs, frame_pairs, video_pieces, video_size
from demerit.models.vlm.prompt import ANSWER, CUT, PromptTokenizer, TokenBlock, build_blocks, user_turn

GRADES = (1, 2, 3, 4, 5)
LONGEST = 64
"""longest answer in tokens; the published ones have five"""


@dataclass(frozen=True)
class GradeDistribution:
    """How likely each grade is."""

    likely: Floats
    """(5,) probabilities of the grades, given that the answer is one of them"""
    mass: float
    """probability that the answer is a grade, given the answer's opening"""
    form: float
    """probability of the answer's opening"""

    @classmethod
    def from_logs(cls, grades: Floats, form: float) -> GradeDistribution:
        """Take the log-probabilities of the five grades and of the answer's opening."""
        likely = np.exp(grades - grades.max())
        return cls(likely / likely.sum(), float(np.exp(grades).sum()), float(np.exp(form)))

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


def split_choices(
    tokens: PromptTokenizer, lead: str, begin: str, options: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that all answers start with, and the one token of each that follows.

    A space before a digit may be a separate token or part of the digit's, so whole answers are tokenized.
    """
    whole = [tokens.ids(lead + begin + option) for option in options]
    length = 0
    while all(len(ids) > length for ids in whole) and len({ids[length] for ids in whole}) == 1:
        length += 1
    ends = [ids[length:] for ids in whole]
    if any(len(end) != 1 for end in ends) or len({end[0] for end in ends}) != len(options):
        raise BadInput("tokenizer.json", f"one token for each of {list(options)} after {begin!r}", ends)
    return tuple(whole[0][:length]), tuple(end[0] for end in ends)


class VideoGrader:
    """Asks a RoboReward checkpoint for grades."""

    def __init__(self, backbone: Backbone, prompt: str, answer: str, at_once: int | None = None) -> None:
        """Take the published prompt, the opening of its answer, and how many tokens are computed together."""
        self._backbone, self._prompt, self._at_once = backbone, prompt, at_once
        self._opening, self._digits = split_choices(backbone.tokens, ANSWER, answer, [str(grade) for grade in GRADES])
        self._turn = tuple(backbone.tokens.ids(ANSWER))
        if self._opening[: len(self._turn)] != self._turn:
            raise BadInput("tokenizer.json", f"the answer's first token after {ANSWER!r}", self._opening)

    @cached_property
    def budget(self) -> TokenBudget:
        """How many tokens of prompts are decoded side by side."""
        return TokenBudget.choose(self._backbone.network, asked=self._at_once, keeping=True)

    def size(self, clip: TimedClip) -> tuple[int, int]:
        """Return the pixels that a video's frames are resized to."""
        height, width = clip.frames.shape[1:3]
        factor = self._backbone.shape.vision.factor
        return video_size(len(clip), height, width, factor=factor, bounds=self._backbone.bounds)

    def distribution(self, clip: TimedClip, task: str) -> GradeDistribution:
        """Read the distribution of the grade off one forward pass, given the answer's opening."""
        with within_memory("Grading a video"):
            tree = separate_tree([(*self._blocks(clip, task, 0), TokenBlock(self._opening))])
            start = tree.tokens - len(self._opening)
            first = len(self._turn) - 1  # the token before the answer's first
            wanted = [(0, start + at) for at in range(first, len(self._opening))]
            network = self._backbone.network
            logits = network.language.logits(network.states(tree, self._encode(clip, 0), wanted))
            logs = logits.log_softmax(-1).double().cpu()
        written = torch.tensor(self._opening[len(self._turn) :])
        form = logs[:-1].gather(1, written[:, None]).sum()
        return GradeDistribution.from_logs(logs[-1, list(self._digits)].numpy(), float(form))

    def prefix_distributions(self, clip: TimedClip, task: str) -> list[GradeDistribution]:
        """Read the distribution after each frame: that of the video which ends there, at this video's size."""
        asked = user_turn(self._prompt.format(task=task))[1:]  # the turn's start stands before the video
        (question,) = build_blocks(asked, self._backbone.tokens, self._backbone.shape)
        written = self._opening[len(self._turn) :]
        prompt = self._prefixes.hang_question(clip, (*question.ids, *self._turn), written, self._digits)
        rows = self._prefixes.read(clip, prompt)
        return [GradeDistribution.from_logs(row[len(written) :], float(row[: len(written)].sum())) for row in rows]

    @cached_property
    def _prefixes(self) -> PrefixReader:
        return PrefixReader(self._backbone, self._at_once)

    def decode(self, clips: Sequence[TimedClip], tasks: Sequence[str], *, forced: bool = False) -> list[str]:
        """Decode answers, several videos side by side; `forced` gives the answer's opening."""
        return [text for text, _ in self.decode_surely(clips, tasks, forced=forced)]

    def decode_surely(
        self, clips: Sequence[TimedClip], tasks: Sequence[str], *, forced: bool = False
    ) -> list[tuple[str, float]]:
        """Decode answers, each with the log-probability of the token that the model was least sure of."""
        asked = list(zip(clips, tasks, strict=True))
        lengths = [sum(map(len, self._blocks(clip, task, 0))) for clip, task in asked]
        what = f"Decoding answers to {len(asked)} videos"
        batches = self.budget.run(what, lengths, lambda some: self._decode_together(asked[some], forced))
        return list(chain.from_iterable(batches))

    def _decode_together(self, asked: Sequence[tuple[TimedClip, str]], forced: bool) -> list[tuple[str, float]]:
        opening = self._opening if forced else self._turn
        images: ImageFeatures | None = None
        prompts = []
        for at, (clip, task) in enumerate(asked):
            more = self._encode(clip, at)
            images = more if images is None else images.append(more)
            prompts.append((*self._blocks(clip, task, at), TokenBlock(opening)))
        backbone = self._backbone
        answers = decode_greedily(backbone.network, separate_tree(prompts), images, stops=backbone.stops, most=LONGEST)
        start = opening[len(self._turn) :]
        return [(backbone.tokens.text([*start, *answer.ids]), answer.least) for answer in answers]

    def _encode(self, clip: TimedClip, name: int) -> ImageFeatures:
        pairs = frame_pairs(len(clip))
        keys = [(name, at) for at in range(len(pairs))]
        return encode_pairs(self._backbone.network, clip.frames, pairs, keys, self.size(clip))

    def _blocks(self, clip: TimedClip, task: str, name: int) -> tuple[TokenBlock, ...]:
        """Return the prompt without the opening of the answer."""
        pairs = frame_pairs(len(clip))
        keys = [(name, at) for at in range(len(pairs))]
        grid = self._backbone.shape.vision.grid(*self.size(clip))
        asked = user_turn(*video_pieces(pairs, keys, clip.seconds, grid), self._prompt.format(task=task))
        return build_blocks([*asked, CUT], self._backbone.tokens, self._backbone.shape)
