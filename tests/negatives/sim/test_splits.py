"""The simulator's benchmark, tasks and preferences: the parts without physics."""

import hashlib
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import demerit
from demerit.cli.simulate import _benchmark_specs, _specs
from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.errors import BadInput, MissingExtra, NotApplicable, UnknownName
from demerit.negatives.sim.arena import AZIMUTHS, choose_renderer, draw_camera, load_mujoco
from demerit.negatives.sim.behaviours import BEHAVIOURS
from demerit.negatives.sim.job import clear_preferences
from demerit.negatives.sim.rollout import EpisodeSpec, check_applies, draw_length, random_numbers
from demerit.negatives.sim.splits import (
    FETCH_BENCHMARK,
    FETCH_TASKS,
    HELD_OUT_BEHAVIOURS,
    HELD_OUT_TASKS,
    OTHER_BEHAVIOURS,
    SPLITS,
    matched_pairs,
    plan,
)
from demerit.negatives.sim.tasks import FETCH, task, tasks

GOLDEN = {
    "train": (2400, "b83ca660e9675f6d"),
    "validation": (320, "2974a5fa58d3a843"),
    "test": (750, "f24d8cd9b425248b"),
}


@pytest.mark.parametrize("split", SPLITS)
def test_the_plan_never_changes(split: str) -> None:
    specs = plan(split)
    digest = hashlib.sha256("\n".join(spec.id for spec in specs).encode()).hexdigest()[:16]
    assert (len(specs), digest) == GOLDEN[split]
    assert len({spec.id for spec in specs}) == len(specs)
    for spec in specs:
        check_applies(spec)


def test_nothing_held_out_is_trained_on() -> None:
    train, validation, test = (plan(split) for split in SPLITS)
    assert {spec.task for spec in test} == set(HELD_OUT_TASKS)
    assert len(HELD_OUT_TASKS) == 10
    assert len(HELD_OUT_BEHAVIOURS) == 3
    for spec in (*train, *validation):
        assert spec.task not in HELD_OUT_TASKS
        assert spec.behaviour not in HELD_OUT_BEHAVIOURS
        assert spec.setting == "varied"
    assert {spec.behaviour for spec in test} == {"expert", *OTHER_BEHAVIOURS}
    assert {spec.setting for spec in test} == {"held-out"}
    assert not {spec.group for spec in train} & {spec.group for spec in validation}
    assert AZIMUTHS["held-out"][0] > AZIMUTHS["varied"][1]
    for spec in test[:200]:
        assert draw_camera(spec.setting, random_numbers(spec, "scene")).azimuth > AZIMUTHS["varied"][1]


def test_fetch_is_a_test_and_no_default() -> None:
    specs = plan("test", benchmark=FETCH_BENCHMARK)
    digest = hashlib.sha256("\n".join(spec.id for spec in specs).encode()).hexdigest()[:16]
    assert (len(specs), digest) == (360, "df78944f362a0201")
    assert {spec.split for spec in specs} == {"test"}  # training leaves these out
    assert {spec.task for spec in specs} == set(FETCH_TASKS) == set(tasks(FETCH)) - {"fetch-insert"}
    with pytest.raises(UnknownName, match="train"):
        plan("train", benchmark=FETCH_BENCHMARK)
    usual = _specs("all", "all", range(1), "varied", 128)
    assert Counter(spec.behaviour for spec in usual) == dict.fromkeys({"expert", *OTHER_BEHAVIOURS}, 50)
    assert not {spec.task for spec in usual} & set(tasks(FETCH))
    for name in ("fetch-pick", "fetch-insert"):
        assert {spec.behaviour for spec in _specs(name, "all", range(1), "varied", 128)} == set(BEHAVIOURS)


def test_the_shipped_network_has_not_seen_fetch() -> None:
    folder = Path(demerit.__file__).parent / "assets" / "compact"
    for name in ("network.json", "training.json"):
        assert "fetch" not in (folder / name).read_text("utf-8").lower(), name


def test_scene_length_and_ending_do_not_depend_on_the_behaviour() -> None:
    spec = EpisodeSpec("push", "expert", 3)
    for behaviour in BEHAVIOURS:
        other = replace(spec, behaviour=behaviour)
        assert draw_length(other) == draw_length(spec)
        for purpose in ("scene", "timing", "ending", "words"):
            assert random_numbers(other, purpose).random() == random_numbers(spec, purpose).random()
    assert random_numbers(replace(spec, behaviour="undo"), "behaviour").random() != (
        random_numbers(spec, "behaviour").random()
    )


