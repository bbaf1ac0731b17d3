"""The training loop: draw, look, answer, correct; it may be stopped or killed at any update, and ends the same."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from demerit.data.frames import short_hash
from demerit.errors import WRITE_ERRNOS, BadInput, Diverged, OutOfMemory, StoppedByUser, WriteError
from demerit.models.vlm.memory import within_memory
from demerit.training.compact.losses import broken
from demerit.training.compact.new_folder import make_folder
from demerit.training.vlm.corpus import Corpus
from demerit.training.vlm.features import GIB, Eyes, Pixels, pixels_of
from demerit.training.vlm.laid import Batch, Example, Shot
from demerit.training.vlm.network import Learner
from demerit.training.vlm.objective import Objective
from demerit.training.vlm.ranks import Ranks
from demerit.training.vlm.recipe import Recipe
from demerit.training.vlm.reports import Reports, Told
from demerit.training.vlm.saved import Best, resume, save, save_best
from demerit.training.vlm.stopping import Requests, patient

APART = 1_000_003
"""seeds of two updates lie this far apart"""
SEEDS = 2**63
"""how many torch knows"""


@dataclass(frozen=True, eq=False)
class Drawn:
    """An update's examples, with the pictures of our own parts made ready."""

    examples: list[Example]
    pixels: Pixels


