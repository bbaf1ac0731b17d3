"""What a corpus is made of, counted by source, split, grade and label source: composition.json and composition.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from demerit.data.episode import Episode
from demerit.data.labels import LABEL_SOURCES
from demerit.data.splits import LeakReport, task_of
from demerit.training.corpus.config import CorpusSource
from demerit.training.corpus.plan import DrawnSource, graded_outcome

GRADES = ("1", "2", "3", "4", "5", "ungraded")
MADE = ("clips", "counterfactuals", "other negatives")
KINDS = ("originals", "human-graded", "simulator-graded", "rule-graded", "model-graded", *MADE)


class CountedEpisode(NamedTuple):
    """What is counted of an episode."""

    source: str
    kind: str
    split: str
    grade: int | None
    label_source: str
    """of the grade; '' for none"""
    edit: str
    """the last edit of a made episode, else ''"""
    embodiment: str
    licence: str


@dataclass
class CorpusCounts:
    """Counts over a corpus."""

    name: str
    drawn: Sequence[DrawnSource]
    splits: Sequence[str]
    """in the config's order"""
    episodes: Counter[CountedEpisode] = field(default_factory=Counter)
    tasks: set[tuple[str, str, str]] = field(default_factory=set)
    """source, split and task of every episode that was not made"""
    due: int = 0
    """episodes that a person has to confirm"""
    preferences: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    """chosen episodes whose videos cannot be read, by source"""
    not_made: Counter[tuple[str, str]] = field(default_factory=Counter)
    """negatives and counterfactuals that could not be made, by name and reason"""
    leaks: LeakReport = field(default_factory=LeakReport)
    missing: Sequence[str] = ()
    """sentences: stages that are not done"""

    def add(self, episode: Episode) -> None:
        """Count one episode."""
        source = next(drawn.source for drawn in self.drawn if drawn.source.name == episode.origin.dataset)
        origin, outcome, kind = episode.origin, graded_outcome(episode), kind_of(episode, source)
        grade, by = (outcome.grade, outcome.source) if outcome else (None, "")
        edit = episode.edits[-1].name if kind in MADE else ""
        row = CountedEpisode(source.name, kind, origin.split, grade, by, edit, origin.embodiment, origin.licence)
        self.episodes[row] += 1
        self.due += "human_check" in origin.tags
        if kind not in MADE:
            self.tasks.add((source.name, origin.split, task_of(episode)))

    def count(self, column: str, **where: Hashable) -> Counter[Any]:
        """Count episodes by a column, among those with the given values: `count("grade", split="test")`."""
        found: Counter[Any] = Counter()
        for row, number in self.episodes.items():
            if all(getattr(row, name) == value for name, value in where.items()):
                found[getattr(row, column)] += number
        return found

    @property
    def total(self) -> int:
        """The number of episodes."""
        return self.episodes.total()

    def grades(self) -> dict[str, Counter[int | None]]:
        """The grades of the chosen episodes, of each kind in the corpus, and of all in it: before and after."""
        drawn = sum((source.grades for source in self.drawn), Counter[int | None]())
        kinds = {kind: self.count("grade", kind=kind) for kind in KINDS}
        return {
            "drawn": drawn,
            **{kind: found for kind, found in kinds.items() if found},
            "corpus": self.count("grade"),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values. Equal corpora give equal results."""
        splits = [*self.splits, *sorted(set(self.count("split")) - set(self.splits))]
        by_source = {who: self.count("split", label_source=who) for who in (*LABEL_SOURCES, "")}
        return {
            "name": self.name,
            "sources": {drawn.source.name: self._describe_source(drawn) for drawn in self.drawn},
            "total": self._describe(),
            "splits": {
                split: {
                    "examples": self.count("split")[split],
                    "tasks": len({task for _, where, task in self.tasks if where == split}),
                    "grades": _name_grades(self.count("grade", split=split)),
                }
                for split in splits
            },
            "vouched_by": {
                who or "nobody": {split: counts[split] for split in splits}
                for who, counts in by_source.items()
                if counts
            },
            "grades": {name: _name_grades(counts) for name, counts in self.grades().items()},
            "human_check_due": self.due,
            "preferences": self.preferences,
            "not_made": [[*what, count] for what, count in sorted(self.not_made.items())],
            "leak_check": self.leaks.as_dict(),
            "missing": list(self.missing),
        }

    def _describe(self, **where: Hashable) -> dict[str, Any]:
        edits = self.count("edit", **where)
        del edits[""]
        return {
            "examples": self.count("kind", **where).total(),
            "tasks": len({task for source, _, task in self.tasks if where.get("source", source) == source}),
            "kinds": _sort(self.count("kind", **where)),
            "splits": _sort(self.count("split", **where)),
            "grades": _name_grades(self.count("grade", **where)),
            "negatives": _sort(edits),
            "embodiments": sorted(filter(None, self.count("embodiment", **where))),
            "licences": _sort(self.count("licence", **where)),
        }

    def _describe_source(self, drawn: DrawnSource) -> dict[str, Any]:
        skipped = _sort(drawn.skipped)
        if self.unreadable[drawn.source.name]:
            skipped["its video cannot be read"] = self.unreadable[drawn.source.name]
        return {
            "role": drawn.source.role,
            "about": drawn.source.about,
            "found": drawn.found,
            "usable": drawn.usable,
            "drawn": len(drawn.ids),
            "over_the_cap": drawn.over,
            "left_out": skipped,
            **self._describe(source=drawn.source.name),
        }

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The main table: its header, and a row per source with the sum as the last row."""
        facts = self.as_dict()
        total, splits = facts["total"], list(facts["splits"])
        kinds = [kind for kind in KINDS if kind in total["kinds"]]
        grades = [name for name in GRADES if name != "ungraded" or name in total["grades"]]
        header = ["source", "embodiment", "tasks", *kinds, "all", *(split or "no split" for split in splits)]
        header += [name if name == "ungraded" else f"grade {name}" for name in grades]
        rows = []
        for name, row in (*facts["sources"].items(), ("all", {**total, "embodiments": []})):
            numbers = [row["tasks"], *(row["kinds"].get(kind, 0) for kind in kinds), row["examples"]]
            numbers += [row["splits"].get(split, 0) for split in splits]
            numbers += [row["grades"].get(grade, 0) for grade in grades]
            rows.append([name, ", ".join(row["embodiments"]), *(f"{number:,}" for number in numbers)])
        return header, rows

    def markdown(self) -> str:
        """Write composition.md."""
        facts = self.as_dict()
        splits = [split or "no split" for split in facts["splits"]]
        counts = (
            f"{row['examples']:,} {split or 'no split'} ({row['tasks']} tasks)"
            for split, row in facts["splits"].items()
        )
        labels = [[who, *(f"{count:,}" for count in row.values())] for who, row in facts["vouched_by"].items()]
        header = ["source", "role", "licence", "found", "usable", "drawn", "skipped", "about"]
        lines = [f"# {self.name}: what it is made of", ""]
        lines += [line for sentence in self.missing for line in (f"**Not done yet:** {sentence}", "")]
        lines += [f"{self.total:,} examples: {', '.join(counts)}.", "", *_format_table(*self.table())]
        rows = [[name, *(f"{row.get(grade, 0):,}" for grade in GRADES)] for name, row in facts["grades"].items()]
        lines += ["", "## Grades before and after", "", *_format_table(["episodes", *GRADES], rows)]
        lines += ["", "## Label sources of the grades", "", *_format_table(["label source", *splits], labels)]
        if self.due:
            lines += ["", f"{self.due:,} examples of evaluation splits need a person's check (tag `human_check`)."]
        sources = [_source_row(drawn, facts["sources"][drawn.source.name]) for drawn in self.drawn]
        lines += ["", "## Sources", "", *_format_table(header, sources)]
        if self.not_made:
            missed = [[name, reason, f"{count:,}"] for (name, reason), count in self.not_made.most_common()]
            lines += ["", "## Not made", "", *_format_table(["what", "reason", "times"], missed)]
        lines += ["", "## Leak check", "", *(f"- **{sentence}**" for sentence in self.leaks.leaks)]
        if not self.leaks.leaks:
            lines.append("- No task, video, recording or original is in two splits.")
        return "\n".join([*lines, *(f"- {sentence}" for sentence in self.leaks.remarks)]) + "\n"


def _source_row(drawn: DrawnSource, facts: dict[str, Any]) -> list[str]:
    reasons = [f"{count:,} {reason}" for reason, count in facts["left_out"].items()]
    reasons += [f"{drawn.over:,} over the cap"] if drawn.over else []
    role = drawn.source.role if drawn.source.role == "successes" else f"graded by {drawn.source.vouched_by}"
    licences = ", ".join(name or "unknown" for name in facts["licences"])
    numbers = [f"{facts[name]:,}" for name in ("found", "usable", "drawn")]
    return [drawn.source.name, role, licences, *numbers, "; ".join(reasons), drawn.source.about]


def kind_of(episode: Episode, source: CorpusSource) -> str:
    """Where an episode's label comes from: a row of KINDS."""
    edit = episode.edits[-1].name if episode.edits else "reworded"  # `reworded` only repairs an instruction
    if edit != "reworded":
        return {"clip": "clips", "counterfactual": "counterfactuals"}.get(edit, "other negatives")
    return "originals" if source.role == "successes" else f"{source.vouched_by}-graded"


def _name_grades(counts: Counter[int | None]) -> dict[str, int]:
    named = {str(grade or "ungraded"): count for grade, count in counts.items()}
    return {name: named[name] for name in GRADES if name in named}


def _sort(counts: dict[str, int]) -> dict[str, int]:
    return {name: counts[name] for name in sorted(counts)}


def _format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in line) + " |" for line in lines]
