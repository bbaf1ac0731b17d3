"""Scoring on Ray: the same rewards as without it, and whatever dies, nothing is lost and nothing is doubled."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demerit.data.formats import open_dataset
from demerit.data.store import Store
from demerit.errors import BadEpisode, BadInput, DemeritError, RemoteError
from demerit.models import load_model
from demerit.models.protocol import example_card
from demerit.models.reward_store import RewardStore, scored_fingerprint
from demerit.models.score import ScoreJob, ScoreProgress, score
from demerit.negatives.sim.job import simulate
from demerit.negatives.sim.rollout import EpisodeSpec
from demerit.use import on_ray
from demerit.use.on_ray import DIED, RayCluster, RayScorer
from demerit.use.simulate_on_ray import simulate_on_ray
from fakes.command import demerit_here, error_sentence
from fakes.processes import running

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(480)  # starting a cluster takes long on a busy machine
MODEL = "fakes.ray_models:Saboteur"
BATCH, ACTORS, EPISODES = 2, 2, 16
Head = tuple[str, str, dict[str, str]]
SCORER = RayScorer(MODEL, actors=ACTORS, workers=1, group_seconds=0)


# --- without a cluster


@pytest.mark.parametrize("on", ["rays", "http://x", "ray://", "ray:"])
def test_other_addresses_are_refused(on: str) -> None:
    with pytest.raises(BadInput, match="--on"):
        RayCluster(on)


def test_an_address_without_a_head_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as held:  # bound, not listening: nobody answers, and nobody else can take the port
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(RemoteError) as refused, RayCluster(f"ray://{address}"):
            pass
        assert (refused.value.url, refused.value.status) == (f"ray://{address}", 0)
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RemoteError), RayCluster():
            pass
        monkeypatch.delenv("RAY_ADDRESS")
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # a head that died has left its note
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        with pytest.raises(RemoteError), RayCluster():
            pass


def test_a_chat_model_is_refused_and_nothing_to_do_needs_no_cluster(sample: Path, tmp_path: Path) -> None:
    chat = SimpleNamespace(card=example_card(name="chat"), score=lambda episodes: [], spent=0)
    job = ScoreJob(chat, open_dataset(f"videos:{sample}"), tmp_path)
    with pytest.raises(BadInput, match="chat model"):
        next(RayScorer("chat", "ray://nowhere")(job, iter([]), lambda *_: None))
    plain = ScoreJob(load_model("clock"), job.dataset, tmp_path)
    assert list(RayScorer("clock", "ray://nowhere")(plain, iter([]), lambda *_: None)) == []


def test_a_worker_that_sees_other_files_says_so(sample: Path) -> None:
    model = load_model("clock")
    work = on_ray._make_scorer("clock", model.card.hash(), None, BATCH, 0)
    first = next(iter(open_dataset(f"videos:{sample}")))
    assert [reward.episode for reward in work([(first, scored_fingerprint(first, model.card))])] == [first.id]
    with pytest.raises(BadEpisode) as refused:
        work([(first, "of another file")])
    assert refused.value.episode == first.id
    with pytest.raises(BadInput, match="card"):
        on_ray._make_scorer("clock", "of another version", None, BATCH, 0)


def test_models_for_gpus_get_one_also_inside_others() -> None:
    plain, vlm = SimpleNamespace(), SimpleNamespace(listing=SimpleNamespace(extra="vlm"))
    machine = {"CPU": 8.0, "GPU": 2.0}
    for model, gpus in (
        (plain, 0),
        (vlm, 1),
        (SimpleNamespace(inner=vlm), 1),
        (SimpleNamespace(inner=plain, listing=SimpleNamespace(extra="chat")), 0),
        (SimpleNamespace(members=[plain, SimpleNamespace(inner=vlm)]), 1),
    ):
        for scorer, has, expected in (
            (RayScorer(""), machine, gpus),
            (RayScorer(""), {"CPU": 8.0}, 0),
            (RayScorer("", gpus=0.5), machine, 0.5),
        ):
            assert scorer._plan(model, has)[0].gpus == expected


def test_options_of_ray_need_it(sample: Path) -> None:
    for option in ("--actors", "--gpus"):
        assert option in error_sentence(demerit_here("score", sample, "--model", "clock", option, 1))


# --- on a cluster of four logical CPUs

DRIVER = """
import functools, json, os, sys
import ray
from demerit.cli import score as models
from demerit.negatives.sim.job import simulate
from demerit.negatives.sim.rollout import EpisodeSpec
from demerit.use import on_ray
on_ray.HEAD_SECONDS = 2
models.RayScorer = functools.partial(on_ray.RayScorer, group_seconds=0)
plan = json.loads(open(os.environ["DEMERIT_TEST_PLAN"]).read())
open(os.environ["DEMERIT_TEST_PLAN"], "w").write(json.dumps({**plan, "driver": os.getpid()}))
if "RAY_ADDRESS" not in os.environ:
    os.environ["RAY_worker_niceness"] = "0"
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
from demerit.cli import main
sys.argv = ["demerit", "score", *sys.argv[1:]]
main()
"""


class Bench:
    """A dataset of drawn videos, the log of what was scored, and rewards on disk."""

    def __init__(self, root: Path, plan: Path, make_video: Callable[..., Path]) -> None:
        self.root, self.plan, self.log, self.out = root, plan, root / "log.txt", root / "rewards"
        for number in range(EPISODES):
            make_video(f"v/{number:02d}.mp4", seed=number, frames=6)
        self.order()

    def order(self, head: int = 0, weights: str = "", node: int = 0, together: int = 0, **harm: str) -> None:
        named = {name.removeprefix("e"): word for name, word in harm.items()}
        plan = {"log": str(self.log), "harm": named, "head": head, "weights": weights, "node": node}
        plan["together"] = together
        self.plan.write_text(json.dumps(plan))

    def job(self, out: Path | None = None, **options: Any) -> ScoreJob:
        dataset = open_dataset(f"videos:{self.root / 'v'}")
        return ScoreJob(load_model(MODEL), dataset, out or self.out, batch=BATCH, workers=0, **options)

    def score(self, scorer: RayScorer = SCORER, **options: Any) -> ScoreProgress:
        return score(self.job(**options), scorer=scorer, commit_seconds=0)

    def column(self, place: int) -> list[str]:
        """A column of the log: process, episode, process of the machine, GPUs."""
        return [line.split()[place] for line in self.log.read_text().splitlines()]

    def times_scored(self) -> Counter[str]:
        return Counter(self.column(1))

    def redone(self) -> int:
        return sum(times - 1 for times in self.times_scored().values())

    def rows(self, out: Path | None = None) -> pa.Table:
        store = RewardStore(out or self.out)
        parts = [pq.read_table(store.root / part.file) for part in store.manifest.tables["rewards"]]
        return pa.concat_tables(parts).sort_by("episode")

    def drive(self, **options: Any) -> Any:
        """Start the command as a process of its own, with a cluster of its own."""
        words = [self.root / "v", "--model", MODEL, "--on", "ray", "--actors", ACTORS, "--batch", BATCH, "--workers", 1]
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": paths, "DEMERIT_TEST_PLAN": str(self.plan), "NO_COLOR": "1"}
        environment |= options.pop("env", {})
        command = [sys.executable, "-c", DRIVER, *map(str, words), "--rewards", str(self.root)]
        self.out = self.root / "saboteur"
        return running(command, env=environment, stderr=subprocess.PIPE, start_new_session=True, **options)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running cluster, whose actors read this file."""
    path = tmp_path_factory.mktemp("ray") / "plan.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEMERIT_TEST_PLAN", str(path))
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local",
            num_cpus=4,
            num_gpus=2,  # Ray counts them without looking for any
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 * 2**20,
        )
        try:
            yield path
        finally:
            ray.shutdown()


