import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demerit.data.dataset import SOURCES, DatasetReader
from demerit.data.formats.rbm import RbmReader
from demerit.errors import BadInput
from fakes.tiny_video import problem_facts, put_video, read_records, write_lines


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


def read(root):
    return read_records(RbmReader(str(root)))


def test_every_quality_in_every_format(tmp_path):
    root = tmp_path / "rbm"
    for name in "abcd":
        put_video(root / f"videos/{name}.mp4")
    write_lines(root / "1.jsonl", row("c", quality_label="failure", partial_success=0.25))
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


def test_paths_relative_to_the_label_file(tmp_path):
    put_video(tmp_path / "bridge/videos/a.mp4")
    put_video(tmp_path / "videos/b.mp4")
    write_lines(tmp_path / "bridge/rows.jsonl", row("a"), row("b"))
    episodes, problems = read(tmp_path)
    assert (list(episodes), problems) == (["a", "b"], [])


def test_rows_that_cannot_be_used(tmp_path):
    root = tmp_path / "rbm"
    put_video(tmp_path / "private.mp4")
    (root / "videos").mkdir(parents=True)
    (root / "videos/array.npz").touch()
    write_lines(
        root / "rows.jsonl",
        "nonsense",
        row("gone"),
        row("up", frames="../private.mp4"),
        row("absolute", frames=str(tmp_path / "private.mp4")),
        row("none", frames=None),
        row("bytes", frames={"bytes": "x"}),
        row("array", frames="videos/array.npz"),
    )
    episodes, problems = read(root)
    assert episodes == {}
    assert problem_facts(problems) == [
        ("malformed line", "rows.jsonl:1", False),
        ("missing video", "gone", False),
        *[("path leaves the folder", id, False) for id in ("up", "absolute")],
        *[("missing video", id, False) for id in ("none", "bytes", "array")],
    ]


def test_rows_with_bad_labels(tmp_path):
    put_video(tmp_path / "videos/a.mp4")
    labels = {"quality_label": "great", "partial_success": 80, "is_robot": "maybe"}
    write_lines(tmp_path / "rows.jsonl", row("a", **labels), row(None, frames="videos/a.mp4", task=""))
    episodes, problems = read(tmp_path)
    assert list(episodes) == ["a", "videos/a"]
    assert (episodes["a"].outcomes, episodes["a"].origin.embodiment) == ((), "")
    assert episodes["a"].origin.tags["quality"] == "great"
    assert problem_facts(problems) == [
        *[("bad label", "a", True)] * 3,
        ("absent id", "videos/a", True),
        ("empty instruction", "videos/a", True),
    ]


def test_a_broken_file_does_not_stop_the_others(tmp_path):
    put_video(tmp_path / "videos/a.mp4")
    (tmp_path / "1.parquet").write_bytes(b"not parquet")
    (tmp_path / "2.json").write_text('{"a": 1}')
    write_lines(tmp_path / "3.jsonl", row("a"))
    episodes, problems = read(tmp_path)
    assert list(episodes) == ["a"]
    assert problem_facts(problems) == [("unreadable manifest", name, False) for name in ("1.parquet", "2.json")]
    assert RbmReader(tmp_path).expected() is None
    with pytest.raises(BadInput, match="RBM"):
        RbmReader(tmp_path / "videos")  # a folder without rows
