"""relabel: a dataset of successes becomes a folder of episodes with graded commands, through a chat model.

Originals are processed in parallel and written in the source's order. Every answer is cached as it arrives, so a run
that was interrupted, killed or out of budget is resumed by the same call: it asks only what was not answered yet.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from demerit.data.dataset import Dataset, Problem, Problems
from demerit.data.episode import Check, Episode, Outcome, read_check, with_check
from demerit.data.files import atomic_file
from demerit.data.formats import open_dataset
from demerit.data.splits import SplitAssigner, describe_leaks, find_leaks, is_evaluation_split, seed_of
from demerit.data.store import Store, StoreWriter, open_or_create
from demerit.errors import NotApplicable, StoreError, UnreadableVideo
from demerit.llm import ChatClient, ChatRequest, Estimate, Spending
from demerit.negatives import load_negative
from demerit.negatives.job import with_assumed_success
from demerit.negatives.mix import choose_originals
from demerit.negatives.negative import is_success, require_success
from demerit.negatives.relabel import prompts
from demerit.negatives.relabel.chain import Candidate, RelabelChain, RelabelRecord, Unanswered
from demerit.negatives.relabel.config import RelabelConfig
from demerit.negatives.relabel.prompts import Analysis, FailureIdea, prompt_version, sample_frames

RECORDS = "relabelled.jsonl"
AHEAD = 4
"""originals in progress per concurrent request: some wait for their turn to be written"""
FILLER = "word " * 12
"""stands for a text that is not written yet"""


@dataclass
class RelabelSummary:
    """Progress and result. Counts include what an earlier run of the same job made."""

    expected: int | None = None
    finished: int = 0
    """episodes that need nothing more in this run"""
    originals: int = 0
    """successes that were chosen"""
    settled: int = 0
    """originals with labels, or with the reasons why there are none"""
    over: int = 0
    """successes not used because their dataset has enough"""
    commands: Counter[int] = field(default_factory=Counter)
    """accepted commands by grade"""
    clips: Counter[int] = field(default_factory=Counter)
    """accepted clips by grade"""
    kept: int = 0
    """originals in the folder"""
    added: int = 0
    """episodes that this run wrote"""
    to_check: int = 0
    """episodes of evaluation splits, which a person has to confirm"""
    splits: Counter[str] = field(default_factory=Counter)
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    """candidates by stage and who rejected them: code, model, answer"""
    skipped: Counter[str] = field(default_factory=Counter)
    """episodes that could not be used, by reason"""
    unfinished: Counter[str] = field(default_factory=Counter)
    """originals without an answer, by reason; the same call asks again"""
    leaks: list[str] = field(default_factory=list)
    """what the source's own splits share (split='source')"""
    spent: Spending = field(default_factory=Spending)
    validator_spent: Spending | None = None
    """what a validator of its own cost"""
    problems: Problems = field(default_factory=Problems)

    @property
    def labels(self) -> int:
        """Accepted commands and clips."""
        return self.commands.total() + self.clips.total()


def relabel(
    source: Dataset | str | Path,
    dest: str | Path,
    client: ChatClient,
    config: RelabelConfig | None = None,
    *,
    validator: ChatClient | None = None,
    on_progress: Callable[[RelabelSummary], None] = lambda summary: None,
) -> RelabelSummary:
    """Write graded commands that a dataset's successes fail, and validate each.

    Args:
        source: the dataset, or where it is; it is read twice.
        dest: the folder to make, or one that an earlier run of the same job made.
        client: the chat model. Give it a cache file: that is what makes the job resumable without paying twice.
        config: what to make.
        validator: a second model that grades what the first one wrote; None = the first one does.
        on_progress: called after every episode that is finished.
    """
    config = config or RelabelConfig()
    dataset = source if isinstance(source, Dataset) else open_dataset(source)
    summary = RelabelSummary(dataset.expected(), problems=dataset.problems)
    assigner = SplitAssigner()
    ids = _choose(dataset, config, summary, assigner)
    # The header holds all that decides the content: a folder of another job is refused.
    facts = json.dumps(asdict(config), sort_keys=True)
    models = client.endpoint.model + (f", validated by {validator.endpoint.model}" if validator else "")
    job = f"counterfactuals of {dataset.address} by {models}, {prompt_version()}: {facts}"
    licence = dataset.reader.manifest.header.get("licence", "") if isinstance(dataset.reader, Store) else ""
    store = open_or_create(dest, f"{dataset.name}-counterfactuals", licence, job)
    with store.writer() as writer:
        for stale in store.root.glob(f".{RECORDS}.*.part"):  # of a run that was killed
            stale.unlink()
        dataset.on_problem = writer.add
        table = Store(store.root).columns(["id", "parent", "split", "tags"]).to_pylist()
        checks = {row["id"]: read_check(dict(row["tags"])) for row in table}
        written = {row["parent"] or row["id"]: row["split"] for row in table}
        splits = None
        if config.split == "task":
            splits = assigner.assign(config.shares, config.seed, only=ids, kept=written)
        with atomic_file(store.root / RECORDS) as partial, partial.open("wb") as log:
            clients = (client, validator)
            _RelabelRun(
                dataset, config, *clients, writer, log, summary, ids, splits, written, checks, on_progress
            ).run()
    return summary