@pytest.fixture
def bench(tmp_path: Path, plan: Path, make_video: Callable[..., Path]) -> Bench:
    return Bench(tmp_path, plan, make_video)


@pytest.fixture
def alone(tmp_path: Path, make_video: Callable[..., Path]) -> Bench:
    """A bench whose cluster is started by the command."""
    return Bench(tmp_path, tmp_path / "plan.json", make_video)


@pytest.mark.slow
@pytest.mark.parametrize("frames", [None, 2])
def test_rewards_are_those_of_the_plain_job(bench: Bench, frames: int | None) -> None:
    (bench.root / "v" / "05.mp4").write_bytes(b"no video at all")
    score(bench.job(bench.root / "plain", frames=frames))
    bench.order(together=1 + ACTORS)  # with this process, which has begun
    progress = bench.score(frames=frames)
    assert (progress.scored, progress.unscored) == (EPISODES - 1, 1)
    assert bench.rows().equals(bench.rows(bench.root / "plain"))
    assert len({*bench.column(0)} - {str(os.getpid())}) == ACTORS
    again = bench.score(frames=frames)
    assert (again.kept, again.scored, again.unscored) == (EPISODES, 0, 0)
    assert ray.is_initialized()  # a cluster that was there before stays


@pytest.mark.slow
def test_each_actor_of_a_model_for_gpus_has_one_of_its_own(bench: Bench) -> None:
    score(bench.job(), scorer=RayScorer(f"{MODEL}OnGpu", actors=1, workers=1, group_seconds=0), commit_seconds=0)
    assert {*bench.column(3)} == {"none"}  # the job's own model is not for GPUs
    job = replace(bench.job(bench.root / "gpus"), model=load_model(f"{MODEL}OnGpu"))
    bench.log.unlink()
    bench.order(together=3)  # two for two GPUs, and the one before
    progress = score(job, scorer=RayScorer(f"{MODEL}OnGpu", workers=1, group_seconds=0), commit_seconds=0)
    assert progress.scored == EPISODES
    assert len({*bench.column(0)}) == 2 and {*bench.column(3)} == {"0", "1"}
    assert len({*zip(bench.column(0), bench.column(3), strict=True)}) == 2


