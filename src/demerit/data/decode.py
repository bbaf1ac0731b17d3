"""Decoding ahead in worker processes, so that a model never waits for a video and a bad video crashes only its worker.

Each worker decodes the frames of one episode at a time into a block of shared memory that this process opened; only a
few bytes go through the pipe. Workers are plain `python -c` processes, not multiprocessing ones: nothing is forked, and
scripts need no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, TypeVar

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import DecodesInto, Frames, FrameSource, Images, Indices, Prepare, Times
from demerit.errors import DemeritError, UnreadableVideo

# A worker has one task in work and one in its pipe, so that it never waits for us.
TASKS_PER_WORKER = 2
MOST_DEATHS = 2
WINDOW = 512
"""frames of a camera in memory at once where a model reads a long video from its start to its end"""
WINDOW_BLOCKS = 8
"""memory blocks for the windows after the first: two per camera"""
KeyT = TypeVar("KeyT")
OnFrames = Callable[[str, int, int], None]
"""called with an episode's id, the frames that the model has read and the frames that it will read"""


@dataclass(frozen=True, eq=False)
class LoadedEpisode:
    """An episode whose wanted frames are in memory, or the reason why they are not."""

    episode: Episode
    error: str = ""


def main_camera(episode: Episode) -> list[str]:
    """The main camera alone."""
    return [episode.main_camera]


def load_ahead(
    episodes: Iterable[Episode],
    wanted: Callable[[int], Indices],
    batch: int,
    workers: int,
    cameras: Callable[[Episode], Sequence[str]] = main_camera,
    prepare: Prepare | None = None,
    on_frames: OnFrames | None = None,
    decoders: Decoders | None = None,
) -> Iterator[list[LoadedEpisode]]:
    """Yield batches of episodes, in order, with the wanted frames decoded.

    The frames of a batch are valid until the next batch is requested; `take` returns copies, so models need not care.

    Args:
        episodes: read lazily.
        wanted: number of frames -> indices to decode; with a method `by_time`, that is called with the frame times
            instead. Runs in the workers, so it must be picklable: a bound method or a module-level function.
        batch: episodes per batch.
        workers: number of processes; 0 decodes in this process.
        cameras: episode -> cameras to decode. Runs in this process and may raise to refuse an episode.
        prepare: per-image preprocessing in the workers; must be picklable.
        on_frames: long videos are decoded window by window while the model reads them, and this is called for each
            window. A frame that cannot be decoded then raises where it is read. None = decode every video whole.
        decoders: running processes, started with these arguments; None = start some, and stop them at the end.
    """
    window = None if on_frames is None else WINDOW

    def request(episode: Episode) -> DecodeRequest:
        return DecodeRequest({name: episode.views[name] for name in cameras(episode)}, wanted, prepare, window)

    if workers == 0:
        yield from _load_here(episodes, request, batch, on_frames)
        return
    with nullcontext(decoders) if decoders is not None else Decoders(batch, workers, on_frames) as running:
        pending: deque[_DecodeTask] = deque()
        stream = iter(episodes)

        def top_up() -> None:
            ahead = islice(stream, min(running.most - batch - len(pending), len(running.free)))
            pending.extend(running.submit(episode, request) for episode in ahead)

        top_up()
        while pending:
            group = [pending.popleft() for _ in range(min(batch, len(pending)))]
            top_up()  # the next batch is decoded while this one is with the model
            for task in group:
                running.finish(task)
            yield [running.load(task) for task in group]
            for task in group:
                running.release(task)
            top_up()


@dataclass(frozen=True, eq=False)
class DecodeRequest:
    """Which frames of which cameras to decode, and how to preprocess them."""

    views: Mapping[str, Frames]
    wanted: Callable[[int], Indices]
    prepare: Prepare | None = None
    window: int | None = None
    """decode only this many frames of each camera now; None = all"""

    def indices(self, frames: Frames) -> Indices:
        """The frames of a camera to decode."""
        by_time = getattr(self.wanted, "by_time", None)
        indices: Indices = self.wanted(len(frames)) if by_time is None else by_time(frames.times())
        return indices


