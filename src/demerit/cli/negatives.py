"""Commands that make failures from successes: negatives, materialize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from demerit.cli.bars import bar, out, print_grades, print_problems
from demerit.cli.options import CameraOption, DatasetArgument, SourceOptions, StrictOption, reader_options
from demerit.data.episode import count_episodes
from demerit.data.export import materialize as write_videos
from demerit.data.formats import open_dataset
from demerit.negatives.job import NegativesProgress, make_negatives
from demerit.negatives.mix import DEFAULT_MIX, PER_DATASET, PER_EPISODE, Mix
from demerit.negatives.negative import DONE_GRADE

CUE = 0.15  # a model will use a cue whose AUROC is this far from one half


def negatives(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to create; run again to resume.")],
    mix: Annotated[
        str,
        typer.Option(
            metavar="NAME=SHARE,...",
            help="What to make (demerit list negatives).",
            show_default=DEFAULT_MIX.replace(",", ", "),
        ),
    ] = DEFAULT_MIX,
    seed: Annotated[int, typer.Option(help="The same seed makes the same negatives.")] = 0,
    per_episode: Annotated[int, typer.Option(help="Most negatives from one episode.")] = PER_EPISODE,
    per_dataset: Annotated[int, typer.Option(help="Most episodes to use from one dataset; 0 = all.")] = PER_DATASET,
    keep_originals: Annotated[
        bool, typer.Option("--keep-originals", help="Also write the dataset's own episodes; successes are grade 5.")
    ] = False,
    assume_success: Annotated[
        str, typer.Option(metavar="WHY", help="Treat episodes without an outcome as successes; WHY is recorded.")
    ] = "",
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
) -> None:
    """Make failures from successes by editing frames or instructions.

    Not all are failures: slow, stall, jump and reworded still succeed (grade 5), so that speed alone tells nothing.
    No video is copied, and every label names the edit that made it.

    [bold]Examples[/bold]

      demerit negatives my_set my_negatives --keep-originals
      demerit negatives my_set graded --mix "clip=4,rewind=2,freeze=1,wrong-instruction=2" --per-episode 4
      demerit negatives droid/ bad --assume-success demonstrations --keep-originals
    """
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
    kept = f", {progress.kept} originals" if progress.kept else ""
    place, originals = escape(str(dest)), progress.originals
    out.print(f"[bold]{place}[/bold]: {total} negatives of {count_episodes(originals)}{kept} ({progress.added} new)")
    successes = sorted(name for name in progress.made if progress.grades[name, DONE_GRADE])
    if successes:
        done = sum(progress.grades[name, DONE_GRADE] for name in successes)
        out.print(f"  {done} of them have grade {DONE_GRADE} and count as successes: {', '.join(successes)}")
    _print_grades(progress)
    for (name, reason), count in progress.skipped.most_common():
        out.print(f"  [yellow]{name}[/yellow]: {count} not made, {escape(reason)}")
    if progress.over:
        out.print(f"  {progress.over} successes not used: over the limit per dataset (--per-dataset)")
    if not progress.originals and not assume_success:
        out.print("  No episode is known to be a success. For demonstrations: --assume-success demonstrations")
    print_problems(progress.problems.rows())


def materialize(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to create.")],
    camera: CameraOption = None,
    options: SourceOptions = None,
) -> None:
    """Write every episode as an mp4 file with a labels.jsonl.

    [bold]Examples[/bold]

      demerit materialize my_negatives videos
      demerit inspect videos:videos
    """
    dataset = open_dataset(source, camera=camera, **reader_options(options, False))
    with bar("writing videos", dataset.expected()) as shown:
        written = write_videos(dataset, dest, shown.update)
    out.print(f"[bold]{escape(str(dest))}[/bold]: {count_episodes(written)} as mp4 with labels.jsonl")
    print_problems(dataset.problems.rows())


def _print_grades(progress: NegativesProgress) -> None:
    ladder = progress.ladder()
    total = sum(ladder.values())
    if total:
        names = [*sorted(progress.made), *(["original"] if progress.kept else [])]
        rows = {name: {grade: progress.grades[name, grade] for grade in ladder} for name in names}
        print_grades("made by", {**rows, "all": ladder})
    if total and not ladder[5]:
        out.print("  nothing has grade 5: keep the originals, or add stall, slow or jump to the mix")
    auroc = progress.length_auroc()
    if abs(auroc - 0.5) > CUE:
        out.print(f"  [yellow]length alone predicts success[/yellow] (AUROC {auroc:.2f}): add freeze, rewind or jump")
