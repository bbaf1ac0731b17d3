"""A detector: flags episodes that go wrong, and says when, from a model's values alone.

    level(t)    the value, put on 0 to 1; where the model gives a probability of success, the mean of both
    usual(t)    the level that four of five successes have reached at frame t; a success keeps its last level
    best(t)     the highest level of the episode itself, up to frame t
    behind(t)   the higher of usual(t) and best(t), minus level(t). At the last frame of an episode that is over, `end`
                counts as usual if it is higher: the median of the levels at which successes end

An episode is flagged at the first frame where `behind` reaches the threshold. A share of at most `false_alarms` of
successes reaches it anywhere: it is a conformal bound on the largest `behind` of whole episodes. It went wrong at the
frame of its best level up to there: from then on it got no further.

A model that was taught verdicts about the end alone says nothing on the way. Its episodes are judged at their end:
`behind` is 1 - level at the last frame.

Successes that the model learned from calibrate too where it keeps their values by heads that were fitted without them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.config import build_config
from demerit.data.arrays import Floats
from demerit.data.episode import Episode, normalize_instruction
from demerit.data.files import read_json, write_atomic
from demerit.data.reward import WARNED, Reward, Verdict
from demerit.data.splits import LabelSelection, SeenEpisodes, recording_of, seen_by
from demerit.decide.guarantee import Guarantee
from demerit.decide.threshold import affordable_risk, choose_looks, conformal_threshold, failures_needed, follow_episode
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.live import start_live
from demerit.models.protocol import SCORE, LiveEpisode, LiveFrame, LiveReward, ModelCard, RewardModel

FORMAT = 1
ALL = ""
"""the schedule of all tasks together"""
FEWEST = 2
"""successes: each is compared with the others"""
USUAL = 0.2
"""share of successes that are below the usual level, at each frame"""
END = 0.5
"""share of successes that are below the usual level at their end, where a success is certain"""
GUESS = "Where an episode went wrong is a guess: look before you cut there."
OWN = 2
"""a task with this many times the successes needed gets a schedule of its own; with fewer, few failures are found"""


@dataclass(frozen=True)
class Schedule:
    """The levels that successes usually have by when, and how far behind means an alarm."""

    usual: tuple[float, ...]
    """by frame; later frames have the last one's; empty = episodes are judged at their end alone"""
    end: float
    """at the last frame of an episode"""
    threshold: float = math.inf
    successes: int = 0
    """that it was calibrated on"""


@dataclass(eq=False)
class EpisodeFollower:
    """Follows the levels of one episode."""

    schedule: Schedule
    best: float = -math.inf
    best_at: int = 0
    """the first frame with the best level so far"""

    def find_behind(self, frame: int, level: float, is_last: bool = False) -> float:
        """Take the level of the next frame; return how far it is behind; NaN = it has no level, or is not judged."""
        if level > self.best:
            self.best, self.best_at = level, frame
        end = self.schedule.end if is_last else -math.inf
        if not self.schedule.usual:
            return end - level if is_last else math.nan
        return max(self.schedule.usual[min(frame, len(self.schedule.usual) - 1)], self.best, end) - level


