"""Two worlds with the same task: the simulator, where a policy is trained, and one that stands for reality.

The second has another camera, other light and colours, a weaker arm, stiffer joints, and noise in actions, states and
images. Of it a model is taught videos and verdicts alone. Variants of a failure also use its actions and its scene.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.frames import Frames
from demerit.data.video import VideoClip, write_video
from demerit.negatives.sim.arena import OBJECT, STEPS_PER_SECOND, SceneRenderer, silence_warnings
from demerit.negatives.sim.rollout import ENCODING
from robot import FRAMES, SIZE, TaskEnv

LOOK = 7
"""draws camera, light and colours of the second world"""
STRENGTH, STIFFER = 0.85, 2.0
"""factors on the actions and on the damping of what the robot moves"""
ACTION_NOISE, STATE_NOISE, IMAGE_NOISE = 0.1, 0.05, 4.0
"""standard deviations; the state's unit is 10 cm, the image's one of 255"""
Act = Callable[["World", npt.NDArray[np.float32]], npt.NDArray[Any]]


class World(TaskEnv):
    """A task in the simulator, or in the world that stands for reality."""

    def __init__(self, name: str, real: bool) -> None:
        super().__init__(name)
        self.real, self.rng = real, np.random.default_rng(0)
        if real:
            model = self.arena.model
            moved = model.geom_bodyid[self.arena.groups == OBJECT]
            model.dof_damping[np.isin(model.dof_bodyid, moved)] *= STIFFER
            self.renderer = SceneRenderer(self.arena, SIZE)
            self.renderer.prepare("varied", np.random.default_rng(LOOK))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Start an episode."""
        state, facts = super().reset(seed=seed, options=options)
        self.rng = np.random.default_rng(self.scene)
        return self._disturb(state), facts

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Do an action; in the second world, not quite the one that was asked for."""
        if self.real:
            action = np.clip(STRENGTH * np.asarray(action) + self.rng.normal(0, ACTION_NOISE, 4), -1, 1)
        state, *others = super().step(action)
        return self._disturb(state), *others  # type: ignore[return-value]

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the current moment, as this world's camera sees it."""
        image = super().render()
        if not self.real:
            return image
        return np.clip(image + self.rng.normal(0, IMAGE_NOISE, image.shape), 0, 255).astype(np.uint8)

    def _disturb(self, state: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        noise = self.rng.normal(0, STATE_NOISE, state.shape) if self.real else np.zeros(state.shape)
        return (state + noise).astype(np.float32)

    def record(self, act: Act, who: str, seed: int, folder: Path) -> Episode:
        """Let somebody act for an episode; it carries the tags and the signal that `demerit simulate --like` takes."""
        state, _ = self.reset(seed=seed)
        frames, actions, curve = [self.render()], [], [self.progress]
        for _ in range(FRAMES):
            with silence_warnings():
                actions.append(np.clip(act(self, state), -1, 1))
            state = self.step(actions[-1])[0]
            frames.append(self.render())
            curve.append(self.progress)
        task, world = self.arena.task.name, "real" if self.real else "simulated"
        path = folder / f"{world}-{who}-{seed}.mp4"
        write_video(path, frames, STEPS_PER_SECOND / self.repeat, ENCODING)
        tags = {"task": task, "setting": "plain", "seed": str(self.scene), "behaviour": who, "world": world}
        outcome = Outcome("simulator", success=self.is_done, progress=curve[-1], curve=np.array(curve, np.float32))
        return Episode(
            f"{task}/{world}/{who}/{seed}",
            self.words,
            {"main": Frames(VideoClip(str(path), length=len(frames)))},
            outcomes=(outcome,),
            origin=Origin(dataset="loop", licence="MIT", group=f"{task}/plain/{self.scene}", tags=tags),
            signals={"action": np.array([*actions, actions[-1]], np.float32)},
        )


def make_demonstrator(world: World, _: int) -> Act:
    """Return the scripted expert: it knows the true state, as a person does who holds the robot's hand."""
    expert = world.arena.expert()
    return lambda world, _: expert(world.facts.observation)


def make_wanderer(world: World, seed: int, leaves_at: int) -> Act:
    """Return an expert that stops after some steps and wanders from place to place: a failure as people script them."""
    expert, rng, place = world.arena.expert(), np.random.default_rng(seed), np.zeros(3)

    def act(world: World, _: Any) -> npt.NDArray[Any]:
        nonlocal place
        if world.count < leaves_at:
            return expert(world.facts.observation)
        if world.count == leaves_at or rng.random() < 0.15:
            place = rng.uniform(*world.reach)
        return np.array([*np.clip((place - world.facts.hand) * 10, -1, 1), rng.choice([-1.0, 1.0])])

    return act
