"""Does a reward buy success where the data has failures in it? Behaviour cloning and IQL on simulated episodes.

    python benchmarks/offline_rl.py OUT [--jobs 2]     run it again to go on; every finished run is a line of runs.jsonl
    python benchmarks/offline_rl.py --small            seconds, for tests; the figures mean nothing

Every task is simulated with all behaviours, from expert to slam. Some scenes teach a reward model (15 successes and 15
failures), the others are the policy's data: 60 episodes, 30% (then 70%) of them failures. Compared are

    plain        behaviour cloning (BC) of all data
    filtered     BC of the episodes whose last probability of success is 0.5 or more (last value, if there is none)
    weighted     BC with the sample weights of RA-BC (5 frames ahead, kappa 0.01)
    relabelled   IQL (d3rlpy) whose reward of a step is the value of the frame that it leads to

with these rewards: `progress` and `flags`, models taught with progress at every frame or with success flags alone;
`true`, the simulator's own labels; and `random` and `clock`, which know nothing. The clock cannot filter (all end at 1)
nor weight (all rise alike): both would be plain. A seed draws the lesson, the data, the policy's first weights and the
scenes of the trials, which are the same for everything that is compared. Success is the state after the last step.

A reward has bought success if the mean over tasks and seeds is at least 10 points above plain and the lower end of the
95% interval is above 0 (paired; runs of a task and seed resampled together).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, replace
from functools import cache
from io import StringIO
from itertools import pairwise, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import demerit
from demerit.data.arrays import Floats
from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.files import make_folder, write_atomic
from demerit.evaluate.metrics.bootstrap import Comparison, compare, mean_tally
from demerit.evaluate.metrics.success import auroc
from demerit.models.reward_store import RewardStore
from demerit.models.score import score_missing
from demerit.use.write.frames import EpisodeSpans, reward_steps, weigh_samples

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "rl"))

FIRST_SCENE, FIRST_TRIAL = 900_000, 5_000_000
PLAIN, FILTERED, WEIGHTED, RELABELLED = "plain", "filtered", "weighted", "relabelled"
PROGRESS, FLAGS, TRUE, RANDOM, CLOCK = "progress", "flags", "true", "random", "clock"
USES = {
    PLAIN: [""],
    FILTERED: [PROGRESS, FLAGS, TRUE, RANDOM],
    WEIGHTED: [PROGRESS, FLAGS, TRUE, RANDOM],
    RELABELLED: [PROGRESS, FLAGS, TRUE, CLOCK],
}
WAYS = [(use, reward) for use, rewards in USES.items() for reward in rewards]
KEPT = ("failures kept", "successes kept")
WORTH = 0.10
"""points of success that count as bought"""
HALF, AHEAD, KAPPA, GAMMA = 0.5, 5, 0.01, 0.95
WIDTH, BATCH, RATE = 128, 128, 1e-3


@dataclass(frozen=True)
class Plan:
    """How much is simulated, taught, trained and tried."""

    tasks: tuple[str, ...] = ("window-close", "faucet-close")
    behaviours: tuple[str, ...] = ()  # empty = all
    lesson_scenes: int = 8
    scenes: int = 24
    lesson: int = 30
    episodes: int = 60
    failures: tuple[float, ...] = (0.3, 0.7)
    seeds: int = 3
    cloning_steps: int = 2000
    iql_steps: int = 2000
    trials: int = 50


SMALL = Plan(("window-close",), ("expert", "random"), 2, 2, 2, 3, (0.3,), 1, 20, 5, 2)


@dataclass(frozen=True)
class OfflineRun:
    """One policy; `reward` is empty for plain."""

    task: str
    failures: float
    seed: int
    use: str
    reward: str


def list_runs(plan: Plan) -> list[OfflineRun]:
    """List all runs: first the smaller share of failures, BC before IQL."""
    groups = product(plan.tasks, plan.failures, range(plan.seeds), WAYS)
    listed = [OfflineRun(task, share, seed, use, reward) for task, share, seed, (use, reward) in groups]
    return sorted(listed, key=lambda run: (run.failures, run.use == RELABELLED, run.seed))


def is_done(episode: Episode) -> bool:
    return bool(episode.outcome and episode.outcome.success)


class OfflineData:
    """The simulated episodes of a task, the models taught on some of them, and what these say of the others."""

    def __init__(self, out: Path, plan: Plan, task: str) -> None:
        from demerit.negatives.sim.tasks import task as find_task

        self.out, self.plan, self.task = out, plan, task
        words = find_task(task).instructions[0]
        self.lessons, self.pool = list[Episode](), list[Episode]()
        for one in demerit.open_dataset(str(out / "episodes")):
            if one.origin.tags["task"] == task:
                is_lesson = int(one.origin.tags["seed"]) < FIRST_SCENE + plan.lesson_scenes
                (self.lessons if is_lesson else self.pool).append(replace(one, instruction=words))

    def draw(self, seed: int, failures: float) -> list[Episode]:
        """Draw the data of a policy."""
        rng = np.random.default_rng([seed, round(100 * failures)])
        bad = round(self.plan.episodes * failures)
        good = choose([one for one in self.pool if is_done(one)], self.plan.episodes - bad, rng)
        return good + choose([one for one in self.pool if not is_done(one)], bad, rng)

    def rewards_folder(self, seed: int, labels: str) -> Path:
        return self.out / "rewards" / f"{self.task}-{labels}-{seed}"

    def teach(self, seed: int, labels: str, workers: int) -> dict[str, Any]:
        """Teach a model and score all data of the seed with it; return how good it is."""
        from demerit.training.teach import teach
        from prepare import CONFIG, Lesson

        folder = self.out / "models" / f"{self.task}-{labels}-{seed}"
        if not (folder / "model.json").exists():
            mixed = choose(self.lessons, len(self.lessons), np.random.default_rng(seed))
            chosen = Lesson(self.task, self.plan.lesson, True, labels == PROGRESS).choose(mixed)
            data = Dataset.from_episodes(chosen, folder.name)
            teach(data, folder, config=CONFIG, workers=workers, cache=self.out / "features")
        drawn = {one.id: one for share in self.plan.failures for one in self.draw(seed, share)}
        data = Dataset.from_episodes(list(drawn.values()), folder.name)
        scored = score_missing(data, demerit.load_model(str(folder)), self.rewards_folder(seed, labels))
        ends = [(end_of(reward), is_done(episode)) for episode, reward in scored]
        value, done = (np.array(column, dtype=float) for column in zip(*ends, strict=True))
        kept = {name: float((value[done == flag] >= HALF).mean()) for flag, name in enumerate(KEPT)}
        measured = {"auroc": auroc(value, done).measure().value, **kept}
        return {"task": self.task, "labels": labels, "seed": seed, "episodes": len(done), **measured}

    def read_values(self, run: OfflineRun, episodes: list[Episode]) -> tuple[list[Floats], list[float]]:
        """Return a reward's value at every frame, and what it says of the end."""
        if run.reward == TRUE:  # measured progress; for IQL whether the task is done, which is what is wanted
            curves = [x.signals["done"] if run.use == RELABELLED else x.outcome.curve for x in episodes]
            return [curve.astype(np.float64) for curve in curves], [float(is_done(x)) for x in episodes]
        if run.reward in (RANDOM, CLOCK):
            rewards = demerit.load_model(run.reward).score(episodes)
        else:
            known = {reward.episode: reward for reward in RewardStore(self.rewards_folder(run.seed, run.reward))}
            rewards = [known[one.id] for one in episodes]
        assert all(len(reward.value) == len(one) for reward, one in zip(rewards, episodes, strict=True))
        return [reward.value.astype(np.float64) for reward in rewards], [end_of(reward) for reward in rewards]


