"""The bench command."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demerit.cli.options import CameraOption, PickleOption, SourceOptions, reader_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from demerit.data.frames import Frames
    from demerit.evaluate.benchmarks.run import RunOptions
    from demerit.evaluate.metrics import Measure
    from demerit.evaluate.reports.report import Report
    from demerit.models.score import ScoreProgress

REPORT_JSON, REPORT_HTML = "report.json", "report.html"


def bench(
    benchmark: Annotated[
        str, typer.Argument(metavar="[BENCHMARK]", help="name@version (see: demerit list benchmarks); own = your data.")
    ] = "",
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A model's name; may be given several times.")
    ] = None,
    data: Annotated[str, typer.Option(metavar="PATH", help="The benchmark's episodes: a folder, or FORMAT:PATH.")] = "",
    out_folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where the report goes (default: bench/BENCHMARK).")
    ] = None,
    embed: Annotated[int, typer.Option(help="How many videos the page carries in itself.")] = 12,
    frames: Annotated[int | None, typer.Option(help="Score so many frames of each episode, spread evenly.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many episodes.")] = None,
    no_controls: Annotated[
        bool, typer.Option("--no-controls", help="Leave the controls out; then nothing is said against chance.")
    ] = False,
    no_showings: Annotated[
        bool, typer.Option("--as-recorded", help="Skip reversed and shuffled frames and other instructions.")
    ] = False,
    calibrate_on: Annotated[
        str, typer.Option(metavar="SPLIT", help="Fit the map from value to grade on this split, and leave it out.")
    ] = "",
    categories: Annotated[
        Path | None, typer.Option(metavar="CSV", help="instruction,category: kinds of task, instead of by rules.")
    ] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples behind each interval.")] = 10_000,
    batch: Annotated[int, typer.Option(help="Episodes given to a model at once.")] = 8,
    workers: Annotated[int | None, typer.Option(help="Decoding processes (default: one a core; 0 = none).")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what prompted models would cost; send nothing.")
    ] = False,
    camera: CameraOption = None,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
    recompute: Annotated[
        Path | None, typer.Option(metavar="REPORT.JSON", help="Compute a report's measures again, without a model.")
    ] = None,
) -> None:
    """Measure models against people, beside controls that know nothing; writes report.html and report.json.

    [bold]Examples[/bold]

      demerit bench own --data my_videos --model clock --model my_package.rewards:MyModel
      demerit bench roboarena@1 --data ~/data/roboarena --model clock --out reports/arena
      demerit bench roboarena@1 --data ~/data/roboarena --model gvl --model gvl:video,examples=my_set --dry-run
      demerit bench --recompute reports/arena/report.json
    """
    from demerit.evaluate.benchmarks.category_table import read_categories  # noqa: PLC0415
    from demerit.evaluate.benchmarks.evidence import Settings  # noqa: PLC0415
    from demerit.evaluate.benchmarks.run import RunOptions  # noqa: PLC0415
    from demerit.evaluate.metrics import Resampling  # noqa: PLC0415

    if recompute is not None:
        return _again(recompute)
    chosen = RunOptions(
        controls=not no_controls,
        showings=not no_showings,
        frames=frames,
        limit=limit,
        batch=batch,
        workers=workers,
        camera=camera,
        settings=Settings(Resampling(resamples=resamples), calibrate_on),
        reader=reader_options(options, trust_pickles),
        categories={} if categories is None else read_categories(categories),
    )
    _run(benchmark, model or [], data, out_folder, chosen, embed, dry_run)


def _run(
    name: str, models: list[str], data: str, out_folder: Path | None, options: RunOptions, embed: int, dry_run: bool
) -> None:
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import Bar, bar, out  # noqa: PLC0415
    from demerit.errors import BadInput  # noqa: PLC0415
    from demerit.evaluate.benchmarks.benchmark import BENCHMARKS, load_benchmark  # noqa: PLC0415
    from demerit.evaluate.benchmarks.run import gather, run_benchmark  # noqa: PLC0415
    from demerit.models import load_model  # noqa: PLC0415

    if not name:
        raise BadInput("benchmark", f"one of {', '.join(BENCHMARKS)}", "none")
    benchmark = load_benchmark(name)
    folder = out_folder or Path("bench") / benchmark.name
    gathered = gather(benchmark, data, options)
    loaded = [load_model(one) for one in models]
    prompted: list[Any] = [one for one in loaded if hasattr(one, "estimate")]
    for one in prompted:
        out.print(escape(f"{one.card.name}: {one.estimate(gathered.episodes)}"))
    if dry_run:
        return
    # Ask again what a server did not answer last time; what was paid for comes from the cache.
    options = replace(options, retry=options.retry or bool(prompted))
    with bar(f"{benchmark.name}: {len(gathered.episodes)} episodes", None) as shown:

        def told(what: str, progress: ScoreProgress, shown: Bar = shown) -> None:
            shown.update(progress.seen, what)

        report = run_benchmark(benchmark, loaded, gathered, folder, options, told)
    _write(report, folder, gathered.frames(), embed)
    for spent in dict.fromkeys(str(one.spent) for one in prompted):  # models of one server share a client
        out.print(escape(f"Requests: {spent}"))


def _again(path: Path) -> None:
    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.evaluate.benchmarks.run import recompute  # noqa: PLC0415
    from demerit.evaluate.reports.report import Report  # noqa: PLC0415

    before = Report.read(path)
    after = recompute(before)
    print_report(after)
    same = before.as_dict() == after.as_dict()
    out.print("The same numbers as in the file." if same else "[red]Not the numbers of the file.[/red]")
    if not same:
        raise typer.Exit(1)


def _write(report: Report, folder: Path, videos: Mapping[str, Frames], embed: int) -> None:
    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.evaluate.reports.page import write_page  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    report.write(folder / REPORT_JSON)
    print_report(report)
    page = write_page(report, folder / REPORT_HTML, videos, embed)
    out.print(f"The report: {page}", soft_wrap=True)
    out.print(f"Its numbers: {folder / REPORT_JSON}", soft_wrap=True)


def print_report(report: Report) -> None:
    """Print the headline table, the verdicts in words and what a reader must know."""
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415

    out.print(_headline(report))
    for model, sentences in report.verdicts.items():
        for sentence in sentences:
            out.print(f"[bold]{escape(model)}[/bold]  {escape(sentence)}")
    for warning in report.warnings:
        out.print(f"[yellow]note[/yellow]  {escape(warning)}")


def _headline(report: Report) -> Table:
    from rich.table import Table  # noqa: PLC0415

    lower = set(report.about.lower_is_better)
    heads = [f"{name} {'↓' if name in lower else '↑'}" for name in report.about.headline]
    count = f"{len(report.episodes)} episodes, {len({one.task for one in report.episodes})} tasks"
    table = Table(title=f"{report.about.name}: {count}")
    for head in ("model", *heads):
        table.add_column(head, overflow="fold")
    for card in report.cards:
        is_control = card.name in report.controls
        cells = [_cell(report.line(card.name, name)) for name in report.about.headline]
        table.add_row(f"{card.name} (control)" if is_control else card.name, *cells, style="dim" if is_control else "")
    return table


def _cell(measure: Measure | None) -> str:
    if measure is None:
        return "–"
    if not measure.known:
        return "undefined" if measure.undefined else "unscored"
    if math.isnan(measure.low):
        return f"{measure.value:.3f} (interval unknown)"
    return f"{measure.value:.3f} ({measure.low:.3f} to {measure.high:.3f})"
