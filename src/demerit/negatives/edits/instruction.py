"""reworded: the same success under repaired words (RoboReward's clean-up of task descriptions)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from demerit.data.episode import Episode
from demerit.data.instructions import same_task
from demerit.data.labels import Outcome
from demerit.errors import NotApplicable
from demerit.negatives.edits.edit import edited
from demerit.negatives.negative import DONE_GRADE, UNFINISHED_GRADES, negative, succeeded, targets_of

if TYPE_CHECKING:
    from demerit.negatives.mix import Pool


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


FEWEST_FRAMES = 2  # a single picture shows no attempt


@negative("counterfactual", grades=UNFINISHED_GRADES)
def counterfactual(
    episode: Episode,
    rng: np.random.Generator,
    *,
    words: str | None = None,
    grade: int | None = None,
    model: str = "",
    prompts: str = "",
) -> Episode:
    """Judge a success by a command written for this video, of grade 1 to 4 (made by demerit relabel).

    The grade is a model's opinion and says so; progress stays unknown, because nobody measured it.
    """
    targets_of(episode, FEWEST_FRAMES)
    if words is None or grade is None:
        raise NotApplicable("its command and grade are a model's: demerit relabel makes them")
    if not words.strip() or grade not in UNFINISHED_GRADES:
        raise NotApplicable("it needs a command and a grade from 1 to 4")
    by = f"{model}, {prompts}" if prompts else model
    outcome = Outcome("model", success=False, grade=grade, by=by)
    params = {"words": words, "grade": grade, "model": model, "prompts": prompts}
    return edited(episode, "counterfactual", params, outcome, instruction=words)


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
