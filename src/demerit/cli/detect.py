"""The detect command: which episodes went wrong, and when?"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from demerit.cli.bars import err, out, print_table, print_verdicts, shorten, stage_bars
from demerit.cli.bundles import (
    CsvOption,
    DatasetArgument,
    DatasetOptions,
    JsonOption,
    ModelOption,
    PageOption,
    UseTestSplitOption,
)
from demerit.cli.score import score_with_bar
from demerit.data.episode import Episode, count_episodes
from demerit.data.files import plain, write_atomic, write_csv
from demerit.data.reward import Reward, Verdict, VerdictCounts
from demerit.data.splits import LabelSelection, seen_by
from demerit.data.store import Store
from demerit.decide.detector import GUESS, Detection, Detector, calibrate_detector, left_out_by
from demerit.decide.measure import DetectionFigures, label_detections, measure_detections
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.registry import load_attribute
from demerit.use.detect_page import write_detect_page
from demerit.web.pages import check_page

MOST_ROWS = 40
MOMENTS = ("flagged_at", "flagged_second", "went_wrong_at", "went_wrong_second")
COLUMNS = ("episode", "alarm", *MOMENTS, "kind", "behind", "threshold", "why_missing")


def detect(
    dataset: DatasetArgument,
    reading: DatasetOptions,
    model: ModelOption = "",
    calibrate: Annotated[
        str,
        typer.Option(
            metavar="DATASET",
            help="Labelled episodes whose successes count: unseen by the model, or left out when it was taught.",
        ),
    ] = "",
    detector: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A detector of an earlier run, instead of --calibrate.")
    ] = None,
    risk: Annotated[float, typer.Option(metavar="SHARE", help="Share of successes that may have an alarm.")] = 0.05,
    out_file: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Save the detector, for later and live use.")
    ] = None,
    csv_file: CsvOption = None,
    page: PageOption = None,
    as_json: JsonOption = False,
    kinds: Annotated[
        bool, typer.Option("--kinds", help="Ask the chat model at DEMERIT_CHAT_URL for the kind of each failure found.")
    ] = False,
    write_labels: Annotated[
        bool, typer.Option("--write-labels", help="Write alarms as labels of the source `model` (a demerit folder).")
    ] = False,
    use_test_split: UseTestSplitOption = False,
) -> None:
    """Flag episodes that go wrong, and guess when.

    An alarm means that the model's values are further behind than those of nearly all successes.

    [bold]Examples[/bold]

      demerit teach demonstrations -o my-model
      demerit detect new_set --model ./my-model --calibrate demonstrations -o detector.json
      demerit detect other_set --detector detector.json --csv alarms.csv --page alarms.html
    """
    if (detector is None) == (not calibrate) or (detector is None) == (not model):
        raise BadInput("detect", "--model with --calibrate, or --detector alone", "another combination")
    if write_labels and not Store.is_at(dataset):
        raise BadInput(dataset, "a demerit folder, for --write-labels (demerit import makes one)", "something else")
    check_page(page, "detect")
    say = err if as_json else out
    source = reading.open(dataset)
    judge = None if detector is None else Detector.load(detector)
    loaded = load_model(model if judge is None else judge.model)
    if judge is None:
        selection = LabelSelection(use_test_split=use_test_split)
        scored = score_with_bar(reading.open(calibrate), loaded, say=say)
        left_out = left_out_by(loaded)
        judge = calibrate_detector(scored, loaded.card, model, risk, None, seen_by(loaded), selection, left_out)
    judge.check(loaded.card)
    if out_file is not None:
        judge.save(out_file)
    judged, rewards, cautions = list[tuple[Episode, Detection]](), dict[str, Reward](), dict[str, None]()
    for episode, reward in score_with_bar(source, loaded, say=say):
        judged.append((episode, judge.judge_episode(episode, reward)))
        rewards[episode.id] = reward
        cautions |= dict.fromkeys(filter(None, [reward.caution]))
    if kinds:
        judged = load_attribute("demerit.decide.kinds:ask_kinds", "demerit detect --kinds")(judged)
    figures = measure_detections(judged, judge.seen | seen_by(loaded))
    verdicts = VerdictCounts.of_verdicts((detection.verdict for _, detection in judged), cautions)
    rows = [
        {**{name: plain(getattr(detection, name)) for name in COLUMNS}, **detection.verdict.as_dict()}
        for _, detection in judged
    ]
    if csv_file is not None:
        text = io.StringIO()
        write_csv(text, [[*COLUMNS, *Verdict(None).as_dict()], *(row.values() for row in rows)])
        write_atomic(csv_file, text.getvalue().encode())
    if page is not None:
        with stage_bars() as on_progress:
            write_detect_page(judged, rewards, judge, figures, verdicts, source, page, partial(on_progress, "drawing"))
    if write_labels:
        label_detections(Path(dataset), judged, loaded.card.name)
    if as_json:
        facts = {
            "guarantee": judge.guarantee.as_dict(),
            "flagged": sum(detection.alarm is True for _, detection in judged),
            "verdicts": verdicts.as_dict(),
            "episodes": rows,
            "figures": figures.as_dict(),
        }
        print(json.dumps(facts, indent=1))
        return
    _print([detection for _, detection in judged], verdicts, figures, judge)
    for path in filter(None, (out_file, csv_file, page)):
        out.print(f"written: {escape(str(path))}")


def _print(
    detections: Sequence[Detection], verdicts: VerdictCounts, figures: DetectionFigures, detector: Detector
) -> None:
    alarms = [detection for detection in detections if detection.alarm]
    out.print(f"[bold]{len(alarms)} flagged of {count_episodes(len(detections))}[/bold]")
    has_kinds = any(alarm.kind for alarm in alarms)
    table = Table("episode", "flagged at", "went wrong near (a guess)", "behind", *(["kind"] if has_kinds else []))
    for alarm in sorted(alarms, key=lambda alarm: -alarm.behind)[:MOST_ROWS]:
        flagged = f"frame {alarm.flagged_at} ({alarm.flagged_second:.1f} s)"
        wrong = f"frame {alarm.went_wrong_at} ({alarm.went_wrong_second:.1f} s)"
        kind = [alarm.kind] if has_kinds else []
        table.add_row(escape(shorten(alarm.episode)), flagged, wrong, f"{alarm.behind:.2f}", *kind)
    if alarms:
        print_table(table)
        out.print(GUESS)
    if len(alarms) > MOST_ROWS:
        out.print(f"... and {len(alarms) - MOST_ROWS} more (--csv has all)")
    if alarms and detector.at_end:
        out.print("  each is flagged at its end: the model was taught how episodes end, and no progress")
    elif (flags := Counter(alarm.flagged_at for alarm in alarms).most_common(1)) and flags[0][1] > len(alarms) / 2 > 1:
        out.print(f"  {flags[0][1]} are flagged at frame {flags[0][0]}: a deadline, by which successes are further")
    print_verdicts(verdicts)
    if missing := [detection.why_missing for detection in detections if detection.alarm is None]:
        out.print(f"[yellow]{len(missing)} not judged[/yellow], e.g. {escape(missing[0])}")
    out.print(escape(str(detector.guarantee)))
    for name, text in figures.as_rows():
        out.print(f"measured on labels, {name}: {text}")
