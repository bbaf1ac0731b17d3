"""What a run asks: examples for every update, the same ones whenever they are drawn, and the loss of the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.images import grid_size
from demerit.models.vlm.prompt import Picture, Tokens, laid_out
from demerit.models.vlm.robometer import FEWEST, MOST
from demerit.models.vlm.robometer import Protocol as Asking
from demerit.training.vlm.corpus import Corpus
from demerit.training.vlm.laid import Example, Shot, example_of, last_tokens
from demerit.training.vlm.losses import Totals, losses
from demerit.training.vlm.recipe import RobometerRecipe
from demerit.training.vlm.samples import Drawer, Sample, Side


class Objective(Protocol):
    """What is trained."""

    @property
    def updates(self) -> int:
        """How many updates the run has."""
        ...

    def draw(self, step: int) -> list[Example]:
        """Return the examples of an update, always the same for the same step."""
        ...

    def totals(self, examples: Sequence[Example]) -> Any:
        """Count what the losses of an update are divided by."""
        ...

    def losses(self, answers: Mapping[str, Tensor], targets: Mapping[str, Tensor], totals: Any) -> dict[str, Tensor]:
        """Return a part's share of each loss."""
        ...

    def held_out(self) -> list[Example]:
        """Return examples to choose between checkpoints by; empty where the last one is taken."""
        ...

    def error(self, answers: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Tensor:
        """Return the error of each held-out example."""
        ...


class PairsObjective:
    """Robometer: pairs drawn anew for every update."""

    def __init__(self, corpus: Corpus, recipe: RobometerRecipe, tokens: Tokens, shape: VLMShape) -> None:
        """Take what the questions are made of."""
        self.corpus, self.recipe, self.tokens, self.shape = corpus, recipe, tokens, shape
        self.drawer = Drawer(corpus, recipe)
        self.asking = Asking(frames=recipe.frames)

    @property
    def updates(self) -> int:
        """As many as the recipe has; an epoch is as many pairs as there are episodes."""
        return self.recipe.updates(len(self.drawer.rows))

    def draw(self, step: int) -> list[Example]:
        """Draw the pairs of an update."""
        rng = np.random.default_rng([self.recipe.seed, step])
        return [self.example(self.drawer.draw(rng)) for _ in range(self.recipe.batch)]

    def example(self, sample: Sample) -> Example:
        """Ask about a pair, as the published checkpoints are asked."""
        pictures = [self._pictures(side) for side in (sample.first, sample.second)]
        pieces = self.asking.preference_pieces(sample.instruction, *pictures)
        blocks = laid_out(pieces, self.tokens, self.shape)[:-1]  # nothing reads the turn's end
        ends = last_tokens(blocks)
        targets = {
            "preference": np.array([sample.first_is_better], np.float32),
            "progress": sample.first.progress,
            "success": sample.first.success,
        }
        return example_of(blocks, [*ends[: self.recipe.frames], ends[-1]], targets)

    def _pictures(self, side: Side) -> list[Picture]:
        row = self.corpus.rows[side.row]
        size = grid_size(row.height, row.width, factor=self.shape.vision.factor, low=FEWEST, high=MOST)
        grid = self.shape.vision.grid(*size)
        return [Picture(Shot(side.row, (int(frame),), *size, "pil"), *grid) for frame in side.frames]

    def totals(self, examples: Sequence[Example]) -> Totals:
        """Count pairs, known frames and both classes."""
        return Totals.of(examples)

    def losses(self, answers: Mapping[str, Tensor], targets: Mapping[str, Tensor], totals: Any) -> dict[str, Tensor]:
        """Return a part's share of the three losses."""
        return losses(answers, targets, totals, self.recipe)

    def held_out(self) -> list[Example]:
        """Return none: the last weights are taken."""
        return []

    def error(self, answers: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Tensor:
        """Return 1 for every pair that was judged wrongly."""
        return ((answers["preference"] > 0).float() != targets["preference"]).float()
