"""Where a release may be put: refused before anything is read, not after everything is made."""

from __future__ import annotations

from pathlib import Path

from demerit.data.dataset import Dataset
from demerit.errors import BadInput


def refuse_place(dataset: Dataset, dest: Path) -> None:
    """Refuse a destination inside the source or around it, and one that is a link, to which nothing can be renamed.

    A reader of videos takes every video below its folder: a release in there would be read with the next one.
    """
    if dest.is_symlink() and not (dest / "dataset.json").is_file():
        where = "a link to a folder" if dest.is_dir() else "a link to a file" if dest.exists() else "a link to nothing"
        raise BadInput(f"destination {dest}", "the folder itself, as it is made in one step", where)
    source = _folder_of(dataset)
    if source is None:
        return
    place = dest.resolve()
    if source.is_dir() and place.is_relative_to(source):
        got = "the dataset's own folder" if place == source else "one inside the dataset's folder"
        raise BadInput(f"destination {dest}", f"a folder outside of {source}, which is only read", got)
    if source.is_relative_to(place):
        raise BadInput(
            f"destination {dest}", "a folder that does not exist yet", f"one that the dataset {source} is in"
        )


def _folder_of(dataset: Dataset) -> Path | None:
    """Where the dataset lies, as its address says; None for one that lies nowhere."""
    _, colon, rest = dataset.address.partition(":")
    path = Path(rest)
    return path.resolve() if colon and path.is_absolute() and path.exists() else None
