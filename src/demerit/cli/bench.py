"""The bench command."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from demerit.cli.bars import bar, out, print_table, report_table
from demerit.cli.options import (
    CameraOption,
    InstructionOption,
    LabelSourcesOption,
    PickleOption,
    SourceOptions,
    parse_sources,
    reader_options,
)
from demerit.data.episode import count_episodes
from demerit.data.files import make_folder
from demerit.data.labels import NOT_A_MODEL
from demerit.errors import BadInput, StoreError
from demerit.evaluate.benchmarks import (
    BENCHMARKS,
    MeasureSettings,
    RunOptions,
    load_benchmark,
    load_data,
    recompute,
    run_benchmark,
)
from demerit.evaluate.benchmarks.data import read_categories
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.reports import Report, write_page
from demerit.evaluate.reports.headline import label, lead

REPORT = "report.json"


def bench(
    benchmark: Annotated[
        str, typer.Argument(metavar="[BENCHMARK]", help="name@version (see: demerit list benchmarks); own = your data.")
    ] = "",
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", metavar="NAME", help="A model's name or folder; may be repeated."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="The episodes: a folder, a video or FORMAT:PATH; may be repeated."),
    ] = None,
    instruction: InstructionOption = "",
    out_folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the report (default: bench/BENCHMARK).")
    ] = None,
    embed: Annotated[int, typer.Option(help="Number of videos to embed in the page.")] = 12,
    frames: Annotated[int | None, typer.Option(help="Score only N frames of each episode, spread evenly.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use only the first N episodes.")] = None,
    no_controls: Annotated[
        bool, typer.Option("--no-controls", help="Skip the controls; then models are not compared with chance.")
    ] = False,
    as_recorded: Annotated[
        bool, typer.Option("--as-recorded", help="Skip reversed and shuffled frames and other instructions.")
    ] = False,
    calibrate_on: Annotated[
        str, typer.Option(metavar="SPLIT", help="Fit the map from value to grade on this split, and do not measure it.")
    ] = "",
    categories: Annotated[
        Path | None, typer.Option(metavar="CSV", help="instruction,category: task categories, instead of by verb.")
    ] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples per interval.")] = 10_000,
    batch: Annotated[int, typer.Option(help="Episodes per call of a model.")] = 8,
    workers: Annotated[int | None, typer.Option(help="Decoding processes (default: one per core; 0 = none).")] = None,
    label_sources: LabelSourcesOption = "",
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also measure episodes that a model learned from (unfair).")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what prompted models would cost; send nothing.")
    ] = False,
    camera: CameraOption = None,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
    report: Annotated[
        Path | None,
        typer.Option("--recompute", metavar="REPORT.JSON", help="Recompute a report's measures, without a model."),
    ] = None,
) -> None:
    """Measure models against labels, with controls. Writes report.html and report.json.

    A run with other models, data or options writes report-2.html, and so on; the same run again replaces its report.

    [bold]Examples[/bold]

      demerit bench own --data my_videos --model clock --model my_package.rewards:MyModel
      demerit bench roboarena@1 --data ~/data/roboarena --model clock --out reports/arena
      demerit bench roboarena@1 --data ~/data/roboarena --model gvl --model gvl:video,examples=my_set --dry-run
      demerit bench --recompute reports/arena/report.json
    """
    if report is not None:
        return _recompute(report)
    run_options = RunOptions(
        controls=not no_controls,
        perturbations=not as_recorded,
        frames=frames,
        limit=limit,
        batch=batch,
        workers=workers,
        sources=parse_sources(label_sources, NOT_A_MODEL),
        include_seen=include_seen,
        camera=camera,
        settings=MeasureSettings(Resampling(resamples=resamples), calibrate_on),
        reader=reader_options(options, trust_pickles, instruction),
        categories={} if categories is None else read_categories(categories),
    )
    if not benchmark:
        raise BadInput("benchmark", f"one of {', '.join(BENCHMARKS)}", "none")
    chosen = load_benchmark(benchmark)
    folder = out_folder or Path("bench") / chosen.name
    loaded = load_data(chosen, data or [], run_options)
    out.print(escape(f"Labels: {loaded.sources}"))
    models = [chosen.load_model(name) for name in model or []]
    prompted: list[Any] = [scorer for scorer in models if hasattr(scorer, "estimate")]
    for scorer in prompted:
        out.print(escape(f"{scorer.card.name}: {scorer.estimate(loaded.episodes)}"))
    if dry_run:
        return
    # Ask again what a server did not answer last time; paid answers come from the cache.
    run_options = replace(run_options, retry=bool(prompted))
    with bar(f"{chosen.name}: {count_episodes(len(loaded.episodes))}", None) as shown:
        made = run_benchmark(
            chosen, models, loaded, folder, run_options, lambda what, done: shown.update(done.position, what)
        )
    numbers = free_report(make_folder(folder), made)
    made.write(numbers)
    print_report(made)
    page = write_page(made, numbers.with_suffix(".html"), loaded.frames(), embed)
    out.print(escape(f"The report: {page}"))
    out.print(escape(f"Its numbers: {numbers}"))
    if numbers.name != REPORT:
        out.print(escape(f"Earlier reports of other models, data or options stay: {folder / REPORT}"))
    for spent in dict.fromkeys(str(scorer.spent) for scorer in prompted):  # models of one server share a client
        out.print(escape(f"Requests: {spent}"))


def free_report(folder: Path, report: Report) -> Path:
    """Return where to write a report: over one of the same run, else report.json, report-2.json ... as is free."""
    for number in count(1):
        path = folder / (REPORT if number == 1 else f"report-{number}.json")
        try:
            if not path.exists() or Report.read(path).is_same_run(report):
                return path
        except StoreError:  # damaged, or of a newer version: not ours to overwrite
            continue
    raise AssertionError("unreachable")


def _recompute(path: Path) -> None:
    before = Report.read(path)
    after = recompute(before)
    print_report(after)
    old, new = _numbers(before), _numbers(after)
    lost = [key for key, facts in old.items() if new.get(key, facts) != facts]
    lost += [key for key in old.keys() - new.keys() if key[0] == "measure"]
    added = len(new.keys() - old.keys())
    more = f" This version has {added} more." if added else ""
    out.print("[red]Not the numbers of the file.[/red]" if lost else f"The same numbers as in the file.{more}")
    if lost:
        raise typer.Exit(1)


def _numbers(report: Report) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return measures and differences by what they are of; without p adjusted, which depends on how many there are."""
    facts = report.as_dict()
    words, adjusted = ("note", "resampled"), ("p_adjusted",)
    found: dict[tuple[str, ...], dict[str, Any]] = {
        ("measure", line["model"], line["part"], line["measure"]["name"]): _leave_out(line["measure"], words)
        for line in facts["lines"]
    }
    for row in facts["comparisons"]:
        found["difference", row["first"], row["second"], row["measure"]] = _leave_out(row, adjusted)
    return found


def _leave_out(facts: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key not in names}


def print_report(report: Report) -> None:
    """Print the headline table, what was seen before, the verdicts and the warnings."""
    tasks = len({episode.task for episode in report.episodes})
    count = f"{count_episodes(len(report.episodes))}, {tasks} task{'s' * (tasks != 1)}"
    print_table(report_table(report, f"{report.about.name}: {count}", label))
    for sentence in report.cautions:
        out.print(f"[bold red]caution[/bold red]  [red]{escape(sentence)}[/red]")
    found = lead(report)
    out.print(f"[bold]{escape(found.title)}[/bold]")
    out.print(escape(found.text))
    for model, sentences in report.verdicts.items():
        for sentence in sentences:
            out.print(f"[bold]{escape(model)}[/bold]  {escape(sentence)}")
    for warning in report.warnings:
        out.print(f"[yellow]note[/yellow]  {escape(warning)}")
