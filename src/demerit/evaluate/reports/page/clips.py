"""Small videos inside the report page: which episodes are worth watching, and how they are packed.

A clip plays at an even rate, frame k from k / fps on, and carries the indices of the episode's frames that it shows;
so a place on the curve and a moment of the video are one and the same, whatever the original's timing.
"""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demerit.data.frames import Frames, Images, spread
from demerit.data.video import Encoding, write_video
from demerit.errors import DemeritError
from demerit.evaluate.reports.report import Judged

MOST_FRAMES = 64
WIDEST, POSTER_WIDTH = 240, 112
SLOWEST, QUICKEST = 4.0, 30.0
# No B-frames: each frame is shown exactly at k / fps, with no edit list for a browser to read in its own way.
CLIP = Encoding(gop=8, options={"crf": "27", "preset": "slow", "bf": "0"})


@dataclass(frozen=True, eq=False)
class Clip:
    """A video to embed; `problem` says why there is none."""

    video: str = ""
    """an mp4 in base64"""
    poster: str = ""
    """the last frame, a JPEG in base64"""
    at: tuple[int, ...] = ()
    """which frames of the episode it shows"""
    fps: float = 0.0
    speed: float = 1.0
    """how much faster than life it plays"""
    width: int = 0
    height: int = 0
    problem: str = ""


def clips(chosen: list[Judged], frames: Mapping[str, Frames]) -> dict[str, Clip]:
    """Pack the chosen episodes' videos; one that cannot be read says why and stops nobody."""
    packed = {}
    with tempfile.TemporaryDirectory(prefix="demerit-page-") as folder:
        for episode in chosen:
            if episode.id in frames:
                try:
                    packed[episode.id] = _clip(episode, frames[episode.id], Path(folder) / "clip.mp4")
                except DemeritError as error:
                    packed[episode.id] = Clip(problem=str(error))
    return packed


def _clip(episode: Judged, frames: Frames, path: Path) -> Clip:
    length = len(frames)
    if not length:
        return Clip(problem="The video has no frames.")
    if episode.frames and episode.frames != length:
        # Curves and events count the report's frames: a video of another length would be shown at wrong moments.
        return Clip(problem=f"The video has {length} frames and the report {episode.frames}; they do not fit together.")
    at = spread(length, MOST_FRAMES)
    times = frames.times()
    lasts = float(times[-1] - times[0])
    natural = (len(at) - 1) / lasts if lasts > 0 else 10.0
    fps = min(QUICKEST, max(SLOWEST, natural))
    images = [_shrunk(image, WIDEST) for image in frames.take(at)]
    write_video(path, images, fps, CLIP)
    height, width = images[0].shape[:2]
    video, poster = _base64(path.read_bytes()), _base64(_jpeg(_shrunk(images[-1], POSTER_WIDTH)))
    speed = fps / natural if natural > 0 else 1.0  # a single frame has no speed
    return Clip(video, poster, tuple(int(i) for i in at), round(fps, 6), round(speed, 2), width, height)


def _shrunk(image: Images, widest: int) -> Images:
    """Scale down to at most so many pixels across, in even numbers (yuv420p halves the colours)."""
    from PIL import Image  # noqa: PLC0415

    height, width = image.shape[:2]
    scale = min(1.0, widest / width)
    size = tuple(max(2, 2 * round(side * scale / 2)) for side in (width, height))
    if size == (width, height):
        return image
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))


def _jpeg(image: Images) -> bytes:
    from PIL import Image  # noqa: PLC0415

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=70)
    return buffer.getvalue()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
