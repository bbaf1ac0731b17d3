"""Frames: a lazy sequence of (height, width, 3) uint8 RGB images with timestamps.

A `Frames` is a source (a clip of a video file, an array, images in an HDF5 file ...) and, for a view, indices into that
source. Selecting from a view gives another view of the same source: clipped, rewound and frozen episodes are lists of
integers, never copies of the video.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
from PIL import Image

from demerit.data.arrays import Floats
from demerit.errors import BadInput, UnknownName, UnreadableVideo
from demerit.registry import Registry

Images: TypeAlias = npt.NDArray[np.uint8]
Times: TypeAlias = Floats
Indices: TypeAlias = npt.NDArray[np.int32]
Prepare: TypeAlias = Callable[[Images], Images]
"""preprocesses (n, height, width, 3) images for a model, usually by shrinking them"""

RGB = 3
IMAGES_DIMENSIONS = 4
IDENTITY_BLOCKS = 16
IDENTITY_BLOCK_BYTES = 4 * 1024
PREPARED_AT_ONCE = 64


@runtime_checkable
class FrameSource(Protocol):
    """Where images come from. Sources are small and picklable; they open files only when asked for frames."""

    @property
    def kind(self) -> str:
        """The registered name with which `frame_source` rebuilds it; 'array' cannot be rebuilt."""
        ...

    def __len__(self) -> int:
        """The number of frames."""
        ...

    def times(self) -> Times:
        """Seconds from the first frame, one per frame."""
        ...

    def take(self, indices: Sequence[int]) -> Images:
        """Decode these frames, in this order, repeats included: (n, height, width, 3) uint8 RGB."""
        ...

    def identity(self) -> str:
        """A hash that changes when the pixels change, but not when the file moves."""
        ...

    def describe(self) -> dict[str, Any]:
        """The arguments that rebuild this source, as JSON values; `path` is the file."""
        ...


FRAME_KINDS = Registry(
    "kind of frames",
    {
        "video": "data.video:VideoClip",
        "packed": "data.video:PackedClip",
        "hdf5": "data.formats.hdf5:Hdf5Frames",
        "tfrecord": "data.formats.rlds:TfRecordFrames",
        "bag": "data.formats.bag_frames:BagFrames",
        "lerobot-images": "data.formats.lerobot.reader:ParquetImages",
        "splice": "data.frames:SplicedFrames.rebuild",
        "altered": "data.frames:AlteredFrames.rebuild",
    },
)


def frame_source(kind: str, fields: Mapping[str, Any]) -> FrameSource:
    """Rebuild a source from what `describe` returned."""
    source: FrameSource = FRAME_KINDS.factory(kind)(**fields)
    return source


def list_recordings(source: FrameSource) -> list[FrameSource]:
    """Return the recordings behind a source: itself, the one that it alters, or those that it joins."""
    if isinstance(source, AlteredFrames):
        return list_recordings(source.source)
    if not isinstance(source, SplicedFrames):
        return [source]
    return [recording for part, _, _ in source.parts for recording in list_recordings(part)]


@dataclass(frozen=True, eq=False)
class Frames:
    """A sequence of images: all frames of a source, or the given indices."""

    source: FrameSource
    indices: Indices | None = field(default=None)

    @classmethod
    def from_array(cls, images: npt.ArrayLike, fps: float = 10.0) -> Frames:
        """Wrap images in memory."""
        return cls(ArrayFrames(np.asarray(images), fps))

    @classmethod
    def from_video(cls, path: str | Path) -> Frames:
        """Open a video file lazily."""
        if not Path(path).is_file():
            raise UnreadableVideo(path, "there is no such file")
        return cls(FRAME_KINDS.factory("video")(str(Path(path).resolve())))

    def __len__(self) -> int:
        return len(self.source) if self.indices is None else len(self.indices)

    def take(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Images:
        """Decode the given frames: (n, height, width, 3) uint8 RGB, a copy."""
        return self.source.take(self._of_source(indices).tolist())

    def take_prepared(
        self,
        indices: Sequence[int] | npt.NDArray[np.integer[Any]],
        prepare: Prepare | None,
        allocate: Callable[[tuple[int, ...]], Images] | None = None,
    ) -> Images:
        """Decode and preprocess the given frames one by one, so a long video is never in memory at full size.

        `allocate(shape)` makes the output array, for sources that decode into one: those with a method `take_into`.
        """
        places = self._of_source(indices).tolist()
        if hasattr(self.source, "take_into"):
            images: Images = self.source.take_into(places, allocate or new_images, prepare)
            return images
        if prepare is None:
            return self.source.take(places)
        starts = range(0, len(places), PREPARED_AT_ONCE)
        parts = [prepare(self.source.take(places[start : start + PREPARED_AT_ONCE])) for start in starts]
        return np.concatenate(parts) if parts else new_images((0, 0, 0, RGB))

    def all(self) -> Images:
        """Decode every frame: one byte per pixel and channel."""
        return self.take(np.arange(len(self)))

    def chunks(self, size: int = 64) -> Iterator[Images]:
        """Decode every frame in chunks of `size`."""
        for start in range(0, len(self), size):
            yield self.take(range(start, min(start + size, len(self))))

    def select(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Frames:
        """Make a view of the given frames, in the given order, repeats allowed."""
        return Frames(self.source, self._of_source(indices))

    def times(self) -> Times:
        """Seconds from the first frame, increasing.

        A view that goes back in time (rewound, frozen) is timed at the source's median step.
        """
        source_times = self.source.times()
        if self.indices is None:
            return source_times
        if self.indices.size and int(self.indices.max()) >= len(source_times):
            reason = f"frame {self.indices.max()} was requested, and only {len(source_times)} frames are there"
            raise UnreadableVideo(repr(self.source), reason)
        clock = source_times[self.indices]
        if len(clock) < 2 or bool(np.all(np.diff(clock) > 0)):  # noqa: PLR2004
            return np.asarray(clock - clock[:1])
        step = float(np.median(np.diff(source_times))) if len(source_times) > 1 else 0.0
        return np.asarray(np.arange(len(clock)) * step, dtype=np.float64)

    def identity(self) -> str:
        """A hash of the visible frames."""
        source = self.source.identity()
        if self.indices is None:
            return source
        return short_hash(source.encode(), np.ascontiguousarray(self.indices, dtype="<i4").tobytes())

    def __repr__(self) -> str:
        view = "" if self.indices is None else f", {len(self.indices)} chosen"
        return f"Frames({self.source!r}{view})"

    def _of_source(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Indices:
        wanted = np.asarray(indices, dtype=np.int64).reshape(-1)
        length = len(self)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= length):
            raise BadInput("frame indices", f"0 to {length - 1}", f"{wanted.min()} to {wanted.max()}")
        places = wanted if self.indices is None else self.indices[wanted]
        flat = np.array(places, dtype=np.int32)
        flat.setflags(write=False)
        return flat


@dataclass(frozen=True, eq=False)
class ArrayFrames:
    """Images in memory."""

    kind = "array"
    images: Images = field(repr=False)
    fps: float = 10.0

    def __post_init__(self) -> None:
        shape_is_good = self.images.ndim == IMAGES_DIMENSIONS and self.images.shape[-1] == RGB
        if not shape_is_good or self.images.dtype != np.uint8:
            got = f"{self.images.dtype} of shape {self.images.shape}"
            raise BadInput("images", "uint8 of shape (n, height, width, 3)", got)
        if not self.fps > 0:
            raise BadInput("fps", "a positive number", self.fps)

    def __len__(self) -> int:
        return len(self.images)

    def times(self) -> Times:
        """Evenly spaced seconds."""
        return np.arange(len(self.images)) / self.fps

    def take(self, indices: Sequence[int]) -> Images:
        """Copy the given images."""
        return self.images[np.asarray(indices, dtype=np.int64)]

    def identity(self) -> str:
        """Hash every pixel."""
        return short_hash(repr(self.images.shape).encode(), np.ascontiguousarray(self.images).tobytes())

    def describe(self) -> dict[str, Any]:
        """Raise: an array has no file."""
        raise BadInput("frames", "frames that live in a file", "images in memory (write them to a video first)")


@dataclass(frozen=True)
class SplicedFrames:
    """Parts of frame sources in a row: (source, first frame, last frame + 1) each."""

    kind = "splice"
    parts: tuple[tuple[FrameSource, int, int], ...]

    def __post_init__(self) -> None:
        for source, start, stop in self.parts:
            if not 0 <= start < stop:
                raise BadInput(f"part of {source!r}", "0 <= start < stop", (start, stop))
            if isinstance(source, AlteredFrames):
                raise BadInput("spliced frames", "recordings as they are", "altered ones (alter the splice)")
        if not self.parts:
            raise BadInput("spliced frames", "at least one part", "none")

    @classmethod
    def rebuild(cls, path: str, first: Mapping[str, Any], rest: Sequence[Mapping[str, Any]]) -> SplicedFrames:
        """Rebuild from the arguments that `describe` returned."""
        folder = Path(path).parent
        places = [path, *(os.path.normpath(folder / str(part["path"])) for part in rest)]
        return cls(
            tuple(
                (frame_source(part["kind"], {**part["fields"], "path": place}), part["start"], part["stop"])
                for place, part in zip(places, [first, *rest], strict=True)
            )
        )

    def __len__(self) -> int:
        return sum(stop - start for _, start, stop in self.parts)

    def times(self) -> Times:
        """Each part keeps its own clock and starts one of its steps after the end of the part before it."""
        clocks: list[Times] = []
        end = 0.0
        for source, start, stop in self.parts:
            clock = source.times()
            step = float(np.median(np.diff(clock))) if len(clock) > 1 else 0.0
            times = clock[start:stop] - clock[start] + (end + step if clocks else 0.0)
            clocks.append(times)
            end = float(times[-1])
        return np.concatenate(clocks)

    def take(self, indices: Sequence[int]) -> Images:
        """Decode the given frames from the parts."""
        wanted = np.asarray(indices, dtype=np.int64)
        if not len(wanted):
            return np.empty((0, 0, 0, 3), dtype=np.uint8)
        out: Images | None = None
        offset = 0
        for source, start, stop in self.parts:
            places = np.flatnonzero((wanted >= offset) & (wanted < offset + stop - start))
            if len(places):
                images = source.take((wanted[places] - offset + start).tolist())
                out = np.empty((len(wanted), *images.shape[1:]), dtype=np.uint8) if out is None else out
                if images.shape[1:] != out.shape[1:]:
                    raise UnreadableVideo(repr(source), "its images have another size than those before the splice")
                out[places] = images
            offset += stop - start
        if out is None or wanted.min() < 0 or wanted.max() >= offset:
            raise BadInput("frame indices", f"0 to {offset - 1}", f"{wanted.min()} to {wanted.max()}")
        return out

    def identity(self) -> str:
        """Hash the parts and their frame ranges."""
        parts = [f"{source.identity()} {start} {stop}" for source, start, stop in self.parts]
        return short_hash(*(part.encode() for part in parts))

    def describe(self) -> dict[str, Any]:
        """The first part's file is the path; the others are relative to its folder, so all can move together."""
        described: list[dict[str, Any]] = []
        for source, start, stop in self.parts:
            fields = {name: value for name, value in source.describe().items() if value is not None}
            described.append({"kind": source.kind, "fields": fields, "start": start, "stop": stop})
        path = described[0]["fields"].pop("path")
        folder = os.path.dirname(path)
        for part in described[1:]:
            part["path"] = Path(os.path.relpath(part["fields"].pop("path"), folder)).as_posix()
        return {"path": path, "first": described[0], "rest": described[1:]}


