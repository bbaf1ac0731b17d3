"""Train on a prepared corpus and write the model's folder: needs torch and transformers, no video decoder.

    python -m demerit.training.vlm.train robometer CORPUS OUT --from Qwen/Qwen3-VL-4B-Instruct
    torchrun --nproc-per-node 4 -m demerit.training.vlm.train robometer CORPUS OUT --from ... --set lora=32

`demerit train` does the same on one machine after preparing the corpus. Run again in the same folder, it goes on where
it was.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demerit.config import parse_changes
from demerit.errors import BadInput, DemeritError, MissingExtra
from demerit.training.vlm.corpus import Corpus
from demerit.training.vlm.frames_kept import corpus_for
from demerit.training.vlm.recipe import Recipe, RobometerRecipe, RoboRewardRecipe, load_recipe

if TYPE_CHECKING:
    from demerit.data.files import lock_folder
    from demerit.training.vlm.features import Eyes
    from demerit.training.vlm.objective import Objective
    from demerit.training.vlm.ranks import Ranks
    from demerit.training.vlm.reports import Report, Told
    from demerit.training.vlm.start import Start

KINDS = ("robometer", "roboreward")
"""what can be trained"""
STARTS = {
    "robometer": "Qwen/Qwen3-VL-4B-Instruct",
    "roboreward": "Qwen/Qwen3-VL-4B-Instruct",
    "roboreward_8b": "Qwen/Qwen3-VL-8B-Instruct",
}
"""what a run of a shipped recipe begins with unless told: the model that the authors began with"""
SAVES = ("merged", "adapter")
INTERRUPTED = 130


def train(
    corpus: Corpus,
    out: str | Path,
    recipe: Recipe,
    start: Start,
    report: Report | None = None,
    *,
    device: str | None = None,
    save: str = "merged",
    metrics: Sequence[str] = (),
    ranks: Ranks | None = None,
) -> Path:
    """Fit and export; returns the model's folder.

    Args:
        corpus: what `prepare` wrote.
        out: `run` in it holds checkpoints and metrics, `model` what came out.
        recipe: every number.
        start: what it begins with.
        report: called after every update.
        device: `cpu` or `cuda`; a GPU when there is one unless told.
        save: `merged`, a whole model, or `adapter`.
        metrics: `tensorboard`, `wandb`, beside the lines in run/metrics.jsonl.
        ranks: the machines, where the caller has asked for them already.
    """
    from demerit.training.compact.new_folder import make_folder  # noqa: PLC0415
    from demerit.training.vlm.export import check_export, export  # noqa: PLC0415
    from demerit.training.vlm.fit import Fitting  # noqa: PLC0415
    from demerit.training.vlm.network import Learner  # noqa: PLC0415
    from demerit.training.vlm.ranks import Ranks as Machines  # noqa: PLC0415
    from demerit.training.vlm.ranks import gathered  # noqa: PLC0415
    from demerit.training.vlm.reports import Reports  # noqa: PLC0415
    from demerit.training.vlm.saved import put_best  # noqa: PLC0415

    check_save(save, recipe)
    out = Path(out)
    check_export(start, out / "model", merged=save == "merged")
    machines = ranks or Machines(device)
    objective = objective_for(corpus, recipe, start)
    make_folder(out / "run")
    with ExitStack() as open_things:
        if machines.is_first:
            open_things.enter_context(lock_folder(out / "run"))
        fitting = Fitting(
            Learner(start, recipe),
            objective,
            recipe,
            corpus,
            out / "run",
            machines,
            lambda folder: Reports(folder, metrics, report, recipe.facts_of()),
            eyes=eyes_for(corpus, recipe, start, machines, out / "features"),
            begun_from=start.fingerprint,
        )
        open_things.enter_context(fitting.reports or nullcontext())
        learner = fitting.run()
        if fitting.best is not None:
            put_best(out / "run", learner, fitting.best)
        trained = gathered(learner.learning(), keep=machines.is_first)
        if machines.is_first:
            facts = facts_of(corpus, recipe, start, fitting.steps, fitting.best)
            export(trained, start, recipe, out / "model", facts, merged=save == "merged")
    machines.wait()
    return out / "model"


def objective_for(corpus: Corpus, recipe: Recipe, start: Start) -> Objective:
    """Make what a recipe asks for."""
    from demerit.models.vlm.video import Bounds  # noqa: PLC0415
    from demerit.training.vlm.grading import GradesObjective  # noqa: PLC0415
    from demerit.training.vlm.objective import PairsObjective  # noqa: PLC0415

    if isinstance(recipe, RobometerRecipe):
        return PairsObjective(corpus, recipe, start.tokens, start.shape)
    if isinstance(recipe, RoboRewardRecipe):
        bounds = Bounds.of(start.settings) if start.settings is not None else Bounds()
        return GradesObjective(corpus, recipe, start.tokens, start.shape, bounds)
    raise BadInput("recipe", "one of robometer or roboreward", type(recipe).__name__)


def eyes_for(corpus: Corpus, recipe: Recipe, start: Start, ranks: Ranks, folder: Path) -> Eyes | None:
    """Make the frozen tower with its memory; None where the tower learns."""
    from demerit.training.vlm.features import GIB, Eyes, Kept, Tower  # noqa: PLC0415
    from demerit.training.vlm.start import KINDS  # noqa: PLC0415

    if not recipe.is_tower_frozen:
        return None
    kind = KINDS[recipe.precision]
    weights = {
        name.removeprefix("visual."): value.detach().to(ranks.device, kind)
        for name, value in start.weights.items()
        if name.startswith("visual.")
    }
    compiled = ranks.device.type == "cuda" and recipe.precision == "bfloat16"
    tower = Tower(start.shape.vision, weights, merged=not recipe.train_fusion, compiled=compiled)
    kept = None
    if recipe.cache != "none":
        kept = Kept(recipe.cache_gib * GIB, folder if recipe.cache == "disk" else None, ranks.rank)
    return Eyes(tower, corpus, kept, ranks.device)


def facts_of(corpus: Corpus, recipe: Recipe, start: Start, steps: int, best: Any) -> dict[str, Any]:
    """Tell what a model was made from."""
    counts = Counter(row.source for row in corpus.rows if row.split == "train")
    told: dict[str, Any] = {"recipe": recipe.facts_of(), "updates": steps, "start": start.came_from}
    told |= {"start_fingerprint": start.fingerprint, "episodes": dict(sorted(counts.items()))}
    chosen = Counter(one.source for one in corpus.choices if corpus.rows[one.better].split == "train")
    told["preferences"] = dict(sorted(chosen.items()))
    if best is not None:
        told["best"] = {"update": best.step, "held-out error": best.error}
    return told


def start_of(what: str, recipe: str | Path | None = None) -> str:
    """Name what a run begins with unless told: a shipped recipe has its own, and a file that of what is trained."""
    return STARTS.get(str(recipe or what), STARTS[what])


def begin(what: str, name: str, recipe: Recipe, revision: str | None = None) -> Start:
    """Read the checkpoint that a run begins with."""
    from demerit.training.vlm.start import start_plain, start_robometer  # noqa: PLC0415

    if isinstance(recipe, RobometerRecipe):
        return start_robometer(name, recipe, revision)
    return start_plain(name, recipe, revision)


def check_installed(recipe: Recipe) -> None:
    """Say what to install before hours are spent on anything."""
    for module in ("torch", "transformers", "safetensors", "tokenizers", *(("peft",) if recipe.lora else ())):
        if find_spec(module) is None:
            raise MissingExtra("Training a vision-language model", "vlm-train")


def check_save(save: str, recipe: Recipe) -> None:
    """Refuse another way to write a model than those that there are, and an adapter of a run without any."""
    if save not in SAVES:
        raise BadInput("--save", " or ".join(SAVES), repr(save))
    if save == "adapter" and not recipe.lora:
        raise BadInput("--save adapter", "a run with adapters (--set lora=32)", "one that trains every weight")


def check_device(device: str | None) -> None:
    """Refuse a device that is not there."""
    from demerit.training.compact.on_device import chosen_device  # noqa: PLC0415

    chosen_device(device)


def check_start(begun: str) -> None:
    """Refuse a model to begin with that is not there; only its small files are fetched yet."""
    from demerit.models.vlm.hub import located  # noqa: PLC0415

    located(begun, weights=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line, by one process or by each of several."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=KINDS)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--from", dest="begun", metavar="MODEL", help="folder or hub id of the model to begin with")
    parser.add_argument("--revision", help="of that model on the hub")
    parser.add_argument("--recipe", help="a file, or one of those that ship")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="change numbers of the recipe")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--save", choices=SAVES, default="merged")
    parser.add_argument("--metrics", nargs="*", default=[], choices=["tensorboard", "wandb"])
    asked = parser.parse_args(arguments)
    try:
        machines = _as_asked(asked, parse_changes(asked.set))
    except DemeritError as error:
        raise SystemExit(f"demerit: {error}") from error
    except KeyboardInterrupt as stop:
        print(f"\ndemerit: interrupted; {str(stop) or 'the same command goes on where it was'}.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    if machines > 1:
        # Threads that carried messages between machines may outlive the interpreter, and then abort it now and then.
        # All that was made is on disk by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _as_asked(asked: argparse.Namespace, changes: Mapping[str, Any]) -> int:
    """Train, and return how many machines did."""
    from demerit.training.vlm.ranks import Ranks  # noqa: PLC0415

    recipe = load_recipe(asked.what, asked.recipe).changed(changes)
    check_installed(recipe)
    ranks = Ranks(asked.device)

    def report(told: Told) -> None:
        print(f"{told.step}/{told.steps} {told.in_words()}", flush=True)

    try:
        start = begin(asked.what, asked.begun or start_of(asked.what, asked.recipe), recipe, asked.revision)
        corpus = corpus_for(asked.corpus, recipe)
        made = train(corpus, asked.out, recipe, start, report, save=asked.save, metrics=asked.metrics, ranks=ranks)
        if ranks.is_first:
            print(made)
    finally:
        ranks.close()
    return ranks.count


if __name__ == "__main__":
    main()
