"""Simulated episodes per minute and core, compared with Meta-World's own rendering.

    python benchmarks/simulate.py [--small]

One process, one core: physics, images of 128 x 128, measuring and encoding; then the same tasks with
`render_mode="rgb_array"` as in Meta-World's documentation.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("LP_NUM_THREADS", "0")  # as in the workers

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="two episodes; skipped without the extra sim")
    OPTIONS = parser.parse_args()  # before the imports that need extras: --help works without them

import numpy as np

from demerit.data.video import write_video
from demerit.errors import DemeritError
from demerit.negatives.sim.arena import Arena, SceneRenderer, load_mujoco, silence_warnings
from demerit.negatives.sim.rollout import EpisodeSpec, draw_length, record, rollout
from demerit.negatives.sim.tasks import task

TASKS = ("pick-place", "drawer-open", "door-close", "bin-picking", "button-press")
BEHAVIOURS = ("expert", "noisy", "early-stop", "undo")


def simulate(folder: Path, tasks: Sequence[str], each: int) -> tuple[int, int, float, float]:
    """Return episodes, frames, wall time and processor time, including building the models."""
    frames = count = 0
    clock, processor = time.perf_counter(), time.process_time()
    for name in tasks:
        with SceneRenderer(Arena(task(name)), 128) as renderer:
            for number in range(each):
                spec = EpisodeSpec(name, BEHAVIOURS[number % len(BEHAVIOURS)], number)
                episode = record(rollout(spec, renderer.arena, renderer), folder / f"{name}-{number}.mp4")
                frames += len(episode)
                count += 1
    return count, frames, time.perf_counter() - clock, time.process_time() - processor


def built_in(folder: Path, episodes: int) -> tuple[int, float, float]:
    """Return frames, wall time and processor time of the environment's own step and render."""
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    from metaworld.policies import ENV_POLICY_MAP

    frames = 0
    clock, processor = time.perf_counter(), time.process_time()
    with silence_warnings():
        for name in TASKS[:episodes]:
            env = ALL_V3_ENVIRONMENTS[f"{name}-v3"](
                render_mode="rgb_array", camera_name="corner2", width=128, height=128
            )
            env._partially_observable, env._freeze_rand_vec, env._set_task_called = False, False, True
            policy, (observation, _) = ENV_POLICY_MAP[f"{name}-v3"](), env.reset()
            length, stride = draw_length(EpisodeSpec(name, "expert", 0))
            images = []
            for _ in range(length):
                for _ in range(stride):
                    observation, *_ = env.step(np.clip(policy.get_action(observation), -1, 1))
                images.append(env.render())
            frames += write_video(folder / f"built-in-{name}.mp4", images)
            env.close()
    return frames, time.perf_counter() - clock, time.process_time() - processor


def main(small: bool) -> None:
    if small:
        try:
            load_mujoco()
        except DemeritError as missing:
            print(f"skipped: {missing}")
            return
    with tempfile.TemporaryDirectory() as folder:
        rollout_count, frames, clock, processor = simulate(
            Path(folder), TASKS[:1] if small else TASKS, 1 if small else 16
        )
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / rollout_count / 1000
        print(f"demerit: {rollout_count} episodes, {frames} frames, {size:.0f} kB per episode")
        print(f"  {rollout_count / clock * 60:.0f} per minute, {rollout_count / processor * 60:.0f} per core minute")
        few = 1 if small else 3
        frames, clock, processor = built_in(Path(folder), few)
        print(f"built-in rendering: {few} episodes, {frames} frames")
        print(f"  {few / clock * 60:.0f} per minute, {few / processor * 60:.0f} per core minute")


if __name__ == "__main__":
    main(OPTIONS.small)
