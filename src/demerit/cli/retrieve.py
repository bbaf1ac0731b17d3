"""The retrieve command: moments of recordings that show an instruction being done."""

from __future__ import annotations

import json
import math
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import bar, err, out, print_problems, print_table, print_warnings, shorten, stage_bars
from demerit.cli.bundles import DatasetArgument, JsonOption, ModelOption, PageOption, ReaderOptions
from demerit.cli.score import score_with_bar
from demerit.data.arrays import Floats
from demerit.data.dataset import NO_INSTRUCTION, Dataset
from demerit.data.episode import safe_name
from demerit.data.files import check_free
from demerit.data.formats import open_dataset
from demerit.data.frames import short_hash
from demerit.data.reward import VerdictCounts
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.compact.engine import Engine
from demerit.models.protocol import RewardModel
from demerit.use.retrieve import (
    PlaySegment,
    PlayWindows,
    WindowPlan,
    index_folder,
    index_windows,
    list_windows,
    merge_gains,
    merge_hits,
    order_by_gain,
    pick_examples_of,
    score_by_examples,
    score_by_text,
    write_retrieve_page,
    write_segments,
)
from demerit.web.pages import check_page

WORDS_ALONE = "Words find only tasks like those that the network was trained on: check some, or give --examples"
SHOWN = 20
CANDIDATES = 3
"""segments that a model scores for each that is wanted"""
FITS = 1.5
"""windows may be that much longer or shorter than examples"""


