"""Work on a Ray cluster: groups of items go to actors and answers come back.

The driver alone writes results; items are references such as episodes without their frames. An actor has one group at a
time and gets the next when the answer of the last one is taken, so a death costs at most one group per actor. Why these
are plain actors and not Ray Data: docs/decisions/0016-plain-ray-actors.md.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain, islice
from math import inf
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from demerit.data.decode import Decoders, OnFrames
from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import BadEpisode, BadInput, DemeritError, RemoteError
from demerit.models.loading import load_model
from demerit.models.protocol import RewardModel
from demerit.models.reward_store import scored_fingerprint
from demerit.models.score import BatchScorer, ScoreJob
from demerit.registry import load_attribute

LOCAL = "ray"
CLIENT_PORT = 10001
CONNECT_SECONDS = 10
START_SECONDS = 120
"""how long no actor may start before the cluster counts as busy"""
HEAD_SECONDS = 20
"""how long the head may be silent"""
GROUP_SECONDS = 5.0
"""how long an actor should work on a group; longer with many actors, so that the driver writes four groups a second"""
GROUPS_PER_SECOND = 4
MOST_ITEMS = 1024
MOST_DEATHS = 2
"""after this many deaths a group is split, and an item alone is given up"""
MOST_DEATHS_IN_A_ROW = 5
"""without any answer; twice the number of actors if that is more"""
DIED = "Ray workers died on it"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # else the report of a dead worker is printed to stdout, between our own lines
}
SHARED = ("PYTHONPATH", "OPENBLAS_NUM_THREADS")
"""environment variables that actors get from the driver"""
OBJECT_STORE = 100 * 2**20
LONGEST_FOLDER = 30
"""of temporary files: Ray adds 70 characters, and the path of a socket has 107 at most"""
ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class ActorNeeds:
    """What each actor takes of the cluster, and how many are wanted."""

    cpus: int = 1
    gpus: float = 0.0
    actors: int | None = None
    """None = as many as fit"""

    def __str__(self) -> str:
        return f"{self.cpus} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")


class RayCluster:
    """A connection to a Ray cluster; use it in a with block. A local cluster that it starts ends with the block."""

    def __init__(self, on: str = LOCAL) -> None:
        """Check the address: `ray` or `ray://HOST:PORT`, another machine's cluster.

        `ray` is the cluster that RAY_ADDRESS names or that runs here; if there is none, a new one on this machine.
        """
        self.on, self.address = on, _find_address(on)
        self.is_ours = self.is_lost = False

    def __enter__(self) -> RayCluster:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        load_attribute("ray:init", f"--on {self.on}")
        self.ray: Any = import_module("ray")
        if self.ray.is_initialized():
            self._head = _split(self.ray.get_runtime_context().gcs_address)
        else:
            self._connect()
        self._heard = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_ours and not self.is_lost:  # without its head, Ray would wait for it
            self.ray.shutdown()

    def _connect(self) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address is None:
            os.environ.setdefault("RAY_worker_niceness", "0")  # as the same work without Ray; the default is 15
            options |= {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE}
            if len(gettempdir()) > LONGEST_FOLDER:
                options["_temp_dir"] = "/tmp/ray"
        else:
            self._head = _split(self.address)
            if not _answers(self._head, CONNECT_SECONDS):
                reason = "no Ray head answers there; start it, or run `ray stop` if it is gone"
                raise RemoteError(self.address, 0, reason)
            is_found = self.on == LOCAL and not os.environ.get("RAY_ADDRESS")
            options["address"] = "auto" if is_found else self.address  # Ray sends its token only where it is "auto"
        try:
            self.ray.init(**options)
        except (ValueError, RuntimeError, OSError) as error:  # another version, a token is needed, no grpcio ...
            got = f"{_last(error)} (if it asks for a token, set RAY_AUTH_MODE=token)"
            raise BadInput(f"--on {self.on}", "a Ray cluster to connect to", got) from error
        self.is_ours = True
        if self.address is None:
            self._head = _split(self.ray.get_runtime_context().gcs_address)

    def check_head(self) -> None:
        """Raise RemoteError if the head has been silent for too long. Ray itself would wait, or end this process."""
        if _answers(self._head, 2):
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > HEAD_SECONDS:
            raise self.lose()

    def lose(self) -> RemoteError:
        """Give the head up; return the error."""
        self.is_lost = True
        host, port = self._head
        return RemoteError(f"{host}:{port}", 0, "the Ray head is gone. What was done is saved: run again to resume")

    def count_actors(self, needs: ActorNeeds) -> int:
        """Return how many actors to start; raise BadInput if they do not fit."""
        fitting = 0
        for node in self.ray.nodes():
            has = node["Resources"] if node["Alive"] else {}
            gpus = has.get("GPU", 0) / needs.gpus if needs.gpus else inf
            fitting += int(min(has.get("CPU", 0) / needs.cpus, gpus))
        if fitting < (needs.actors or 1):
            total = self.ray.cluster_resources()
            has = f"{total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs"
            got = f"{needs.actors or 1} that take {needs} each"
            raise BadInput("actors", f"at most {fitting} on a Ray cluster of {has}", got)
        return fitting if needs.actors is None else needs.actors


def _find_address(on: str) -> str | None:
    """Return the address to connect to; None = start a cluster here."""
    if on == LOCAL:
        note = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")  # written by `ray start`
        return os.environ.get("RAY_ADDRESS") or (note.read_text().strip() if note.is_file() else None)
    parts = urlsplit(on)
    if parts.scheme != LOCAL or not parts.hostname:
        raise BadInput("--on", "ray or ray://HOST:PORT", repr(on))
    return f"ray://{parts.hostname}:{parts.port or CLIENT_PORT}"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise BadInput("the address of the Ray head", "HOST:PORT", repr(address))
    return host, int(port)


def _answers(head: tuple[str, int], seconds: float) -> bool:
    try:
        socket.create_connection(head, seconds).close()
    except OSError:
        return False
    return True


def _last(error: BaseException) -> str:
    """Return the last line of Ray's report."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


