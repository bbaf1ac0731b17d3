"""Who computes what when, in the threads of a model."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from demerit.data.episode import Episode
from demerit.errors import BadInput
from demerit.models.live import CombinedEpisode
from demerit.models.protocol import LiveEpisode, LiveFrame, LiveReward
from demerit.use.serve.model_threads import ModelThreads, Overloaded
from fakes.served_models import Brightness, ThreadSafeBrightness
from fakes.tiny_network import random_images


def episode(id: str, count: int = 2) -> Episode:
    return Episode.from_array(random_images(count, 4, 4, seed=len(id)), id, id=id)


@pytest.fixture
def blocked() -> ModelThreads:
    """A model of one thread, which is busy with an episode until its gate opens."""
    model = Brightness()
    model.gate.clear()
    threads = ModelThreads(model, waiting=3, deadline=60)
    threads.score([episode("first")])
    model.entered.acquire()
    return threads


def open_gate(threads: ModelThreads) -> Brightness:
    assert isinstance(threads.model, Brightness)
    threads.model.gate.set()
    return threads.model


def test_a_full_queue_refuses_and_recovers(blocked: ModelThreads) -> None:
    futures = [blocked.score([episode(id)]) for id in "abc"]
    assert blocked.waiting == 3 and blocked.busy_seconds > 0
    with pytest.raises(Overloaded):
        blocked.score([episode("d")])
    open_gate(blocked)
    assert [future.result(60)[0].episode for future in futures] == ["a", "b", "c"]
    assert blocked.score([episode("d")]).result(60)[0].scored


def test_requests_that_wait_are_scored_together_unless_ids_are_the_same(blocked: ModelThreads) -> None:
    blocked.most_waiting = 9
    sent = [["a", "b"], ["c"], ["a"], ["bad"], [f"{n}" for n in range(8)]]
    futures = [blocked.score([episode(id) for id in ids]) for ids in sent]
    model = open_gate(blocked)
    assert [[reward.episode for reward in future.result(60)] for future in futures] == sent
    assert model.calls == [["first"], ["a", "b", "c"], ["a", "bad"], [f"{n}" for n in range(8)]]
    (alone,) = Brightness().score([episode("c")])
    assert futures[1].result()[0].value.tolist() == alone.value.tolist()
    assert not futures[3].result()[0].scored


def test_live_frames_go_first_but_not_for_ever(blocked: ModelThreads) -> None:
    done: list[str] = []

    def note(name: str) -> Future[None]:
        return blocked.call(lambda: done.append(name), live=name.startswith("live"))

    futures = [note(name) for name in ("ask 1", "ask 2", "live 1", "live 2")]
    open_gate(blocked)
    for future in futures:
        future.result(60)
    assert done == ["ask 1", "live 1", "live 2", "ask 2"]


def test_what_waited_too_long_or_was_given_up_is_not_computed(blocked: ModelThreads) -> None:
    blocked.deadline = -1
    late = blocked.score([episode("late")])
    blocked.deadline = 60
    given_up = blocked.score([episode("given up")])
    assert given_up.cancel()
    model = open_gate(blocked)
    with pytest.raises(Overloaded):
        late.result(60)
    blocked.score([episode("last")]).result(60)
    assert model.calls == [["first"], ["last"]]


def test_an_error_reaches_its_caller_and_the_thread_goes_on() -> None:
    threads = ModelThreads(Brightness(), waiting=3, deadline=60)
    with pytest.raises(ZeroDivisionError):
        threads.call(lambda: 1 / 0).result(60)
    assert threads.call(lambda: 2).result(60) == 2


def test_a_thread_safe_model_has_a_thread_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demerit.use.serve.model_threads.count_cores", lambda: 3)
    threads, meet = ModelThreads(ThreadSafeBrightness(), waiting=9, deadline=60), threading.Barrier(3)
    futures = [threads.call(lambda: meet.wait(60), live=True) for _ in range(3)]
    assert sorted(future.result(60) for future in futures) == [0, 1, 2]


def test_stopped_threads_finish_what_waits(blocked: ModelThreads) -> None:
    waiting = blocked.score([episode("waiting")])
    blocked.stop()
    open_gate(blocked)
    assert waiting.result(60)[0].scored


@dataclass
class Pair:
    """A live episode of a model that takes frames together; its value is the number of its frame."""

    together: list[int]
    frames: int = 0
    dies: bool = False

    def step(self, frame: LiveFrame) -> LiveReward:
        answer = self.step_together([self], [frame])[0]
        assert isinstance(answer, LiveReward)
        return answer

    def step_together(self, runs: Sequence[Any], frames: Sequence[LiveFrame]) -> list[LiveReward | Exception]:
        if any(run.dies for run in runs):
            raise RuntimeError("it dies")
        self.together.append(len(runs))
        answers: list[LiveReward | Exception] = []
        for run, frame in zip(runs, frames, strict=True):
            if not np.asarray(frame).size:
                answers.append(BadInput("frame", "an image", "nothing"))
                continue
            run.frames += 1
            answers.append(LiveReward(float(run.frames)))
        return answers


@pytest.mark.parametrize("combined", [0, 1, 2])
def test_live_frames_that_wait_are_taken_together(blocked: ModelThreads, combined: int) -> None:
    together: list[int] = []
    pairs = [Pair(together) for _ in range(20)]
    runs: list[LiveEpisode] = list(pairs)
    for _ in range(combined):  # as of a calibrated model, or a calibrated ensemble
        runs = [CombinedEpisode([run], lambda rewards: LiveReward(-rewards[0].value)) for run in runs]
    empty = np.empty((0, 0, 3), np.uint8)
    futures = [blocked.step(run, empty if at == 3 else random_images(1, 4, 4)[0]) for at, run in enumerate(runs)]
    last = blocked.step(Brightness().start("x"), random_images(1, 4, 4)[0])
    open_gate(blocked)
    for at, future in enumerate(futures):
        if at == 3:  # a bad frame spoils its own answer alone
            with pytest.raises(BadInput):
                future.result(60)
        else:
            assert future.result(60)[0].value == (-1) ** combined
    assert together == [16, 4]
    assert last.result(60)[0].value >= 0


def refuse(rewards: Sequence[LiveReward]) -> LiveReward:
    raise RuntimeError("cannot be combined")


@pytest.mark.parametrize("dies", [True, False])
def test_a_live_episode_that_fails_fails_alone(blocked: ModelThreads, dies: bool) -> None:
    runs = [CombinedEpisode([Pair([])], lambda rewards: rewards[0]) for _ in range(3)]
    runs[1] = CombinedEpisode([Pair([], dies=dies)], refuse)
    futures = [blocked.step(run, random_images(1, 4, 4)[0]) for run in runs]
    open_gate(blocked)
    with pytest.raises(RuntimeError, match="dies" if dies else "combined"):
        futures[1].result(60)
    assert [future.result(60)[0].value for future in futures[::2]] == [1, 1]
