"""relabel: a dataset of successes becomes a folder of views with graded commands, through a chat model.

Originals are settled one by one, many at a time, and written in the source's order. An interruption at any point loses
nothing that was paid for: answers are cached as they arrive, records are durable before the episodes they stand for.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from demerit.data.dataset import Dataset, Problem, Problems
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.splits import SplitAssigner, describe_leaks, find_leaks
from demerit.data.store import Store, StoreWriter
from demerit.errors import NotApplicable, StoreError, UnreadableVideo
from demerit.llm import ChatClient, Endpoint, Spending
from demerit.negatives.job import assumed
from demerit.negatives.mix import Mix, Originals
from demerit.negatives.negative import is_success, succeeded
from demerit.negatives.relabel.asking import Asking
from demerit.negatives.relabel.chain import Chain, Unanswered
from demerit.negatives.relabel.journal import Journal
from demerit.negatives.relabel.looking import Looker
from demerit.negatives.relabel.record import Record
from demerit.negatives.relabel.settings import RelabelSettings
from demerit.negatives.relabel.views import DUE, HUMAN_CHECK, made_of
from demerit.negatives.relabel.wording import prompt_version

ANSWERS = "answers.sqlite"
AHEAD = 4
"""originals under way for each request that may be: some of them wait for their turn to be written"""
NO_INSTRUCTION = "it has no instruction"


@dataclass
class RelabelSummary:
    """How far the job is, and what came of it. Counts include what an earlier run of the same job made."""

    expected: int | None = None
    seen: int = 0
    """episodes looked at"""
    finished: int = 0
    """episodes that nothing more is done about: settled, left unanswered, or not used"""
    originals: int = 0
    """successes that were chosen"""
    settled: int = 0
    """originals with a record: labels, or the reasons why there are none"""
    asked_now: int = 0
    """originals that this run settled; the others were settled before"""
    over: int = 0
    """successes left unused because their dataset has enough"""
    commands: Counter[int] = field(default_factory=Counter)
    """accepted commands by grade"""
    clips: Counter[int] = field(default_factory=Counter)
    """accepted clips by grade"""
    reworded: int = 0
    """originals whose instruction was repaired"""
    kept: int = 0
    """originals in the folder"""
    added: int = 0
    """episodes that this run wrote"""
    to_check: int = 0
    """episodes of the test split, which a person has to confirm"""
    splits: Counter[str] = field(default_factory=Counter)
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    """candidates that were turned down, by stage and by whom: code, model, answer"""
    skipped: Counter[str] = field(default_factory=Counter)
    """episodes that nothing could be made of, by reason"""
    unfinished: Counter[str] = field(default_factory=Counter)
    """originals that got no answer, by reason; the same command asks for them again"""
    leaks: list[str] = field(default_factory=list)
    """tasks, videos and recordings that the source's own splits cut through (split='source')"""
    stopped: str = ""
    """why nothing was sent any more: the budget, a refused key, a dead server"""
    notes: list[str] = field(default_factory=list)
    spent: Spending = field(default_factory=Spending)
    problems: Problems = field(default_factory=Problems)

    @property
    def labels(self) -> int:
        """Commands and clips that were accepted."""
        return self.commands.total() + self.clips.total()


