"""The commands that train vision-language models."""

from __future__ import annotations

from dataclasses import dataclass
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
    from demerit.training.vlm.corpus import Corpus
    from demerit.training.vlm.prepare import Part
    from demerit.training.vlm.recipe import Recipe
    from demerit.training.vlm.reports import Told

OutOption = Annotated[
    Path, typer.Option("--out", "-o", metavar="OUT", help="Where everything goes; OUT/model is the model.")
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="MODEL",
        help="A folder or hub id to begin with (default: Qwen3-VL 4B, and 8B for the recipe roboreward_8b).",
    ),
]
SaveOption = Annotated[
    str, typer.Option("--save", metavar="merged|adapter", help="What to write when adapters were trained.")
]
MetricsOption = Annotated[
    Named,
    typer.Option("--metrics", metavar="tensorboard|wandb", help="Where metrics go too; may be repeated."),
]


@dataclass(frozen=True)
class Asked:
    """What the command line says."""

    what: str
    out: Path
    given: dict[str, Named]
    corpus: Path | None
    prepare_only: bool
    recipe: Path | None
    changes: Named
    begun: str | None
    save: str
    metrics: Named
    device: str | None
    workers: int


def robometer(
    out_folder: OutOption,
    data: Annotated[
        Named,
        typer.Option(
            "--data",
            metavar="NAME=DATASET",
            help="Episodes with an outcome, a progress or a curve that is not a model's; may be repeated.",
        ),
    ] = None,
    demonstrations: DemonstrationsOption = None,
    corpus: CorpusOption = None,
    prepare_only: PrepareOnlyOption = False,
    recipe: Annotated[Path | None, typer.Option(metavar="FILE", help="Another recipe than the shipped one.")] = None,
    changes: ChangesOption = None,
    begun: FromOption = None,
    save: SaveOption = "merged",
    metrics: MetricsOption = None,
    device: DeviceOption = None,
    workers: WorkersOption = 2,
) -> None:
    """Train a Robometer: which of two episodes does better, and how far one is at every frame.

    Ctrl-C keeps what was done, and the same command goes on from there. NAME is kept with each episode. All numbers are
    in the recipe; --set steps=100 changes one. docs/training_vlms.md has more, also on training with several GPUs.

    [bold]Examples[/bold]

      demerit train robometer -o mine --data lab=my_set --from robometer/Robometer-4B --set lora=32 --set steps=500
      demerit train robometer -o mine --data lab=my_set --demonstrations shown=my_demos --metrics tensorboard
      demerit score new_episodes --model robometer:path=mine/model
    """
    given = {"data": data, "demonstrations": demonstrations}
    _run(
        Asked(
            what="robometer",
            out=out_folder,
            given=given,
            corpus=corpus,
            prepare_only=prepare_only,
            recipe=recipe,
            changes=changes,
            begun=begun,
            save=save,
            metrics=metrics,
            device=device,
            workers=workers,
        )
    )


def roboreward(
    out_folder: OutOption,
    data: Annotated[
        Named,
        typer.Option(
            "--data",
            metavar="NAME=DATASET",
            help="Episodes with a grade from 1 to 5 that is not a model's; may be repeated.",
        ),
    ] = None,
    held_out: Annotated[
        Named,
        typer.Option(
            metavar="NAME=DATASET", help="Graded episodes, never trained on: the weights that do best there are kept."
        ),
    ] = None,
    corpus: CorpusOption = None,
    prepare_only: PrepareOnlyOption = False,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another recipe than the shipped one (roboreward_8b ships too).")
    ] = None,
    changes: ChangesOption = None,
    begun: FromOption = None,
    save: SaveOption = "merged",
    metrics: MetricsOption = None,
    device: DeviceOption = None,
    workers: WorkersOption = 2,
) -> None:
    """Train a RoboReward: the grade of an episode, from 1 to 5, as the answer to a question.

    Ctrl-C keeps what was done, and the same command goes on from there. NAME is kept with each episode. All numbers are
    in the recipe; --set steps=100 changes one. docs/training_vlms.md has more, also on training with several GPUs.

    [bold]Examples[/bold]

      demerit train roboreward -o graded --data lab=my_graded_set --held-out later=my_other_set
      demerit train roboreward -o large --data lab=my_graded_set --recipe roboreward_8b
      demerit score new_episodes --model roboreward:path=graded/model
    """
    given = {"data": data, "held-out": held_out}
    _run(
        Asked(
            what="roboreward",
            out=out_folder,
            given=given,
            corpus=corpus,
            prepare_only=prepare_only,
            recipe=recipe,
            changes=changes,
            begun=begun,
            save=save,
            metrics=metrics,
            device=device,
            workers=workers,
        )
    )