class Fitting:
    """One training run."""

    def __init__(
        self,
        learner: Learner,
        objective: Objective,
        recipe: Recipe,
        corpus: Corpus,
        folder: Path,
        ranks: Ranks,
        reports: Callable[[Path], Reports],
        *,
        eyes: Eyes | None,
        begun_from: str,
    ) -> None:
        """Set up, and go on from the folder's checkpoint where there is one of the same run.

        Args:
            learner: what learns, not placed yet.
            objective: what it is asked.
            recipe: every number.
            corpus: the pictures.
            folder: where checkpoints and metrics go.
            ranks: the machines.
            reports: opens the places where updates are told.
            eyes: the frozen tower; None where the tower learns.
            begun_from: fingerprint of the weights at the start.
        """
        parts = recipe.batch // recipe.part
        if parts % ranks.count:
            expected = f"parts that {ranks.count} machines share evenly (batch / part a multiple of {ranks.count})"
            raise BadInput("recipe, part", expected, f"{parts} parts of {recipe.part}")
        make_folder(folder)
        self.objective, self.recipe, self.corpus, self.eyes = objective, recipe, corpus, eyes
        self.folder, self.ranks, self.steps = folder, ranks, objective.updates
        told = json.dumps([recipe.facts_of(), self.steps], sort_keys=True)
        self.identity = short_hash(told.encode(), corpus.identity.encode(), begun_from.encode())
        self.learner, self.optimiser = ranks.prepared(learner, recipe)
        self.step, self.best = 0, None
        self.saved: int | None = None
        """the update that the checkpoint on disk is of"""
        self._whole = True
        self._found = [0, 0]
        state = resume(folder, self.learner, self.optimiser, self.identity)
        if state is not None:
            self.step = self.saved = state["step"]
            self.best = Best(*state["best"]) if state["best"] else None
        self.reports = reports(folder) if ranks.is_first else None
        if self.reports is not None:
            self.reports.go_on_from(self.step)

    def run(self) -> Learner:
        """Train to the end. A request to stop is heard after the update that is being made, and that is saved.

        Whatever else goes wrong, what was learned is saved, unless the weights were being changed at that moment and
        are neither old nor new, somebody asked twice, or the numbers broke down: then the last checkpoint stands.
        """
        with patient(self._answer, self._kept) as asked:
            try:
                with self._drawn_ahead() as updates:
                    for drawn in updates:
                        self._one(drawn, asked)
                        if self.step % self.recipe.save_every == 0 and self.step < self.steps:
                            self._save_undisturbed(asked)
                self._save_undisturbed(asked)
            except BaseException as error:
                with asked.held():
                    self._end(error, asked)
                raise
        return self.learner

    def save(self) -> None:
        """Write a checkpoint; where there is no room, the last one stands."""
        best = None if self.best is None else (self.best.step, self.best.error)
        facts = {"identity": self.identity, "step": self.step, "best": best}
        try:
            save(self.folder, self.learner, self.optimiser, self.ranks, facts)
        except OSError as error:
            raise self._not_written(error) from error
        self.saved = self.step

    def _save_undisturbed(self, asked: Requests) -> None:
        with asked.held():
            self.save()
        if asked.at_once:
            raise KeyboardInterrupt

    def _end(self, error: BaseException, asked: Requests) -> None:
        """Save what can be saved, and raise what says truly what was kept; other errors are left to the caller."""
        together = self.ranks.count == 1 or isinstance(error, _Agreed)  # several machines save together or not at all
        given_up = asked.at_once or isinstance(error, WriteError | Diverged)
        if self._whole and together and not given_up and self.step > (self.saved or 0):
            self.save()
        if isinstance(error, KeyboardInterrupt):
            raise StoppedByUser(self._kept()) from error
        if isinstance(error, OSError) and error.errno in WRITE_ERRNOS:
            raise self._not_written(error) from error

    def _answer(self) -> str:
        since = "the beginning" if self.saved is None else f"update {self.saved}"
        return f"stopping after this update and saving; again to stop at once and lose what came since {since}"

    def _kept(self) -> str:
        if self.saved is None:
            return "nothing was saved yet, and the same command begins anew"
        lost = f" (updates lost after it: {self.step - self.saved})" if self.step > self.saved else ""
        return f"what was learned up to update {self.saved} is kept{lost}, and the same command goes on from there"

    def _not_written(self, error: OSError) -> WriteError:
        kept = self._kept()
        where = error.filename or self.folder
        return WriteError(where, error.strerror or str(error), f"{kept[0].upper()}{kept[1:]}.")

    def _one(self, drawn: Drawn, asked: Requests) -> None:
        """Make an update and tell of it; stop if any machine was asked to, or if the numbers are no numbers."""
        started = time.monotonic()
        update = self.step + 1
        with self._in_memory():
            sums, gradient = self._gradient(drawn)
            everywhere = self.ranks.added({**sums, "stop": float(asked.is_asked), **self._pictures()})
            stop = everywhere.pop("stop") > 0
            shown, found, tokens = (everywhere.pop(name) for name in ("pictures", "found", "tokens"))
            broke = broken(everywhere, gradient) or self._correct()
        error = None if broke else self._validated()
        if self.reports is not None:
            told = Told(
                step=update,
                steps=self.steps,
                losses=everywhere,
                rate=self.optimiser.param_groups[0]["lr"],
                gradient=gradient,
                seconds=time.monotonic() - started,
                tokens=int(tokens),
                found=found / shown if shown else None,
                gib=torch.cuda.max_memory_allocated() / GIB if self.ranks.device.type == "cuda" else None,
                error=error,
                broke=broke,
            )
            self.reports.tell(told)
        if broke:
            stands = "Nothing was saved" if self.saved is None else f"The checkpoint of update {self.saved} stands"
            raise Diverged(update, broke, f"{stands}, and no model was written.")
        if stop or (asked.is_asked and self.ranks.count == 1):
            raise _Agreed

    def _gradient(self, drawn: Drawn) -> tuple[dict[str, float], float]:
        """Compute what the update would change, and change nothing yet."""
        self._pace()
        self.learner.train()
        totals = self.objective.totals(drawn.examples)
        sums: dict[str, Tensor] = {}
        tokens = 0
        self._found = [0, 0]
        self.optimiser.zero_grad(set_to_none=True)
        for number, examples in self._mine(drawn.examples):
            seed = (self.recipe.seed * APART + self.step) * APART + number
            torch.manual_seed(seed % SEEDS)  # what dropout draws from
            found = self._losses(examples, drawn.pixels, totals)
            # FSDP averages gradients over machines, but every share is one of a whole update already
            (torch.stack(list(found.values())).sum() * self.ranks.count).backward()  # type: ignore[no-untyped-call]
            tokens += sum(len(one) for one in examples)
            for name, one in found.items():
                sums[name] = sums.get(name, torch.zeros_like(one)) + one.detach()
        gradient = self.ranks.clipped(self.learner, self.recipe.clip)
        return {**{name: float(one) for name, one in sums.items()}, "tokens": float(tokens)}, gradient

    def _correct(self) -> str:
        """Change the weights, and say what is wrong with them; empty when nothing is."""
        self._whole = False
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if not self.ranks.is_finite(self.learner):
            return "it made weights that are no numbers"
        self.step += 1
        self._whole = True
        return ""

    def _losses(self, examples: Sequence[Example], pixels: Pixels, totals: Any) -> dict[str, Tensor]:
        batch = Batch.of(examples, self.ranks.device)
        return self.objective.losses(self._answers(batch, examples, pixels), batch.targets, totals)

    def _answers(self, batch: Batch, examples: Sequence[Example], pixels: Pixels) -> dict[str, Tensor]:
        seen = self._seen([shot for one in examples for shot in one.shots], pixels)
        with torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.recipe.precision == "bfloat16"):
            answers: dict[str, Tensor] = self.learner(batch, seen)
        return answers

    def _seen(self, shots: Sequence[Shot], pixels: Pixels) -> list[Tensor]:
        if self.eyes is None:
            return [torch.from_numpy(pixels[shot]).to(self.ranks.device) for shot in shots]
        self._found[0] += len(set(shots))
        self._found[1] += len(set(shots) - set(pixels))
        return self.eyes.look(shots, pixels)

    def _pictures(self) -> dict[str, float]:
        return {"pictures": float(self._found[0]), "found": float(self._found[1])}

    def _mine(self, examples: Sequence[Example]) -> Iterator[tuple[int, list[Example]]]:
        """Cut an update into parts and yield those that are ours, with their number."""
        part = self.recipe.part
        for number in range(self.ranks.rank, len(examples) // part, self.ranks.count):
            yield number, list(examples[number * part : (number + 1) * part])

    def _pace(self) -> None:
        factor = pace(self.step, self.steps, self.recipe.warm_up)
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * factor

    @contextmanager
    def _drawn_ahead(self) -> Iterator[Iterator[Drawn]]:
        """Draw the next update in another thread while this one is computed."""
        with ThreadPoolExecutor(1) as pool:
            yield self._updates(pool)

    def _updates(self, pool: ThreadPoolExecutor) -> Iterator[Drawn]:
        coming = pool.submit(self._draw, self.step) if self.step < self.steps else None
        for step in range(self.step, self.steps):
            assert coming is not None
            drawn = coming.result()
            if step + 1 < self.steps:
                coming = pool.submit(self._draw, step + 1)
            yield drawn

    def _draw(self, step: int) -> Drawn:
        examples = self.objective.draw(step)
        return Drawn(examples, self._prepared([one for _, some in self._mine(examples) for one in some]))

    def _prepared(self, examples: Sequence[Example]) -> Pixels:
        shots = list(dict.fromkeys(shot for one in examples for shot in one.shots))
        if self.eyes is not None:
            return self.eyes.prepared(shots)
        return {shot: pixels_of(self.corpus, shot) for shot in shots}

    def _validated(self) -> float | None:
        """Look at what is held out, where it is time to, and keep the weights that do best.

        None where nobody looked; NaN where there was no answer, which is never the best.
        """
        every = getattr(self.recipe, "validate_every", 0)
        if not every or (self.step % every and self.step != self.steps):
            return None
        held_out = self.objective.held_out()
        if not held_out:
            return None
        error = self._error(held_out)
        if math.isfinite(error) and (self.best is None or not self.best.error <= error):
            best = Best(self.step, error)
            save_best(self.folder, self.learner, self.ranks, best)
            self.best = best  # not before it is written: what is recorded is what is exported
        return error

    @torch.no_grad()
    def _error(self, held_out: list[Example]) -> float:
        self.learner.eval()
        total, part = 0.0, self.recipe.part
        rounds = math.ceil(len(held_out) / (part * self.ranks.count))
        for number in range(rounds):  # as many for every machine: they compute together
            start = (number * self.ranks.count + self.ranks.rank) * part
            some = held_out[start : start + part]
            shown = some or held_out[:1]
            batch = Batch.of(shown, self.ranks.device)
            answers = self._answers(batch, shown, self._prepared(shown))
            total += float(self.objective.error(answers, batch.targets).sum()) if some else 0.0
        return self.ranks.added({"error": total})["error"] / len(held_out)

    @contextmanager
    def _in_memory(self) -> Iterator[None]:
        try:
            with within_memory("Training"):
                yield
        except OutOfMemory as error:
            now = f"part={self.recipe.part}, lora={self.recipe.lora}, checkpointing={self.recipe.checkpointing}"
            advice = "try --set part=1, --set lora=32 or --set checkpointing=true; the last checkpoint stands"
            raise OutOfMemory(f"Training with {now} ({advice})", error.detail) from None


class _Agreed(KeyboardInterrupt):
    """Every machine knows that one of them was asked to stop, and is between two updates."""


def pace(step: int, steps: int, warm_up: float) -> float:
    """Return the share of the rate at an update: it grows evenly during the warm-up, then falls along half a cosine."""
    warm = math.ceil(warm_up * steps)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
