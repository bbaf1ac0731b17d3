"""Videos of a release: the image stream alone, remuxed bit-exact, or re-encoded where remuxing fails or pixels change.

A file is complete or absent. Beside the finished files lie records of how each was made, so a killed run resumes; the
records are not part of the release.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.files import atomic_file, write_json
from demerit.data.frames import Frames, FrameSource, Images, Times, short_hash, spread
from demerit.data.video import DECODER_ERRORS, EXACT, Encoding, VideoClip, write_video
from demerit.errors import BadInput, UnreadableVideo
from demerit.negatives.edits.splice import SplicedFrames
from demerit.use.release.config import BOX_NUMBERS, EVERY_CAMERA, Mask, ReleaseConfig, load_hook

VideoSource = Literal["remuxed", "lossless", "re-encoded"]
VIDEO_SOURCES: tuple[VideoSource, ...] = ("remuxed", "lossless", "re-encoded")
"""from no change to most change; an episode is as its most changed camera"""
ALLOWED_UNITS = {"h264": "1-5|7-11|13", "av1": "1-4|6-7"}
"""units of the stream that hold image data; SEI, metadata, padding and unknown units are removed"""
WITHOUT_UNITS = ("vp8", "vp9")
"""codecs whose stream has no place for metadata; all others are re-encoded"""
AV1_HEADER = 4
GOOD = Encoding(options={"crf": "18", "preset": "veryfast"})
ODD = Encoding(pixel_format="yuv444p", options={"crf": "18", "preset": "veryfast"})
"""for images with an odd width or height, which yuv420p cannot hold"""
COMPARED_IMAGES, SAME_SECONDS = 5, 1e-3
AT_ONCE = 32
MOSAIC_TILES = 4
"""tiles along the longer side of a hidden region"""
MARGIN = 0.15
"""boxes of a detector grow by this share on every side"""

Detector = Callable[[Images], Any]


@dataclass(frozen=True)
class ReleasedVideo:
    """How one file of the release was made."""

    how: VideoSource
    offset: float = 0.0
    """seconds by which its times begin earlier than the source's"""
    hidden: int = 0
    """frames in which the detector found something"""
    exists: bool = True
    """False: the source cannot be remuxed, so each clip of it is encoded by itself"""


@dataclass(frozen=True, eq=False)
class _CoveredFrames:
    """A frame source with regions covered, in this process only."""

    whole: Frames
    masks: tuple[Mask, ...]
    detector: Detector | None
    camera: str
    hidden: set[int] = field(default_factory=set)
    """frames taken so far in which the detector found something"""

    @property
    def kind(self) -> str:
        return "array"

    def __len__(self) -> int:
        return len(self.whole)

    def times(self) -> Times:
        return self.whole.times()

    def take(self, indices: Sequence[int]) -> Images:
        images = self.whole.take(indices)
        for mask in self.masks:
            paint_black(images, mask)
        if self.detector is not None:
            found = [hide_regions(image, self.detector, self.camera) for image in images]
            self.hidden.update(index for index, was_hidden in zip(indices, found, strict=True) if was_hidden)
        return images

    def identity(self) -> str:
        return short_hash(self.whole.identity().encode(), repr((self.masks, self.detector)).encode())

    def describe(self) -> dict[str, Any]:
        raise BadInput("frames", "frames that are in a file", "covered frames")


