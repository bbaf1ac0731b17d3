"""The list command."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import out
from demerit.data.dataset import SOURCES
from demerit.data.taxonomy import kinds
from demerit.errors import UnknownName
from demerit.evaluate.benchmarks.benchmark import BENCHMARKS, load_benchmark
from demerit.models import MODELS
from demerit.models.listing import Listing, describe_model
from demerit.negatives import NEGATIVES, load_negative
from demerit.negatives.sim.behaviours import BEHAVIOURS

Rows = tuple[list[str], list[list[str]]]
"""column titles and rows"""


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
    titles, rows = LISTS[what]()
    table = Table(*titles)
    table.columns[0].no_wrap = True  # a broken name cannot be typed
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table)


def _model_rows() -> Rows:
    rows = []
    for name in MODELS:
        found = describe_model(name)
        if isinstance(found, Listing):
            gives = f"{found.quantity}\n{found.range}" + (", causal" if found.causal else "")
            verified = [f"Verified here: {found.verified}."] if found.verified else []
            needs = [f"Needs demerit[{found.extra}]."] if found.extra else []
            about = "\n".join([found.about, *verified, f"Licence: {found.licence}.", *needs])
            rows.append([name, gives, found.frames, about])
        else:
            rows.append([name, "", "", found])
    return ["model", "gives", "frames", "about"], rows


def _source_rows() -> Rows:
    rows = [[name, f"demerit inspect {name}:PATH", _first_line(SOURCES.factory(name))] for name in SOURCES]
    return ["format", "use", "about"], rows


def _negative_rows() -> Rows:
    return ["negative", "about"], [[name, _first_line(load_negative(name).make)] for name in NEGATIVES]


def _behaviour_rows() -> Rows:
    return ["behaviour", "about"], [[name, _first_line(BEHAVIOURS.factory(name))] for name in BEHAVIOURS]


def _failure_rows() -> Rows:
    return ["failure", "definition"], [[kind.name, kind.definition] for kind in kinds()]


def _benchmark_rows() -> Rows:
    known = [load_benchmark(name) for name in BENCHMARKS]
    rows = [[benchmark.name, ", ".join(benchmark.headline), benchmark.data, benchmark.claim] for benchmark in known]
    return ["benchmark", "headline", "data", "what a good score supports"], rows


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