def estimate(dataset: Dataset, client: ChatClient, config: RelabelConfig | None = None) -> tuple[int, Estimate]:
    """Count the originals, and estimate the cost if every first answer is accepted. Nothing is sent.

    Frames are decoded to learn their size. Rejected answers cost more: up to `config.rounds` attempts each.
    """
    config = config or RelabelConfig()
    ids = _choose(dataset, config, RelabelSummary(), SplitAssigner())

    def requests() -> Iterator[ChatRequest]:
        for episode in _assume(dataset, config):
            if episode.id in ids:
                try:
                    yield from _first_requests(episode, config)
                except (NotApplicable, UnreadableVideo):
                    continue

    return len(ids), client.estimate(requests())


def read_records(folder: str | Path) -> Iterator[RelabelRecord]:
    """Stream the records of a relabelled folder, with every rejected candidate and its reason."""
    path = Path(folder) / RECORDS
    if not path.is_file():
        raise StoreError(folder, f"there is no {RECORDS} in it")
    names = {field.name for field in fields(RelabelRecord)}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            facts = {name: value for name, value in json.loads(line).items() if name in names}
            candidates = tuple(Candidate(**candidate) for candidate in facts["candidates"])
            yield RelabelRecord(**{**facts, "candidates": candidates})


def _assume(dataset: Dataset, config: RelabelConfig) -> Iterator[Episode]:
    return (with_assumed_success(episode, config.assume_success) for episode in dataset)


def _choose(dataset: Dataset, config: RelabelConfig, summary: RelabelSummary, assigner: SplitAssigner) -> set[str]:
    """Read a dataset once and choose the originals: successes with an instruction, at most `per_dataset`."""
    successes: dict[str, str] = {}
    episodes: list[Episode] = []
    for episode in _assume(dataset, config):
        if not episode.instruction.strip():
            continue
        if is_success(episode):
            successes[episode.id] = episode.origin.dataset
        if config.split == "source":
            episodes.append(episode)
        elif is_success(episode):
            assigner.add(episode)
    summary.leaks = describe_leaks(find_leaks(episodes))
    return choose_originals(successes, config.seed, config.per_dataset)


def _first_requests(episode: Episode, config: RelabelConfig) -> Iterator[ChatRequest]:
    """The requests for one original if every first answer is accepted, with filler for what is not written yet."""
    task = episode.instruction
    if config.grades:
        images = sample_frames(episode, config.size)
        analysis = Analysis(objects=[FILLER], start=8 * FILLER, actions=[8 * FILLER], end=8 * FILLER)
        yield prompts.ask_analysis(config, task, images, 0)
        yield prompts.ask_plan(config, task, analysis, 0)
        for place, grade in enumerate(config.grades):
            idea = FailureIdea(grade=grade, idea=FILLER, failure=FILLER, closeness=0)
            accepted = [(other, FILLER) for other in config.grades[:place]]
            yield prompts.ask_command(config, task, analysis, idea, accepted, [], 0)
            yield prompts.ask_verdict(config, task, f"{FILLER}{grade}", images, 0)
    for grade in config.clips:
        try:
            clip = load_negative("clip").make_with_seed(
                episode, seed_of(config.seed, episode.id, grade, 0), grade=grade
            )
        except NotApplicable:
            continue
        yield prompts.ask_verdict(config, task, task, sample_frames(clip, config.size), 0)


