"""The release command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demerit.cli.options import CameraOption, DatasetArgument, PickleOption, SourceOptions, StrictOption, reader_options

if TYPE_CHECKING:
    from demerit.cli.bars import Bar
    from demerit.use.release import Released, Settings


def release(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to make; run again to go on after an interruption.")],
    layout: Annotated[
        str, typer.Option("--format", metavar="folder|lerobot", help="Our folder, or LeRobot v3.0 with our labels.")
    ] = "folder",
    materialize: Annotated[
        bool, typer.Option("--materialize", help="A video per view, and nothing that no episode shows.")
    ] = False,
    name: Annotated[str, typer.Option(help="The release's name (default: the dataset's).")] = "",
    licence: Annotated[str, typer.Option(help="Recorded where an episode does not say.")] = "",
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Release only these, e.g. --where split=train --where success=no."),
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(metavar="CAMERA=X,Y,W,H", help="Paint a region black; '*' is every camera; may be repeated."),
    ] = None,
    blur: Annotated[
        str,
        typer.Option(metavar="MODULE:FUNCTION", help="Your own detector: a picture in, boxes (x, y, w, h) out."),
    ] = "",
    names: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names and places to replace everywhere, one a line.")
    ] = None,
    notes: Annotated[str, typer.Option(metavar="scrub|drop|keep", help="What becomes of free text.")] = "scrub",
    dates: Annotated[str, typer.Option(metavar="month|year|drop", help="How precise dates may stay.")] = "month",
    allow_leaks: Annotated[
        bool, typer.Option("--allow-leaks", help="Release splits that share videos, with a warning on the card.")
    ] = False,
    fps: Annotated[float | None, typer.Option(help="LeRobot: write at this rate, where recordings differ.")] = None,
    push: Annotated[
        str, typer.Option(metavar="OWNER/NAME", help="Say what a push to the hub would do; with --yes, do it.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Really push.")] = False,
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
) -> None:
    """Make a dataset that others can train on: a card, checksums, licences, and as little of people as possible.

    Sound, container metadata, names of people and places, and exact times are removed or replaced; PRIVACY.md says what
    was, and what no rule can find. A release as a whole is written or not there at all, and nothing is overwritten.

    [bold]Examples[/bold]

      demerit release my_set my_release --licence CC-BY-4.0
      demerit release my_set my_release_lerobot --format lerobot --where split=train
      demerit release my_set my_release --mask "wrist=0,0,64,48" --blur my_faces:boxes --names people.txt
      demerit release my_set my_release --push me/my-failures          [dim]says what it would do[/dim]
    """
    from demerit.cli.bars import bar  # noqa: PLC0415
    from demerit.data.formats import open_dataset  # noqa: PLC0415
    from demerit.use.release import release as make  # noqa: PLC0415
    from demerit.use.release.settings import Mask, Settings, parse_where  # noqa: PLC0415

    settings = Settings(
        layout=layout,  # type: ignore[arg-type]  # checked there
        materialize=materialize,
        name=name,
        licence=licence,
        where=parse_where(where or []),
        masks=tuple(Mask.parse(text) for text in mask or []),
        blur=blur,
        names=_listed(names),
        notes=notes,  # type: ignore[arg-type]
        dates=dates,  # type: ignore[arg-type]
        allow_leaks=allow_leaks,
        fps=fps,
    )
    _refuse_bare_yes(push, yes)
    dataset = open_dataset(source, strict=strict, camera=camera, **reader_options(options, trust_pickles))
    with bar("releasing", dataset.expected()) as shown:
        made = make(dataset, dest, settings, lambda what, done, total: _told(shown, what, done, total))
    _print(made, dest, settings, dataset.problems.rows())
    if push:
        _push(made, push, yes)


def _told(shown: Bar, what: str, done: int, total: int) -> None:
    shown.total = total or shown.total
    shown.update(done, what)


def _listed(path: Path | None) -> tuple[str, ...]:
    from demerit.errors import BadInput  # noqa: PLC0415

    if path is None:
        return ()
    try:
        lines = path.read_text("utf-8-sig").splitlines()  # editors begin a file with an invisible sign
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("--names", "a text file with a name or place a line", f"{path} ({error})") from error
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def _refuse_bare_yes(push: str, yes: bool) -> None:
    from demerit.errors import BadInput  # noqa: PLC0415

    if yes and not push:
        raise BadInput("--yes", "--push OWNER/NAME with it", "nothing to say yes to")


def _print(made: Released, dest: Path, settings: Settings, problems: list[dict[str, Any]]) -> None:
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.cli.data import _print_problems  # noqa: PLC0415

    facts, place = made.facts, escape(str(dest))
    layout = "LeRobot v3.0" if facts["layout"] == "lerobot" else "demerit folder"
    if not made.seconds:
        out.print(
            f"[bold]{place}[/bold]: this very release is there already, every file as it was made, and is left as it is"
        )
    else:
        steps = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in made.seconds.items())
        out.print(
            f"[bold]{place}[/bold]: {facts['episodes']} episodes as {layout}, {made.bytes / 1e6:.1f} MB, "
            f"under {escape(facts['licence'])} [dim]({steps})[/dim]"
        )
        videos = ", ".join(f"{count} {how}" for how, count in facts["videos"].items())
        out.print(f"  videos: {videos}")
    for line in (*facts["licence_doubts"], *facts["leaks"]):
        out.print(f"  [yellow]note[/yellow]  {escape(line)}")
    _print_problems(problems)
    if not settings.repaints:
        out.print("  [yellow]note[/yellow]  no pixel was changed: look at it before you share it (--mask, --blur)")
    out.print(f"Look at {place}/card.html, then go through {place}/PRIVACY.md")
    if made.key is not None:
        out.print(f"For you alone, not to be shared: {escape(str(made.key.name))} (who stands behind which stand-in)")


def _push(made: Released, repository: str, yes: bool) -> None:
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.use.release.hub import prepared, push  # noqa: PLC0415

    planned = prepared(made, repository)
    if not yes:
        out.print("\n[bold]A push would[/bold] (nothing was sent; --yes does it)")
        for line in planned.plan():
            out.print(f"  {escape(line)}")
        return
    out.print(f"[bold]pushed[/bold] to {escape(push(planned))} (private)")
