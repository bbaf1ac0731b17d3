"""What a card says in words and tables; the README and the page share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from demerit.use.release.composition import Composition
from demerit.use.release.licences import TABLE, spelt

MOST = 20
"""rows of a table that could have thousands"""
HOUR = 3600

Rows = list[list[object]]


def lead(found: Composition, facts: Mapping[str, Any]) -> str:
    """Say in two sentences what this is."""
    said, group = found.all.verdicts, found.all
    counts = {"successes": said["success"], "failures": said["failure"], "of unknown outcome": said["unknown"]}
    parts = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    robots = ", ".join(name for name, _ in found.embodiments.most_common(3) if name != "unknown")
    length = (
        f"{group.hours:.1f} hours" if group.seconds >= HOUR else _number(max(1, round(group.seconds / 60)), "minute")
    )
    tasks = _number(len(group.instructions), "instruction")
    kinds = _number(len(found.failures), "kind") + " of failure marked in time"
    return (
        f"{_number(group.episodes, 'robot episode')} ({parts}), {length}, {tasks}{f', {robots}' if robots else ''}. "
        f"Labels by: {', '.join(sorted(found.vouchers)) or 'nobody'}; {kinds}. Licence: {facts['licence']}."
    )


def tables(found: Composition) -> list[tuple[str, list[str], Rows]]:
    """Return title, heads and rows of the composition tables; those without a row are left out."""
    labels = ("episodes", "success", "failure", "unknown", "graded", "with progress", "with curve")
    vouched: Rows = [[who, *(counts[name] for name in labels)] for who, counts in sorted(found.vouchers.items())]
    grades: Rows = [[grade, found.grades[grade]] for grade in sorted(found.grades)]
    edits = Counter({name or "recorded as it is": count for name, count in found.edits.items()})
    licences: Rows = [[name, _terms(name), count] for name, count in found.licences.most_common()]
    made: list[tuple[str, list[str], Rows]] = [
        ("By dataset and split", [*PARTS], _parts(found)),
        ("By who vouches for it", ["vouched for by", *labels], vouched),
        ("Kinds of failure", ["kind", "episodes"], _counted(found.failures)),
        ("Grades", ["grade", "episodes"], grades),
        ("How they were made", ["edit", "episodes"], _counted(edits) if any(found.edits) else []),
        ("Robots", ["embodiment", "episodes"], _counted(found.embodiments)),
        ("Cameras", ["camera", "episodes"], _counted(found.cameras)),
        ("Licences", ["licence", "terms", "episodes"], licences),
        ("Preferences", ["by", "pairs"], _counted(found.preferences)),
    ]
    return [one for one in made if one[2]]


def licence_words(found: Composition, facts: Mapping[str, Any]) -> str:
    """Say under what this is shared."""
    mixed = ", ".join(f"{name} ({count})" for name, count in found.licences.most_common())
    return (
        f"As a whole under {facts['licence']}; every episode keeps its own ({mixed}). Licence, dataset, revision, "
        f"robot, split, edits and fingerprints of every episode are in ORIGINS.csv."
    )


def technical(facts: Mapping[str, Any]) -> list[str]:
    """Say what the files are."""
    layout = "LeRobot v3.0 (meta/, data/, videos/) with demerit's labels beside (dataset.json, episodes/)"
    videos = ", ".join(f"{count} {how}" for how, count in facts["videos"].items())
    return [
        f"Layout: {layout if facts['layout'] == 'lerobot' else 'demerit folder (dataset.json, episodes/, videos/)'}.",
        f"Schema: release {facts['version']}, dataset {facts['dataset_version']} (release.json, dataset.json).",
        f"Videos against their sources, by episode: {videos}.",
        "Check it: sha256sum -c SHA256SUMS.",
        f"Made with {facts['made_with']}.",
    ]


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Write a table in Markdown, whatever stands in its cells."""
    cells = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in row] for row in rows]
    return [*(f"| {' | '.join(row)} |" for row in ([*head], ["---"] * len(head), *cells))]


PARTS = ("dataset", "split", "episodes", "successes", "failures", "unknown", "instructions", "frames", "hours")


def _parts(found: Composition) -> Rows:
    groups = list(found.parts.items())
    if len(groups) > 1:
        groups.append((("all", ""), found.all))
    return [
        [
            *(dataset, split, group.episodes),
            *(group.verdicts[name] for name in ("success", "failure", "unknown")),
            *(len(group.instructions), group.frames, round(group.hours, 2)),
        ]
        for (dataset, split), group in groups
    ]


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _terms(licence: str) -> str:
    known = TABLE.get(spelt(licence).lower())
    return known.terms if known else "see there"


def _counted(counter: Counter[str]) -> Rows:
    return [[name, count] for name, count in counter.most_common(MOST)]