@dataclass(frozen=True, eq=False)
class DecodedView:
    """A worker's answer for one camera."""

    length: int
    """number of frames of the camera"""
    indices: Indices
    """the wanted ones; of a long video only the first window is decoded"""
    shape: tuple[int, ...] = ()
    offset: int = 0
    """where in the memory block they start"""


@dataclass(frozen=True, eq=False)
class _DecodedFrames:
    """A frame source of which some frames are decoded and preprocessed already; others are decoded on request."""

    source: FrameSource
    length: int
    places: dict[int, int] = field(repr=False)
    images: Images = field(repr=False)
    prepare: Prepare | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        return self.source.kind

    def __len__(self) -> int:
        return self.length

    def times(self) -> Times:
        return self.source.times()

    def take(self, indices: Sequence[int]) -> Images:
        """Copy decoded frames; decode them from the source if one is missing."""
        if all(index in self.places for index in indices):
            return self.images[[self.places[index] for index in indices]]
        images = self.source.take(indices)
        return images if self.prepare is None else self.prepare(images)

    def identity(self) -> str:
        return self.source.identity()

    def describe(self) -> dict[str, Any]:
        return self.source.describe()


def _with_decoded(frames: Frames, decoded: DecodedView, images: Images, prepare: Prepare | None) -> Frames:
    of_source = decoded.indices if frames.indices is None else frames.indices[decoded.indices]
    places = {int(index): place for place, index in enumerate(of_source)}
    length = decoded.length if frames.indices is None else len(frames.source)
    return Frames(_DecodedFrames(frames.source, length, places, images, prepare), frames.indices)


