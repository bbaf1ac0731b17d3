"""The threads that own a model, and the work that waits for them.

A model gets one thread; one per core if it says `thread_safe`: the small networks compute a live frame on one core, so
live episodes of different clients run side by side. For other models, waiting `score` requests of different clients
are scored in one call, which keeps a GPU or a chat server busy; so are waiting live frames of different episodes, if
the model can do that. Live frames go first, but after each round of them one
request is taken, so that neither waits for ever.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import DemeritError
from demerit.models.compact.engine import count_cores
from demerit.models.live import can_step_together, step_together
from demerit.models.protocol import LiveEpisode, LiveFrame, LiveReward, RewardModel
from demerit.models.score import score_together

AT_ONCE = 8
"""episodes of different requests that are scored in one call"""
STEPS_AT_ONCE = 16
"""live frames of different episodes in one call"""


class Overloaded(DemeritError):
    """Too much work waits, or it waited too long."""

    status = 429


@dataclass(eq=False)
class _ModelTask:
    """A call of the model, or episodes to score."""

    call: Callable[[], Any] | None
    episodes: Sequence[Episode]
    deadline: float
    step: tuple[LiveEpisode, LiveFrame] | None = None
    future: Future[Any] = field(default_factory=Future)


class ModelThreads:
    """A served model: its threads and its queue."""

    def __init__(self, model: RewardModel, waiting: int, deadline: float) -> None:
        """Start the threads."""
        self.model, self.most_waiting, self.deadline = model, waiting, deadline
        self.card_hash = model.card.hash()
        self._busy_since: dict[int, float] = {}
        self._live: deque[_ModelTask] = deque()
        self._waiting: deque[_ModelTask] = deque()
        self._round = 0
        self._stopped = False
        self._lock = threading.Lock()
        self._bell: SimpleQueue[None] = SimpleQueue()
        """rung once per task; faster than a condition"""
        self._count = count_cores() if getattr(model, "thread_safe", False) else 1
        for number in range(self._count):
            name = f"demerit-{model.card.name}-{number}"
            threading.Thread(target=self._work, args=(number,), name=name, daemon=True).start()

    @property
    def busy_seconds(self) -> float:
        """How long the longest call of the model takes already."""
        now = time.monotonic()
        return now - min([now, *self._busy_since.values()])

    @property
    def waiting(self) -> int:
        """Number of requests and live frames that wait."""
        return len(self._waiting) + len(self._live)

    def score(self, episodes: Sequence[Episode]) -> Future[list[Reward]]:
        """Queue episodes; raises Overloaded when the queue is full."""
        return self._submit(self._waiting, _ModelTask(None, episodes, time.monotonic() + self.deadline))

    def call(self, work: Callable[[], Any], live: bool = False) -> Future[Any]:
        """Queue a call of the model. Live frames are never refused: a live episode has at most one waiting."""
        task = _ModelTask(work, (), time.monotonic() + self.deadline)
        return self._submit(self._live if live else self._waiting, task)

    def step(self, run: LiveEpisode, frame: LiveFrame) -> Future[tuple[LiveReward, float]]:
        """Queue the next frame of a live episode; return its reward and the seconds that the model took.

        Frames of different episodes are taken in one call, if that is cheaper and they wait for the model.
        """
        return self._submit(self._live, _ModelTask(None, (), time.monotonic() + self.deadline, step=(run, frame)))

    def stop(self) -> None:
        """Let the threads end after the work that waits."""
        self._stopped = True
        for _ in range(self._count):
            self._bell.put(None)

    def _submit(self, queue: deque[_ModelTask], task: _ModelTask) -> Future[Any]:
        with self._lock:
            if queue is self._waiting and len(queue) >= self.most_waiting:
                raise Overloaded(f"{len(queue)} requests wait for {self.model.card.name!r}: try again later")
            queue.append(task)
        self._bell.put(None)
        return task.future

    def _work(self, number: int) -> None:
        while self._bell.get() is None:
            tasks = self._take()
            if not tasks and self._stopped:
                return
            self._busy_since[number] = time.monotonic()
            self._run([task for task in tasks if _is_wanted(task)])
            del self._busy_since[number], tasks  # a waiting thread holds no frames

    def _take(self) -> list[_ModelTask]:
        """Return what to do next; nothing if another thread has done it."""
        with self._lock:
            if self._live and (self._round or not self._waiting):
                tasks = [self._live.popleft()]
                if self._count == 1 and _joins(tasks[0]):
                    while self._live and _joins(self._live[0]) and len(tasks) < STEPS_AT_ONCE:
                        tasks.append(self._live.popleft())
                self._round = max(0, self._round - len(tasks))
                return tasks
            if not self._waiting:
                return []
            tasks = [self._waiting.popleft()]
            self._round = len(self._live)
            while self._count == 1 and self._waiting and _fits(self._waiting[0], tasks):
                tasks.append(self._waiting.popleft())
            return tasks

    def _run(self, tasks: list[_ModelTask]) -> None:
        try:
            if steps := [task.step for task in tasks if task.step]:
                started = time.perf_counter()
                answers = step_together([run for run, _ in steps], [frame for _, frame in steps])
                took = time.perf_counter() - started
                for task, answer in zip(tasks, answers, strict=True):
                    if isinstance(answer, Exception):
                        task.future.set_exception(answer)
                    else:
                        task.future.set_result((answer, took))
                return
            if len(tasks) == 1 and tasks[0].call is not None:
                tasks[0].future.set_result(tasks[0].call())
                return
            rewards = iter(score_together(self.model, [episode for task in tasks for episode in task.episodes]))
            for task in tasks:
                task.future.set_result([next(rewards) for _ in task.episodes])
        except Exception as error:  # third-party code may raise anything
            for task in tasks:
                if not task.future.done():
                    task.future.set_exception(error)


def _is_wanted(task: _ModelTask) -> bool:
    """Whether somebody still waits for it, in time."""
    if not task.future.set_running_or_notify_cancel():
        return False
    if time.monotonic() > task.deadline:
        task.future.set_exception(Overloaded("it waited too long for the model: try again later"))
        return False
    return True


def _joins(task: _ModelTask) -> bool:
    """Whether it is a live frame that the model can take in one call with others."""
    return task.step is not None and can_step_together(task.step[0])


def _fits(task: _ModelTask, others: list[_ModelTask]) -> bool:
    """Whether a request can be scored in one call with others: models may tell episodes apart by id."""
    together = [episode.id for other in (*others, task) for episode in other.episodes]
    calls = any(other.call is not None for other in (*others, task))
    return not calls and len(together) <= AT_ONCE and len(set(together)) == len(together)
