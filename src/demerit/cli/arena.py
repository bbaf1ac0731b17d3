"""The arena commands."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.markup import escape
from rich.table import Table

from demerit.cli import LazyGroup, make_app
from demerit.cli.bars import out, print_table
from demerit.cli.people_options import (
    HostOption,
    PortOption,
    ProxyOption,
    PublicNameOption,
    TlsCertOption,
    TlsKeyOption,
    read_tls,
)
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.use.arena.app import ArenaApp
from demerit.use.arena.export import export_roboarena
from demerit.use.arena.results import compute_results, make_dump, write_dump
from demerit.use.arena.trials import Trials
from demerit.use.people.database import Database
from demerit.use.people.guard import PeopleServer

DATABASE = "arena.db"
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The arena's folder: its database and videos.")]
DatabaseOption = Annotated[str, typer.Option(metavar="URL", help="postgresql://... (default: a file in the folder).")]


class ArenaGroup(LazyGroup):
    """The commands of an arena."""

    table = {  # noqa: RUF012
        "serve": ("arena:serve", "Run an arena: sites compare hidden policies on their own robots."),
        "results": ("arena:results", "Rank the policies of an arena, or of its published dump."),
        "export": ("arena:export", "Write the trials of an arena in RoboArena's layout."),
    }


HELP = """\
Let sites compare hidden policies on their own robots.

[bold]Examples[/bold]

  demerit arena serve my_arena --policies policies.yaml
  demerit arena results my_arena
"""
app = make_app(ArenaGroup, name="arena", help=HELP, add_completion=False)


def serve(
    folder: FolderArgument,
    policies: Annotated[
        Path,
        typer.Option(metavar="FILE", help="YAML: name of each policy and ws:// address of its server, or nothing."),
    ],
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", metavar="NAME", help="Reward models that score each trial.")
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Your name as the owner.")] = "owner",
    database: DatabaseOption = "",
    host: HostOption = "127.0.0.1",
    port: PortOption = 8400,
    public_name: PublicNameOption = "",
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    behind_proxy: ProxyOption = False,
) -> None:
    """Run an arena: sites compare hidden policies on their own robots.

    [bold]Examples[/bold]

      demerit arena serve my_arena --policies policies.yaml
      demerit arena serve my_arena --policies policies.yaml --model default --host 0.0.0.0 --behind-proxy
    """
    tls = read_tls(tls_cert, tls_key)
    known = _read_policies(policies)
    found = _open(folder, database)
    names, is_secure = [public_name] if public_name else [], tls is not None or behind_proxy
    arena = ArenaApp(found, folder / "uploads", [load_model(one) for one in model or ()], names, is_secure)
    arena.trials.set_policies(known)
    with PeopleServer(arena.guard.app, host, port, tls, behind_proxy) as server:
        arena.start()
        link = arena.accounts.make_link("owner", arena.accounts.ensure_owner(name))
        out.print(escape(f"Results: {server.url} (public)"), soft_wrap=True)
        out.print(
            escape(f"Your link: {server.url}/enter/{link} (then invite sites at {server.url}/check)"), soft_wrap=True
        )
        try:
            server.wait()
        finally:
            arena.stop()


def results(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="The arena's folder, or its dump (results.json).")],
    database: DatabaseOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the dump that the ranking is computed from.")] = False,
) -> None:
    """Rank the policies of an arena, or of its published dump.

    [bold]Examples[/bold]

      demerit arena results my_arena
      demerit arena results results.json
    """
    dump = _read_dump(source) if source.is_file() else make_dump(Trials(_open(source, database), source / "uploads"))
    if as_json:
        print(write_dump(dump), end="")
        return
    found = compute_results(dump)
    if found.ranking is None:
        out.print("No trial has ended yet.")
        return
    table = Table("rank", "policy", "strength (log-odds)", "95% interval", "wins, losses, ties")
    for standing in found.ranking.standings:
        ranks = "–" if standing.ranks is None else "–".join(dict.fromkeys(map(str, standing.ranks)))
        strength = standing.strength
        value = f"{strength.value:+.2f}" if strength.known else "–"
        span = f"{strength.low:+.2f} to {strength.high:+.2f}" if not math.isnan(strength.low) else "unknown"
        record = f"{standing.wins}, {standing.losses}, {standing.ties}"
        table.add_row(ranks, escape(standing.policy), value, span, record)
    out.print(f"{found.trials} trials at {found.sites} sites; {sum(found.excluded.values())} excluded")
    print_table(table)
    for note in found.ranking.notes:
        out.print(f"[yellow]note[/yellow]  {escape(note)}")
    for name, agreement in found.agreement.items():
        out.print(escape(f"{name} agrees with people: {agreement}"))


def export(
    folder: FolderArgument,
    dest: Annotated[Path, typer.Argument(help="The folder to create.")],
    database: DatabaseOption = "",
) -> None:
    """Write the trials of an arena in RoboArena's layout.

    [bold]Examples[/bold]

      demerit arena export my_arena my_dump
      demerit inspect roboarena:my_dump
    """
    count = export_roboarena(Trials(_open(folder, database), folder / "uploads"), dest)
    out.print(f"[bold]{escape(str(dest))}[/bold]: {count} trials")


def _open(folder: Path, database: str) -> Database:
    return Database(database or f"sqlite:///{folder / DATABASE}")


def _read_policies(path: Path) -> dict[str, str]:
    try:
        facts = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise BadInput(str(path), "a YAML file of policies", error) from error
    if not isinstance(facts, dict) or len(facts) < 2:  # noqa: PLR2004
        raise BadInput(str(path), "two policies or more, each NAME: ws://ADDRESS or NAME:", type(facts).__name__)
    for name, address in facts.items():
        if address is not None and not str(address).startswith(("ws://", "wss://")):
            raise BadInput(
                f"{path}, policy {name!r}", "an address that begins with ws:// or wss://, or nothing", address
            )
    return {str(name): str(address or "") for name, address in facts.items()}


def _read_dump(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(str(path), "an arena's dump", error) from error
    if not isinstance(found, dict):
        raise BadInput(str(path), "an arena's dump", type(found).__name__)
    return found