def retrieve(
    instruction: Annotated[str, typer.Argument(help="What to find, e.g. 'open the drawer'.")],
    dataset: DatasetArgument,
    reading: ReaderOptions,
    dest: Annotated[
        Path | None, typer.Argument(help="A demerit folder to create, of the segments as episodes.")
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", help="Most segments to find.")] = 100,
    examples: Annotated[
        str, typer.Option(metavar="DATASET", help="Some successes of the instruction: far better than its words alone.")
    ] = "",
    model: ModelOption = "",
    every_window: Annotated[
        bool,
        typer.Option("--every-window", help="With --model: score every window, not only the likeliest. Have a GPU."),
    ] = False,
    seconds: Annotated[float, typer.Option(metavar="S", help="Length of a window.")] = 4.0,
    stride: Annotated[
        float | None, typer.Option(metavar="S", help="From a window to the next (half a window).")
    ] = None,
    index: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the index (default: next to the dataset).")
    ] = None,
    page: PageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the moments that show an instruction being done.

    The recordings need no labels. They are read once; the index is stored next to the dataset, and a query takes
    seconds. Words alone work for tasks like those that the default network was trained on; for others give examples.
    With --model, the segments are ordered by how much its value rises; --every-window lets it look at all windows.

    [bold]Examples[/bold]

      demerit retrieve "open the drawer" play --examples drawers --page found.html
      demerit retrieve "open the drawer" play found --examples drawers --top 50 --seconds 6
      demerit retrieve "open the drawer" play --model ./my-model --json
      demerit retrieve "open the drawer" play --model robometer --every-window
    """
    if top < 1:
        raise BadInput("--top", "1 or more", top)
    if every_window and not model:
        raise BadInput("--every-window", "a model that scores the windows (--model)", "none")
    if dest is not None:
        check_free(dest)
    check_page(page, "retrieve")
    plan, say = WindowPlan(seconds, seconds / 2 if stride is None else stride), err if as_json else out
    engine = Engine.load_shipped()
    if not (examples or every_window) and engine.text_vector(instruction) is None:
        raise BadInput("instruction", "text with a known word", repr(instruction))
    source = reading.open(dataset)
    loaded = _load_comparable(model) if model else None
    shown = _index_examples(examples, instruction, seconds, engine, index, say) if examples else None
    folder = index_folder(source, plan, engine, index)
    with bar("reading recordings", source.expected()) as counter:
        windows = index_windows(
            source, plan, engine, folder, lambda done, count: counter.update(done, f"{count} windows")
        )
    print_problems([row for row in source.problems.rows() if row["problem"] != NO_INSTRUCTION], say)
    for id, why in windows.problems.items():
        say.print(f"[yellow]not searched[/yellow]: {escape(shorten(f'{id}: {why}'))}")
    started, judged = time.monotonic(), f"what {model} says of each"
    doubts = [WORDS_ALONE] if shown is None and not every_window else []
    if every_window:
        by, segments = judged, list_windows(windows)
    else:
        by = f"{len(shown)} examples" if shown is not None else "its words alone"
        ranked = (
            score_by_text(windows, engine, instruction) if shown is None else score_by_examples(windows, shown.vectors)
        )
        segments = merge_hits(windows, ranked, top if loaded is None else top * CANDIDATES)
        by += "" if loaded is None else f", put in order by {judged}"
    spent = time.monotonic() - started
    if loaded is not None:
        folder = folder / "rewards" / short_hash(instruction.encode())[:12] / safe_name(loaded.card.name)
        gains, warnings = _measure_gains(segments, instruction, source.name, loaded, folder, say)
        doubts += warnings
        segments = merge_gains(windows, gains, top) if every_window else order_by_gain(segments, gains)[:top]
        spent = time.monotonic() - started
    if dest is not None:
        write_segments(segments, instruction, source, dest)
    if page is not None:
        with stage_bars() as on_progress:
            write_retrieve_page(segments, instruction, source, page, by, doubts, partial(on_progress, "drawing"))
    print_warnings(doubts, say)
    if as_json:
        print(json.dumps([segment.as_dict() for segment in segments], ensure_ascii=False))
        return
    out.print(f"{len(segments)} segments of {len(windows)} windows by {by} in {spent:.1f} s")
    _print_segments(segments)
    places = {"Segments as episodes": dest, "Page": page}
    for line in (f"{what}: {place}" for what, place in places.items() if place is not None):
        out.print(escape(line))


def _load_comparable(name: str) -> RewardModel:
    model = load_model(name)
    if not model.card.comparable:
        raise BadInput(
            f"--model {name}", "values that can be compared between episodes", "values of each episode alone"
        )
    return model


def _index_examples(
    address: str, instruction: str, seconds: float, engine: Engine, index: Path | None, say: Console
) -> PlayWindows:
    """Index the examples of an instruction, each as one window."""
    teacher, whole = open_dataset(address), WindowPlan(math.inf, 1.0)
    picked = Dataset.from_episodes(pick_examples_of(instruction, teacher), teacher.name)
    shown = index_windows(picked, whole, engine, index_folder(teacher, whole, engine, index))
    lasts = median(float(episode.main.times()[-1]) for episode in shown.episodes)
    if not 1 / FITS < lasts / seconds < FITS:
        say.print(f"[yellow]The examples last {lasts:.1f} s and a window {seconds:g} s[/yellow]: see --seconds")
    return shown


def _measure_gains(
    segments: list[PlaySegment], instruction: str, name: str, model: RewardModel, folder: Path, say: Console
) -> tuple[Floats, tuple[str, ...]]:
    """Return a model's value at the end of each segment minus that at its start (NaN: none), and its warnings."""
    clips = Dataset.from_episodes([segment.cut(instruction) for segment in segments], name)
    rewards = [reward for _, reward in score_with_bar(clips, model, folder, say)]
    gains = np.array([float(reward.value[-1] - reward.value[0]) if reward.scored else math.nan for reward in rewards])
    unscored = [reward for reward, gain in zip(rewards, gains, strict=True) if math.isnan(gain)]
    if unscored:
        why = shorten(f"{len(unscored)} not scored, so not among the best: {unscored[0].why_missing}")
        say.print(escape(why))
    return gains, VerdictCounts.of(rewards).warnings


def _print_segments(segments: list[PlaySegment]) -> None:
    table = Table("score", "gain", "recording", "frames", "seconds")
    for segment in segments[:SHOWN]:
        facts = segment.as_dict()
        gain = "" if facts["gain"] is None else f"{facts['gain']:.3f}"
        span = "{:.1f} to {:.1f}".format(*facts["seconds"])
        table.add_row(
            f"{segment.score:.2f}", gain, escape(segment.episode.id), f"{segment.first} to {segment.last}", span
        )
    print_table(table)
    if len(segments) > SHOWN:
        out.print(f"and {len(segments) - SHOWN} more (--json lists all)")
