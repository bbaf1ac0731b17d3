"""The dataset card: README.md, as hubs show it, and card.html, one file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from demerit.data.episode import Episode
from demerit.data.export import contact_sheet
from demerit.data.files import write_atomic
from demerit.errors import BadEpisode, UnreadableVideo
from demerit.evaluate.reports.page import asset, asset_script, environment, script_hash
from demerit.use.release.charts import failure_chart, outcome_chart, progress_chart
from demerit.use.release.composition import Composition, kinds_of, verdict
from demerit.use.release.licences import hub_id, hub_name
from demerit.use.release.loading import with_demerit, without_demerit
from demerit.use.release.privacy import CHECKLIST, NOT_AUTOMATIC, Removal
from demerit.use.release.settings import CAME_AS
from demerit.use.release.words import lead, licence_words, markdown, tables, technical

TEMPLATE = "release_card.html.j2"
SHEETS, PICTURES, PICTURE = 6, 8, 150
"""contact sheets, pictures on each and their width"""
MOST_LISTED = 2000
"""episodes in the page's table; ORIGINS.csv has all"""
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


@dataclass(frozen=True)
class Sheet:
    """A contact sheet of one episode."""

    file: str
    title: str
    episode: Episode

    def embedded(self, root: Path) -> str:
        """The picture in base64."""
        return base64.b64encode((root / self.file).read_bytes()).decode()


def write_card(
    root: Path, found: Composition, facts: Mapping[str, Any], removal: Removal, episodes: Sequence[Episode]
) -> None:
    """Write the card, its drawings and its contact sheets. Pictures come from the release itself."""
    (root / "card").mkdir(exist_ok=True)
    charts = {"outcomes": outcome_chart(found), "failures": failure_chart(found), "progress": progress_chart(found)}
    for name, drawing in charts.items():
        if drawing:
            write_atomic(root / "card" / f"{name}.svg", str(drawing).encode())
    sheets = _sheets(root, found, episodes)
    write_atomic(root / "README.md", _readme(found, facts, removal, charts, sheets).encode())
    write_atomic(root / "card.html", _page(root, found, facts, removal, charts, sheets, episodes).encode())


def worth_a_look(found: Composition, episodes: Sequence[Episode]) -> list[tuple[str, Episode]]:
    """Choose episodes for contact sheets: one success, then one of each of the most frequent failures."""
    chosen: list[tuple[str, Episode]] = []
    used: set[str] = set()

    def take(title: str, fits: Any) -> None:
        one = next((one for one in episodes if one.id not in used and fits(one)), None)
        if one is not None and len(chosen) < SHEETS:
            used.add(one.id)
            chosen.append((title, one))

    take("success", lambda one: verdict(one) == "success" and not kinds_of(one))
    for kind, _ in found.failures.most_common(SHEETS):
        take(kind, lambda one, kind=kind: kind in kinds_of(one) and verdict(one) != "success")
    take("failure", lambda one: verdict(one) == "failure")
    take("outcome unknown", lambda one: verdict(one) == "unknown")
    return chosen


def _sheets(root: Path, found: Composition, episodes: Sequence[Episode]) -> list[Sheet]:
    made = []
    for number, (title, episode) in enumerate(worth_a_look(found, episodes), start=1):
        file = f"card/sheet-{number}.jpg"
        try:
            contact_sheet(episode, root / file, frames=PICTURES, width=PICTURE)
        except (UnreadableVideo, BadEpisode):
            continue  # the card is about those that can be seen
        made.append(Sheet(file, title, episode))
    return made