load_data = cache(OfflineData)


def end_of(reward: demerit.Reward) -> float:
    """The last probability of success, or the last value where there is none."""
    return reward.final if reward.success is None else float(reward.success[-1])


def choose(items: Sequence[Any], count: int, rng: np.random.Generator) -> list[Any]:
    assert len(items) >= count, f"{len(items)} episodes where {count} are needed: simulate more scenes"
    return [items[place] for place in rng.permutation(len(items))[:count]]


def read_states(episode: Episode) -> Floats:
    """What `TaskEnv` gives a policy at every frame, from the stored signals: (frames, 17)."""
    from robot import FRAMES, SCALE

    hand, thing = (np.asarray(episode.signals[name], dtype=np.float64)[:, :3] for name in ("state", "object"))
    moved = [np.diff(column, axis=0, prepend=column[:1]) for column in (hand, thing)]
    places = np.concatenate([hand, moved[0], thing - hand, moved[1], episode.signals["goal"] - thing], axis=1)
    time_left = np.arange(len(hand))[:, None] / FRAMES
    return np.concatenate([SCALE * places, episode.signals["state"][:, 3:], time_left], axis=1)


Policy = Callable[[Floats], Floats]


def clone(states: Floats, actions: Floats, weights: Floats, steps: int, seed: int) -> Policy:
    """Clone behaviour: least squares on steps drawn by weight."""
    import torch

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    mean, spread = states.mean(axis=0), states.std(axis=0) + 1e-3
    given, wanted = (torch.tensor(x, dtype=torch.float32) for x in ((states - mean) / spread, actions))
    layers = [torch.nn.Linear(*pair) for pair in pairwise((states.shape[1], WIDTH, WIDTH, actions.shape[1]))]
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    optimiser = torch.optim.AdamW(network.parameters(), RATE, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, steps)
    for rows in torch.from_numpy(rng.choice(len(states), (steps, BATCH), p=weights / weights.sum())):
        loss = ((network(given[rows]) - wanted[rows]) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()

    def act(state: Floats) -> Floats:
        with torch.no_grad():
            return network(torch.tensor((state - mean) / spread, dtype=torch.float32)).numpy().clip(-1, 1)

    return act


def learn_iql(episodes: list[tuple[Floats, Floats, Floats]], steps: int, seed: int) -> Policy:
    """Train d3rlpy's IQL on (states, actions, rewards) of whole episodes."""
    with warnings.catch_warnings(action="ignore"), redirect_stderr(StringIO()):  # it imports the abandoned gym
        import d3rlpy
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    d3rlpy.seed(seed)
    states = np.concatenate([one[0] for one in episodes])
    mean, spread = states.mean(axis=0), states.std(axis=0) + 1e-3
    columns = [((given - mean) / spread, actions.clip(-1, 1), rewards[:, None]) for given, actions, rewards in episodes]
    # not terminated: the time was over, and nothing is learned from the last frame
    whole = [d3rlpy.dataset.Episode(*(x.astype(np.float32) for x in one), terminated=False) for one in columns]
    buffer = d3rlpy.dataset.create_infinite_replay_buffer(whole)
    network = d3rlpy.models.VectorEncoderFactory([WIDTH, WIDTH])
    networks = {f"{part}_encoder_factory": network for part in ("actor", "critic", "value")}
    rates = {f"{part}_learning_rate": RATE for part in ("actor", "critic")}
    iql = d3rlpy.algos.IQLConfig(batch_size=BATCH, gamma=GAMMA, **networks, **rates).create(device=False)
    iql.build_with_dataset(buffer)
    for _ in range(steps):
        iql.update(buffer.sample_transition_batch(BATCH))
    return lambda state: iql.predict(((state - mean) / spread)[None].astype(np.float32))[0]


def train(run: OfflineRun, data: OfflineData) -> Policy:
    """Train the policy of a run."""
    episodes = data.draw(run.seed, run.failures)
    spans = EpisodeSpans(np.array([len(one) for one in episodes], dtype=np.int64))
    states, actions = [read_states(one) for one in episodes], [one.signals["action"] for one in episodes]
    weights = (~spans.is_last).astype(np.float64)  # nothing follows the last frame
    if run.use != PLAIN:
        values, ends = data.read_values(run, episodes)
        flat = np.concatenate(values)
        if run.use == RELABELLED:
            steps = reward_steps(flat, np.zeros(len(flat), dtype=bool), spans, "dense", GAMMA, 0.0)
            each = np.split(steps, spans.starts[1:])
            return learn_iql(list(zip(states, actions, each, strict=True)), data.plan.iql_steps, run.seed)
        kept = np.array(ends) >= HALF
        weights *= kept[spans.owner] if run.use == FILTERED else weigh_samples(flat, spans, AHEAD, KAPPA)
    return clone(np.concatenate(states), np.concatenate(actions), weights, data.plan.cloning_steps, run.seed)


def try_policy(policy: Policy, task: str, first: int, trials: int) -> Iterator[int]:
    """Yield 1 for every trial at whose end the task is done, else 0."""
    from robot import FRAMES, TaskEnv

    env = TaskEnv(task)
    for number in range(trials):
        state, facts = env.reset(seed=first + number)
        for _ in range(FRAMES):
            state, *_, facts = env.step(policy(state))
        yield int(facts["success"])
    env.close()


def perform(run: OfflineRun, out: Path, plan: Plan) -> dict[str, Any]:
    """Train and try a policy, in a process of its own."""
    started = time.monotonic()
    policy = train(run, load_data(out, plan, run.task))
    done = list(try_policy(policy, run.task, FIRST_TRIAL + 1000 * run.seed, plan.trials))
    return {**asdict(run), "done": done, "seconds": round(time.monotonic() - started, 1)}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_line(path: Path, facts: dict[str, Any]) -> None:
    """Add a line; a kill leaves the file with or without it."""
    write_atomic(path, "".join(f"{json.dumps(line)}\n" for line in [*read_lines(path), facts]).encode())


def prepare(out: Path, plan: Plan, jobs: int) -> None:
    """Simulate the episodes and teach the models; what is there is kept."""
    from demerit.negatives.sim.behaviours import BEHAVIOURS
    from demerit.negatives.sim.job import simulate
    from demerit.negatives.sim.rollout import EpisodeSpec

    known = [(one["task"], one["labels"], one["seed"]) for one in read_lines(out / "models.jsonl")]
    behaviours = plan.behaviours or [name for name in BEHAVIOURS.names() if name != "idle"]
    scenes = range(FIRST_SCENE, FIRST_SCENE + plan.lesson_scenes + plan.scenes)
    listed = product(plan.tasks, scenes, behaviours)
    simulate(out / "episodes", [EpisodeSpec(task, name, scene, "plain") for task, scene, name in listed], jobs)
    for task in plan.tasks:
        data = load_data(out, plan, task)
        print(f"{task}: {len(data.pool)} episodes, {sum(map(is_done, data.pool))} successes", flush=True)
        for seed, labels in product(range(plan.seeds), (PROGRESS, FLAGS)):
            if (task, labels, seed) not in known:
                add_line(out / "models.jsonl", data.teach(seed, labels, jobs))
                print(f"taught {task}, {labels}, seed {seed}", flush=True)


def run_all(out: Path, plan: Plan, jobs: int) -> None:
    """Run what has no line yet."""
    path, listed = out / "runs.jsonl", list_runs(plan)
    names = list(OfflineRun.__dataclass_fields__)
    known = {OfflineRun(**{name: line[name] for name in names}) for line in read_lines(path)}
    todo = [run for run in listed if run not in known]
    print(f"{len(listed) - len(todo)} of {len(listed)} runs are there already", flush=True)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"))
    try:
        waiting = [pool.submit(perform, run, out, plan) for run in todo]
        for number, answer in enumerate(as_completed(waiting), 1):
            facts = answer.result()
            add_line(path, facts)
            name = " ".join(str(facts[key]) for key in names)
            print(f"{number}/{len(todo)} {name}: {np.mean(facts['done']):.0%}, {facts['seconds']} s", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)


def compare_runs(lines: list[dict[str, Any]], a: tuple[str, str], b: tuple[str, str]) -> Comparison | None:
    """Compare two ways of use and reward on the tasks and seeds that both have, trial by trial."""
    sides = [{(x["task"], x["seed"]): x["done"] for x in lines if (x["use"], x["reward"]) == side} for side in (a, b)]
    shared = sorted(set(sides[0]) & set(sides[1]))
    if not shared or a == b:
        return None
    rows = [np.concatenate([side[key] for key in shared]).astype(float) for side in sides]
    clusters = [f"{task} {seed}" for task, seed in shared for _ in sides[0][task, seed]]
    return compare(lambda values: mean_tally("success", "trials", values, clusters), *rows)


def make_tables(out: Path, plan: Plan) -> str:
    """Make the tables of all finished runs."""
    runs, text = read_lines(out / "runs.jsonl"), []
    for share in plan.failures:
        lines = [line for line in runs if line["failures"] == share]
        text += [f"### {share:.0%} failures", ""]
        text += [f"| data | reward | {' | '.join(plan.tasks)} | against plain | bought? | against its control | runs |"]
        text += ["|---" * (6 + len(plan.tasks)) + "|"]
        for use, reward in WAYS:
            found = [line for line in lines if (line["use"], line["reward"]) == (use, reward)]
            if not found:
                continue
            cells = [use, reward]
            for task in plan.tasks:
                each = [np.mean(line["done"]) for line in found if line["task"] == task]
                cells.append(f"{np.mean(each):.0%} ({' '.join(f'{100 * x:.0f}' for x in each)})" if each else "")
            gain = compare_runs(lines, (use, reward), (PLAIN, ""))
            bought = "" if gain is None else "yes" if gain.difference >= WORTH and gain.low > 0 else "no"
            beside = compare_runs(lines, (use, reward), (use, CLOCK if use == RELABELLED else RANDOM))
            cells += [show(gain), bought, show(beside), str(len(found))]
            text.append(f"| {' | '.join(cells)} |")
        text.append("")
    text += ["### The taught models", "", f"| task | labels | seed | AUROC | {' | '.join(KEPT)} |", "|---" * 6 + "|"]
    for one in sorted(read_lines(out / "models.jsonl"), key=lambda x: (x["task"], x["labels"], x["seed"])):
        kept = " | ".join(f"{one[name]:.0%}" for name in KEPT)
        text.append(f"| {one['task']} | {one['labels']} | {one['seed']} | {one['auroc']:.3f} | {kept} |")
    return "\n".join(text) + "\n"


def show(gain: Comparison | None) -> str:
    if gain is None or np.isnan(gain.low):  # of one run nothing is known about others
        return "" if gain is None else f"{100 * gain.difference:+.0f} (one run)"
    return f"{100 * gain.difference:+.0f} ({100 * gain.low:+.0f} to {100 * gain.high:+.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT", help="a folder")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--small", action="store_true", help="seconds, for tests")
    given = parser.parse_args()
    if given.out is None and not given.small:
        parser.error("needs OUT, or --small")
    os.environ |= {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}  # also for the processes
    with tempfile.TemporaryDirectory() as scratch:
        out, plan = make_folder(given.out or Path(scratch) / "out"), SMALL if given.small else Plan()
        prepare(out, plan, given.jobs)
        run_all(out, plan, given.jobs)
        tables = make_tables(out, plan)
        (out / "tables.md").write_text(tables)
        print(tables)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; run it again to go on")
