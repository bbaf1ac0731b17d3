"""Options that what trains has in common, and the datasets that they name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from demerit.data.dataset import Dataset

Named = list[str] | None

DemonstrationsOption = Annotated[
    Named,
    typer.Option(
        "--demonstrations",
        metavar="NAME=DATASET",
        help="Episodes that are successes because somebody showed them; may be repeated.",
    ),
]
CorpusOption = Annotated[
    Path | None,
    typer.Option("--corpus", metavar="DIR", help="Where the prepared frames are or go (default: OUT/corpus)."),
]
PrepareOnlyOption = Annotated[bool, typer.Option("--prepare-only", help="Prepare the corpus and stop.")]
ChangesOption = Annotated[
    Named, typer.Option("--set", metavar="NAME=VALUE", help="Change a number of the recipe; may be repeated.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option("--device", metavar="cpu|cuda", help="Where to compute (default: a GPU if there is one)."),
]
WorkersOption = Annotated[int, typer.Option("--workers", help="Processes that decode while preparing; 0 = none.")]


def opened(given: Mapping[str, Named]) -> Iterator[tuple[str, str, Dataset]]:
    """Open what NAME=DATASET pairs name, by option; yields the option, the name and the dataset."""
    from demerit.data.formats import open_dataset  # noqa: PLC0415
    from demerit.errors import BadInput  # noqa: PLC0415

    for option, pairs in given.items():
        for pair in pairs or []:
            name, equals, address = pair.partition("=")
            if not (name and equals and address):
                raise BadInput(f"--{option}", "NAME=DATASET", repr(pair))
            yield option, name, open_dataset(address)


def expected(datasets: list[Dataset]) -> int | None:
    """Return how many episodes they have together, where all of them know."""
    counts = [data.expected() for data in datasets]
    return None if None in counts else sum(count or 0 for count in counts)


def need_corpus(folder: Path, options: Iterable[str]) -> None:
    """Refuse to train where there is no prepared corpus; the options are those that could have named data."""
    from demerit.errors import BadInput  # noqa: PLC0415

    if not folder.exists():
        named = ", ".join(f"--{option}" for option in options)
        raise BadInput("training data", f"{named} or a prepared --corpus", "none of them")


def say_corpus(folder: Path, told: str, datasets: Iterable[Dataset]) -> None:
    """Print what was prepared, what was left out and why, and what is wrong with the datasets themselves."""
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.cli.data import _print_problems  # noqa: PLC0415
    from demerit.training.compact.made_from import left_out  # noqa: PLC0415

    out.print(f"The corpus: [bold]{escape(str(folder))}[/bold], {told}")
    for why, count in left_out(folder).items():
        out.print(f"  [yellow]left out[/yellow] {count}: {escape(why)}")
    for data in datasets:
        if len(data.problems):
            out.print(f"Problems in [bold]{escape(data.address)}[/bold]:")
            _print_problems(data.problems.rows())
