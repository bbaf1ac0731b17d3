"""A simulated task as a Gymnasium environment: states for the policy, images for the reward model, the true reward.

One step of the environment spans what one frame of demerit's simulated episodes does (3 to 8 steps of 1/80 s), so a
model sees the robot at the frame rate at which it was taught.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from demerit.negatives.sim.arena import SceneRenderer, silence_warnings
from demerit.negatives.sim.fetch import HIGH, LOW
from demerit.negatives.sim.measure import progress
from demerit.negatives.sim.rollout import ROOM, EpisodeSpec, open_arena, random_numbers
from demerit.negatives.sim.tasks import FETCH, SAWYER, task

FRAMES = 30
"""steps of an episode"""
SCALE = 10.0
"""positions are given to the policy in units of 10 cm"""
SIZE = 128
STRIDE = 2
"""a model looks at every second step; between them its newest value holds"""


class TaskEnv(gymnasium.Env[npt.NDArray[np.float32], npt.NDArray[np.float32]]):
    """A task of Meta-World or Fetch. The reward is the environment's own: 0 to 1, or -10 times the distance (m)."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, name: str) -> None:
        """Open a task; every episode starts in another scene."""
        self.arena, self.render_mode = open_arena(task(name)), "rgb_array"
        self.repeat = max(2, round(ROOM * self.arena.task.steps / 27))
        self.action_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float32)
        self.words = self.arena.task.instructions[0]
        sawyer = self.arena.task.robot == SAWYER
        self.reach = (self.arena.env.hand_low, self.arena.env.hand_high) if sawyer else (LOW, HIGH)
        """corners of the box that the hand moves in"""
        self.renderer: SceneRenderer | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Start an episode, in a scene that `demerit simulate --like` finds again by its number."""
        super().reset(seed=seed)
        self.scene = int(self.np_random.integers(2**31))
        rng = random_numbers(EpisodeSpec(self.arena.task.name, "policy", self.scene, "plain"), "scene")
        with silence_warnings():
            self.facts = self.before = self.first = self.arena.reset(int(rng.integers(2**31)), rng)
            self.is_done = self.arena.succeeded(self.facts)
        self.count = 0
        return self._state(), {"success": self.is_done}

    def step(
        self, action: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Hold an action for a few steps of the simulation."""
        self.before = self.facts
        chosen = np.asarray(action, dtype=np.float64)
        with silence_warnings():
            for _ in range(self.repeat):
                self.facts = self.arena.step(chosen)
            self.is_done = self.arena.succeeded(self.facts)
            reward = self._true_reward(chosen)
        self.count += 1
        return self._state(), reward, False, self.count >= FRAMES, {"success": self.is_done}

    @property
    def progress(self) -> float:
        """The measured progress, 0 to 1."""
        return progress(self.arena.task, self.first, self.facts, self.is_done)

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the current moment, with the camera and the colours of the taught episodes."""
        if self.renderer is None:
            self.renderer = SceneRenderer(self.arena, SIZE)
            self.renderer.prepare("plain", np.random.default_rng(0))
        return self.renderer.render()

    def close(self) -> None:
        """Free the graphics memory."""
        if self.renderer is not None:
            self.renderer.close()

    def _true_reward(self, action: npt.NDArray[np.float64]) -> float:
        if self.arena.task.robot == FETCH:
            return -SCALE * self.facts.distance
        value, _ = self.arena.env.evaluate_state(self.facts.observation, action.astype(np.float32))
        return float(value) / 10

    def _state(self) -> npt.NDArray[np.float32]:
        """Hand, its velocity, gripper, object, its velocity, and where the object and the goal are from the hand."""
        now, before = self.facts, self.before
        parts = [now.hand, now.hand - before.hand, now.object - now.hand, now.object - before.object]
        parts += [now.target - now.object, np.array([now.openness / SCALE, self.count / FRAMES / SCALE])]
        return np.concatenate(parts).astype(np.float32) * np.float32(SCALE)