Alteration: TypeAlias = tuple[str, tuple[float, ...]]
"""a name of `ALTERATIONS`, and its numbers"""


@dataclass(frozen=True)
class AlteredFrames:
    """The frames of a source with every picture changed in the same way, when it is taken. Size and times stay."""

    kind = "altered"
    source: FrameSource
    changes: tuple[Alteration, ...]
    """one after another"""

    def __post_init__(self) -> None:
        if isinstance(self.source, AlteredFrames):
            raise BadInput("altered frames", "a recording or a splice, and all changes", "altered frames")
        for name, numbers in self.changes:
            if name not in ALTERATIONS:
                raise UnknownName("change of pictures", str(name), ALTERATIONS)
            _, count, is_box = ALTERATIONS[name]
            good = len(numbers) == count and all(np.isfinite(numbers))
            if good and is_box:
                x, y, width, height = numbers[:4]
                good = min(x, y) >= 0 and min(width, height) > 0 and max(x + width, y + height) <= 1 + ROUNDING
            if not good:
                expected = f"{count} numbers" + (", the first four a box inside the picture, from 0 to 1" * is_box)
                raise BadInput(f"change {name!r} of pictures", expected, numbers)

    @classmethod
    def rebuild(
        cls, path: str, of: str, fields: Mapping[str, Any], changes: Sequence[tuple[str, Sequence[float]]]
    ) -> AlteredFrames:
        """Rebuild from the arguments that `describe` returned."""
        source = frame_source(of, {**fields, "path": path})
        return cls(source, tuple((name, tuple(map(float, numbers))) for name, numbers in changes))

    def __len__(self) -> int:
        return len(self.source)

    def times(self) -> Times:
        """The times of the source."""
        return self.source.times()

    def take(self, indices: Sequence[int]) -> Images:
        """Decode and change the given frames."""
        return self.take_into(indices, new_images)

    def take_into(
        self, indices: Sequence[int], allocate: Callable[[tuple[int, ...]], Images], prepare: Prepare | None = None
    ) -> Images:
        """Decode and change the given frames; `prepare` sees the changed ones."""

        def change(images: Images) -> Images:
            return self.apply(images) if prepare is None else prepare(self.apply(images))

        return Frames(self.source).take_prepared(indices, change, allocate)

    def apply(self, images: Images) -> Images:
        """Change images; the given ones stay."""
        for name, numbers in self.changes:
            images = ALTERATIONS[name][0](images, *numbers)
        return images

    def identity(self) -> str:
        """Hash the source and the changes."""
        return short_hash(self.source.identity().encode(), repr(self.changes).encode())

    def describe(self) -> dict[str, Any]:
        """The source's file is the path."""
        fields = {name: value for name, value in self.source.describe().items() if value is not None}
        return {"path": fields.pop("path"), "of": self.source.kind, "fields": fields, "changes": self.changes}


