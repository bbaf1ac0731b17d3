"""The index of a dataset of recordings: windows of equal length, and what the default network sees in each.

A window is seen as an episode of its own: 8 frames, spread evenly, each compared with the window's first. A file per
recording is stored next to the dataset, named by a hash of its frames: an interrupted run resumes, and a recording that
changed is read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.files import atomic_file, make_folder
from demerit.data.frames import Indices, Times
from demerit.data.untrusted import read_npz
from demerit.errors import BadInput, UnreadableVideo
from demerit.models.compact.engine import Engine
from demerit.models.score import rewards_folder

FRAMES = 8
"""frames of a window"""
AT_ONCE = 64
"""windows decoded at once: bounds the memory of a long recording"""
MOST_BYTES = 2**32
Vectors = npt.NDArray[np.float16]


@dataclass(frozen=True)
class WindowPlan:
    """How long windows are and how far apart they begin, in seconds."""

    seconds: float = 4.0
    """infinite = each recording is one window"""
    stride: float = 2.0

    def __post_init__(self) -> None:
        """Validate."""
        if not self.seconds > 0 or not 0 < self.stride <= self.seconds or math.isinf(self.stride):
            expected = "positive numbers, the stride at most the length of a window"
            raise BadInput("window in seconds and stride", expected, (self.seconds, self.stride))

    def spans(self, times: Times) -> Indices:
        """Return (windows, 2): first and last frame of each; the last window ends with the recording."""
        latest = max(float(times[-1]) - self.seconds, 0.0)
        starts = np.append(np.arange(0, latest, self.stride), latest)
        first = np.searchsorted(times, starts - 1e-6)
        last = np.searchsorted(times, starts + self.seconds + 1e-6, side="right") - 1
        return np.unique(np.stack([first, np.maximum(first, last)], axis=1), axis=0).astype(np.int32)


@dataclass(frozen=True, eq=False)
class PlayWindows:
    """The windows of all recordings."""

    episodes: Sequence[Episode]
    """the recordings"""
    owner: Indices
    """the recording of each window"""
    spans: Indices
    """(windows, 2): first and last frame of each"""
    vectors: Vectors
    """(windows, 8, columns): the network's pooled features"""
    problems: dict[str, str]
    """recordings that cannot be read, and why"""

    def __len__(self) -> int:
        return len(self.owner)


def index_folder(dataset: Dataset, plan: WindowPlan, engine: Engine, home: Path | None = None) -> Path:
    """Return the folder of the index: in `home`, or next to the dataset (inside a demerit folder)."""
    name = f"{plan.seconds:g}s-{plan.stride:g}s-{engine.hash[:12]}"
    return (home or rewards_folder(dataset, "any").parents[1] / "windows") / name


def index_windows(
    dataset: Dataset,
    plan: WindowPlan,
    engine: Engine,
    folder: Path,
    on_progress: Callable[[int, int], None] = lambda recordings, windows: None,
) -> PlayWindows:
    """Read what is not indexed yet, and load the index."""
    make_folder(folder)
    episodes, spans, vectors, problems = list[Episode](), list[Indices](), list[Vectors](), dict[str, str]()
    count = 0
    with ThreadPoolExecutor(engine.threads) as pool:
        for done, episode in enumerate(dataset, 1):
            try:
                path = folder / f"{episode.main.identity()}.npz"
                if not path.exists():
                    _write_recording(path, episode, plan, engine, pool)
            except (UnreadableVideo, BadInput) as error:
                problems[episode.id] = str(error)
                continue
            found = read_npz(path, MOST_BYTES, "an index (delete it and run again)")
            episodes.append(episode)
            spans.append(found["spans"])
            vectors.append(found["vectors"])
            count += len(found["spans"])
            on_progress(done, count)
    if not episodes:
        raise BadInput("recordings", "at least one that can be read", next(iter(problems.values()), "an empty dataset"))
    owner = np.repeat(np.arange(len(episodes), dtype=np.int32), [len(one) for one in spans])
    return PlayWindows(episodes, owner, np.concatenate(spans), np.concatenate(vectors), problems)


def _write_recording(path: Path, episode: Episode, plan: WindowPlan, engine: Engine, pool: ThreadPoolExecutor) -> None:
    frames = episode.main
    if len(frames) < 2:  # noqa: PLR2004
        raise BadInput(f"recording {episode.id!r}", "two frames or more", len(frames))
    spans, parts = plan.spans(frames.times()), list[Vectors]()
    if not np.any(spans[:, 1] > spans[:, 0]):
        raise BadInput(f"window of {plan.seconds:g} s", "two frames or more", f"one frame of {episode.id!r}")
    for start in range(0, len(spans), AT_ONCE):
        # fewer than 8 frames are repeated; the last is always the last
        first, last = spans[start : start + AT_ONCE].T
        some = np.rint(np.linspace(first, last, FRAMES, axis=1)).astype(np.int32)
        images = frames.take_prepared(some.ravel(), engine.prepare)
        images = images.reshape(len(some), FRAMES, *images.shape[1:])
        rows = pool.map(lambda window: engine.features(window, window[0])[:, : engine.pooled_width], images)
        parts.append(np.stack(list(rows)).astype(np.float16))
    with atomic_file(path, sync=False) as part, part.open("wb") as file:
        np.savez(file, spans=spans, vectors=np.concatenate(parts))
