import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demerit.data.dataset import Dataset, DatasetReader, Problem
from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.formats.lerobot.metadata import stays_inside
from demerit.data.formats.lerobot.reader import LeRobotReader, ParquetImages
from demerit.data.formats.lerobot.writer import write_lerobot
from demerit.data.frames import Frames, FrameSource, frame_source
from demerit.data.stages import StageSpan
from demerit.data.video import write_video
from demerit.errors import BadInput, StoreError, UnknownName, UnreadableVideo
from fakes.lerobot_fixture import edit_json, make_images, write_jsonl, write_v21
from fakes.paths import SHARED

V21 = SHARED / "lerobot_v21_g1"
V3 = SHARED / "lerobot_v3_so101_meta"
DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"


def read(path: Path, **options: Any) -> tuple[list[Episode], list[Problem]]:
    records = list(LeRobotReader(path, **options).records())
    return [r for r in records if isinstance(r, Episode)], [r for r in records if isinstance(r, Problem)]


def facts(problems: list[Problem]) -> list[tuple[str, bool]]:
    return [(problem.kind, problem.kept) for problem in problems]


def made(id: str, count: int, *, seed: int = 0, fps: float = 10.0, cameras: int = 1, **fields: Any) -> Episode:
    views = {name: Frames.from_array(make_images(count, seed), fps) for name in ("front", "wrist")[:cameras]}
    return Episode(id, fields.pop("instruction", "push"), views, **fields)


# Reading version 2


