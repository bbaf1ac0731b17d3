"""What a run learns: the examples of every update as tensors, and the losses of the model's output.

Robometer has three losses, each an average over the whole update, however it is divided among steps and processes:

    preference   -log p(the better one)                         mean over pairs
    progress     -sum over bins of two-hot(target) log softmax  mean over frames with known progress
    success      -log p(done) or -log p(not done)               mean of the means of the two classes

RoboReward has the cross-entropy of its answer's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from demerit.errors import BadInput
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.grades import GRADES, split_choices
from demerit.models.vlm.images import How, VideoBounds, grid_size
from demerit.models.vlm.prefix_tree import window
from demerit.models.vlm.prefixes import frame_pairs, video_pieces, video_size
from demerit.models.vlm.prompt import (
    ANSWER,
    CUT,
    ImageSlot,
    PromptTokenizer,
    TokenBlock,
    build_blocks,
    load_prompts,
    user_turn,
)
from demerit.models.vlm.robometer import FEWEST, MOST, expected_progress
from demerit.models.vlm.robometer import RobometerProtocol as RobometerPrompt
from demerit.training.prepared import HELD_OUT, PreparedCorpus
from demerit.training.vlm.config import RobometerTrainConfig, RoboRewardTrainConfig
from demerit.training.vlm.pairs import PairSampler, TrajectoryPair, pair_held_out

TokenNumbers = npt.NDArray[np.int64]
END = "<|im_end|>"
"""follows the grade"""


@dataclass(frozen=True)
class ImageInput:
    """An image of the corpus as the vision tower sees it: one frame, or two of a video."""

    row: int
    frames: tuple[int, ...]
    height: int
    width: int
    how: How
    """how it is resized to height and width"""


@dataclass(frozen=True, eq=False)
class TrainingExample:
    """One prompt with its targets."""

    ids: TokenNumbers
    positions: TokenNumbers
    """(3, tokens)"""
    is_image: npt.NDArray[np.bool_]
    """tokens that are a piece of an image"""
    images: tuple[ImageInput, ...]
    wanted: TokenNumbers
    """tokens whose hidden states are read"""
    targets: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.ids)


def make_example(
    blocks: Sequence[TokenBlock], wanted: Sequence[int], targets: Mapping[str, npt.NDArray[Any]]
) -> TrainingExample:
    """Join blocks; the key of each image is its `ImageInput`."""
    positions, is_image, images = [], [], []
    position = 0
    for block in blocks:
        positions.append(block.positions + position)
        position += block.advance
        here = np.zeros(len(block), np.bool_)
        if block.image is not None:
            here[block.at : block.at + block.image.rows * block.image.columns] = True
            if not isinstance(block.image.key, ImageInput):
                raise TypeError(f"expected an ImageInput, got {block.image.key!r}")
            images.append(block.image.key)
        is_image.append(here)
    return TrainingExample(
        ids=np.concatenate([np.array(block.ids, np.int64) for block in blocks]),
        positions=np.concatenate(positions, axis=1),
        is_image=np.concatenate(is_image),
        images=tuple(images),
        wanted=np.array(wanted, np.int64),
        targets=targets,
    )


@dataclass(frozen=True, eq=False)
class ExampleBatch:
    """Examples on a device, padded at their end: nothing that is read comes after the padding."""

    ids: Tensor
    positions: Tensor
    """(3, examples, tokens)"""
    is_image: Tensor
    wanted: tuple[Tensor, Tensor]
    """examples and tokens of the hidden states that are read"""
    targets: Mapping[str, Tensor]
    """targets of all examples, concatenated"""

    @classmethod
    def collate(cls, examples: Sequence[TrainingExample], device: torch.device) -> ExampleBatch:
        """Pad and stack examples."""
        longest = max(map(len, examples))
        ids = np.zeros((len(examples), longest), np.int64)
        positions = np.zeros((3, len(examples), longest), np.int64)
        is_image = np.zeros((len(examples), longest), np.bool_)
        for number, example in enumerate(examples):
            ids[number, : len(example)], is_image[number, : len(example)] = example.ids, example.is_image
            positions[:, number, : len(example)] = example.positions
        which = np.repeat(np.arange(len(examples)), [len(example.wanted) for example in examples])
        where = np.concatenate([example.wanted for example in examples])

        def move(values: npt.NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(values).to(device)

        targets = {
            name: move(np.concatenate([example.targets[name] for example in examples])) for name in examples[0].targets
        }
        return cls(move(ids), move(positions), move(is_image), (move(which), move(where)), targets)


class PairsObjective:
    """Robometer: new pairs for every update."""

    held_out_measure = "share of held-out pairs in the wrong order"
    """by the progress at the end, within each instruction; Kendall's tau is 1 - 2 x error"""

    def __init__(
        self, corpus: PreparedCorpus, config: RobometerTrainConfig, tokens: PromptTokenizer, shape: VLMShape
    ) -> None:
        """Take what prompts are made of."""
        self.corpus, self.config, self.tokens, self.shape = corpus, config, tokens, shape
        self.sampler = PairSampler(corpus, config)
        self.prompt = RobometerPrompt(frames=config.frames)
        self.ranked = pair_held_out(corpus, config.apart)
        self.validation = sorted({row for pairs in self.ranked.values() for pair in pairs for row in pair})

    @property
    def updates(self) -> int:
        """Number of updates; an epoch has as many pairs as episodes."""
        return self.config.updates(len(self.sampler.rows))

    def draw(self, step: int) -> list[TrainingExample]:
        """Sample the pairs of an update."""
        rng = np.random.default_rng([self.config.seed, step])
        return [self.example(self.sampler.sample(rng)) for _ in range(self.config.batch)]

    def example(self, pair: TrajectoryPair) -> TrainingExample:
        """Write the prompt of the published checkpoints."""
        images = [self._images(side.row, side.frames) for side in (pair.first, pair.second)]
        pieces = self.prompt.preference_pieces(pair.instruction, *images)
        blocks = build_blocks(pieces, self.tokens, self.shape)[:-1]  # nothing reads the end of the turn
        ends = [int(end) - 1 for end in np.cumsum([len(block) for block in blocks])]
        targets = {
            "preference": np.array([pair.first_is_better], np.float32),
            "progress": pair.first.progress,
            "success": pair.first.success,
        }
        return make_example(blocks, [*ends[: self.config.frames], ends[-1]], targets)

    def _images(self, number: int, frames: Iterable[int]) -> list[ImageSlot]:
        row = self.corpus.rows[number]
        size = grid_size(row.height, row.width, factor=self.shape.vision.factor, low=FEWEST, high=MOST)
        grid = self.shape.vision.grid(*size)
        images = [ImageInput(number, (int(frame),), *size, "pil") for frame in frames]
        return [ImageSlot(image, *grid) for image in images]

    def totals(self, examples: Sequence[TrainingExample]) -> PairTotals:
        """Count pairs, frames of known progress, and both classes."""
        return PairTotals.count(examples)

    def losses(self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], totals: Any) -> dict[str, Tensor]:
        """Return a part's share of the three losses."""
        return pair_losses(outputs, targets, totals, self.config)

    @cached_property
    def held_out(self) -> list[TrainingExample]:
        """Whole episodes to choose the best weights by; without any two to compare the last weights are taken."""
        return [self._whole_episode(number) for number in self.validation]

    def _whole_episode(self, number: int) -> TrainingExample:
        """Ask for progress as scoring does, with frames spread over the episode."""
        row = self.corpus.rows[number]
        images = self._images(number, window(row.frames - 1, self.config.frames))
        blocks = build_blocks(self.prompt.progress_pieces(row.instruction, images), self.tokens, self.shape)[:-1]
        ends = [int(end) - 1 for end in np.cumsum([len(block) for block in blocks])]
        return make_example(blocks, [*ends, ends[-1]], {})  # there is no preference to read

    def judge(self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Tensor:
        """Return the progress at the end of each example."""
        by_example = outputs["progress"].reshape(-1, self.config.frames, self.config.bins)
        return expected_progress(by_example[:, -1])

    def held_out_error(self, progress: Sequence[float]) -> float:
        """Return the share of pairs in the wrong order, the mean over instructions; equal progress is half wrong."""
        end = dict(zip(self.validation, progress, strict=True))
        gaps = [np.array([end[better] - end[worse] for better, worse in pairs]) for pairs in self.ranked.values()]
        return float(np.mean([np.mean(0.5 - 0.5 * np.sign(gap)) for gap in gaps]))


@dataclass(frozen=True)
class PairTotals:
    """Numbers of targets in an update."""

    pairs: int
    progress: int
    """frames of known progress"""
    done: int
    not_done: int

    @classmethod
    def count(cls, examples: Sequence[TrainingExample]) -> PairTotals:
        """Count the targets."""
        progress = np.concatenate([example.targets["progress"] for example in examples])
        success = np.concatenate([example.targets["success"] for example in examples])
        counts = (~np.isnan(progress)).sum(), (success == 1).sum(), (success == 0).sum()
        return cls(len(examples), *(int(count) for count in counts))


def pair_losses(
    outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], totals: PairTotals, config: RobometerTrainConfig
) -> dict[str, Tensor]:
    """Compute a part's share of each loss with its weight; the shares of all parts add up to the update's loss.

    Args:
        outputs: logits: `preference` (pairs,), `progress` (frames, bins), `success` (frames,).
        targets: `preference` 1 where the first is better, else 0; `progress` and `success` (frames,), NaN if unknown.
        totals: of the whole update.
        config: has the weights.
    """
    logits = {name: value.float() for name, value in outputs.items()}
    preference = functional.binary_cross_entropy_with_logits(
        logits["preference"], targets["preference"], reduction="sum"
    )
    progress = progress_losses(logits["progress"], targets["progress"]).sum()
    return {
        "preference": config.preference * preference / totals.pairs,
        "progress": config.progress * progress / max(1, totals.progress),
        "success": config.success * balanced_success_loss(logits["success"], targets["success"], totals),
    }


