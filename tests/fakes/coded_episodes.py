"""Episodes whose pictures say the truth in their first pixel: red is the progress, green the number of the task.

The rest of the picture is noise, so that an oracle can read them and a trivial model cannot.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from demerit.data.dataset import Dataset, Record
from demerit.data.episode import Episode, Event, Origin, Outcome, Preference
from demerit.data.reward import Reward
from demerit.errors import UnreadableVideo
from demerit.models.protocol import example_card

FRAMES = 18
"""255 = 17 * 15: a rise from 0 to 1 over 18 frames is exact in red"""
TASKS = 12
RISE = np.linspace(0, 1, FRAMES)
FALL_AT = 11


@dataclass(frozen=True)
class Listed:
    """Records at hand, as a reader."""

    listed: Sequence[Record]
    name: str = "coded"

    def records(self) -> Iterator[Record]:
        return iter(self.listed)

    def expected(self) -> int | None:
        return sum(isinstance(one, Episode) for one in self.listed)


def course(kind: str) -> np.ndarray:
    if kind == "success":
        return RISE
    if kind == "suboptimal":
        return np.rint(RISE * 0.5 * 255) / 255
    fallen = np.where(np.arange(FRAMES) < FALL_AT, RISE, 0.0)
    return np.where(np.arange(FRAMES) == FALL_AT, 0.2, fallen)


def episode(task: int, kind: str, number: int = 0, **changes: Any) -> Episode:
    truth = course(kind)
    seed = [task, number, len(kind)]
    images = np.random.default_rng(seed).integers(0, 255, (FRAMES, 8, 8, 3), dtype=np.uint8)
    images[:, 0, 0, 0] = np.rint(truth * 255)
    images[:, 0, 0, 1] = task
    events = () if kind != "failed" else (Event("dropped", FALL_AT, FALL_AT + 1),)
    outcome = Outcome(
        "human",
        success=kind == "success",
        progress=float(truth[-1]),
        grade={"success": 5, "suboptimal": 3, "failed": 1}[kind],
        curve=truth,
        events=events,
        by="us",
    )
    made = Episode.from_array(images, f"pick up the cup number {task}", id=f"{task}/{kind}-{number}")
    quality = {"success": "successful", "suboptimal": "suboptimal", "failed": "failure"}[kind]
    origin = Origin(dataset="coded", group=f"session {task}", tags={"quality": quality, "subset": f"part {task % 3}"})
    return replace(made, outcomes=(outcome,), origin=origin, **changes)


def coded(tasks: int = TASKS) -> Dataset:
    records: list[Record] = []
    for task in range(tasks):
        records += [episode(task, "success", 0), episode(task, "success", 1)]
        records += [episode(task, "suboptimal"), episode(task, "failed")]
        good, bad = f"{task}/success-0", f"{task}/failed-0"
        records.append(Preference(*((good, bad, "a") if task % 3 else (bad, good, "b")), source="human"))
        records.append(Preference(good, f"{task}/success-1", "tie", source="human"))
    return Dataset(Listed(records), address="coded:memory")


class Oracle:
    """Reads the truth off the picture; another task than it was told is worth nothing."""

    def __init__(self, **changes: Any) -> None:
        self.card = example_card(**{"name": "oracle", **changes})

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        return [self._one(one) for one in episodes]

    def _one(self, one: Episode) -> Reward:
        images = one.main.all()
        told = int(one.instruction.rpartition(" ")[2])
        value = images[:, 0, 0, 0] / 255 * (images[0, 0, 0, 1] == told)
        return Reward(self.card.name, one.id, np.arange(len(value)), value)


class Forgetful(Oracle):
    """An oracle that leaves some episodes unscored."""

    def _one(self, one: Episode) -> Reward:
        if one.id.startswith("3/"):
            return Reward.unscored(self.card.name, one.id, "it slept")
        return super()._one(one)


@dataclass(frozen=True)
class Unreadable:
    """A source of frames that has a length and cannot be decoded."""

    name: str
    length: int
    kind = "array"

    def __len__(self) -> int:
        return self.length

    def times(self) -> np.ndarray:
        return np.arange(self.length) / 10

    def take(self, indices: Sequence[int]) -> np.ndarray:
        raise UnreadableVideo(self.name, "broken on purpose")

    def identity(self) -> str:
        return self.name

    def describe(self) -> dict[str, object]:
        return {}
