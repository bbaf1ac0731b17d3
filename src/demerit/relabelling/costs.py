"""What relabelling would cost, found without sending anything: if everything passes at once, and at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from demerit.chat import Ask, Endpoint, Estimate
from demerit.chatting import tokens
from demerit.dataset import Dataset
from demerit.episode import Episode
from demerit.errors import NotApplicable, UnreadableVideo
from demerit.negate import assumed
from demerit.negatives import load_negative
from demerit.relabelling.answers import Analysis, Idea
from demerit.relabelling.asking import MAX_TOKENS, Asking, Pictures
from demerit.relabelling.job import RelabelSummary, choose
from demerit.relabelling.looking import Looker
from demerit.relabelling.settings import RelabelSettings

FILLER = "word " * 12
"""stands for a command, an idea or a reason that is not written yet"""


@dataclass(frozen=True)
class Costs:
    """Two estimates of one run."""

    originals: int
    least: Estimate
    """every first answer is accepted"""
    most: Estimate
    """every round is needed at every stage"""

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
    total = _Sum(endpoint, Asking(settings.temperature, more_tokens), settings, looker)
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
    return Costs(count, total.estimate(1), total.estimate(settings.rounds))


@dataclass(eq=False)
class _Sum:
    """The questions of one round over all originals."""

    endpoint: Endpoint
    asking: Asking
    settings: RelabelSettings
    looker: Looker
    asks: int = 0
    images: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cleaned: set[str] = field(default_factory=set)

    def add(self, episode: Episode) -> None:
        """Count one original; an instruction that many share is repaired once."""
        task = episode.instruction
        if self.settings.clean_up and task not in self.cleaned:
            self.cleaned.add(task)
            self._count(self.asking.clean(task, 0))
        if self.settings.grades:
            self._count_commands(task, self.looker.look(episode))
        for grade in self.settings.clips:
            try:
                made = load_negative("clip").seeded(episode, self.settings.seed, grade=grade)
            except NotApplicable:
                continue
            self._count(self.asking.validate(task, task, self.looker.look(made), 0))

    def estimate(self, rounds: int) -> Estimate:
        """Say what so many rounds take."""
        tokens_in, tokens_out = rounds * self.tokens_in, rounds * self.tokens_out
        cost = self.endpoint.cost(tokens_in, tokens_out)
        return Estimate(rounds * self.asks, 0, rounds * self.images, tokens_in, tokens_out, cost)

    def _count_commands(self, task: str, seen: Pictures) -> None:
        grades = self.settings.grades
        long = "x" * (MAX_TOKENS["analyse"] * tokens.BYTES_PER_TOKEN // 2)
        analysis = Analysis(objects=[FILLER], start=long, actions=[FILLER], end=long)
        self._count(self.asking.analyse(task, seen, 0))
        self._count(self.asking.plan(task, analysis, grades, 0))
        for place, grade in enumerate(grades):
            idea = Idea(grade=grade, idea=FILLER, failure=FILLER, closeness=0)
            history = [(other, FILLER) for other in grades[:place]]
            self._count(self.asking.command(task, analysis, idea, history, [], 0))
            self._count(self.asking.validate(task, FILLER, seen, 0))

    def _count(self, ask: Ask) -> None:
        self.asks += 1
        self.images += sum(not isinstance(part, str) for message in ask.messages for part in message.parts)
        self.tokens_in += tokens.of_ask(ask)
        self.tokens_out += ask.max_tokens
