"""A corpus that is being written: it grows by an episode at a time, and a crash costs at most the last few."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from demerit.data.frames import RGB, Images
from demerit.training.compact.corpus import AUXILIARY, FRAMES, LABELS, Row, write_rows

Floats = npt.NDArray[np.float32]
RAW, NUMBERS, JOURNAL = "frames.raw", "labels.raw", "episodes.jsonl"
COLUMNS = 1 + len(AUXILIARY)
AT_ONCE = 4096
"""frames copied at once"""


class Growing:
    """Appends to three files; the journal's line comes last, so what it names is whole in the others."""

    def __init__(self, folder: Path, size: int) -> None:
        """Go on with what is in the folder."""
        self.folder, self.size = folder, size
        self.rows: list[Row] = []
        self.known: set[tuple[int, str]] = set()
        """number of the part and id of each episode that is there"""
        self.total = 0
        self._pick_up()
        self._files = [(folder / name).open("ab") for name in (RAW, NUMBERS, JOURNAL)]

    def __enter__(self) -> Growing:
        """Use it in a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files; what was added stays."""
        for file in self._files:
            file.close()

    def add(self, part: int, row: Row, images: Images, progress: Floats, facts: Floats) -> None:
        """Append an episode."""
        frames, labels, journal = self._files
        frames.write(images.tobytes())
        labels.write(np.column_stack([progress, facts]).astype(np.float32).tobytes())
        frames.flush()
        labels.flush()
        journal.write((json.dumps({"part": part, **asdict(row)}) + "\n").encode())
        journal.flush()
        self._count(part, row)

    def finish(self) -> None:
        """Turn what was appended into a corpus."""
        self.__exit__()
        raw = np.memmap(self.folder / RAW, np.uint8, "r", shape=(self.total, self.size, self.size, RGB))
        frames = np.lib.format.open_memmap(self.folder / FRAMES, "w+", np.uint8, raw.shape)
        for start in range(0, self.total, AT_ONCE):
            frames[start : start + AT_ONCE] = raw[start : start + AT_ONCE]
        frames.flush()
        numbers = np.fromfile(self.folder / NUMBERS, np.float32).reshape(self.total, COLUMNS)
        np.savez(self.folder / LABELS, progress=numbers[:, 0], facts=numbers[:, 1:])
        write_rows(self.folder, self.rows)
        for name in (RAW, NUMBERS, JOURNAL):
            (self.folder / name).unlink()

    def _count(self, part: int, row: Row) -> None:
        self.rows.append(row)
        self.known.add((part, row.id))
        self.total += row.frames

    def _pick_up(self) -> None:
        """Read the journal as far as it is whole, and cut all three files there."""
        pixels = self.size * self.size * RGB
        whole = min(_size(self.folder / RAW) // pixels, _size(self.folder / NUMBERS) // (COLUMNS * 4))
        kept = 0
        journal = self.folder / JOURNAL
        for line in journal.read_bytes().splitlines(keepends=True) if journal.exists() else []:
            if not line.endswith(b"\n"):
                break
            facts = json.loads(line)
            part, row = facts.pop("part"), Row(**facts)
            if row.first + row.frames > whole:
                break
            self._count(part, row)
            kept += len(line)
        for name, length in ((RAW, self.total * pixels), (NUMBERS, self.total * COLUMNS * 4), (JOURNAL, kept)):
            if (self.folder / name).exists():
                os.truncate(self.folder / name, length)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
