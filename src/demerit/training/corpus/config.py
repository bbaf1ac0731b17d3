"""CorpusConfig: everything that decides what is in a corpus, and how it is read from YAML.

`composition.json` and `composition.md` say what a corpus is made of, counted by source, split, grade and label source.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

from demerit.config import build_config, parse_yaml, read_yaml
from demerit.data.dataset import Dataset, Record
from demerit.data.episode import Episode, Outcome, Preference, most_trusted, safe_name
from demerit.data.formats import open_dataset
from demerit.data.splits import LeakReport, SplitAssigner, check_leaks, same_split, seed_of, task_of
from demerit.errors import BadInput, NotApplicable
from demerit.evaluate.metrics.grades import grade_by_range
from demerit.negatives.job import with_assumed_success
from demerit.negatives.mix import DEFAULT_MIX, PER_DATASET, PER_EPISODE, Mix
from demerit.negatives.negative import DONE_GRADE, UNFINISHED_GRADES, grade_of, is_success, require_success
from demerit.negatives.relabel import RelabelConfig

SHIPPED = files("demerit") / "assets" / "corpora"
UNHASHED = ("chat", "held_out", "leaks")
"""settings that do not change what is made"""


@dataclass(frozen=True)
class ScoreColumn:
    """A column of a person's scores that the source's format does not know."""

    column: str
    """in the label file; the reader keeps it as a tag"""
    low: float = 0.0
    high: float = 100.0

    def __post_init__(self) -> None:
        """Check the range."""
        if not self.column or not self.low < self.high:
            raise BadInput("score", "a column, and low < high", (self.column, self.low, self.high))


@dataclass(frozen=True)
class CorpusSource:
    """One dataset of a corpus."""

    folder: str
    """relative to the config file; `*` stands for several folders, each a separate source"""
    name: str = ""
    """default: the folder's name"""
    format: str = ""
    """default: detected from the files"""
    camera: str = ""
    licence: str = ""
    """recorded where the dataset has none"""
    embodiment: str = ""
    """recorded where the dataset has none"""
    perspective: Literal["", "egocentric", "exocentric"] = ""
    """where the camera is; a tag of every episode that has none"""
    about: str = ""
    """a line for the composition table"""
    role: Literal["successes", "graded", "outcomes"] = "successes"
    """successes: all are grade 5; graded: a grade or progress is needed; outcomes: a success or failure is enough"""
    because: str = "demonstrations"
    """successes: why an episode without an outcome is one; empty = it is skipped"""
    vouched_by: Literal["human", "simulator", "rule", "model"] = "human"
    """graded: the label source whose grades or progress count"""
    score: ScoreColumn | None = None
    """graded: a column of a person's scores"""
    cap: int | None = None
    """episodes used at most, 0 = all; default: the config's cap"""
    augment: bool | None = None
    """whether negatives and counterfactuals are made of its successes; default: for role `successes`"""
    groups: bool = True
    """whether its groups are recordings that splits must not part; false where they are kinds of places"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """of the format's reader"""

    def __post_init__(self) -> None:
        """Check the values."""
        if self.cap is not None and self.cap < 0:
            raise BadInput("cap", "a whole number, 0 for all", self.cap)
        if self.score is not None and (self.role, self.vouched_by) != ("graded", "human"):
            raise BadInput("score", "a source of role graded, vouched by human", f"role {self.role}")
        if any(not (char.isalnum() or char in "._-+=@") for char in self.name):
            raise BadInput("name of a source", "letters, digits and . _ - + = @", repr(self.name))

    @property
    def is_augmented(self) -> bool:
        """Whether anything is made of its successes."""
        return self.role == "successes" if self.augment is None else self.augment


@dataclass(frozen=True)
class CorpusNegatives:
    """Which negatives to make of the successes (`demerit negatives`)."""

    mix: str = DEFAULT_MIX
    per_episode: int = PER_EPISODE

    def __post_init__(self) -> None:
        """Check the mix."""
        self.parse(0)

    def parse(self, seed: int) -> Mix:
        """Parse the mix. The cap was applied when the sources were drawn."""
        return Mix.parse(self.mix, seed=seed, per_episode=self.per_episode, per_dataset=0)


@dataclass(frozen=True)
class CorpusCounterfactuals:
    """Which counterfactuals to make of the successes (`demerit relabel`); needs a chat model."""

    grades: tuple[int, ...] = UNFINISHED_GRADES
    clips: tuple[int, ...] = ()
    """grades of cuts that the model confirms; `clip` in the mix of negatives makes cuts without a model"""
    rounds: int = 3
    size: int = 256
    more_tokens: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        self.parse(0)

    def parse(self, seed: int) -> RelabelConfig:
        """Make the config of the relabel job. Caps and splits are settled when it runs."""
        return RelabelConfig(**asdict(self), per_dataset=0, seed=seed, split="source")


