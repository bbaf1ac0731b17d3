"""Scoring with a large model: the next episode is decoded while the device works on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import BadEpisode, DemeritError, NonFiniteOutput
from demerit.models.vlm.prompt import is_words_alone

NO_NUMBER = str(NonFiniteOutput())
"""why a value is missing where a network's own arithmetic broke down"""
Made = TypeVar("Made")
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Failed:
    """Why something could not be made."""

    reason: str


def one_ahead(items: Iterable[Item], make: Callable[[Item], Made]) -> Iterator[tuple[Item, Made | Failed]]:
    """Make something of each item, in their order, one ahead of the reader and in the background."""
    with ThreadPoolExecutor(1) as pool:
        waiting: tuple[Item, Future[Made | Failed]] | None = None
        for item in items:
            following = (item, pool.submit(_made, make, item))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = following
        if waiting is not None:
            yield waiting[0], waiting[1].result()


def _made(make: Callable[[Item], Made], item: Item) -> Made | Failed:
    try:
        return make(item)
    except DemeritError as error:
        return Failed(str(error))


def each(
    name: str, episodes: Sequence[Episode], make: Callable[[Episode], Made], judge: Callable[[Episode, Made], Reward]
) -> list[Reward]:
    """Score episodes one by one; what goes wrong with one is its own reason to be unscored."""
    rewards = []
    for episode, made in one_ahead(episodes, make):
        try:
            reward = unscored(name, episode, made.reason) if isinstance(made, Failed) else judge(episode, made)
        except DemeritError as error:
            reward = unscored(name, episode, str(error))
        rewards.append(reward)
    return rewards


def unscored(name: str, episode: Episode, reason: str, given: Mapping[str, Any] | None = None) -> Reward:
    """Say that an episode was not scored."""
    return Reward.unscored(name, episode.id, reason, given)


def told(episode: Episode) -> str:
    """Return the instruction, which must be words: a special token among them would be read as one."""
    words = episode.instruction.strip()
    if not words:
        raise BadEpisode(episode.id, "an instruction, which this model cannot do without", "none")
    if not is_words_alone(words):
        raise BadEpisode(episode.id, "an instruction of words alone", repr(words))
    if not len(episode):
        raise BadEpisode(episode.id, "at least one frame", "none")
    return words
