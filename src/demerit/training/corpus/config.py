"""CorpusConfig: everything that decides what is in a corpus, and how it is read from YAML."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

from demerit.config import build_config, parse_yaml, read_yaml
from demerit.data.episode import safe_name
from demerit.errors import BadInput
from demerit.negatives.mix import DEFAULT_MIX, PER_DATASET, PER_EPISODE, Mix
from demerit.negatives.negative import UNFINISHED_GRADES
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
    about: str = ""
    """a line for the composition table"""
    role: Literal["successes", "graded"] = "successes"
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


def load_config(path: str | Path) -> CorpusConfig:
    """Read a config: a YAML file, or the name of one that ships. Its folders are relative to the file."""
    shipped = sorted(file.name.removesuffix(".yaml") for file in SHIPPED.iterdir() if file.name.endswith(".yaml"))
    file = Path(path).expanduser()
    if str(path) in shipped and not file.exists():
        file = Path(str(SHIPPED)) / f"{path}.yaml"
    expected = f"a recipe (YAML), or one that ships ({', '.join(shipped)})"
    return _build(read_yaml(file, str(path), expected), file.resolve().parent)


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
    found = _resolve(entry, home)
    if found is entry:
        return [entry]
    folders = [found["folder"]]
    if "*" in found["folder"]:
        folders = sorted(folder for folder in glob.glob(found["folder"]) if Path(folder).is_dir())
        if not folders:
            raise BadInput("recipe, sources", "folders that exist", f"nothing at {found['folder']}")
        if found.get("name"):
            raise BadInput("recipe, sources", "no name where `*` stands for several folders", repr(found["name"]))
    return [{**found, "folder": path, "name": found.get("name") or safe_name(Path(path).name)} for path in folders]


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_plain(item) for name, item in value.items() if item is not None}
    return [_to_plain(item) for item in value] if isinstance(value, list | tuple) else value
