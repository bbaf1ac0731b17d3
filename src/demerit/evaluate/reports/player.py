"""What the player and the episode table of a page show: chosen episodes, small videos, and curves as JSON."""

from __future__ import annotations

import base64
import io
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from demerit.data.arrays import Floats
from demerit.data.export import shrink
from demerit.data.frames import Frames, spread
from demerit.data.reward import Reward
from demerit.data.video import Encoding, write_video
from demerit.errors import DemeritError
from demerit.evaluate.reports.headline import models_of, number
from demerit.evaluate.reports.report import EpisodeLabels, Report
from demerit.models.protocol import ModelCard

LISTED = 24
"""number of examples listed, even where fewer videos are embedded"""
MAX_FRAMES = 64
WIDEST, POSTER_WIDTH = 240, 112
SLOWEST, FASTEST = 4.0, 30.0
# No B-frames: each frame is shown exactly at k / fps, without an edit list that browsers read differently.
CLIP = Encoding(gop=8, options={"crf": "27", "preset": "slow", "bf": "0"})
MAX_POINTS = 512
"""points of a curve next to a video; without a video a curve has as many as a clip has frames"""
WIDE_RANGE = 10

Json = dict[str, Any]


# Examples


@dataclass(frozen=True, eq=False)
class ExamplePick:
    """An episode to look at, and why."""

    index: int
    """its place in the report"""
    episode: EpisodeLabels
    kind: Literal["over", "under", "other"]
    why: str


def final_values(report: Report) -> dict[str, Floats]:
    """Return the final value of every episode by model, NaN where unscored."""
    table = {}
    for card in report.cards:
        rewards = report.rewards_of(card.name)
        values = [rewards[row.id].final if row.id in rewards else math.nan for row in report.episodes]
        table[card.name] = np.array(values, dtype=np.float64)
    return table


def pick_examples(report: Report, count: int) -> list[ExamplePick]:
    """Choose episodes: two over-rewarded failures to every doubted success, the models taking turns.

    A failure is over-rewarded if at least half of the successes are scored no higher (the over-reward rate counts the
    same episodes); a doubted success is the mirror image. The rest is filled by disagreement between the models.
    """
    table = final_values(report)
    success = np.array([math.nan if row.success is None else float(row.success) for row in report.episodes])
    # Values that are not comparable across episodes cannot be too high for one of them.
    names = [card.name for card in report.cards if card.name in models_of(report) and card.comparable]
    over = _take_turns([_mistakes(report, name, table[name], success, "over") for name in names])
    under = _take_turns([_mistakes(report, name, table[name], success, "under") for name in names])
    picks = _take_turns([over[::2], over[1::2], under])
    return _take_turns([[*picks, *_disagreements(report, table)]])[:count]


def _mistakes(
    report: Report, model: str, value: Floats, success: Floats, kind: Literal["over", "under"]
) -> list[ExamplePick]:
    wrong, right, sign = (0.0, 1.0, 1.0) if kind == "over" else (1.0, 0.0, -1.0)
    others = np.sort(sign * value[(success == right) & ~np.isnan(value)])
    rows = np.flatnonzero((success == wrong) & ~np.isnan(value))
    if not len(others) or not len(rows):
        return []
    share = np.searchsorted(others, sign * value[rows], side="right") / len(others)
    order = [int(i) for i in np.lexsort((-sign * value[rows], -share)) if share[i] >= 1 / 2]
    side, typical = ("failure", "success") if kind == "over" else ("success", "failure")
    median = number(float(sign * np.median(others)))
    picks = []
    for row in rows[order]:
        why = f"{model} gives this {side} {number(value[row])}; the median {typical} gets {median}."
        picks.append(ExamplePick(int(row), report.episodes[row], kind, why))
    return picks


def _take_turns(lists: list[list[ExamplePick]]) -> list[ExamplePick]:
    """First the first of each list, then the second of each; every episode once."""
    picks: dict[int, ExamplePick] = {}
    for group in zip_longest(*lists):
        for pick in group:
            if pick is not None:
                picks.setdefault(pick.index, pick)
    return list(picks.values())


def _disagreements(report: Report, table: dict[str, Floats]) -> list[ExamplePick]:
    """Order all episodes by how far apart the models are, each scaled to its own range."""
    names = models_of(report) or list(report.controls)
    scaled = [_scale(table[name]) for name in names if name in table]
    if not report.episodes or not scaled:
        return []
    stacked = np.stack(scaled)
    is_known = ~np.isnan(stacked)
    top = np.where(is_known, stacked, -np.inf).max(axis=0)
    bottom = np.where(is_known, stacked, np.inf).min(axis=0)
    apart = np.where(is_known.any(axis=0), top - bottom, -1.0)
    return [ExamplePick(int(i), report.episodes[i], "other", "") for i in np.argsort(-apart, kind="stable")]


