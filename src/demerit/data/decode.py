"""Decoding ahead in processes of their own, so that a model never waits for a video and a bad video kills nothing.

Each worker decodes one episode's frames at a time and writes them into a block of shared memory that this process
opened beforehand; only a few bytes go through the pipe. Workers are started as plain `python -c` processes rather than
with multiprocessing: nothing is forked, and scripts need no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import DecodesInto, Frames, FrameSource, Images, Indices, Prepare, Times
from demerit.errors import DemeritError

# A worker has one task at hand and one in its pipe, so that it never waits for us.
TASKS_PER_WORKER = 2
MOST_DEATHS = 2


@dataclass(frozen=True, eq=False)
class Loaded:
    """An episode whose wanted frames are in memory, or the reason why they are not."""

    episode: Episode
    error: str = ""


def main_camera(episode: Episode) -> list[str]:
    """Name the main camera alone."""
    return [episode.main_camera]


def load_ahead(
    episodes: Iterable[Episode],
    wanted: Callable[[int], Indices],
    batch: int,
    workers: int,
    cameras: Callable[[Episode], Sequence[str]] = main_camera,
    prepare: Prepare | None = None,
) -> Iterator[list[Loaded]]:
    """Yield batches of episodes, in order, with the wanted frames of their main camera, or of more, decoded.

    `wanted` tells from a number of frames which of them to decode. It is called where the decoding is done, so it must
    be picklable: a bound method such as `card.wanted`, or a function of a module. So is `prepare`, which makes pictures
    smaller there: the episodes' frames are then the prepared ones. `cameras` is called here, and may refuse an episode.
    A batch's frames are valid until the next batch is asked for; `take` gives copies, so models need not care.
    """

    def look(episode: Episode) -> Look:
        return Look({name: episode.views[name] for name in cameras(episode)}, wanted, prepare)

    if workers == 0:
        yield from _load_here(episodes, look, batch)
        return
    # One batch with the model, one ahead of it, and what the workers have at hand.
    most = 2 * batch + TASKS_PER_WORKER * workers
    with _Pool(workers, slots=most) as pool:
        pending: deque[_Task] = deque()
        stream = iter(episodes)

        def top_up() -> None:
            ahead = islice(stream, min(most - batch - len(pending), len(pool.free)))
            pending.extend(pool.submit(episode, look) for episode in ahead)

        top_up()
        while pending:
            group = [pending.popleft() for _ in range(min(batch, len(pending)))]
            top_up()  # the next batch is decoded while this one is with the model
            for task in group:
                pool.finish(task)
            yield [pool.loaded(task) for task in group]
            for task in group:
                pool.release(task)
            top_up()


def _load_here(episodes: Iterable[Episode], look: Callable[[Episode], Look], batch: int) -> Iterator[list[Loaded]]:
    group: list[Loaded] = []
    for episode in episodes:
        try:
            group.append(Loaded(_looked_at(episode, look(episode))))
        except DemeritError as error:
            group.append(Loaded(episode, str(error)))
        if len(group) == batch:
            yield group
            group = []
    if group:
        yield group


def _looked_at(episode: Episode, look: Look) -> Episode:
    """Decode in this process."""
    seen: dict[str, Frames] = {}
    for camera, frames in look.views.items():
        decoded = Decoded(len(frames), look.chosen(frames))
        if look.prepare is None:
            images = frames.take(decoded.indices)
        else:
            images = frames.take_prepared(decoded.indices, look.prepare)
        seen[camera] = read_ahead(frames, decoded, images, look.prepare)
    return replace(episode, views={**episode.views, **seen})


@dataclass(eq=False)
class _Task:
    """One episode on its way through the pool."""

    episode: Episode
    look: Look | None = None
    slot: int | None = None
    decoded: Mapping[str, Decoded] | None = None
    error: str = ""
    deaths: int = 0
    """workers that died while this was their oldest task"""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.slot is None or self.decoded is not None or bool(self.error)


class _Worker:
    """One decoding process and the tasks it was given, oldest first."""

    def __init__(self, slots: Sequence[int]) -> None:
        ours, theirs = Pipe()
        call = f"from demerit.data.decode import work; work({theirs.fileno()}, {list(slots)})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", call],
            pass_fds=[theirs.fileno(), *slots],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            # Ctrl-C goes to the terminal's whole group; the workers must survive it to be shut down in order.
            start_new_session=True,
        )
        theirs.close()
        self.pipe: Connection[Any, Any] = ours
        self.tasks: deque[_Task] = deque()

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.wait()


class _Pool:
    """The workers and the blocks of shared memory between them and us."""

    def __init__(self, workers: int, slots: int) -> None:
        self._slots = [_shared_block() for _ in range(slots)]
        self._maps: dict[int, mmap.mmap] = {}
        self.free = list(range(slots))
        self._workers = [_Worker(self._slots) for _ in range(workers)]
        self._waiting: deque[_Task] = deque()

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()
        for slot in self._slots:
            os.close(slot)

    def submit(self, episode: Episode, look: Callable[[Episode], Look]) -> _Task:
        task = _Task(episode)
        try:
            whole = look(episode)
        except DemeritError as error:
            task.error = str(error)
            return task
        # arrays are in memory already
        views = {name: frames for name, frames in whole.views.items() if frames.source.kind != "array"}
        if views:
            task.look = replace(whole, views=views)
            task.slot = self.free.pop()
            self._waiting.append(task)
            self._hand_out()
        return task

    def finish(self, task: _Task) -> None:
        """Work until this task is done; others may get done on the way."""
        while not task.is_done:
            busy = {worker.pipe: worker for worker in self._workers if worker.tasks}
            for pipe in wait(list(busy)):
                self._receive(busy[pipe])  # type: ignore[index]
            self._hand_out()

    def loaded(self, task: _Task) -> Loaded:
        if task.error:
            return Loaded(task.episode, task.error)
        if task.slot is None or task.decoded is None or task.look is None:
            return Loaded(task.episode)
        seen = {
            name: read_ahead(task.look.views[name], decoded, self._images(task.slot, decoded), task.look.prepare)
            for name, decoded in task.decoded.items()
        }
        return Loaded(replace(task.episode, views={**task.episode.views, **seen}))

    def release(self, task: _Task) -> None:
        if task.slot is not None:
            self.free.append(task.slot)

    def _images(self, slot: int, decoded: Decoded) -> Images:
        handle, size = self._slots[slot], int(np.prod(decoded.shape))
        if slot not in self._maps or len(self._maps[slot]) < decoded.offset + size:
            self._maps[slot] = mmap.mmap(handle, os.fstat(handle).st_size, prot=mmap.PROT_READ)
        return np.frombuffer(self._maps[slot], np.uint8, size, decoded.offset).reshape(decoded.shape)

    def _hand_out(self) -> None:
        for worker in sorted(self._workers, key=lambda worker: len(worker.tasks)):
            while self._waiting and len(worker.tasks) < TASKS_PER_WORKER:
                task = self._waiting.popleft()
                worker.tasks.append(task)
                # A worker that died is noticed where answers are received.
                with suppress(OSError):
                    worker.pipe.send((task.slot, task.look))

    def _receive(self, worker: _Worker) -> None:
        try:
            decoded, error = worker.pipe.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return
        task = worker.tasks.popleft()
        task.decoded, task.error = decoded, error

    def _replace(self, worker: _Worker) -> None:
        """A worker died: on its oldest task, if on any. That one gets a second chance, in case it was chance."""
        code = worker.process.wait()
        suspect = worker.tasks[0]
        suspect.deaths += 1
        if suspect.deaths == MOST_DEATHS:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            suspect.error = f"the decoder died on this video ({how})"
            worker.tasks.popleft()
        self._waiting.extendleft(reversed(worker.tasks))
        worker.stop()
        self._workers[self._workers.index(worker)] = _Worker(self._slots)


def _shared_block() -> int:
    """Open an empty block of memory that vanishes with the last process that has it open."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("demerit-frames")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


