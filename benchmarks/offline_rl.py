"""Does a reward buy success where the data has failures in it? Behaviour cloning and IQL on simulated episodes.

    python benchmarks/offline_rl.py OUT [--jobs 2]     run it again to go on; every finished run is a line of runs.jsonl
    python benchmarks/offline_rl.py --small            seconds, for tests; the figures mean nothing

Every task is simulated with all behaviours, from expert to slam. Some scenes teach a reward model (15 successes and 15
failures, with progress), the others are the policy's data: 40 episodes, 30% or 70% of them failures. Compared are

    plain        behaviour cloning (BC) of all data
    filtered     BC of the episodes whose last probability of success is 0.5 or more (last value, if there is none)
    weighted     BC with the sample weights of RA-BC (5 frames ahead, kappa 0.01)
    relabelled   IQL (d3rlpy; its own settings but for width, batch and rates, the actor's falling as a cosine) whose
                 reward of a step is the value of the frame that it leads to; gamma 0.95, with `taught` and `true` also
                 0.9 and 0.99

with these rewards: `taught`; `true`, the simulator's own labels (for IQL: whether the task is done); and `random` and
`clock`, which know nothing. The clock cannot filter (all end at 1) nor weight (all rise alike): both would be plain.

Retrieval: episodes of four tasks, successes and failures, are joined to recordings. A policy clones all of them; then

    tuned        it is trained on 500 more batches, of 30 segments that `demerit retrieve` finds by 1 or by 5 examples,
                 of 30 random segments, of the 5 examples themselves, or of all true successes of the task

A seed draws the lesson, the data, the examples, the policy's first weights and the scenes of the trials, which are the
same for everything that is compared. Success is the state after the last step.

Fixed before the runs: two tasks, five seeds, both shares, every way of `CLONED`, `LEARNED`, `TUNINGS` and `SWEPT`, one
task after the other. The order (plain and filtered, IQL, weighted, tuned, the other gammas) says what is missing if
time runs out. Differences are paired, with 95% intervals; the runs of a way (task and seed) are resampled. Per share of
failures,

- a reward has bought success if the mean over tasks and seeds is at least 10 points above plain and the lower end of
  the interval is above 0. The same for tuning, against the policy that is not tuned;
- a reward that buys success must also be above its control, with an interval above 0, or it is not the reward that
  does it: `random` for filtering and weighting, the clock for IQL, as many random segments for tuning. If a control
  itself buys success, that is said first;
- gamma matters to a reward if the interval of the difference to gamma 0.95 is without 0.
"""

from __future__ import annotations

import argparse
import json
import math
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
from demerit.data.importing import import_dataset
from demerit.evaluate.metrics.bootstrap import Comparison, compare, mean_tally
from demerit.evaluate.metrics.success import auroc
from demerit.models.compact import Engine
from demerit.models.reward_store import RewardStore
from demerit.models.score import score_missing
from demerit.use.retrieve import PlaySegment, PlayWindows, WindowPlan, index_windows, merge_hits, score_by_examples
from demerit.use.write.frames import EpisodeSpans, reward_steps, weigh_samples
from retrieve import JOINED, KnownSegment, is_right, join_recordings

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "rl"))

FIRST_SCENE, FIRST_TRIAL = 900_000, 5_000_000
PLAIN, FILTERED, WEIGHTED, RELABELLED, TUNED = "plain", "filtered", "weighted", "relabelled", "tuned"
TAUGHT, TRUE, RANDOM, CLOCK = "taught", "true", "random", "clock"
NOT_TUNED, ONE, FIVE, SHOWN, WHOLE = "not at all", "1 example", "5 examples", "the examples", "true successes"
USUAL = 0.95
Way = tuple[str, str, float]
"""use, reward (or what a policy is tuned on), gamma (0 = none)"""
CLONED: list[Way] = [(PLAIN, "", 0), *((use, x, 0) for use in (FILTERED, WEIGHTED) for x in (TAUGHT, TRUE, RANDOM))]
LEARNED: list[Way] = [(RELABELLED, reward, USUAL) for reward in (TAUGHT, TRUE, CLOCK)]
SWEPT: list[Way] = [(RELABELLED, reward, gamma) for gamma in (0.9, 0.99) for reward in (TAUGHT, TRUE)]
SWEPT += [(RELABELLED, RANDOM, USUAL)]
TUNINGS: list[Way] = [(TUNED, on, 0) for on in (NOT_TUNED, RANDOM, ONE, FIVE, SHOWN, WHOLE)]
KEPT = ("failures kept", "successes kept")
WORTH = 0.10
"""points of success that count as bought"""
HALF, AHEAD, KAPPA = 0.5, 5, 0.01
WIDTH, BATCH, RATE = 128, 128, 1e-3
EXAMPLES, WINDOWS = 5, WindowPlan(3.0, 1.0)