@dataclass(frozen=True)
class Detection:
    """What a detector says of a whole episode."""

    episode: str
    flagged_at: int | None
    """the frame of the alarm; None = no alarm, or not judged"""
    behind: float
    """the largest of all frames; NaN = not judged"""
    threshold: float
    went_wrong_at: int | None = None
    """the frame of the best level up to the alarm, where the evidence turns: a guess"""
    flagged_second: float | None = None
    """of the alarm, from the start of the video"""
    went_wrong_second: float | None = None
    kind: str = ""
    """of the failure, by the failure taxonomy; empty = unknown"""
    why_missing: str = ""
    """why it was not judged"""
    doubt: Verdict | None = None
    """why the model's values say nothing here, so that neither does an alarm"""

    @property
    def verdict(self) -> Verdict:
        """A failure where there is an alarm. Without one it is unknown: a detector does not find all failures."""
        if self.why_missing:
            return Verdict(None, "not scored", self.why_missing)
        return self.doubt or (Verdict(False) if self.alarm else Verdict(None, "no alarm"))

    @property
    def alarm(self) -> bool | None:
        """Whether there is an alarm; None = not judged."""
        return None if self.why_missing else self.flagged_at is not None


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
    """the range of its values; of an unbounded model, that of the calibration episodes"""
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
    left_out: int = 0
    """calibration episodes that taught the model, judged by heads without them"""

    def __post_init__(self) -> None:
        """Check the values."""
        if ALL not in self.schedules:
            raise BadInput("schedules", "one for all tasks", sorted(self.schedules))
        if not self.low < self.high:
            raise BadInput("range of values", "low < high", (self.low, self.high))

    @property
    def guarantee(self) -> Guarantee:
        """What it promises, all frames of an episode together."""
        n = self.schedules[ALL].successes
        return Guarantee(self.false_alarms, "successes have an alarm", n, self.confidence, self.left_out)

    @property
    def at_end(self) -> bool:
        """Whether it judges episodes at their end alone."""
        return not self.schedules[ALL].usual

    @property
    def seen(self) -> SeenEpisodes:
        """The calibration episodes."""
        facts = dict(self.calibrated_on)
        return SeenEpisodes.from_dict(facts, "calibrated_on") if facts else SeenEpisodes()

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
        """Say whether a whole episode of `length` frames went wrong, and when."""
        threshold = self.schedule(instruction).threshold
        if not reward.scored:
            return Detection(reward.episode, None, math.nan, threshold, why_missing=reward.why_missing)
        levels, behind = self.trace(reward, length, instruction)
        largest = float(np.fmax.reduce(behind, initial=-math.inf))
        doubt = reward.verdict if reward.verdict.reason in WARNED else None
        if not (behind >= threshold).any():
            return Detection(reward.episode, None, largest, threshold, doubt=doubt)
        at = int(np.argmax(behind >= threshold))
        best_at = int(np.nanargmax(levels[: at + 1]))
        return Detection(reward.episode, at, largest, threshold, best_at, doubt=doubt)

    def trace(self, reward: Reward, length: int, instruction: str) -> tuple[Floats, Floats]:
        """Return the level at each frame of a scored episode, and how far it is behind; NaN = none, or not judged."""
        levels, follower = hold_levels(reward, length, self.low, self.high), EpisodeFollower(self.schedule(instruction))
        return levels, np.array([follower.find_behind(t, x, t == length - 1) for t, x in enumerate(levels.tolist())])

    def find_level(self, answer: LiveReward) -> float:
        """Return the level of a live frame."""
        return float(find_level(answer.value, answer.success, self.low, self.high))

    def judge_episode(self, episode: Episode, reward: Reward) -> Detection:
        """Judge an episode by its reward, with the seconds of its frames."""
        detection = self.judge(reward, len(episode) if reward.scored else 0, episode.instruction)
        if detection.flagged_at is None or detection.went_wrong_at is None:
            return detection
        flagged, wrong = (float(episode.main.times()[at]) for at in (detection.flagged_at, detection.went_wrong_at))
        return replace(detection, flagged_second=flagged, went_wrong_second=wrong)

    def start(self, instruction: str, model: RewardModel | None = None) -> LiveDetection:
        """Start a live episode; `model` None = load it (once per episode: keep it and give it for many).

        A model without live scoring scores all frames so far at every step.
        """
        model = load_model(self.model) if model is None else model
        self.check(model.card)
        if not self.causal or model.card.reads_signals:
            got = "one that reads signals" if model.card.reads_signals else "one whose values depend on later frames"
            raise BadInput(model.card.name, "a model that scores a frame by the frames up to it", got)
        return LiveDetection(self, start_live(model, instruction), instruction)


class LiveDetection:
    """A live episode."""

    def __init__(self, detector: Detector, live: LiveEpisode, instruction: str) -> None:
        self._detector, self._live = detector, live
        self._follower = EpisodeFollower(detector.schedule(instruction))
        self.last: LiveStep | None = None
        """what the newest step returned"""
        self.alarm_at: int | None = None
        """frame of the alarm: where the episode is flagged"""
        self.went_wrong_at: int | None = None
        """frame of the best level up to the alarm"""

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
            self.alarm_at, self.went_wrong_at = frame, self._follower.best_at
        self.last = LiveStep(self.alarm_at is not None, frame, behind, threshold, answer)
        return self.last


