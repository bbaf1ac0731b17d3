"""What a dataset offers to teach from: labels read, contradictions found, and targets per frame. Nothing is decoded.

Labelled frames get full weight; frames that fill a gap get little. Origins of a frame's target:

    measured   a curve with a value at every frame
    marked     a curve with values at some frames, or where stages begin and are done; `between` them straight lines
    end        a verdict, a grade or a final progress: the last frames
    capped     a failure without a known final progress: the last frames are *at most* `cap`
    event      frames after a failure event: at most `cap`
    start      the first frame: 0
    made_up    a straight line from start to end
    unfinished where recordings stop when the task is done: all but the last fifth, where it is not done yet
    words      a success paired with another task's instruction: 0

Bounds (`capped`, `event`) are not values: the fit decides how far below they lie. Every frame with a weight also has a
target for `done`: whether the task is finished at that frame.

It also says what the pictures of a lesson look like: copies of one video, two scenes or robots, labels that do not fit.
Distances are between the network's features, so they also find copies that were encoded again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Bools, Floats, Floats32, Ints
from demerit.data.dataset import Dataset
from demerit.data.episode import (
    LABEL_SOURCES,
    Episode,
    Event,
    Preference,
    count_episodes,
    same_task,
    select_labels,
)
from demerit.data.frames import spread
from demerit.data.splits import LabelSelection, seed_of
from demerit.data.stages import StageSpan, mark_stages, place_stages, plan_task
from demerit.errors import BadInput, NotApplicable, UnreadableVideo
from demerit.models.taught.features import validate_parts

DEFAULT_PARTS = ("tower", "change", "places", "moved")
"""the feature parts that work best for a new task; what the network learned about other tasks misleads"""
MOST_ROWS, FEWEST_ROWS = 4000, 6
"""frames fitted in total when there are many episodes, and at least per episode"""
FLAG = "success or failure"
"""the kind of a label that only says yes or no"""
HeadKind = Literal["auto", "linear", "rbf", "both"]


@dataclass(frozen=True)
class LabelWeights:
    """How much one episode's labels count, by origin; 1 = an episode with every frame measured."""

    measured: float = 1.0
    """a measured curve"""
    marked: float = 0.7
    """a few marked frames, together"""
    between: float = 0.5
    """interpolation between marked frames"""
    end: float = 0.7
    """the last frames, which the verdict is about"""
    start: float = 0.15
    """the first frame: nothing is done yet"""
    made_up: float = 0.3
    """linear interpolation from start to end"""
    capped: float = 0.5
    """the last frames of a failure without a known final progress: an upper bound"""
    event: float = 0.3
    """frames after a failure event: an upper bound"""
    flagged: float = 0.03
    """factor for a failure, in a lesson of success flags alone. It shows where the cut is, but not what a success looks
    like: counted fully, a few failures teach what else they have in common"""
    pair: float = 0.7
    """a preference: a difference between two last frames"""
    view: float = 0.3
    """a negative made from a success by reordering its frames"""
    words: float = 0.3
    """a success paired with another task's instruction"""
    unfinished: float = 0.7
    """frames before the last fifth, where recordings stop when the task is done: not done yet"""


