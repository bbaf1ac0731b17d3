"""The folder on disk: what goes in comes out, one writer at a time, nothing overwritten."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from demerit.data import store as parts_module
from demerit.data.dataset import Problem
from demerit.data.episode import Edit, Episode, Origin
from demerit.data.frames import Frames
from demerit.data.labels import Event, Outcome, Preference
from demerit.data.reward import Reward
from demerit.data.store import Store
from demerit.errors import BadEpisode, BadInput, StoreBusy, StoreError, UnknownName
from demerit.models.protocol import example_card
from demerit.models.reward_store import RewardStore
from fakes.paths import TESTS


def rich_episode(id: str, frames: Frames) -> Episode:
    curve = np.linspace(0, 1, len(frames), dtype=np.float32)
    curve[2] = np.nan
    return Episode(
        id=id,
        instruction="put “ü” on 桌子",
        views={"top": frames, "wrist": frames.select([3, 2, 2])},
        outcomes=(
            Outcome(
                "human", success=False, progress=0.25, grade=2, events=(Event("dropped", 3, 5, "slipped"),), by="ann"
            ),
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
    tie, problem = (
        Preference("plain", "rich", "tie", "human", "alike", "bob"),
        Problem("odd", "plain", "it is", True, 3),
    )
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


def test_filters_read_few_columns_and_find_the_right_rows(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    frames = make_episode("v").main
    verdicts = [True, False, None]
    with Store.create(tmp_path / "set", "set").writer() as writer:
        for i in range(30):
            outcomes = () if i % 5 == 0 else (Outcome("human", success=verdicts[i % 3]),)
            writer.add(Episode(f"e{i}", f"task {i % 2}", {"main": frames}, outcomes, Origin(dataset="ab"[i % 2])))
    store = Store(tmp_path / "set")
    expected = [f"e{i}" for i in range(30) if i % 5 and i % 3 == 1 and i % 2 == 0]
    assert store.ids({"success": False, "dataset": "a"}) == expected
    assert [e.id for e in store.episodes({"success": False, "dataset": "a"})] == expected
    assert store.ids({"vouched_by": None}) == [f"e{i}" for i in range(0, 30, 5)]
    assert store.episode("e7").instruction == "task 1"
    with pytest.raises(BadEpisode, match="not in it"):
        store.episode("e99")
    with pytest.raises(UnknownName, match="Did you mean 'success'"):
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
    for start in range(12, 40):
        with store.writer() as writer:
            writer.add(Episode(f"e{start}", "x", {"main": frames}))
    after = Store(store.root)
    assert {part.file for part in after.manifest.tables["episodes"]} >= set(full)
    assert all((store.root / file).stat().st_mtime_ns == when for file, when in full.items())
    assert after.ids() == [f"e{i}" for i in range(40)]
    assert len(after.manifest.tables["episodes"]) < 10
    on_disk = {f"episodes/{path.name}" for path in (store.root / "episodes").iterdir()}
    assert on_disk == {part.file for part in after.manifest.tables["episodes"]}


def test_ids_are_unique(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    with Store.create(tmp_path / "set", "set").writer() as writer:
        writer.add(make_episode("one"))
        with pytest.raises(BadEpisode, match="not in the dataset yet"):
            writer.add(make_episode("one"))
    with Store(tmp_path / "set").writer() as writer, pytest.raises(BadEpisode, match="not in the dataset yet"):
        writer.add(make_episode("one"))


def test_images_in_memory_cannot_be_stored(tmp_path: Path) -> None:
    array = Episode.from_array(np.zeros((2, 4, 4, 3), np.uint8))
    with Store.create(tmp_path / "set", "set").writer() as writer, pytest.raises(BadInput, match="images in memory"):
        writer.add(array)


def test_a_second_writer_sees_who_is_writing(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        writer.add(make_episode("one"))
        with pytest.raises(StoreBusy, match=r"another process is writing to this folder \(process \d+"), store.writer():
            pass
        script = f"from demerit.data.store import Store\nwith Store({str(store.root)!r}).writer(): pass"
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "StoreBusy" in other.stderr
    assert Store(store.root).ids() == ["one"]


def test_readers_see_whole_commits_only(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        writer.add(make_episode("one"))
        assert Store(store.root).ids() == []
        writer.commit()
        assert Store(store.root).ids() == ["one"]


def test_an_error_keeps_added_episodes(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    store = Store.create(tmp_path / "set", "set")
    with pytest.raises(KeyboardInterrupt), store.writer() as writer:
        writer.add(make_episode("one"))
        raise KeyboardInterrupt
    assert Store(store.root).ids() == ["one"]


def test_other_folders_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="nothing is overwritten"):
        Store.create(tmp_path / "mine", "set")
    with pytest.raises(StoreError, match=r"dataset\.json"):
        Store(tmp_path / "mine")
    Store.create(tmp_path / "set", "set")
    with pytest.raises(StoreError, match="already"):
        Store.create(tmp_path / "set", "set")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "demerit-dataset", "version": 2}', "upgrade demerit"),
        ('{"format": "other", "version": 1}', "not a demerit-dataset"),
        ("[]", "not a demerit-dataset"),
        ("{", "cannot be read"),
    ],
)
def test_bad_manifests(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(StoreError, match=message):
        Store(tmp_path)


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


def test_the_format_is_plain_parquet_and_json(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """Golden: what another program would find. A change here is a change of the format's version."""
    with Store.create(tmp_path / "set", "set", "MIT", "videos:/x").writer() as writer:
        writer.add(rich_episode("rich", make_episode("v").main))
    facts = json.loads((tmp_path / "set" / "dataset.json").read_text())
    assert facts == {
        "format": "demerit-dataset",
        "version": 1,
        "header": {"name": "set", "licence": "MIT", "source": "videos:/x"},
        "rows": {"episodes": 1},
        "tables": {"episodes": [{"file": "episodes/part-000000.parquet", "rows": 1}]},
    }
    table = pq.read_table(tmp_path / "set" / "episodes" / "part-000000.parquet")
    golden = TESTS / "assets" / "episodes_schema.txt"
    assert "".join(f"{field.name}: {field.type}\n" for field in table.schema) == golden.read_text()
    row = table.to_pylist()[0]
    assert row["vouched_by"] == "human"
    assert (row["frames"], row["cameras"]) == (12, ["top", "wrist"])
    assert row["views"][1]["indices"] == [3, 2, 2]


