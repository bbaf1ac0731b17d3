"""The calibrate command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demerit.cli.options import CameraOption, DatasetArgument, PickleOption, SourceOptions, StrictOption, reader_options

if TYPE_CHECKING:
    from rich.table import Table

    from demerit.training.calibration.job import Calibration


def calibrate(
    dataset: DatasetArgument,
    model: Annotated[str, typer.Option("--model", "-m", help="The model to calibrate, by name or folder.")],
    out_folder: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder that the calibrated model is written to.")
    ],
    risk: Annotated[float, typer.Option(help="Share of failures that may be called a success.")] = 0.05,
    method: Annotated[
        str,
        typer.Option(help="isotonic: probabilities and mean progress; conformal: bounds that hold but for the risk."),
    ] = "isotonic",
    limit: Annotated[int | None, typer.Option(help="Only the first so many labelled episodes.")] = None,
    batch: Annotated[int, typer.Option(help="Episodes given to the model at once.")] = 8,
    workers: Annotated[int | None, typer.Option(help="Decoding processes (default: one a core; 0 = none).")] = None,
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
) -> None:
    """Calibrate a model on labelled episodes: progress, success, and a threshold with a promised risk.

    Never measure the result on the same episodes; a benchmark that contains some of them says so.

    [bold]Examples[/bold]

      demerit calibrate my_set --model change -o my-calibrated
      demerit calibrate my_set --model ensemble:change+motion -o sure --method conformal --risk 0.1
      demerit score new_set --model calibrated:my-calibrated
    """
    from demerit.cli.bars import bar  # noqa: PLC0415
    from demerit.data.formats import open_dataset  # noqa: PLC0415
    from demerit.training.calibration.job import Options  # noqa: PLC0415
    from demerit.training.calibration.job import calibrate as run  # noqa: PLC0415

    given: dict[str, Any] = {"method": method, "risk": risk, "batch": batch, "workers": workers, "limit": limit}
    chosen = Options(**given)
    opened = open_dataset(dataset, strict=strict, camera=camera, **reader_options(options, trust_pickles))
    with bar(f"scoring with {model}", limit) as shown:
        found = run(opened, model, out_folder, chosen, lambda progress: shown.update(progress.seen))
    _print(found, out_folder)


def _print(found: Calibration, folder: Path) -> None:
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415

    counts = found.counts
    out.print(
        f"[bold]{escape(found.model.card.name)}[/bold]: {escape(found.model.inner.card.name)}, calibrated "
        f"({found.model.recipe.method}) on {counts['episodes']} labelled episodes of {counts['tasks']} tasks: "
        f"{counts['successes']} successes, {counts['failures']} failures, {counts['with progress']} with progress"
    )
    out.print(escape(found.model.recipe.promise))
    if found.measures:
        out.print(_table(found))
    for note in found.notes:
        out.print(f"[yellow]note[/yellow]  {escape(note)}")
    out.print(f"The model: {escape(str(folder))}, to be used as --model calibrated:{escape(str(folder))}")


def _table(found: Calibration) -> Table:
    from rich.table import Table  # noqa: PLC0415

    what = "tasks" if found.counts["tasks"] > 1 else "episodes"
    table = Table("", "value", "95% interval", "of", title=f"On {what} that were left out")
    for name, measure in found.measures.items():
        span = "unknown" if measure.low != measure.low else f"{measure.low:.3f} to {measure.high:.3f}"
        table.add_row(name, f"{measure.value:.3f}", span, f"{measure.n} {measure.unit}")
    return table
