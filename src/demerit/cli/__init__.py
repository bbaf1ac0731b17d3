"""The command line. Each command parses its options, calls one function and prints.

A command's module is imported when the command runs, so `demerit --help` answers at once and command modules can import
what they need at their top.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from demerit.cli.terminal import escape_controls
from demerit.errors import WRITE_ERRNOS, DemeritError, DemeritWarning, StoppedByUser
from demerit.registry import load_attribute

INTERRUPTED = 130
SAVE_NOTHING = frozenset({"inspect", "export", "leaderboard", "check", "list"})
"""commands that start over after an interruption; all others resume"""

# name: (module:function below demerit.cli, help line; the function's docstring begins with the same line)
COMMANDS: dict[str, tuple[str, str]] = {
    "import": ("data:import_", "Import a dataset into a demerit folder and list every problem found in it."),
    "inspect": ("data:inspect", "Show what a dataset contains: episodes, hours, instructions, labels, problems."),
    "export": ("data:export", "Write a dataset as LeRobot v3.0, or as a file for the Rerun viewer."),
    "teach": ("teach:teach", "Teach a model your task from a few labelled episodes."),
    "score": ("models:score", "Score every episode of a dataset. Run it again to resume."),
    "rewards": ("rewards:app", "Write a model's rewards where trainers read them."),
    "view": ("view:view", "Browse episodes with their videos, labels and every model's curves, in your browser."),
    "serve": ("serve:serve", "Serve models to other processes and machines: scores, comparisons and live episodes."),
    "watch": ("watch:watch", "Score episodes as a robot writes them, with a live page, metrics and alarms."),
    "annotate": ("annotate:annotate", "Label episodes in a browser: verify, compare and mark, alone or as a team."),
    "arena": ("arena:app", "Let sites compare hidden policies on their own robots."),
    "calibrate": ("calibrate:calibrate", "Calibrate a model on labelled episodes and set a success threshold."),
    "compare": ("compare:compare", "Compare the success rates of two policies with a model and a few labels."),
    "detect": ("detect:detect", "Say which episodes went wrong and when, with a promised share of false alarms."),
    "bench": ("bench:bench", "Measure models against labels, with controls. Writes report.html and report.json."),
    "leaderboard": ("leaderboard:leaderboard", "Build a web page that compares reports and published tables."),
    "filter": ("filter:filter_", "Make a view of a dataset without the episodes that fail a condition."),
    "retrieve": ("retrieve:retrieve", "Find the moments of long recordings that show an instruction being done."),
    "negatives": ("negatives:negatives", "Make failures from successes by editing frames or instructions."),
    "relabel": ("relabel:relabel", "Write graded instructions that a success does not fulfil, with a chat model."),
    "label": ("label:label", "Label episodes by a rule over their signals."),
    "build-corpus": ("build_corpus:build_corpus", "Build a training corpus from many datasets with one config file."),
    "materialize": ("negatives:materialize", "Write every episode as an mp4 file with a labels.jsonl."),
    "release": ("release:release", "Make a dataset that you can share: card, licences, checksums."),
    "simulate": ("simulate:simulate", "Simulate successes and failures with measured labels."),
    "train": ("train:app", "Train the network of the default model, or a vision-language model."),
    "check": ("models:check", "Check that a model does what its card and the protocol say."),
    "list": ("listing:list_", "List the names that demerit knows: models, sources, benchmarks and more."),
    "demo": ("demo:demo", "Teach a model on part of the shipped sample and score the rest."),
}


class PlainCommand(TyperCommand):
    """A command whose flags and arguments have no type in the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return hide_types(super().get_params(ctx))


class LazyGroup(TyperGroup):
    """A command group that imports a command only when it runs. Subclasses set `table`."""

    table: Mapping[str, tuple[str, str]]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return hide_types(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Replace the stub of the command that was asked for by the command itself."""
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub if name is None else report_errors(load_command, resumes=False)(self.table, name), rest


def hide_types(params: list[Any]) -> list[Any]:
    """Remove `<bool>` from flags, which take no value, and types such as `<list[str]>` from arguments."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
    return params


def load_command(table: Mapping[str, tuple[str, str]], name: str) -> Any:
    """Import a command and prepare it to run."""
    found = load_attribute(f"demerit.cli.{table[name][0]}", f"demerit {name}")
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    app = typer.Typer(rich_markup_mode="rich", add_completion=False, pretty_exceptions_enable=False)
    app.command(name, cls=PlainCommand)(report_errors(found, resumes=name not in SAVE_NOTHING))
    return typer.main.get_command(app)


def make_app(group: type[LazyGroup], callback: Callable[..., None] = lambda: None, **options: Any) -> typer.Typer:
    """Create a Typer app with a stub for each command of the group's table; `callback` has the options of the group."""
    settings = {"no_args_is_help": True, "rich_markup_mode": "rich", "pretty_exceptions_enable": False}
    app = typer.Typer(cls=group, **settings, **options)  # type: ignore[arg-type]
    app.callback()(callback)
    for name, (_, line) in group.table.items():
        app.command(name, help=line)(lambda: None)
    return app


def report_errors(command: Callable[..., Any], resumes: bool = True) -> Callable[..., Any]:
    """Turn an expected error into one sentence on stderr and an exit code. `resumes`: a second run continues."""
    kept, again = ("Progress is saved.", "rerun to resume") if resumes else ("Nothing was written.", "rerun")

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            with _plain_warnings():
                return command(*arguments, **options)
        except DemeritError as error:
            _print_error(f"demerit: {error}")
            raise typer.Exit(1) from error
        except OSError as error:
            if error.errno not in WRITE_ERRNOS:
                raise
            where = f"{error.filename}: " if error.filename else ""
            _print_error(f"demerit: {where}cannot write ({error.strerror}). {kept} Free some disk space and {again}.")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stop:
            saved = str(stop) if isinstance(stop, StoppedByUser) else f"{kept} {again.capitalize()}."
            _print_error(f"\ndemerit: interrupted. {saved}")
            raise typer.Exit(INTERRUPTED) from stop

    return run


def _print_error(text: str) -> None:
    print(escape_controls(text), file=sys.stderr)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print demerit's own warnings without the source line."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, DemeritWarning):
            _print_error(f"demerit: {message}")
        else:
            usual(message, category, *rest, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


class RootGroup(LazyGroup):
    """The commands of `demerit`."""

    table = COMMANDS


def print_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        print(f"demerit {metadata.version('demerit')}")
        raise typer.Exit


def root_options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


app = make_app(
    RootGroup,
    root_options,
    name="demerit",
    help="Robot rewards that recognise bad behaviour.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run a command."""
    # Before numpy is imported: on a busy machine, several BLAS threads are up to nine times slower than one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except BrokenPipeError:  # `demerit ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # Python would wait for every thread, also for one that Ctrl-C left without work while its pool started it.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
