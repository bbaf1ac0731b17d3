"""Leaks between splits: a task description or a video that stands in two of them.

A model that was trained on one split and measured on another has seen what the two share. Splits are made by original
task description and by original video, never across; this checks that they were. A model that remembers which episodes
it was fitted to, as calibrated ones do, is asked as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from demerit.data.episode import Episode
from demerit.data.splits import videos_of
from demerit.evaluate.benchmarks.judging import plain
from demerit.models.protocol import RewardModel

MOST_NAMED = 3


@dataclass(frozen=True)
class Leak:
    """Something that stands in more than one split."""

    kind: str
    """'task', 'video', 'recording' or 'original'"""
    what: str
    splits: tuple[str, ...]
    episodes: tuple[str, ...]
    """ids of all episodes concerned"""

    def __str__(self) -> str:
        """Say it in a line."""
        return f"the {self.kind} {self.what!r} stands in {', '.join(self.splits)} ({len(self.episodes)} episodes)"


def find_leaks(episodes: Iterable[Episode]) -> list[Leak]:
    """Find every task description, video, recording and original that stands in two splits.

    An episode that was made from another one counts as that one. Episodes without a split are in none.

    Args:
        episodes: of all splits together. No frame is decoded.
    """
    in_a_split = [one for one in episodes if one.origin.split]
    found: list[Leak] = []
    for kind, name_of in KINDS.items():
        by_name: dict[str, list[Episode]] = {}
        for one in in_a_split:
            for name in name_of(one):
                by_name.setdefault(name, []).append(one)
        for name, those in by_name.items():
            splits = tuple(sorted({one.origin.split for one in those}))
            if len(splits) > 1:
                what = name if kind != "video" else those[0].id
                found.append(Leak(kind, what, splits, tuple(sorted({one.id for one in those}))))
    return found


def sentences(leaks: Iterable[Leak]) -> list[str]:
    """Say what leaks, a sentence per kind, with the first few named."""
    by_kind: dict[str, list[Leak]] = {}
    for leak in leaks:
        by_kind.setdefault(leak.kind, []).append(leak)
    said = []
    for kind, those in by_kind.items():
        named = "; ".join(repr(leak.what) for leak in those[:MOST_NAMED])
        more = f" and {len(those) - MOST_NAMED} more" if len(those) > MOST_NAMED else ""
        splits = ", ".join(sorted({split for leak in those for split in leak.splits}))
        count = sum(len(leak.episodes) for leak in those)
        noun = f"{kind}s" if len(those) > 1 else kind
        said.append(
            f"Splits leak: {len(those)} {noun} stand in more than one of {splits} ({count} episodes), e.g. "
            f"{named}{more}; a model trained on one split has seen part of the other."
        )
    return said


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
            named = "; ".join(repr(id) for id in again[:MOST_NAMED])
            more = f" and {len(again) - MOST_NAMED} more" if len(again) > MOST_NAMED else ""
            said.append(
                f"{model.card.name} was fitted to {len(again)} of these {len(episodes)} episodes, e.g. {named}{more}: "
                f"its figures are too good, and its promised risk is not tested by them."
            )
    return said


def _task(episode: Episode) -> list[str]:
    words = plain(episode.instruction)
    return [words] if words else []


def _recording(episode: Episode) -> list[str]:
    return [episode.origin.group] if episode.origin.group else []


def _original(episode: Episode) -> list[str]:
    # the original itself may stand in a split as well
    return [episode.origin.parent or episode.id]


KINDS: dict[str, Callable[[Episode], list[str]]] = {
    "task": _task,
    "video": videos_of,
    "recording": _recording,
    "original": _original,
}
