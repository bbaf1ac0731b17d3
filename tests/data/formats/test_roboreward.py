import pytest

from demerit.data.dataset import SOURCES, DatasetReader
from demerit.data.episode import name_source
from demerit.data.formats.roboreward import RoboRewardReader, original_video
from demerit.data.frames import short_hash
from demerit.errors import BadInput, UnknownName
from fakes.tiny_video import problem_facts, put_video, read_records, write_lines

RATIONALE = "The robot dropped the cup. ANSWER: TRUE"


def row(file_name, task="lift the cup", reward=4, **more):
    return {"file_name": file_name, "task": task, "reward": reward, "gpt5_mini_check": RATIONALE, **more}


def fill(root, **splits):
    for split, rows in splits.items():
        write_lines(root / split / "metadata.jsonl", *rows)


def read(root, **options):
    episodes, problems = read_records(RoboRewardReader(str(root), **options))
    return list(episodes.values()), problems


def named(split, stem, task="lift the cup"):
    return f"{split}/{stem}#{short_hash(task.encode())[:8]}"


def test_grades_and_label_sources(tmp_path):
    root = tmp_path / "RoboReward"
    for split in ("train", "val", "test"):
        for grade in range(1, 6):
            put_video(root / split / f"bridge/{grade}.mp4")
        fill(root, **{split: [row(f"bridge/{grade}.mp4", reward=grade) for grade in range(1, 6)]})
    reader = SOURCES.factory("roboreward")(str(root))
    assert isinstance(reader, DatasetReader)
    assert (reader.name, reader.expected()) == ("RoboReward", 15)

    episodes, problems = read(root)
    assert problems == []
    assert [episode.origin.split for episode in episodes] == ["train"] * 5 + ["val"] * 5 + ["test"] * 5
    labels = [(e.outcome.grade, e.outcome.progress, e.outcome.success) for e in episodes[:5]]
    assert labels == [(1, 0.0, False), (2, 0.25, False), (3, 0.5, False), (4, 0.75, False), (5, 1.0, True)]
    sources = [(e.outcome.source, name_source(e.outcome)) for e in episodes[::5]]
    assert sources == [("model", "model:validated"), ("model", "model:validated"), ("human", "human")]
    assert [e.id for e in read(root, split="validation")[0]] == [e.id for e in read(root, split="val")[0]]
    assert [episode.id for episode in read(root, split="val")[0]] == [named("val", f"bridge/{g}") for g in range(1, 6)]
    origin = episodes[0].origin
    assert (origin.dataset, origin.group) == ("RoboReward/bridge", "bridge/1")
    assert (origin.embodiment, origin.tags) == ("WidowX", {"subset": "bridge", "perspective": "exocentric"})
    assert len(episodes[0]) == 4


def test_the_rationale_is_only_in_the_note(tmp_path):
    put_video(tmp_path / "test/bridge/1.mp4")
    fill(tmp_path, test=[row("bridge/1.mp4", another_check=RATIONALE)])
    (episode,), _ = read(tmp_path)
    assert episode.outcome.note == RATIONALE
    seen = [episode.id, episode.instruction, repr(episode.views), repr(episode.origin), repr(episode.signals)]
    assert not any("dropped" in words or "ANSWER" in words for words in seen)


def test_rows_of_one_video(tmp_path):
    put_video(tmp_path / "train/bridge/1.mp4")
    rows = [row("bridge/1.mp4"), row("bridge/1.mp4", task="drop the cup", reward=1)]
    ids = [named("train", "bridge/1"), named("train", "bridge/1", "drop the cup")]
    for order in (1, -1):
        fill(tmp_path, train=rows[::order])
        episodes, problems = read(tmp_path)
        assert ([episode.id for episode in episodes], problems) == (ids[::order], [])
        assert {episode.origin.group for episode in episodes} == {"bridge/1"}
    fill(tmp_path, train=[rows[0], rows[0], row("bridge/1.mp4", reward=2)])
    episodes, problems = read(tmp_path)
    assert [episode.outcome.grade for episode in episodes] == [4]
    assert problem_facts(problems) == [("repeated row", ids[0], True), ("contradicting grades", ids[0], False)]


def test_original_video():
    for clip in ("", "_clip_3", "_clip3", "-clip-0-40", "_truncated_50pct", "_Trim"):
        assert original_video(f"bridge/ep_12{clip}") == "bridge/ep_12"
    for other in ("bridge/hair_clip_on_table", "bridge/party", "bridge/_clip_3"):
        assert original_video(other) == other


def test_a_bad_grade_is_unknown(tmp_path):
    put_video(tmp_path / "train/bridge/1.mp4")
    rewards = (0, 2.5, "good", True, None)
    fill(tmp_path, train=[row("bridge/1.mp4", task=f"task {reward}", reward=reward) for reward in rewards])
    episodes, problems = read(tmp_path)
    assert [episode.outcomes for episode in episodes] == [()] * 5
    assert problem_facts(problems) == [("bad label", episode.id, True) for episode in episodes]


def test_rows_that_cannot_be_used(tmp_path):
    put_video(tmp_path / "train/bridge/1.mp4")
    put_video(tmp_path / "val/bridge/private.mp4")
    rows = [
        "{",
        row("bridge/2.mp4"),
        row("../val/bridge/private.mp4"),
        row("bridge/../../val/bridge/private.mp4"),
        row(str(tmp_path / "val/bridge/private.mp4")),
        {"task": "lift"},
        row("bridge/1.mp4", task=" "),
    ]
    fill(tmp_path, train=rows)
    (episode,), problems = read(tmp_path)
    assert episode.instruction == ""
    assert problem_facts(problems) == [
        ("malformed line", "train/metadata.jsonl:1", False),
        ("missing video", "train/metadata.jsonl:2", False),
        *(("path leaves the folder", f"train/metadata.jsonl:{line}", False) for line in (3, 4, 5)),
        ("missing video", "train/metadata.jsonl:6", False),
        ("empty instruction", episode.id, True),
    ]


def test_missing_splits(tmp_path):
    fill(tmp_path, train=[])
    assert read(tmp_path) == ([], [])
    for folder, split, error, word in [
        (tmp_path, "tst", UnknownName, "tst"),
        (tmp_path, "test", BadInput, "test"),
        (tmp_path / "train", None, BadInput, "folder above"),
    ]:
        with pytest.raises(error, match=word):
            RoboRewardReader(folder, split=split)
