"""Configurations of vision-language training runs. Every number is checked before anything is computed.

What vision-language models keep of an episode: some frames, and the labels of the most trusted source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from demerit.config import need, read_yaml
from demerit.data.arrays import Floats32
from demerit.data.episode import Episode, Outcome, most_trusted
from demerit.data.frames import Images, Indices, Prepare, spread
from demerit.errors import UnknownName
from demerit.models.by_time import MOST_A_SECOND, ByTime
from demerit.models.vlm.prompt import is_plain_text
from demerit.negatives.negative import find_grade
from demerit.training.frame_storage import resize_to
from demerit.training.prepared import CorpusPart, CorpusRow
from demerit.training.train_config import TrainConfig

SHIPPED = ("libero", "robofac_lora", "robometer", "roboreward", "roboreward_8b")
STRATEGIES = ("expertise", "instruction", "rewind", "reverse", "people")
"""how a pair is made; see `pairs`"""
CACHES = ("none", "memory")
PRECISIONS = ("float32", "bfloat16")
STARTS = {
    "robometer": "Qwen/Qwen3-VL-4B-Instruct",
    "roboreward": "Qwen/Qwen3-VL-4B-Instruct",
    "roboreward_8b": "Qwen/Qwen3-VL-8B-Instruct",
    "robofac_lora": "robometer/Robometer-4B",
}
"""the model that the authors of each shipped configuration started with"""


@dataclass(frozen=True)
class VLMTrainConfig(TrainConfig):
    """What all vision-language runs have in common."""

    MODEL: ClassVar[str] = ""
    SHARES: ClassVar[tuple[str, ...]] = ("warm_up", "lora_dropout")
    FEWEST: ClassVar[int] = 3
    """least `fewest_frames`: a rewind needs three frames"""

    steps: int = 0
    """updates; 0: as many as `epochs` needs"""
    epochs: float = 0.0
    batch: int = 16
    """examples in an update, over all processes"""
    part: int = 4
    """examples that one process computes at once; gradients of the rest are accumulated"""

    rate: float = 2e-5
    vision_rate: float = 1e-5
    """learning rate of the vision tower, if it is trained"""
    warm_up: float = 0.1
    """share of the updates in which the rate grows; then it falls along half a cosine to 0"""
    decay: float = 0.01
    """weight decay of matrices; norms and biases have none"""
    clip: float = 10.0
    """largest norm of the gradient"""

    lora: int = 0
    """rank of the adapters; 0 trains the whole language model"""
    lora_alpha: int = 64
    lora_dropout: float = 0.05
    train_vision: bool = False
    train_fusion: bool = False
    """train the layers between vision tower and language model; with `train_vision` they are always trained"""
    precision: str = "bfloat16"
    """of the computation and of frozen weights; trained weights are always float32"""
    checkpointing: bool = True
    """recompute activations in the backward pass: less memory, a third more work"""

    cache: str = "memory"
    """keep a frozen tower's features between epochs: none or memory"""
    cache_gib: float = 16.0
    shorter_side: int = 240
    """pixels; larger frames are shrunk when the corpus is prepared"""
    most_frames: int = 64
    """frames kept of an episode"""
    fewest_frames: int = 5
    """episodes with fewer frames are skipped"""
    save_every: int = 200
    """updates between two checkpoints"""
    validate_every: int = 100
    """updates between two validations; the weights with the lowest held-out error are exported"""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be trained with."""
        super().__post_init__()
        for name in (column.name for column in fields(self)):
            value = getattr(self, name)
            need(name, not isinstance(value, float) or math.isfinite(value), "a finite number", value)
        for name in ("batch", "part", "save_every", "validate_every", "shorter_side"):
            need(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))
        for name in ("rate", "vision_rate"):
            need(name, 0 < getattr(self, name) <= 1, "a number above 0, at most 1", getattr(self, name))
        for name in ("clip", "lora_alpha"):
            need(name, getattr(self, name) > 0, "a number above 0", getattr(self, name))
        for name in ("decay", "lora", "cache_gib", "steps", "epochs"):
            need(name, getattr(self, name) >= 0, "0 or more", getattr(self, name))
        for name in self.SHARES:
            need(name, 0 <= getattr(self, name) < 1, "a share from 0 to below 1", getattr(self, name))
        need("steps", bool(self.steps or self.epochs), "steps or epochs above 0", "0 for both")
        need("batch", self.batch % self.part == 0, f"a multiple of part ({self.part})", self.batch)
        need("fewest_frames", self.fewest_frames >= self.FEWEST, f"at least {self.FEWEST}", self.fewest_frames)
        most = max(2, self.fewest_frames)  # the first and the last frame are always kept
        need("most_frames", self.most_frames >= most, f"at least {most}", self.most_frames)
        for name, choices in (("precision", PRECISIONS), ("cache", CACHES)):
            if getattr(self, name) not in choices:
                raise UnknownName(name, str(getattr(self, name)), choices)

    def updates(self, examples: int) -> int:
        """Return the number of updates when an epoch has this many examples."""
        return self.steps or max(1, round(self.epochs * examples / self.batch))


@dataclass(frozen=True)
class RobometerTrainConfig(VLMTrainConfig):
    """Robometer: which of two episodes is better, and the progress of one. Defaults are the authors' public numbers."""

    MODEL: ClassVar[str] = "robometer"
    SHARES: ClassVar[tuple[str, ...]] = ("warm_up", "lora_dropout", "head_dropout", "unsure_from", "apart")

    steps: int = 20_000
    validate_every: int = 250
    frames: int = 8
    """frames of each trajectory"""
    bins: int = 10
    preference: float = 1.0
    progress: float = 1.0
    success: float = 1.0
    """weights of the three losses"""
    strategies: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(STRATEGIES, 1.0))
    """how often each way of making a pair is used"""
    apart: float = 0.2
    """outcomes whose progress differs by less are not compared; above 0, so that none is compared with itself"""
    unsure_from: float = 0.5
    """a demonstration may be done before its end: from this progress on its success is unknown, except at the end"""
    zero_at: Literal["clip", "episode"] = "clip"
    """where progress is 0: at a clip's first frame, as the authors' `absolute_first_frame`, or at the episode's"""
    cutoffs: Mapping[str, float] = field(default_factory=dict)
    """by dataset: the share of a demonstration after which the task is done; others are done at their last frame"""
    head_dropout: float = 0.1

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be trained with."""
        super().__post_init__()
        for name in ("frames", "bins"):
            need(name, getattr(self, name) >= 2, "at least 2", getattr(self, name))  # noqa: PLR2004
        need("apart", self.apart > 0, "a share above 0, below 1", self.apart)
        for name in ("preference", "progress", "success"):
            need(name, getattr(self, name) >= 0, "0 or more", getattr(self, name))
        need("progress", self.preference + self.progress + self.success > 0, "a loss weight above 0", "0 for all three")
        for name in self.strategies:
            if name not in STRATEGIES:
                raise UnknownName("strategy", str(name), STRATEGIES)
        good = all(isinstance(share, int | float) and share >= 0 for share in self.strategies.values())
        good = good and sum(self.strategies.values()) > 0
        need("strategies", good, "shares of 0 or more, not all 0", dict(self.strategies))
        good = all(0 < share <= 1 for share in self.cutoffs.values())
        need("cutoffs", good, "shares above 0, at most 1", dict(self.cutoffs))


@dataclass(frozen=True)
class RoboRewardTrainConfig(VLMTrainConfig):
    """RoboReward: the grade of an episode as text. Defaults are the paper's numbers for 4B."""

    MODEL: ClassVar[str] = "roboreward"
    FEWEST: ClassVar[int] = 1

    epochs: float = 3.0
    batch: int = 32
    rate: float = 3e-6
    warm_up: float = 0.05
    decay: float = 0.05
    clip: float = 1.0
    train_fusion: bool = True
    fewest_frames: int = 1
    """1 keeps the earliest clips, which are one frame long at `fps` and have the lowest grades"""
    fps: float = 1.0
    """frames per second that are kept; the last frame always is"""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be trained with."""
        super().__post_init__()
        need("fps", 0 < self.fps <= MOST_A_SECOND, f"a number above 0, at most {MOST_A_SECOND:g}", self.fps)


def load_vlm_config(model: str, path: str | Path | None = None) -> VLMTrainConfig:
    """Read a configuration for `robometer` or `roboreward`: a file, the name of a shipped one, or the default."""
    kinds: dict[str, VLMTrainConfig] = {"robometer": RobometerTrainConfig(), "roboreward": RoboRewardTrainConfig()}
    if model not in kinds:
        raise UnknownName("model to train", model, kinds)
    name = str(path or model)
    file = files("demerit") / "assets" / "train" / f"{name}.yaml" if name in SHIPPED else Path(name)
    return kinds[model].change(read_yaml(file, name, f"a YAML file, or one of {', '.join(SHIPPED)}"))


def default_start(model: str, path: str | Path | None = None) -> str:
    """Return the model that a run starts with by default."""
    return STARTS.get(str(path or model), STARTS[model])


@dataclass(frozen=True)
class VLMCorpusPlan:
    """A `PreparePlan` for Robometer or RoboReward."""

    config: VLMTrainConfig

    @property
    def facts(self) -> Mapping[str, Any]:
        """The numbers that decide which frames are kept."""
        names = ["shorter_side", "most_frames", "fewest_frames", *(["fps"] if self.has_grades else [])]
        return {"model": self.config.MODEL, **{name: getattr(self.config, name) for name in names}}

    @property
    def sources(self) -> tuple[str, ...]:
        """The label sources of the configuration."""
        return self.config.sources

    @property
    def without(self) -> tuple[str, ...]:
        """The edits that the configuration leaves out."""
        return self.config.without

    @property
    def has_preferences(self) -> bool:
        """Grades compare nothing."""
        return not self.has_grades

    @property
    def resize(self) -> Prepare:
        """Shrink images."""
        return partial(shrink, shorter=self.config.shorter_side)

    @property
    def has_grades(self) -> bool:
        """Whether every episode needs a grade."""
        return isinstance(self.config, RoboRewardTrainConfig)

    def choose_frames(self, episode: Episode) -> Indices:
        """Return frame numbers, evenly spread or `fps` per second; the first and the last are always in."""
        if isinstance(self.config, RoboRewardTrainConfig):
            return ByTime(1 / self.config.fps, self.config.most_frames).by_time(episode.main.times())
        return spread(len(episode), self.config.most_frames)

    def label(self, episode: Episode, frames: Indices, part: CorpusPart) -> CorpusRow | str:
        """Label an episode, or return why it cannot be trained on."""
        rule = (Outcome("rule", success=True, by="demonstration"),) if part.use == "demonstrations" else ()
        outcomes = [*episode.labels, *rule]
        judged = (outcome for outcome in outcomes if outcome.success is not None or outcome.progress is not None)
        result = most_trusted(judged)
        grade = find_grade(outcomes, self.has_grades)
        curves = (outcome.curve for outcome in outcomes if outcome.curve is not None)
        curve = next((curve for curve in curves if len(curve) == len(episode)), None)
        if result is None and grade is None and curve is None:
            return "no label"
        if not episode.instruction.strip():
            return "no instruction"
        if not is_plain_text(episode.instruction):
            return "an instruction with a special token in it"
        if self.has_grades and grade is None:
            return "no grade"
        if len(frames) < self.config.fewest_frames:
            return f"fewer than {self.config.fewest_frames} frames"
        success = result.success if result else None
        return CorpusRow(
            id=episode.id,
            source=part.name,
            instruction=episode.instruction,
            kind="measured" if curve is not None else "demonstration" if success else "outcome",
            success=success,
            progress=_label_progress(len(episode), frames, curve, result),
            times=np.asarray(episode.main.times()[frames], np.float32),
            grade=grade,
            site=episode.origin.tags.get("data_source", ""),  # an RBM folder has several datasets
            group=episode.origin.group,
        )


def shrink(images: Images, shorter: int) -> Images:
    """Shrink images until the shorter side has that many pixels; smaller ones stay as they are."""
    height, width = images.shape[1:3]
    if not len(images) or min(height, width) <= shorter:
        return images
    scale = shorter / min(height, width)
    return resize_to(images, round(height * scale), round(width * scale))


def _label_progress(length: int, frames: Indices, curve: Floats32 | None, result: Outcome | None) -> Floats32:
    if curve is not None:
        return np.asarray(curve[frames], np.float32)
    if result is not None and result.success:  # the paper's target of a demonstration: t / T
        return np.asarray((frames + 1) / length, np.float32)
    progress = np.full(len(frames), np.nan, np.float32)
    if result is not None and result.progress is not None and len(frames):
        progress[-1] = result.progress  # known at the end alone
    return progress
