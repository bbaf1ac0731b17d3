"""From a record to episodes: the same video under other words, or shorter; nothing is copied.

Every made episode has the original as its parent and in its group, the version of the prompts in its tags, and, in the
test split, the tag `human_check: due`: a model's grades are good enough to learn from, not to be measured by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.labels import Outcome
from demerit.data.splits import is_evaluation_split
from demerit.negatives import load_negative
from demerit.negatives.relabel.record import Record

HUMAN_CHECK, DUE = "human_check", "due"
PROMPTS = "prompts"


def made_of(record: Record, episode: Episode, split: str, keep_original: bool) -> Iterator[Episode]:
    """Make the episodes that a record stands for, by grade; the original is last."""
    rng = np.random.default_rng(0)  # nothing is drawn: all parameters are given
    about: dict[str, Any] = {"model": record.model, "prompts": record.prompts}
    for grade, candidate in sorted(record.commands.items()):
        counterfactual = load_negative("counterfactual")
        yield _told(counterfactual(episode, rng, words=candidate.text, grade=grade, **about), record, episode, split)
    base = episode
    if record.words != episode.instruction:
        base = load_negative("reworded")(episode, rng, words=record.words, was=episode.instruction, **about)
    for grade, candidate in sorted(record.clips.items()):
        clipped = load_negative("clip")(base, rng, last=int(candidate.text))
        confirmed = Outcome("model", success=False, grade=grade, by=f"{record.model}, {record.prompts}")
        yield _told(replace(clipped, outcomes=(*clipped.outcomes, confirmed)), record, episode, split)
    if keep_original:
        yield _told(base, record, episode, split)


def _told(made: Episode, record: Record, original: Episode, split: str) -> Episode:
    """Add split, parent, group and tags."""
    tags = {**made.origin.tags, PROMPTS: record.prompts}
    if is_evaluation_split(split):
        tags[HUMAN_CHECK] = DUE
    parent = original.id if made.edits != original.edits else made.origin.parent
    group = original.origin.group or original.id
    return replace(made, origin=replace(made.origin, split=split, parent=parent, group=group, tags=tags))
