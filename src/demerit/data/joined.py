"""Several datasets read as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from demerit.data.dataset import DatasetReader, Problem, Record
from demerit.data.episode import Episode, safe_name
from demerit.errors import BadInput


@dataclass(frozen=True)
class JoinedReader:
    """Readers by name, one after the other. Ids and groups begin with the name, so that they stay distinct."""

    parts: Mapping[str, DatasetReader]

    @property
    def name(self) -> str:
        """The names of the parts."""
        return safe_name("+".join(self.parts))

    def records(self) -> Iterator[Record]:
        """Stream every part."""
        for name, reader in self.parts.items():
            for record in reader.records():
                yield _prefix(name, record)

    def expected(self) -> int | None:
        """The number of episodes; None when one part does not know."""
        counts = [reader.expected() for reader in self.parts.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


def _prefix(name: str, record: Record) -> Record:
    if isinstance(record, Problem):
        return replace(record, episode=f"{name}/{record.episode}")
    if not isinstance(record, Episode):
        return replace(record, a=f"{name}/{record.a}", b=f"{name}/{record.b}")
    group, parent = (f"{name}/{value}" if value else "" for value in (record.origin.group, record.origin.parent))
    return replace(record, id=f"{name}/{record.id}", origin=replace(record.origin, group=group, parent=parent))


def distinct_names(addresses: Sequence[str]) -> list[str]:
    """Name datasets by the shortest ends of their paths that differ.

    >>> distinct_names(["videos:/a/runs", "videos:/b/runs", "lerobot:/c"])
    ['a/runs', 'b/runs', 'c']
    """
    paths = [PurePath(address.partition(":")[2]).parts for address in addresses]
    if twice := next((address for address, path in zip(addresses, paths, strict=True) if paths.count(path) > 1), None):
        raise BadInput("datasets", "different ones", f"{twice} twice")
    names = []
    for path in paths:
        lengths = range(1, len(path) + 1)
        length = next(length for length in lengths if [other[-length:] for other in paths].count(path[-length:]) == 1)
        names.append("/".join(path[-length:]).lstrip("/"))
    return names
