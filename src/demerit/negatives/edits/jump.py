"""jump: the middle is missing.

What is the right label for a video that is cut? Its last frame shows the task done, and the rubric judges the final
state, so it stays a success of grade 5. What changes is the curve: progress leaps with the picture. A model that
follows the clock, or that carries its last answer on, is wrong there; one that looks at the frame is right.
"""

from __future__ import annotations

import numpy as np

from demerit.data.episode import Episode
from demerit.errors import NotApplicable
from demerit.negatives.edits.edits import pick, reshown
from demerit.negatives.negative import negative
from demerit.negatives.targets import DONE_GRADE, targets_of

FEWEST_FRAMES = 4
LEAST_MISSING = 0.25


@negative("jump", grades=(DONE_GRADE,))
def jump(episode: Episode, rng: np.random.Generator, *, before: int | None = None, after: int | None = None) -> Episode:
    """Keep the frames up to `before` and from `after` on; at least a quarter is missing between them."""
    targets = targets_of(episode, FEWEST_FRAMES)
    length = len(targets)
    missing = max(1, int(np.ceil(LEAST_MISSING * length)))
    before = pick(np.arange(length - 1 - missing, dtype=np.int32), rng, before, None, "the last frame before it")
    after = int(rng.integers(before + 1 + missing, length)) if after is None else after
    if not before + 1 < after < length:
        raise NotApplicable("nothing is missing between the two parts")
    kept = np.concatenate([np.arange(before + 1), np.arange(after, length)])
    return reshown(episode, "jump", {"before": before, "after": after}, kept, targets)
