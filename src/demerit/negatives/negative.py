"""Negative: a named, pure edit of an episode; how it is registered, looked up and replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from demerit.data.episode import Edit, Episode
from demerit.errors import BadEpisode, NotApplicable
from demerit.registry import Registry

if TYPE_CHECKING:
    from demerit.negatives.pool import Pool

NEGATIVES = Registry(
    "negative",
    {
        "clip": "negatives.edits.clip:clip",
        "rewind": "negatives.edits.rewind:rewind",
        "reverse": "negatives.edits.rewind:reverse",
        "undo": "negatives.edits.rewind:undo",
        "freeze": "negatives.edits.pace:freeze",
        "slow": "negatives.edits.pace:slow",
        "stall": "negatives.edits.pace:stall",
        "jump": "negatives.edits.jump:jump",
        "splice": "negatives.edits.splice:splice",
        "wrong-instruction": "negatives.edits.wording:wrong_instruction",
        "counterfactual": "negatives.edits.counterfactual:counterfactual",
        "reworded": "negatives.edits.reworded:reworded",
    },
)


@dataclass(frozen=True)
class Negative:
    """A pure function (episode, rng) -> episode that raises `NotApplicable(reason)` where it makes no sense.

    The function takes its parameters as keywords. What is not given is drawn from `rng`, and the recorded edit holds
    all of them, so that a replay draws nothing.
    """

    name: str
    make: Callable[..., Episode]
    grades: tuple[int, ...] = ()
    """the grades it ends at; more than one: `grade=` says which is wanted; empty: as it comes"""
    uses_pool: bool = False
    """whether it takes `pool=`: other episodes' words or frames"""

    def __call__(
        self, episode: Episode, rng: np.random.Generator, *, pool: Pool | None = None, **params: Any
    ) -> Episode:
        """Make one."""
        given = {"pool": pool, **params} if self.uses_pool else params
        return self.make(episode, rng, **given)

    def seeded(self, episode: Episode, seed: int, *, pool: Pool | None = None, **params: Any) -> Episode:
        """Make one and write the seed into the recorded edit."""
        # default_rng's own generator, without its detour: this runs for every negative.
        made = self(episode, np.random.Generator(np.random.PCG64(seed)), pool=pool, **params)
        return _with_seed(made, seed)


def negative(
    name: str, *, grades: tuple[int, ...] = (), uses_pool: bool = False
) -> Callable[[Callable[..., Episode]], Negative]:
    """Turn a function (episode, rng, *, parameters) into a negative of this name."""
    return lambda make: Negative(name, make, grades, uses_pool)


def load_negative(name: str) -> Negative:
    """Find a negative by name; a plain function that somebody registered will do."""
    found = NEGATIVES.factory(name)
    return found if isinstance(found, Negative) else Negative(name, found)


def apply_edit(episode: Episode, edit: Edit, *, pool: Pool | None = None) -> Episode:
    """Make a recorded edit again. `pool` finds the partner of a splice; the other edits need none."""
    found = load_negative(edit.name)
    rng = np.random.default_rng(edit.seed)
    try:
        made = found(episode, rng, pool=pool, **edit.params)
    except TypeError as error:
        raise BadEpisode(
            episode.id, f"an edit that {edit.name!r} can make", f"{dict(edit.params)} ({error})"
        ) from error
    except NotApplicable as no:
        raise NotApplicable(f"the recorded edit {edit.name!r} does not fit episode {episode.id!r}: {no.reason}") from no
    return _with_seed(made, edit.seed)


def _with_seed(made: Episode, seed: int | None) -> Episode:
    last = made.edits[-1]
    return replace(made, edits=(*made.edits[:-1], Edit(last.name, last.params, seed)))
