"""Variants of failures: the recorded actions in a changed scene, measured anew."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.errors import DemeritError
from demerit.negatives.sim.arena import load_mujoco

try:
    load_mujoco()
except DemeritError as missing:
    pytest.skip(str(missing), allow_module_level=True)

from typer.testing import CliRunner

from demerit.cli import app
from demerit.data.episode import Episode, Outcome
from demerit.data.store import Store
from demerit.errors import NotApplicable
from demerit.negatives.sim.arena import OBJECT, Arena, SceneRenderer, silence_warnings
from demerit.negatives.sim.job import plan_variants
from demerit.negatives.sim.rollout import EpisodeSpec, Rollout, check_applies, record, rollout, vary
from demerit.negatives.sim.tasks import task, tasks
from demerit.negatives.sim.variants import (
    CHANGES,
    ON_RAILS,
    Recording,
    change_physics,
    draw_changes,
    move_start,
    possible_changes,
    retime,
)

SIZE = 32


@pytest.fixture(scope="module")
def renderer() -> Iterator[SceneRenderer]:
    with SceneRenderer(Arena(task("push")), SIZE) as made:
        yield made


@pytest.fixture(scope="module")
def original(renderer: SceneRenderer) -> Rollout:
    return rollout(EpisodeSpec("push", "undo", 1, "varied", SIZE), renderer.arena, renderer)


@pytest.fixture(scope="module")
def failure(original: Rollout, tmp_path_factory: pytest.TempPathFactory) -> Episode:
    episode = record(original, tmp_path_factory.mktemp("undo") / "undo.mp4")
    assert episode.outcome is not None and episode.outcome.success is False
    return episode


def run(renderer: SceneRenderer, episode: Episode, number: int, *changes: str) -> Rollout:
    return rollout(vary(episode, number, changes, SIZE), renderer.arena, renderer)


def test_the_same_actions_in_the_same_scene_fail_in_the_same_way(
    renderer: SceneRenderer, original: Rollout, failure: Episode
) -> None:
    again = run(renderer, failure, 0)
    assert failure.outcome is not None and failure.outcome.curve is not None
    assert again.varied == () and again.instruction == failure.instruction
    np.testing.assert_allclose(again.measured.progress, failure.outcome.curve, atol=0.1)
    assert (again.images[0] == original.images[0]).all()


def test_the_same_variant_has_the_same_bytes_and_leaves_the_scene_as_it_was(
    renderer: SceneRenderer, failure: Episode
) -> None:
    plain = EpisodeSpec("push", "expert", 5, "varied", SIZE)
    before = rollout(plain, renderer.arena, renderer).images
    first = [run(renderer, failure, number, *CHANGES).images for number in range(3)]
    assert (rollout(plain, renderer.arena, renderer).images == before).all()
    second = [run(renderer, failure, number, *CHANGES).images for number in range(3)]
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_each_change_changes_what_it_says(renderer: SceneRenderer, failure: Episode) -> None:
    same = run(renderer, failure, 0)
    start = run(renderer, failure, 0, "start").measured.steps[0]
    first = same.measured.steps[0]
    assert 0.005 < np.linalg.norm(start.hand - first.hand) < 0.1
    np.testing.assert_allclose(start.object, first.object, atol=1e-3)
    thing = run(renderer, failure, 0, "object").measured.steps[0]
    assert 0.002 < np.linalg.norm(thing.object[:2] - first.object[:2]) < 0.05
    np.testing.assert_allclose(thing.hand, first.hand, atol=0.01)
    lengths = {len(run(renderer, failure, number, "timing").images) for number in range(4)}
    assert len(lengths) > 1 and len(same.images) == len(failure)
    look = run(renderer, failure, 0, "look")
    assert look.camera != same.camera and look.measured.progress == pytest.approx(same.measured.progress)
    model = renderer.arena.model
    objects = renderer.arena.groups == OBJECT
    sizes, gains = model.geom_size[objects].copy(), model.actuator_gainprm[:, 0].copy()
    with change_physics(renderer.arena, ("size", "grip"), np.random.default_rng(0)):
        assert not np.allclose(model.geom_size[objects], sizes) and (model.actuator_gainprm[:, 0] < gains).all()
    assert (model.geom_size[objects] == sizes).all() and (model.actuator_gainprm[:, 0] == gains).all()


def test_a_variant_never_leaves_the_split_and_the_scene_of_its_original(failure: Episode) -> None:
    held_out = replace(failure, origin=replace(failure.origin, split="test", group="mine"))
    spec = vary(held_out, 3, ("start",), SIZE)
    assert (spec.split, spec.group) == ("test", "mine")
    assert spec.id != vary(held_out, 4, ("start",), SIZE).id != vary(replace(held_out, id="other"), 4, (), SIZE).id


def test_what_cannot_be_done_again_is_left_out_with_the_reason(failure: Episode) -> None:
    won = replace(failure, outcomes=(Outcome("human", success=True),))
    tags = dict(failure.origin.tags)
    strange = [
        replace(failure, signals={}),
        replace(failure, signals={"action": np.full((len(failure), 4), np.nan)}),
        *(
            replace(failure, origin=replace(failure.origin, tags={**tags, **other}))
            for other in ({"task": "no such"}, {"seed": "-1"}, {"setting": ""}, {"like": "push/undo"})
        ),
    ]
    for episode in strange:
        with pytest.raises(NotApplicable):
            vary(episode, 0, ())
    specs, skipped = plan_variants([failure, won, *strange], 2, ("start",), SIZE)
    assert [spec.like.like for spec in specs if spec.like] == [failure.id] * 2
    assert skipped.total() == 1 + len(strange)


QUICK = ("basketball", "bin-picking", "plate-slide")
LOOSE = [name for name, one in tasks().items() if one.loose]


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LOOSE]
)
def test_what_a_task_allows_can_be_changed(name: str) -> None:
    arena, rng = Arena(task(name)), np.random.default_rng(0)
    possible = possible_changes(("object", "size"), arena.task)
    if name in ON_RAILS:
        assert not possible
        return
    kinds = arena.model.geom_type[arena.groups == OBJECT]
    assert ("size" in possible) == (arena.mujoco.mjtGeom.mjGEOM_MESH not in kinds)
    with silence_warnings():
        first = arena.reset(1, rng)
        moved = move_start(arena, first, ("object",), rng)
    assert np.linalg.norm((moved.object - first.object)[:2]) > 0.002


def test_the_size_of_a_mesh_is_not_changed() -> None:
    size = Recording("a", 0, "", "", np.zeros((2, 4)), 1, ("size",))
    with pytest.raises(NotApplicable, match="the object of basketball is a mesh"):
        check_applies(EpisodeSpec("basketball", "drop", 1, "varied", SIZE, like=size))
    both = replace(size, changes=("size", "look"))
    assert draw_changes(both, task("basketball"), np.random.default_rng(0)) == ("look",)


@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 2**32), st.booleans())
def test_another_pace_goes_the_same_way(frames: int, stride: int, seed: int, change: bool) -> None:
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-0.6, 0.6, (frames, 4))  # not clipped at 1 / 0.8
    recording = Recording("a", 0, "", "", actions, stride)
    commands = retime(recording, ("timing",) if change else (), rng)
    assert len(commands) % stride == 0 and set(commands[:, 3]) <= set(actions[:, 3])
    if not change:
        assert (commands == np.repeat(actions, stride, axis=0)).all()
    else:
        way, original = commands[:, :3].sum(axis=0), np.repeat(actions, stride, axis=0)[:, :3].sum(axis=0)
        # the last command of a frame may be held a little longer or shorter, and the motion ends on a whole frame
        assert np.abs(way - original).max() <= 0.6 / 0.8 * (frames + 2 * stride)


@pytest.mark.slow
def test_from_failures_to_variants_on_the_command_line(tmp_path: Path) -> None:
    def demerit(*words: str) -> str:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    bad, variants = str(tmp_path / "bad"), str(tmp_path / "variants")
    demerit("simulate", bad, "--tasks", "push", "--behaviours", "expert,undo", "--size", "32")
    demerit("simulate", variants, "--like", bad, "--episodes", "2", "--vary", "start,object,look", "--size", "32")
    made, undone = list(Store(variants).episodes()), next(e for e in Store(bad).episodes() if "/undo/" in e.id)
    assert [one.origin.tags["like"] for one in made] == [undone.id] * 2
    assert {name for one in made for name in one.origin.tags["varied"].split(",")} <= {"start", "object", "look"}
    assert all(one.outcome and one.outcome.source == "simulator" for one in made)
    ids = [one.id for one in made]
    demerit("simulate", variants, "--like", bad, "--episodes", "2", "--vary", "start,object,look", "--size", "32")
    assert [one.id for one in Store(variants).episodes()] == ids
