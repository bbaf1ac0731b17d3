"""The episodes of a benchmark: loading, labels, task categories, and the perturbations under which models score them.

A perturbation is named in the report. What it does follows from its name and the episode alone, so a report can be
recomputed without the videos.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import Frames, short_hash
from demerit.data.instructions import task_name
from demerit.data.labels import LABEL_SOURCES, Event, Outcome, Preference, SourceCounts
from demerit.data.seen import seen_by
from demerit.errors import BadInput, UnknownName, UnreadableVideo
from demerit.evaluate.metrics.categories import Category, category
from demerit.evaluate.reports.report import AS_RECORDED, EpisodeLabels, SeenRows
from demerit.models.protocol import RewardModel

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

    @property
    def judged_by_models(self) -> int:
        """The number of episodes and preferences with a label of a model."""
        judged = sum(any(outcome.source == "model" for outcome in episode.outcomes) for episode in self.episodes)
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
    outcomes = sorted(episode.outcomes, key=lambda outcome: LABEL_SOURCES.index(outcome.source))
    origin, task = episode.origin, task_name(episode.instruction)
    frames, seconds = _length(episode)
    alone = origin.group or episode.id
    curve: npt.NDArray[np.float32] | None = _first(outcomes, "curve")
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
                instruction, given = row["instruction"] or "", row["category"] or ""
                kind = given.strip().lower()
                if kind not in KNOWN_CATEGORIES:
                    raise UnknownName(f"category (of {instruction!r} in {path})", given, KNOWN_CATEGORIES)
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
    changed = tuple(replace(row, category=table.get(task_name(row.instruction), row.category)) for row in labels)
    tasks = {task_name(row.instruction) for row in labels if row.instruction}
    missing = len(tasks - set(table))
    note = f"Categories are by a table; {missing} of {len(tasks)} instructions are not in it, and sorted by the rules."
    return changed, (note,) if missing else ()


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


@dataclass(frozen=True)
class InstructionProbe:
    """A video of one task, with its own instruction."""

    episode: str
    task: str
    instruction: str


def frame_order(perturbation: str, episode: str, frames: int) -> npt.NDArray[np.int64]:
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


def instruction_probes(labels: Sequence[EpisodeLabels]) -> list[InstructionProbe]:
    """Choose one demonstration for each of at most 8 tasks; the choice depends on ids and task names only."""
    chosen: dict[str, EpisodeLabels] = {}
    for row in sorted(demonstrations(labels), key=lambda row: short_hash(row.id.encode())):
        if row.instruction:
            chosen.setdefault(row.instruction.strip().lower(), row)
    tasks = sorted(chosen, key=lambda task: short_hash(task.encode()))[:MAX_PROBES]
    return [InstructionProbe(chosen[task].id, task, chosen[task].instruction) for task in tasks]


def under_instruction(instruction: str) -> str:
    """Return the name of the perturbation that replaces the instruction by this one."""
    return f"{INSTRUCTION}: {instruction}"


def list_perturbations(kinds: Collection[str], labels: Sequence[EpisodeLabels]) -> list[Perturbation]:
    """List every perturbation that a benchmark asks for, `as recorded` first."""
    listed = [Perturbation(AS_RECORDED, frozenset(row.id for row in labels))]
    shown = frozenset(row.id for row in demonstrations(labels))
    listed += [Perturbation(kind, shown) for kind in (REVERSED, SHUFFLED) if kind in kinds and shown]
    probes = instruction_probes(labels) if INSTRUCTION in kinds else []
    for probe in probes:
        others = frozenset(other.episode for other in probes if other.task != probe.task)
        listed += [Perturbation(under_instruction(probe.instruction), others)] if others else []
    return listed


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
        expected = f"episodes that {' and '.join(by_model)} did not learn from (or --include-seen, marked as unfair)"
        raise BadInput(data.address, expected, f"{len(gone)} episodes, all of them in the training data")
    episodes, labels = zip(*kept, strict=True)
    preferences = tuple(pair for pair in data.preferences if not {pair.a, pair.b} & gone)
    return replace(data, episodes=episodes, labels=labels, preferences=preferences), rows


def describe_unknown(models: Iterable[RewardModel]) -> list[str]:
    """Return a note that names the models whose training data is not recorded; empty if there are none."""
    names = [model.card.name for model in models if not seen_by(model).complete]
    note = "There is no full record of what {} learned from: episodes that were in it may be among these."
    return [note.format(" and ".join(names))] if names else []
