"""A report: the results of a benchmark, with everything that is needed to recompute them without the models.

`report.json` holds the labels, every reward of every model, the measures and the environment.
`demerit.evaluate.benchmarks.recompute` computes the same measures from it; `report.html` shows it. `generations.jsonl`
holds the raw answers of chat models, one a line: model, perturbation, episode, about, request, answer, why_not.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import numpy as np

from demerit.data.arrays import Floats32
from demerit.data.episode import Event, Preference, count_episodes
from demerit.data.files import atomic_file, plain, read_json
from demerit.data.reward import SAME_TASK_EXAMPLES, Reward, VerdictCounts
from demerit.errors import BadInput, DemeritError, StoreError
from demerit.evaluate.metrics import Measure
from demerit.evaluate.metrics.bootstrap import FEW_TASKS
from demerit.evaluate.metrics.ranking import LEVELS
from demerit.evaluate.metrics.verdict import MARGIN, Answer, ControlVerdict
from demerit.models.protocol import ModelCard

FORMAT_NAME = "demerit-report"
FORMAT_VERSION = 1
JUDGED_BY_MODELS, UNVERIFIED = "judged by models", "unverified"
"""fact of the environment: how many episodes and preferences have a label of a model"""
MANY_GUESSES = 0.05
"""up to this share of unfamiliar episodes is no news: one in a hundred is unfamiliar by definition"""
MACHINE = ("demerit", "python", "platform", "numpy", "date")
"""facts of the environment that are not options of the run"""
AS_RECORDED = "as recorded"
"""the unchanged episode; other perturbations are `reversed`, `shuffled` and `told: <other instruction>`"""


def generations_file(report: Path) -> Path:
    """Return where the raw answers of a report's chat models are: generations.jsonl next to report.json."""
    return report.with_name(report.stem.replace("report", "generations") + ".jsonl")


_to_json = partial(json.dumps, ensure_ascii=False)


@dataclass(frozen=True, eq=False)
class EpisodeLabels:
    """The labels of one episode; unknown is None or empty."""

    id: str
    instruction: str
    category: str
    """task category: pick/place ... tool use, other"""
    context: str
    """episodes of one context may be ranked: attempts at one instruction in one session"""
    task: str
    """intervals are clustered by task"""
    dataset: str = ""
    subset: str = ""
    split: str = ""
    embodiment: str = ""
    frames: int = 0
    seconds: float = 0.0
    success: bool | None = None
    progress: float | None = None
    grade: int | None = None
    quality: str = ""
    """failed, suboptimal or successful, if labelled"""
    vouched_by: str = ""
    """label sources"""
    note: str = ""
    """what the annotator wrote; shown to readers, never to models"""
    events: tuple[Event, ...] = ()
    curve: Floats32 | None = None
    """true progress at every frame, NaN where unknown"""
    video: str = ""
    """a path or data address that a browser can play; empty = no video"""
    group: str = ""
    """episodes recorded together; empty = alone, or unknown in reports of earlier versions"""
    perspective: str = ""
    """of the main camera: egocentric or exocentric; empty = unknown"""


def resampling_units(episodes: Sequence[EpisodeLabels]) -> tuple[list[str], str]:
    """Return what intervals resample, one label per episode, and its name.

    Tasks, since episodes of one task resemble each other. Fewer than 10 tasks say too little about other tasks; then
    recordings are resampled, and the interval is about more recordings of the same tasks.
    """
    tasks, groups = [row.task for row in episodes], [row.group or row.id for row in episodes]
    if groups != tasks and (len(set(tasks)) >= FEW_TASKS or len(set(groups)) <= len(set(tasks))):
        return tasks, "tasks"
    return groups, "episodes" if len(set(groups)) == len(groups) else "recordings"


@dataclass(frozen=True, slots=True)
class ScoredUnder:
    """One reward, and the perturbation under which the episode was scored."""

    reward: Reward
    perturbation: str = AS_RECORDED


@dataclass(frozen=True)
class PairAnswer:
    """A comparer's answers about two episodes that people compared, in both orders."""

    model: str
    a: str
    b: str
    p_first: float
    """probability that a is better, with a shown first; NaN = no answer"""
    p_swapped: float
    """probability that b is better, with b shown first; NaN = no answer"""
    why_missing: str = ""


