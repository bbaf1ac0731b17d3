"""Whether a model was fitted to the episodes that it is measured on; calibrated models remember theirs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, runtime_checkable

from demerit.data.episode import Episode
from demerit.data.splits import name_some, videos_of
from demerit.models.protocol import RewardModel


@runtime_checkable
class Remembers(Protocol):
    """A model that knows which episodes it was fitted to."""

    @property
    def seen(self) -> Collection[str]:
        """Their `marks`."""
        ...


def marks(episode: Episode) -> list[str]:
    """Return what an episode is recognised by: its fingerprint, and its videos (told or cut otherwise, they remain)."""
    videos = videos_of(episode)
    return [episode.fingerprint(), *videos] if len(videos) == len(episode.views) else videos


def seen_before(models: Iterable[RewardModel], episodes: Collection[Episode]) -> list[str]:
    """Say, a sentence per model, which of the episodes it was fitted to: there its figures are too good."""
    said = []
    for model in models:
        known = frozenset(model.seen) if isinstance(model, Remembers) else frozenset()
        again = [one.id for one in episodes if known and not known.isdisjoint(marks(one))]
        if again:
            named = name_some([repr(id) for id in again])
            said.append(
                f"{model.card.name} was fitted to {len(again)} of these {len(episodes)} episodes, e.g. {named}: "
                f"its figures are too good, and its promised risk is not tested by them."
            )
    return said
