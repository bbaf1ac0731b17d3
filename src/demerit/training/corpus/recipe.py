"""Recipe: everything that decides what is in a corpus, and where its models answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from demerit.data.labels import LABEL_SOURCES
from demerit.errors import BadInput, UnknownName
from demerit.negatives.mix import DEFAULT_MIX, PER_DATASET, PER_EPISODE, Mix
from demerit.negatives.negative import UNFINISHED_GRADES

ROLES = ("successes", "graded")
SPLITS_BY = ("task", "source")
ON_LEAKS = ("refuse", "report")
CHAT_OPTIONS = (
    "url",
    "model",
    "key_env",
    "price_in",
    "price_out",
    "schema_mode",
    "cache",
    "concurrency",
    "budget",
    "timeout",
    "tries",
)
NAME_PARTS = "letters, digits and . _ - + = @"


@dataclass(frozen=True)
class Score:
    """Where a person's score stands that the source's format does not know."""

    column: str
    """the column of the label file, which the reader keeps as a tag"""
    low: float = 0.0
    high: float = 100.0

    def __post_init__(self) -> None:
        """Refuse a range without extent."""
        if not self.column or not self.low < self.high:
            raise BadInput("score", "a column, and low < high", (self.column, self.low, self.high))


@dataclass(frozen=True)
class Source:
    """One dataset that goes into a corpus."""

    folder: str
    """where it is; relative to the recipe; `*` stands for several, each a source of its own"""
    name: str = ""
    """what the corpus calls it; empty = as its folder is called"""
    format: str = ""
    """empty = told by its files"""
    camera: str = ""
    licence: str = ""
    """recorded where the dataset does not say"""
    embodiment: str = ""
    """recorded where the dataset does not say"""
    about: str = ""
    """a line for the composition table"""
    role: str = "successes"
    because: str = "demonstrations"
    """successes: why an episode without an outcome is one; empty = it is left out"""
    vouched_by: str = "human"
    """graded: whose grades or progress count"""
    score: Score | None = None
    """graded: a column with a person's score"""
    cap: int | None = None
    """episodes taken at most, 0 = all; None = as the recipe has it"""
    augment: bool | None = None
    """whether negatives and counterfactuals are made of its successes; None = of role `successes` only"""
    groups: bool = True
    """whether its groups are recordings that a split must not part; false where they are kinds of places"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """of the format's reader"""

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if self.role not in ROLES:
            raise UnknownName("role", self.role, ROLES)
        if self.vouched_by not in LABEL_SOURCES or self.vouched_by == "edit":
            raise UnknownName("voucher", self.vouched_by, set(LABEL_SOURCES) - {"edit"})
        if self.cap is not None and self.cap < 0:
            raise BadInput("cap", "a whole number, 0 for all", self.cap)
        if self.score is not None and (self.role, self.vouched_by) != ("graded", "human"):
            raise BadInput("score", "a source of role graded whose scores are a person's", f"role {self.role}")
        if any(not (c.isalnum() or c in "._-+=@") for c in self.name):
            raise BadInput("name of a source", NAME_PARTS, repr(self.name))

    @property
    def is_augmented(self) -> bool:
        """Whether anything is made of its successes."""
        return self.role == "successes" if self.augment is None else self.augment


@dataclass(frozen=True)
class Negatives:
    """What `demerit negatives` would be told."""

    mix: str = DEFAULT_MIX
    per_episode: int = PER_EPISODE

    def __post_init__(self) -> None:
        """Refuse what cannot be made."""
        self.parsed(0)

    def parsed(self, seed: int) -> Mix:
        """Read the mix. The cap was applied when the sources were drawn from."""
        return Mix.parse(self.mix, seed=seed, per_episode=self.per_episode, per_dataset=0)


@dataclass(frozen=True)
class Counterfactuals:
    """What `demerit relabel` would be told."""

    grades: tuple[int, ...] = UNFINISHED_GRADES
    clips: tuple[int, ...] = ()
    """grades of cuts that the model confirms; `clip` in the negatives' mix makes them without asking"""
    rounds: int = 3
    size: int = 256
    more_tokens: int = 0
    """for models that think first"""

    def __post_init__(self) -> None:
        """Refuse what cannot be made."""
        for name in ("grades", "clips"):
            chosen = getattr(self, name)
            if any(grade not in UNFINISHED_GRADES for grade in chosen) or list(chosen) != sorted(set(chosen)):
                raise BadInput(name, "different grades from 1 to 4, growing", list(chosen))
        if not self.grades and not self.clips:
            raise BadInput("counterfactuals", "grades or clips to make", "neither")


@dataclass(frozen=True)
class Splits:
    """How episodes are parted."""

    by: str = "task"
    """'task': no task, video or recording in two splits; 'source': as the datasets have it"""
    shares: Mapping[str, float] = field(default_factory=lambda: {"train": 0.8, "val": 0.1, "test": 0.1})
    """of each source's episodes, as near as whole tasks allow"""

    def __post_init__(self) -> None:
        """Refuse shares that are none."""
        if self.by not in SPLITS_BY:
            raise UnknownName("way to split", self.by, SPLITS_BY)
        good = all(isinstance(one, int | float) and not isinstance(one, bool) for one in self.shares.values())
        if not self.shares or not good or not all(0 < share < float("inf") for share in self.shares.values()):
            raise BadInput("shares of the splits", "a share above 0 for each", dict(self.shares))


@dataclass(frozen=True)
class HeldOut:
    """A set that the corpus must not share a video with, such as a benchmark's."""

    folder: str
    name: str = ""
    format: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A corpus, in full."""

    name: str
    sources: tuple[Source, ...]
    seed: int = 0
    """draws episodes, negatives, cuts and splits"""
    cap: int = PER_DATASET
    """episodes taken of one source at most, spread over its tasks; 0 = all"""
    clean_up: bool = False
    """let a model repair the spelling of the successes' instructions"""
    negatives: Negatives | None = None
    counterfactuals: Counterfactuals | None = None
    splits: Splits = field(default_factory=Splits)
    held_out: tuple[HeldOut, ...] = ()
    leaks: str = "refuse"
    """what to do when splits share a video or task, or a held-out set is in the corpus"""
    chat: Mapping[str, Any] = field(default_factory=dict)
    """where the model answers; what is not said here comes from DEMERIT_CHAT_..."""

    def __post_init__(self) -> None:
        """Refuse what cannot be composed."""
        if not self.sources:
            raise BadInput("recipe, sources", "at least one", "none")
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BadInput("recipe, sources", "a name for each (`name:` gives another)", f"{twice[0]!r} twice")
        if self.leaks not in ON_LEAKS:
            raise UnknownName("answer to leaks", self.leaks, ON_LEAKS)
        if self.cap < 0:
            raise BadInput("recipe, cap", "a whole number, 0 for all", self.cap)
        for option in self.chat:
            if option not in CHAT_OPTIONS:
                raise UnknownName("key in recipe, chat", option, CHAT_OPTIONS)
        made, asked = self.negatives, self.counterfactuals
        if made is not None and asked is not None and asked.clips and "clip" in made.parsed(0).shares:
            expected = "clips from one of the two: leave `clip` out of the mix, or `clips` out of counterfactuals"
            raise BadInput("recipe", expected, "both")

    def cap_of(self, source: Source) -> int:
        """How many episodes of a source are taken at most; 0 = all."""
        return self.cap if source.cap is None else source.cap

    @property
    def digest(self) -> str:
        """Changes with what is made, and not with where a model answers or what is checked."""
        facts = {name: value for name, value in asdict(self).items() if name not in ("chat", "held_out", "leaks")}
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
