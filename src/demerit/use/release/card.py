"""The dataset card: README.md, as hubs show it, and card.html, one page that loads nothing else."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from demerit.data.episode import Episode
from demerit.data.export import contact_sheet
from demerit.data.files import write_atomic
from demerit.data.labels import Preference
from demerit.errors import BadEpisode, UnreadableVideo
from demerit.evaluate.reports.page import asset, asset_script, environment, script_hash
from demerit.use.release.fields import ReleaseFields
from demerit.use.release.licences import TERMS, hub_licence
from demerit.use.release.video import VideoSource

VERDICTS = {True: "success", False: "failure", None: "unknown"}
BINS = 10
SHEETS, SHEET_IMAGES, IMAGE_WIDTH = 6, 8, 150
README_ROWS, PAGE_ROWS = 20, 2000
"""most rows of a long table in README.md and card.html; ORIGINS.csv has all"""
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
SECONDS_PER_HOUR = 3600

Table = tuple[str, Sequence[str], list[list[Any]]]
"""title, column names, rows"""
Bars = list[tuple[str, Counter[str]]]
"""label to count by verdict"""


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
    listed = {
        "facts": facts,
        "lead": _lead(facts, episodes),
        "privacy": describe_privacy(facts, fields),
        "tables": count_tables(episodes, preferences),
        "instructions": _count_instructions(episodes, fields.texts),
        "sheets": sheets,
        "with_demerit": asset("release_load_demerit.txt"),
        "without_demerit": asset(f"release_load_{facts['layout']}.txt"),
    }
    readme = environment().get_template("release_readme.md.j2")
    text = readme.render(**listed, front=Markup(_front_matter(facts)), most=README_ROWS, cell=_markdown_cell)
    write_atomic(root / "README.md", text.encode())
    script = asset_script("tables.js")
    page = environment().get_template("release_card.html.j2")
    text = page.render(
        **listed,
        most=PAGE_ROWS,
        images=[base64.b64encode((root / sheet["file"]).read_bytes()).decode() for sheet in sheets],
        charts=count_charts(episodes),
        rows=[_row(episode, made) for episode in episodes[:PAGE_ROWS]],
        more=max(0, len(episodes) - PAGE_ROWS),
        style=asset("style.css"),
        script=script,
        script_hash=script_hash(script),
    )
    write_atomic(root / "card.html", text.encode())


def verdict_of(episode: Episode) -> str:
    """Return success, failure or unknown, by the most trusted label."""
    return VERDICTS[None if episode.outcome is None else episode.outcome.success]


def failure_kinds(episode: Episode) -> list[str]:
    """Return the kinds of failure that the most trusted label with events names, each once."""
    labels = [outcome for outcome in (episode.outcome, *episode.outcomes) if outcome and outcome.events]
    return list(dict.fromkeys(event.kind for event in labels[0].events)) if labels else []


def count_tables(episodes: Sequence[Episode], preferences: Iterable[Preference]) -> list[Table]:
    """Count what is in a release; tables without rows are left out."""
    parts: dict[tuple[str, str], list[Episode]] = {}
    for episode in episodes:
        parts.setdefault((episode.origin.dataset or "unknown", episode.origin.split or "none"), []).append(episode)
    if len(parts) > 1:
        parts["all", ""] = list(episodes)
    columns = ("episodes", *VERDICTS.values(), "instructions", "frames", "hours")
    labels = [outcome for episode in episodes for outcome in episode.outcomes]
    licences = Counter(episode.origin.licence for episode in episodes)
    tables: list[Table] = [
        (
            "By dataset and split",
            ("dataset", "split", *columns),
            [[*key, *_count(part)] for key, part in parts.items()],
        ),
        ("Labels", ("source", "by", "labels"), _rows((label.source, label.by or "not named") for label in labels)),
        ("Kinds of failure", ("kind", "episodes"), _rows((kind,) for e in episodes for kind in failure_kinds(e))),
        ("Grades", ("grade", "episodes"), _rows((e.outcome.grade,) for e in episodes if e.outcome and e.outcome.grade)),
        ("Edits", ("edits", "episodes"), _rows(("; ".join(x.name for x in e.edits),) for e in episodes if e.edits)),
        (
            "Robots",
            ("embodiment", "episodes"),
            _rows((episode.origin.embodiment or "unknown",) for episode in episodes),
        ),
        ("Cameras", ("camera", "episodes"), _rows((camera,) for episode in episodes for camera in episode.views)),
        ("Signals", ("signal", "episodes"), _rows((signal,) for episode in episodes for signal in episode.signals)),
        ("Licences", ("licence", "terms", "episodes"), _rows((k, TERMS.get(k, "")) for k in licences.elements())),
        ("Preferences", ("source", "by", "pairs"), _rows((pair.source, pair.by) for pair in preferences)),
    ]
    return [table for table in tables if table[2]]


def count_charts(episodes: Sequence[Episode]) -> list[tuple[str, int, Bars]]:
    """Count episodes for the bar charts: title, longest bar, and bars of verdicts."""
    parts: dict[str, Counter[str]] = {"all": Counter(map(verdict_of, episodes))}
    progress: dict[int, Counter[str]] = {}
    kinds: Counter[str] = Counter()
    for episode in episodes:
        part = ", ".join(filter(None, (episode.origin.dataset, episode.origin.split))) or "unknown"
        counts = parts.setdefault(part, Counter())
        counts[verdict_of(episode)] += 1
        kinds.update(failure_kinds(episode) or (["not given"] if verdict_of(episode) == "failure" else []))
        if episode.outcome is not None and episode.outcome.progress is not None:
            place = min(BINS - 1, int(episode.outcome.progress * BINS))
            progress.setdefault(place, Counter())[verdict_of(episode)] += 1
    bins = [(f"{n / BINS:.1f} to {(n + 1) / BINS:.1f}", progress.get(n, Counter())) for n in range(BINS)]
    charts: dict[str, Bars] = {
        "Success and failure": list(parts.items())[: README_ROWS if len(parts) > 2 else 1],  # noqa: PLR2004
        "Kinds of failure": [(kind, Counter(failure=count)) for kind, count in kinds.most_common(README_ROWS)],
        "Final progress": bins if progress else [],
    }
    return [(title, max(counts.total() for _, counts in bars), bars) for title, bars in charts.items() if bars]


def describe_privacy(facts: Mapping[str, Any], fields: ReleaseFields) -> list[str]:
    """State what is included, dropped and kept verbatim. Dropped fields are counted, not named."""
    dropped = Counter(name.partition(".")[0] for name in +fields.dropped)
    counts = [
        f"{number} {kind}" if kind != "notes" else f"{fields.dropped['notes']} notes"
        for kind, number in dropped.items()
    ]
    pixels = [f"{facts['masks']} masks"] if facts["masks"] else []
    pixels += [f"a mosaic in {facts['blurred_frames']} frames"] if facts["blurred"] else []
    texts = [f"{facts['replaced']} replaced by the owner"] if facts["replaced"] else []
    texts += ["passed through the owner's own scrubber"] if facts["scrubbed"] else []
    return [
        f"Instructions: {', '.join(texts) or 'verbatim'}. All of them are listed on this card.",
        "Also verbatim: names of datasets, robots, splits, cameras, signals, kinds of failure, and of the programs and "
        "models that made labels; success, progress, grades, curves and events.",
        f"Numbered: episode ids, recordings and {len(fields.annotators.given)} annotators.",
        f"Kept verbatim on request: {', '.join(facts['kept']) or 'nothing'}.",
        f"Dropped: {', '.join(counts) or 'nothing'}.",
        "Videos: the image stream alone, without sound, metadata or frames that no episode shows.",
        f"Pixels: {', '.join(pixels) or 'not changed; whatever a camera saw is in it'}.",
    ]


def _lead(facts: Mapping[str, Any], episodes: Sequence[Episode]) -> str:
    verdicts = Counter(map(verdict_of, episodes))
    names = {"success": "successes", "failure": "failures", "unknown": "of unknown outcome"}
    parts = ", ".join(f"{verdicts[key]} {name}" for key, name in names.items() if verdicts[key])
    seconds = sum(float(times[-1]) for times in (episode.main.times() for episode in episodes) if len(times))
    length = f"{seconds / SECONDS_PER_HOUR:.1f} hours" if seconds >= SECONDS_PER_HOUR else f"{seconds / 60:.1f} minutes"
    instructions = len({episode.instruction for episode in episodes})
    sources = ", ".join(sorted({label.source for episode in episodes for label in episode.outcomes})) or "none"
    return (
        f"{len(episodes)} robot episodes ({parts}), {length}, {instructions} instructions. Label sources: {sources}. "
        f"Licence: {facts['licence']}."
    )


def _count(episodes: Sequence[Episode]) -> list[object]:
    verdicts = Counter(map(verdict_of, episodes))
    times = [episode.main.times() for episode in episodes]
    seconds = sum(float(moments[-1]) for moments in times if len(moments))
    instructions = len({episode.instruction for episode in episodes})
    frames, hours = sum(map(len, times)), round(seconds / SECONDS_PER_HOUR, 2)
    return [len(episodes), *(verdicts[name] for name in VERDICTS.values()), instructions, frames, hours]


def _count_instructions(episodes: Sequence[Episode], texts: Iterable[str]) -> list[list[Any]]:
    """Count every released instruction, also those that only an edit mentions."""
    counts = Counter(episode.instruction for episode in episodes)
    return [*map(list, counts.most_common()), *([text, 0] for text in sorted(set(texts) - set(counts)))]


def _rows(keys: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    return [[*key, count] for key, count in Counter(keys).most_common()]


def _row(episode: Episode, made: Mapping[str, VideoSource]) -> dict[str, Any]:
    return {
        "episode": episode,
        "verdict": verdict_of(episode),
        "kinds": ", ".join(failure_kinds(episode)),
        "video": made[episode.id],
    }


def _write_sheets(root: Path, episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Draw contact sheets: a success, one episode per frequent kind of failure, an unknown outcome."""
    frequent = Counter(kind for episode in episodes for kind in failure_kinds(episode)).most_common(SHEETS)
    wanted = ["success", *(kind for kind, _ in frequent), "failure", "unknown"]
    sheets: list[dict[str, Any]] = []
    for title in wanted:
        used = {sheet["episode"].id for sheet in sheets}
        fitting = (e for e in episodes if e.id not in used and title in (verdict_of(e), *failure_kinds(e)))
        episode = next(fitting, None)
        if episode is None or len(sheets) == SHEETS:
            continue
        file = f"card/sheet-{len(sheets) + 1}.jpg"
        try:
            contact_sheet(episode, root / file, frames=SHEET_IMAGES, width=IMAGE_WIDTH)
        except (UnreadableVideo, BadEpisode):
            continue
        sheets.append({"file": file, "title": title, "episode": episode})
    return sheets


def _front_matter(facts: Mapping[str, Any]) -> str:
    """Write what hubs read about a dataset."""
    is_lerobot = facts["layout"] == "lerobot"
    size = next((name for most, name in SIZES if facts["episodes"] < most), "n>1M")
    about = {
        **hub_licence(facts["licence"]),
        "pretty_name": facts["name"],
        "task_categories": ["robotics"],
        "tags": ["robotics", "failures", "reward-models", "demerit", *(["LeRobot"] if is_lerobot else [])],
        "size_categories": [size],
        "configs": [
            {"config_name": "default", "data_files": "data/*/*.parquet" if is_lerobot else "episodes/*.parquet"}
        ],
    }
    return yaml.safe_dump(about, sort_keys=False, allow_unicode=True)


def _markdown_cell(value: object) -> Markup:
    """Make a value safe inside a Markdown table."""
    text = " ".join(str(value).split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return Markup(text)
