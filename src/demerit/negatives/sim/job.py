"""The simulation job: a list of episodes to make, processes that make them, and a dataset folder that fills up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from demerit.data.dataset import Problem
from demerit.data.episode import Episode
from demerit.data.labels import Preference
from demerit.data.store import Store, StoreWriter
from demerit.errors import BadEpisode, BadInput, DemeritError, NotApplicable, StoreError
from demerit.negatives.sim.arena import Arena, Painter, load_mujoco
from demerit.negatives.sim.rollout import EpisodeSpec, check_applies, record, rollout, video_name
from demerit.negatives.sim.tasks import task

SOURCE = "simulator:metaworld"
LICENCE = "MIT"
CHUNK = 16
"""episodes of one task that a worker gets at once: building a task's model takes as long as half an episode"""
MOST_DEATHS = 2
CLEAR_GAP = 0.4
"""a difference in final progress that makes one of two failures the better one"""
NOT_NEARLY = 0.8
"""a failure with more progress than this is too near to a success for a clear verdict"""


@dataclass
class SimulateProgress:
    """How far a simulation is."""

    expected: int
    made: int = 0
    kept: int = 0
    """made by an earlier run"""
    successes: int = 0
    """among those made now"""
    preferences: int = 0
    seconds: float = 0.0
    not_applicable: Counter[str] = field(default_factory=Counter)
    """reasons why behaviours were left out"""

    @property
    def seen(self) -> int:
        """Episodes dealt with so far."""
        return self.made + self.kept + self.not_applicable.total()


def simulate(
    dest: str | Path,
    specs: Sequence[EpisodeSpec],
    workers: int | None = None,
    on_progress: Callable[[SimulateProgress], None] = lambda progress: None,
) -> SimulateProgress:
    """Make the episodes and put them into a dataset folder. Run it again and it goes on where it was.

    Args:
        dest: the folder to make, or one that an earlier run made.
        specs: what to make; `demerit.negatives.sim.splits.plan` lists the benchmark's.
        workers: how many processes; as many as there are cores when None.
        on_progress: called after every episode.
    """
    workers = workers if workers is not None else os.cpu_count() or 1
    if workers < 1:
        raise BadInput("workers", "a number from 1 on", workers)
    load_mujoco()  # says what is missing before anything is made
    store = _folder(dest)
    progress = SimulateProgress(len(specs))
    started = time.monotonic()
    with store.writer() as writer:
        todo = _todo(specs, writer, progress)
        on_progress(progress)
        videos = store.root / "videos"
        videos.mkdir(exist_ok=True)
        for episode in _made(todo, videos, workers):
            writer.add(episode)
            progress.made += 1
            progress.successes += bool(episode.outcome and episode.outcome.success)
            progress.seconds = time.monotonic() - started
            on_progress(progress)
    progress.preferences = _add_preferences(store.root)
    progress.seconds = time.monotonic() - started
    on_progress(progress)
    return progress


def _folder(dest: str | Path) -> Store:
    if not Store.is_at(dest):
        return Store.create(dest, Path(dest).resolve().name, LICENCE, source=SOURCE)
    store = Store(dest)
    if store.manifest.header.get("source") != SOURCE:
        raise StoreError(dest, "it holds a dataset that was not simulated; choose another folder")
    return store


def _todo(specs: Sequence[EpisodeSpec], writer: StoreWriter, progress: SimulateProgress) -> list[EpisodeSpec]:
    todo = []
    for spec in specs:
        try:
            check_applies(spec)
        except NotApplicable as reason:
            progress.not_applicable[str(reason)] += 1
            writer.add(Problem("not applicable", spec.id, str(reason), kept=False))
            continue
        if spec.id in writer:
            progress.kept += 1
        else:
            todo.append(spec)
    return todo


def clear_preferences(episodes: Iterable[Episode]) -> Iterator[Preference]:
    """Compare episodes of one task in one scene where the outcomes are clearly different.

    A success beats a failure that ended at progress 0.8 or less; of two failures the one that ended 0.4 or more ahead
    is better. A hash of the names decides which of the two is named first, so that the order tells nothing.
    """
    groups: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if episode.outcome is not None and episode.outcome.progress is not None:
            groups[episode.origin.group].append(episode)
    for group in groups.values():
        for one, other in combinations(group, 2):
            good, bad = sorted((one, other), key=_rank, reverse=True)
            why = _why_better(good, bad)
            if why:
                a, b = (good, bad) if zlib.crc32(f"{good.id} {bad.id}".encode()) % 2 else (bad, good)
                yield Preference(a.id, b.id, "a" if a is good else "b", "simulator", why, "mujoco")


def _rank(episode: Episode) -> tuple[bool, float]:
    assert episode.outcome is not None  # chosen above
    return bool(episode.outcome.success), episode.outcome.progress or 0.0


