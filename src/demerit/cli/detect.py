"""The detect command: when did it go wrong?"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import err, out, print_table
from demerit.cli.options import CameraOption, DatasetArgument, InstructionOption, UseTestSplitOption, reader_options
from demerit.cli.scoring import score_with_bar
from demerit.cli.terminal import shorten
from demerit.data.episode import Episode
from demerit.data.files import write_atomic
from demerit.data.formats import open_dataset
from demerit.data.seen import seen_by
from demerit.data.store import Store
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.registry import load_attribute
from demerit.training.selection import LabelSelection
from demerit.use.detect import Detection, DetectionFigures, Detector, calibrate_detector, measure_detections
from demerit.use.detect.labels import label_detections

MOST_ROWS = 40
COLUMNS = ("episode", "alarm", "frame", "seconds", "kind", "behind", "threshold", "why_missing")


def detect(
    dataset: DatasetArgument,
    model: Annotated[
        str,
        typer.Option("--model", "-m", metavar="NAME", help="A model's name or folder; missing scores are made now."),
    ] = "",
    calibrate: Annotated[
        str, typer.Option(metavar="DATASET", help="Labelled episodes; successes that the model has not seen count.")
    ] = "",
    detector: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A detector of an earlier run, instead of --calibrate.")
    ] = None,
    false_alarms: Annotated[float, typer.Option(metavar="SHARE", help="Share of successes with an alarm.")] = 0.05,
    out_file: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Save the detector, for later and live use.")
    ] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write a line per episode.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    kinds: Annotated[
        bool, typer.Option("--kinds", help="Ask the chat model at DEMERIT_CHAT_URL for the kind of each failure found.")
    ] = False,
    write_labels: Annotated[
        bool, typer.Option("--write-labels", help="Write alarms as labels of the source `model` (a demerit folder).")
    ] = False,
    use_test_split: UseTestSplitOption = False,
    instruction: InstructionOption = "",
    camera: CameraOption = None,
) -> None:
    """Say which episodes went wrong and when, with a promised share of false alarms.

    An alarm means that the model's values are further behind than those of nearly all successes at that frame.

    [bold]Examples[/bold]

      demerit detect new_set --model ./my-model --calibrate checked_set -o detector.json
      demerit detect other_set --detector detector.json --csv alarms.csv
    """
    if (detector is None) == (not calibrate) or (detector is None) == (not model):
        raise BadInput("detect", "--model with --calibrate, or --detector alone", "another combination")
    if write_labels and not Store.is_at(dataset):
        raise BadInput(dataset, "a demerit folder, for --write-labels (demerit import makes one)", "something else")
    say = err if as_json else out
    opened = open_dataset(dataset, camera=camera, **reader_options(None, False, instruction))
    found = None if detector is None else Detector.load(detector)
    loaded = load_model(model if found is None else found.model)
    if found is None:
        known = open_dataset(calibrate, camera=camera, **reader_options(None, False, instruction))
        selection = LabelSelection(use_test_split=use_test_split)
        scored = score_with_bar(known, loaded, say=say)
        found = calibrate_detector(scored, loaded.card, model, false_alarms, None, seen_by(loaded), selection)
    found.check(loaded.card)
    if out_file is not None:
        found.save(out_file)
    scored = score_with_bar(opened, loaded, say=say)
    judged = [(episode, found.judge_episode(episode, reward)) for episode, reward in scored]
    if kinds:
        judged = load_attribute("demerit.use.detect.kinds:ask_kinds", "demerit detect --kinds")(judged)
    figures = measure_detections(judged, found.seen | seen_by(loaded))
    rows = [{name: _plain(getattr(one, name)) for name in COLUMNS} for _, one in judged]
    if csv_file is not None:
        text = io.StringIO()
        table = csv.DictWriter(text, COLUMNS)
        table.writeheader()
        table.writerows(rows)
        write_atomic(csv_file, text.getvalue().encode())
    if write_labels:
        label_detections(Path(dataset), judged, loaded.card.name)
    if as_json:
        facts = {"promise": found.promise, "episodes": rows, "figures": figures.to_json()}
        print(json.dumps(facts, indent=1))
        return
    _print(judged, figures, found)
    for path in filter(None, (out_file, csv_file)):
        out.print(f"written: {escape(str(path))}")


def _print(judged: Sequence[tuple[Episode, Detection]], figures: DetectionFigures, detector: Detector) -> None:
    alarms = [one for _, one in judged if one.alarm]
    missing = [one for _, one in judged if one.alarm is None]
    out.print(f"[bold]{len(alarms)} of {len(judged)} episodes went wrong[/bold]")
    table = Table("episode", "at frame", "second", "behind", *(["kind"] if any(one.kind for one in alarms) else []))
    for one in sorted(alarms, key=lambda one: -one.behind)[:MOST_ROWS]:
        seconds = "" if one.seconds is None else f"{one.seconds:.1f}"
        kind = [one.kind] if len(table.columns) > len(("episode", "frame", "second", "behind")) else []
        table.add_row(escape(shorten(one.episode)), str(one.frame), seconds, f"{one.behind:.2f}", *kind)
    if alarms:
        print_table(table)
    if len(alarms) > MOST_ROWS:
        out.print(f"... and {len(alarms) - MOST_ROWS} more (--csv has all)")
    if missing:
        out.print(f"[yellow]{len(missing)} not judged[/yellow], e.g. {escape(missing[0].why_missing)}")
    out.print(escape(detector.promise))
    if figures.false_alarms.n:
        out.print(f"measured on labels: false alarms {figures.false_alarms}")
    if figures.found.n:
        out.print(f"measured on labels: failures found {figures.found}")
    if figures.early.n:
        delay = f"{figures.delay:+.0f} frames, {figures.delay_share:+.0%} of the episode"
        out.print(f"  from the marked failure to the alarm: median {delay}; {figures.early.value:.0%} came before it")
    if figures.kinds.n:
        out.print(f"  the kind of failure is the labelled one in {figures.kinds}")
    if figures.not_counted:
        out.print(f"  {figures.not_counted} episodes do not count: learned from, or calibrated on")


def _plain(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value
