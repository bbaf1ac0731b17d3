"""reworded: the same success under repaired words (RoboReward's clean-up of task descriptions)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from demerit.data.episode import Episode
from demerit.data.labels import Outcome
from demerit.errors import NotApplicable
from demerit.negatives.edits.edits import edited
from demerit.negatives.negative import negative
from demerit.negatives.targets import DONE_GRADE, targets_of

FEWEST_FRAMES = 2  # a single picture shows no attempt


@negative("reworded", grades=(DONE_GRADE,))
def reworded(
    episode: Episode,
    rng: np.random.Generator,
    *,
    words: str | None = None,
    was: str = "",
    model: str = "",
    prompts: str = "",
) -> Episode:
    """Repair the spelling and grammar of a success's instruction; no negative (made by demerit relabel).

    The words mean what they meant, so what was said of the original still holds: its outcomes stay.
    """
    targets_of(episode, FEWEST_FRAMES)
    if words is None or not words.strip():
        raise NotApplicable("its words are a model's: demerit relabel makes them")
    params = {"words": words, "was": was or episode.instruction, "model": model, "prompts": prompts}
    made = edited(episode, "reworded", params, Outcome("edit"), instruction=words)
    return replace(made, outcomes=episode.outcomes)
