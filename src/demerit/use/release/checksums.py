"""SHA256SUMS: what every file of a release was when it was made, in the form that `sha256sum -c` reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from demerit.data.files import write_atomic
from demerit.errors import StoreError

SUMS = "SHA256SUMS"


def write_sums(root: Path) -> int:
    """Write the sums of every file; return how many there are."""
    lines = [f"{_sum(path)}  {path.relative_to(root).as_posix()}\n" for path in files_of(root)]
    write_atomic(root / SUMS, "".join(lines).encode())
    return len(lines)


def verify(root: str | Path) -> list[str]:
    """Say what is not as it was, a sentence each; nothing = everything is there and unchanged."""
    root = Path(root)
    listed = _listed(root)
    there = [path.relative_to(root).as_posix() for path in files_of(root)]
    return (
        _missing(root, listed)
        + [f"{name} is not listed" for name in there if name not in listed]
        + _changed(root, listed)
    )


def damage(root: Path) -> list[str]:
    """Say which files are missing or have changed; what somebody put beside them does no harm."""
    try:
        listed = _listed(root)
    except StoreError:
        return [f"{SUMS} cannot be read"]
    return _missing(root, listed) + _changed(root, listed)


def files_of(root: Path) -> list[Path]:
    """Every file of a release but the list itself, by name."""
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != SUMS)


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed(root: Path) -> dict[str, str]:
    """File to sum."""
    try:
        lines = (root / SUMS).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(root, f"it has no {SUMS} that can be read ({error})") from error
    return {name: digest for digest, space, name in (line.partition("  ") for line in lines) if space}


def _missing(root: Path, listed: Mapping[str, str]) -> list[str]:
    return [f"{name} is missing" for name in listed if not (root / name).is_file()]


def _changed(root: Path, listed: Mapping[str, str]) -> list[str]:
    there = {name: root / name for name in listed if (root / name).is_file()}
    return [f"{name} has changed" for name, path in there.items() if _sum(path) != listed[name]]
