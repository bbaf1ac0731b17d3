"""Videos of a release: the image stream alone, remuxed bit-exact, or re-encoded where remuxing fails or pixels change.

Records of how each file was made are kept next to the files, so a killed run resumes; they are not part of the release.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Ints
from demerit.data.episode import Episode
from demerit.data.files import make_folder, write_json
from demerit.data.frames import AlteredFrames, Frames, FrameSource, Images, SplicedFrames, Times
from demerit.data.remux import REMUX_ERRORS, copy_pictures
from demerit.data.video import EXACT, Encoding, VideoClip, write_video
from demerit.errors import BadInput
from demerit.use.release.config import BOX_NUMBERS, EVERY_CAMERA, Mask, ReleaseConfig, load_hook

VideoSource = Literal["remuxed", "lossless", "re-encoded"]
VIDEO_SOURCES: tuple[VideoSource, ...] = ("remuxed", "lossless", "re-encoded")
"""from no change to most change; an episode is as its most changed camera"""
GOOD = {"crf": "18", "preset": "veryfast"}
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
    """seconds by which the source's times begin later"""
    hidden: int = 0
    """frames in which the detector found something"""
    exists: bool = True
    """False: the source cannot be remuxed, so each clip of it is encoded separately"""


@dataclass(frozen=True, eq=False)
class _CoveredFrames:
    """A frame source with regions covered, in this process only."""

    whole: Frames
    camera: str
    masks: tuple[Mask, ...]
    detector: Detector | None
    hidden: set[int] = field(default_factory=set)
    """frames taken so far in which the detector found something"""
    kind: str = "array"

    def __len__(self) -> int:
        return len(self.whole)

    def times(self) -> Times:
        return self.whole.times()

    def take(self, indices: Sequence[int]) -> Images:
        source = self.whole.source
        altered = source if isinstance(source, AlteredFrames) else None  # what must be hidden has its place before that
        recorded = self.whole if altered is None else replace(self.whole, source=altered.source)
        images = recorded.take(indices)
        for mask in self.masks:
            paint_black(images, mask)
        for index, image in zip(indices, images, strict=True):
            if self.detector is not None and hide_regions(image, self.detector, self.camera):
                self.hidden.add(index)
        return images if altered is None else altered.apply(images)

    def identity(self) -> str:
        return f"{self.whole.identity()} {self.masks} {self.detector}"

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
        copies = {camera: self._write_view(frames, camera) for camera, frames in episode.views.items()}
        views = {camera: frames for camera, (frames, _) in copies.items()}
        return replace(episode, views=views), max((how for _, how in copies.values()), key=VIDEO_SOURCES.index)

    def cover(self, episode: Episode) -> Episode:
        """Return the episode with covered images, for a layout that encodes them itself."""
        if not self._config.changes_pixels:
            return episode
        covered = {camera: self._cover(frames, camera) for camera, frames in episode.views.items()}
        self._covered += covered.values()
        return replace(episode, views={camera: Frames(source) for camera, source in covered.items()})

    def _cover(self, frames: Frames, camera: str) -> _CoveredFrames:
        masks = tuple(mask for mask in self._config.masks if mask.camera in (camera, EVERY_CAMERA))
        return _CoveredFrames(frames, camera, masks, self._detector)

    def _write_view(self, frames: Frames, camera: str) -> tuple[Frames, VideoSource]:
        if self._partly_shown.intersection(path for path, _ in _shown_times(frames.source, frames.indices)):
            clip, how = self._encode(self._cover(frames, camera))
            return Frames(clip), how
        source, how = self._write_source(frames.source, camera)
        return Frames(source, frames.indices), how

    def _write_source(self, source: FrameSource, camera: str) -> tuple[FrameSource, VideoSource]:
        if isinstance(source, SplicedFrames):
            pieces = [(self._write_source(part, camera), start, stop) for part, start, stop in source.parts]
            parts = tuple((part, start, stop) for (part, _), start, stop in pieces)
            return SplicedFrames(parts), max((how for (_, how), _, _ in pieces), key=VIDEO_SOURCES.index)
        if isinstance(source, AlteredFrames):
            recorded, how = self._write_source(source.source, camera)
            return replace(source, source=recorded), how
        covered = self._cover(Frames(source), camera)
        if isinstance(source, VideoClip) and not covered.masks and self._detector is None:
            name, video = self._write_once(_real(source), lambda path: remux(source.path, path))
            if video.exists:
                start, stop = (None if time is None else time - video.offset for time in (source.start, source.stop))
                return replace(source, path=str(self._root / name), start=start, stop=stop), video.how
        return self._encode(covered)

    def _encode(self, covered: _CoveredFrames) -> tuple[VideoClip, VideoSource]:
        frames = covered.whole
        is_video = isinstance(frames.source, VideoClip | SplicedFrames | AlteredFrames)
        how: VideoSource = "re-encoded" if covered.masks or self._detector or is_video else "lossless"

        def write(path: Path) -> ReleasedVideo:
            height, width = frames.take([0]).shape[1:3]
            # yuv420p needs an even width and height.
            good = Encoding(pixel_format="yuv444p" if height % 2 or width % 2 else "yuv420p", options=GOOD)
            starts = range(0, len(covered), AT_ONCE)
            images = (image for start in starts for image in covered.take(range(len(covered))[start : start + AT_ONCE]))
            write_video(path, images, encoding=EXACT if how == "lossless" else good, times=frames.times().tolist())
            return ReleasedVideo(how, hidden=len(covered.hidden))

        name, video = self._write_once((frames.identity(), covered.masks), write)
        return VideoClip(str(self._root / name), length=len(frames)), video.how

    def _write_once(self, key: object, write: Callable[[Path], ReleasedVideo]) -> tuple[str, ReleasedVideo]:
        """Write a file unless this or an earlier run has; names are numbers in the order of asking."""
        if key not in self._done:
            number = f"{len(self._done):06d}"
            path, record = self._root / "videos" / f"{number}.mp4", self._records / f"{number}.json"
            try:
                video = ReleasedVideo(**json.loads(record.read_bytes()))
            except (OSError, ValueError, TypeError):
                make_folder(path.parent)
                path.unlink(missing_ok=True)
                video = write(path)
                write_json(record, vars(video))
            self._done[key] = (f"videos/{number}.mp4", video)
        return self._done[key]