def _why_better(good: Episode, bad: Episode) -> str:
    (good_done, good_end), (bad_done, bad_end) = _rank(good), _rank(bad)
    if good_done and not bad_done and bad_end <= NOT_NEARLY:
        return f"done at the end, against progress {bad_end:.2f}"
    if not good_done and not bad_done and good_end - bad_end >= CLEAR_GAP:
        return f"progress {good_end:.2f} at the end, against {bad_end:.2f}"
    return ""


def _add_preferences(root: Path) -> int:
    """Write the preferences anew from all episodes that are there: a rule gives the same ones each time."""
    store = Store(root)
    wanted = list(clear_preferences(store.episodes()))
    with store.writer() as writer:
        for preference in wanted:
            writer.add(preference)
    return len(wanted)


class _Worker:
    """One simulating process and the chunk of episodes that it is at."""

    def __init__(self, videos: Path) -> None:
        ours, theirs = Pipe()
        call = f"from demerit.negatives.sim.job import _work; _work({theirs.fileno()}, {str(videos)!r})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", call],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                # a process a core: threads inside them only get in each other's way
                "OMP_NUM_THREADS": "1",
                "LP_NUM_THREADS": "0",
            },
            # Ctrl-C goes to the terminal's whole group; the workers must survive it to be shut down in order.
            start_new_session=True,
        )
        theirs.close()
        self.pipe: Connection[Any, Any] = ours
        self.chunk: deque[EpisodeSpec] = deque()

    def give(self, chunk: deque[EpisodeSpec]) -> None:
        self.chunk = chunk
        with suppress(OSError):  # a worker that died is noticed where answers are received
            self.pipe.send(list(chunk))

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.wait()


def _made(specs: Sequence[EpisodeSpec], videos: Path, workers: int) -> Iterator[Episode]:
    """Yield the episodes in the order of the specs, whichever worker was first."""
    chunks = _chunks(specs)
    crew = [_Worker(videos) for _ in range(min(workers, len(chunks)))]
    finished: dict[str, Episode] = {}
    deaths: Counter[str] = Counter()
    order = iter(specs)
    wanted = next(order, None)
    try:
        while wanted is not None:
            for worker in crew:
                if not worker.chunk and chunks:
                    worker.give(chunks.popleft())
            busy = {worker.pipe: worker for worker in crew if worker.chunk}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                episode = _received(worker)
                if episode is None:
                    crew[crew.index(worker)] = _replaced(worker, deaths, videos)
                else:
                    finished[episode.id] = episode
            while wanted is not None and wanted.id in finished:
                yield finished.pop(wanted.id)
                wanted = next(order, None)
    finally:
        for worker in crew:
            worker.stop()


def _chunks(specs: Sequence[EpisodeSpec]) -> deque[deque[EpisodeSpec]]:
    chunks: deque[deque[EpisodeSpec]] = deque()
    for spec in specs:
        if not chunks or len(chunks[-1]) == CHUNK or chunks[-1][-1].task != spec.task:
            chunks.append(deque())
        chunks[-1].append(spec)
    return chunks


def _received(worker: _Worker) -> Episode | None:
    """Take an answer; None when the worker died."""
    try:
        answer: Episode | str = worker.pipe.recv()
    except (EOFError, OSError):
        return None
    spec = worker.chunk.popleft()
    if isinstance(answer, str):
        raise BadEpisode(spec.id, "a simulation that runs to its end", answer)
    return answer


def _replaced(worker: _Worker, deaths: Counter[str], videos: Path) -> _Worker:
    code = worker.process.wait()
    suspect = worker.chunk[0].id
    deaths[suspect] += 1
    worker.stop()
    if deaths[suspect] >= MOST_DEATHS:
        raise BadEpisode(suspect, "a simulation that runs to its end", f"a process that died twice (exit code {code})")
    fresh = _Worker(videos)
    fresh.give(worker.chunk)
    return fresh


def _work(pipe: int, videos: str) -> None:
    """Be a worker: make what comes in until the pipe closes."""
    connection: Connection[Any, Any] = Connection(pipe)
    painter: Painter | None = None
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            specs: list[EpisodeSpec] = connection.recv()
            for spec in specs:
                try:
                    if painter is None or (painter.arena.task.name, painter.size) != (spec.task, spec.size):
                        if painter is not None:
                            painter.close()
                        painter = Painter(Arena(task(spec.task)), spec.size)
                    made = rollout(spec, painter.arena, painter)
                    connection.send(record(made, Path(videos) / video_name(spec)))
                except (DemeritError, ArithmeticError, ValueError, RuntimeError, MemoryError) as error:
                    connection.send(str(error) or type(error).__name__)
    if painter is not None:
        painter.close()
