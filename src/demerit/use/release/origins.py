"""ORIGINS.csv: licence and origin of every episode, for people and for tools that know nothing of demerit."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from demerit.data.episode import Episode
from demerit.data.files import write_atomic
from demerit.use.release.settings import CAME_AS, CAME_FROM

ORIGINS = "ORIGINS.csv"
COLUMNS = (
    *("episode", "licence", "dataset", "revision", "embodiment", "site", "split", "recorded_with", "made_from"),
    *("edits", "success", "vouched_by", "video", "fingerprint", "fingerprint_of_source"),
)


def write_origins(root: Path, episodes: Iterable[Episode]) -> None:
    """Write a row an episode."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in episodes:
        origin, outcome, fingerprint = one.origin, one.outcome, one.fingerprint()
        success = None if outcome is None else outcome.success
        writer.writerow(
            [
                *(
                    one.id,
                    origin.licence,
                    origin.dataset,
                    origin.revision,
                    origin.embodiment,
                    origin.site,
                    origin.split,
                ),
                *(origin.group, origin.parent, "; ".join(edit.name for edit in one.edits)),
                {True: "yes", False: "no", None: ""}[success],
                outcome.source if outcome else "",
                origin.tags.get(CAME_AS, "same file"),
                fingerprint,
                # Not told where words were removed: a hash of them would give them back to whoever guesses.
                origin.tags.get(CAME_FROM, "" if CAME_AS in origin.tags else fingerprint),
            ]
        )
    write_atomic(root / ORIGINS, text.getvalue().encode())
