"""From datasets to what training reads: every episode's frames at the network's size, and what is known of them.

The corpus grows in a folder beside its own, episode by episode, and takes its name when it is whole: interrupted, it
goes on behind the last episode that was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from demerit.data.dataset import Dataset
from demerit.data.decode import load_ahead
from demerit.data.episode import Episode
from demerit.data.frames import Indices, spread
from demerit.data.labels import Outcome
from demerit.errors import BadInput
from demerit.models.compact.resize import resize_square
from demerit.training.compact.corpus import AUXILIARY, Corpus, Row
from demerit.training.compact.growing import Growing
from demerit.training.compact.labels import check_apart, labels_of
from demerit.training.compact.made_from import LABELS, Prepared, made

MOST_FRAMES = 32
"""of an episode; longer ones are thinned out evenly"""
LENGTH, HEIGHT = 0.3, 0.2
"""metres that count as one in the auxiliary facts"""
TOGETHER = 8
"""episodes decoded at once"""
Floats = npt.NDArray[np.float32]
Use = Literal["data", "demonstrations", "held-out"]


@dataclass(frozen=True, eq=False)
class Part:
    """A dataset, and what it is used as."""

    name: str
    """kept with each episode; several parts may share it"""
    data: Dataset
    use: Use = "data"
    """demonstrations are successes by rule, because somebody showed the task; what is held out is only looked at"""

    def facts(self) -> dict[str, Any]:
        """Tell what a corpus is made from; reads all that the dataset says."""
        told = {"name": self.name, "use": self.use, "address": self.data.address, "episodes": self.data.expected()}
        return {**told, LABELS: labels_of(self.data)}


def prepare(
    parts: Sequence[Part],
    folder: str | Path,
    size: int,
    on_progress: Callable[[Prepared], None] = lambda done: None,
    workers: int = 2,
) -> Corpus:
    """Write the corpus, or open it if it was written before; one that was made from other things is refused.

    Args:
        parts: the datasets.
        folder: where it goes. It appears when it is whole.
        size: pixels a side.
        on_progress: called after every episode.
        workers: processes that decode; 0 = none.
    """
    folder = Path(folder)
    held_out = [(part.name, part.data) for part in parts if part.use == "held-out"]
    if held_out and not folder.exists():
        check_apart([(part.name, part.data) for part in parts if part.use != "held-out"], held_out)
    job = {"size": size, "most_frames": MOST_FRAMES, "parts": [part.facts() for part in parts]}

    def fill(unfinished: Path, done: Prepared) -> None:
        with Growing(unfinished, size) as growing:
            _fill(growing, parts, size, done, on_progress, workers)
            if not growing.rows:
                expected = "episodes with a curve, or demonstrations"
                raise BadInput("training data", expected, f"none that can be used ({done.reasons})")
            growing.finish()

    made(folder, job, fill)
    return Corpus.load(folder)


def wanted(length: int) -> Indices:
    """Choose the frames of an episode that are kept."""
    return spread(length, MOST_FRAMES)


def label(episode: Episode, shown: bool) -> tuple[str, Outcome | None] | None:
    """Tell what an episode may be used as, and by whose account; None when it cannot be used."""
    with_curve = [one for one in episode.outcomes if one.curve is not None]
    measured = [one for one in with_curve if one.source in ("human", "simulator")]
    if measured:
        return "measured", measured[0]
    outcome = episode.outcome
    if shown or (outcome is not None and outcome.success and outcome.source in ("human", "rule")):
        return "demonstration", None
    return ("model", with_curve[0]) if with_curve else None


def auxiliary(episode: Episode, places: Indices) -> Floats:
    """Compute what the simulator's signals say at each frame, in the order of `corpus.AUXILIARY`; NaN without them."""
    if not {"object", "state"} <= set(episode.signals):
        return np.full((len(places), len(AUXILIARY)), np.nan, dtype=np.float32)
    thing, state = (np.asarray(episode.signals[name], dtype=np.float32)[places] for name in ("object", "state"))
    place, hand, openness = thing[:, :3], state[:, :3], state[:, 3]
    columns = [
        np.linalg.norm(place - place[0], axis=1) / LENGTH,
        np.linalg.norm(place - hand, axis=1) / LENGTH,
        openness,
        (place[:, 2] - place[0, 2]) / HEIGHT,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class _Labelled:
    number: int
    """of the part"""
    part: Part
    kind: str
    outcome: Outcome | None


def _fill(
    growing: Growing,
    parts: Sequence[Part],
    size: int,
    done: Prepared,
    on_progress: Callable[[Prepared], None],
    workers: int,
) -> None:
    """Append every episode that is not there yet."""
    streams = (_labelled(number, part, growing, done) for number, part in enumerate(parts))
    for told, episode in _decoded(chain.from_iterable(streams), size, workers, done):
        places = wanted(len(episode))
        problem = _problem(told.outcome, episode)
        if problem:
            done.leave_out(problem)
        else:
            images = resize_square(episode.main.take(places), size)
            row = _row(told, episode, growing.total, len(places))
            growing.add(told.number, row, images, _curve(told.outcome, places), auxiliary(episode, places))
        done.episodes, done.frames = len(growing.rows), growing.total
        on_progress(done)


def _labelled(number: int, part: Part, growing: Growing, done: Prepared) -> Iterator[tuple[_Labelled, Episode]]:
    for episode in part.data:
        if (number, episode.id) in growing.known:
            continue
        told = label(episode, part.use == "demonstrations")
        if told is None:
            done.leave_out("neither a curve nor a demonstration")
        else:
            yield _Labelled(number, part, *told), episode


def _decoded(
    labelled: Iterator[tuple[_Labelled, Episode]], size: int, workers: int, done: Prepared
) -> Iterator[tuple[_Labelled, Episode]]:
    told: list[_Labelled] = []

    def episodes() -> Iterator[Episode]:
        for one, episode in labelled:
            told.append(one)
            yield episode

    shrink = partial(resize_square, side=size)  # where the decoding is done: small pictures travel, and long videos fit
    for batch in load_ahead(episodes(), wanted, TOGETHER, workers, prepare=shrink):
        for loaded in batch:
            one = told.pop(0)
            if loaded.error:
                done.leave_out("unreadable")
            else:
                yield one, loaded.episode


def _problem(outcome: Outcome | None, episode: Episode) -> str:
    """Say why an episode that was decoded cannot be used; empty when it can."""
    if not len(episode):
        return "no frames"
    if outcome is not None and outcome.curve is not None and len(outcome.curve) != len(episode):
        return "a curve of another length than the video"
    return ""


def _row(told: _Labelled, episode: Episode, first: int, frames: int) -> Row:
    success = None if told.outcome is None else told.outcome.success
    return Row(
        id=episode.id,
        source=told.part.name,
        task=episode.origin.tags.get("task") or episode.instruction,
        instruction=episode.instruction,
        kind=told.kind,
        success=True if told.kind == "demonstration" else success,
        first=first,
        frames=frames,
        group=episode.origin.group,
        site=episode.origin.site or episode.origin.tags.get("lab", ""),
        split="held-out" if told.part.use == "held-out" else episode.origin.split,
    )


def _curve(outcome: Outcome | None, places: Indices) -> Floats:
    if outcome is None or outcome.curve is None:
        return np.full(len(places), np.nan, dtype=np.float32)
    return np.asarray(outcome.curve[places], dtype=np.float32)
