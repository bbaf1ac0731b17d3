"""The annotate command."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer
from rich.markup import escape

from demerit.cli.bars import bar, out, print_problems
from demerit.cli.options import (
    CameraOption,
    DatasetsArgument,
    InstructionOption,
    SourceOptions,
    reader_options,
    split_names,
)
from demerit.cli.people_options import (
    HostOption,
    PortOption,
    ProxyOption,
    PublicNameOption,
    TlsCertOption,
    TlsKeyOption,
    read_tls,
)
from demerit.data.formats import open_parts
from demerit.errors import UnknownName
from demerit.use.annotate.app import KIND_NAMES, AnnotateApp
from demerit.use.annotate.items import make_items, open_folder
from demerit.use.people.database import Database
from demerit.use.people.guard import PeopleServer


def annotate(
    datasets: DatasetsArgument,
    tasks: Annotated[
        str, typer.Option(metavar="NAMES", help="What to ask: verify, compare, mark.")
    ] = "verify,compare,mark",
    name: Annotated[str, typer.Option(metavar="NAME", help="Your pseudonym; labels carry it.")] = "me",
    overlap: Annotated[int, typer.Option(metavar="N", min=1, help="People who answer each item.")] = 1,
    pairs: Annotated[int | None, typer.Option(metavar="N", help="Comparisons (default: one per episode).")] = None,
    gold: Annotated[
        int, typer.Option(metavar="N", min=0, help="Episodes with a person's label that check raters.")
    ] = 0,
    database: Annotated[
        str, typer.Option(metavar="URL", help="postgresql://... for a team (default: a file beside the first dataset).")
    ] = "",
    host: HostOption = "127.0.0.1",
    port: PortOption = 8300,
    public_name: PublicNameOption = "",
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    behind_proxy: ProxyOption = False,
    teach: Annotated[bool, typer.Option(help="Teach a model while you label, and ask what teaches most.")] = True,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")] = False,
    instruction: InstructionOption = "",
    camera: CameraOption = None,
    options: SourceOptions = None,
) -> None:
    """Label episodes in a browser: verify, compare and mark, alone or as a team.

    Labels are written into the dataset folder as you go, with the source `human` and your pseudonym. A dataset that is
    not a demerit folder gets one beside it, which refers to its videos. Stop and start as you like: nothing is lost.

    [bold]Examples[/bold]

      demerit annotate rollouts/ --instruction "put the cup on the plate"
      demerit annotate my_set --tasks mark
      demerit annotate my_set --database postgresql://lab@db/labels --host 0.0.0.0 --behind-proxy --overlap 2
    """
    wanted = split_names(tasks)
    for task in wanted:
        if task not in KIND_NAMES:
            raise UnknownName("task", task, KIND_NAMES)
    tls = read_tls(tls_cert, tls_key)
    parts = open_parts(datasets, camera=camera, **reader_options(options, False, instruction))
    stores = []
    for part in parts:
        with bar("reading", part.expected()) as shown:
            stores.append(open_folder(part, shown.update))
        print_problems(part.problems.rows())
    found = Database(database or f"sqlite:///{stores[0].root / 'annotate.db'}")
    is_secure = tls is not None or behind_proxy
    taught = [store.root for store in stores] if teach else []
    app = AnnotateApp(found, stores[0].root / "browser", [public_name] if public_name else [], is_secure, taught)
    for store in stores:
        app.work.add_items(make_items(store, wanted, pairs, gold), overlap)
    with PeopleServer(app.guard.app, host, port, tls, behind_proxy) as server:
        app.start()
        link = f"{server.url}/enter/{app.accounts.make_link('owner', app.accounts.ensure_owner(name))}"
        out.print(escape(f"Open {link}"), soft_wrap=True)
        for store in stores:
            out.print(escape(f"Labels: {store.root} (then: demerit teach {store.root} -o my-model)"), soft_wrap=True)
        if not no_browser:
            webbrowser.open(link)
        try:
            server.wait()
        finally:
            app.stop()
