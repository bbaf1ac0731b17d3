"""From datasets to what training reads: some frames of every episode, no larger than needed, and what is known of them.

The corpus grows in a folder beside its own and takes its name when it is whole; interrupted, it goes on behind the last
episode that was written. Preferences come last, when it is known which episodes are in.
"""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from demerit.data.dataset import Dataset
from demerit.data.decode import load_ahead
from demerit.data.episode import Episode
from demerit.data.frames import Images, Indices, spread
from demerit.data.labels import Outcome, Preference, most_trusted
from demerit.errors import BadInput, UnreadableVideo
from demerit.models.by_time import ByTime
from demerit.models.vlm.prompt import is_words_alone
from demerit.training.compact.labels import check_apart, labels_of
from demerit.training.compact.made_from import LABELS, Prepared, made
from demerit.training.vlm.corpus import EPISODES, PICTURES, Corpus, Floats, Row
from demerit.training.vlm.frames_kept import frames_kept
from demerit.training.vlm.preferences import NOT_A_MODEL, Heard, choices_of, write_choices
from demerit.training.vlm.recipe import Recipe, RoboRewardRecipe

TOGETHER = 4
"""episodes decoded at once"""


@dataclass(frozen=True, eq=False)
class Part:
    """A dataset, and whether it is for training or for choosing between checkpoints."""

    name: str
    data: Dataset
    split: str = "train"
    shown: bool = False
    """demonstrations: successes by rule, because somebody showed the task"""

    def facts(self) -> dict[str, Any]:
        """Tell what a corpus is made from; reads all that the dataset says."""
        told = {"name": self.name, "split": self.split, "shown": self.shown, "address": self.data.address}
        return {**told, "episodes": self.data.expected(), LABELS: labels_of(self.data)}


def prepare(
    parts: Sequence[Part],
    folder: str | Path,
    recipe: Recipe,
    on_progress: Callable[[Prepared], None] = lambda done: None,
    workers: int = 2,
) -> Corpus:
    """Write the corpus, or open it if it was written before; one that was made from other things is refused.

    Args:
        parts: the datasets.
        folder: where it goes. It appears when it is whole.
        recipe: says which frames are kept and how large.
        on_progress: called after every episode.
        workers: processes that decode; 0 = none.
    """
    folder = Path(folder)
    held_out = [(part.name, part.data) for part in parts if part.split != "train"]
    if held_out and not folder.exists():
        check_apart([(part.name, part.data) for part in parts if part.split == "train"], held_out)

    def fill(unfinished: Path, done: Prepared) -> None:
        _fill(unfinished, parts, recipe, done, on_progress, workers)
        if not done.episodes:
            raise BadInput("training data", "episodes with a label that can be trained on", f"none ({done.reasons})")

    made(folder, {**frames_kept(recipe), "parts": [part.facts() for part in parts]}, fill)
    return Corpus.load(folder)


def row_of(episode: Episode, places: Indices, part: Part) -> Row | str:
    """Label an episode by the most trusted account of it, or say why it cannot be trained on."""
    rule = (Outcome("rule", success=True, by="demonstration"),) if part.shown else ()
    said = [*(one for one in episode.outcomes if one.source in NOT_A_MODEL), *rule]
    account = most_trusted(one for one in said if one.success is not None or one.progress is not None)
    graded = most_trusted(one for one in said if one.grade is not None)
    curve = next((one.curve for one in said if one.curve is not None and len(one.curve) == len(episode)), None)
    if account is None and graded is None and curve is None:
        return "only a model's word" if episode.outcomes else "nobody says what happened"
    if not episode.instruction.strip():
        return "no instruction"
    if not is_words_alone(episode.instruction):
        return "an instruction with a special token in it"
    success = account.success if account else None
    progress = _progress(len(episode), places, curve, success, account)
    last = float(progress[-1]) if len(progress) else np.nan
    return Row(
        id=episode.id,
        source=part.name,
        instruction=episode.instruction,
        success=success,
        progress=progress,
        measured=curve is not None,
        final=1.0 if success else last,
        grade=graded.grade if graded else None,
        times=np.asarray(episode.main.times()[places], np.float32),
        start=0,
        height=0,
        width=0,
        split=part.split,
        group=episode.origin.group,
    )


def shown(episode: Episode, recipe: Recipe) -> Indices:
    """Choose the frames that are kept: evenly spread, or so many a second; the first and the last are always in."""
    if isinstance(recipe, RoboRewardRecipe):
        return ByTime(1 / recipe.fps, recipe.most_frames).by_time(episode.main.times())
    return spread(len(episode), recipe.most_frames)


def shrunk(images: Images, shorter: int) -> Images:
    """Make pictures smaller until the shorter side is that many pixels; smaller ones stay as they are."""
    height, width = images.shape[1:3]
    if not len(images) or min(height, width) <= shorter:
        return images
    scale = shorter / min(height, width)
    size = (round(width * scale), round(height * scale))
    made = [np.asarray(Image.fromarray(one).resize(size, Image.Resampling.BICUBIC)) for one in images]
    return np.stack(made)


