import json

import pytest

from demerit.data.dataset import SOURCES, DatasetReader, Problem
from demerit.data.episode import Episode
from demerit.data.formats.roboreward import RoboRewardReader, original_video
from demerit.data.frames import short_hash
from demerit.errors import BadInput, UnknownName
from fakes.tiny_video import problem_facts, put_video

RATIONALE = "The robot dropped the cup. ANSWER: TRUE"


def row(file_name, task="lift the cup", reward=4, **more):
    return {"file_name": file_name, "task": task, "reward": reward, "gpt5_mini_check": RATIONALE, **more}


def fill(root, **splits):
    for split, rows in splits.items():
        (root / split).mkdir(parents=True, exist_ok=True)
        lines = [given if isinstance(given, str) else json.dumps(given) for given in rows]
        (root / split / "metadata.jsonl").write_text("\n".join(lines))


def read(root, **options):
    records = list(RoboRewardReader(str(root), **options).records())
    return [r for r in records if isinstance(r, Episode)], [r for r in records if isinstance(r, Problem)]


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
    vouchers = [(e.origin.split, e.outcome.source, e.outcome.by) for e in episodes[::5]]
    assert vouchers == [
        ("train", "model", "roboreward"),
        ("val", "model", "roboreward"),
        ("test", "human", "roboreward"),
    ]
    assert [episode.id for episode in read(root, split="val")[0]] == [named("val", f"bridge/{g}") for g in range(1, 6)]
    origin = episodes[0].origin
    assert (origin.dataset, origin.group, origin.tags) == ("RoboReward/bridge", "bridge/1", {"subset": "bridge"})
    assert len(episodes[0]) == 4


def test_the_rationale_is_only_in_the_note(tmp_path):
    put_video(tmp_path / "test/bridge/1.mp4")
    fill(tmp_path, test=[row("bridge/1.mp4", another_check=RATIONALE)])
    (episode,), _ = read(tmp_path)
    assert episode.outcome.note == RATIONALE
    seen = [episode.id, episode.instruction, repr(episode.views), repr(episode.origin), repr(episode.signals)]
    assert not any("dropped" in words or "ANSWER" in words for words in seen)


def test_one_video_with_several_instructions(tmp_path):
    put_video(tmp_path / "train/bridge/1.mp4")
    rows = [row("bridge/1.mp4"), row("bridge/1.mp4", task="drop the cup", reward=1)]
    fill(tmp_path, train=rows)
    episodes, problems = read(tmp_path)
    assert problems == []
    ids = [named("train", "bridge/1"), named("train", "bridge/1", "drop the cup")]
    assert [episode.id for episode in episodes] == ids
    assert {episode.origin.group for episode in episodes} == {"bridge/1"}
    fill(tmp_path, train=rows[::-1])
    assert [episode.id for episode in read(tmp_path)[0]] == ids[::-1]


def test_repeated_rows(tmp_path):
    put_video(tmp_path / "train/bridge/1.mp4")
    fill(tmp_path, train=[row("bridge/1.mp4"), row("bridge/1.mp4"), row("bridge/1.mp4", reward=2)])
    episodes, problems = read(tmp_path)
    assert [episode.outcome.grade for episode in episodes] == [4]
    assert problem_facts(problems) == [
        ("repeated row", episodes[0].id, True),
        ("contradicting grades", episodes[0].id, False),
    ]


@pytest.mark.parametrize(
    ("stem", "group"),
    [
        ("bridge/ep_12", "bridge/ep_12"),
        ("bridge/ep_12_clip_3", "bridge/ep_12"),
        ("bridge/ep_12_clip3", "bridge/ep_12"),
        ("bridge/ep_12-clip-0-40", "bridge/ep_12"),
        ("bridge/ep_12_truncated_50pct", "bridge/ep_12"),
        ("bridge/ep_12_Trim", "bridge/ep_12"),
        ("bridge/hair_clip_on_table", "bridge/hair_clip_on_table"),
        ("bridge/party", "bridge/party"),
        ("bridge/_clip_3", "bridge/_clip_3"),
    ],
)
def test_original_video(stem, group):
    assert original_video(stem) == group


@pytest.mark.parametrize("reward", [0, 2.5, "good", True, None])
def test_a_bad_grade_is_unknown(tmp_path, reward):
    put_video(tmp_path / "train/bridge/1.mp4")
    fill(tmp_path, train=[row("bridge/1.mp4", reward=reward)])
    (episode,), problems = read(tmp_path)
    assert episode.outcomes == ()
    assert problem_facts(problems) == [("bad label", episode.id, True)]


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
    with pytest.raises(UnknownName, match="tst"):
        RoboRewardReader(tmp_path, split="tst")
    with pytest.raises(BadInput, match="test"):
        RoboRewardReader(tmp_path, split="test")
    with pytest.raises(BadInput, match="folder above"):
        RoboRewardReader(tmp_path / "train")