@pytest.mark.parametrize(
    ("make", "arguments", "error", "word"),
    [
        (check_applies, [EpisodeSpec("drawer-open", "wrong-object", 0)], NotApplicable, "second object"),
        (check_applies, [EpisodeSpec("drawer-open", "undoo", 0)], UnknownName, "undo"),
        (check_applies, [EpisodeSpec("fetch-pick", "press-hard", 0)], NotApplicable, "force"),
        (check_applies, [EpisodeSpec("fetch-insert", "overshoot", 0)], NotApplicable, "bottom"),
        (EpisodeSpec, ["push", "expert", 0, "plain", 127], BadInput, "127"),
        (plan, ["dev"], UnknownName, "dev"),
        (task, ["pick-plac"], UnknownName, "pick-place"),
        (_specs, ["drawer-opn", "all", range(2), "plain", 64], UnknownName, "drawer-open"),
        (_specs, ["all", "clumsy", range(2), "plain", 64], UnknownName, "clumsy"),
        (_specs, ["all", "all", range(2), "dark", 64], UnknownName, "dark"),
        (_specs, ["all", "all", range(0), "plain", 64], BadInput, "episode"),
        (_benchmark_specs, ["metaworld-bad@2", "test", 128], UnknownName, "bad@2"),
    ],
)
def test_bad_names_and_sizes(
    make: Callable[..., object], arguments: list[object], error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        make(*arguments)


def test_a_missing_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with pytest.raises(BadInput, match="libegl1"):
        choose_renderer()
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    monkeypatch.setitem(sys.modules, "metaworld", None)
    with pytest.raises(MissingExtra, match="sim"):
        load_mujoco()
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(MissingExtra, match="sim"):
        load_mujoco(FETCH)


def fake(id: str, success: bool, end: float, motion: float = 0.01, frames: int = 24) -> Episode:
    images = Frames.from_array(np.zeros((2, 4, 4, 3), dtype=np.uint8))
    tags = {"task": "push", "motion": str(motion), "frames": str(frames)}
    outcome = Outcome("simulator", success=success, progress=end)
    return Episode(id, "push it", {"main": images}, (outcome,), Origin(group="push/0", tags=tags))


def test_preferences_only_for_clear_outcomes() -> None:
    episodes = [fake("good", True, 1.0), fake("near", False, 0.9), fake("poor", False, 0.3)]
    better = {frozenset((choice.a, choice.b)): choice.better for choice in clear_preferences(episodes)}
    assert better == {frozenset(("good", "poor")): "good", frozenset(("near", "poor")): "near"}


def test_length_and_motion_do_not_decide_matched_pairs() -> None:
    rng = np.random.default_rng(0)
    episodes = [
        fake(f"{kind}{number}", kind == "s", 1.0 if kind == "s" else 0.2, motion, int(rng.integers(22, 33)))
        for number in range(150)
        for kind, motion in (("s", rng.uniform(0.01, 0.03)), ("f", rng.uniform(0.008, 0.024)))
    ]
    by_id = {episode.id: episode for episode in episodes}
    pairs = matched_pairs(episodes)
    assert len(pairs) > 30
    used = [id for pair in pairs for id in (pair.a, pair.b)]
    assert len(used) == len(set(used))
    for name in ("motion", "frames"):
        signs = []
        for pair in pairs:
            good, bad = sorted((pair.a, pair.b), reverse=True)
            assert pair.better == good
            signs.append(np.sign(float(by_id[good].origin.tags[name]) - float(by_id[bad].origin.tags[name])))
        assert abs(sum(signs)) <= 0.1 * len(pairs), name
    assert abs(sum(1 if pair.verdict == "a" else -1 for pair in pairs)) <= 1


def test_the_shipped_sample_is_small_and_readable() -> None:
    folder = Path(demerit.__file__).parent / "assets" / "sample"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    episodes = list(open_dataset(f"videos:{folder}", strict=True))
    assert Counter(episode.origin.split for episode in episodes) == {"train": 12, "test": 16}
    assert len({episode.origin.group for episode in episodes}) == len(episodes)  # no scene is in both splits
    assert {True, False} == {episode.outcome.success for episode in episodes if episode.outcome}
    for episode in episodes:
        curves = [outcome.curve for outcome in episode.outcomes if outcome.curve is not None]
        assert len(curves) == 1
        assert len(curves[0]) == len(episode.main.all())