class _Actor:
    """The process on the cluster. It returns errors as text, because not every exception can be sent."""

    def settle(self, folder: str, path: list[str]) -> None:
        """Make names and relative paths mean what they mean to the driver."""
        with suppress(OSError):
            os.chdir(folder)
        sys.path += [entry for entry in path if entry not in sys.path]

    def load(self, make_work: Callable[[], Callable[[list[Any]], Any]]) -> tuple[None, str, float]:
        """Load what the work needs."""
        self.work: Callable[[Any], Any] = lambda work: make_work()
        self.work, error, seconds = self.run(None)
        return None, error, seconds

    def run(self, items: Any) -> tuple[Any, str, float]:
        """Return the answer or an error, and the seconds."""
        began = time.monotonic()
        try:
            return self.work(items), "", time.monotonic() - began
        except DemeritError as error:
            return None, f"{socket.gethostname()}: {error}", time.monotonic() - began


def work_on_ray(
    cluster: RayCluster,
    make_work: Callable[[], Callable[[list[ItemT]], Any]],
    items: Iterable[ItemT],
    needs: ActorNeeds,
    batch: int = 1,
    group_seconds: float = GROUP_SECONDS,
    env: Mapping[str, str] | None = None,
) -> Iterator[tuple[list[ItemT], Any]]:
    """Yield (items, answer) for all items, in any order; the answer is None for an item on which actors died.

    `make_work` is called once in each actor, with the environment variables `env` as well; it returns the function that
    answers a group of items. Items are read as actors become free. Groups are multiples of `batch` (the last one may be
    smaller), for about `group_seconds` of work; 0 = one batch at a time.
    """
    crew = _Crew(cluster, make_work, iter(items), needs, batch, group_seconds, env or {})
    try:
        yield from crew.run()
    except ConnectionError as gone:  # Ray's client gave up
        raise cluster.lose() from gone
    finally:
        crew.stop()