def _crop(images: Images, x: float, y: float, width: float, height: float) -> Images:
    """Enlarge a box to the size of the picture; nothing outside it is seen."""
    rows, columns = images.shape[1:3]
    boxes = images[:, *_slices(images, x, y, width, height)]
    cut = [np.asarray(Image.fromarray(box).resize((columns, rows), Image.Resampling.BILINEAR)) for box in boxes]
    return np.stack(cut) if cut else images


def _recolour(images: Images, red: float, green: float, blue: float, light: float) -> Images:
    """Multiply the channels, and add `light` (-1 to 1, 1 is white)."""
    levels = np.arange(256)[:, None] * np.array([red, green, blue]) + 255 * light
    table = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
    return np.stack([table[:, channel][images[..., channel]] for channel in range(RGB)], axis=-1)


def _cover(images: Images, x: float, y: float, width: float, height: float, grey: float) -> Images:
    """Paint a box grey (0 black, 1 white)."""
    covered = images.copy()
    covered[:, *_slices(images, x, y, width, height)] = round(255 * min(max(grey, 0), 1))
    return covered


def _slices(images: Images, x: float, y: float, width: float, height: float) -> tuple[slice, slice]:
    """The rows and columns of a box: at least one of each."""
    rows, columns = images.shape[1:3]
    top, left = min(round(y * rows), rows - 1), min(round(x * columns), columns - 1)
    return slice(top, max(round((y + height) * rows), top + 1)), slice(
        left, max(round((x + width) * columns), left + 1)
    )


