"""Robometer: progress and success at every frame, and which of two episodes is better, by a 4B vision-language model.

demerit score my_videos --model robometer                 the authors' checkpoint from the hub
demerit score my_videos --model robometer:lerobot         LeRobot's copy of it
demerit score my_videos --model robometer:path=./mine     a folder, in either layout
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Frames, Images
from demerit.data.reward import Reward
from demerit.errors import BadInput
from demerit.models.listing import Listing
from demerit.models.protocol import ModelCard
from demerit.models.published.naming import filed_under
from demerit.models.published.options import at_least, need_extra, one_of, placed, read_options, together
from demerit.models.published.scoring import NO_NUMBER, each, told

if TYPE_CHECKING:
    from demerit.models.vlm.online import Following
    from demerit.models.vlm.robometer import RobometerEngine

CHECKPOINTS = {"authors": "robometer/Robometer-4B", "lerobot": "lerobot/Robometer-4B"}
PUBLISHED = {CHECKPOINTS["authors"]: "robometer", CHECKPOINTS["lerobot"]: "robometer-lerobot"}
"""no commit is pinned: none could be seen from here; `revision` pins one, and the card tells the one that was loaded"""
OWN = {"size": str, "stride": int, "arithmetic": str}
EXACT, FP8 = "exact", "fp8"
LICENCE = "Apache-2.0 (as its hub card says; not verified here)"
HALF = 0.02
"""what half precision may move a value by, as the tests allow between the two ways of computing it"""
BATCH = 64
"""frames that are decoded together"""
ROUNDED = (
    "An approximation: the language model multiplies in eight bits; on random weights of the true shape progress was "
    "up to 0.018 off. "
)
VERIFIED = (
    "Verified here on random weights of the same layouts: answers equal those of the straightforward way, each window "
    "through transformers' own forward pass. Not verified here: the published weights and their benchmark figures."
)


class Robometer:
    """Eight frames spread up to each moment, read at the last: the authors' dense rewards, computed once each."""

    listing = Listing(
        quantity="progress",
        low=0.0,
        high=1.0,
        causal=True,
        licence=LICENCE,
        extra="vlm",
        verified="random weights of both layouts, against transformers; not the published weights",
        about="Qwen3-VL-4B with heads for progress, success and preference; dense, causal, also live.",
    )

    def __init__(self, options: str = "", **changes: Any) -> None:
        """Find and check the checkpoint; weights are loaded when the first episode comes.

        Args:
            options: `authors` (the default) or `lerobot`, and options with = between name and value.
            **changes: options by name: path (a folder or a hub id), revision, adapter, device, dtype; at_once (tokens
                computed together: less memory, a little slower), stride (score every so many frames), arithmetic
                (`exact`, or `fp8`: a quarter faster on recent GPUs, and an approximation).
        """
        need_extra("robometer")
        from demerit.models.vlm.opened import Opened  # noqa: PLC0415  torch, only now

        given = read_options("robometer", options, changes, OWN, "size")
        which = one_of("robometer", str(given.get("size", "authors")), tuple(CHECKPOINTS))
        self._at_once = together(given)
        self.arithmetic = one_of("arithmetic", given.get("arithmetic", EXACT), (EXACT, FP8))
        self.stride = at_least("stride", int(given.get("stride", 1)), 1)
        path = given.get("path") or CHECKPOINTS[which]
        self.opened = Opened.robometer(path, **placed(given))
        self.card = self._card(filed_under(path, given.get("adapter"), PUBLISHED))
        self._live: Following | None = None

    @cached_property
    def engine(self) -> RobometerEngine:
        """The weights, on the device."""
        return self.opened.engine(self._at_once, in_eight_bits=self.arithmetic == FP8)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score every frame; an episode that cannot be seen comes back unscored with the reason."""
        return each(self.card.name, episodes, lambda episode: episode.main, self._scored)

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        """Say how likely the first of each pair is the better one, the mean over both orders of asking."""
        return [self._preferred(first, second) for first, second in pairs]

    def reset(self, instruction: str) -> None:
        """Begin to follow a robot."""
        from demerit.models.vlm.online import Following  # noqa: PLC0415

        if not instruction.strip() or "<|" in instruction:
            raise BadInput("instruction", "words", repr(instruction))
        self._live = Following(self.engine, instruction.strip())

    def step(self, frame: Images) -> float:
        """Take the next (height, width, 3) frame and return its progress: what `score` would say of it.

        A step costs the same however long the episode is.
        """
        if self._live is None:
            raise BadInput("step", "reset(instruction) before the first frame", "a frame")
        return self._live.step(frame)[0]

    def _scored(self, episode: Episode, frames: Frames) -> Reward:
        what = f"Scoring episode {episode.id} with {self.card.name}"
        judged = self.engine.dense(_batches(frames), told(episode), self.stride, what)
        given = self._given(episode) | {"frames": len(frames)}
        known = np.isfinite(judged.progress)
        value = np.where(known, judged.progress, np.nan)
        success = np.where(np.isfinite(judged.success), judged.success, np.nan)
        why = "" if known.all() else NO_NUMBER
        return Reward(self.card.name, episode.id, judged.at, value, success, why, given)

    def _preferred(self, first: Episode, second: Episode) -> float:
        from demerit.models.vlm.memory import within_memory  # noqa: PLC0415

        if told(first) != told(second):
            return float("nan")  # the question names one task
        clips = [_window(episode.main, self.opened.protocol.frames) for episode in (first, second)]
        with within_memory(f"Comparing episodes {first.id} and {second.id}"):
            there = self.engine.compare(clips[0], clips[1], told(first))
            back = self.engine.compare(clips[1], clips[0], told(first))
        return (there + 1 - back) / 2

    def _given(self, episode: Episode) -> dict[str, Any]:
        return {
            "camera": episode.main_camera,
            "instruction": True,
            "window": self.opened.protocol.frames,
            "stride": self.stride,
            "arithmetic": self.arithmetic,
            **self.opened.facts,
        }

    def _card(self, name: str) -> ModelCard:
        frames = self.opened.protocol.frames
        every = "every frame" if self.stride == 1 else f"every {self.stride}th frame and the last"
        return ModelCard(
            name=name if self.arithmetic == EXACT else f"{name}-{FP8}",
            revision=self.opened.revision,
            licence=LICENCE,
            quantity="progress",
            low=0.0,
            high=1.0,
            causal=True,
            comparable=True,
            rounding=0.0 if self.opened.exact_to_the_digit and self.arithmetic == EXACT else HALF,
            weights_hash=self.opened.identity(f"stride {self.stride} {self.arithmetic}"),
            about=f"Progress and success at {every}, from {frames} frames spread up to it. "
            + (ROUNDED if self.arithmetic == FP8 else "")
            + VERIFIED,
        )


def _batches(frames: Frames) -> Iterator[Images]:
    """Decode some frames at a time; the engine asks for the next ones in the background."""
    for start in range(0, len(frames), BATCH):
        yield frames.take(np.arange(start, min(start + BATCH, len(frames))))


def _window(frames: Frames, count: int) -> Images:
    from demerit.models.vlm.windows import window  # noqa: PLC0415

    return frames.take(window(len(frames) - 1, count))
