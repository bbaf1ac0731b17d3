"""A dataset as one MCAP file for Foxglove: cameras, reward curves, verdicts and failures as JSON messages.

    /CAMERA/image         foxglove.CompressedImage: JPEG, at most 480 pixels wide
    /rewards/MODEL        demerit.Value: one for each scored frame
    /labels/progress      demerit.Value: progress as it was labelled
    /state                demerit.State, at every change: episode, instruction, failure
    /log                  foxglove.Log: episodes and labels (info), failures (error), verdicts at the end of an episode

Episodes of a bag keep the times at which the bag was recorded, so that Foxglove shows both on one time line; others
follow one after the other.
"""

from __future__ import annotations

import base64
import heapq
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mcap.writer import Writer
from PIL import Image

from demerit.data.dataset import Dataset, Problem
from demerit.data.episode import Episode
from demerit.data.export import shrink
from demerit.data.files import atomic_file
from demerit.data.frames import Frames, Times
from demerit.data.reward import Reward
from demerit.errors import UnreadableVideo
from demerit.use.view import ViewIndex, index_for_file
from demerit.web.media import VIDEO_WIDTH, video_times

SECOND = 10**9
GAP = SECOND
"""nanoseconds between two episodes"""
QUALITY = 85
INFO, WARNING, ERROR = 2, 3, 4
"""levels of foxglove.Log"""
FRAME_SECONDS = 0.1
"""of an episode whose video cannot be read"""
_TIME = {
    "type": "object",
    "title": "time",
    "properties": {"sec": {"type": "integer", "minimum": 0}, "nsec": {"type": "integer", "minimum": 0}},
}
_TEXT, _NUMBER, _WHOLE = ({"type": kind} for kind in ("string", "number", "integer"))
SCHEMAS: dict[str, dict[str, Any]] = {
    "foxglove.CompressedImage": {
        "frame_id": _TEXT,
        "data": {"type": "string", "contentEncoding": "base64"},
        "format": _TEXT,
    },
    "foxglove.Log": {"level": _WHOLE, "message": _TEXT, "name": _TEXT, "file": _TEXT, "line": _WHOLE},
    "demerit.Value": {"value": _NUMBER, "frame": _WHOLE},
    "demerit.State": {"episode": _TEXT, "instruction": _TEXT, "failure": _TEXT},
}
"""the fields of each schema besides its timestamp"""
Row = tuple[int, str, str, dict[str, Any]]
"""time in nanoseconds, topic, schema, fields"""


def write_mcap(
    dataset: Dataset, dest: str | Path, on_progress: Callable[[int], None] = lambda written: None
) -> tuple[int, list[str]]:
    """Write the file atomically, with the rewards that are stored next to the dataset.

    Returns the number of episodes and the models' names. An episode without its video keeps its curves and is counted
    as a problem. Raises StaleRewards.
    """
    index = index_for_file(dataset, dest)
    written = end = 0
    with atomic_file(dest) as partial, partial.open("wb") as file:
        channels = _Channels(Writer(file))
        channels.writer.start(library="demerit")
        for written, episode in enumerate(dataset, 1):
            start = max(end + GAP, int(getattr(episode.main.source, "first", 0)))
            for row in _episode_rows(dataset, index, episode, start):
                channels.write(*row)
                end = max(end, row[0])
            on_progress(written)
        channels.writer.finish()
    return written, [model.name for model in index.models]


