"""One simulated episode: task, behaviour, seed and setting in; images and measurements out. Deterministic."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demerit.data.arrays import Floats
from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.frames import Frames, Images
from demerit.data.video import Encoding, VideoClip, write_video
from demerit.errors import BadInput, NotApplicable
from demerit.negatives.sim.arena import (
    SETTINGS,
    STEPS_PER_SECOND,
    Arena,
    SceneRenderer,
    Setting,
    SimCamera,
    StepFacts,
    silence_warnings,
)
from demerit.negatives.sim.behaviours import BEHAVIOURS, Expert, Moment, Stage, draw_ending
from demerit.negatives.sim.fetch import FetchArena
from demerit.negatives.sim.measure import Measured, find_events, progress
from demerit.negatives.sim.tasks import FETCH, SAWYER, Task, all_tasks, task
from demerit.negatives.sim.variants import Recording, change_physics, draw_changes, move_start, retime

USUAL_SIZE, SMALLEST, LARGEST = 128, 32, 512
FEWEST_FRAMES, MOST_FRAMES = 22, 32
ROOM = 2.5
"""the duration of an episode of average length, as a multiple of the time that the expert needs"""
LATEST_START = 0.2
"""the longest wait before the start, as a share of the time that the expert needs"""
STUCK_STEPS, STUCK_METRES = 18, 0.002
"""a hand that moves less than this in these steps is stuck"""


@dataclass(frozen=True)
class EpisodeSpec:
    """The inputs of an episode."""

    task: str
    behaviour: str
    seed: int
    setting: Setting = "varied"
    size: int = USUAL_SIZE
    split: str = ""
    like: Recording | None = None
    """the recorded episode that this one is a variant of; its behaviour is then only a tag"""

    def __post_init__(self) -> None:
        if self.size % 2 or not SMALLEST <= self.size <= LARGEST:
            raise BadInput("size", f"an even number of pixels from {SMALLEST} to {LARGEST}", self.size)

    @property
    def id(self) -> str:
        """The episode's id. It names the behaviour, so models never see it."""
        size = "" if self.size == USUAL_SIZE else f"@{self.size}"
        if self.like is not None:
            return f"{self.task}/{self.like.name}{size}"
        return f"{self.task}/{self.behaviour}/{self.setting}/{self.seed}{size}"

    @property
    def group(self) -> str:
        """Episodes of one scene and their variants: splits never separate them."""
        scene = f"{self.task}/{self.setting}/{self.seed}"
        return self.like.group or scene if self.like is not None else scene


@dataclass(frozen=True, eq=False)
class Rollout:
    """The result of an episode."""

    spec: EpisodeSpec
    instruction: str
    images: Images
    """(frames, size, size, 3)"""
    measured: Measured
    actions: Floats
    """(frames, 4): the mean command until the next frame; for the last frame, the command that would follow"""
    camera: SimCamera
    ending: str
    fps: float
    varied: tuple[str, ...] = ()
    """what a variant changed"""


def open_arena(task: Task) -> Arena:
    """Open a task's environment."""
    return FetchArena(task) if task.robot == FETCH else Arena(task)


def random_numbers(spec: EpisodeSpec, purpose: str) -> np.random.Generator:
    """A generator for one purpose. Only that for the behaviour depends on the behaviour.

    So scene, camera, length and ending are independent of the outcome.
    """
    behaviour = spec.behaviour if purpose == "behaviour" else ""
    words = "/".join([spec.task, spec.setting, str(spec.seed), purpose, behaviour])
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(words.encode(), digest_size=16).digest(), "little"))


def draw_length(spec: EpisodeSpec) -> tuple[int, int]:
    """Draw the number of frames and the number of steps between two frames."""
    frames = int(random_numbers(spec, "length").integers(FEWEST_FRAMES, MOST_FRAMES + 1))
    middling = (FEWEST_FRAMES + MOST_FRAMES) / 2
    return frames, max(2, round(ROOM * task(spec.task).steps / middling))


def check_applies(spec: EpisodeSpec) -> None:
    """Raise NotApplicable if the behaviour, or every change of a variant, makes no sense for the task."""
    if spec.like is not None:
        spec.like.check(task(spec.task))
        return
    reason = BEHAVIOURS.factory(spec.behaviour).why_not(task(spec.task))  # type: ignore[attr-defined]
    if reason:
        raise NotApplicable(f"{spec.behaviour} is not applicable: {reason}")


