"""A folder that grows: what is complete is scored once per fingerprint; whatever breaks is said and tried again."""

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from demerit.data.episode import Episode, Event, Outcome
from demerit.data.formats import open_dataset
from demerit.data.parts import PartWriter
from demerit.data.reward import Verdict
from demerit.data.store import Store
from demerit.decide.detector import Detector, Schedule
from demerit.errors import BadInput
from demerit.models import RewardModel, load_model
from demerit.models.reward_store import RewardStore
from demerit.use.watch.watcher import WatchedEpisode, Watcher
from fakes.command import COMMAND
from fakes.lerobot_fixture import write_v21
from fakes.processes import running
from fakes.tiny_video import put_video, tiny_bytes

START = 1_700_000_000.0
MakeWatcher = Callable[..., Watcher]


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def put(path: Path, content: bytes | None = None, age: float = 1000.0) -> Path:
    """Write a video (or other bytes) that was changed `age` seconds before the start."""
    put_video(path)
    if content is not None:
        path.write_bytes(content)
    os.utime(path, (START - age, START - age))
    return path


def make_watcher(folder: Path, clock: Clock | None = None, model: RewardModel | None = None, **options: Any) -> Watcher:
    return Watcher(str(folder), model or load_model("clock"), open_dataset, now=clock or Clock(), **options)


def rows_on_disk(watcher: Watcher) -> int:
    assert watcher.folder is not None
    return len(RewardStore(watcher.folder))


def look_through(watcher: Watcher) -> None:
    while watcher.look():
        pass


def test_what_is_there_is_scored_once_also_after_a_restart(tmp_path: Path) -> None:
    for name in range(20):
        put(tmp_path / "runs" / f"{name}.mp4")
    scored = list[WatchedEpisode]()
    watcher = make_watcher(tmp_path / "runs", on_scored=scored.append)
    assert [watcher.look() for _ in range(4)] == [12, 4, 0, 0]
    assert len({row.id for row in scored}) == len(scored) == rows_on_disk(watcher) == 20
    assert {row.value for row in watcher.state.rows} == {1.0}
    again = make_watcher(tmp_path / "runs", on_scored=scored.append)
    put(tmp_path / "runs" / "new.mp4")
    look_through(again)
    assert [row.id for row in scored[20:]] == ["new"]
    assert len(again.state.rows) == rows_on_disk(again) == 21


def test_the_newest_are_scored_first(tmp_path: Path) -> None:
    for age in range(10):
        put(tmp_path / "runs" / f"{age}.mp4", age=100.0 + age)
    scored = list[WatchedEpisode]()
    make_watcher(tmp_path / "runs", on_scored=scored.append).look()
    assert {row.id for row in scored} == set("01234567")


