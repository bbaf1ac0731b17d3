"""Drawn episodes that a CPU can train on: a bright bar is as long as the task's progress."""

from collections.abc import Iterator, Sequence

import numpy as np

from demerit.data.dataset import Dataset, Record
from demerit.training.prepared import CorpusRow, PreparedCorpus
from train_compact.config import CompactTrainConfig

SIZE = 64
INSTRUCTIONS = {
    "press": "press the button",
    "lift": "lift the lid",
    "shown": "fold the towel",
    "judged": "wipe a plate",
}
KINDS = {"press": "measured", "lift": "measured", "shown": "demonstration", "judged": "model"}


def draw_bar(done: float) -> np.ndarray:
    image = np.full((SIZE, SIZE, 3), 40, np.uint8)
    image[20:44, : round(SIZE * done)] = 220
    return image


def curve(success: bool, frames: int) -> np.ndarray:
    way = np.linspace(0, 1, frames, dtype=np.float32)
    return way if success else np.minimum(way, 1 - way)


def compact_corpus(lengths: Sequence[int] = (8, 9, 10, 12), split: str = "train") -> PreparedCorpus:
    """Two measured tasks, demonstrations and a model's curves; per task a success and a failure of each length."""
    rows: list[CorpusRow] = []
    images: list[np.ndarray] = []
    for task, kind in KINDS.items():
        for success in (True, False):
            for length in lengths:
                done = curve(success or kind == "demonstration", length)
                row = CorpusRow(
                    id=f"{task}-{success}-{length}",
                    source=task,
                    instruction=INSTRUCTIONS[task],
                    kind=kind,
                    success={"demonstration": True, "model": None}.get(kind, success),
                    progress=np.full_like(done, np.nan) if kind == "demonstration" else done,
                    times=np.arange(length, dtype=np.float32),
                    task=task,
                    site=f"site {length}",
                    split=split,
                )
                rows.append(row)
                images.append(np.stack([draw_bar(float(value)) for value in done]))
    return PreparedCorpus.from_arrays(rows, images)


def small_config(**changes: object) -> CompactTrainConfig:
    return CompactTrainConfig().change({"size": SIZE, "steps": 4, "groups": 2, "clips": 4, "frames": 4, **changes})


class StoppingReader:
    """Reads records from memory. Stops in the middle from the second reading on: the first one reads labels only."""

    def __init__(self, records: Sequence[Record], stop_at: int | None = None) -> None:
        self.listed, self.stop_at, self.name = records, stop_at, "listed"
        self.readings = 0

    def expected(self) -> int:
        return len(self.listed)

    def records(self) -> Iterator[Record]:
        self.readings += 1
        for number, record in enumerate(self.listed):
            if number == self.stop_at and self.readings > 1:
                raise KeyboardInterrupt
            yield record


def list_dataset(records: Sequence[Record], stop_at: int | None = None) -> Dataset:
    return Dataset(StoppingReader(records, stop_at), address="listed:here")
