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

GRADES: tuple[int | None, ...] = (1, 2, 3, 4, 5, None)
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
        source = next(one.source for one in self.drawn if one.source.name == episode.origin.dataset)
        origin, outcome, kind = episode.origin, graded_outcome(episode), kind_of(episode, source)
        grade, by = (outcome.grade, outcome.source) if outcome else (None, "")
        edit = episode.edits[-1].name if kind in MADE else ""
        counted = CountedEpisode(source.name, kind, origin.split, grade, by, edit, origin.embodiment, origin.licence)
        self.episodes[counted] += 1
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

    @property
    def split_names(self) -> list[str]:
        """The config's splits, then others that the sources have."""
        return [*self.splits, *sorted(set(self.count("split")) - set(self.splits))]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values. Equal corpora give equal results."""
        by_label_source = {
            who or "nobody": {split: self.count("split", label_source=who)[split] for split in self.split_names}
            for who in (*LABEL_SOURCES, "")
            if self.count("label_source")[who]
        }
        return {
            "name": self.name,
            "sources": {one.source.name: self._source_facts(one) for one in self.drawn},
            "total": self._facts(),
            "splits": {
                split: {
                    "examples": self.count("split")[split],
                    "tasks": self._count_tasks(split=split),
                    "grades": _name_grades(self.count("grade", split=split)),
                }
                for split in self.split_names
            },
            "vouched_by": by_label_source,
            "human_check_due": self.due,
            "preferences": self.preferences,
            "not_made": [[*what, count] for what, count in sorted(self.not_made.items())],
            "leak_check": self.leaks.as_dict(),
            "missing": list(self.missing),
        }

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The main table: its header, and a row per source with the sum as the last row."""
        kinds = [kind for kind in KINDS if self.count("kind")[kind]]
        grades = [grade for grade in GRADES if grade is not None or self.count("grade")[None]]
        header = ["source", "embodiment", "tasks", *kinds, "all", *(split or "no split" for split in self.split_names)]
        header += ["ungraded" if grade is None else f"grade {grade}" for grade in grades]
        rows = []
        for name in (*(one.source.name for one in self.drawn), ""):
            where = {"source": name} if name else {}
            if not self.count("source")[name] and name:
                continue
            numbers = [self._count_tasks(name), *(self.count("kind", **where)[kind] for kind in kinds)]
            numbers.append(self.count("kind", **where).total())
            numbers += [self.count("split", **where)[split] for split in self.split_names]
            numbers += [self.count("grade", **where)[grade] for grade in grades]
            robots = ", ".join(sorted(filter(None, self.count("embodiment", **where)))) if name else ""
            rows.append([name or "all", robots, *(f"{number:,}" for number in numbers)])
        return header, rows

    def markdown(self) -> str:
        """Write composition.md."""
        facts, splits = self.as_dict(), [split or "no split" for split in self.split_names]
        lines = [f"# {self.name}: what it is made of", ""]
        lines += [line for sentence in self.missing for line in (f"**Not done yet:** {sentence}", "")]
        counts = (
            f"{self.count('split')[split]:,} {split or 'in no split'} ({self._count_tasks(split=split)} tasks)"
            for split in self.split_names
        )
        lines += [f"{self.total:,} examples: {', '.join(counts)}.", "", *_format_table(*self.table()), ""]
        lines += ["## Label sources of the grades", ""]
        rows = [[who, *(f"{count:,}" for count in by.values())] for who, by in facts["vouched_by"].items()]
        lines += _format_table(["label source", *splits], rows)
        if self.due:
            lines += ["", f"{self.due:,} examples of evaluation splits need a person's check (tag `human_check`)."]
        header = ["source", "role", "licence", "found", "usable", "drawn", "skipped", "about"]
        rows = [self._source_row(one, facts["sources"][one.source.name]) for one in self.drawn]
        lines += ["", "## Sources", "", *_format_table(header, rows)]
        if self.not_made:
            reasons = sorted(self.not_made.items(), key=lambda item: (-item[1], item[0]))
            rows = [[name, reason, f"{count:,}"] for (name, reason), count in reasons]
            lines += ["", "## Not made", "", *_format_table(["what", "reason", "times"], rows)]
        lines += ["", "## Leak check", "", *(f"- **{sentence}**" for sentence in self.leaks.leaks)]
        if not self.leaks.leaks:
            lines.append("- No task, video, recording or original is in two splits.")
        return "\n".join([*lines, *(f"- {sentence}" for sentence in self.leaks.remarks)]) + "\n"

    def _facts(self, **where: Hashable) -> dict[str, Any]:
        return {
            "examples": self.count("kind", **where).total(),
            "tasks": self._count_tasks(str(where.get("source", ""))),
            "kinds": _sort(self.count("kind", **where)),
            "splits": _sort(self.count("split", **where)),
            "grades": _name_grades(self.count("grade", **where)),
            "negatives": _sort({name: n for name, n in self.count("edit", **where).items() if name}),
            "embodiments": sorted(filter(None, self.count("embodiment", **where))),
            "licences": _sort(self.count("licence", **where)),
        }

    def _source_facts(self, drawn: DrawnSource) -> dict[str, Any]:
        skipped = dict(sorted(drawn.skipped.items()))
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
            **self._facts(source=drawn.source.name),
        }

    def _source_row(self, drawn: DrawnSource, facts: dict[str, Any]) -> list[str]:
        reasons = [f"{count:,} {reason}" for reason, count in facts["left_out"].items()]
        reasons += [f"{drawn.over:,} over the cap"] if drawn.over else []
        role = drawn.source.role if drawn.source.role == "successes" else f"graded by {drawn.source.vouched_by}"
        licences = ", ".join(name or "unknown" for name in facts["licences"])
        numbers = [f"{number:,}" for number in (drawn.found, drawn.usable, len(drawn.ids))]
        return [drawn.source.name, role, licences, *numbers, "; ".join(reasons), drawn.source.about]

    def _count_tasks(self, source: str = "", split: str | None = None) -> int:
        found = {task for of, where, task in self.tasks if source in ("", of) and split in (None, where)}
        return len(found)


def kind_of(episode: Episode, source: CorpusSource) -> str:
    """Where an episode's label comes from: a row of KINDS."""
    edit = episode.edits[-1].name if episode.edits else "reworded"  # `reworded` only repairs an instruction
    if edit != "reworded":
        return {"clip": "clips", "counterfactual": "counterfactuals"}.get(edit, "other negatives")
    return "originals" if source.role == "successes" else f"{source.vouched_by}-graded"


def _name_grades(counts: Counter[int | None]) -> dict[str, int]:
    return {"ungraded" if grade is None else str(grade): counts[grade] for grade in GRADES if counts[grade]}


def _sort(counts: dict[str, int]) -> dict[str, int]:
    return {name: counts[name] for name in sorted(counts)}


def _format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in line) + " |" for line in lines]