@pytest.mark.slow
def test_a_model_that_was_taught_again_scores_everything_again(bench: Bench) -> None:
    assert bench.score().scored == EPISODES
    bench.order(weights="taught again")
    progress = bench.score()
    assert (progress.stale, progress.scored, progress.kept) == (EPISODES, EPISODES, 0)
    assert set(bench.times_scored().values()) == {2}


@pytest.mark.slow
def test_a_killed_worker_loses_and_doubles_nothing(bench: Bench) -> None:
    bench.order(e03="die", e11="die")
    assert bench.score().scored == EPISODES
    assert bench.rows()["episode"].to_pylist() == [f"{number:02d}" for number in range(EPISODES)]
    assert bench.redone() <= 2 * (BATCH - 1)


@pytest.mark.slow
def test_an_episode_on_which_workers_die_is_unscored_alone(bench: Bench) -> None:
    bench.order(e06="always die")
    progress = bench.score()
    assert (progress.scored, progress.unscored, dict(progress.reasons)) == (EPISODES - 1, 1, {DIED: 1})
    bench.order()
    retried = bench.score(retry=True)
    assert (retried.scored, retried.kept) == (1, EPISODES - 1)


@pytest.mark.slow
def test_what_does_not_fit_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for scorer in (RayScorer(MODEL, actors=3, workers=2), RayScorer(MODEL, gpus=3), RayScorer(MODEL, workers=5)):
        with pytest.raises(BadInput, match="CPUs"):
            bench.score(scorer)
    others = ray.remote(num_cpus=4)(on_ray._Actor).remote()
    ray.get(others.settle.remote(".", []))
    with monkeypatch.context() as patch, pytest.raises(BadInput, match="0 CPUs"):
        patch.setattr(on_ray, "START_SECONDS", 1)
        bench.score()
    ray.kill(others)
    job = bench.job()
    stranger = [(episode, "of another file") for episode in job.dataset]
    with pytest.raises(DemeritError, match=socket.gethostname()):
        next(SCORER(job, iter(stranger), lambda *_: None))
    assert not bench.log.exists()


@pytest.mark.slow
def test_simulated_episodes_are_those_of_the_plain_job(tmp_path: Path, plan: Path) -> None:
    pytest.importorskip("metaworld")
    specs = [EpisodeSpec("reach", behaviour, 3, "plain", 32) for behaviour in ("expert", "undo", "random")]
    simulate(tmp_path / "plain", specs, workers=1)
    progress = simulate(tmp_path / "ray", specs, simulator=partial(simulate_on_ray, actors=2))
    assert (progress.made, progress.kept) == (3, 0)
    pairs = zip(Store(tmp_path / "plain").episodes(), Store(tmp_path / "ray").episodes(), strict=True)
    for alone, on_cluster in pairs:
        assert (alone.id, alone.fingerprint(True)) == (on_cluster.id, on_cluster.fingerprint(True))
    assert simulate(tmp_path / "ray", specs, simulator=partial(simulate_on_ray, on="ray://nowhere")).kept == 3


