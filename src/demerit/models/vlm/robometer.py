"""Robometer's questions: how far is the task done at every frame, and which of two videos does it better.

For every time t the authors' protocol shows eight frames spread over 0..t and reads the value at the last one. Here
each frame is encoded once and the windows of all t share their beginnings; the answers are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from demerit.data.frames import Images, Indices
from demerit.models.vlm.ahead import parts, prepared
from demerit.models.vlm.heads import Head, progress_of
from demerit.models.vlm.images import grid_size
from demerit.models.vlm.memory import within_memory
from demerit.models.vlm.network import Network, Seen
from demerit.models.vlm.prompt import CUT, Block, Picture, Piece, Tokens, laid_out, user_turn
from demerit.models.vlm.room import MOST_TOKENS, Room
from demerit.models.vlm.tree import separate, shared
from demerit.models.vlm.windows import window
from demerit.models.vlm.words import words

FEWEST, MOST = 4 * 32 * 32, 16384 * 32 * 32
"""pixels that a picture is kept within, as the authors' loader does"""
PROGRESS, SPLIT, PREFERENCE = "<|prog_token|>", "<|split_token|>", "<|pref_token|>"

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Protocol:
    """How a checkpoint is asked."""

    frames: int = 8
    also_progress: bool = True
    """pairs are asked for the progress of the first as well, as in training"""

    def progress_pieces(self, instruction: str, pictures: Sequence[Picture]) -> list[Piece]:
        """Ask for progress: a block a picture, each ending in the token that is read."""
        return user_turn(words("robometer")["progress"].format(task=instruction), *_shown(pictures, 1), then="")

    def preference_pieces(self, instruction: str, first: Sequence[Picture], second: Sequence[Picture]) -> list[Piece]:
        """Ask which of two is better; the last block but the turn's end ends in the token that is read."""
        said = words("robometer")
        ask = said["preference"] + (said["also_progress"] if self.also_progress else "")
        return user_turn(
            ask.format(task=instruction),
            said["first"],
            *_shown(first, 1),
            SPLIT,
            said["second"],
            *_shown(second, 1 + len(first)),
            said["ask"],
            PREFERENCE,
            CUT,
        )


def _shown(pictures: Sequence[Picture], number: int) -> Iterator[Piece]:
    for at, picture in enumerate(pictures, number):
        yield from (words("robometer")["picture"].format(number=at), picture, PROGRESS, CUT)


def picture_size(height: int, width: int, factor: int) -> tuple[int, int]:
    """Return the pixels a frame is resized to: its own, rounded to whole tokens."""
    return grid_size(height, width, factor=factor, low=FEWEST, high=MOST)


@dataclass(frozen=True)
class Judged:
    """What Robometer says of frames: how far the task is done (0..1) and how likely it is done."""

    at: Indices
    progress: Floats
    success: Floats