@dataclass(frozen=True, eq=False)
class Look:
    """What is to be decoded of an episode: which frames of which cameras, and what becomes of them at once."""

    views: Mapping[str, Frames]
    wanted: Callable[[int], Indices]
    """tells from a camera's number of frames which of them, or by its method `by_time` from their times"""
    prepare: Prepare | None = None

    def chosen(self, frames: Frames) -> Indices:
        """Return the frames of a camera that are to be decoded."""
        by_time = getattr(self.wanted, "by_time", None)
        indices: Indices = self.wanted(len(frames)) if by_time is None else by_time(frames.times())
        return indices


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a worker found out and did about one camera."""

    length: int
    """frames of the camera, a view's own where it is one"""
    indices: Indices
    """the decoded ones"""
    shape: tuple[int, ...] = ()
    offset: int = 0
    """where in the block they begin"""


def work(pipe: int, slots: Sequence[int]) -> None:
    """Be a worker: decode what comes in until the pipe closes."""
    connection: Connection[Any, Any] = Connection(pipe)
    blocks = [_Block(handle) for handle in slots]
    with suppress(EOFError, ConnectionError):  # whoever asked is gone, perhaps without having read the last answer
        while True:
            slot, look = connection.recv()
            connection.send(_answer(blocks[slot], look))