ALTERATIONS: dict[str, tuple[Callable[..., Images], int, bool]] = {
    "crop": (_crop, 4, True),
    "recolour": (_recolour, 4, False),
    "cover": (_cover, 5, True),
}
"""changes of pictures: the function, how many numbers it takes, and whether the first four are a box (left, top, width
and height as shares of the picture)"""
ROUNDING = 1e-3
"""how far a box may leave the picture, where its numbers are rounded"""


def alter(frames: Frames, name: str, numbers: Sequence[float]) -> Frames:
    """Make a view of the same frames with one more change of the pictures."""
    source, change = frames.source, (name, tuple(map(float, numbers)))
    if isinstance(source, AlteredFrames):
        return Frames(AlteredFrames(source.source, (*source.changes, change)), frames.indices)
    return Frames(AlteredFrames(source, (change,)), frames.indices)


def spread(length: int, count: int) -> Indices:
    """Spread `count` indices evenly over `length` frames, first and last included.

    rint(linspace(0, length - 1, count)). All indices if length <= count; the last one if count == 1.
    """
    if length <= count:
        return np.arange(length, dtype=np.int32)
    if count == 1:
        return np.array([length - 1], dtype=np.int32)
    return np.rint(np.linspace(0, length - 1, count)).astype(np.int32)


def new_images(shape: tuple[int, ...]) -> Images:
    """Allocate an array of images."""
    return np.empty(shape, dtype=np.uint8)


def short_hash(*parts: bytes) -> str:
    """Hash bytes to 32 hexadecimal digits; parts are kept apart by their lengths."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def file_identity(path: str) -> str:
    """Hash a file's size and 16 blocks of 4 KiB spread over it (small files whole).

    Reading gigabytes to learn that nothing changed would be slow. Re-encoding, trimming or replacing a video changes
    the hash; a change that keeps the size and touches none of the blocks does not.
    """
    return _file_identity(path, *file_state(path))


def file_state(path: str) -> tuple[int, int]:
    """Size and modification time of a regular file: a device or a pipe could be read for ever."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null byte
        raise UnreadableVideo(path, "there is no such file") from None
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableVideo(path, "it is not a file")
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=1024)
def _file_identity(path: str, size: int, _mtime_ns: int) -> str:
    with open(path, "rb") as file:
        if size <= IDENTITY_BLOCKS * IDENTITY_BLOCK_BYTES:
            return short_hash(str(size).encode(), file.read())
        blocks = []
        for start in np.linspace(0, size - IDENTITY_BLOCK_BYTES, IDENTITY_BLOCKS).astype(np.int64):
            file.seek(int(start))
            blocks.append(file.read(IDENTITY_BLOCK_BYTES))
    return short_hash(str(size).encode(), *blocks)