class RobometerEngine:
    """A Robometer checkpoint at work."""

    def __init__(
        self,
        network: Network,
        heads: Mapping[str, Tensor],
        tokens: Tokens,
        protocol: Protocol | None = None,
        at_once: int = MOST_TOKENS,
    ) -> None:
        """Put the parts together.

        Args:
            network: the backbone.
            heads: weights of the three heads by name.
            tokens: the tokenizer with Robometer's own tokens added.
            protocol: how the checkpoint is asked.
            at_once: tokens computed together: less memory, a little slower.
        """
        self.network, self.tokens, self.protocol = network, tokens, protocol or Protocol()
        self._progress, self._success = Head.named("progress", heads), Head.named("success", heads)
        self._preference = Head.named("preference", heads)
        self.room = Room(at_once)

    def look(self, frames: Images | Iterable[Images], name: str = "") -> tuple[Seen, tuple[int, int]]:
        """Encode every frame once; keys are (name, index). Also return the rows and columns of a picture's tokens."""
        batches = iter(parts(frames) if isinstance(frames, np.ndarray) else frames)
        first = next(batches)
        size = picture_size(first.shape[1], first.shape[2], self.network.shape.vision.factor)
        seen = self.network.look(
            prepared(chain([first], batches), size, "pil", self.network.device), ((name, at) for at in count())
        )
        return seen, self.network.shape.vision.grid(*size)

    def dense(
        self, frames: Images | Iterable[Images], instruction: str, stride: int = 1, what: str = "Scoring a video"
    ) -> Judged:
        """Answer for every frame, never looking ahead; where memory runs out, with fewer windows together.

        Args:
            frames: (frames, height, width, 3), or batches of that, fetched in the background while others are encoded.
            instruction: the task.
            stride: answer for every so many frames only, and for the last.
            what: is being done, should memory not suffice.
        """
        with within_memory(what):
            seen, grid = self.look(frames)
        asked = Asked(self, instruction, grid)
        at = np.unique([*range(0, len(seen.rows), stride), len(seen.rows) - 1]).astype(np.int32)
        windows = [window(int(last), self.protocol.frames) for last in at]
        # counts as if nothing were shared: memory that surely suffices
        lengths = [asked.length] * len(windows)
        states = self.room.worked(what, lengths, lambda some: self.states(asked, seen, windows[some]))
        return self.judged(torch.cat(states), at)

    def judged(self, states: Tensor, at: Indices) -> Judged:
        """Read progress and success off states, one for each of these frames."""
        with torch.inference_mode():
            progress = progress_of(self._progress(states))
            success = self._success(states).float().sigmoid().squeeze(-1)
        return Judged(at, progress.cpu().numpy(), success.cpu().numpy())

    def states(self, asked: Asked, seen: Seen, some: Sequence[tuple[int, ...]]) -> Tensor:
        """Return the states that answer windows: (windows, hidden)."""
        tree = shared([asked.blocks(each) for each in some])
        last = [sum(len(block) for block in tree.segments[end].blocks) - 1 for end in tree.ends]
        return self.network.states(tree, seen, list(zip(tree.ends, last, strict=True)))

    def compare(self, first: Images, second: Images, instruction: str) -> float:
        """Return the probability that the first video does better, asked in this order."""
        both, grids = [], []
        for name, frames in (("a", first), ("b", second)):
            chosen = window(len(frames) - 1, self.protocol.frames)
            seen, grid = self.look(frames[sorted(set(chosen))], name)
            places = {frame: at for at, frame in enumerate(sorted(set(chosen)))}
            both.append((seen, [(name, places[frame]) for frame in chosen]))
            grids.append(grid)
        seen = both[0][0].and_also(both[1][0])
        pictures = [[Picture(key, *grid) for key in keys] for (_, keys), grid in zip(both, grids, strict=True)]
        blocks = laid_out(self.protocol.preference_pieces(instruction, *pictures), self.tokens, self.network.shape)[:-1]
        length = sum(len(block) for block in blocks)
        state = self.network.states(separate([blocks]), seen, [(0, length - 1)])
        with torch.inference_mode():
            return float(self._preference(state).float().sigmoid())


class Asked:
    """One instruction's question, laid out once; windows differ in their pictures alone."""

    def __init__(self, engine: RobometerEngine, instruction: str, grid: tuple[int, int], name: str = "") -> None:
        """Lay the question out for pictures of (rows, columns) tokens."""
        places = [Picture(("place", at), *grid) for at in range(engine.protocol.frames)]
        pieces = engine.protocol.progress_pieces(instruction, places)
        self._blocks = laid_out(pieces, engine.tokens, engine.network.shape)[:-1]  # nothing reads the turn's end
        self.length = sum(len(block) for block in self._blocks)
        self._name = name
        self._made: dict[tuple[int, int], Block] = {}

    def blocks(self, frames: Sequence[int]) -> tuple[Block, ...]:
        """Return the blocks of a window."""
        return tuple(self._block(at, frame) for at, frame in enumerate(frames))

    def _block(self, at: int, frame: int) -> Block:
        if (at, frame) not in self._made:
            self._made[at, frame] = self._blocks[at].showing((self._name, frame))
        return self._made[at, frame]

    def forget(self, before: int) -> None:
        """Let go of blocks that show frames before this one, but for the first."""
        for key in [key for key in self._made if 0 < key[1] < before]:
            del self._made[key]
