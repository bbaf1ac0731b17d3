"""Reinforcement learning: SAC on states, with rewards from a model that watches, the environment, or a clock."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import demerit
from demerit.data.files import make_folder, write_json
from demerit.data.video import encode_clip
from demerit.use.gym import RewardEnv, Threshold
from prepare import BINARY, CLOCK, CONTINUOUS, ENDS, EXACT, FIVE, SPARSE, TASKS, TRUE, lessons
from robot import FRAMES, STRIDE, TaskEnv

SEEDS = (0, 1, 2)
STEPS = {"window-close": 4000, "window-open": 4000, "drawer-close": 2000}
CLIPS = 3


@dataclass(frozen=True)
class Case:
    """One run; `lesson` is the name of the taught model, empty for the true reward and the clock."""

    task: str
    reward: str
    lesson: str
    seed: int
    steps: int
    trials: int = 10
    """episodes per evaluation, and evaluations"""

    @property
    def name(self) -> str:
        """The name of the folder of results."""
        return f"{self.lesson or self.task}--{self.reward}--{self.seed}"


def cases(small: bool = False) -> list[Case]:
    """List all runs: first one seed of all rewards of different quality, then the next seed, last the other kinds."""
    listed = []
    for seed, name in product(SEEDS, TASKS):
        taught = [lesson.name for lesson in lessons() if lesson.task == name]  # the best one first
        kinds = [(reward, "") for reward in (TRUE, EXACT, CLOCK)] + [(CONTINUOUS, lesson) for lesson in taught]
        kinds += [(reward, taught[0]) for reward in (FIVE, SPARSE, BINARY)] + [(ENDS, "")]
        listed += [Case(name, reward, lesson, seed, STEPS[name]) for reward, lesson in kinds]
    listed.sort(key=lambda case: case.reward in (FIVE, SPARSE, BINARY, ENDS))
    if small:
        names = [lesson.name for lesson in lessons(small=True)]
        listed = [Case(TASKS[0], CONTINUOUS if name else TRUE, name, 0, 90, trials=1) for name in [*names, ""]]
    return listed


class KnownReward(gymnasium.RewardWrapper):
    """A reward that needs no model: the time t/T, the measured progress, or success at the last step."""

    def __init__(self, env: TaskEnv, kind: str) -> None:
        super().__init__(env)
        self.robot, self.kind = env, kind

    def reward(self, reward: Any) -> float:
        """Return it."""
        if self.kind == CLOCK:
            return self.robot.count / FRAMES
        if self.kind == ENDS:
            return float(self.robot.is_done and self.robot.count == FRAMES)
        return self.robot.progress


def make_env(case: Case, out: Path) -> gymnasium.Env[Any, Any]:
    """Make the environment to learn in."""
    env = TaskEnv(case.task)
    if case.reward == TRUE:
        return env
    if not case.lesson:
        return KnownReward(env, case.reward)
    facts = json.loads((out / "models" / "quality.json").read_text())[case.lesson]
    model = demerit.load_model(str(out / "models" / case.lesson))
    scheme: dict[str, Any] = {SPARSE: {"mode": "final"}, FIVE: {"levels": FIVE}}.get(case.reward, {})
    if case.reward == BINARY:
        scheme = {"levels": BINARY, "success": Threshold(**facts["threshold"])}
    watched = RewardEnv(env, model, env.words, stride=STRIDE, **scheme)
    if case.reward == FIVE:  # 1 to 5 becomes 0 to 1, like the others
        return gymnasium.wrappers.TransformReward(watched, lambda reward: (float(reward) - 1) / 4)
    return watched


def evaluate(policy: Any, env: TaskEnv, trials: int, model: Any = None) -> dict[str, Any]:
    """Try a policy without noise in scenes of its own; with a model, also return what it sees and believes."""
    done, clips = [], []
    for number in range(trials):
        state, _ = env.reset(seed=1_000_000 + number)
        live = model.start(env.words) if model else None
        frames, values, curve, flags = [], [], [], [False]
        for step in range(FRAMES + 1):
            if step:
                state, *_, facts = env.step(policy.predict(state, deterministic=True)[0])
                flags.append(facts["success"])
            curve.append(round(env.progress, 4))
            if live is not None:
                frames.append(env.render())
                values.append(round(live.step(frames[-1]).value, 4))
        done.append([any(flags), flags[-1]])
        if live is not None:
            video = base64.b64encode(encode_clip(np.stack(frames))).decode() if number < CLIPS else ""
            clips.append({"values": values, "progress": curve, "video": video})
    ever, end = np.mean(done, axis=0).tolist()
    return {"ever": ever, "end": end, **({"clips": clips} if model else {})}


def make_learner(env: gymnasium.Env[Any, Any], steps: int, seed: int) -> Any:
    """Return SAC that has learned nothing yet."""
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(1)
    return SAC(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        buffer_size=steps,
        learning_starts=min(300, steps // 2),
        batch_size=128,
        tau=0.01,
        gamma=0.95,
        policy_kwargs={"net_arch": [128, 128]},
        seed=seed,
        device="cpu",
    )


def run_case(case: Case, out: Path) -> None:
    """Train one policy; write its result when it is complete."""
    started = time.monotonic()
    env, trial = make_env(case, out), TaskEnv(case.task)
    policy = make_learner(env, case.steps, case.seed)
    curve = []
    for number in range(case.trials):
        policy.learn(case.steps // case.trials, reset_num_timesteps=number == 0)
        curve.append({"step": policy.num_timesteps, **evaluate(policy, trial, case.trials)})
        print(json.dumps(curve[-1]), flush=True)
    model = demerit.load_model(str(out / "models" / case.lesson)) if case.lesson else None
    last = evaluate(policy, trial, case.trials, model)
    folder = make_folder(out / "runs" / case.name)
    facts = {**asdict(case), "curve": curve, **last, "seconds": round(time.monotonic() - started, 1)}
    write_json(folder / "result.json", facts)
    env.close()
    trial.close()


def read_results(out: Path) -> list[dict[str, Any]]:
    """Read the results of all finished runs."""
    return [json.loads(path.read_text()) for path in sorted((out / "runs").glob("*/result.json"))]


def train(out: Path, jobs: int, small: bool, only: str, minutes: float, say: Callable[[str], None]) -> None:
    """Run what has no result yet, a process each; start none after some minutes."""
    listed = [case for case in cases(small) if only in case.name]
    todo = [case for case in listed if not (out / "runs" / case.name / "result.json").exists()]
    say(f"{len(listed) - len(todo)} of {len(listed)} runs are there already")
    started, finished = time.monotonic(), 0
    one_core = {**os.environ, "OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}

    def run(case: Case) -> str:
        if time.monotonic() - started > 60 * minutes:
            return "not started: the time is over"
        folder = make_folder(out / "runs" / case.name)
        command = [sys.executable, str(Path(__file__).with_name("rl.py")), "case", str(out), "--only", case.name]
        with (folder / "log.txt").open("w") as log:
            done = subprocess.run(
                [*command, *(["--small"] if small else [])], env=one_core, stdout=log, stderr=log, check=False
            )
        if done.returncode:
            return f"failed: {(folder / 'log.txt').read_text().strip().splitlines()[-1]}"
        result = json.loads((folder / "result.json").read_text())
        return f"success {result['ever']:.0%} at some step, {result['end']:.0%} at the end, {result['seconds']:.0f} s"

    with ThreadPoolExecutor(jobs) as pool:
        answers: Iterable[str] = pool.map(run, todo)
        for case, answer in zip(todo, answers, strict=True):
            finished += 1
            spent = (time.monotonic() - started) / 60
            whole = spent / finished * len(todo)
            say(f"{finished}/{len(todo)} {case.name}: {answer} ({spent:.0f} of about {whole:.0f} min)")
