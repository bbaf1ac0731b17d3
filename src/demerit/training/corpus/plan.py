"""What a config comes to before anything is written: which episodes, with which labels, in which splits, and leaks."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from demerit.data.dataset import Dataset, Record
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.labels import Outcome, Preference, most_trusted
from demerit.data.splits import LeakReport, SplitAssigner, check_leaks, same_split, seed_of, task_of
from demerit.errors import BadInput, NotApplicable
from demerit.evaluate.metrics.grades import grade_by_range
from demerit.negatives.job import with_assumed_success
from demerit.negatives.negative import DONE_GRADE, grade_of, is_success, require_success
from demerit.training.corpus.config import CorpusConfig, CorpusSource, HeldOutSet, ScoreColumn

StageProgress = Callable[[str, int, int | None, str], None]
"""called with the stage, how much is done, how much there is, and a note"""
SPLIT_NAMES = ("train", "val", "test")


@dataclass
class DrawnSource:
    """The episodes chosen from one source."""

    source: CorpusSource
    ids: set[str] = field(default_factory=set)
    """as the source names them"""
    found: int = 0
    """episodes that can be read"""
    usable: int = 0
    tasks: int = 0
    """different tasks among the usable ones"""
    skipped: Counter[str] = field(default_factory=Counter)
    """by reason; those over the cap are not among them"""
    grades: Counter[int | None] = field(default_factory=Counter)
    """of the chosen episodes"""

    @property
    def over(self) -> int:
        """Usable episodes over the cap."""
        return self.usable - len(self.ids)


@dataclass(frozen=True, eq=False)
class CorpusPlan:
    """The episodes of a corpus and their splits."""

    config: CorpusConfig
    drawn: tuple[DrawnSource, ...]
    splits: Mapping[str, str]
    """by id in the corpus"""
    leaks: LeakReport
    counts: Counter[tuple[str, str]]
    """episodes by source and split"""
    successes: int
    """episodes that negatives and counterfactuals are made of"""

    @property
    def digest(self) -> str:
        """A hash of the config, the chosen episodes and their splits."""
        digest = hashlib.sha256()
        for drawn in self.drawn:
            chosen = sorted((id, self.splits.get(f"{drawn.source.name}/{id}", "")) for id in drawn.ids)
            digest.update(repr((drawn.source.name, chosen)).encode())
        return f"{self.config.digest}-{digest.hexdigest()[:16]}"

    @property
    def augmented(self) -> frozenset[str]:
        """Names of the sources that negatives and counterfactuals are made of."""
        return frozenset(source.name for source in self.config.sources if source.is_augmented)

    def refuse_leaks(self) -> None:
        """Raise if anything leaks and the config refuses leaks."""
        if self.leaks.leaks and self.config.leaks == "refuse":
            advice = "splits and held-out sets that share nothing (`leaks: report` builds the corpus anyway)"
            raise BadInput("leak check", advice, " ".join(self.leaks.leaks).rstrip("."))


@dataclass(eq=False)
class CorpusReader:
    """Reads the chosen episodes of all sources, with the corpus's ids, labels and splits; a `Reader`."""

    config: CorpusConfig
    drawn: Sequence[DrawnSource]
    splits: Mapping[str, str] | None = None
    """None = the sources' own"""
    strict: bool = False
    only: frozenset[str] | None = None
    """names of the sources to read; None = all"""

    @property
    def name(self) -> str:
        """The corpus's name."""
        return self.config.name

    def expected(self) -> int:
        """The number of chosen episodes."""
        return sum(len(drawn.ids) for drawn in self._chosen_sources())

    def records(self) -> Iterator[Record]:
        """Stream episodes and the preferences between them."""
        for drawn in self._chosen_sources():
            name = drawn.source.name
            for record in open_source(drawn.source, self.strict).records():
                if isinstance(record, Preference):
                    if {record.a, record.b} <= drawn.ids:
                        yield replace(record, a=f"{name}/{record.a}", b=f"{name}/{record.b}")
                elif isinstance(record, Episode) and record.id in drawn.ids:
                    yield self._place(label_episode(record, drawn.source), drawn.source)

    def _chosen_sources(self) -> list[DrawnSource]:
        return [drawn for drawn in self.drawn if self.only is None or drawn.source.name in self.only]

    def _place(self, episode: Episode, source: CorpusSource) -> Episode:
        """Give an episode the corpus's names and its split; the source's names become tags."""
        origin, id = episode.origin, f"{source.name}/{episode.id}"
        tags = {
            "source_split": origin.split,
            "source_dataset": origin.dataset if origin.dataset != source.name else "",
            "place": "" if source.groups else origin.group,
        }
        own_split = next((name for name in SPLIT_NAMES if same_split(name, origin.split)), origin.split)
        placed = replace(
            origin,
            dataset=source.name,
            licence=origin.licence or source.licence,
            embodiment=origin.embodiment or source.embodiment,
            split=own_split if self.splits is None else self.splits[id],
            group=f"{source.name}/{origin.group}" if origin.group and source.groups else id,
            parent=f"{source.name}/{origin.parent}" if origin.parent else "",
            tags={**origin.tags, **{name: value for name, value in tags.items() if value}},
        )
        return replace(episode, id=id, origin=placed)


