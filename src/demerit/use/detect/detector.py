"""A detector: says at which frame an episode goes wrong, from a model's values alone.

    level(t)    the value, put on 0 to 1; where the model gives a probability of success, the mean of both
    usual(t)    the level that four of five successes have reached at frame t; a success keeps its last level
    best(t)     the highest level of the episode itself, up to frame t
    behind(t)   the higher of usual(t) and best(t), minus level(t). At the last frame of an episode that is over, `end`
                counts as usual if it is higher: the median of the levels at which successes end

The alarm is at the first frame where `behind` reaches the threshold. A share of at most `false_alarms` of successes
reaches it anywhere: it is a conformal bound on the largest `behind` of whole episodes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.config import build_config
from demerit.data.episode import Episode
from demerit.data.files import write_atomic
from demerit.data.instructions import normalize_instruction
from demerit.data.reward import Reward
from demerit.data.seen import SeenEpisodes
from demerit.data.untrusted import read_json
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.protocol import LiveEpisode, LiveFrame, LiveReward, ModelCard, Online, RewardModel

Floats = npt.NDArray[np.float64]
FORMAT = 1
ALL = ""
"""the schedule of all tasks together"""


@dataclass(frozen=True)
class Schedule:
    """The levels that successes usually have by when, and how far behind means an alarm."""

    usual: tuple[float, ...]
    """by frame; later frames have the last one's"""
    end: float
    """at the last frame of an episode"""
    threshold: float = math.inf
    successes: int = 0
    """that it was calibrated on"""

    def __post_init__(self) -> None:
        """Refuse an empty one."""
        if not self.usual:
            raise BadInput("usual", "a level per frame", "none")


@dataclass(eq=False)
class EpisodeFollower:
    """Follows the levels of one episode."""

    schedule: Schedule
    best: float = -math.inf

    def find_behind(self, frame: int, level: float, is_last: bool = False) -> float:
        """Take the level of the next frame; return how far it is behind; NaN = it has no level."""
        self.best = self.best if math.isnan(level) else max(self.best, level)
        usual = self.schedule.usual[min(frame, len(self.schedule.usual) - 1)]
        return max(usual, self.best, self.schedule.end if is_last else -math.inf) - level


@dataclass(frozen=True)
class Detection:
    """What a detector says of a whole episode."""

    episode: str
    frame: int | None
    """of the alarm; None = no alarm, or not judged"""
    behind: float
    """the largest of all frames; NaN = not judged"""
    threshold: float
    seconds: float | None = None
    """of the alarm, from the start of the video"""
    kind: str = ""
    """of the failure, by the failure taxonomy; empty = unknown"""
    why_missing: str = ""
    """why it was not judged"""

    @property
    def alarm(self) -> bool | None:
        """Whether it went wrong; None = not judged."""
        return None if self.why_missing else self.frame is not None


@dataclass(frozen=True)
class LiveStep:
    """What a detector says after the newest frame of a live episode; true where it went wrong."""

    alarm: bool
    """now or before"""
    frame: int
    """the newest, from 0"""
    behind: float
    threshold: float
    answer: LiveReward
    """the model's"""

    def __bool__(self) -> bool:
        return self.alarm


