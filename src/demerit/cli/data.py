"""Commands about datasets: import, inspect, export."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demerit.cli.options import CameraOption, DatasetArgument, PickleOption, SourceOptions, StrictOption, reader_options

if TYPE_CHECKING:
    from demerit.data.summary import DatasetSummary


def import_(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to make; run again to go on after an interruption.")],
    copy: Annotated[bool, typer.Option("--copy", help="Copy videos into it; else they are used in place.")] = False,
    licence: Annotated[str, typer.Option(help="Recorded where the dataset does not say.")] = "",
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
) -> None:
    """Bring a dataset into a demerit folder, with every problem counted and explained.

    [bold]Examples[/bold]

      demerit import ~/data/my_lerobot_set my_set
      demerit import roboarena:~/data/roboarena arena --copy
      demerit import roboreward:~/data/RoboReward bench --with split=test
    """
    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.data.formats import open_dataset  # noqa: PLC0415
    from demerit.data.importing import import_dataset  # noqa: PLC0415

    dataset = open_dataset(source, strict=strict, camera=camera, **reader_options(options, trust_pickles))
    with bar("importing", dataset.expected()) as shown:
        progress = import_dataset(
            dataset, dest, copy=copy, licence=licence, on_progress=lambda progress: shown.update(progress.seen)
        )
    kept = f", {progress.kept} were there already" if progress.kept else ""
    preferences = f", {progress.preferences} preferences" if progress.preferences else ""
    out.print(f"[bold]{dest}[/bold]: {progress.durable} episodes ({progress.added} new{kept}){preferences}")
    _print_problems(progress.problems.rows())
    if progress.durable:
        out.print(f"Next: demerit inspect {dest}; demerit score {dest} --model clock")


def inspect(
    dataset: DatasetArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", metavar="PNG", help="Draw a contact sheet of one episode.")
    ] = None,
    episode: Annotated[
        str | None, typer.Option("--episode", metavar="ID", help="Which one (default: the first).")
    ] = None,
    camera: CameraOption = None,
    options: SourceOptions = None,
) -> None:
    """Show what is in a dataset: episodes, hours, instructions, outcomes by who vouches for them, problems.

    [bold]Examples[/bold]

      demerit inspect my_set
      demerit inspect lerobot:~/data/so101 --json
      demerit inspect my_set --sheet look.png --episode so101/episode_000003
    """
    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.data.formats import open_dataset  # noqa: PLC0415
    from demerit.data.summary import summarize  # noqa: PLC0415

    opened = open_dataset(dataset, camera=camera, **reader_options(options, False))
    if sheet is not None:
        _draw_sheet(opened, episode, sheet)
        return
    with bar("reading", opened.expected()) as shown:
        overview = summarize(opened, shown.update)
    if as_json:
        print(json.dumps(overview.as_dict(), indent=2, ensure_ascii=False))
        return
    _print_overview(overview)
    _print_problems(overview.problems)
    if overview.episodes == 0:
        out.print("There is nothing to score in it.")


def export(
    dataset: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The LeRobot v3.0 folder to make; must not exist.")],
    fps: Annotated[
        float | None, typer.Option(help="Write at this rate; needed where recordings differ (default: theirs).")
    ] = None,
    camera: CameraOption = None,
    options: SourceOptions = None,
) -> None:
    """Write a dataset as LeRobot v3.0.

    [bold]Examples[/bold]

      demerit export my_set my_set_lerobot
      demerit export my_set my_set_lerobot --fps 10
    """
    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.data.formats import open_dataset  # noqa: PLC0415
    from demerit.data.formats.lerobot.writer import write_lerobot  # noqa: PLC0415

    opened = open_dataset(dataset, camera=camera, **reader_options(options, False))
    with bar("writing", opened.expected()) as shown:
        written = 0

        def counted() -> Any:
            nonlocal written
            for one in opened:
                yield one
                written += 1
                shown.update(written)

        write_lerobot(counted(), dest, fps=fps)
    out.print(f"[bold]{dest}[/bold]: {written} episodes as LeRobot v3.0")
    _print_problems(opened.problems.rows())


def _draw_sheet(dataset: Any, episode: str | None, path: Path) -> None:
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.data.export import contact_sheet  # noqa: PLC0415
    from demerit.data.store import Store  # noqa: PLC0415
    from demerit.errors import BadInput  # noqa: PLC0415

    if episode is None:
        chosen = next(iter(dataset), None)
    elif isinstance(dataset.reader, Store):
        chosen = dataset.reader.episode(episode)
    else:
        chosen = dataset[episode]
    if chosen is None:
        raise BadInput(dataset.address, "a dataset with an episode in it", "an empty one")
    out.print(escape(f"{contact_sheet(chosen, path)}: {chosen.id}"))


def _print_overview(overview: DatasetSummary) -> None:
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415

    lengths = f", {overview.shortest} to {overview.longest} a piece" if overview.episodes else ""
    out.print(f"[bold]{escape(overview.name)}[/bold]")
    out.print(f"  {overview.episodes} episodes, {overview.frames} frames{lengths}, {overview.seconds / 3600:.2f} hours")
    for title, counter in (
        ("instructions", overview.instructions),
        ("cameras", overview.cameras),
        ("embodiments", overview.embodiments),
        ("splits", overview.splits),
        ("licences", overview.licences),
    ):
        out.print(f"  {title}: {escape(_most(counter))}")
    table = Table(
        "vouched for by", "episodes", "success", "failure", "unknown", "graded", "with progress", "with curve"
    )
    for who, counts in sorted(overview.outcomes.items()):
        cells = ("episodes", "success", "failure", "success unknown", "graded", "with progress", "with curve")
        table.add_row(escape(who), *(str(counts[cell]) for cell in cells))
    if overview.outcomes:
        out.print(table)
    if overview.unlabelled:
        out.print(f"  {overview.unlabelled} episodes without an outcome")
    if overview.preferences:
        out.print(f"  preferences: {escape(_most(overview.preferences))}")


def _most(counter: Counter[str], most: int = 4) -> str:
    shown = ", ".join(f"{name or '(none)'} ({count})" for name, count in counter.most_common(most))
    more = f", ... {len(counter)} in all" if len(counter) > most else ""
    return (shown or "none") + more


def _print_problems(rows: list[dict[str, Any]]) -> None:
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415

    for row in rows:
        fate = "kept" if row["kept"] else "left out"
        out.print(f"  [yellow]{row['problem']}[/yellow]: {row['episodes']} ({fate}), e.g. {escape(row['first'])}")