@dataclass(frozen=True)
class CorpusSplits:
    """How episodes are split."""

    by: Literal["task", "source"] = "task"
    """'task': new splits that never part a task, video or recording; 'source': as the datasets have it"""
    shares: Mapping[str, float] = field(default_factory=lambda: {"train": 0.8, "val": 0.1, "test": 0.1})
    """of each source's episodes, as near as whole tasks allow"""

    def __post_init__(self) -> None:
        """Check the shares."""
        if not self.shares or not all(0 < share < float("inf") for share in self.shares.values()):
            raise BadInput("shares of the splits", "a share above 0 for each", dict(self.shares))


@dataclass(frozen=True)
class HeldOutSet:
    """A dataset that the corpus must not share a video with, such as a benchmark."""

    folder: str
    name: str = ""
    format: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CorpusConfig:
    """A whole corpus."""

    name: str
    sources: tuple[CorpusSource, ...]
    seed: int = 0
    """of the choice of episodes, negatives, cuts and splits"""
    cap: int = PER_DATASET
    """episodes used of one source at most, spread over its tasks; 0 = all"""
    negatives: CorpusNegatives | None = None
    counterfactuals: CorpusCounterfactuals | None = None
    splits: CorpusSplits = field(default_factory=CorpusSplits)
    held_out: tuple[HeldOutSet, ...] = ()
    leaks: Literal["refuse", "report"] = "refuse"
    """what to do when splits share a video or task, or a held-out video is in the corpus: refuse or report"""
    chat: Mapping[str, Any] = field(default_factory=dict)
    """the chat model; default: DEMERIT_CHAT_..."""

    def __post_init__(self) -> None:
        """Check what concerns several settings."""
        if not self.sources:
            raise BadInput("recipe, sources", "at least one", "none")
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BadInput("recipe, sources", "a different `name:` for each", f"{twice[0]!r} twice")
        if self.cap < 0:
            raise BadInput("recipe, cap", "a whole number, 0 for all", self.cap)
        clips = self.counterfactuals is not None and self.counterfactuals.clips
        if clips and self.negatives is not None and "clip" in self.negatives.parse(0).shares:
            raise BadInput("recipe", "clips in negatives or in counterfactuals", "both")

    @property
    def digest(self) -> str:
        """A hash of everything that changes what is made."""
        facts = {name: value for name, value in asdict(self).items() if name not in UNHASHED}
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def shipped_configs() -> list[str]:
    """List the names of the configs that ship."""
    return sorted(file.name.removesuffix(".yaml") for file in SHIPPED.iterdir() if file.name.endswith(".yaml"))


def load_config(path: str | Path, root: str | Path | None = None) -> CorpusConfig:
    """Read a config: a YAML file, or the name of one that ships; its folders are in `root`, or beside the file."""
    shipped = shipped_configs()
    file = Path(path).expanduser()
    if str(path) in shipped and not file.exists():
        file = Path(str(SHIPPED)) / f"{path}.yaml"
    expected = f"a recipe (YAML), or one that ships ({', '.join(shipped)})"
    home = file.resolve().parent if root is None else Path(root).expanduser().resolve()
    return _build(read_yaml(file, str(path), expected), home)


def parse_config(text: str, home: Path) -> CorpusConfig:
    """Parse a config's YAML; its folders are relative to `home`."""
    return _build(parse_yaml(text), home)


def format_config(config: CorpusConfig) -> str:
    """Write a config as YAML with absolute paths, without the chat model."""
    return yaml.safe_dump(_to_plain({**asdict(config), "chat": None}), sort_keys=False, allow_unicode=True)


def _build(values: dict[str, Any], home: Path) -> CorpusConfig:
    """Resolve folders, expand `*` and fill in names; then check everything by its type."""
    values = dict(values)
    for name in ("negatives", "counterfactuals", "splits"):
        if name in values and values[name] is None:
            values[name] = {}
    if isinstance(values.get("sources"), list):
        values["sources"] = [source for entry in values["sources"] for source in _expand(entry, home)]
    if isinstance(values.get("held_out"), list):
        values["held_out"] = [_resolve(entry, home) for entry in values["held_out"]]
    return build_config(CorpusConfig, values)


def _resolve(entry: Any, home: Path) -> Any:
    if not isinstance(entry, dict) or not isinstance(entry.get("folder"), str):
        return entry  # refused by its type
    return {**entry, "folder": str((home / Path(entry["folder"]).expanduser()).resolve())}


