"""Scores: labels and rewards as columns in episode order; and `MetricSpec`, one metric computed from them.

Before it stand the episodes of a benchmark: loading, labels, task categories, and the perturbations under which models
score them. A perturbation is named in the report. What it does follows from its name and the episode alone, so a report
can be recomputed without the videos.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from demerit.data.arrays import Floats, Floats32, Ints
from demerit.data.episode import LABEL_SOURCES, Episode, Event, Outcome, Preference, SourceCounts, task_name
from demerit.data.frames import Frames, short_hash
from demerit.data.published_sets import PublishedSet
from demerit.data.reward import Reward
from demerit.data.splits import same_split, seen_by
from demerit.errors import BadInput, NotApplicable, UnknownName, UnreadableVideo
from demerit.evaluate.metrics import Resampling, Tally
from demerit.evaluate.metrics.categories import Category, category
from demerit.evaluate.metrics.ranking import Return, episode_returns
from demerit.evaluate.reports.report import (
    AS_RECORDED,
    EpisodeLabels,
    MeasureLine,
    PairAnswer,
    Report,
    SeenRows,
    resampling_units,
)
from demerit.models.protocol import ModelCard, RewardModel

QUALITY = {
    "failure": "failed",
    "failed": "failed",
    "suboptimal": "suboptimal",
    "successful": "successful",
    "success": "successful",
}
"""words for quality found in datasets, and ours"""
REVERSED, SHUFFLED, INSTRUCTION = "reversed", "shuffled", "told"
PERTURBATIONS = (REVERSED, SHUFFLED, INSTRUCTION)
"""what a benchmark can ask for beyond `as recorded`; `told` scores a video under another video's instruction"""
KNOWN_CATEGORIES = [str(kind) for kind in Category]
ROBOTS = ("embodiment", "perspective")
"""parts of a measure that say who acted, seen from where"""
MAX_PROBES = 8
"""size of the video x instruction matrix: 8 x 7 further queries per model, for any size of the dataset"""


@dataclass(frozen=True, eq=False)
class BenchmarkData:
    """The episodes of a benchmark with their labels."""

    address: str
    episodes: tuple[Episode, ...]
    labels: tuple[EpisodeLabels, ...]
    """one per episode, in the same order"""
    preferences: tuple[Preference, ...]
    problems: tuple[str, ...] = ()
    sources: SourceCounts = field(default_factory=SourceCounts)
    """how many labels of each source are measured by, and how many were dropped"""
    published: PublishedSet | None = None
    """the published set that these episodes are"""

    @property
    def judged_by_models(self) -> int:
        """The number of episodes and preferences with a label of a model."""
        judged = sum(any(outcome.source == "model" for outcome in episode.labels) for episode in self.episodes)
        return judged + sum(pair.source == "model" for pair in self.preferences)

    def frames(self) -> dict[str, Frames]:
        """Return the main camera of each episode, by id."""
        return {episode.id: episode.main for episode in self.episodes}


# Labels


def labels_of(episode: Episode) -> EpisodeLabels:
    """Collect the labels of an episode, each from its most trusted label source.

    `load_data` has dropped labels of other sources than the chosen ones, by default those of models. Episodes of one
    task have the same tag `task` (a column of the label file, or the simulator's name) or else the same instruction.
    Those of one instruction and one session (`Origin.group`) may be ranked against each other.
    """
    outcomes = sorted(episode.labels, key=lambda outcome: LABEL_SOURCES.index(outcome.source))
    origin, task = episode.origin, task_name(episode.instruction)
    frames, seconds = _length(episode)
    alone = origin.group or episode.id
    curve: Floats32 | None = _first(outcomes, "curve")
    events: tuple[Event, ...] = next((outcome.events for outcome in outcomes if outcome.events), ())
    sources = (f"{outcome.source} ({outcome.by})" if outcome.by else outcome.source for outcome in outcomes)
    return EpisodeLabels(
        id=episode.id,
        instruction=episode.instruction,
        category=str(category(episode.instruction)),
        context=f"{task} ({origin.group})" if task and origin.group else task or alone,
        task=task_name(origin.tags.get("task", "")) or task or alone,
        dataset=origin.dataset,
        subset=origin.tags.get("subset") or origin.tags.get("data_source") or origin.dataset,
        split=origin.split,
        embodiment=origin.embodiment,
        frames=frames,
        seconds=seconds,
        success=_first(outcomes, "success"),
        progress=_first(outcomes, "progress"),
        grade=_first(outcomes, "grade"),
        quality=QUALITY.get(origin.tags.get("quality", "").lower(), ""),
        vouched_by=", ".join(dict.fromkeys(sources)),
        note=next((outcome.note for outcome in outcomes if outcome.note), ""),
        events=events,
        curve=curve,
        group=origin.group,
        perspective=origin.tags.get("perspective", "").lower(),
    )


