"""Train a vision-language model on a prepared corpus, on top of accelerate, and write the model's folder.

One process trains with `demerit train`; `accelerate launch` runs the same command on several GPUs (DDP or FSDP). A run
that was stopped or killed resumes from its last checkpoint. Coming updates are drawn in a thread and their frames are
decoded in worker processes, so that the GPU does not wait for them.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import set_seed  # type: ignore[import-untyped]
from safetensors.torch import load_file
from torch import Tensor

from demerit.data.decode import take_ahead
from demerit.data.files import lock_folder, make_folder, read_json, sync_tree, write_atomic, write_json
from demerit.data.frames import Frames, short_hash
from demerit.errors import BadInput, Diverged, StoppedByUser, UnknownName
from demerit.models.vlm.backbone import within_memory
from demerit.models.vlm.config import WindowedVision
from demerit.models.vlm.images import VideoBounds
from demerit.models.vlm.qwen25 import WindowedTower
from demerit.training.loop import (
    StopRequest,
    catch_stop,
    choose_device,
    describe_nonfinite,
    explain_full_disk,
    write_folder,
)
from demerit.training.prepared import PreparedCorpus, collect_seen
from demerit.training.vlm.checkpoints import DTYPES, VLMStart, check_export, export_vlm, save_weights
from demerit.training.vlm.config import RobometerTrainConfig, RoboRewardTrainConfig, VLMTrainConfig
from demerit.training.vlm.network import (
    GIB,
    FrozenTower,
    ImageEncoder,
    ImagesByRow,
    Pixels,
    VLMLearner,
    cut_pixels,
    parameter_groups,
    view_rows,
)
from demerit.training.vlm.objectives import (
    ExampleBatch,
    GradesObjective,
    Objective,
    PairsObjective,
    TrainingExample,
)

CHECKPOINT, STATE, TRAINED, BEST, METRICS = (
    "checkpoint-", "state.json", "trained.safetensors", "best", "metrics.jsonl",
)  # fmt: skip
SAVES = ("merged", "adapter")
TRACKERS = ("tensorboard", "wandb")
READY = 2
"""updates whose pixels are in memory before their turn"""


@dataclass(frozen=True)
class VLMProgress:
    """What is reported of an update."""

    step: int
    steps: int
    losses: Mapping[str, float]
    rate: float
    gradient: float
    """its norm before clipping"""
    seconds: float
    tokens: int
    """of all processes"""
    waited: float = 0.0
    """seconds before the update in which the main process had no data"""
    features_found: float = 0.0
    """share of the images whose features were kept"""
    gpu_gib: float | None = None
    """most GPU memory so far"""
    held_out_error: float | None = None

    @property
    def loss(self) -> float:
        """The sum that is minimised."""
        return sum(self.losses.values())

    def __str__(self) -> str:
        """Summarise on one line."""
        losses = " ".join(f"{name} {value:.3f}" for name, value in self.losses.items())
        more = "" if self.held_out_error is None else f", held-out error {self.held_out_error:.3f}"
        return f"loss {self.loss:.3f} ({losses}), {self.tokens / max(self.seconds, 1e-9):.0f} tokens/s{more}"

    def metrics(self) -> dict[str, float]:
        """Return the numbers by name; those that are absent are skipped."""
        values = {"loss": self.loss, **{f"loss_{name}": value for name, value in self.losses.items()}}
        names = "rate gradient seconds waited tokens features_found gpu_gib held_out_error".split()
        return {
            name: value for name, value in (values | {n: getattr(self, n) for n in names}).items() if value is not None
        }


ItemT = TypeVar("ItemT")
VLMReport = Callable[[VLMProgress], None]


def train_vlm(
    corpus: PreparedCorpus,
    out: str | Path,
    config: VLMTrainConfig,
    start: VLMStart,
    report: VLMReport | None = None,
    *,
    device: str | None = None,
    save: str = "merged",
    metrics: Sequence[str] = (),
    workers: int = 2,
) -> Path:
    """Train, export and return the model's folder, `out/model`. Checkpoints and metrics are in `out/run`.

    Args:
        corpus: What `prepare` wrote.
        out: Where everything goes. The same call resumes a run that was stopped.
        config: Every number.
        start: What the run starts with.
        report: Called after every update, in the main process.
        device: `cpu` or `cuda`; by default a GPU if there is one.
        save: `merged` writes a whole model, `adapter` the adapters alone.
        metrics: Trackers of accelerate (`tensorboard`, `wandb`), in addition to run/metrics.jsonl.
        workers: Processes that decode frames for this one; 0 decodes in a thread.
    """
    out = Path(out)
    check_vlm_options(config, save, metrics, device)
    check_export(start, out / "model", merged=save == "merged")
    run = make_folder(out / "run")
    accelerator = Accelerator(
        cpu=choose_device(device).type == "cpu",
        mixed_precision="bf16" if config.precision == "bfloat16" else "no",
        log_with=list(metrics) or None,
        project_dir=str(run),
    )
    with ExitStack() as stack:
        if accelerator.is_main_process:
            stack.enter_context(lock_folder(run))
        stack.callback(accelerator.end_training)
        trainer = VLMTrainer(accelerator, corpus, config, start, run, report, workers)
        trainer.run()
        trained = trainer.best_weights() or trainer.gather_trained()
        if accelerator.is_main_process:
            facts = describe_run(corpus, config, start, trainer)
            seen = collect_seen(row for row in corpus.rows if row.split == "train")
            export_vlm(trained, start, config, out / "model", facts, seen, merged=save == "merged")
        accelerator.wait_for_everyone()
    return out / "model"


def check_vlm_options(config: VLMTrainConfig, save: str, metrics: Sequence[str], device: str | None) -> None:
    """Refuse options that could not be trained with, before anything is computed; arguments as in `train_vlm`."""
    if save not in SAVES:
        raise BadInput("--save", " or ".join(SAVES), repr(save))
    if save == "adapter" and not config.lora:
        raise BadInput("--save adapter", "a run with adapters (--set lora=32)", "one that trains every weight")
    for name in metrics:
        if name not in TRACKERS:
            raise UnknownName("tracker", name, TRACKERS)
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # both libraries leave folders of their own name behind
            raise BadInput("--log", f"{name} to be installed (pip install {name})", "none")
    choose_device(device)


def make_objective(corpus: PreparedCorpus, config: VLMTrainConfig, start: VLMStart) -> Objective:
    """Return the objective of a configuration."""
    if isinstance(config, RobometerTrainConfig):
        return PairsObjective(corpus, config, start.tokens, start.shape)
    if isinstance(config, RoboRewardTrainConfig):
        bounds = VideoBounds() if start.tokenizer is None else VideoBounds.from_folder(start.tokenizer.parent)
        return GradesObjective(corpus, config, start.tokens, start.shape, bounds)
    raise BadInput("configuration", "a RobometerTrainConfig or RoboRewardTrainConfig", type(config).__name__)


def make_encoder(corpus: PreparedCorpus, config: VLMTrainConfig, start: VLMStart, device: torch.device) -> ImageEncoder:
    """Return the frozen tower with its cache, or a reader of pixels if the tower is trained."""
    if config.train_vision:
        return ImageEncoder(None, corpus, device)
    dtype = DTYPES[config.precision]
    weights = {
        name.removeprefix("visual."): value.detach().to(device, dtype)
        for name, value in start.weights.items()
        if name.startswith("visual.")
    }
    merged, vision = not config.train_fusion, start.shape.vision
    tower: FrozenTower | WindowedTower
    if isinstance(vision, WindowedVision):
        tower = WindowedTower(vision, weights, merged=merged)
    else:
        tower = FrozenTower(vision, weights, merged=merged)
    return ImageEncoder(tower, corpus, device, 0.0 if config.cache == "none" else config.cache_gib * GIB)


def describe_run(
    corpus: PreparedCorpus, config: VLMTrainConfig, start: VLMStart, trainer: VLMTrainer
) -> dict[str, Any]:
    """Return what a model was made from, for training.json."""
    episodes = Counter(row.source for row in corpus.rows if row.split == "train")
    chosen = Counter(choice.source for choice in corpus.choices if corpus.rows[choice.better].split == "train")
    facts: dict[str, Any] = {
        "recipe": config.as_dict(),
        "updates": trainer.steps,
        "start": start.name,
        "start_fingerprint": start.fingerprint,
        "episodes": dict(sorted(episodes.items())),
        "preferences": dict(sorted(chosen.items())),
    }
    if trainer.best is not None:
        facts["best"] = {
            "update": trainer.best["step"],
            "held-out error": trainer.best["error"],
            "measure": trainer.objective.held_out_measure,
        }
    return facts


def learning_rate_factor(step: int, steps: int, warm_up: float) -> float:
    """Return the share of the learning rate: linear warm-up, then half a cosine down to 0."""
    warm = math.ceil(warm_up * steps)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


class VLMTrainer:
    """One training run."""

    def __init__(
        self,
        accelerator: Accelerator,
        corpus: PreparedCorpus,
        config: VLMTrainConfig,
        start: VLMStart,
        folder: Path,
        report: VLMReport | None = None,
        workers: int = 2,
    ) -> None:
        """Set up, and resume from the folder's checkpoint if it is of the same run.

        Args:
            accelerator: Decides devices, precision and processes.
            corpus: What is trained on.
            config: Every number.
            start: What the run starts with.
            folder: Where checkpoints and metrics go.
            report: Called after every update, in the main process.
            workers: Processes that decode frames; raw ones are read in a thread.
        """
        self.accelerator, self.config, self.folder, self.report = accelerator, config, folder, report
        self.corpus, self.workers = corpus, workers if corpus.is_encoded else 0
        parts, processes = config.batch // config.part, accelerator.num_processes
        if parts % processes:
            raise BadInput("part", f"a batch / part that is a multiple of {processes} processes", f"{parts} parts")
        self.objective = make_objective(corpus, config, start)
        self.steps = self.objective.updates
        described = json.dumps([config.as_dict(), self.steps], sort_keys=True)
        self.identity = short_hash(described.encode(), corpus.identity.encode(), start.fingerprint.encode())
        self.encoder = make_encoder(corpus, config, start, accelerator.device)
        learner = VLMLearner(start, config)
        set_seed(config.seed, device_specific=True)  # for dropout
        fused = accelerator.device.type == "cuda"
        optimiser = torch.optim.AdamW(parameter_groups(learner, config), fused=fused)
        self.learner, self.optimiser = accelerator.prepare(learner, optimiser)
        accelerator.register_save_state_pre_hook(self._save_weights)
        accelerator.register_load_state_pre_hook(self._load_weights)
        self.step = 0
        self.saved: int | None = None
        """the update of the checkpoint on disk"""
        self.best = self._read_best()
        """update (`step`) and `error` of the best weights on what is held out"""
        self._resume()
        if accelerator.log_with:
            values = vars(config).items()
            numbers = {name: value if isinstance(value, int | float) else str(value) for name, value in values}
            wandb = {"dir": str(folder), "id": self.identity, "resume": "allow"}
            accelerator.init_trackers("demerit", config=numbers, init_kwargs={"wandb": wandb})

    def run(self) -> None:
        """Train to the end. Ctrl-C or SIGTERM saves after the current update and raises StoppedByUser."""
        with ExitStack() as stack:
            stop = stack.enter_context(catch_stop())
            drawn = stack.enter_context(closing(self._draw_updates(self.step)))
            pool = stack.enter_context(ThreadPoolExecutor(1))
            updates = stack.enter_context(closing(fetch_ahead(drawn, pool)))
            try:
                for (examples, pixels), waited in updates:
                    self._update(examples, pixels, waited)
                    self._stop_if_asked(stop)
                    if self.step % self.config.save_every == 0 and self.step < self.steps:
                        self.save()
            except StoppedByUser:
                raise
            except KeyboardInterrupt as error:
                raise StoppedByUser(self._saved_text()) from error
        if self.saved != self.steps:
            self.save()

    def _draw_updates(self, first: int) -> Generator[tuple[list[TrainingExample], Pixels]]:
        """Yield the examples of each update and the pixels of this process's parts; decoding runs ahead."""

        def requests() -> Iterator[tuple[tuple[list[TrainingExample], ImagesByRow], list[Frames]]]:
            for step in range(first, self.steps):
                examples = self.objective.draw(step)
                for part in self._own_parts(examples):
                    new = self.encoder.find_new([image for example in part for image in example.images])
                    yield (examples, new), view_rows(self.corpus, new)

        own = self.config.batch // self.config.part // self.accelerator.num_processes
        read = take_ahead(requests(), self.workers)
        while parts := list(islice(read, own)):
            pixels: Pixels = {}
            for (_, new), images in parts:
                pixels |= cut_pixels(new, images)
            yield parts[0][0][0], pixels

    def _own_parts(self, examples: Sequence[TrainingExample]) -> list[Sequence[TrainingExample]]:
        """Divide an update into parts and return those of this process."""
        part = self.config.part
        parts = [examples[first : first + part] for first in range(0, len(examples), part)]
        return parts[self.accelerator.process_index :: self.accelerator.num_processes]

    def _update(self, examples: Sequence[TrainingExample], pixels: Pixels, waited: float = 0.0) -> None:
        """Make one update; raise Diverged if a loss, the gradient or a weight is not finite."""
        started = time.monotonic()
        factor = learning_rate_factor(self.step, self.steps, self.config.warm_up)
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * factor
        advice = "Training (try --set part=1, --set lora=32 or --set checkpointing=true)"
        with within_memory(advice):
            counts, losses = self._accumulate_gradients(examples, pixels)
            gradient = float(self.accelerator.clip_grad_norm_(self.learner.parameters(), self.config.clip))
            if problem := describe_nonfinite(losses, gradient):
                raise self._divergence_error(problem)
            self.optimiser.step()
            self.optimiser.zero_grad()
            if not self._is_finite():
                raise self._divergence_error("the weights are not finite")
        self.step += 1
        progress = VLMProgress(
            step=self.step,
            steps=self.steps,
            losses=losses,
            rate=self.optimiser.param_groups[0]["lr"],
            gradient=gradient,
            seconds=time.monotonic() - started,
            tokens=int(counts["tokens"]),
            waited=waited,
            features_found=1 - counts["encoded"] / counts["images"],
            gpu_gib=torch.cuda.max_memory_allocated() / GIB if self.accelerator.device.type == "cuda" else None,
            held_out_error=self._validate(),
        )
        self.accelerator.log(progress.metrics(), step=self.step)
        if self.accelerator.is_main_process:
            self._write_metrics(progress)
            if self.report is not None:
                self.report(progress)

    def _accumulate_gradients(
        self, examples: Sequence[TrainingExample], pixels: Pixels
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return counts and losses of the whole update, over all processes."""
        self.learner.train()
        totals = self.objective.totals(examples)
        sums: Counter[str] = Counter()
        losses: dict[str, Tensor] = {}
        parts = self._own_parts(examples)
        for number, part in enumerate(parts, 1):
            batch = ExampleBatch.collate(part, self.accelerator.device)
            with nullcontext() if number == len(parts) else self.accelerator.no_sync(self.learner):
                terms = self.objective.losses(self._forward(batch, part, pixels), batch.targets, totals)
                # gradients are averaged over processes, but each loss is a share of the whole update's
                self.accelerator.backward(torch.stack(list(terms.values())).sum() * self.accelerator.num_processes)
            losses = {name: losses.get(name, 0) + value.detach() for name, value in terms.items()}
            images = {image for example in part for image in example.images}
            sums["tokens"] += sum(map(len, part))
            sums["images"] += len(images)
            sums["encoded"] += len(images & set(pixels))
        counts = self._add_up({name: float(count) for name, count in sums.items()})
        return counts, self._add_up({name: float(value) for name, value in losses.items()})

    def _forward(self, batch: ExampleBatch, examples: Sequence[TrainingExample], pixels: Pixels) -> dict[str, Tensor]:
        images = [image for example in examples for image in example.images]
        outputs: dict[str, Tensor] = self.learner(batch, self.encoder.encode(images, pixels))
        return outputs

    def _load_pixels(self, examples: Sequence[TrainingExample]) -> Pixels:
        return self.encoder.load_pixels([image for example in examples for image in example.images])

    def _add_up(self, values: Mapping[str, float]) -> dict[str, float]:
        """Add numbers up over all processes."""
        numbers = torch.tensor(list(values.values()), dtype=torch.float64, device=self.accelerator.device)
        return dict(zip(values, self.accelerator.reduce(numbers, "sum").tolist(), strict=True))

    def _trained_weights(self) -> dict[str, Tensor]:
        learner: VLMLearner = self.accelerator.unwrap_model(self.learner)
        return {name: parameter.detach() for name, parameter in learner.trained_parameters()}

    def _is_finite(self) -> bool:
        local = [getattr(value, "to_local", lambda value=value: value)() for value in self._trained_weights().values()]
        bad = torch.stack([~value.isfinite().all() for value in local]).sum()
        return self._add_up({"bad": float(bad)})["bad"] == 0

    def _validate(self) -> float | None:
        """Compute the held-out error where it is due, and keep the best weights; NaN is never the best."""
        is_due = self.step % self.config.validate_every == 0 or self.step == self.steps
        if not (is_due and self.objective.held_out):
            return None
        error = self._held_out_error()
        if math.isfinite(error) and (self.best is None or error < self.best["error"]):
            best = {"step": self.step, "error": error, "identity": self.identity}
            weights = self.gather_trained()
            if self.accelerator.is_main_process:
                with write_folder(self.folder / BEST, self._saved_text()) as partial:
                    save_weights(weights, partial / TRAINED)
                    write_json(partial / STATE, best)
            self.best = best
        return error

    @torch.no_grad()
    def _held_out_error(self) -> float:
        self.learner.eval()
        examples = self.objective.held_out
        part, processes = self.config.part, self.accelerator.num_processes
        errors = torch.zeros(len(examples), dtype=torch.float64, device=self.accelerator.device)
        for number in range(math.ceil(len(examples) / (part * processes))):  # as often in every process
            first = (number * processes + self.accelerator.process_index) * part
            mine = examples[first : first + part]
            used = mine or examples[:1]
            batch = ExampleBatch.collate(used, self.accelerator.device)
            outputs = self._forward(batch, used, self._load_pixels(used))
            if mine:
                errors[first : first + part] = self.objective.judge(outputs, batch.targets).double()
        return self.objective.held_out_error(self.accelerator.reduce(errors, "sum").tolist())

    # Checkpoints

    def save(self) -> None:
        """Write a checkpoint folder; the last one stays until the new one is complete. All processes call this."""
        folder, partial = self.folder / f"{CHECKPOINT}{self.step}", self.folder / "checkpoint.partial"
        is_main = self.accelerator.is_main_process
        with ExitStack() as stack:
            stack.enter_context(explain_full_disk(folder, self._saved_text()))
            if is_main:
                shutil.rmtree(partial, ignore_errors=True)
                stack.callback(shutil.rmtree, partial, ignore_errors=True)
            self.accelerator.wait_for_everyone()
            self.accelerator.save_state(str(partial))
            self.accelerator.wait_for_everyone()
            if is_main:
                write_json(partial / STATE, {"identity": self.identity, "step": self.step})
                sync_tree(partial)
                older = _find_checkpoints(self.folder)
                partial.rename(folder)
                for path in older:
                    shutil.rmtree(path)
        self.accelerator.wait_for_everyone()
        self.saved = self.step

    def _resume(self) -> None:
        for folder in _find_checkpoints(self.folder)[-1:]:
            state = _read_state(folder)
            if state["identity"] != self.identity:
                expected = "a checkpoint of this configuration, these episodes and this start (choose another folder)"
                raise BadInput(str(folder), expected, "one of others")
            try:
                self.accelerator.load_state(str(folder))
            except Exception as error:  # torch and safetensors raise a dozen kinds
                expected = "a complete checkpoint (remove it to start again)"
                raise BadInput(str(folder), expected, f"{type(error).__name__}: {error}") from error
            self.step = self.saved = state["step"]
        metrics = self.folder / METRICS
        if metrics.exists() and self.accelerator.is_main_process:  # later updates are made again
            write_atomic(metrics, b"".join(metrics.read_bytes().splitlines(keepends=True)[: self.step]))

    def _save_weights(self, models: list[Any], weights: list[Any], folder: str) -> None:
        """Save what is trained instead of every weight. With FSDP accelerate has saved its shards already."""
        if weights and self.accelerator.is_main_process:
            trained = {name: value.cpu().contiguous() for name, value in self._trained_weights().items()}
            save_weights(trained, Path(folder) / TRAINED)
        weights.clear()

    def _load_weights(self, models: list[Any], folder: str) -> None:
        if not models:
            return
        models.clear()
        saved, trained = load_file(Path(folder) / TRAINED), self._trained_weights()
        if saved.keys() != trained.keys():
            raise ValueError("other weights were saved")
        for name, value in trained.items():
            value.copy_(saved[name])

    def gather_trained(self) -> dict[str, Tensor]:
        """Return what is trained, by name, on the CPU. All processes call this; the result is for the main one."""
        names = self._trained_weights().keys()
        state = self.accelerator.get_state_dict(self.learner)
        return {name: value.cpu().contiguous() for name, value in state.items() if name in names}

    def best_weights(self) -> dict[str, Tensor] | None:
        """Return the best weights on what is held out; None if nothing is held out."""
        if self.best is None:
            return None
        weights: dict[str, Tensor] = load_file(self.folder / BEST / TRAINED)
        return weights

    def _read_best(self) -> dict[str, Any] | None:
        if not (self.folder / BEST).exists():
            return None
        best = _read_state(self.folder / BEST)
        return best if best["identity"] == self.identity else None

    def _write_metrics(self, progress: VLMProgress) -> None:
        values = {name: value if math.isfinite(value) else None for name, value in progress.metrics().items()}
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": progress.step, **values}) + "\n")

    # Endings

    def _stop_if_asked(self, stop: StopRequest) -> None:
        """Save and stop in all processes if any of them was asked to."""
        if stop.is_set:
            self.accelerator.set_trigger()
        if self.accelerator.check_trigger():
            self.save()
            raise StoppedByUser(self._saved_text())

    def _saved_text(self) -> str:
        if self.saved is None:
            return "Nothing was saved yet. Rerun to start again."
        return f"Progress is saved up to update {self.saved}. Rerun to resume."

    def _divergence_error(self, problem: str) -> Diverged:
        kept = "Nothing was saved" if self.saved is None else f"The checkpoint of update {self.saved} is kept"
        return Diverged(self.step + 1, problem, f"{kept}, and no model was written.")


def fetch_ahead(items: Iterator[ItemT], pool: ThreadPoolExecutor) -> Generator[tuple[ItemT, float]]:
    """Yield each item and the seconds that were spent waiting for it. The next ones are made in the pool's thread."""
    nothing = object()
    coming: deque[Future[Any]] = deque(pool.submit(next, items, nothing) for _ in range(READY))
    try:
        while True:
            started = time.monotonic()
            item = coming.popleft().result()
            if item is nothing:
                return
            coming.append(pool.submit(next, items, nothing))
            yield item, time.monotonic() - started
    finally:
        for future in coming:
            future.cancel()


def _find_checkpoints(folder: Path) -> list[Path]:
    """Return complete checkpoints, oldest first."""
    paths = [path for path in folder.glob(f"{CHECKPOINT}*") if path.name.removeprefix(CHECKPOINT).isdigit()]
    return sorted(paths, key=lambda path: int(path.name.removeprefix(CHECKPOINT)))


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        state = read_json(folder / STATE, nan=True)
        return {"identity": state["identity"], "step": int(state["step"]), "error": state.get("error")}
    except (BadInput, ValueError, KeyError, TypeError) as error:
        raise BadInput(str(folder), "a complete checkpoint (remove it to start again)", error) from error