@dataclass(frozen=True)
class MeasureLine:
    """One measure of one model, over all episodes or a part of them."""

    model: str
    measure: Measure
    part: str = ""
    """empty = all; else `category: pour`, `subset: bridge` ..."""


@dataclass(frozen=True)
class PublishedFigure:
    """What a paper printed where this report has a measure: the same model, set and part."""

    model: str
    """the report's name of it"""
    measure: str
    part: str
    printed: str
    """as in the print: `0.665`, or `0.72 to 0.77` where only a range is given"""
    value: float | None
    """None for a range, or for a gain over another model"""
    printed_model: str
    source: str
    """paper and table"""


@dataclass(frozen=True)
class Versus:
    """Two models on the same episodes: the difference of one measure, with interval and p-value."""

    first: str
    second: str
    measure: str
    difference: float
    low: float
    high: float
    p: float
    p_adjusted: float
    """after Holm's correction over all comparisons of the report"""
    n: int


@dataclass(frozen=True)
class About:
    """The benchmark that was run."""

    name: str
    """name@version"""
    claim: str
    """what a good score supports, and what it does not"""
    data: str = ""
    """address of the episodes"""
    headline: tuple[str, ...] = ()
    """the measures to show first"""
    lower_is_better: tuple[str, ...] = ()


@dataclass(frozen=True)
class SeenRows:
    """The episodes of a benchmark that its models learned from."""

    by_model: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """ids by model; models without any are absent"""
    of: int = 0
    """number of episodes that there were"""
    included: bool = False
    """they are in the figures; otherwise they were left out for all models"""
    goals: tuple[str, ...] = ()
    """models that did not learn from them, but are shown them as goal images"""

    @property
    def ids(self) -> frozenset[str]:
        """All ids."""
        return frozenset().union(*self.by_model.values())

    @property
    def unfair(self) -> bool:
        """Whether a figure rests on such episodes."""
        return self.included and bool(self.by_model)

    def sentences(self) -> list[str]:
        """Say it, one sentence per model."""
        end = "in its figures, which are too good" if self.included else "left out of the figures of every model"
        were = {True: "are goal images", False: "were in the training data"}
        return [
            f"{len(ids)} of {self.of} episodes {were[model in self.goals]} of {model}: {end}."
            for model, ids in self.by_model.items()
        ]


