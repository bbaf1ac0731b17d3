"""Making a folder, or a sentence why that cannot be."""

from __future__ import annotations

from pathlib import Path

from demerit.errors import StoreError


def make_folder(folder: Path) -> None:
    """Make a folder with those above it; one that is there is fine."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(folder, f"the folder cannot be made ({error.strerror})") from error
