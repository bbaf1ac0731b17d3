"""What a recipe comes to before anything is made: which episodes, in which splits, and whether anything leaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.splits import SplitAssigner
from demerit.errors import BadInput
from demerit.negatives.negative import is_success
from demerit.training.corpus.gathering import Drawn, Gathered, digest_of, draw
from demerit.training.corpus.leaks import LeakReport, check_leaks
from demerit.training.corpus.preparing import Prepared
from demerit.training.corpus.recipe import Recipe

Progress = Callable[[str, int, int | None, str], None]
"""called with the stage, how much is done, how much there is, and a note"""


def silent(stage: str, done: int, expected: int | None, note: str) -> None:
    """Show nothing."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The episodes of a corpus, and their splits."""

    recipe: Recipe
    drawn: tuple[Drawn, ...]
    splits: Mapping[str, str]
    """by id"""
    leaks: LeakReport
    counts: Counter[tuple[str, str]]
    """by source and split"""
    successes: int
    """episodes that something is made of"""

    @property
    def digest(self) -> str:
        """Changes with the recipe, the chosen episodes and their splits."""
        return f"{self.recipe.digest}-{digest_of(self.drawn, self.splits)}"

    @property
    def most_negatives(self) -> int:
        """How many negatives there will be at most."""
        return 0 if self.recipe.negatives is None else self.successes * self.recipe.negatives.per_episode

    @property
    def most_counterfactuals(self) -> int:
        """How many counterfactuals and confirmed cuts there will be at most."""
        part = self.recipe.counterfactuals
        return 0 if part is None else self.successes * (len(part.grades) + len(part.clips))

    @property
    def augmented(self) -> frozenset[str]:
        """Names of the sources that something is made of."""
        return frozenset(source.name for source in self.recipe.sources if source.is_augmented)

    def refuse_leaks(self) -> None:
        """Refuse what leaks, where the recipe says so."""
        if self.leaks.leaks and self.recipe.leaks == "refuse":
            advice = "splits and held-out sets that share nothing (`leaks: report` builds the corpus and says so)"
            raise BadInput("leak check", advice, " ".join(self.leaks.leaks).rstrip("."))


def make_plan(recipe: Recipe, strict: bool = False, progress: Progress = silent) -> Plan:
    """Look through the sources and decide. Nothing is written, and no frame is decoded."""
    drawn = []
    for source in recipe.sources:
        stage = f"looking through {source.name}"
        drawn.append(draw(recipe, source, strict, lambda done, stage=stage: progress(stage, done, None, "")))  # type: ignore[misc]
    if not any(one.ids for one in drawn):
        reasons = Counter[str]()
        for one in drawn:
            reasons.update(one.left_out)
        why = "; ".join(f"{count} left out: {reason}" for reason, count in reasons.most_common(3)) or "they are empty"
        raise BadInput("recipe, sources", "at least one episode that can be used", why)
    reader = Gathered(recipe, tuple(drawn), strict)
    episodes: list[Episode] = []
    for episode in Dataset(reader):
        episodes.append(episode)
        progress("splitting", len(episodes), reader.expected(), "")
    splits = {episode.id: episode.origin.split for episode in episodes}
    if recipe.splits.by == "task":
        assigner = SplitAssigner()
        for episode in episodes:
            assigner.add(episode)
        splits = assigner.assign(recipe.splits.shares, recipe.seed)
    prepared = list(Prepared(recipe.name, lambda: episodes, splits).prepared_episodes())
    counts = Counter((one.origin.dataset, one.origin.split) for one in prepared)
    augmented = {source.name for source in recipe.sources if source.is_augmented}
    successes = sum(one.origin.dataset in augmented and is_success(one) for one in prepared)
    return Plan(recipe, tuple(drawn), splits, check_leaks(prepared, recipe.held_out), counts, successes)
