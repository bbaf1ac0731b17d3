"""The filter command: a view of a dataset without what fails a condition."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.markup import escape

from demerit.cli.bars import bar, err, out, print_verdicts, shorten, stage_bars
from demerit.cli.bundles import (
    DatasetArgument,
    DatasetOptions,
    JsonOption,
    ModelOption,
    RewardsOption,
    split_names,
)
from demerit.cli.score import score_with_bar
from demerit.data.dataset import Dataset
from demerit.data.episode import count_episodes
from demerit.data.files import check_free
from demerit.data.quality import measure_quality
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.rule import Rule
from demerit.use.filter import (
    DECISIONS,
    KEPT,
    NO_MODEL,
    FilterCondition,
    FilterOutcome,
    decide,
    need_at_least,
    need_best,
    need_no_kind,
    need_quality,
    need_rule,
    need_success,
    parse_quality,
    write_edit_line,
    write_filter_page,
    write_view,
)
from demerit.web.pages import check_page

PAGE = Path("filter.html")
PICTURES = 600
"""most episodes with a picture on the page"""


def filter_(
    dataset: DatasetArgument,
    reading: DatasetOptions,
    dest: Annotated[
        Path | None, typer.Argument(help="The view to create: a demerit folder that copies no video.")
    ] = None,
    model: ModelOption = "",
    min_final: Annotated[float | None, typer.Option(metavar="X", help="Drop final values below X.")] = None,
    min_mean: Annotated[
        float | None, typer.Option(metavar="X", help="Drop episodes whose scored frames have a mean below X.")
    ] = None,
    keep_best: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Keep the best share (50%) or number by final value.")
    ] = None,
    per_task: Annotated[bool, typer.Option("--per-task", help="Keep the best of each instruction.")] = False,
    success: Annotated[
        str, typer.Option(metavar="model|labels", help="Drop failures, as the model or the labels say.")
    ] = "",
    drop_kinds: Annotated[
        str, typer.Option("--drop-kinds", metavar="KINDS", help="Drop labelled kinds of failure: spill,dropped.")
    ] = "",
    rule: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Drop what breaks a rule (docs/rules.md).")
    ] = None,
    quality: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Keep only 'stalls<0.5', 'jerk<1' ...; repeatable (docs/quality.md)."),
    ] = None,
    min_familiarity: Annotated[
        float | None, typer.Option(metavar="P", help="Drop what is unlike all that the model learned from (0.01).")
    ] = None,
    unscored: Annotated[
        str, typer.Option(metavar="keep|drop|fail", help="What to do with episodes that cannot be judged.")
    ] = "keep",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Create no view, only the page.")] = False,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"A page of what goes and stays (--dry-run: {PAGE}).")
    ] = None,
    as_json: JsonOption = False,
    rewards: RewardsOption = None,
) -> None:
    """Make a view of a dataset by conditions, without copies.

    An episode stays if it passes every condition. Nothing is copied or deleted; decisions.jsonl in the view says why an
    episode stayed or went.

    [bold]Examples[/bold]

      demerit filter my_set good --model ./my-model --min-final 0.5 --min-familiarity 0.01
      demerit filter my_set --model ./my-model --keep-best 50% --per-task --dry-run
      demerit filter my_set safe --rule safe.yaml --drop-kinds "spill,excessive force" --unscored drop
      demerit filter lerobot:~/data/so101 steady --quality "stalls<0.5" --quality "end_pose<1"
    """
    _check_choice("--success", success, ("", "model", "labels"))
    _check_choice("--unscored", unscored, ("keep", "drop", "fail"))
    if per_task and keep_best is None:
        raise BadInput("--per-task", "--keep-best with it", "none")
    if dest is None and not dry_run:
        raise BadInput("DEST", "the view to create, or --dry-run", "nothing")
    if dest is not None:
        check_free(dest)
    page = page or (PAGE if dry_run else None)
    check_page(page, "filter")
    by_reward = _reward_conditions(min_final, min_mean, min_familiarity, success)
    best = None if keep_best is None else need_best(keep_best, per_task)
    if not model and (by_reward or best):
        raise BadInput("--model", "a model, because a condition is about its rewards", "none")
    conditions = [*by_reward, *([need_success("labels")] if success == "labels" else [])]
    conditions += [*map(need_no_kind, split_names(drop_kinds)), *(need_rule(Rule(file)) for file in rule or ())]
    wanted = [parse_quality(text) for text in quality or ()]
    say = err if as_json else out
    source = reading.open(dataset)
    conditions += _quality_conditions(source, wanted)
    loaded = load_model(model) if model else None
    if loaded is not None and not loaded.card.comparable and (best or min_final is not None or min_mean is not None):
        raise BadInput(
            f"--model {model}", "values that can be compared between episodes", "values of each episode alone"
        )
    scored = None if loaded is None else score_with_bar(source, loaded, rewards, say)
    pairs = ((episode, NO_MODEL) for episode in source) if scored is None else scored
    outcome = decide(pairs, conditions, best, unscored)  # type: ignore[arg-type]  # checked above
    if dest is not None and not dry_run:
        about = {"model": model or None, "card": None if loaded is None else loaded.card.hash()}
        outcome = write_view(outcome, source, dest, about, scored)
    if page is not None:
        with stage_bars() as on_progress:
            name = "" if loaded is None else loaded.card.name
            write_filter_page(outcome, source, page, name, PICTURES, partial(on_progress, "drawing"))
    verdicts = None if scored is None else outcome.verdicts
    indices = outcome.as_dict()["lerobot"]
    edit = write_edit_line(source.reader, indices["dropped"] if indices else [])
    if as_json:
        places = {
            "view": None if dest is None or dry_run else str(dest.resolve()),
            "page": page and str(page.resolve()),
            "lerobot_edit": edit or None,
        }
        judged = {"verdicts": None if verdicts is None else verdicts.as_dict()}
        print(json.dumps({**outcome.as_dict(), **places, **judged, "kept_ids": outcome.kept}, ensure_ascii=False))
    else:
        if verdicts is not None:
            print_verdicts(verdicts)
        _print_outcome(outcome, None if dry_run else dest, page, edit)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise BadInput(name, " or ".join(filter(None, choices)), repr(value))


def _reward_conditions(
    final: float | None, mean: float | None, familiarity: float | None, success: str
) -> list[FilterCondition]:
    conditions = []
    if final is not None:
        conditions.append(need_at_least("final value", final, lambda reward: reward.final))
    if mean is not None:
        conditions.append(need_at_least("mean value", mean, lambda reward: float(np.nanmean(reward.value))))
    if familiarity is not None:
        conditions.append(need_at_least("familiarity", familiarity, lambda reward: reward.familiarity))
    return [*conditions, *([need_success("model")] if success == "model" else [])]


def _quality_conditions(source: Dataset, wanted: list[tuple[str, str, float]]) -> list[FilterCondition]:
    if not wanted:
        return []
    with bar("measuring", source.expected()) as shown:
        measured = measure_quality(source, shown.update)
    return [need_quality(*condition, measured) for condition in wanted]


def _print_outcome(outcome: FilterOutcome, view: Path | None, page: Path | None, edit: str) -> None:
    facts = outcome.as_dict()
    out.print(f"[bold]{facts['dropped']} of {count_episodes(facts['episodes'])} dropped[/bold], {facts['kept']} kept")
    for reason, count in facts["dropped_by"].items():
        out.print(escape(f"  {count} dropped: {reason}"))
    for row in facts["undecided"]:
        fate = "kept" if row["kept"] else "dropped"
        text = f"  [yellow]{row['episodes']} could not be judged, {fate}[/yellow] (--unscored): "
        out.print(text + escape(shorten(row["reason"])))
    if view is not None:
        out.print(escape(f"View: {view}. Why an episode went: {view / DECISIONS}"))
        if facts["lerobot"] is not None:
            out.print(escape(f'LeRobot, without a copy: lerobot-train --dataset.episodes="$(cat {view / KEPT})" ...'))
    if edit:
        out.print(escape(f"LeRobot, a copy without the dropped ones: {edit}"))
    if page is not None:
        out.print(escape(f"Page: {page}"))
