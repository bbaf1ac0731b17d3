"""The compact training loop: sample, augment, compute, average. It saves now and then and resumes from there."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from demerit.data.files import atomic_file, make_folder
from demerit.errors import BadInput, Diverged
from demerit.models.compact.text import WIDTH, TextEncoder
from demerit.training.compact.clips import ClipSampler, TrainingClip
from demerit.training.compact.config import CompactTrainConfig
from demerit.training.compact.corpus import SIMULATOR_FACTS
from demerit.training.compact.inputs import FrameTable, InstructionTable, augment
from demerit.training.compact.losses import ClipBatch, compute_losses
from demerit.training.compact.network import CompactNetwork, CompactShape, start_from_imagenet
from demerit.training.prepared import PreparedCorpus, hash_rows
from demerit.training.run_control import catch_stop, choose_device, describe_nonfinite, load_tensors

CHECKPOINT = "checkpoint.pt"
SAVE_EVERY = 60.0
"""seconds between checkpoints"""
WARM_UP = 150
"""steps"""
AHEAD = 8
"""steps sampled ahead"""
LONGEST_GRADIENT = 2.0
DROPOUT_SEED = 2**62
"""added to the seed of a step, so that dropout and augmentation draw different numbers"""


@dataclass(frozen=True)
class CompactProgress:
    """What is reported while training."""

    step: int
    steps: int
    losses: Mapping[str, float]
    frames_per_second: float

    def __str__(self) -> str:
        """Summarise on one line."""
        losses = " ".join(f"{name} {value:.3f}" for name, value in self.losses.items())
        return f"{self.frames_per_second:.0f} frames/s, {losses}"


CompactReport = Callable[[CompactProgress], None]


class CompactTrainer:
    """One training run."""

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
        self.config, self.folder = config, Path(folder)
        self.device = choose_device(device)
        torch.backends.cudnn.benchmark = True  # every step has the same shapes
        make_folder(self.folder)
        self.sampler = ClipSampler(corpus, config)
        self.identity = json.dumps([config.to_json(), hash_rows(self.sampler.rows)], sort_keys=True)
        self.tasks = {task: number for number, task in enumerate(self.sampler.tasks.get("measured", []))}
        torch.manual_seed(config.seed)
        self.network = CompactNetwork(CompactShape(size=config.size, words=WIDTH), len(self.tasks))
        if imagenet is not None:
            start_from_imagenet(self.network.tower, dict(imagenet))
        self.network.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.averaged = deepcopy(self.network).eval().requires_grad_(False)
        fused = self.device.type == "cuda"
        self.optimiser = torch.optim.AdamW(self._parameter_groups(), weight_decay=config.decay, fused=fused)
        self.instructions = InstructionTable((row.instruction for row in corpus.rows), words, self.device)
        self.frames = FrameTable(corpus, self.device, config.size)
        unknown = [np.full((row.frames, len(SIMULATOR_FACTS)), np.nan, np.float32) for row in corpus.rows]
        known = [blank if row.facts is None else row.facts for row, blank in zip(corpus.rows, unknown, strict=True)]
        self.facts = torch.from_numpy(np.concatenate(known)).to(self.device)
        self.step = 0
        self.saved: int | None = None
        """the step of the checkpoint on disk"""
        self._resume()

    def run(self, report: CompactReport | None = None, every: int = 100) -> CompactNetwork:
        """Train to the end and return the averaged network. Ctrl-C saves after the current step."""
        started = saved = time.monotonic()
        first = self.step
        with catch_stop() as stop, self._batches() as batches:
            for batch in batches:
                losses = self._update(batch)
                if time.monotonic() - saved > SAVE_EVERY:
                    self.save()
                    saved = time.monotonic()
                if report is not None and (self.step % every == 0 or self.step == self.config.steps):
                    speed = (self.step - first) * batch.frames.numel() / (time.monotonic() - started)
                    report(CompactProgress(self.step, self.config.steps, losses, speed))
                if stop.is_set:
                    self.save()
                    raise KeyboardInterrupt
        weights = (value for value in self.averaged.state_dict().values() if value.is_floating_point())
        if not all(bool(value.isfinite().all()) for value in weights):
            raise self._divergence_error("the weights are not finite", self.step)
        self.save()
        return self.averaged

    def _update(self, batch: ClipBatch) -> dict[str, float]:
        factor = learning_rate_factor(self.step, self.config.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * factor
        self.network.train()
        seed = self.config.seed * 1_000_003 + self.step
        torch.manual_seed(seed + DROPOUT_SEED)
        generator = torch.Generator(self.device).manual_seed(seed)
        with torch.no_grad():
            clips = augment(self.frames.take(batch.frames), generator)
        features = tower_features(self.network, clips)
        start = torch.zeros(len(features), self.network.shape.memory, device=self.device)
        output = self.network.head(features, batch.words, batch.instructed, start)
        try:
            losses = compute_losses(self.network, features, output, batch, self.config)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise self._divergence_error("the equations within a loss have no solution", self.step + 1) from error
        self.optimiser.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), LONGEST_GRADIENT)
        *values, gradient = torch.stack([*(loss.detach() for loss in losses.values()), norm]).tolist()
        found = dict(zip(losses, values, strict=True))
        if problem := describe_nonfinite(found, gradient):
            raise self._divergence_error(problem, self.step + 1)
        self.optimiser.step()
        self._average()
        self.step += 1
        return found

    def _average(self) -> None:
        keep = min(self.config.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.averaged.parameters()), list(self.network.parameters()), 1 - keep)
            for ours, theirs in zip(self.averaged.buffers(), self.network.buffers(), strict=True):
                if ours.is_floating_point():
                    ours.lerp_(theirs, 1 - keep)
                else:
                    ours.copy_(theirs)

    def _parameter_groups(self) -> list[dict[str, object]]:
        tower = list(self.network.tower.parameters())
        ids = {id(parameter) for parameter in tower}
        rest = [parameter for parameter in self.network.parameters() if id(parameter) not in ids]
        rates = (tower, self.config.tower_rate), (rest, self.config.head_rate)
        return [{"params": parameters, "lr": rate, "peak": rate} for parameters, rate in rates]

    def _divergence_error(self, found: str, step: int) -> Diverged:
        kept = "Nothing was saved" if self.saved is None else f"The checkpoint of update {self.saved} is kept"
        return Diverged(step, found, f"{kept}, and no model was written.", "head_rate=... --set tower_rate")

    @contextmanager
    def _batches(self) -> Iterator[Iterator[ClipBatch]]:
        """Sample steps ahead in another thread, each from its own seed."""
        with ThreadPoolExecutor(1) as pool:

            def batches() -> Iterator[ClipBatch]:
                pending: list[Future[list[list[TrainingClip]]]] = []
                steps = iter(range(self.step, self.config.steps))
                for _ in range(self.step, self.config.steps):
                    while len(pending) < AHEAD and (step := next(steps, None)) is not None:
                        rng = np.random.default_rng([self.config.seed, step])
                        pending.append(pool.submit(self.sampler.sample, rng))
                    yield self._to_batch(pending.pop(0).result())

            try:
                yield batches()
            finally:
                pool.shutdown(cancel_futures=True)

    def _to_batch(self, groups: list[list[TrainingClip]]) -> ClipBatch:
        clips = [clip for group in groups for clip in group]

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

    def save(self) -> None:
        """Write a checkpoint; a crash leaves the last one complete."""
        path = self.folder / CHECKPOINT
        state = {
            "identity": self.identity,
            "step": self.step,
            "network": self.network.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        with atomic_file(path) as partial:
            torch.save(state, partial)
        self.saved = self.step

    def _resume(self) -> None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        state = load_tensors(path, "a checkpoint (remove it to start again)")
        if state.get("identity") != self.identity:
            expected = "a checkpoint of this configuration and these episodes (choose another folder)"
            raise BadInput(str(path), expected, "one of others")
        self.step = self.saved = state["step"]
        self.network.load_state_dict(state["network"])
        self.averaged.load_state_dict(state["averaged"])
        self.optimiser.load_state_dict(state["optimiser"])


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the share of the learning rate: linear warm-up, then a cosine down to 0.01."""
    return min(1.0, (step + 1) / WARM_UP) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / max(1, steps))))


def tower_features(network: CompactNetwork, clips: Tensor) -> Tensor:
    """Compute (n, frames, features) of (n, frames, 3, height, width) clips; in bfloat16 on a GPU."""
    first = clips[:, :1].expand_as(clips)
    flat, flat_first = (part.flatten(0, 1).contiguous(memory_format=torch.channels_last) for part in (clips, first))
    with torch.autocast(clips.device.type, dtype=torch.bfloat16, enabled=clips.device.type == "cuda"):
        features: Tensor = network.tower(flat, flat_first)
    return features.float().reshape(*clips.shape[:2], -1)
