"""Scores for commands that use them: what `demerit score` stored is used, what is missing is scored now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from demerit.cli.bars import bar, out, print_problems
from demerit.data.dataset import Dataset
from demerit.models.protocol import RewardModel
from demerit.models.score import ScoreProgress
from demerit.use.scored import ScoredDataset, score_missing

OneModelOption = Annotated[
    str, typer.Option("--model", "-m", metavar="NAME", help="A model's name or folder; missing scores are made now.")
]
RewardsOption = Annotated[
    Path | None, typer.Option("--rewards", metavar="DIR", help="Folder of the rewards (default: next to the dataset).")
]


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
    new = sum(progress.scored + progress.unscored for progress in last)
    if new:
        say.print(f"[bold]{name}[/bold]: {new} scored, {sum(progress.kept for progress in last)} were scored already")
    print_problems(dataset.problems.rows(), say)
    return scored
