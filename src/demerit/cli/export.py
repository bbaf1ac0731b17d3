"""The export command: a dataset, or a model's rewards for it, where other programs read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.markup import escape

from demerit.cli.bars import bar, err, out, print_problems, print_verdicts
from demerit.cli.bundles import (
    ChangesOption,
    DatasetArgument,
    DatasetOptions,
    JsonOption,
    ModelOption,
    RewardsOption,
    split_names,
)
from demerit.cli.score import score_with_bar
from demerit.config import change_config, parse_changes
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, count_episodes, read_check, safe_name
from demerit.data.export import materialize
from demerit.data.formats.lerobot.writer import write_lerobot
from demerit.data.importing import refuse_linked
from demerit.data.store import Store
from demerit.errors import BadInput, UnknownName
from demerit.models import load_model
from demerit.registry import load_attribute
from demerit.use.curve_videos import write_curve_videos
from demerit.use.rerun_file import write_rerun
from demerit.use.view_folder import write_view
from demerit.use.write.frames import RewardRecipe, label_advantages
from demerit.use.write.job import RewardFormat, WrittenRewards, check_verdicts, plan_write, write_rewards

EPISODE_FORMATS = ("lerobot", "mp4", "html", "video", "rerun", "mcap")
FORMATS = tuple(dict.fromkeys((*EPISODE_FORMATS, *get_args(RewardFormat))))


def export(
    dataset: DatasetArgument,
    reading: DatasetOptions,
    dest: Annotated[
        Path | None, typer.Argument(help="What to create; with --model the default is next to the dataset.")
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"{', '.join(FORMATS)}.")] = "lerobot",
    model: ModelOption = "",
    unscored: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="Frames without a value: fail, interpolate (between scored frames), drop-episode, weight-zero; "
            "interpolate,drop-episode drops what cannot be filled.",
        ),
    ] = "fail",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also write rewards of untaught tasks and of missing cameras.")
    ] = False,
    fps: Annotated[
        float | None, typer.Option(help="Frame rate of LeRobot; required if recordings differ (default: theirs).")
    ] = None,
    changes: ChangesOption = None,
    rewards: RewardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a dataset or its rewards for other programs.

    Without --model: the episodes as LeRobot v3.0, as mp4 files with labels.jsonl, or, with the rewards stored, as the
    pages of demerit view in a folder (html), as videos with the curves drawn in (video), or for the viewers Rerun and
    Foxglove (mcap). With --model: rewards, returns and weights as a LeRobot dataset, whose videos are
    links where the source is LeRobot v3, as a sidecar of one, as the advantages of RLinf's RECAP, or as Minari,
    parquet or npz. The source is never changed.
    --set takes reward (dense, potential, final), gamma, ahead (frames; the policy's chunk), advantage (n-step,
    normalised, group), penalty (of a failing frame), kappa, success (labels, model), positive (RECAP: the share of
    frames) and tag: docs/write_rewards.md.

    [bold]Examples[/bold]

      demerit export my_set my_set_lerobot --fps 10
      demerit export my_negatives videos --to mp4
      demerit export my_set my_page --to html
      demerit export my_set my_videos --to video
      demerit export my_set my_set.rrd --to rerun
      demerit export my_bags rewards.mcap --to mcap
      demerit export ~/data/so101 --model ./my-model
      demerit export ~/data/so101 --model ./my-model --to sidecar --set ahead=100
      demerit export ~/data/so101 ~/data/so101 --model ./my-model --to recap --set tag=mine --set positive=0.3
      demerit export my_set table.parquet --model ./my-model --to parquet --unscored interpolate,drop-episode
      demerit export my_set --model ./my-model --to npz --set reward=potential --set penalty=1 --set advantage=group
    """
    if to not in FORMATS:
        raise UnknownName("export format", to, FORMATS)
    source, say = reading.open(dataset), err if as_json else out
    source, rejected = leave_out_rejected(source)
    if rejected:
        say.print(f"[yellow]note[/yellow]  {count_episodes(rejected)} left out: a person rejected the labels")
    if not model:
        if to not in EPISODE_FORMATS:
            raise BadInput(f"--to {to}", "--model NAME with it: the format is for rewards", "no --model")
        facts = _export_episodes(source, dest, to, fps)
        say.print(f"[bold]{escape(str(dest))}[/bold]: {escape(facts['sentence'])}")
        print_problems(source.problems.rows(), say)
    else:
        if to not in get_args(RewardFormat):
            raise BadInput(f"--to {to}", "no --model: it has the rewards that demerit score stored", model)
        recipe = change_config(RewardRecipe(), parse_changes(changes or []), "--set")
        recipe = change_config(recipe, {"unscored": split_names(unscored)}, "--unscored")
        judge = load_model(model)
        place = plan_write(source, judge.card, to, recipe, dest)  # type: ignore[arg-type]  # checked above
        scored = score_with_bar(source, judge, rewards, say)
        verdicts = check_verdicts(scored, anyway)
        written = write_rewards(scored, place, to, recipe, fps)  # type: ignore[arg-type]  # checked above
        facts = {**_as_dict(written), "verdicts": verdicts.as_dict()}
        numbers = f"{count_episodes(facts['episodes'])}, {facts['frames']} frames, rewards of {facts['model']}"
        say.print(f"[bold]{escape(str(written.dest))}[/bold]: {escape(numbers)}")
        print_verdicts(verdicts, say)
        for line in _notes(written, to, recipe):
            say.print(f"  {escape(line)}")
    if as_json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))


