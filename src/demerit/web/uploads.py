"""Files of strangers, read in processes of their own: a bad one crashes or delays only its decoder.

Nothing else of demerit opens a video or an image that a stranger sent, neither to check it nor to score it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import LifoQueue
from threading import Event
from typing import Any

import numpy as np
from PIL import Image

from demerit.data.decode import WorkerProcess
from demerit.data.export import even_images
from demerit.data.frames import Frames, Images, Indices, Prepare, Times, new_images, short_hash, spread
from demerit.data.remux import REMUX_ERRORS, copy_pictures
from demerit.data.video import VideoClip, open_video, write_video
from demerit.errors import BadInput, DemeritError, UnreadableVideo
from demerit.web.doors import LOG

CALL = "from demerit.web.uploads import decode_uploads; decode_uploads({pipe})"
WHAT = "the file"
LEFT_OVER, LEFT_OVER_SECONDS = "demerit-upload-", 60.0
"""how names of files of requests begin, and how old one must be to have been left by a killed server"""
DECODER_MEMORY = 2**30
"""bytes of memory for the decoder itself"""
START_SECONDS = 60.0
"""for a process to say that it can read files"""
LOOK_SECONDS = 0.05
"""between two looks whether a file is still wanted"""
PHOTOS = ("JPEG", "PNG", "WEBP")


@dataclass(frozen=True)
class ServeLimits:
    """What a server accepts."""

    megabytes: int = 256
    """of one request, and of the images of a decoded video"""
    frames: int = 20_000
    """of one request"""
    videos: int = 64
    """of one request"""
    pixels: int = 4096 * 4096
    """of one image"""
    decode_seconds: float = 30.0
    """for one uploaded video"""
    deadline: float = 60.0
    """seconds from the first byte of a request to its answer: sent, decoded, computed"""
    waiting: int = 64
    """requests waiting for a model"""
    live: int = 256
    """live connections"""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise BadInput(name, "a number above 0", value)

    @property
    def bytes(self) -> int:
        """Most bytes of one request."""
        return self.megabytes * 1024 * 1024


@dataclass(frozen=True, eq=False)
class SentFrames:
    """Images that a client sent: all frames of a camera, or some of them."""

    kind = "array"
    images: Images
    at: Indices
    """the frame that each image is, increasing"""
    seconds: Times

    def __len__(self) -> int:
        return len(self.seconds)

    def times(self) -> Times:
        """Seconds from the first frame."""
        return self.seconds

    def take(self, indices: Sequence[int]) -> Images:
        """Copy the given images; raise for a frame that was not sent."""
        wanted = np.asarray(indices, dtype=np.int64)
        places = np.searchsorted(self.at, wanted)
        is_sent = np.append(self.at, -1)[places] == wanted
        if not is_sent.all():
            raise UnreadableVideo("the request", f"frame {wanted[~is_sent][0]} was not sent")
        return self.images[places]

    def identity(self) -> str:
        """Hash every pixel."""
        return short_hash(repr((self.images.shape, self.at.tolist())).encode(), self.images.tobytes())

    def describe(self) -> dict[str, Any]:
        """Raise: there is no file."""
        raise BadInput("frames", "frames that live in a file", "images that a client sent")


class DecoderAway(DemeritError):
    """No process that opens files of strangers can be started, or the disk is full: the server's fault, in its log."""

    status = 503

    def __init__(self) -> None:
        super().__init__("The server cannot open videos and photos now. Your file may be fine: try again later.")


