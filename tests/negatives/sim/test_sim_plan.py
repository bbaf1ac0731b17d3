"""The simulator's plans, words and rules: everything that needs no physics."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.dataset import SOURCES
from demerit.data.episode import Episode, Origin
from demerit.data.frames import Frames
from demerit.data.labels import Outcome
from demerit.errors import BadInput, MissingExtra, NotApplicable, UnknownName
from demerit.negatives.sim.arena import AZIMUTHS, draw_camera
from demerit.negatives.sim.behaviours import BEHAVIOURS, LEAVING, draw_ending
from demerit.negatives.sim.job import clear_preferences
from demerit.negatives.sim.rollout import EpisodeSpec, check_applies, draw_length, random_numbers
from demerit.negatives.sim.splits import (
    BEHAVIOUR_CLASSES,
    HELD_OUT_BEHAVIOURS,
    HELD_OUT_TASKS,
    SPLITS,
    matched_pairs,
    plan,
)
from demerit.negatives.sim.tasks import task, tasks

GOLDEN = {
    "train": (2400, "b83ca660e9675f6d"),
    "validation": (320, "2974a5fa58d3a843"),
    "test": (750, "f24d8cd9b425248b"),
}


def test_fifty_tasks_with_words_of_their_own() -> None:
    assert len(tasks()) == 50
    said = [words for one in tasks().values() for words in one.instructions]
    assert all(len(one.instructions) >= 3 for one in tasks().values())
    assert len(said) == len(set(said)), "an instruction that fits two tasks tells neither"
    with pytest.raises(UnknownName, match="Did you mean 'pick-place'"):
        task("pick-plac")


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
    assert {spec.behaviour for spec in test} == {"expert", *BEHAVIOUR_CLASSES}
    assert {spec.setting for spec in test} == {"held-out"}
    assert not {spec.group for spec in train} & {spec.group for spec in validation}
    assert AZIMUTHS["held-out"][0] > AZIMUTHS["varied"][1]
    for spec in test[:200]:
        assert draw_camera(spec.setting, random_numbers(spec, "scene")).azimuth > AZIMUTHS["varied"][1]


def test_what_is_drawn_before_the_behaviour_does_not_know_it() -> None:
    spec = EpisodeSpec("push", "expert", 3)
    for behaviour in BEHAVIOURS:
        other = replace(spec, behaviour=behaviour)
        assert draw_length(other) == draw_length(spec)
        for purpose in ("scene", "timing", "ending", "words"):
            assert random_numbers(other, purpose).random() == random_numbers(spec, purpose).random()
    assert random_numbers(replace(spec, behaviour="undo"), "behaviour").random() != (
        random_numbers(spec, "behaviour").random()
    )


def test_an_arm_leaves_only_where_the_task_stays_done() -> None:
    for one in tasks().values():
        kinds = {draw_ending(one, np.random.default_rng(seed)).kind for seed in range(40)}
        assert bool(kinds & set(LEAVING)) == one.stays


def test_behaviours_that_make_no_sense_are_refused_with_the_reason() -> None:
    with pytest.raises(NotApplicable, match="there is no second object in drawer-open"):
        check_applies(EpisodeSpec("drawer-open", "wrong-object", 0))
    with pytest.raises(UnknownName, match="Did you mean 'undo'"):
        check_applies(EpisodeSpec("drawer-open", "undoo", 0))
    with pytest.raises(BadInput, match="even number of pixels"):
        EpisodeSpec("push", "expert", 0, size=127)
    with pytest.raises(UnknownName, match="split of metaworld-bad@1"):
        plan("dev")


def test_a_missing_simulator_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from demerit.negatives.sim import arena as gl

    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with pytest.raises(BadInput, match="apt-get install -y libegl1"):
        gl.choose_renderer()
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    monkeypatch.setitem(sys.modules, "metaworld", None)
    with pytest.raises(MissingExtra, match=r"pip install 'demerit\[sim\]'"):
        gl.load_mujoco()


def fake(id: str, success: bool, end: float, motion: float = 0.01, frames: int = 24) -> Episode:
    images = Frames.from_array(np.zeros((2, 4, 4, 3), dtype=np.uint8))
    tags = {"task": "push", "motion": str(motion), "frames": str(frames)}
    outcome = Outcome("simulator", success=success, progress=end)
    return Episode(id, "push it", {"main": images}, (outcome,), Origin(group="push/0", tags=tags))


def test_preferences_only_where_the_outcomes_are_clear() -> None:
    episodes = [fake("good", True, 1.0), fake("near", False, 0.9), fake("poor", False, 0.3)]
    better = {frozenset((one.a, one.b)): one.better for one in clear_preferences(episodes)}
    assert better == {frozenset(("good", "poor")): "good", frozenset(("near", "poor")): "near"}


def test_matched_pairs_cannot_be_told_by_length_or_motion() -> None:
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


def test_the_shipped_sample_is_small_and_reads(tmp_path: Path) -> None:
    from demerit.data.dataset import Dataset
    from demerit.negatives.sim.shipped_sample import sample_folder

    folder = sample_folder()
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    dataset = Dataset(SOURCES.factory("videos")(folder), strict=True)
    episodes = list(dataset)
    assert [len([one for one in episodes if one.origin.split == split]) for split in ("train", "test")] == [12, 16]
    assert len({one.origin.group for one in episodes}) == len(episodes)  # no scene is both taught and scored
    assert {True, False} == {episode.outcome.success for episode in episodes if episode.outcome}
    for episode in episodes:
        curves = [outcome.curve for outcome in episode.outcomes if outcome.curve is not None]
        assert len(curves) == 1
        assert len(curves[0]) == len(episode.main.all())


def test_the_command_names_what_it_does_not_know() -> None:
    from demerit.cli.simulate import _of_benchmark, _of_options

    seeds = range(2)
    assert len(_of_options("push,reach", "expert,undo", seeds, "plain", 64)) == 8
    with pytest.raises(UnknownName, match="Did you mean 'drawer-open'"):
        _of_options("drawer-opn", "all", seeds, "plain", 64)
    with pytest.raises(UnknownName, match="There is no behaviour named 'clumsy'"):
        _of_options("all", "clumsy", seeds, "plain", 64)
    with pytest.raises(UnknownName, match="There is no setting named 'dark'"):
        _of_options("all", "all", seeds, "dark", 64)
    with pytest.raises(BadInput, match="at least one episode"):
        _of_options("all", "all", range(0), "plain", 64)
    assert len(_of_benchmark("metaworld-bad@1", "all", 128)) == sum(count for count, _ in GOLDEN.values())
    with pytest.raises(UnknownName, match="simulated benchmark"):
        _of_benchmark("metaworld-bad@2", "test", 128)


def test_events_are_words_of_the_taxonomy() -> None:
    import re

    from demerit.data.taxonomy import kinds
    from demerit.negatives.sim import measure as events

    named = {getattr(kind, "name", kind) for kind in kinds()}
    source = Path(events.__file__).read_text()
    used = set(re.findall(r'(?:_event\(measured, |Event\()"([a-z ]+)"', source)) | {"excessive force", "collision"}
    assert len(used) == 11
    assert used <= named
    assert events.ENDS_BADLY <= named