@dataclass(eq=False)
class _RelabelRun:
    """One pass over a dataset."""

    dataset: Dataset
    config: RelabelConfig
    client: ChatClient
    validator: ChatClient | None
    writer: StoreWriter
    log: IO[bytes]
    summary: RelabelSummary
    chosen: set[str]
    splits: Mapping[str, str] | None
    """by id; None = as the source has it"""
    written: Mapping[str, str]
    """originals that earlier runs wrote labels of"""
    checks: Mapping[str, Check]
    """of the episodes that earlier runs wrote"""
    on_progress: Callable[[RelabelSummary], None]

    def run(self) -> None:
        """Process the chosen originals and write the results in the dataset's order."""
        config, client, model = self.config, self.client, self.client.endpoint.model
        check, checker = (self.validator.ask, self.validator.endpoint.model) if self.validator else (None, "")
        waiting: deque[tuple[Episode, Future[RelabelRecord]]] = deque()
        pool, finished = ThreadPoolExecutor(client.concurrency), False
        try:
            for episode in _assume(self.dataset, config):
                if episode.id not in self.chosen:
                    self._finish(self._skip, episode)
                elif client.stopped and episode.id not in self.written:  # do not decode what cannot be asked
                    self.summary.originals += 1
                    self._finish(self.summary.unfinished.update, [f"not asked: {client.stopped}"])
                else:
                    self.summary.originals += 1
                    chain = RelabelChain(episode, client.ask, model, config, check, checker)
                    waiting.append((episode, pool.submit(chain.run)))
                while waiting and (len(waiting) >= AHEAD * client.concurrency or waiting[0][1].done()):
                    self._finish(self._write, *waiting.popleft())
            while waiting:
                self._finish(self._write, *waiting.popleft())
            finished = True
        finally:
            if not finished:
                for chat in filter(None, (client, self.validator)):
                    chat.stop("interrupted")  # send nothing more, but wait for what is paid for
            pool.shutdown(wait=True, cancel_futures=True)
            self.summary.spent = client.spent
            self.summary.validator_spent = None if self.validator is None else self.validator.spent

    def _finish(self, step: Callable[..., object], *arguments: Any) -> None:
        step(*arguments)
        self.summary.finished += 1
        self.on_progress(self.summary)

    def _skip(self, episode: Episode) -> None:
        try:
            require_success(episode)
            if not episode.instruction.strip():
                raise NotApplicable("it has no instruction")
            self.summary.over += 1
        except NotApplicable as error:
            self.summary.skipped[error.reason] += 1

    def _write(self, episode: Episode, result: Future[RelabelRecord]) -> None:
        summary = self.summary
        try:
            record = result.result()
        except Unanswered as error:
            summary.unfinished[str(error)] += 1
            return
        except NotApplicable as error:
            summary.skipped[error.reason] += 1
            return
        except UnreadableVideo as error:
            self.dataset.report(Problem("unreadable video", episode.id, f"{error.path}: {error.reason}", kept=False))
            return
        split = episode.origin.split if self.splits is None else self.splits[episode.id]
        record = replace(record, split=split)
        self.log.write((json.dumps(asdict(record), ensure_ascii=False) + "\n").encode(errors="replace"))
        summary.settled += 1
        summary.commands.update(list(record.accepted("command")))
        summary.clips.update(list(record.accepted("clip")))
        summary.kept += self.config.keep_originals
        summary.rejected.update((candidate.stage, candidate.checked_by) for candidate in record.rejected)
        for view in make_episodes(record, episode, self.config.keep_originals):
            summary.splits[split] += 1
            summary.to_check += self.checks.get(view.id, view.check) == "due"
            if view.id not in self.writer:
                self.writer.add(view)
                summary.added += 1


def make_episodes(record: RelabelRecord, episode: Episode, keep_original: bool) -> Iterator[Episode]:
    """Make the episodes of a record: accepted commands and clips by grade, then the original if it is kept.

    Nothing is copied: they are views of the original's video. Labels of models carry the validator's reasons. Episodes
    of an evaluation split that no person has labelled are due for a check by one: a model's grades are good enough to
    train on, not to measure by.
    """
    rng = np.random.default_rng(0)  # unused: all parameters are given
    author: dict[str, Any] = {"model": record.model, "prompts": record.prompts}
    episodes = []
    for grade, candidate in sorted(record.accepted("command").items()):
        view = load_negative("counterfactual")(episode, rng, words=candidate.text, grade=grade, **author)
        episodes.append(replace(view, outcomes=(replace(view.outcomes[0], note=candidate.reasons),)))
    for grade, candidate in sorted(record.accepted("clip").items()):
        clip = load_negative("clip")(episode, rng, last=int(candidate.text))
        by = f"{record.validator or record.model}, {record.prompts}"
        confirmed = Outcome("model", success=False, grade=grade, note=candidate.reasons, by=by)
        episodes.append(replace(clip, outcomes=(*clip.outcomes, confirmed)))
    for view in [*episodes, episode] if keep_original else episodes:
        tags, group = {**view.origin.tags, "prompts": record.prompts}, episode.origin.group or episode.id
        result = replace(view, origin=replace(view.origin, split=record.split, group=group, tags=tags))
        is_due = is_evaluation_split(record.split) and all(label.source != "human" for label in view.labels)
        yield with_check(result, "due") if is_due else result