def test_videos_inside_the_folder_move_with_it(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    store = Store.create(tmp_path / "set", "set")
    (store.root / "videos").mkdir()
    inside = make_video("clip.mp4").rename(store.root / "videos" / "clip.mp4")
    with store.writer() as writer:
        writer.add(Episode.from_video(inside, "x"))
    moved = store.root.rename(tmp_path / "elsewhere")
    assert next(Store(moved).episodes()).main.all().shape == (12, 32, 48, 3)


def test_later_rewards_replace_earlier_ones(tmp_path: Path) -> None:
    card = example_card()
    store = RewardStore.open_or_create(tmp_path / "r", card, {"dataset": "d"})
    first = Reward("example", "a", [0, 2], [0.5, 0.25], [0.1, 0.2], given={"camera": "top"})  # type: ignore[arg-type]
    missing = Reward.unscored("example", "b", "too dark")
    with store.writer(card) as writer:
        writer.commit([(first, "f1"), (missing, "f2")])
        writer.commit([(Reward("example", "a", [0], [0.75]), "f3")])  # type: ignore[arg-type]
    again = RewardStore(tmp_path / "r")
    assert again.card == card
    b, a = list(again)
    assert (a.value.tolist(), b.why_missing, b.scored) == ([0.75], "too dark", False)
    assert again.on_record()["a"].fingerprint == "f3"
    assert [again.on_record()[id].is_scored for id in "ab"] == [True, False]


def test_rewards_keep_every_field(tmp_path: Path) -> None:
    card = example_card()
    store = RewardStore.open_or_create(tmp_path / "r", card, {})
    reward = Reward("example", "a", [0, 2], [0.5, np.nan], [0.1, 0.2], "blurred", {"camera": "ü"})  # type: ignore[arg-type]
    with store.writer(card) as writer:
        writer.commit([(reward, "f")])
    (back,) = RewardStore(tmp_path / "r")
    for name in ("at", "value", "success"):
        np.testing.assert_array_equal(getattr(back, name), getattr(reward, name))
    assert (back.why_missing, back.given, back.model) == ("blurred", {"camera": "ü"}, "example")
