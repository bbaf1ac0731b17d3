"""The same prompted model with more and more bad behaviour in its context, as models side by side in one report.

Examples come from the benchmark's own episodes, never from the rollout that is judged, its pair or its session
(`models.gvl.retrieval` sees to it), or from another dataset. All contexts ask through one client: one cache, one
budget. The values per step that `dense` shows are made first, by preference-guided self-distillation, and are kept as a
dataset of their own beside the report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from demerit.data.dataset import Record
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.frames import RGB, short_hash
from demerit.data.labels import LABEL_SOURCES, Outcome, Preference
from demerit.data.store import Store
from demerit.errors import BadInput, UnreadableVideo
from demerit.evaluate.benchmarks.run import Gathered, RunOptions
from demerit.evaluate.reports.report import Report
from demerit.llm import ChatClient
from demerit.models import load_model
from demerit.models.gvl.context import KINDS
from demerit.models.gvl.distil import DistillationConfig, Distilled
from demerit.models.gvl.examples import save_records
from demerit.models.gvl.model import GVL
from demerit.models.protocol import RewardModel

PAIRS_A_TASK = 4
"""preferences of one task that are distilled: two examples are shown, and those of the judged session fall away"""
ROUNDS = 4
"""a batch is so many times as large as the number of requests under way, all contexts being asked at once"""
MOST_BYTES = 2 << 30
"""decoded frames in memory at once, two batches for each context"""
SIMULATED = "simulated"
SIMULATION = (
    "A SIMULATION: {} is no model. It answers from what the simulator measured, made wrong on purpose; its numbers "
    "show that the machinery works and say nothing about any real model."
)


@dataclass(frozen=True)
class Ablation:
    """What to compare, and what to take the examples from."""

    contexts: tuple[str, ...]
    examples: str = ""
    """a dataset with failed rollouts and preferences; empty: the benchmark's own episodes"""
    pairs_a_task: int = PAIRS_A_TASK
    budget: float | None = None
    """dollars for everything together"""

    def __post_init__(self) -> None:
        """Refuse unknown and doubled contexts."""
        if not self.contexts or len(set(self.contexts)) < len(self.contexts) or set(self.contexts) - set(KINDS):
            raise BadInput("--context", f"some of {','.join(KINDS)}, each once", ",".join(self.contexts) or "none")
        if self.pairs_a_task < 1:
            raise BadInput("pairs a task", "a number from 1 on", self.pairs_a_task)


def read_contexts(text: str) -> tuple[str, ...]:
    """Read `none,text,video,dense`."""
    return tuple(piece.strip() for piece in text.split(",") if piece.strip())


class Contexts:
    """One prompted model under several contexts, ready to be benchmarked."""

    def __init__(self, name: str, ablation: Ablation, gathered: Gathered) -> None:
        """Prepare; nothing is asked yet.

        Args:
            name: `gvl`, or `gvl:samples=3,frames=8` with options.
            ablation: what to compare.
            gathered: the episodes that will be judged.
        """
        self.name, self.ablation = name, ablation
        plain = load_model(name, context="none", budget=ablation.budget)
        if not isinstance(plain, GVL):
            raise BadInput("--context", "a prompted model (gvl)", name)
        self.plain = plain
        self.records = list(_records(ablation, gathered))
        self.pairs = chosen_pairs(self.records, ablation.pairs_a_task)
        self.notes: list[str] = []

    @property
    def chat(self) -> ChatClient:
        """The client that all of them share."""
        return self.plain.chat

    @property
    def distils(self) -> bool:
        """Whether values per step have to be made."""
        return "dense" in self.ablation.contexts and not self.plain.settings.measured

    def estimates(self, episodes: Sequence[Episode]) -> Iterator[str]:
        """Say what everything will take, context by context; nothing is sent."""
        if self.distils and self.pairs:
            ids = {id for one in self.pairs for id in (one.a, one.b)}
            asked = [one for one in self._episodes() if one.id in ids]
            many = load_model(self.name, context="none", chat=self.chat, samples=DistillationConfig().samples)
            yield f"self-distillation of {len(self.pairs)} pairs: {many.estimate(asked)}"  # type: ignore[attr-defined]
        flat = Distilled({one.id: _flat(one) for one in self._episodes()}, ()) if self.distils else None
        for context in self.ablation.contexts:
            model = self._model(context, self.records if flat is None else list(flat.apply(self.records)))
            yield f"{model.card.name}: {model.estimate(episodes)}"

    def models(self, out: Path) -> list[RewardModel]:
        """Make the models, in the order asked for; distils what `dense` needs, and keeps it under `out`."""
        records = self.records
        if self.distils and not self.pairs:
            self.notes.append("There are no preferences to distil values per step from: dense shows what video shows.")
        elif self.distils:
            distilled = self.plain.distil(
                [*self._episodes(), *self.pairs], DistillationConfig(vouchers=LABEL_SOURCES[:-1])
            )
            records = list(distilled.apply(records))
            kept = _kept(out, records, distilled)
            self.notes.append(f"Values per step by self-distillation: {distilled}. They are in {kept}.")
        return [self._model(context, records) for context in self.ablation.contexts]

    def stop(self) -> None:
        """Send nothing any more; what is under way is waited for, as it is paid for."""
        self.chat.stop("interrupted")

    def told(self, report: Report) -> Report:
        """Write into the report who answered, at what cost, and where the examples come from."""
        name = self.chat.endpoint.model
        source = self.ablation.examples or "the benchmark's own episodes, never the judged rollout, its pair or session"
        lines = [f"gvl is answered by {name}; examples of bad behaviour come from {source}.", *self.notes]
        if SIMULATED in name:
            report, lines = _as_simulation(report), [SIMULATION.format(name), *lines]
        return replace(report, warnings=(*lines, *self.chat.notes, *report.warnings))

    def _model(self, context: str, records: list[Record]) -> GVL:
        examples = None if context == "none" else records
        model = load_model(self.name, context=context, examples=examples, chat=self.chat)
        assert isinstance(model, GVL)  # as the plain one is
        return model

    def _episodes(self) -> list[Episode]:
        return [one for one in self.records if isinstance(one, Episode)]


