"""Which pictures of a release some episode shows, and how many lie in its files that none does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import FrameSource
from demerit.data.video import VideoClip
from demerit.negatives.edits.splice import SplicedFrames

Moments = npt.NDArray[np.int64]


def unseen_frames(episodes: Iterable[Episode]) -> tuple[int, int]:
    """Count the frames that no episode shows, and all frames of the files that hold some. Decodes nothing."""
    whole: set[str] = set()
    seen: dict[str, set[int]] = {}
    for episode in episodes:
        for frames in episode.views.values():
            for path, moments in _moments(frames.source, frames.indices):
                if moments is None:
                    whole.add(path)
                elif path not in whole:
                    seen.setdefault(path, set()).update(moments.tolist())
    unseen = total = 0
    for path, moments_seen in seen.items():
        if path not in whole:
            count = len(VideoClip(path).scan().pts)
            if count > len(moments_seen):
                unseen, total = unseen + count - len(moments_seen), total + count
    return unseen, total


def _moments(source: FrameSource, indices: npt.NDArray[np.integer] | None) -> Iterator[tuple[str, Moments | None]]:
    """Yield file and the moments shown of it; None = all of it."""
    if isinstance(source, SplicedFrames):
        chosen = np.arange(len(source)) if indices is None else np.unique(indices)
        offset = 0
        for part, start, stop in source.parts:
            here = chosen[(chosen >= offset) & (chosen < offset + stop - start)] - offset + start
            yield from _moments(part, here)
            offset += stop - start
    elif isinstance(source, VideoClip):
        if indices is None and source.start is None and source.stop is None:
            yield source.path, None
        else:
            pts = source.scan().pts
            yield source.path, pts if indices is None else pts[np.unique(indices)]