def _answer(block: _Block, look: Look) -> tuple[dict[str, Decoded] | None, str]:
    try:
        return block.fill(look), ""
    except (DemeritError, OSError, MemoryError, ValueError) as error:
        return None, str(error) or type(error).__name__


class _Block:
    """A block of shared memory as a worker sees it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._map: mmap.mmap | None = None

    def fill(self, look: Look) -> dict[str, Decoded]:
        """Decode every camera into the block, one behind the other."""
        done: dict[str, Decoded] = {}
        end = 0
        for camera, frames in look.views.items():
            length = len(frames)
            indices = look.chosen(frames)
            shape = self._fill(frames, indices, look.prepare, end)
            done[camera] = Decoded(length, indices, shape, end)
            end += int(np.prod(shape))
        return done

    def _fill(self, frames: Frames, indices: Indices, prepare: Prepare | None, offset: int) -> tuple[int, ...]:
        """Decode one camera, straight into the block where the source can, and return the shape."""

        def room(shape: tuple[int, ...]) -> Images:
            return self._room(shape, offset)

        if prepare is not None:
            images = frames.take_prepared(indices, prepare, room)
        elif isinstance(frames.source, DecodesInto):
            of_source = indices if frames.indices is None else frames.indices[indices]
            images = frames.source.take_into(of_source.tolist(), room)
        else:
            images = frames.take(indices)
        place = room(images.shape)
        if not np.shares_memory(place, images):
            place[...] = images
        return images.shape

    def _room(self, shape: tuple[int, ...], offset: int) -> Images:
        size = int(np.prod(shape))
        if self._map is None or len(self._map) < offset + size:
            os.ftruncate(self._handle, max(offset + size, os.fstat(self._handle).st_size, 1))
            self._map = mmap.mmap(self._handle, os.fstat(self._handle).st_size)
        return np.frombuffer(self._map, np.uint8, size, offset).reshape(shape)


@dataclass(frozen=True, eq=False)
class ReadAhead:
    """A source of which some frames are decoded, and prepared, already; the others still can be."""

    source: FrameSource
    length: int
    places: dict[int, int] = field(repr=False)
    images: Images = field(repr=False)
    prepare: Prepare | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        """What it is underneath."""
        return self.source.kind

    def __len__(self) -> int:
        """How many frames there are, as found while decoding."""
        return self.length

    def times(self) -> Times:
        """The source's times."""
        return self.source.times()

    def take(self, indices: Sequence[int]) -> Images:
        """Copy frames that are here; decode when one is not."""
        if all(index in self.places for index in indices):
            return self.images[[self.places[index] for index in indices]]
        late = self.source.take(indices)
        return late if self.prepare is None else self.prepare(late)

    def identity(self) -> str:
        """The source's identity."""
        return self.source.identity()

    def describe(self) -> dict[str, Any]:
        """The source's address."""
        return self.source.describe()


def read_ahead(frames: Frames, decoded: Decoded, images: Images, prepare: Prepare | None) -> Frames:
    """Put decoded frames in the place of the source that they come from."""
    of_source = decoded.indices if frames.indices is None else frames.indices[decoded.indices]
    places = {int(index): place for place, index in enumerate(of_source)}
    length = decoded.length if frames.indices is None else len(frames.source)
    return Frames(ReadAhead(frames.source, length, places, images, prepare), frames.indices)