def _as_simulation(report: Report) -> Report:
    """Call it a simulation wherever the page speaks of what was measured or who answered."""
    cards = tuple(
        replace(card, about=f"SIMULATED, no model answered. {card.about}") if card.name.startswith("gvl") else card
        for card in report.cards
    )
    claim = f"Nothing about a real model: the answers of gvl are simulated. {report.about.claim}"
    return replace(report, cards=cards, about=replace(report.about, claim=claim))


def run_options(options: RunOptions, contexts: Contexts, episodes: Sequence[Episode]) -> RunOptions:
    """Ask for all contexts at once, in batches that keep every connection busy as far as memory goes.

    What failed before is tried again: answers that were paid for come from the cache.
    """
    at_once = len(contexts.ablation.contexts)
    chosen = replace(options, at_once=at_once, retry=True, stop=contexts.stop)
    largest = ROUNDS * contexts.chat.concurrency
    for episode in episodes:
        try:
            height, width = episode.main.take([0]).shape[1:3]
        except UnreadableVideo:
            continue
        fits = MOST_BYTES // (2 * at_once * contexts.plain.settings.frames * height * width * RGB)
        return replace(chosen, batch=max(options.batch, min(largest, fits)))
    return chosen


def chosen_pairs(records: Sequence[Record], most: int) -> list[Preference]:
    """Choose the preferences to distil: at most so many of each task, of different sessions first, in a fixed order."""
    episodes = {one.id: one for one in records if isinstance(one, Episode)}
    found = [one for one in records if isinstance(one, Preference) and {one.a, one.b} <= episodes.keys()]
    found.sort(key=lambda one: short_hash(one.a.encode(), one.b.encode()))
    by_task: dict[str, dict[str, list[Preference]]] = {}
    for one in (one for one in found if one.better is not None and one.source != "model"):
        rejected = episodes[one.b if one.better == one.a else one.a]
        task = rejected.origin.tags.get("task") or rejected.instruction
        by_task.setdefault(task, {}).setdefault(rejected.origin.group or rejected.id, []).append(one)
    return [pair for sessions in by_task.values() for pair in _in_turns(list(sessions.values()))[:most]]


def _in_turns(sessions: list[list[Preference]]) -> list[Preference]:
    longest = max(map(len, sessions))
    return [session[turn] for turn in range(longest) for session in sessions if turn < len(session)]


def _records(ablation: Ablation, gathered: Gathered) -> Iterator[Record]:
    if ablation.examples:
        yield from open_dataset(ablation.examples).records()
        return
    yield from gathered.episodes
    yield from gathered.preferences


def _kept(out: Path, records: Sequence[Record], distilled: Distilled) -> Path:
    """Write the episodes that have new curves as a dataset; the same again is there already."""
    chosen = [one for one in records if isinstance(one, Episode) and one.id in distilled.curves]
    curves = [distilled.curves[one.id].curve for one in chosen]
    name = short_hash(*(one.id.encode() for one in chosen), *(b"" if one is None else one.tobytes() for one in curves))
    folder = out / f"distilled-{name}"
    if not Store.is_at(folder):
        save_records(folder, "distilled", chosen)
    return folder


def _flat(episode: Episode) -> Outcome:
    """Make a stand-in of the right size for a curve that is not made yet, for estimates."""
    try:
        length = len(episode)
    except UnreadableVideo:
        length = 0
    return Outcome("model", curve=np.zeros(length, dtype=np.float32), by="gvl estimate")
