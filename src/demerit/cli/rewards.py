"""The rewards command: rewards written where trainers read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.markup import escape

from demerit.cli import LazyGroup, make_app
from demerit.cli.bars import err, out
from demerit.cli.options import (
    CameraOption,
    DatasetArgument,
    InstructionOption,
    PickleOption,
    SourceOptions,
    reader_options,
    split_names,
)
from demerit.cli.scoring import OneModelOption, RewardsOption, score_with_bar
from demerit.data.episode import count_episodes
from demerit.data.formats import open_dataset
from demerit.models import load_model
from demerit.use.write.frames import RewardRecipe
from demerit.use.write.job import WrittenRewards, plan_write, write_rewards

HELP = """\
Write a model's rewards where trainers read them.

[bold]Examples[/bold]

  demerit rewards write my_set --model ./my-model --to lerobot
"""


class RewardsGroup(LazyGroup):
    """The commands of `demerit rewards`."""

    table = {  # noqa: RUF012
        "write": ("rewards:write", "Write rewards as a LeRobot dataset or sidecar, Minari, parquet or npz."),
    }


app = make_app(RewardsGroup, name="rewards", help=HELP, add_completion=False)


def write(
    dataset: DatasetArgument,
    model: OneModelOption = "default",
    to: Annotated[
        str, typer.Option("--to", metavar="lerobot|sidecar|minari|parquet|npz", help="The format to write.")
    ] = "lerobot",
    dest: Annotated[
        Path | None, typer.Option("--out", "-o", help="What to write; must not exist (default: next to the dataset).")
    ] = None,
    unscored: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="Frames without a value: fail, interpolate (between scored frames), drop-episode, weight-zero; "
            "interpolate,drop-episode drops what cannot be filled.",
        ),
    ] = "fail",
    rule: Annotated[
        str, typer.Option("--reward", metavar="dense|potential|final", help="The reward of a step (docs).")
    ] = "dense",
    gamma: Annotated[float, typer.Option(help="Discount of returns, advantages and potential rewards.")] = 0.99,
    ahead: Annotated[
        int, typer.Option(metavar="N", help="Frames that advantages and weights look ahead: the policy's chunk size.")
    ] = 50,
    advantage: Annotated[
        str, typer.Option(metavar="n-step|normalised|group", help="The advantage; the last two compare within a task.")
    ] = "n-step",
    penalty: Annotated[float, typer.Option(help="What each failing frame costs, from the failure event on.")] = 0.0,
    kappa: Annotated[float, typer.Option(help="RA-BC: a rise above this has full weight.")] = 0.01,
    success_from: Annotated[
        float | None,
        typer.Option("--success-from", metavar="P", help="Unlabelled episodes succeed from this probability on."),
    ] = None,
    fps: Annotated[float | None, typer.Option(help="Frame rate, where videos are encoded.")] = None,
    tag: Annotated[str, typer.Option(help="Name of RLinf's meta/returns_TAG.parquet (default: the model's).")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")] = False,
    rewards: RewardsOption = None,
    instruction: InstructionOption = "",
    camera: CameraOption = None,
    options: SourceOptions = None,
    trust_pickles: PickleOption = False,
) -> None:
    """Write rewards as a LeRobot dataset or sidecar, Minari, parquet or npz.

    The source is never changed. A LeRobot v3.0 source becomes a dataset whose videos are links to its own.

    [bold]Examples[/bold]

      demerit rewards write ~/data/so101 --model ./my-model
      demerit rewards write ~/data/so101 --model ./my-model --to sidecar --ahead 100
      demerit rewards write my_set --model ./my-model --to parquet --unscored interpolate,drop-episode
      demerit rewards write my_set --model ./my-model --to npz --reward potential --penalty 1 --advantage group
    """
    say = err if as_json else out
    rules = cast(Any, tuple(split_names(unscored)))
    recipe = RewardRecipe(rules, cast(Any, rule), gamma, ahead, cast(Any, advantage), penalty, kappa, success_from)
    opened = open_dataset(dataset, camera=camera, **reader_options(options, trust_pickles, instruction))
    judge = load_model(model)
    place = plan_write(opened, judge.card, cast(Any, to), recipe, dest)
    scored = score_with_bar(opened, judge, rewards, say)
    written = write_rewards(scored, place, cast(Any, to), recipe, fps, tag)
    if as_json:
        print(json.dumps(_as_dict(written), indent=2, ensure_ascii=False))
        return
    frames = written.frames
    told = f"{count_episodes(len(frames.places))}, {len(frames.value)} frames, rewards of {frames.model}"
    out.print(f"[bold]{escape(str(written.dest))}[/bold]: {escape(told)}")
    for line in _notes(written, to, recipe):
        out.print(f"  {escape(line)}")


def _notes(written: WrittenRewards, to: str, recipe: RewardRecipe) -> list[str]:
    frames, notes = written.frames, []
    if frames.interpolated:
        notes.append(f"{frames.interpolated} frames interpolated between scored ones")
    if frames.dropped:
        notes.append(f"{count_episodes(frames.dropped)} dropped, with unscored frames")
    if frames.dropped and to == "sidecar":
        kept = ",".join(map(str, frames.places.tolist()))
        notes.append(f"RA-BC gives frames without progress full weight; leave them out: --dataset.episodes=[{kept}]")
    if frames.unscored - frames.interpolated and recipe.rest == "weight-zero":
        notes.append(f"{frames.unscored - frames.interpolated} frames without a reward (NaN) and with weight 0")
        if to == "sidecar":
            notes.append("no sarm_progress.parquet: RA-BC would give those frames full weight")
    if frames.without_event:
        notes.append(f"{frames.without_event} failures without an event: their last frame alone is penalised")
    if to == "lerobot" and frames.success is None:
        unknown = sum(one.success is None for one in frames.episodes)
        notes.append(f"no next.success: the outcome of {count_episodes(unknown)} is unknown (see --success-from)")
    if written.links is not None:
        notes.append("videos: " + "; ".join(f"{kind} ({count})" for kind, count in written.links.items()))
    elif to == "lerobot":
        notes.append("videos were encoded: only those of a LeRobot v3.0 source can be linked")
    if written.sidecars:
        notes.append(f"for trainers: {', '.join(map(str, written.sidecars))}")
    if written.minari_id:
        notes.append(
            f"id {written.minari_id}, signals only; open it: minari.MinariDataset({str(written.dest / 'data')!r})"
        )
    return notes


def _as_dict(written: WrittenRewards) -> dict[str, Any]:
    frames = written.frames
    return {
        "dest": str(written.dest),
        "model": frames.model,
        "episodes": len(frames.places),
        "frames": len(frames.value),
        "dropped": frames.dropped,
        "unscored": frames.unscored,
        "interpolated": frames.interpolated,
        "sidecars": [str(path) for path in written.sidecars],
        "videos": written.links,
    }
