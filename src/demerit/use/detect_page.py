"""The page of `demerit detect`: what was flagged, and failures that were not, with film strip, level and bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Dataset
from demerit.data.episode import NOT_A_MODEL, Episode, Event, Outcome, most_trusted, select_labels
from demerit.data.files import write_atomic
from demerit.data.reward import Reward, VerdictCounts
from demerit.decide.detector import GUESS, Detection, Detector
from demerit.decide.measure import DetectionFigures
from demerit.evaluate.reports.page import style_models
from demerit.evaluate.reports.reel import FilmReel
from demerit.web.pages import check_page, render

LEVEL, BOUND = "level", "bound"
STRIPS = 100
"""most episodes that are drawn: those flagged first, furthest behind first, then failures without an alarm"""


def write_detect_page(
    judged: Sequence[tuple[Episode, Detection]],
    rewards: Mapping[str, Reward],
    detector: Detector,
    figures: DetectionFigures,
    verdicts: VerdictCounts,
    dataset: Dataset,
    path: Path,
    on_strip: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the page atomically.

    Args:
        judged: all episodes of the dataset, with what the detector says.
        rewards: of the model, by episode.
        detector: it.
        figures: what was measured on labels.
        verdicts: the counts of all episodes, and the warnings.
        dataset: for its name and address.
        path: the file to write.
        on_strip: called after each strip with their number and the total.
    """
    check_page(path, "detect")
    flagged = sorted((pair for pair in judged if pair[1].alarm), key=lambda pair: -pair[1].behind)
    labels = {episode.id: most_trusted(select_labels(episode.labels, NOT_A_MODEL)) for episode, _ in judged}
    failures = {id for id, label in labels.items() if label is not None and label.success is False}
    missed = [pair for pair in judged if pair[1].alarm is False and pair[0].id in failures]
    strips = []
    for episode, detection in [*flagged, *missed][:STRIPS]:
        strips.append(_make_strip(episode, detection, rewards[episode.id], detector, labels[episode.id]))
        on_strip(len(strips), min(STRIPS, len(flagged) + len(missed)))
    looks = {name: style["css"] for name, style in style_models((LEVEL, BOUND), ()).items()}
    text = render(
        "detect.html.j2",
        name=dataset.name,
        address=dataset.address,
        detector=detector,
        figures=figures,
        verdicts=verdicts,
        counts=(len(flagged), len(missed), len(judged)),
        flagged=strips[: len(flagged)],
        missed=strips[len(flagged) :],
        not_judged=[detection for _, detection in judged if detection.alarm is None],
        looks=looks,
        guess=GUESS,
    )
    write_atomic(path, text.encode())


def _make_strip(
    episode: Episode, detection: Detection, reward: Reward, detector: Detector, label: Outcome | None
) -> dict[str, Any]:
    length = len(episode)
    levels, behind = detector.trace(reward, length, episode.instruction)
    bound = levels + behind - detection.threshold
    if detector.at_end:
        bound[:] = bound[-1]  # one line: it is compared at the last frame alone
    bound[bound < 0] = np.nan  # no level is so low
    alarms = list[Event]()
    if detection.flagged_at is not None and detection.went_wrong_at is not None:
        alarms = [Event("went wrong (a guess)", detection.went_wrong_at, detection.flagged_at)]
        alarms += [Event("flagged", detection.flagged_at, detection.flagged_at)]
    events = [Event(f"labelled: {event.kind}", event.first, event.last) for event in label.events] if label else []
    frames = np.arange(length)
    reel = FilmReel.draw(episode.main, {BOUND: (frames, bound), LEVEL: (frames, levels)}, events, alarms)
    return {"episode": episode, "detection": detection, "label": label, "reel": reel}
