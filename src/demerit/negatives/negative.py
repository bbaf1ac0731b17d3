"""Negative: a named, pure edit of an episode; how it is registered, looked up and replayed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Edit, Episode
from demerit.data.frames import Indices
from demerit.data.labels import Event, LabelSource, Outcome, most_trusted
from demerit.errors import BadEpisode, NotApplicable
from demerit.registry import Registry

if TYPE_CHECKING:
    from demerit.negatives.mix import Pool


NEGATIVES = Registry(
    "negative",
    {
        "clip": "negatives.edits.time:clip",
        "rewind": "negatives.edits.time:rewind",
        "reverse": "negatives.edits.time:reverse",
        "undo": "negatives.edits.time:undo",
        "freeze": "negatives.edits.time:freeze",
        "slow": "negatives.edits.time:slow",
        "stall": "negatives.edits.time:stall",
        "jump": "negatives.edits.time:jump",
        "splice": "negatives.edits.splice:splice",
        "wrong-instruction": "negatives.edits.instruction:wrong_instruction",
        "counterfactual": "negatives.edits.instruction:counterfactual",
        "reworded": "negatives.edits.instruction:reworded",
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


TRUSTED: tuple[LabelSource, ...] = ("human", "simulator", "rule")
"""Whose word that an episode succeeded is enough to build on; edits and models are not."""
DONE_GRADE = 5
UNFINISHED_GRADES = (1, 2, 3, 4)
_NOWHERE: Indices = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Targets:
    """What a successful original's frames are worth."""

    curve: npt.NDArray[np.float32]
    """progress at every frame, NaN where unknown"""
    measured: bool
    """whether somebody measured it; otherwise it is linear in time"""
    events: tuple[Event, ...] = ()
    """what went wrong on the way to success, as the trusted account has it"""

    def __len__(self) -> int:
        """How many frames there are."""
        return len(self.curve)

    @cached_property
    def done(self) -> npt.NDArray[np.bool_]:
        """Frames at which the task is as done as it is at the end: nothing that ends there is a failure."""
        return np.asarray(self.curve >= self.curve[-1])

    def ends(self, grade: int | None = None, first: int = 0) -> Indices:
        """Frames from `first` on at which a video may end unfinished, at this grade or at any from 1 to 4.

        A demonstration often ends with the arm moving away from work that is finished. Linear progress does not know
        when that was, so a video that would round to grade 5 is not used. Where progress was measured it is used up to
        the frame at which the task is done.
        """
        found = self._ends_by_grade.get(grade, _NOWHERE)
        return found[np.searchsorted(found, first) :] if first else found

    @cached_property
    def _ends_by_grade(self) -> dict[int | None, Indices]:
        wanted: dict[int | None, tuple[int, ...]] = {None: UNFINISHED_GRADES, **{g: (g,) for g in UNFINISHED_GRADES}}
        return {
            grade: np.flatnonzero(np.isin(self._end_grades, those)).astype(np.int32) for grade, those in wanted.items()
        }

    @cached_property
    def _end_grades(self) -> npt.NDArray[np.floating]:
        """The grade of a video that ends at each frame; 0 where none may."""
        grades = np.floor(1 + 4 * self.curve + 0.5)  # as in grade_of, for all frames at once
        if self.measured:
            grades = np.minimum(grades, UNFINISHED_GRADES[-1])
        return np.where(np.isnan(self.curve) | self.done, 0, grades)


def trusted_account(episode: Episode) -> Outcome | None:
    """Return the most trusted account that says whether the episode succeeded; None where nobody trusted does."""
    return most_trusted(said for said in episode.outcomes if said.source in TRUSTED and said.success is not None)


def succeeded(episode: Episode) -> Outcome:
    """Return the trusted account that says the episode succeeded."""
    said = trusted_account(episode)
    if said is None:
        raise NotApplicable("nobody trusted says whether it succeeded")
    if not said.success:
        raise NotApplicable("it did not succeed")
    return said


def is_success(episode: Episode) -> bool:
    """Whether somebody vouches for its success."""
    try:
        succeeded(episode)
    except NotApplicable:
        return False
    return True


def targets_of(episode: Episode, fewest: int = 2) -> Targets:
    """Find the targets of a successful episode of at least `fewest` frames, seen alike by all its cameras."""
    targets = _targets_of(episode)
    if len(targets) < fewest:
        raise NotApplicable(f"it has fewer than {fewest} frames")
    return targets


@lru_cache(maxsize=8)  # one episode is asked for many times in a row, and counting its frames may open its video
def _targets_of(episode: Episode) -> Targets:
    said = succeeded(episode)
    length = len(episode)
    if len(episode.views) > 1 and len({len(frames) for frames in episode.views.values()}) > 1:
        raise NotApplicable("its cameras have different numbers of frames")
    for account in (said, *episode.outcomes):
        curve = account.curve
        # A measured curve that does not say how it ended cannot say what is unfinished.
        if account.source in TRUSTED and curve is not None and len(curve) == length and not np.isnan(curve[-1]):
            return Targets(curve, measured=True, events=said.events)
    return Targets(np.linspace(0, 1, length, dtype=np.float32), measured=False, events=said.events)


def grade_of(progress: float) -> int:
    """Grade an unfinished video: 1 + 4p rounded, halves up, and never 5.

    The quarters are those of `evaluate.metrics.grades.grade_by_range`; the meaning is RoboReward's rubric, which looks
    at the final state: 1 nothing done, 2 a little, 3 half-way, 4 nearly.
    """
    return min(math.floor(1 + 4 * progress + 0.5), UNFINISHED_GRADES[-1])
