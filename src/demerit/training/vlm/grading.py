"""RoboReward's question with its answer: a video, a task, and the grade that somebody gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, tensor
from torch.nn import functional as F

from demerit.errors import BadInput
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.grades import GRADES, choices
from demerit.models.vlm.prompt import ANSWER, CUT, Block, Tokens, laid_out, user_turn
from demerit.models.vlm.video import Bounds, pairs_of, video_pieces, video_size
from demerit.models.vlm.words import words
from demerit.training.vlm.corpus import Corpus
from demerit.training.vlm.laid import Example, Shot, example_of
from demerit.training.vlm.recipe import RoboRewardRecipe

MODEL = "roboreward"
END = "<|im_end|>"
"""follows the grade"""


class GradesObjective:
    """RoboReward: every graded episode once an epoch, in an order of its own."""

    def __init__(
        self, corpus: Corpus, recipe: RoboRewardRecipe, tokens: Tokens, shape: VLMShape, bounds: Bounds | None = None
    ) -> None:
        """Take what the questions are made of."""
        self.corpus, self.recipe, self.tokens, self.shape = corpus, recipe, tokens, shape
        self.bounds = bounds or Bounds()
        graded = [at for at, row in enumerate(corpus.rows) if row.grade is not None]
        self.rows = [at for at in graded if corpus.rows[at].split == "train"]
        self.validation = [at for at in graded if corpus.rows[at].split == "validation"]
        if not self.rows:
            raise BadInput("the corpus", "episodes with a grade from 1 to 5 to train on", "none")
        self.begun, self.digits = choices(
            tokens, ANSWER, words("roboreward")["answer"], [str(grade) for grade in GRADES]
        )
        self.opened = len(tokens.ids(ANSWER))

    @property
    def updates(self) -> int:
        """As many as the epochs need."""
        return self.recipe.updates(len(self.rows))

    def draw(self, step: int) -> list[Example]:
        """Take the next episodes, epoch after epoch, each in its own order."""
        first = step * self.recipe.batch
        return [self.example(self._at(number)) for number in range(first, first + self.recipe.batch)]

    def _at(self, number: int) -> int:
        epoch, place = divmod(number, len(self.rows))
        return self.rows[self._order(epoch)[place]]

    def _order(self, epoch: int) -> list[int]:
        rng = np.random.default_rng([self.recipe.seed, epoch])
        return [int(one) for one in rng.permutation(len(self.rows))]

    def example(self, at: int) -> Example:
        """Ask for the grade of an episode, and say it."""
        row = self.corpus.rows[at]
        pairs = pairs_of(row.frames)
        size = video_size(row.frames, row.height, row.width, factor=self.shape.vision.factor, bounds=self.bounds)
        shots = [Shot(at, pair, *size, "torch") for pair in pairs]
        seconds = row.times.astype(np.float64)
        video = video_pieces(pairs, shots, seconds, self.shape.vision.grid(*size))
        asked = user_turn(*video, words(MODEL)["prompt"].format(task=row.instruction))
        blocks = laid_out([*asked, CUT], self.tokens, self.shape)
        grade = int(row.grade or 0) - 1  # a file may say 5.0
        answer = (*self.begun, self.digits[grade], self.tokens.id(END))
        start = sum(map(len, blocks))
        wanted = range(start + self.opened - 1, start + len(answer) - 1)  # each says the token behind it
        targets: dict[str, npt.NDArray[Any]] = {
            "words": np.array(answer[self.opened :], np.int64),
            "grade": np.array([grade + 1], np.float32),
        }
        return example_of([*blocks, Block(answer)], list(wanted), targets)

    def totals(self, examples: Sequence[Example]) -> int:
        """Count the answers' tokens."""
        return sum(len(one.wanted) for one in examples)

    def losses(self, answers: Mapping[str, Tensor], targets: Mapping[str, Tensor], totals: int) -> dict[str, Tensor]:
        """Return a part's share of the mean cross-entropy of the answers' tokens."""
        return {"answer": F.cross_entropy(answers["words"].float(), targets["words"], reduction="sum") / totals}

    def held_out(self) -> list[Example]:
        """Ask for the grades of the validation episodes."""
        return self._held_out

    @cached_property
    def _held_out(self) -> list[Example]:
        return [self.example(at) for at in self.validation]

    def error(self, answers: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Tensor:
        """Return how far the likeliest grade is from the given one."""
        count = len(targets["grade"])
        at_the_grade = answers["words"].reshape(count, -1, answers["words"].shape[-1])[
            :, -2
        ]  # the last token is the answer's end
        grades = at_the_grade[:, tensor(self.digits, device=at_the_grade.device)]
        off: Tensor = (grades.argmax(-1) + 1 - targets["grade"]).abs()
        return off.masked_fill(~grades.isfinite().all(-1), float("nan"))  # the largest of no numbers is no answer
