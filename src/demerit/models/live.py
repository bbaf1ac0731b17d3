"""Live episodes: any model frame by frame, and which cameras the frames of an episode have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import RGB, Frames, Images
from demerit.errors import BadInput, BadReward
from demerit.models.protocol import LiveEpisode, LiveFrame, LiveReward, Online, RewardModel, StepsTogether

ONE_IMAGE = 3
FRAMES_ALONE = "a model that sees frames alone, to score live"


def take_first(cameras: Sequence[str]) -> Sequence[str]:
    """Choose the main camera: the first."""
    return cameras[:1]


@dataclass(eq=False)
class LiveCameras:
    """The cameras of one live episode: chosen at its first frame, required in every later one."""

    choose: Callable[[Sequence[str]], Sequence[str]] = take_first
    """the cameras to use, of those given at the first frame; none = refuse the frame"""
    wanted: Sequence[str] = ("main",)
    """the model's own cameras: an image without a name is that of the only one"""
    names: Sequence[str] = ()

    def pick(self, frame: LiveFrame) -> dict[str, Images]:
        """Return the image of each camera; refuse a frame that lacks one or is no image."""
        if not isinstance(frame, Mapping) and len(self.wanted) != 1:
            raise BadInput("frame", f"an image per camera: {{{', '.join(map(repr, self.wanted))}}}", "one image")
        views = frame if isinstance(frame, Mapping) else {(self.names or self.wanted)[0]: frame}
        names = self.names or self.choose(list(views))
        if not names or not set(names) <= set(views):
            wanted = ", ".join(self.names or self.wanted)
            raise BadInput("frame", f"an image of each of {wanted}", f"images of {', '.join(views) or 'none'}")
        images = {name: np.asarray(views[name]) for name in names}
        for image in images.values():
            if image.dtype != np.uint8 or image.ndim != ONE_IMAGE or image.shape[-1] != RGB or not image.size:
                raise BadInput("frame", "uint8 of shape (height, width, 3)", f"{image.dtype} of shape {image.shape}")
        self.names = names
        return images

    def pick_main(self, frame: LiveFrame) -> Images:
        """Return the image of the main camera."""
        return next(iter(self.pick(frame).values()))


class RescoredEpisode:
    """A live episode of a model that cannot score live: every step scores all frames so far again."""

    def __init__(self, model: RewardModel, instruction: str) -> None:
        self.model, self.instruction = model, instruction
        self.frames: list[Mapping[str, Images]] = []

    def add(self, frame: LiveFrame) -> None:
        """Keep a frame without scoring it."""
        self.frames.append(frame if isinstance(frame, Mapping) else {"main": frame})

    def step(self, frame: LiveFrame) -> LiveReward:
        """Take the next frame; return the value and success at the end of the episode so far."""
        self.add(frame)
        views = {name: Frames.from_array(np.stack([kept[name] for kept in self.frames])) for name in self.frames[0]}
        reward = self.model.score([Episode("live", self.instruction, views)])[0]
        if math.isnan(reward.final):
            raise BadReward(self.model.card.name, "live", reward.why_missing)
        success = None if reward.success is None else float(reward.success[-1])
        return LiveReward(reward.final, success, reward.familiarity, reward.given)


@dataclass(eq=False)
class CombinedEpisode:
    """A live episode of a model that is made of others."""

    runs: Sequence[LiveEpisode]
    combine: Callable[[Sequence[LiveReward]], LiveReward]
    """what their answers make"""

    def step(self, frame: LiveFrame) -> LiveReward:
        """Show the next frame to all of them."""
        return self.combine([run.step(frame) for run in self.runs])


def can_step_together(run: LiveEpisode) -> bool:
    """Whether frames of several such episodes cost less in one call than one after another."""
    if isinstance(run, CombinedEpisode):
        return all(map(can_step_together, run.runs))
    return isinstance(run, StepsTogether)


def step_together(runs: Sequence[LiveEpisode], frames: Sequence[LiveFrame]) -> list[LiveReward | Exception]:
    """Take the next frame of different live episodes of one model; the answer to a frame may be an error.

    Where the model fails on all of them, each is asked alone, so that one episode does not fail the others.
    """
    first = runs[0]
    if isinstance(first, CombinedEpisode):
        members = zip(*(run.runs for run in runs if isinstance(run, CombinedEpisode)), strict=True)
        answers = zip(*(step_together(member, frames) for member in members), strict=True)
        return [_combine(run, parts) for run, parts in zip(runs, answers, strict=True)]
    try:
        return first.step_together(runs, frames) if isinstance(first, StepsTogether) else [first.step(frames[0])]
    except Exception as error:  # third-party code may raise anything
        if len(runs) == 1:
            return [error]
    return [step_together([run], [frame])[0] for run, frame in zip(runs, frames, strict=True)]


def _combine(run: LiveEpisode, parts: Sequence[LiveReward | Exception]) -> LiveReward | Exception:
    rewards = [part for part in parts if isinstance(part, LiveReward)]
    wrong = next((part for part in parts if isinstance(part, Exception)), None)
    try:
        return wrong or run.combine(rewards)  # type: ignore[attr-defined]  # all runs of a model are of one class
    except Exception as error:  # third-party code may raise anything
        return error


def start_live(model: RewardModel, instruction: str) -> LiveEpisode:
    """Start a live episode of any model; one that cannot score live scores all frames again at every step.

    A model that reads signals is refused: a live episode has frames alone.
    """
    if model.card.reads_signals:
        raise BadInput(model.card.name, FRAMES_ALONE, "one that reads signals, which scores whole episodes")
    return model.start(instruction) if isinstance(model, Online) else RescoredEpisode(model, instruction)
