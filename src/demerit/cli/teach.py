"""Commands that make a model of labelled episodes: teach, calibrate."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from demerit.cli import escape_controls
from demerit.cli.bars import bar, out, print_notes, print_table, report_table, stage_bars
from demerit.cli.bundles import (
    BatchOption,
    ChangesOption,
    DatasetOptions,
    DatasetsArgument,
    JsonOption,
    LabelSourcesOption,
    LimitOption,
    OutOption,
    UseTestSplitOption,
    WorkersOption,
    parse_sources,
)
from demerit.config import change_config, parse_changes
from demerit.data.episode import NOT_A_MODEL, count_episodes
from demerit.data.formats import open_dataset
from demerit.decide.guarantee import describe_cut
from demerit.evaluate.reports.headline import label
from demerit.training.calibration import CalibrateOptions, CalibrationResult
from demerit.training.calibration import calibrate as run_calibration
from demerit.training.teach import TeachConfig, TeachOutcome
from demerit.training.teach import teach as teach_model

INTERRUPTED = 130
SHOWN = 5


def teach(
    datasets: DatasetsArgument,
    out_folder: OutOption,
    reading: DatasetOptions,
    risk: Annotated[
        float | None,
        typer.Option(
            help="Share of failures that may be called a success. Default: 5%, or what fewer than 19 failures allow."
        ),
    ] = None,
    limit: LimitOption = None,
    label_sources: LabelSourcesOption = "",
    use_test_split: UseTestSplitOption = False,
    network: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Use this trained network instead of the shipped one.")
    ] = None,
    tower: Annotated[
        str | None,
        typer.Option(
            metavar="droid|none|FILE|FOLDER",
            help="Second tower: the shipped one, none, or any image encoder: ONNX, or a folder for transformers.",
        ),
    ] = None,
    signals: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Read these signals beside the images, such as object_force; scoring then needs them."
        ),
    ] = "",
    reader: Annotated[
        bool, typer.Option(help="Also train a small network on larger images (needs the extra train; a minute or two).")
    ] = True,
    changes: ChangesOption = None,
    as_json: JsonOption = False,
    workers: WorkersOption = None,
) -> None:
    """Teach a model your task from a few labelled episodes.

    Labels are success, grades, curves, stages, events or A/B choices. Ctrl-C keeps the best model so far; run the same
    command to resume. Label a few more and teach again: features are cached in MODEL.teaching.

    [bold]Examples[/bold]

      demerit teach lerobot:~/data/so101 -o my-model
      demerit teach monday/ tuesday/ -o my-model --instruction "put the cup on the plate"
      demerit teach my_videos -o my-model --risk 0.1 --camera top --camera wrist
      demerit teach my_videos -o my-model --tower dinov2-small/
      demerit teach rollouts -o my-model --signals object_force,scene_force
      demerit score new_episodes --model ./my-model
    """
    source = open_dataset(datasets, **reading.other_settings)
    print_notes(source.notes())
    config = change_config(TeachConfig(reader=reader), parse_changes(changes or []), "--set")
    with stage_bars() as on_progress:
        outcome = teach_model(
            source,
            out_folder,
            risk=risk,
            cameras=reading.camera or [],
            signals=[name.strip() for name in signals.split(",") if name.strip()],
            limit=limit,
            config=config,
            network=network,
            tower=tower,
            workers=workers,
            sources=parse_sources(label_sources, NOT_A_MODEL),
            use_test_split=use_test_split,
            on_progress=on_progress,
        )
    if as_json:
        facts = outcome.results.as_dict()["teaching"] | {"model": str(out_folder)}
        print(escape_controls(json.dumps(facts, ensure_ascii=False)))
    else:
        _print_outcome(outcome, out_folder)
    if outcome.stopped:
        raise typer.Exit(INTERRUPTED)


def _print_outcome(outcome: TeachOutcome, folder: Path) -> None:
    results = outcome.results
    if outcome.stopped:
        out.print(f"[yellow]{escape(outcome.stopped)}[/yellow]. Run the same command to resume.")
    out.print(f"[bold]{escape(results.title)}[/bold]")
    out.print(escape(results.text))
    if results.report.lines:
        print_table(
            report_table(results.report, f"{count_episodes(len(results.report.episodes))}, each held out once", label)
        )
    out.print(escape(f"{results.cut[:1].upper()}{results.cut[1:]}."), soft_wrap=True)
    for line in filter(None, (results.which_head, results.which_camera)):
        out.print(escape(line))
    for note in results.notes[:SHOWN]:
        out.print(f"[yellow]note[/yellow]  {escape(note)}")
    for advice in results.advice:
        if advice != results.calibration.note:
            out.print(f"[bold]next[/bold]  {escape(advice)}")
    if results.suggestions:
        out.print(f"[bold]label next[/bold]  {count_episodes(len(results.suggestions))}, with pictures in the report:")
    for suggestion in results.suggestions[:SHOWN]:
        out.print(
            f"  {escape(suggestion.episode)}: {escape(suggestion.reason)}, p(success) {suggestion.probability:.2f}"
        )
        if suggestion.video:
            out.print(f"    {escape(suggestion.video)}")
    if results.no_suggestion:
        out.print(f"[bold]label next[/bold]  {escape(results.no_suggestion)}")
    out.print(f"Model: {escape(str(folder))} (use it with --model {escape(quote_model(folder))})", soft_wrap=True)
    out.print(f"Report: {escape(str(folder / 'report.html'))}")


def quote_model(folder: Path) -> str:
    """Return a model folder as a shell takes it after --model, such as ./my-model."""
    return shlex.quote(str(folder) if folder.is_absolute() else f"./{folder}")


def calibrate(
    datasets: DatasetsArgument,
    model: Annotated[str, typer.Option("--model", "-m", metavar="NAME", help="The model to calibrate.")],
    out_folder: OutOption,
    reading: DatasetOptions,
    risk: Annotated[float, typer.Option(help="Share of failures that may be called a success.")] = 0.05,
    method: Annotated[
        str,
        typer.Option(
            help="isotonic: probabilities and mean progress; conformal: bounds that hold with probability 1 - risk."
        ),
    ] = "isotonic",
    limit: LimitOption = None,
    label_sources: LabelSourcesOption = "",
    use_test_split: UseTestSplitOption = False,
    batch: BatchOption = 8,
    workers: WorkersOption = None,
) -> None:
    """Calibrate a model and set its success threshold.

    Do not measure the result on the same episodes; a benchmark that contains some of them warns.

    [bold]Examples[/bold]

      demerit calibrate my_set --model change -o my-calibrated
      demerit calibrate my_set --model ensemble:change+motion -o sure --method conformal --risk 0.1
      demerit score new_set --model calibrated:my-calibrated
    """
    options = CalibrateOptions(
        method=method,  # type: ignore[arg-type]  # checked there
        risk=risk,
        batch=batch,
        workers=workers,
        limit=limit,
        sources=parse_sources(label_sources, NOT_A_MODEL),
        use_test_split=use_test_split,
    )
    source = reading.open(datasets)
    with bar(f"scoring with {model}", limit) as shown:
        result = run_calibration(source, model, out_folder, options, lambda progress: shown.update(progress.position))
    _print_calibration(result, escape(str(out_folder)))


def _print_calibration(result: CalibrationResult, folder: str) -> None:
    counts = result.counts
    out.print(
        f"[bold]{escape(result.model.card.name)}[/bold]: {escape(result.model.inner.card.name)}, calibrated "
        f"({result.model.recipe.method}) on {counts['episodes']} labelled episodes of {counts['tasks']} tasks: "
        f"{counts['successes']} successes, {counts['failures']} failures, {counts['with progress']} with progress"
    )
    out.print(escape(describe_cut(result.model)), soft_wrap=True)
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
