"""build_corpus: a config becomes one dataset folder, stage by stage. Every stage is resumable.

DEST/                              the corpus: a dataset folder like any other
DEST/composition.md, .json         what it is made of; DEST/recipe.yaml: its config. Written last
DEST/stages/gathered               the chosen episodes of the sources
DEST/stages/negatives, counterfactuals   what was made of the successes

The plan says what a config comes to before anything is written: which episodes, with which labels, in which splits, and
leaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import LABEL_SOURCES, Episode
from demerit.data.files import lock_folder, write_atomic, write_json
from demerit.data.importing import import_dataset
from demerit.data.splits import LeakReport, check_leaks, task_of
from demerit.data.store import Store, open_or_create
from demerit.llm import ChatClient, ChatOptions
from demerit.negatives.job import ANY, make_negatives
from demerit.negatives.mix import Mix
from demerit.negatives.relabel import RelabelConfig
from demerit.registry import load_attribute
from demerit.training.corpus.config import (
    CorpusConfig,
    CorpusPlan,
    CorpusReader,
    CorpusSource,
    DrawnSource,
    StageProgress,
    format_config,
    graded_outcome,
    make_plan,
    open_held_out,
)

if TYPE_CHECKING:
    from demerit.negatives.relabel import RelabelSummary

GRADES = ("1", "2", "3", "4", "5", "ungraded")
MADE = ("clips", "counterfactuals", "other negatives")
KINDS = ("originals", "human-graded", "simulator-graded", "rule-graded", "model-graded", *MADE)


COLUMNS = ("source", "kind", "split", "grade", "label_source", "edit", "embodiment", "licence")
"""what is counted of an episode; `label_source` is that of the grade, `edit` the last one of a made episode, else ''"""


@dataclass
class CorpusCounts:
    """Counts over a corpus."""

    name: str
    drawn: Sequence[DrawnSource]
    splits: Sequence[str]
    """in the config's order"""
    episodes: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    """by their values in COLUMNS"""
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
        source = next(sample.source for sample in self.drawn if sample.source.name == episode.origin.dataset)
        origin, outcome, kind = episode.origin, graded_outcome(episode), kind_of(episode, source)
        grade, by = (outcome.grade, outcome.source) if outcome else (None, "")
        edit = episode.edits[-1].name if kind in MADE else ""
        self.episodes[source.name, kind, origin.split, grade, by, edit, origin.embodiment, origin.licence] += 1
        self.due += episode.check == "due"
        if kind not in MADE:
            self.tasks.add((source.name, origin.split, task_of(episode)))

    def count(self, column: str, **where: Hashable) -> Counter[Any]:
        """Count episodes by a column, among those with the given values: `count("grade", split="test")`."""
        counts: Counter[Any] = Counter()
        for row, number in self.episodes.items():
            facts = dict(zip(COLUMNS, row, strict=True))
            if where.items() <= facts.items():
                counts[facts[column]] += number
        return counts

    @property
    def total(self) -> int:
        """The number of episodes."""
        return self.episodes.total()

    def grades(self) -> dict[str, Counter[int | None]]:
        """The grades of the chosen episodes, of each kind in the corpus, and of all in it: before and after."""
        total = sum((source.grades for source in self.drawn), Counter[int | None]())
        kinds = {kind: self.count("grade", kind=kind) for kind in KINDS}
        return {
            "drawn": total,
            **{kind: grades for kind, grades in kinds.items() if grades},
            "corpus": self.count("grade"),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values. Equal corpora give equal results."""
        splits = [*self.splits, *sorted(set(self.count("split")) - set(self.splits))]
        by_source = {who: self.count("split", label_source=who) for who in (*LABEL_SOURCES, "")}
        return {
            "name": self.name,
            "sources": {sample.source.name: self._describe_source(sample) for sample in self.drawn},
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

    def _describe_source(self, sample: DrawnSource) -> dict[str, Any]:
        skipped = _sort(sample.skipped)
        if self.unreadable[sample.source.name]:
            skipped["its video cannot be read"] = self.unreadable[sample.source.name]
        return {
            "role": sample.source.role,
            "about": sample.source.about,
            "found": sample.found,
            "usable": sample.usable,
            "drawn": len(sample.ids),
            "over_the_cap": sample.over,
            "left_out": skipped,
            **self._describe(source=sample.source.name),
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
        sources = [_source_row(sample, facts["sources"][sample.source.name]) for sample in self.drawn]
        lines += ["", "## Sources", "", *_format_table(header, sources)]
        if self.not_made:
            missed = [[name, reason, f"{count:,}"] for (name, reason), count in self.not_made.most_common()]
            lines += ["", "## Not made", "", *_format_table(["what", "reason", "times"], missed)]
        lines += ["", "## Leak check", "", *(f"- **{sentence}**" for sentence in self.leaks.leaks)]
        if not self.leaks.leaks:
            lines.append("- No task, video, recording or original is in two splits.")
        return "\n".join([*lines, *(f"- {sentence}" for sentence in self.leaks.remarks)]) + "\n"


def _source_row(sample: DrawnSource, facts: dict[str, Any]) -> list[str]:
    reasons = [f"{count:,} {reason}" for reason, count in facts["left_out"].items()]
    reasons += [f"{sample.over:,} over the cap"] if sample.over else []
    role = f"graded by {sample.source.vouched_by}" if sample.source.role == "graded" else sample.source.role
    licences = ", ".join(name or "unknown" for name in facts["licences"])
    numbers = [f"{facts[name]:,}" for name in ("found", "usable", "drawn")]
    return [sample.source.name, role, licences, *numbers, "; ".join(reasons), sample.source.about]


def kind_of(episode: Episode, source: CorpusSource) -> str:
    """Where an episode's label comes from: a row of KINDS."""
    edit = episode.edits[-1].name if episode.edits else "reworded"  # `reworded` only repairs an instruction
    if edit != "reworded":
        return {"clip": "clips", "counterfactual": "counterfactuals"}.get(edit, "other negatives")
    return f"{source.vouched_by}-graded" if source.role == "graded" else "originals"


def _name_grades(counts: Counter[int | None]) -> dict[str, int]:
    named = {str(grade or "ungraded"): count for grade, count in counts.items()}
    return {name: named[name] for name in GRADES if name in named}


def _sort(counts: dict[str, int]) -> dict[str, int]:
    return {name: counts[name] for name in sorted(counts)}


def _format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in line) + " |" for line in lines]


