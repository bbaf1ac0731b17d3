"""Pictures and videos of episodes for a browser.

A browser shows exactly the frame that a page asks for if the page seeks to the middle of the frame's time on the
screen; `video_times` has those times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from demerit.data.episode import Episode
from demerit.data.export import shrink
from demerit.data.files import atomic_file, make_folder
from demerit.data.frames import Frames, Images, Times, short_hash
from demerit.data.video import Encoding, VideoClip, open_video, write_video
from demerit.errors import BadInput, UnreadableVideo
from demerit.web.server import send_file

THUMBNAIL_WIDTH, VIDEO_WIDTH = 192, 480
ENCODED_AT_ONCE = 128
# No B-frames, as in reports: frames begin exactly at their times, without an edit list that browsers read differently.
VIDEO = Encoding(gop=8, options={"crf": "25", "preset": "veryfast", "bf": "0"})
BROWSER_CODECS = ("h264", "vp9", "av1")
BROWSER_PIXELS = ("yuv420p", "yuvj420p")
WORKERS = 2
"""pictures and videos that are made at the same time"""


class EpisodeMedia:
    """Makes thumbnails and browser videos of frames, each once; safe to use from several threads.

    Files in the cache are named by a hash of the frames, so a changed recording gets a new file.
    """

    def __init__(self, cache: str | Path) -> None:
        """`cache` is the folder to write to."""
        self.cache = make_folder(cache)
        self._locks: dict[str, threading.Lock] = {}
        self._guard, self._workers = threading.Lock(), threading.Semaphore(WORKERS)

    def thumbnail(self, frames: Frames, at: int | None = None) -> Path:
        """Return a small JPEG of a frame; by default the last, which shows the outcome."""
        place = len(frames) - 1 if at is None else at
        if not 0 <= place < len(frames):
            raise BadInput("frame", f"0 to {len(frames) - 1}" if len(frames) else "an episode with frames", place)
        name = f"{short_hash(frames.identity().encode(), str(place).encode())}.jpg"
        return self._make_once(name, partial(_write_thumbnail, frames, place))

    def video(self, frames: Frames) -> Path:
        """Return an mp4 with every frame: the recording if a browser plays it as it is, otherwise a small clip."""
        if plays_as_it_is(frames):
            return Path(frames.source.describe()["path"])
        return self.clip(frames)

    def clip(self, frames: Frames) -> Path:
        """Return a small mp4 with every frame, without sound and metadata of the recording."""
        name = f"{short_hash(frames.identity().encode())}.mp4"
        return self._make_once(name, partial(_write_clip, frames, video_times(frames)))

    def _make_once(self, name: str, write: Callable[[Path], None]) -> Path:
        path = self.cache / name
        with self._guard:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            if not path.exists():
                with self._workers:
                    write(path)
        return path


def media_routes(media: EpisodeMedia, episode_at: Callable[[int], Episode]) -> list[Route]:
    """Return the routes of episodes by their place.

    They are `/media/7.jpg`, `/media/7/12.jpg` (frame 12), `/media/7.mp4`, and `/cameras/7/1.mp4` for another camera.
    Nothing in an address becomes a path.
    """

    def find(request: Request) -> Frames:
        camera = request.path_params.get("camera")
        try:
            episode = episode_at(request.path_params["place"])
            return episode.main if camera is None else list(episode.views.values())[camera]
        except IndexError:
            raise HTTPException(404, f"There is nothing at {request.url.path}.") from None

    def thumbnail(request: Request) -> Response:
        return send_file(request, media.thumbnail(find(request), request.path_params.get("frame")), "image/jpeg")

    def video(request: Request) -> Response:
        return send_file(request, media.video(find(request)), "video/mp4")

    return [
        Route("/media/{place:number}.jpg", thumbnail),
        Route("/media/{place:number}/{frame:number}.jpg", thumbnail),
        Route("/media/{place:number}.mp4", video),
        Route("/cameras/{place:number}/{camera:number}.mp4", video),
    ]


def plays_as_it_is(frames: Frames) -> bool:
    """Whether the frames are a whole mp4 file, in order, in a codec that browsers play, from time 0 on.

    Not with B-frames at a varying rate: the file then says wrong how long each frame lasts, and Chromium shows the next
    frame after some seeks.
    """
    clip = frames.source
    if frames.indices is not None or not isinstance(clip, VideoClip) or clip.rotate:
        return False
    index = clip.scan()
    is_whole = index.seekable and len(frames) == len(index.pts) == index.header_frames and index.pts[0] == 0
    if not is_whole:
        return False
    with open_video(clip.path, fresh=False) as (container, stream):
        is_mp4, context = "mp4" in container.format.name, stream.codec_context
        is_exact = not context.has_b_frames or np.ptp(np.diff(index.pts)) <= 1
        plays = context.codec.canonical_name in BROWSER_CODECS and context.pix_fmt in BROWSER_PIXELS
        return bool(is_mp4 and is_exact and plays)


def video_times(frames: Frames) -> Times:
    """Return the time of each frame in its browser video: that of the recording, evenly spaced if those repeat."""
    if not len(frames):
        raise UnreadableVideo(repr(frames.source), "it has no frame")
    times = frames.times()
    if len(times) > 1 and float(np.diff(times).min()) <= 0:
        return np.arange(len(times)) / 10.0
    return np.asarray(times - times[0])


def _write_thumbnail(frames: Frames, place: int, path: Path) -> None:
    image = shrink(frames.take([place])[0], THUMBNAIL_WIDTH)
    with atomic_file(path, sync=False) as partial_path:
        Image.fromarray(image).save(partial_path, "JPEG", quality=78)


def _write_clip(frames: Frames, times: Times, path: Path) -> None:
    write_video(path, _small_images(frames), encoding=VIDEO, times=times.tolist())


def _small_images(frames: Frames) -> Iterator[Images]:
    for start in range(0, len(frames), ENCODED_AT_ONCE):
        yield from frames.take_prepared(range(start, min(start + ENCODED_AT_ONCE, len(frames))), _shrink_all)


def _shrink_all(images: Images) -> Images:
    return np.stack([shrink(image, VIDEO_WIDTH) for image in images])
