"""Importing: every problem is counted, and nothing is dropped silently."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from demerit.data.dataset import Dataset, ListReader, Problem, Record
from demerit.data.episode import Episode, Event, Origin, Outcome, Preference
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.importing import ImportProgress, import_dataset
from demerit.data.store import Store
from demerit.data.video import VideoClip
from demerit.errors import BadEpisode, StoreError
from demerit.models import load_model
from demerit.models.score import ScoreJob, score
from fakes.command import demerit_here, error_sentence
from fakes.lerobot_fixture import write_v21
from fakes.tiny_video import problem_facts, put_video, write_lines, write_video


def imported(tmp_path: Path, *records: Record, copy: bool = False) -> tuple[ImportProgress, Store]:
    progress = import_dataset(Dataset(ListReader("given", list(records)), "given:x"), tmp_path / "set", copy=copy)
    return progress, Store(tmp_path / "set")


def kinds(progress: ImportProgress) -> dict[str, tuple[int, bool]]:
    return {row["problem"]: (row["episodes"], row["kept"]) for row in progress.problems.rows()}


def test_a_good_dataset(sample: Path, tmp_path: Path) -> None:
    progress = import_dataset(open_dataset(f"videos:{sample}"), tmp_path / "set")
    store = Store(tmp_path / "set")
    assert (progress.added, progress.durable, len(progress.problems), len(store)) == (15, 15, 0, 15)
    for before, after in zip(open_dataset(f"videos:{sample}"), store.episodes(), strict=True):
        assert before.fingerprint() == after.fingerprint()
        assert before.outcomes == after.outcomes
    again = import_dataset(open_dataset(f"videos:{sample}"), tmp_path / "set")
    assert (again.added, again.kept, len(Store(tmp_path / "set"))) == (0, 15, 15)


def label(success: bool | None = None, by: str = "", **more: Any) -> Outcome:
    return Outcome("human", success=success, by=by, **more)


def relabelled(episode: Episode, *outcomes: Outcome, **more: Any) -> Episode:
    return replace(episode, outcomes=outcomes, **more)


def test_labels_follow_the_source(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    new, changed, gone, same = (make_episode(name) for name in ("new", "changed", "gone", "same"))
    curve = np.linspace(0, 1, len(new))
    before = [new, relabelled(changed, label(False)), relabelled(gone, label(True)), relabelled(same, label(True))]
    after = [relabelled(new, label(True, curve=curve)), relabelled(changed, label(True)), gone, before[3]]
    imported(tmp_path, *before)
    rewards = score(ScoreJob(load_model("clock"), Dataset(Store(tmp_path / "set")), tmp_path / "rewards", workers=0))
    files = {path: path.read_bytes() for path in (tmp_path / "set").rglob("*") if path.is_file()}
    counts = {"labels added": 1, "labels changed": 1, "labels removed": 1}
    dry = import_dataset(Dataset(ListReader("given", after), "given:x"), tmp_path / "set", dry_run=True)
    assert (dry.added, dry.unchanged, dict(dry.changes), len(dry.examples)) == (0, 1, counts, 3)
    assert {path: path.read_bytes() for path in (tmp_path / "set").rglob("*") if path.is_file()} == files
    progress, store = imported(tmp_path, *after)
    assert (progress.added, progress.unchanged, dict(progress.changes)) == (0, 1, counts)
    assert [episode.outcomes for episode in store.episodes()] == [episode.outcomes for episode in after]
    assert store.ids({"success": True}) == ["new", "changed", "same"]  # the columns to filter by follow
    assert store.columns(["has_curve"])["has_curve"].to_pylist() == [True, False, False, False]
    kept = [json.loads(line) for line in (tmp_path / "set" / "replaced_labels.jsonl").read_text().splitlines()]
    assert [(row["episode"], row["success"]) for row in kept] == [("changed", False), ("gone", True)]
    again = score(ScoreJob(load_model("clock"), Dataset(store), tmp_path / "rewards", workers=0))
    assert (rewards.scored, again.scored, again.kept) == (4, 0, 4)  # a reward does not depend on labels
    progress, _ = imported(tmp_path, *after)
    assert (progress.unchanged, progress.changes.total()) == (4, 0)


def test_a_dry_run_creates_nothing(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    records = Dataset(ListReader("given", [make_episode("a")]), "given:x")
    progress = import_dataset(records, tmp_path / "set", copy=True, dry_run=True)
    assert (progress.added, (tmp_path / "set").exists()) == (1, False)


def test_labels_given_in_the_folder_stay(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    a, b = make_episode("a"), make_episode("b")
    _, store = imported(tmp_path, relabelled(a, label(True), label(True, "Ada")), b)
    mine = label(False, "Ada", note="it slipped")
    with store.writer() as writer:
        writer.relabel({"a": (label(True), mine), "b": (mine,)})
    # the source changes what it brought, contradicts what was given, and drops a label
    progress, store = imported(tmp_path, relabelled(a, label(True, "Ada"), label(None, "Bob", grade=2)), b)
    assert store.episode("a").outcomes == (mine, label(None, "Bob", grade=2))
    assert store.episode("b").outcomes == (mine,)
    assert dict(progress.changes) == {"labels changed": 1}
    with store.writer() as writer, pytest.raises(BadEpisode):
        writer.relabel({"c": (mine,)})


def test_instructions_and_splits_follow_the_source(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    episode = Episode("a", "push", {"main": Frames(VideoClip(str(make_video("v.mp4"))))}, (label(True),))
    import_dataset(Dataset(ListReader("given", [episode]), "given:x"), tmp_path / "set", licence="CC0")
    new = replace(episode, instruction="pull", origin=Origin(split="test", tags={"policy": "p"}))
    progress, store = imported(tmp_path, new)
    assert (progress.unchanged, dict(progress.changes)) == (0, {"descriptions changed": 1})
    assert store.columns(["fingerprint"])["fingerprint"].to_pylist() == [new.fingerprint()]
    assert store.episode("a").instruction == "pull"
    assert store.episode("a").origin == replace(new.origin, licence="CC0")
    assert imported(tmp_path, new)[0].unchanged == 1


def test_preferences_and_problems_follow_the_source(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    a, b = make_episode("a"), make_episode("b")
    before, after = Preference("a", "b", "a", "human", by="Ada"), Preference("a", "b", "b", "human", by="Ada")
    empty = Problem("empty instruction", "a", "it has none", kept=True)
    _, store = imported(tmp_path, empty, a, b, before)
    mine = Preference("b", "a", "tie", "human", by="me")
    with store.writer() as writer:
        writer.add(mine)
    progress, store = imported(tmp_path, a, b, after)
    assert list(store.preferences()) == [after, mine]
    assert list(store.problems()) == []
    assert dict(progress.changes) == {"labels changed": 1}


def test_episodes_that_left_the_source_stay(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    imported(tmp_path, make_episode("a"), make_episode("b"))
    progress, store = imported(tmp_path, make_episode("b"))
    assert (progress.absent, progress.unchanged, store.ids()) == (1, 1, ["a", "b"])


@pytest.mark.parametrize("command", [("import",), ("import", "--copy"), ("release", "--licence", "MIT")])
def test_a_lerobot_source_with_a_link_out_of_it_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    """It may point to a private file, which would become part of the folder."""
    write_v21(tmp_path / "lr", [4, 4])
    video = next((tmp_path / "lr").rglob("episode_000001.mp4"))
    words = (command[0], tmp_path / "lr", tmp_path / "out", *command[1:])
    video.rename(tmp_path / "private.mp4")
    video.symlink_to(tmp_path / "private.mp4")
    assert "link that leaves its folder" in error_sentence(demerit_here(*words))
    assert not (tmp_path / "out").exists()
    video.unlink()
    (tmp_path / "private.mp4").rename(video.with_name("own.mp4"))
    video.symlink_to("own.mp4")  # within the folder
    assert demerit_here(*words).returncode == 0


def change_roboreward(folder: Path, change: bool) -> str:
    put_video(folder / "test" / "a.mp4")
    write_lines(
        folder / "test" / "metadata.jsonl", {"file_name": "a.mp4", "task": "push", "reward": 5 if change else 1}
    )
    return f"roboreward:{folder}"


def change_roboarena(folder: Path, change: bool) -> str:
    session = folder / "evaluation_sessions" / "s1"
    put_video(session / "A_pi0" / "left_shoulder.mp4")
    entry = f"{{policy_name: pi0, binary_success: {int(change)}, partial_success: 0.5}}"
    (session / "metadata.yaml").write_text(f"language_instruction: push\npolicies: {{A: {entry}}}\n")
    return f"roboarena:{folder}"


def change_rbm(folder: Path, change: bool) -> str:
    put_video(folder / "a.mp4")
    quality = "successful" if change else "failure"
    write_lines(folder / "rows.jsonl", {"id": "a", "task": "push", "frames": "a.mp4", "quality_label": quality})
    return f"rbm:{folder}"


def change_lerobot(folder: Path, change: bool) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    write_v21(folder, [5], success=[[False] * 4 + [change]])
    return f"lerobot:{folder}"


def change_hdf5(folder: Path, change: bool) -> str:
    folder.mkdir(exist_ok=True)
    with h5py.File(folder / "lift.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["rewards"], demo["obs/agentview_image"] = [0.0] * 4 + [float(change)], np.zeros((5, 4, 6, 3), np.uint8)
        demo["actions"], demo.attrs["num_samples"] = np.zeros((5, 7)), 5
        file["data"].attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {}})
    return f"hdf5:{folder}"


@pytest.mark.parametrize(
    "change",
    [change_roboreward, change_roboarena, change_rbm, change_lerobot, change_hdf5],
    ids=lambda one: one.__name__,
)
def test_labels_of_every_format_follow(tmp_path: Path, change: Callable[[Path, bool], str]) -> None:
    import_dataset(open_dataset(change(tmp_path / "data", False)), tmp_path / "set")
    progress = import_dataset(open_dataset(change(tmp_path / "data", True)), tmp_path / "set")
    assert (progress.added, progress.changes["labels changed"]) == (0, 1)
    assert Store(tmp_path / "set").columns(["success"])["success"].to_pylist() == [True]


DIE = """
import os, signal, sys
from demerit.data.formats import open_dataset
from demerit.data.importing import import_dataset
replace, left = os.replace, [int(sys.argv[3])]
def count(*arguments):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*arguments)
os.replace = count
import_dataset(open_dataset(sys.argv[1]), sys.argv[2])
"""


def test_a_kill_leaves_the_old_labels_or_the_new_ones(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    videos, names = tmp_path / "videos", ("a", "b", "c")
    for name in names:
        make_video(f"videos/{name}.mp4")

    def write(success: str) -> None:
        (videos / "labels.csv").write_text("file,success,instruction\n" + "".join(f"{n},{success},x\n" for n in names))

    write("perhaps")  # a problem, which the second import forgets
    import_dataset(open_dataset(f"videos:{videos}"), tmp_path / "first")
    write("yes")
    states = []
    for renames in range(20):
        folder = tmp_path / f"set{renames}"
        shutil.copytree(tmp_path / "first", folder)
        command = [sys.executable, "-c", DIE, f"videos:{videos}", str(folder), str(renames)]
        run = subprocess.run(command, check=False)
        store = Store(folder)
        states.append((*store.columns(["success"])["success"].to_pylist(), len(list(store.problems()))))
        assert import_dataset(open_dataset(f"videos:{videos}"), folder).durable == 3
        assert Store(folder).ids({"success": True}) == list(names)
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL
    assert states == [(None, None, None, 3)] * (len(states) - 1) + [(True, True, True, 0)]
    assert len(states) > 1


def test_videos_that_cannot_be_read_in_full(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 32, 48, 3), dtype=np.uint8)
    cut = tmp_path / "cut.mp4"
    write_video(cut, noise, flags="faststart")
    cut.write_bytes(cut.read_bytes()[: int(cut.stat().st_size * 0.7)])
    video = str(make_video("v.mp4", frames=12))
    good, gone = Frames(VideoClip(video, length=15)), Frames(VideoClip(str(tmp_path / "gone.mp4")))
    truncated = Episode.from_video(cut, "x", id="truncated")
    two = Episode("two", "x", {"left": gone, "right": good})
    none = Episode("none", "x", {"left": gone, "right": gone})
    _, store = imported(tmp_path, truncated, two, none)
    assert store.ids() == ["two"]
    assert list(store.episode("two").views) == ["right"]
    assert len(store.episode("two")) == 12  # 15 are declared
    assert problem_facts(store.problems()) == [
        ("unreadable video", "truncated", False),
        ("unreadable video", "two", True),
        ("wrong frame count", "two", True),
        *[("unreadable video", "none", True)] * 2,
        ("no camera left", "none", False),
    ]


def test_labels_that_do_not_fit_their_frames_are_dropped(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    frames = make_episode("v", frames=12).main
    outcomes = (
        Outcome("human", success=True, curve=np.zeros(13)),
        Outcome("rule", events=(Event("dropped", 3, 4), Event("spill", 11, 12))),
    )
    progress, store = imported(tmp_path, Episode("one", "x", {"main": frames}, outcomes))
    human, rule = store.episode("one").outcomes
    assert (human.success, human.curve) == (True, None)
    assert rule.events == (Event("dropped", 3, 4),)
    assert kinds(progress) == {"label does not fit": (2, True)}


def test_preferences_without_their_episodes_and_duplicate_ids(
    tmp_path: Path, make_episode: Callable[..., Episode]
) -> None:
    both, half = Preference("a", "b", "a", "human"), Preference("a", "c", "b", "human")
    progress, store = imported(tmp_path, make_episode("a"), make_episode("b"), make_episode("a", seed=1), both, half)
    assert (store.ids(), list(store.preferences())) == (["a", "b"], [both])
    assert kinds(progress) == {"preference without its episode": (1, False), "id used twice": (1, False)}


def test_strict_imports_and_folders_of_another_import(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    records = [make_episode("a"), Problem("empty instruction", "b", "it has none", True), make_episode("c")]
    with pytest.raises(BadEpisode, match="empty instruction"):
        import_dataset(Dataset(ListReader("given", records), "given:x", strict=True), tmp_path / "set")
    assert Store(tmp_path / "set").ids() == ["a"]
    with pytest.raises(StoreError, match="given:x"):  # the folder belongs to another dataset
        import_dataset(Dataset(ListReader("given", []), "given:y"), tmp_path / "set")


def test_copied_videos(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    path = make_video("in/v.mp4", frames=12)
    first = Episode("first", "x", {"main": Frames(VideoClip(str(path), stop=0.55))})
    second = Episode("second", "x", {"main": Frames(VideoClip(str(path), start=0.55)).select([2, 1])})
    images = np.random.default_rng(0).integers(0, 255, (5, 21, 33, 3), np.uint8)
    array = Episode("array", "x", {"main": Frames.from_array(images)})
    truth = {episode.id: episode.main.all() for episode in (first, second, array)}
    _, store = imported(tmp_path, first, second, array, copy=True)
    assert len(list((store.root / "videos").iterdir())) == 2
    path.unlink()
    for episode in store.episodes():
        np.testing.assert_array_equal(episode.main.all(), truth[episode.id])


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_episode: Callable[..., Episode]) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StoreError, match="No space left"):
        imported(tmp_path, make_episode("a"), copy=True)
    assert Store(tmp_path / "set").ids() == []
