"""build_corpus: a config becomes one dataset folder, stage by stage. Every stage is resumable.

DEST/                              the corpus: a dataset folder like any other
DEST/composition.md, .json         what it is made of; DEST/recipe.yaml: its config. Written last
DEST/stages/gathered               the chosen episodes of the sources
DEST/stages/negatives, counterfactuals   what was made of the successes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demerit.data.dataset import Dataset, ListReader
from demerit.data.files import lock_folder, write_atomic, write_json
from demerit.data.importing import import_dataset
from demerit.data.splits import check_leaks
from demerit.data.store import Store, open_or_create
from demerit.llm import ChatClient, ChatOptions
from demerit.negatives.job import ANY, make_negatives
from demerit.negatives.mix import Mix
from demerit.registry import load_attribute
from demerit.training.corpus.config import CorpusConfig, format_config
from demerit.training.corpus.counts import CorpusCounts
from demerit.training.corpus.plan import CorpusPlan, CorpusReader, StageProgress, make_plan, open_held_out

if TYPE_CHECKING:
    from demerit.negatives.relabel import RelabelConfig, RelabelSummary

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
    licences = sorted({drawn.source.licence for drawn in plan.drawn if drawn.ids and drawn.source.licence})
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
            made: RelabelSummary = relabel(dataset, dest, client, config, on_progress=show)
        self.summary.notes.append(str(made.spent))
        for (stage, by), count in made.rejected.items():
            self.counts.not_made[f"{stage} candidates", REJECTED_BY[by]] += count
        for reason, count in made.unfinished.items():
            sentence = f"{count} originals have no counterfactuals yet ({reason}); run the same command again."
            self.summary.missing.append(sentence)
        return Store(dest)

    def _make_negatives(self, dataset: Dataset, mix: Mix) -> Store:
        dest = self.stages / "negatives"
        made = make_negatives(
            dataset, dest, mix, on_progress=lambda now: self.on_progress("negatives", now.seen, now.expected, "")
        )
        for (name, reason), count in made.skipped.items():
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
