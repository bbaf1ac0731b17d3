"""The lesson's own negatives: the same frames in another order, or under another task's words.

Nothing is decoded for them. A rewound video shows the same frames: what the tower said of them stands, and only the
temporal part follows them again. A clip needs not even that: the head is causal, so that what it says at the cut is
what it said there anyway; clips serve as made-up failures where success is calibrated (`ends`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.instructions import normalize_instruction
from demerit.data.labels import Outcome
from demerit.data.splits import seed_of
from demerit.errors import NotApplicable
from demerit.negatives import load_negative
from demerit.negatives.mix import Pool
from demerit.training.teach.labels import Label
from demerit.training.teach.lesson import Lesson
from demerit.training.teach.rows import Example
from demerit.training.teach.targets import target_of, wrong_words

ORDERS = ("rewind", "freeze", "undo")
"""negatives that change the order of frames"""
MADE_UP_SHARE = 0.5
"""a negative of a success whose own progress is made up counts so much less"""
UNFINISHED = 0.6
"""a clip counts as a made-up failure when it ends below this progress"""


def make_views(lesson: Lesson) -> list[tuple[int, Example]]:
    """Make the negatives of every success, where order or words can be seen by the head."""
    found = list(_told(lesson))
    if lesson.room.settings.follows:
        found += _reordered(lesson)
    return found


def ends(lesson: Lesson, place: int) -> npt.NDArray[np.int64]:
    """Frames at which a clip of this success would be a failure: made-up failures cost nothing."""
    target = lesson.targets[place]
    below = (target.part > 0) & ~target.capped & (target.value < UNFINISHED)
    return np.flatnonzero(below)[1:]


def _reordered(lesson: Lesson) -> Iterator[tuple[int, Example]]:
    settings = lesson.room.settings
    for place, episode in _successes(lesson):
        measured = "measured" in lesson.targets[place].parts
        for number in range(settings.views):
            name = ORDERS[(place + number) % len(ORDERS)]
            try:
                made = load_negative(name).seeded(episode, seed_of(settings.seed, episode.id, name, number))
            except NotApplicable:
                continue
            order = np.arange(len(episode)) if made.main.indices is None else made.main.indices
            label = Label(success=made.outcomes[0].success, curve=made.outcomes[0].curve)
            share = settings.weights.view * (1.0 if measured else MADE_UP_SHARE)
            target = replace(target_of(label, len(order), settings), share=share)
            seen = lesson.seen[place]
            x = lesson.room.shown(seen, order, seen.episode.instruction)
            yield place, Example(x, target, lesson.groups[place], lesson.task(place))


def _told(lesson: Lesson) -> Iterator[tuple[int, Example]]:
    """Successes under another taught task's words; never where the words, or the data's names, may mean the same."""
    if len(set(lesson.tasks.values())) < 2:  # noqa: PLR2004
        return
    successes = list(_successes(lesson))
    pool = Pool.of(episode for _, episode in successes)
    named = {one.words: one.episode.origin.tags.get("task", "") for one in lesson.seen}
    rng = np.random.default_rng(lesson.room.settings.seed)
    for place, episode in successes:
        drawn = pool.other_words(episode, rng, easy=0.5)
        seen = lesson.seen[place]
        if drawn is None:
            continue
        other = normalize_instruction(drawn[0])
        if named[seen.words] and named[seen.words] == named.get(other):
            continue
        x = lesson.room.features(seen, drawn[0])
        target = wrong_words(len(x), lesson.room.settings)
        yield place, Example(x, target, lesson.groups[place], lesson.tasks[other], told=True)


def _successes(lesson: Lesson) -> Iterator[tuple[int, Episode]]:
    """Stand-ins that negatives can be made of: as many empty pictures as frames were looked at, and their label."""
    for place, (seen, target) in enumerate(zip(lesson.seen, lesson.targets, strict=True)):
        if lesson.labels[place].verdict and len(target) > 1:
            known = np.where(target.capped, np.nan, target.value)
            curve = known.astype(np.float32) if not np.isnan(known).any() else None
            blank = Frames.from_array(np.zeros((len(target), 1, 1, 3), dtype=np.uint8))
            outcome = Outcome("rule", success=True, curve=curve, by="the lesson's label")
            yield place, replace(seen.episode, views={"main": blank}, outcomes=(outcome,), signals={}, edits=())


def made_up_failures(lesson: Lesson) -> Sequence[int]:
    """Places of successes that a clip can be made of."""
    return [place for place, label in enumerate(lesson.labels) if label.verdict and len(ends(lesson, place))]
