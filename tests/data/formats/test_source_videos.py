import json
import os

import numpy as np
import pytest

import demerit.data.video
from demerit.data.dataset import SOURCES, Dataset, DatasetReader, Problem
from demerit.data.episode import Episode
from demerit.data.formats.videos import (
    VideosReader,
    count_rows,
    inside,
    read_fraction,
    read_grade,
    read_rows,
    read_success,
    text,
)
from demerit.data.labels import Event
from demerit.errors import BadInput
from fakes.paths import SHARED
from fakes.tiny_video import bright_below, put_video


def read(folder, **options):
    records = list(VideosReader(str(folder), **options).records())
    episodes = {record.id: record for record in records if isinstance(record, Episode)}
    return episodes, [record for record in records if isinstance(record, Problem)]


def lines(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")


def test_it_is_a_registered_reader(tmp_path):
    put_video(tmp_path / "a.mp4")
    reader = SOURCES.factory("videos")(str(tmp_path))
    assert isinstance(reader, DatasetReader)
    assert (reader.name, reader.expected()) == (tmp_path.name, 1)


def test_without_labels_nothing_is_invented(tmp_path):
    for name in ("b/open the door.mp4", "a.MKV", "c.webm", "b/.hidden.mp4", ".cache/x.mp4", "notes.txt"):
        put_video(tmp_path / name)
    episodes, problems = read(tmp_path)
    assert list(episodes) == ["a", "c", "b/open the door"]
    assert problems == [
        Problem("empty instruction", episode, "there is no label file", kept=True) for episode in episodes
    ]
    assert all(episode.instruction == "" and episode.outcomes == () for episode in episodes.values())
    assert list(episodes["a"].views) == ["main"]


def test_reading_opens_no_video(tmp_path, monkeypatch):
    put_video(tmp_path / "a.mp4")
    monkeypatch.setattr(demerit.data.video, "_open_container", lambda *_: pytest.fail("a video was opened"))
    assert len(read(tmp_path)[0]) == 1


def test_a_csv_gives_every_column_its_place(tmp_path):
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


def test_semicolons_and_surplus_values(tmp_path):
    put_video(tmp_path / "a.mp4")
    (tmp_path / "labels.csv").write_text("file;instruction\na;push, then pull\na;x;y\n")
    episodes, problems = read(tmp_path)
    assert episodes["a"].instruction == "push, then pull"
    assert problems == [
        Problem("malformed line", "labels.csv:3", "more values than the 2 columns of the first line", kept=False)
    ]


def test_rows_first_then_videos_without_a_row(tmp_path):
    for name in "abc":
        put_video(tmp_path / f"{name}.mp4")
    lines(tmp_path / "metadata.jsonl", {"id": "c", "instruction": "push"}, "", {"id": "gone", "instruction": "push"})
    episodes, problems = read(tmp_path)
    assert list(episodes) == ["c", "a", "b"]
    unknown = "no row of metadata.jsonl names it: instruction and outcome are unknown"
    assert problems == [
        Problem("missing video", "gone", "there is no video 'gone' in the dataset folder", kept=False),
        Problem("video without a row", "a", unknown, kept=True),
        Problem("video without a row", "b", unknown, kept=True),
    ]
    assert VideosReader(tmp_path).expected() == 2


@pytest.mark.parametrize(
    ("cells", "detail"),
    [
        ({"success": "perhaps"}, "success: expected true or false (also yes/no, 1/0, success/failure), got 'perhaps'"),
        (
            {"progress": 75},
            "progress: expected a number from 0 to 1, got 75 "
            "(a percentage? divide by 100 in the file, nothing is rescaled here)",
        ),
        ({"progress": -0.1}, "progress: expected a number from 0 to 1, got -0.1"),
        ({"progress": True}, "progress: expected a number from 0 to 1, got True"),
        ({"reward": 0.5}, "grade: expected a whole number from 1 to 5, got 0.5"),
        ({"grade": 6}, "grade: expected a whole number from 1 to 5, got 6"),
        (
            {"success": 1, "source": "youtube"},
            "source of the labels, which are left out: expected one of human, simulator, rule, edit, model "
            "(rename the column if it means something else), got 'youtube'",
        ),
        ({"curve": "high"}, "curve: expected a list of numbers, got 'high'"),
        ({"curve": [0, 2]}, "curve: expected progress from 0 to 1 (NaN where unknown), got 0 to 2"),
        ({"curve": [[0, 1]]}, "curve: expected one number per frame, got an array of shape (1, 2)"),
    ],
)
def test_a_bad_label_is_unknown_and_the_episode_stays(tmp_path, cells, detail):
    put_video(tmp_path / "a.mp4")
    lines(tmp_path / "labels.jsonl", {"file": "a.mp4", "instruction": "push", **cells})
    episodes, problems = read(tmp_path)
    assert problems == [Problem("bad label", "a", detail, kept=True)]
    assert episodes["a"].outcomes == ()


def test_the_good_labels_of_a_row_survive_its_bad_one(tmp_path):
    put_video(tmp_path / "a.mp4")
    lines(tmp_path / "labels.jsonl", {"file": "a", "instruction": "push", "success": False, "progress": 50})
    episodes, problems = read(tmp_path)
    assert [problem.kind for problem in problems] == ["bad label"]
    assert (episodes["a"].outcome.success, episodes["a"].outcome.progress) == (False, None)


@pytest.mark.parametrize(
    ("cells", "source", "by"),
    [
        ({}, "human", ""),
        ({"by": "Ada"}, "human", "Ada"),
        ({"source": "simulator", "by": "mujoco"}, "simulator", "mujoco"),
        ({"vouched_by": "rule"}, "rule", ""),
    ],
)
def test_who_says_so(tmp_path, cells, source, by):
    put_video(tmp_path / "a.mp4")
    lines(tmp_path / "labels.jsonl", {"file": "a", "instruction": "push", "success": True, **cells})
    outcome = read(tmp_path)[0]["a"].outcome
    assert (outcome.source, outcome.by) == (source, by)


def test_curves_are_a_models_unless_somebody_else_signs(tmp_path):
    for name in "abc":
        put_video(tmp_path / f"{name}.mp4")
    lines(
        tmp_path / "labels.jsonl",
        {"file": "a", "instruction": "push", "success": 1, "curve": [0, None, 1], "curve_by": "gvl"},
        {"file": "b", "instruction": "push", "progress_curve": "[0.5, 1]", "curve_source": "human", "curve_by": "Ada"},
        {"file": "c", "instruction": "push", "robometer_progress": [-0.01, 0.5, 1.02]},
    )
    episodes, problems = read(tmp_path)
    label, curve = episodes["a"].outcomes
    assert (label.source, label.success, label.curve) == ("human", True, None)
    assert (curve.source, curve.by) == ("model", "gvl")
    np.testing.assert_array_equal(curve.curve, [0, np.nan, 1])
    assert (episodes["b"].outcome.source, episodes["b"].outcome.by) == ("human", "Ada")
    np.testing.assert_array_equal(episodes["c"].outcome.curve, np.float32([0, 0.5, 1]))
    assert (episodes["c"].outcome.source, episodes["c"].outcome.by) == ("model", "robometer")
    clipped = "robometer_progress leaves 0 to 1 at 2 of 3 frames, clipped (by 0.020)"
    assert problems == [Problem("clipped curve", "c", clipped, kept=True)]


def test_several_cameras_make_one_episode(tmp_path):
    for name in ("l/0.mp4", "r/0.mp4", "l/1.mp4"):
        put_video(tmp_path / name)
    lines(
        tmp_path / "labels.jsonl",
        {"id": "first", "task": "push", "videos": {"left": "l/0.mp4", "right": "r/0.mp4"}},
        {"task": "pull", "camera:left": "l/1.mp4", "camera:right": "r/1.mp4"},
    )
    episodes, problems = read(tmp_path)
    assert {id: list(episode.views) for id, episode in episodes.items()} == {
        "first": ["left", "right"],
        "l/1": ["left"],
    }
    gone = "there is no video 'r/1.mp4' in the dataset folder"
    assert problems == [Problem("missing video", "l/1", gone, kept=True)]


def test_a_path_that_leaves_the_folder_is_refused(tmp_path):
    outside = put_video(tmp_path / "outside.mp4")
    root = tmp_path / "data"
    put_video(root / "in.mp4")
    (root / "link.mp4").symlink_to(outside)
    (root / "linked").symlink_to(tmp_path)
    (root / "loop.mp4").symlink_to(root / "loop.mp4")
    wanted = [
        "../outside.mp4",
        "..\\outside.mp4",
        str(outside),
        "link",
        "linked/outside.mp4",
        "x/../../outside",
        "x/../in",
        "a\0b",
    ]
    lines(root / "labels.jsonl", *({"file": path, "task": "push"} for path in wanted), {"file": "in", "task": "push"})
    episodes, problems = read(root)
    assert list(episodes) == ["in"]
    rule = "is not a path inside the dataset folder (no '..', no absolute path, no link out of it)"
    refused = [problem for problem in problems if problem.kind == "path leaves the folder"]
    assert [problem.detail for problem in refused] == [
        *(f"{path!r} {rule}" for path in wanted),
        f"'link.mp4' {rule}",  # the walk meets the link and the loop again
        f"'loop.mp4' {rule}",
    ]
    assert len(problems) == len(refused)
    assert not any(problem.kept for problem in refused)


def test_links_into_the_hugging_face_cache_are_inside(tmp_path):
    blob = put_video(tmp_path / "datasets--x/blobs/1f")
    snapshot = tmp_path / "datasets--x/snapshots/main"
    snapshot.mkdir(parents=True)
    (snapshot / "a.mp4").symlink_to(os.path.relpath(blob, snapshot))
    (snapshot / "b.mp4").symlink_to(put_video(tmp_path / "elsewhere.mp4"))
    assert inside(snapshot, "a.mp4") == snapshot / "a.mp4"
    assert inside(snapshot, "b.mp4") is None


def test_rows_that_name_no_usable_video(tmp_path):
    put_video(tmp_path / "a.mp4")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "arrays.npz").touch()
    lines(
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
    assert [(problem.kind, problem.episode, problem.detail) for problem in problems] == [
        (
            "malformed line",
            "labels.jsonl:1",
            "not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))",
        ),
        ("malformed line", "labels.jsonl:2", "expected a JSON object, got [1, 2]"),
        ("missing video", "labels.jsonl:3", "the row should name a video file and has nothing"),
        ("missing video", "7", "the row should name a video file and has 7"),
        ("empty video", "empty", "'empty' has 0 bytes"),
        (
            "missing video",
            "arrays.npz",
            "there is no video 'arrays.npz' in the dataset folder; the file of that name is no video "
            "(.mp4, .mkv, .webm, .mov, .avi)",
        ),
        ("missing video", "x" * 300, f"there is no video {'x' * 300!r} in the dataset folder"),
        ("second row for a video", "a", "labels.jsonl:9 names the video of labels.jsonl:8 again and is left out"),
        ("second row for a video", "a", "labels.jsonl:10 names the video of labels.jsonl:8 again and is left out"),
        ("empty video", "empty", "'empty.mp4' has 0 bytes"),
    ]
    assert not any(problem.kept for problem in problems)


def test_a_name_that_cannot_be_printed_is_left_out(tmp_path):
    put_video(tmp_path / "bad\nname.mp4")
    episodes, problems = read(tmp_path)
    assert episodes == {}
    assert [(problem.kind, problem.episode, problem.kept) for problem in problems] == [
        ("empty instruction", "'bad\\nname'", True),
        ("unusable id", "'bad\\nname'", False),
    ]


def test_label_files_that_cannot_be_used_at_all(tmp_path):
    with pytest.raises(BadInput, match=r"the videos dataset: expected a folder that exists, got '.*nowhere'"):
        VideosReader(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"that is a file: was the folder around it meant\?"):
        VideosReader(put_video(tmp_path / "a.mp4"))
    with pytest.raises(BadInput, match=r"labels: expected a file, .* got 'lables.csv'"):
        VideosReader(tmp_path, labels="lables.csv")
    for name, content, complaint in (
        ("labels.json", b"{", "expected JSON, got Expecting property name"),
        ("labels.json", b"3", "expected a list of objects, or an object of objects by id, got a JSON int"),
        ("labels.csv", b"file\n\xff\n", "expected CSV in UTF-8, got"),
        ("labels.parquet", b"PAR1", "expected Parquet, got"),
        ("labels.txt", b"", "expected a file ending in .csv, .jsonl, .json, .parquet, got .txt"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=complaint):
            read(tmp_path, labels=name)


def test_the_first_label_file_counts_and_the_others_are_named(tmp_path):
    put_video(tmp_path / "a.mp4")
    (tmp_path / "labels.json").write_text('{"a": {"instruction": "push"}}')
    (tmp_path / "index.json").write_text('[{"id": "a", "instruction": "pull"}]')
    episodes, problems = read(tmp_path)
    assert episodes["a"].instruction == "push"
    detail = "not read, because labels.json is there; choose with labels="
    assert problems == [Problem("second label file", "index.json", detail, kept=True)]
    assert read(tmp_path, labels="index.json")[0]["a"].instruction == "pull"


def test_a_group_called_test_is_a_split(tmp_path):
    put_video(tmp_path / "a.mp4")
    lines(tmp_path / "labels.jsonl", {"file": "a", "task": "push", "group": "test"})
    origin = read(tmp_path)[0]["a"].origin
    assert (origin.split, origin.group) == ("test", "")


def test_broken_bytes_cost_one_line_and_halves_of_characters_none(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\xff\xfe\n{"a": "x\\ud83d y"}\n' + b"[" * 100_000 + b"\n")
    first, broken, half, deep = read_rows(path)
    assert first.fields == {"a": 1}
    assert (broken.episode, broken.kept, deep.episode) == ("rows.jsonl:2", False, "rows.jsonl:4")
    assert text(half.fields["a"]) == "x\ufffd y"
    assert count_rows(path) == 4


@pytest.mark.parametrize("unknown", [None, "", " ", "NaN", "n/a", float("nan")])
def test_unknown_is_unknown(unknown):
    for reading in (read_success, read_fraction, read_grade):
        assert reading("label", unknown) is None


def real(name, count):
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"the {name} videos are not on this machine")
    dataset = Dataset(VideosReader(folder))
    episodes = list(dataset)
    assert len(episodes) == dataset.expected() == count
    assert len({episode.id for episode in episodes}) == count
    assert all(episode.instruction for episode in episodes)
    return dataset, episodes


def test_a_thousand_real_demonstrations():
    dataset, episodes = real("droid", 1000)
    assert len(dataset.problems) == 0
    assert len({episode.instruction for episode in episodes}) == 902
    assert episodes[0].id == "videos/0000"
    assert episodes[0].outcomes == ()
    assert len(episodes[0]) == 32


def test_real_rollouts_with_a_models_curve():
    dataset, episodes = real("roboarena", 188)
    assert [(row["problem"], row["episodes"], row["kept"]) for row in dataset.problems.rows()] == [
        ("clipped curve", 3, True)
    ]
    assert {(episode.outcome.source, episode.outcome.by) for episode in episodes} == {("model", "robometer")}
    assert all(len(episode.outcome.curve) == len(episode) for episode in episodes[:5])
    assert sorted({episode.origin.split for episode in episodes}) == ["test", "train"]


def test_events_and_a_curve_of_the_same_voucher_are_one_account(tmp_path):
    put_video(tmp_path / "a.mp4")
    good = {"kind": "dropped", "first": 3, "last": 5, "note": "slipped"}
    row = {"file": "a.mp4", "instruction": "x", "success": False, "source": "rule", "by": "me"}
    row |= {"curve": [0, 0.5], "curve_source": "rule", "curve_by": "me"}
    row |= {"events": [good, {"kind": "spill", "first": 9, "last": 2}, "nonsense"]}
    (tmp_path / "labels.jsonl").write_text(json.dumps(row))
    dataset = Dataset(VideosReader(tmp_path))
    (episode,) = dataset
    (account,) = episode.outcomes
    assert account.events == (Event("dropped", 3, 5, "slipped"),)
    assert account.curve.tolist() == [0, 0.5]
    assert account.success is False
    assert dataset.problems.counts[("bad label", True)] == 2