@dataclass(frozen=True, eq=False)
class Report:
    """One run of one benchmark."""

    about: About
    cards: tuple[ModelCard, ...]
    """in display order; controls after the models"""
    controls: tuple[str, ...]
    """names of the control models"""
    episodes: tuple[EpisodeLabels, ...]
    preferences: tuple[Preference, ...] = ()
    rewards: tuple[ScoredUnder, ...] = ()
    choices: tuple[PairAnswer, ...] = ()
    """answers of models that compare two episodes"""
    lines: tuple[MeasureLine, ...] = ()
    comparisons: tuple[Versus, ...] = ()
    verdicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """by model: the headline measures in words"""
    decisions: tuple[ControlVerdict, ...] = ()
    """the same as facts: by model and headline measure, whether it beats the controls"""
    warnings: tuple[str, ...] = ()
    """caveats that a reader must know"""
    environment: Mapping[str, str] = field(default_factory=dict)
    seen: SeenRows = field(default_factory=SeenRows)
    published: tuple[PublishedFigure, ...] = ()
    """figures of the same set in print; empty for any other set"""

    @property
    def judged_by_models(self) -> int:
        """How many labels are a model's: figures then show agreement with models."""
        judged = self.environment.get(JUDGED_BY_MODELS, "0")
        return int(judged) if judged.isdecimal() else 0

    @property
    def cautions(self) -> list[str]:
        """What a reader must know before any figure: what models learned from or were told, labels nobody checked."""
        judged, unverified = self.judged_by_models, int(self.environment.get(UNVERIFIED, "0"))
        of = f"{len(self.episodes)} episodes and {len(self.preferences)} preferences"
        agreement = f"{judged} of {of} have labels of models: these figures show agreement with models, not truth."
        labelled = sum(bool(episode.vouched_by) for episode in self.episodes)
        doubt = f"The labels of {unverified} of {count_episodes(labelled)} must be checked by a person and are not yet."
        guesses = [
            f"{count} of {len(self.episodes)} values of {model} are a guess: "
            "these episodes are unlike everything that it learned from."
            for model, count in self.guesses.items()
        ]
        leaks = dict.fromkeys(
            f"{scored.reward.model} was shown examples of the tasks that it judges: its figures are too good."
            for scored in self.rewards
            if scored.reward.given.get("examples") == SAME_TASK_EXAMPLES
        )
        labels = [*([agreement] if judged else []), *([doubt] if unverified else [])]
        warned = [f"{card.name}: {warning}" for card in self.cards for warning in self.warnings_of(card.name)]
        return [*self.seen.sentences(), *leaks, *labels, *guesses, *warned]

    def warnings_of(self, model: str) -> list[str]:
        """What every command warns of beside this model's verdicts; `guesses` counts unfamiliar episodes."""
        warnings = VerdictCounts.of(self.rewards_of(model).values()).warnings
        return [warning for warning in warnings if not warning.startswith("unfamiliar: ")]

    @property
    def guesses(self) -> dict[str, int]:
        """By model, how many episodes are unlike everything that it learned from; not where they are a few percent."""
        counts = Counter(
            scored.reward.model
            for scored in self.rewards
            if scored.perturbation == AS_RECORDED and scored.reward.is_guess
        )
        return {model: count for model, count in counts.items() if count > MANY_GUESSES * len(self.episodes)}

    def is_guess(self, model: str) -> bool:
        """Whether most values of a model are a guess."""
        return 2 * self.guesses.get(model, 0) > len(self.episodes)

    def rewards_of(self, model: str, perturbation: str = AS_RECORDED) -> dict[str, Reward]:
        """Return one model's rewards by episode."""
        return {
            scored.reward.episode: scored.reward
            for scored in self.rewards
            if scored.reward.model == model and scored.perturbation == perturbation
        }

    def line(self, model: str, measure: str, part: str = "") -> Measure | None:
        """Return one measure; None if the report does not have it."""
        for line in self.lines:
            if (line.model, line.measure.name, line.part) == (model, measure, part):
                return line.measure
        return None

    def figures(self, model: str, measure: str, part: str = "") -> list[PublishedFigure]:
        """Return what was printed about one measure."""
        return [
            figure for figure in self.published if (figure.model, figure.measure, figure.part) == (model, measure, part)
        ]

    def verdict(self, model: str, measure: str) -> ControlVerdict | None:
        """Return whether a model beats the controls by one measure; None where they were not compared.

        Reports of earlier versions hold a comparison with the best control only; it decides there.
        """
        for decision in self.decisions:
            if (decision.model, decision.measure) == (model, measure):
                return decision
        return None if self.decisions else self._decide_by_best_control(model, measure)

    def _decide_by_best_control(self, model: str, measure: str) -> ControlVerdict | None:
        line, sign = self.line(model, measure), -1.0 if measure in self.about.lower_is_better else 1.0
        for versus in self.comparisons:
            other = self.line(versus.second, measure) if versus.second in self.controls else None
            if (versus.first, versus.measure) == (model, measure) and line is not None and other is not None:
                low, high = sorted((sign * versus.low, sign * versus.high))
                enough = line.clusters >= FEW_TASKS
                answer: Answer = "not better" if enough and high <= MARGIN else "no evidence yet"
                answer = "better" if enough and low > 0 and high > MARGIN else answer
                facts = (line.value, other.value, sign * versus.difference, low, high, len(self.controls))
                return ControlVerdict(model, measure, answer, versus.second, *facts, line.clusters)
        return None

    def is_same_run(self, other: Report) -> bool:
        """Whether both measure the same models on the same labels with the same options; results may differ."""
        return self._inputs() == other._inputs()

    def _inputs(self) -> str:
        facts = self._facts()  # most of it, the rewards, is not needed and not made
        options = {name: value for name, value in self.environment.items() if name not in MACHINE}
        about = [self.about.name, self.about.data, options]
        return json.dumps(
            [about, list(facts["episodes"]), *map(facts.get, ("cards", "controls", "preferences", "seen"))]
        )

    def write(self, path: str | Path) -> None:
        """Write the JSON file atomically, episode by episode: as one text, 10,000 of them would take 250 MB."""
        with atomic_file(Path(path)) as half, half.open("w", encoding="utf-8") as file:
            for column, (name, value) in enumerate(self._facts().items()):
                file.write(f"{', ' if column else '{'}{json.dumps(name)}: ")
                if isinstance(value, Iterator):
                    rows = (f"{', ' if place else ''}{_to_json(row)}" for place, row in enumerate(value))
                    file.writelines(chain("[", rows, "]"))
                else:
                    file.write(_to_json(value))
            file.write("}\n")

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values; NaN becomes None."""
        return {name: list(value) if isinstance(value, Iterator) else value for name, value in self._facts().items()}

    def _facts(self) -> dict[str, Any]:
        """Return JSON values; the rows of episodes and rewards are made as they are read."""
        return {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "about": plain(self.about),
            "cards": plain(self.cards),
            "controls": list(self.controls),
            "episodes": map(_labels_dict, self.episodes),
            "preferences": plain(self.preferences),
            "rewards": map(_scored_dict, self.rewards),
            "choices": plain(self.choices),
            "lines": [{"model": x.model, "part": x.part, "measure": plain(x.measure)} for x in self.lines],
            "comparisons": plain(self.comparisons),
            "verdicts": plain(self.verdicts),
            "decisions": plain(self.decisions),
            "warnings": list(self.warnings),
            "environment": dict(self.environment),
            **({"seen": plain(self.seen)} if self.seen.by_model else {}),
            **({"published": plain(self.published)} if self.published else {}),
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Report:
        """Read what `as_dict` wrote."""
        about = {**facts["about"]}
        about.update({name: tuple(about[name]) for name in ("headline", "lower_is_better")})
        return cls(
            about=About(**about),
            cards=tuple(ModelCard(**card) for card in facts["cards"]),
            controls=tuple(facts["controls"]),
            episodes=tuple(_labels(episode) for episode in facts["episodes"]),
            preferences=tuple(Preference(**preference) for preference in facts["preferences"]),
            rewards=tuple(_read_scored(scored) for scored in facts["rewards"]),
            choices=tuple(PairAnswer(**_with_nan(choice)) for choice in facts.get("choices", ())),
            lines=tuple(MeasureLine(x["model"], Measure.from_dict(x["measure"]), x["part"]) for x in facts["lines"]),
            comparisons=tuple(Versus(**_with_nan(versus)) for versus in facts["comparisons"]),
            verdicts={model: tuple(sentences) for model, sentences in facts["verdicts"].items()},
            decisions=tuple(ControlVerdict(**_with_nan(decision)) for decision in facts.get("decisions", ())),
            warnings=tuple(facts["warnings"]),
            environment=dict(facts["environment"]),
            seen=_read_seen(facts.get("seen", {})),
            published=tuple(PublishedFigure(**figure) for figure in facts.get("published", ())),
        )

    @classmethod
    def read(cls, path: str | Path) -> Report:
        """Read a report file; raises StoreError if it is not one."""
        try:
            facts = read_json(Path(path), "a demerit report", nan=True)
        except BadInput as error:
            raise StoreError(path, f"it cannot be read as a report ({error.got})") from error
        if facts.get("format") != FORMAT_NAME:
            raise StoreError(path, "it is not a demerit report")
        if facts.get("version") != FORMAT_VERSION:
            raise StoreError(path, f"expected a report of version {FORMAT_VERSION}, got {facts.get('version')}")
        try:
            report = cls.from_dict(facts)
            _check_report(report)
        except (DemeritError, AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            reason = str(error) if isinstance(error, DemeritError) else f"{type(error).__name__}: {error}"
            raise StoreError(path, f"it is damaged, or another program wrote it ({reason})") from error
        return report


def _check_report(report: Report) -> None:
    """Raise BadInput for fields of another type, and for what belongs to no model or no episode of the report."""
    groups = (report.cards, report.episodes, report.preferences, report.choices, report.comparisons, report.lines)
    objects: list[Any] = [report.about, *report.decisions, *report.published]
    objects += [item for group in groups for item in group]
    objects += [event for episode in report.episodes for event in episode.events]
    objects += [line.measure for line in report.lines]
    for item in objects:
        for name, kinds in _plain_fields(item.__class__).items():
            _check_type(f"{name} of {type(item).__name__}", getattr(item, name), kinds)
    if others := {decision.answer for decision in report.decisions} - {*get_args(Answer)}:
        raise BadInput("answer", f"one of {', '.join(get_args(Answer))}", min(map(str, others)))
    if unknown := {episode.quality for episode in report.episodes} - {"", *LEVELS}:
        raise BadInput("quality", f"one of {', '.join(LEVELS)}", min(unknown))
    texts = (*report.controls, *report.warnings, *report.about.headline, *report.about.lower_is_better)
    spoken = (sentence for sentences in report.verdicts.values() for sentence in sentences)
    for text in (*texts, *spoken, *report.environment.values(), *(scored.perturbation for scored in report.rewards)):
        _check_type("a text", text, (str,))
    rewards = [scored.reward for scored in report.rewards]
    pairs: list[Any] = [*report.preferences, *report.choices]
    owned: list[Any] = [*rewards, *report.choices, *report.lines, *report.decisions, *report.published]
    episodes = {reward.episode for reward in rewards} | {id for pair in pairs for id in (pair.a, pair.b)}
    models = {name for versus in report.comparisons for name in (versus.first, versus.second)}
    models |= {item.model for item in owned} | {*report.controls, *report.verdicts}
    for what, names, owners in (
        ("an episode", episodes, {episode.id for episode in report.episodes}),
        ("a model", models, {card.name for card in report.cards}),
    ):
        if names - owners:
            raise BadInput(what, "one of the report", min(map(str, names - owners)))


@cache
def _plain_fields(kind: Any) -> dict[str, tuple[type, ...]]:
    """Return the fields of a dataclass that are texts, numbers, true or false, or None."""
    plain_fields = {}
    for name, hint in get_type_hints(kind).items():
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        if all(kind in (str, int, float, bool, NoneType) for kind in kinds):
            plain_fields[name] = (*kinds, int) if float in kinds else kinds
    return plain_fields


def _check_type(name: str, value: object, kinds: tuple[type, ...]) -> None:
    if type(value) not in kinds:
        raise BadInput(name, " or ".join(kind.__name__ for kind in kinds), type(value).__name__)


def _read_seen(facts: Mapping[str, Any]) -> SeenRows:
    by_model = {model: tuple(ids) for model, ids in facts.get("by_model", {}).items()}
    return SeenRows(**{**facts, "by_model": by_model, "goals": tuple(facts.get("goals", ()))})


def _labels_dict(episode: EpisodeLabels) -> dict[str, Any]:
    return {**plain(episode), "curve": None if episode.curve is None else _numbers(episode.curve)}


def _labels(facts: Mapping[str, Any]) -> EpisodeLabels:
    curve = None if facts["curve"] is None else _array(facts["curve"])
    return EpisodeLabels(**{**facts, "events": tuple(Event(**event) for event in facts["events"]), "curve": curve})


def _scored_dict(scored: ScoredUnder) -> dict[str, Any]:
    reward = scored.reward
    return {
        "model": reward.model,
        "episode": reward.episode,
        "showing": scored.perturbation,
        "at": reward.at.tolist(),
        "value": _numbers(reward.value),
        "success": None if reward.success is None else _numbers(reward.success),
        "why_missing": reward.why_missing,
        "given": dict(reward.given),
    }


def _read_scored(facts: Mapping[str, Any]) -> ScoredUnder:
    reward = Reward(
        model=facts["model"],
        episode=facts["episode"],
        at=np.array(facts["at"], dtype=np.int32),
        value=_array(facts["value"]),
        success=None if facts["success"] is None else _array(facts["success"]),
        why_missing=facts["why_missing"],
        given=facts["given"],
    )
    return ScoredUnder(reward, facts["showing"])


def _numbers(values: Floats32) -> list[float | None]:
    """Return float32 values with as few digits as restore the same float32."""
    return [None if math.isnan(value) else float(str(value)) for value in values.astype(np.float32)]


def _array(values: list[float | None]) -> Floats32:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float32)


def _with_nan(facts: Mapping[str, Any]) -> dict[str, Any]:
    numbers = ("difference", "low", "high", "p", "p_adjusted", "p_first", "p_swapped")
    return {key: math.nan if key in numbers and value is None else value for key, value in facts.items()}
