"""Trials as a RoboArena dataset, which `demerit import roboarena:FOLDER` reads back."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import yaml

from demerit.data.episode import safe_name
from demerit.data.files import atomic_folder
from demerit.data.formats.roboarena import SESSIONS
from demerit.use.arena.trials import Trials


def export_roboarena(trials: Trials, dest: Path) -> int:
    """Write the trials that count; A ran first. Videos are linked where the disk allows it. Return how many trials."""
    rows = [row for row in trials.rows() if not row.excluded]
    with atomic_folder(dest) as folder:
        for row in rows:
            session = folder / SESSIONS / row.id
            for letter, part in (("A", "first"), ("B", "second")):
                place = session / f"{letter}_{safe_name(getattr(row, f'{part}_name'))}"
                place.mkdir(parents=True)
                for camera, path in trials.uploads.files(row.id, part).items():
                    _link(path, place / f"{camera}.mp4")
            _write(session / "metadata.yaml", _metadata(row))
        _write(folder / "global_metadata.yaml", {"policy_index": {name: {} for name in trials.policies()}})
    return len(rows)


def _metadata(row: sa.Row[Any]) -> dict[str, Any]:
    times = [datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") for at in (row.started, row.ended)]
    return {
        "language_instruction": row.instruction,
        "preference": {"first": "A", "second": "B"}.get(row.verdict, "TIE"),
        "longform_feedback": row.feedback,
        "evaluator_name": row.site_name,
        "evaluation_location": row.site_name,
        "session_creation_timestamp": times[0],
        "session_completion_timestamp": times[1],
        "policies": {
            letter: {
                "policy_name": getattr(row, f"{part}_name"),
                "binary_success": int(getattr(row, f"{part}_success")),
                "partial_success": getattr(row, f"{part}_progress"),
            }
            for letter, part in (("A", "first"), ("B", "second"))
        },
    }


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copyfile(source, target)


def _write(path: Path, facts: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(facts, allow_unicode=True, sort_keys=False), encoding="utf-8")