class _Crew(Generic[ItemT]):
    def __init__(
        self,
        cluster: RayCluster,
        make_work: Callable[[], Any],
        items: Iterator[ItemT],
        needs: ActorNeeds,
        batch: int,
        seconds: float,
        env: Mapping[str, str],
    ) -> None:
        self.cluster, self.ray, self.make_work, self.items, self.batch = cluster, cluster.ray, make_work, items, batch
        self.count = count = cluster.count_actors(needs)
        self.seconds = max(seconds, count / GROUPS_PER_SECOND) if seconds else 0.0
        self.kind = self.ray.remote(_Actor).options(
            num_cpus=needs.cpus,
            num_gpus=needs.gpus,
            scheduling_strategy="DEFAULT" if needs.gpus else "SPREAD",
            runtime_env={"env_vars": {name: os.environ[name] for name in SHARED if name in os.environ} | dict(env)},
        )
        self.sizes: dict[Any, int] = {}
        """how many items each actor gets at a time"""
        self.placing: dict[Any, Any] = {}
        self.working: dict[Any, tuple[Any, list[ItemT], int]] = {}
        """by the answer that is awaited: the actor, its items (none: it loads), and how many actors died on them"""
        self.idle: list[Any] = []
        self.again: deque[tuple[list[ItemT], int]] = deque()
        """items on which actors died, and how many"""
        self.deaths_in_a_row = 0
        self.alive = time.monotonic()
        for _ in range(count):
            self._add_actor()

    def run(self) -> Iterator[tuple[list[ItemT], Any]]:
        while True:
            self._hand_out()
            if self.idle and not self.working:
                return  # nothing is left for the idle one
            ready, _ = self.ray.wait([*self.working, *self.placing], num_returns=1, timeout=1.0)
            self._check()
            for ref in ready:
                if ref in self.placing:
                    self._place(ref)
                else:
                    yield from self._collect(ref)

    def stop(self) -> None:
        for actor in self.sizes:
            if not self.cluster.is_lost:
                self.ray.kill(actor)

    def _add_actor(self) -> None:
        actor = self.kind.remote()
        self.sizes[actor] = self.batch
        self.placing[actor.settle.remote(os.getcwd(), [entry for entry in sys.path if entry])] = actor

    def _hand_out(self) -> None:
        while self.idle:
            size = self.sizes[self.idle[-1]]
            items, deaths = self.again.popleft() if self.again else (list(islice(self.items, size)), 0)
            if not items:
                return
            actor = self.idle.pop()
            self.working[actor.run.remote(items)] = (actor, items, deaths)

    def _check(self) -> None:
        """Raise if the head is gone, or if no actor has found a place for long."""
        self.cluster.check_head()
        if self.working or self.idle:
            self.alive = time.monotonic()
        elif time.monotonic() - self.alive > START_SECONDS:
            free = self.ray.available_resources()
            rest = f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free"
            got = f"none in {START_SECONDS} seconds ({rest})"
            raise BadInput(f"--on {self.cluster.on}", "an actor that starts on the cluster", got)

    def _place(self, ref: Any) -> None:
        actor = self.placing.pop(ref)
        try:
            self.ray.get(ref)
            self.working[actor.load.remote(self.make_work)] = (actor, [], 0)
        except self.ray.exceptions.RayError as error:
            self._replace(actor, error)

    def _collect(self, ref: Any) -> Iterator[tuple[list[ItemT], Any]]:
        actor, items, deaths = self.working.pop(ref)
        try:
            answer, error, seconds = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as broken:
            raise DemeritError(f"A Ray worker failed: {_last(broken)}") from broken
        except self.ray.exceptions.RayError as death:
            if len(items) == 1 and deaths + 1 == MOST_DEATHS:
                yield items, None
            elif deaths + 1 == MOST_DEATHS:
                self.again.extend(([item], 0) for item in items)
            elif items:
                self.again.append((items, deaths + 1))
            self._replace(actor, death)
            return
        if error:
            raise DemeritError(error)
        self.deaths_in_a_row = 0
        if items:
            rate = len(items) / max(seconds, 1e-6)
            self.sizes[actor] = choose_size(self.sizes[actor], rate, self.batch, self.seconds)
            yield items, answer
        self.idle.append(actor)
        self._hand_out()

    def _replace(self, actor: Any, error: BaseException) -> None:
        """Start an actor in the place of a dead one, unless all die."""
        del self.sizes[actor]
        self.deaths_in_a_row += 1
        if self.deaths_in_a_row > max(MOST_DEATHS_IN_A_ROW, 2 * self.count):
            deaths = f"{self.deaths_in_a_row} Ray workers died one after the other"
            raise DemeritError(
                f"{deaths}. Is the same demerit installed on every machine? The last error: {_last(error)}"
            )
        self._add_actor()


