"""Commands that serve pages to people: annotate, and those of an arena."""

from __future__ import annotations

import math
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape
from rich.table import Table

from demerit.cli import LazyGroup, make_app
from demerit.cli.bars import bar, out, print_problems, print_table
from demerit.cli.bundles import (
    DatasetOptions,
    DatasetsArgument,
    JsonOption,
    ModelsOption,
    NoBrowserOption,
    PersonOption,
    PortOption,
    ServerOptions,
    split_names,
)
from demerit.errors import BadInput, UnknownName
from demerit.models import load_model
from demerit.registry import load_attribute
from demerit.web.server import WebServer

DATABASE = "arena.db"
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The arena's folder: its database and videos.")]
DatabaseOption = Annotated[
    str, typer.Option(metavar="URL", help="postgresql://... for a team (default: a file in the folder).")
]


def _load(address: str) -> Any:
    """Import a part of the web applications; a missing library is named with its install line."""
    return load_attribute(f"demerit.people.{address}", "this command", "annotate")


def annotate(
    datasets: DatasetsArgument,
    reading: DatasetOptions,
    server: ServerOptions,
    tasks: Annotated[
        str, typer.Option(metavar="NAMES", help="What to ask: verify, compare, mark.")
    ] = "verify,compare,mark",
    name: PersonOption = "me",
    overlap: Annotated[int, typer.Option(metavar="N", min=1, help="People who answer each item.")] = 1,
    pairs: Annotated[int | None, typer.Option(metavar="N", help="Comparisons (default: one per episode).")] = None,
    gold: Annotated[
        int, typer.Option(metavar="N", min=0, help="Episodes with a person's label that check raters.")
    ] = 0,
    sample: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Verify N labels only, drawn over subsets and grades.")
    ] = None,
    database: DatabaseOption = "",
    port: PortOption = 8300,
    teach: Annotated[bool, typer.Option(help="Teach a model while you label, and ask what teaches most.")] = True,
    no_browser: NoBrowserOption = False,
) -> None:
    """Label episodes in a browser, alone or as a team.

    Labels are written into the dataset folder as you go, with the source `human` and your pseudonym. A dataset that is
    not a demerit folder gets one beside it, which refers to its videos. Stop and start as you like: nothing is lost.

    To verify is to accept a label, to correct it, or to reject it. A rejected episode stays in the folder, but nothing
    learns from it or is measured by it any more.

    [bold]Examples[/bold]

      demerit annotate rollouts/ --instruction "put the cup on the plate"
      demerit annotate my_set --tasks mark
      demerit annotate my_set --sample 200
      demerit annotate my_set --database postgresql://lab@db/labels --host 0.0.0.0 --behind-proxy --overlap 2
    """
    wanted, kinds = split_names(tasks), _load("annotate.app:KIND_NAMES")
    for task in wanted:
        if task not in kinds:
            raise UnknownName("task", task, kinds)
    if sample is not None and "verify" not in wanted:
        raise BadInput("--sample", "the task verify with it", tasks)
    stores = []
    for part in reading.open_parts(datasets):
        with bar("reading", part.expected()) as shown:
            stores.append(_load("annotate.work:open_folder")(part, shown.update))
        print_problems(part.problems.rows())
    labels = _load("database:Database")(database or f"sqlite:///{stores[0].root / 'annotate.db'}")
    taught = [store.root for store in stores] if teach else []
    app = _load("annotate.app:AnnotateApp")(labels, stores[0].root / "browser", server.is_secure, taught)
    make = _load("annotate.work:make_items")
    added = sum(app.work.add_items(make(store, wanted, pairs, gold, sample=sample), overlap) for store in stores)
    serving = _listen(app, server, port)
    with serving:
        app.start()
        link = f"{serving.url}/enter/{app.accounts.make_link('owner', app.accounts.ensure_owner(name))}"
        out.print(escape(f"Open {link}"), soft_wrap=True)
        if not added:
            out.print("Nothing new to ask: people have labelled every episode, or all is in the queue already.")
        for store in stores:
            out.print(escape(f"Labels: {store.root} (then: demerit teach {store.root} -o my-model)"), soft_wrap=True)
        if not no_browser:
            webbrowser.open(link)
        try:
            serving.wait()
        finally:
            app.stop()
            accepted = _load("annotate.team:count_accepted")(labels)
            if accepted.n:
                out.print(escape(f"Labels that people checked and accepted as they were: {accepted}"))