def vary(episode: Episode, number: int, changes: Sequence[str], size: int = USUAL_SIZE) -> EpisodeSpec:
    """Return the spec of a variant of a simulated episode; raise NotApplicable if it cannot be done again."""
    tags, origin = episode.origin.tags, episode.origin
    if (
        tags.get("task") not in all_tasks()
        or not tags.get("seed", "").isdecimal()
        or tags.get("setting") not in SETTINGS
    ):
        raise NotApplicable("no simulated scene: the tags task, setting and seed name it")
    if "like" in tags:
        raise NotApplicable("it is a variant itself")
    actions = np.asarray(episode.signals.get("action", ()), dtype=np.float64)
    if actions.shape != (len(episode), 4) or not np.isfinite(actions).all():
        raise NotApplicable("no signal `action` with x, y, z and gripper at every frame")
    times = episode.main.times()
    stride = round(STEPS_PER_SECOND * float(np.median(np.diff(times)))) if len(times) > 1 else 0
    if not 1 <= stride <= STEPS_PER_SECOND:
        raise NotApplicable("frames that are not 1/80 s to 1 s apart")
    like = Recording(
        episode.id, number, origin.group, episode.instruction, np.clip(actions, -1, 1), stride, tuple(changes)
    )
    setting: Any = tags["setting"]
    return EpisodeSpec(tags["task"], tags.get("behaviour", ""), int(tags["seed"]), setting, size, origin.split, like)


def rollout(spec: EpisodeSpec, arena: Arena, renderer: SceneRenderer) -> Rollout:
    """Run an episode. Arena and renderer can be reused for the next one."""
    check_applies(spec)
    if spec.like is not None:
        return _repeat(spec, spec.like, arena, renderer)
    scene = random_numbers(spec, "scene")
    frames, stride = draw_length(spec)
    first = arena.reset(int(scene.integers(2**31)), scene)
    camera = renderer.prepare(spec.setting, scene)
    actor = _Play(spec, arena, first)
    facts = _run(actor, first, arena, renderer, frames, stride)
    return Rollout(spec, _words(spec), *facts, camera, actor.ending.kind, STEPS_PER_SECOND / stride)