@pytest.mark.slow
def test_a_killed_driver_loses_and_doubles_nothing(alone: Bench) -> None:
    alone.order(e09="kill the driver")
    with alone.drive() as run:
        run.communicate()
        assert run.returncode == -signal.SIGKILL
    before = len(RewardStore(alone.out))
    assert 0 < before < EPISODES
    with alone.drive() as run:
        _, errors = run.communicate()
        assert run.returncode == 0, errors
    assert alone.rows()["episode"].to_pylist() == [f"{number:02d}" for number in range(EPISODES)]
    assert alone.redone() <= ACTORS * BATCH


@pytest.mark.slow
def test_control_c_saves_what_is_done(alone: Bench) -> None:
    alone.order(e09="interrupt the driver")
    with alone.drive() as run:
        _, errors = run.communicate()
    assert run.returncode == 130 and "Traceback" not in errors, errors
    before = len(RewardStore(alone.out))
    with alone.drive() as run:
        out, errors = run.communicate()
        assert run.returncode == 0, errors
    assert 0 < before < len(alone.rows()) == EPISODES
    assert f"{before} were scored already" in out


@contextlib.contextmanager
def ray_node(words: str, environment: dict[str, str]) -> Iterator[int]:
    """Run `ray start` with these words until the block ends; yield its process."""
    words = f"start --block --object-store-memory 100000000 {words}"
    command = [sys.executable, "-m", "ray.scripts.scripts", *words.split()]
    with running(command, env=environment, stderr=subprocess.STDOUT, start_new_session=True) as node:
        assert node.stdout is not None
        said = []
        for line in node.stdout:
            said.append(line)
            if "block forever" in line:
                break
        else:
            pytest.fail("".join(said))
        yield node.pid


def find_process(pid: int, name: str) -> int:
    """Return the process of this name below another."""
    psutil = pytest.importorskip("psutil")
    family = psutil.Process(pid).children(recursive=True)
    return next(process.pid for process in family if name in process.name())


def list_processes(word: str) -> list[int]:
    """Return the running processes that were started with this word in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += [int(folder.name)] if word.encode() in (folder / "environ").read_bytes() else []
    return found


@pytest.fixture
def head(alone: Bench) -> Iterator[Head]:
    """How to start a machine with a head: its words with CPUS for their number, its address and its environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "DEMERIT_TEST_PLAN": str(alone.plan), "RAY_AUTH_MODE": "disabled"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    where = Path("/tmp", f"demerit-ray-{port}")  # pytest's own folders are too long for the sockets in it
    words = f"--head --num-cpus CPUS --port {port} --include-dashboard false --temp-dir {where}"
    try:
        yield words, f"127.0.0.1:{port}", environment
    finally:
        while left := list_processes(str(alone.plan)):  # those of a dead machine have no parent any more
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        shutil.rmtree(where, ignore_errors=True)


@pytest.mark.slow
def test_a_dead_head_is_a_sentence_and_what_is_done_is_kept(alone: Bench, head: Head) -> None:
    words, address, environment = head
    with ray_node(words.replace("CPUS", "4"), environment) as node:
        alone.order(head=find_process(node, "gcs_server"), e09="kill the head")
        with alone.drive(env={**environment, "RAY_ADDRESS": address}) as run:
            _, errors = run.communicate()
        assert run.returncode == 1 and "Traceback" not in errors, errors
        assert address.partition(":")[2] in errors.splitlines()[-1]
    assert 0 < len(RewardStore(alone.out)) < EPISODES


@pytest.mark.slow
def test_a_machine_that_dies_loses_and_doubles_nothing(
    alone: Bench, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One actor on each of two machines. The second dies, with its raylet, after the first episode of a group."""
    monkeypatch.setenv("DEMERIT_TEST_PLAN", str(alone.plan))
    score(alone.job(alone.root / "plain"))
    alone.log.unlink()
    words, address, environment = head
    with (
        ray_node(words.replace("CPUS", "1"), environment) as first,
        ray_node(f"--address {address} --num-cpus 1", environment) as second,
    ):
        machines = [find_process(node, "raylet") for node in (first, second)]
        alone.order(node=machines[1], e13="wait for its end")
        with alone.drive(env={**environment, "RAY_ADDRESS": address}) as run:
            _, errors = run.communicate()
        assert run.returncode == 0, errors
    assert {*alone.column(2)} == {str(pid) for pid in machines}
    assert alone.column(2).count(str(machines[1])) == 1 == alone.redone()
    assert alone.rows().equals(alone.rows(alone.root / "plain"))