def _scale(values: Floats) -> Floats:
    numbers = values[~np.isnan(values)]
    if not len(numbers) or numbers.max() == numbers.min():
        return np.asarray(values * 0.0)
    return np.asarray((values - numbers.min()) / (numbers.max() - numbers.min()))


# Clips


@dataclass(frozen=True, eq=False)
class ReportClip:
    """A video to embed; `problem` says why there is none.

    It plays at an even rate, frame k from k / fps on, and lists the episode's frames that it shows, so a place on the
    curve and a moment of the video correspond, for any original timing.
    """

    video: str = ""
    """mp4, base64"""
    poster: str = ""
    """the last frame: JPEG, base64"""
    at: tuple[int, ...] = ()
    """frame indices of the episode"""
    fps: float = 0.0
    speed: float = 1.0
    """relative to real time"""
    width: int = 0
    height: int = 0
    problem: str = ""


def make_clips(episodes: list[EpisodeLabels], frames: Mapping[str, Frames]) -> dict[str, ReportClip]:
    """Encode the videos of some episodes; one that cannot be read gets a `problem`."""
    clips = {}
    with tempfile.TemporaryDirectory(prefix="demerit-page-") as folder:
        for episode in episodes:
            if episode.id in frames:
                try:
                    clips[episode.id] = _make_clip(episode, frames[episode.id], Path(folder) / "clip.mp4")
                except DemeritError as error:
                    clips[episode.id] = ReportClip(problem=str(error))
    return clips


def _make_clip(episode: EpisodeLabels, frames: Frames, path: Path) -> ReportClip:
    length = len(frames)
    if not length:
        return ReportClip(problem="The video has no frames.")
    if episode.frames and episode.frames != length:
        # Curves and events count the report's frames; another video would be shown at wrong moments.
        return ReportClip(problem=f"The video has {length} frames and the report {episode.frames}.")
    at = spread(length, MAX_FRAMES)
    times = frames.times()
    seconds = float(times[-1] - times[0])
    natural = (len(at) - 1) / seconds if seconds > 0 else 10.0
    fps = min(FASTEST, max(SLOWEST, natural))
    images = [shrink(image, WIDEST) for image in frames.take(at)]
    write_video(path, images, fps, CLIP)
    height, width = images[0].shape[:2]
    poster = io.BytesIO()
    Image.fromarray(shrink(images[-1], POSTER_WIDTH)).save(poster, "JPEG", quality=70)
    return ReportClip(
        video=base64.b64encode(path.read_bytes()).decode("ascii"),
        poster=base64.b64encode(poster.getvalue()).decode("ascii"),
        at=tuple(int(i) for i in at),
        fps=round(fps, 6),
        speed=round(fps / natural if natural > 0 else 1.0, 2),  # a single frame has no speed
        width=width,
        height=height,
    )


def make_film(frames: Frames, count: int, height: int) -> str:
    """Return `count` frames from the first to the last, side by side: one JPEG, base64. Empty if there is no frame."""
    images = [Image.fromarray(image) for image in frames.take(spread(len(frames), count))]
    if not images:
        return ""
    width = max(1, round(images[0].width * height / images[0].height))
    film = Image.new("RGB", (width * len(images), height))
    for place, image in enumerate(images):
        film.paste(image.resize((width, height), Image.Resampling.LANCZOS), (width * place, 0))
    buffer = io.BytesIO()
    film.save(buffer, "JPEG", quality=82)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


# JSON for the scripts: the exact numbers are in report.json; three digits are enough for pixels