def relabel(
    source: Dataset | str | Path,
    dest: str | Path,
    *,
    endpoint: Endpoint,
    cache: Path | None = None,
    concurrency: int = 8,
    budget: float | None = None,
    timeout: float = 120.0,
    tries: int = 6,
    more_tokens: int = 0,
    settings: RelabelSettings | None = None,
    progress: Callable[[RelabelSummary], None] | None = None,
) -> RelabelSummary:
    """Write commands that a dataset's successes fail, with grades, and have each checked.

    Args:
        source: what to read, or where it is; it is read twice.
        dest: the folder to make, or one that an earlier run of the same job made.
        endpoint: where the model answers, and which.
        cache: the file of answers; None = answers.sqlite in the folder.
        concurrency: how many requests may be under way at once.
        budget: dollars to spend at most; needs both prices.
        timeout: seconds for one whole answer.
        tries: how often a request may fail before its question is given up.
        more_tokens: added to the limit of every answer, for models that think first.
        settings: what to make.
        progress: called after every episode that is finished.
    """
    settings = settings or RelabelSettings()
    dataset = source if isinstance(source, Dataset) else open_dataset(source)
    summary = RelabelSummary(dataset.expected(), problems=dataset.problems)
    assigner = SplitAssigner() if settings.split == "task" else None
    chosen = choose(dataset, settings, summary, assigner)
    store = _folder(dataset, dest, _recipe(dataset, settings, endpoint))
    answers = cache or store.root / ANSWERS
    with (
        store.writer() as writer,
        Journal(store.root) as journal,
        ChatClient(endpoint, answers, concurrency, budget, timeout, tries) as chat,
    ):
        dataset.on_problem = writer.add
        splits = None
        if assigner is not None:
            splits = assigner.assign(settings.shares, settings.seed, only=chosen, kept=journal.splits)
        asking = Asking(settings.temperature, more_tokens)
        run = _Run(dataset, settings, chat, journal, writer, summary, asking, splits)
        # Closed here, not when somebody collects it: threads must be gone before their client is.
        with closing(run.through(chosen)) as steps:
            for _ in steps:
                if progress is not None:
                    progress(summary)
    return summary


def choose(
    dataset: Dataset, settings: RelabelSettings, summary: RelabelSummary, assigner: SplitAssigner | None = None
) -> set[str]:
    """Read a dataset once and choose the originals: successes with an instruction, so many of each dataset.

    Args:
        dataset: what to read.
        settings: what counts as a success, and how many are used.
        summary: gets what the source's own splits cut through, where these are kept.
        assigner: gets every success.
    """
    originals = Originals(Mix({"clip": 1.0}, settings.seed, per_dataset=settings.per_dataset))
    seen: list[Episode] = []
    for episode in dataset:
        told = assumed(episode, settings.assume_success)
        if not told.instruction.strip():
            continue
        originals.add(told)
        if assigner is not None and is_success(told):
            assigner.add(told)
        if settings.split == "source":
            seen.append(told)
    summary.leaks = describe_leaks(find_leaks(seen))
    return originals.ids