@dataclass(frozen=True)
class Plan:
    """How much is simulated, taught, trained and tried."""

    tasks: tuple[str, ...] = ("drawer-open", "fetch-reach")
    others: tuple[str, ...] = ("drawer-close", "fetch-push")
    """are in the recordings, too"""
    behaviours: tuple[str, ...] = ()  # empty = all
    lesson_scenes: int = 8
    scenes: int = 12
    play_scenes: int = 8
    """the first of the scenes, whose episodes are joined to recordings"""
    lesson: int = 30
    episodes: int = 40
    failures: tuple[float, ...] = (0.3, 0.7)
    seeds: int = 5
    cloning_steps: int = 2000
    iql_steps: int = 1000
    segments: int = 30
    tuning_steps: int = 500
    trials: int = 25


SMALL = Plan(("window-close",), (), ("expert", "random"), 2, 2, 2, 2, 3, (0.3,), 1, 20, 5, 2, 5, 2)


@dataclass(frozen=True)
class OfflineRun:
    """One policy."""

    task: str
    failures: float
    """share of the episodes; 0 = the recordings"""
    seed: int
    use: str
    reward: str
    gamma: float

    @property
    def way(self) -> Way:
        """What is compared."""
        return self.use, self.reward, self.gamma


def list_runs(plan: Plan, task: str, ways: list[Way]) -> list[OfflineRun]:
    """List the runs of a task."""
    shares = [0.0] if ways is TUNINGS else plan.failures
    return [OfflineRun(task, share, seed, *way) for way in ways for share in shares for seed in range(plan.seeds)]


def is_done(episode: Episode) -> bool:
    return bool(episode.outcome and episode.outcome.success)


class OfflineData:
    """The simulated episodes of a task, the models taught on some of them, and what these say of the others."""

    def __init__(self, out: Path, plan: Plan, task: str) -> None:
        from demerit.negatives.sim.tasks import task as find_task

        self.out, self.plan, self.task = out, plan, task
        self.words = find_task(task).instructions[0]
        self.lessons, self.pool = list[Episode](), list[Episode]()
        for one in read_episodes(out, task):
            is_lesson = scene_of(one) < FIRST_SCENE + plan.lesson_scenes
            (self.lessons if is_lesson else self.pool).append(replace(one, instruction=self.words))

    def draw(self, seed: int, failures: float) -> list[Episode]:
        """Draw the data of a policy."""
        rng = np.random.default_rng([seed, round(100 * failures)])
        bad = round(self.plan.episodes * failures)
        good = choose([one for one in self.pool if is_done(one)], self.plan.episodes - bad, rng)
        return good + choose([one for one in self.pool if not is_done(one)], bad, rng)

    def rewards_folder(self, seed: int) -> Path:
        return self.out / "rewards" / f"{self.task}-{seed}"

    def teach(self, seed: int, workers: int) -> dict[str, Any]:
        """Teach a model and score all data of the seed with it; return how good it is."""
        from demerit.training.teach import teach
        from prepare import CONFIG, Lesson

        folder = self.out / "models" / f"{self.task}-{seed}"
        if not (folder / "model.json").exists():
            mixed = choose(self.lessons, len(self.lessons), np.random.default_rng(seed))
            chosen = Lesson(self.task, self.plan.lesson, True, True).choose(mixed)
            data = Dataset.from_episodes(chosen, folder.name)
            teach(data, folder, config=CONFIG, workers=workers, cache=self.out / "features")
        drawn = {one.id: one for share in self.plan.failures for one in self.draw(seed, share)}
        data = Dataset.from_episodes(list(drawn.values()), folder.name)
        scored = score_missing(data, demerit.load_model(str(folder)), self.rewards_folder(seed))
        ends = [(end_of(reward), is_done(episode)) for episode, reward in scored]
        value, done = (np.array(column, dtype=float) for column in zip(*ends, strict=True))
        kept = {name: float((value[done == flag] >= HALF).mean()) for flag, name in enumerate(KEPT)}
        measured = {"auroc": auroc(value, done).measure().value, **kept}
        return {"task": self.task, "seed": seed, "episodes": len(done), **measured}

    def read_values(self, run: OfflineRun, episodes: list[Episode]) -> tuple[list[Floats], list[float]]:
        """Return a reward's value at every frame, and what it says of the end."""
        if run.reward == TRUE:  # measured progress; for IQL whether the task is done, which is what is wanted
            curves = [x.signals["done"] if run.use == RELABELLED else x.outcome.curve for x in episodes]
            return [curve.astype(np.float64) for curve in curves], [float(is_done(x)) for x in episodes]
        if run.reward in (RANDOM, CLOCK):
            rewards = demerit.load_model(run.reward).score(episodes)
        else:
            known = {reward.episode: reward for reward in RewardStore(self.rewards_folder(run.seed))}
            rewards = [known[one.id] for one in episodes]
        assert all(len(reward.value) == len(one) for reward, one in zip(rewards, episodes, strict=True))
        return [reward.value.astype(np.float64) for reward in rewards], [end_of(reward) for reward in rewards]


