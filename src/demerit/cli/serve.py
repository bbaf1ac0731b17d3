"""The serve command."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from demerit.cli.bars import out
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.use.serve.requests import ServeLimits
from demerit.use.serve.server import RewardServer

LIMITS = ServeLimits()


def serve(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Names or folders of models; one or several.")],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 = a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token that clients must send; required beyond this machine."),
    ] = None,
    megabytes: Annotated[int, typer.Option(metavar="N", help="Largest request.")] = LIMITS.megabytes,
    waiting: Annotated[int, typer.Option(metavar="N", help="Requests that may wait for a model.")] = LIMITS.waiting,
    live: Annotated[int, typer.Option(metavar="N", help="Connections of live episodes.")] = LIMITS.live,
    deadline: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time that a request may wait and compute.")
    ] = LIMITS.deadline,
) -> None:
    """Serve models to other processes and machines: scores, comparisons and live episodes.

    The API is described at /docs. Requests that have arrived are answered before SIGTERM or Ctrl-C ends the server.

    [bold]Examples[/bold]

      demerit serve default
      demerit serve ./my-model default --port 9000
      demerit serve ./my-model --host 0.0.0.0 --token-file token.txt
      demerit score my_set --model http://127.0.0.1:8000
    """
    limits = ServeLimits(megabytes=megabytes, waiting=waiting, live=live, deadline=deadline)
    token = None if token_file is None else _read_token(token_file)
    server = RewardServer([load_model(name) for name in models], host, port, token, limits)
    out.print(escape(f"Serving {', '.join(models)} at {server.url} (API: {server.url}/docs)"), soft_wrap=True)
    with suppress(KeyboardInterrupt):
        server.run()


def _read_token(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise BadInput(str(path), "a file with a token", error) from error
