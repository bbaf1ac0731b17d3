"""The materialize job: views become video files with a label file beside them, for people and for other tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Dataset, Problem
from demerit.data.episode import Episode, safe_name
from demerit.data.files import make_folder, write_atomic
from demerit.data.frames import Frames, Images, short_hash
from demerit.data.video_writer import write_video
from demerit.errors import StoreError, UnreadableVideo

LABELS = "labels.jsonl"
LONGEST_STEM = 100
AT_ONCE = 64


def materialize(dataset: Dataset, dest: str | Path, on_progress: Callable[[int], None] = lambda written: None) -> int:
    """Write every episode's cameras as small mp4 files; return how many episodes there are.

    The `videos` reader reads the folder back with the same ids, cameras, words and labels. The label file is written
    last; videos of an interrupted run are not written again.
    """
    folder = Path(dest).resolve()
    if (folder / LABELS).exists():
        raise StoreError(folder, f"there is a {LABELS} in it already; nothing is overwritten")
    make_folder(folder / "videos")
    lines = []
    for episode in dataset:
        try:
            files = {camera: _written(folder, episode.id, camera, frames) for camera, frames in episode.views.items()}
        except UnreadableVideo as error:
            dataset.report(Problem("unreadable video", episode.id, f"{error.path}: {error.reason}", kept=False))
            continue
        lines.append(json.dumps(label(episode, files), ensure_ascii=False))
        on_progress(len(lines))
    write_atomic(folder / LABELS, "".join(f"{line}\n" for line in lines).encode())
    return len(lines)


def label(episode: Episode, files: dict[str, str]) -> dict[str, Any]:
    """Write an episode as a row of the label file: the most trusted account, and the curve of whoever has one."""
    origin, said = episode.origin, episode.outcome
    row: dict[str, Any] = {"id": episode.id, "videos": files, "instruction": episode.instruction}
    if said is not None:
        row |= {name: getattr(said, name) for name in ("success", "progress", "grade", "note", "source", "by")}
    if said is not None and said.events:
        row["events"] = [vars(event) for event in said.events]
    drawn = next((account for account in episode.outcomes if account.curve is not None), None)
    if drawn is not None and drawn.curve is not None:
        values = [None if np.isnan(value) else float(value) for value in drawn.curve]
        row |= {"curve": values, "curve_source": drawn.source, "curve_by": drawn.by}
    row |= {name: getattr(origin, name) for name in ("split", "group", "site", "licence", "embodiment", "parent")}
    if episode.edits:
        row["edit"] = "; ".join(f"{edit.name} {json.dumps(dict(edit.params))}" for edit in episode.edits)
    return {name: value for name, value in row.items() if value not in (None, "")}


def _written(folder: Path, id: str, camera: str, frames: Frames) -> str:
    # The hash keeps names apart that are the same once they are safe, or cut short.
    name = f"{safe_name(id)[:LONGEST_STEM]}-{short_hash(id.encode(), camera.encode())[:8]}.mp4"
    path = folder / "videos" / name
    if not path.exists():
        write_video(path, _even(frames), times=frames.times().tolist())
    return f"videos/{name}"


def _even(frames: Frames) -> Iterator[Images]:
    """Decode a few at a time; an odd edge is doubled, because mp4 stores colours for pairs of pixels."""
    for start in range(0, len(frames), AT_ONCE):
        images = frames.take(np.arange(start, min(start + AT_ONCE, len(frames))))
        odd = [(0, 0), (0, images.shape[1] % 2), (0, images.shape[2] % 2), (0, 0)]
        yield from np.pad(images, odd, mode="edge") if any(after for _, after in odd) else images