@pytest.mark.parametrize("version", ["v2.0", "v2.1"])
def test_version_2_episodes(tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_v21(tmp_path / "cubes", [6, 5], cameras=("front", "wrist"), version=version, chunks_size=1)
    reader = LeRobotReader(root)
    assert isinstance(reader, DatasetReader) and (reader.name, reader.expected()) == ("cubes", 2)
    with monkeypatch.context() as patch:
        patch.setattr(av, "open", lambda *_, **__: pytest.fail("a video was opened"))
        episodes, problems = read(root)
    assert problems == []
    assert [e.id for e in episodes] == ["cubes/episode_000000", "cubes/episode_000001"]
    assert [list(e.views) for e in episodes] == [["front", "wrist"]] * 2
    assert [e.instruction for e in episodes] == ["pick up the cube"] * 2
    assert [len(e) for e in episodes] == [6, 5]
    origin = episodes[1].origin
    assert (origin.dataset, origin.revision, origin.embodiment, origin.split) == ("cubes", version, "test_arm", "test")
    assert episodes[0].outcomes == ()  # demonstrations are not assumed to succeed
    np.testing.assert_allclose(episodes[1].main.take([3, 0]), make_images(5, 1)[[3, 0]], atol=6)


def test_signals_load_on_access(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "d", [9, 6])
    episodes, _ = read(root)
    signals = episodes[1].signals
    assert list(signals) == ["state", "action", "next.reward"]
    assert signals["state"].dtype == np.float32
    np.testing.assert_array_equal(signals["state"], np.arange(6)[:, None] + np.arange(3) + 100)
    assert signals["next.reward"].shape == (6,)
    copy = pickle.loads(pickle.dumps(signals))
    shutil.rmtree(root / "data")
    assert signals["state"] is signals["state"]
    with pytest.raises(StoreError, match="state"):
        copy["state"]


@pytest.mark.parametrize(
    ("tasks", "instruction", "problems"),
    [
        (["open the box", "close it"], "open the box; close it", []),
        (None, "in the data", []),
        (["  "], "", [("empty instruction", True)]),
    ],
)
def test_instructions(tmp_path: Path, tasks: list[str] | None, instruction: str, problems: list[Any]) -> None:
    root = write_v21(tmp_path / "d", [3], tasks=[tasks or ["in the data"]])
    if tasks is None:
        write_jsonl(root / "meta/episodes.jsonl", [{"episode_index": 0, "length": 3}])
    (episode,), found = read(root)
    assert (episode.instruction, facts(found)) == (instruction, problems)
    if instruction.startswith("open"):
        assert json.loads(episode.origin.tags["tasks"]) == tasks


def test_images_in_data_files(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "d", [9], cameras=(), image_cameras=("top",))
    (episode,), problems = read(root)
    source = episode.main.source
    assert problems == [] and isinstance(source, FrameSource) and isinstance(source, ParquetImages)
    wanted = [8, 2, 2, 0]
    np.testing.assert_array_equal(episode.main.take(wanted), make_images(9)[wanted])
    np.testing.assert_allclose(episode.main.times(), np.arange(9) / 10)
    again = frame_source("lerobot-images", source.describe())
    assert again == source and again.identity() == source.identity()
    with pytest.raises(UnreadableVideo, match="images"):
        ParquetImages(source.path, source.column, 5, 9, 10.0).take([0, 8])
    table = pq.read_table(source.path)
    broken = pa.array([{"bytes": b"not an image", "path": None}] * 9)
    pq.write_table(table.set_column(table.column_names.index(source.column), source.column, broken), source.path)
    with pytest.raises(UnreadableVideo, match="row 1"):
        read(root)[0][0].main.take([1])


# Outcomes


def by(column: str, success: bool | None = None, **more: Any) -> tuple[Outcome, ...]:
    return (Outcome("rule", success, by=f"{column} column", **more),)


@pytest.mark.parametrize(
    ("success", "extra", "outcomes", "kinds"),
    [
        ([False, False, True], {}, by("next.success", True), []),
        ([False, True, True], {}, by("next.success", True), []),
        ([False, False, False], {}, by("next.success", False), []),
        ([False, True, False], {}, (), ["unclear outcome"]),
        ([None, None, None], {}, (), []),
        ([False, None, False], {}, (), ["unclear outcome"]),
        (None, {"success": True}, by("success", True), []),
        (None, {"success": 0}, by("success", False), []),
        (None, {"success": 1.0, "vouched_by": "human"}, (Outcome("human", success=True),), []),
        (None, {"success": 0.5}, (), ["unclear outcome"]),
        (None, {"success": None}, (), []),
        (None, {"success": float("nan")}, (), []),
        (None, {"success": True, "vouched_by": "Bob"}, by("success", True), ["unknown voucher"]),
        (None, {"progress": 0.25, "grade": 2}, by("progress", progress=0.25, grade=2), []),
        (None, {"progress": 1.5}, (), ["unclear outcome"]),
        (None, {"grade": 7}, (), ["unclear outcome"]),
        (None, {"quality_label": "failure"}, by("quality_label", False), []),
        (None, {"quality_label": "suboptimal"}, (), []),
        (
            [False] * 3,
            {"success": 1, "vouched_by": "human"},
            (Outcome("human", success=True), *by("next.success", False)),
            ["outcomes disagree"],
        ),
    ],
)
def test_outcomes_from_frames_and_episode_columns(
    tmp_path: Path, success: Any, extra: dict[str, Any], outcomes: tuple[Outcome, ...], kinds: list[str]
) -> None:
    (episode,), problems = read(write_v21(tmp_path / "d", [3], success=success and [success], extra=[extra]))
    assert episode.outcomes == outcomes
    assert [p.kind for p in problems] == kinds
    assert episode.origin.tags.get("quality_label") == extra.get("quality_label")


def test_outcome_key(tmp_path: Path) -> None:
    extra = [{"success": False, "worked": True}]
    root = write_v21(tmp_path / "d", [2], success=[[False, False]], extra=extra)
    by_key = {key: read(root, outcome_key=key)[0][0] for key in ("worked", "next.success", "next.reward")}
    assert [(k, e.outcome.success, e.outcome.by) for k, e in by_key.items() if e.outcome] == [
        ("worked", True, "worked column"),
        ("next.success", False, "next.success column"),
        ("next.reward", True, "next.reward column"),
    ]
    assert "next.reward" not in by_key["next.reward"].signals  # the label is not an input
    with pytest.raises(UnknownName, match="worked"):
        LeRobotReader(root, outcome_key="workd")


# Messy folders


def remove(*paths: str) -> Callable[[Path], None]:
    return lambda root: [(root / path).unlink() for path in paths] and None


def rewrite(*rows: Any) -> Callable[[Path], None]:
    first = {"episode_index": 0, "tasks": ["t"], "length": 4}
    return lambda root: write_jsonl(root / "meta/episodes.jsonl", [first, *rows])


def info(**changes: Any) -> Callable[[Path], None]:
    return lambda root: edit_json(root / "meta/info.json", **changes)


FRONT, WRIST = (f"videos/chunk-000/observation.images.{name}/episode_000001.mp4" for name in ("front", "wrist"))
SECOND = "data/chunk-000/episode_000001.parquet"
ROW = {"episode_index": 1, "tasks": ["t"]}
MALFORMED = [("malformed metadata", False), ("episode count differs", True)]
MESSES: dict[str, Any] = {
    "one camera": (remove(WRIST), [("missing video", True)], 2),
    "no camera": (remove(WRIST, FRONT), [("missing video", False)], 1),
    "no data": (remove(SECOND), [("missing data", True)], 2),
    "broken data": (lambda root: (root / SECOND).write_bytes(b"PAR1 broken"), [("unreadable data", True)], 2),
    "broken line": (rewrite('{"episode_index": 1, "tas'), MALFORMED, 1),
    "not an object": (rewrite("[1]"), MALFORMED, 1),
    "length": (rewrite({**ROW, "length": 7}), [("length disagrees", True)], 2),
    "no frames": (rewrite({**ROW, "length": 0}), [("empty episode", False)], 1),
    "count": (rewrite(), [("episode count differs", True)], 1),
    "no tasks file": (remove("meta/tasks.jsonl"), [("missing tasks", True)], 2),
    "split": (info(splits={"train": "all"}), [("unreadable split", True)], 2),
    "outside": (info(video_path="../{video_key}/{episode_index}.mp4"), [("path leaves the dataset", False)] * 2, 0),
}


@pytest.mark.parametrize("mess", MESSES)
def test_version_2_problems(tmp_path: Path, mess: str) -> None:
    spoil, expected, kept = MESSES[mess]
    root = write_v21(tmp_path / "d", [4, 4], cameras=("front", "wrist"))
    spoil(root)
    episodes, problems = read(root)
    assert (facts(problems), len(episodes)) == (expected, kept)
    for episode in episodes:
        assert len(episode) == 4 and episode.main.take([3]).shape == (1, 32, 48, 3)
    if mess in ("no data", "broken data"):
        assert dict(episodes[1].signals) == {}
    assert Dataset(LeRobotReader(root)).expected() == 2


def test_paths_stay_inside() -> None:
    assert stays_inside("a/b") and stays_inside("a/../b")
    assert not any(map(stays_inside, ("../b", "a/../../b", "/b", "..\\b")))


def test_bad_folders(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "d", [2])
    for path, word in [(tmp_path, "did you mean"), (root / "meta", "did you mean"), (tmp_path / "nowhere", "nowhere")]:
        with pytest.raises(BadInput, match=word):
            LeRobotReader(path)
    good = (root / "meta/info.json").read_text()
    for change, word in [
        ({"codebase_version": "v1.6"}, "v1"),
        ({"codebase_version": "v4.0"}, "v4"),
        ({"codebase_version": "v3.x"}, "v3"),
        ({"codebase_version": 3.1}, "3.1"),
        ({"data_path": "{nonsense}"}, "data_path"),
        (None, "JSON"),
    ]:
        (root / "meta/info.json").write_text(json.dumps({**json.loads(good), **change}) if change else "{")
        with pytest.raises(BadInput, match=word):
            LeRobotReader(root)


@pytest.mark.parametrize(
    "field",
    [
        "{episode_index:0999999999d}",
        "{episode_index:0100d}",
        "{episode_index:>9}",
        "{episode_index:{episode_chunk}}",
        "{episode_index.__class__}",
        "{episode_index!r}",
        "{video_key:99}",
        "{file_index}",
        "{}",
        "{",
    ],
)
def test_templates_take_known_fields_only(tmp_path: Path, field: str) -> None:
    root = write_v21(tmp_path / "d", [2])
    template = f"videos/{field}.mp4"
    edit_json(root / "meta/info.json", video_path=template)
    with pytest.raises(BadInput) as refused:
        LeRobotReader(root)
    assert refused.value.what.startswith("video_path") and refused.value.got == repr(template)


def test_a_message_never_holds_a_whole_file(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "d", [2])
    edit_json(root / "meta/info.json", data_path="{" * 999_999)
    with pytest.raises(BadInput) as refused:
        LeRobotReader(root)
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize("key", ["k" * 5000, "nul\0"])
def test_names_that_no_file_can_have(tmp_path: Path, key: str) -> None:
    root = write_v21(tmp_path / "d", [2, 2])
    features = json.loads((root / "meta/info.json").read_text())["features"]
    edit_json(root / "meta/info.json", features={**features, key: {"dtype": "video", "shape": [32, 48, 3]}})
    episodes, problems = read(root)
    assert (len(episodes), facts(problems)) == (2, [("missing video", True)] * 2)


# Writing version 3


def corpus() -> list[Episode]:
    def episode(id: str, count: int, seed: int, outcome: Outcome, origin: Origin, instruction: str = "push") -> Episode:
        signals = {"state": np.arange(count * 3.0).reshape(count, 3), "gripper": np.arange(count)}
        known = {"signals": signals, "outcomes": (outcome,), "origin": origin}
        return made(id, count, seed=seed, cameras=2, instruction=instruction, **known)

    test = Origin(split="test")
    return [
        episode("a", 5, 0, Outcome("human", success=True, grade=5), Origin(embodiment="so101", split="train")),
        episode("b", 7, 3, Outcome("simulator", success=False, progress=0.25), test, "pull"),
        episode("c", 1, 6, Outcome("rule", True), test),
    ]


def test_round_trip(tmp_path: Path) -> None:
    episodes, problems = read(write_lerobot(corpus(), tmp_path / "out"))
    assert problems == []
    for ours, back in zip(corpus(), episodes, strict=True):
        assert (back.instruction, len(back), list(back.views)) == (ours.instruction, len(ours), list(ours.views))
        assert ours.outcome is not None and back.outcome is not None
        for field in ("source", "success", "progress", "grade"):
            assert getattr(back.outcome, field) == getattr(ours.outcome, field)
        assert len(back.outcomes) == 1 and back.origin.split == ours.origin.split
        np.testing.assert_array_equal(back.signals["state"], ours.signals["state"])
        np.testing.assert_array_equal(back.signals["gripper"], ours.signals["gripper"])
        for view in ours.views:
            np.testing.assert_allclose(back.views[view].all(), ours.views[view].all(), atol=5)
    assert episodes[0].origin.embodiment == "so101"


def test_written_files(tmp_path: Path) -> None:
    root = write_lerobot(corpus(), tmp_path / "out", rewards={"a": [0.5] * 5, "b": [np.nan] * 7, "c": [1]})
    info = json.loads((root / "meta/info.json").read_text())
    assert (info["robot_type"], info["total_frames"]) == ("so101", 13)
    assert info["splits"] == {"train": "0:1", "test": "1:3"}
    state = {"dtype": "float32", "shape": [3], "names": ["state_0", "state_1", "state_2"]}
    assert info["features"]["observation.state"] == state
    data = pq.read_table(root / DATA)
    types = {field.name: str(field.type) for field in data.schema}
    assert types["observation.state"] == "fixed_size_list<element: float>[3]"
    assert (types["gripper"], types["next.reward"], types["next.success"]) == ("int64", "float", "bool")
    assert set(info["features"]) == {*types, "observation.images.front", "observation.images.wrist"}
    hints = json.loads(data.schema.metadata[b"huggingface"])["info"]["features"]
    value = {"dtype": "float32", "_type": "Value"}
    assert list(hints) == list(types) and hints["next.reward"] == value
    assert hints["observation.state"] == {"feature": value, "length": 3, "_type": "List"}
    assert data["index"].to_pylist() == list(range(13))
    assert data["frame_index"].to_pylist() == [*range(5), *range(7), 0]
    assert data["task_index"].to_pylist() == [0] * 5 + [1] * 7 + [0]
    assert data["next.success"].to_pylist() == [False] * 4 + [True] + [False] * 7 + [True]
    assert data["next.done"].to_pylist() == [False] * 4 + [True] + [False] * 6 + [True] * 2
    assert np.isnan(data["next.reward"].to_numpy()[5:12]).all() and data["next.reward"][0].as_py() == 0.5


def test_written_metadata_and_statistics(tmp_path: Path) -> None:
    root = write_lerobot(corpus(), tmp_path / "out")
    table = pq.read_table(root / EPISODES)
    rows = table.to_pylist()
    key = "videos/observation.images.wrist"
    whole = ["episode_index", "length", "data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index"]
    whole += [f"{key}/chunk_index", f"{key}/file_index", "meta/episodes/chunk_index", "meta/episodes/file_index"]
    assert {str(table.schema.field(name).type) for name in whole} == {"int64"}
    assert str(table.schema.field(f"{key}/from_timestamp").type) == "double"
    assert [(r["dataset_from_index"], r["dataset_to_index"]) for r in rows] == [(0, 5), (5, 12), (12, 13)]
    ends = [(r[f"{key}/from_timestamp"], r[f"{key}/to_timestamp"]) for r in rows]
    np.testing.assert_allclose(ends, [(0, 0.5), (0.5, 1.2), (1.2, 1.3)])
    assert rows[1]["stats/index/min"] == [5] and rows[1]["stats/observation.state/max"] == [18, 19, 20]
    pandas = json.loads(pq.read_schema(root / "meta/tasks.parquet").metadata[b"pandas"])
    assert pandas["index_columns"] == ["__index_level_0__"]
    stats = json.loads((root / "meta/stats.json").read_text())
    pixels = np.concatenate([e.main.all() for e in corpus()])[:, ::2, ::2].reshape(-1, 3) / 255
    states = np.concatenate([e.signals["state"] for e in corpus()])
    assert np.shape(stats["observation.images.front"]["min"]) == (3, 1, 1)
    for name, values in (("observation.images.front", pixels), ("observation.state", states)):
        np.testing.assert_allclose(np.ravel(stats[name]["mean"]), values.mean(axis=0))
        np.testing.assert_allclose(np.ravel(stats[name]["std"]), values.std(axis=0))
        assert stats[name]["count"] == [13]


@pytest.mark.parametrize("fps", [10, 29.97, 100 / 7])
def test_timestamps_of_frames(tmp_path: Path, fps: float) -> None:
    episodes = [made("a", 5, fps=fps), made("b", 40, fps=fps)]
    root = write_lerobot(episodes, tmp_path / "out")
    with av.open(str(root / "videos/observation.images.front/chunk-000/file-000.mp4")) as container:
        seen = [float(frame.pts * frame.time_base) for frame in container.decode(video=0)]
    rows = pq.read_table(root / EPISODES).to_pylist()
    starts = {row["episode_index"]: row["videos/observation.images.front/from_timestamp"] for row in rows}
    data = pq.read_table(root / DATA).to_pylist()
    said = [starts[row["episode_index"]] + row["timestamp"] for row in data]
    np.testing.assert_allclose(seen, said, atol=1e-4, rtol=0)
    assert json.loads((root / "meta/info.json").read_text())["fps"] == pytest.approx(fps, rel=1e-6)


def test_file_size_limits(tmp_path: Path) -> None:
    episodes = [made(str(i), 3, seed=i) for i in range(3)]
    at_once = {"tune": "zerolatency"}  # an encoder that looks ahead would not have written anything yet
    root = write_lerobot(episodes, tmp_path / "out", options=at_once, video_files_mb=1e-6, data_files_mb=1e-6)
    assert len(list(root.glob("videos/*/chunk-000/*.mp4"))) == len(list(root.glob("data/chunk-000/*.parquet"))) == 3
    episodes, problems = read(root)
    assert problems == []
    for i, episode in enumerate(episodes):
        np.testing.assert_allclose(episode.main.all(), make_images(3, i), atol=5)
        assert episode.main.source.describe()["path"].endswith(f"file-{i:03d}.mp4")


def test_unknown_outcomes_stay_unknown(tmp_path: Path) -> None:
    episodes = [made("a", 3, outcomes=(Outcome("human", success=True),)), made("b", 3)]
    root = write_lerobot(episodes, tmp_path / "out")
    assert "next.success" not in pq.read_schema(root / DATA).names
    back, problems = read(root)
    assert [e.outcomes for e in back] == [(Outcome("human", success=True),), ()] and problems == []


@pytest.mark.parametrize("group", [4, 100])
def test_episodes_inside_row_groups(tmp_path: Path, group: int) -> None:
    root = write_lerobot(corpus(), tmp_path / "out")
    path = root / DATA
    pq.write_table(pq.read_table(path), path, row_group_size=group)
    for ours, back in zip(corpus(), read(root)[0], strict=True):
        np.testing.assert_array_equal(back.signals["state"], ours.signals["state"])


def test_version_3_problems(tmp_path: Path) -> None:
    root = write_lerobot(corpus(), tmp_path / "out")
    path = root / EPISODES
    rows = pq.read_table(path).to_pylist()
    rows[0]["length"], rows[1]["videos/observation.images.wrist/from_timestamp"] = 9, None
    rows[2]["data/file_index"] = 4
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)
    (path.parent / "file-001.parquet").write_bytes(b"nothing")
    episodes, problems = read(root)
    assert facts(problems) == [
        ("length disagrees", True),
        ("missing video", True),
        ("missing data", True),
        ("unreadable metadata", False),
    ]
    assert [list(e.views) for e in episodes] == [["front", "wrist"], ["front"], ["front", "wrist"]]
    assert len(episodes[0]) == 5  # the video itself decides
    (root / DATA).write_bytes(b"PAR1")
    episodes, problems = read(root)
    assert [p.kind for p in problems].count("unreadable data") == 2 and dict(episodes[0].signals) == {}


