"""The log-probability of an answer after every prefix of a video (TOPReward, RoboReward's grades).

A video is read in pairs of frames. The prefix that ends with frame k shares all its complete pairs with every longer
one, so the pairs form one trunk. At each frame hangs a branch with the question; after an odd number of frames the
branch first shows the last frame paired with itself.

Qwen3-VL reads pairs of frames, each pair one image with its timestamp before it:

    <0.2 seconds><|vision_start|><|video_pad|>...<|vision_end|><0.8 seconds><|vision_start|>...

An odd number of frames repeats the last one. This is the format that the published checkpoints were trained with; the
library has changed what it writes around a whole video since.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch

from demerit.data.arrays import Floats
from demerit.data.frames import Images, Times
from demerit.errors import BadInput
from demerit.models.by_time import TimedClip
from demerit.models.vlm.backbone import Backbone, TokenBudget
from demerit.models.vlm.images import MOST_STRETCHED, VideoBounds, resize_frames, to_pinned
from demerit.models.vlm.layers import KeyValues
from demerit.models.vlm.network import ImageFeatures, VLMNetwork
from demerit.models.vlm.prefix_tree import PastTokens, PrefixTree, pack, separate_tree, trunk_tree
from demerit.models.vlm.prompt import CUT, VIDEO, ImageSlot, Piece, TokenBlock, build_blocks

PAIR = 2
TOGETHER = 32
"""pairs per call of the vision tower"""

Pairs = Sequence[tuple[int, int]]


def video_size(count: int, height: int, width: int, *, factor: int, bounds: VideoBounds) -> tuple[int, int]:
    """Return the (height, width) in pixels that Qwen resizes the frames of a video to.

    As for an image, with all frames together within the bounds; `count` is rounded to pairs, halves to even ones.
    """
    if min(height, width) < 1 or count < 1:
        raise BadInput("video size", "at least one frame of one pixel", f"{count} of {height} x {width}")
    if min(height, width) < factor:
        grow = max(factor / height, factor / width)
        height, width = int(height * grow), int(width * grow)
    if max(height, width) / min(height, width) > MOST_STRETCHED:
        raise BadInput("video size", f"sides within {MOST_STRETCHED} times each other", f"{height} x {width}")
    count = max(count, PAIR)
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    whole = round(count / PAIR) * PAIR * tall * wide
    if whole > bounds.high:
        shrink = math.sqrt(count * height * width / bounds.high)
        tall = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif whole < bounds.low:
        grow = math.sqrt(bounds.low / (count * height * width))
        tall = math.ceil(height * grow / factor) * factor
        wide = math.ceil(width * grow / factor) * factor
    return tall, wide


def frame_pairs(count: int) -> list[tuple[int, int]]:
    """Pair frames in order; the last of an odd number is paired with itself."""
    return [(at, min(at + 1, count - 1)) for at in range(0, count, PAIR)]


def timestamp(pair: tuple[int, int], seconds: Times) -> str:
    """Return the text before a pair: the mean of its two times."""
    first, second = (float(seconds[at]) for at in pair)
    return f"<{(first + second) / 2:.1f} seconds>"


def video_pieces(pairs: Pairs, keys: Sequence[Hashable], seconds: Times, grid: tuple[int, int]) -> Iterator[Piece]:
    """Yield a video's prompt pieces: one block per pair, its timestamp first."""
    for pair, key in zip(pairs, keys, strict=True):
        yield from (timestamp(pair, seconds), ImageSlot(key, *grid, token=VIDEO), CUT)


def encode_pairs(
    network: VLMNetwork, frames: Images, pairs: Pairs, keys: Sequence[Hashable], size: tuple[int, int]
) -> ImageFeatures:
    """Encode pairs of frames; each frame is resized once."""
    small, places = resize_frames(frames, size, "torch"), np.asarray(pairs, dtype=np.int64)
    batches = (to_pinned(small[places[at : at + TOGETHER]], network.device) for at in range(0, len(places), TOGETHER))
    return network.encode(batches, keys)