class _StreamedFrames:
    """A frame source that has one window of a long video in memory and fetches the others as they are read."""

    def __init__(self, frames: Frames, indices: Indices, prepare: Prepare | None, windows: _Windows) -> None:
        self.frames, self.prepare, self.windows = frames, prepare, windows
        self.kind, self.length = frames.source.kind, len(frames)
        self.places = {int(index): place for place, index in enumerate(indices)}

    def __len__(self) -> int:
        return self.length

    def times(self) -> Times:
        return self.frames.times()

    def take(self, indices: Sequence[int]) -> Images:
        """Copy frames out of their windows; decode them from the source if one is in none."""
        if not len(indices) or any(index not in self.places for index in indices):
            images = self.frames.take(indices)
            return images if self.prepare is None else self.prepare(images)
        places = np.array([self.places[index] for index in indices])
        parts = []
        # in the order asked, so that reading on never goes back to an earlier window
        for part in np.split(places, np.flatnonzero(np.diff(places // WINDOW)) + 1):
            parts.append(self.windows.get(int(part[0]) // WINDOW)[part % WINDOW])
        return np.concatenate(parts)

    def identity(self) -> str:
        return self.frames.identity()

    def describe(self) -> dict[str, Any]:
        return self.frames.source.describe()


class _Windows:
    """The windows of one camera. While the model reads one, the next is decoded, if there is a decoder."""

    def __init__(
        self, request: DecodeRequest, camera: str, indices: Indices, read: _ReadSoFar, decoders: Decoders | None
    ) -> None:
        self.request, self.camera, self.read, self.decoders = request, camera, read, decoders
        frames = request.views[camera]
        self.views = [frames.select(indices[start : start + WINDOW]) for start in range(0, len(indices), WINDOW)]
        self.number, self.images = -1, np.empty(0, np.uint8)
        self.task: _DecodeTask | None = None
        self.ahead: tuple[int, _DecodeTask] | None = None

    def start(self, images: Images) -> None:
        """Take the first window, which is decoded already."""
        self.number, self.images = 0, images

    def get(self, number: int) -> Images:
        """Return a window's images; they are valid until the next call."""
        if number != self.number:
            self.images, self.number = self._fetch(number), number
            self.read.update(self.camera, number * WINDOW)
        if self.decoders is not None and self.ahead is None and number + 1 < len(self.views):
            task = self.decoders.submit_window(self.read.episode, self._part(number + 1))
            self.ahead = None if task is None else (number + 1, task)
        return self.images

    def close(self) -> None:
        """Give the memory blocks back."""
        if self.decoders is not None and self.ahead is not None:
            self.decoders.finish(self.ahead[1])
            self.decoders.release_window(self.ahead[1])
            self.ahead = None
        if self.decoders is not None and self.task is not None:
            self.decoders.release_window(self.task)
            self.task = None

    def _fetch(self, number: int) -> Images:
        if self.decoders is None or self.ahead is None or self.ahead[0] != number:  # it jumped, or no block was free
            view = self.views[number]
            every, prepare = range(len(view)), self.request.prepare
            return view.take(every) if prepare is None else view.take_prepared(every, prepare)
        if self.task is not None:
            self.decoders.release_window(self.task)
        self.task, self.ahead = self.ahead[1], None
        self.decoders.finish(self.task)
        return self.decoders.window_images(self.task, self.camera)

    def _part(self, number: int) -> DecodeRequest:
        return DecodeRequest({self.camera: self.views[number]}, _all_of_them, self.request.prepare)


@dataclass(eq=False)
class _ReadSoFar:
    """How much of an episode a model has read, over its cameras."""

    episode: Episode
    total: int
    on_frames: OnFrames
    by_camera: dict[str, int] = field(default_factory=dict)

    def update(self, camera: str, read: int) -> None:
        self.by_camera[camera] = read
        self.on_frames(self.episode.id, sum(self.by_camera.values()), self.total)


def _all_of_them(length: int) -> Indices:
    return np.arange(length, dtype=np.int32)


def _load_here(
    episodes: Iterable[Episode],
    request: Callable[[Episode], DecodeRequest],
    batch: int,
    on_frames: OnFrames | None,
) -> Iterator[list[LoadedEpisode]]:
    group: list[LoadedEpisode] = []
    for episode in episodes:
        try:
            group.append(LoadedEpisode(_decode_here(episode, request(episode), on_frames)))
        except DemeritError as error:
            group.append(LoadedEpisode(episode, str(error)))
        if len(group) == batch:
            yield group
            group = []
    if group:
        yield group


def _decode_here(episode: Episode, request: DecodeRequest, on_frames: OnFrames | None) -> Episode:
    views: dict[str, Frames] = {}
    wanted = {camera: request.indices(frames) for camera, frames in request.views.items()}
    read = _ReadSoFar(episode, sum(map(len, wanted.values())), on_frames or _ignore)
    for camera, frames in request.views.items():
        decoded = DecodedView(len(frames), wanted[camera])
        if request.window is not None and len(decoded.indices) > request.window:
            windows = _Windows(request, camera, decoded.indices, read, None)
            views[camera] = Frames(_StreamedFrames(frames, decoded.indices, request.prepare, windows))
            continue
        if request.prepare is None:
            images = frames.take(decoded.indices)
        else:
            images = frames.take_prepared(decoded.indices, request.prepare)
        views[camera] = _with_decoded(frames, decoded, images, request.prepare)
    return replace(episode, views={**episode.views, **views})


def _ignore(id: str, read: int, total: int) -> None:
    """Report nothing."""


# --- processes


@dataclass(frozen=True)
class WorkerDeath:
    """The answer to a task on which a worker process died twice."""

    code: int
    """exit code; negative = signal"""

    def __str__(self) -> str:
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


class WorkerProcess:
    """A process, the pipe to it, and its tasks, oldest first."""

    def __init__(self, call: str, fds: Sequence[int], env: Mapping[str, str]) -> None:
        ours, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", call.format(pipe=theirs.fileno())],
            pass_fds=[theirs.fileno(), *fds],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **env},
            # Ctrl-C goes to the terminal's whole process group; workers must survive it to be stopped in order.
            start_new_session=True,
        )
        theirs.close()
        self.pipe: Connection[Any, Any] = ours
        self.tasks: deque[_PoolTask] = deque()

    def stop(self) -> None:
        """Kill the process."""
        self.pipe.close()
        self.process.kill()
        self.process.wait()


@dataclass(eq=False)
class _PoolTask:
    key: Any
    message: Any
    deaths: int = 0


class WorkerPool:
    """Processes that each answer their tasks in order; use it in a with block.

    Each process runs `call` (Python code; {pipe} is the file descriptor of its pipe), receives messages and sends one
    answer per message (`serve_tasks`). A process that dies is replaced and its oldest task retried once; a second death
    is answered with a `WorkerDeath`.

    Args:
        call: the code.
        workers: number of processes.
        fds: open file descriptors that they inherit.
        env: additional environment variables.
        refill: a worker with this many tasks or fewer gets new ones,
        queue: up to this many.
    """

    def __init__(
        self,
        call: str,
        workers: int,
        fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        refill: int = TASKS_PER_WORKER - 1,
        queue: int = TASKS_PER_WORKER,
    ) -> None:
        self._call, self._fds, self._env = call, fds, env or {}
        self._refill, self._queue = refill, queue
        self._workers = [self._start() for _ in range(workers)]
        self._waiting: deque[_PoolTask] = deque()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()

    def submit(self, tasks: Iterable[tuple[Any, Any]]) -> None:
        """Queue (key, message) tasks; `receive` returns each answer with its key."""
        self._waiting.extend(_PoolTask(key, message) for key, message in tasks)
        self._hand_out()

    def receive(self) -> list[tuple[Any, Any]]:
        """Wait for at least one answer or death; return (key, answer) pairs, possibly none."""
        busy = {worker.pipe: worker for worker in self._workers if worker.tasks}
        answers = []
        for pipe in wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            try:
                answer = worker.pipe.recv()
                answers.append((worker.tasks.popleft().key, answer))
            except (EOFError, OSError):
                answers += self._replace(worker)
        self._hand_out()
        return answers

    def _start(self) -> WorkerProcess:
        return WorkerProcess(self._call, self._fds, self._env)

    def _hand_out(self) -> None:
        for worker in sorted(self._workers, key=lambda worker: len(worker.tasks)):
            if len(worker.tasks) <= self._refill:
                while self._waiting and len(worker.tasks) < self._queue:
                    task = self._waiting.popleft()
                    worker.tasks.append(task)
                    with suppress(OSError):  # a dead worker is noticed by `receive`
                        worker.pipe.send(task.message)

    def _replace(self, worker: WorkerProcess) -> list[tuple[Any, WorkerDeath]]:
        code = worker.process.wait()
        worker.stop()
        suspect = worker.tasks[0]
        suspect.deaths += 1
        failed = [(worker.tasks.popleft().key, WorkerDeath(code))] if suspect.deaths == MOST_DEATHS else []
        self._waiting.extendleft(reversed(worker.tasks))
        self._workers[self._workers.index(worker)] = self._start()
        return failed


def serve_tasks(pipe: int, answer: Callable[[Any], Any]) -> None:
    """Answer the messages of a pool, in a worker process, until the pool closes the pipe."""
    connection: Connection[Any, Any] = Connection(pipe)
    with suppress(EOFError, ConnectionError):
        while True:
            connection.send(answer(connection.recv()))


def answer_ahead(
    call: str, tasks: Iterable[tuple[KeyT, Any]], workers: int, ahead: int | None = None
) -> Iterator[tuple[KeyT, Any]]:
    """Yield (key, answer) in the order of the (key, message) tasks, while `workers` processes work on the next ones.

    Args:
        call: what each process runs; see `WorkerPool`.
        tasks: read lazily.
        workers: number of processes.
        ahead: tasks that are read before their turn; by default as many as keep the processes busy.
    """
    waiting: deque[tuple[int, KeyT]] = deque()
    answers: dict[int, Any] = {}
    stream, count = iter(tasks), 0
    with WorkerPool(call, workers, env={"OMP_NUM_THREADS": "1"}) as pool:
        while True:
            for key, message in islice(stream, (ahead or 2 * TASKS_PER_WORKER * workers) - len(waiting)):
                pool.submit([(count, message)])
                waiting.append((count, key))
                count += 1
            if not waiting:
                return
            number, key = waiting.popleft()
            while number not in answers:
                answers.update(pool.receive())
            yield key, answers.pop(number)


def take_ahead(
    requests: Iterable[tuple[KeyT, Sequence[Frames]]], workers: int, ahead: int | None = None
) -> Iterator[tuple[KeyT, list[Images]]]:
    """Yield each request's key and all images of each of its frames, in order; see `answer_ahead`.

    Raises the error of frames that cannot be decoded. With 0 workers everything is decoded here.
    """
    if workers == 0:
        for key, views in requests:
            yield key, [frames.all() for frames in views]
        return
    call = "from demerit.data.decode import take_worker; take_worker({pipe})"
    for key, answer in answer_ahead(call, requests, workers, ahead):
        if not isinstance(answer, list):
            raise answer if isinstance(answer, UnreadableVideo) else DemeritError(f"decoding failed: {answer}")
        yield key, answer


def take_worker(pipe: int) -> None:
    """Run a decoding process of `take_ahead`."""

    def answer(views: Sequence[Frames]) -> list[Images] | UnreadableVideo | str:
        try:
            return [frames.all() for frames in views]
        except UnreadableVideo as error:
            return error
        except (DemeritError, OSError, MemoryError, ValueError) as error:
            return str(error) or type(error).__name__

    serve_tasks(pipe, answer)


@dataclass(eq=False)
class _DecodeTask:
    episode: Episode
    request: DecodeRequest | None = None
    slot: int | None = None
    decoded: Mapping[str, DecodedView] | None = None
    error: str = ""
    windows: list[_Windows] = field(default_factory=list)


class Decoders:
    """The decoding workers and the shared memory blocks."""

    def __init__(self, batch: int, workers: int, on_frames: OnFrames | None) -> None:
        """Start the processes for calls of `load_ahead` with these arguments."""
        # One batch is with the model, one is being decoded, and each worker has its queue.
        self.most = slots = 2 * batch + TASKS_PER_WORKER * workers
        more = 0 if on_frames is None else WINDOW_BLOCKS
        self._on_frames = on_frames or _ignore
        self._slots = [_shared_block() for _ in range(slots + more)]
        self._maps: dict[int, mmap.mmap] = {}
        self.free, self._free_for_windows = list(range(slots)), list(range(slots, slots + more))
        call = f"from demerit.data.decode import decode_worker; decode_worker({{pipe}}, {self._slots})"
        self._pool = WorkerPool(call, workers, self._slots)

    def __enter__(self) -> Decoders:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__()
        for slot in self._slots:
            os.close(slot)

    def submit(self, episode: Episode, request: Callable[[Episode], DecodeRequest]) -> _DecodeTask:
        """Start to decode an episode."""
        task = _DecodeTask(episode)
        try:
            whole = request(episode)
        except DemeritError as error:
            task.error = str(error)
            return task
        # arrays are in memory already
        views = {name: frames for name, frames in whole.views.items() if frames.source.kind != "array"}
        if views:
            task.request = replace(whole, views=views)
            task.slot = self.free.pop()
            self._pool.submit([(task, (task.slot, task.request))])
        return task

    def finish(self, task: _DecodeTask) -> None:
        """Wait until this task is done; others may get done as well."""
        while task.slot is not None and task.decoded is None and not task.error:
            for done, answer in self._pool.receive():
                if isinstance(answer, WorkerDeath):
                    done.error = f"the decoder died on this video ({answer})"
                else:
                    done.decoded, done.error = answer

    def load(self, task: _DecodeTask) -> LoadedEpisode:
        """Return the episode of a finished task with its frames."""
        if task.error:
            return LoadedEpisode(task.episode, task.error)
        if task.slot is None or task.decoded is None or task.request is None:
            return LoadedEpisode(task.episode)
        views: dict[str, Frames] = {}
        read = _ReadSoFar(task.episode, sum(len(one.indices) for one in task.decoded.values()), self._on_frames)
        for name, decoded in task.decoded.items():
            frames, images = task.request.views[name], self._images(task.slot, decoded)
            if len(images) == len(decoded.indices):
                views[name] = _with_decoded(frames, decoded, images, task.request.prepare)
                continue
            task.windows.append(_Windows(task.request, name, decoded.indices, read, self))
            task.windows[-1].start(images)
            views[name] = Frames(_StreamedFrames(frames, decoded.indices, task.request.prepare, task.windows[-1]))
        return LoadedEpisode(replace(task.episode, views={**task.episode.views, **views}))

    def release(self, task: _DecodeTask) -> None:
        """Give the task's memory blocks back."""
        for windows in task.windows:
            windows.close()
        if task.slot is not None:
            self.free.append(task.slot)

    def submit_window(self, episode: Episode, request: DecodeRequest) -> _DecodeTask | None:
        """Start to decode a window; None if there is no free block."""
        if not self._free_for_windows:
            return None
        task = _DecodeTask(episode, request, self._free_for_windows.pop())
        self._pool.submit([(task, (task.slot, request))])
        return task

    def window_images(self, task: _DecodeTask, camera: str) -> Images:
        """Return a decoded window; raises the error of its decoder."""
        if task.slot is None or task.decoded is None:
            raise DemeritError(task.error)
        return self._images(task.slot, task.decoded[camera])

    def release_window(self, task: _DecodeTask) -> None:
        """Give a window's memory block back."""
        if task.slot is not None:
            self._free_for_windows.append(task.slot)

    def _images(self, slot: int, decoded: DecodedView) -> Images:
        handle, size = self._slots[slot], int(np.prod(decoded.shape))
        if slot not in self._maps or len(self._maps[slot]) < decoded.offset + size:
            self._maps[slot] = mmap.mmap(handle, os.fstat(handle).st_size, prot=mmap.PROT_READ)
        return np.frombuffer(self._maps[slot], np.uint8, size, decoded.offset).reshape(decoded.shape)


def _shared_block() -> int:
    """Open an empty memory block that vanishes with the last process that has it open."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("demerit-frames")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def decode_worker(pipe: int, slots: Sequence[int]) -> None:
    """Run a decoding process."""
    blocks = [_SharedBlock(handle) for handle in slots]

    def answer(message: tuple[int, DecodeRequest]) -> tuple[dict[str, DecodedView] | None, str]:
        slot, request = message
        try:
            return blocks[slot].fill(request), ""
        except (DemeritError, OSError, MemoryError, ValueError) as error:
            return None, str(error) or type(error).__name__

    serve_tasks(pipe, answer)


class _SharedBlock:
    """A shared memory block in a worker."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._map: mmap.mmap | None = None

    def fill(self, request: DecodeRequest) -> dict[str, DecodedView]:
        """Decode every camera into the block, one after the other."""
        done: dict[str, DecodedView] = {}
        end = 0
        for camera, frames in request.views.items():
            indices = request.indices(frames)
            shape = self._decode(frames, indices[: request.window], request.prepare, end)
            done[camera] = DecodedView(len(frames), indices, shape, end)
            end += int(np.prod(shape))
        return done

    def _decode(self, frames: Frames, indices: Indices, prepare: Prepare | None, offset: int) -> tuple[int, ...]:
        """Decode one camera, directly into the block if the source can, and return the shape."""

        def allocate(shape: tuple[int, ...]) -> Images:
            return self._array(shape, offset)

        if prepare is not None:
            images = frames.take_prepared(indices, prepare, allocate)
        elif isinstance(frames.source, DecodesInto):
            of_source = indices if frames.indices is None else frames.indices[indices]
            images = frames.source.take_into(of_source.tolist(), allocate)
        else:
            images = frames.take(indices)
        place = allocate(images.shape)
        if not np.shares_memory(place, images):
            place[...] = images
        return images.shape

    def _array(self, shape: tuple[int, ...], offset: int) -> Images:
        size = int(np.prod(shape))
        if self._map is None or len(self._map) < offset + size:
            os.ftruncate(self._handle, max(offset + size, os.fstat(self._handle).st_size, 1))
            self._map = mmap.mmap(self._handle, os.fstat(self._handle).st_size)
        return np.frombuffer(self._map, np.uint8, size, offset).reshape(shape)