class ReleaseVideos:
    """Writes the videos of a release, each once."""

    def __init__(self, root: Path, records: Path, config: ReleaseConfig, episodes: Iterable[Episode]) -> None:
        """Videos go to `root`/videos; `records` is a folder that is deleted at the end."""
        self._root, self._records, self._config = root, records, config
        self._detector: Detector | None = load_hook(config.blur, "--blur") if config.blur else None
        self._partly_shown = partly_shown_files(episodes)
        self._done: dict[object, tuple[str, ReleasedVideo]] = {}
        self._covered: list[_CoveredFrames] = []

    @property
    def hidden_frames(self) -> int:
        """Frames in which the detector found something."""
        return sum(len(frames.hidden) for frames in self._covered) + sum(v.hidden for _, v in self._done.values())

    def write(self, episode: Episode) -> tuple[Episode, VideoSource]:
        """Write an episode's videos; return the episode that shows them, and how they were made."""
        views, most = {}, 0
        for camera, frames in episode.views.items():
            views[camera], how = self._write_view(frames, camera)
            most = max(most, VIDEO_SOURCES.index(how))
        return replace(episode, views=views), VIDEO_SOURCES[most]

    def cover(self, episode: Episode) -> Episode:
        """Return the episode with covered images, for a layout that encodes them itself."""
        if not self._config.changes_pixels:
            return episode
        views = {camera: self._cover(frames, camera) for camera, frames in episode.views.items()}
        self._covered += views.values()
        return replace(episode, views={camera: Frames(source) for camera, source in views.items()})

    def _cover(self, frames: Frames, camera: str) -> _CoveredFrames:
        return _CoveredFrames(frames, self._masks(camera), self._detector, camera)

    def _masks(self, camera: str) -> tuple[Mask, ...]:
        return tuple(mask for mask in self._config.masks if mask.camera in (camera, EVERY_CAMERA))

    def _write_view(self, frames: Frames, camera: str) -> tuple[Frames, VideoSource]:
        if self._partly_shown.intersection(_files(frames.source)):
            clip, how = self._encode(frames, camera)
            return Frames(clip), how
        source, how = self._write_source(frames.source, camera)
        return Frames(source, frames.indices), how

    def _write_source(self, source: FrameSource, camera: str) -> tuple[FrameSource, VideoSource]:
        if isinstance(source, SplicedFrames):
            parts = [(self._write_source(part, camera), start, stop) for part, start, stop in source.parts]
            most = max(VIDEO_SOURCES.index(how) for (_, how), _, _ in parts)
            return SplicedFrames(tuple((part, start, stop) for (part, _), start, stop in parts)), VIDEO_SOURCES[most]
        if isinstance(source, VideoClip) and not self._masks(camera) and self._detector is None:
            name, made = self._write_once(_real(source), lambda path: remux(source.path, path))
            if made.exists:
                start, stop = (None if time is None else time - made.offset for time in (source.start, source.stop))
                return replace(source, path=str(self._root / name), start=start, stop=stop), made.how
        return self._encode(Frames(source), camera)

    def _encode(self, frames: Frames, camera: str) -> tuple[VideoClip, VideoSource]:
        covered = self._cover(frames, camera)
        exact = not (covered.masks or self._detector or isinstance(frames.source, VideoClip | SplicedFrames))

        def write(path: Path) -> ReleasedVideo:
            height, width = frames.take([0]).shape[1:3]
            encoding = EXACT if exact else ODD if height % 2 or width % 2 else GOOD
            write_video(path, _images(covered), encoding=encoding, times=frames.times().tolist())
            return ReleasedVideo("lossless" if exact else "re-encoded", hidden=len(covered.hidden))

        name, made = self._write_once((frames.identity(), covered.masks), write)
        return VideoClip(str(self._root / name), length=len(frames)), made.how

    def _write_once(self, key: object, write: Callable[[Path], ReleasedVideo]) -> tuple[str, ReleasedVideo]:
        """Write a file unless this or an earlier run has; names are numbers in the order of asking."""
        if key not in self._done:
            number = f"{len(self._done):06d}"
            name, record = f"videos/{number}.mp4", self._records / f"{number}.json"
            path = self._root / name
            made = _read_record(record)
            if made is None or (made.exists and not path.exists()):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                made = write(path)
                write_json(record, vars(made))
            self._done[key] = (name, made)
        return self._done[key]


