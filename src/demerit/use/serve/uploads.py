"""Decode uploaded videos in processes of their own: a bad one crashes or delays only its decoder."""

from __future__ import annotations

import json
import resource
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import LifoQueue
from typing import Any

import numpy as np

from demerit.data.decode import WorkerProcess
from demerit.data.frames import Images, Prepare, new_images, spread
from demerit.data.video import VideoClip, open_video
from demerit.errors import BadInput, UnreadableVideo
from demerit.use.serve.requests import SentFrames, ServeLimits
from demerit.use.serve.wire import join_message, split_message

CALL = "from demerit.use.serve.uploads import decode_uploads; decode_uploads({pipe})"
WHAT = "the video"
DECODER_MEMORY = 2**30
"""bytes of memory for the decoder itself"""


class UploadDecoder:
    """Decodes videos, several at a time. Processes start with the first video and stay."""

    def __init__(self, limits: ServeLimits, processes: int = 2) -> None:
        """Start nothing yet."""
        self.limits, self.processes = limits, processes
        self._free: LifoQueue[WorkerProcess | None] = LifoQueue()
        for _ in range(processes):
            self._free.put(None)

    def decode(self, video: memoryview, budget: int | None, prepare: Prepare | None) -> SentFrames:
        """Decode and prepare all frames, or `budget` spread over the video; raises UnreadableVideo."""
        worker = self._free.get()
        try:
            worker = worker or WorkerProcess(CALL, (), {"OMP_NUM_THREADS": "1"})
            with tempfile.NamedTemporaryFile(prefix="demerit-upload-") as file:
                file.write(video)
                file.flush()
                worker.pipe.send((file.name, budget, prepare, self.limits))
                if not worker.pipe.poll(self.limits.decode_seconds):
                    worker.stop()
                    worker = None
                    raise UnreadableVideo(WHAT, f"decoding takes longer than {self.limits.decode_seconds:g} seconds")
                answer = worker.pipe.recv_bytes()
        except (EOFError, OSError):
            if worker is not None:
                worker.stop()
            worker = None
            raise UnreadableVideo(WHAT, "the decoder died on it") from None
        finally:
            self._free.put(worker)
        text, data = split_message(answer, WHAT)
        header = json.loads(text)
        if "error" in header:
            raise UnreadableVideo(WHAT, header["error"])
        images = np.frombuffer(data, np.uint8).reshape(header["shape"])
        return SentFrames(images, np.array(header["at"], np.int32), np.array(header["times"]))

    def close(self) -> None:
        """Stop the processes."""
        while not self._free.empty():
            worker = self._free.get()
            if worker is not None:
                worker.stop()


def decode_uploads(pipe: int) -> None:
    """Run a decoding process until the server closes the pipe."""
    connection: Connection[Any, Any] = Connection(pipe)
    with suppress(EOFError, ConnectionError):
        while True:
            # the server's own messages are pickled; the answer, made from a stranger's file, is not
            connection.send_bytes(_decode(*connection.recv()))


def _decode(path: str, budget: int | None, prepare: Prepare | None, limits: ServeLimits) -> bytes:
    most = limits.bytes + DECODER_MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))

    def allocate(shape: tuple[int, ...]) -> Images:
        if int(np.prod(shape)) > limits.bytes:
            raise BadInput("size", f"at most {limits.megabytes} MB of images", "x".join(map(str, shape)))
        return new_images(shape)

    try:
        clip = VideoClip(path)
        count = len(clip)
        if count > limits.frames:
            raise BadInput("length", f"at most {limits.frames} frames", count)
        with open_video(path, fresh=False) as (_, stream):
            width, height = stream.codec_context.width, stream.codec_context.height
        if width * height > limits.pixels:
            raise BadInput("size", f"at most {limits.pixels} pixels an image", f"{width}x{height}")
        at = spread(count, budget or count)
        images = clip.take_into(at.tolist(), allocate, prepare)
        header = {"shape": images.shape, "at": at.tolist(), "times": clip.times().tolist()}
        return join_message(header, [images])
    except Exception as error:  # whatever a stranger's file makes the decoder raise
        reason = str(error).replace(path, WHAT) or type(error).__name__
        return join_message({"error": reason.removeprefix(f"{WHAT}: ").rstrip(".")})
