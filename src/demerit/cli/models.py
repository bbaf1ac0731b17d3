"""The commands score and check."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import Bar, bar, err, out, print_problems, print_table
from demerit.cli.options import (
    ActorsOption,
    CameraOption,
    DatasetsArgument,
    InstructionOption,
    LimitOption,
    OnOption,
    PickleOption,
    SourceOptions,
    StrictOption,
    WorkersOption,
    reader_options,
)
from demerit.cli.terminal import shorten
from demerit.data.dataset import Dataset
from demerit.data.episode import count_episodes
from demerit.data.formats import open_parts
from demerit.data.joined import distinct_names
from demerit.errors import BadInput
from demerit.models import MODELS, RewardModel, find_model, load_model
from demerit.models.check import check_model
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, ScoreProgress, rewards_folder
from demerit.models.score import score as score_dataset
from demerit.models.score_summary import EpisodeScore, ScoreSummary, check_table_file, match_scores, write_table
from demerit.use.on_ray import RayScorer

SHOWN = 5
"""reasons of unscored episodes to print"""


def score(
    datasets: DatasetsArgument,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", metavar="NAME", help="A model's name or folder; may be repeated (default: default)."
        ),
    ] = None,
    instruction: InstructionOption = "",
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write a table with a row per episode.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON, and nothing else.")] = False,
    out_folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the rewards (default: next to the dataset).")
    ] = None,
    frames: Annotated[
        int | None, typer.Option(metavar="N", help="Score N frames of each episode, spread evenly.")
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="Episodes per batch.")] = 8,
    workers: WorkersOption = None,
    limit: LimitOption = None,
    retry: Annotated[bool, typer.Option("--retry", help="Retry what an earlier run could not score.")] = False,
    camera: CameraOption = None,
    strict: StrictOption = False,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
    on: OnOption = "",
    actors: ActorsOption = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            "--gpus", metavar="N", help="With --on: GPUs per actor (default: 1 for vision-language models, else 0)."
        ),
    ] = None,
) -> None:
    """Score every episode of a dataset. Run it again to resume.

    Ends with the final values, the worst episodes, the failures with the highest values, and what was not scored and
    why. A video is scored as part of its
    folder: its rewards are stored with those of the folder, and nothing is scored twice.

    [bold]Examples[/bold]

      demerit score my_set --model default --model clock
      demerit score a.mp4 b.mp4 --instruction "put the cup on the plate"
      demerit score runs/ more_runs/ --model ./my-model --csv scores.csv
      demerit score lerobot:~/data/so101 --model clock --camera top --frames 16
      demerit score my_set --model my_package.rewards:MyModel --out rewards/mine
      demerit score /shared/my_set --model robometer --on ray://head:10001
    """
    for name in datasets:
        if name in MODELS and not Path(name).exists():
            raise BadInput(name, "a dataset or a video", f"the name of a model (write --model {name})")
    if csv is not None:
        check_table_file(csv)
    say = err if as_json else out
    waiting = _load_models(model or ["default"])
    scorers = [_choose_scorer(name, on, actors, gpus, workers) for name in model or ["default"]]
    parts = open_parts(datasets, strict=strict, camera=camera, **reader_options(options, trust_pickles, instruction))
    given: dict[str, Any] = {"frames": frames, "batch": batch, "retry": retry}
    given |= {} if workers is None else {"workers": workers}
    rows: list[EpisodeScore] = []
    found: list[dict[str, Any]] = []
    while waiting:
        loaded = waiting.pop(0)  # free one model before the next one reads its weights
        run = partial(score_dataset, **scorers.pop(0))
        summary, folders = _score_parts(loaded, parts, out_folder, limit, given, say, run)
        rows += summary.rows
        found.append(summary.as_dict() | {"rewards": [str(folder.resolve()) for folder in folders]})
        if not as_json:
            print_summary(summary, len(parts) > 1)
            for folder in folders:
                out.print(escape(f"Rewards, in Python: list(demerit.RewardStore({str(folder)!r}))"))
    if csv is not None:
        write_table(rows, csv)
        say.print(f"Table: {escape(str(csv))}", soft_wrap=True)
    if as_json:
        print(json.dumps({"models": found}, ensure_ascii=False, allow_nan=False))


def _score_parts(
    model: RewardModel,
    parts: list[Dataset],
    out_folder: Path | None,
    limit: int | None,
    given: dict[str, Any],
    say: Console,
    run: Callable[[ScoreJob, Callable[[ScoreProgress], None]], ScoreProgress],
) -> tuple[ScoreSummary, list[Path]]:
    """Score each dataset; the rewards of each are stored next to it."""
    card, rows, folders = model.card, list[EpisodeScore](), list[Path]()
    for name, part in zip(distinct_names([part.address for part in parts]), parts, strict=True):
        left = None if limit is None else limit - len(rows)
        if left == 0 and folders:
            break
        folder = rewards_folder(part, card.name, given["frames"])
        if out_folder is not None:
            folder = (out_folder if len(parts) == 1 else out_folder / name) / folder.name
        job = ScoreJob(model, part, folder, limit=left, **given)
        if (estimate := getattr(model, "estimate", None)) is not None:
            say.print(f"[bold]{card.name}[/bold]: {escape(str(estimate(islice(part, left))))}")
        with bar(f"scoring with {card.name}", left or part.expected()) as shown:
            progress = run(job, partial(_show, shown))
        where = f" ({escape(name)})" if len(parts) > 1 else ""
        say.print(f"[bold]{card.name}[/bold]: {_summarize(progress)}{where}", soft_wrap=True)
        print_problems(part.problems.rows(), say)
        rows += match_scores(RewardStore(folder), progress.episodes, part.address)
        folders.append(folder)
    if (spent := getattr(model, "spent", None)) is not None:
        say.print(f"  requests: {escape(str(spent))}")
    return ScoreSummary(card, rows), folders


def print_summary(summary: ScoreSummary, several: bool = False) -> None:
    """Print the figures over all episodes, what is unscored and why, and the worst episodes."""
    card, facts, finals, verdicts = summary.card, summary.as_dict(), summary.finals, summary.verdicts
    table = Table(show_header=False, title=f"{card.name}: {count_episodes(len(summary.rows))}", title_justify="left")
    if finals:
        bounds = "" if card.low is None or card.high is None else f", {card.low:g} to {card.high:g}"
        value = f"mean {facts['final']['mean']:.3f}, median {facts['final']['median']:.3f}"
        table.add_row("final value", escape(f"{value} ({card.quantity}{bounds})"))
    if verdicts:
        table.add_row("called a success", f"{sum(verdicts)} of {len(verdicts)} ({facts['success_rate']:.0%})")
    elif any(not math.isnan(row.success_probability) for row in summary.rows):
        table.add_row("called a success", "unknown: the model has no success threshold (see demerit calibrate)")
    if facts["taught"]:
        text = f"{facts['taught']} of {len(summary.rows)}: it knows their labels; judge it on other episodes"
        table.add_row("[yellow]learned from[/yellow]", text)
    if facts["guesses"]:
        text = f"{facts['guesses']} of {len(summary.rows)}: unlike all that it learned from; teach some"
        table.add_row("[yellow]a guess[/yellow]", escape(text))
    for reason, ids in list(summary.reasons().items())[:SHOWN]:
        table.add_row("[yellow]unscored[/yellow]", escape(f"{len(ids)}: {reason}, e.g. {ids[0]}"))
    print_table(table)
    if finals and not card.comparable:
        out.print("Its values depend on the episode: do not compare episodes by them.")
    _print_rows("The lowest final values", summary.worst(), several)
    _print_rows("Failures with the highest values", summary.highest_failures(), several)


def _print_rows(title: str, rows: list[EpisodeScore], several: bool) -> None:
    if not rows:
        return
    table = Table("value", "label", "episode and instruction", title=title, title_justify="left")
    for row in rows:
        dataset = f"{Path(row.dataset.partition(':')[2]).name}/" if several else ""
        instruction = shorten(row.instruction) or "(no instruction)"
        guess = " (a guess)" if row.is_guess else ""
        table.add_row(f"{row.final:.3f}{guess}", row.label or "–", escape(f"{dataset}{row.id}\n{instruction}"))
    print_table(table)


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


def _choose_scorer(name: str, on: str, actors: int | None, gpus: float | None, workers: int | None) -> dict[str, Any]:
    """Return the options of the scoring job: who scores, and when rewards are written."""
    if not on:
        given = [option for option, value in (("--actors", actors), ("--gpus", gpus)) if value is not None]
        if given:
            raise BadInput(given[0], "--on ray with it", "no --on")
        return {}
    return {"scorer": RayScorer(name, on, actors, gpus, workers), "commit_seconds": 0.0}


def _show(shown: Bar, progress: ScoreProgress) -> None:
    shown.update(progress.position, _note(progress))


def _note(progress: ScoreProgress) -> str:
    parts = [f"{progress.unscored} unscored"] if progress.unscored else []
    if progress.reading:
        read, total = list(progress.reading.values())[-1]
        rate = (progress.frames + read) / progress.seconds if progress.seconds else 0.0
        parts.append(f"frame {read} of {total}, {rate:.0f} frames/s")
    return ", ".join(parts)


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
    print_table(table)
    if report.broken:
        raise typer.Exit(1)