def leave_out_rejected(dataset: Dataset) -> tuple[Dataset, int]:
    """Leave out the episodes of a demerit folder whose labels a person rejected; return how many they are."""
    if not isinstance(dataset.reader, Store):
        return dataset, 0
    states = [read_check(dict(row["tags"])) for row in dataset.reader.columns(["tags"]).to_pylist()]
    rejected = states.count("rejected")
    return (dataset.where(lambda episode: episode.check != "rejected") if rejected else dataset), rejected


def _export_episodes(dataset: Dataset, dest: Path | None, to: str, fps: float | None) -> dict[str, Any]:
    if dest is None:
        raise BadInput("DEST", "what to create (only with --model there is a default)", "nothing")
    if fps is not None and to != "lerobot":
        raise BadInput("--fps", f"none with --to {to}, which keeps the times of the recordings", fps)
    refuse_linked(dataset)
    with bar("writing", dataset.expected()) as shown:
        if to == "mp4":
            written = materialize(dataset, dest, shown.update)
            sentence = f"{count_episodes(written)} as mp4 with labels.jsonl"
        elif to == "html":
            written, models = write_view(dataset, dest, shown.update)
            sentence = f"{count_episodes(written)}, rewards of {', '.join(models) or 'no model'}: open index.html"
        elif to == "video":
            written, models = write_curve_videos(dataset, dest, shown.update)
            sentence = f"{count_episodes(written)} as videos, rewards of {', '.join(models) or 'no model'}"
        elif to == "rerun":
            models = write_rerun(dataset, dest, shown.update)
            written = sum(1 for _ in dataset)
            sentence = f"{count_episodes(written)} for Rerun, rewards of {', '.join(models) or 'no model'}"
        elif to == "mcap":
            write_mcap = load_attribute("demerit.use.mcap_file:write_mcap", "writing MCAP files")
            written, models = write_mcap(dataset, dest, shown.update)
            sentence = f"{count_episodes(written)} for Foxglove, rewards of {', '.join(models) or 'no model'}"
        else:
            written = 0

            def episodes() -> Iterator[Episode]:
                nonlocal written
                for episode in dataset:
                    yield episode
                    written += 1
                    shown.update(written)

            write_lerobot(episodes(), dest, fps=fps)
            sentence = f"{count_episodes(written)} as LeRobot v3.0"
    return {"dest": str(dest), "episodes": written, "sentence": sentence}


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
        unknown = sum(episode.success is None for episode in frames.episodes)
        notes.append(f"no next.success: the outcome of {count_episodes(unknown)} is unknown (see --set success=model)")
    if written.links is not None:
        notes.append("videos: " + "; ".join(f"{kind} ({count})" for kind, count in written.links.items()))
    elif to == "lerobot":
        notes.append("videos were encoded: only those of a LeRobot v3 source can be linked")
    if written.sidecars:
        notes.append(f"for trainers: {', '.join(map(str, written.sidecars))}")
    if to == "recap":
        notes += _describe_labels(written, recipe)
    if written.minari_id:
        notes.append(
            f"id {written.minari_id}, signals only; open it: minari.MinariDataset({str(written.dest / 'data')!r})"
        )
    return notes


def _describe_labels(written: WrittenRewards, recipe: RewardRecipe) -> list[str]:
    labels, thresholds = label_advantages(written.frames, recipe.positive)
    name, threshold = next(iter(thresholds.items()))
    first = f"at least {threshold:.4g} for {name!r}" + (f", ... {len(thresholds)} tasks" if len(thresholds) > 1 else "")
    return [
        f"{labels.mean():.1%} of the frames have a positive advantage ({first})",
        f"RLinf: data.advantage_tag={safe_name(recipe.tag or written.frames.model)}, with meta/ in the dataset",
    ]


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