def _first(outcomes: list[Outcome], field: str) -> Any:
    return next((value for outcome in outcomes if (value := getattr(outcome, field)) is not None), None)


def _length(episode: Episode) -> tuple[int, float]:
    try:
        times = episode.main.times()
    except UnreadableVideo:
        return 0, 0.0  # the models report why they could not score it
    return len(times), float(times[-1] - times[0]) if len(times) else 0.0


# Categories from a table


def read_categories(path: str | Path) -> dict[str, str]:
    """Read a CSV file with the columns `instruction` and `category`; returns the category by task name."""
    expected = "a CSV file with the columns instruction and category"
    table: dict[str, str] = {}
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if not {"instruction", "category"} <= set(rows.fieldnames or []):
                raise BadInput(str(path), expected, list(rows.fieldnames or []))
            for row in rows:
                instruction, cell = row["instruction"] or "", row["category"] or ""
                kind = cell.strip().lower()
                if kind not in KNOWN_CATEGORIES:
                    raise UnknownName(f"category (of {instruction!r} in {path})", cell, KNOWN_CATEGORIES)
                if table.setdefault(task_name(instruction), kind) != kind:
                    both = f"{table[task_name(instruction)]} and {kind}"
                    raise BadInput(str(path), f"one category for {instruction!r}", both)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(str(path), expected, error) from error
    return table


def apply_categories(
    labels: Sequence[EpisodeLabels], table: Mapping[str, str]
) -> tuple[tuple[EpisodeLabels, ...], tuple[str, ...]]:
    """Set each episode's category from the table; also return a note if instructions are missing in it."""
    if not table:
        return tuple(labels), ()
    rows = tuple(replace(row, category=table.get(task_name(row.instruction), row.category)) for row in labels)
    tasks = {task_name(row.instruction) for row in labels if row.instruction}
    missing = len(tasks - set(table))
    note = f"Categories are by a table; {missing} of {len(tasks)} instructions are not in it, and sorted by the rules."
    return rows, (note,) if missing else ()


# Perturbations


@dataclass(frozen=True)
class Perturbation:
    """One way of presenting some of the episodes to a model."""

    name: str
    """`as recorded`, `reversed`, `shuffled` or `told: <instruction>`"""
    episodes: frozenset[str]

    def apply(self, episode: Episode) -> Episode:
        """Return the episode that the model gets; the id stays."""
        if self.name == AS_RECORDED:
            return episode
        if self.name.startswith(f"{INSTRUCTION}: "):
            return replace(episode, instruction=self.name.removeprefix(f"{INSTRUCTION}: "))
        one_camera = replace(episode, views={episode.main_camera: episode.main})
        return one_camera.select(frame_order(self.name, episode.id, len(episode)))


def frame_order(perturbation: str, episode: str, frames: int) -> Ints:
    """Return the true index of each presented frame.

    A shuffle sorts the frames by a hash of episode id and frame index: the same on every machine. The first frame
    stays in place, since a model of progress may need to know the start.
    """
    if perturbation == REVERSED:
        return np.arange(frames, dtype=np.int64)[::-1]
    if perturbation == SHUFFLED:
        keys = [short_hash(f"{episode}\0{i}".encode()) for i in range(frames)]
        shuffled = sorted(range(1, frames), key=keys.__getitem__)
        return np.array([*range(min(1, frames)), *shuffled], dtype=np.int64)
    return np.arange(frames, dtype=np.int64)


def demonstrations(labels: Sequence[EpisodeLabels]) -> list[EpisodeLabels]:
    """Return the episodes in which the value should rise: the successes, or all where success is unknown for all."""
    if all(row.success is None for row in labels):
        return list(labels)
    return [row for row in labels if row.success]


def instruction_probes(labels: Sequence[EpisodeLabels]) -> dict[str, EpisodeLabels]:
    """Choose one demonstration for each of at most 8 tasks, by task; the choice depends on ids and task names only."""
    probes: dict[str, EpisodeLabels] = {}
    for row in sorted(demonstrations(labels), key=lambda row: short_hash(row.id.encode())):
        if row.instruction:
            probes.setdefault(row.instruction.strip().lower(), row)
    tasks = sorted(probes, key=lambda task: short_hash(task.encode()))[:MAX_PROBES]
    return {task: probes[task] for task in tasks}


def under_instruction(instruction: str) -> str:
    """Return the name of the perturbation that replaces the instruction by this one."""
    return f"{INSTRUCTION}: {instruction}"