load_data = cache(OfflineData)


class PlayData:
    """Recordings of all tasks, what they show, and the index that `demerit retrieve` makes of them."""

    def __init__(self, out: Path, plan: Plan) -> None:
        self.out, self.plan, self.engine = out, plan, Engine.load_shipped()
        known = json.loads((out / "shown.json").read_text())
        self.truth = {id: [KnownSegment(**one) for one in shown] for id, shown in known.items()}
        self.recordings = list(demerit.open_dataset(str(out / "recordings")))
        self.windows = self.index(self.recordings, WINDOWS)

    def index(self, episodes: list[Episode], plan: WindowPlan) -> PlayWindows:
        return index_windows(
            Dataset.from_episodes(episodes, ""), plan, self.engine, self.out / f"windows-{plan.seconds}"
        )

    def show(self, run: OfflineRun) -> list[Episode]:
        """Draw the examples: successes in scenes that are not in the recordings."""
        good = [one for one in load_data(self.out, self.plan, run.task).lessons if is_done(one)]
        return choose(good, min(EXAMPLES, len(good)), np.random.default_rng(run.seed))

    def find(self, run: OfflineRun) -> list[PlaySegment]:
        """Return the segments that a policy is tuned on; the true ones are all successes of the task, whole."""
        if run.reward == WHOLE:
            pairs = [(one, part) for one in self.recordings for part in self.truth[one.id]]
            return [PlaySegment(one, x.first, x.last, 0.0) for one, x in pairs if x.success and x.task == run.task]
        if run.reward == RANDOM:
            scores = np.random.default_rng(run.seed).random(len(self.windows))
        else:
            shown = self.show(run)[: 1 if run.reward == ONE else EXAMPLES]
            scores = score_by_examples(self.windows, self.index(shown, WindowPlan(math.inf, 1.0)).vectors)
        return merge_hits(self.windows, scores, self.plan.segments)

    def train(self, run: OfflineRun) -> tuple[Policy, dict[str, Any]]:
        """Clone all recordings, tune on some of them; also return how many of the segments are right."""
        # without the time: in a recording nobody knows when an episode began
        states, actions = stack([(one.signals["policy"], one.signals["action"]) for one in self.recordings])
        policy, facts = ClonedPolicy(states, actions, run.seed), dict[str, Any]()
        policy.fit(states, actions, np.ones(len(states)), self.plan.cloning_steps)
        if run.reward != NOT_TUNED:
            if run.reward == SHOWN:
                parts = [(read_states(one)[:, :-1], one.signals["action"]) for one in self.show(run)]
            else:
                found = self.find(run)
                facts["right"] = [is_right(x.episode.id, x.first, x.last, run.task, self.truth) for x in found]
                cut = [one.cut("").signals for one in found]
                parts = [(signals["policy"], signals["action"]) for signals in cut]
            states, actions = stack(parts)
            policy.fit(states, actions, np.ones(len(states)), self.plan.tuning_steps)
        return lambda state: policy(state[:-1]), facts


