import csv
import os
import re

import numpy as np
import pytest

import demerit.data.video
from demerit.data.dataset import SOURCES, Dataset, DatasetReader
from demerit.data.episode import Event
from demerit.data.files import path_inside
from demerit.data.formats.label_file import COLUMNS, FALSE_WORDS, TRUE_WORDS, UNKNOWN_WORDS, count_rows, read_rows, text
from demerit.data.formats.videos import VideosReader
from demerit.errors import BadInput
from fakes.paths import REPO
from fakes.tiny_video import bright_below, problem_facts, put_video, read_records, write_lines


def read(folder, **options):
    return read_records(VideosReader(str(folder), **options))


def read_row(folder, **cells):
    """Read one video whose row in labels.jsonl has these cells."""
    put_video(folder / "a.mp4")
    write_lines(folder / "labels.jsonl", {"file": "a", "instruction": "push", **cells})
    episodes, problems = read(folder)
    return episodes["a"], problems


def test_videos_without_labels(tmp_path, monkeypatch):
    for name in ("b/open the door.mp4", "a.MKV", "c.webm", "b/.hidden.mp4", ".cache/x.mp4", "notes.txt"):
        put_video(tmp_path / name)
    reader = SOURCES.factory("videos")(str(tmp_path))
    assert isinstance(reader, DatasetReader)
    assert (reader.name, reader.expected()) == (tmp_path.name, 3)
    monkeypatch.setattr(demerit.data.video, "_open_container", lambda *_: pytest.fail("a video was opened"))
    episodes, problems = read(tmp_path)
    assert list(episodes) == ["a", "c", "b/open the door"]
    assert problem_facts(problems) == [("empty instruction", episode, True) for episode in episodes]
    assert all(episode.instruction == "" and episode.outcomes == () for episode in episodes.values())
    assert list(episodes["a"].views) == ["main"]


def test_csv_columns(tmp_path):
    put_video(tmp_path / "videos/one.mp4")
    (tmp_path / "labels.csv").write_text(
        "\ufeffFile_Name,Task,binary_success,partial_success,reward,feedback,by,split,session,license,robot,site,lamp\n"
        "videos/one.mp4, lift the cup ,yes,0.75,4,close,Ada,test,s1,CC0,UR5,Oslo,on\n"
    )
    episodes, problems = read(tmp_path)
    assert problems == []
    episode = episodes["videos/one"]
    assert episode.instruction == "lift the cup"
    outcome = episode.outcome
    assert (outcome.source, outcome.by, outcome.note) == ("human", "Ada", "close")
    assert (outcome.success, outcome.progress, outcome.grade) == (True, 0.75, 4)
    origin = episode.origin
    assert (origin.dataset, origin.split, origin.group) == (tmp_path.name, "test", "s1")
    assert (origin.licence, origin.embodiment, origin.site) == ("CC0", "UR5", "Oslo")
    assert origin.tags == {"lamp": "on"}
    assert bright_below(episode.main)
    put_video(tmp_path / "a.mp4")
    (tmp_path / "labels.csv").write_text("file;instruction\na;push, then pull\na;x;y\n")
    episodes, problems = read(tmp_path)
    assert episodes["a"].instruction == "push, then pull"
    assert ("malformed line", "labels.csv:3", False) in problem_facts(problems)


def test_rows_first_then_videos_without_a_row(tmp_path):
    for name in "abc":
        put_video(tmp_path / f"{name}.mp4")
    write_lines(
        tmp_path / "metadata.jsonl", {"id": "c", "instruction": "push"}, "", {"id": "gone", "instruction": "push"}
    )
    episodes, problems = read(tmp_path)
    assert list(episodes) == ["c", "a", "b"]
    assert problem_facts(problems) == [
        ("missing video", "gone", False),
        ("video without a row", "a", True),
        ("video without a row", "b", True),
    ]
    assert VideosReader(tmp_path).expected() == 2


@pytest.mark.parametrize(
    "cells",
    [
        *[{"success": "perhaps"}, {"success": 1, "source": "youtube"}, {"reward": 0.5}, {"grade": 6}],
        *[{"progress": 75}, {"progress": -0.1}, {"progress": True}],
        *[{"curve": "high"}, {"curve": [0, 2]}, {"curve": [[0, 1]]}],
    ],
)
def test_a_bad_label_is_unknown(tmp_path, cells):
    episode, problems = read_row(tmp_path, **cells)
    assert problem_facts(problems) == [("bad label", "a", True)]
    assert episode.outcomes == ()


