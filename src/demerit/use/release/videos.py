"""Every video of a release, written once: as it is where nothing has to go, repacked, or encoded anew.

A file is whole or absent. Beside the finished ones lie notes on how each came about, so that a run that was killed goes
on without asking anybody's detector twice; the notes are no part of the release.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from demerit.data.episode import Episode
from demerit.data.files import copy_atomic, write_atomic
from demerit.data.frames import Frames, FrameSource, Images
from demerit.data.video import EXACT, Encoding, VideoClip, write_video
from demerit.negatives.edits.splice import SplicedFrames
from demerit.use.release.containers import extras
from demerit.use.release.pixels import AT_ONCE, Detector, Painted, load_detector, masks_of
from demerit.use.release.repacked import repack
from demerit.use.release.settings import Mask, Settings

How = Literal["same file", "repacked", "lossless", "encoded anew"]
HOW: tuple[How, ...] = ("same file", "repacked", "lossless", "encoded anew")
"""from the least to the most: an episode is as its worst camera"""
NEVER_SHOWN = "pictures that the file holds and never shows"
GOOD = Encoding(options={"crf": "18", "preset": "veryfast"})
ODD = Encoding(pixel_format="yuv444p", options={"crf": "18", "preset": "veryfast"})
"""for pictures with an odd edge, whose colours cannot be halved"""


@dataclass(frozen=True)
class Written:
    """One file of the release."""

    how: How
    removed: dict[str, int] = field(default_factory=dict)
    """what was in it besides pictures, in how many files or streams; and in how many frames something was hidden"""
    exists: bool = True
    """False: it can be neither copied nor repacked, and its clips are files of their own"""


class Videos:
    """The videos of a release that is being made."""

    def __init__(self, root: Path, notes: Path, settings: Settings) -> None:
        """Videos go to `root`/videos; `notes` is a folder that is thrown away in the end."""
        self._root, self._notes, self._settings = root, notes, settings
        self._done: dict[object, tuple[str, Written]] = {}
        self._repainted: list[Painted] = []

    @property
    def written(self) -> list[Written]:
        """One entry a file, and one for each camera whose pictures another layout covered."""
        painted = [Written("encoded anew", _hidden(one)) for one in self._repainted]
        return [note for _, note in self._done.values() if note.exists] + painted

    @cached_property
    def detector(self) -> Detector | None:
        """The owner's own, if there is one."""
        return load_detector(self._settings.blur) if self._settings.blur else None

    def treated(self, episode: Episode) -> tuple[Episode, How]:
        """Return the episode with its cameras inside the release, and what had to be done for that."""
        views, worst = {}, 0
        for camera, frames in episode.views.items():
            views[camera], how = self._view(frames, camera)
            worst = max(worst, HOW.index(how))
        return replace(episode, views=views), HOW[worst]

    def painted(self, episode: Episode) -> Episode:
        """Return the episode with covered pictures, for a layout that encodes them itself."""
        for path in {file for frames in episode.views.values() for file in _files(frames.source)}:
            if path not in self._done:
                self._done[path] = ("", Written("encoded anew", _found(path)))
        if not self._settings.repaints:
            return episode
        covered = {camera: self._covered(frames, camera) for camera, frames in episode.views.items()}
        self._repainted += covered.values()
        return replace(episode, views={camera: Frames(source) for camera, source in covered.items()})

    def _covered(self, frames: Frames, camera: str) -> Painted:
        return Painted(frames, masks_of(self._settings.masks, camera), self.detector, f"camera {camera!r}")

    def _view(self, frames: Frames, camera: str) -> tuple[Frames, How]:
        masks = masks_of(self._settings.masks, camera)
        if self._settings.materialize:
            name, note = self._encoded(frames, camera, masks)
            return Frames(VideoClip(str(self._root / name), length=len(frames))), note.how
        source, how = self._source(frames.source, camera, masks)
        return Frames(source, frames.indices), how

    def _source(self, source: FrameSource, camera: str, masks: tuple[Mask, ...]) -> tuple[FrameSource, How]:
        if isinstance(source, SplicedFrames):
            parts = [(self._source(part, camera, masks), start, stop) for part, start, stop in source.parts]
            worst = max(HOW.index(how) for (_, how), _, _ in parts)
            return SplicedFrames(tuple((part, start, stop) for (part, _), start, stop in parts)), HOW[worst]
        if masks or self._settings.blur or not isinstance(source, VideoClip):
            name, note = self._encoded(Frames(source), camera, masks)
            return VideoClip(str(self._root / name), length=len(source)), note.how
        name, note = self._once(str(Path(source.path).resolve()), lambda path: _wrapped(source.path, path))
        if not note.exists:
            name, note = self._encoded(Frames(source), camera, masks)
            return VideoClip(str(self._root / name), length=len(source)), note.how
        return replace(source, path=str(self._root / name)), note.how

    def _encoded(self, frames: Frames, camera: str, masks: tuple[Mask, ...]) -> tuple[str, Written]:
        source = frames.source
        if isinstance(source, VideoClip):
            place: tuple[object, ...] = (str(Path(source.path).resolve()), source.start, source.stop, source.rotate)
        else:
            place = (source.kind, source.identity())
        key = (place, None if frames.indices is None else frames.indices.tobytes(), masks)
        exact = not (masks or self.detector or self._settings.materialize or isinstance(source, VideoClip))
        return self._once(key, lambda path: self._encode(frames, camera, path, exact))

    def _encode(self, frames: Frames, camera: str, path: Path, exact: bool) -> Written:
        covered = self._covered(frames, camera)
        height, width = frames.take([0]).shape[1:3]
        encoding = EXACT if exact else GOOD if height % 2 == width % 2 == 0 else ODD
        write_video(path, _pictures(covered), encoding=encoding, times=frames.times().tolist())
        removed = _hidden(covered)
        for file in _files(frames.source):
            removed |= _found(file)
        return Written("lossless" if exact else "encoded anew", removed)

    def _once(self, key: object, write: Callable[[Path], Written]) -> tuple[str, Written]:
        """Write a file if no file of this key is there; numbers are given in the order of asking, run after run."""
        if key not in self._done:
            name = f"videos/{len(self._done):06d}.mp4"
            path, kept = self._root / name, self._notes / f"{len(self._done):06d}.json"
            note = _noted(kept)
            if note is None or (note.exists and not path.exists()):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                note = write(path)
                write_atomic(kept, json.dumps(vars(note)).encode())
            self._done[key] = (name, note)
        return self._done[key]


