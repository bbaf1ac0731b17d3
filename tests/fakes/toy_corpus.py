"""Episodes that are drawn, not filmed: a bright bar is as long as the task is done. Small enough to train on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from demerit.data.dataset import Dataset, Record
from demerit.training.compact.corpus import AUXILIARY, Corpus, Row
from demerit.training.compact.recipe import Recipe

SIZE = 64
INSTRUCTIONS = {
    "press": "press the button",
    "lift": "lift the lid",
    "shown": "fold the towel",
    "judged": "wipe a plate",
}
KINDS = {"press": "measured", "lift": "measured", "shown": "demonstration", "judged": "model"}


def picture(done: float) -> np.ndarray:
    image = np.full((SIZE, SIZE, 3), 40, np.uint8)
    image[20:44, : round(SIZE * done)] = 220
    return image


def curve(success: bool, frames: int) -> np.ndarray:
    way = np.linspace(0, 1, frames, dtype=np.float32)
    return way if success else np.minimum(way, 1 - way)


def toy(lengths: Sequence[int] = (8, 9, 10, 12), **changes: str) -> Corpus:
    """Two measured tasks, demonstrations and a teacher's curves; per task a success and a failure of each length."""
    rows: list[Row] = []
    progress: list[np.ndarray] = []
    images: list[np.ndarray] = []
    for task, kind in KINDS.items():
        for success in (True, False):
            for length in lengths:
                done = curve(success or kind == "demonstration", length)
                told = True if kind == "demonstration" else None if kind == "model" else success
                name = f"{task}-{success}-{length}"
                first = sum(map(len, progress))
                facts = {"group": "", "site": f"site {length}", "split": "train", **changes}
                rows.append(Row(name, task, task, INSTRUCTIONS[task], kind, told, first, length, **facts))
                progress.append(np.full_like(done, np.nan) if kind == "demonstration" else done)
                images.append(np.stack([picture(float(one)) for one in done]))
    labels = np.concatenate(progress)
    facts_known = np.full((len(labels), len(AUXILIARY)), np.nan, np.float32)
    return Corpus(tuple(rows), np.concatenate(images), labels, facts_known)


def small_recipe(**changes: object) -> Recipe:
    return Recipe().changed({"size": SIZE, "steps": 4, "groups": 2, "clips": 4, "frames": 4, **changes})


class Listed:
    """A reader of episodes (and preferences) that are in memory; it can be made to stop in the middle.

    It stops from the second reading on: the first one only looks at the labels.
    """

    def __init__(self, episodes: Sequence[Record], stop_at: int | None = None) -> None:
        self.episodes, self.stop_at, self.name = episodes, stop_at, "listed"
        self.readings = 0

    def expected(self) -> int:
        return len(self.episodes)

    def records(self) -> Iterator[Record]:
        self.readings += 1
        for number, episode in enumerate(self.episodes):
            if number == self.stop_at and self.readings > 1:
                raise KeyboardInterrupt
            yield episode


def listed(episodes: Sequence[Record], stop_at: int | None = None) -> Dataset:
    return Dataset(Listed(episodes, stop_at), address="listed:here")
