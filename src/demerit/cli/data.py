"""Commands about datasets: import, inspect."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from demerit.cli import escape_controls
from demerit.cli.bars import bar, err, out, print_problems, print_table, shorten
from demerit.cli.bundles import DatasetArgument, DatasetOptions, DatasetsArgument, DryRunOption, JsonOption
from demerit.data.dataset import Dataset
from demerit.data.episode import count_episodes
from demerit.data.export import contact_sheet
from demerit.data.formats.marks import PROBLEMS
from demerit.data.importing import import_dataset
from demerit.data.quality import MEASURES, measure_quality, summarise_quality
from demerit.data.splits import TO_CHECK
from demerit.data.summary import DatasetSummary, summarize
from demerit.errors import BadInput


def import_(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to create; run again to resume or to update labels.")],
    reading: DatasetOptions,
    copy: Annotated[bool, typer.Option("--copy", help="Copy the videos; otherwise they are used in place.")] = False,
    licence: Annotated[str, typer.Option(help="Recorded where the dataset has none.")] = "",
    dry_run: DryRunOption = False,
) -> None:
    """Import a dataset into a demerit folder; list its problems.

    [bold]Examples[/bold]

      demerit import ~/data/my_lerobot_set my_set
      demerit import roboarena:~/data/roboarena arena --copy
      demerit import roboreward:~/data/RoboReward bench --with split=test
    """
    dataset = reading.open(source)
    with bar("importing", dataset.expected()) as shown:
        progress = import_dataset(
            dataset,
            dest,
            copy=copy,
            licence=licence,
            dry_run=dry_run,
            on_progress=lambda progress: shown.update(progress.seen),
        )
    counts = [f"{progress.added} new"]
    counts += [f"{count} {change}" for change, count in progress.changes.items()]
    counts += [f"{progress.unchanged} unchanged"] if progress.kept else []
    counts += [f"{progress.absent} not in the source, kept"] if progress.absent else []
    preferences = f", {progress.preferences} preferences" if progress.preferences else ""
    state = "[bold]dry run, nothing is written[/bold]: " if dry_run else ""
    out.print(
        f"{state}[bold]{escape(str(dest))}[/bold]: {count_episodes(progress.durable)} "
        f"({', '.join(counts)}){preferences}"
    )
    for example in progress.examples:
        out.print(f"  {escape(example)}")
    if sum(progress.changes.values()) > len(progress.examples):
        out.print(f"  ... {sum(progress.changes.values())} changes in all")
    print_problems(progress.problems.rows())
    for (kind, _), problems in progress.problems.examples.items():
        for problem in problems[1:] if kind in PROBLEMS else ():
            out.print(escape(f"  {kind}: {problem.episode}: {shorten(problem.detail)}"))
    if progress.durable and not dry_run:
        out.print(escape(f"Next: demerit inspect {dest}; demerit score {dest} --model clock"))


def inspect(
    datasets: DatasetsArgument,
    reading: DatasetOptions,
    as_json: JsonOption = False,
    quality: Annotated[
        bool, typer.Option("--quality", help="Also measure jerk, stalls, ends and clocks (docs/quality.md).")
    ] = False,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", metavar="PNG", help="Also draw a contact sheet of one episode.")
    ] = None,
    episode: Annotated[str | None, typer.Option("--episode", metavar="ID", help="Its id (default: the first).")] = None,
) -> None:
    """Show what a dataset contains: episodes, labels, problems.

    [bold]Examples[/bold]

      demerit inspect my_set
      demerit inspect a.mp4 runs/ more_runs/
      demerit inspect lerobot:~/data/so101 --json
      demerit inspect lerobot:~/data/so101 --quality
      demerit inspect rosbag2_2026_11_18/ --with gap=5
      demerit inspect my_set --sheet look.png --episode so101/episode_000003
    """
    reader = reading.open(datasets)
    with bar("reading", reader.expected()) as shown:
        summary = summarize(reader, shown.update)
    measured = None
    if quality:
        with bar("measuring", summary.episodes) as shown:
            measured = summarise_quality(measure_quality(reader, shown.update))
    if as_json:
        facts = summary.as_dict() | ({} if measured is None else {"quality": measured})
        print(escape_controls(json.dumps(facts, indent=2, ensure_ascii=False)))
    else:
        _print_summary(summary)
        if measured is not None:
            _print_quality(measured)
        _print_topics(summary.topics)
        print_problems(summary.problems)
        if summary.episodes == 0:
            out.print("It has no episode to score.")
    if sheet is not None:
        # stdout is one JSON document
        (err if as_json else out).print(escape(_draw_sheet(reader, episode, sheet)))


def _draw_sheet(dataset: Dataset, id: str | None, path: Path) -> str:
    episode = next(iter(dataset), None) if id is None else dataset[id]
    if episode is None:
        raise BadInput(dataset.address, "a dataset with an episode", "an empty one")
    return f"{contact_sheet(episode, path)}: {episode.id}"


def _print_summary(summary: DatasetSummary) -> None:
    lengths = f", {summary.shortest} to {summary.longest} per episode" if summary.episodes else ""
    out.print(f"[bold]{escape(summary.name)}[/bold]")
    out.print(
        f"  {count_episodes(summary.episodes)}, {summary.frames} frames{lengths}, {summary.seconds / 3600:.2f} hours"
    )
    for title in ("instructions", "cameras", "embodiments", "splits", "licences"):
        out.print(f"  {title}: {escape(_most_common(getattr(summary, title)))}")
    cells = ("episodes", "success", "failure", "success unknown", "graded", "with progress", "with curve")
    columns = [cell for cell in cells if any(counts[cell] for counts in summary.outcomes.values())]
    table = Table("label source", *columns)
    for source, counts in sorted(summary.outcomes.items()):
        table.add_row(escape(source), *(str(counts[cell]) for cell in columns))
    if summary.outcomes:
        print_table(table)
    if summary.unlabelled:
        out.print(f"  {count_episodes(summary.unlabelled)} without an outcome")
    if summary.checks:
        states = ", ".join(f"{count} {state}" for state, count in summary.checks.most_common())
        hint = f" ({TO_CHECK})" if summary.checks["due"] else ""
        out.print(f"  labels that people check: {states}{hint}")
    if summary.preferences:
        out.print(f"  preferences: {escape(_most_common(summary.preferences))}")


def _print_quality(measured: dict[str, dict[str, Any]]) -> None:
    table = Table("quality", "episodes", "lowest", "median", "highest", "of episode")
    for name, facts in measured.items():
        numbers = (f"{facts[column]:.3g}" for column in ("lowest", "median", "highest"))
        table.add_row(name, str(facts["episodes"]), *numbers, escape(facts["highest_episode"]))
    print_table(table)
    if absent := [name for name in MEASURES if name not in measured]:
        out.print(f"  not measured, because no episode has the signal or the clock: {', '.join(absent)}")


def _print_topics(rows: list[dict[str, Any]]) -> None:
    """Print a row per topic, over all bags that have it."""
    by_topic: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_topic.setdefault((row["topic"], row["type"], row["read as"] or "not read"), []).append(row)
    table = Table("topic", "type", "read as", "bags", "messages", "Hz", "longest gap", "jumps")
    for names, group in by_topic.items():
        rates = sorted({row["Hz"] for row in group if row["Hz"] is not None})
        rate = f"{rates[0]:g}" + (f" to {rates[-1]:g}" if len(rates) > 1 else "") if rates else ""
        messages, jumps = (sum(row[name] for row in group) for name in ("messages", "clock jumps"))
        gap = f"{max(row['longest gap'] for row in group):g} s"
        table.add_row(*map(escape, names), str(len(group)), str(messages), rate, gap, str(jumps))
    if rows:
        print_table(table)


def _most_common(counter: Counter[str], most: int = 4) -> str:
    shown = ", ".join(
        f"{shorten(' '.join(name.split())) or '(none)'} ({count})" for name, count in counter.most_common(most)
    )
    more = f", ... {len(counter)} in all" if len(counter) > most else ""
    return (shown or "none") + more