@pytest.mark.parametrize(
    ("cells", "source", "by"),
    [
        ({"progress": 50}, "human", ""),  # a bad label beside a good one
        ({"by": "Ada"}, "human", "Ada"),
        ({"source": "simulator", "by": "mujoco"}, "simulator", "mujoco"),
        ({"vouched_by": "rule", "group": "test"}, "rule", ""),
    ],
)
def test_label_sources(tmp_path, cells, source, by):
    episode, problems = read_row(tmp_path, success=True, **cells)
    outcome = episode.outcome
    assert (outcome.source, outcome.by, outcome.success, outcome.progress) == (source, by, True, None)
    assert [problem.kind for problem in problems] == ["bad label"] * ("progress" in cells)
    assert (episode.origin.split, episode.origin.group) == (cells.get("group", ""), "")  # a group "test" is a split


def test_sources_of_curves(tmp_path):
    for name in "abc":
        put_video(tmp_path / f"{name}.mp4")
    write_lines(
        tmp_path / "labels.jsonl",
        {"file": "a", "instruction": "push", "success": 1, "curve": [0, None, 1], "curve_source": "model"},
        {"file": "b", "instruction": "push", "progress_curve": "[0.5, 1]", "curve_source": "human", "curve_by": "Ada"},
        {"file": "c", "instruction": "push", "robometer_progress": [-0.01, 0.5, 1.02]},
    )
    episodes, problems = read(tmp_path)
    label, curve = episodes["a"].outcomes
    assert (label.source, label.success, label.curve) == ("human", True, None)
    assert (curve.source, curve.by) == ("model", "")
    np.testing.assert_array_equal(curve.curve, [0, np.nan, 1])
    assert (episodes["b"].outcome.source, episodes["b"].outcome.by) == ("human", "Ada")
    np.testing.assert_array_equal(episodes["c"].outcome.curve, np.float32([0, 0.5, 1]))
    assert (episodes["c"].outcome.source, episodes["c"].outcome.by) == ("model", "robometer")
    assert problem_facts(problems) == [("clipped curve", "c", True)]


@pytest.mark.parametrize(
    ("cells", "source", "by"),
    [
        ({}, "human", ""),
        ({"by": "Ada", "success": True}, "human", "Ada"),
        ({"source": "simulator", "success": True}, "simulator", ""),
        ({"curve_by": "Ada"}, "human", "Ada"),
        ({"curve_source": "model", "by": "Ada", "success": True}, "model", ""),
    ],
)
def test_a_curve_is_by_whoever_gave_the_labels(tmp_path, cells, source, by):
    episode, problems = read_row(tmp_path, curve=[0, None, 1], **cells)
    (curve,) = [outcome for outcome in episode.outcomes if outcome.curve is not None]
    assert (curve.source, curve.by, problems) == (source, by, [])


@pytest.mark.parametrize("moments", ["0:0 2:0.5 -1:1", "0:0, 0.2s:0.5; -1:1", {"0": 0, "2": 0.5, "-1": 1}])
def test_marked_moments(tmp_path, moments):
    episode, problems = read_row(tmp_path, curve=moments)
    assert problems == []
    expected = np.full(len(episode), np.nan)
    expected[[0, 2, -1]] = [0, 0.5, 1]
    np.testing.assert_array_equal(episode.outcome.curve, expected)


@pytest.mark.parametrize("moments", ["0:0 999:1", "0:0 x:1", "0:0 1:high", "0:5", "0:"])
def test_bad_moments(tmp_path, moments):
    episode, problems = read_row(tmp_path, curve=moments)
    assert (episode.outcomes, problem_facts(problems)) == ((), [("bad label", "a", True)])


@pytest.mark.parametrize("file", ["file", *COLUMNS["file"], "id", "File_Name"])
@pytest.mark.parametrize("success", ["success", *COLUMNS["success"]])
def test_every_name_of_the_main_columns(tmp_path, file, success):
    put_video(tmp_path / "a.mp4")
    (tmp_path / "labels.csv").write_text(f"{file},task,{success}\na.mp4,push,Failed\n")
    episodes, problems = read(tmp_path)
    assert (episodes["a"].outcome.success, episodes["a"].origin.tags, problems) == (False, {}, [])


