"""Does the arithmetic of docs/scale.md hold when workers are slow, die, and the driver dies too?

    python benchmarks/scale_simulation.py [--small] [--episodes N] [--actors N] [--rate EPISODES_PER_SECOND] [--real]

Simulates `demerit score --on ray` event by event, with its own rules for groups and retries: actors take groups of
episodes and get the next one when the last one is on disk; the driver reads episodes and writes groups, one at a time;
some actors are slow; actors die and are replaced; the driver dies, and its next run skips what is on disk. The times of
the driver are measured on this machine: reading and fingerprinting an episode, and writing a group. --real also runs a
small job on a local Ray cluster, with a model that sleeps, and compares its time with the simulated one.
"""

from __future__ import annotations

import argparse
import heapq
import pickle
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from demerit.data.episode import Episode
from demerit.data.files import make_folder
from demerit.data.formats import open_dataset
from demerit.data.reward import Reward
from demerit.data.video import write_video
from demerit.models.baselines import Clock
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, score, scored_fingerprint
from demerit.use.on_ray import GROUP_SECONDS, GROUPS_PER_SECOND, RayCluster, RayScorer, choose_size

HOUR = 3600.0


@dataclass(frozen=True)
class Cluster:
    """What happens to a job. Times are seconds."""

    episodes: int = 1_000_000
    actors: int = 64
    rate: float = 3.0
    """episodes a second of an actor at full speed"""
    batch: int = 8
    spread: float = 0.1
    """standard deviation of the logarithm of a group's time"""
    slow_share: float = 0.0
    """actors that have a quarter of the speed"""
    actor_life: float = float("inf")
    """mean time until an actor dies"""
    actor_start: float = 120.0
    """until the next one has its model"""
    driver_life: float = float("inf")
    driver_start: float = 300.0
    """until somebody or something starts it again"""
    read: float = 0.0
    """of the driver, per episode"""
    write: float = 0.0
    """of the driver, per group"""


@dataclass
class Outcome:
    """What a simulated job took."""

    seconds: float = 0.0
    done: int = 0
    redone: int = 0
    """episodes whose work was lost and done again"""
    most_lost: int = 0
    """groups lost by one death of the driver"""
    actor_deaths: int = 0
    driver_deaths: int = 0
    groups: int = 0


def simulate(cluster: Cluster, seed: int = 0) -> Outcome:
    """Run the job until every episode is on disk."""
    rng, out = np.random.default_rng(seed), Outcome()
    slow = rng.random(cluster.actors) < cluster.slow_share
    while out.done < cluster.episodes:
        out.seconds += 0.0 if out.driver_deaths == 0 else cluster.driver_start + cluster.read * out.done
        dies = out.seconds + rng.exponential(cluster.driver_life) if np.isfinite(cluster.driver_life) else np.inf
        _run_driver(cluster, out, rng, slow, dies)
    return out


def _run_driver(cluster: Cluster, out: Outcome, rng: np.random.Generator, slow: np.ndarray, dies: float) -> None:
    """Run one driver until the job is done or it dies."""
    left = cluster.episodes - out.done
    target = max(GROUP_SECONDS, cluster.actors / GROUPS_PER_SECOND)
    sizes = [cluster.batch] * cluster.actors
    again: deque[int] = deque()
    begun = out.seconds
    free_at = begun  # when the driver has time
    # (time, actor, episodes, seconds of work); no episodes = the actor starts, negative = it dies on them
    events = [(begun + cluster.actor_start, actor, 0, 0.0) for actor in range(cluster.actors)]
    heapq.heapify(events)
    working: dict[int, int] = {}
    idle: list[int] = []  # nothing was left for them; a death may need them
    while events:
        now, actor, count, took = heapq.heappop(events)
        if now > dies:
            out.seconds, out.driver_deaths = dies, out.driver_deaths + 1
            out.redone += sum(working.values()) // 2  # on average half of a group was done
            out.most_lost = max(out.most_lost, len(working))
            return
        working.pop(actor, None)
        if count < 0:
            out.actor_deaths, out.redone = out.actor_deaths + 1, out.redone + -count // 2
            again.append(-count)
            heapq.heappush(events, (now + cluster.actor_start, actor, 0, 0.0))
            if not idle:
                continue
            actor, count = idle.pop(), 0
        if count:
            free_at = max(free_at, now) + cluster.write
            out.done, out.groups, out.seconds = out.done + count, out.groups + 1, free_at
            sizes[actor] = choose_size(sizes[actor], count / took, cluster.batch, target)
        was_given_back = bool(again)
        size = again.popleft() if again else min(sizes[actor], left)
        left -= 0 if was_given_back else size
        if not size:
            idle.append(actor)
            continue
        free_at = max(free_at, now) + cluster.read * size
        speed = cluster.rate / (4 if slow[actor] else 1)
        took = size / speed * rng.lognormal(-(cluster.spread**2) / 2, cluster.spread)  # mean 1
        death = rng.exponential(cluster.actor_life) if np.isfinite(cluster.actor_life) else np.inf
        working[actor] = size
        heapq.heappush(events, (free_at + min(took, death), actor, size if took <= death else -size, took))


def measure_driver(groups: int, size: int) -> tuple[float, float]:
    """Return the seconds to read and fingerprint an episode, and to write a group of rewards of 64 frames."""
    with tempfile.TemporaryDirectory() as name:
        model, images = Clock(), np.random.default_rng(0).integers(0, 255, (64, 96, 128, 3), np.uint8)
        paths = [Path(name) / f"{number}.mp4" for number in range(20)]
        for path in paths:
            write_video(path, images)
        start = time.perf_counter()
        for path in paths:
            scored_fingerprint(Episode.from_video(path, "do it"), model.card)
        read = (time.perf_counter() - start) / len(paths)
        at = np.arange(64)
        value = np.linspace(0, 1, 64, dtype=np.float32)
        start = time.perf_counter()
        with RewardStore.open_or_create(Path(name) / "r", model.card, {}).writer(model.card) as writer:
            for group in range(groups):
                rewards = [Reward("clock", f"{group}-{one}", at, value) for one in range(size)]
                writer.commit([(reward, "0" * 32) for reward in rewards])
        return read, (time.perf_counter() - start) / groups


