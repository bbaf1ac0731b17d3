"""How a prepared corpus keeps the frames of an episode: a small video, every pixel, or a reference to the original."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from PIL import Image

from demerit.data.decode import WorkerDeath, answer_ahead, serve_tasks
from demerit.data.frames import Frames, FrameSource, Images, Prepare, Times, short_hash
from demerit.errors import DemeritError
from demerit.registry import load_attribute

FRAMES, CLIPS = "frames.raw", "frames.video"
Storage = Literal["video", "raw", "originals"]
"""small videos, every pixel, or references to the files of the datasets"""
FILES: dict[Storage, str] = {"video": CLIPS, "raw": FRAMES}
RowT = TypeVar("RowT")


PackedEpisode = tuple[bytes, dict[str, Any]]
"""the frames of an episode as they are stored, and what a `CorpusRow` says about them"""


def pack_episode(frames: Frames, resize: Prepare, storage: Storage) -> PackedEpisode:
    """Decode and resize all frames, and make what is stored of them."""
    every = np.arange(len(frames), dtype=np.int32)
    images = frames.take_prepared(every, resize)
    sides = {"height": images.shape[1], "width": images.shape[2]}
    if storage == "raw":
        return np.ascontiguousarray(images).tobytes(), sides
    if storage == "originals":
        where = {"kind": frames.source.kind, "fields": frames.source.describe()}
        indices = every if frames.indices is None else frames.indices
        original = {**where, "indices": indices.tolist()}
        return b"", {**sides, "stored": 0, "digest": frames.identity(), "original": original}
    content: bytes = load_attribute("demerit.data.video:encode_clip", "Preparing")(images)
    return content, {**sides, "stored": len(content), "digest": short_hash(content)}


def pack_all(
    episodes: Iterable[tuple[RowT, Frames]], resize: Prepare, storage: Storage, workers: int
) -> Iterator[tuple[RowT, PackedEpisode | str]]:
    """Yield each row with its packed frames, or why they cannot be read. Processes work on the next ones meanwhile."""

    def tasks() -> Iterator[tuple[RowT, tuple[Frames, Prepare, Storage]]]:
        for row, frames in episodes:
            if storage == "originals":
                frames.source.describe()  # refuses frames that are in no file
            yield row, (frames, resize, storage)

    if workers == 0:
        yield from ((row, _try_to_pack(message)) for row, message in tasks())
        return
    call = "from demerit.training.frame_storage import pack_worker; pack_worker({pipe})"
    for row, answer in answer_ahead(call, tasks(), workers):
        yield row, str(answer) if isinstance(answer, WorkerDeath) else answer


def pack_worker(pipe: int) -> None:
    """Run a process that decodes and encodes."""
    serve_tasks(pipe, _try_to_pack)


def _try_to_pack(message: tuple[Frames, Prepare, Storage]) -> PackedEpisode | str:
    try:
        return pack_episode(*message)
    except (DemeritError, OSError, MemoryError, ValueError) as error:
        return str(error) or type(error).__name__


@dataclass(frozen=True)
class ResizedFrames:
    """A source whose images are resized as they are read."""

    source: FrameSource
    height: int
    width: int

    @property
    def kind(self) -> str:
        """The kind of what is resized."""
        return self.source.kind

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.source)

    def times(self) -> Times:
        """Return seconds from the first frame."""
        return self.source.times()

    def take(self, indices: Sequence[int]) -> Images:
        """Read and resize the given frames."""
        return Frames(self.source).take_prepared(indices, partial(resize_to, height=self.height, width=self.width))

    def identity(self) -> str:
        """Hash the source and the size."""
        return short_hash(self.source.identity().encode(), repr((self.height, self.width)).encode())

    def describe(self) -> dict[str, Any]:
        """Describe what is resized."""
        return self.source.describe()


def resize_to(images: Images, height: int, width: int) -> Images:
    """Resize (n, any, any, 3) images with Pillow's bicubic filter."""
    if not len(images) or images.shape[1:3] == (height, width):
        return images
    size = (width, height)
    return np.stack([np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC)) for image in images])