NO_MODEL = (
    "counterfactuals: no chat model is set (`chat` in the recipe, or DEMERIT_CHAT_URL and DEMERIT_CHAT_MODEL). "
    "Set one and run the same command again to add them."
)
REJECTED_BY = {"code": "rejected by the rules", "model": "rejected by the validator", "answer": "unusable answer"}


@dataclass
class CorpusSummary:
    """What a run made."""

    counts: CorpusCounts
    added: int = 0
    """episodes that this run wrote"""
    missing: list[str] = field(default_factory=list)
    """sentences: what is not done, and what to do"""
    notes: list[str] = field(default_factory=list)
    problems: list[dict[str, Any]] = field(default_factory=list)
    """of the chosen episodes, a row per kind"""


def build_corpus(
    config: CorpusConfig,
    dest: str | Path,
    *,
    chat: Mapping[str, Any] | None = None,
    strict: bool = False,
    on_progress: StageProgress = lambda *_: None,
) -> CorpusSummary:
    """Build a corpus. The same call resumes it after an interruption.

    Args:
        config: what to build.
        dest: the folder to make, or one that an earlier run of the same config made.
        chat: options of the chat model; they override the config and the environment.
        strict: raise at the first problem of the data instead of counting it.
        on_progress: called with stage, done, expected and a note.
    """
    client = _open_client(config, chat or {})
    plan = make_plan(config, strict, on_progress)
    plan.refuse_leaks()
    licences = sorted({sample.source.licence for sample in plan.drawn if sample.ids and sample.source.licence})
    store = open_or_create(dest, config.name, " AND ".join(licences), f"corpus {config.name}, {plan.digest}")
    stages = store.root / "stages"
    stages.mkdir(exist_ok=True)
    with lock_folder(stages):
        return _Build(plan, store, stages, client, strict, on_progress).run()


def estimate_cost(plan: CorpusPlan, chat: Mapping[str, Any] | None = None, strict: bool = False) -> str:
    """Estimate what the chat model would cost, as text. Nothing is written or sent."""
    client = _open_client(plan.config, chat or {})
    if plan.config.counterfactuals is None:
        return "no chat model is needed"
    if client is None:
        return f"cost unknown; {NO_MODEL}"
    estimate = load_attribute("demerit.negatives.relabel.job:estimate", "A chat model")
    reader = CorpusReader(plan.config, plan.drawn, plan.splits, strict, plan.augmented)
    with client:
        config = plan.config.counterfactuals.parse(plan.config.seed)
        originals, cost = estimate(Dataset(reader, plan.config.name), client, config)
    return f"counterfactuals of {originals} originals, if every first answer is accepted: {cost}"