def test_the_page_lists_every_column():
    columns = (REPO / "docs" / "labels.md").read_text().partition("## Whose labels")[0]
    rows = [line.split("|")[1:3] for line in columns.splitlines() if line[:3] == "| `"]
    listed = {name: tuple(others) for name, *others in (re.findall(r"`([a-z_]+)`", "".join(row)) for row in rows)}
    assert listed == dict(COLUMNS)
    words = set(re.findall(r"`([^`\n]+)`", (REPO / "docs" / "labels.md").read_text()))
    assert TRUE_WORDS | FALSE_WORDS | UNKNOWN_WORDS - {""} <= words


def test_a_misspelt_column_is_mentioned_once(tmp_path):
    for name in "ab":
        put_video(tmp_path / f"{name}.mp4")
    (tmp_path / "labels.csv").write_text("file,instuction,sucess,lamp,files\na,push,1,on,x\nb,push,0,on,x\n")
    episodes, problems = read(tmp_path)
    (mentioned,) = [problem for problem in problems if problem.kind == "unknown column"]
    assert mentioned.kept and re.findall("'(.*?)'", mentioned.detail) == [
        "instuction",
        "instruction",
        "sucess",
        "success",
    ]
    assert episodes["a"].origin.tags == {"instuction": "push", "sucess": "1", "lamp": "on", "files": "x"}


@pytest.mark.parametrize(("header", "mentions"), [("file,ok", 1), ("file,ok,success", 0)])
def test_a_verdict_under_an_unknown_name_is_mentioned(tmp_path, header, mentions):
    for name in "ab":
        put_video(tmp_path / f"{name}.mp4")
    (tmp_path / "labels.csv").write_text(f"{header}\na,yes{',1' * (1 - mentions)}\nb,no{',0' * (1 - mentions)}\n")
    _, problems = read(tmp_path)
    mentioned = [problem for problem in problems if problem.kind == "unknown column"]
    assert len(mentioned) == mentions and all("'ok'" in problem.detail for problem in mentioned)


def test_a_bad_value_is_reported_with_its_row_and_column(tmp_path):
    put_video(tmp_path / "a.mp4")
    (tmp_path / "labels.csv").write_text("file,task,is_success\na,push,perhaps\n")
    _, (problem,) = read(tmp_path)
    assert problem.kind == "bad label"
    assert "labels.csv:2" in problem.detail and "'is_success'" in problem.detail and "'perhaps'" in problem.detail


def test_a_long_cell(tmp_path):
    put_video(tmp_path / "a.mp4")
    (tmp_path / "labels.csv").write_text(f"file,task,note\na,push,{'x' * 200_000}\n")
    limit = csv.field_size_limit()
    episodes, _ = read(tmp_path)
    assert (len(episodes["a"].outcome.note), csv.field_size_limit()) == (200_000, limit)


def test_columns_of_further_cameras(tmp_path):
    for name in ("0_left.mp4", "0_right.mp4", "0_wrist.mp4"):
        put_video(tmp_path / name)
    header, row = "file,other_view,cam_wrist,front_view,instruction", "0_left.mp4,0_right.mp4,0_wrist.mp4,blocked,push"
    (tmp_path / "labels.csv").write_text(f"{header}\n{row}\n")
    episodes, problems = read(tmp_path)
    cameras = {id: list(episode.views) for id, episode in episodes.items()}
    assert (cameras, problems) == ({"0": ["left", "right", "wrist"]}, [])
    assert episodes["0"].origin.tags == {"front_view": "blocked"}
    for name in ("a.mp4", "b.mp4", "c.mp4"):  # names that say nothing: the columns name the cameras
        put_video(tmp_path / name)
    (tmp_path / "labels.csv").write_text(f"{header}\na.mp4,b.mp4,c.mp4,blocked,push\n")
    assert list(read(tmp_path)[0]["a"].views) == ["main", "other", "wrist"]


