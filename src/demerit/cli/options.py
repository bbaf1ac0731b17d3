"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from demerit.data.labels import check_sources
from demerit.data.splits import USE_TEST_SPLIT
from demerit.errors import BadInput

DatasetArgument = Annotated[
    str,
    typer.Argument(metavar="DATASET", help="A dataset folder, a video, or FORMAT:PATH (see: demerit list sources)."),
]
DatasetsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DATASET",
        help="Dataset folders, videos, or FORMAT:PATH (see: demerit list sources); one or several.",
    ),
]
InstructionOption = Annotated[
    str,
    typer.Option(
        "--instruction", metavar="TEXT", help="The task, for episodes that have no instruction; others keep theirs."
    ),
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Stop at the first problem instead of counting it.")]
CameraOption = Annotated[str | None, typer.Option("--camera", help="The camera to use.", metavar="NAME")]
LimitOption = Annotated[int | None, typer.Option(metavar="N", help="Use only the first N episodes.")]
WorkersOption = Annotated[
    int | None, typer.Option(metavar="N", help="Decoding processes (default: one per core; 0 = none).")
]
OnOption = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="ray|ray://HOST:PORT",
        help="Work on a Ray cluster: the one running here (else a new one), or another.",
    ),
]
ActorsOption = Annotated[
    int | None, typer.Option("--actors", metavar="N", help="With --on: number of Ray actors (default: all that fit).")
]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="KEY=VALUE", help="An option of the format's reader, e.g. --with split=test."),
]
PickleOption = Annotated[
    bool,
    typer.Option(
        "--trust-pickles",
        help="Load pickled arrays (RoboArena's proprio_and_actions.npz). Pickles run code: only for files you trust.",
    ),
]


LabelSourcesOption = Annotated[
    str,
    typer.Option(
        "--label-sources",
        metavar="NAMES",
        help="Label sources to use, e.g. human,simulator (see docs/labels.md).",
    ),
]
UseTestSplitOption = Annotated[
    bool,
    typer.Option(USE_TEST_SPLIT, help="Also learn from episodes of a test split; do not measure on it afterwards."),
]


def parse_sources(text: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Read --label-sources; without it, the default."""
    return check_sources(split_names(text)) if text else default


def reader_options(pairs: list[str] | None, trust_pickles: bool, instruction: str = "") -> dict[str, Any]:
    """Turn KEY=VALUE pairs and the instruction into keyword arguments of `open_dataset`."""
    options: dict[str, Any] = {"allow_pickle": True} if trust_pickles else {}
    if instruction.strip():
        options["instruction"] = instruction
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals:
            raise BadInput("--with", "KEY=VALUE", repr(pair))
        options[key.replace("-", "_")] = {"true": True, "false": False}.get(value.lower(), value)
    return options


def split_names(text: str) -> list[str]:
    """Split a comma-separated list of names."""
    return [name.strip() for name in text.split(",") if name.strip()]
