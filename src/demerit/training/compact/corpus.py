"""What training reads: frames in one array, what is known of them in another, a row per episode. Numpy alone.

It is made by `prepare` from any datasets, and needs nothing but numpy to read: a machine with a GPU and no robot
libraries can train.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.errors import BadInput

Floats = npt.NDArray[np.float32]
FRAMES, LABELS, EPISODES = "frames.npy", "labels.npz", "episodes.json"
AUXILIARY = ("object moved", "hand to object", "gripper open", "object lifted")
"""what a simulator measured at each frame, in units of about one; NaN elsewhere"""


@dataclass(frozen=True)
class Row:
    """An episode of the corpus."""

    id: str
    source: str
    """the dataset it comes from"""
    task: str
    """what makes two episodes comparable: the task's name, or the instruction"""
    instruction: str
    kind: str
    """measured: a curve that physics or people vouch for; model: a teacher's curve; demonstration: success by rule"""
    success: bool | None
    first: int
    """where its frames begin"""
    frames: int
    group: str = ""
    site: str = ""
    split: str = ""

    @property
    def places(self) -> slice:
        """Where its frames are."""
        return slice(self.first, self.first + self.frames)


@dataclass(frozen=True, eq=False)
class Corpus:
    """All episodes."""

    rows: tuple[Row, ...]
    frames: npt.NDArray[np.uint8]
    """(all frames, size, size, 3)"""
    progress: Floats
    """at each frame; NaN where unknown"""
    facts: Floats
    """(all frames, AUXILIARY); NaN where unknown"""

    @classmethod
    def load(cls, folder: str | Path) -> Corpus:
        """Open a prepared folder; the frames stay on disk until they are read."""
        folder = Path(folder)
        missing = [name for name in (FRAMES, LABELS, EPISODES) if not (folder / name).exists()]
        if missing:
            raise BadInput(str(folder), "a prepared corpus", f"a folder without {', '.join(missing)}")
        rows = tuple(Row(**facts) for facts in json.loads((folder / EPISODES).read_text("utf-8")))
        with np.load(folder / LABELS, allow_pickle=False) as labels:
            progress, facts = labels["progress"], labels["facts"]
        frames = np.load(folder / FRAMES, mmap_mode="r", allow_pickle=False)
        total = rows[-1].first + rows[-1].frames if rows else 0
        if not len(frames) == len(progress) == len(facts) == total:
            found = f"{len(frames)} frames, {len(progress)} labels, {total} by the list of episodes"
            raise BadInput(str(folder), "as many labels as frames", found)
        return cls(rows, frames, progress, facts)


def write_rows(folder: Path, rows: list[Row]) -> None:
    """Write the list of episodes."""
    told: list[dict[str, Any]] = [asdict(row) for row in rows]
    (folder / EPISODES).write_text(json.dumps(told, indent=0), encoding="utf-8")
