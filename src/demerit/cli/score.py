"""The score command, and scores for other commands: what is stored is used, what is missing is scored now."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import Bar, bar, err, out, print_problems, print_table, print_verdicts, shorten
from demerit.cli.bundles import (
    BatchOption,
    ClusterOptions,
    CsvOption,
    DatasetOptions,
    DatasetsArgument,
    JsonOption,
    LimitOption,
    ModelsOption,
    RewardsOption,
    WorkersOption,
)
from demerit.data.dataset import Dataset, distinct_names
from demerit.data.episode import count_episodes
from demerit.data.store import Store
from demerit.decide.guarantee import describe_cut
from demerit.errors import BadInput
from demerit.models import MODELS, RewardModel, find_model, load_model
from demerit.models.reward_store import RewardStore, ScoredDataset
from demerit.models.rule import Rule
from demerit.models.score import ScoreJob, ScoreProgress, rewards_folder, score_missing
from demerit.models.score import score as score_dataset
from demerit.models.score_summary import EpisodeScore, ScoreSummary, check_table_file, match_scores, write_table
from demerit.use.label import label_by_rule
from demerit.use.on_ray import RayScorer

MOST_ROWS = 30
"""episodes to print, the doubtful ones first"""
SHOWN = 5
"""reasons of unscored episodes to print"""


def score(
    datasets: DatasetsArgument,
    reading: DatasetOptions,
    cluster: ClusterOptions,
    model: ModelsOption = None,
    csv: CsvOption = None,
    as_json: JsonOption = False,
    rewards: RewardsOption = None,
    frames: Annotated[
        int | None, typer.Option(metavar="N", help="Score N frames of each episode, spread evenly.")
    ] = None,
    batch: BatchOption = 8,
    workers: WorkersOption = None,
    limit: LimitOption = None,
    retry: Annotated[bool, typer.Option("--retry", help="Retry what an earlier run could not score.")] = False,
    write_labels: Annotated[
        bool, typer.Option("--write-labels", help="Label the episodes by --model rule:FILE (a demerit folder).")
    ] = False,
    gpus: Annotated[
        float | None,
        typer.Option(metavar="N", help="With --on: GPUs per actor (default: 1 for vision-language models, else 0)."),
    ] = None,
) -> None:
    """Score every episode of a dataset. Run it again to resume.

    Ends with a verdict per episode (of more than 30, the doubtful ones), the failures with the highest values, and what
    was not scored and why. A video is scored as part of its folder: its rewards are stored with those of the folder,
    and nothing is scored twice.

    [bold]Examples[/bold]

      demerit score my_set --model default --model clock
      demerit score a.mp4 b.mp4 --instruction "put the cup on the plate"
      demerit score runs/ more_runs/ --model ./my-model --csv scores.csv
      demerit score lerobot:~/data/so101 --model clock --camera top --frames 16
      demerit score my_set --model my_package.rewards:MyModel --rewards rewards/mine
      demerit score my_set --model rule:safe.yaml --write-labels
      demerit score /shared/my_set --model robometer --on ray://head:10001
    """
    for name in datasets:
        if name in MODELS and not Path(name).exists():
            raise BadInput(name, "a dataset or a video", f"the name of a model (write --model {name})")
    if csv is not None:
        check_table_file(csv)
    say = err if as_json else out
    waiting = _load_models(model or ["default"])
    scorers = [_choose_scorer(name, cluster, gpus, workers) for name in model or ["default"]]
    labelled = _check_labels(datasets, waiting) if write_labels else None
    parts = reading.open_parts(datasets)
    settings: dict[str, Any] = {"frames": frames, "batch": batch, "retry": retry}
    settings |= {} if workers is None else {"workers": workers}
    rows: list[EpisodeScore] = []
    results: list[dict[str, Any]] = []
    while waiting:
        loaded = waiting.pop(0)  # free one model before the next one reads its weights
        run = partial(score_dataset, **scorers.pop(0))
        summary, folders = _score_parts(loaded, parts, rewards, limit, settings, say, run)
        rows += summary.rows
        cut, places = describe_cut(loaded), [str(folder.resolve()) for folder in folders]
        results.append(summary.as_dict() | {"cut": cut, "rewards": places})
        if labelled is not None:
            _write_labels(labelled, cast(Rule, loaded), say)
        if csv is not None:
            write_table(rows, csv)
        if not as_json:
            print_summary(summary, len(parts) > 1, cut)
            for folder in folders:
                out.print(escape(f"Rewards, in Python: list(demerit.RewardStore({str(folder)!r}))"))
    if csv is not None:
        say.print(f"Table: {escape(str(csv))}", soft_wrap=True)
    if as_json:
        print(json.dumps({"models": results}, ensure_ascii=False, allow_nan=False))


def _score_parts(
    model: RewardModel,
    parts: list[Dataset],
    rewards: Path | None,
    limit: int | None,
    settings: dict[str, Any],
    say: Console,
    run: Callable[[ScoreJob, Callable[[ScoreProgress], None]], ScoreProgress],
) -> tuple[ScoreSummary, list[Path]]:
    """Score each dataset; the rewards of each are stored next to it."""
    card, rows, folders = model.card, list[EpisodeScore](), list[Path]()
    for name, part in zip(distinct_names([part.address for part in parts]), parts, strict=True):
        rest = None if limit is None else limit - len(rows)
        if rest == 0 and folders:
            break
        folder = rewards_folder(part, card.name, settings["frames"])
        if rewards is not None:
            folder = (rewards if len(parts) == 1 else rewards / name) / folder.name
        job = ScoreJob(model, part, folder, limit=rest, **settings)
        if (estimate := getattr(model, "estimate", None)) is not None:
            say.print(f"[bold]{card.name}[/bold]: {escape(str(estimate(islice(part, rest))))}")
        with bar(f"scoring with {card.name}", rest or part.expected()) as shown:
            progress = run(job, partial(_show, shown))
        where = f" ({escape(name)})" if len(parts) > 1 else ""
        say.print(f"[bold]{card.name}[/bold]: {_summarize(progress)}{where}", soft_wrap=True)
        print_problems(part.problems.rows(), say)
        rows += match_scores(RewardStore(folder), progress.episodes, part.address)
        folders.append(folder)
    if not rows:
        raise BadInput(", ".join(part.address for part in parts), "an episode to score", "none")
    if (spent := getattr(model, "spent", None)) is not None:
        say.print(f"  requests: {escape(str(spent))}")
    return ScoreSummary(card, rows), folders


def print_summary(summary: ScoreSummary, several: bool = False, cut: str = "") -> None:
    """Print the figures over all episodes, what is unscored and why, and every episode; `cut` decides success."""
    card, facts, finals = summary.card, summary.as_dict(), summary.finals
    table = Table(show_header=False, title=f"{card.name}: {count_episodes(len(summary.rows))}", title_justify="left")
    if finals:
        value = f"mean {facts['final']['mean']:.3f}, median {facts['final']['median']:.3f}"
        table.add_row("final value", escape(f"{value} ({card.meaning})"))
    if cut:
        table.add_row("success", escape(cut))
    if facts["taught"]:
        text = f"{facts['taught']} of {len(summary.rows)}: it knows their labels; judge it on other episodes"
        table.add_row("[yellow]learned from[/yellow]", text)
    for reason, ids in list(summary.reasons().items())[:SHOWN]:
        table.add_row("[yellow]unscored[/yellow]", escape(f"{len(ids)}: {reason}, e.g. {ids[0]}"))
    print_table(table)
    print_verdicts(summary.verdicts)
    if finals and not card.comparable:
        out.print("Its values depend on the episode: do not compare episodes by them.")
    shown = summary.by_doubt()
    title = (
        "Every episode" if len(shown) <= MOST_ROWS else f"The {MOST_ROWS} most doubtful of {len(shown)} (--csv has all)"
    )
    _print_rows(title, shown[:MOST_ROWS], several)
    _print_rows("Failures with the highest values", summary.highest_failures(), several)


def _print_rows(title: str, rows: list[EpisodeScore], several: bool) -> None:
    if not rows:
        return
    has_chance = not all(math.isnan(row.success_probability) for row in rows)
    chance = ["p(success)"] if has_chance else []
    table = Table("verdict", *chance, "value", "label", "episode and instruction", title=title, title_justify="left")
    for row in rows:
        dataset = f"{Path(row.dataset.partition(':')[2]).name}/" if several else ""
        instruction = shorten(row.instruction) or "(no instruction)"
        numbers = [row.success_probability, row.final] if has_chance else [row.final]
        cells = ["–" if math.isnan(number) else f"{number:.3f}" for number in numbers]
        table.add_row(escape(str(row.verdict)), *cells, row.label or "–", escape(f"{dataset}{row.id}\n{instruction}"))
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


def _choose_scorer(name: str, cluster: ClusterOptions, gpus: float | None, workers: int | None) -> dict[str, Any]:
    """Return the options of the scoring job: who scores, and when rewards are written."""
    if not cluster.on:
        if gpus is not None:
            raise BadInput("--gpus", "--on ray with it", "no --on")
        return {}
    return {"scorer": RayScorer(name, cluster.on, cluster.actors, gpus, workers), "commit_seconds": 0.0}


def _check_labels(datasets: list[str], models: list[RewardModel]) -> Path:
    """Return the folder to label; refuse what cannot be labelled before anything is scored."""
    if len(datasets) != 1 or not Store.is_at(datasets[0]):
        raise BadInput("--write-labels", "one demerit folder (demerit import makes one)", ", ".join(datasets))
    if len(models) != 1 or not isinstance(models[0], Rule):
        names = ", ".join(model.card.name for model in models)
        raise BadInput("--write-labels", "--model rule:FILE alone: other models do not label", names)
    return Path(datasets[0])


def _write_labels(folder: Path, rule: Rule, say: Console) -> None:
    verdicts, unlabelled = label_by_rule(folder, rule)
    numbers = f"{verdicts[True]} fulfil it, {verdicts[False]} do not"
    say.print(f"[bold]{escape(rule.card.name)}[/bold]: {numbers} (label source: rule)")
    for reason, count in unlabelled.most_common():
        say.print(f"  [yellow]{count} without a label[/yellow]: {escape(reason)}")


def _show(shown: Bar, progress: ScoreProgress) -> None:
    shown.update(progress.position, _note(progress))


def _note(progress: ScoreProgress) -> str:
    parts = [f"{progress.unscored} unscored"] if progress.unscored else []
    if progress.reading:
        position, total = list(progress.reading.values())[-1]
        rate = (progress.frames + position) / progress.seconds if progress.seconds else 0.0
        parts.append(f"frame {position} of {total}, {rate:.0f} frames/s")
    return ", ".join(parts)


def _summarize(progress: ScoreProgress) -> str:
    parts = [f"{progress.scored} scored ({progress.frames} frames)"]
    parts += [f"{progress.unscored} unscored"] if progress.unscored else []
    parts += [f"{progress.kept} were scored already"] if progress.kept else []
    parts += [f"{progress.stale} re-scored (inputs changed)"] if progress.stale else []
    count = progress.scored + progress.unscored
    rate = (
        f", {count / progress.seconds:.{1 if count < 10 * progress.seconds else 0}f} episodes/s"
        if progress.seconds and count
        else ""
    )
    return ", ".join(parts) + f" in {progress.seconds:.1f} s{rate}"


def score_with_bar(
    dataset: Dataset, model: RewardModel, folder: Path | None = None, say: Console = out
) -> ScoredDataset:
    """Score what is missing with a progress bar; say how many episodes were scored, and what is wrong with the data."""
    name, last = model.card.name, list[ScoreProgress]()
    with bar(f"scoring with {name}", dataset.expected()) as shown:

        def show(progress: ScoreProgress) -> None:
            last[:] = [progress]
            shown.update(progress.position, f"{progress.unscored} unscored" if progress.unscored else "")

        scored = score_missing(dataset, model, folder, show)
    for progress in last:
        if progress.scored or progress.unscored:
            say.print(f"[bold]{name}[/bold]: {_summarize(progress)}", soft_wrap=True)
    print_problems(dataset.problems.rows(), say)
    return scored
