"""The teach command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from demerit.cli.bars import StageBars, out, print_table, report_table
from demerit.cli.options import (
    DatasetsArgument,
    InstructionOption,
    LabelSourcesOption,
    LimitOption,
    PickleOption,
    SourceOptions,
    StrictOption,
    UseTestSplitOption,
    WorkersOption,
    parse_sources,
    reader_options,
    split_names,
)
from demerit.cli.terminal import escape_controls
from demerit.data.episode import count_episodes
from demerit.data.formats import open_dataset
from demerit.data.labels import NOT_A_MODEL
from demerit.evaluate.reports.headline import label
from demerit.training.teach import TeachConfig, TeachOutcome
from demerit.training.teach import teach as teach_model

INTERRUPTED = 130
SHOWN = 5


def teach(
    datasets: DatasetsArgument,
    out_folder: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="The model folder to write.")],
    risk: Annotated[
        float | None,
        typer.Option(
            help="Share of failures that may be called a success. Default: 5%, or what fewer than 19 failures allow."
        ),
    ] = None,
    cameras: Annotated[
        str, typer.Option(metavar="NAMES", help="Cameras to use: top,wrist (default: all that most episodes have).")
    ] = "",
    instruction: InstructionOption = "",
    limit: LimitOption = None,
    label_sources: LabelSourcesOption = "",
    use_test_split: UseTestSplitOption = False,
    seed: Annotated[int, typer.Option(help="Seed for folds and negatives.")] = 0,
    network: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Use this trained network instead of the shipped one.")
    ] = None,
    reader: Annotated[
        bool, typer.Option(help="Also train a small network on larger images (needs the extra train; a minute or two).")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    workers: WorkersOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
) -> None:
    """Teach a model your task from a few labelled episodes.

    Labels are success, grades, curves, events or A/B choices. Ctrl-C keeps the best model so far; run the same command
    to resume. Label a few more and teach again: features are cached in MODEL.teaching.

    [bold]Examples[/bold]

      demerit teach lerobot:~/data/so101 -o my-model
      demerit teach monday/ tuesday/ -o my-model --instruction "put the cup on the plate"
      demerit teach my_videos -o my-model --risk 0.1 --cameras top,wrist
      demerit score new_episodes --model ./my-model
    """
    opened = open_dataset(datasets, strict=strict, **reader_options(options, trust_pickles, instruction))
    with StageBars() as bars:
        outcome = teach_model(
            opened,
            out_folder,
            risk=risk,
            cameras=split_names(cameras),
            limit=limit,
            config=TeachConfig(seed=seed, reader=reader),
            network=network,
            workers=workers,
            sources=parse_sources(label_sources, NOT_A_MODEL),
            use_test_split=use_test_split,
            on_progress=bars.update,
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
    out.print(escape(results.calibration.note))
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