def list_perturbations(kinds: Collection[str], labels: Sequence[EpisodeLabels]) -> list[Perturbation]:
    """List every perturbation that a benchmark asks for, `as recorded` first."""
    perturbations = [Perturbation(AS_RECORDED, frozenset(row.id for row in labels))]
    shown = frozenset(row.id for row in demonstrations(labels))
    perturbations += [Perturbation(kind, shown) for kind in (REVERSED, SHUFFLED) if kind in kinds and shown]
    probes = instruction_probes(labels).values() if INSTRUCTION in kinds else ()
    for probe in probes:
        others = frozenset(other.id for other in probes if other is not probe)
        perturbations += [Perturbation(under_instruction(probe.instruction), others)] if others else []
    return perturbations


# Episodes that a model learned from


def leave_out_seen(
    models: Sequence[RewardModel], data: BenchmarkData, include: bool = False
) -> tuple[BenchmarkData, SeenRows]:
    """Remove the episodes that any of the models learned from, for all models; with `include`, only name them."""
    by_model: dict[str, tuple[str, ...]] = {}
    for model in models:
        seen = seen_by(model)
        again = tuple(episode.id for episode in data.episodes if seen.has(episode))
        if again:
            by_model[model.card.name] = again
    goals = tuple(model.card.name for model in models if seen_by(model).are_goals)
    rows = SeenRows(by_model, len(data.episodes), included=include, goals=goals)
    gone = rows.ids
    if include or not gone:
        return data, rows
    kept = [(episode, row) for episode, row in zip(data.episodes, data.labels, strict=True) if episode.id not in gone]
    if not kept:
        expected = (
            f"episodes that {' and '.join(by_model)} did not learn from (or --set include-seen=true, marked as unfair)"
        )
        raise BadInput(data.address, expected, f"{len(gone)} episodes, all of them in the training data")
    episodes, labels = zip(*kept, strict=True)
    preferences = tuple(pair for pair in data.preferences if not {pair.a, pair.b} & gone)
    return replace(data, episodes=episodes, labels=labels, preferences=preferences), rows


def describe_unknown(models: Iterable[RewardModel]) -> list[str]:
    """Return a note that names the models whose training data is not recorded; empty if there are none."""
    names = [model.card.name for model in models if not seen_by(model).complete]
    note = "There is no full record of what {} learned from: episodes that were in it may be among these."
    return [note.format(" and ".join(names))] if names else []


NAN = float("nan")
CONTROLS = ("constant", "clock", "random", "change", "motion", "length")
"""names of the control models, in display order"""
ALWAYS_A = "always-a"
"""a comparer that always names the first of two; added where people compared episodes"""
Value = TypeVar("Value")


@dataclass(frozen=True)
class MeasureSettings:
    """The settings that change a report's numbers, apart from its rewards."""

    resampling: Resampling = field(default_factory=Resampling)
    calibrate_on: str = ""
    """the split that maps from value to grade are fitted on; it is not measured"""
    by_recording: bool = True
    """with few tasks, resample recordings instead (see `resampling_units`); earlier versions did not"""

    def as_dict(self) -> dict[str, str]:
        """Return the entries of a report's environment."""
        how = self.resampling
        facts = {"resamples": str(how.resamples), "level": repr(how.level), "seed": str(how.seed)}
        few = {"resampled with few tasks": "recordings" if self.by_recording else "tasks"}
        return {**facts, "resampling of one task": how.alone, **few, "calibrated on split": self.calibrate_on}

    @classmethod
    def from_dict(cls, facts: Mapping[str, str]) -> MeasureSettings:
        """Read what `as_dict` wrote; absent entries get their defaults."""
        default = Resampling()
        how = Resampling(
            resamples=int(facts.get("resamples", default.resamples)),
            level=float(facts.get("level", default.level)),
            seed=int(facts.get("seed", default.seed)),
            alone="rows" if facts.get("resampling of one task") == "rows" else "unknown",
        )
        by_recording = facts.get("resampled with few tasks") == "recordings"
        return cls(how, facts.get("calibrated on split", ""), by_recording)