def _repeat(spec: EpisodeSpec, like: Recording, arena: Arena, renderer: SceneRenderer) -> Rollout:
    """Do recorded actions again in the scene where they were recorded, with changes."""
    scene, rng = random_numbers(spec, "scene"), random_numbers(spec, like.name)
    changes = draw_changes(like, arena.task, rng)
    commands = retime(like, changes, rng)
    with change_physics(arena, changes, rng):
        with silence_warnings():
            first = arena.reset(int(scene.integers(2**31)), scene)
            first = move_start(arena, first, changes, rng)
        if "look" in changes:
            camera = renderer.prepare("varied" if spec.setting == "plain" else spec.setting, rng)
        else:
            camera = renderer.prepare(spec.setting, scene)
        facts = _run(_Replay(commands), first, arena, renderer, len(commands) // like.stride, like.stride)
    return Rollout(spec, _words(spec), *facts, camera, "", STEPS_PER_SECOND / like.stride, changes)


def _words(spec: EpisodeSpec) -> str:
    if spec.like is not None and spec.like.instruction:
        return spec.like.instruction
    words = task(spec.task).instructions
    return words[int(random_numbers(spec, "words").integers(len(words)))]


def _run(
    actor: _Play | _Replay, first: StepFacts, arena: Arena, renderer: SceneRenderer, frames: int, stride: int
) -> tuple[Images, Measured, Floats]:
    """Let an actor act; return images, measurements and actions."""
    steps, images, success = [first], [renderer.render()], [arena.succeeded(first)]
    actions = []
    with silence_warnings():
        while len(images) < frames:
            commands = []
            for _ in range(stride):
                commands.append(actor.action(steps[-1], success[-1]))
                steps.append(arena.step(commands[-1]))
            images.append(renderer.render())
            success.append(arena.succeeded(steps[-1]))
            actions.append(np.mean(commands, axis=0))
        actions.append(actor.action(steps[-1], success[-1]))
    return np.stack(images), Measured.of(arena.task, stride, steps, success), np.stack(actions)


class _Replay:
    """Gives one command after the other."""

    def __init__(self, commands: Floats) -> None:
        self.commands = iter(commands)

    def action(self, facts: StepFacts, success: bool) -> Floats:
        return np.array(next(self.commands))


class _Play:
    """Plays a wait, the behaviour at a random speed, and the ending."""

    def __init__(self, spec: EpisodeSpec, arena: Arena, first: StepFacts) -> None:
        self.arena, self.task, self.first, self.home = arena, arena.task, first, arena.home
        timing = random_numbers(spec, "timing")
        self.start = int(timing.uniform(0, LATEST_START) * arena.task.steps)
        self.pace = float(timing.uniform(0.75, 1.0))
        self.ending = draw_ending(arena.task, random_numbers(spec, "ending"))
        make = BEHAVIOURS.factory(spec.behaviour)
        self.actor: Expert = make(Stage(arena.task, arena.expert(), random_numbers(spec, "behaviour"), first))
        self.is_ending = False
        self.step = self.still = self.done_for = 0
        self.gripper = -1.0
        self.places = [first.hand]

    def action(self, facts: StepFacts, success: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        self.step += 1
        if self.step <= self.start:
            return np.array([0, 0, 0, -1.0])
        if not self.is_ending and self._is_over(facts, success):
            self.is_ending = True
            self.ending.start(self.home, self.gripper, np.zeros(3) if self.task.settles else self.arena.lead())
        if self.is_ending:
            return self.ending.act(facts.hand)
        now = Moment(facts, progress(self.task, self.first, facts, success), success)
        action = self.actor.act(now)
        self.gripper = float(action[3])
        return np.array([*(action[:3] * self.pace), action[3]])

    def _is_over(self, facts: StepFacts, success: bool) -> bool:
        self.places.append(facts.hand)
        self.done_for = self.done_for + 1 if success else 0
        before = self.places[-STUCK_STEPS:][0]
        is_stuck = len(self.places) > STUCK_STEPS and float(np.linalg.norm(facts.hand - before)) < STUCK_METRES
        self.still = 0 if self.actor.waits else self.still + is_stuck
        is_done = self.actor.ends_on_success and self.done_for > self.ending.patience
        return self.actor.over or is_done or self.still > STUCK_STEPS


LICENCE = "MIT"
"""that of Meta-World and gymnasium-robotics"""
DATASETS = {SAWYER: ("metaworld", "metaworld"), FETCH: ("fetch", "gymnasium-robotics")}
"""a robot's name as a dataset, and the package"""
REPEATABLE = {"threads": "1", "x264-params": "mbtree=0:rc-lookahead=0:sync-lookahead=0:weightp=0"}
"""The same images give the same bytes. One thread alone is not enough: x264 has a lookahead thread, and with it 63 of
1,500 encodings of one episode differed in a few blocks; without it, none."""
ENCODING = Encoding(options={"crf": "23", "preset": "veryfast", **REPEATABLE})
SIDE = 32
"""motion and change are measured on images of this size"""


def video_name(spec: EpisodeSpec) -> str:
    """The name of an episode's video file."""
    return spec.id.replace("/", "-") + ".mp4"


def record(rollout: Rollout, path: str | Path, encoding: Encoding = ENCODING) -> Episode:
    """Write the video and return the episode."""
    write_video(path, rollout.images, rollout.fps, encoding)
    spec, measured = rollout.spec, rollout.measured
    robot = measured.task.robot
    dataset, package = DATASETS[robot]
    return Episode(
        spec.id,
        rollout.instruction,
        {"main": Frames(VideoClip(str(path), length=len(rollout.images)))},
        outcomes=(outcome(rollout),),
        origin=Origin(
            dataset=dataset,
            revision=version(package),
            licence=LICENCE,
            embodiment=f"{robot} (simulated)",
            split=spec.split,
            group=spec.group,
            tags=_tags(rollout),
        ),
        signals={
            "state": measured.states(),
            "action": rollout.actions.astype(np.float32),
            "object": measured.objects(),
            "goal": measured.goals(),
            "done": measured.success.astype(np.uint8),
            "object_force": measured.forces("object_force"),
            "scene_force": measured.forces("scene_force"),
        },
    )


def outcome(rollout: Rollout) -> Outcome:
    """The measured outcome: success = done at the last frame."""
    measured = rollout.measured
    note = "done at some time, not at the end" if measured.ever and not measured.at_end else ""
    curve = np.round(measured.progress, 4).astype(np.float32)
    return Outcome(
        "simulator",
        success=measured.at_end,
        progress=float(curve[-1]),
        curve=curve,
        events=find_events(measured),
        note=note,
        by="mujoco",
    )


def measure_motion(images: Images) -> tuple[float, float]:
    """Mean absolute grey difference at 32 x 32 (0 to 1) between adjacent frames, and between the first and the last."""
    small = [
        Image.fromarray(image).convert("L").convert("F").resize((SIDE, SIDE), Image.Resampling.BOX) for image in images
    ]
    grey = np.stack([np.asarray(image, dtype=np.float64) for image in small]) / 255
    return float(np.abs(np.diff(grey, axis=0)).mean()), float(np.abs(grey[-1] - grey[0]).mean())


def _tags(rollout: Rollout) -> dict[str, str]:
    spec = rollout.spec
    motion, change = measure_motion(rollout.images)
    return {
        "task": spec.task,
        "behaviour": spec.behaviour,
        "setting": spec.setting,
        "seed": str(spec.seed),
        "ever": "yes" if rollout.measured.ever else "no",
        "ending": rollout.ending,
        "frames": str(len(rollout.images)),
        "motion": f"{motion:.6f}",
        "change": f"{change:.6f}",
        "azimuth": f"{rollout.camera.azimuth:.1f}",
        **({"like": spec.like.like, "varied": ",".join(rollout.varied)} if spec.like is not None else {}),
    }