def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    clock, whole = Clock(), tiny_bytes()
    path = put(tmp_path / "runs" / "a.mp4", whole[: len(whole) // 2], age=0.0)
    watcher = make_watcher(tmp_path / "runs", clock)
    watcher.look()
    assert watcher.state.waiting == (("a", "still being written"),)
    clock.now += 2  # the robot pauses: the file is stable but does not open
    watcher.look()
    ((id, reason),) = watcher.state.waiting
    assert id == "a" and reason.startswith("does not open yet: ") and watcher.state.rows == ()
    put(path, whole, age=-2.0)
    watcher.look()
    assert watcher.state.waiting == (("a", "still being written"),)
    clock.now += 1
    watcher.look()
    assert (watcher.state.waiting, [row.value for row in watcher.state.rows]) == ((), [1.0])
    assert rows_on_disk(watcher) == 1


def test_a_second_camera_is_waited_for(tmp_path: Path) -> None:
    clock, scored = Clock(), list[WatchedEpisode]()
    watcher = make_watcher(tmp_path, clock, on_scored=scored.append)
    for trial in ("0", "1"):
        put(tmp_path / f"{trial}_left.mp4", age=START - clock.now)
        watcher.look()
        clock.now += 5
        watcher.look()
        ((_, reason),) = watcher.state.waiting
        assert reason == "another camera may come"
        put(tmp_path / f"{trial}_right.mp4", age=START - clock.now)
        watcher.look()
        assert watcher.state.waiting == ((trial, "still being written"),)
        clock.now += 2
        watcher.look()
    assert [row.id for row in scored] == [row.id for row in watcher.state.rows] == ["0", "1"]
    put(tmp_path / "2_left.mp4", age=START - clock.now)  # its second camera never comes
    watcher.look()
    clock.now += 31
    watcher.look()
    assert [row.id for row in watcher.state.rows] == ["0", "1", "2"] and rows_on_disk(watcher) == 3


def test_one_camera_is_not_waited_for_again_and_again(tmp_path: Path) -> None:
    clock = Clock()
    watcher = make_watcher(tmp_path, clock)
    put(tmp_path / "0_left.mp4")  # complete long ago
    watcher.look()
    put(tmp_path / "1_left.mp4", age=0)
    watcher.look()
    clock.now += 2
    watcher.look()
    assert [row.id for row in watcher.state.rows] == ["0_left", "1_left"]


def test_a_video_that_cannot_be_read_is_listed_and_tried_again_when_it_changes(tmp_path: Path) -> None:
    put(tmp_path / "runs" / "good.mp4")
    path = put(tmp_path / "runs" / "bad.mp4", b"this is no video")
    watcher = make_watcher(tmp_path / "runs")
    watcher.look()
    rows = {row.id: row for row in watcher.state.rows}
    assert rows["good"].unscored == "" and "bad.mp4" in rows["bad"].unscored and rows["bad"].value is None
    watcher.look()
    assert rows_on_disk(watcher) == 2  # not tried again
    put(path)
    watcher.look()
    assert {row.id: row.value for row in watcher.state.rows} == {"good": 1.0, "bad": 1.0}
    assert rows_on_disk(watcher) == 3


def test_a_recording_that_is_replaced_is_scored_again_and_one_that_is_touched_is_not(tmp_path: Path) -> None:
    path = put(tmp_path / "runs" / "a.mp4")
    watcher = make_watcher(tmp_path / "runs")
    watcher.look()
    put(path, age=500.0)
    watcher.look()
    assert (rows_on_disk(watcher), watcher.state.scored) == (1, 1)
    put(path, tiny_bytes() + b"\0", age=400.0)
    watcher.look()
    assert (rows_on_disk(watcher), watcher.state.scored, len(watcher.state.rows)) == (2, 2, 1)


def test_another_model_scores_again(tmp_path: Path) -> None:
    put(tmp_path / "runs" / "a.mp4")
    make_watcher(tmp_path / "runs", out=tmp_path / "out").look()

    class NewClock:
        card = replace(load_model("clock").card, revision="2")
        score = load_model("clock").score

    watcher = make_watcher(tmp_path / "runs", model=NewClock(), out=tmp_path / "out")
    watcher.look()
    assert (rows_on_disk(watcher), watcher.state.scored) == (2, 1)


def test_a_folder_that_vanishes_is_waited_for(tmp_path: Path) -> None:
    put(tmp_path / "runs" / "a.mp4")
    watcher = make_watcher(tmp_path / "runs")
    watcher.look()
    shutil.move(tmp_path / "runs", tmp_path / "away")
    watcher.look()
    assert "runs" in watcher.state.problem and watcher.state.failures == 1
    assert [row.id for row in watcher.state.rows] == ["a"]  # what is known stays
    shutil.move(tmp_path / "away", tmp_path / "runs")
    put(tmp_path / "runs" / "b.mp4")
    watcher.look()
    assert watcher.state.problem == "" and {row.id for row in watcher.state.rows} == {"a", "b"}
    assert watcher.state.scored == 2


def test_an_empty_folder_is_waited_for_and_a_missing_one_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    watcher = make_watcher(tmp_path / "runs")
    assert watcher.look() == 0 and watcher.state.problem == ""
    put(tmp_path / "runs" / "a.mp4")
    watcher.look()
    assert [row.id for row in watcher.state.rows] == ["a"]
    with pytest.raises(BadInput):
        make_watcher(tmp_path / "absent")


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "runs" / "a.mp4")
    watcher, commit = make_watcher(tmp_path / "runs"), PartWriter.commit

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    monkeypatch.setattr(PartWriter, "commit", fail)
    watcher.look()
    assert os.strerror(errno.ENOSPC) in watcher.state.problem
    assert (watcher.state.rows, watcher.state.scored) == ((), 0)
    monkeypatch.setattr(PartWriter, "commit", commit)
    watcher.look()
    assert (watcher.state.problem, watcher.state.scored, rows_on_disk(watcher)) == ("", 1, 1)


def test_a_full_disk_names_the_folder_of_the_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "runs" / "a.mp4")
    watcher = make_watcher(tmp_path / "runs", out=tmp_path / "small")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PartWriter, "commit", fail)
    watcher.look()
    assert watcher.state.problem.startswith(str(tmp_path / "small"))


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    put(tmp_path / "runs" / "a.mp4")
    (tmp_path / "file").write_text("in the way")
    watcher = make_watcher(tmp_path / "runs", out=tmp_path / "file")
    watcher.look()
    assert "--rewards" in watcher.state.problem and watcher.state.rows == ()