@dataclass(eq=False)
class _Build:
    """One run, under the lock of the stages' folder."""

    plan: CorpusPlan
    store: Store
    stages: Path
    client: ChatClient | None
    strict: bool
    on_progress: StageProgress

    def run(self) -> CorpusSummary:
        config = self.plan.config
        splits = tuple(config.splits.shares) if config.splits.by == "task" else ()
        self.counts = CorpusCounts(config.name, self.plan.drawn, splits)
        self.summary = CorpusSummary(self.counts)
        gathered = self._gather()
        episodes = [episode for episode in gathered.episodes() if episode.origin.dataset in self.plan.augmented]
        augmented = Dataset(ListReader(config.name, episodes), self._address)
        parts = [gathered]
        if config.counterfactuals is not None and self.client is None:
            self.summary.missing.append(NO_MODEL)
        elif config.counterfactuals is not None and self.client is not None:
            parts.append(self._make_counterfactuals(augmented, self.client, config.counterfactuals.parse(config.seed)))
        if config.negatives is not None:
            parts.append(self._make_negatives(augmented, config.negatives.parse(config.seed)))
        self._compose(parts)
        self._write_counts(gathered)
        return self.summary

    @property
    def _address(self) -> str:
        return f"corpus {self.plan.config.name} {self.plan.digest}"

    def _gather(self) -> Store:
        reader = CorpusReader(self.plan.config, self.plan.drawn, self.plan.splits, self.strict)
        result = import_dataset(
            Dataset(reader, self._address),
            self.stages / "gathered",
            on_progress=lambda now: self.on_progress("gathering", now.seen, now.expected, ""),
        )
        self.summary.problems = result.problems.rows()
        return Store(self.stages / "gathered")

    def _make_counterfactuals(self, dataset: Dataset, client: ChatClient, config: RelabelConfig) -> Store:
        relabel = load_attribute("demerit.negatives.relabel.job:relabel", "A chat model")
        dest = self.stages / "counterfactuals"

        def show(now: RelabelSummary) -> None:
            self.on_progress("counterfactuals", now.finished, now.expected, f"{now.labels} labels")

        with client:
            result: RelabelSummary = relabel(dataset, dest, client, config, on_progress=show)
        self.summary.notes.append(str(result.spent))
        for (stage, by), count in result.rejected.items():
            self.counts.not_made[f"{stage} candidates", REJECTED_BY[by]] += count
        for reason, count in result.unfinished.items():
            sentence = f"{count} originals have no counterfactuals yet ({reason}); run the same command again."
            self.summary.missing.append(sentence)
        return Store(dest)

    def _make_negatives(self, dataset: Dataset, mix: Mix) -> Store:
        dest = self.stages / "negatives"
        result = make_negatives(
            dataset, dest, mix, on_progress=lambda now: self.on_progress("negatives", now.seen, now.expected, "")
        )
        for (name, reason), count in result.skipped.items():
            self.counts.not_made["negatives" if name == ANY else name, reason] += count
        return Store(dest)

    def _compose(self, parts: list[Store]) -> None:
        """Copy the records of all stages into one folder; what is there stays."""
        total, done = sum(map(len, parts)), 0
        with self.store.writer() as writer:
            for part in parts:
                for episode in part.episodes():
                    done += 1
                    if episode.id not in writer:
                        writer.add(episode)
                        self.summary.added += 1
                    self.on_progress("composing", done, total, "")
            for preference in parts[0].preferences():
                writer.add(preference)
            for problem in parts[0].problems():
                writer.add(problem)

    def _write_counts(self, gathered: Store) -> None:
        store, config, counts = Store(self.store.root), self.plan.config, self.counts
        for problem in gathered.problems():
            counts.unreadable[problem.episode.partition("/")[0]] += not problem.kept
        counts.preferences = sum(1 for _ in store.preferences())
        counts.missing = tuple(self.summary.missing)
        episodes = list(store.episodes())
        counts.leaks = check_leaks(episodes, open_held_out(config))
        for episode in episodes:
            counts.add(episode)
        write_atomic(store.root / "recipe.yaml", format_config(config).encode())
        write_atomic(store.root / "composition.md", counts.markdown().encode())
        write_json(store.root / "composition.json", {"recipe": config.digest, **counts.as_dict()})
        empty = [split for split in counts.splits if not counts.count("split")[split]]
        if empty:
            sentence = f"{', '.join(empty)}: empty, because tasks that share a video or recording stay in one split"
            self.summary.notes.append(sentence)


def _open_client(config: CorpusConfig, changes: Mapping[str, Any]) -> ChatClient | None:
    """Create the client of the chat model; None where none is needed or set."""
    if config.counterfactuals is None:
        return None
    load_attribute("demerit.negatives.relabel.job:relabel", "A chat model")  # needs the extra: fail now
    chat = ChatOptions.read(
        "", {**config.chat, **{name: value for name, value in changes.items() if value is not None}}
    )
    return chat.client() if chat.url and chat.model else None
