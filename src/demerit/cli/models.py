"""Commands about models: score, check, list."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demerit.cli.options import CameraOption, DatasetArgument, PickleOption, SourceOptions, StrictOption, reader_options

if TYPE_CHECKING:
    from demerit.models.protocol import RewardModel
    from demerit.models.score import ScoreProgress


def score(
    dataset: DatasetArgument,
    model: Annotated[list[str], typer.Option("--model", "-m", help="A model's name or folder; may be repeated.")],
    out_folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where rewards go (default: beside the dataset).")
    ] = None,
    frames: Annotated[int | None, typer.Option(help="Score so many frames of each episode, spread evenly.")] = None,
    batch: Annotated[int, typer.Option(help="Episodes given to the model at once.")] = 8,
    workers: Annotated[int | None, typer.Option(help="Decoding processes (default: one a core; 0 = none).")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many episodes.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what an earlier run could not score.")] = False,
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
) -> None:
    """Score every episode of a dataset; interrupted, the same command goes on where it was.

    [bold]Examples[/bold]

      demerit score my_set --model default --model clock
      demerit score my_set --model default:all --model ./my-model
      demerit score lerobot:~/data/so101 --model clock --camera top --frames 16
      demerit score my_set --model my_package.rewards:MyModel --out rewards/mine
    """
    from rich.markup import escape  # noqa: PLC0415

    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.data.formats import open_dataset  # noqa: PLC0415
    from demerit.models.score import ScoreJob, rewards_folder  # noqa: PLC0415
    from demerit.models.score import score as run  # noqa: PLC0415

    waiting = _loaded(model)
    while waiting:
        loaded = waiting.pop(0)  # let go of one before the next one's weights are read
        opened = open_dataset(dataset, strict=strict, camera=camera, **reader_options(options, trust_pickles))
        folder = rewards_folder(opened, loaded.card.name, frames)
        if out_folder is not None:
            folder = out_folder / folder.name
        given: dict[str, Any] = {} if workers is None else {"workers": workers}
        job = ScoreJob(loaded, opened, folder, frames=frames, batch=batch, retry=retry, limit=limit, **given)
        if (estimate := getattr(loaded, "estimate", None)) is not None:
            out.print(f"[bold]{loaded.card.name}[/bold]: {escape(str(estimate(islice(opened, limit))))}")
        with bar(f"scoring with {loaded.card.name}", limit or opened.expected()) as shown:
            progress = run(job, lambda progress, shown=shown: shown.update(progress.seen, _note(progress)))  # type: ignore[misc]
        out.print(f"[bold]{loaded.card.name}[/bold]: {_summary(progress)}")
        if (spent := getattr(loaded, "spent", None)) is not None:
            out.print(f"  asked: {escape(str(spent))}")
        for reason, count in progress.reasons.most_common(5):
            out.print(f"  [yellow]unscored[/yellow] {count}: {escape(reason)}")
        if len(opened.problems):
            out.print(f"  {len(opened.problems)} problems in the dataset: see demerit inspect {dataset}")
        out.print(f"  rewards: {escape(str(folder))}")


def _loaded(names: list[str]) -> list[RewardModel]:
    """Find every name before anything is loaded, and load every model before the first one scores for hours."""
    from demerit.errors import BadInput  # noqa: PLC0415
    from demerit.models import find_model, load_model  # noqa: PLC0415

    for name in names:
        find_model(name)
    loaded = [load_model(name) for name in names]
    cards = {one.card.name: one.card for one in loaded}
    for name, one in zip(names, loaded, strict=True):
        if cards[one.card.name] != one.card:  # the later would write over the earlier
            raise BadInput(f"--model {name}", "models of different names", f"two called {one.card.name!r}")
    return loaded


def check(
    model: Annotated[str, typer.Argument(help="A model's name, its folder, or the import path of your class.")],
) -> None:
    """Check that a model keeps what its card and the protocol promise.

    [bold]Examples[/bold]

      demerit check default
      demerit check ./my-model
      demerit check my_package.rewards:MyModel
    """
    from rich.table import Table  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.models import load_model  # noqa: PLC0415
    from demerit.models.check import check_model  # noqa: PLC0415

    sys.path.insert(0, "")  # your model may lie in the folder that you are in
    report = check_model(load_model(model))
    colours = {"kept": "green", "broken": "red", "not checkable": "yellow"}
    table = Table("clause", "", "facts", title=report.model)
    for clause in report.clauses:
        table.add_row(clause.name, f"[{colours[clause.status]}]{clause.status}[/]", clause.facts)
    out.print(table)
    if report.broken:
        raise typer.Exit(1)


def list_(
    what: Annotated[
        str, typer.Argument(help="models, sources, benchmarks, negatives, behaviours or failures.")
    ] = "models",
) -> None:
    """List what demerit knows by name, your own packages' parts included.

    [bold]Examples[/bold]

      demerit list models
      demerit list sources
      demerit list failures
      demerit list benchmarks
    """
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.errors import UnknownName  # noqa: PLC0415

    listings = {
        "models": _model_rows,
        "sources": _source_rows,
        "benchmarks": _benchmark_rows,
        "negatives": _negative_rows,
        "behaviours": _behaviour_rows,
        "failures": _failure_rows,
    }
    if what not in listings:
        raise UnknownName("list", what, listings)
    header, rows = listings[what]()
    table = Table(*header)
    table.columns[0].no_wrap = True  # a name that is broken in two cannot be typed
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table)


def _model_rows() -> tuple[list[str], list[list[str]]]:
    from demerit.models import MODELS  # noqa: PLC0415
    from demerit.models.listing import Listing, listed  # noqa: PLC0415

    rows = []
    for name in MODELS:
        line = listed(name)
        if isinstance(line, Listing):
            gives = f"{line.quantity}\n{line.range}" + (", causal" if line.causal else "")
            verified = [f"Verified here: {line.verified}."] if line.verified else []
            needs = [f"Needs demerit[{line.extra}]."] if line.extra else []
            about = "\n".join([line.about, *verified, f"Licence: {line.licence}.", *needs])
            rows.append([name, gives, line.frames, about])
        else:
            rows.append([name, "", "", line])
    return ["model", "gives", "frames", "about"], rows


def _source_rows() -> tuple[list[str], list[list[str]]]:
    from demerit.data.dataset import SOURCES  # noqa: PLC0415

    rows = []
    for name in SOURCES:
        rows.append([name, f"demerit inspect {name}:PATH", _first_line(SOURCES.factory(name))])
    return ["format", "use", "about"], rows


def _negative_rows() -> tuple[list[str], list[list[str]]]:
    from demerit.negatives import NEGATIVES, load_negative  # noqa: PLC0415

    rows = [[name, _first_line(load_negative(name).make)] for name in NEGATIVES]
    return ["negative", "about"], rows


def _behaviour_rows() -> tuple[list[str], list[list[str]]]:
    from demerit.negatives.sim.behaviours import BEHAVIOURS  # noqa: PLC0415

    return ["behaviour", "about"], [[name, _first_line(BEHAVIOURS.factory(name))] for name in BEHAVIOURS]


def _failure_rows() -> tuple[list[str], list[list[str]]]:
    from demerit.data.taxonomy import kinds  # noqa: PLC0415

    return ["failure", "definition"], [[kind.name, kind.definition] for kind in kinds()]


def _first_line(documented: object) -> str:
    lines = (documented.__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""


def _benchmark_rows() -> tuple[list[str], list[list[str]]]:
    from demerit.evaluate.benchmarks.benchmark import BENCHMARKS, load_benchmark  # noqa: PLC0415

    known = [load_benchmark(name) for name in BENCHMARKS]
    rows = [[one.name, ", ".join(one.headline), one.data, one.claim] for one in known]
    return ["benchmark", "headline", "data", "what a good score supports"], rows


def _note(progress: ScoreProgress) -> str:
    return f"{progress.unscored} unscored" if progress.unscored else ""


def _summary(progress: ScoreProgress) -> str:
    parts = [f"{progress.scored} scored ({progress.frames} frames)"]
    parts += [f"{progress.unscored} unscored"] if progress.unscored else []
    parts += [f"{progress.kept} were scored already"] if progress.kept else []
    parts += [f"{progress.stale} of them again, as something had changed"] if progress.stale else []
    done = progress.scored + progress.unscored
    rate = f", {done / progress.seconds:.0f} episodes/s" if progress.seconds and done else ""
    return ", ".join(parts) + f" in {progress.seconds:.1f} s{rate}"
