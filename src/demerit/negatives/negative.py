"""Negative: a named edit of an episode; and Targets: the progress of the original, from which its label follows.

A generator (a world model, a video editor) makes new pictures, and nobody has measured what they show: its clips have
no label. They wait for a person (`human_check: due`), and nothing is taught from them before.

Where a person, a simulator or a rule measured progress, that curve is the target. Where a trusted source labels only
success, progress is assumed linear in time, t / (T - 1). Labels that follow from it therefore have the
source "edit".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from demerit.data.arrays import Bools, Floats32
from demerit.data.episode import Edit, Episode, Event, LabelSource, Outcome, most_trusted, with_check
from demerit.data.frames import Frames, Indices, short_hash
from demerit.errors import BadEpisode, BadInput, NotApplicable, UnknownName
from demerit.registry import Registry

if TYPE_CHECKING:
    from demerit.negatives.mix import Pool

NEGATIVES = Registry(
    "negative",
    {
        "clip": "negatives.edits:clip",
        "rewind": "negatives.edits:rewind",
        "reverse": "negatives.edits:reverse",
        "undo": "negatives.edits:undo",
        "freeze": "negatives.edits:freeze",
        "slow": "negatives.edits:slow",
        "stall": "negatives.edits:stall",
        "jump": "negatives.edits:jump",
        "splice": "negatives.edits:splice",
        "wrong-instruction": "negatives.edits:wrong_instruction",
        "counterfactual": "negatives.edits:counterfactual",
        "reworded": "negatives.edits:reworded",
        "crop": "negatives.variants:crop",
        "recolour": "negatives.variants:recolour",
        "cover": "negatives.variants:cover",
        "pace": "negatives.variants:pace",
        "hold": "negatives.variants:hold",
    },
)
ClipGenerator: TypeAlias = Callable[[Episode, np.random.Generator], tuple[Frames, str]]
"""makes a new clip of an episode's task: its frames, and what was asked for, in words; NotApplicable where it cannot"""
GENERATORS = Registry("generator", {}, "demerit.generators")
"""each is a class, or a function without arguments, that returns a `ClipGenerator`"""
GENERATED_BY = "generated_by"
"""the tag that says which generator made an episode"""
VARIANTS = ("crop", "recolour", "cover", "pace", "hold")
"""the edits that keep the label, by one name: `variants` in a mix"""
ID_DIGITS = 10
TRUSTED: tuple[LabelSource, ...] = ("human", "simulator", "rule")
"""sources whose success labels are good enough to build on"""
DONE_GRADE = 5
UNFINISHED_GRADES = (1, 2, 3, 4)


@dataclass(frozen=True)
class Negative:
    """A pure function (episode, rng) -> episode that raises `NotApplicable(reason)` where it makes no sense.

    The function takes its parameters as keywords. Missing parameters are drawn from `rng`, and the recorded edit holds
    all of them, so a replay draws nothing.
    """

    name: str
    make: Callable[..., Episode]
    grades: tuple[int, ...] = ()
    """the grades it can end at; if several, the parameter `grade` selects one; empty = unspecified"""
    uses_pool: bool = False
    """whether it takes `pool`, other episodes' instructions or frames"""
    keeps: str = ""
    """why the original's label stays true; empty = the edit has a label of its own, and takes successes alone"""
    assumes: str = ""
    """what the label of its own rests on; empty = the original's progress"""
    generates: bool = False
    """whether it makes new pictures, of any episode, without a label"""

    def __call__(
        self, episode: Episode, rng: np.random.Generator, *, pool: Pool | None = None, **params: Any
    ) -> Episode:
        """Apply the edit."""
        arguments = {"pool": pool, **params} if self.uses_pool else params
        return self.make(episode, rng, **arguments)

    def make_with_seed(self, episode: Episode, seed: int, *, pool: Pool | None = None, **params: Any) -> Episode:
        """Apply the edit with a seed and record the seed."""
        # Equal to default_rng(seed) and faster; this runs for every negative.
        variant = self(episode, np.random.Generator(np.random.PCG64(seed)), pool=pool, **params)
        variant = replace(variant, id=self.clip_id(episode, seed)) if self.generates else variant
        return _with_seed(variant, seed)

    def clip_id(self, episode: Episode, seed: int | None) -> str:
        """The id of a generated clip, known before it is made: making it may take minutes."""
        return f"{episode.id}+{self.name}-{short_hash(str(seed).encode())[:ID_DIGITS]}"


