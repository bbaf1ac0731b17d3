"""What vision-language models keep of an episode: some frames, and the labels of the most trusted source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Images, Indices, Prepare, spread
from demerit.data.labels import Outcome, most_trusted
from demerit.models.by_time import ByTime
from demerit.models.vlm.prompt import is_plain_text
from demerit.negatives.negative import find_grade
from demerit.training.frame_storage import resize_to
from demerit.training.prepared import CorpusPart, CorpusRow, Floats
from demerit.training.vlm.config import RoboRewardTrainConfig, VLMTrainConfig


@dataclass(frozen=True)
class VLMCorpusPlan:
    """A `PreparePlan` for Robometer or RoboReward."""

    config: VLMTrainConfig

    @property
    def facts(self) -> Mapping[str, Any]:
        """The numbers that decide which frames are kept."""
        names = ["shorter_side", "most_frames", "fewest_frames", *(["fps"] if self.has_grades else [])]
        return {"model": self.config.MODEL, **{name: getattr(self.config, name) for name in names}}

    @property
    def sources(self) -> tuple[str, ...]:
        """The label sources of the configuration."""
        return self.config.sources

    @property
    def without(self) -> tuple[str, ...]:
        """The edits that the configuration leaves out."""
        return self.config.without

    @property
    def has_preferences(self) -> bool:
        """Grades compare nothing."""
        return not self.has_grades

    @property
    def resize(self) -> Prepare:
        """Shrink images."""
        return partial(shrink, shorter=self.config.shorter_side)

    @property
    def has_grades(self) -> bool:
        """Whether every episode needs a grade."""
        return isinstance(self.config, RoboRewardTrainConfig)

    def choose_frames(self, episode: Episode) -> Indices:
        """Return frame numbers, evenly spread or `fps` per second; the first and the last are always in."""
        if isinstance(self.config, RoboRewardTrainConfig):
            return ByTime(1 / self.config.fps, self.config.most_frames).by_time(episode.main.times())
        return spread(len(episode), self.config.most_frames)

    def label(self, episode: Episode, frames: Indices, part: CorpusPart) -> CorpusRow | str:
        """Label an episode, or return why it cannot be trained on."""
        rule = (Outcome("rule", success=True, by="demonstration"),) if part.use == "demonstrations" else ()
        outcomes = [*episode.outcomes, *rule]
        judged = (outcome for outcome in outcomes if outcome.success is not None or outcome.progress is not None)
        result = most_trusted(judged)
        grade = find_grade(outcomes, self.has_grades)
        curves = (outcome.curve for outcome in outcomes if outcome.curve is not None)
        curve = next((curve for curve in curves if len(curve) == len(episode)), None)
        if result is None and grade is None and curve is None:
            return "no label"
        if not episode.instruction.strip():
            return "no instruction"
        if not is_plain_text(episode.instruction):
            return "an instruction with a special token in it"
        if self.has_grades and grade is None:
            return "no grade"
        if len(frames) < self.config.fewest_frames:
            return f"fewer than {self.config.fewest_frames} frames"
        success = result.success if result else None
        return CorpusRow(
            id=episode.id,
            source=part.name,
            instruction=episode.instruction,
            kind="measured" if curve is not None else "demonstration" if success else "outcome",
            success=success,
            progress=_label_progress(len(episode), frames, curve, result),
            times=np.asarray(episode.main.times()[frames], np.float32),
            grade=grade,
            site=episode.origin.tags.get("data_source", ""),  # an RBM folder has several datasets
            group=episode.origin.group,
        )


def shrink(images: Images, shorter: int) -> Images:
    """Shrink images until the shorter side has that many pixels; smaller ones stay as they are."""
    height, width = images.shape[1:3]
    if not len(images) or min(height, width) <= shorter:
        return images
    scale = shorter / min(height, width)
    return resize_to(images, round(height * scale), round(width * scale))


def _label_progress(length: int, frames: Indices, curve: Floats | None, result: Outcome | None) -> Floats:
    if curve is not None:
        return np.asarray(curve[frames], np.float32)
    if result is not None and result.success:  # the paper's target of a demonstration: t / T
        return np.asarray((frames + 1) / length, np.float32)
    progress = np.full(len(frames), np.nan, np.float32)
    if result is not None and result.progress is not None and len(frames):
        progress[-1] = result.progress  # known at the end alone
    return progress
