"""Commands that make bad behaviour out of good: negatives, materialize."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demerit.cli.options import CameraOption, DatasetArgument, SourceOptions, StrictOption, reader_options

if TYPE_CHECKING:
    from demerit.negatives.job import NegativesProgress

# As in demerit.negatives.mix, which is not imported for --help; a test holds the two together.
DEFAULT_MIX = "clip=10,freeze=8,rewind=12,wrong-instruction=6,jump=3,stall=1"

TELLING = 0.15  # an AUROC this far from one half is a cue that a model will find


def negatives(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to make; run again to go on after an interruption.")],
    mix: Annotated[str, typer.Option(metavar="NAME=SHARE,...", help="What to make (demerit list negatives).")] = (
        DEFAULT_MIX
    ),
    seed: Annotated[int, typer.Option(help="The same seed makes the same negatives.")] = 0,
    per_episode: Annotated[int, typer.Option(help="Negatives made of one episode at most.")] = 8,
    per_dataset: Annotated[int, typer.Option(help="Episodes used of one dataset at most; 0 = all.")] = 1200,
    keep_originals: Annotated[
        bool, typer.Option("--keep-originals", help="Write the dataset's own episodes too: successes are grade 5.")
    ] = False,
    assume_success: Annotated[
        str,
        typer.Option(metavar="WHY", help="Take episodes without an outcome for successes; WHY goes on record."),
    ] = "",
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
) -> None:
    """Make failures out of successes, as views: no video is copied, and every label says which edit made it.

    [bold]Examples[/bold]

      demerit negatives my_set my_negatives --keep-originals
      demerit negatives my_set ladder --mix "clip=4,rewind=2,freeze=1,wrong-instruction=2" --per-episode 4
      demerit negatives droid/ bad --assume-success demonstrations --keep-originals
    """
    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.data.formats import open_dataset  # noqa: PLC0415
    from demerit.negatives.job import make_negatives  # noqa: PLC0415
    from demerit.negatives.mix import Mix  # noqa: PLC0415

    wanted = Mix.parse(mix, seed=seed, per_episode=per_episode, per_dataset=per_dataset)
    dataset = open_dataset(source, strict=strict, camera=camera, **reader_options(options, False))
    with bar("making negatives", dataset.expected()) as shown:
        progress = make_negatives(
            dataset,
            dest,
            wanted,
            keep_originals=keep_originals,
            assume_success=assume_success,
            on_progress=lambda progress: shown.update(progress.seen),
        )
    total = sum(progress.made.values())
    kept = f", {progress.kept} kept as they were" if progress.kept else ""
    out.print(f"[bold]{dest}[/bold]: {total} negatives of {progress.originals} episodes{kept} ({progress.added} new)")
    _print_grades(progress)
    _print_skipped(progress, assume_success)
    _print_problems(progress.problems.rows())


def materialize(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to make.")],
    camera: CameraOption = None,
    options: SourceOptions = None,
) -> None:
    """Write every episode as small mp4 files with a labels.jsonl, views and edited episodes too.

    [bold]Examples[/bold]

      demerit materialize my_negatives to_look_at
      demerit inspect videos:to_look_at
    """
    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.data.export import materialize as write  # noqa: PLC0415
    from demerit.data.formats import open_dataset  # noqa: PLC0415

    dataset = open_dataset(source, camera=camera, **reader_options(options, False))
    with bar("writing videos", dataset.expected()) as shown:
        written = write(dataset, dest, shown.update)
    out.print(f"[bold]{dest}[/bold]: {written} episodes as mp4 with labels.jsonl")
    _print_problems(dataset.problems.rows())


def _print_grades(progress: NegativesProgress) -> None:
    from rich.table import Table  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415

    ladder = progress.ladder()
    columns = [grade for grade in ladder if grade is not None or ladder[grade]]
    heads = ["ungraded" if grade is None else f"grade {grade}" for grade in columns]
    table = Table("made by", *heads, "all")
    for name in [*sorted(progress.made), *(["original"] if progress.kept else [])]:
        counts = [progress.grades[name, grade] for grade in columns]
        table.add_row(name, *(str(count or "") for count in counts), str(sum(counts)))
    total = sum(ladder.values())
    if total:
        shares = [f"{ladder[grade]} ({ladder[grade] / total:.0%})" for grade in columns]
        table.add_section()
        table.add_row("all", *shares, str(total))
        out.print(table)
    if total and not ladder[5]:
        out.print("  nothing is of grade 5: keep the originals, or add stall, slow or jump to the mix")
    cue = progress.length_auroc()
    if abs(cue - 0.5) > TELLING:
        out.print(
            f"  [yellow]length alone tells success from failure[/yellow] (AUROC {cue:.2f}): add freeze, rewind, jump"
        )


def _print_skipped(progress: NegativesProgress, assume_success: str) -> None:
    from demerit.cli.bars import out  # noqa: PLC0415

    for (name, reason), count in progress.skipped.most_common():
        out.print(f"  [yellow]{name}[/yellow]: {count} not made, {reason}")
    if progress.over:
        out.print(f"  {progress.over} successes not used: their dataset has enough (--per-dataset)")
    if not progress.originals and not assume_success:
        out.print("  Nothing is known to have succeeded. If these are demonstrations: --assume-success demonstrations")


def _print_problems(rows: list[dict[str, Any]]) -> None:
    from demerit.cli.data import _print_problems as show  # noqa: PLC0415

    show(rows)