def script_json(facts: object) -> str:
    """Return JSON that is safe inside a script element, for any texts; of an iterator, a list made row by row.

    The HTML parser ends a script at "</script" even inside quotes, so the letters that it knows are escaped.
    """
    if isinstance(facts, Iterator):
        return f"[{','.join(map(script_json, facts))}]"
    text = json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def page_data(report: Report, clips: Mapping[str, ReportClip], styles: Mapping[str, str], embed: int) -> Json:
    """Return what the table and the player need at once; `styles` gives each model's CSS classes."""
    table = final_values(report)
    reasons: dict[str, int] = {}
    rewards = [report.rewards_of(card.name) for card in report.cards]
    episodes = []
    for i, episode in enumerate(report.episodes):
        row = _episode_json(episode, clips.get(episode.id))
        row["final"] = [_round_final(table[card.name][i], card) for card in report.cards]
        row["why"] = _why_missing(episode, rewards, reasons)
        row["guess"] = {
            str(place): by_episode[episode.id].familiarity
            for place, by_episode in enumerate(rewards)
            if episode.id in by_episode and by_episode[episode.id].is_guess
        }
        episodes.append({key: value for key, value in row.items() if value not in (None, "", {})})
    models = [{**_model_json(report, card), "look": styles[card.name]} for card in report.cards]
    return {"models": models, "episodes": episodes, "reasons": list(reasons), "embed": embed}


def page_curves(report: Report, clips: Mapping[str, ReportClip]) -> Iterator[Json]:
    """Yield an entry per episode, parsed only when one is opened: events, the true curve, a curve per model."""
    rewards = [report.rewards_of(card.name) for card in report.cards]
    for episode in report.episodes:
        clip = clips.get(episode.id)
        most = MAX_POINTS if clip is not None and clip.video else MAX_FRAMES
        entry: Json = {"curves": []}
        for card, by_episode in zip(report.cards, rewards, strict=True):
            reward = by_episode.get(episode.id)
            if reward is None or not reward.scored:
                entry["curves"].append(None)
            else:
                entry["curves"].append(curve_points(reward.at, reward.value, digits_of(card), most))
        if episode.events:
            entry["events"] = [[event.kind, event.first, event.last, event.note] for event in episode.events]
        if episode.curve is not None:
            entry["truth"] = curve_points(np.arange(len(episode.curve)), episode.curve, 3, most)
        yield entry


def playable(video: str) -> str:
    """Return an address on this machine or with embedded data; empty for any other, so pages make no requests."""
    has_scheme = ":" in video.split("/", 1)[0]
    return "" if video.startswith("//") or (has_scheme and not video.startswith(("data:video/", "file:"))) else video


def _episode_json(episode: EpisodeLabels, clip: ReportClip | None) -> Json:
    row: Json = {
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


def _why_missing(episode: EpisodeLabels, rewards: list[dict[str, Reward]], reasons: dict[str, int]) -> dict[str, int]:
    """By model index: why something is missing, as an index into the list of reasons."""
    codes = {}
    for i, by_episode in enumerate(rewards):
        reward = by_episode.get(episode.id)
        reason = "no reward in the report" if reward is None else reward.why_missing
        if reason:
            codes[str(i)] = reasons.setdefault(reason, len(reasons))
    return codes


def _model_json(report: Report, card: ModelCard) -> Json:
    """Name and range; if the card has no range, the range of the values in this report."""
    rewards = report.rewards_of(card.name).values()
    values = np.concatenate([np.zeros(0), *(reward.value for reward in rewards)]).astype(np.float64)
    numbers = values[~np.isnan(values)]
    limits = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    low = limits[0] if card.low is None else card.low
    high = limits[1] if card.high is None else card.high
    high = high if high > low else low + 1.0
    assumed = " as seen here" if card.low is None or card.high is None else ""
    text = f"{card.quantity}, {number(low)} to {number(high)}{assumed}"
    return {"name": card.name, "control": card.name in report.controls, "low": low, "high": high, "range": text}


def curve_points(at: npt.NDArray[Any], value: npt.NDArray[Any], digits: int, most: int) -> list[Any]:
    """Return frame indices and values; 0 in place of the indices means 0, 1, 2 ..."""
    kept = spread(len(at), most)
    at, value = at[kept], value[kept]
    is_dense = bool(np.array_equal(at, np.arange(len(at))))
    values = [None if math.isnan(number) else _round(number, digits) for number in value.tolist()]
    return [0 if is_dense else at.tolist(), values]


def digits_of(card: ModelCard) -> int:
    """Return how many digits of a model's values are shown."""
    span = WIDE_RANGE if card.low is None or card.high is None else card.high - card.low
    return 3 if span < WIDE_RANGE else 2


def _round_final(value: float, card: ModelCard) -> float | int | None:
    return None if math.isnan(value) else _round(value, digits_of(card) + 1)


def _round(value: float, digits: int) -> float | int:
    """Round, and write whole numbers without the point: a page may hold a million numbers."""
    rounded = round(value, digits)
    return int(rounded) if rounded == int(rounded) else rounded
