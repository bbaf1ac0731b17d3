"""The import job: copy a dataset into a demerit folder and record every problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from demerit.data.dataset import Dataset, Problem, Problems
from demerit.data.episode import Episode, safe_name
from demerit.data.files import copy_atomic, make_folder
from demerit.data.frames import Frames, file_identity
from demerit.data.labels import Outcome, Preference
from demerit.data.store import Store, StoreWriter, open_or_create
from demerit.data.video import EXACT, VideoClip, write_video
from demerit.errors import UnreadableVideo


@dataclass
class ImportProgress:
    """The progress of an import."""

    expected: int | None
    added: int = 0
    kept: int = 0
    """episodes imported by an earlier run"""
    preferences: int = 0
    durable: int = 0
    """episodes in the folder at the end"""
    problems: Problems = field(default_factory=Problems)

    @property
    def seen(self) -> int:
        """The number of processed episodes."""
        return self.added + self.kept + self.problems.skipped()


def import_dataset(
    dataset: Dataset,
    dest: str | Path,
    *,
    copy: bool = False,
    licence: str = "",
    on_progress: Callable[[ImportProgress], None] = lambda progress: None,
) -> ImportProgress:
    """Import a dataset into a demerit folder. Run it again after an interruption to resume.

    Args:
        dataset: what to read.
        dest: a new folder, or that of an earlier run of the same import.
        copy: copy videos into the folder; otherwise they are used in place.
        licence: recorded where the dataset has none.
        on_progress: called after every record.
    """
    store = open_or_create(dest, dataset.name, licence, source=dataset.address)
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
    """Check videos and labels, report problems, add what can be used."""
    views: dict[str, Frames] = {}
    for camera, frames in episode.views.items():
        try:
            views[camera] = _check_length(dataset, episode, camera, frames)
        except UnreadableVideo as error:
            others = len(episode.views) > 1
            detail = f"camera {camera!r}: {error.path}: {error.reason}"
            dataset.report(Problem("unreadable video", episode.id, detail, kept=others))
    if not views:
        if len(episode.views) > 1:
            dataset.report(Problem("no camera left", episode.id, "none of its videos can be read", kept=False))
        return 0
    if copy:
        views = {
            camera: _copy_frames(frames, writer.root, f"{episode.id}-{camera}") for camera, frames in views.items()
        }
    origin = episode.origin if episode.origin.licence else replace(episode.origin, licence=licence)
    whole = replace(episode, views=views, origin=origin)
    writer.add(replace(whole, outcomes=tuple(_fit_labels(dataset, whole, outcome) for outcome in whole.outcomes)))
    return 1


def _check_length(dataset: Dataset, episode: Episode, camera: str, frames: Frames) -> Frames:
    """Count the frames of a video and compare with the declared number."""
    clip = frames.source
    if not isinstance(clip, VideoClip):
        len(frames)
        return frames
    index = clip.scan()
    readable = len(index.pts)
    if clip.start is None and clip.stop is None and 0 < readable < index.header_frames:
        # Labels describe the end, and the end is missing.
        raise UnreadableVideo(clip.path, f"it is truncated: it has {readable} of {index.header_frames} frames")
    if clip.length is not None and clip.length != readable:
        detail = f"camera {camera!r}: {clip.length} frames declared, {readable} in the video"
        dataset.report(Problem("wrong frame count", episode.id, detail, kept=True))
        return replace(frames, source=replace(clip, length=readable))
    return frames


def _fit_labels(dataset: Dataset, episode: Episode, outcome: Outcome) -> Outcome:
    """Drop per-frame labels that do not match the number of frames."""
    length = len(episode)
    if outcome.curve is not None and len(outcome.curve) != length:
        detail = f"a curve of {len(outcome.curve)} values for {length} frames"
        dataset.report(Problem("label does not fit", episode.id, detail, kept=True))
        outcome = replace(outcome, curve=None)
    if any(event.last >= length for event in outcome.events):
        dataset.report(Problem("label does not fit", episode.id, f"an event after frame {length - 1}", kept=True))
        outcome = replace(outcome, events=tuple(event for event in outcome.events if event.last < length))
    return outcome


def _copy_frames(frames: Frames, root: Path, name: str) -> Frames:
    """Copy the frames into the folder: video files unchanged, anything else as a lossless video."""
    folder = make_folder(root / "videos")
    if isinstance(frames.source, VideoClip):
        source = Path(frames.source.path)
        target = folder / f"{safe_name(source.stem)[:80]}-{file_identity(str(source))[:12]}{source.suffix.lower()}"
        if not target.exists():
            copy_atomic(source, target)
        return replace(frames, source=replace(frames.source, path=str(target)))
    target = folder / f"{safe_name(name)[:80]}-{frames.identity()[:12]}.mp4"
    if not target.exists():
        write_video(target, chain.from_iterable(frames.chunks()), encoding=EXACT, times=frames.times().tolist())
    return Frames(VideoClip(str(target)))
