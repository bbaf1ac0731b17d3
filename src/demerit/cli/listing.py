"""The list command."""

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
from demerit.models import MODELS
from demerit.models.listing import Listing, describe_model
from demerit.negatives import NEGATIVES, load_negative
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
    """List the names that demerit knows: models, sources, benchmarks and more.

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
        found = describe_model(name)
        if isinstance(found, Listing):
            causal = ", causal" if found.causal else ""
            facts = [f"Gives {found.quantity}, {found.range}{causal}. Frames: {found.frames}."]
            facts += [f"Verified here: {found.verified}."] if found.verified else []
            rows[name] = [found.about, *facts, f"Licence: {found.licence}.", *_needs(found.extra)]
        elif isinstance(found, MissingExtra):
            rows[name] = _needs(found.extra)
        else:
            rows[name] = [f"Not available here: {found}"]
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
    return {name: [_first_line(load_negative(name).make)] for name in NEGATIVES}


def _behaviour_rows() -> Rows:
    return {name: [_first_line(BEHAVIOURS.factory(name))] for name in BEHAVIOURS}


def _failure_rows() -> Rows:
    return {kind.name: [kind.definition] for kind in kinds()}


def _benchmark_rows() -> Rows:
    known = [load_benchmark(name) for name in BENCHMARKS]
    return {
        benchmark.name: [benchmark.claim, f"Data: {benchmark.data}.", f"Headline: {', '.join(benchmark.headline)}."]
        for benchmark in known
    }


def _needs(extra: str) -> list[str]:
    return [f"Needs demerit[{extra}]."] if extra else []


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
