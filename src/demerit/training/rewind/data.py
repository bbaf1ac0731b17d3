"""What ReWiND is trained with: the configuration, what is kept of an episode, and the clips of a step. No torch.

Every number of the configuration is checked before anything is computed. A clip says which frames are shown in which
order, with which targets, and an instruction that does not fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np

from demerit.config import need, read_yaml
from demerit.data.arrays import Floats32, Ints
from demerit.data.episode import TRAINED_SOURCES, Episode, Outcome, most_trusted
from demerit.data.frames import Indices, Prepare, spread
from demerit.data.splits import has_own_instruction, normalize_split
from demerit.errors import BadInput
from demerit.models.compact.engine import resize_square
from demerit.training.prepared import CorpusPart, CorpusRow
from demerit.training.train_config import TrainConfig

FEWEST_FRAMES = 2


@dataclass(frozen=True)
class RewindTrainConfig(TrainConfig):
    """How the network is trained. The defaults equal `assets/train/rewind.yaml`."""

    steps: int = 1500
    clips: int = 64
    """clips in a step; each is shown under its own and under another task's instruction"""
    frames: int = 16
    """most frames that the network sees at once, spread over the video so far"""
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    rate: float = 5e-4
    decay: float = 1e-4
    average: float = 0.995
    """decay of the moving average of the weights, which is what is exported"""
    rewind: float = 0.8
    """share of clips of successes that go forward and back"""
    mismatched: float = 0.0
    """weight of the clips under another task's instruction, which are worth 0; 0: none. The paper's is 1, which needs
    many instructions: with the simulator's forty tasks every new one reads as a wrong one"""
    failures: float = 0.5
    """share of failures among the clips of tasks that have some; 0: none, as in the paper"""
    targets: Literal["time", "measured"] = "time"
    """of successes: t / T, or the measured progress where there is some. Failures always have the measured one"""
    held_out_tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be trained with."""
        super().__post_init__()
        for name in ("steps", "clips", "hidden", "layers", "heads"):
            need(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))
        need("frames", self.frames >= FEWEST_FRAMES, f"at least {FEWEST_FRAMES}", self.frames)
        need("heads", self.hidden % self.heads == 0, f"a divisor of hidden ({self.hidden})", self.heads)
        need("rate", 0 < self.rate <= 1, "a number above 0, at most 1", self.rate)
        need("decay", 0 <= self.decay <= 1, "a number from 0 to 1", self.decay)
        need("mismatched", 0 <= self.mismatched < inf, "a finite number, 0 or more", self.mismatched)
        for name in ("rewind", "failures", "average"):
            need(name, 0 <= getattr(self, name) <= 1, "a share from 0 to 1", getattr(self, name))


def load_rewind_config(path: str | Path | None = None) -> RewindTrainConfig:
    """Read a YAML file; by default the shipped one."""
    file = files("demerit") / "assets" / "train" / "rewind.yaml" if path is None else Path(path)
    return RewindTrainConfig().change(read_yaml(file, str(path or "rewind.yaml")))


MOST_FRAMES = 32
"""frames kept of an episode; longer ones are thinned evenly"""
LENGTH, HEIGHT = 0.3, 0.2
"""metres that count as 1 in `SIMULATOR_FACTS`"""
SIMULATOR_FACTS = ("object moved", "hand to object", "gripper open", "object lifted")
"""what a simulator measures at each frame, scaled to about 1; NaN elsewhere"""


@dataclass(frozen=True)
class CompactCorpusPlan:
    """A `PreparePlan` for the compact network: square frames of `size` pixels, a progress curve, simulated facts."""

    size: int
    sources: tuple[str, ...] = TRAINED_SOURCES
    without: tuple[str, ...] = ()
    has_preferences = False
    has_grades = False

    @property
    def facts(self) -> Mapping[str, Any]:
        """The numbers that decide which frames are kept."""
        return {"model": "compact", "size": self.size, "most_frames": MOST_FRAMES}

    @property
    def resize(self) -> Prepare:
        """Stretch images to squares."""
        return partial(resize_square, side=self.size)

    def choose_frames(self, episode: Episode) -> Indices:
        """Return at most 32 frame numbers, evenly spread."""
        return spread(len(episode), MOST_FRAMES)

    def label(self, episode: Episode, frames: Indices, part: CorpusPart) -> CorpusRow | str:
        """Label an episode by its curve, as a demonstration, or by its end."""
        labelled = find_label(episode, part.use == "demonstrations")
        if labelled is None:
            return "no label"
        kind, outcome = labelled
        if not len(episode):
            return "no frames"
        curve = None if outcome is None else outcome.curve
        if curve is not None and len(curve) != len(episode):
            return "a curve of another length than the video"
        return CorpusRow(
            id=episode.id,
            source=part.name,
            instruction=episode.instruction,
            kind=kind,
            success=True if outcome is None else outcome.success,
            progress=_end_progress(len(frames), kind, outcome) if curve is None else curve[frames].astype(np.float32),
            times=episode.main.times()[frames].astype(np.float32),
            grade=None if outcome is None else outcome.grade,
            task=episode.origin.tags.get("task") or episode.instruction,
            site=episode.origin.site or episode.origin.tags.get("lab", ""),
            group=episode.origin.group,
            facts=simulator_facts(episode, frames),
        )


def find_label(episode: Episode, is_demonstration: bool) -> tuple[str, Outcome | None] | None:
    """Return the kind of an episode and its outcome; None if it cannot be used.

    Episodes with an instruction of an edit are of the kind `outcome`, since other kinds share instructions in a task.
    """
    if not has_own_instruction(episode):
        return ("outcome", episode.outcome) if episode.outcome is not None else None
    with_curve = [outcome for outcome in episode.labels if outcome.curve is not None]
    measured = most_trusted(outcome for outcome in with_curve if outcome.source in ("human", "simulator", "edit"))
    if measured is not None:
        return "measured", measured
    outcome = episode.outcome
    if is_demonstration or (outcome is not None and outcome.success and outcome.source in ("human", "rule")):
        return "demonstration", None
    if with_curve:
        return "model", with_curve[0]
    judged = (label for label in episode.labels if (label.success, label.progress, label.grade) != (None, None, None))
    label = most_trusted(judged)
    return ("outcome", label) if label is not None else None


def _end_progress(frames: int, kind: str, outcome: Outcome | None) -> Floats32:
    """Return NaN, and at the last frame the final progress of an outcome where it is known."""
    progress = np.full(frames, np.nan, np.float32)
    if kind == "outcome" and outcome is not None:
        graded = None if outcome.grade is None else (outcome.grade - 1) / 4
        final = outcome.progress if outcome.progress is not None else graded
        progress[-1] = 1.0 if outcome.success else np.nan if final is None else final
    return progress


def simulator_facts(episode: Episode, frames: Indices) -> Floats32 | None:
    """Return (frames, 4) numbers in the order of `SIMULATOR_FACTS`; None without a simulator's signals."""
    if not {"object", "state"} <= set(episode.signals):
        return None
    thing, state = (np.asarray(episode.signals[name], dtype=np.float32)[frames] for name in ("object", "state"))
    place, hand, gripper = thing[:, :3], state[:, :3], state[:, 3]
    columns = [
        np.linalg.norm(place - place[0], axis=1) / LENGTH,
        np.linalg.norm(place - hand, axis=1) / LENGTH,
        gripper,
        (place[:, 2] - place[0, 2]) / HEIGHT,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


FrameNumbers = Ints
TRIES = 20
FEWEST_TO_REWIND = 3
KINDS = ("measured", "demonstration", "outcome")


@dataclass(frozen=True, eq=False)
class RewindClip:
    """Some frames of one episode with their targets, padded with the last frame to a fixed number."""

    frames: FrameNumbers
    """numbers in the corpus"""
    targets: Floats32
    """NaN where unknown, and where a frame is padding"""
    instruction: str
    other: str
    """another task's instruction; empty if none was found"""


class RewindSampler:
    """Samples the clips of a step: kinds of episodes in equal shares, then a task, then an episode."""

    def __init__(self, rows: Sequence[CorpusRow], config: RewindTrainConfig) -> None:
        """Sort the episodes by kind and task."""
        self.config = config
        ends = np.cumsum([0, *(row.frames for row in rows)])
        self.first = {id(row): int(first) for row, first in zip(rows, ends, strict=False)}
        """number of a row's first frame in the features"""
        self.rows = [row for row in rows if is_for_rewind(row, config)]
        if not any(row.success for row in self.rows):
            raise BadInput(
                "the corpus", "successes with an instruction to train on", f"{len(rows)} episodes, none such"
            )
        self.tasks: dict[str, dict[str, list[list[CorpusRow]]]] = defaultdict(lambda: defaultdict(lambda: [[], []]))
        for row in self.rows:
            self.tasks[row.kind][row.task][0 if row.success else 1].append(row)
        self.names = {kind: sorted(tasks) for kind, tasks in self.tasks.items()}
        self.kinds = sorted(self.names)
        self.words = {row.instruction: distinctive_words(row.instruction) for row in self.rows}

    def sample(self, rng: np.random.Generator) -> list[RewindClip]:
        """Sample the clips of one step."""
        return [self._clip(self._row(rng), rng) for _ in range(self.config.clips)]

    def _row(self, rng: np.random.Generator) -> CorpusRow:
        kind = self.kinds[rng.integers(len(self.kinds))]
        good, bad = self.tasks[kind][self.names[kind][rng.integers(len(self.names[kind]))]]
        rows = bad if bad and (rng.random() < self.config.failures or not good) else good
        return rows[rng.integers(len(rows))]

    def _clip(self, row: CorpusRow, rng: np.random.Generator) -> RewindClip:
        curve = row_targets(row, self.config.targets)
        is_rewound = bool(row.success) and row.frames >= FEWEST_TO_REWIND and rng.random() < self.config.rewind
        order = order_rewound(row.frames, rng) if is_rewound else order_forward(curve, rng)
        order = order[spread(len(order), self.config.frames)]
        targets = curve[order]
        padding = self.config.frames - len(order)
        return RewindClip(
            frames=self.first[id(row)] + np.pad(order, (0, padding), mode="edge").astype(np.int64),
            targets=np.pad(targets, (0, padding), constant_values=np.nan),
            instruction=row.instruction,
            other=self._other_instruction(row, rng) if self.config.mismatched else "",
        )

    def _other_instruction(self, row: CorpusRow, rng: np.random.Generator) -> str:
        """Return an instruction of another task with no content word in common; empty if none is found."""
        mine = self.words[row.instruction]
        for _ in range(TRIES):
            other = self._row(rng)
            if other.task != row.task and not mine & self.words[other.instruction]:
                return other.instruction
        return ""


def is_for_rewind(row: CorpusRow, config: RewindTrainConfig) -> bool:
    """Whether this episode may be trained on: successes, and others of known progress if failures are asked for."""
    if normalize_split(row.split) != "train" or row.task in config.held_out_tasks or row.kind not in KINDS:
        return False
    wanted = bool(row.success) or (config.failures > 0 and not bool(np.isnan(row.progress).all()))
    return wanted and bool(row.instruction.strip())


def order_forward(targets: Floats32, rng: np.random.Generator) -> FrameNumbers:
    """Go forward to a random frame; to the last one if no other has a target."""
    whole = bool(np.isnan(targets[:-1]).all())
    return np.arange(len(targets) if whole else rng.integers(1, len(targets) + 1))


def order_rewound(length: int, rng: np.random.Generator) -> FrameNumbers:
    """Go forward to a frame of the second half, then back over a random number of frames, as the authors do."""
    turn = int(rng.integers(max(1, length // 2), length))
    back = int(rng.integers(1, turn + 1))
    return np.concatenate([np.arange(turn + 1), np.arange(turn - 1, turn - back - 1, -1)])


def row_targets(row: CorpusRow, targets: str) -> Floats32:
    """Return t / T, t from 1, for a success unless its measured progress is wanted and known; else what is known."""
    if row.success and (targets == "time" or row.kind != "measured"):
        return np.arange(1, row.frames + 1, dtype=np.float32) / np.float32(row.frames)
    return row.progress


FUNCTION_WORDS = frozenset(
    "a an and at by from in into it its of off on onto out over so that the then this to up down with".split()
)
COMMON_WORDS = frozenset("goal move open close place position pull push put pick take robot spot target turn".split())


def distinctive_words(instruction: str) -> set[str]:
    """Return the words that tell one task from another."""
    plain = "".join(letter if letter.isalpha() else " " for letter in instruction.lower())
    return {word for word in plain.split() if word not in FUNCTION_WORDS and word not in COMMON_WORDS}
