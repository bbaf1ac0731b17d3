"""The compact training loop: which clips are sampled, how they are augmented, and which losses are computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from demerit.models.compact.engine import WIDTH, TextEncoder
from demerit.training.loop import TrainingLoop, choose_device
from demerit.training.prepared import PreparedCorpus, hash_rows
from demerit.training.rewind.data import SIMULATOR_FACTS
from demerit.training.rewind.train import InstructionTable
from train_compact.clips import ClipSampler, TrainingClip
from train_compact.config import CompactTrainConfig
from train_compact.inputs import FrameTable, augment
from train_compact.losses import ClipBatch, compute_losses
from train_compact.network import CompactNetwork, CompactShape, start_from_imagenet


class CompactTrainer(TrainingLoop[CompactNetwork, list[list[TrainingClip]], ClipBatch]):
    """One training run."""

    rates = "head_rate=... --set tower_rate"

    def __init__(
        self,
        corpus: PreparedCorpus,
        config: CompactTrainConfig,
        words: TextEncoder,
        folder: str | Path,
        imagenet: Mapping[str, Tensor] | None = None,
        device: str | None = None,
    ) -> None:
        """Set up, and resume from the folder's checkpoint if it is of the same configuration and episodes.

        Args:
            corpus: What is trained on.
            config: Every number.
            words: The text tower.
            folder: Where checkpoints go.
            imagenet: Weights to start the image tower with; random by default.
            device: `cpu` or `cuda`; by default a GPU if there is one.
        """
        place = choose_device(device)
        torch.backends.cudnn.benchmark = True  # every step has the same shapes
        self.config = config
        self.sampler = ClipSampler(corpus, config)
        identity = json.dumps([config.as_dict(), hash_rows(self.sampler.rows)], sort_keys=True)
        self.tasks = {task: number for number, task in enumerate(self.sampler.tasks.get("measured", []))}
        self.frames = FrameTable(corpus, place, config.size)
        self.instructions = InstructionTable((row.instruction for row in corpus.rows), words, place)
        unknown = [np.full((row.frames, len(SIMULATOR_FACTS)), np.nan, np.float32) for row in corpus.rows]
        known = [blank if row.facts is None else row.facts for row, blank in zip(corpus.rows, unknown, strict=True)]
        self.facts = torch.from_numpy(np.concatenate(known)).to(place)
        torch.manual_seed(config.seed)
        network = CompactNetwork(CompactShape(size=config.size, words=WIDTH), len(self.tasks))
        if imagenet is not None:
            start_from_imagenet(network.tower, dict(imagenet))
        network.to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
        super().__init__(
            network,
            _parameter_groups(network, config),
            Path(folder),
            identity,
            seed=config.seed,
            steps=config.steps,
            average=config.average,
            decay=config.decay,
        )

    def sample(self, rng: np.random.Generator) -> list[list[TrainingClip]]:
        """Sample the groups of one step."""
        return self.sampler.sample(rng)

    def compute_losses(self, batch: ClipBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Compute every loss with its weight."""
        with torch.no_grad():
            clips = augment(self.frames.take(batch.frames), generator)
        features = tower_features(self.network, clips)
        start = torch.zeros(len(features), self.network.shape.memory, device=self.device)
        output = self.network.head(features, batch.words, batch.instructed, start)
        return compute_losses(self.network, features, output, batch, self.config)

    def to_batch(self, sample: list[list[TrainingClip]]) -> ClipBatch:
        """Move clips to the device."""
        clips = [clip for group in sample for clip in group]

        def column(values: Sequence[object]) -> Tensor:
            return torch.from_numpy(np.stack(values)).to(self.device, non_blocking=True)  # type: ignore[arg-type]

        words, instructed = self.instructions.take([clip.instruction for clip in clips])
        frames = column([clip.frames for clip in clips])
        return ClipBatch(
            frames=frames,
            progress=column([clip.progress for clip in clips]),
            success=column([clip.success for clip in clips]),
            own=column([clip.own for clip in clips]),
            facts=self.facts[frames],
            words=words,
            instructed=instructed,
            task=column([np.int64(self.tasks.get(clip.task, -1)) for clip in clips]),
            weight=column([np.float32(clip.weight) for clip in clips]),
            comparable=column([np.bool_(clip.comparable) for clip in clips]),
            clips=self.config.clips,
        )


def _parameter_groups(network: CompactNetwork, config: CompactTrainConfig) -> list[dict[str, Any]]:
    tower = list(network.tower.parameters())
    ids = {id(parameter) for parameter in tower}
    rest = [parameter for parameter in network.parameters() if id(parameter) not in ids]
    rates = (tower, config.tower_rate), (rest, config.head_rate)
    return [{"params": parameters, "lr": rate} for parameters, rate in rates]


def tower_features(network: CompactNetwork, clips: Tensor) -> Tensor:
    """Compute (n, frames, features) of (n, frames, 3, height, width) clips; in bfloat16 on a GPU."""
    first = clips[:, :1].expand_as(clips)
    flat, flat_first = (part.flatten(0, 1).contiguous(memory_format=torch.channels_last) for part in (clips, first))
    with torch.autocast(clips.device.type, dtype=torch.bfloat16, enabled=clips.device.type == "cuda"):
        features: Tensor = network.tower(flat, flat_first)
    return features.float().reshape(*clips.shape[:2], -1)
