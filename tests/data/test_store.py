"""The folder on disk: what was stored is read back, one writer at a time, nothing is overwritten."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demerit.data import parts as parts_module
from demerit.data.dataset import Problem
from demerit.data.episode import Edit, Episode, Event, Origin, Outcome, Preference
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.data.store import EPISODES, Store, episode_row, row_episode
from demerit.data.summary import summarize
from demerit.errors import BadEpisode, BadInput, DemeritError, StoreBusy, StoreError, UnknownName
from demerit.models.protocol import example_card
from demerit.models.reward_store import RewardStore


def rich_episode(id: str, frames: Frames) -> Episode:
    curve = np.linspace(0, 1, len(frames), dtype=np.float32)
    curve[2] = np.nan
    return Episode(
        id=id,
        instruction="put “ü” on 桌子",
        views={"top": frames, "wrist": frames.select([3, 2, 2])},
        outcomes=(
            Outcome("human", False, 0.25, grade=2, events=(Event("dropped", 3, 5, "slipped"),), by="ann"),
            Outcome("model", curve=curve, by="robometer"),
        ),
        origin=Origin("set", "v1", "MIT", "franka", "lab", "train", "session 1", "parent", {"policy": "pi0", "x": ""}),
        signals={"state": np.arange(24, dtype=np.float32).reshape(12, 2), "done": np.zeros(12, bool)},
        edits=(Edit("clip", {"to": 0.5, "why": ["a"]}, 7), Edit("freeze")),
    )


def assert_same(a: Episode, b: Episode) -> None:
    assert (a.id, a.instruction, a.outcomes, a.origin, a.edits) == (b.id, b.instruction, b.outcomes, b.origin, b.edits)
    assert list(a.views) == list(b.views)
    assert dict(a.signals).keys() == dict(b.signals).keys()
    for name, values in a.signals.items():
        np.testing.assert_array_equal(values, b.signals[name])
        assert values.dtype == b.signals[name].dtype
    assert a.fingerprint() == b.fingerprint()


def test_round_trip(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    frames = make_episode("v").main
    plain = Episode("plain", "", {"main": frames})
    rich = rich_episode("rich", frames)
    tie = Preference("plain", "rich", "tie", "human", "alike", "bob")
    problem = Problem("odd", "plain", "it is", True, 3)
    with Store.create(tmp_path / "set", "set", "MIT").writer() as writer:
        for record in (plain, rich, tie, problem):
            writer.add(record)
    store = Store(tmp_path / "set")
    assert (store.name, len(store)) == ("set", 2)
    back = list(store.episodes())
    assert_same(back[0], plain)
    assert_same(back[1], rich)
    np.testing.assert_array_equal(back[1].views["wrist"].all(), frames.take([3, 2, 2]))
    assert list(store.preferences()) == [tie]
    assert list(store.problems()) == [problem]


def test_filters(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    frames = make_episode("v").main
    labels = [(), (Outcome("human", success=True),), (Outcome("human", success=False),)]
    with Store.create(tmp_path / "set", "set").writer() as writer:
        for i in range(12):
            writer.add(Episode(f"e{i}", f"task {i}", {"main": frames}, labels[i % 3], Origin(dataset="ab"[i % 2])))
    store = Store(tmp_path / "set")
    wanted = {"success": False, "dataset": "a"}
    assert store.ids(wanted) == [e.id for e in store.episodes(wanted)] == ["e2", "e8"]
    assert store.ids({"vouched_by": None}) == ["e0", "e3", "e6", "e9"]
    assert store.episode("e7").instruction == "task 7"
    with pytest.raises(BadEpisode, match="e99"):
        store.episode("e99")
    with pytest.raises(UnknownName, match="success"):
        store.ids({"sucess": True})


def test_appending_leaves_full_parts_alone(
    tmp_path: Path, make_episode: Callable[..., Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_module, "FULL_PART_ROWS", 10)
    monkeypatch.setattr(parts_module, "MOST_SMALL_PARTS", 3)
    frames = make_episode("v").main
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        for i in range(12):
            writer.add(Episode(f"e{i}", "x", {"main": frames}))
    full = {
        part.file: (tmp_path / "set" / part.file).stat().st_mtime_ns
        for part in Store(store.root).manifest.tables["episodes"]
    }
    for start in range(12, 25):
        with store.writer() as writer:
            writer.add(Episode(f"e{start}", "x", {"main": frames}))
    after = Store(store.root)
    assert {part.file for part in after.manifest.tables["episodes"]} >= set(full)
    assert all((store.root / file).stat().st_mtime_ns == when for file, when in full.items())
    assert after.ids() == [f"e{i}" for i in range(25)]
    assert len(after.manifest.tables["episodes"]) < 10
    on_disk = {f"episodes/{path.name}" for path in (store.root / "episodes").iterdir()}
    assert on_disk == {part.file for part in after.manifest.tables["episodes"]}


def test_episodes_that_cannot_be_added(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    with Store.create(tmp_path / "set", "set").writer() as writer:
        writer.add(make_episode("one"))
        with pytest.raises(BadEpisode, match="one"):
            writer.add(make_episode("one"))
    with Store(tmp_path / "set").writer() as writer:
        with pytest.raises(BadEpisode, match="one"):
            writer.add(make_episode("one"))
        with pytest.raises(BadInput, match="images in memory"):
            writer.add(Episode.from_array(np.zeros((2, 4, 4, 3), np.uint8)))


def test_a_second_writer_sees_who_is_writing(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        writer.add(make_episode("one"))
        with pytest.raises(StoreBusy, match=r"process \d+"), store.writer():
            pass
        script = f"from demerit.data.store import Store\nwith Store({str(store.root)!r}).writer(): pass"
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "StoreBusy" in other.stderr
    assert Store(store.root).ids() == ["one"]


def test_readers_see_whole_commits_and_an_error_commits(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    store = Store.create(tmp_path / "set", "set")
    with pytest.raises(KeyboardInterrupt), store.writer() as writer:
        writer.add(make_episode("one"))
        assert Store(store.root).ids() == []
        writer.commit()
        assert Store(store.root).ids() == ["one"]
        writer.add(make_episode("two"))
        raise KeyboardInterrupt
    assert Store(store.root).ids() == ["one", "two"]


def test_other_folders_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    Store.create(tmp_path / "set", "set")
    for folder in ("mine", "set"):
        with pytest.raises(StoreError):
            Store.create(tmp_path / folder, "set")
    with pytest.raises(StoreError, match=r"dataset\.json"):
        Store(tmp_path / "mine")


def manifest(tables: object, header: object = {"name": "set"}) -> str:
    return json.dumps({"format": "demerit-dataset", "version": 1, "header": header, "tables": tables})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "demerit-dataset", "version": 2}', "upgrade"),
        ('{"format": "other", "version": 1}', "not a"),
        ("[]", "not a"),
        ("{", "read"),
        ("[" * 100_000, "read"),
        (manifest(None), "damaged"),
        (manifest({"episodes": 3}), "damaged"),
        (manifest({"episodes": [{"file": "episodes/part-000000.parquet", "rows": "many"}]}), "damaged"),
        (manifest({"episodes": [{"rows": 1}]}), "damaged"),
        (manifest({"episodes": [{"file": "episodes/part-000000.parquet", "rows": 10**30}]}), "damaged"),
        (manifest({"episodes": [{"file": "episodes/part-000000.parquet", "rows": -1}]}), "damaged"),
        (manifest({}, header={}), "name"),
    ],
)
def test_bad_manifests(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(StoreError, match=message):
        Store(tmp_path)


@pytest.mark.parametrize("leave", ["parent", "absolute", "link", "table"])
def test_a_manifest_names_only_parts_in_its_folder(
    tmp_path: Path, make_episode: Callable[..., Episode], leave: str
) -> None:
    for name in ("mine", "downloaded"):
        with Store.create(tmp_path / name, name).writer() as writer:
            writer.add(make_episode("one"))
    root, part = tmp_path / "downloaded", tmp_path / "mine/episodes/part-000000.parquet"
    file = {"parent": "../mine/episodes/part-000000.parquet", "absolute": str(part)}
    file |= {"link": "episodes/part-000000.parquet", "table": "../mine/part-000000.parquet"}
    if leave == "link":
        (root / file["link"]).unlink()
        (root / file["link"]).symlink_to(part)
    facts = json.loads((root / "dataset.json").read_text())
    facts["tables"] = {"../mine" if leave == "table" else "episodes": [{"file": file[leave], "rows": 1}]}
    (root / "dataset.json").write_text(json.dumps(facts))
    with pytest.raises(StoreError) as refused:
        Store(root)
    assert refused.value.path == str(root / "dataset.json")
    assert file[leave] in refused.value.reason


def change_row(root: Path, view: dict[str, Any] | None = None, **cells: Any) -> None:
    path = next((root / "episodes").iterdir())
    rows = pq.read_table(path).to_pylist()
    rows[0] |= cells
    rows[0]["views"][0] |= view or {}
    pq.write_table(pa.Table.from_pylist(rows, EPISODES), path)


FIELDS = ("[" * 100_000, '{"width": 3}', '{"length": 4000000000000}', '{"length": "x"}', '{"start": NaN, "stop": 1}')


@pytest.mark.parametrize(
    "view",
    [{"path": "../clip.mp4"}, {"indices": [-1]}, {"path": "a\0b"}, {"path": "/dev/zero"}, {"path": "/"}]
    + [{"fields": text} for text in FIELDS]
    + [{"indices": [2**31 - 1]}],
)
def test_damaged_frames_are_one_sentence(
    tmp_path: Path, make_episode: Callable[..., Episode], view: dict[str, Any]
) -> None:
    with Store.create(tmp_path / "set", "set").writer() as writer:
        writer.add(make_episode("one"))
    change_row(tmp_path / "set", view)
    with pytest.raises(DemeritError):
        for episode in Store(tmp_path / "set").episodes():
            episode.fingerprint()
            episode.main.times()


def test_damaged_cells_are_one_sentence(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    root = tmp_path / "set"
    with Store.create(root, "set").writer() as writer:
        writer.add(make_episode("one"))
    for dtype, shape in (("<f8", [10**6, 10**3]), ("O", [1]), ("nonsense", [1])):
        change_row(root, signals=[{"name": "a", "dtype": dtype, "shape": shape, "data": b"12345678"}])
        with pytest.raises(StoreError):
            next(Store(root).episodes()).signals["a"]
    for cells in ({"frames": None}, {"instruction": None}):
        change_row(root, **cells)
        with pytest.raises(StoreError):
            summarize(open_dataset(root))
    with pytest.raises(BadEpisode):
        next(Store(root).episodes())
    pq.write_table(pa.table({"a": [1]}), next((root / "episodes").iterdir()))
    with pytest.raises(StoreError):
        summarize(open_dataset(root))


def test_a_row_cannot_replace_the_path_of_its_frames(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    row = episode_row(make_episode("one"), tmp_path)
    row["views"][0]["fields"] = json.dumps({"path": "http://localhost:1/a.mp4"})
    assert row_episode(row, tmp_path, {}).main.source.describe()["path"] == str(make_episode("one").main.source.path)


def test_a_damaged_part(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    with Store.create(tmp_path / "set", "set").writer() as writer:
        writer.add(make_episode("one"))
    part = next((tmp_path / "set" / "episodes").iterdir())
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(StoreError, match="damaged"):
        list(Store(tmp_path / "set").episodes())
    part.unlink()
    with pytest.raises(StoreError, match="it is gone"):
        list(Store(tmp_path / "set").episodes())


def test_videos_inside_the_folder_move_with_it(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    store = Store.create(tmp_path / "set", "set")
    (store.root / "videos").mkdir()
    inside = make_video("clip.mp4").rename(store.root / "videos" / "clip.mp4")
    with store.writer() as writer:
        writer.add(Episode.from_video(inside, "x"))
    moved = store.root.rename(tmp_path / "elsewhere")
    assert next(Store(moved).episodes()).main.all().shape == (12, 32, 48, 3)


def test_rewards_keep_every_field_and_later_ones_replace_earlier_ones(tmp_path: Path) -> None:
    card = example_card()
    store = RewardStore.open_or_create(tmp_path / "r", card, {"dataset": "d"})
    first, second = Reward("example", "a", np.array([0]), np.array([0.5])), Reward.unscored("example", "b", "too dark")
    third = Reward("example", "a", np.array([0, 2]), [0.5, np.nan], [0.1, 0.2], "blurred", {"camera": "ü"})  # type: ignore[arg-type]
    with store.writer(card) as writer:
        writer.commit([(first, "f1"), (second, "f2")])
        writer.commit([(third, "f3")])
    again = RewardStore(tmp_path / "r")
    assert again.card == card
    missing, back = list(again)
    assert (missing.why_missing, missing.scored) == ("too dark", False)
    for name in ("at", "value", "success"):
        np.testing.assert_array_equal(getattr(back, name), getattr(third, name))
    assert (back.why_missing, back.given, back.model) == ("blurred", {"camera": "ü"}, "example")
    assert again.on_record()["a"].fingerprint == "f3"
    assert not again.on_record()["b"].is_scored


def test_problems_with_broken_names_are_kept(tmp_path: Path) -> None:
    with Store.create(tmp_path / "set", "set").writer() as writer:
        writer.add(Problem("missing video", "\udc80", "there is no \ud800", kept=True))
    found = next(Store(tmp_path / "set").problems())
    assert (found.episode, found.detail) == ("\\udc80", "there is no \\ud800")


def test_a_writer_removes_only_files_that_demerit_writes(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    store = Store.create(tmp_path / "set", "set")
    ours = ["episodes/part-000007.parquet", "given/part-000000.parquet", "episodes/.part-000008.parquet.123.part"]
    theirs = ["mine/part-000000.parquet", "episodes/part-old.parquet", "episodes/part-1.parquet", "mine/.draft.part"]
    for name in (*ours, *theirs):
        (store.root / name).parent.mkdir(exist_ok=True)
        (store.root / name).write_bytes(b"")
    with store.writer() as writer:
        writer.add(make_episode("a"))
    assert [name for name in (*ours, *theirs) if (store.root / name).exists()] == theirs
    assert Store(store.root).ids() == ["a"]


def test_a_folder_that_gets_labels_between_opening_and_reading_is_read_with_them(
    tmp_path: Path, make_episode: Callable[..., Episode]
) -> None:
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        writer.add(make_episode("one"))
    opened = Store(tmp_path / "set")
    for grade in (1, 2):
        with Store(tmp_path / "set").writer() as writer:
            writer.relabel({"one": [Outcome("human", grade=grade)]})
    assert [episode.outcomes[0].grade for episode in opened.episodes()] == [2]
