"""counterfactual: the same video under a command that it does not do (RoboReward's counterfactual relabelling)."""

from __future__ import annotations

import numpy as np

from demerit.data.episode import Episode
from demerit.data.labels import Outcome
from demerit.errors import NotApplicable
from demerit.negatives.edits.edits import edited
from demerit.negatives.negative import negative
from demerit.negatives.targets import UNFINISHED_GRADES, targets_of

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