def viewed(camera: str, **size: Any) -> Episode:
    return Episode("b", "", {camera: Frames.from_array(make_images(3, **size))}, signals={"state": np.zeros((3, 2))})


@pytest.mark.parametrize(
    ("later", "word"),
    [
        (made("b", 3, fps=20, signals={"state": np.zeros((3, 2))}), "frame rate"),
        (viewed("front", size=(16, 16)), "got 16x16"),
        (viewed("side"), "expected front"),
        (made("b", 3, signals={"state": np.zeros((2, 2))}), "state"),
        (made("b", 3), "signals="),
    ],
)
def test_episodes_that_do_not_match(tmp_path: Path, later: Episode, word: str) -> None:
    first = made("a", 3, signals={"state": np.zeros((3, 2))})
    with pytest.raises(BadInput, match=word):
        write_lerobot([first, later], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []  # no half dataset, no leftovers
    if not later.signals:
        write_lerobot([first, later], tmp_path / "out", signals=())
        assert dict(read(tmp_path / "out")[0][0].signals) == {}


def test_destinations(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_lerobot([made("a", 2)], tmp_path / "empty")
    before = (tmp_path / "empty/meta/info.json").read_bytes()
    with pytest.raises(StoreError):
        write_lerobot([made("a", 3)], tmp_path / "empty")
    assert (tmp_path / "empty/meta/info.json").read_bytes() == before
    with pytest.raises(BadInput, match="at least one"):
        write_lerobot([], tmp_path / "new")
    with pytest.raises(UnknownName, match="libx264"):
        write_lerobot([made("a", 2)], tmp_path / "new", codec="libx246")


# Real files


@pytest.mark.skipif(not V21.is_dir(), reason="the real v2.1 dataset is not here")
def test_real_version_21() -> None:
    episodes, problems = read(V21)
    assert [e.id for e in episodes] == ["lerobot_v21_g1/episode_000029"]
    assert facts(problems) == [("missing video", False)] * 99
    (episode,) = episodes
    assert (episode.instruction, len(episode)) == ("Pick up the yellow bottle on the table.", 221)
    assert episode.origin.embodiment == "Unitree_G1_Inspire"
    assert {name: values.shape for name, values in episode.signals.items()} == {"state": (221, 26), "action": (221, 26)}
    assert episode.main.take([0, 220]).shape == (2, 480, 640, 3)


@pytest.mark.skipif(not V3.is_dir(), reason="the real v3.0 metadata is not here")
def test_real_version_3_with_videos_put_in_place(tmp_path: Path) -> None:
    episodes, problems = read(V3)
    assert episodes == [] and facts(problems) == [("missing video", False)] * 4
    root = tmp_path / "so101"
    shutil.copytree(V3, root)
    video = root / "videos/observation.images.top/chunk-000/file-000.mp4"
    video.parent.mkdir(parents=True)
    # Two frames of the same grey, then the next: the brightness says where in the file a frame is.
    write_video(video, (np.full((16, 16, 3), 20 + i // 8, np.uint8) for i in range(1492)), fps=30)
    episodes, problems = read(root)
    assert facts(problems) == [("missing video", True)] * 4
    assert [len(e) for e in episodes] == [373, 374, 372, 373]
    starts = np.cumsum([0, 373, 374, 372])
    table = pq.read_table(root / "data/chunk-000/file-000.parquet")
    actions = np.array(table["action"].to_pylist(), np.float32)
    for episode, start in zip(episodes, starts, strict=True):
        assert episode.instruction == "Pick the orange cube and place it in the box"
        last = len(episode) - 1
        seen = episode.main.take([0, last]).mean(axis=(1, 2, 3))
        np.testing.assert_allclose(seen, [20 + start // 8, 20 + (start + last) // 8], atol=2)
        np.testing.assert_array_equal(episode.signals["action"], actions[start : start + last + 1])


@pytest.mark.parametrize(
    "change",
    [{"fps": 10**400}, {"fps": float("inf")}, {"fps": float("nan")}, {"data_path": "{episode_index:d}\0{video_key!s}"}],
)
def test_numbers_and_paths_that_cannot_be_true(tmp_path: Path, change: dict[str, Any]) -> None:
    root = write_v21(tmp_path / "d", [2])
    edit_json(root / "meta/info.json", **change)
    with pytest.raises(BadInput):
        LeRobotReader(root)


def test_hostile_metadata_is_a_problem(tmp_path: Path) -> None:
    root = write_v21(tmp_path / "d", [4, 4])
    edit_json(root / "meta/info.json", splits={"train": "0:" + "9" * 5000})
    write_jsonl(
        root / "meta/episodes.jsonl",
        [{"episode_index": 0, "length": 4, "tasks": ["\ud800"]}, {"episode_index": 1, "length": 4, "tasks": ["push"]}],
    )
    dataset = Dataset(LeRobotReader(root))
    assert [episode.instruction for episode in dataset] == ["push"]
    assert {row["problem"] for row in dataset.problems.rows()} == {"unreadable split", "broken text"}
    (root / "data/chunk-000/episode_000001.parquet").unlink()
    write_jsonl(root / "meta/episodes.jsonl", [{"episode_index": 1, "length": 4 * 10**12, "tasks": ["push"]}])
    assert [len(episode) for episode in Dataset(LeRobotReader(root))] == [4]
    (root / "meta/episodes.jsonl").unlink()
    (root / "meta/episodes.jsonl").mkdir()
    with pytest.raises(BadInput):
        LeRobotReader(root)


def test_hostile_task_tables(tmp_path: Path) -> None:
    write_lerobot(corpus(), tmp_path / "d")
    path = tmp_path / "d/meta/tasks.parquet"
    for table in (
        pa.table({"task_index": [["a"]], "task": ["x"]}),
        pa.table({"task_index": [0], "task": ["x"]}).replace_schema_metadata({b"pandas": b"[" * 100_000}),
    ):
        pq.write_table(table, path)
        assert len(read(tmp_path / "d")[0]) == len(corpus())


# Stages and newer versions


def add_columns(path: Path, **columns: Any) -> None:
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.append_column(name, values if isinstance(values, pa.Array) else pa.array(values))
    pq.write_table(table, path)


def sarm(kind: str, names: list[Any], starts: list[Any], ends: list[Any]) -> dict[str, Any]:
    parts = {"names": names, "start_frames": starts, "end_frames": ends}
    return {f"{kind}subtask_{part}": values for part, values in parts.items()}


def stages_of(path: Path, **options: Any) -> tuple[list[list[tuple[str, str, str]]], list[Any]]:
    episodes, problems = read(path, **options)
    said = [
        [(one.source, one.by.split("_")[0], " ".join(map(str, one.stages))) for one in episode.outcomes if one.stages]
        for episode in episodes
    ]
    return said, facts(problems)


@pytest.fixture
def version_3(tmp_path: Path) -> Path:
    return write_lerobot([made(f"e{i}", length, seed=i) for i, length in enumerate([8, 10, 6])], tmp_path / "v3")


LANGUAGE_ROW = pa.struct(
    {"role": pa.string(), "content": pa.string(), "style": pa.string(), "timestamp": pa.float32()}
    | {"camera": pa.string(), "tool_calls": pa.list_(pa.string())}
)


def test_stages_of_sarm(version_3: Path) -> None:
    # the tool's last frame is inclusive, and it writes the next begin there, or the number of frames
    dense = sarm("dense_", [["reach", "lift"], ["reach"], None], [[0, 4], [2], None], [[4, 8], [9], None])
    whole = sarm("sparse_", [["task"]] * 3, [[0]] * 3, [[8], [10], [6]])
    add_columns(version_3 / EPISODES, **dense, **whole)
    assert stages_of(version_3) == (
        [[("model", "dense", "reach:0-3 lift:4-7")], [("model", "dense", "reach:2-9")], []],
        [],
    )
    (version_3 / "meta/temporal_proportions_dense.json").write_text('{"reach": 1, "lift": 3}')
    (first, second, _), _ = read(version_3)
    assert [(one.start, one.stop) for one in first.outcomes[0].stages] == [(0, 0.25), (0.25, 1)]
    assert [(one.start, one.stop) for one in second.outcomes[0].stages] == [(0, 0.25)]


def test_stages_of_sarm_have_the_source_that_vouches_for_them(version_3: Path) -> None:
    path = version_3 / EPISODES
    columns = sarm("", [["a", "b"]] * 3, [[0, 3]] * 3, [[2, 5]] * 3)  # the names of older tools
    add_columns(path, **columns, stages_vouched_by=["human", "nobody", None])
    said, problems = stages_of(version_3)
    assert [one[0][0] for one in said] == ["human", "rule", "model"] and said[0][0][2] == "a:0-2 b:3-5"
    assert problems == [("unknown voucher", True)]


@pytest.mark.parametrize(("stop", "shares"), [(None, [0.5, 0.5]), (0.25, [0.25, 0.75])])
def test_written_stages_are_read_back_with_their_source(
    tmp_path: Path, stop: float | None, shares: list[float]
) -> None:
    ends = {"reach": (None, None), "lift": (None, None)} if stop is None else {"reach": (0, stop), "lift": (stop, 1)}
    both = (StageSpan("reach", 0, 3, *ends["reach"]), StageSpan("lift", 4, 7, *ends["lift"]))
    label = Outcome("human", stages=both, by="Ada")
    flag = Outcome("human", success=True, by="Bob")
    episodes = [
        made("a", 8, outcomes=(flag, label)),
        made("b", 6),
        made("c", 9, outcomes=(replace(label, stages=both[:1]),)),
    ]
    root = write_lerobot(episodes, tmp_path / "out")
    found, problems = read(root)
    assert not problems
    staged = [[one for one in episode.outcomes if one.stages] for episode in found]
    assert [[one.source for one in some] for some in staged] == [["human"], [], ["human"]]
    assert [str(stage) for stage in staged[0][0].stages] == ["reach:0-3", "lift:4-7"]
    assert [stage.stop - stage.start for stage in staged[0][0].stages] == pytest.approx(shares)  # type: ignore[operator]
    assert found[0].outcomes[0].success is True


@pytest.mark.parametrize(
    ("names", "starts", "ends"),
    [
        *((["a", "b"], [0], [3]), (["a"], [3], [1]), (["a"], [-1], [1]), (["a"], None, [1]), ([""], [0], [1])),
    ],
)
def test_stages_of_sarm_that_cannot_be(version_3: Path, names: Any, starts: Any, ends: Any) -> None:
    columns = sarm("dense_", [names] * 3, [starts] * 3, [ends] * 3)
    add_columns(version_3 / EPISODES, **{n: pa.array(v) for n, v in columns.items()})
    (version_3 / "meta/temporal_proportions_dense.json").write_text('{"a": "half"}')
    said, problems = stages_of(version_3)
    assert said == [[], [], []]
    assert problems == [("unreadable proportions", True), *[("bad label", True)] * 3]


def test_stages_of_the_language_column(version_3: Path) -> None:
    def row(content: str | None, timestamp: float, style: str = "subtask") -> dict[str, Any]:
        return {"role": "assistant", "content": content, "style": style, "timestamp": timestamp}

    says = [
        [row("lift it", 0.4), row("reach the cup", 0.0), row("first this", 0.0, "plan"), row("", 0.6)],
        [row("wait", 0.0), row("reach the cup", 0.0), row("too late", 9.0)],
        [row("a plan", 0.0, "plan")],
    ]
    cells = [says[index] for index, length in enumerate([8, 10, 6]) for _ in range(length)]
    add_columns(version_3 / DATA, language_persistent=pa.array(cells, pa.list_(LANGUAGE_ROW)))
    info = json.loads((version_3 / "meta/info.json").read_text())
    language = {"language_persistent": {"dtype": "language", "shape": [1], "names": None}}
    edit_json(version_3 / "meta/info.json", codebase_version="v3.1", features={**info["features"], **language})
    assert stages_of(version_3) == (
        [[("model", "language", "reach the cup:0-3 lift it:4-7")], [("model", "language", "reach the cup:0-9")], []],
        [],
    )


@pytest.mark.parametrize("version", ["v3.1", "v3.12"])
def test_a_newer_version_3_opens_with_a_note(version_3: Path, version: str) -> None:
    before, _ = read(version_3)
    assert Dataset(LeRobotReader(version_3)).notes() == []
    edit_json(version_3 / "meta/info.json", codebase_version=version)
    now, problems = read(version_3)
    (note,) = Dataset(LeRobotReader(version_3)).notes()
    assert version in note and not problems
    assert [(one.id, one.fingerprint()) for one in now] == [(one.id, one.fingerprint()) for one in before]