@dataclass(frozen=True, eq=False)
class Scores:
    """What metrics are computed from: labels, preferences and the rewards of all models."""

    cards: Mapping[str, ModelCard]
    """by name, in the order of the report"""
    episodes: tuple[EpisodeLabels, ...]
    preferences: tuple[Preference, ...]
    rewards: Mapping[tuple[str, str], Mapping[str, Reward]]
    """by model and perturbation, then by episode"""
    settings: MeasureSettings = field(default_factory=MeasureSettings)
    calibration: Scores | None = None
    """the episodes that maps and thresholds are fitted on, if any"""
    answers: Mapping[tuple[str, str, str], PairAnswer] = field(default_factory=dict)
    """answers of comparers, by model and the two episodes"""
    cache: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False)
    """results of `compute_once`; subsets share it, since they share the rewards"""

    @classmethod
    def of(cls, report: Report, settings: MeasureSettings) -> Scores:
        """Take the scores from a report."""
        rewards: dict[tuple[str, str], dict[str, Reward]] = {}
        for scored in report.rewards:
            rewards.setdefault((scored.reward.model, scored.perturbation), {})[scored.reward.episode] = scored.reward
        cards = {card.name: card for card in report.cards}
        answers = {(answer.model, answer.a, answer.b): answer for answer in report.choices}
        whole = cls(cards, report.episodes, report.preferences, rewards, settings, answers=answers)
        if not settings.calibrate_on:
            return whole
        kept = whole.where(lambda row: not same_split(row.split, settings.calibrate_on))
        return replace(kept, calibration=whole.where(lambda row: same_split(row.split, settings.calibrate_on)))

    def where(self, keep: Callable[[EpisodeLabels], bool]) -> Scores:
        """Return the subset of some episodes."""
        episodes = tuple(row for row in self.episodes if keep(row))
        ids = {row.id for row in episodes}
        preferences = tuple(pair for pair in self.preferences if pair.a in ids and pair.b in ids)
        return replace(self, episodes=episodes, preferences=preferences)

    def compute_once(self, key: tuple[object, ...], compute: Callable[[], Value]) -> Value:
        """Compute a value at the first call with this key. The key must contain `ids` if the value depends on them."""
        if key not in self.cache:
            self.cache[key] = compute()
        value: Value = self.cache[key]
        return value

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Ids of the episodes."""
        return tuple(row.id for row in self.episodes)

    def reward(self, model: str, episode: str, perturbation: str = AS_RECORDED) -> Reward | None:
        """Return one reward; None if the model was not asked."""
        return self.rewards.get((model, perturbation), {}).get(episode)

    def rewards_of(self, model: str, perturbation: str = AS_RECORDED) -> list[Reward | None]:
        """Return one model's rewards in episode order."""
        return [self.reward(model, id, perturbation) for id in self.ids]

    def finals(self, model: str) -> Floats:
        """Return the value at the last frame of each episode, NaN = unscored."""
        return self.returns(model, "final")

    def returns(self, model: str, how: Return) -> Floats:
        """Return the sum, mean or last of each episode's values, NaN = unscored."""
        values = self.compute_once(("returns", model, how), lambda: self._all_returns(model, how))
        return np.array([values.get(id, NAN) for id in self.ids], dtype=np.float64)

    def _all_returns(self, model: str, how: Return) -> dict[str, float]:
        rewards = self.rewards.get((model, AS_RECORDED), {})
        returns = episode_returns([reward.value for reward in rewards.values()], how)
        return dict(zip(rewards, returns.tolist(), strict=True))

    def shares(self, model: str) -> Floats:
        """Return final values as a share of the range on the model card."""
        low, high = self.range_of(model)
        return (self.finals(model) - low) / (high - low)

    def range_of(self, model: str) -> tuple[float, float]:
        """Return the range on the model card; NotApplicable if it is not bounded on both sides."""
        card = self.cards[model]
        if card.low is None or card.high is None:
            raise NotApplicable(f"its card gives no range for its {card.quantity}")
        return card.low, card.high

    def gives_success(self, model: str) -> bool:
        """Return whether the model gives its own probabilities of success."""
        return any(reward is not None and reward.success is not None for reward in self.rewards_of(model))

    def success_probabilities(self, model: str) -> tuple[Floats, str]:
        """Return final probabilities of success and what they were read from; NotApplicable if there are none."""
        card = self.cards[model]
        if self.gives_success(model):
            last = [
                NAN if reward is None or reward.success is None or not len(reward.success) else reward.success[-1]
                for reward in self.rewards_of(model)
            ]
            return np.array(last, dtype=np.float64), "the model's own probability of success"
        if card.is_absolute:
            return self.finals(model), f"final {card.quantity} read as a probability of success"
        raise NotApplicable(
            "it gives no probability of success, and its value is not a progress or probability from 0 to 1"
        )

    @cached_property
    def tasks(self) -> list[str]:
        """The task of each episode."""
        return [row.task for row in self.episodes]

    @cached_property
    def units(self) -> tuple[list[str], str]:
        """What intervals resample: a label per episode, and its name."""
        return resampling_units(self.episodes) if self.settings.by_recording else (self.tasks, "tasks")

    @property
    def clusters(self) -> list[str]:
        """What intervals resample: a label per episode."""
        return self.units[0]

    @cached_property
    def contexts(self) -> list[str]:
        """Contexts, within which episodes may be ranked."""
        return [row.context for row in self.episodes]

    @cached_property
    def success(self) -> Floats:
        """1, 0 or NaN."""
        return np.array([NAN if row.success is None else float(row.success) for row in self.episodes])

    @cached_property
    def grades(self) -> Floats:
        """1 to 5 or NaN."""
        return np.array([NAN if row.grade is None else float(row.grade) for row in self.episodes])

    @cached_property
    def human_scores(self) -> tuple[Floats, str]:
        """How good each episode is, and by which label: the one that most episodes have, finest first.

        One label for all episodes, since a progress of 0.6 and a plain "success" cannot be ranked.
        """
        progress = np.array([NAN if row.progress is None else float(row.progress) for row in self.episodes])
        columns = {"progress": progress, "grade": self.grades, "success": self.success}
        counts = {name: int((~np.isnan(column)).sum()) for name, column in columns.items()}
        name = max(columns, key=lambda column: counts[column])  # the first of the largest
        return columns[name], name


