"""Score episodes one by one: the next one is decoded while the device works on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import BadEpisode, DemeritError, NonFiniteOutput
from demerit.models.vlm.prompt import is_plain_text

NON_FINITE = str(NonFiniteOutput())
"""why a value is missing where the network's output is NaN"""
Made = TypeVar("Made")
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class ScoringFailure:
    """Why an episode could not be decoded or answered."""

    reason: str


def prefetch(items: Iterable[Item], make: Callable[[Item], Made]) -> Iterator[tuple[Item, Made | ScoringFailure]]:
    """Yield each item with what `make` returns, computed one ahead in the background."""
    with ThreadPoolExecutor(1) as pool:
        waiting: tuple[Item, Future[Made | ScoringFailure]] | None = None
        for item in items:
            following = (item, pool.submit(_make_or_fail, make, item))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = following
        if waiting is not None:
            yield waiting[0], waiting[1].result()


def _make_or_fail(make: Callable[[Item], Made], item: Item) -> Made | ScoringFailure:
    try:
        return make(item)
    except DemeritError as error:
        return ScoringFailure(str(error))


def score_each(
    name: str, episodes: Sequence[Episode], make: Callable[[Episode], Made], score: Callable[[Episode, Made], Reward]
) -> list[Reward]:
    """Score episodes one by one; an error leaves only its own episode unscored."""
    rewards = []
    for episode, made in prefetch(episodes, make):
        try:
            if isinstance(made, ScoringFailure):
                reward = Reward.unscored(name, episode.id, made.reason)
            else:
                reward = score(episode, made)
        except DemeritError as error:
            reward = Reward.unscored(name, episode.id, str(error))
        rewards.append(reward)
    return rewards


def read_instruction(episode: Episode) -> str:
    """Return the instruction; raise BadEpisode without one, with a special token in it, or without frames."""
    instruction = episode.instruction.strip()
    if not instruction:
        raise BadEpisode(episode.id, "an instruction", "none")
    if not is_plain_text(instruction):
        raise BadEpisode(episode.id, "an instruction without special tokens", repr(instruction))
    if not len(episode):
        raise BadEpisode(episode.id, "at least one frame", "none")
    return instruction
