"""The simulator's predicates, and the simulated judge as author and strict reader of commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode, Origin
from demerit.data.frames import Frames
from demerit.data.labels import Outcome
from demerit.data.video import VideoClip, write_video
from demerit.errors import BadInput
from demerit.llm import Endpoint
from demerit.negatives.relabel import RelabelSettings, relabel
from demerit.negatives.relabel.journal import read_records
from demerit.negatives.sim.splits import HELD_OUT_TASKS
from demerit.negatives.sim.tasks import tasks
from fakes.judge.predicates import Facts, already_true, commands_for, facts_at, grade, task_named
from fakes.judge.relabeller import Slips
from fakes.judge.scenes import SCENES
from fakes.judge.server import ScriptedServer
from fakes.judge.truth import NAME, SimulatedJudge
from fakes.judged_scenes import scene

FRAMES = 16
TASK = "drawer-close"


def episode(number: int, task: str = TASK, hand_end: tuple[float, float, float] = (0.2, 0.6, 0.3)) -> Episode:
    """Make a success whose square goes from left to right; the hand ends where it is told."""
    curve = np.linspace(0, 1, FRAMES, dtype=np.float32)
    images = np.stack([scene(number)] * FRAMES)
    for image, done in zip(images, curve, strict=True):
        left = int(4 + 40 * done)
        image[28:44, left : left + 16] = (250, 20, 20)
    hand = np.linspace((0, 0.6, 0.2), hand_end, FRAMES)
    place = np.linspace((0, 0.5, 0.02), (0, 0.7, 0.02), FRAMES)
    return Episode(
        f"{task}-{number}",
        tasks()[task].instructions[number % 3],
        {"main": Frames.from_array(images, 8.0)},
        outcomes=(Outcome("simulator", success=True, progress=1.0, curve=curve, by="test"),),
        origin=Origin("sim", group=str(number), tags={"task": task}),
        signals={
            "state": np.c_[hand, np.ones(FRAMES)].astype(np.float32),
            "object": np.c_[place, 1 - curve].astype(np.float32),
            "done": (curve == 1).astype(np.uint8),
            "object_force": (curve > 0.2).astype(np.float32),
        },
    )


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("close the drawer", 5),
        ("Push the drawer in and raise the hand high above the table.", 5),
        ("close the drawer and bring the hand back to its start", 4),
        ("close the drawer and lower the hand to the table and leave the hand left of its start", 3),
        ("push the drawer half way in", 3),
        ("shut the open drawer and push the cabinet to the left edge", 3),
        ("push the drawer away from the robot", 5),
        ("push the drawer towards the robot", 1),
        ("push the drawer left", 2),
        ("lift the drawer off the table", 2),
        ("turn the drawer upside down", 2),
        ("leave the drawer open", 1),
        ("tip the cabinet over", 1),
        ("sing a song", None),
        ("close the drawer and sing a song", None),
        ("raise the hand high above the table", None),
    ],
)
def test_grades_by_what_was_measured(command: str, wanted: int | None) -> None:
    assert grade(command, facts_at(episode(0), -1)) == wanted


def test_a_frame_on_the_way_is_graded_by_progress_and_the_start_is_no_goal() -> None:
    one = episode(0)
    found = [grade("close the drawer", facts_at(one, frame)) for frame in range(FRAMES)]
    assert found == [min(4, int(1 + 4 * p + 0.5)) if p < 1 else 5 for p in np.linspace(0, 1, FRAMES)]
    assert already_true("leave the drawer open", one) and not already_true("close the drawer", one)


def test_without_stored_positions_less_can_be_told() -> None:
    one = episode(0)
    older = replace(one, signals={name: value for name, value in one.signals.items() if name != "object"})
    assert grade("push the drawer left", facts_at(older, -1)) is None
    assert grade("turn the drawer upside down", facts_at(older, -1)) == 2
    bare = facts_at(replace(one, signals={}), -1)
    assert grade("close the drawer", bare) == 5 and grade("push the drawer half way in", bare) == 3
    assert grade("close the drawer and bring the hand back to its start", bare) is None
    with pytest.raises(BadInput, match="one that the simulator measured"):
        facts_at(replace(one, signals={}, outcomes=()), 0)


def test_every_scene_has_sentences_that_are_read_and_words_of_its_own() -> None:
    assert set(SCENES) == set(tasks()) - {"reach", "reach-wall"}  # all the benchmark's test tasks among them
    assert set(HELD_OUT_TASKS) <= set(SCENES)
    for task in SCENES:
        known = {name: False for name in (*facts_at(episode(0, task), -1).known,)}
        done = Facts(task, {**known, "done": True, "touched": True}, 1.0)
        for instruction in tasks()[task].instructions:
            assert task_named(instruction.capitalize()) == task
            found = {one: grade(one, done) for one in commands_for(task, instruction)}
            assert None not in found.values() and set(found.values()) >= {1, 2, 3, 4}


def stored(folder: Path, episodes: list[Episode]) -> list[Episode]:
    """Write the pictures as videos, so that views of them can be stored."""
    made = []
    for one in episodes:
        path = folder / f"{one.id}.mp4"
        write_video(path, one.main.all(), 8.0)
        made.append(replace(one, views={"main": Frames(VideoClip(str(path), length=FRAMES))}))
    return made


class Listed:
    name = "listed"

    def __init__(self, episodes: list[Episode]) -> None:
        self.episodes = episodes

    def expected(self) -> int:
        return len(self.episodes)

    def records(self) -> object:
        return iter(self.episodes)


def run(folder: Path, episodes: list[Episode], slips: Slips, rounds: int = 3) -> dict[bool, list[bool]]:
    """Relabel against the simulated judge; say which first and which accepted commands are right."""
    settings = RelabelSettings(rounds=rounds, size=64, clips=())
    judge = SimulatedJudge(episodes, slips=slips)
    with ScriptedServer(judge, models=(NAME,)) as server:
        endpoint = Endpoint(server.url, NAME, key_env="")
        relabel(Dataset(Listed(episodes), "listed"), folder / "made", endpoint=endpoint, settings=settings)
    known = {one.id: one for one in episodes}
    right: dict[bool, list[bool]] = {False: [], True: []}
    for record in read_records(folder / "made"):
        for one in record.candidates:
            if one.stage == "command" and (one.fresh or one.accepted):
                original = known[record.original]
                truth = grade(one.text, facts_at(original, -1))
                is_right = truth == one.grade and not already_true(one.text, original)
                if one.fresh:
                    right[False].append(is_right)
                if one.accepted:
                    right[True].append(is_right)
    return right


def test_a_judge_without_slips_writes_right_commands_at_once(tmp_path: Path) -> None:
    names = ("drawer-close", "window-open", "push", "door-close")
    episodes = stored(tmp_path, [episode(number, task) for number, task in enumerate(names)])
    right = run(tmp_path, episodes, Slips(0, 0, 0, 0))
    assert len(right[True]) == 16 and all(right[True])
    # Only what was true at the start can be wrong: an author who knows the end alone does not see that.
    assert sum(right[False]) >= 14


def test_validation_catches_most_slips(tmp_path: Path) -> None:
    episodes = stored(tmp_path, [episode(number, ("drawer-close", "push")[number % 2]) for number in range(14)])
    right = run(tmp_path, episodes, Slips(misread=0, misplanned=0.4, malformed=0.1, misjudged=0.05))
    before, after = (float(np.mean(right[is_after])) for is_after in (False, True))
    assert before < 0.75 and after > 0.93 and len(right[True]) > 30


def test_a_reader_who_does_not_look_validates_nothing(tmp_path: Path) -> None:
    episodes = stored(tmp_path, [episode(number, ("drawer-close", "push")[number % 2]) for number in range(14)])
    right = run(tmp_path, episodes, Slips(misread=0, misplanned=0.4, malformed=0, misjudged=0, blind=1))
    assert np.mean(right[True]) < 0.85 and len(right[True]) < 40


def test_slips_are_shares() -> None:
    with pytest.raises(BadInput, match="misread"):
        Slips(misread=1.5)
