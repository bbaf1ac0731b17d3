"""Every frame of every episode through the network once; what it said is kept on disk.

A lesson that is interrupted, killed, or given again after a few more labels decodes nothing twice.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.decode import load_ahead
from demerit.data.episode import Episode
from demerit.data.files import write_atomic
from demerit.data.frames import short_hash
from demerit.data.reward import Reward
from demerit.errors import BadEpisode, DemeritError, StoreError
from demerit.models.taught.features import Features, Stream, beats
from demerit.models.trivial import Change, Motion
from demerit.training.teach.lesson import Room, Seen, half

BATCH = 2
"""episodes at once: what was looked at is kept after each"""
FRAMES_A_SECOND = 150
"""what two slow cores manage with decoding; the budget rests on it, so that time stays bounded and nothing is timed"""
ALLOWED = ((0, 40.0), (10, 60.0), (40, 180.0), (500, 900.0))
"""episodes, and the seconds that looking at them may take; in between, and beyond, in proportion"""


@dataclass(frozen=True)
class Unseen:
    """An episode that could not be looked at."""

    id: str
    reason: str


def stride_for(lengths: Sequence[int], cameras: int) -> int:
    """Look at every so many-th frame, so that a lesson of many or long episodes still ends in time."""
    frames = sum(lengths) * max(1, cameras)
    return max(1, -(-frames // frame_budget(len(lengths))))


def frame_budget(episodes: int) -> int:
    """How many frames a lesson of so many episodes may look at."""
    counts, seconds = zip(*ALLOWED, strict=True)
    if episodes > counts[-1]:
        return int(FRAMES_A_SECOND * seconds[-1] * episodes / counts[-1])
    return int(FRAMES_A_SECOND * np.interp(episodes, counts, seconds))


class Shelf:
    """A folder of what was seen, a file an episode, named by what it depends on."""

    def __init__(self, folder: Path, room: Room) -> None:
        """Use a folder that exists."""
        self.folder = folder
        facts = [room.maker.hash, list(room.cameras), room.stride]
        self._of_room = json.dumps(facts).encode()

    def path(self, episode: Episode) -> Path:
        """Where an episode's features are kept."""
        return self.folder / f"{short_hash(self._of_room, episode.fingerprint().encode())}.npz"

    def put(self, seen: Seen) -> None:
        """Keep what was seen, in one step."""
        arrays: dict[str, npt.NDArray[Any]] = {"at": seen.at, "length": np.array([seen.length])}
        arrays |= {f"tower.{number}": tower for number, tower in enumerate(seen.tower.values())}
        for one in seen.controls:
            arrays |= {f"control.{one.model}.at": one.at, f"control.{one.model}.value": one.value}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        write_atomic(self.path(seen.episode), buffer.getvalue())

    def get(self, episode: Episode, cameras: Sequence[str]) -> Seen | None:
        """Find what was seen before; a damaged file counts as none."""
        try:
            # from memory: numpy leaves the file open where it is damaged
            with np.load(io.BytesIO(self.path(episode).read_bytes()), allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}
            tower = {camera: found[f"tower.{number}"] for number, camera in enumerate(cameras)}
            names = sorted({name.split(".")[1] for name in found if name.startswith("control.")})
            controls = tuple(
                Reward(name, episode.id, found[f"control.{name}.at"], found[f"control.{name}.value"]) for name in names
            )
            return Seen(episode, int(found["length"][0]), found["at"], tower, controls)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, StoreError):
            return None


def look(
    episodes: Sequence[Episode],
    room: Room,
    shelf: Shelf,
    workers: int,
    on_done: Callable[[int], None] = lambda done: None,
) -> Iterator[Seen | Unseen]:
    """Yield every episode looked at, or the reason why it cannot be; what is on the shelf comes first."""
    todo: list[Episode] = []
    done = 0
    for episode in episodes:
        known, problem = _known(episode, room, shelf)
        if known is None and not problem:
            todo.append(episode)
            continue
        done += 1
        on_done(done)
        yield known if known is not None else Unseen(episode.id, problem)
    wanted = partial(beats, stride=room.stride)
    ahead = load_ahead(todo, wanted, BATCH, workers, lambda episode: list(room.cameras), room.maker.prepare)
    originals = {one.id: one for one in todo}
    for batch in ahead:
        for loaded in batch:
            done += 1
            original = originals[loaded.episode.id]
            if loaded.error:
                on_done(done)
                yield Unseen(original.id, loaded.error)
                continue
            try:
                seen = replace(_seen(loaded.episode, room), episode=original)
            except DemeritError as error:
                on_done(done)
                yield Unseen(original.id, str(error))
                continue
            shelf.put(seen)
            on_done(done)
            yield seen


def common_cameras(episodes: Sequence[Episode]) -> tuple[str, ...]:
    """Name the cameras that all episodes have, in the first one's order."""
    shared = set.intersection(*(set(one.views) for one in episodes)) if episodes else set()
    return tuple(name for name in episodes[0].views if name in shared) if episodes else ()


def _known(episode: Episode, room: Room, shelf: Shelf) -> tuple[Seen | None, str]:
    try:
        missing = [name for name in room.cameras if name not in episode.views]
        if missing:
            return None, f"it has no camera {missing[0]!r}"
        return shelf.get(episode, room.cameras), ""
    except DemeritError as error:
        return None, str(error)


def _seen(episode: Episode, room: Room) -> Seen:
    lengths = {name: len(episode.views[name]) for name in room.cameras}
    if len(set(lengths.values())) > 1:
        raise BadEpisode(episode.id, "cameras of one length (choose some with --cameras)", lengths)
    length = next(iter(lengths.values()))
    if not length:
        raise BadEpisode(episode.id, "at least one frame", "none")
    at = beats(length, room.stride)
    tower: Mapping[str, Features] = {
        name: half(Stream(room.maker, "", ["tower"]).look(episode.views[name].take_prepared(at, room.maker.prepare)))
        for name in room.cameras
    }
    return Seen(episode, length, at, tower, _controls(episode, room, at))


def _controls(episode: Episode, room: Room, at: npt.NDArray[np.int32]) -> tuple[Reward, ...]:
    """What change and motion say, while the pictures are at hand."""
    frames = episode.views[room.cameras[0]].select(at)
    shown = replace(episode, views={room.cameras[0]: frames}, outcomes=(), signals={})
    rewards = [model.score([shown])[0] for model in (Change(), Motion())]
    return tuple(Reward(one.model, one.episode, at[one.at], one.value) for one in rewards)
