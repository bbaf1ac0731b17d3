"""The training loop: draw, vary, compute, average; it may be stopped at any step, and ends the same."""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from torch import Tensor

from demerit.data.frames import short_hash
from demerit.errors import BadInput, Diverged
from demerit.models.compact.text import WIDTH, TextEncoder
from demerit.training.compact.augment import vary
from demerit.training.compact.clips import Clip, Drawer
from demerit.training.compact.corpus import Corpus, Row
from demerit.training.compact.losses import Batch, broken, losses, total
from demerit.training.compact.network import Network, Shape, start_from_imagenet
from demerit.training.compact.new_folder import make_folder
from demerit.training.compact.on_device import Pictures, Vocabulary, chosen_device, get_random, set_random
from demerit.training.compact.recipe import Recipe

CHECKPOINT = "checkpoint.pt"
SAVE_EVERY = 60.0
"""seconds between checkpoints"""
WARM_UP = 150
"""steps"""
AHEAD = 8
"""steps drawn ahead"""


@dataclass(frozen=True)
class Told:
    """What is reported now and then."""

    step: int
    steps: int
    losses: Mapping[str, float]
    frames_per_second: float


Report = Callable[[Told], None]


class Fitting:
    """One training run."""

    def __init__(
        self,
        corpus: Corpus,
        recipe: Recipe,
        words: TextEncoder,
        folder: str | Path,
        imagenet: Mapping[str, Tensor] | None = None,
        device: str | None = None,
        pictures: Pictures | None = None,
    ) -> None:
        """Set up, and go on from the folder's checkpoint when there is one of the same recipe and episodes.

        Args:
            corpus: what is trained on.
            recipe: every number.
            words: the text tower.
            folder: where checkpoints go.
            imagenet: weights that the image tower begins with; random without.
            device: `cpu` or `cuda`; a GPU when there is one unless told.
            pictures: the corpus' frames if another run has loaded them already.
        """
        self.corpus, self.recipe, self.folder = corpus, recipe, Path(folder)
        self.device = chosen_device(device)
        torch.backends.cudnn.benchmark = True  # every step has the same shapes
        make_folder(self.folder)
        self.drawer = Drawer(corpus, recipe)
        self.learned_from = _hashed(corpus, self.drawer.rows)
        self.tasks = {task: number for number, task in enumerate(self.drawer.tasks.get("measured", []))}
        torch.manual_seed(recipe.seed)
        self.network = Network(Shape(size=recipe.size, words=WIDTH), len(self.tasks))
        if imagenet is not None:
            start_from_imagenet(self.network.tower, dict(imagenet))
        self.network.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.averaged = deepcopy(self.network).eval().requires_grad_(False)
        fused = self.device.type == "cuda"
        self.optimiser = torch.optim.AdamW(self._parameters(), weight_decay=recipe.decay, fused=fused)
        self.vocabulary = Vocabulary(corpus, words, self.device)
        self.pictures = pictures or Pictures(corpus, self.device, recipe.size)
        self.facts = torch.from_numpy(np.array(corpus.facts)).to(self.device)
        self.step = 0
        self.saved: int | None = None
        """the step that the checkpoint on disk is of"""
        self._whole = True
        self._random = get_random(self.device)
        self._resume()

    def _parameters(self) -> list[dict[str, object]]:
        tower = list(self.network.tower.parameters())
        mine = {id(one) for one in tower}
        rest = [one for one in self.network.parameters() if id(one) not in mine]
        return [
            {"params": tower, "lr": self.recipe.tower_rate, "peak": self.recipe.tower_rate},
            {"params": rest, "lr": self.recipe.head_rate, "peak": self.recipe.head_rate},
        ]

    def run(self, report: Report | None = None, every: int = 100) -> Network:
        """Train to the end and return the averaged network. Ctrl-C saves after the step that is being made.

        Whatever else goes wrong between two steps, what was learned is saved; in the middle of a step the weights are
        neither old nor new, so the last checkpoint stands. So it does where numbers are no longer numbers.
        """
        started = saved = time.monotonic()
        first = self.step
        try:
            with _patient() as stop, closing(self._batches()) as batches:
                for batch in batches:
                    found = self._one(batch)
                    if time.monotonic() - saved > SAVE_EVERY:
                        self.save()
                        saved = time.monotonic()
                    if report is not None and (self.step % every == 0 or self.step == self.recipe.steps):
                        speed = (self.step - first) * batch.frames.numel() / (time.monotonic() - started)
                        values = {name: float(one) for name, one in found.items()}
                        report(Told(self.step, self.recipe.steps, values, speed))
                    if stop.is_set():
                        raise KeyboardInterrupt
                self._check_weights()
        finally:
            if self._whole:
                self.save()
        return self.averaged

    def _one(self, batch: Batch) -> dict[str, Tensor]:
        self._whole = False
        set_random(self.device, self._random)  # dropout draws from torch's own numbers, and so may anybody in between
        self._pace()
        self.network.train()
        generator = torch.Generator(self.device).manual_seed(self.recipe.seed * 1_000_003 + self.step)
        with torch.no_grad():
            seen = vary(self.pictures.take(batch.frames), generator)
        features = look(self.network, seen)
        blank = torch.zeros(len(features), self.network.shape.memory, device=self.device)
        answer = self.network.head(features, batch.words, batch.told, blank)
        try:
            found = losses(self.network, features, answer, batch, self.recipe)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise self._diverged("the equations within a loss have no solution") from error
        self.optimiser.zero_grad(set_to_none=True)
        total(found).backward()  # type: ignore[no-untyped-call]
        length = torch.nn.utils.clip_grad_norm_(self.network.parameters(), 2.0)
        *values, gradient = torch.stack([*(one.detach() for one in found.values()), length]).tolist()
        if broke := broken(dict(zip(found, values, strict=True)), gradient):
            raise self._diverged(broke)
        self.optimiser.step()
        self._average()
        self.step, self._random = self.step + 1, get_random(self.device)
        self._whole = True
        return {name: one.detach() for name, one in found.items()}

    def _check_weights(self) -> None:
        """Refuse to end with weights that are no numbers: nobody computes a loss with the last ones."""
        numbers = (one for one in self.averaged.state_dict().values() if one.is_floating_point())
        if not all(bool(one.isfinite().all()) for one in numbers):
            self._whole = False
            raise self._diverged("it made weights that are no numbers", self.step)

    def _diverged(self, found: str, step: int | None = None) -> Diverged:
        stands = "Nothing was saved" if self.saved is None else f"The checkpoint of update {self.saved} stands"
        rates = "head_rate=... --set tower_rate"
        return Diverged(step or self.step + 1, found, f"{stands}, and no model was written.", rates)

    def _pace(self) -> None:
        """Warm up, then fall along a cosine to a hundredth."""
        done = self.step / max(1, self.recipe.steps)
        factor = min(1.0, (self.step + 1) / WARM_UP) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * factor

    def _average(self) -> None:
        keep = min(self.recipe.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.averaged.parameters()), list(self.network.parameters()), 1 - keep)
            for ours, theirs in zip(self.averaged.buffers(), self.network.buffers(), strict=True):
                if ours.is_floating_point():
                    ours.lerp_(theirs, 1 - keep)
                else:
                    ours.copy_(theirs)

    def _batches(self) -> Generator[Batch, None, None]:
        """Yield the steps that are left; they are drawn in another thread, each from its own number."""
        drawn: queue.Queue[list[list[Clip]] | Exception] = queue.Queue(AHEAD)
        stopped = threading.Event()

        def hand_over(groups: list[list[Clip]] | Exception) -> None:
            while not stopped.is_set():
                with suppress(queue.Full):
                    return drawn.put(groups, timeout=0.2)

        def draw() -> None:
            try:
                for step in range(self.step, self.recipe.steps):
                    hand_over(self.drawer.draw(np.random.default_rng([self.recipe.seed, step])))
                    if stopped.is_set():
                        return
            except Exception as error:  # raised again where it is waited for
                hand_over(error)

        thread = threading.Thread(target=draw, daemon=True)
        thread.start()
        try:
            for _ in range(self.step, self.recipe.steps):
                groups = drawn.get()
                if isinstance(groups, Exception):
                    raise groups
                yield self._batch(groups)
        finally:
            stopped.set()
            thread.join()

    def _batch(self, groups: list[list[Clip]]) -> Batch:
        clips = [clip for group in groups for clip in group]

        def column(values: Sequence[object]) -> Tensor:
            return torch.from_numpy(np.stack(values)).to(self.device, non_blocking=True)  # type: ignore[arg-type]

        words, told = self.vocabulary.take([clip.instruction for clip in clips])
        frames = column([clip.frames for clip in clips])
        return Batch(
            frames=frames,
            progress=column([clip.progress for clip in clips]),
            success=column([clip.success for clip in clips]),
            own=column([clip.own for clip in clips]),
            facts=self.facts[frames],
            words=words,
            told=told,
            task=column([np.int64(self.tasks.get(clip.task, -1)) for clip in clips]),
            weight=column([np.float32(clip.weight) for clip in clips]),
            comparable=column([np.bool_(clip.comparable) for clip in clips]),
            clips=self.recipe.clips,
        )

    def save(self) -> None:
        """Write a checkpoint; a crash leaves the last one whole."""
        path = self.folder / CHECKPOINT
        state = {
            "recipe": json.dumps(self.recipe.facts_of(), sort_keys=True),
            "episodes": self.learned_from,
            "random": self._random,
            "step": self.step,
            "network": self.network.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, path)
        self.saved = self.step

    def _resume(self) -> None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:  # torch has a dozen of them
            expected = "a checkpoint (remove it to begin anew)"
            raise BadInput(str(path), expected, f"something else ({type(error).__name__})") from error
        same = state.get("episodes") == self.learned_from
        if not same or state["recipe"] != json.dumps(self.recipe.facts_of(), sort_keys=True):
            expected = "a checkpoint of this recipe and these episodes (choose another folder)"
            raise BadInput(str(path), expected, "one of others")
        self.step = self.saved = state["step"]
        self.network.load_state_dict(state["network"])
        self.averaged.load_state_dict(state["averaged"])
        self.optimiser.load_state_dict(state["optimiser"])
        self._random = state["random"].cpu()


def _hashed(corpus: Corpus, rows: Sequence[Row]) -> str:
    """Hash what is learned from: words, labels and curves, wherever in the corpus they are."""
    told = [json.dumps({**asdict(row), "first": 0}, sort_keys=True).encode() for row in rows]
    return short_hash(*told, *(np.ascontiguousarray(corpus.progress[row.places]).tobytes() for row in rows))


def look(network: Network, seen: Tensor) -> Tensor:
    """Show the tower clips, (n, frames, 3, height, width), each frame beside its clip's first."""
    first = seen[:, :1].expand_as(seen)
    flat, flat_first = (one.flatten(0, 1).contiguous(memory_format=torch.channels_last) for one in (seen, first))
    with torch.autocast(seen.device.type, dtype=torch.bfloat16, enabled=seen.device.type == "cuda"):
        features: Tensor = network.tower(flat, flat_first)
    return features.float().reshape(*seen.shape[:2], -1)


@contextmanager
def _patient() -> Iterator[threading.Event]:
    """Keep a Ctrl-C until somebody looks at the event; a second one is not kept."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL

    def note(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