def test_a_lerobot_dataset_grows(tmp_path: Path) -> None:
    write_v21(tmp_path / "set", [6, 6])
    watcher = make_watcher(tmp_path / "set", settle=0.0)
    look_through(watcher)
    assert len(watcher.state.rows) == 2
    shutil.rmtree(tmp_path / "set" / "meta")
    write_v21(tmp_path / "set", [6, 6, 6])
    look_through(watcher)
    assert len(watcher.state.rows) == 3 and watcher.state.scored == 3
    (tmp_path / "set" / "meta" / "info.json").write_text("{")  # half written
    watcher.look()
    assert "info.json" in watcher.state.problem and len(watcher.state.rows) == 3


def test_a_demerit_folder_grows_and_its_own_rewards_are_no_change(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "set", "set")
    opened = list[str]()

    def open_counted(address: str) -> Any:
        opened.append(address)
        return open_dataset(address)

    def add(name: str) -> None:
        put(tmp_path / f"{name}.mp4")
        dropped = Outcome("human", success=False, events=(Event("dropped", 1, 2),))
        with store.writer() as writer:
            writer.add(replace(Episode.from_video(tmp_path / f"{name}.mp4", "lift", id=name), outcomes=(dropped,)))

    add("a")
    watcher = Watcher(str(tmp_path / "set"), load_model("clock"), open_counted, now=Clock())
    for _ in range(3):
        watcher.look()
    assert len(opened) == 1
    add("b")
    watcher.look()
    assert [(row.id, row.kind) for row in watcher.state.rows] == [("a", "dropped"), ("b", "dropped")]
    assert rows_on_disk(watcher) == 2 and (tmp_path / "set" / "rewards").is_dir()


def make_detector(behind: float) -> Detector:
    """A detector that expects the level 0 at first, 0.9 from frame 2 on, and minds being so far behind."""
    card = load_model("clock").card
    schedule = Schedule(usual=(0.0, 0.0, 0.9), end=0.9, threshold=behind, successes=20)
    return Detector("clock", card.hash(), 0.0, 1.0, True, 0.05, None, {"": schedule})


def test_a_detector_finds_failures_and_never_says_success(tmp_path: Path) -> None:
    put(tmp_path / "runs" / "a.mp4")

    def judge(**options: Any) -> WatchedEpisode:
        watcher = make_watcher(tmp_path / "runs", **options)
        watcher.look()
        return watcher.state.rows[0]

    assert judge().verdict == Verdict(None, "no threshold")  # a clock says nothing about success
    row = judge(detector=make_detector(0.1))  # the clock is at 0.75 in frame 2
    assert (row.verdict, row.frame) == (Verdict(False), 2)
    row = judge(detector=make_detector(0.5))
    assert (row.verdict, row.frame) == (Verdict(None, "no alarm"), None)


@pytest.mark.slow
def test_kill_minus_nine_loses_and_doubles_nothing(tmp_path: Path) -> None:
    runs, printed = tmp_path / "runs", set[str]()
    for name in range(60):
        put(runs / f"{name}.mp4")
    words = ["watch", str(runs), "--model", "change", "--json", "--port", "0", "--instruction", "push"]
    for lines in (1, 5, 9, 17):
        with running([*COMMAND, *words]) as run:
            assert run.stdout is not None
            for _ in range(lines):
                printed.add(run.stdout.readline())
            run.send_signal(signal.SIGKILL)
            printed.update(line for line in run.stdout.readlines() if line.endswith("\n"))
    watcher = Watcher(str(runs), load_model("change"), partial(open_dataset, instruction="push"))
    watcher.look()
    stored = {row.id for row in watcher.state.rows}
    assert len(printed) >= 32 and {json.loads(line)["id"] for line in printed} <= stored
    look_through(watcher)
    assert len(watcher.state.rows) == rows_on_disk(watcher) == 60
