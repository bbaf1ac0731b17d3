"""What the report page's script works on: episodes with their final values, and curves with few digits.

The exact numbers are in the JSON file; a page shows pixels, and three digits are more than a pixel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.frames import spread
from demerit.data.reward import Reward
from demerit.evaluate.reports.page.clips import MOST_FRAMES, Clip
from demerit.evaluate.reports.page.picks import finals
from demerit.evaluate.reports.page.words import number
from demerit.evaluate.reports.report import Judged, Report
from demerit.models.protocol import ModelCard

DENSEST = 512
"""points of a curve beside a video; without one a curve has as many as a clip has frames"""

Table = dict[str, Any]


def script_json(facts: object) -> str:
    """Write JSON that can stand inside a script element, whatever the texts say.

    The HTML parser ends a script at "</script" and changes its mind at "<!--", quotes or not; JSON reads the escaped
    letters back as they were.
    """
    text = json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def page_data(report: Report, clips: Mapping[str, Clip], looks: Mapping[str, str], embed: int) -> Table:
    """What the table and the player need at once; `looks` gives each model its classes of the style sheet."""
    table = finals(report)
    reasons: dict[str, int] = {}
    rewards = [report.rewards_of(card.name) for card in report.cards]
    episodes = []
    for i, episode in enumerate(report.episodes):
        row = _episode(episode, clips.get(episode.id))
        row["final"] = [_short(table[card.name][i], card) for card in report.cards]
        row["why"] = _reasons(episode, rewards, reasons)
        episodes.append({key: value for key, value in row.items() if value not in (None, "", {})})
    models = [{**_model(report, card, table[card.name]), "look": looks[card.name]} for card in report.cards]
    return {"models": models, "episodes": episodes, "reasons": list(reasons), "embed": embed}


def page_curves(report: Report, clips: Mapping[str, Clip]) -> list[Table]:
    """An entry per episode, read only when somebody opens one: events, the true curve, a curve per model."""
    rewards = [report.rewards_of(card.name) for card in report.cards]
    entries = []
    for episode in report.episodes:
        most = DENSEST if clips.get(episode.id, Clip()).video else MOST_FRAMES
        curves = [_curve(each.get(episode.id), card, most) for each, card in zip(rewards, report.cards, strict=True)]
        entry: Table = {"curves": curves}
        if episode.events:
            entry["events"] = [[event.kind, event.first, event.last, event.note] for event in episode.events]
        if episode.curve is not None:
            entry["truth"] = _points(np.arange(len(episode.curve)), episode.curve, 3, most)
        entries.append(entry)
    return entries


def _episode(episode: Judged, clip: Clip | None) -> Table:
    row: Table = {
        "id": episode.id,
        "instruction": episode.instruction,
        "category": episode.category,
        "success": episode.success,
        "grade": episode.grade,
        "progress": None if episode.progress is None else round(episode.progress, 3),
        "by": episode.vouched_by,
        "note": episode.note,
        "frames": episode.frames,
        "seconds": round(episode.seconds, 3) or None,
        "link": playable(episode.video),
    }
    if clip is not None and clip.video:
        row["clip"] = {"at": clip.at, "fps": clip.fps, "speed": clip.speed, "width": clip.width, "height": clip.height}
    elif clip is not None:
        row["problem"] = clip.problem
    return row


def playable(video: str) -> str:
    """Keep an address that opens nothing beyond this machine: a path, or data; the page makes no request elsewhere."""
    has_scheme = ":" in video.split("/", 1)[0]
    return "" if video.startswith("//") or (has_scheme and not video.startswith(("data:video/", "file:"))) else video


def _reasons(episode: Judged, rewards: list[dict[str, Reward]], known: dict[str, int]) -> dict[str, int]:
    """By model (its number): why something is missing, as a number in the list of reasons."""
    found = {}
    for i, each in enumerate(rewards):
        reward = each.get(episode.id)
        reason = "no reward in the report" if reward is None else reward.why_missing
        if reason:
            found[str(i)] = known.setdefault(reason, len(known))
    return found


def _model(report: Report, card: ModelCard, values: npt.NDArray[np.float64]) -> Table:
    """Name and range; where the card knows no range, what was seen in this report, and it says so."""
    known = np.concatenate([values[~np.isnan(values)], *(_known(one) for one in report.rewards_of(card.name).values())])
    seen = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    low = seen[0] if card.low is None else card.low
    high = seen[1] if card.high is None else card.high
    high = high if high > low else low + 1.0
    assumed = card.low is None or card.high is None
    text = f"{card.quantity}, {number(low)} to {number(high)}" + (" as seen here" if assumed else "")
    return {"name": card.name, "control": card.name in report.controls, "low": low, "high": high, "range": text}


def _known(reward: Reward) -> npt.NDArray[np.float64]:
    return reward.value[~np.isnan(reward.value)].astype(np.float64)


def _curve(reward: Reward | None, card: ModelCard, most: int) -> list[Any] | None:
    if reward is None or not reward.scored:
        return None
    return _points(reward.at, reward.value, _digits(card), most)


def _points(at: npt.NDArray[Any], value: npt.NDArray[Any], digits: int, most: int) -> list[Any]:
    """Frame indices and values; 0 in place of the indices means 0, 1, 2 ..."""
    kept = spread(len(at), most)
    at, value = at[kept], value[kept]
    dense = bool(np.array_equal(at, np.arange(len(at))))
    values = [None if math.isnan(one) else _plain(one, digits) for one in value.tolist()]
    return [0 if dense else at.tolist(), values]


def _digits(card: ModelCard) -> int:
    wide = 10
    span = wide if card.low is None or card.high is None else card.high - card.low
    return 3 if span < wide else 2


def _short(value: float, card: ModelCard) -> float | int | None:
    return None if math.isnan(value) else _plain(value, _digits(card) + 1)


def _plain(value: float, digits: int) -> float | int:
    """Round, and write whole numbers without the point: a byte or two for each of a million numbers."""
    rounded = round(value, digits)
    return int(rounded) if rounded == int(rounded) else rounded
