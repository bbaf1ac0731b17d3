"""Importing: every problem is counted, and nothing is dropped silently."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from demerit.data.dataset import Dataset, ListReader, Problem, Record
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.importing import ImportProgress, import_dataset
from demerit.data.labels import Event, Outcome, Preference
from demerit.data.store import Store
from demerit.data.video import VideoClip
from demerit.errors import BadEpisode, StoreError
from fakes.tiny_video import problem_facts, write_video


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
