"""Options that several commands share: single options, and groups of them as dataclasses.

A command names a group as the type of a parameter, and `expand_bundles` turns it into options:

    def view(dataset: DatasetArgument, reading: DatasetOptions, port: PortOption = 8010) -> None:
        reading.open(dataset)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from demerit.cli.bars import print_notes
from demerit.data.dataset import Dataset
from demerit.data.episode import check_sources
from demerit.data.formats import open_dataset, open_parts
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
ModelOption = Annotated[
    str, typer.Option("--model", "-m", metavar="NAME", help="A model's name or folder; missing scores are made now.")
]
ModelsOption = Annotated[
    list[str] | None, typer.Option("--model", "-m", metavar="NAME", help="A model's name or folder. Repeatable.")
]
RewardsOption = Annotated[
    Path | None, typer.Option("--rewards", metavar="DIR", help="Folder of the rewards (default: next to the dataset).")
]
OutOption = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The model folder to write.")]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Also write a table with a row per episode.")
]
PageOption = Annotated[
    Path | None, typer.Option("--page", metavar="FILE", help="Also write a page with film strips (HTML).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON, and nothing else.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write and send nothing.")]
LimitOption = Annotated[int | None, typer.Option(metavar="N", help="Use only the first N episodes.")]
WorkersOption = Annotated[
    int | None, typer.Option(metavar="N", help="Decoding processes (default: one per core; 0 = none).")
]
BatchOption = Annotated[int, typer.Option(metavar="N", help="Episodes per call of a model.")]
ChangesOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change another setting (docs). Repeatable.")
]
LabelSourcesOption = Annotated[
    str,
    typer.Option("--label-sources", metavar="NAMES", help="Label sources to use: human,simulator (docs/labels.md)."),
]
UseTestSplitOption = Annotated[
    bool,
    typer.Option(USE_TEST_SPLIT, help="Also learn from episodes of a test split; do not measure on it afterwards."),
]
BudgetOption = Annotated[
    float | None, typer.Option(metavar="DOLLARS", help="Spend at most so much on the chat model (needs its prices).")
]
ConcurrencyOption = Annotated[
    int | None, typer.Option(metavar="N", help="Requests to the chat model at the same time.")
]
PortOption = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 = a free one.")]
HostOption = Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at.")]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with the token that clients must send; required beyond this machine."),
]
PersonOption = Annotated[str, typer.Option(metavar="NAME", help="Your name or pseudonym; labels carry it.")]
NoBrowserOption = Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")]


@dataclass(frozen=True)
class ReaderOptions:
    """How a dataset is read."""

    camera: Annotated[
        list[str] | None, typer.Option("--camera", metavar="NAME", help="The camera to use; repeatable for teach.")
    ] = None
    read_with: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="KEY=VALUE",
            help="How to read: split=test, strict=true (stop at a problem), trust-pickles=true (they run code), "
            "pair-cameras=false (of videos), marks=LOG (of demerit mark).",
        ),
    ] = None

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of `open_dataset`."""
        if self.camera is not None and len(self.camera) > 1:
            raise BadInput("--camera", "one camera (demerit teach takes several)", ", ".join(self.camera))
        return {"camera": self.camera[0] if self.camera else None, **self.other_settings}

    @property
    def other_settings(self) -> dict[str, Any]:
        """The keyword arguments of `open_dataset` but for the camera."""
        options: dict[str, Any] = {}
        for pair in self.read_with or []:
            key, equals, value = pair.partition("=")
            if not equals:
                raise BadInput("--with", "KEY=VALUE", repr(pair))
            options[key.replace("-", "_")] = {"true": True, "false": False}.get(value.lower(), value)
        if "trust_pickles" in options:
            options["allow_pickle"] = options.pop("trust_pickles")
        return options

    def open(self, address: str | Sequence[str]) -> Dataset:
        """Open a dataset, or several as one, and say what was recognised."""
        dataset = open_dataset(address, **self.settings)
        print_notes(dataset.notes())
        return dataset

    def open_parts(self, addresses: Sequence[str]) -> list[Dataset]:
        """Open several datasets, each for itself, and say what was recognised."""
        parts = open_parts(addresses, **self.settings)
        print_notes([note for part in parts for note in part.notes()])
        return parts


@dataclass(frozen=True)
class DatasetOptions(ReaderOptions):
    """How a dataset is read, and its task."""

    instruction: Annotated[
        str,
        typer.Option(
            "--instruction", metavar="TEXT", help="The task, for episodes that have no instruction; others keep theirs."
        ),
    ] = ""

    @property
    def other_settings(self) -> dict[str, Any]:
        """The keyword arguments of `open_dataset` but for the camera."""
        own_settings = {"instruction": self.instruction} if self.instruction.strip() else {}
        return {**own_settings, **super().other_settings}


@dataclass(frozen=True)
class ClusterOptions:
    """Where the work is done."""

    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="ray|ray://HOST:PORT",
            help="Work on a Ray cluster: the one running here (else a new one), or another.",
        ),
    ] = ""
    actors: Annotated[
        int | None,
        typer.Option("--actors", metavar="N", help="With --on: number of Ray actors (default: all that fit)."),
    ] = None

    def __post_init__(self) -> None:
        """Refuse actors without a cluster."""
        if self.actors is not None and not self.on:
            raise BadInput("--actors", "--on ray with it", "no --on")


@dataclass(frozen=True)
class ServerOptions:
    """Where a server for other people listens, and how it is protected."""

    host: HostOption = "127.0.0.1"
    public_name: Annotated[
        str, typer.Option(metavar="HOST", help="The host name that people type, e.g. label.my-lab.org.")
    ] = ""
    tls: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="CERT KEY", help="Certificate and its key, two PEM files.")
    ] = None
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="A proxy in front does TLS.")] = False

    @property
    def is_secure(self) -> bool:
        """Whether browsers talk TLS."""
        return self.tls is not None or self.behind_proxy

    @property
    def names(self) -> list[str]:
        """Host names that are allowed besides the address."""
        return [self.public_name] if self.public_name else []


def expand_bundles(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command whose option groups are single options, listed after its own."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name not in groups
    ]
    parameters = [*own, *(parameter for group in groups.values() for parameter in _list_parameters(group))]

    @wraps(command)
    def run(**values: Any) -> Any:
        bundles = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **bundles)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _list_parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def parse_sources(text: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Read --label-sources; without it, the default."""
    return check_sources(split_names(text)) if text else default


def split_names(text: str) -> list[str]:
    """Split a comma-separated list of names."""
    return [name.strip() for name in text.split(",") if name.strip()]