def make_plan(config: CorpusConfig, strict: bool = False, on_progress: StageProgress = lambda *_: None) -> CorpusPlan:
    """Read the sources, draw episodes, assign splits, check for leaks. Nothing is written, no frame is decoded."""
    drawn = tuple(draw_source(config, source, strict, on_progress) for source in config.sources)
    if not any(found.ids for found in drawn):
        reasons = Counter[str]()
        for found in drawn:
            reasons.update(found.skipped)
        why = "; ".join(f"{count} skipped: {reason}" for reason, count in reasons.most_common(3)) or "empty sources"
        raise BadInput("recipe, sources", "at least one usable episode", why)
    reader = CorpusReader(config, drawn, strict=strict)
    episodes: list[Episode] = []
    assigner = SplitAssigner()
    for episode in Dataset(reader):
        episodes.append(episode)
        assigner.add(episode)
        on_progress("splitting", len(episodes), reader.expected(), "")
    if config.splits.by == "task":
        splits = assigner.assign(config.splits.shares, config.seed)
        episodes = [replace(episode, origin=replace(episode.origin, split=splits[episode.id])) for episode in episodes]
    augmented = {source.name for source in config.sources if source.is_augmented}
    return CorpusPlan(
        config,
        drawn,
        {episode.id: episode.origin.split for episode in episodes},
        check_leaks(episodes, open_held_out(config)),
        Counter((episode.origin.dataset, episode.origin.split) for episode in episodes),
        sum(episode.origin.dataset in augmented and is_success(episode) for episode in episodes),
    )


def open_source(source: CorpusSource | HeldOutSet, strict: bool = False) -> Dataset:
    """Open a source or a held-out set."""
    address = f"{source.format}:{source.folder}" if source.format else source.folder
    camera = source.camera or None if isinstance(source, CorpusSource) else None
    return open_dataset(address, strict=strict, camera=camera, **dict(source.options))


def open_held_out(config: CorpusConfig) -> Iterator[tuple[str, Dataset]]:
    """Open the held-out sets, with their names."""
    for part in config.held_out:
        dataset = open_source(part)
        yield part.name or dataset.name, dataset


def draw_source(
    config: CorpusConfig, source: CorpusSource, strict: bool = False, on_progress: StageProgress = lambda *_: None
) -> DrawnSource:
    """Read a source once and choose its episodes."""
    drawn, tasks, grades = DrawnSource(source), dict[str, str](), dict[str, int | None]()
    dataset = open_source(source, strict)
    for episode in dataset:
        drawn.found += 1
        on_progress(f"reading {source.name}", drawn.found, None, "")
        try:
            labelled = label_episode(episode, source)
            outcome = graded_outcome(labelled)
            tasks[episode.id], grades[episode.id] = task_of(labelled), outcome.grade if outcome else None
        except NotApplicable as error:
            drawn.skipped[error.reason] += 1
    for problem in dataset.problems.rows():
        if not problem["kept"]:
            drawn.skipped[str(problem["problem"])] += int(problem["episodes"])
    drawn.usable, drawn.tasks = len(tasks), len(set(tasks.values()))
    drawn.ids = draw_evenly(tasks, config.cap if source.cap is None else source.cap, config.seed)
    drawn.grades.update(grades[id] for id in drawn.ids)
    return drawn