def _expand(entry: Any, home: Path) -> list[Any]:
    """Return a source for each folder that an entry stands for."""
    source = _resolve(entry, home)
    if source is entry:
        return [entry]
    folders = [source["folder"]]
    if "*" in source["folder"]:
        folders = sorted(folder for folder in glob.glob(source["folder"]) if Path(folder).is_dir())
        if not folders:
            raise BadInput("recipe, sources", "folders that exist", f"nothing at {source['folder']}")
        if source.get("name"):
            raise BadInput("recipe, sources", "no name where `*` stands for several folders", repr(source["name"]))
    return [{**source, "folder": path, "name": source.get("name") or safe_name(Path(path).name)} for path in folders]


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_plain(item) for name, item in value.items() if item is not None}
    return [_to_plain(item) for item in value] if isinstance(value, list | tuple) else value


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
        for sample in self.drawn:
            chosen = sorted((id, self.splits.get(f"{sample.source.name}/{id}", "")) for id in sample.ids)
            digest.update(repr((sample.source.name, chosen)).encode())
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
        return sum(len(sample.ids) for sample in self._chosen_sources())

    def records(self) -> Iterator[Record]:
        """Stream episodes and the preferences between them."""
        for sample in self._chosen_sources():
            name = sample.source.name
            for record in open_source(sample.source, self.strict).records():
                if isinstance(record, Preference):
                    if {record.a, record.b} <= sample.ids:
                        yield replace(record, a=f"{name}/{record.a}", b=f"{name}/{record.b}")
                elif isinstance(record, Episode) and record.id in sample.ids:
                    yield self._place(label_episode(record, sample.source), sample.source)

    def _chosen_sources(self) -> list[DrawnSource]:
        return [sample for sample in self.drawn if self.only is None or sample.source.name in self.only]

    def _place(self, episode: Episode, source: CorpusSource) -> Episode:
        """Give an episode the corpus's names and its split; the source's names become tags."""
        origin, id = episode.origin, f"{source.name}/{episode.id}"
        tags = {
            "source_split": origin.split,
            "source_dataset": origin.dataset if origin.dataset != source.name else "",
            "place": "" if source.groups else origin.group,
            "perspective": origin.tags.get("perspective", source.perspective),
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
    if missing := [source.folder for source in config.sources if not Path(source.folder).exists()]:
        root, names = Path(missing[0]).parent, " ".join(Path(folder).name for folder in missing)
        got = f"{len(missing)} that do not exist"
        raise BadInput(f"{root}: {names}", f"folders (--root DIR; of {len(config.sources)} in the recipe)", got)
    samples = tuple(draw_source(config, source, strict, on_progress) for source in config.sources)
    if not any(sample.ids for sample in samples):
        reasons = Counter[str]()
        for sample in samples:
            reasons.update(sample.skipped)
        why = "; ".join(f"{count} skipped: {reason}" for reason, count in reasons.most_common(3)) or "empty sources"
        raise BadInput("recipe, sources", "at least one usable episode", why)
    reader = CorpusReader(config, samples, strict=strict)
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
        samples,
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
    sample, tasks, grades = DrawnSource(source), dict[str, str](), dict[str, int | None]()
    dataset = open_source(source, strict)
    for episode in dataset:
        sample.found += 1
        on_progress(f"reading {source.name}", sample.found, None, "")
        try:
            labelled = label_episode(episode, source)
            outcome = graded_outcome(labelled)
            tasks[episode.id], grades[episode.id] = task_of(labelled), outcome.grade if outcome else None
        except NotApplicable as error:
            sample.skipped[error.reason] += 1
    for problem in dataset.problems.rows():
        if not problem["kept"]:
            sample.skipped[str(problem["problem"])] += int(problem["episodes"])
    sample.usable, sample.tasks = len(tasks), len(set(tasks.values()))
    sample.ids = draw_evenly(tasks, config.cap if source.cap is None else source.cap, config.seed)
    sample.grades.update(grades[id] for id in sample.ids)
    return sample


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
    if episode.check == "rejected":
        raise NotApplicable("a person rejected its labels")
    if source.role == "outcomes":
        return _label_outcome(episode)
    return _label_success(episode, source) if source.role == "successes" else _label_graded(episode, source)


def graded_outcome(episode: Episode) -> Outcome | None:
    """The outcome with a grade from the most trusted label source."""
    return most_trusted(outcome for outcome in episode.labels if outcome.grade is not None)


def _label_success(episode: Episode, source: CorpusSource) -> Episode:
    episode = with_assumed_success(episode, source.because)
    require_success(episode)
    if graded_outcome(episode) is not None:
        return episode
    # Its label source calls it a success. Grade 5 follows by a rule.
    rule = Outcome("rule", success=True, grade=DONE_GRADE, by="a success is grade 5")
    return replace(episode, outcomes=(*episode.outcomes, rule))


def _label_outcome(episode: Episode) -> Episode:
    """Keep a success, a failure or a progress as it is: a failure without a progress has no grade."""
    outcome = most_trusted(label for label in episode.labels if label.success is not None or label.progress is not None)
    if outcome is None:
        raise NotApplicable("no label source says how it ended")
    grade = DONE_GRADE if outcome.success else _grade(outcome, _progress(outcome), outcome.success is False)
    if grade is None or outcome.grade is not None:
        return episode
    rule = Outcome("rule", success=outcome.success, grade=grade, by="the grade of its outcome")
    return replace(episode, outcomes=(*episode.outcomes, rule))


def _label_graded(episode: Episode, source: CorpusSource) -> Episode:
    outcomes = episode.labels
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
