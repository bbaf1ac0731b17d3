"""Commands about names: list shows what exists, check tests a model."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import print_table
from demerit.data.dataset import SOURCES
from demerit.data.taxonomy import kinds
from demerit.errors import MissingExtra, UnknownName
from demerit.evaluate.benchmarks.benchmark import BENCHMARKS, load_benchmark
from demerit.models import MODELS, load_model
from demerit.models.check import check_model
from demerit.models.loading import Listing, describe_model
from demerit.negatives import NEGATIVES, load_negative
from demerit.negatives.negative import GENERATORS, is_generator
from demerit.negatives.sim.behaviours import BEHAVIOURS

Rows = dict[str, list[str]]
"""the lines about each name"""
ABOUT_SOURCES = {"hdf5": "A robomimic or LIBERO file, or a folder of them."}
"""shown where the extra that a reader imports is not installed"""


def list_(
    what: Annotated[
        str, typer.Argument(help="models, sources, benchmarks, negatives, behaviours or failures.")
    ] = "models",
) -> None:
    """List models, sources, benchmarks and other names.

    [bold]Examples[/bold]

      demerit list models
      demerit list sources
      demerit list failures
      demerit list benchmarks
    """
    if what not in LISTS:
        raise UnknownName("list", what, LISTS)
    table = Table(what.removesuffix("s"), "about")
    table.columns[0].no_wrap = True  # a broken name cannot be typed
    for name, lines in LISTS[what]().items():
        table.add_row(escape(name), escape("\n".join(lines)))
    print_table(table)


def _model_rows() -> Rows:
    rows = {}
    for name in MODELS:
        listing = describe_model(name)
        if isinstance(listing, Listing):
            causal = ", causal" if listing.causal else ""
            facts = [f"Gives {listing.quantity}, {listing.range}{causal}. Frames: {listing.frames}."]
            facts += [f"Verified here: {listing.verified}."] if listing.verified else []
            rows[name] = [listing.about, *facts, f"Licence: {listing.licence}.", *_needs(listing.extra)]
        elif isinstance(listing, MissingExtra):
            rows[name] = _needs(listing.extra)
        else:
            rows[name] = [f"Not available here: {listing}"]
    return rows


def _source_rows() -> Rows:
    rows = {}
    for name in SOURCES:
        try:
            about = [_first_line(SOURCES.factory(name))]
        except MissingExtra as missing:
            about = [*([ABOUT_SOURCES[name]] if name in ABOUT_SOURCES else []), *_needs(missing.extra)]
        rows[name] = [*about, f"demerit inspect {name}:PATH"]
    return rows


def _negative_rows() -> Rows:
    edits = {name: [_first_line(load_negative(name).make)] for name in NEGATIVES}
    for name in filter(is_generator, GENERATORS):
        try:
            edits[name] = [_first_line(GENERATORS.factory(name)), "A generator: no label."]
        except Exception as error:  # third-party code may raise anything
            edits[name] = [f"Not available here: {error}"]
    return edits


def _behaviour_rows() -> Rows:
    return {name: [_first_line(BEHAVIOURS.factory(name))] for name in BEHAVIOURS}


def _failure_rows() -> Rows:
    return {kind.name: [kind.definition] for kind in kinds()}


def _benchmark_rows() -> Rows:
    benchmarks = [load_benchmark(name) for name in BENCHMARKS]
    return {
        benchmark.name: [
            benchmark.claim,
            f"Data: {benchmark.data}.",
            *(f"Published set: {part}." for part in benchmark.published),
            f"Headline: {', '.join(benchmark.headline)}.",
        ]
        for benchmark in benchmarks
    }


def _needs(extra: str) -> list[str]:
    return [f"Needs the extra {extra} (docs/install.md)."] if extra else []


LISTS = {
    "models": _model_rows,
    "sources": _source_rows,
    "benchmarks": _benchmark_rows,
    "negatives": _negative_rows,
    "behaviours": _behaviour_rows,
    "failures": _failure_rows,
}


def _first_line(documented: object) -> str:
    lines = (documented.__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""


def check(
    model: Annotated[str, typer.Argument(help="A model's name, its folder, or the import path of your class.")],
) -> None:
    """Check that a model does what its card says.

    [bold]Examples[/bold]

      demerit check default
      demerit check ./my-model
      demerit check my_package.rewards:MyModel
    """
    report = check_model(load_model(model))
    colours = {"kept": "green", "broken": "red", "not checkable": "yellow"}
    table = Table("clause", "", "facts", title=report.model)
    for clause in report.clauses:
        table.add_row(clause.name, f"[{colours[clause.status]}]{clause.status}[/]", escape(clause.facts))
    print_table(table)
    if report.broken:
        raise typer.Exit(1)
