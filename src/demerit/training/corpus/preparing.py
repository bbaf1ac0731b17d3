"""Episodes as the stages get them: with their split, and under repaired words where there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from demerit.data.dataset import Record
from demerit.data.episode import Episode
from demerit.errors import NotApplicable
from demerit.negatives import load_negative
from demerit.negatives.negative import targets_of


@dataclass(frozen=True)
class Words:
    """Repaired instructions, and who repaired them."""

    repaired: Mapping[str, str]
    """instruction to repaired words, for those that changed"""
    model: str
    prompts: str


@dataclass(eq=False)
class Prepared:
    """A reader of gathered episodes, prepared. Satisfies `DatasetReader`."""

    name: str
    episodes: Callable[[], Iterable[Episode]]
    splits: Mapping[str, str]
    words: Words | None = None
    only: frozenset[str] | None = None
    """names of the sources to stream; None = all"""

    def expected(self) -> int:
        """As many of these sources as have a split."""
        return sum(self.only is None or id.partition("/")[0] in self.only for id in self.splits)

    def records(self) -> Iterator[Record]:
        """Stream them."""
        yield from self.prepared_episodes()

    def prepared_episodes(self) -> Iterator[Episode]:
        """Stream them, each prepared."""
        for episode in self.episodes():
            if self.only is None or episode.origin.dataset in self.only:
                yield self.prepared(episode)

    def prepared(self, episode: Episode) -> Episode:
        """Give one its split and its words."""
        told = replace(episode, origin=replace(episode.origin, split=self.splits[episode.id]))
        words = self.words.repaired.get(episode.instruction) if self.words else None
        if self.words is None or words is None or not can_be_reworded(told):
            return told
        about: dict[str, Any] = {"was": told.instruction, "model": self.words.model, "prompts": self.words.prompts}
        made = load_negative("reworded")(told, np.random.default_rng(0), words=words, **about)
        return replace(made, signals=told.signals)  # frame for frame the same video


def can_be_reworded(episode: Episode) -> bool:
    """Whether the edit `reworded` can be made of it: it is one of successes."""
    try:
        targets_of(episode)
    except NotApplicable:
        return False
    return True