@pytest.mark.parametrize(
    "labels", ["", "file,other_view,success\n1_left.mp4,1_right.mp4,1\n", "file,success\n1_left,1\n"]
)
def test_videos_that_differ_only_in_a_cameras_name_are_one_episode(tmp_path, labels):
    for name in (
        "1_left.mp4",
        "1_right.mp4",
        "s/2_cam0.mp4",
        "s/2_cam1.mkv",
        "3_Left.mp4",
        "cup_left.mp4.txt",
        "4.mp4",
    ):
        put_video(tmp_path / name)
    if labels:
        (tmp_path / "labels.csv").write_text(labels)
    episodes, problems = read(tmp_path)
    cameras = {id: list(episode.views) for id, episode in episodes.items()}
    # the second camera of 3 is missing
    assert cameras == {"1": ["left", "right"], "3": ["left"], "4": ["main"], "s/2": ["cam0", "cam1"]}
    assert [outcome.success for outcome in episodes["1"].outcomes] == [True] * bool(labels)
    assert {problem.kept for problem in problems} == {True}
    assert VideosReader(tmp_path).expected() == (1 if labels else 4)
    assert list(read(tmp_path, only=(tmp_path / "1_right.mp4",))[0]["1"].views) == ["left", "right"]


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["push_left", "pull_left"], ""),  # one camera
        (["push_left", "push_right"], "file,task\npush_left,push left\npush_right,push right\n"),  # a row each
        (["push", "push_left", "push_right"], ""),  # the trial's name is taken
        (["push_red", "push_blue"], ""),  # no camera's name
        (["a/push_left", "b/push_right"], ""),  # two folders
    ],
)
def test_other_videos_stay_episodes_of_their_own(tmp_path, names, labels):
    for name in names:
        put_video(tmp_path / f"{name}.mp4")
    if labels:
        (tmp_path / "labels.csv").write_text(labels)
    episodes, _ = read(tmp_path)
    assert {id: list(episode.views) for id, episode in episodes.items()} == {name: ["main"] for name in names}


@pytest.mark.parametrize(
    ("layout", "cameras"),
    [
        ("{0}_{1}.mp4", ["cam_high", "cam_low"]),
        ("{1}/{0}.mp4", ["cam_high", "cam_low"]),
        ("{0}/{1}.mp4", ["left", "right"]),
        ("day1/{1}/{0}.mp4", ["left_wrist", "right_wrist", "top"]),
        ("{0}_{1}.mp4", ["left_wrist", "right_wrist"]),
    ],
)
def test_ways_to_name_the_cameras_of_an_episode(tmp_path, layout, cameras):
    for trial in ("ep1", "ep2"):
        for camera in cameras:
            put_video(tmp_path / layout.format(trial, camera))
    day = "day1/" if layout.startswith("day1") else ""
    episodes, _ = read(tmp_path)
    assert {id: list(one.views) for id, one in episodes.items()} == {f"{day}ep1": cameras, f"{day}ep2": cameras}
    (note,) = VideosReader(tmp_path).notes()
    assert f"2 episodes with the cameras {', '.join(cameras)}" in note and "--with pair-cameras=false" in note
    # a row for one camera labels the whole episode, and its camera is the main one
    (tmp_path / "labels.csv").write_text(f"file,task,success\n{layout.format('ep2', cameras[1])},push,no\n")
    labelled = read(tmp_path)[0][f"{day}ep2"]
    assert (labelled.outcome.success, set(labelled.views)) == (False, set(cameras))
    assert labelled.main is labelled.views[cameras[1]]
    off, _ = read(tmp_path, pair_cameras=False)
    assert len(off) == 2 * len(cameras) and {tuple(one.views) for one in off.values()} == {("main",)}
    assert VideosReader(tmp_path, pair_cameras=False).notes() == []


@pytest.mark.parametrize(
    ("names", "paired"),
    [
        ("a_left a_right b_left b_right c_left", 3),  # one lacks a camera
        ("a_left a_right b_left c_left d_left", 0),  # most do
        ("a_left a_right b_left b_right c_top d_top", 0),  # other cameras
        ("a_left a_right b c", 0),  # most names have none
        ("a_left a_right b_left b_right c", 2),
        ("cam_high/a cam_high/b cam_low/c cam_low/d cam_high/e cam_low/e", 0),  # other recordings
    ],
)
def test_nearly_all_trials_must_have_the_same_cameras(tmp_path, names, paired):
    for name in names.split():
        put_video(tmp_path / f"{name}.mp4")
    episodes, _ = read(tmp_path)
    assert sum("main" not in one.views for one in episodes.values()) == paired
    assert sum(len(one.views) for one in episodes.values()) == len(names.split())
    (note,) = VideosReader(tmp_path).notes()
    assert ("episode of its own" in note) == (not paired)