class _Channels:
    """The topics of the file, each registered when it is first used."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self._schemas: dict[str, int] = {}
        self._channels: dict[str, int] = {}

    def write(self, at: int, topic: str, schema: str, fields: dict[str, Any]) -> None:
        if schema not in self._schemas:
            whole = {"title": schema, "type": "object", "properties": {"timestamp": _TIME, **SCHEMAS[schema]}}
            self._schemas[schema] = self.writer.register_schema(schema, "jsonschema", json.dumps(whole).encode())
        if topic not in self._channels:
            self._channels[topic] = self.writer.register_channel(topic, "json", self._schemas[schema])
        stamp = {"sec": at // SECOND, "nsec": at % SECOND}
        data = json.dumps({"timestamp": stamp, **fields}, ensure_ascii=False, allow_nan=False).encode()
        self.writer.add_message(self._channels[topic], at, data, at)


def _episode_rows(dataset: Dataset, index: ViewIndex, episode: Episode, start: int) -> Iterator[Row]:
    """Stream an episode's messages by time; pictures are decoded as they are written."""
    rewards = index.fresh_rewards(episode)
    lengths = [len(label.curve) for label in episode.labels if label.curve is not None]
    lengths += [int(reward.at[-1]) + 1 for reward in rewards if reward is not None and len(reward.at)]
    cameras = []
    times: list[int] = []
    for camera, frames in episode.views.items():
        try:
            own = _moments(video_times(frames), start)
            cameras.append(_image_rows(dataset, episode, camera, frames, own))
            times = times or (own if camera == episode.main_camera else [])
        except UnreadableVideo as error:
            _report(dataset, episode, camera, error)
    times = times or [start + round(place * FRAME_SECONDS * SECOND) for place in range(max([1, *lengths]))]
    rest = sorted(_value_rows(index, episode, rewards, times), key=lambda row: row[0])
    yield from heapq.merge(*cameras, rest, key=lambda row: row[0])


def _moments(times: Times, start: int) -> list[int]:
    return [start + round(seconds * SECOND) for seconds in times.tolist()]


def _image_rows(dataset: Dataset, episode: Episode, camera: str, frames: Frames, times: list[int]) -> Iterator[Row]:
    place = 0
    try:
        for images in frames.chunks():
            for image in images:
                file = io.BytesIO()
                Image.fromarray(shrink(image, VIDEO_WIDTH)).save(file, "JPEG", quality=QUALITY)
                data = base64.b64encode(file.getvalue()).decode()
                fields = {"frame_id": camera, "data": data, "format": "jpeg"}
                yield times[place], f"/{_topic_part(camera)}/image", "foxglove.CompressedImage", fields
                place += 1
    except UnreadableVideo as error:
        _report(dataset, episode, camera, error)


def _report(dataset: Dataset, episode: Episode, camera: str, error: UnreadableVideo) -> None:
    detail = f"camera {camera!r}: {error.path}: {error.reason}"
    dataset.report(Problem("unreadable video", episode.id, detail, kept=True))


def _value_rows(index: ViewIndex, episode: Episode, rewards: list[Reward | None], times: list[int]) -> Iterator[Row]:
    """Yield curves, states and log lines; nothing is written where a value is unknown."""

    def log(at: int, level: int, text: str, name: str) -> Row:
        return at, "/log", "foxglove.Log", {"level": level, "message": text, "name": name, "file": "", "line": 0}

    labels = "; ".join(map(str, episode.labels)) or "no label"
    yield log(times[0], INFO, f"{episode.id}: {episode.instruction} ({labels})", "episode")
    measured = [label.curve for label in episode.labels if label.curve is not None]
    curves: list[tuple[str, Any, Any]] = [("/labels/progress", range(len(curve)), curve) for curve in measured[:1]]
    for model, reward in zip(index.models, rewards, strict=True):
        if reward is not None:
            curves.append((f"/rewards/{_topic_part(model.name)}", reward.at, reward.value))
            level = {True: INFO, False: ERROR, None: WARNING}[reward.verdict.success]
            yield log(times[-1], level, f"{episode.id}: {reward.verdict}", model.name)
    for topic, at, values in curves:
        for frame, value in zip(at, values, strict=True):
            if frame < len(times) and not math.isnan(value):
                yield times[frame], topic, "demerit.Value", {"value": float(value), "frame": int(frame)}
    events = [event for label in episode.labels for event in label.events if event.first < len(times)]
    for event in events:
        yield log(times[event.first], ERROR, f"{event.kind} {event.note}".strip(), episode.id)
    changes = {0, *(event.first for event in events), *(event.last + 1 for event in events)}
    for frame in sorted(change for change in changes if change < len(times)):
        failures = [event.kind for event in events if event.first <= frame <= event.last]
        fields = {"episode": episode.id, "instruction": episode.instruction, "failure": ", ".join(failures) or "none"}
        yield times[frame], "/state", "demerit.State", fields


def _topic_part(name: str) -> str:
    """Keep what Foxglove's message paths need no quotes for.

    >>> _topic_part("my-model v2")
    'my_model_v2'
    """
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "unnamed"