def find_level(value: npt.ArrayLike, success: npt.ArrayLike | None, low: float, high: float) -> Floats:
    """Put values on 0 to 1; with probabilities of success, the mean of both."""
    level = (np.asarray(value, dtype=np.float64) - low) / (high - low)
    return level if success is None else (level + np.asarray(success, dtype=np.float64)) / 2


def hold_levels(reward: Reward, length: int, low: float, high: float) -> Floats:
    """Return a level per frame: that of the newest scored frame, NaN before the first."""
    has_value = ~np.isnan(reward.value)
    at, levels = reward.at[has_value], find_level(reward.value, reward.success, low, high)[has_value]
    newest = np.searchsorted(at, np.arange(length), side="right") - 1
    return np.where(newest < 0, np.nan, levels[newest])


# Calibration


def calibrate_detector(
    scored: Iterable[tuple[Episode, Reward]],
    card: ModelCard,
    model: str,
    false_alarms: float = 0.05,
    confidence: float | None = None,
    learned_from: SeenEpisodes | None = None,
    selection: LabelSelection | None = None,
    left_out: Callable[[Episode], Reward | None] = lambda episode: None,
    at_end: bool | None = None,
) -> Detector:
    """Calibrate a detector on the successes among scored episodes.

    Args:
        scored: labelled episodes with the model's rewards, e.g. a `ScoredDataset`.
        card: the model's.
        model: its name or folder, to load it for live episodes.
        false_alarms: the share of successes that may have an alarm, between 0 and 1.
        confidence: that the share holds for this very detector; None = it holds on average over calibration sets,
            which takes fewer successes (19 instead of 45 at a share of 0.05).
        learned_from: what the model learned from; those episodes count only by what `left_out` returns.
        selection: label sources and splits to take; None = no test split, no labels of models.
        left_out: the reward of an episode by parts that did not learn from it (see `left_out_by`); None = unknown.
        at_end: judge episodes at their end alone; None = where the model was taught no progress.
    """
    selection = selection or LabelSelection()
    if not card.comparable:
        raise BadInput(card.name, "a model whose values can be compared between episodes", "one that scales each")
    if not 0 < false_alarms < 1:
        raise BadInput("--risk", "a share between 0 and 1", false_alarms)
    needed = max(FEWEST, failures_needed(false_alarms, confidence))
    used: dict[str, tuple[Episode, Reward, bool]] = {}
    not_used = {"that the model learned from": 0, "unscored": 0, "made of the same recordings": 0}
    for original, scored_by_all in scored:
        episode = selection.take(original)
        if episode is None or episode.outcome is None or episode.outcome.success is not True:
            continue
        has_learned = learned_from is not None and learned_from.has(original)
        reward = left_out(original) if has_learned else scored_by_all
        if reward is None:
            not_used["that the model learned from"] += 1
        elif not reward.scored:
            not_used["unscored"] += 1
        else:
            recording = recording_of(original)
            not_used["made of the same recordings"] += recording in used
            if recording not in used or len(original.edits) < len(used[recording][0].edits):
                used[recording] = original, reward, has_learned
    pairs, taught = [(episode, reward) for episode, reward, _ in used.values()], sum(last for *_, last in used.values())
    if len(pairs) < needed:
        notes = [f"{count} more {why}" for why, count in not_used.items() if count]
        afford = f" (or --risk {affordable_risk(len(pairs)):g})" if pairs and confidence is None else ""
        got = "; ".join([f"{len(pairs)}{afford}", *notes, *selection.notes()])
        raise BadInput(f"successes to calibrate on, for {false_alarms:g} false alarms", f"{needed} or more", got)
    low, high = find_range(card, [reward.value for _, reward in pairs])
    levels_of: dict[str, list[Floats]] = {}
    for episode, reward in pairs:
        for task in (ALL, normalize_instruction(episode.instruction)):
            levels_of.setdefault(task, []).append(hold_levels(reward, len(episode), low, high))
    make = make_end_schedule if (card.quantity == SCORE if at_end is None else at_end) else make_schedule
    schedules = {
        task: make(levels, false_alarms, confidence)
        for task, levels in levels_of.items()
        if task == ALL or len(levels) >= OWN * needed
    }
    marks = SeenEpisodes.of(episode for episode, _ in pairs).as_dict()
    return Detector(model, card.hash(), low, high, card.causal, false_alarms, confidence, schedules, marks, taught)