def _wrapped(source: str, target: Path) -> Written:
    """Copy a file as it is, or repack it; say so when neither will do, without writing anything."""
    found = extras(source)
    if found.clean:
        copy_atomic(source, target)
        return Written("same file")
    if repack(source, target, found):
        return Written("repacked", _found(source))
    return Written("encoded anew", exists=False)


def _found(source: str) -> dict[str, int]:
    found = extras(source)
    counts = {"streams of sound": found.sounds, "streams of something else": found.others}
    counts |= {f"container tag {name!r}": 1 for name in found.tags}
    counts |= {"data of somebody's inside the pictures' stream": int(found.user_data)}
    counts |= {NEVER_SHOWN: found.cut_off}
    counts |= {f"in the container: {reason}": 1 for reason in found.unknown}
    return {what: count for what, count in counts.items() if count}


def _hidden(covered: Painted) -> dict[str, int]:
    counts = {
        "frames with a region masked": len(covered) if covered.masks else 0,
        "frames in which the detector found something to hide": len(covered.hidden),
    }
    return {what: count for what, count in counts.items() if count}


def _files(source: FrameSource) -> Iterator[str]:
    if isinstance(source, SplicedFrames):
        for part, _, _ in source.parts:
            yield from _files(part)
    elif isinstance(source, VideoClip):
        yield str(Path(source.path).resolve())


def _pictures(covered: Painted) -> Iterator[Images]:
    for start in range(0, len(covered), AT_ONCE):
        yield from covered.take(range(start, min(start + AT_ONCE, len(covered))))


def _noted(path: Path) -> Written | None:
    try:
        return Written(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