def two_hot(targets: Tensor, bins: int) -> Tensor:
    """Divide each target between its two nearest bins; bins are at 0, 1/(bins - 1), ..., 1."""
    place = targets.clamp(0, 1) * (bins - 1)
    low = place.floor().clamp(max=bins - 2).long()
    high_share = (place - low).unsqueeze(-1)
    shares = torch.zeros(*targets.shape, bins, device=targets.device, dtype=targets.dtype)
    shares.scatter_(-1, low.unsqueeze(-1), 1 - high_share)
    return shares.scatter_add_(-1, low.unsqueeze(-1) + 1, high_share)


def progress_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every frame; 0 where the target is unknown."""
    shares = two_hot(targets.nan_to_num(), logits.shape[-1])
    losses = -(shares * logits.log_softmax(-1)).sum(-1)
    return torch.where(targets.isnan(), torch.zeros_like(losses), losses)


def balanced_success_loss(logits: Tensor, targets: Tensor, totals: PairTotals) -> Tensor:
    """Average within each class, then over the classes that the update has."""
    losses = functional.binary_cross_entropy_with_logits(logits, targets.nan_to_num(), reduction="none")
    classes = [(targets == 1, totals.done), (targets == 0, totals.not_done)]
    means = [(losses * mask).sum() / count for mask, count in classes if count]
    return torch.stack(means).sum() / len(means) if means else losses.sum() * 0


class GradesObjective:
    """RoboReward: every graded episode once per epoch, in random order."""

    held_out_measure = "mean distance of held-out grades"

    def __init__(
        self,
        corpus: PreparedCorpus,
        config: RoboRewardTrainConfig,
        tokens: PromptTokenizer,
        shape: VLMShape,
        bounds: VideoBounds | None = None,
    ) -> None:
        """Take what prompts are made of."""
        self.corpus, self.config, self.tokens, self.shape = corpus, config, tokens, shape
        self.bounds = bounds or VideoBounds()
        graded = [number for number, row in enumerate(corpus.rows) if row.grade is not None]
        self.rows = [number for number in graded if corpus.rows[number].split == "train"]
        self.validation = [number for number in graded if corpus.rows[number].split == HELD_OUT]
        if not self.rows:
            raise BadInput("the corpus", "episodes with a grade from 1 to 5 to train on", "none")
        answer = load_prompts("roboreward")["answer"]
        self.prefix, self.digits = split_choices(tokens, ANSWER, answer, [str(grade) for grade in GRADES])
        self.opening = len(tokens.ids(ANSWER))

    @property
    def updates(self) -> int:
        """Number of updates."""
        return self.config.updates(len(self.rows))

    def draw(self, step: int) -> list[TrainingExample]:
        """Take the next episodes of the epoch."""
        first = step * self.config.batch
        return [self.example(self._row_at(number)) for number in range(first, first + self.config.batch)]

    def _row_at(self, number: int) -> int:
        epoch, place = divmod(number, len(self.rows))
        return self.rows[int(_shuffle(self.config.seed, epoch, len(self.rows))[place])]

    def example(self, number: int) -> TrainingExample:
        """Write the prompt of the published checkpoints and its answer."""
        row = self.corpus.rows[number]
        pairs = frame_pairs(row.frames)
        size = video_size(row.frames, row.height, row.width, factor=self.shape.vision.factor, bounds=self.bounds)
        images = [ImageInput(number, pair, *size, "torch") for pair in pairs]
        video = video_pieces(pairs, images, row.times.astype(np.float64), self.shape.vision.grid(*size))
        prompt = user_turn(*video, load_prompts("roboreward")["prompt"].format(task=row.instruction))
        blocks = build_blocks([*prompt, CUT], self.tokens, self.shape)
        grade = int(row.grade or 0) - 1
        answer = (*self.prefix, self.digits[grade], self.tokens.id(END))
        start = sum(map(len, blocks))
        wanted = range(start + self.opening - 1, start + len(answer) - 1)  # each predicts the next token
        targets: dict[str, npt.NDArray[Any]] = {
            "words": np.array(answer[self.opening :], np.int64),
            "grade": np.array([grade + 1], np.float32),
        }
        return make_example([*blocks, TokenBlock(answer)], list(wanted), targets)

    def totals(self, examples: Sequence[TrainingExample]) -> int:
        """Count the tokens of the answers."""
        return sum(len(example.wanted) for example in examples)

    def losses(self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], totals: Any) -> dict[str, Tensor]:
        """Return a part's share of the mean cross-entropy of the answers' tokens."""
        loss = functional.cross_entropy(outputs["words"].float(), targets["words"], reduction="sum")
        return {"answer": loss / totals}

    @cached_property
    def held_out(self) -> list[TrainingExample]:
        """The examples to choose the best weights by; without any the last weights are taken."""
        return [self.example(number) for number in self.validation]

    def judge(self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Tensor:
        """Return the distance of the likeliest grade to the label; NaN where the output is not finite."""
        by_example = outputs["words"].reshape(len(targets["grade"]), -1, outputs["words"].shape[-1])
        at_grade = by_example[:, -2]  # the last token is END
        logits = at_grade[:, torch.tensor(self.digits, device=at_grade.device)]
        distance: Tensor = (logits.argmax(-1) + 1 - targets["grade"]).abs()
        return distance.masked_fill(~logits.isfinite().all(-1), float("nan"))

    def held_out_error(self, distances: Sequence[float]) -> float:
        """Return the mean absolute error of the grades."""
        return float(np.mean(distances))


@lru_cache(maxsize=2)
def _shuffle(seed: int, epoch: int, count: int) -> TokenNumbers:
    return np.random.default_rng([seed, epoch]).permutation(count)


Objective = PairsObjective | GradesObjective
