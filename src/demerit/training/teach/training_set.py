"""TrainingSet: labelled episodes with features, targets, groups and negatives, to fit on some and predict others.

Its negatives need no decoding: a success paired with another task's instruction, and, when the head sees frame order, a
success with its frames rewound, frozen or undone. Clips of successes serve as failures when probabilities are
calibrated (`unfinished_frames`): the head is causal, so its output at a cut is its output there anyway.

`TeachConfig` is everything about teaching that can be tuned. Defaults were chosen on tasks that no test uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Bools, Floats, Ints
from demerit.data.episode import (
    Episode,
    Event,
    Outcome,
    Preference,
    normalize_instruction,
)
from demerit.data.frames import Frames
from demerit.data.splits import bundle_ids, seed_of, videos_of
from demerit.data.stages import StageSpan
from demerit.errors import BadInput, NotApplicable
from demerit.models.taught.features import FeatureLayout, Features
from demerit.models.taught.head import TaughtHead
from demerit.negatives import load_negative
from demerit.negatives.mix import Pool
from demerit.training.teach.data import (
    BEFORE,
    FLAG,
    UNLABELLED,
    FrameTargets,
    TeachConfig,
    TeachData,
    TeachLabel,
    name_tasks,
    start_targets,
    targets_of,
    wrong_task_targets,
)
from demerit.training.teach.features import EmbeddedEpisode, FeatureSpec, to_half
from demerit.training.teach.fit import FitExample, PreferencePair, fit_head

REORDERINGS = ("rewind", "freeze", "undo")
"""negatives that change the order of frames"""
MADE_UP_SHARE = 0.5
"""weight factor of a reordered success whose own progress is interpolated"""
FEWEST_PER_VERDICT = 3
"""groups of successes, and of failures, from which a reader is trained"""
STILL_CHANGES = 0.62
"""where successes change at least so much between the frames at BEFORE and the last, against the usual, recordings stop
when the task is done (means of two real tasks and six simulated ones that go on after it)"""
ROUNDING = 1e-3
"""deviations of features below this share of their size are rounding"""
UNFINISHED = 0.6
"""a clip of a success counts as a failure when it ends below this progress"""


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Labelled examples in a fixed order; an example is named by its index."""

    spec: FeatureSpec
    episodes: Sequence[EmbeddedEpisode]
    labels: Sequence[TeachLabel]
    targets: Sequence[FrameTargets]
    """at the frames used"""
    groups: Sequence[str]
    """what was recorded together; never split between fitting and testing"""
    copies: Sequence[int]
    """for each example the first that shows the same video, perhaps encoded again; its own index if none does"""
    looks: Sequence[int]
    """0 or 1: which of two looks (robots, scenes, cameras) it has; all 0 if they look alike"""
    pairs: Sequence[PreferencePair] = ()
    negatives: Sequence[tuple[int, FitExample]] = ()
    """negatives, each with the index of its original"""
    read: Mapping[int, Mapping[str, Floats]] = field(default_factory=dict)
    """by example and camera: (frames used, 2) of a reader that was not trained on the example's group"""
    _features: dict[int, Features] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.episodes)

    @cached_property
    def layout(self) -> FeatureLayout:
        """The columns' layout."""
        return self.spec.layout(self.episodes[0])

    @cached_property
    def success(self) -> Floats:
        """1, 0 or NaN by example."""
        return np.array([np.nan if label.verdict is None else float(label.verdict) for label in self.labels])

    @property
    def stops(self) -> bool:
        """Whether its recordings stop when the task is done (see `stop_when_done`)."""
        return any("unfinished" in targets.origins for targets in self.targets)

    @cached_property
    def recordings(self) -> list[str]:
        """What counts as one when examples are counted: copies, and a recording with all that was made from it."""
        return group_episodes(self.episodes, self.copies, with_sessions=False)

    @cached_property
    def tasks(self) -> dict[str, str]:
        """The task of each normalized instruction; instructions that may mean the same share one."""
        return name_tasks(dict.fromkeys(embedded.instruction for embedded in self.episodes))

    def task(self, index: int) -> str:
        """Return the task of an example."""
        return self.tasks[self.episodes[index].instruction]

    def x(self, index: int) -> Features:
        """Return an example's features; kept in memory as float16."""
        if index not in self._features:
            self._features[index] = to_half(self.spec.features(self.episodes[index]))
        return self._features[index].astype(np.float32)

    def fit(self, indices: Iterable[int] | None = None) -> TaughtHead:
        """Fit a head on some examples (None = all), their negatives and the pairs among them."""
        chosen = list(range(len(self))) if indices is None else sorted(indices)
        where = {index: i for i, index in enumerate(chosen)}
        examples = [
            FitExample(self.x(i), self.targets[i], self.groups[i], self.task(i), read=self.mean_read(i)) for i in chosen
        ]
        examples += [self._with_read(negative, index) for index, negative in self.negatives if index in where]
        pairs = [
            (where[better], where[worse], tie)
            for better, worse, tie in self.pairs
            if better in where and worse in where
        ]
        return fit_head(examples, self.spec.config, pairs=pairs, layout=self.layout)

    def outputs(self, head: TaughtHead, index: int) -> Floats:
        """Return a head's outputs for an example: (frames used, 2)."""
        return head.outputs(self.x(index), self.task(index), self.mean_read(index))

    def mean_read(self, index: int, cameras: Iterable[str] | None = None) -> Floats | None:
        """Return what the reader says of an example, the mean over its cameras, or over some of them."""
        outputs = self.read.get(index, {})
        parts = [outputs[name] for name in (outputs if cameras is None else cameras) if name in outputs]
        return np.mean(parts, axis=0) if parts else None

    def _with_read(self, negative: FitExample, index: int) -> FitExample:
        """A negative shows the same images: under another instruction, which the reader does not read."""
        return replace(negative, read=self.mean_read(index))

    def unfinished_frames(self, index: int) -> Ints:
        """Return the frames at which a clip of this success would be a failure."""
        targets = self.targets[index]
        return np.flatnonzero((targets.origin > 0) & ~targets.capped & (targets.value < UNFINISHED))[1:]