class ArenaGroup(LazyGroup):
    """The commands of an arena."""

    table = {  # noqa: RUF012
        "serve": ("people:serve", "Run an arena: sites compare hidden policies on their own robots."),
        "results": ("people:results", "Rank the policies of an arena, or of its published dump."),
        "export": ("people:export", "Write the trials of an arena in RoboArena's layout."),
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
        typer.Option(metavar="FILE", help="YAML: name of each policy and ws:// address of its server, or a code word."),
    ],
    server: ServerOptions,
    model: ModelsOption = None,
    name: PersonOption = "owner",
    database: DatabaseOption = "",
    port: PortOption = 8400,
) -> None:
    """Run an arena: sites compare hidden policies on their own robots.

    [bold]Examples[/bold]

      demerit arena serve my_arena --policies policies.yaml
      demerit arena serve my_arena --policies policies.yaml --model default --host 0.0.0.0 --behind-proxy
    """
    addresses = _read_policies(policies)
    models = [load_model(model_name) for model_name in model or ()]
    start = _load("arena.app:ArenaApp")
    arena = start(_open(folder, database), folder / "uploads", models, server.is_secure)
    arena.trials.set_policies(addresses)
    serving = _listen(arena, server, port)
    with serving:
        arena.start()
        link = arena.accounts.make_link("owner", arena.accounts.ensure_owner(name))
        out.print(escape(f"Results: {serving.url} (public)"), soft_wrap=True)
        invite = f"(then invite sites at {serving.url}/check)"
        out.print(escape(f"Your link: {serving.url}/enter/{link} {invite}"), soft_wrap=True)
        try:
            serving.wait()
        finally:
            arena.stop()


def results(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="The arena's folder, or its dump (results.json).")],
    database: DatabaseOption = "",
    as_json: JsonOption = False,
) -> None:
    """Rank the policies of an arena, or of its published dump.

    [bold]Examples[/bold]

      demerit arena results my_arena
      demerit arena results results.json
    """
    if source.is_file():
        dump = _load("arena.results:read_dump")(source)
    else:
        dump = _load("arena.results:make_dump")(_open_trials(source, database))
    if as_json:
        print(_load("arena.results:write_dump")(dump), end="")
        return
    ranked = _load("arena.results:compute_results")(dump)
    if ranked["ranking"] is None:
        out.print("No trial has ended yet.")
        return
    table = Table("rank", "policy", "strength (log-odds)", "95% interval", "wins, losses, ties")
    for standing in ranked["ranking"].standings:
        ranks = "–" if standing.ranks is None else "–".join(dict.fromkeys(map(str, standing.ranks)))
        strength = standing.strength
        value = f"{strength.value:+.2f}" if strength.known else "–"
        span = f"{strength.low:+.2f} to {strength.high:+.2f}" if not math.isnan(strength.low) else "unknown"
        record = f"{standing.wins}, {standing.losses}, {standing.ties}"
        table.add_row(ranks, escape(standing.policy), value, span, record)
    excluded = sum(ranked["excluded"].values())
    out.print(f"{ranked['trials']} trials at {ranked['sites']} sites; {excluded} excluded")
    print_table(table)
    for note in ranked["ranking"].notes:
        out.print(f"[yellow]note[/yellow]  {escape(note)}")
    for name, agreement in ranked["agreement"].items():
        share = _load("arena.results:tell_agreement")(agreement)
        out.print(escape(f"{name} agrees with people: {share}; verdicts: {ranked['verdicts'].get(name, 'none')}"))


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
    count = _load("arena.results:export_roboarena")(_open_trials(folder, database), dest)
    out.print(f"[bold]{escape(str(dest))}[/bold]: {count} trials")


def _open(folder: Path, database: str) -> Any:
    return _load("database:Database")(database or f"sqlite:///{folder / DATABASE}")


def _listen(app: Any, server: ServerOptions, port: int) -> WebServer:
    names, tls, behind_proxy = server.names, server.tls, server.behind_proxy
    return WebServer(app.guard.app, server.host, port, names=names, tls=tls, behind_proxy=behind_proxy)


def _open_trials(folder: Path, database: str) -> Any:
    if not database and not (folder / DATABASE).is_file():
        raise BadInput(str(folder), f"an arena's folder, with {DATABASE} in it", "none")
    return _load("arena.trials:Trials")(_open(folder, database), folder / "uploads")


def _read_policies(path: Path) -> dict[str, str]:
    try:
        facts = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise BadInput(str(path), "a YAML file of policies", error) from error
    if not isinstance(facts, dict) or len(facts) < 2:  # noqa: PLR2004
        raise BadInput(str(path), "two policies or more, each NAME: ws://ADDRESS or NAME: WORD", type(facts).__name__)
    return {str(name): str(address or "") for name, address in facts.items()}
