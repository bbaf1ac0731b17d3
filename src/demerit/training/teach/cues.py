"""A control that is taught too: change, motion and elapsed time, fitted on the same folds as the model.

What it reaches, anybody reaches without seeing the task. A taught model that is no better has learned how much moves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from demerit.data.reward import Reward
from demerit.models.protocol import ModelCard
from demerit.training.teach.crossval import CrossValidated
from demerit.training.teach.head import fit_examples
from demerit.training.teach.lesson import Lesson, Seen
from demerit.training.teach.rows import Example
from demerit.training.teach.settings import Settings

CUES = "taught-cues"
LONG = 100.0
"""frames that count as one unit of elapsed time"""


def cue_rewards(lesson: Lesson, left_out: CrossValidated) -> tuple[ModelCard, list[Reward]]:
    """Fit and predict the cues on the model's own folds."""
    card = ModelCard(
        name=CUES,
        revision="1",
        licence="Apache-2.0",
        quantity="progress",
        low=0.0,
        high=1.0,
        causal=False,
        comparable=True,
        reads_instruction=False,
        about="Change, motion and elapsed time, taught on the same episodes: what teaching gets without seeing a task.",
    )
    columns = [cues_of(seen) for seen in lesson.seen]
    examples = [
        Example(x, target, group) for x, target, group in zip(columns, lesson.targets, lesson.groups, strict=True)
    ]
    settings = Settings(kind="linear", seed=lesson.room.settings.seed)
    rewards: dict[int, Reward] = {}
    for fold in sorted({int(left_out.fold[place]) for place in left_out.outputs}):
        inside = [examples[i] for i in np.flatnonzero(left_out.fold != fold)]
        head = fit_examples(inside, settings)
        for place in np.flatnonzero(left_out.fold == fold).tolist():
            seen = lesson.seen[place]
            rewards[place] = Reward(CUES, seen.id, seen.at, head.progress(columns[place]).astype(np.float32))
    reason = "it was not left out: the lesson was too small or was interrupted"
    return card, [
        rewards.get(place) or Reward.unscored(CUES, seen.id, reason) for place, seen in enumerate(lesson.seen)
    ]


def cues_of(seen: Seen) -> npt.NDArray[np.float64]:
    """Change, motion and elapsed time at every frame that was looked at."""
    columns = [np.interp(seen.at, one.at, one.value) for one in sorted(seen.controls, key=lambda one: one.model)]
    return np.stack([*columns, seen.at / LONG], axis=1)
