"""Where `gvl` takes its examples from: a dataset folder, or episodes and preferences at hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from demerit.data.dataset import Record
from demerit.data.store import Store
from demerit.errors import BadInput
from demerit.models.gvl.retrieval import Library

Examples = Library | Iterable[Record] | str | Path


def open_library(examples: Examples) -> Library:
    """Open a library: one that is open already, the path of a dataset folder, or records."""
    if isinstance(examples, Library):
        return examples
    if isinstance(examples, str | Path):
        folder = Path(examples).expanduser()
        if not Store.is_at(folder):
            raise BadInput("examples", "a demerit folder (make one with demerit import)", str(examples))
        return Library(Store(folder).records())
    return Library(examples)


def save_records(folder: str | Path, name: str, records: Iterable[Record], licence: str = "") -> Store:
    """Write episodes with their new curves, and preferences, as a dataset of its own; no video is copied.

    Args:
        folder: a new or empty one.
        name: of the dataset.
        records: such as `distilled.apply(dataset.records())`.
        licence: of the data.
    """
    store = Store.create(folder, name, licence, source="curves by preference-guided self-distillation")
    with store.writer() as writer:
        for record in records:
            writer.add(record)
    return Store(store.root)
