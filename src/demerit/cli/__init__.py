"""The command line: each command parses, calls one function and prints.

Nothing heavy is imported before a command runs, so that `demerit --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import typer
from typer.core import TyperGroup

from demerit.cli import (
    bench,
    build_corpus,
    calibrate,
    data,
    demo_command,
    leaderboard,
    models,
    negatives,
    relabel,
    release,
    simulate,
    teach,
    train,
)
from demerit.errors import WRITE_ERRNOS, DemeritError, DemeritWarning, StoppedByUser


class InOrder(TyperGroup):
    """Commands as they are listed below: typer would put those that have commands of their own last."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Name the commands."""
        return [name for name in COMMANDS if name in self.commands]


app = typer.Typer(
    name="demerit",
    cls=InOrder,
    help="Robot rewards that know bad behaviour when they see it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERRUPTED = 130


def _told(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what goes wrong in a command into one sentence and an exit code."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            with _notes():
                command(*arguments, **options)
        except DemeritError as error:
            print(f"demerit: {error}", file=sys.stderr)
            raise typer.Exit(1) from error
        except OSError as error:
            # A disk may fill up or be taken away at any write: no command should have to foresee each of them.
            if error.errno not in WRITE_ERRNOS:
                raise
            where = f"{error.filename}: " if error.filename else ""
            kept = "What was done is kept; with room to write, the same command goes on from there."
            print(f"demerit: {where}it cannot be written ({error.strerror}). {kept}", file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stop:
            usual = "what was done is kept, and the same command goes on from there"
            kept = str(stop) if isinstance(stop, StoppedByUser) else usual
            print(f"\ndemerit: interrupted; {kept}.", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from stop

    return run


@contextmanager
def _notes() -> Iterator[None]:
    """Print our own warnings as sentences, without the line of code that gave them."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, DemeritWarning):
            print(f"demerit: {message}", file=sys.stderr)
        else:
            usual(message, category, *rest, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {
    "import": data.import_,
    "inspect": data.inspect,
    "export": data.export,
    "teach": teach.teach,
    "score": models.score,
    "calibrate": calibrate.calibrate,
    "bench": bench.bench,
    "leaderboard": leaderboard.leaderboard,
    "negatives": negatives.negatives,
    "relabel": relabel.relabel,
    "build-corpus": build_corpus.build_corpus,
    "materialize": negatives.materialize,
    "release": release.release,
    "simulate": simulate.simulate,
    "train": train.app,
    "check": models.check,
    "list": models.list_,
    "demo": demo_command.demo,
}
for _name, _command in COMMANDS.items():
    if isinstance(_command, typer.Typer):
        for _each in _command.registered_commands:
            _each.callback = _told(_each.callback) if _each.callback else None
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_told(_command))


def main() -> None:
    """Run a command."""
    try:
        app()
    except BrokenPipeError:  # `demerit ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