EVERY = slice(None)
OPENING = "<|im_start|>user\n"
READ = 64
"""answers whose logits are computed together: each has 150,000 values"""


@dataclass(frozen=True)
class PrefixPrompt:
    """The trunk of shared pairs, a branch for each frame, and the answer's tokens."""

    trunk: tuple[TokenBlock, ...]
    branches: tuple[tuple[int, tuple[TokenBlock, ...]], ...]
    """the number of trunk blocks it sees, and its own blocks"""
    answer: tuple[int, ...]
    """tokens whose log-probabilities are read, the last one aside"""
    last: tuple[int, ...]
    """the tokens that may follow them; the log-probability of each is read"""

    @property
    def reads(self) -> int:
        """Number of states that are read of each branch."""
        return len(self.answer) + 1

    def tree(self, some: slice = EVERY, *, kept: bool = False) -> PrefixTree:
        """Return a tree of some branches; `kept`: the trunk was computed before."""
        branches = self.branches[some]
        if not self.trunk:
            return separate_tree([blocks for _, blocks in branches])
        return trunk_tree(self.trunk, branches, kept=kept)

    def wanted_tokens(self, tree: PrefixTree) -> list[tuple[int, int]]:
        """Return the (segment, token) pairs to read: each precedes a token of the answer."""
        count = self.reads
        return [(end, tree.segments[end].tokens - count + at) for end in tree.ends for at in range(count)]


class PrefixReader:
    """Reads the log-probabilities of tokens after a question that follows every prefix of a video.

    The trunk's keys are kept while the branches are computed, as many at a time as fit; nothing of a branch is kept.
    """

    def __init__(self, backbone: Backbone, at_once: int | None = None) -> None:
        """Take a network, and how many tokens are computed together; default: what fits."""
        self.backbone, self._at_once = backbone, at_once

    @cached_property
    def budget(self) -> TokenBudget:
        """How many tokens are computed together."""
        return TokenBudget.choose(self.backbone.network, asked=self._at_once)

    def size(self, clip: TimedClip) -> tuple[int, int]:
        """Return the pixels of every frame: those of the whole video, for all prefixes."""
        height, width = clip.frames.shape[1:3]
        factor = self.backbone.shape.vision.factor
        return video_size(len(clip), height, width, factor=factor, bounds=self.backbone.bounds)

    def read(self, clip: TimedClip, prompt: PrefixPrompt) -> Floats:
        """Return the log-probabilities after each frame: (frames, tokens of the answer and ways to end it)."""
        what = f"Scoring {len(clip)} prefixes"
        frames = resize_frames(clip.frames, self.size(clip), "torch")
        keys = self._compute_trunk(prompt.trunk, frames, what)
        lengths = [sum(map(len, blocks)) for _, blocks in prompt.branches]
        rows = self.budget.run(what, lengths, lambda some: self._score_branches(prompt, some, frames, keys))
        return np.concatenate(rows)

    def _compute_trunk(self, trunk: tuple[TokenBlock, ...], frames: Images, what: str) -> KeyValues | None:
        """Compute the keys of all complete pairs, some at a time."""
        keys: KeyValues | None = None

        def grow(some: slice) -> None:
            nonlocal keys
            before, blocks = trunk[: some.start], trunk[some]
            done, length = (sum(map(len, part)) for part in (before, blocks))
            past = None
            if keys is not None:
                past = PastTokens(done, np.arange(done), sum(block.advance for block in before)), keys
            images = self._encode(blocks, frames)
            tree = separate_tree([blocks])
            _, more, _ = self.backbone.network.states_and_keys(tree, images, [(0, length - 1)], past)
            keys = keys.append(more) if keys else more

        self.budget.run(what, list(map(len, trunk)), grow)
        return keys

    @torch.inference_mode()
    def _score_branches(self, prompt: PrefixPrompt, some: slice, frames: Images, keys: KeyValues | None) -> Floats:
        tree = prompt.tree(some, kept=keys is not None)
        images = self._encode([block for _, blocks in prompt.branches[some] for block in blocks], frames)
        past = PastTokens(sum(map(len, prompt.trunk)), np.empty(0, np.int64), 0) if keys else None
        packed = pack(tree, images.rows if images else {}, prompt.wanted_tokens(tree), past)
        language = self.backbone.network.language
        states = language.states(packed, images.features if images else None, keys)
        rows = []
        for part in torch.split(states, READ * prompt.reads):
            words = language.logits(part).log_softmax(-1).view(-1, prompt.reads, self.backbone.shape.text.vocabulary)
            written = [words[:, at, [token]] for at, token in enumerate(prompt.answer)]
            rows.append(torch.cat([*written, words[:, -1, list(prompt.last)]], 1))
        return np.asarray(torch.cat(rows).double().cpu().numpy())

    def _encode(self, blocks: Sequence[TokenBlock], frames: Images) -> ImageFeatures | None:
        """Encode the images in some blocks; frames are resized already."""
        pairs = cast("list[tuple[int, int]]", [block.image.key for block in blocks if block.image])
        return encode_pairs(self.backbone.network, frames, pairs, pairs, frames.shape[1:3]) if pairs else None

    def hang_question(
        self, clip: TimedClip, question: Sequence[int], answer: Sequence[int], last: Sequence[int]
    ) -> PrefixPrompt:
        """Return the trunk and the branches: after each frame the question and the answer as far as it is given."""
        grid = self.backbone.shape.vision.grid(*self.size(clip))
        ask = TokenBlock((*question, *answer))
        complete = [pair for pair in frame_pairs(len(clip)) if pair[0] != pair[1]]
        branches = []
        for end in range(len(clip)):
            count = (end + 1) // PAIR
            rest = self._video_blocks([(end, end)], clip, grid, first=not count) if end % PAIR == 0 else ()
            branches.append((count, (*rest, ask)))
        trunk = self._video_blocks(complete, clip, grid, first=True)
        return PrefixPrompt(trunk, tuple(branches), tuple(answer), tuple(last))

    def _video_blocks(
        self, pairs: Sequence[tuple[int, int]], clip: TimedClip, grid: tuple[int, int], *, first: bool
    ) -> tuple[TokenBlock, ...]:
        if not pairs:
            return ()
        pieces: list[Piece] = list(video_pieces(pairs, pairs, clip.seconds, grid))
        return build_blocks([OPENING, *pieces] if first else pieces, self.backbone.tokens, self.backbone.shape)


