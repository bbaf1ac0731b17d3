"""The import job: a foreign dataset becomes a dataset folder of ours, with every problem on record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from demerit.data.dataset import Dataset, Problem, Problems
from demerit.data.episode import Episode, safe_name
from demerit.data.files import copy_atomic
from demerit.data.frames import Frames, file_identity
from demerit.data.labels import Outcome, Preference
from demerit.data.store import Store, StoreWriter
from demerit.data.video import EXACT, VideoClip, write_video
from demerit.errors import StoreError, UnreadableVideo


@dataclass
class ImportProgress:
    """How far an import is."""

    expected: int | None
    added: int = 0
    kept: int = 0
    """imported by an earlier run"""
    preferences: int = 0
    durable: int = 0
    """episodes in the folder that survive a crash"""
    problems: Problems = field(default_factory=Problems)

    @property
    def seen(self) -> int:
        """Episodes dealt with so far."""
        return self.added + self.kept + self.problems.left_out()


def import_dataset(
    dataset: Dataset,
    dest: str | Path,
    *,
    copy: bool = False,
    licence: str = "",
    on_progress: Callable[[ImportProgress], None] = lambda progress: None,
) -> ImportProgress:
    """Bring a dataset into a folder of ours. Run it again after an interruption and it goes on where it was.

    Args:
        dataset: what to read.
        dest: the folder to make, or one that an earlier run of the same import made.
        copy: copy videos into the folder; otherwise they are used where they are.
        licence: the licence to record when the dataset does not say.
        on_progress: called after every record.
    """
    store = _folder(dataset, dest, licence)
    progress = ImportProgress(dataset.expected(), problems=dataset.problems)
    with store.writer() as writer:
        dataset.on_problem = writer.add
        for record in dataset.records():
            if isinstance(record, Preference):
                progress.preferences += _add_preference(dataset, writer, record)
            elif record.id in writer:
                progress.kept += 1
            else:
                progress.added += _add_episode(dataset, writer, record, copy, licence)
            on_progress(progress)
    progress.durable = len(Store(store.root))
    on_progress(progress)
    return progress


def _folder(dataset: Dataset, dest: str | Path, licence: str) -> Store:
    if not Store.is_at(dest):
        return Store.create(dest, dataset.name, licence, source=dataset.address)
    store = Store(dest)
    source = store.manifest.header.get("source")
    if source != dataset.address:
        raise StoreError(dest, f"it holds an import of {source or 'something else'}; choose another folder")
    return store


def _add_preference(dataset: Dataset, writer: StoreWriter, preference: Preference) -> int:
    absent = [id for id in (preference.a, preference.b) if id not in writer]
    if absent:
        detail = f"it compares {absent[0]!r}, which is not in the dataset"
        dataset.report(
            Problem("preference without its episode", f"{preference.a} / {preference.b}", detail, kept=False)
        )
        return 0
    writer.add(preference)
    return 1


def _add_episode(dataset: Dataset, writer: StoreWriter, episode: Episode, copy: bool, licence: str) -> int:
    """Look at the episode's videos and labels, report what is wrong, add what is left."""
    views: dict[str, Frames] = {}
    for camera, frames in episode.views.items():
        try:
            views[camera] = _probed(dataset, episode, camera, frames)
        except UnreadableVideo as error:
            others = len(episode.views) > 1
            detail = f"camera {camera!r}: {error.path}: {error.reason}"
            dataset.report(Problem("unreadable video", episode.id, detail, kept=others))
    if not views:
        if len(episode.views) > 1:
            dataset.report(Problem("no camera left", episode.id, "none of its videos can be read", kept=False))
        return 0
    if copy:
        views = {camera: _copied(frames, writer.root, f"{episode.id}-{camera}") for camera, frames in views.items()}
    origin = episode.origin if episode.origin.licence else replace(episode.origin, licence=licence)
    whole = replace(episode, views=views, origin=origin)
    fitting = tuple(_fitting(dataset, whole, outcome) for outcome in whole.outcomes)
    writer.add(replace(whole, outcomes=fitting))
    return 1


def _probed(dataset: Dataset, episode: Episode, camera: str, frames: Frames) -> Frames:
    """Find out how many frames there really are."""
    clip = frames.source
    if not isinstance(clip, VideoClip):
        len(frames)
        return frames
    index = clip.scan()
    readable = len(index.pts)
    if clip.start is None and clip.stop is None and 0 < readable < index.header_frames:
        # How it ended is what labels speak of, and the end is what is missing.
        raise UnreadableVideo(clip.path, f"it is cut off: {readable} of {index.header_frames} frames are there")
    if clip.length is not None and clip.length != readable:
        detail = f"camera {camera!r}: {clip.length} frames announced, {readable} in the video"
        dataset.report(Problem("wrong frame count", episode.id, detail, kept=True))
        return replace(frames, source=replace(clip, length=readable))
    return frames


def _fitting(dataset: Dataset, episode: Episode, outcome: Outcome) -> Outcome:
    """Drop per-frame labels that do not fit the frames; a label that is off by some frames is no label."""
    length = len(episode)
    if outcome.curve is not None and len(outcome.curve) != length:
        detail = f"a curve of {len(outcome.curve)} values for {length} frames"
        dataset.report(Problem("label does not fit", episode.id, detail, kept=True))
        outcome = replace(outcome, curve=None)
    if any(event.last >= length for event in outcome.events):
        dataset.report(Problem("label does not fit", episode.id, f"an event after frame {length - 1}", kept=True))
        outcome = replace(outcome, events=tuple(event for event in outcome.events if event.last < length))
    return outcome


def _copied(frames: Frames, root: Path, name: str) -> Frames:
    """Bring the frames' file into the folder: videos as they are, anything else as a lossless video."""
    folder = root / "videos"
    folder.mkdir(exist_ok=True)
    if isinstance(frames.source, VideoClip):
        source = Path(frames.source.path)
        target = folder / f"{safe_name(source.stem)[:80]}-{file_identity(str(source))[:12]}{source.suffix.lower()}"
        if not target.exists():
            copy_atomic(source, target)
        return replace(frames, source=replace(frames.source, path=str(target)))
    target = folder / f"{safe_name(name)[:80]}-{frames.identity()[:12]}.mp4"
    if not target.exists():
        times = frames.times()
        write_video(target, _images(frames), encoding=EXACT, times=times.tolist())
    return Frames(VideoClip(str(target)))


def _images(frames: Frames, at_once: int = 64) -> Iterator[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    for start in range(0, len(frames), at_once):
        yield from frames.take(np.arange(start, min(start + at_once, len(frames))))