def draw_evenly(tasks: Mapping[str, str], cap: int, seed: int) -> set[str]:
    """Choose at most `cap` ids (0 = all), given the task of each: one of every task, then a second of every task ...

    No task that has episodes left is more than one behind another. The choice depends on the seed, not on the order.
    """
    by_task: dict[str, list[str]] = defaultdict(list)
    for id, task in tasks.items():
        by_task[task].append(id)
    ranked: list[tuple[int, int, str]] = []
    for task, ids in by_task.items():
        turn = seed_of(seed, "turn", task)
        shuffled = sorted(ids, key=lambda id: (seed_of(seed, "drawn", id), id))
        ranked += [(rank, turn, id) for rank, id in enumerate(shuffled)]
    ranked.sort()
    return {id for _, _, id in (ranked[:cap] if cap else ranked)}


def label_episode(episode: Episode, source: CorpusSource) -> Episode:
    """Give an episode the grade that its source's role implies, or raise `NotApplicable` with the reason."""
    if not episode.instruction.strip():
        raise NotApplicable("it has no instruction")
    return _label_success(episode, source) if source.role == "successes" else _label_graded(episode, source)


def graded_outcome(episode: Episode) -> Outcome | None:
    """The outcome with a grade from the most trusted label source."""
    return most_trusted(outcome for outcome in episode.outcomes if outcome.grade is not None)


def _label_success(episode: Episode, source: CorpusSource) -> Episode:
    episode = with_assumed_success(episode, source.because)
    require_success(episode)
    if graded_outcome(episode) is not None:
        return episode
    # Its label source calls it a success. Grade 5 follows by a rule.
    rule = Outcome("rule", success=True, grade=DONE_GRADE, by="a success is grade 5")
    return replace(episode, outcomes=(*episode.outcomes, rule))


def _label_graded(episode: Episode, source: CorpusSource) -> Episode:
    outcomes = episode.outcomes
    if source.score is not None:
        outcomes = (*outcomes, Outcome("human", progress=_read_score(episode, source.score), by=source.score.column))
    for place, outcome in enumerate(outcomes):
        progress = _progress(outcome)
        grade = _grade(outcome, progress, _has_failed(outcomes, outcome.source))
        if outcome.source == source.vouched_by and grade is not None:
            graded = replace(outcome, grade=grade, progress=progress)
            return replace(episode, outcomes=(*outcomes[:place], graded, *outcomes[place + 1 :]))
    raise NotApplicable(f"it has no grade or progress from the label source {source.vouched_by!r}")


def _has_failed(outcomes: Sequence[Outcome], source: str) -> bool:
    """Whether a label source calls an episode a failure, in any of its outcomes."""
    return any(outcome.source == source and outcome.success is False for outcome in outcomes)


def _grade(outcome: Outcome, progress: float | None, failed: bool) -> int | None:
    """The outcome's grade, or that of its progress: the nearest of five steps, at most 4 where it is not done."""
    if outcome.grade is not None or progress is None:
        return outcome.grade
    if failed:
        return grade_of(progress)
    if outcome.source in ("simulator", "rule") and outcome.success:
        return DONE_GRADE
    return int(grade_by_range([progress], 0.0, 1.0)[0])


def _progress(outcome: Outcome) -> float | None:
    """The outcome's progress, or the end of its curve."""
    curve = outcome.curve
    if outcome.progress is not None or curve is None or not len(curve) or math.isnan(curve[-1]):
        return outcome.progress
    return float(curve[-1])


def _read_score(episode: Episode, score: ScoreColumn) -> float:
    try:
        share = (float(episode.origin.tags.get(score.column, "")) - score.low) / (score.high - score.low)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise NotApplicable(f"its {score.column} is not a score from {score.low:g} to {score.high:g}")
    return share