class PrefixScorer(PrefixReader):
    """Returns the log-probability of an answer after every frame."""

    def __init__(self, backbone: Backbone, prompts: Mapping[str, str], at_once: int | None = None) -> None:
        """Take a network, the prompts, and how many tokens are computed together.

        Args:
            backbone: the network.
            prompts: `statement` before the task, `question` after it, and the `answer` whose probability is read.
            at_once: tokens computed together; default: what fits.
        """
        super().__init__(backbone, at_once)
        self._prompts = prompts

    def log_probabilities(self, clip: TimedClip, task: str) -> Floats:
        """Return the log-probability of the answer after each frame: (frames,)."""
        return np.asarray(self.read(clip, self.build_prompt(clip, task)).sum(1))

    def build_prompt(self, clip: TimedClip, task: str) -> PrefixPrompt:
        """Return the trunk and the branches."""
        question, answer = self.tokenize(task)
        return self.hang_question(clip, question, answer[:-1], answer[-1:])

    def tokenize(self, task: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens of the question and of the answer, which must not merge."""
        text, answer = f"{self._prompts['statement']}{task}{self._prompts['question']}", self._prompts["answer"]
        asked, whole = self.backbone.tokens.ids(text), self.backbone.tokens.ids(text + answer)
        if whole[: len(asked)] != asked or len(whole) == len(asked):
            raise BadInput("tokenizer.json", f"an answer {answer!r} of its own tokens", whole[-len(asked) :])
        return tuple(asked), tuple(whole[len(asked) :])