def can_train_reader(training_set: TrainingSet) -> bool:
    """Whether there are enough labels: a few groups with a success and a few with a failure."""
    with_verdict = [
        {
            group
            for group, has_verdict in zip(training_set.groups, training_set.success == verdict, strict=True)
            if has_verdict
        }
        for verdict in (1, 0)
    ]
    return min(map(len, with_verdict)) >= FEWEST_PER_VERDICT


def build_training_set(
    data: TeachData, spec: FeatureSpec, episodes: Sequence[EmbeddedEpisode]
) -> tuple[TrainingSet, list[str]]:
    """Build the training set; also return a note for each skipped episode."""
    kept: list[EmbeddedEpisode] = []
    labels: list[TeachLabel] = []
    targets: list[FrameTargets] = []
    skipped: list[str] = []
    has_flags = all(label.kinds == [FLAG] for label in data.labels.values()) and not data.preferences
    stops = has_flags and stop_when_done(episode for episode in episodes if data.labels[episode.id].success)
    for embedded in episodes:
        label = data.labels.get(embedded.id, UNLABELLED)
        try:
            target = _targets_at_frames(label, embedded, spec.config, stops)
            is_flagged = has_flags and label.success is False
            targets.append(replace(target, share=spec.config.weights.flagged) if is_flagged else target)
        except NotApplicable as error:
            skipped.append(f"{embedded.id} was skipped: {error.reason}.")
            continue
        kept.append(embedded)
        labels.append(label)
    if not kept:
        raise BadInput(data.address, "labels that fit their videos", "; ".join(skipped[-3:]))
    pairs = list(_preference_pairs(data.preferences, {embedded.id: index for index, embedded in enumerate(kept)}))
    if not pairs and max(np.nan_to_num(target.highest) for target in targets) <= 0:
        raise BadInput(data.address, "a success among the episodes that can be read", "none")
    tasks = name_tasks(dict.fromkeys(embedded.instruction for embedded in kept))
    shared = [name for name in spec.cameras if all(name in embedded.tower for embedded in kept)]
    towers = [[np.nan_to_num(embedded.tower[name]) for name in shared] for embedded in kept]
    copies, looks = list(range(len(kept))), [0] * len(kept)
    if shared:
        # with signals, a success and a failure that look the same are no copies: the signals tell them apart
        verdicts = [f" {label.verdict}" if spec.signals else "" for label in labels]
        names = [tasks[embedded.instruction] + verdict for embedded, verdict in zip(kept, verdicts, strict=True)]
        copies = find_copies(take_snapshots(towers), names)
    groups = group_episodes(kept, copies)
    if shared and len(set(tasks.values())) == 1:
        firsts = [np.concatenate([tower[0, : spec.network.pooled_width] for tower in cameras]) for cameras in towers]
        looks = split_looks(np.array(firsts, dtype=np.float64), groups)
    training_set = TrainingSet(spec, kept, labels, targets, groups, copies, looks, pairs)
    negatives = list(_wrong_task_negatives(training_set))
    if spec.config.sees_order:
        negatives += _reordered_negatives(training_set)
    return replace(training_set, negatives=negatives), skipped