def test_a_video_alone_in_a_cameras_folder_keeps_its_name(tmp_path):
    put_video(tmp_path / "cam_high" / "1.mp4")
    assert list(read(tmp_path / "cam_high")[0]) == list(read(tmp_path / "cam_high", pair_cameras=False)[0]) == ["1"]
    assert list(read(tmp_path)[0]) == ["cam_high/1"] and VideosReader(tmp_path).notes() == []


def test_a_camera_that_cannot_be_used_leaves_the_others(tmp_path):
    put_video(tmp_path / "1_left.mp4")
    (tmp_path / "1_right.mp4").touch()
    episodes, problems = read(tmp_path)
    assert (list(episodes), list(episodes["1"].views)) == (["1"], ["left"])
    assert ("empty video", "1", True) in problem_facts(problems)
    (tmp_path / "1_left.mp4").write_bytes(b"")
    assert problem_facts(read(tmp_path)[1]) == [("empty video", "1", False)] * 2


def test_several_cameras(tmp_path):
    for name in ("l/0.mp4", "r/0.mp4", "l/1.mp4"):
        put_video(tmp_path / name)
    write_lines(
        tmp_path / "labels.jsonl",
        {"id": "first", "task": "push", "videos": {"left": "l/0.mp4", "right": "r/0.mp4"}},
        {"task": "pull", "camera:left": "l/1.mp4", "camera:right": "r/1.mp4"},
    )
    episodes, problems = read(tmp_path)
    cameras = {id: list(episode.views) for id, episode in episodes.items()}
    assert cameras == {"first": ["left", "right"], "l/1": ["left"]}
    assert problem_facts(problems) == [("missing video", "l/1", True)]


def test_paths_out_of_the_folder(tmp_path):
    outside = put_video(tmp_path / "outside.mp4")
    root = tmp_path / "data"
    put_video(root / "in.mp4")
    (root / "link.mp4").symlink_to(outside)
    (root / "linked").symlink_to(tmp_path)
    (root / "loop.mp4").symlink_to(root / "loop.mp4")
    wanted = ["../outside.mp4", "..\\outside.mp4", str(outside), "link", "linked/outside.mp4"]
    wanted += ["x/../../outside", "x/../in", "a\0b"]
    write_lines(
        root / "labels.jsonl", *({"file": path, "task": "push"} for path in wanted), {"file": "in", "task": "push"}
    )
    episodes, problems = read(root)
    assert list(episodes) == ["in"]
    assert {(problem.kind, problem.kept) for problem in problems} == {("path leaves the folder", False)}
    # the walk over the folder finds the link and the loop again
    for problem, path in zip(problems, [*wanted, "link.mp4", "loop.mp4"], strict=True):
        assert repr(path) in problem.detail


def test_links_into_the_hugging_face_cache(tmp_path):
    blob = put_video(tmp_path / "datasets--x/blobs/1f")
    snapshot = tmp_path / "datasets--x/snapshots/main"
    snapshot.mkdir(parents=True)
    (snapshot / "a.mp4").symlink_to(os.path.relpath(blob, snapshot))
    (snapshot / "b.mp4").symlink_to(put_video(tmp_path / "elsewhere.mp4"))
    assert path_inside(snapshot, "a.mp4") == snapshot / "a.mp4"
    assert path_inside(snapshot, "b.mp4") is None


