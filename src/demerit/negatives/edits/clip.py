"""clip: the video ends early (RoboReward's negative clipping)."""

from __future__ import annotations

import numpy as np

from demerit.data.episode import Episode
from demerit.negatives.edits.edits import pick, reshown
from demerit.negatives.negative import negative
from demerit.negatives.targets import UNFINISHED_GRADES, targets_of

FEWEST_FRAMES = 2  # a single picture shows no attempt


@negative("clip", grades=UNFINISHED_GRADES)
def clip(episode: Episode, rng: np.random.Generator, *, grade: int | None = None, last: int | None = None) -> Episode:
    """Keep the frames up to `last`; early, middle and late cut points are the grades 1 to 4.

    Nothing wrong is seen, the video just ends: there is no failure event.
    """
    targets = targets_of(episode, FEWEST_FRAMES)
    last = pick(targets.ends(grade, first=FEWEST_FRAMES - 1), rng, last, grade, "the cut")
    return reshown(episode, "clip", {"last": last}, np.arange(last + 1), targets)
