"""The calibrate command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import bar, out, print_table
from demerit.cli.options import (
    CameraOption,
    DatasetsArgument,
    LabelSourcesOption,
    PickleOption,
    SourceOptions,
    StrictOption,
    UseTestSplitOption,
    parse_sources,
    reader_options,
)
from demerit.data.formats import open_dataset
from demerit.data.labels import NOT_A_MODEL
from demerit.training.calibration import CalibrateOptions, CalibrationResult
from demerit.training.calibration import calibrate as run


def calibrate(
    datasets: DatasetsArgument,
    model: Annotated[str, typer.Option("--model", "-m", help="The model to calibrate, by name or folder.")],
    out_folder: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder to write the calibrated model to.")
    ],
    risk: Annotated[float, typer.Option(help="Share of failures that may be called a success.")] = 0.05,
    method: Annotated[
        str,
        typer.Option(
            help="isotonic: probabilities and mean progress; conformal: bounds that hold with probability 1 - risk."
        ),
    ] = "isotonic",
    limit: Annotated[int | None, typer.Option(help="Use only the first N labelled episodes.")] = None,
    label_sources: LabelSourcesOption = "",
    use_test_split: UseTestSplitOption = False,
    batch: Annotated[int, typer.Option(help="Episodes per call of the model.")] = 8,
    workers: Annotated[int | None, typer.Option(help="Decoding processes (default: one per core; 0 = none).")] = None,
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
) -> None:
    """Calibrate a model on labelled episodes and set a success threshold.

    Do not measure the result on the same episodes; a benchmark that contains some of them warns.

    [bold]Examples[/bold]

      demerit calibrate my_set --model change -o my-calibrated
      demerit calibrate my_set --model ensemble:change+motion -o sure --method conformal --risk 0.1
      demerit score new_set --model calibrated:my-calibrated
    """
    given: dict[str, Any] = {"method": method, "risk": risk, "batch": batch, "workers": workers, "limit": limit}
    given |= {"sources": parse_sources(label_sources, NOT_A_MODEL), "use_test_split": use_test_split}
    chosen = CalibrateOptions(**given)
    opened = open_dataset(datasets, strict=strict, camera=camera, **reader_options(options, trust_pickles))
    with bar(f"scoring with {model}", limit) as shown:
        result = run(opened, model, out_folder, chosen, lambda progress: shown.update(progress.position))
    _print(result, escape(str(out_folder)))


def _print(result: CalibrationResult, folder: str) -> None:
    counts = result.counts
    out.print(
        f"[bold]{escape(result.model.card.name)}[/bold]: {escape(result.model.inner.card.name)}, calibrated "
        f"({result.model.recipe.method}) on {counts['episodes']} labelled episodes of {counts['tasks']} tasks: "
        f"{counts['successes']} successes, {counts['failures']} failures, {counts['with progress']} with progress"
    )
    out.print(escape(result.model.recipe.promise))
    if result.measures:
        what = "tasks" if counts["tasks"] > 1 else "episodes"
        table = Table("", "value", "95% interval", "of", title=f"On held-out {what}")
        for name, measure in result.measures.items():
            span = "unknown" if math.isnan(measure.low) else f"{measure.low:.3f} to {measure.high:.3f}"
            table.add_row(name, f"{measure.value:.3f}", span, f"{measure.n} {measure.unit}")
        print_table(table)
    for note in result.notes:
        out.print(f"[yellow]note[/yellow]  {escape(note)}")
    out.print(f"The model: {folder}. Use it as --model calibrated:{folder}")
