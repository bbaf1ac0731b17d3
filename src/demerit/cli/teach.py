"""The teach command."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from demerit.cli.options import DatasetArgument, PickleOption, SourceOptions, StrictOption, reader_options

if TYPE_CHECKING:
    from rich.table import Table

    from demerit.cli.bars import Bar
    from demerit.training.teach.job import TeachOutcome
    from demerit.training.teach.report import TeachResults

INTERRUPTED = 130
SHOWN = 5


def teach(
    dataset: DatasetArgument,
    out_folder: Annotated[
        Path, typer.Option("--out", "-o", metavar="MODEL", help="The folder that the model is written to.")
    ],
    risk: Annotated[float, typer.Option(help="Share of failures that may be called a success.")] = 0.05,
    cameras: Annotated[
        str, typer.Option(metavar="NAMES", help="Cameras to look through: top,wrist (default: all that are common).")
    ] = "",
    limit: Annotated[int | None, typer.Option(help="Only the first so many episodes.")] = None,
    seed: Annotated[int, typer.Option(help="Draws folds and made-up negatives.")] = 0,
    network: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Another trained network than the one that ships.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
    workers: Annotated[int | None, typer.Option(help="Decoding processes (default: one a core; 0 = none).")] = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
) -> None:
    """Teach a model from your own episodes, some of them labelled: success, grades, curves, events or A/B choices.

    Ctrl-C keeps the best so far, and the same command goes on from there. Label a few more and teach again: what was
    looked at is kept in MODEL.teaching.

    [bold]Examples[/bold]

      demerit teach lerobot:~/data/so101 -o my-model
      demerit teach my_videos -o my-model --risk 0.1 --cameras top,wrist
      demerit score new_episodes --model ./my-model
    """
    # Before numpy is loaded: on a machine that is busy with other things, its threads wait for each other more than
    # they work (up to nine times slower); on an idle one a single thread is hardly slower.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from demerit.data.formats import open_dataset  # noqa: PLC0415
    from demerit.training.teach.job import teach as run  # noqa: PLC0415

    opened = open_dataset(dataset, strict=strict, **reader_options(options, trust_pickles))
    with _Bars() as bars:
        result = run(
            opened,
            out_folder,
            risk=risk,
            cameras=[name.strip() for name in cameras.split(",") if name.strip()],
            limit=limit,
            seed=seed,
            network=network,
            workers=workers,
            on_progress=bars.told,
        )
    if as_json:
        print(json.dumps(result.results.as_dict()["teaching"] | {"model": str(out_folder)}, ensure_ascii=False))
    else:
        _print(result, out_folder)
    if result.stopped:
        raise typer.Exit(INTERRUPTED)


class _Bars:
    """A bar for each thing that is being done, one after the other."""

    def __enter__(self) -> _Bars:
        self._what = ""
        self._shown: Bar | None = None
        self._stack = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def told(self, what: str, done: int, total: int) -> None:
        """Show how far it is; something new gets a new bar."""
        from demerit.cli.bars import bar  # noqa: PLC0415

        if what != self._what or self._shown is None:
            self._stack.close()
            self._what, self._shown = what, self._stack.enter_context(bar(what, total))
        self._shown.update(done)


def _print(result: TeachOutcome, folder: Path) -> None:
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415

    found = result.results
    if result.stopped:
        out.print(f"[yellow]{escape(result.stopped)}[/yellow]; the same command goes on from there.")
    out.print(f"[bold]{escape(found.title)}[/bold]")
    out.print(escape(found.text))
    if found.report.lines:
        out.print(_table(found))
    out.print(escape(found.calibration.note))
    for note in found.notes[:SHOWN]:
        out.print(f"[yellow]note[/yellow]  {escape(note)}")
    for one in (one for one in found.advice if one != found.calibration.note):
        out.print(f"[bold]next[/bold]  {escape(one)}")
    for suggestion in found.suggestions[:SHOWN]:
        out.print(f"  label {escape(suggestion.episode)}: {escape(suggestion.reason)}")
    out.print(f"The model: {escape(str(folder))}, to be used as --model ./{escape(folder.name)}")
    out.print(f"The report: {escape(str(folder / 'report.html'))}")


def _table(found: TeachResults) -> Table:
    from rich.table import Table  # noqa: PLC0415

    from demerit.cli.bench import _cell  # noqa: PLC0415

    report = found.report
    lower = set(report.about.lower_is_better)
    table = Table(title=f"{len(report.episodes)} episodes, each left out once")
    for head in ("", *(f"{name} {'↓' if name in lower else '↑'}" for name in report.about.headline)):
        table.add_column(head, overflow="fold")
    for card in report.cards:
        is_control = card.name in report.controls
        cells = [_cell(report.line(card.name, name)) for name in report.about.headline]
        table.add_row(f"{card.name} (control)" if is_control else card.name, *cells, style="dim" if is_control else "")
    return table