def front_matter(found: Composition, facts: Mapping[str, Any]) -> str:
    """Write what hubs read about a dataset."""
    licence, episodes = str(facts["licence"]), found.all.episodes
    about: dict[str, Any] = {"license": hub_name(licence)}
    if about["license"] == "other":
        about["license_name"] = hub_id(licence)
    lerobot = facts["layout"] == "lerobot"
    about |= {
        "pretty_name": found.name,
        "task_categories": ["robotics"],
        "tags": ["robotics", "failures", "reward-models", "demerit", *(["LeRobot"] if lerobot else [])],
        "size_categories": [next((name for most, name in SIZES if episodes < most), "n>1M")],
        "configs": [
            {"config_name": "default", "data_files": "data/*/*.parquet" if lerobot else "episodes/*.parquet"},
        ],
    }
    return f"---\n{yaml.safe_dump(about, sort_keys=False, allow_unicode=True)}---\n"


def _readme(
    found: Composition,
    facts: Mapping[str, Any],
    removal: Removal,
    charts: Mapping[str, Markup],
    sheets: Sequence[Sheet],
) -> str:
    lines = [front_matter(found, facts), f"# {found.name}", "", lead(found, facts), ""]
    lines += [f"> {line}\n" for line in (*facts["licence_doubts"], *facts["leaks"])]
    lines += ["## How the episodes ended", "", "![How the episodes ended](card/outcomes.svg)", ""]
    lines += ["![Kinds of failure](card/failures.svg)", ""] if found.failures or found.unexplained else []
    lines += ["![Final progress](card/progress.svg)", ""] if charts["progress"] else []
    for title, head, rows in tables(found):
        lines += [f"### {title}", "", *markdown(head, rows), ""]
    lines += ["## A look", "", *(f"![{sheet.title}]({sheet.file})\n" for sheet in sheets)]
    lines += ["## Loading", "", "With demerit:", "", f"```python\n{with_demerit()}```", ""]
    lines += ["Without:", "", f"```python\n{without_demerit(str(facts['layout']))}```", ""]
    lines += ["## Licence and origin", "", licence_words(found, facts), ""]
    lines += ["## Privacy", "", "; ".join(removal.headline()) + ".", ""]
    lines += [
        *(f"- {line}" for line in removal.warnings()),
        "",
        "The report and its rules: [PRIVACY.md](PRIVACY.md).",
        "",
    ]
    lines += ["## What this is", "", *(f"- {line}" for line in technical(facts))]
    return "\n".join(lines) + "\n"


def _page(
    root: Path,
    found: Composition,
    facts: Mapping[str, Any],
    removal: Removal,
    charts: Mapping[str, Markup],
    sheets: Sequence[Sheet],
    episodes: Sequence[Episode],
) -> str:
    script = asset_script("tables.js")
    privacy = "; ".join(removal.headline())
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            name=found.name,
            lead=lead(found, facts),
            found=found,
            facts=facts,
            charts=charts,
            tables=tables(found),
            sheets=[(sheet, sheet.embedded(root)) for sheet in sheets],
            warnings=[*facts["licence_doubts"], *facts["leaks"], *removal.warnings()],
            privacy=f"{privacy[:1].upper()}{privacy[1:]}.",
            not_automatic=_items(NOT_AUTOMATIC),
            checklist=[line.removeprefix("[ ] ").replace("`", "") for line in _items(CHECKLIST)],
            licence=licence_words(found, facts),
            technical=technical(facts),
            with_demerit=with_demerit(),
            without_demerit=without_demerit(str(facts["layout"])),
            rows=[_row(one) for one in episodes[:MOST_LISTED]],
            more=max(0, len(episodes) - MOST_LISTED),
            style=asset("style.css"),
            script=script,
            script_hash=script_hash(script),
        )
    )


def _row(episode: Episode) -> dict[str, Any]:
    origin = episode.origin
    return {
        "id": episode.id,
        "instruction": episode.instruction,
        "verdict": verdict(episode),
        "kinds": ", ".join(kinds_of(episode)),
        "split": origin.split,
        "licence": origin.licence,
        "origin": " ".join(filter(None, [origin.dataset, origin.revision])),
        "video": origin.tags.get(CAME_AS, "same file"),
        "frames": len(episode),
    }


def _items(text: str) -> list[str]:
    """The items of a Markdown list, each in one line."""
    return [" ".join(item.split()) for item in text.removeprefix("- ").split("\n- ")]