def choose_size(size: int, items_per_second: float, batch: int, seconds: float) -> int:
    """Return how many items an actor gets next: work for `seconds`, in batches, at most four times the last `size`."""
    wanted = min(items_per_second * seconds, 4 * size, MOST_ITEMS)
    return max(int(wanted) // batch, 1) * batch


# --- scoring


@dataclass(frozen=True)
class RayScorer:
    """Scores on a Ray cluster: `score(job, scorer=RayScorer("default"), commit_seconds=0)`."""

    model: str
    """what `load_model` takes; every actor loads it"""
    on: str = LOCAL
    actors: int | None = None
    """None = as many as fit"""
    gpus: float | None = None
    """of an actor; None = 1 for a vision-language model where the cluster has GPUs, else 0"""
    workers: int | None = None
    """decoding processes of an actor, which takes as many CPUs; None = 2, with GPUs up to 4"""
    group_seconds: float = GROUP_SECONDS

    def __call__(
        self, job: ScoreJob, episodes: Iterator[tuple[Episode, str]], on_frames: OnFrames
    ) -> Generator[list[Reward], None, None]:
        """Yield the rewards of each group of episodes. The cluster is asked only if there is something to score."""
        if hasattr(job.model, "spent"):
            raise BadInput(f"--on {self.on}", "a model that runs on the cluster", "a chat model, which has one budget")
        first = next(episodes, None)
        if first is None:
            return
        with RayCluster(self.on) as cluster:
            needs, workers = self._plan(job.model, cluster.ray.cluster_resources())
            make = partial(_make_scorer, self.model, job.model.card.hash(), job.frames, job.batch, workers)
            todo = chain([first], episodes)
            for group, rewards in work_on_ray(cluster, make, todo, needs, job.batch, self.group_seconds):
                yield rewards or [Reward.unscored(job.model.card.name, episode.id, DIED) for episode, _ in group]

    def _plan(self, model: RewardModel, cluster: Mapping[str, float]) -> tuple[ActorNeeds, int]:
        gpus, cpus = self.gpus, int(cluster.get("CPU", 0))
        if gpus is None:
            gpus = float(cluster.get("GPU", 0) >= 1 and _is_for_gpus(model))
        share = min(4, int(cpus * gpus / cluster.get("GPU", 1))) if gpus else min(2, cpus)
        workers = max(share, 1) if self.workers is None else self.workers
        return ActorNeeds(max(workers, 1), gpus, self.actors), workers


def _is_for_gpus(model: RewardModel) -> bool:
    """Whether it is a vision-language model, or made of one (calibrated, an ensemble)."""
    inside = [*getattr(model, "members", ()), *filter(None, [getattr(model, "inner", None)])]
    extra: str = getattr(getattr(model, "listing", None), "extra", "")
    return extra == "vlm" or any(map(_is_for_gpus, inside))


def _make_scorer(
    name: str, card_hash: str, frames: int | None, batch: int, workers: int
) -> Callable[[list[tuple[Episode, str]]], list[Reward]]:
    """Return the work of a scoring actor; the model and the decoding processes stay."""
    model = load_model(name)
    if model.card.hash() != card_hash:
        raise BadInput(f"the model {name}", "the same card as the driver's", "another (is demerit the same version?)")
    scorer = BatchScorer(model, frames, batch, workers)
    decoders = Decoders(batch, workers, _ignore) if workers and model.card.sees_pixels else None

    def score(group: list[tuple[Episode, str]]) -> list[Reward]:
        for episode, fingerprint in group:
            if scored_fingerprint(episode, model.card) != fingerprint:
                expected = "the files that the driver sees, on a disk that all machines share"
                raise BadEpisode(episode.id, expected, "others")
        batches = scorer.score((episode for episode, _ in group), _ignore, decoders)
        return [reward for rewards in batches for reward in rewards]

    return score


def _ignore(id: str, read: int, total: int) -> None:
    """Report nothing: the driver shows finished groups."""