def remux(source: str, target: Path) -> ReleasedVideo:
    """Copy the image packets alone into a new mp4, atomically; `exists` is False where that cannot be done."""
    refused: tuple[type[Exception], ...] = (_NotRemuxable, UnreadableVideo, *DECODER_ERRORS)
    try:
        with atomic_file(target) as partial:
            _copy_packets(source, partial)
            offset = _compare(source, str(partial))
        return ReleasedVideo("remuxed", offset)
    except refused:
        return ReleasedVideo("re-encoded", exists=False)


class _NotRemuxable(Exception):
    pass


def _copy_packets(source: str, target: Path) -> None:
    import av  # noqa: PLC0415
    from av.bitstream import BitStreamFilterContext  # noqa: PLC0415
    from av.container import Flags  # noqa: PLC0415

    with av.open(source) as given:
        stream = given.streams.video[0]
        codec = stream.codec_context.codec.canonical_name
        units = ALLOWED_UNITS.get(codec)
        if units is None and codec not in WITHOUT_UNITS:
            raise _NotRemuxable
        if codec == "av1" and not _is_plain_av1(stream.codec_context.extradata or b""):
            raise _NotRemuxable
        with av.open(str(target), "w", format="mp4", options={"write_btrt": "0"}) as made:
            # Bit-exact: no muxer name and no date.
            made.flags = made.flags | Flags.bitexact.value  # type: ignore[operator]  # PyAV's annotation is wrong
            out = made.add_stream_from_template(stream, opaque=True)
            out.metadata.clear()
            out.time_base = stream.time_base
            rate = stream.average_rate or stream.guessed_rate
            step = max(1, round(1 / (rate * stream.time_base))) if rate and stream.time_base else 1
            first = int(VideoClip(source).scan().pts[0])
            units_filter = BitStreamFilterContext(f"filter_units=pass_types={units}", stream, out) if units else None
            for packet in given.demux(stream):
                if not packet.size:
                    continue
                if packet.pts is None or packet.is_discard:  # an edit list hides it, but a player could show it
                    raise _NotRemuxable
                for kept in units_filter.filter(packet) if units_filter else [packet]:
                    kept.pts = None if kept.pts is None else kept.pts - first
                    kept.dts = None if kept.dts is None else kept.dts - first
                    kept.duration = kept.duration or step  # Matroska omits it, and mp4 drops a last frame without
                    kept.stream = out
                    made.mux(kept)


def _is_plain_av1(header: bytes) -> bool:
    """Whether a header holds nothing after its sequence header, where metadata may be."""
    sequence = header[AV1_HEADER:]
    return len(sequence) < 2 or (sequence[0] >> 3 & 15 == 1 and len(sequence) == 2 + sequence[1])  # noqa: PLR2004


def _compare(source: str, made: str) -> float:
    """Compare all times and some images; return how many seconds later the source begins."""
    before, after = VideoClip(source), VideoClip(made)
    old, new = ((scan.pts * scan.seconds_per_tick) for scan in (before.scan(), after.scan()))
    if len(old) != len(new) or not np.allclose(old - old[0], new - new[0], rtol=0, atol=SAME_SECONDS):
        raise _NotRemuxable
    some = spread(len(old), COMPARED_IMAGES).tolist()
    if not np.array_equal(before.take(some), after.take(some)):
        raise _NotRemuxable
    return float(old[0] - new[0])


def partly_shown_files(episodes: Iterable[Episode]) -> set[str]:
    """Find video files with frames that no episode shows: those frames must not be released. Decodes nothing."""
    whole: set[str] = set()
    shown: dict[str, set[int]] = {}
    for episode in episodes:
        for frames in episode.views.values():
            for path, times in _shown_times(frames.source, frames.indices):
                if times is None:
                    whole.add(path)
                else:
                    shown.setdefault(path, set()).update(times.tolist())
    return {path for path, times in shown.items() if path not in whole and len(VideoClip(path).scan().pts) > len(times)}


