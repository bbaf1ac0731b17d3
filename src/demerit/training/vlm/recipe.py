"""Recipes: every number of a training run, checked before anything is computed, and kept beside the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Self

from demerit.config import change_config, need, read_yaml
from demerit.errors import UnknownName
from demerit.models.by_time import MOST_A_SECOND

SHIPPED = ("robometer", "roboreward", "roboreward_8b")
STRATEGIES = ("expertise", "instruction", "rewind", "reverse", "people")
"""how a pair is made: different expertise, instruction negatives and both forms of rewinding, as Robometer has them,
and what somebody chose between two episodes"""
CACHES = ("none", "memory", "disk")
KINDS = ("float32", "bfloat16")
SEEDS = 2**32
"""how many seeds there are"""


@dataclass(frozen=True)
class Recipe:
    """What all runs have in common."""

    seed: int = 0
    steps: int = 0
    """updates; 0 = as many as the epochs need"""
    epochs: float = 0.0
    """passes over the examples, where steps are not given"""
    batch: int = 16
    """examples in an update, over all machines and all parts"""
    part: int = 4
    """examples that one machine computes at once; the rest is accumulated"""

    rate: float = 2e-5
    vision_rate: float = 1e-5
    """of the vision tower, where it is trained"""
    warm_up: float = 0.1
    """share of the steps in which the rate grows; then it falls along half a cosine to nothing"""
    decay: float = 0.01
    """of weights; norms and biases do not decay"""
    clip: float = 10.0
    """the longest gradient"""

    lora: int = 0
    """rank of the adapters; 0 = the whole language model is trained"""
    lora_alpha: int = 64
    lora_dropout: float = 0.05
    train_vision: bool = False
    train_fusion: bool = False
    """the layers that bring pictures to the language model; trained with the tower in any case"""
    precision: str = "bfloat16"
    """what is computed in and what frozen weights are kept in; weights that learn are always float32"""
    checkpointing: bool = True
    """layers are computed again on the way back instead of being kept: less memory, a third more work"""

    cache: str = "memory"
    """where a frozen tower's features are kept between epochs: none, memory or disk"""
    cache_gib: float = 16.0
    shorter_side: int = 240
    """pixels; larger pictures are shrunk when the corpus is prepared"""
    most_frames: int = 64
    """of an episode, when the corpus is prepared"""
    fewest_frames: int = 5
    """episodes with less are left out"""
    save_every: int = 200
    """updates between two checkpoints of the run"""

    SHARES: ClassVar[tuple[str, ...]] = ("warm_up", "lora_dropout")

    def __post_init__(self) -> None:
        """Refuse numbers that nothing can be trained with."""
        need("seed", 0 <= self.seed < SEEDS, f"a whole number from 0 to {SEEDS - 1}", self.seed)
        for one in fields(self):
            value = getattr(self, one.name)
            need(one.name, not isinstance(value, float) or math.isfinite(value), "a finite number", value)
        for name in ("batch", "part", "save_every", "shorter_side"):
            need(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))
        for name in ("rate", "vision_rate"):
            need(name, 0 < getattr(self, name) <= 1, "a number above 0, at most 1", getattr(self, name))
        for name in ("clip", "lora_alpha"):
            need(name, getattr(self, name) > 0, "a number above 0", getattr(self, name))
        for name in ("decay", "lora", "cache_gib", "steps", "epochs"):
            need(name, getattr(self, name) >= 0, "0 or more", getattr(self, name))
        for name in self.SHARES:
            need(name, 0 <= getattr(self, name) < 1, "a share from 0 to below 1", getattr(self, name))
        need("steps", bool(self.steps or self.epochs), "a number above 0 here or in epochs", "0 in both")
        need("batch", self.batch % self.part == 0, f"a multiple of part ({self.part})", self.batch)
        need("fewest_frames", self.fewest_frames >= 3, "at least 3: there and back", self.fewest_frames)  # noqa: PLR2004
        need("most_frames", self.most_frames >= self.fewest_frames, "at least fewest_frames", self.most_frames)
        for name, known in (("precision", KINDS), ("cache", CACHES)):
            if getattr(self, name) not in known:
                raise UnknownName(f"{name} (recipe)", str(getattr(self, name)), known)

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return it with other numbers; an unknown name is refused."""
        return change_config(self, {name: _in_fractions(value) for name, value in changes.items()})

    def facts_of(self) -> dict[str, Any]:
        """Return it as plain values, for a file."""
        return asdict(self)

    def updates(self, examples: int) -> int:
        """Return how many updates the run has, for so many examples in an epoch."""
        return self.steps or max(1, round(self.epochs * examples / self.batch))

    @property
    def is_tower_frozen(self) -> bool:
        """Whether what the tower says of a frame never changes."""
        return not self.train_vision


@dataclass(frozen=True)
class RobometerRecipe(Recipe):
    """Robometer: which of two does better, and how far the first one is at every frame. Public facts as defaults."""

    steps: int = 20_000
    frames: int = 8
    """shown of each trajectory"""
    bins: int = 10
    preference: float = 1.0
    progress: float = 1.0
    success: float = 1.0
    """weights of the three losses"""
    strategies: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(STRATEGIES, 1.0))
    """how often each way of making a pair is taken"""
    apart: float = 0.2
    """two outcomes that differ by less are not compared"""
    unsure_from: float = 0.5
    """a demonstration may be done before its last frame: from this progress on nobody says that it is not"""
    head_dropout: float = 0.1

    SHARES: ClassVar[tuple[str, ...]] = ("warm_up", "lora_dropout", "head_dropout", "unsure_from", "apart")

    def __post_init__(self) -> None:
        """Refuse numbers that nothing can be trained with."""
        super().__post_init__()
        for name in ("frames", "bins"):
            need(name, getattr(self, name) >= 2, "at least 2", getattr(self, name))  # noqa: PLR2004
        for name in ("preference", "progress", "success"):
            need(name, getattr(self, name) >= 0, "0 or more", getattr(self, name))
        need("progress", self.preference + self.progress + self.success > 0, "a loss that counts", "0 for all three")
        for name in self.strategies:
            if name not in STRATEGIES:
                raise UnknownName("strategy (recipe)", str(name), STRATEGIES)
        good = all(isinstance(one, int | float) and one >= 0 for one in self.strategies.values())
        good = good and sum(self.strategies.values()) > 0
        need("strategies", good, "shares from 0 on, not all 0", dict(self.strategies))


@dataclass(frozen=True)
class RoboRewardRecipe(Recipe):
    """RoboReward: the grade of an episode as the answer to a question. The paper's numbers (4B) as defaults."""

    epochs: float = 3.0
    batch: int = 32
    rate: float = 3e-6
    warm_up: float = 0.05
    decay: float = 0.05
    clip: float = 1.0
    train_fusion: bool = True
    fewest_frames: int = 3
    fps: float = 1.0
    """frames of a second that are shown; the last frame always is"""
    validate_every: int = 100
    """updates between two validations; the weights with the least error are kept"""

    def __post_init__(self) -> None:
        """Refuse numbers that nothing can be trained with."""
        super().__post_init__()
        need("fps", 0 < self.fps <= MOST_A_SECOND, f"a number above 0, at most {MOST_A_SECOND:g}", self.fps)
        need("validate_every", self.validate_every >= 1, "at least 1", self.validate_every)


def load_recipe(what: str, path: str | Path | None = None) -> Recipe:
    """Read a recipe for `robometer` or `roboreward`: a file, one of those that ship by name, or the default."""
    kinds: dict[str, type[Recipe]] = {"robometer": RobometerRecipe, "roboreward": RoboRewardRecipe}
    if what not in kinds:
        raise UnknownName("thing to train", what, kinds)
    name = str(path or what)
    file = files("demerit") / "assets" / "train" / f"{name}.yaml" if name in SHIPPED else Path(name)
    told = read_yaml(file, name, f"a recipe (YAML), or one of {', '.join(SHIPPED)}")
    return kinds[what]().changed(told)


def _in_fractions(value: Any) -> Any:
    """Return shares as fractions, so that 1 and 1.0 are the same recipe and the same run."""
    if not isinstance(value, Mapping):
        return value
    return {each: float(one) if isinstance(one, int) else one for each, one in value.items()}
