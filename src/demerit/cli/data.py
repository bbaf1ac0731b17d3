"""Commands about datasets: import, inspect, export."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import bar, err, out, print_problems, print_table
from demerit.cli.options import (
    CameraOption,
    DatasetArgument,
    DatasetsArgument,
    InstructionOption,
    PickleOption,
    SourceOptions,
    StrictOption,
    reader_options,
)
from demerit.cli.terminal import escape_controls, shorten
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, count_episodes
from demerit.data.export import contact_sheet
from demerit.data.formats import open_dataset
from demerit.data.formats.lerobot.writer import write_lerobot
from demerit.data.importing import import_dataset
from demerit.data.summary import DatasetSummary, summarize
from demerit.errors import BadInput, UnknownName
from demerit.use.view.rerun_file import write_rerun

EXPORT_FORMATS = ("lerobot", "rerun")


def import_(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to create; run again to resume or to update labels.")],
    copy: Annotated[bool, typer.Option("--copy", help="Copy the videos; otherwise they are used in place.")] = False,
    licence: Annotated[str, typer.Option(help="Recorded where the dataset has none.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change and write nothing.")] = False,
    instruction: InstructionOption = "",
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
) -> None:
    """Import a dataset into a demerit folder and list every problem found in it.

    [bold]Examples[/bold]

      demerit import ~/data/my_lerobot_set my_set
      demerit import roboarena:~/data/roboarena arena --copy
      demerit import roboreward:~/data/RoboReward bench --with split=test
    """
    dataset = open_dataset(source, strict=strict, camera=camera, **reader_options(options, trust_pickles, instruction))
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
    if progress.durable and not dry_run:
        out.print(escape(f"Next: demerit inspect {dest}; demerit score {dest} --model clock"))


def inspect(
    datasets: DatasetsArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", metavar="PNG", help="Also draw a contact sheet of one episode.")
    ] = None,
    episode: Annotated[str | None, typer.Option("--episode", metavar="ID", help="Its id (default: the first).")] = None,
    instruction: InstructionOption = "",
    camera: CameraOption = None,
    options: SourceOptions = None,
) -> None:
    """Show what a dataset contains: episodes, hours, instructions, labels, problems.

    [bold]Examples[/bold]

      demerit inspect my_set
      demerit inspect a.mp4 runs/ more_runs/
      demerit inspect lerobot:~/data/so101 --json
      demerit inspect my_set --sheet look.png --episode so101/episode_000003
    """
    reader = open_dataset(datasets, camera=camera, **reader_options(options, False, instruction))
    with bar("reading", reader.expected()) as shown:
        summary = summarize(reader, shown.update)
    if as_json:
        print(escape_controls(json.dumps(summary.as_dict(), indent=2, ensure_ascii=False)))
    else:
        _print_summary(summary)
        print_problems(summary.problems)
        if summary.episodes == 0:
            out.print("It has no episode to score.")
    if sheet is not None:
        # stdout is one JSON document
        (err if as_json else out).print(escape(_draw_sheet(reader, episode, sheet)))


def export(
    dataset: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The LeRobot v3.0 folder or Rerun file to create; it must not exist.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="lerobot, or rerun with the rewards stored.")] = "lerobot",
    fps: Annotated[
        float | None, typer.Option(help="Frame rate; required if recordings differ (default: that of the recordings).")
    ] = None,
    camera: CameraOption = None,
    options: SourceOptions = None,
) -> None:
    """Write a dataset as LeRobot v3.0, or as a file for the Rerun viewer.

    [bold]Examples[/bold]

      demerit export my_set my_set_lerobot
      demerit export my_set my_set_lerobot --fps 10
      demerit export my_set my_set.rrd --to rerun
    """
    reader = open_dataset(dataset, camera=camera, **reader_options(options, False))
    if to not in EXPORT_FORMATS:
        raise UnknownName("export format", to, EXPORT_FORMATS)
    if to == "rerun":
        if fps is not None:
            raise BadInput("--fps", "none with --to rerun, which keeps the times of the recordings", fps)
        with bar("writing", reader.expected()) as shown:
            models = write_rerun(reader, dest, shown.update)
        said = f"{count_episodes(len(reader))} for Rerun, rewards of {', '.join(models) or 'no model'}"
        out.print(f"[bold]{escape(str(dest))}[/bold]: {escape(said)}")
        print_problems(reader.problems.rows())
        return
    written = 0
    with bar("writing", reader.expected()) as shown:

        def episodes() -> Iterator[Episode]:
            nonlocal written
            for episode in reader:
                yield episode
                written += 1
                shown.update(written)

        write_lerobot(episodes(), dest, fps=fps)
    out.print(f"[bold]{escape(str(dest))}[/bold]: {count_episodes(written)} as LeRobot v3.0")
    print_problems(reader.problems.rows())


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
    used = [cell for cell in cells if any(counts[cell] for counts in summary.outcomes.values())]
    table = Table("label source", *used)
    for source, counts in sorted(summary.outcomes.items()):
        table.add_row(escape(source), *(str(counts[cell]) for cell in used))
    if summary.outcomes:
        print_table(table)
    if summary.unlabelled:
        out.print(f"  {count_episodes(summary.unlabelled)} without an outcome")
    if summary.preferences:
        out.print(f"  preferences: {escape(_most_common(summary.preferences))}")


def _most_common(counter: Counter[str], most: int = 4) -> str:
    shown = ", ".join(
        f"{shorten(' '.join(name.split())) or '(none)'} ({count})" for name, count in counter.most_common(most)
    )
    more = f", ... {len(counter)} in all" if len(counter) > most else ""
    return (shown or "none") + more