def _progress(length: int, places: Indices, curve: Floats | None, success: bool | None, said: Outcome | None) -> Floats:
    if curve is not None:
        return np.asarray(curve[places], np.float32)
    if success:  # the paper's target of a demonstration: t / T
        return np.asarray((places + 1) / length, np.float32)
    progress = np.full(len(places), np.nan, np.float32)
    if said is not None and said.progress is not None and len(places):
        progress[-1] = said.progress  # said of the end, and of nothing before it
    return progress


def _fill(
    folder: Path,
    parts: Sequence[Part],
    recipe: Recipe,
    done: Prepared,
    on_progress: Callable[[Prepared], None],
    workers: int,
) -> None:
    """Append every episode that is not there yet, then write what was chosen between them."""
    rows = _picked_up(folder)
    heard: list[Heard] = []
    end = rows[-1].end if rows else 0
    written = Counter((row.source, row.split, row.id) for row in rows)
    done.episodes = len(rows)
    with (folder / PICTURES).open("ab") as pictures, (folder / EPISODES).open("ab") as journal:
        for part in parts:
            fresh = (one for one in _episodes(part, heard) if not _is_there(written, part, one))
            for row, images in _decoded(_labelled(fresh, part, recipe, done), recipe, workers, done):
                placed = replace(row, start=end, height=images.shape[1], width=images.shape[2])
                _append(pictures, journal, placed, images)
                rows.append(placed)
                end, done.episodes = placed.end, len(rows)
                on_progress(done)
    # grades are asked of one episode at a time: nothing there is compared
    write_choices(folder, [] if isinstance(recipe, RoboRewardRecipe) else choices_of(heard, rows, done.leave_out))


def _is_there(written: Counter[tuple[str, str, str]], part: Part, episode: Episode) -> bool:
    """Tick an episode off if an earlier run wrote it; two parts may share a name and hold equal ids."""
    key = part.name, part.split, episode.id
    if not written[key]:
        return False
    written[key] -= 1
    return True


def _episodes(part: Part, heard: list[Heard]) -> Iterator[Episode]:
    """Yield the episodes of a part, and note the preferences among them."""
    for record in part.data.records():
        if isinstance(record, Preference):
            heard.append(Heard(part.name, part.split, record))
        else:
            yield record


def _labelled(episodes: Iterator[Episode], part: Part, recipe: Recipe, done: Prepared) -> Iterator[tuple[Row, Episode]]:
    """Label what can be trained on, and leave of it the frames that are kept."""
    for episode in episodes:
        try:
            places = shown(episode, recipe)
        except UnreadableVideo:
            done.leave_out("unreadable")
            continue
        row = row_of(episode, places, part)
        if isinstance(row, Row) and isinstance(recipe, RoboRewardRecipe) and row.grade is None:
            row = "no grade"
        if isinstance(row, str):
            done.leave_out(row)
        elif len(places) < recipe.fewest_frames:
            done.leave_out(f"fewer than {recipe.fewest_frames} frames")
        else:
            yield row, replace(episode, views={episode.main_camera: episode.main.select(places)}, signals={})


def _decoded(
    labelled: Iterator[tuple[Row, Episode]], recipe: Recipe, workers: int, done: Prepared
) -> Iterator[tuple[Row, Images]]:
    rows: deque[Row] = deque()

    def episodes() -> Iterator[Episode]:
        for row, episode in labelled:
            rows.append(row)
            yield episode

    small = partial(shrunk, shorter=recipe.shorter_side)  # where the decoding is done: small pictures travel
    for batch in load_ahead(episodes(), every, TOGETHER, workers, prepare=small):
        for loaded in batch:
            row = rows.popleft()
            if loaded.error:
                done.leave_out("unreadable")
            else:
                yield row, loaded.episode.main.all()


def every(length: int) -> Indices:
    """Want all frames that are left."""
    return np.arange(length, dtype=np.int32)


def _append(pictures: BinaryIO, journal: BinaryIO, row: Row, images: Images) -> None:
    """Write the pictures, then the line that names them: what is named is whole."""
    pictures.write(np.ascontiguousarray(images).tobytes())
    pictures.flush()
    os.fsync(pictures.fileno())
    journal.write((json.dumps(row.facts()) + "\n").encode())
    journal.flush()


def _picked_up(folder: Path) -> list[Row]:
    """Read the list as far as it is whole, and cut both files there."""
    rows: list[Row] = []
    kept, journal = 0, folder / EPISODES
    size = (folder / PICTURES).stat().st_size if (folder / PICTURES).exists() else 0
    for line in journal.read_bytes().splitlines(keepends=True) if journal.exists() else []:
        row = _row_in(line) if line.endswith(b"\n") else None
        if row is None or row.end > size:
            break
        rows.append(row)
        kept += len(line)
    for name, length in ((PICTURES, rows[-1].end if rows else 0), (EPISODES, kept)):
        if (folder / name).exists():
            os.truncate(folder / name, length)
    return rows


def _row_in(line: bytes) -> Row | None:
    """Read a line; None where it is damaged, and its episode is prepared again."""
    try:
        return Row.of(json.loads(line))
    except (ValueError, TypeError, KeyError):
        return None