def negative(
    name: str, *, grades: tuple[int, ...] = (), uses_pool: bool = False, keeps: str = "", assumes: str = ""
) -> Callable[[Callable[..., Episode]], Negative]:
    """Turn a function (episode, rng, *, parameters) into a negative of this name."""
    return lambda make: Negative(name, make, grades, uses_pool, keeps, assumes)


def check_edits(names: Iterable[str]) -> None:
    """Refuse names that are no negative's."""
    for name in names:
        if name not in NEGATIVES:
            raise UnknownName("edit", str(name), list(NEGATIVES))


def is_generator(name: str) -> bool:
    """Whether it is a generator's name; those of edits go first."""
    return name in GENERATORS and name not in NEGATIVES


def load_negative(name: str) -> Negative:
    """Find a negative or a generator by name; a registered plain function is wrapped."""
    if is_generator(name):
        return _load_generator(name)
    factory = NEGATIVES.factory(name)
    return factory if isinstance(factory, Negative) else Negative(name, factory)


def _load_generator(name: str) -> Negative:
    generate: ClipGenerator = GENERATORS.factory(name)()

    def make(episode: Episode, rng: np.random.Generator, *, asked: str = "") -> Episode:
        if GENERATED_BY in episode.origin.tags:
            raise NotApplicable("it was generated itself")
        made = generate(episode, rng)
        frames, asked = made if isinstance(made, tuple) and len(made) == 2 else (None, "")  # noqa: PLR2004
        if not isinstance(frames, Frames) or not len(frames) or not isinstance(asked, str) or not asked.strip():
            raise BadInput(f"a clip of the generator {name!r}", "(frames, what was asked for in words)", repr(made))
        # other tags are about the recording: its policy did not do what the clip shows
        tags = {GENERATED_BY: name} | {tag: text for tag, text in episode.origin.tags.items() if tag == "task"}
        origin = replace(episode.origin, parent=episode.id, group=episode.origin.group or episode.id, tags=tags)
        edits = (*episode.edits, Edit(name, {"asked": asked}))
        return with_check(
            replace(episode, views={episode.main_camera: frames}, outcomes=(), origin=origin, signals={}, edits=edits),
            "due",
        )

    return Negative(name, make, generates=True)


def apply_edit(episode: Episode, edit: Edit, *, pool: Pool | None = None) -> Episode:
    """Repeat a recorded edit. Only a splice needs `pool`, to find its partner."""
    maker = load_negative(edit.name)
    try:
        variant = maker(episode, np.random.default_rng(edit.seed), pool=pool, **edit.params)
        variant = replace(variant, id=maker.clip_id(episode, edit.seed)) if maker.generates else variant
    except TypeError as error:
        got = f"{dict(edit.params)} ({error})"
        raise BadEpisode(episode.id, f"parameters of the edit {edit.name!r}", got) from error
    except NotApplicable as no:
        raise NotApplicable(f"the recorded edit {edit.name!r} does not fit episode {episode.id!r}: {no.reason}") from no
    return _with_seed(variant, edit.seed)


def _with_seed(made: Episode, seed: int | None) -> Episode:
    last = made.edits[-1]
    return replace(made, edits=(*made.edits[:-1], Edit(last.name, last.params, seed)))


