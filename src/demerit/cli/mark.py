"""The mark command."""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from demerit.cli.bars import err
from demerit.cli.bundles import HostOption, PersonOption, TokenFileOption
from demerit.data.formats.marks import Mark
from demerit.errors import BadInput, WriteError
from demerit.use.mark import KEYS, MarkLog, mark_app, mark_while, open_keys
from demerit.web.server import WebServer, check_token, read_token

LAST = 8
"""marks that are shown again with each new one"""


def mark(
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="What records the robot.")] = None,
    beside: Annotated[bool, typer.Option("--while", help="Run COMMAND, and mark while it runs.")] = False,
    log: Annotated[
        Path, typer.Option(metavar="FILE.jsonl", help="The log of marks; a log that exists goes on.")
    ] = Path("marks.jsonl"),
    name: PersonOption = "me",
    port: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=65535, help="Also take marks by HTTP here; 0 = a free port.")
    ] = None,
    host: HostOption = "127.0.0.1",
    token_file: TokenFileOption = None,
) -> None:
    """Label episodes by keys while the robot runs.

    Keys: s success, f failure, r retake (the episode is left out), space a failure at this moment, u undo. A pedal or
    a gamepad that sends these keys works too. With --port, so does POST /mark {"mark": "failure"}.

    Each press is on disk at once. COMMAND keeps its output and its exit code, cannot read keys, and gets Ctrl-C.

    [bold]Examples[/bold]

      demerit mark
      demerit mark --name Ada --while ros2 bag record -a
      demerit mark --port 8030 --log today.jsonl
      demerit import recordings my_set --with marks=marks.jsonl
    """
    if beside != bool(command):
        raise BadInput("--while", "a command after it, and no command without it", shlex.join(command or ()) or "none")

    def say(text: str) -> None:
        with suppress(OSError, SystemExit):  # the terminal is gone: the marks go on
            err.print(escape(text), soft_wrap=True)

    def show(mark: Mark) -> None:
        words = [entry.word for entry in marks.marks]
        counts = Counter(words)
        total = ", ".join(f"{counts[word]} {word}" for word in KEYS.values() if counts[word]) or "none"
        last = f"; last: {' '.join(words[-LAST:])}" if words else ""
        say(f"{datetime.fromtimestamp(mark.at):%H:%M:%S} {mark.by}: {mark.word} ({total}{last})")

    def press(key: str) -> None:
        try:
            if key in KEYS and marks.add(KEYS[key]) is None:
                say("There is nothing to undo.")
        except WriteError as error:
            say(str(error))

    def tell_end(code: int) -> None:
        ended = f"{shlex.join(command or ())} has ended with exit code {code}"
        say(f"{ended}. Give the last verdict; q ends the marking.")

    with ExitStack() as stack:
        token = read_token(token_file)
        check_token(host, token)
        has_keys = stack.enter_context(open_keys())
        if not has_keys and port is None:
            raise BadInput("the keyboard", "a terminal to read keys from, or --port for HTTP calls", "neither")
        marks = MarkLog(log, name, show)
        say(f"Marks go to {log}. Ctrl-C ends {'the command' if command else 'the marking'}.")
        if has_keys:
            say("Keys: s success, f failure, r retake, space a failure at this moment, u undo.")
        if port is not None:
            names = () if token is None else None
            app = mark_app(marks, token)
            server = WebServer(app, host, port, names=names, has_token=token is not None, grace=1)
            say(f"HTTP: POST {stack.enter_context(server).url}/mark")
        code = mark_while(command or (), has_keys, press, tell_end)
    if marks.marks:
        say(f"Next: demerit import RECORDINGS my_set --with marks={log}")
    raise typer.Exit(code)