def _targets_at_frames(label: TeachLabel, embedded: EmbeddedEpisode, config: TeachConfig, stops: bool) -> FrameTargets:
    if not label.known:
        return start_targets(len(embedded.at), config)
    return targets_of(move_label(label, embedded.at, embedded.length), len(embedded.at), config, stops)


def stop_when_done(successes: Iterable[EmbeddedEpisode]) -> bool:
    """Say whether recordings stop when the task is done, so that most frames of a success are not done yet.

    Then the picture still changes at the end. Where recordings go on, or the arm waits, the frames before the end look
    like the end, and calling them unfinished would teach the opposite.
    """
    shares = [measure_change(camera) for embedded in successes for camera in embedded.tower.values()]
    # of five successes, the median errs more often than the mean
    return bool(shares) and float(np.mean(shares)) >= STILL_CHANGES


def measure_change(tower: npt.NDArray[np.floating]) -> float:
    """Return how far the frames at BEFORE of an episode are from its last, against its usual distance from there."""
    x = np.nan_to_num(np.asarray(tower, dtype=np.float64))
    x = x / (x.std(axis=0) + ROUNDING * np.abs(x).mean())
    apart = np.sqrt(((x - x[-1]) ** 2).mean(axis=1))
    usual = np.sort(apart)[len(apart) // 2 :].mean()
    return float(apart[round(BEFORE * (len(apart) - 1))] / usual) if usual > 0 else 0.0


def _preference_pairs(preferences: Sequence[Preference], index: Mapping[str, int]) -> Iterator[PreferencePair]:
    for preference in preferences:
        a, b = preference.a, preference.b
        if a in index and b in index:
            better, worse = (b, a) if preference.better == b else (a, b)
            yield index[better], index[worse], preference.better is None


Span = TypeVar("Span", Event, StageSpan)


def move_label(label: TeachLabel, at: npt.NDArray[np.int32], length: int) -> TeachLabel:
    """Move marks, events and stages to the nearest of the frames used."""
    if len(at) == length:
        return label
    curve = label.curve
    if curve is not None and len(curve) == length:
        marked = np.full(len(at), np.nan, dtype=np.float32)
        places = np.flatnonzero(~np.isnan(curve))
        marked[_nearest(at, places)] = curve[places]
        full = curve[at]
        curve = np.where(np.isnan(full), marked, full)

    def move(spans: Iterable[Span]) -> tuple[Span, ...]:
        spans = [span for span in spans if span.first < length]
        ends = [_nearest(at, np.array([span.first, span.last])).tolist() for span in spans]
        return tuple(replace(span, first=first, last=last) for span, (first, last) in zip(spans, ends, strict=True))

    return replace(label, curve=curve, events=move(label.events), stages=move(label.stages))


def _nearest(at: npt.NDArray[np.int32], frames: npt.NDArray[np.integer]) -> Ints:
    right = np.clip(np.searchsorted(at, frames), 0, len(at) - 1)
    left = np.maximum(right - 1, 0)
    return np.where(np.abs(at[left] - frames) <= np.abs(at[right] - frames), left, right).astype(np.int64)


def group_episodes(
    episodes: Sequence[EmbeddedEpisode], copies: Sequence[int] = (), with_sessions: bool = True
) -> list[str]:
    """Group episodes that share a session, an original or a video, directly or through others; return group names.

    `copies` names, for each episode, the first that shows the same (see `find_copies`).
    """
    ties = {}
    for embedded, first in zip_longest(episodes, copies):
        origin = embedded.episode.origin
        ties[embedded.id] = [f"id {embedded.id}", f"id {origin.parent or embedded.id}"]
        ties[embedded.id] += [f"group {origin.group}"] if origin.group and with_sessions else []
        ties[embedded.id] += [f"id {episodes[first].id}"] if first is not None else []
        ties[embedded.id] += [f"video {video}" for video in videos_of(embedded.episode)]
    names = {id: bundle[0] for bundle in bundle_ids(ties).values() for id in bundle}
    return [names[embedded.id] for embedded in episodes]


# Negatives


def _wrong_task_negatives(training_set: TrainingSet) -> Iterator[tuple[int, FitExample]]:
    """Pair successes with another taught task's instruction; never where the two may mean the same task."""
    if len(set(training_set.tasks.values())) < 2:  # noqa: PLR2004
        return
    spec, successes = training_set.spec, list(_blank_successes(training_set))
    pool = Pool.of(episode for _, episode in successes)
    named = {e.instruction: e.episode.origin.tags.get("task", "") for e in training_set.episodes}
    rng = np.random.default_rng(spec.config.seed)
    for index, episode in successes:
        choice = pool.other_instruction(episode, rng, easy=0.5)
        embedded = training_set.episodes[index]
        if choice is None:
            continue
        other = normalize_instruction(choice[0])
        if named[embedded.instruction] and named[embedded.instruction] == named.get(other):
            continue
        x = spec.features(embedded, choice[0])
        targets = wrong_task_targets(len(x), spec.config)
        yield index, FitExample(x, targets, training_set.groups[index], training_set.tasks[other], wrong_task=True)


def _reordered_negatives(training_set: TrainingSet) -> Iterator[tuple[int, FitExample]]:
    config = training_set.spec.config
    for index, episode in _blank_successes(training_set):
        measured = "measured" in training_set.targets[index].origins
        for number in range(config.views):
            name = REORDERINGS[(index + number) % len(REORDERINGS)]
            try:
                negative = load_negative(name).make_with_seed(episode, seed_of(config.seed, episode.id, name, number))
            except NotApplicable:
                continue
            order = np.arange(len(episode)) if negative.main.indices is None else negative.main.indices
            label = TeachLabel(success=negative.outcomes[0].success, curve=negative.outcomes[0].curve)
            share = config.weights.view * (1.0 if measured else MADE_UP_SHARE)
            targets = replace(targets_of(label, len(order), config), share=share)
            x = training_set.spec.reorder_features(training_set.episodes[index], order)
            yield index, FitExample(x, targets, training_set.groups[index], training_set.task(index))


def _blank_successes(training_set: TrainingSet) -> Iterator[tuple[int, Episode]]:
    """Yield successes with blank frames, as many as are used, to make negatives of."""
    for index, (embedded, targets) in enumerate(zip(training_set.episodes, training_set.targets, strict=True)):
        if training_set.labels[index].verdict and len(targets) > 1:
            values = np.where(targets.capped, np.nan, targets.value)
            curve = values.astype(np.float32) if not np.isnan(values).any() else None
            blank = Frames.from_array(np.zeros((len(targets), 1, 1, 3), dtype=np.uint8))
            outcome = Outcome("rule", success=True, curve=curve, by="the label")
            yield index, replace(embedded.episode, views={"main": blank}, outcomes=(outcome,), signals={}, edits=())


SNAPSHOTS = 8
"""frames of an episode that are compared, spread evenly"""
COPY = 0.6
"""two episodes are copies when no snapshot differs by more than this share of the movement within them"""
SAME = 1e-4
"""share of the features' size that is rounding: still pictures that are equal are copies too"""
APART = 2.2
"""two looks: their centres are this many times farther apart than the tighter one is wide"""
FEWEST_IN_LOOK = 3
MOST_DOUBTFUL, FEWEST_TO_DOUBT, LABELS_TO_DOUBT = 5, 3, 10
"""labels listed at most; successes, failures and labels in all needed to doubt one by its value, as measured"""


def take_snapshots(towers: Sequence[Sequence[npt.NDArray[np.floating]]]) -> Floats:
    """Return (episodes, snapshots, features), from the features of every frame by episode and camera."""
    return np.stack([np.concatenate([_pick(camera) for camera in cameras], axis=1) for cameras in towers])


def _pick(camera: npt.NDArray[np.floating]) -> Floats:
    at = np.linspace(0, len(camera) - 1, SNAPSHOTS).round().astype(int)
    return np.asarray(camera[at], dtype=np.float64)


def distances(a: Floats, b: Floats) -> Floats:
    """Return the distance of each row of `a` to each row of `b`."""
    squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(squared, 0)))