def _shown_times(
    source: FrameSource, indices: npt.NDArray[np.integer] | None
) -> Iterator[tuple[str, npt.NDArray[np.int64] | None]]:
    """Yield file and the ticks shown of it; None = all of it."""
    if isinstance(source, SplicedFrames):
        chosen = np.arange(len(source)) if indices is None else np.unique(indices)
        offset = 0
        for part, start, stop in source.parts:
            here = chosen[(chosen >= offset) & (chosen < offset + stop - start)] - offset + start
            yield from _shown_times(part, here)
            offset += stop - start
    elif isinstance(source, VideoClip) and indices is None and source.start is None and source.stop is None:
        yield _real(source), None
    elif isinstance(source, VideoClip):
        ticks = source.scan().pts
        yield _real(source), ticks if indices is None else ticks[np.unique(indices)]


def paint_black(images: Images, mask: Mask) -> None:
    """Paint a region black in place; a region that leaves the image is refused."""
    height, width = images.shape[1:3]
    if mask.x + mask.width > width or mask.y + mask.height > height:
        got = f"{mask.x},{mask.y},{mask.width},{mask.height}"
        raise BadInput(f"mask of camera {mask.camera!r}", f"a region inside its {width}x{height} pixels", got)
    images[:, mask.y : mask.y + mask.height, mask.x : mask.x + mask.width] = 0


def hide_regions(image: Images, detector: Detector, camera: str) -> bool:
    """Put a mosaic over what the detector finds, in place; return whether it found anything."""
    try:
        answer = detector(image.copy())
    except Exception as error:  # the owner's code may raise anything
        raise BadInput(f"detector on camera {camera!r}", "boxes", f"{type(error).__name__}: {error}") from error
    found = np.asarray([] if answer is None else answer)
    is_boxes = found.dtype.kind in "fiu" and found.ndim in (1, 2) and found.shape[-1] == BOX_NUMBERS
    if found.size and not (
        is_boxes and np.isfinite(found).all() and (found.reshape(-1, BOX_NUMBERS)[:, 2:] >= 0).all()
    ):
        raise BadInput(f"detector on camera {camera!r}", "boxes (x, y, width, height)", repr(answer))
    hidden = False
    for x, y, wide, high in found.reshape(-1, BOX_NUMBERS).astype(float):
        rows = slice(max(0, int(y - MARGIN * high)), max(0, int(np.ceil(y + high + MARGIN * high))))
        columns = slice(max(0, int(x - MARGIN * wide)), max(0, int(np.ceil(x + wide + MARGIN * wide))))
        image[rows, columns] = _mosaic(image[rows, columns])
        hidden = hidden or image[rows, columns].size > 0
    return hidden


def _mosaic(region: Images) -> Images:
    """Give every tile its mean colour. Unlike a blur, this cannot be undone."""
    side = max(1, -(-max(region.shape[:2]) // MOSAIC_TILES))
    coarse = np.empty_like(region)
    for top in range(0, region.shape[0], side):
        for left in range(0, region.shape[1], side):
            tile = (slice(top, top + side), slice(left, left + side))
            coarse[tile] = region[tile].reshape(-1, 3).mean(axis=0)
    return coarse


def _files(source: FrameSource) -> Iterator[str]:
    if isinstance(source, SplicedFrames):
        for part, _, _ in source.parts:
            yield from _files(part)
    elif isinstance(source, VideoClip):
        yield _real(source)


def _real(clip: VideoClip) -> str:
    return str(Path(clip.path).resolve())


def _images(covered: _CoveredFrames) -> Iterator[Images]:
    for start in range(0, len(covered), AT_ONCE):
        yield from covered.take(range(start, min(start + AT_ONCE, len(covered))))


def _read_record(path: Path) -> ReleasedVideo | None:
    try:
        return ReleasedVideo(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
