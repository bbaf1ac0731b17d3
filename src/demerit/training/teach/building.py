"""From what was gathered and seen to a lesson: targets that fit the frames, pairs, groups and negatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from demerit.data.labels import Preference
from demerit.errors import BadInput, NotApplicable
from demerit.training.teach.gather import Gathered
from demerit.training.teach.labels import NOTHING, Label
from demerit.training.teach.lesson import Lesson, Room, Seen, groups_of, label_at
from demerit.training.teach.rows import Pair
from demerit.training.teach.targets import Target, begun, target_of
from demerit.training.teach.views import make_views


def build_lesson(gathered: Gathered, room: Room, seen: Sequence[Seen]) -> tuple[Lesson, list[str]]:
    """Make the lesson; what has to be left out is said in sentences."""
    kept: list[Seen] = []
    labels: list[Label] = []
    targets: list[Target] = []
    left: list[str] = []
    for one in seen:
        label = gathered.labels.get(one.id, NOTHING)
        try:
            targets.append(_target(label, one, room))
        except NotApplicable as no:
            left.append(f"{one.id} was left out: {no.reason}.")
            continue
        kept.append(one)
        labels.append(label)
    if not kept:
        raise BadInput(gathered.address, "labels that fit their videos", "; ".join(left[-3:]))
    pairs = list(_pairs(gathered.preferences, {one.id: place for place, one in enumerate(kept)}))
    if not pairs and max(np.nan_to_num(one.highest) for one in targets) <= 0:
        raise BadInput(gathered.address, "a success among the episodes that can be read", "none")
    lesson = Lesson(room, kept, labels, targets, groups_of(kept), pairs)
    return lesson.with_views(make_views(lesson)), left


def _target(label: Label, seen: Seen, room: Room) -> Target:
    """The targets at the frames that were looked at; an episode that was only compared is known to begin."""
    if not label.known:
        return begun(len(seen.at), room.settings)
    return target_of(label_at(label, seen.at, seen.length), len(seen.at), room.settings)


def _pairs(preferences: Sequence[Preference], places: Mapping[str, int]) -> Iterator[Pair]:
    for one in preferences:
        if one.a in places and one.b in places:
            better, worse = (one.b, one.a) if one.better == one.b else (one.a, one.b)
            yield Pair(places[better], places[worse], tie=one.better is None)
