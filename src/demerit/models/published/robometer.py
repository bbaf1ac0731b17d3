"""Robometer: progress and success at every frame, and which of two episodes is better, by a 4B vision-language model.

demerit score my_videos --model robometer                 the authors' checkpoint from the hub
demerit score my_videos --model robometer:lerobot         LeRobot's copy of it
demerit score my_videos --model robometer:path=./mine     a folder, in either layout
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Frames, Images
from demerit.data.reward import Reward
from demerit.data.splits import SeenEpisodes
from demerit.errors import BadInput
from demerit.models.live import LiveCameras
from demerit.models.loading import Listing
from demerit.models.protocol import LiveFrame, LiveReward, ModelCard, ShownModel
from demerit.models.published.scoring import (
    NON_FINITE,
    check_at_least,
    check_choice,
    load_engine,
    placement,
    read_instruction,
    read_options,
    reward_name,
    score_each,
)
from demerit.models.vlm.prefix_tree import window
from demerit.models.vlm.prompt import is_plain_text

if TYPE_CHECKING:
    from demerit.models.vlm.robometer import RobometerCheckpoint, RobometerEngine
    from demerit.models.vlm.robometer_live import LiveRobometer

CHECKPOINTS = {"authors": "robometer/Robometer-4B", "lerobot": "lerobot/Robometer-4B"}
PUBLISHED = {CHECKPOINTS["authors"]: "robometer", CHECKPOINTS["lerobot"]: "robometer-lerobot"}
"""no commit is pinned, because none was known when this was written; `revision` pins one"""
OWN = {"size": str, "stride": int}
ARITHMETIC = "exact"
"""part of the identity and of `given`"""
LICENCE = "Apache-2.0 (as its hub card says; not verified here)"
HALF = 0.02
"""how far bfloat16 may move a value; the tests allow as much between two ways of computing it"""
BATCH = 64
"""frames decoded together"""
VERIFIED = (
    "Verified here on random weights of the same layouts: answers equal those of the straightforward way, each window "
    "through transformers' own forward pass. Not verified here: the published weights and their benchmark figures."
)

ZERO_AT = {
    "clip": "In its training here, progress was 0 at the first frame of a clip, as the authors have it. ",
    "episode": "In its training here, progress was 0 at the first frame of the episode, not of a clip. ",
}


class Robometer(ShownModel):
    """Eight frames spread up to each moment, read at the last: the authors' dense rewards."""

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
        """Find and check the checkpoint; weights are loaded at the first episode.

        Args:
            options: `authors` (the default) or `lerobot`, then name=value options, separated by commas.
            **changes: options by name: path (a folder or a hub id), revision, adapter, device, dtype; at_once (tokens
                computed together; fewer take less memory), stride (score every N-th frame).
        """
        opener = load_engine("robometer", "robometer:RobometerCheckpoint")
        settings = read_options("robometer", options, changes, OWN, "size")
        which = check_choice("robometer", str(settings.get("size", "authors")), tuple(CHECKPOINTS))
        self._at_once = settings.get("at_once")
        self.stride = check_at_least("stride", int(settings.get("stride", 1)), 1)
        path = settings.get("path") or CHECKPOINTS[which]
        self.checkpoint: RobometerCheckpoint = opener.open(path, **placement(settings))
        self.card = self._card(reward_name(path, settings.get("adapter"), PUBLISHED))

    @cached_property
    def engine(self) -> RobometerEngine:
        """The weights, on the device."""
        return self.checkpoint.engine(self._at_once)

    @property
    def seen(self) -> SeenEpisodes:
        """The episodes that the weights were trained on; unknown for the published ones."""
        return self.checkpoint.seen

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score every frame; an episode that cannot be decoded is unscored with the reason."""
        return score_each(self.card.name, episodes, lambda episode: episode.main, self._score)

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        """Return how likely the first of each pair is better, averaged over both orders of asking."""
        return [self._prefer(first, second) for first, second in pairs]

    def start(self, instruction: str) -> RobometerRun:
        """Start a live episode. The cost of a step does not grow with the episode."""
        if not instruction.strip() or not is_plain_text(instruction):
            raise BadInput("instruction", "text without special tokens", repr(instruction))
        return RobometerRun(load_engine("robometer", "robometer_live:LiveRobometer")(self.engine, instruction.strip()))

    def _score(self, episode: Episode, frames: Frames) -> Reward:
        what = f"Scoring episode {episode.id} with {self.card.name}"
        outputs = self.engine.dense(_batches(frames), read_instruction(episode), self.stride, what)
        facts = self._given(episode) | {"frames": len(frames)}
        is_known = np.isfinite(outputs.progress)
        value = np.where(is_known, outputs.progress, np.nan)
        success = np.where(np.isfinite(outputs.success), outputs.success, np.nan)
        why = "" if is_known.all() else NON_FINITE
        return Reward(self.card.name, episode.id, outputs.at, value, success, why, facts)

    def _prefer(self, first: Episode, second: Episode) -> float:
        task = read_instruction(first)
        if task != read_instruction(second):
            return float("nan")  # the prompt has one task
        count = self.checkpoint.protocol.frames
        clips = [episode.main.take(window(len(episode.main) - 1, count)) for episode in (first, second)]
        within_memory = load_engine("robometer", "backbone:within_memory")
        with within_memory(f"Comparing episodes {first.id} and {second.id}"):
            there = self.engine.compare(clips[0], clips[1], task)
            back = self.engine.compare(clips[1], clips[0], task)
        return (there + 1 - back) / 2

    def _given(self, episode: Episode) -> dict[str, Any]:
        return {
            "camera": episode.main_camera,
            "instruction": True,
            "window": self.checkpoint.protocol.frames,
            "stride": self.stride,
            "arithmetic": ARITHMETIC,
            **self.checkpoint.facts,
        }

    def _card(self, name: str) -> ModelCard:
        frames = self.checkpoint.protocol.frames
        every = "every frame" if self.stride == 1 else f"every {self.stride}th frame and the last"
        return ModelCard(
            name=name,
            revision=self.checkpoint.revision,
            licence=LICENCE,
            quantity="progress",
            low=0.0,
            high=1.0,
            causal=True,
            comparable=True,
            rounding=0.0 if self.checkpoint.facts["dtype"] == "float32" else HALF,
            weights_hash=self.checkpoint.identity(f"stride {self.stride} {ARITHMETIC}"),
            about=f"Progress and success at {every}, from {frames} frames spread up to it. "
            + ZERO_AT.get(self.checkpoint.zero_at, "")
            + VERIFIED,
        )


@dataclass(eq=False)
class RobometerRun:
    """A live episode of the main camera."""

    live: LiveRobometer
    cameras: LiveCameras = field(default_factory=LiveCameras)

    def step(self, frame: LiveFrame) -> LiveReward:
        """Take the next frame."""
        return LiveReward(*self.live.step(self.cameras.pick_main(frame)))

    @staticmethod
    def step_together(runs: Sequence[RobometerRun], frames: Sequence[LiveFrame]) -> list[LiveReward | Exception]:
        """Run the windows of all episodes at once; a frame that is none spoils its own episode's answer alone."""
        answers: dict[int, LiveReward | Exception] = {}
        images = {}
        for number, (run, frame) in enumerate(zip(runs, frames, strict=True)):
            try:
                image = run.cameras.pick_main(frame)
                run.live.check(image)
                images[number] = image
            except BadInput as error:
                answers[number] = error
        if images:
            step = load_engine("robometer", "robometer_live:step_together")
            outputs = step([runs[number].live for number in images], list(images.values()))
            answers |= {number: LiveReward(*output) for number, output in zip(images, outputs, strict=True)}
        return [answers[number] for number in range(len(runs))]


def _batches(frames: Frames) -> Iterator[Images]:
    """Decode some frames at a time; the engine requests the next ones in the background."""
    for start in range(0, len(frames), BATCH):
        yield frames.take(np.arange(start, min(start + BATCH, len(frames))))
