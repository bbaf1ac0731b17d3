"""The dataset card: README.md, as hubs show it, and card.html, one page that loads nothing else."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from demerit.data.episode import Episode, Preference
from demerit.data.export import contact_sheet
from demerit.data.files import write_atomic
from demerit.errors import BadEpisode, UnreadableVideo
from demerit.use.release.config import TERMS, ReleaseFields, hub_licence
from demerit.use.release.video import VideoSource
from demerit.web.pages import asset, fill, render

VERDICTS = {True: "success", False: "failure", None: "unknown"}
BINS = 10
SHEETS, SHEET_IMAGES, IMAGE_WIDTH = 6, 8, 150
README_ROWS, PAGE_ROWS = 20, 2000
"""most rows of a long table in README.md and card.html; ORIGINS.csv has all"""
SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}
SECONDS_PER_HOUR = 3600

Table = tuple[str, Sequence[str], list[list[Any]]]
"""title, column names, rows"""


def write_card(
    root: Path,
    facts: Mapping[str, Any],
    episodes: Sequence[Episode],
    preferences: Sequence[Preference],
    fields: ReleaseFields,
    made: Mapping[str, VideoSource],
) -> None:
    """Write README.md, card.html and contact sheets of some episodes."""
    (root / "card").mkdir(exist_ok=True)
    sheets = _write_sheets(root, episodes)
    counts = Counter(episode.instruction for episode in episodes)
    # Dropped fields are counted, not named.
    dropped = Counter(name.partition(".")[0] for name in +fields.dropped)
    privacy = fill("release_privacy.txt", facts=facts, fields=fields, dropped=dropped)
    values: dict[str, Any] = {
        "facts": facts,
        "episodes": episodes,
        "made": made,
        "lead": _lead(facts, episodes),
        "privacy": [Markup(line) for line in privacy.splitlines()],
        "tables": count_tables(episodes, preferences),
        # Some instructions are only in the parameters of an edit.
        "instructions": [*counts.most_common(), *((text, 0) for text in sorted(fields.texts - set(counts)))],
        "sheets": sheets,
        "images": [base64.b64encode((root / file).read_bytes()).decode() for file, _, _ in sheets],
        "with_demerit": asset("release_load_demerit.txt"),
        "without_demerit": asset(f"release_load_{facts['layout']}.txt"),
        "licence_fields": hub_licence(facts["licence"]),
        "size": next((name for most, name in SIZES.items() if len(episodes) < most), "n>1M"),
        "verdict_of": verdict_of,
        "failure_kinds": failure_kinds,
        "cell": _markdown_cell,
    }
    write_atomic(root / "README.md", fill("release_readme.md.j2", **values, most=README_ROWS).encode())
    write_atomic(root / "card.html", render("release_card.html.j2", **values, most=PAGE_ROWS).encode())


def verdict_of(episode: Episode) -> str:
    """Return success, failure or unknown, by the most trusted label."""
    return VERDICTS[None if episode.outcome is None else episode.outcome.success]


def failure_kinds(episode: Episode) -> list[str]:
    """Return the kinds of failure that the most trusted label with events names, each once."""
    labels = [outcome for outcome in (episode.outcome, *episode.labels) if outcome and outcome.events]
    return list(dict.fromkeys(event.kind for event in labels[0].events)) if labels else []


def count_tables(episodes: Sequence[Episode], preferences: Iterable[Preference]) -> list[Table]:
    """Count what is in a release; tables without rows are skipped."""
    parts: dict[tuple[str, str], list[Episode]] = {}
    progress: dict[int, list[Episode]] = {}
    for episode in episodes:
        parts.setdefault((episode.origin.dataset or "unknown", episode.origin.split or "none"), []).append(episode)
        if episode.outcome is not None and episode.outcome.progress is not None:
            progress.setdefault(min(BINS - 1, int(episode.outcome.progress * BINS)), []).append(episode)
    if len(parts) > 1:
        parts["all", ""] = list(episodes)
    bins = [[f"{n / BINS:.1f} to {(n + 1) / BINS:.1f}", *_verdicts(progress.get(n, ()))] for n in range(BINS)]
    labels = [(label.source, label.by or "not named") for episode in episodes for label in episode.labels]
    grades = (episode.outcome.grade for episode in episodes if episode.outcome)
    licences = ((episode.origin.licence, TERMS.get(episode.origin.licence, "")) for episode in episodes)
    columns = ("dataset", "split", *VERDICTS.values(), "instructions", "frames", "hours")
    tables: list[Table] = [
        ("Episodes", columns, [[*key, *_verdicts(part), *_size(part)] for key, part in parts.items()]),
        ("Final progress", ("progress", *VERDICTS.values()), bins if progress else []),
        ("Kinds of failure", ("kind", "episodes"), _rows((kind,) for e in episodes for kind in failure_kinds(e))),
        ("Labels", ("source", "by", "labels"), _rows(labels)),
        ("Grades", ("grade", "episodes"), _rows((grade,) for grade in grades if grade)),
        ("Edits", ("edits", "episodes"), _rows(("; ".join(x.name for x in e.edits),) for e in episodes if e.edits)),
        ("Robots", ("embodiment", "episodes"), _rows((e.origin.embodiment or "unknown",) for e in episodes)),
        ("Cameras", ("camera", "episodes"), _rows((camera,) for episode in episodes for camera in episode.views)),
        ("Signals", ("signal", "episodes"), _rows((signal,) for episode in episodes for signal in episode.signals)),
        ("Licences", ("licence", "terms", "episodes"), _rows(licences)),
        ("Preferences", ("source", "by", "pairs"), _rows((pair.source, pair.by) for pair in preferences)),
    ]
    return [table for table in tables if table[2]]


def _lead(facts: Mapping[str, Any], episodes: Sequence[Episode]) -> str:
    names = ("successes", "failures", "of unknown outcome")
    parts = ", ".join(f"{count} {name}" for count, name in zip(_verdicts(episodes), names, strict=True) if count)
    instructions, frames, hours = _size(episodes)
    sources = ", ".join(sorted({label.source for episode in episodes for label in episode.labels})) or "none"
    length = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    return (
        f"{len(episodes)} robot episodes ({parts}), {frames} frames, {length}, {instructions} instructions. "
        f"Label sources: {sources}. Licence: {facts['licence']}."
    )


def _verdicts(episodes: Iterable[Episode]) -> list[int]:
    counts = Counter(map(verdict_of, episodes))
    return [counts[name] for name in VERDICTS.values()]


def _size(episodes: Sequence[Episode]) -> list[float]:
    """Count instructions, frames and hours."""
    times = [episode.main.times() for episode in episodes]
    seconds = sum(float(moments[-1]) for moments in times if len(moments))
    instructions = len({episode.instruction for episode in episodes})
    return [instructions, sum(map(len, times)), round(seconds / SECONDS_PER_HOUR, 3)]


def _rows(keys: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    return [[*key, count] for key, count in Counter(keys).most_common()]


def _write_sheets(root: Path, episodes: Sequence[Episode]) -> list[tuple[str, str, Episode]]:
    """Draw contact sheets (file, title, episode): a success, frequent kinds of failure, an unknown outcome."""
    frequent = Counter(kind for episode in episodes for kind in failure_kinds(episode)).most_common(SHEETS)
    sheets: dict[str, tuple[str, str, Episode]] = {}
    for title in ("success", *(kind for kind, _ in frequent), "failure", "unknown"):
        fitting = (e for e in episodes if e.id not in sheets and title in (failure_kinds(e) or [verdict_of(e)]))
        episode = next(fitting, None)
        if episode is None or len(sheets) == SHEETS:
            continue
        file = f"card/sheet-{len(sheets) + 1}.jpg"
        try:
            contact_sheet(episode, root / file, frames=SHEET_IMAGES, width=IMAGE_WIDTH)
        except (UnreadableVideo, BadEpisode):
            continue
        sheets[episode.id] = (file, title, episode)
    return list(sheets.values())


def _markdown_cell(value: object) -> Markup:
    """Make a value safe inside a Markdown table."""
    return Markup(" ".join(str(value).split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;"))
