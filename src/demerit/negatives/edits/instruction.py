"""Edits of the instruction: wrong-instruction, counterfactual and reworded. The frames stay.

The parameter `words` is the new instruction (the name under which edits record it).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from demerit.data.episode import Episode
from demerit.data.instructions import same_task
from demerit.data.labels import Outcome
from demerit.errors import NotApplicable
from demerit.negatives.edits.edit import build_edited
from demerit.negatives.negative import DONE_GRADE, UNFINISHED_GRADES, negative, require_success, targets_of

if TYPE_CHECKING:
    from demerit.negatives.mix import Pool

EASY = 0.25
"""share of wrong instructions drawn from any task instead of the most similar ones"""
FEWEST_FRAMES = 2


@negative("wrong-instruction", grades=(1,), uses_pool=True)
def wrong_instruction(
    episode: Episode,
    rng: np.random.Generator,
    *,
    pool: Pool | None = None,
    words: str | None = None,
    near: str = "as given",
) -> Episode:
    """Give a success another task's instruction: progress 0 at every frame, grade 1 (Robometer's negatives).

    The instruction comes from the same split, preferably from the same scene or about the same objects, and never asks
    for the same task.
    """
    require_success(episode)
    if not episode.instruction.strip():
        raise NotApplicable("it has no instruction")
    if words is None:
        drawn = pool.other_instruction(episode, rng, EASY) if pool is not None else None
        if drawn is None:
            raise NotApplicable("there is no other task in its split")
        words, near = drawn
    if same_task(words, episode.instruction):
        raise NotApplicable("the other instruction may ask for the same task")
    curve = np.zeros(len(episode), dtype=np.float32)
    outcome = Outcome("edit", success=False, progress=0.0, grade=1, curve=curve, by="wrong-instruction")
    return build_edited(episode, "wrong-instruction", {"words": words, "near": near}, outcome, instruction=words)


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
    """Give a success a command written for this video, of grade 1 to 4 (made by demerit relabel).

    The label source is "model"; progress stays unknown.
    """
    targets_of(episode, FEWEST_FRAMES)
    if words is None or grade is None:
        raise NotApplicable("a model writes its command and grade: use demerit relabel")
    if not words.strip() or grade not in UNFINISHED_GRADES:
        raise NotApplicable("it needs a command and a grade from 1 to 4")
    by = f"{model}, {prompts}" if prompts else model
    outcome = Outcome("model", success=False, grade=grade, by=by)
    params = {"words": words, "grade": grade, "model": model, "prompts": prompts}
    return build_edited(episode, "counterfactual", params, outcome, instruction=words)


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
    """Replace a success's instruction by a corrected one of the same meaning. The outcomes stay."""
    targets_of(episode, FEWEST_FRAMES)
    if words is None or not words.strip():
        raise NotApplicable("it needs an instruction")
    params = {"words": words, "was": was or episode.instruction, "model": model, "prompts": prompts}
    made = build_edited(episode, "reworded", params, Outcome("edit"), instruction=words)
    return replace(made, outcomes=episode.outcomes)
