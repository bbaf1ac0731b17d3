"""The command line. Each command parses its options, calls one function and prints.

A command's module is imported when the command runs, so `demerit --help` answers at once and command modules can import
what they need at their top.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from demerit.cli.renamed import translate_words
from demerit.errors import WRITE_ERRNOS, DemeritError, DemeritWarning, StoppedByUser
from demerit.registry import load_attribute

INTERRUPTED = 130
RUN_ANOTHER = frozenset({"mark"})
"""commands that run another one: the words from its name on are not theirs"""
SAVE_NOTHING = frozenset({"inspect", "export", "check", "list"})
"""commands that start over after an interruption; all others resume"""
# C0 without tab and newline, DEL, C1, direction overrides, lone surrogates (undecodable file names).
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

CommandTable = Mapping[str, tuple[str, str]]
"""name: module:function below demerit.cli, and a help line; the function's docstring begins with the same line"""
PANELS: dict[str, CommandTable] = {
    "Start": {
        "demo": ("demo:demo", "Teach a model on part of the sample and score the rest."),
        "inspect": ("data:inspect", "Show what a dataset contains: episodes, labels, problems."),
        "annotate": ("people:annotate", "Label episodes in a browser, alone or as a team."),
        "mark": ("mark:mark", "Label episodes by keys while the robot runs."),
        "teach": ("teach:teach", "Teach a model your task from a few labelled episodes."),
        "score": ("score:score", "Score every episode of a dataset. Run it again to resume."),
    },
    "Data": {
        "import": ("data:import_", "Import a dataset into a demerit folder; list its problems."),
        "filter": ("filter:filter_", "Make a view of a dataset by conditions, without copies."),
        "retrieve": ("retrieve:retrieve", "Find the moments that show an instruction being done."),
        "negatives": ("negatives:negatives", "Make failures of successes, and variants of failures."),
        "relabel": (
            "negatives:relabel",
            "Write graded instructions that a success fails (chat model).",
        ),
        "distil": ("negatives:distil", "Make values per step of rejected rollouts (chat model)."),
        "simulate": ("simulate:simulate", "Simulate successes and failures with measured labels."),
        "build-corpus": ("build_corpus:build_corpus", "Build a training corpus from many datasets."),
        "export": ("export:export", "Write a dataset or its rewards for other programs."),
        "release": ("release:release", "Make a dataset that you can share: card, licences, checksums."),
    },
    "Models": {
        "list": ("listing:list_", "List models, sources, benchmarks and other names."),
        "calibrate": ("teach:calibrate", "Calibrate a model and set its success threshold."),
        "train": ("train:train", "Train a vision-language model or a ReWiND on many episodes."),
        "check": ("listing:check", "Check that a model does what its card says."),
    },
    "Measure": {
        "bench": ("bench:bench", "Measure models against labels, with controls: a report."),
        "compare": ("compare:compare", "Compare two policies with a model and a few labels."),
        "detect": ("detect:detect", "Flag episodes that go wrong, and guess when."),
        "arena": ("people:app", "Let sites compare hidden policies on their own robots."),
    },
    "Use": {
        "view": ("serve:view", "Browse episodes with labels and every model's curves."),
        "watch": ("watch:watch", "Score episodes as a robot writes them: live page, alarms."),
        "serve": (
            "serve:serve",
            "Serve models to other processes and machines.",
        ),
    },
}
COMMANDS: CommandTable = {name: entry for panel in PANELS.values() for name, entry in panel.items()}


class PlainCommand(TyperCommand):
    """A command whose flags and arguments have no type in the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return hide_types(super().get_params(ctx))


class LazyGroup(TyperGroup):
    """A command group that imports a command only when it runs. Subclasses set `table`."""

    table: CommandTable

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


def load_command(table: CommandTable, name: str) -> Any:
    """Import a command and prepare it to run."""
    command = load_attribute(f"demerit.cli.{table[name][0]}", f"demerit {name}")
    if isinstance(command, typer.Typer):
        return typer.main.get_command(command)
    expand: Any = load_attribute("demerit.cli.bundles:expand_bundles", "options")
    app = typer.Typer(rich_markup_mode="rich", add_completion=False, pretty_exceptions_enable=False)
    settings = {"allow_interspersed_args": name not in RUN_ANOTHER}
    app.command(name, cls=PlainCommand, context_settings=settings)(
        report_errors(expand(command), resumes=name not in SAVE_NOTHING)
    )
    return typer.main.get_command(app)


def make_app(
    group: type[LazyGroup],
    callback: Callable[..., None] = lambda: None,
    panels: Mapping[str, CommandTable] | None = None,
    **options: Any,
) -> typer.Typer:
    """Create a Typer app with a stub for each command of the group's table; `callback` has the options of the group."""
    settings = {"no_args_is_help": True, "rich_markup_mode": "rich", "pretty_exceptions_enable": False}
    app = typer.Typer(cls=group, **settings, **options)  # type: ignore[arg-type]
    app.callback()(callback)
    for panel, table in (panels or {"Commands": group.table}).items():
        for name, (_, line) in table.items():
            app.command(name, help=line, rich_help_panel=panel)(lambda: None)
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


def escape_controls(text: str) -> str:
    r"""Write control characters of a text from data as escapes such as `\u001b`, which JSON reads back."""
    return CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


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
    """The commands of `demerit`, also by the names of the last version."""

    table = COMMANDS

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Translate old spellings first."""
        say = lambda sentence: _print_error(f"demerit: {sentence}")  # noqa: E731
        return super().resolve_command(ctx, report_errors(translate_words, resumes=False)(args, say))


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
    PANELS,
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
