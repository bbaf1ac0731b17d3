"""build_corpus: a recipe becomes one dataset folder, stage by stage; each stage goes on where it was.

DEST/                     the corpus: a dataset folder like any other
DEST/composition.md,json  what it is made of, and recipe.yaml; written last
DEST/stages/gathered      the chosen episodes of the sources
DEST/stages/words.json    repaired instructions
DEST/stages/negatives, counterfactuals   what was made of the successes, with every rejected candidate
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.files import lock_folder, write_atomic
from demerit.data.importing import import_dataset
from demerit.data.store import Store
from demerit.errors import BadInput, StoreError
from demerit.negatives.job import ANY, make_negatives
from demerit.training.corpus.composition import Composition, compose_counts
from demerit.training.corpus.composition_table import markdown
from demerit.training.corpus.gathering import Gathered
from demerit.training.corpus.leaks import check_leaks
from demerit.training.corpus.model_at_hand import chat_model, with_model
from demerit.training.corpus.planning import Plan, Progress, make_plan, silent
from demerit.training.corpus.preparing import Prepared, Words
from demerit.training.corpus.recipe import Negatives, Recipe
from demerit.training.corpus.recipe_file import written

if TYPE_CHECKING:
    from demerit.llm import Endpoint
    from demerit.models.gvl import GVLConfig

STAGES, GATHERED, NEGATIVES = "stages", "gathered", "negatives"
NO_MODEL = (
    "counterfactuals are not made: no chat model is set (recipe, chat, or DEMERIT_CHAT_URL and DEMERIT_CHAT_MODEL). "
    "The same command adds them once there is one."
)


@dataclass
class CorpusSummary:
    """What came of a run."""

    composition: Composition | None = None
    """None where a stage before it is not done"""
    added: int = 0
    """episodes that this run wrote"""
    missing: list[str] = field(default_factory=list)
    """sentences: what is not done, and what to do"""
    notes: list[str] = field(default_factory=list)
    problems: list[dict[str, Any]] = field(default_factory=list)
    """of the chosen episodes, a row a kind"""


def build_corpus(
    recipe: Recipe,
    dest: str | Path,
    *,
    chat: Mapping[str, Any] | None = None,
    strict: bool = False,
    progress: Progress = silent,
) -> CorpusSummary:
    """Compose a corpus. Run it again after an interruption and it goes on where it was.

    Args:
        recipe: what to compose.
        dest: the folder to make, or one that an earlier run of the same recipe made.
        chat: options of the chat model, such as budget and concurrency; they win over the recipe and the environment.
        strict: raise at the first problem of the data instead of counting it.
        progress: called with stage, done, expected and a note.
    """
    server, endpoint = chat_model(recipe, chat or {})
    if recipe.clean_up and endpoint is None:
        expected = "a chat model (recipe, chat, or DEMERIT_CHAT_URL and DEMERIT_CHAT_MODEL), because words come first"
        raise BadInput("recipe, clean_up", expected, "none")
    plan = make_plan(recipe, strict, progress)
    plan.refuse_leaks()
    store = _folder(plan, dest)
    stages = store.root / STAGES
    stages.mkdir(exist_ok=True)
    with lock_folder(stages):
        return _Build(plan, store, stages, server, endpoint, strict, progress).run()


@dataclass(eq=False)
class _Build:
    """One run, under the lock of the stages' folder."""

    plan: Plan
    store: Store
    stages: Path
    server: GVLConfig | None
    endpoint: Endpoint | None
    strict: bool
    progress: Progress
    summary: CorpusSummary = field(default_factory=CorpusSummary)
    not_made: Counter[tuple[str, str]] = field(default_factory=Counter)
    spent: float = 0.0

    def run(self) -> CorpusSummary:
        recipe = self.plan.recipe
        gathered = self._gather()
        words = self._repair(gathered) if recipe.clean_up else None
        if recipe.clean_up and words is None:
            return self.summary
        made = []
        if recipe.counterfactuals is not None:
            made.append(self._counterfactuals(gathered, words))
        if recipe.negatives is not None:
            made.append(self._negatives(recipe.negatives, gathered, words))
        self._compose(gathered, words, [one for one in made if one is not None])
        self._finish(gathered)
        return self.summary

    def _gather(self) -> Store:
        recipe, plan = self.plan.recipe, self.plan
        dataset = Dataset(Gathered(recipe, plan.drawn, self.strict), f"corpus {recipe.name} {plan.digest}")
        result = import_dataset(
            dataset,
            self.stages / GATHERED,
            on_progress=lambda now: self.progress("gathering", now.seen, now.expected, ""),
        )
        self.summary.problems = result.problems.rows()
        return Store(self.stages / GATHERED)

    def _prepared(self, gathered: Store, words: Words | None, augmented: bool) -> Prepared:
        only = self.plan.augmented if augmented else None
        return Prepared(self.plan.recipe.name, gathered.episodes, self.plan.splits, words, only)

    def _dataset(self, gathered: Store, words: Words | None) -> Dataset:
        prepared = self._prepared(gathered, words, augmented=True)
        return Dataset(prepared, f"corpus {self.plan.recipe.name} {self.plan.digest}")

    def _repair(self, gathered: Store) -> Words | None:
        assert self.server is not None and self.endpoint is not None
        prepared = self._prepared(gathered, None, augmented=False)
        words, why, spent = with_model().repaired(
            self.plan.recipe,
            prepared,
            self.stages,
            self.server,
            self.endpoint,
            lambda done, expected: self.progress("repairing words", done, expected, ""),
        )
        self._count(spent)
        if why:
            told = f"instructions got no answer ({why}), and everything else waits for them"
            self.summary.missing.append(f"{told}; the same command asks again.")
        return words if isinstance(words, Words) else None

    def _counterfactuals(self, gathered: Store, words: Words | None) -> Store | None:
        part = self.plan.recipe.counterfactuals
        if self.server is None or self.endpoint is None:
            self.summary.missing.append(NO_MODEL)
            return None
        made = with_model().counterfactuals(
            self.plan.recipe,
            part,
            self._dataset(gathered, words),
            self.stages,
            self.server,
            self.endpoint,
            self.spent,
            lambda now: self.progress("counterfactuals", now.finished, now.expected, f"{now.labels} labels"),
        )
        self._count(made.spent)
        self.summary.notes += made.notes
        self.not_made.update({(f"{stage} candidates", WHO[by]): count for (stage, by), count in made.rejected.items()})
        for reason, count in made.unfinished.items():
            told = f"{count} originals have no counterfactuals yet ({reason})"
            self.summary.missing.append(f"{told}; the same command asks again.")
        return Store(self.stages / with_model().COUNTERFACTUALS)

    def _negatives(self, part: Negatives, gathered: Store, words: Words | None) -> Store:
        made = make_negatives(
            self._dataset(gathered, words),
            self.stages / NEGATIVES,
            part.parsed(self.plan.recipe.seed),
            on_progress=lambda now: self.progress("negatives", now.seen, now.expected, ""),
        )
        skipped = {("negatives" if name == ANY else name, why): count for (name, why), count in made.skipped.items()}
        self.not_made.update(skipped)
        return Store(self.stages / NEGATIVES)

    def _compose(self, gathered: Store, words: Words | None, made: list[Store]) -> None:
        """Put everything into one folder; what is there already stays."""
        names: dict[str, str] = {}
        prepared = self._prepared(gathered, words, augmented=False)
        total, done = sum(map(len, (gathered, *made))), 0
        with self.store.writer() as writer:
            for old, episode in _all_of(gathered, prepared, made):
                names[old] = episode.id
                done += 1
                if episode.id not in writer:
                    writer.add(episode)
                    self.summary.added += 1
                self.progress("composing", done, total, "")
            for one in gathered.preferences():
                writer.add(replace(one, a=names[one.a], b=names[one.b]))
            for problem in gathered.problems():
                writer.add(problem)

    def _finish(self, gathered: Store) -> None:
        """Count, check, and write the pages that say what the corpus is."""
        store, recipe = Store(self.store.root), self.plan.recipe
        shares = tuple(recipe.splits.shares) if recipe.splits.by == "task" else ()
        unreadable = Counter(one.episode.partition("/")[0] for one in gathered.problems() if not one.kept)
        composition = Composition(
            recipe.name,
            self.plan.drawn,
            shares,
            preferences=sum(1 for _ in store.preferences()),
            unreadable=unreadable,
            not_made=self.not_made,
            leaks=check_leaks(store.episodes(), recipe.held_out),
            missing=tuple(self.summary.missing),
        )
        self.summary.composition = compose_counts(composition, store.episodes())
        facts = {"recipe": recipe.digest, **composition.facts()}
        write_atomic(store.root / "recipe.yaml", written(recipe).encode())
        write_atomic(store.root / "composition.md", markdown(composition).encode())
        write_atomic(store.root / "composition.json", (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
        empty = [split for split in shares if not composition.total.splits[split]]
        if empty:
            told = f"No task is left for {', '.join(empty)}: tasks that share a video or a recording are not parted."
            self.summary.notes.append(told)

    def _count(self, spent: Any) -> None:
        self.spent += (spent.cost or 0.0) + (spent.unsure_cost or 0.0)
        if spent.requests or spent.from_cache:
            self.summary.notes.append(str(spent))


WHO = {
    "code": "turned down by the rules; written anew while rounds were left",
    "model": "turned down by the strict reader; written anew while rounds were left",
    "answer": "the answer could not be used; asked anew while rounds were left",
}


def _all_of(gathered: Store, prepared: Prepared, made: list[Store]) -> Iterator[tuple[str, Episode]]:
    """Every episode with the name it had when it was gathered."""
    for episode in gathered.episodes():
        yield episode.id, prepared.prepared(episode)
    for store in made:
        yield from ((episode.id, episode) for episode in store.episodes())


def _folder(plan: Plan, dest: str | Path) -> Store:
    source = f"corpus {plan.recipe.name}, {plan.digest}"
    if not Store.is_at(dest):
        licences = sorted({one.source.licence for one in plan.drawn if one.ids and one.source.licence})
        return Store.create(dest, plan.recipe.name, " AND ".join(licences), source=source)
    store = Store(dest)
    held = str(store.manifest.header.get("source") or "something else")
    if held != source:
        own = held.startswith(f"corpus {plan.recipe.name}, {plan.recipe.digest}-")
        why = " of the same recipe, but the sources hold other episodes now" if own else ""
        raise StoreError(dest, f"it holds {held}{why}; choose another folder")
    return store


def dry_run(
    recipe: Recipe, *, chat: Mapping[str, Any] | None = None, strict: bool = False, progress: Progress = silent
) -> tuple[Plan, list[str]]:
    """Say what would be made and what it would cost. Nothing is written and nothing is asked."""
    plan = make_plan(recipe, strict, progress)
    server, _ = chat_model(recipe, chat or {})
    if server is None:
        return plan, []
    episodes = Dataset(Gathered(recipe, plan.drawn, strict))
    everything = Prepared(recipe.name, lambda: iter(episodes), plan.splits)
    augmented = replace(everything, only=plan.augmented)
    return plan, list(with_model().costs(recipe, everything, Dataset(augmented, recipe.name), server))
