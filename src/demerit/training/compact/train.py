"""Train on a prepared corpus and write the network's folder: needs numpy and torch, no robot library, no video decoder.

    python -m demerit.training.compact.train CORPUS OUT --imagenet efficientnet-lite0.pth --words words.npz

`demerit train compact` does the same after preparing the corpus. Run again in the same folder, it goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from demerit.config import parse_changes
from demerit.errors import BadInput, DemeritError, MissingExtra
from demerit.training.compact.corpus import Corpus, Row
from demerit.training.compact.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from torch import Tensor

    from demerit.training.compact.fit import Report, Told

CREDITS = {
    "metaworld": "Meta-World's scenes and robot (MIT), simulated by demerit",
    "droid": "DROID (CC-BY-4.0): Khazatsky et al. 2024, {count:,} demonstrations",
    "roboarena": "RoboArena (MIT) rollouts, with progress curves by Robometer as a teacher",
}
"""by the name that a dataset has in the corpus; others are named as they are"""
IMAGENET = "EfficientNet-Lite0 (Apache-2.0), trained on ImageNet: the image tower began there"
SHIPPED_WORDS = "all-MiniLM-L6-v2 (Apache-2.0): the text tower was distilled from it"
EVERY = 10
"""steps between two reports: on a GPU each one waits for it"""


def train(
    corpus: Corpus,
    out: str | Path,
    recipe: Recipe,
    words: str | Path | None = None,
    imagenet: str | Path | None = None,
    report: Report | None = None,
    device: str | None = None,
) -> Path:
    """Fit, export, and write what it was made from; returns the network's folder.

    Args:
        corpus: what `prepare` wrote.
        out: `run` in it holds the checkpoints, `network` what came out.
        recipe: every number.
        words: the text tower; the shipped one when absent.
        imagenet: EfficientNet-Lite0's weights; without them the image tower begins at random.
        report: called every ten steps.
        device: `cpu` or `cuda`; a GPU when there is one unless told.
    """
    check_asked(recipe, words, imagenet, device)
    from demerit.models.compact.text import TextEncoder  # noqa: PLC0415
    from demerit.training.compact.export import export  # noqa: PLC0415
    from demerit.training.compact.fit import Fitting  # noqa: PLC0415

    out, words = Path(out), Path(words or shipped_words())
    start = None if imagenet is None else load_weights(imagenet)
    fitting = Fitting(corpus, recipe, TextEncoder.load(words), out / "run", start, device)
    network = fitting.run(report, EVERY)
    rows = fitting.drawer.rows
    credits = [*credits_of(rows), SHIPPED_WORDS if _same(words, shipped_words()) else f"text tower: {words.name}"]
    if imagenet is not None:
        credits.append(IMAGENET)
    folder = export(network, out / "network", words, _revision(recipe, rows), credits)
    facts = {"recipe": recipe.facts_of(), "episodes": dict(sorted(Counter(row.source for row in rows).items()))}
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return folder


def check_asked(recipe: Recipe, words: str | Path | None, imagenet: str | Path | None, device: str | None) -> None:
    """Refuse what could not be trained with, before hours are spent on anything; arguments are those of `train`."""
    check_installed()
    from demerit.models.compact.text import TextEncoder  # noqa: PLC0415
    from demerit.training.compact.export import check_size  # noqa: PLC0415
    from demerit.training.compact.on_device import chosen_device  # noqa: PLC0415

    check_size(recipe.size)
    chosen_device(device)
    if words is not None:
        TextEncoder.load(Path(words))
    if imagenet is not None:
        load_weights(imagenet)


def check_installed() -> None:
    """Say what to install before hours are spent on anything."""
    for module in ("torch", "onnx"):
        if find_spec(module) is None:
            raise MissingExtra("Training the compact model", "train")


def shipped_words() -> Path:
    """Find the text tower that ships."""
    return Path(str(files("demerit") / "assets" / "compact" / "words.npz"))


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """Read tensors from a file; never anything else."""
    import torch  # noqa: PLC0415 - heavy, and only training needs it

    expected = "a file of tensors (EfficientNet-Lite0's weights for torch)"
    try:
        told = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BadInput(str(path), expected, error.strerror or error) from error
    except Exception as error:  # torch has a dozen of them
        raise BadInput(str(path), expected, f"something else ({type(error).__name__})") from error
    if not isinstance(told, dict) or not told or any(not isinstance(value, torch.Tensor) for value in told.values()):
        raise BadInput(str(path), expected, "something else")
    return {name: value.float() if value.is_floating_point() else value for name, value in told.items()}


def credits_of(rows: Iterable[Row]) -> list[str]:
    """Name the datasets as their licences ask."""
    counts = Counter(row.source for row in rows)
    return [CREDITS.get(name, name).format(count=count) for name, count in sorted(counts.items())]


def in_words(told: Told) -> str:
    """Say how a run is doing."""
    each = " ".join(f"{name} {value:.3f}" for name, value in told.losses.items())
    return f"{told.frames_per_second:.0f} frames/s, {each}"


def _revision(recipe: Recipe, rows: Sequence[Row]) -> str:
    """Name the run by what went in."""
    told = json.dumps([recipe.facts_of(), [row.id for row in rows]], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.is_file() and one.read_bytes() == other.read_bytes()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--imagenet", type=Path, help="EfficientNet-Lite0 weights for torch; random without")
    parser.add_argument("--words", type=Path, default=None, help="the text tower; the shipped one when absent")
    parser.add_argument("--recipe", type=Path, default=None)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="change numbers of the recipe")
    parser.add_argument("--device", choices=["cpu", "cuda"], default=None)
    asked = parser.parse_args()
    try:
        _train_as_asked(asked)
    except DemeritError as error:
        raise SystemExit(f"demerit: {error}") from error


def _train_as_asked(asked: argparse.Namespace) -> None:
    recipe = load_recipe(asked.recipe).changed(parse_changes(asked.set))

    def report(told: Told) -> None:
        print(f"{told.step}/{told.steps} {in_words(told)}", flush=True)

    print(train(Corpus.load(asked.corpus), asked.out, recipe, asked.words, asked.imagenet, report, asked.device))


if __name__ == "__main__":
    main()
