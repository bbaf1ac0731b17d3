"""The Fetch robot: its experts succeed, its failures are measured."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from demerit.errors import DemeritError
from demerit.negatives.sim.arena import load_mujoco
from demerit.negatives.sim.tasks import FETCH

try:
    load_mujoco(FETCH)
except DemeritError as missing:
    pytest.skip(str(missing), allow_module_level=True)

from demerit.negatives.sim.arena import SceneRenderer
from demerit.negatives.sim.measure import find_events
from demerit.negatives.sim.rollout import EpisodeSpec, Rollout, open_arena, record, rollout, vary
from demerit.negatives.sim.tasks import task

SIZE = 32


@pytest.fixture(scope="module")
def renderers() -> Iterator[dict[str, SceneRenderer]]:
    made: dict[str, SceneRenderer] = {}
    yield made
    for renderer in made.values():
        renderer.close()


def play(renderers: dict[str, SceneRenderer], name: str, behaviour: str, seed: int) -> Rollout:
    if name not in renderers:
        renderers[name] = SceneRenderer(open_arena(task(name)), SIZE)
    renderer = renderers[name]
    return rollout(EpisodeSpec(name, behaviour, seed, "varied", SIZE), renderer.arena, renderer)


@pytest.mark.parametrize("name", ["fetch-insert", "fetch-pick", "fetch-push", "fetch-reach", "fetch-slide"])
def test_fetch_experts_succeed(renderers: dict[str, SceneRenderer], name: str) -> None:
    made = play(renderers, name, "expert", 1)
    measured = made.measured
    assert measured.at_end
    assert measured.steps[-1].distance < measured.task.within
    assert measured.progress[0] < 0.1
    assert np.all(measured.progress[~measured.success] <= 0.95)
    assert not {"collision", "excessive force"} & {event.kind for event in find_events(measured)}


@pytest.mark.parametrize(
    ("name", "behaviour", "seed", "kind"),
    [
        ("fetch-insert", "press-hard", 3, "collision"),
        ("fetch-insert", "jam", 3, "collision"),
        ("fetch-insert", "drop", 0, "dropped"),
        ("fetch-insert", "undo", 0, "undone"),
        ("fetch-pick", "drop", 5, "dropped"),
        ("fetch-pick", "missed-grasp", 0, "missed grasp"),
        ("fetch-pick", "wrong-object", 0, "wrong object"),
        ("fetch-push", "undo", 0, "undone"),
        ("fetch-push", "wrong-place", 0, "wrong place"),
        ("fetch-reach", "undo", 0, "undone"),
        ("fetch-slide", "early-stop", 0, "wrong place"),
    ],
)
def test_fetch_failures_are_measured(
    renderers: dict[str, SceneRenderer], name: str, behaviour: str, seed: int, kind: str
) -> None:
    measured = play(renderers, name, behaviour, seed).measured
    assert kind in {event.kind for event in find_events(measured)}
    assert not measured.at_end
    assert measured.progress[-1] < 1


def test_idle_and_expert_look_alike_at_the_start(renderers: dict[str, SceneRenderer]) -> None:
    idle, expert = (play(renderers, "fetch-push", behaviour, 3) for behaviour in ("idle", "expert"))
    assert np.array_equal(idle.images[0], expert.images[0])
    assert len(idle.images) == len(expert.images)
    assert (idle.ending, idle.instruction) == (expert.ending, expert.instruction)
    moved = idle.measured.objects()[:, :3] - idle.measured.objects()[0, :3]
    assert np.abs(moved).max() < 0.01
    assert not idle.measured.at_end


@pytest.mark.parametrize("name", ["fetch-insert", "fetch-pick"])
def test_fetch_same_seed_same_bytes(renderers: dict[str, SceneRenderer], tmp_path: Path, name: str) -> None:
    with SceneRenderer(open_arena(task(name)), SIZE) as fresh:
        first = record(play({name: fresh}, name, "noisy", 5), tmp_path / "a.mp4")
    play(renderers, name, "slam", 8)
    second = record(play(renderers, name, "noisy", 5), tmp_path / "b.mp4")
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    assert all(np.array_equal(second.signals[signal], values) for signal, values in first.signals.items())
    assert (first.origin.dataset, first.origin.embodiment) == ("fetch", "fetch (simulated)")
    assert first.outcome is not None and first.outcome.source == "simulator"


def test_force_spoils_an_insertion_that_looks_right(renderers: dict[str, SceneRenderer]) -> None:
    gentle, hard = (play(renderers, "fetch-insert", behaviour, 3).measured for behaviour in ("expert", "press-hard"))
    within, limit = gentle.task.within, gentle.task.scene_force
    assert max(gentle.steps[-1].distance, hard.steps[-1].distance) < within  # both pegs are in the hole
    assert gentle.forces("scene_force").max() < limit < hard.forces("scene_force").max()
    assert hard.ever and not hard.at_end
    assert hard.progress[-1] == 0.95
    assert {"undone", "incomplete"}.isdisjoint(event.kind for event in find_events(hard))


@pytest.mark.parametrize(("behaviour", "seed"), [("jam", 101), ("slam", 101)])
def test_a_peg_that_was_forced_into_the_hole_is_at_its_place(
    renderers: dict[str, SceneRenderer], behaviour: str, seed: int
) -> None:
    forced = play(renderers, "fetch-insert", behaviour, seed).measured
    assert forced.steps[-1].distance < forced.task.within and not forced.ever
    kinds = {event.kind for event in find_events(forced)}
    assert "collision" in kinds and {"wrong place", "dropped", "not released"}.isdisjoint(kinds)


def test_what_is_not_held_presses_nothing() -> None:
    """A peg that stands on the table is no force of the robot; no other task counts what is held."""
    arena = open_arena(task("fetch-insert"))
    facts = arena.reset(0, np.random.default_rng(0))
    assert len(arena.data.contact) and facts.scene_force == 0 and not facts.held
    for _ in range(120):
        facts = arena.step(arena.expert()(facts.observation))
        if facts.held:
            break
    assert facts.held and facts.scene_force > 0


def test_the_peg_stands_in_the_hole_and_not_on_the_block() -> None:
    arena = open_arena(task("fetch-insert"))
    joint = arena.data.joint("object0:joint")
    for aside, is_done in ((0.0, True), (0.03, False)):
        arena.reset(1, np.random.default_rng(1))
        x, y, _ = arena.env.goal
        joint.qpos[:] = [x + aside, y, 0.5, 1, 0, 0, 0]
        joint.qvel[:] = 0
        for _ in range(60):
            facts = arena.step(np.array([0, 0, 0.2, -1.0]))
        assert arena.succeeded(facts) == is_done
        assert (facts.distance < 0.005) == is_done


def test_a_variant_of_an_insertion_does_its_actions_again(renderers: dict[str, SceneRenderer], tmp_path: Path) -> None:
    original = play(renderers, "fetch-insert", "jam", 3)
    renderer = renderers["fetch-insert"]
    episode = record(original, tmp_path / "jam.mp4")
    again = rollout(vary(episode, 0, (), SIZE), renderer.arena, renderer)
    assert np.array_equal(again.images[0], original.images[0])
    assert not again.measured.at_end
    moved = rollout(vary(episode, 1, ("start", "object"), SIZE), renderer.arena, renderer)
    assert moved.varied and not moved.measured.at_end


def test_a_puck_that_slides_over_the_goal_is_not_done() -> None:
    arena = open_arena(task("fetch-slide"))
    arena.reset(0, np.random.default_rng(0))
    joint = arena.data.joint("object0:joint")
    joint.qpos[:2], joint.qvel[0] = arena.env.goal[:2], 0.5
    facts = arena.step(np.zeros(4))
    assert facts.distance < arena.task.within
    assert not arena.succeeded(facts)


def test_fetch_starts_are_open_problems_in_sight() -> None:
    arena = open_arena(task("fetch-pick"))
    for seed in range(10):
        facts = arena.reset(seed, np.random.default_rng(seed))
        assert facts.distance > 0.09
        assert facts.scene_force == 0
        assert facts.spare is not None
        assert np.linalg.norm(facts.spare - facts.object) > 0.05
