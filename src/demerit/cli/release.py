"""The release command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from demerit.cli.bars import bar, out, print_problems
from demerit.cli.bundles import DatasetArgument, DatasetOptions, split_names
from demerit.data.episode import count_episodes
from demerit.data.splits import TO_CHECK
from demerit.errors import WRITE_ERRNOS, BadInput, StoppedByUser, WriteError
from demerit.use.release import Mask, ReleaseConfig, Released
from demerit.use.release import release as make_release
from demerit.use.release.config import parse_where, read_replacements
from demerit.use.release.hub import plan_push, push


def release(
    source: DatasetArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to make. Run again to resume (LeRobot: starts over).")],
    reading: DatasetOptions,
    layout: Annotated[
        str, typer.Option("--to", metavar="folder|lerobot", help="Our folder, or LeRobot v3.0 with our labels.")
    ] = "folder",
    name: Annotated[str, typer.Option(help="Name of the release (default: the folder's name).")] = "",
    licence: Annotated[str, typer.Option(help="SPDX id for episodes that have no licence.")] = "",
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Release only these, e.g. --where split=train --where success=no."),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            metavar="FIELDS", help="Keep verbatim: notes, site, stages, tags, tags.NAME, signals, signals.NAME."
        ),
    ] = "",
    replace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV or JSON of exact instructions and their replacements.")
    ] = None,
    scrub: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION", help="Your own text -> text, for instructions and kept notes.")
    ] = "",
    mask: Annotated[
        list[str] | None,
        typer.Option(metavar="CAMERA=X,Y,W,H", help="Paint a region black; '*' is every camera; may be repeated."),
    ] = None,
    blur: Annotated[
        str,
        typer.Option(metavar="MODULE:FUNCTION", help="Your own detector: an image in, boxes (x, y, w, h) out."),
    ] = "",
    allow_leaks: Annotated[
        bool, typer.Option("--allow-leaks", help="Release splits that share videos, with a warning on the card.")
    ] = False,
    fps: Annotated[float | None, typer.Option(help="LeRobot: write all episodes at this rate.")] = None,
    push_to: Annotated[
        str,
        typer.Option("--push", metavar="OWNER/NAME", help="Print what a push to the hub would do; with --yes, do it."),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Really push.")] = False,
) -> None:
    """Make a dataset that you can share: card, licences, checksums.

    Only allowed fields are released. Ids and annotators are numbered. Instructions are verbatim and listed on the card:
    read them. Notes, tags, sites and other signals are dropped unless you --keep them. Videos lose sound and metadata.

    [bold]Examples[/bold]

      demerit release my_set my_release --licence CC-BY-4.0
      demerit release my_set my_release --to lerobot --where split=train
      demerit release my_set my_release --replace instructions.csv --mask "wrist=0,0,64,48"
      demerit release my_set my_release --push me/my-failures          [dim]prints what it would do[/dim]
    """
    if yes and not push_to:
        raise BadInput("--yes", "--push OWNER/NAME with it", "no --push")
    config = ReleaseConfig(
        layout=layout,  # type: ignore[arg-type]  # checked there
        name=name,
        licence=licence,
        where=parse_where(where or []),
        keep=tuple(split_names(keep)),
        replacements=read_replacements(replace) if replace else {},
        scrub=scrub,
        masks=tuple(Mask.parse(text) for text in mask or []),
        blur=blur,
        allow_leaks=allow_leaks,
        fps=fps,
    )
    dataset = reading.open(source)
    with bar("releasing", dataset.expected()) as progress:

        def report(step: str, done: int, total: int) -> None:
            progress.total = total or progress.total
            progress.update(done, step)

        try:
            released = make_release(dataset, dest, config, report)
        except KeyboardInterrupt:
            if layout != "lerobot":
                raise
            raise StoppedByUser(f"{dest} was not written. A LeRobot release starts over: rerun.") from None
        except OSError as error:
            if layout != "lerobot" or error.errno not in WRITE_ERRNOS:
                raise
            kept = "Free some disk space and rerun: a LeRobot release starts over."
            raise WriteError(error.filename or dest, error.strerror or str(error), kept) from error
    _print(released, dataset.problems.rows())
    if push_to:
        _push(released, push_to, yes)


def _print(released: Released, problems: list[dict[str, Any]]) -> None:
    facts, place = released.facts, escape(str(released.folder))
    if not released.seconds:
        out.print(f"[bold]{place}[/bold]: up to date, all checksums match")
    else:
        layout = "LeRobot v3.0" if facts["layout"] == "lerobot" else "demerit folder"
        out.print(
            f"[bold]{place}[/bold]: {count_episodes(facts['episodes'])} as {layout}, {released.bytes / 1e6:.1f} MB, "
            f"{escape(facts['licence'])} [dim]({released.seconds:.1f} s)[/dim]"
        )
        out.print("  videos: " + ", ".join(f"{count} {how}" for how, count in facts["videos"].items()))
    if released.dropped:
        out.print(f"  dropped: {escape(', '.join(released.dropped))} (--keep keeps them)")
    notes = [*facts["licence_doubts"], *facts["leaks"]]
    if facts["left_out"]:
        notes.append(f"{count_episodes(facts['left_out'])} left out: unreadable, or rejected by a person")
    if facts.get("unchecked"):
        notes.append(f"{count_episodes(facts['unchecked'])} with labels that no person has checked yet ({TO_CHECK})")
    notes += [f"--replace: no text is {text!r}" for text in released.unused]
    notes += [] if facts["masks"] or facts["blurred"] else ["no pixel was changed (--mask, --blur)"]
    kept = sum(released.own_licences.values())
    if kept:
        own = ", ".join(f"{name} ({count})" for name, count in released.own_licences.most_common())
        notes.insert(
            0, f"--licence was not applied to {kept} of {facts['episodes']} episodes, which have their own: {own}"
        )
    for line in notes:
        out.print(f"  [yellow]note[/yellow]  {escape(line)}")
    print_problems(problems)
    out.print(f"Read the instructions and look at the images in {place}/card.html before you share it.")
    if released.private is not None:
        out.print(f"Do not share {escape(released.private.name)}: it maps the numbers to your ids and annotators.")


def _push(released: Released, repository: str, yes: bool) -> None:
    if not yes:
        out.print("\n[bold]A push would[/bold] (nothing was sent; --yes does it)")
        for line in plan_push(released, repository):
            out.print(f"  {escape(line)}")
        return
    out.print(f"[bold]pushed[/bold] to {escape(push(released, repository))} (private)")