def test_rows_without_a_usable_video(tmp_path):
    put_video(tmp_path / "a.mp4")
    put_video(tmp_path / "bad\nname.mp4")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "arrays.npz").touch()
    write_lines(
        tmp_path / "labels.jsonl",
        "{broken",
        "[1, 2]",
        {"task": "push"},
        {"file": 7, "task": "push"},
        {"file": "empty", "task": "push"},
        {"file": "arrays.npz", "task": "push"},
        {"file": "x" * 300, "task": "push"},
        {"file": "a", "task": "push"},
        {"file": "a.mp4", "task": "pull"},
        {"file": "a", "task": None},
    )
    episodes, problems = read(tmp_path)
    assert [episode.instruction for episode in episodes.values()] == ["push"]
    assert problem_facts(problems) == [
        *[("malformed line", f"labels.jsonl:{line}", False) for line in (1, 2)],
        ("missing video", "labels.jsonl:3", False),
        ("missing video", "7", False),
        ("empty video", "empty", False),
        ("missing video", "arrays.npz", False),
        ("missing video", "x" * 300, False),
        *[("second row for a video", "a", False)] * 2,
        ("video without a row", "'bad\\nname'", True),
        ("unusable id", "'bad\\nname'", False),
        ("empty video", "empty", False),
    ]


def test_bad_label_files(tmp_path):
    for folder, labels, word in [
        (tmp_path / "nowhere", None, "nowhere"),
        (put_video(tmp_path / "a.mp4"), None, "a file"),
        (tmp_path, "lables.csv", "lables"),
    ]:
        with pytest.raises(BadInput, match=word):
            VideosReader(folder, labels=labels)
    for name, content in (
        *(("labels.json", b"{"), ("labels.json", b"3"), ("labels.csv", b"file\n\xff\n")),
        *(("labels.parquet", b"PAR1"), ("labels.txt", b"")),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=r"labels\."):
            read(tmp_path, labels=name)


def test_several_label_files(tmp_path):
    put_video(tmp_path / "a.mp4")
    (tmp_path / "labels.json").write_text('{"a": {"instruction": "push"}}')
    (tmp_path / "index.json").write_text('[{"id": "a", "instruction": "pull"}]')
    episodes, problems = read(tmp_path)
    assert episodes["a"].instruction == "push"
    assert problem_facts(problems) == [("second label file", "index.json", True)]
    assert read(tmp_path, labels="index.json")[0]["a"].instruction == "pull"


def test_broken_encodings(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\xff\xfe\n{"a": "x\\ud83d y"}\n' + b"[" * 100_000 + b"\n")
    first, broken, half, deep = read_rows(path)
    assert first.fields == {"a": 1}
    assert (broken.episode, broken.kept, deep.episode) == ("rows.jsonl:2", False, "rows.jsonl:4")
    assert text(half.fields["a"]) == "x\ufffd y"
    assert count_rows(path) == 4


@pytest.mark.parametrize(("name", "count"), [("droid", 1000), ("roboarena", 188)])
def test_real_folders(real_data, name, count):
    dataset = Dataset(VideosReader(real_data / name))
    episodes = list(dataset)
    assert len({episode.id for episode in episodes}) == len(episodes) == dataset.expected() == count
    assert all(episode.instruction for episode in episodes)
    if name == "droid":
        assert (len(dataset.problems), episodes[0].outcomes, len(episodes[0])) == (0, (), 32)
        return
    assert dict(dataset.problems.counts) == {("clipped curve", True): 3}
    assert {(episode.outcome.source, episode.outcome.by) for episode in episodes} == {("model", "robometer")}
    assert all(len(episode.outcome.curve) == len(episode) for episode in episodes[:5])


def test_events_and_curve_of_one_source(tmp_path):
    good = {"kind": "dropped", "first": 3, "last": 5, "note": "slipped"}
    events = [good, {"kind": "spill", "first": 9, "last": 2}, "nonsense"]
    label = {"success": False, "source": "rule", "by": "me", "curve_source": "rule", "curve_by": "me"}
    episode, problems = read_row(tmp_path, curve=[0, 0.5], events=events, **label)
    (outcome,) = episode.outcomes
    assert outcome.events == (Event("dropped", 3, 5, "slipped"),)
    assert (outcome.curve.tolist(), outcome.success) == ([0, 0.5], False)
    assert problem_facts(problems) == [("bad label", "a", True)] * 2


@pytest.mark.parametrize("cells", [{"curve": [10**400]}, {"events": [{"kind": "x", "first": float("inf"), "last": 0}]}])
def test_numbers_that_no_frame_can_have(tmp_path, cells):
    episode, problems = read_row(tmp_path, **cells)
    assert not episode.outcomes
    assert [(problem.kind, problem.kept) for problem in problems] == [("bad label", True)]
