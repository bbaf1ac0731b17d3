"""What a LeRobot dataset to be written looks like. The first episode decides; later ones must fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode, safe_name
from demerit.data.formats.lerobot.info import FRAME_SUCCESS, IMAGES_PREFIX, NOT_SIGNALS
from demerit.data.frames import Frames
from demerit.errors import BadInput

REWARD = "next.reward"
MATRIX = 2
# Timestamps of real recordings are rounded: rates closer than this are the same rate.
SAME_RATE = 0.01
NEARLY_WHOLE = 2e-4
DTYPES = {"f": "float32", "i": "int64", "u": "int64", "b": "bool"}
FIXED_COLUMNS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
    "next.done": "bool",
}


@dataclass(frozen=True)
class Camera:
    """A camera that every episode has."""

    view: str
    key: str
    height: int
    width: int


@dataclass(frozen=True)
class Column:
    """A signal that every episode has."""

    signal: str
    key: str
    dtype: str
    width: int | None
    """numbers per frame; None = one, not in a list"""


@dataclass(frozen=True)
class Plan:
    """Cameras, signals and frame rate of the whole dataset."""

    fps: float
    cameras: tuple[Camera, ...]
    columns: tuple[Column, ...]
    retime: bool
    """whether the caller gave the rate: then what the recordings say about time is set aside"""
    has_rewards: bool

    @property
    def rate(self) -> Fraction:
        """The frame rate as a video file wants it."""
        return _fraction(self.fps)

    def numbers(self) -> dict[str, tuple[str, int | None]]:
        """Every column of the data file but the success one: key to (dtype, width)."""
        signals = {column.key: (column.dtype, column.width) for column in self.columns}
        rewards: dict[str, tuple[str, int | None]] = {REWARD: ("float32", None)} if self.has_rewards else {}
        return {**signals, **{key: (dtype, None) for key, dtype in FIXED_COLUMNS.items()}, **rewards}

    def check(self, episode: Episode) -> None:
        """Refuse an episode that does not fit the first one."""
        missing = [camera.view for camera in self.cameras if camera.view not in episode.views]
        if missing:
            got = f"{', '.join(episode.views)} in episode {episode.id!r}"
            raise BadInput("cameras", f"{', '.join(c.view for c in self.cameras)} as in the first episode", got)
        lengths = {camera.view: len(episode.views[camera.view]) for camera in self.cameras}
        if len(set(lengths.values())) > 1:
            raise BadInput(f"cameras of episode {episode.id!r}", "the same number of frames", lengths)
        if not self.retime:
            for camera in self.cameras:
                _check_rate(self.fps, episode.views[camera.view], f"{camera.view!r} of episode {episode.id!r}")

    def values(self, column: Column, episode: Episode, frames: int) -> npt.NDArray[Any]:
        """Read one signal of an episode and refuse it if it does not fit."""
        if column.signal not in episode.signals:
            hint = f"{', '.join(episode.signals) or 'none'} (choose with signals=)"
            raise BadInput(f"signals of episode {episode.id!r}", f"{column.signal!r} as in the first episode", hint)
        found = _column(column.signal, episode.signals[column.signal])
        values = np.asarray(episode.signals[column.signal])
        if len(values) != frames or (found.dtype, found.width) != (column.dtype, column.width):
            expected = f"{column.dtype} {_shape(frames, column.width)}"
            got = f"{found.dtype} {_shape(len(values), found.width)}"
            raise BadInput(f"signal {column.signal!r} of episode {episode.id!r}", expected, got)
        return values.astype(column.dtype).reshape(_shape(frames, column.width))


def plan_of(
    first: Episode,
    fps: float | None,
    cameras: Mapping[str, str] | None,
    signals: Sequence[str] | None,
    has_rewards: bool,
) -> Plan:
    """Learn from the first episode what the dataset is made of."""
    if fps is not None and not fps > 0:
        raise BadInput("fps", "a positive number", fps)
    keys = {name: _camera_key(name) for name in first.views} if cameras is None else dict(cameras)
    unknown = [name for name in keys if name not in first.views]
    if unknown or not keys:
        raise BadInput("cameras", f"some of {', '.join(first.views)}", ", ".join(unknown) or "none")
    if len(set(keys.values())) < len(keys) or any("/" in key for key in keys.values()):
        raise BadInput("camera keys", "different names without '/'", keys)
    names = [*first.signals] if signals is None else [*signals]
    chosen = [name for name in names if not (has_rewards and name == REWARD)]
    absent = [name for name in chosen if name not in first.signals]
    if absent:
        raise BadInput("signals", f"some of {', '.join(first.signals) or 'none'}", ", ".join(absent))
    return Plan(
        # The very rate of the video's clock: rounded differently, long files would drift from their timestamps.
        fps=float(_fraction(fps if fps is not None else _rate_of(first.views[next(iter(keys))]))),
        cameras=tuple(Camera(name, key, *_size(first.views[name], first.id)) for name, key in keys.items()),
        columns=tuple(_column(name, first.signals[name]) for name in chosen),
        retime=fps is not None,
        has_rewards=has_rewards,
    )


def info_features(plan: Plan, video: Mapping[str, Any], has_success: bool) -> dict[str, dict[str, Any]]:
    """Write the `features` of meta/info.json; `video` is what all cameras' videos have in common."""
    features: dict[str, dict[str, Any]] = {}
    for column in plan.columns:
        names = None if column.width is None else [f"{column.signal}_{i}" for i in range(column.width)]
        features[column.key] = {"dtype": column.dtype, "shape": [column.width or 1], "names": names}
    for camera in plan.cameras:
        shape = [camera.height, camera.width, 3]
        details = {"video.height": camera.height, "video.width": camera.width, **video}
        features[camera.key] = {
            "dtype": "video",
            "shape": shape,
            "names": ["height", "width", "channels"],
            "info": details,
        }
    rest = {key: dtype for key, (dtype, _) in plan.numbers().items() if key not in features}
    for key, dtype in {**rest, **({FRAME_SUCCESS: "bool"} if has_success else {})}.items():
        features[key] = {"dtype": dtype, "shape": [1], "names": None}
    return features