def find_copies(snapshots: Floats, tasks: Sequence[str]) -> list[int]:
    """Return, for each episode, the first one of the same task that it is a copy of; its own number if there is none.

    The largest difference counts and not the mean: a success and a failure may differ at their ends alone.
    """
    apart = np.max([distances(rows, rows) for rows in snapshots.transpose(1, 0, 2)], axis=0)
    centres = snapshots.mean(axis=1, keepdims=True)
    moved = np.linalg.norm(snapshots - centres, axis=2).mean(axis=1)
    size = np.linalg.norm(snapshots, axis=2).mean()
    alike = apart <= COPY * np.sqrt(moved[:, None] * moved[None, :]) + SAME * size
    alike &= np.array(tasks)[:, None] == np.array(tasks)[None, :]
    first = list(range(len(snapshots)))
    for i in range(len(snapshots)):
        first[i] = first[int(np.flatnonzero(alike[i, : i + 1] | (np.arange(i + 1) == i))[0])]
    return first


def split_looks(firsts: Floats, groups: Sequence[str]) -> list[int]:
    """Return 0 or 1 for each episode: which of two looks it has; all 0 if they look alike.

    First frames (episodes, pooled features) are split by two means, one point per group, so that many episodes of one
    scene are no look.
    """
    names = list(dict.fromkeys(groups))
    of_group = np.array([names.index(group) for group in groups])
    points = np.stack([firsts[of_group == number].mean(axis=0) for number in range(len(names))])
    side = _split_in_two(points)
    sides = [points[side], points[~side]]
    if min(map(len, sides)) < FEWEST_IN_LOOK:
        return [0] * len(groups)
    spread = [float(((rows - rows.mean(axis=0)) ** 2).sum()) / (len(rows) - 1) for rows in sides]
    gap = float(((sides[0].mean(axis=0) - sides[1].mean(axis=0)) ** 2).sum())
    gap -= sum(s / len(rows) for s, rows in zip(spread, sides, strict=True))  # what chance adds
    if gap <= APART**2 * min(spread):
        return [0] * len(groups)
    return [int(is_other) for is_other in (side != side[0])[of_group]]