@dataclass(eq=False)
class _Run:
    """One pass over a dataset."""

    dataset: Dataset
    settings: RelabelSettings
    chat: ChatClient
    journal: Journal
    writer: StoreWriter
    summary: RelabelSummary
    asking: Asking
    splits: Mapping[str, str] | None
    """by id; None = as the source has it"""

    def through(self, chosen: set[str]) -> Generator[None, None, None]:
        """Settle the chosen ones and write what follows, in the dataset's order; yields after every episode."""
        settings, model, version = self.settings, self.chat.endpoint.model, prompt_version()
        looker = Looker(settings.fps, settings.most_pictures, settings.size)
        waiting: deque[tuple[Episode, Record | Future[Record]]] = deque()
        pool, finished = ThreadPoolExecutor(self.chat.concurrency), False
        try:
            for episode in self.dataset:
                told = assumed(episode, settings.assume_success)
                known = self._known(told) if self._is_due(told, chosen) else None
                if known is not None:
                    waiting.append((told, known))
                elif told.id in chosen and self.chat.stopped:
                    # Nothing is decoded for questions that nobody will be asked.
                    self.summary.unfinished[f"not asked: {self.chat.stopped}"] += 1
                    self.summary.finished += 1
                    yield
                elif told.id in chosen:
                    chain = Chain(told, self.chat.ask, looker, settings, self.asking, model, version)
                    waiting.append((told, pool.submit(chain.run)))
                else:
                    self.summary.finished += 1
                    yield
                while len(waiting) >= AHEAD * self.chat.concurrency or (waiting and _is_ready(waiting[0][1])):
                    self._write(*waiting.popleft())
                    self.summary.finished += 1
                    yield
            while waiting:
                self._write(*waiting.popleft())
                self.summary.finished += 1
                yield
            finished = True
        finally:
            # Leaving early sends nothing more; what is under way is waited for, because it is paid for.
            if not finished:
                self.chat.stop("interrupted")
            pool.shutdown(wait=True, cancel_futures=True)
            self._tell()
        yield

    def _is_due(self, episode: Episode, chosen: set[str]) -> bool:
        self.summary.seen += 1
        if episode.id in chosen:
            self.summary.originals += 1
            return True
        try:
            succeeded(episode)
        except NotApplicable as no:
            self.summary.skipped[no.reason] += 1
            return False
        if episode.instruction.strip():
            self.summary.over += 1
        else:
            self.summary.skipped[NO_INSTRUCTION] += 1
        return False

    def _known(self, episode: Episode) -> Record | None:
        record = self.journal.get(episode.id)
        if record is not None and record.fingerprint != episode.fingerprint():
            sentence = f"episode {episode.id!r} has changed since it was relabelled there; choose another folder"
            raise StoreError(self.writer.root, sentence)
        return record

    def _write(self, episode: Episode, settled: Record | Future[Record]) -> None:
        """Write one original's record, then its episodes."""
        try:
            record = settled if isinstance(settled, Record) else settled.result()
        except Unanswered as why:
            self.summary.unfinished[str(why)] += 1
            return
        except NotApplicable as no:
            self.summary.skipped[no.reason] += 1
            return
        except UnreadableVideo as error:
            problem = Problem("unreadable video", episode.id, f"{error.path}: {error.reason}", kept=False)
            self.dataset.report(problem)
            return
        split = episode.origin.split if self.splits is None else self.splits[episode.id]
        if not isinstance(settled, Record):
            self.journal.add(replace(record, split=split))
            self.summary.asked_now += 1
        self._count(record)
        for made in made_of(record, episode, split, self.settings.keep_originals):
            self.summary.splits[split] += 1
            self.summary.to_check += made.origin.tags.get(HUMAN_CHECK) == DUE
            if made.id not in self.writer:
                self.writer.add(made)
                self.summary.added += 1

    def _count(self, record: Record) -> None:
        summary = self.summary
        summary.settled += 1
        summary.commands.update(list(record.commands))
        summary.clips.update(list(record.clips))
        summary.reworded += record.words != record.instruction
        summary.kept += self.settings.keep_originals
        summary.rejected.update((one.stage, one.checked_by) for one in record.rejected)

    def _tell(self) -> None:
        self.summary.spent, self.summary.stopped = self.chat.spent, self.chat.stopped
        self.summary.notes = list(self.chat.notes)


def _is_ready(settled: Record | Future[Record]) -> bool:
    return isinstance(settled, Record) or settled.done()


def _recipe(dataset: Dataset, settings: RelabelSettings, endpoint: Endpoint) -> str:
    """All that decides what is in the folder, in one line: a run that differs in any of it is another job."""
    facts = json.dumps(settings.facts(), sort_keys=True)
    return f"counterfactuals of {dataset.address} by {endpoint.model}, {prompt_version()}: {facts}"


def _folder(dataset: Dataset, dest: str | Path, recipe: str) -> Store:
    if not Store.is_at(dest):
        licence = dataset.reader.manifest.header.get("licence", "") if isinstance(dataset.reader, Store) else ""
        return Store.create(dest, f"{dataset.name}-counterfactuals", licence, source=recipe)
    store = Store(dest)
    if store.manifest.header.get("source") != recipe:
        raise StoreError(dest, f"it holds {store.manifest.header.get('source') or 'something else'}; choose another")
    return store