@dataclass(frozen=True)
class TeachConfig:
    """How a head is fitted."""

    parts: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(DEFAULT_PARTS, 1.0))
    """feature parts and their weights, see `demerit.models.taught.features`"""
    kind: HeadKind = "auto"
    """auto: linear; from `rbf_from` groups on, whichever predicts held-out groups best"""
    grid: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    """ridge penalties to choose from; the unit is one episode"""
    prior: float = 0.02
    """the penalty when there are too few groups to choose by"""
    choose_from: int = 4
    """groups needed to choose a penalty"""
    prior_groups: float = 10.0
    """strength of the prior on the penalty, in groups"""
    reader: bool = True
    """also train a small network on larger images, where torch is installed, and use it where that is better"""
    rbf_from: int = 16
    landmarks: int = 256
    """stored frames of the rbf part, at most"""
    widths: tuple[float, ...] = (1.0,)
    """widths of the rbf part, in median distances"""
    rows: int = 32
    """frames fitted per episode, spread evenly; the last few are always included"""
    last: int = 3
    """number of last frames that a verdict is about, at least"""
    tail: float = 0.15
    """share of frames that a verdict is about, at least"""
    cap: float = 0.5
    """upper bound on the progress at the end of a failed episode, when unknown"""
    blend: float = 0.25
    """weight of `done` in a frame's value, against progress: fewer failures are rewarded"""
    belief: float = 0.2
    """strength of the prior on uncalibrated values, in episodes (see `fit_scale`)"""
    margin: float = 0.3
    """least difference between the two of a preference"""
    damping: float = 0.25
    """share of the typical deviation added to every column's, because few episodes show few ways of moving"""
    rounds: int = 4
    """iterations for bounds (caps and margins)"""
    views: int = 2
    """negatives made from each success, when the head can see order"""
    folds: int = 10
    seed: int = 0
    weights: LabelWeights = field(default_factory=LabelWeights)

    def __post_init__(self) -> None:
        """Validate."""
        validate_parts(list(self.parts))
        if self.kind not in get_args(HeadKind):
            raise BadInput("kind of head", f"one of {', '.join(get_args(HeadKind))}", repr(self.kind))
        if not self.grid or min(self.grid) <= 0 or self.prior <= 0:
            raise BadInput("penalties", "numbers above 0", (self.grid, self.prior))
        for name, least in (("rows", 2), ("last", 1), ("landmarks", 1), ("folds", 2), ("rounds", 1), ("views", 0)):
            if getattr(self, name) < least:
                raise BadInput(name, f"a number, {least} or more", getattr(self, name))
        for name in ("cap", "margin", "blend", "tail"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(name, "a number from 0 to 1", getattr(self, name))

    def ending(self, length: int) -> int:
        """Number of last frames, of `length`, that a verdict is about."""
        return max(self.last, round(self.tail * length))

    def for_episodes(self, episodes: int) -> TeachConfig:
        """Use fewer frames per episode when there are many: 500 episodes are then fitted in minutes."""
        return replace(self, rows=min(self.rows, max(FEWEST_ROWS, MOST_ROWS // episodes)))

    @property
    def sees_order(self) -> bool:
        """Whether any feature part depends on frame order or instruction."""
        return bool({"hidden", "outputs", "recent"} & set(self.parts))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        facts = asdict(self)
        return {**facts, "parts": dict(self.parts), "grid": list(self.grid), "widths": list(self.widths)}


DONE, HALF = 1 - 1e-3, 0.5
"""final progress that counts as a success from here on, and as a failure up to here, without a label"""
FEWEST_EPISODES, FEWEST_CHOICES = 2, 3
BEFORE, STOPPED_LAST = 0.8, 2
"""where recordings stop when the task is done: the share of frames at which it is not done yet, and how many last
frames show it done"""
REACHED = 0.95
"""at least one episode must get this far: otherwise it is unknown what a finished task looks like"""
LABEL_KINDS = "success, a grade, progress, a curve, stages, failure events or A/B preferences (see docs/labels.md)"
ORIGINS = ("measured", "marked", "between", "end", "start", "made_up", "capped", "event", "words", "unfinished")
"""origins of targets; fields of `LabelWeights`"""
_CODE = {name: code for code, name in enumerate(ORIGINS, start=1)}


# Labels


@dataclass(frozen=True, eq=False)
class TeachLabel:
    """What is known about an episode; each fact from the most trusted source that has it. None = unknown."""

    success: bool | None = None
    progress: float | None = None
    grade: int | None = None
    curve: Floats32 | None = None
    events: tuple[Event, ...] = ()
    stages: tuple[StageSpan, ...] = ()
    """with the progress where each begins and is done (see `_place_stages`)"""

    @property
    def known(self) -> bool:
        """Whether anything is known."""
        has_value = self.end is not None or self.success is not None or self.curve is not None
        return has_value or bool(self.events or self.stages)

    @property
    def end(self) -> float | None:
        """Final progress: as labelled, or from the grade, the curve's end or success."""
        if self.progress is not None:
            return self.progress
        if self.grade is not None:
            return (self.grade - 1) / 4
        if self.curve is not None and not np.isnan(self.curve[-1]):
            return float(self.curve[-1])
        return 1.0 if self.success else None

    @property
    def verdict(self) -> bool | None:
        """Success or failure, as labelled or from the final progress; between a half and done is None."""
        if self.success is not None or self.end is None:
            return self.success
        return True if self.end >= DONE else False if self.end <= HALF else None

    @property
    def kinds(self) -> list[str]:
        """The kinds of labels, for people."""
        kinds = []
        if self.curve is not None:
            kinds.append("a curve" if not np.isnan(self.curve).any() else "marked moments")
        kinds += [FLAG] if self.success is not None else []
        kinds += ["a grade"] if self.grade is not None else []
        kinds += ["final progress"] if self.progress is not None and self.curve is None else []
        kinds += ["stages"] if self.stages else []
        kinds += ["failure events"] if self.events else []
        return kinds


UNLABELLED = TeachLabel()


def label_of(episode: Episode) -> TeachLabel:
    """Combine the labels of all outcomes; `gather_data` has dropped those of other sources."""
    outcomes = sorted(episode.labels, key=lambda outcome: LABEL_SOURCES.index(outcome.source))

    def first(name: str) -> Any:
        return next((value for outcome in outcomes if (value := getattr(outcome, name)) is not None), None)

    return TeachLabel(
        success=first("success"),
        progress=first("progress"),
        grade=first("grade"),
        curve=next((c for outcome in outcomes if (c := outcome.curve) is not None and not np.isnan(c).all()), None),
        events=next((outcome.events for outcome in outcomes if outcome.events), ()),
        stages=next((outcome.stages for outcome in outcomes if outcome.stages), ()),
    )


def name_tasks(instructions: Iterable[str]) -> dict[str, str]:
    """Map instructions that may mean the same task to the first of them."""
    names: dict[str, str] = {}
    for instruction in instructions:
        matches = (name for other, name in names.items() if same_task(instruction, other))
        names[instruction] = next(matches, instruction)
    return names


def _place_stages(episodes: Sequence[Episode], labels: Mapping[str, TeachLabel]) -> dict[str, TeachLabel]:
    """Say how far the stages of every episode go; where that is unknown, they are left out."""
    tasks = name_tasks(dict.fromkeys(episode.instruction for episode in episodes))
    finished: dict[str, list[tuple[StageSpan, ...]]] = defaultdict(list)
    for episode in episodes:
        if episode.id in labels and labels[episode.id].verdict:
            finished[tasks[episode.instruction]].append(labels[episode.id].stages)
    plans = {task: plan_task(stages) for task, stages in finished.items()}
    placed = {}
    for episode in episodes:
        if (label := labels.get(episode.id)) is not None:
            plan = plans.get(tasks[episode.instruction], {})
            placed[episode.id] = replace(label, stages=place_stages(label.stages, plan, bool(label.verdict)))
    return placed


def _source_conflict(episode: Episode) -> str:
    """Describe how equally trusted sources contradict each other on success; empty when they do not."""
    by_source: dict[str, set[bool]] = defaultdict(set)
    for outcome in episode.labels:
        if outcome.success is not None:
            by_source[outcome.source].add(outcome.success)
    for source in LABEL_SOURCES:
        if len(by_source[source]) > 1:
            return f"one {source} says it succeeded, another that it failed"
        if by_source[source]:
            return ""
    return ""


def _find_conflicts(episodes: Sequence[Episode], labels: Mapping[str, TeachLabel]) -> dict[str, str]:
    """Find episodes with contradictory labels: id to reason."""
    same_video: dict[str, list[str]] = defaultdict(list)
    for episode in episodes:
        if episode.id in labels and labels[episode.id].verdict is not None:
            try:
                same_video[episode.fingerprint()].append(episode.id)
            except UnreadableVideo:
                continue  # reported with its reason when it is decoded
    conflicts = {}
    for ids in same_video.values():
        if len({labels[id].verdict for id in ids}) > 1:
            for id in ids:
                other = next(other for other in ids if labels[other].verdict != labels[id].verdict)
                mine, theirs = ("success" if labels[name].verdict else "failure" for name in (id, other))
                conflicts[id] = f"the same video is called a {mine} here and a {theirs} in {other}"
    return {**conflicts, **{episode.id: reason for episode in episodes if (reason := _source_conflict(episode))}}


def _conflicting_pairs(preferences: Sequence[Preference]) -> set[frozenset[str]]:
    """Find pairs in which each episode was preferred to the other by equally trusted sources."""
    winners: dict[tuple[frozenset[str], str], set[str | None]] = defaultdict(set)
    for preference in preferences:
        winners[frozenset((preference.a, preference.b)), preference.source].add(preference.better)
    return {pair for (pair, _), names in winners.items() if len(names - {None}) > 1}


# The dataset


@dataclass(frozen=True, eq=False)
class TeachData:
    """The episodes of a dataset by what is known about them."""

    address: str
    name: str
    taught: tuple[Episode, ...]
    """labelled, or compared with another"""
    labels: Mapping[str, TeachLabel]
    unlabelled: tuple[Episode, ...]
    preferences: tuple[Preference, ...]
    conflicts: Mapping[str, str] = field(default_factory=dict)
    """skipped episodes with contradictory labels, and the contradiction"""
    notes: tuple[str, ...] = ()

    def interleave(self) -> list[Episode]:
        """Return the taught episodes, successes and failures in turns, so that an interrupted run has seen both."""
        sides: dict[bool | None, list[Episode]] = {True: [], False: [], None: []}
        for episode in self.taught:
            sides[self.labels[episode.id].verdict if episode.id in self.labels else None].append(episode)
        return [episode for turn in zip_longest(*sides.values()) for episode in turn if episode is not None]

    def count_kinds(self) -> dict[str, int]:
        """Count episodes by kind of label."""
        counts = Counter(kind for label in self.labels.values() for kind in label.kinds)
        if self.preferences:
            counts["A/B preferences"] = len(self.preferences)
        return dict(counts.most_common())


def teaches_progress(labels: Iterable[TeachLabel]) -> bool:
    """Whether some labels say how far an episode got, and not only how it ended."""
    return any(
        {"a curve", "marked moments", "stages", "a grade", "final progress"} & set(label.kinds) for label in labels
    )


def gather_data(dataset: Dataset, limit: int | None = None, selection: LabelSelection | None = None) -> TeachData:
    """Read a dataset's labels and decide what to teach from. Raises BadInput when that is too little."""
    selection = selection or LabelSelection()
    episodes: list[Episode] = []
    choices: list[Preference] = []
    for record in dataset.records():
        if isinstance(record, Preference):
            selection.labels.add([record], selection.sources)
            choices += select_labels([record], selection.sources)
        elif (limit is None or len(episodes) < limit) and (selected := selection.take(record)) is not None:
            episodes.append(selected)
    address = dataset.address or dataset.name
    if not episodes:
        raise BadInput(address, "episodes to teach from", " ".join(("none.", *selection.notes())))
    read = {episode.id: label for episode in episodes if (label := label_of(episode)).known}
    labels = {id: label for id, label in _place_stages(episodes, read).items() if label.known}
    unplaced = [id for id, label in read.items() if label.stages and not (id in labels and labels[id].stages)]
    conflicts = _find_conflicts(episodes, labels)
    kept = {id: label for id, label in labels.items() if id not in conflicts}
    split = _conflicting_pairs(choices)
    ids = {episode.id for episode in episodes} - set(conflicts)
    pairs = tuple(
        choice for choice in choices if {choice.a, choice.b} <= ids and frozenset((choice.a, choice.b)) not in split
    )
    used = {*kept, *(id for pair in pairs for id in (pair.a, pair.b))}
    rest = [episode for episode in episodes if episode.id not in used and episode.id not in conflicts]
    data = TeachData(
        address,
        dataset.name,
        tuple(episode for episode in episodes if episode.id in used),
        kept,
        tuple(sorted(rest, key=lambda episode: seed_of("unlabelled", episode.id))),
        pairs,
        conflicts,
        (*selection.notes(), *_data_notes(dataset, kept, conflicts, len(split), unplaced)),
    )
    _check_enough(data, episodes, labels, selection)
    return data


def _check_enough(
    data: TeachData, episodes: Sequence[Episode], labels: Mapping[str, TeachLabel], selection: LabelSelection
) -> None:
    usable = data.labels
    if labels and not usable and not data.preferences:
        id, reason = next(iter(data.conflicts.items()))
        got = f"{len(labels)} labelled episodes that all contradict another, e.g. {id}: {reason}"
        raise BadInput(data.address, "labels that agree with each other", got)
    if not usable and not data.preferences:
        got = " ".join((f"{count_episodes(len(episodes))}, none labelled.", *selection.notes()))
        raise BadInput(data.address, f"labelled episodes: {LABEL_KINDS}", got)
    if len(data.preferences) >= FEWEST_CHOICES:
        return
    if len(usable) < FEWEST_EPISODES:
        expected = f"at least {FEWEST_EPISODES} labelled episodes, or {FEWEST_CHOICES} comparisons"
        raise BadInput(data.address, expected, f"{len(usable)} labelled and {len(data.preferences)} compared")
    curves = [label.curve for label in usable.values() if label.curve is not None]
    if len(curves) == len(usable):
        values = np.concatenate([curve[~np.isnan(curve)] for curve in curves])
        if float(values.min()) == float(values.max()):
            got = f"{len(curves)} curves that are {values[0]:g} at every frame"
            raise BadInput(data.address, "curves that rise and fall", got)
    if max(map(_highest, usable.values()), default=0.0) < REACHED:
        expected = "at least one success, to know what a finished task looks like"
        raise BadInput(data.address, expected, f"{len(usable)} labelled episodes, none of them a success")


def _highest(label: TeachLabel) -> float:
    curve = 0.0 if label.curve is None else float(np.nanmax(label.curve))
    curve = max(curve, 0.0 if label.verdict is False else max((stage.stop or 0 for stage in label.stages), default=0))
    return max(curve, label.end or 0.0, 1.0 if label.verdict else 0.0)


def _data_notes(
    dataset: Dataset,
    labels: Mapping[str, TeachLabel],
    conflicts: Mapping[str, str],
    split: int,
    unplaced: Sequence[str],
) -> Iterable[str]:
    if conflicts:
        id, reason = next(iter(conflicts.items()))
        yield f"{len(conflicts)} episodes were skipped because their labels contradict, e.g. {id}: {reason}."
    if split:
        yield f"{split} comparisons were skipped: each of the two was preferred at least once."
    if unplaced:
        count = count_episodes(len(unplaced))
        yield f"The stages of {count} teach nothing: no success has the same ones, e.g. {unplaced[0]}."
    for row in dataset.problems.rows():
        kept = "kept" if row["kept"] else "skipped"
        count = count_episodes(row["episodes"])
        yield f"The dataset has a problem: {row['problem']}, {count} ({kept}), {row['first']}."
    odd = [id for id, label in labels.items() if label.success and label.end is not None and label.end < HALF]
    if odd:
        yield f"{len(odd)} episodes are called a success though their progress ends below a half, e.g. {odd[0]}."


# Targets


@dataclass(frozen=True, eq=False)
class FrameTargets:
    """Targets and weights for the frames of one episode."""

    value: Floats
    """progress; NaN where unknown; an upper bound where `capped`"""
    done: Floats
    """1, 0 or NaN: whether the task is finished"""
    capped: Bools
    """where `value` is only an upper bound"""
    origin: npt.NDArray[np.int8]
    """where each value comes from: 0 = unknown, else an index into ORIGINS, plus 1"""
    weights: LabelWeights
    share: float = 1.0
    """multiplies all weights"""

    @classmethod
    def unknown(cls, length: int, config: TeachConfig) -> FrameTargets:
        """Start with nothing known; `set` and `interpolate` fill in values, `finish` ends it."""
        value, done = np.full(length, np.nan), np.full(length, np.nan)
        return cls(value, done, np.zeros(length, dtype=bool), np.zeros(length, dtype=np.int8), config.weights)

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.value)

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins that occur."""
        return tuple(name for name in ORIGINS if bool((self.origin == _CODE[name]).any()))

    @property
    def highest(self) -> float:
        """The highest known value; NaN when nothing is known."""
        values = self.value[(self.origin > 0) & ~self.capped]
        return float(values.max()) if len(values) else float("nan")

    def choose_rows(self, count: int, last: int) -> tuple[Ints, Floats]:
        """Choose about `count` frames to fit, and their weights: an origin's weight is shared by its frames.

        Spread evenly; the first, the `last` last and every marked frame are always included.
        """
        length = len(self)
        chosen = np.zeros(length, dtype=bool)
        chosen[spread(length, count)] = True
        chosen[max(0, length - last) :] = True
        chosen[self.origin == _CODE["marked"]] = True
        chosen[self.origin == _CODE["start"]] = True
        at = np.flatnonzero(chosen & (self.origin > 0))
        weight = np.zeros(len(at))
        for name in self.origins:
            mine = self.origin[at] == _CODE[name]
            if mine.any():
                weight[mine] = self.share * getattr(self.weights, name) / mine.sum()
        return at, weight

    def set(
        self, frames: npt.NDArray[np.integer] | slice, value: npt.ArrayLike, origin: str, capped: bool = False
    ) -> None:
        """Set the values of some frames; the first value set for a frame stays."""
        at = np.arange(len(self.value))[frames]
        free = self.origin[at] == 0
        values = np.broadcast_to(np.asarray(value, dtype=np.float64), at.shape)
        self.value[at[free]] = values[free]
        self.capped[at[free]] = capped
        self.origin[at[free]] = _CODE[origin]

    def interpolate(self, points: dict[int, float], origin: str) -> None:
        """Set the frames between points (progress by frame), linearly."""
        at = sorted(points)
        inside = np.arange(at[0], at[-1] + 1)
        self.set(inside, np.interp(inside, at, [points[i] for i in at]), origin)

    def finish(self, label: TeachLabel) -> FrameTargets:
        """Fill in `done`, from the values and the label, and return the targets."""
        is_known = self.origin > 0
        # A success is done where it is as far as at its end; anything else only where progress is complete.
        level = min(DONE, float(self.value[-1])) if label.verdict and is_known[-1] else DONE
        self.done[is_known] = (self.value[is_known] >= level) & ~self.capped[is_known]
        return self


def targets_of(label: TeachLabel, length: int, config: TeachConfig | None = None, stops: bool = False) -> FrameTargets:
    """Make the targets of an episode of `length` frames.

    `stops` says that a success flag is about the last frames alone: recordings stop when the task is done.

    Raises:
        NotApplicable: nothing is known about it, or its curve is not as long as the video.
    """
    config = config or TeachConfig()
    if length < 1:
        raise NotApplicable("it has no frames")
    if not label.known:
        raise NotApplicable("it has no label")
    draft = FrameTargets.unknown(length, config)
    if label.curve is not None:
        if len(label.curve) != length:
            raise NotApplicable(f"its curve has {len(label.curve)} values and its video {length} frames")
        _use_curve(draft, label)
    elif label.stages and label.stages[0].first < length:
        _use_stages(draft, label, config)
    elif stops:
        _use_flag(draft, label, config)
    else:
        _use_end(draft, label, config)
    return draft.finish(label)


def start_targets(length: int, config: TeachConfig) -> FrameTargets:
    """Targets of an episode that was only compared with others: it starts at 0."""
    draft = FrameTargets.unknown(length, config)
    draft.set(slice(0, 1), 0.0, "start")
    return draft.finish(UNLABELLED)


def wrong_task_targets(length: int, config: TeachConfig) -> FrameTargets:
    """Targets of an episode paired with another task's instruction: 0 everywhere."""
    draft = FrameTargets.unknown(length, config)
    draft.set(slice(None), 0.0, "words")
    return draft.finish(TeachLabel(success=False))


def _use_curve(draft: FrameTargets, label: TeachLabel) -> None:
    curve = np.asarray(label.curve, dtype=np.float64)
    frames = np.flatnonzero(~np.isnan(curve))
    if len(frames) == len(curve):
        draft.set(slice(None), curve, "measured")
        return
    draft.set(frames, curve[frames], "marked")
    points = dict(zip(frames.tolist(), curve[frames].tolist(), strict=True))
    points.setdefault(0, 0.0)
    if label.end is not None:
        points.setdefault(len(curve) - 1, label.end)
    draft.interpolate(points, "between")


def _use_stages(draft: FrameTargets, label: TeachLabel, config: TeachConfig) -> None:
    """Mark where stages begin and are done. The last one of a failure was begun, not done.

    A failure ends at most where that stage began, or at half of what it would have come to, if that is more.
    """
    length = len(draft)
    *_, last = (stage for stage in label.stages if stage.first < length)
    curve = mark_stages(label.stages, length)
    if label.end is not None:
        curve[-1] = label.end
    elif label.verdict is False and last.start is not None and last.stop is not None:
        curve[last.first :] = np.nan
        curve[last.first] = last.start
        ending = slice(max(last.first + 1, length - config.ending(length)), None)
        draft.set(ending, max(last.start, config.cap * last.stop), "capped", capped=True)
    _use_curve(draft, replace(label, curve=curve))


def _use_flag(draft: FrameTargets, label: TeachLabel, config: TeachConfig) -> None:
    """Contrast the last frames with all that were not the end yet, of successes and of failures."""
    length, is_failure = len(draft), label.success is False
    draft.set(slice(max(length - STOPPED_LAST, 0), length), config.cap if is_failure else 1.0, "end", is_failure)
    draft.set(slice(0, 1), 0.0, "start")
    progress = np.arange(length) / max(length - 1, 1)
    earlier = np.flatnonzero(progress < BEFORE)
    draft.set(earlier, config.cap if is_failure else progress[earlier], "unfinished", is_failure)


def _use_end(draft: FrameTargets, label: TeachLabel, config: TeachConfig) -> None:
    length, end = len(draft.value), label.end
    last = slice(max(1, length - config.ending(length)), length) if length > 1 else slice(0, 1)
    events = [event for event in label.events if event.first < length]
    first = min((event.first for event in events), default=length)
    if end is not None:
        draft.set(last, end, "end")
        draft.set(slice(0, 1), 0.0, "start")
        # a failure gets no further after its first event
        turn = {first: end} if end < DONE and 0 < first < length - 1 else {}
        draft.interpolate({0: 0.0, **turn, length - 1: end}, "made_up")
        return
    if label.verdict is False:
        draft.set(last, config.cap, "capped", capped=True)
        draft.set(slice(first, length), config.cap, "event", capped=True)
    elif events:
        after = min(max(event.last for event in events), length - 1)
        draft.set(slice(after, length), config.cap, "event", capped=True)
    draft.set(slice(0, 1), 0.0, "start")