class Sleeper(Clock):
    """A clock that sleeps 50 ms per episode, and looks at nothing."""

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        time.sleep(0.05 * len(episodes))
        return super().score(episodes)


def compare_with_ray(episodes: int, actors: int, read: float, write: float) -> None:
    """Print the seconds of a real job, from its first rewards to its last, and the simulated ones."""
    images = np.zeros((8, 32, 32, 3), np.uint8)
    seen: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as name, RayCluster() as cluster:
        cpus = cluster.ray.cluster_resources()["CPU"]
        actors = min(actors, int(cpus))
        first = make_folder(Path(name) / "v") / "00000.mp4"
        write_video(first, images)
        for number in range(1, episodes):
            shutil.copy(first, first.with_name(f"{number:05d}.mp4"))
        job = ScoreJob(Sleeper(), open_dataset(f"videos:{name}/v"), Path(name) / "r")
        scorer = RayScorer("scale_simulation:Sleeper", actors=actors, workers=0)
        score(job, lambda now: seen.append((now.seen, now.seconds)), scorer=scorer, commit_seconds=0)
    begun = next(seconds for count, seconds in seen if count)
    real = seen[-1][1] - begun
    case = Cluster(episodes, actors, 1 / 0.05, spread=0.0, actor_start=0.0, read=read, write=write)
    told = simulate(case).seconds - case.batch * 0.05
    print(f"real: {episodes} episodes on {actors} actors in {real:.1f} s; simulated {told:.1f} s ({real / told:.3f})")


def print_sizes(frames: int = 200, episodes: int = 512) -> None:
    """Print what travels and what is stored, per episode, with noisy values for every frame."""
    rng, at = np.random.default_rng(0), np.arange(frames)
    values = np.clip(np.linspace(0, 1, frames) + rng.normal(0, 0.05, (episodes, frames)), 0, 1).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        model, path = Clock(), Path(name) / "v.mp4"
        write_video(path, np.zeros((8, 32, 32, 3), np.uint8))
        sent = [
            (Episode.from_video(path, "put the cup on the plate", f"episode-{i}"), "0" * 32) for i in range(episodes)
        ]
        rewards = [Reward("clock", f"episode-{i}", at, values[i], values[i] ** 2) for i in range(episodes)]
        with RewardStore.open_or_create(Path(name) / "r", model.card, {}).writer(model.card) as writer:
            writer.commit([(reward, f"{i:032x}") for i, reward in enumerate(rewards)])
        stored = sum(part.stat().st_size for part in Path(name, "r", "rewards").iterdir())
    sizes = [len(pickle.dumps(sent)), len(pickle.dumps(rewards)), stored]
    there, back, kept = (size / episodes / 1e3 for size in sizes)
    print(f"per episode of {frames} frames: {there:.2f} kB to the actor, {back:.2f} kB back, {kept:.2f} kB on disk")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="20,000 episodes on 8 actors")
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--actors", type=int, default=64)
    parser.add_argument("--rate", type=float, default=3.0, help="episodes a second of an actor (default: %(default)s)")
    parser.add_argument("--real", action="store_true", help="also compare with a real job on a local Ray cluster")
    given = parser.parse_args()
    episodes, actors = (20_000, 8) if given.small else (given.episodes, given.actors)
    read, write = measure_driver(20 if given.small else 300, 48)
    print(
        f"driver: {read * 1e3:.2f} ms to read and fingerprint an episode, {write * 1e3:.1f} ms to write a group of 48"
    )
    print(f"it can feed {1 / (read + write / 48):.0f} episodes a second")
    print_sizes()
    if given.real:
        compare_with_ray(2000, 2, read, write)
    quiet = Cluster(episodes, actors, given.rate, read=read, write=write)
    ideal = episodes / actors / given.rate
    print(f"{episodes} episodes on {actors} actors of {given.rate:g}/s: arithmetic {ideal / HOUR:.2f} hours\n")
    hard = replace(quiet, slow_share=0.05, actor_life=10 * HOUR, driver_life=4 * HOUR)
    cases = {
        "nothing happens": quiet,
        "group times vary by 50%": replace(quiet, spread=0.5),
        "1 actor in 20 has a quarter of the speed": replace(quiet, slow_share=0.05),
        "an actor lives 10 hours": replace(quiet, actor_life=10 * HOUR),
        "an actor lives 1 hour": replace(quiet, actor_life=HOUR),
        "the driver lives 1 hour, back after 5 minutes": replace(quiet, driver_life=HOUR),
        "slow actors, 10-hour actors, 4-hour driver": hard,
    }
    print("| case | hours | of the arithmetic | done again | actors died | driver died |\n|---|---|---|---|---|---|")
    for name, case in cases.items():
        runs = [simulate(case, seed) for seed in range(5)]
        assert all(run.done == episodes for run in runs)
        hours = np.median([run.seconds for run in runs]) / HOUR
        again = np.median([run.redone for run in runs]) / episodes
        deaths, drivers = (np.median([getattr(run, f"{who}_deaths") for run in runs]) for who in ("actor", "driver"))
        print(f"| {name} | {hours:.2f} | {hours * HOUR / ideal:.3f} | {again:.2%} | {deaths:.0f} | {drivers:.0f} |")


if __name__ == "__main__":
    main()
