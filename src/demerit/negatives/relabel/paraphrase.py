"""Whether two commands say the same, by the distance of their vectors.

The text tower that ships (`models.compact.text`) gives an instruction a vector of four parts. The sentence part alone
would take "open the drawer" for "close the drawer", so that two commands count as paraphrases only when they are near
in all of them: what it is about (cosine), which thing, which place, and which of two opposites (distances). The tower
does not hear "half way" or "twice", and a wish that is added at the end hardly moves it: words decide these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from demerit.data.instructions import content_words, normalize_instruction
from demerit.models.compact.text import PARTS, TextEncoder

Floats = npt.NDArray[np.float32]

COSINE = 0.87
FAR = {"what": 3.5, "where": 4.0, "signs": 2.7}
"""Chosen on pairs of both kinds: "put the cup on the plate" and "place the mug on top of the plate" are at 0.88, 3.4,
0.4 and 0.5; "... on the red plate" is 4.8 away in where, "... next to the plate" 4.1 in signs, "open" 5.5 from
"close"."""
AMOUNTS = frozenset(
    "half quarter halfway partly fully completely entirely almost nearly slightly twice thrice again not never without "
    "no all both every each only one two three four five six seven eight nine ten first second third last".split()
)
MOST_MORE = 2
"""words that matter by which paraphrases may differ in number; more is another wish"""


@dataclass(frozen=True)
class Nearness:
    """How near two commands are, part by part."""

    cosine: float
    far: dict[str, float]

    @property
    def same(self) -> bool:
        """Whether they say the same."""
        return self.cosine >= COSINE and all(self.far[part] <= most for part, most in FAR.items())


def nearness(one: str, other: str) -> Nearness | None:
    """Compare two commands; None when one of them has no known word."""
    a, b = vector(one), vector(other)
    if a is None or b is None:
        return None
    first, second = a[PARTS["sentence"]], b[PARTS["sentence"]]
    cosine = float(first @ second / max(float(np.linalg.norm(first) * np.linalg.norm(second)), 1e-6))
    return Nearness(cosine, {part: float(np.linalg.norm(a[PARTS[part]] - b[PARTS[part]])) for part in FAR})


def paraphrases(one: str, other: str) -> bool:
    """Whether the two say the same in other words."""
    amounts = [AMOUNTS & set(normalize_instruction(text).split()) for text in (one, other)]
    if amounts[0] != amounts[1] or abs(len(content_words(one)) - len(content_words(other))) > MOST_MORE:
        return False
    near = nearness(one, other)
    return near is not None and near.same


@lru_cache(maxsize=4096)
def vector(command: str) -> Floats | None:
    """Return the vector of a command."""
    return tower().vector(command)


@cache
def tower() -> TextEncoder:
    """Load the text tower that ships, once."""
    # Not through the engine, which would load the machinery of the pictures too.
    return TextEncoder.load(Path(str(files("demerit"))) / "assets" / "compact" / "words.npz")
