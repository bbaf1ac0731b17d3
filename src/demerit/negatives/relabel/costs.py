"""What relabelling would cost, found without sending anything: if everything passes at once, and at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.splits import seed_of
from demerit.errors import NotApplicable, UnreadableVideo
from demerit.llm import ChatRequest, Endpoint, Estimate, tokens
from demerit.negatives import load_negative
from demerit.negatives.job import assumed
from demerit.negatives.relabel.answers import Analysis, Idea
from demerit.negatives.relabel.asking import MAX_TOKENS, Asking, Pictures
from demerit.negatives.relabel.job import RelabelSummary, choose
from demerit.negatives.relabel.looking import Looker
from demerit.negatives.relabel.settings import RelabelSettings

FILLER = "word " * 12
"""stands for a command or an idea that is not written yet"""
REASON = "x" * 300
"""stands for the longest reason why a command was turned down"""


@dataclass(frozen=True)
class Costs:
    """Two estimates of one run."""

    originals: int
    least: Estimate
    """every first answer is accepted"""
    most: Estimate
    """nothing is accepted before the last round, and no answer is short: it cannot be more"""

    def __str__(self) -> str:
        """Say it in three lines."""
        return (
            f"{self.originals} originals\nif everything passes at once: {self.least}\n"
            f"if every round is needed: {self.most}"
        )


def estimate(
    dataset: Dataset,
    *,
    endpoint: Endpoint,
    more_tokens: int = 0,
    settings: RelabelSettings | None = None,
    progress: Callable[[int], None] | None = None,
) -> Costs:
    """Count the questions of a whole run; what the cache holds already is not looked up.

    Pictures are decoded to learn their size. An answer that later questions quote counts as long as it may be.
    """
    settings = settings or RelabelSettings()
    chosen, count = choose(dataset, settings, RelabelSummary()), 0
    looker = Looker(settings.fps, settings.most_pictures, settings.size)
    total = _Sum(Asking(settings.temperature, more_tokens), settings, looker)
    for episode in dataset:
        if episode.id not in chosen:
            continue
        try:
            total.add(assumed(episode, settings.assume_success))
        except (NotApplicable, UnreadableVideo):
            continue
        count += 1
        if progress is not None:
            progress(count)
    return Costs(count, total.least.estimate(endpoint), total.most.estimate(endpoint))


@dataclass(eq=False)
class _Tally:
    """Questions that were counted."""

    asks: int = 0
    images: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def add(self, ask: ChatRequest, times: int = 1) -> None:
        """Count one question, as often as it may be asked; another sample of it is as long."""
        self.asks += times
        self.images += times * sum(not isinstance(part, str) for message in ask.messages for part in message.parts)
        self.tokens_in += times * tokens.of_ask(ask)
        self.tokens_out += times * ask.max_tokens

    def estimate(self, endpoint: Endpoint) -> Estimate:
        """Say what they take."""
        cost = endpoint.cost(self.tokens_in, self.tokens_out)
        return Estimate(self.asks, 0, self.images, self.tokens_in, self.tokens_out, cost)


@dataclass(eq=False)
class _Sum:
    """The questions of all originals, as `chain.Chain` asks them: the fewest and the most that there can be."""

    asking: Asking
    settings: RelabelSettings
    looker: Looker
    least: _Tally = field(default_factory=_Tally)
    most: _Tally = field(default_factory=_Tally)
    cleaned: set[str] = field(default_factory=set)

    def add(self, episode: Episode) -> None:
        """Count one original; an instruction that many share is repaired once."""
        task, rounds = episode.instruction, self.settings.rounds
        longest = task
        if self.settings.clean_up:
            longest += " the" * (len(task.split()) // 2 + 3)  # what a repair may add
            if task not in self.cleaned:
                self.cleaned.add(task)
                self._count(self.asking.clean(task, 0), rounds)
        seen = self.looker.look(episode)
        if self.settings.grades:
            self._count_commands(task, longest, seen)
        for grade in self.settings.clips:
            try:
                seed = seed_of(self.settings.seed, episode.id, grade, 0)
                made = load_negative("clip").seeded(episode, seed, grade=grade)
            except NotApplicable:
                continue
            self.least.add(self.asking.validate(task, task, self.looker.look(made), 0))
            # So many cuts, each asked about until an answer can be read; no cut has more pictures than the whole.
            self.most.add(self.asking.validate(longest, longest, seen, 0), rounds * rounds)

    def _count_commands(self, task: str, longest: str, seen: Pictures) -> None:
        grades, rounds = self.settings.grades, self.settings.rounds
        half = _as_long_as_may_be("analyse", 2)
        analysis = Analysis(objects=[FILLER], start=half, actions=[FILLER], end=half)
        self._count(self.asking.analyse(longest, seen, 0), rounds)
        self._count(self.asking.plan(longest, analysis, grades, 0), rounds)
        for place, grade in enumerate(grades):
            idea = Idea(grade=grade, idea=FILLER, failure=FILLER, closeness=0)
            history = [(other, FILLER) for other in grades[:place]]
            self.least.add(self.asking.command(task, analysis, idea, history, [], 0))
            self.least.add(self.asking.validate(task, FILLER, seen, 0))
        part, command = _as_long_as_may_be("plan", 2), _as_long_as_may_be("command")
        for place in range(rounds * len(grades)):
            idea = Idea(grade=grades[0], idea=part, failure=part, closeness=0)
            self.most.add(self.asking.command(longest, analysis, idea, [], [(command, REASON)] * place, 0))
        # Every command of every round, each asked about until an answer can be read.
        self.most.add(self.asking.validate(longest, command, seen, 0), len(grades) * rounds * rounds)

    def _count(self, ask: ChatRequest, rounds: int) -> None:
        """Count a question that is asked once, or in every round."""
        self.least.add(ask)
        self.most.add(ask, rounds)


def _as_long_as_may_be(stage: str, parts: int = 1) -> str:
    """A text that stands for so many parts of the longest answer of a stage, one each."""
    return "x" * (MAX_TOKENS[stage] * tokens.BYTES_PER_TOKEN // parts)
