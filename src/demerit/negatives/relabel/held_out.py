"""Which splits are there to be measured by, whatever the dataset calls them."""

from __future__ import annotations

import re
from itertools import pairwise

_NAMES = frozenset(
    "test tests testing testset tested eval evals evaluation evaluate evalset heldout holdout unseen ood benchmark "
    "challenge".split()
)
_TWO_WORDS = frozenset({("held", "out"), ("hold", "out"), ("out", "of"), ("never", "seen")})


def is_for_measuring(split: str) -> bool:
    """Whether a split's name says so: `test`, `Test`, `test_2`, `testing`, `held_out`, `valTest`, `eval-unseen` ...

    A split for validation is none, and neither is one without a name. A name that may be either counts as one.
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", split)
    words = re.findall(r"[a-z]+", apart.casefold())
    return not _NAMES.isdisjoint(words) or not _TWO_WORDS.isdisjoint(pairwise(words))