def remux(source: str, target: Path) -> ReleasedVideo:
    """Copy the image packets alone into a new mp4, atomically; `exists` is False where that cannot be done."""
    try:
        return ReleasedVideo("remuxed", copy_pictures(source, target))
    except REMUX_ERRORS:
        return ReleasedVideo("re-encoded", exists=False)


def partly_shown_files(episodes: Iterable[Episode]) -> set[str]:
    """Find video files with frames that no episode shows: those frames must not be released. Decodes nothing."""
    whole: set[str] = set()
    shown: dict[str, set[int]] = {}
    for frames in (frames for episode in episodes for frames in episode.views.values()):
        for path, ticks in _shown_times(frames.source, frames.indices):
            if ticks is None:
                whole.add(path)
            else:
                shown.setdefault(path, set()).update(ticks.tolist())
    return {path for path, ticks in shown.items() if path not in whole and len(VideoClip(path).scan().pts) > len(ticks)}


def _shown_times(source: FrameSource, indices: npt.NDArray[np.integer] | None) -> Iterator[tuple[str, Ints | None]]:
    """Yield each video file and the ticks shown of it; None = all of it."""
    if isinstance(source, AlteredFrames):
        yield from _shown_times(source.source, indices)
    elif isinstance(source, SplicedFrames):
        frame_numbers = np.arange(len(source)) if indices is None else np.unique(indices)
        offset = 0
        for part, start, stop in source.parts:
            places = frame_numbers[(frame_numbers >= offset) & (frame_numbers < offset + stop - start)] - offset + start
            yield from _shown_times(part, places)
            offset += stop - start
    elif isinstance(source, VideoClip) and indices is None and source.start is None and source.stop is None:
        yield _real(source), None
    elif isinstance(source, VideoClip):
        ticks = source.scan().pts
        yield _real(source), ticks if indices is None else ticks[np.unique(indices)]


def _real(clip: VideoClip) -> str:
    return str(Path(clip.path).resolve())


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
        boxes = np.asarray([] if answer is None else answer, dtype=float).reshape(-1, BOX_NUMBERS)
        if not np.isfinite(boxes).all() or (boxes[:, 2:] < 0).any():
            raise ValueError(f"got {boxes.tolist()}")
    except Exception as error:  # the owner's code may raise and return anything
        what = f"detector on camera {camera!r}"
        raise BadInput(what, "boxes (x, y, width, height)", f"{type(error).__name__}: {error}") from error
    hidden = False
    for x, y, width, height in boxes:
        rows = slice(max(0, int(y - MARGIN * height)), max(0, int(np.ceil(y + height + MARGIN * height))))
        columns = slice(max(0, int(x - MARGIN * width)), max(0, int(np.ceil(x + width + MARGIN * width))))
        region = image[rows, columns]
        side = max(1, -(-max(region.shape[:2]) // MOSAIC_TILES))
        for top in range(0, region.shape[0], side):
            for left in range(0, region.shape[1], side):
                tile = region[top : top + side, left : left + side]
                tile[:] = tile.reshape(-1, 3).mean(axis=0)  # unlike a blur, this cannot be undone
        hidden = hidden or region.size > 0
    return hidden