class UploadDecoder:
    """Reads videos and photos, several at a time. Processes start with the first file and stay."""

    def __init__(self, limits: ServeLimits, processes: int = 2) -> None:
        """Start nothing yet."""
        _remove_left_over()
        self.limits, self.processes = limits, processes
        self._free: LifoQueue[WorkerProcess | None] = LifoQueue()
        for _ in range(processes):
            self._free.put(None)

    def decode(
        self, video: memoryview | Path, budget: int | None, prepare: Prepare | None, stop: Event | None = None
    ) -> SentFrames:
        """Decode and prepare all frames of a video, or `budget` spread over it; raises UnreadableVideo.

        When another thread sets `stop`, the process is ended.
        """
        reader = partial(_read_video, limits=self.limits, budget=budget, prepare=prepare)
        if isinstance(video, Path):
            header, data = self._run(reader, video, stop)
        else:
            try:
                with tempfile.NamedTemporaryFile(prefix=LEFT_OVER) as file:
                    fcntl.flock(file, fcntl.LOCK_SH)
                    file.write(video)
                    file.flush()
                    header, data = self._run(reader, Path(file.name), stop)
            except OSError as error:
                LOG.error("A file that was sent cannot be stored for decoding (%s).", error)
                raise DecoderAway from None
        images = np.frombuffer(data, np.uint8).reshape(header["shape"])
        return SentFrames(images, np.array(header["at"], np.int32), np.array(header["times"]))

    def check_photo(self, path: Path) -> None:
        """Raise UnreadableVideo for a file that is not an image of a usual size."""
        self._run(partial(_read_photo, limits=self.limits), path)

    def strip(self, path: Path, copy: Path) -> None:
        """Copy the pictures of a video, as they are if possible, and nothing else; raises UnreadableVideo."""
        self._run(partial(_strip_video, copy=str(copy)), path)

    def close(self) -> None:
        """Stop the processes that are free; a later file starts them again."""
        free = [self._free.get() for _ in range(self._free.qsize())]
        for worker in free:
            if worker is not None:
                worker.stop()
            self._free.put(None)

    def _run(
        self, read: Callable[[str], tuple[dict[str, Any], Any]], path: Path, stop: Event | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Read a file in a process; return its header and data."""
        worker = self._free.get()
        try:
            worker = worker or _start_decoder()
            worker.pipe.send((read, str(path), self.limits.bytes + DECODER_MEMORY))
            until = time.monotonic() + self.limits.decode_seconds
            is_read = is_late = False
            while not is_read or is_late:
                is_stopped = stop is not None and stop.is_set()
                if is_late or is_stopped:
                    worker.stop()
                    worker = None
                    late = f"decoding takes longer than {self.limits.decode_seconds:g} seconds"
                    raise UnreadableVideo(WHAT, late if is_late else "nobody waits for it any more")
                is_read = worker.pipe.poll(min(LOOK_SECONDS, self.limits.decode_seconds))
                is_late = time.monotonic() > until
            header, data = json.loads(worker.pipe.recv_bytes()), worker.pipe.recv_bytes()
        except (EOFError, OSError):
            if worker is not None:
                worker.stop()
            worker = None
            raise UnreadableVideo(WHAT, "the decoder died on it") from None
        finally:
            self._free.put(worker)
        if header.get("is_full"):
            LOG.error("A file that was sent cannot be copied: the disk is full.")
            raise DecoderAway
        if "error" in header:
            raise UnreadableVideo(WHAT, header["error"])
        return header, data


def _start_decoder() -> WorkerProcess:
    """Start a process and wait until it can read files."""
    worker = None
    try:
        worker = WorkerProcess(CALL, (), {"OMP_NUM_THREADS": "1"})
        if worker.pipe.poll(START_SECONDS):
            worker.pipe.recv_bytes()
            return worker
        reason = f"it says nothing for {START_SECONDS:g} seconds"
    except OSError as error:  # no such program, no permission, no memory
        reason = str(error)
    except EOFError:
        reason = "it ended at once; its own message is above"
    if worker is not None:
        worker.stop()
    LOG.error("The process that opens videos and photos cannot be started (%s).", reason)
    raise DecoderAway


def _remove_left_over() -> None:
    """Remove files of requests that killed servers left; those in use are locked."""
    for path in filter(Path.is_file, Path(tempfile.gettempdir()).glob(f"{LEFT_OVER}*")):
        with suppress(OSError), path.open("rb") as file:  # in use, another user's, or gone
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_mtime < time.time() - LEFT_OVER_SECONDS:
                path.unlink()


def decode_uploads(pipe: int) -> None:
    """Run a decoding process until the server closes the pipe."""
    connection: Connection[Any, Any] = Connection(pipe)
    with suppress(EOFError, ConnectionError):
        connection.send_bytes(b"ready")
        while True:
            # the server's own messages are pickled; the answer, made from a stranger's file, is not
            reader, path, memory = connection.recv()
            resource.setrlimit(resource.RLIMIT_DATA, (memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
            try:
                header, data = reader(path)
            except Exception as error:  # whatever a stranger's file makes the decoder raise
                reason = str(error).replace(path, WHAT).replace(os.path.dirname(path), "") or type(error).__name__
                numbers = {getattr(one, "errno", None) for one in (error, error.__cause__)}
                is_full = not numbers.isdisjoint((errno.ENOSPC, errno.EDQUOT))
                header, data = {"error": reason.removeprefix(f"{WHAT}: ").rstrip("."), "is_full": is_full}, b""
            connection.send_bytes(json.dumps(header).encode())
            connection.send_bytes(data)


def _read_video(
    path: str, limits: ServeLimits, budget: int | None, prepare: Prepare | None
) -> tuple[dict[str, Any], memoryview]:
    def allocate(shape: tuple[int, ...]) -> Images:
        if int(np.prod(shape)) > limits.bytes:
            raise BadInput("size", f"at most {limits.megabytes} MB of images", "x".join(map(str, shape)))
        return new_images(shape)

    clip = VideoClip(path)
    count = len(clip)
    if count > limits.frames:
        raise BadInput("length", f"at most {limits.frames} frames", count)
    with open_video(path, fresh=False) as (_, stream):
        _check_size(stream.codec_context.width, stream.codec_context.height, limits)
    at = spread(count, budget or count)
    images = np.ascontiguousarray(clip.take_into(at.tolist(), allocate, prepare))
    header = {"shape": images.shape, "at": at.tolist(), "times": clip.times().tolist()}
    return header, images.reshape(-1).data


def _strip_video(path: str, copy: str) -> tuple[dict[str, Any], bytes]:
    """Copy the pictures of a video as they are, or encode them again where its format cannot be copied."""
    try:
        copy_pictures(path, Path(copy))
    except REMUX_ERRORS:
        frames = Frames(VideoClip(path))
        write_video(copy, even_images(frames), times=frames.times().tolist())
    return {}, b""


def _read_photo(path: str, limits: ServeLimits) -> tuple[dict[str, Any], bytes]:
    with Image.open(path, formats=PHOTOS) as image:
        _check_size(image.width, image.height, limits)
        image.load()
    return {}, b""


def _check_size(width: int, height: int, limits: ServeLimits) -> None:
    if width * height > limits.pixels:
        raise BadInput("size", f"at most {limits.pixels} pixels an image", f"{width}x{height}")
