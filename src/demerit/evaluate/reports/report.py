"""A report: what a benchmark found, with everything that is needed to find it again without the models.

The file (`report.json`) holds the judged episodes, every reward of every model, the measures, and where it was made.
`demerit.evaluate.benchmarks.run.recompute` takes it and gives the same measures; the page (`report.html`) shows it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.files import write_atomic
from demerit.data.labels import Event, Preference
from demerit.data.reward import Reward
from demerit.errors import StoreError
from demerit.evaluate.metrics import Measure
from demerit.models.protocol import ModelCard

FORMAT_NAME = "demerit-report"
FORMAT_VERSION = 1
AS_RECORDED = "as recorded"
"""How an episode was shown to a model: as it is, `reversed`, `shuffled`, or `told: <other words>`."""


@dataclass(frozen=True, eq=False)
class Judged:
    """An episode of a benchmark and what is known about it; unknown is None or empty, never filled in."""

    id: str
    instruction: str
    category: str
    """kind of task: pick/place ... tool use, other"""
    context: str
    """what may be ranked against each other: attempts at one instruction in one session"""
    task: str
    """what the intervals are clustered by"""
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
    """failed, suboptimal or successful, where somebody said so"""
    vouched_by: str = ""
    note: str = ""
    """what the person wrote; for readers of the report, never for models"""
    events: tuple[Event, ...] = ()
    curve: npt.NDArray[np.float32] | None = None
    """true progress at every frame, NaN where unknown"""
    video: str = ""
    """a path or a data address that a browser can play; empty: no video in this report"""


@dataclass(frozen=True)
class Shown:
    """One reward, and how the episode was shown."""

    reward: Reward
    showing: str = AS_RECORDED


@dataclass(frozen=True)
class Choice:
    """What a comparer said about two episodes that people compared, asked in both orders."""

    model: str
    a: str
    b: str
    p_first: float
    """shown a, then b: its probability that the first, a, is better; NaN = unanswered"""
    p_swapped: float
    """shown b, then a: its probability that the first, b, is better"""
    why_missing: str = ""


@dataclass(frozen=True)
class Line:
    """One measure of one model over all episodes, or over a part of them."""

    model: str
    measure: Measure
    part: str = ""
    """empty: all; else `category: pour`, `subset: bridge` ..."""


@dataclass(frozen=True)
class Versus:
    """Two models on the same episodes: the difference of one measure, and how sure its sign is."""

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
    """the address that the episodes were read from"""
    headline: tuple[str, ...] = ()
    """the measures to show first"""
    lower_is_better: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Report:
    """Everything about one run of one benchmark."""

    about: About
    cards: tuple[ModelCard, ...]
    """in the order in which they are shown; controls after the models"""
    controls: tuple[str, ...]
    """names of the cards that are controls"""
    episodes: tuple[Judged, ...]
    preferences: tuple[Preference, ...] = ()
    rewards: tuple[Shown, ...] = ()
    choices: tuple[Choice, ...] = ()
    """answers of the models that can compare two episodes"""
    lines: tuple[Line, ...] = ()
    comparisons: tuple[Versus, ...] = ()
    verdicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """by model: what the measures say, in words"""
    warnings: tuple[str, ...] = ()
    """what a reader must know before believing a number"""
    environment: Mapping[str, str] = field(default_factory=dict)

    def rewards_of(self, model: str, showing: str = AS_RECORDED) -> dict[str, Reward]:
        """One model's rewards by episode."""
        return {
            shown.reward.episode: shown.reward
            for shown in self.rewards
            if shown.reward.model == model and shown.showing == showing
        }

    def line(self, model: str, measure: str, part: str = "") -> Measure | None:
        """One measure, None when the report has no such line."""
        for line in self.lines:
            if (line.model, line.measure.name, line.part) == (model, measure, part):
                return line.measure
        return None

    def write(self, path: str | Path) -> None:
        """Write the JSON file in one step."""
        write_atomic(Path(path), (json.dumps(self.as_dict(), ensure_ascii=False) + "\n").encode())

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values; NaN becomes None."""
        return {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "about": asdict(self.about),
            "cards": [asdict(card) for card in self.cards],
            "controls": list(self.controls),
            "episodes": [_judged_dict(episode) for episode in self.episodes],
            "preferences": [asdict(preference) for preference in self.preferences],
            "rewards": [_shown_dict(shown) for shown in self.rewards],
            "choices": [_without_nan(asdict(choice)) for choice in self.choices],
            "lines": [{"model": x.model, "part": x.part, "measure": x.measure.as_dict()} for x in self.lines],
            "comparisons": [_without_nan(asdict(versus)) for versus in self.comparisons],
            "verdicts": {model: list(sentences) for model, sentences in self.verdicts.items()},
            "warnings": list(self.warnings),
            "environment": dict(self.environment),
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
            episodes=tuple(_judged(episode) for episode in facts["episodes"]),
            preferences=tuple(Preference(**preference) for preference in facts["preferences"]),
            rewards=tuple(_shown(shown) for shown in facts["rewards"]),
            choices=tuple(Choice(**_with_nan(choice)) for choice in facts.get("choices", ())),
            lines=tuple(Line(x["model"], Measure.from_dict(x["measure"]), x["part"]) for x in facts["lines"]),
            comparisons=tuple(Versus(**_with_nan(versus)) for versus in facts["comparisons"]),
            verdicts={model: tuple(sentences) for model, sentences in facts["verdicts"].items()},
            warnings=tuple(facts["warnings"]),
            environment=dict(facts["environment"]),
        )

    @classmethod
    def read(cls, path: str | Path) -> Report:
        """Read a report file, or say in a sentence why it is none."""
        try:
            facts = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise StoreError(path, f"it cannot be read as a report ({error})") from error
        if not isinstance(facts, dict) or facts.get("format") != FORMAT_NAME:
            raise StoreError(path, "it is no demerit report")
        if facts.get("version") != FORMAT_VERSION:
            sentence = f"it is a report of version {facts.get('version')}, and this demerit reads {FORMAT_VERSION}"
            raise StoreError(path, sentence)
        return cls.from_dict(facts)


def _judged_dict(episode: Judged) -> dict[str, Any]:
    facts = {each.name: getattr(episode, each.name) for each in fields(episode)}
    facts["events"] = [asdict(event) for event in episode.events]
    facts["curve"] = None if episode.curve is None else _numbers(episode.curve)
    return facts


def _judged(facts: Mapping[str, Any]) -> Judged:
    curve = None if facts["curve"] is None else _array(facts["curve"])
    return Judged(**{**facts, "events": tuple(Event(**event) for event in facts["events"]), "curve": curve})


def _shown_dict(shown: Shown) -> dict[str, Any]:
    reward = shown.reward
    return {
        "model": reward.model,
        "episode": reward.episode,
        "showing": shown.showing,
        "at": reward.at.tolist(),
        "value": _numbers(reward.value),
        "success": None if reward.success is None else _numbers(reward.success),
        "why_missing": reward.why_missing,
        "given": dict(reward.given),
    }


def _shown(facts: Mapping[str, Any]) -> Shown:
    reward = Reward(
        model=facts["model"],
        episode=facts["episode"],
        at=np.array(facts["at"], dtype=np.int32),
        value=_array(facts["value"]),
        success=None if facts["success"] is None else _array(facts["success"]),
        why_missing=facts["why_missing"],
        given=facts["given"],
    )
    return Shown(reward, facts["showing"])


def _numbers(values: npt.NDArray[np.float32]) -> list[float | None]:
    """Write float32 values with as few digits as bring the same float32 back."""
    return [None if math.isnan(value) else float(str(value)) for value in values.astype(np.float32)]


def _array(values: list[float | None]) -> npt.NDArray[np.float32]:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float32)


def _without_nan(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in facts.items()}


def _with_nan(facts: Mapping[str, Any]) -> dict[str, Any]:
    numbers = ("difference", "low", "high", "p", "p_adjusted", "p_first", "p_swapped")
    return {key: math.nan if key in numbers and value is None else value for key, value in facts.items()}