load_play = cache(PlayData)


def scene_of(episode: Episode) -> int:
    return int(episode.origin.tags["seed"])


def read_episodes(out: Path, task: str) -> list[Episode]:
    return sorted(demerit.open_dataset(str(out / "episodes" / task)), key=lambda one: one.id)


def stack(parts: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Join the states and the actions of parts."""
    states, actions = zip(*parts, strict=True)
    return np.concatenate(states), np.concatenate(actions)


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


class ClonedPolicy:
    """Cloned behaviour: a network fitted to actions by least squares. Fit it again to tune it."""

    def __init__(self, states: Floats, actions: Floats, seed: int) -> None:
        import torch

        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.mean, self.spread = states.mean(axis=0), states.std(axis=0) + 1e-3
        layers = [torch.nn.Linear(*pair) for pair in pairwise((states.shape[1], WIDTH, WIDTH, actions.shape[1]))]
        self.network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])

    def fit(self, states: Floats, actions: Floats, weights: Floats, steps: int) -> None:
        """Learn from steps drawn by weight."""
        import torch

        given, wanted = (torch.tensor(x, dtype=torch.float32) for x in ((states - self.mean) / self.spread, actions))
        optimiser = torch.optim.AdamW(self.network.parameters(), RATE, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, steps)
        for rows in torch.from_numpy(self.rng.choice(len(states), (steps, BATCH), p=weights / weights.sum())):
            loss = ((self.network(given[rows]) - wanted[rows]) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()

    def __call__(self, state: Floats) -> Floats:
        import torch

        with torch.no_grad():
            return (
                self.network(torch.tensor((state - self.mean) / self.spread, dtype=torch.float32)).numpy().clip(-1, 1)
            )


def learn_iql(episodes: list[tuple[Floats, Floats, Floats]], gamma: float, steps: int, seed: int) -> Policy:
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
    fall = d3rlpy.optimizers.CosineAnnealingLRFactory(T_max=steps)
    actor = d3rlpy.optimizers.AdamFactory(lr_scheduler_factory=fall)
    config = d3rlpy.algos.IQLConfig(batch_size=BATCH, gamma=gamma, actor_optim_factory=actor, **networks, **rates)
    iql = config.create(device=False)
    iql.build_with_dataset(buffer)
    for _ in range(steps):
        iql.update(buffer.sample_transition_batch(BATCH))
    return lambda state: iql.predict(((state - mean) / spread)[None].astype(np.float32))[0]


def train(run: OfflineRun, data: OfflineData) -> Policy:
    """Train the policy of a run."""
    episodes = data.draw(run.seed, run.failures)
    spans = EpisodeSpans(np.array([len(one) for one in episodes], dtype=np.int64))
    each = [(read_states(one), one.signals["action"]) for one in episodes]
    weights = (~spans.is_last).astype(np.float64)  # nothing follows the last frame
    if run.use != PLAIN:
        values, ends = data.read_values(run, episodes)
        flat = np.concatenate(values)
        if run.use == RELABELLED:
            steps = reward_steps(flat, np.zeros(len(flat), dtype=bool), spans, "dense", run.gamma, 0.0)
            rewards = np.split(steps, spans.starts[1:])
            rewarded = [(*pair, one) for pair, one in zip(each, rewards, strict=True)]
            return learn_iql(rewarded, run.gamma, data.plan.iql_steps, run.seed)
        kept = np.array(ends) >= HALF
        weights *= kept[spans.owner] if run.use == FILTERED else weigh_samples(flat, spans, AHEAD, KAPPA)
    states, actions = stack(each)
    policy = ClonedPolicy(states, actions, run.seed)
    policy.fit(states, actions, weights, data.plan.cloning_steps)
    return policy


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
    started, facts = time.process_time(), dict[str, Any]()
    if run.use == TUNED:
        policy, facts = load_play(out, plan).train(run)
    else:
        policy = train(run, load_data(out, plan, run.task))
    done = list(try_policy(policy, run.task, FIRST_TRIAL + 1000 * run.seed, plan.trials))
    return {**asdict(run), **facts, "done": done, "seconds": round(time.process_time() - started, 1)}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_line(path: Path, facts: dict[str, Any]) -> None:
    """Add a line; a kill leaves the file with or without it."""
    write_atomic(path, "".join(f"{json.dumps(line)}\n" for line in [*read_lines(path), facts]).encode())


def simulate_task(out: Path, plan: Plan, task: str, scenes: range, jobs: int) -> None:
    """Simulate the episodes of a task; what is there is kept."""
    from demerit.negatives.sim.behaviours import BEHAVIOURS
    from demerit.negatives.sim.job import simulate
    from demerit.negatives.sim.rollout import EpisodeSpec

    behaviours = plan.behaviours or [name for name in BEHAVIOURS.names() if name != "idle"]
    specs = [EpisodeSpec(task, name, scene, "plain") for scene, name in product(scenes, behaviours)]
    simulate(out / "episodes" / task, specs, jobs)


def prepare_task(out: Path, plan: Plan, task: str, jobs: int) -> None:
    """Simulate the episodes of a task and teach the models."""
    scenes = range(FIRST_SCENE, FIRST_SCENE + plan.lesson_scenes + plan.scenes)
    simulate_task(out, plan, task, scenes, jobs)
    known = [(one["task"], one["seed"]) for one in read_lines(out / "models.jsonl")]
    data = load_data(out, plan, task)
    print(f"{task}: {len(data.pool)} episodes, {sum(map(is_done, data.pool))} successes", flush=True)
    for seed in range(plan.seeds):
        if (task, seed) not in known:
            add_line(out / "models.jsonl", data.teach(seed, jobs))
            print(f"taught {task}, seed {seed}", flush=True)


def prepare_play(out: Path, plan: Plan, task: str, jobs: int) -> None:
    """Join episodes of all tasks, in random order, to recordings with what a policy needs; index them."""
    if not (out / "shown.json").exists():
        first = FIRST_SCENE + plan.lesson_scenes
        scenes, some = range(first, first + plan.play_scenes), list[Episode]()
        for name in (*plan.tasks, *plan.others):
            simulate_task(out, plan, name, scenes, jobs)
            some += [one for one in read_episodes(out, name) if scene_of(one) in scenes]
        mixed = choose(some, len(some), np.random.default_rng(0))
        joined, truth = join_recordings(mixed, make_folder(out / "joined"))
        whole = []
        for one, start in zip(joined, range(0, len(mixed), JOINED), strict=True):
            parts = mixed[start : start + JOINED]
            states, actions = stack([(read_states(part)[:, :-1], part.signals["action"]) for part in parts])
            whole.append(replace(one, signals={"policy": states.astype(np.float32), "action": actions}))
        import_dataset(Dataset.from_episodes(whole, "play"), out / "recordings", licence="MIT")
        shown = {id: [asdict(one) for one in known] for id, known in truth.items()}
        write_atomic(out / "shown.json", json.dumps(shown).encode())
    play = load_play(out, plan)
    print(f"{len(play.recordings)} recordings, {len(play.windows)} windows", flush=True)
    for seed in range(plan.seeds):  # so that no two processes index the same example
        play.find(OfflineRun(task, 0.0, seed, TUNED, FIVE, 0))


def run_all(out: Path, plan: Plan, jobs: int, listed: list[OfflineRun]) -> None:
    """Run what has no line yet."""
    path = out / "runs.jsonl"
    names = list(OfflineRun.__dataclass_fields__)
    known = {read_run(line) for line in read_lines(path)}
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


def read_run(line: dict[str, Any]) -> OfflineRun:
    return OfflineRun(**{name: line[name] for name in OfflineRun.__dataclass_fields__})


def compare_runs(lines: list[dict[str, Any]], a: Way, b: Way) -> Comparison | None:
    """Compare two ways on the tasks and seeds that both have, trial by trial."""
    sides = [{(x["task"], x["seed"]): x["done"] for x in lines if read_run(x).way == side} for side in (a, b)]
    shared = sorted(set(sides[0]) & set(sides[1]))
    if not shared or a == b:
        return None
    rows = [np.concatenate([side[key] for key in shared]).astype(float) for side in sides]
    clusters = [f"{task} {seed}" for task, seed in shared for _ in sides[0][task, seed]]
    return compare(lambda values: mean_tally("success", "trials", values, clusters), *rows)


def control_of(way: Way) -> Way:
    """What knows nothing and is used in the same way; another gamma is compared with the usual one."""
    use, reward, gamma = way
    if use == RELABELLED:
        return (use, CLOCK, USUAL) if gamma == USUAL else (use, reward, USUAL)
    return use, RANDOM, gamma


def tabulate(lines: list[dict[str, Any]], plan: Plan, ways: list[Way]) -> Iterator[str]:
    """Yield the rows of a table; the first way is what the others are compared with."""
    yield f"| use | reward | {' | '.join(plan.tasks)} | against the first | bought? | against its control | runs |"
    yield "|---" * (6 + len(plan.tasks)) + "|"
    for way in ways:
        found = [line for line in lines if read_run(line).way == way]
        if not found:
            continue
        use, reward, gamma = way
        cells = [use, f"{reward}, gamma {gamma:g}" if gamma else reward]
        for task in plan.tasks:
            each = [np.mean(x["done"]) for x in sorted(found, key=lambda x: x["seed"]) if x["task"] == task]
            cells.append(f"{np.mean(each):.0%} ({' '.join(f'{100 * x:.0f}' for x in each)})" if each else "")
        gain, beside = compare_runs(lines, way, ways[0]), compare_runs(lines, way, control_of(way))
        bought = "" if gain is None else "yes" if gain.difference >= WORTH and gain.low > 0 else "no"
        yield f"| {' | '.join([*cells, show(gain), bought, show(beside), str(len(found))])} |"
    yield ""


def make_tables(out: Path, plan: Plan) -> str:
    """Make the tables of all finished runs."""
    runs, text = read_lines(out / "runs.jsonl"), []
    for share in plan.failures:
        lines = [line for line in runs if line["failures"] == share]
        text += [f"### {share:.0%} failures", "", *tabulate(lines, plan, [*CLONED, *LEARNED, *SWEPT])]
    tuned = [line for line in runs if line["use"] == TUNED]
    text += ["### Tuned", "", *tabulate(tuned, plan, TUNINGS), "Segments that are right:", ""]
    for (_, on, _), task in product(TUNINGS, plan.tasks):
        right = [line["right"] for line in tuned if line["reward"] == on and line["task"] == task and "right" in line]
        if right:
            each, counts = [f"{np.mean(one):.0%}" for one in right], sorted({len(one) for one in right})
            text.append(f"- {task}, {on}: {' '.join(each)} of {' or '.join(map(str, counts))}")
    text += ["", "### The taught models", "", f"| task | seed | AUROC | {' | '.join(KEPT)} |", "|---" * 5 + "|"]
    for one in sorted(read_lines(out / "models.jsonl"), key=lambda x: (x["task"], x["seed"])):
        kept = " | ".join(f"{one[name]:.0%}" for name in KEPT)
        text.append(f"| {one['task']} | {one['seed']} | {one['auroc']:.3f} | {kept} |")
    for name, ways in (("BC", CLONED), ("IQL", [*LEARNED, *SWEPT]), ("tuned", TUNINGS)):
        spent = [line["seconds"] for line in runs if read_run(line).way in ways]
        text += ["", f"{name}: {len(spent)} runs, {np.mean(spent):.1f} s of a core each"] if spent else []
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
        for task in plan.tasks:
            prepare_task(out, plan, task, given.jobs)
            first = [run for ways in (CLONED, LEARNED) for run in list_runs(plan, task, ways)]
            run_all(out, plan, given.jobs, sorted(first, key=lambda run: run.use == WEIGHTED))
            prepare_play(out, plan, task, given.jobs)
            run_all(out, plan, given.jobs, [run for ways in (TUNINGS, SWEPT) for run in list_runs(plan, task, ways)])
        tables = make_tables(out, plan)
        (out / "tables.md").write_text(tables)
        print(tables)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; run it again to go on")
