"""The bench command: reports about models, and the page that compares reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from demerit.cli.bars import bar, out, print_table, report_table
from demerit.cli.bundles import (
    ChangesOption,
    DatasetOptions,
    DryRunOption,
    LabelSourcesOption,
    LimitOption,
    ModelsOption,
    WorkersOption,
    parse_sources,
)
from demerit.config import change_config, parse_changes
from demerit.data.episode import NOT_A_MODEL, count_episodes
from demerit.data.files import make_folder
from demerit.errors import BadInput, StoreError, UnknownName
from demerit.evaluate.benchmarks import (
    BENCHMARKS,
    Benchmark,
    MeasureSettings,
    RunOptions,
    load_benchmark,
    load_data,
    recompute,
    run_benchmark,
    write_generations,
)
from demerit.evaluate.benchmarks.run import list_scored
from demerit.evaluate.benchmarks.scores import read_categories
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.reports import Report, build_leaderboard, write_page
from demerit.evaluate.reports.headline import label, lead
from demerit.evaluate.reports.report import generations_file

REPORT = "report.json"
DIGITS = 12
"""numbers of two versions are equal if they agree to so many decimals"""


@dataclass(frozen=True)
class BenchSettings:
    """What --set changes."""

    as_recorded: bool = False
    """skip reversed and shuffled frames and other instructions"""
    batch: int = 8
    """episodes per call of a model"""
    calibrate_on: str = ""
    """fit the map from value to grade on this split, and do not measure it"""
    categories: str = ""
    """CSV file, instruction,category: task categories, instead of by verb"""
    embed: int = 12
    """videos to embed in the page"""
    include_seen: bool = False
    """also measure episodes that a model learned from (unfair)"""
    resamples: int = 10_000
    """bootstrap resamples per interval"""


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BENCHMARK]",
            help="name@version (see: demerit list benchmarks); own = your data; own:NAME = measured as NAME measures.",
        ),
    ] = None,
    *,
    reading: DatasetOptions,
    model: ModelsOption = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="DATASET", help="The episodes: a folder, a video or FORMAT:PATH. Repeatable."),
    ] = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder of the report (default: bench/BENCHMARK).")
    ] = None,
    frames: Annotated[
        int | None, typer.Option(metavar="N", help="Score N frames of each episode, spread evenly.")
    ] = None,
    limit: LimitOption = None,
    no_controls: Annotated[
        bool, typer.Option("--no-controls", help="Skip the controls; then models are not compared with chance.")
    ] = False,
    changes: ChangesOption = None,
    workers: WorkersOption = None,
    label_sources: LabelSourcesOption = "",
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Also measure test episodes whose labels no person has checked.")
    ] = False,
    dry_run: DryRunOption = False,
    report: Annotated[
        Path | None,
        typer.Option("--recompute", metavar="REPORT.JSON", help="Recompute a report's measures, without a model."),
    ] = None,
    leaderboard: Annotated[
        bool, typer.Option("--leaderboard", help="Build a page that compares reports and published tables.")
    ] = False,
) -> None:
    """Measure models against labels, with controls: a report.

    roborewardbench@1, rbm-eval@1 and roboarena@1 are published tables: each model answers as in the paper, the paper's
    figures stand beside the measured ones, and any other set than the published one is refused (own:NAME measures it).

    A run with other models, data or options writes report-2.html, and so on; the same run again replaces its report.
    What chat models answered, word for word, is in generations.jsonl beside it.
    --set takes as-recorded (no reversed or shuffled frames), batch, calibrate-on (a split), categories (a CSV file of
    instruction,category), embed (videos on the page), include-seen (unfair) and resamples.

    [bold]Examples[/bold]

      demerit bench own --data my_videos --model clock --model my_package.rewards:MyModel
      demerit bench roborewardbench@1 --data ~/data/RoboReward --model roboreward:4b -o reports/grades
      demerit bench own:rbm-eval@1 --data my_videos --model robometer
      demerit bench roboarena@1 --data ~/data/roboarena --model gvl --model gvl:video,examples=my_set --dry-run
      demerit bench --recompute reports/grades/report.json
      demerit bench --leaderboard reports/*/report.json -o site
    """
    if leaderboard:
        return _build_leaderboard([Path(name) for name in names or []], out_folder or Path("leaderboard"))
    if report is not None:
        return _recompute(report)
    if len(names or []) != 1:
        raise BadInput("benchmark", f"one of {', '.join(BENCHMARKS)}", ", ".join(names or []) or "none")
    settings = change_config(BenchSettings(), parse_changes(changes or []), "--set")
    reader = reading.settings
    run_options = RunOptions(
        controls=not no_controls,
        perturbations=not settings.as_recorded,
        frames=frames,
        limit=limit,
        batch=settings.batch,
        workers=workers,
        sources=parse_sources(label_sources, NOT_A_MODEL),
        unverified=unverified,
        include_seen=settings.include_seen,
        camera=reader.pop("camera"),
        settings=MeasureSettings(Resampling(resamples=settings.resamples), settings.calibrate_on),
        reader=reader,
        categories=read_categories(Path(settings.categories)) if settings.categories else {},
    )
    benchmark = _load_benchmark((names or [])[0])
    folder = out_folder or Path("bench") / benchmark.name.replace(":", "-")
    loaded = load_data(benchmark, data or [], run_options)
    out.print(escape(f"Labels: {loaded.sources}"))
    models = [benchmark.load_model(name, loaded.address) for name in model or []]
    prompted: list[Any] = [scorer for scorer in models if hasattr(scorer, "estimate")]
    for scorer in prompted:
        episodes = list_scored(benchmark, loaded, run_options)
        variants = len(episodes) - len(loaded.episodes)
        more = f" ({variants} of them with changed frames or instructions)" if variants else ""
        out.print(escape(f"{scorer.card.name}: {scorer.estimate(episodes)}{more}"))
    if dry_run:
        return
    # Ask again what a server did not answer last time; paid answers come from the cache.
    run_options = replace(run_options, retry=bool(prompted))
    with bar(f"{benchmark.name}: {count_episodes(len(loaded.episodes))}", None) as shown:
        result = run_benchmark(
            benchmark, models, loaded, folder, run_options, lambda what, done: shown.update(done.position, what)
        )
    numbers = free_report(make_folder(folder), result)
    result.write(numbers)
    answers = generations_file(numbers)
    answered = write_generations(result, folder, answers, frames)
    print_report(result)
    page = write_page(result, numbers.with_suffix(".html"), loaded.frames(), settings.embed)
    out.print(escape(f"The report: {page}"))
    out.print(escape(f"Its numbers: {numbers}"))
    if answered:
        out.print(escape(f"What chat models answered, word for word: {answers} ({answered} answers)"))
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


def _load_benchmark(name: str) -> Benchmark:
    try:
        return load_benchmark(name)
    except UnknownName:
        if Path(name).exists():
            raise BadInput("benchmark", f"the name of one (for your data: own --data {name})", "a path") from None
        raise


def _build_leaderboard(paths: list[Path], folder: Path) -> None:
    reports = [
        sorted(path.glob("report*.json")) or [path / "report.json"] if path.is_dir() else [path] for path in paths
    ]
    files = [file for group in reports for file in group]
    page = build_leaderboard([Report.read(path) for path in files], folder)
    out.print(escape(f"The leaderboard: {page} ({len(files)} reports)"))


def _recompute(path: Path) -> None:
    before = Report.read(path)
    after = recompute(before)
    print_report(after)
    old, new = _numbers(before), _numbers(after)
    differences = [key for key, facts in old.items() if new.get(key, facts) != facts]
    differences += [key for key in old.keys() - new.keys() if key[0] == "measure"]
    additions = len(new.keys() - old.keys())
    more = f" This version has {additions} more." if additions else ""
    out.print("[red]Not the numbers of the file.[/red]" if differences else f"The same numbers as in the file.{more}")
    if differences:
        raise typer.Exit(1)


def _numbers(report: Report) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return measures and differences by what they are of; without p adjusted, which depends on how many there are."""
    facts = report.as_dict()
    words, adjusted = ("note", "resampled"), ("p_adjusted",)
    numbers: dict[tuple[str, ...], dict[str, Any]] = {
        ("measure", line["model"], line["part"], line["measure"]["name"]): _leave_out(line["measure"], words)
        for line in facts["lines"]
    }
    for row in facts["comparisons"]:
        numbers["difference", row["first"], row["second"], row["measure"]] = _leave_out(row, adjusted)
    return numbers


def _leave_out(facts: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Leave names out, and the last digits, in which the order of a sum shows."""
    rest = {key: value for key, value in facts.items() if key not in names}
    return {key: round(value, DIGITS) if isinstance(value, float) else value for key, value in rest.items()}


def print_report(report: Report) -> None:
    """Print the headline table, what was seen before, the verdicts and the warnings."""
    tasks = len({episode.task for episode in report.episodes})
    count = f"{count_episodes(len(report.episodes))}, {tasks} task{'s' * (tasks != 1)}"
    print_table(report_table(report, f"{report.about.name}: {count}", label))
    if report.published:
        sources = "; ".join(dict.fromkeys(figure.source for figure in report.published))
        out.print(escape(f"Published figures, by part in the report: {sources}."))
    for sentence in report.cautions:
        out.print(f"[bold red]caution[/bold red]  [red]{escape(sentence)}[/red]")
    first = lead(report)
    out.print(f"[bold]{escape(first.title)}[/bold]")
    out.print(escape(first.text))
    for model, sentences in report.verdicts.items():
        for sentence in sentences:
            out.print(f"[bold]{escape(model)}[/bold]  {escape(sentence)}")
    for warning in report.warnings:
        out.print(f"[yellow]note[/yellow]  {escape(warning)}")