@dataclass(frozen=True, eq=False)
class Targets:
    """The progress of a successful original."""

    curve: Floats32
    """progress at every frame, NaN where unknown"""
    measured: bool
    """whether it was measured; otherwise it is linear in time"""
    events: tuple[Event, ...] = ()
    """failures on the way to success, from the trusted outcome"""

    def __len__(self) -> int:
        return len(self.curve)

    @cached_property
    def done(self) -> Bools:
        """Frames with at least the final progress: a video that ends there is not a failure."""
        return np.asarray(self.curve >= self.curve[-1])

    def ends(self, grade: int | None = None, first: int = 0) -> Indices:
        """Frames from `first` on at which a video can end unfinished, at this grade or at any from 1 to 4.

        A demonstration often ends with the arm moving away from finished work. Linear progress does not know when that
        starts, so ends that would round to grade 5 are not used. Measured progress is used up to the frame at which the
        task is done.
        """
        places = self._ends_by_grade.get(grade, np.empty(0, dtype=np.int32))
        return places[np.searchsorted(places, first) :] if first else places

    @cached_property
    def _ends_by_grade(self) -> dict[int | None, Indices]:
        """Frames by the grade of a video that ends there; None = any grade."""
        grades = np.floor(1 + 4 * self.curve + 0.5)  # grade_of for all frames
        if self.measured:
            grades = np.minimum(grades, UNFINISHED_GRADES[-1])
        grades = np.where(np.isnan(self.curve) | self.done, 0, grades)
        wanted: dict[int | None, tuple[int, ...]] = {None: UNFINISHED_GRADES, **{g: (g,) for g in UNFINISHED_GRADES}}
        return {grade: np.flatnonzero(np.isin(grades, those)).astype(np.int32) for grade, those in wanted.items()}


def trusted_outcome(episode: Episode) -> Outcome | None:
    """The most trusted outcome with a success label; None without a trusted source. A rule knows no generated clip."""
    sources = TRUSTED if GENERATED_BY not in episode.origin.tags else TRUSTED[:2]
    return most_trusted(label for label in episode.labels if label.source in sources and label.success is not None)


def require_label(episode: Episode) -> Outcome:
    """Return the trusted outcome, of a success or a failure; raise NotApplicable without one."""
    outcome = trusted_outcome(episode)
    if outcome is None:
        raise NotApplicable("no trusted source says whether it succeeded")
    return outcome


def require_success(episode: Episode) -> Outcome:
    """Return the trusted outcome of a success; raise NotApplicable for anything else."""
    outcome = require_label(episode)
    if not outcome.success:
        raise NotApplicable("it did not succeed")
    return outcome


def is_success(episode: Episode) -> bool:
    """Whether a trusted source labels it a success."""
    outcome = trusted_outcome(episode)
    return outcome is not None and bool(outcome.success)


def targets_of(episode: Episode, fewest: int = 2) -> Targets:
    """The targets of a successful episode with at least `fewest` frames and cameras of equal length."""
    targets = _targets_of(episode)
    if len(targets) < fewest:
        raise NotApplicable(f"it has fewer than {fewest} frames")
    return targets


@lru_cache(maxsize=8)  # called many times in a row for one episode, and counting frames may open its video
def _targets_of(episode: Episode) -> Targets:
    outcome = require_success(episode)
    length = len(episode)
    if len(episode.views) > 1 and len({len(frames) for frames in episode.views.values()}) > 1:
        raise NotApplicable("its cameras have different numbers of frames")
    for label in (outcome, *episode.labels):
        curve = label.curve
        # A curve with an unknown end cannot tell what is unfinished.
        if label.source in TRUSTED and curve is not None and len(curve) == length and not np.isnan(curve[-1]):
            return Targets(curve, measured=True, events=outcome.events)
    return Targets(np.linspace(0, 1, length, dtype=np.float32), measured=False, events=outcome.events)


def find_grade(outcomes: Sequence[Outcome], implied: bool) -> int | None:
    """The most trusted grade; if there is none and `implied`: 5 for a success, that of its progress for a failure."""
    graded = most_trusted(outcome for outcome in outcomes if outcome.grade is not None)
    if graded is not None:
        return graded.grade
    result = most_trusted(outcome for outcome in outcomes if (outcome.success, outcome.progress) != (None, None))
    if not implied or result is None or result.success is None:
        return None
    if result.success:
        return DONE_GRADE
    return None if result.progress is None else grade_of(result.progress)


def grade_of(progress: float) -> int:
    """Grade an unfinished video: 1 + 4p rounded half up, at most 4.

    RoboReward's rubric for the final state: 1 nothing done, 2 a little, 3 half, 4 nearly all. Same thresholds as
    `evaluate.metrics.grades.grade_by_range`.
    """
    return min(math.floor(1 + 4 * progress + 0.5), UNFINISHED_GRADES[-1])
