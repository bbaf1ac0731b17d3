"""Measure the text tower on held-out sentences.

Does it agree with its teacher about which sentences are similar (correlation of cosines, nearest neighbours)? Is a
sentence nearer to its paraphrase than to itself with the two objects exchanged, and than to its opposite?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats32
from demerit.models.compact.engine import PARTS, WIDTH, TextEncoder

Encoder = Callable[[Sequence[str]], Floats32]

# None of these is in the grammar's own lists.
THINGS = "helmet trumpet camera statue rocket ladder crayon pumpkin lantern violin".split()
SWAPS = (
    ("put the {} on the {}", "place the {} onto the {}", "put the {1} on the {0}"),
    ("pick up the {} and put it in the {}", "put the {} inside the {}", "pick up the {1} and put it in the {0}"),
    ("move the {} behind the {}", "bring the {} to the back of the {}", "move the {1} behind the {0}"),
    ("take the {} out of the {}", "remove the {} from the {}", "take the {1} out of the {0}"),
    ("cover the {} with the {}", "use the {1} to cover the {0}", "cover the {1} with the {0}"),
)
OPPOSED = (
    ("open the {}", "pull the {} open", "close the {}"),
    ("move the {} to the left", "push the {} to the left", "move the {} to the right"),
    ("turn on the {}", "switch the {} on", "turn off the {}"),
    ("put the {} into the {}", "place the {} inside the {}", "take the {} out of the {}"),
    ("lift the {}", "pick up the {}", "lower the {}"),
    ("move the {} forward", "push the {} forwards", "move the {} backward"),
    ("fold the {}", "fold up the {}", "unfold the {}"),
    ("plug in the {}", "connect the {}", "unplug the {}"),
)


def report(
    words: TextEncoder, teacher: Encoder, others: Mapping[str, Encoder], groups: Mapping[str, Sequence[str]]
) -> str:
    """Return the table: one row per group and encoder."""

    def tower(texts: Sequence[str]) -> Floats32:
        found = [words.vector(text) for text in texts]
        return np.stack([np.zeros(WIDTH, np.float32) if vector is None else vector for vector in found])

    ours: dict[str, Encoder] = {"tower": tower, "its sentence part": lambda texts: tower(texts)[:, PARTS["sentence"]]}
    lines = ["sentences, n | encoder | correlation of cosines | same nearest | nearest within the teacher's 5"]
    for name, texts in groups.items():
        truth = cosines(teacher(texts))
        for encoder, encode in {**others, **ours}.items():
            figures = " | ".join(f"{value:.3f}" for value in agreement(truth, cosines(encode(texts))))
            lines.append(f"{name}, {len(texts)} | {encoder} | {figures}")
    lines.append(
        "encoder | paraphrase nearer than exchanged | than opposite | cosine to paraphrase, exchanged, opposite"
    )
    for encoder, encode in {"teacher": teacher, **others, **ours}.items():
        swaps, opposed = nearer(encode, SWAPS), nearer(encode, OPPOSED)
        cosine = f"{swaps[1]:.3f}, {swaps[2]:.3f}, {opposed[2]:.3f}"
        lines.append(f"{encoder} | {swaps[0]:.3f} | {opposed[0]:.3f} | {cosine}")
    return "\n".join(lines)


def cosines(vectors: Floats32) -> Floats32:
    """Return the cosine of each row with each other row."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    similarity: Floats32 = unit @ unit.T
    return similarity


def agreement(truth: Floats32, found: Floats32) -> tuple[float, float, float]:
    """Return the correlation of all cosines, and how often the nearest row is the same or in the nearest five."""
    pairs = np.triu_indices(len(truth), 1)
    correlation = float(np.corrcoef(truth[pairs], found[pairs])[0, 1])
    best, five = _order(truth), _order(found)[:, 0]
    same = float(np.mean(best[:, 0] == five))
    return correlation, same, float(np.mean((best[:, :5] == five[:, None]).any(axis=1)))


def _order(similarity: Floats32) -> npt.NDArray[np.intp]:
    others = similarity.copy()
    np.fill_diagonal(others, -np.inf)
    return np.argsort(-others, axis=1, kind="stable")


def nearer(encode: Encoder, triples: Sequence[tuple[str, str, str]]) -> tuple[float, float, float]:
    """Return how often the second is nearer to the first than the third is, and both mean cosines."""
    texts = [_fill(pattern, pair) for pair in permutations(THINGS, 2) for triple in triples for pattern in triple]
    vectors = encode(texts)
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    first, alike, unlike = (vectors[i::3] for i in range(3))
    near, far = (first * alike).sum(axis=1), (first * unlike).sum(axis=1)
    return float(np.mean(near > far + 1e-6)), float(near.mean()), float(far.mean())


def _fill(pattern: str, pair: tuple[str, str]) -> str:
    return pattern.format(*pair)
