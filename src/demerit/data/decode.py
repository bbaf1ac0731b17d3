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
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, TypeVar

import numpy as np

from demerit.data.episode import Episode
from demerit.data.frames import Frames, FrameSource, Images, Indices, Prepare, Times
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
        pending: deque[tuple[Episode, _DecodeTask]] = deque()
        stream = iter(episodes)

        def top_up() -> None:
            ahead = islice(stream, min(running.most - batch - len(pending), len(running.free)))
            pending.extend((episode, running.submit(episode, request)) for episode in ahead)

        top_up()
        while pending:
            group = [pending.popleft() for _ in range(min(batch, len(pending)))]
            top_up()  # the next batch is decoded while this one is with the model
            for _, task in group:
                running.finish(task)
            yield [running.load(episode, task) for episode, task in group]
            for _, task in group:
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
    """A frame source that has one window of a long video in memory and fetches the others as they are read.

    While the model reads a window, the next one is decoded, if there is a decoder.
    """

    def __init__(
        self,
        request: DecodeRequest,
        camera: str,
        indices: Indices,
        on_read: Callable[[str, int], None],
        decoders: Decoders | None = None,
        images: Images | None = None,
    ) -> None:
        """`images` is the first window, if it is decoded already."""
        self.frames, self.prepare, self.camera = request.views[camera], request.prepare, camera
        self.on_read, self.decoders = on_read, decoders
        self.kind, self.length = self.frames.source.kind, len(self.frames)
        self.places = {int(index): place for place, index in enumerate(indices)}
        starts = range(0, len(indices), WINDOW)
        self.windows = [self.frames.select(indices[start : start + WINDOW]) for start in starts]
        self.number, self.images = (-1, np.empty(0, np.uint8)) if images is None else (0, images)
        self.task: _DecodeTask | None = None
        self.ahead: tuple[int, _DecodeTask] | None = None

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
            parts.append(self._window(int(part[0]) // WINDOW)[part % WINDOW])
        return np.concatenate(parts)

    def identity(self) -> str:
        return self.frames.identity()

    def describe(self) -> dict[str, Any]:
        return self.frames.source.describe()

    def close(self) -> None:
        """Give the memory blocks back."""
        if self.decoders is not None and self.ahead is not None:
            self.decoders.finish(self.ahead[1])
            self.decoders.release_window(self.ahead[1])
            self.ahead = None
        if self.decoders is not None and self.task is not None:
            self.decoders.release_window(self.task)
            self.task = None

    def _window(self, number: int) -> Images:
        """Return a window's images; they are valid until the next call."""
        if number != self.number:
            self.images, self.number = self._fetch(number), number
            self.on_read(self.camera, number * WINDOW)
        if self.decoders is not None and self.ahead is None and number + 1 < len(self.windows):
            part = DecodeRequest({self.camera: self.windows[number + 1]}, _all_of_them, self.prepare)
            task = self.decoders.submit_window(part)
            self.ahead = None if task is None else (number + 1, task)
        return self.images

    def _fetch(self, number: int) -> Images:
        if self.decoders is None or self.ahead is None or self.ahead[0] != number:  # it jumped, or no block was free
            return self.windows[number].take_prepared(range(len(self.windows[number])), self.prepare)
        if self.task is not None:
            self.decoders.release_window(self.task)
        self.task, self.ahead = self.ahead[1], None
        self.decoders.finish(self.task)
        return self.decoders.window_images(self.task, self.camera)


def _count_read(episode: Episode, total: int, on_frames: OnFrames | None) -> Callable[[str, int], None]:
    """Return what counts the frames that a model has read, over an episode's cameras."""
    by_camera: dict[str, int] = {}

    def count(camera: str, read: int) -> None:
        by_camera[camera] = read
        if on_frames is not None:
            on_frames(episode.id, sum(by_camera.values()), total)

    return count


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
    on_read = _count_read(episode, sum(map(len, wanted.values())), on_frames)
    for camera, frames in request.views.items():
        if request.window is not None and len(wanted[camera]) > request.window:
            views[camera] = Frames(_StreamedFrames(request, camera, wanted[camera], on_read))
        else:
            images = frames.take_prepared(wanted[camera], request.prepare)
            views[camera] = _with_decoded(frames, DecodedView(len(frames), wanted[camera]), images, request.prepare)
    return replace(episode, views={**episode.views, **views})


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
        self.tasks: deque[tuple[Any, Any, int]] = deque()
        """key, message and deaths of each"""
        self.stop = weakref.finalize(self, _end_process, ours, self.process)
        """kills the process; called also where nobody did, so that no process outlives its owner"""


def _end_process(pipe: Connection[Any, Any], process: subprocess.Popen[bytes]) -> None:
    pipe.close()
    process.kill()
    process.wait()


class WorkerPool:
    """Processes that each answer their tasks in order; use it in a with block.

    Each process runs `call` (Python code; {pipe} is the file descriptor of its pipe), receives messages and sends one
    answer per message (`serve_tasks`). A process that dies is replaced and its oldest task retried once; a second death
    is answered with a `WorkerDeath`. `fds` are open file descriptors that they inherit, `env` additional environment
    variables. A worker with `refill` tasks or fewer gets new ones, up to `queue`.
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
        self._waiting: deque[tuple[Any, Any, int]] = deque()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()

    def submit(self, tasks: Iterable[tuple[Any, Any]]) -> None:
        """Queue (key, message) tasks; `receive` returns each answer with its key."""
        self._waiting.extend((key, message, 0) for key, message in tasks)
        self._hand_out()

    def receive(self) -> list[tuple[Any, Any]]:
        """Wait for at least one answer or death; return (key, answer) pairs, possibly none."""
        busy = {worker.pipe: worker for worker in self._workers if worker.tasks}
        answers = []
        for pipe in wait(list(busy)):
            worker = busy[pipe]  # type: ignore[index]
            try:
                answer = worker.pipe.recv()
                answers.append((worker.tasks.popleft()[0], answer))
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
                        worker.pipe.send(task[1])

    def _replace(self, worker: WorkerProcess) -> list[tuple[Any, WorkerDeath]]:
        code = worker.process.wait()
        worker.stop()
        key, message, deaths = worker.tasks.popleft()
        self._waiting.extendleft(reversed(worker.tasks))
        self._workers[self._workers.index(worker)] = self._start()
        if deaths + 1 == MOST_DEATHS:
            return [(key, WorkerDeath(code))]
        self._waiting.appendleft((key, message, deaths + 1))
        return []


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

    Each process runs `call`; see `WorkerPool`. Tasks are read lazily, `ahead` of them before their turn; by default as
    many as keep the processes busy.
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
    request: DecodeRequest | None = None
    slot: int | None = None
    decoded: Mapping[str, DecodedView] | None = None
    error: str = ""
    streamed: list[_StreamedFrames] = field(default_factory=list)


class Decoders:
    """The decoding workers and the shared memory blocks."""

    def __init__(self, batch: int, workers: int, on_frames: OnFrames | None) -> None:
        """Start the processes for calls of `load_ahead` with these arguments."""
        # One batch is with the model, one is being decoded, and each worker has its queue.
        self.most = slots = 2 * batch + TASKS_PER_WORKER * workers
        more = 0 if on_frames is None else WINDOW_BLOCKS
        self._on_frames = on_frames
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
        task = _DecodeTask()
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
            for work, answer in self._pool.receive():
                if isinstance(answer, WorkerDeath):
                    work.error = f"the decoder died on this video ({answer})"
                else:
                    work.decoded, work.error = answer

    def load(self, episode: Episode, task: _DecodeTask) -> LoadedEpisode:
        """Return an episode with the frames of its finished task."""
        if task.error:
            return LoadedEpisode(episode, task.error)
        if task.slot is None or task.decoded is None or task.request is None:
            return LoadedEpisode(episode)
        views: dict[str, Frames] = {}
        total = sum(len(decoded.indices) for decoded in task.decoded.values())
        on_read = _count_read(episode, total, self._on_frames)
        for name, decoded in task.decoded.items():
            frames, images = task.request.views[name], self._images(task.slot, decoded)
            if len(images) == len(decoded.indices):
                views[name] = _with_decoded(frames, decoded, images, task.request.prepare)
                continue
            task.streamed.append(_StreamedFrames(task.request, name, decoded.indices, on_read, self, images))
            views[name] = Frames(task.streamed[-1])
        return LoadedEpisode(replace(episode, views={**episode.views, **views}))

    def release(self, task: _DecodeTask) -> None:
        """Give the task's memory blocks back."""
        for streamed in task.streamed:
            streamed.close()
        if task.slot is not None:
            self.free.append(task.slot)

    def submit_window(self, request: DecodeRequest) -> _DecodeTask | None:
        """Start to decode a window; None if there is no free block."""
        if not self._free_for_windows:
            return None
        task = _DecodeTask(request, self._free_for_windows.pop())
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
    maps: dict[int, mmap.mmap] = {}

    def answer(message: tuple[int, DecodeRequest]) -> tuple[dict[str, DecodedView] | None, str]:
        slot, request = message
        try:
            return _fill_block(slots[slot], maps, request), ""
        except (DemeritError, OSError, MemoryError, ValueError) as error:
            return None, str(error) or type(error).__name__

    serve_tasks(pipe, answer)


def _fill_block(handle: int, maps: dict[int, mmap.mmap], request: DecodeRequest) -> dict[str, DecodedView]:
    """Decode every camera into a shared memory block of a worker, one after the other."""
    decoded: dict[str, DecodedView] = {}
    end = 0

    def allocate(shape: tuple[int, ...]) -> Images:
        size = int(np.prod(shape))
        if handle not in maps or len(maps[handle]) < end + size:
            os.ftruncate(handle, max(end + size, os.fstat(handle).st_size, 1))
            maps[handle] = mmap.mmap(handle, os.fstat(handle).st_size)
        return np.frombuffer(maps[handle], np.uint8, size, end).reshape(shape)

    for camera, frames in request.views.items():
        indices = request.indices(frames)
        images = frames.take_prepared(indices[: request.window], request.prepare, allocate)
        place = allocate(images.shape)
        if not np.shares_memory(place, images):
            place[...] = images
        decoded[camera] = DecodedView(len(frames), indices, images.shape, end)
        end += place.size
    return decoded
