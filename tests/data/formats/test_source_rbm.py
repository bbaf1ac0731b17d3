import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demerit.data.dataset import SOURCES, DatasetReader, Problem
from demerit.data.episode import Episode
from demerit.data.formats.rbm import RbmReader
from demerit.errors import BadInput
from fakes.tiny_video import put_video


def row(id, **cells):
    return {
        "id": id,
        "task": "lift the cup",
        "lang_vector": [0.1] * 4,
        "data_source": "oxe_bridge",
        "frames": f"videos/{id}.mp4",
        "is_robot": True,
        "quality_label": "successful",
        "partial_success": None,
        **cells,
    }


def fill(root, *rows, name="rows.jsonl"):
    lines = [given if isinstance(given, str) else json.dumps(given) for given in rows]
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("\n".join(lines))


def read(root):
    records = list(RbmReader(str(root)).records())
    episodes = {record.id: record for record in records if isinstance(record, Episode)}
    return episodes, [record for record in records if isinstance(record, Problem)]


def test_every_quality_in_every_format(tmp_path):
    root = tmp_path / "rbm"
    for name in "abcd":
        put_video(root / f"videos/{name}.mp4")
    fill(root, row("c", quality_label="failure", partial_success=0.25), name="1.jsonl")
    table = [row("b", quality_label="suboptimal", partial_success=0.5), row("a", is_robot=False)]
    pq.write_table(pa.Table.from_pylist(table), root / "2.parquet")
    (root / "3.json").write_text(json.dumps([row("d", data_source="", quality_label=None)]))
    (root / "dataset_info.json").write_text('{"citation": ""}')
    reader = SOURCES.factory("rbm")(str(root))
    assert isinstance(reader, DatasetReader)
    assert (reader.name, reader.expected()) == ("rbm", 4)

    episodes, problems = read(root)
    assert problems == []
    labels = {id: e.outcome and (e.outcome.success, e.outcome.progress) for id, e in episodes.items()}
    assert labels == {"c": (False, 0.25), "b": (False, 0.5), "a": (True, None), "d": None}
    assert (episodes["a"].outcome.source, episodes["a"].outcome.by) == ("rule", "rbm quality_label")
    assert {id: e.origin.embodiment for id, e in episodes.items()} == {"c": "", "b": "", "a": "human", "d": ""}
    assert episodes["b"].origin.tags == {"data_source": "oxe_bridge", "quality": "suboptimal"}
    assert episodes["b"].origin.dataset == "rbm/oxe_bridge"
    assert (episodes["d"].origin.dataset, episodes["d"].origin.tags) == ("rbm", {})
    assert episodes["a"].instruction == "lift the cup"
    assert len(episodes["a"]) == 4


def test_paths_may_be_relative_to_the_file_that_names_them(tmp_path):
    put_video(tmp_path / "bridge/videos/a.mp4")
    put_video(tmp_path / "videos/b.mp4")
    fill(tmp_path, row("a"), row("b"), name="bridge/rows.jsonl")
    episodes, problems = read(tmp_path)
    assert (list(episodes), problems) == (["a", "b"], [])


def test_rows_that_cannot_be_used(tmp_path):
    root = tmp_path / "rbm"
    put_video(tmp_path / "private.mp4")
    (root / "videos").mkdir(parents=True)
    (root / "videos/array.npz").touch()
    wanted = [
        "nonsense",
        row("gone"),
        row("up", frames="../private.mp4"),
        row("absolute", frames=str(tmp_path / "private.mp4")),
        row("none", frames=None),
        row("bytes", frames={"bytes": "x"}),
        row("array", frames="videos/array.npz"),
    ]
    fill(root, *wanted)
    episodes, problems = read(root)
    assert episodes == {}
    rule = "is not a path inside the dataset folder (no '..', no absolute path, no link out of it)"
    found = [(problem.kind, problem.episode, problem.detail) for problem in problems]
    assert found == [
        ("malformed line", "rows.jsonl:1", "not JSON (Expecting value: line 1 column 1 (char 0))"),
        ("missing video", "gone", "there is no video 'videos/gone.mp4' in the dataset folder"),
        ("path leaves the folder", "up", f"'../private.mp4' {rule}"),
        ("path leaves the folder", "absolute", f"{str(tmp_path / 'private.mp4')!r} {rule}"),
        ("missing video", "none", "the row should name a video file and has nothing"),
        ("missing video", "bytes", "the row should name a video file and has {'bytes': 'x'}"),
        (
            "missing video",
            "array",
            "there is no video 'videos/array.npz' in the dataset folder; the file of that name is no video "
            "(.mp4, .mkv, .webm, .mov, .avi)",
        ),
    ]
    assert not any(problem.kept for problem in problems)


def test_rows_that_are_kept_with_less(tmp_path):
    put_video(tmp_path / "videos/a.mp4")
    labels = {"quality_label": "great", "partial_success": 80, "is_robot": "maybe"}
    fill(tmp_path, row("a", **labels), row(None, frames="videos/a.mp4", task=""))
    episodes, problems = read(tmp_path)
    assert list(episodes) == ["a", "videos/a"]
    assert (episodes["a"].outcomes, episodes["a"].origin.embodiment) == ((), "")
    assert episodes["a"].origin.tags["quality"] == "great"
    percent = "got 80 (a percentage? divide by 100 in the file, nothing is rescaled here)"
    quality = "quality_label: expected one of successful, suboptimal, failure, got 'great'"
    robot = "is_robot: expected true or false (also yes/no, 1/0, success/failure), got 'maybe'"
    assert problems == [
        Problem("bad label", "a", quality, kept=True),
        Problem("bad label", "a", f"partial_success: expected a number from 0 to 1, {percent}", kept=True),
        Problem("bad label", "a", robot, kept=True),
        Problem("absent id", "videos/a", "rows.jsonl:2 has no id: the path is used", kept=True),
        Problem("empty instruction", "videos/a", "rows.jsonl:2 has no task", kept=True),
    ]


def test_one_broken_file_costs_only_itself(tmp_path):
    put_video(tmp_path / "videos/a.mp4")
    (tmp_path / "1.parquet").write_bytes(b"not parquet")
    (tmp_path / "2.json").write_text('{"a": 1}')
    fill(tmp_path, row("a"), name="3.jsonl")
    episodes, problems = read(tmp_path)
    assert list(episodes) == ["a"]
    assert [(problem.kind, problem.episode, problem.kept) for problem in problems] == [
        ("unreadable manifest", "1.parquet", False),
        ("unreadable manifest", "2.json", False),
    ]
    assert RbmReader(tmp_path).expected() is None


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"the RBM dataset: expected a file ending in .jsonl, .parquet, .json, got"):
        RbmReader(tmp_path)