@dataclass(frozen=True)
class Detector:
    """When an episode goes wrong, by one model's values."""

    model: str
    """the model's name or folder, as `load_model` takes it"""
    card: str
    """hash of the model's card: another model has other values"""
    low: float
    high: float
    """the range of its values"""
    causal: bool
    """its value of a frame does not depend on later ones, so it can be used live"""
    false_alarms: float
    """the promised share of successes with an alarm"""
    confidence: float | None
    """probability that the share holds, over calibration sets; None = it holds on average over them"""
    schedules: Mapping[str, Schedule]
    """by normalized instruction, where a task has enough successes of its own; `ALL` = all together"""
    calibrated_on: Mapping[str, Any] = field(default_factory=dict)
    """marks of the calibration episodes, which say nothing about how well it works"""

    def __post_init__(self) -> None:
        """Check the values."""
        if ALL not in self.schedules:
            raise BadInput("schedules", "one for all tasks", sorted(self.schedules))
        if not self.low < self.high:
            raise BadInput("range of values", "low < high", (self.low, self.high))

    @property
    def promise(self) -> str:
        """The guarantee, as a sentence."""
        sure = "on average over calibration sets" if self.confidence is None else f"{self.confidence:.0%} sure"
        return (
            f"At most {self.false_alarms:.1%} of successes have an alarm ({sure}), all frames of an episode together, "
            f"if they resemble the {self.schedules[ALL].successes} that it was calibrated on."
        )

    @property
    def seen(self) -> SeenEpisodes:
        """The calibration episodes."""
        facts = dict(self.calibrated_on)
        return SeenEpisodes.from_facts(facts, "calibrated_on") if facts else SeenEpisodes()

    @classmethod
    def load(cls, path: str | Path) -> Detector:
        """Read what `save` wrote."""
        facts = read_json(Path(path), "a detector (JSON, of demerit detect -o)")
        if facts.pop("format", None) != FORMAT or facts.pop("kind", None) != "detector":
            expected = f"a detector of format {FORMAT} (another may need a newer demerit)"
            raise BadInput(str(path), expected, "another file")
        return build_config(cls, facts, str(path))

    def save(self, path: str | Path) -> None:
        """Write it as JSON, atomically."""
        text = json.dumps({"format": FORMAT, "kind": "detector", **asdict(self)}, indent=1)
        write_atomic(Path(path), (text + "\n").encode())

    def check(self, card: ModelCard) -> None:
        """Refuse another model than the one that it was calibrated with."""
        if card.hash() != self.card:
            got = f"{card.name}, which is another or has changed: calibrate again"
            raise BadInput("detector", f"the model that it was calibrated with ({self.model})", got)

    def schedule(self, instruction: str) -> Schedule:
        """Return the schedule of a task, or that of all."""
        return self.schedules.get(normalize_instruction(instruction), self.schedules[ALL])

    def judge(self, reward: Reward, length: int, instruction: str) -> Detection:
        """Say whether and when a whole episode of `length` frames went wrong."""
        schedule = self.schedule(instruction)
        if not reward.scored:
            return Detection(reward.episode, None, math.nan, schedule.threshold, why_missing=reward.why_missing)
        levels, follower = hold_levels(reward, length, self.low, self.high), EpisodeFollower(schedule)
        behind = [follower.find_behind(t, level, t == length - 1) for t, level in enumerate(levels.tolist())]
        frame = next((t for t, number in enumerate(behind) if number >= schedule.threshold), None)
        return Detection(reward.episode, frame, float(np.nanmax(behind)), schedule.threshold)

    def follow(self, instruction: str) -> EpisodeFollower:
        """Follow the levels of one episode."""
        return EpisodeFollower(self.schedule(instruction))

    def find_level(self, answer: LiveReward) -> float:
        """Return the level of a live frame."""
        return float(find_level(answer.value, answer.success, self.low, self.high))

    def judge_episode(self, episode: Episode, reward: Reward) -> Detection:
        """Judge an episode by its reward, with the second of the alarm where the video's times can be read."""
        found = self.judge(reward, len(episode) if reward.scored else 0, episode.instruction)
        return found if found.frame is None else replace(found, seconds=float(episode.main.times()[found.frame]))

    def start(self, instruction: str, model: RewardModel | None = None) -> LiveDetection:
        """Start a live episode; `model` None = load it (once per episode: keep it and give it for many)."""
        model = load_model(self.model) if model is None else model
        self.check(model.card)
        if not isinstance(model, Online) or not self.causal:
            raise BadInput(model.card.name, "a model that scores frame by frame", "one that scores whole episodes")
        return LiveDetection(self, model.start(instruction), instruction)


class LiveDetection:
    """A live episode."""

    def __init__(self, detector: Detector, live: LiveEpisode, instruction: str) -> None:
        self._detector, self._live, self._follower = detector, live, detector.follow(instruction)
        self.last: LiveStep | None = None
        """what the newest step returned"""
        self.alarm_at: int | None = None
        """frame of the alarm"""

    def step(self, frame: LiveFrame) -> LiveStep:
        """Take the next frame. An alarm stays."""
        return self._take(0 if self.last is None else self.last.frame + 1, self._live.step(frame), False)

    def finish(self) -> LiveStep:
        """Say that the episode is over: what is not done now never will be."""
        if self.last is None:
            raise BadInput("finish", "a frame before the end", "none")
        return self._take(self.last.frame, self.last.answer, True)

    def _take(self, frame: int, answer: LiveReward, is_last: bool) -> LiveStep:
        behind = self._follower.find_behind(frame, self._detector.find_level(answer), is_last)
        threshold = self._follower.schedule.threshold
        if self.alarm_at is None and behind >= threshold:
            self.alarm_at = frame
        self.last = LiveStep(self.alarm_at is not None, frame, behind, threshold, answer)
        return self.last


def find_level(value: npt.ArrayLike, success: npt.ArrayLike | None, low: float, high: float) -> Floats:
    """Put values on 0 to 1; with probabilities of success, the mean of both."""
    level = (np.asarray(value, dtype=np.float64) - low) / (high - low)
    return level if success is None else (level + np.asarray(success, dtype=np.float64)) / 2


def hold_levels(reward: Reward, length: int, low: float, high: float) -> Floats:
    """Return a level per frame: that of the newest scored frame, NaN before the first."""
    known = ~np.isnan(reward.value)
    at, levels = reward.at[known], find_level(reward.value, reward.success, low, high)[known]
    newest = np.searchsorted(at, np.arange(length), side="right") - 1
    return np.where(newest < 0, np.nan, levels[newest])
