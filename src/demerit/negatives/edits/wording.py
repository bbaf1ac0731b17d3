"""wrong-instruction: the right behaviour for other words (Robometer's instruction negatives)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from demerit.data.episode import Episode
from demerit.data.instructions import same_task
from demerit.data.labels import Outcome
from demerit.errors import NotApplicable
from demerit.negatives.edits.edits import edited
from demerit.negatives.negative import negative
from demerit.negatives.targets import succeeded

if TYPE_CHECKING:
    from demerit.negatives.pool import Pool

EASY = 0.25
"""How often any other task's words are taken instead of the hardest: far tasks must be told apart too."""


@negative("wrong-instruction", grades=(1,), uses_pool=True)
def wrong_instruction(
    episode: Episode,
    rng: np.random.Generator,
    *,
    pool: Pool | None = None,
    words: str | None = None,
    near: str = "as given",
) -> Episode:
    """Judge the video by another task's words: progress 0 at every frame, grade 1.

    Only for episodes that succeeded: of those alone we know what they show. Words come from the pool's same split,
    preferably of the same scene and about the same objects, and never ask for the same thing.
    """
    succeeded(episode)
    if not episode.instruction.strip():
        raise NotApplicable("it has no instruction")
    if words is None:
        drawn = pool.other_words(episode, rng, EASY) if pool is not None else None
        if drawn is None:
            raise NotApplicable("there is no other task in its split")
        words, near = drawn
    if same_task(words, episode.instruction):
        raise NotApplicable("the other words may ask for the same thing")
    outcome = Outcome(
        "edit",
        success=False,
        progress=0.0,
        grade=1,
        curve=np.zeros(len(episode), dtype=np.float32),
        by="wrong-instruction",
    )
    return edited(episode, "wrong-instruction", {"words": words, "near": near}, outcome, instruction=words)
