"""SHA256SUMS: what every file of a release was when it was made, in the form that `sha256sum -c` reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

from demerit.errors import StoreError
from demerit.store.parts import write_durably

SUMS = "SHA256SUMS"


def write_sums(root: Path) -> int:
    """Write the sums of every file; return how many there are."""
    lines = [f"{_sum(path)}  {path.relative_to(root).as_posix()}\n" for path in files_of(root)]
    write_durably(root / SUMS, "".join(lines).encode())
    return len(lines)


def verify(root: str | Path) -> list[str]:
    """Say what is not as it was, a sentence each; nothing = everything is there and unchanged."""
    root = Path(root)
    try:
        lines = (root / SUMS).read_text("utf-8").splitlines()
    except OSError as error:
        raise StoreError(root, f"it has no {SUMS} that can be read ({error.strerror})") from error
    listed = {name: digest for digest, space, name in (line.partition("  ") for line in lines) if space}
    there = {path.relative_to(root).as_posix(): path for path in files_of(root)}
    said = [f"{name} is missing" for name in listed if name not in there]
    said += [f"{name} is not listed" for name in there if name not in listed]
    return said + [
        f"{name} has changed" for name, path in there.items() if listed.get(name, "") not in ("", _sum(path))
    ]


def files_of(root: Path) -> list[Path]:
    """Every file of a release but the list itself, by name."""
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != SUMS)


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
