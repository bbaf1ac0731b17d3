"""What a prepared corpus was made from: kept beside it, so that an old one is never trained on silently."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demerit.data.files import lock_folder
from demerit.errors import BadInput
from demerit.training.compact.new_folder import make_folder

PREPARED, LABELS = "prepared.json", "labels"


@dataclass
class Prepared:
    """What came of it."""

    episodes: int = 0
    frames: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    """reasons, and how many episodes each"""

    def leave_out(self, why: str) -> None:
        """Count one that cannot be used."""
        self.left_out[why] = self.left_out.get(why, 0) + 1

    @property
    def reasons(self) -> str:
        """Say why episodes were left out."""
        return "; ".join(f"{count} {why}" for why, count in self.left_out.items()) or "no episodes at all"


def made(folder: Path, job: Mapping[str, Any], fill: Callable[[Path, Prepared], None]) -> None:
    """Make a corpus, or go on with one; the folder appears when it is whole, and another job's is refused.

    Args:
        folder: where it goes.
        job: what it is made from.
        fill: writes into a folder beside it, going on behind what is there.
    """
    if folder.exists():
        _same_job(folder, job)
        return
    growing = folder.with_name(folder.name + ".partial")
    make_folder(growing)
    with lock_folder(growing):
        if (growing / PREPARED).exists():
            _same_job(growing, job)
        _write_facts(growing, job)
        done = Prepared()
        fill(growing, done)
        _write_facts(growing, {**job, "left_out": done.left_out})
        (growing / ".lock").unlink()
        os.replace(growing, folder)


def left_out(folder: str | Path) -> dict[str, int]:
    """Read why episodes are not in a corpus, and how many."""
    told: dict[str, int] = (read_facts(folder) or {}).get("left_out", {})
    return told


def read_facts(folder: str | Path) -> dict[str, Any] | None:
    """Read what a corpus says of itself; None where it says nothing."""
    path = Path(folder) / PREPARED
    if not path.exists():
        return None
    try:
        told = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise BadInput(str(path), "what a corpus was made from (JSON)", f"something else ({error})") from error
    if not isinstance(told, dict):
        raise BadInput(str(path), "what a corpus was made from (JSON)", type(told).__name__)
    return told


def _same_job(folder: Path, job: Mapping[str, Any]) -> None:
    facts = read_facts(folder)
    if facts is None:
        raise BadInput(str(folder), f"no such folder yet, or one that {PREPARED} describes", "another")
    for name, value in job.items():
        if facts.get(name) != value:
            expected = "a corpus of the same data and size (name another folder, or remove this one)"
            raise BadInput(str(folder), expected, _difference(name, facts.get(name), value))


def _difference(name: str, was: Any, now: Any) -> str:
    """Say how a corpus differs from what is asked for."""
    if name == "parts" and isinstance(was, list) and len(was) == len(now):
        changed = [two for one, two in zip(was, now, strict=True) if {**one, LABELS: two[LABELS]} == two != one]
        if len(changed) == sum(one != two for one, two in zip(was, now, strict=True)):
            named = ", ".join(dict.fromkeys(repr(part["name"]) for part in changed))
            return f"one that was made before labels or words in {named} changed"
    return f"{name} {json.dumps(was)}, not {json.dumps(now)}"


def _write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    part = folder / f".{PREPARED}.part"
    part.write_text(json.dumps(dict(facts), indent=1) + "\n", encoding="utf-8")
    os.replace(part, folder / PREPARED)