def _split_in_two(points: Floats) -> Bools:
    centred = points - points.mean(axis=0)
    side = centred @ np.linalg.svd(centred, full_matrices=False)[2][0] > 0
    for _ in range(20):
        if side.all() or not side.any():
            break
        centres = np.stack([points[side].mean(axis=0), points[~side].mean(axis=0)])
        nearer = distances(points, centres)
        moved = nearer[:, 0] < nearer[:, 1]
        if (moved == side).all():
            break
        side = moved
    return np.asarray(side, dtype=np.bool_)


def doubt_labels(values: Floats, success: Floats, copies: Sequence[int], names: Sequence[str]) -> dict[str, str]:
    """Return episodes whose label is probably wrong, and why; copies with the other label first.

    By the held-out value (NaN = none) only a success is doubted, and only below every failure: failures that look like
    successes are mostly just that (docs/results/trust.md).
    """
    reasons: dict[str, str] = {}
    for i, first in enumerate(copies):
        others = [j for j, other in enumerate(copies) if other == first and {success[i], success[j]} == {0.0, 1.0}]
        if others:
            reasons[names[i]] = f"it looks the same as {names[others[0]]}, which is labelled the other way"
    is_known = ~np.isnan(values)
    good, bad = values[is_known & (success == 1)], values[is_known & (success == 0)]
    enough = min(len(good), len(bad)) >= FEWEST_TO_DOUBT and len(good) + len(bad) >= LABELS_TO_DOUBT
    if enough and np.median(good) > np.median(bad):
        low = np.flatnonzero(is_known & (success == 1) & (values < bad.min()))
        for i in sorted(low.tolist(), key=lambda i: float(values[i])):
            reasons.setdefault(names[i], "a success that models which had not seen it rate below every failure")
    return dict(list(reasons.items())[:MOST_DOUBTFUL])