def find_range(card: ModelCard, values: Sequence[npt.ArrayLike]) -> tuple[float, float]:
    """Return the range of a model's values; of an unbounded model, such as a rule, that of the values given."""
    numbers = np.concatenate([np.asarray(curve, dtype=np.float64) for curve in values])
    low = float(np.nanmin(numbers)) if card.low is None else card.low
    high = float(np.nanmax(numbers)) if card.high is None else card.high
    return low, high if high > low else low + 1.0


def make_schedule(successes: Sequence[Floats], false_alarms: float, confidence: float | None) -> Schedule:
    """Make a schedule from the levels of successes.

    Each success is compared with the others alone. Compared also with itself it would be less far behind than a new
    one, and there would be too many false alarms.
    """
    longest = max(map(len, successes))
    table = np.array([np.pad(levels, (0, longest - len(levels)), mode="edge") for levels in successes])
    largest = []
    for i, own in enumerate(successes):
        follower = EpisodeFollower(Schedule(*find_usual(np.delete(table, i, axis=0))))
        last = len(own) - 1
        largest.append(np.nanmax([follower.find_behind(t, x, t == last) for t, x in enumerate(own.tolist())]))
    bound = conformal_threshold(largest, false_alarms, confidence)
    return Schedule(*find_usual(table), bound.at, bound.episodes)


def make_end_schedule(successes: Sequence[Floats], false_alarms: float, confidence: float | None) -> Schedule:
    """Make a schedule for the end alone from the levels of successes."""
    bound = conformal_threshold([1 - levels[-1] for levels in successes], false_alarms, confidence)
    return Schedule((), 1.0, bound.at, bound.episodes)


def left_out_by(model: object) -> Callable[[Episode], Reward | None]:
    """Return what a model says of episodes by parts that did not learn from them; nothing if it does not say."""
    return getattr(model, "left_out", lambda episode: None)


def find_usual(table: Floats) -> tuple[tuple[float, ...], float]:
    """Return the usual level at each frame, and at the end; before its first value, a success has level 0."""
    levels = np.nan_to_num(table)
    return tuple(np.quantile(levels, USUAL, axis=0).tolist()), float(np.quantile(levels[:, -1], END))


def find_failure_threshold(
    model: str | RewardModel,
    episodes: Iterable[Episode],
    risk: float = 0.05,
    confidence: float | None = 0.9,
    stride: int = 1,
    use_test_split: bool = False,
) -> Detector:
    """Calibrate a detector on episodes seen frame by frame; it ends at most a share `risk` of successes, at any frame.

    Args: as `find_success_threshold`; successes count.
    """
    loaded = load_model(model) if isinstance(model, str) else model
    successes = (episode for episode in episodes if any(label.success for label in episode.labels))
    scored = ((episode, _live_reward(loaded, episode, stride)) for episode in successes)
    selection = LabelSelection(use_test_split=use_test_split)
    seen = seen_by(loaded)
    return calibrate_detector(scored, loaded.card, loaded.card.name, risk, confidence, seen, selection, at_end=False)


def _live_reward(model: RewardModel, episode: Episode, stride: int) -> Reward:
    """The live answers about an episode, as one reward."""
    answers = follow_episode(model, episode, stride)
    successes = [answer.success for answer in answers if answer.success is not None]
    success = np.array(successes, np.float32) if len(successes) == len(answers) else None
    values = np.array([answer.value for answer in answers], np.float32)
    return Reward(model.card.name, episode.id, choose_looks(episode, stride), values, success)