@dataclass(frozen=True)
class MetricSpec:
    """One metric: the numbers it takes from a model, and how it counts them.

    The two are separate so that two models can be compared on the rows that both have.
    """

    name: str
    numbers: Callable[[Scores, str], Floats]
    """one number per row of a model, NaN = unscored; raises NotApplicable(reason) if it cannot be computed"""
    tally_of: Callable[[Scores, Floats], Tally]
    needs: str
    """the labels that it needs, as a clause: 'accepted and rejected episodes'"""
    across: bool = True
    """compares values of different episodes, so it does not apply to values normalised per episode"""
    lower_is_better: bool = False
    by: tuple[str, ...] = ()
    """also computed for each category, subset, task, and each of several embodiments or perspectives"""
    subset: Callable[[Scores], Scores] | None = None
    """the episodes that it is about; None = all"""
    undefined: Callable[[Scores, str], int] | None = None
    """number of NaN rows that are scored, but have no value by the formula"""
    note: Callable[[Scores, str], str] | None = None
    """a note on this model's number"""
    top_by_construction: tuple[str, ...] = ()
    """controls that reach the best value by construction, so a model need not beat them"""
    asks_comparers: bool = False
    """also computed for the comparer that always names the first"""
    has_controls: bool = True
    """a model is compared with the controls; False where a model that rewards nothing would win"""
    applies_to: Callable[[Scores, str], bool] | None = None
    """the models it is computed for; others are skipped silently"""
    lacking: Callable[[Scores], str] | None = None
    """why these episodes are too few, as the rest of 'NAME is not measured: '; empty if they are enough"""

    def tally(self, scores: Scores, model: str) -> Tally:
        """Count one model's rows."""
        tally = self.tally_of(scores, self.numbers(scores, model))
        notes = [tally.note, self.note(scores, model) if self.note else ""]
        tally = replace(tally, name=self.name, note="; ".join(note for note in notes if note))
        if self.undefined is None:
            return tally
        undefined = self.undefined(scores, model)
        return replace(tally, undefined=undefined, unscored=tally.unscored - undefined)

    def select(self, scores: Scores) -> Scores:
        """Return the part of the scores that it is about."""
        return scores if self.subset is None else self.subset(scores)

    def lines(self, scores: Scores, model: str) -> Iterator[MeasureLine]:
        """Measure one model over all episodes and by part; without labels there is no line at all."""
        selected = self.select(scores)
        whole = self._line(selected, model, "")
        if whole is None:
            return
        yield whole
        for kind in self.by:
            names = {getattr(row, kind) for row in selected.episodes}
            if kind in ROBOTS and len(names) == 1:
                continue  # one robot: the same number again
            for name in sorted(names - {""}):
                part = selected.where(lambda row, kind=kind, name=name: getattr(row, kind) == name)  # type: ignore[misc]
                line = self._line(part, model, f"{kind}: {name}")
                if line is not None:
                    yield line

    def _line(self, scores: Scores, model: str, part: str) -> MeasureLine | None:
        tally = self.tally(scores, model)
        measure = tally.measure(scores.settings.resampling)
        if set(tally.clusters) <= set(
            scores.clusters
        ):  # some measures are about tasks, whatever is resampled elsewhere
            measure = replace(measure, resampled=scores.units[1])
        is_empty = not (measure.n or measure.unscored or measure.undefined)
        return None if is_empty else MeasureLine(model, measure, part)
