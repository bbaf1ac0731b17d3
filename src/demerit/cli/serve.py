"""Commands that serve pages and models from this machine: view, serve."""

from __future__ import annotations

import tempfile
import webbrowser
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from demerit.cli.bars import out, print_notes, print_verdicts
from demerit.cli.bundles import (
    ChangesOption,
    DatasetArgument,
    DatasetOptions,
    HostOption,
    ModelsOption,
    NoBrowserOption,
    PortOption,
    TokenFileOption,
)
from demerit.cli.score import score_with_bar
from demerit.config import change_config, parse_changes
from demerit.data.episode import count_episodes
from demerit.data.formats import open_dataset
from demerit.data.reward import VerdictCounts
from demerit.models import load_model
from demerit.registry import load_attribute
from demerit.use.view import ViewIndex, view_app
from demerit.web.media import EpisodeMedia
from demerit.web.server import WebServer, read_token
from demerit.web.uploads import ServeLimits


def view(
    dataset: DatasetArgument,
    reading: DatasetOptions,
    models: ModelsOption = None,
    rewards: Annotated[
        list[Path] | None,
        typer.Option("--rewards", metavar="DIR", help="Folder of rewards that is not next to the dataset. Repeatable."),
    ] = None,
    port: PortOption = 8010,
    no_browser: NoBrowserOption = False,
) -> None:
    """Browse episodes with labels and every model's curves.

    The rewards that `demerit score` stored are shown without loading a model; with --model, what is missing is scored
    first. Nothing but this machine can open the page. Ctrl-C ends it.

    [bold]Examples[/bold]

      demerit view my_set
      demerit view my_set --model ./my-model --model clock
      demerit view lerobot:~/data/so101 --camera wrist --port 0 --no-browser
    """
    opens = partial(open_dataset, dataset, **reading.settings)
    for name in models or ():
        score_with_bar(opens(), load_model(name))

    def open_index() -> ViewIndex:
        return ViewIndex(opens(), rewards or ())

    index = open_index()
    print_notes(index.dataset.notes())
    with tempfile.TemporaryDirectory(prefix="demerit-view-", ignore_cleanup_errors=True) as cache:
        server = WebServer(view_app(index, open_index, EpisodeMedia(cache)), port=port, grace=1)
        names = ", ".join(model.name for model in index.models) or "no model"
        count = count_episodes(len(index.columns["id"]))
        out.print(escape(f"{count}, rewards of {names}: {server.url} (Ctrl-C ends it)"))
        for model in index.models:
            print_verdicts(VerdictCounts.of_verdicts(model.verdicts, model.cautions), by=model.name)
        for problem in index.problems:
            out.print(f"  [yellow]{escape(problem)}[/yellow]")
        if not no_browser:
            webbrowser.open(server.url)
        server.run()


def serve(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Names or folders of models; one or several.")],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    token_file: TokenFileOption = None,
    changes: ChangesOption = None,
) -> None:
    """Serve models to other processes and machines.

    The API is described at /docs. Requests that have arrived are answered before SIGTERM or Ctrl-C ends the server.
    --set takes the limits: megabytes (256; of a request), waiting (64 requests), live (256 connections), deadline
    (60 seconds), videos, frames, pixels, decode-seconds.

    [bold]Examples[/bold]

      demerit serve default
      demerit serve ./my-model default --port 9000
      demerit serve ./my-model --host 0.0.0.0 --token-file token.txt --set waiting=8
      demerit score my_set --model http://127.0.0.1:8000
    """
    limits = change_config(ServeLimits(), parse_changes(changes or []), "--set")
    token = read_token(token_file)
    start: Any = load_attribute("demerit.use.serve.server:serve_models", "demerit serve")
    loaded = [load_model(name) for name in models]
    server = start(loaded, host, port, token, limits)
    out.print(escape(f"Serving {', '.join(models)} at {server.url} (API: {server.url}/docs)"), soft_wrap=True)
    for model in loaded:
        out.print(escape(f"  {model!r}"), soft_wrap=True)
    server.run()
