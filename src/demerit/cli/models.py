"""The commands score and check."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import bar, out
from demerit.cli.options import (
    CameraOption,
    DatasetArgument,
    LimitOption,
    PickleOption,
    SourceOptions,
    StrictOption,
    WorkersOption,
    reader_options,
)
from demerit.data.formats import open_dataset
from demerit.errors import BadInput
from demerit.models import RewardModel, find_model, load_model
from demerit.models.check import check_model
from demerit.models.score import ScoreJob, ScoreProgress, rewards_folder
from demerit.models.score import score as score_dataset


def score(
    dataset: DatasetArgument,
    model: Annotated[list[str], typer.Option("--model", "-m", help="A model's name or folder; may be repeated.")],
    out_folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the rewards (default: next to the dataset).")
    ] = None,
    frames: Annotated[int | None, typer.Option(help="Score N frames of each episode, spread evenly.")] = None,
    batch: Annotated[int, typer.Option(help="Episodes per batch.")] = 8,
    workers: WorkersOption = None,
    limit: LimitOption = None,
    retry: Annotated[bool, typer.Option("--retry", help="Retry what an earlier run could not score.")] = False,
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
) -> None:
    """Score every episode of a dataset. Run it again to resume.

    [bold]Examples[/bold]

      demerit score my_set --model default --model clock
      demerit score my_set --model default:all --model ./my-model
      demerit score lerobot:~/data/so101 --model clock --camera top --frames 16
      demerit score my_set --model my_package.rewards:MyModel --out rewards/mine
    """
    waiting = _load_models(model)
    while waiting:
        loaded = waiting.pop(0)  # free one model before the next one reads its weights
        opened = open_dataset(dataset, strict=strict, camera=camera, **reader_options(options, trust_pickles))
        folder = rewards_folder(opened, loaded.card.name, frames)
        if out_folder is not None:
            folder = out_folder / folder.name
        given: dict[str, Any] = {} if workers is None else {"workers": workers}
        job = ScoreJob(loaded, opened, folder, frames=frames, batch=batch, retry=retry, limit=limit, **given)
        if (estimate := getattr(loaded, "estimate", None)) is not None:
            out.print(f"[bold]{loaded.card.name}[/bold]: {escape(str(estimate(islice(opened, limit))))}")
        with bar(f"scoring with {loaded.card.name}", limit or opened.expected()) as shown:
            progress = score_dataset(job, lambda progress, shown=shown: shown.update(progress.seen, _note(progress)))  # type: ignore[misc]
        out.print(f"[bold]{loaded.card.name}[/bold]: {_summarize(progress)}")
        if (spent := getattr(loaded, "spent", None)) is not None:
            out.print(f"  requests: {escape(str(spent))}")
        for reason, count in progress.reasons.most_common(5):
            out.print(f"  [yellow]unscored[/yellow] {count}: {escape(reason)}")
        if len(opened.problems):
            out.print(f"  {len(opened.problems)} problems in the dataset: see demerit inspect {escape(str(dataset))}")
        out.print(f"  rewards: {escape(str(folder))}")


def _load_models(names: list[str]) -> list[RewardModel]:
    """Check every name before loading any model, and load every model before scoring with the first."""
    for name in names:
        find_model(name)
    loaded = [load_model(name) for name in names]
    cards = {model.card.name: model.card for model in loaded}
    for name, model in zip(names, loaded, strict=True):
        if cards[model.card.name] != model.card:  # the later would overwrite the earlier
            raise BadInput(f"--model {name}", "models with different names", f"two called {model.card.name!r}")
    return loaded


def _note(progress: ScoreProgress) -> str:
    return f"{progress.unscored} unscored" if progress.unscored else ""


def _summarize(progress: ScoreProgress) -> str:
    parts = [f"{progress.scored} scored ({progress.frames} frames)"]
    parts += [f"{progress.unscored} unscored"] if progress.unscored else []
    parts += [f"{progress.kept} were scored already"] if progress.kept else []
    parts += [f"{progress.stale} re-scored (inputs changed)"] if progress.stale else []
    done = progress.scored + progress.unscored
    rate = f", {done / progress.seconds:.0f} episodes/s" if progress.seconds and done else ""
    return ", ".join(parts) + f" in {progress.seconds:.1f} s{rate}"


def check(
    model: Annotated[str, typer.Argument(help="A model's name, its folder, or the import path of your class.")],
) -> None:
    """Check that a model does what its card and the protocol say.

    [bold]Examples[/bold]

      demerit check default
      demerit check ./my-model
      demerit check my_package.rewards:MyModel
    """
    sys.path.insert(0, "")  # the model may be in the current folder
    report = check_model(load_model(model))
    colours = {"kept": "green", "broken": "red", "not checkable": "yellow"}
    table = Table("clause", "", "facts", title=report.model)
    for clause in report.clauses:
        table.add_row(clause.name, f"[{colours[clause.status]}]{clause.status}[/]", escape(clause.facts))
    out.print(table)
    if report.broken:
        raise typer.Exit(1)