def _run(asked: Asked) -> None:
    """Prepare the corpus, train and say where the model is."""
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.config import parse_changes  # noqa: PLC0415
    from demerit.training.vlm.dashboards import check_dashboards  # noqa: PLC0415
    from demerit.training.vlm.recipe import load_recipe  # noqa: PLC0415
    from demerit.training.vlm.train import (  # noqa: PLC0415
        begin,
        check_device,
        check_installed,
        check_save,
        check_start,
        objective_for,
        start_of,
        train,
    )

    recipe = load_recipe(asked.what, asked.recipe).changed(parse_changes(asked.changes or []))
    metrics = asked.metrics or []
    begun = asked.begun or start_of(asked.what, asked.recipe)
    check_save(asked.save, recipe)
    if not asked.prepare_only:
        check_installed(recipe)
        check_dashboards(metrics)
        check_device(asked.device)
    parts = _parts(asked)
    if not asked.prepare_only:
        check_start(begun)
    corpus = _prepared(asked, parts, recipe)
    if asked.prepare_only:
        return
    start = begin(asked.what, begun, recipe)
    with bar("training", objective_for(corpus, recipe, start).updates) as shown:

        def report(told: Told) -> None:
            shown.update(told.step, told.in_words())

        folder = train(corpus, asked.out, recipe, start, report, device=asked.device, save=asked.save, metrics=metrics)
    out.print(f"The model: [bold]{escape(str(folder))}[/bold]")
    out.print(f"Next: demerit score DATASET --model {asked.what}:path={escape(str(folder))}")


def _parts(asked: Asked) -> list[Part]:
    """Open the datasets that were named; none where a corpus is there already."""
    from demerit.training.vlm.prepare import Part  # noqa: PLC0415

    parts = [
        Part(name, data, "validation" if use == "held-out" else "train", use == "demonstrations")
        for use, name, data in opened(asked.given)
    ]
    if not parts:
        need_corpus(_corpus_folder(asked), [option for option in asked.given if option != "held-out"])
    return parts


def _corpus_folder(asked: Asked) -> Path:
    return asked.corpus or asked.out / "corpus"


def _prepared(asked: Asked, parts: list[Part], recipe: Recipe) -> Corpus:
    """Prepare the corpus, or open the one that is there."""
    from demerit.cli.bars import bar  # noqa: PLC0415
    from demerit.training.vlm.frames_kept import corpus_for  # noqa: PLC0415
    from demerit.training.vlm.prepare import prepare  # noqa: PLC0415

    folder = _corpus_folder(asked)
    if not parts:
        return corpus_for(folder, recipe)
    with bar("preparing", expected([part.data for part in parts])) as shown:
        made = prepare(parts, folder, recipe, lambda done: shown.update(done.episodes), asked.workers)
    chosen = f", {len(made.choices)} preferences" if made.choices else ""
    told = f"{len(made.rows)} episodes, {sum(row.frames for row in made.rows)} frames{chosen}"
    say_corpus(folder, told, [part.data for part in parts])
    return made