def _fraction(fps: float) -> Fraction:
    return Fraction(fps).limit_denominator(1001)


def _camera_key(view: str) -> str:
    return view if view.startswith("observation.image") else IMAGES_PREFIX + safe_name(view)


def _size(frames: Frames, episode: str) -> tuple[int, int]:
    if not len(frames):
        raise BadInput(f"episode {episode!r}", "at least one frame", "none")
    _, height, width, _ = frames.take([0]).shape
    return height, width


def _column(name: str, values: npt.ArrayLike) -> Column:
    array = np.asarray(values)
    key = "observation.state" if name == "state" else name
    if key in NOT_SIGNALS or "/" in key:
        raise BadInput("signal name", "a name that LeRobot does not use itself and without '/'", repr(name))
    if array.dtype.kind not in DTYPES or not 1 <= array.ndim <= MATRIX:
        got = f"{array.dtype} of shape {array.shape} (choose others with signals=)"
        raise BadInput(f"signal {name!r}", "numbers, (frames,) or (frames, dimensions)", got)
    width = None if array.ndim == 1 or array.shape[1] == 1 else int(array.shape[1])
    return Column(name, key, DTYPES[array.dtype.kind], width)


def _shape(frames: int, width: int | None) -> tuple[int, ...]:
    return (frames,) if width is None else (frames, width)


def _rate_of(frames: Frames) -> float:
    rate = _measured_rate(frames)
    if rate is None:
        raise BadInput("fps", "a number, as one frame does not tell a rate", None)
    return float(round(rate)) if abs(rate / max(round(rate), 1) - 1) < NEARLY_WHOLE else rate


def _measured_rate(frames: Frames) -> float | None:
    times = frames.times()
    return float((len(times) - 1) / (times[-1] - times[0])) if len(times) > 1 and times[-1] > times[0] else None


def _check_rate(fps: float, frames: Frames, whose: str) -> None:
    rate = _measured_rate(frames)
    if rate is not None and abs(rate / fps - 1) > SAME_RATE:
        expected = f"{fps:g} frames per second as in the first episode (fps=, or --fps, writes all at one rate)"
        raise BadInput(f"frame rate of camera {whose}", expected, f"{rate:g}")
