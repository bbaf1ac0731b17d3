"""The records of a run, a line of JSON each, in `relabelled.jsonl` beside the dataset.

A record is in the file before any episode that follows from it is in the dataset. Killed in between, the next run makes
the episodes from the record and asks nothing; killed in the middle of a line, it cuts the line off and asks again, and
the answers are in the cache. One writer at a time: whoever opens a journal holds the dataset's lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from demerit.errors import StoreError
from demerit.negatives.relabel.record import Record

FILE = "relabelled.jsonl"


class Journal:
    """Records by the id of their original; the file is read again for each, memory holds only where it stands."""

    def __init__(self, folder: Path) -> None:
        """Remember where."""
        self.path = Path(folder) / FILE
        self._places: dict[str, tuple[int, int]] = {}
        self.splits: dict[str, str] = {}
        """where the labels of each original are"""

    def __enter__(self) -> Journal:
        """Read what is there, and cut off a line that a crash left half written."""
        end = 0
        for record, start, length in _lines(self.path):
            self._places[record.original] = (start, length)
            self.splits[record.original] = record.split
            end = start + length
        self._file = open(self.path, "r+b" if self.path.exists() else "w+b")
        self._file.truncate(end)
        self._file.seek(end)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file; everything in it is durable already."""
        self._file.close()

    def __len__(self) -> int:
        """How many originals are settled."""
        return len(self._places)

    def get(self, original: str) -> Record | None:
        """Find the record of an original."""
        place = self._places.get(original)
        if place is None:
            return None
        line = os.pread(self._file.fileno(), place[1], place[0])
        return Record.of(json.loads(line))

    def add(self, record: Record) -> None:
        """Write a record; when this returns it survives a crash."""
        line = (json.dumps(record.as_facts(), ensure_ascii=False) + "\n").encode(errors="replace")
        start = self._file.tell()
        try:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreError(self.path, f"it cannot be written ({error.strerror or error})") from error
        self._places[record.original] = (start, len(line))
        self.splits[record.original] = record.split


def read_records(folder: str | Path) -> Iterator[Record]:
    """Stream the records of a relabelled dataset, rejected candidates and all."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise StoreError(folder, f"there is no {FILE} in it, so nothing was relabelled there")
    for record, _, _ in _lines(path):
        yield record


def _lines(path: Path) -> Iterator[tuple[Record, int, int]]:
    """Each whole record with where its line starts and how long it is."""
    if not path.exists():
        return
    start = 0
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return  # half written when a crash came
            try:
                record = Record.of(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise StoreError(path, f"the line at byte {start} is damaged ({error})") from error
            yield record, start, len(line)
            start += len(line)
