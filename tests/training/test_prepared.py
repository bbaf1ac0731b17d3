"""The prepared corpus: what is kept, that it resumes, and what is refused."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.dataset import Record
from demerit.data.decode import take_ahead
from demerit.data.episode import NOT_A_MODEL, Episode, Origin, Outcome, Preference
from demerit.data.frames import Frames
from demerit.data.video import EXACT, VideoClip, write_video
from demerit.errors import BadInput, StoreError, UnknownName, UnreadableVideo
from demerit.training.prepared import (
    CorpusChoice,
    CorpusPart,
    CorpusRow,
    PreparedCorpus,
    collect_seen,
    count_skipped,
    hash_rows,
    match_preferences,
    open_corpus,
    prepare,
)
from demerit.training.rewind.data import CompactCorpusPlan
from demerit.training.vlm.config import RobometerTrainConfig, RoboRewardTrainConfig, VLMCorpusPlan
from fakes.paths import TESTS
from fakes.toy_corpus import list_dataset

PLAN = VLMCorpusPlan(RobometerTrainConfig(most_frames=8))
FAILED = Outcome("human", success=False)


def rollout(id: str, *outcomes: Outcome, instruction: str = "do it") -> Episode:
    """Eight frames; other ids have other pixels."""
    images = np.stack([np.full((8, 8, 3), 3 * number, np.uint8) for number in range(8)])
    images += np.uint8(sum(id.encode()) % 100)
    return Episode(id, instruction, {"front": Frames.from_array(images, fps=4.0)}, outcomes or (FAILED,), Origin())


def prepare_list(
    folder: Path, *records: Record, plan: Any = PLAN, stop_at: int | None = None, storage: Any = "raw"
) -> PreparedCorpus:
    return prepare([CorpusPart("lab", list_dataset(records, stop_at))], folder, plan, workers=0, storage=storage)


def same(one: PreparedCorpus, other: PreparedCorpus) -> bool:
    return one.identity == other.identity and all(
        np.array_equal(one.frames(number).all(), other.frames(number).all()) for number in range(len(one.rows))
    )


@pytest.mark.parametrize("torn", ["", "frames", "episodes.jsonl"])
@pytest.mark.parametrize("plan", [PLAN, CompactCorpusPlan(64)], ids=["vlm", "compact"])
@pytest.mark.parametrize("storage", ["raw", "video"])
def test_an_interrupted_corpus_resumes_and_ends_the_same(tmp_path: Path, plan: Any, torn: str, storage: Any) -> None:
    curve = Outcome("simulator", success=True, curve=np.linspace(0, 1, 8))
    episodes = [rollout(f"e{number}", curve) for number in range(20)]
    whole = prepare_list(tmp_path / "whole", *episodes, plan=plan, storage=storage)
    with pytest.raises(KeyboardInterrupt):
        prepare_list(tmp_path / "cut", *episodes, plan=plan, stop_at=17, storage=storage)
    assert not (tmp_path / "cut").exists()
    if torn:  # the power went off in the middle of a write
        path = tmp_path / "cut.partial" / (torn if torn != "frames" else f"frames.{storage}")
        os.truncate(path, path.stat().st_size - 7)
    counted: list[int] = []
    part = CorpusPart("lab", list_dataset(episodes))
    resumed = prepare([part], tmp_path / "cut", plan, lambda progress: counted.append(progress.episodes), 0, storage)
    assert counted == list(range(17 if torn else 18, 21))
    assert same(resumed, whole)
    assert not (tmp_path / "cut.partial").exists()
    again = prepare([part], tmp_path / "cut", plan, lambda progress: pytest.fail("prepared twice"), 0, storage)
    assert same(again, whole)


# Storage


def film(path: Path, id: str, height: int = 36, width: int = 50) -> Episode:
    """Twelve frames of a video in which a bright square moves over a slope."""
    slope = np.add.outer(np.arange(height), np.arange(width))[..., None] + np.array([0, 40, 80])
    images = np.repeat(slope[None].astype(np.uint8), 12, axis=0)
    for number, image in enumerate(images):
        image[8:20, 3 * number : 3 * number + 12] = (230, 200, 60 + sum(id.encode()) % 100)
    write_video(path / f"{id}.mp4", images, encoding=EXACT)
    frames = Frames(VideoClip(str(path / f"{id}.mp4")))
    return Episode(id, "do it", {"front": frames}, (FAILED,), Origin())


@pytest.mark.parametrize("size", [(36, 50), (37, 51)])
def test_small_videos_show_what_raw_frames_show(tmp_path: Path, size: tuple[int, int]) -> None:
    episodes = [film(tmp_path, id, *size) for id in "abcd"]
    plan = VLMCorpusPlan(RobometerTrainConfig(most_frames=8))
    raw = prepare_list(tmp_path / "raw", *episodes, plan=plan)
    small = prepare_list(tmp_path / "small", *episodes, plan=plan, storage="video")
    part = CorpusPart("lab", list_dataset(episodes))
    crew = prepare([part], tmp_path / "crew", plan, workers=2, storage="video")
    assert (tmp_path / "crew" / "frames.video").read_bytes() == (tmp_path / "small" / "frames.video").read_bytes()
    assert crew.identity == small.identity != raw.identity and hash_rows(small.rows) == hash_rows(raw.rows)
    stored = (tmp_path / "small" / "frames.video").stat().st_size
    assert stored == sum(row.stored or 0 for row in small.rows) < raw.pixels.size / 2
    for number in range(4):
        exact, seen = raw.frames(number).all().astype(float), small.frames(number).all().astype(float)
        assert exact.shape == seen.shape and float(((exact - seen) ** 2).mean()) < 80
        # frames at random, repeated, backwards
        assert np.array_equal(small.frames(number).take([5, 1, 5, 0]), seen[[5, 1, 5, 0]])
    assert not small.pixels.size and small.is_encoded and not raw.is_encoded


def test_originals_are_read_in_place(tmp_path: Path) -> None:
    episodes = [film(tmp_path, id, 80, 60) for id in "ab"]
    plan = VLMCorpusPlan(RobometerTrainConfig(most_frames=8, shorter_side=32))
    raw = prepare_list(tmp_path / "raw", *episodes, plan=plan)
    kept = prepare_list(tmp_path / "kept", *episodes, plan=plan, storage="originals")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "episodes.jsonl",
        "preferences.jsonl",
        "prepared.json",
    ]
    for number in range(2):
        assert np.array_equal(kept.frames(number).all(), raw.frames(number).all())
    opened = PreparedCorpus.load(tmp_path / "kept")
    assert opened.identity == kept.identity
    read = dict(take_ahead((("a", [opened.frames(0).select([2, 3])]),), workers=1))
    assert np.array_equal(read["a"][0], raw.frames(0).take([2, 3]))
    (tmp_path / "a.mp4").unlink()
    with pytest.raises(UnreadableVideo, match=r"a\.mp4"):
        list(take_ahead((("a", [opened.frames(0).select([2, 3])]),), workers=1))
    with pytest.raises(BadInput, match="in a file"):  # nothing could be read again
        prepare_list(tmp_path / "memory", rollout("a"), storage="originals")


def test_a_raw_corpus_of_an_earlier_version_is_opened_and_never_mixed(tmp_path: Path) -> None:
    episodes = [rollout(id) for id in "abc"]
    old = prepare_list(tmp_path / "old", *episodes)
    facts = json.loads((tmp_path / "old" / "prepared.json").read_text())
    assert facts.pop("storage") == "raw"
    (tmp_path / "old" / "prepared.json").write_text(json.dumps(facts))
    opened = prepare_list(tmp_path / "old", *episodes, storage="video")
    assert same(opened, old) and not opened.is_encoded
    prepare_list(tmp_path / "new", *episodes, storage="video")
    with pytest.raises(BadInput, match="storage"):
        prepare_list(tmp_path / "new", *episodes, storage="raw")
    with pytest.raises(UnknownName):
        prepare_list(tmp_path / "other", *episodes, storage="zip")
    with pytest.raises(KeyboardInterrupt):
        prepare_list(tmp_path / "cut", *episodes, stop_at=2)
    begun = tmp_path / "cut.partial" / "prepared.json"
    begun.write_text(
        json.dumps({name: value for name, value in json.loads(begun.read_text()).items() if name != "storage"})
    )
    with pytest.raises(BadInput, match="storage"):
        prepare_list(tmp_path / "cut", *episodes, storage="video")
    (tmp_path / "new" / "prepared.json").write_text(json.dumps({**facts, "storage": "later"}))
    with pytest.raises(BadInput, match="prepare it again"):
        PreparedCorpus.load(tmp_path / "new")


def test_a_damaged_small_video_is_named(tmp_path: Path) -> None:
    corpus = prepare_list(tmp_path / "corpus", rollout("a"), rollout("b"), storage="video")
    path = tmp_path / "corpus" / "frames.video"
    content = bytearray(path.read_bytes())
    content[corpus.rows[1].start :] = bytes(corpus.rows[1].stored or 0)
    path.write_bytes(content)
    opened = PreparedCorpus.load(tmp_path / "corpus")
    assert opened.frames(0).take([7]).shape == (1, 8, 8, 3)
    with pytest.raises(UnreadableVideo, match=r"frames\.video"):
        opened.frames(1).take([7])


@pytest.mark.slow
def test_preparing_in_parallel_survives_a_kill(tmp_path: Path) -> None:
    episodes = [film(tmp_path, f"e{number:02}") for number in range(16)]
    whole = prepare_list(tmp_path / "whole", *episodes, storage="video")
    script = f"""
import os, signal, sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS / "training")!r}, {str(TESTS.parent / "tools")!r}]
from pathlib import Path
from demerit.training.prepared import CorpusPart, prepare
from fakes.toy_corpus import list_dataset
from test_prepared import PLAN, film
folder = Path({str(tmp_path)!r})
episodes = [film(folder, f"e{{number:02}}") for number in range(16)]
def kill(progress):
    if progress.episodes == 7:
        os.kill(os.getpid(), signal.SIGKILL)
prepare([CorpusPart("lab", list_dataset(episodes))], folder / "cut", PLAN, kill, 2, "video")
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    counted: list[int] = []
    part = CorpusPart("lab", list_dataset(episodes))
    resumed = prepare([part], tmp_path / "cut", PLAN, lambda progress: counted.append(progress.episodes), 2, "video")
    assert counted == list(range(8, 17))
    assert same(resumed, whole)


def test_equal_ids_in_two_parts_are_two_episodes_also_after_an_interruption(tmp_path: Path) -> None:
    def parts(stop_at: int | None = None) -> list[CorpusPart]:
        episodes = [rollout(id) for id in "abc"]
        return [CorpusPart("lab", list_dataset(episodes)), CorpusPart("lab", list_dataset(episodes, stop_at))]

    whole = prepare(parts(), tmp_path / "whole", PLAN, workers=0)
    with pytest.raises(KeyboardInterrupt):
        prepare(parts(stop_at=2), tmp_path / "cut", PLAN, workers=0)
    resumed = prepare(parts(), tmp_path / "cut", PLAN, workers=0)
    assert [row.id for row in resumed.rows] == [*"abcabc"]
    assert same(resumed, whole)


def test_changed_labels_are_refused(tmp_path: Path) -> None:
    said = Preference("a", "b", "a", "human", why="closer")
    a, b = rollout("a"), rollout("b", Outcome("human", success=True, note="well done"))
    prepare_list(tmp_path / "corpus", a, b, said)
    renoted = rollout("b", Outcome("human", success=True, note="really", by="me"))
    prepare_list(tmp_path / "corpus", a, renoted, replace(said, why="nearer"))  # nothing to learn from has changed
    for changed in (
        (rollout("a", Outcome("human", success=True)), b, said),
        (rollout("a", Outcome("simulator", success=False)), b, said),
        (rollout("a", Outcome("human", success=False, curve=np.full(8, 0.5))), b, said),
        (rollout("a", instruction="do that"), b, said),
        (a, b, replace(said, verdict="b")),
    ):
        with pytest.raises(BadInput, match="'lab' changed"):
            prepare_list(tmp_path / "corpus", *changed)
    with pytest.raises(BadInput, match="most_frames"):
        prepare_list(tmp_path / "corpus", a, b, said, plan=VLMCorpusPlan(RobometerTrainConfig()))
    with pytest.raises(BadInput, match="parts"):
        prepare([CorpusPart("field", list_dataset([a, b, said]))], tmp_path / "corpus", PLAN, workers=0)
    with pytest.raises(KeyboardInterrupt):
        prepare_list(tmp_path / "cut", a, b, stop_at=1)
    with pytest.raises(BadInput, match="'lab' changed"):  # the unfinished corpus too
        prepare_list(tmp_path / "cut", a, rollout("b"))


def test_held_out_episodes_must_not_be_trained_on(tmp_path: Path) -> None:
    def split(*held_out: Episode, name: str = "later") -> PreparedCorpus:
        parts = [CorpusPart("lab", list_dataset([rollout("a"), rollout("b")]))]
        parts.append(CorpusPart(name, list_dataset(held_out), "held-out"))
        return prepare(parts, tmp_path / "corpus", PLAN, workers=0)

    with pytest.raises(BadInput, match="1 that are") as caught:
        split(replace(rollout("b"), id="x"), rollout("c"))  # equal instruction and pixels
    assert caught.value.what == "--held-out"
    with pytest.raises(BadInput, match="lab: b"):
        split(rollout("b", instruction="do that"), name="lab")
    assert list(tmp_path.iterdir()) == []
    made = split(rollout("b", instruction="do that"), rollout("c"))  # another dataset's b
    assert [row.split for row in made.rows] == ["train", "train", "held-out", "held-out"]


def test_a_corpus_is_opened_only_with_the_numbers_it_was_prepared_with(tmp_path: Path) -> None:
    graded = VLMCorpusPlan(RoboRewardTrainConfig(most_frames=8))
    episodes = [rollout(id, Outcome("human", success=False, grade=2)) for id in "ab"]
    prepare_list(tmp_path / "pairs", *episodes)
    prepare_list(tmp_path / "grades", *episodes, plan=graded)
    assert len(open_corpus(tmp_path / "pairs", PLAN).rows) == 2
    assert open_corpus(tmp_path / "grades", graded).rows[0].grade == 2
    for folder, plan, found in (
        ("pairs", VLMCorpusPlan(RobometerTrainConfig()), "most_frames 8"),
        ("pairs", VLMCorpusPlan(RobometerTrainConfig(most_frames=8, shorter_side=64)), "--set shorter_side="),
        ("grades", VLMCorpusPlan(RoboRewardTrainConfig(most_frames=8, fps=2)), "fps"),
        ("grades", PLAN, "robometer"),
        ("pairs", graded, "roboreward"),
        ("pairs", CompactCorpusPlan(64), "compact"),
    ):
        with pytest.raises(BadInput, match=found):
            open_corpus(tmp_path / folder, plan)
    (tmp_path / "pairs" / "prepared.json").write_text('{"most_fra')
    with pytest.raises(BadInput, match=r"prepared\.json"):
        open_corpus(tmp_path / "pairs", PLAN)


def test_a_damaged_corpus_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    prepare_list(folder, rollout("a"), rollout("b"), Preference("a", "b", "a", "human"))
    files = {name: (folder / name).read_bytes() for name in ("frames.raw", "episodes.jsonl", "preferences.jsonl")}
    first, second = files["episodes.jsonl"].splitlines(keepends=True)
    for name, content, found in (
        ("frames.raw", files["frames.raw"][:-1], "bytes"),
        ("episodes.jsonl", first + second[:-50], "line 2"),
        ("episodes.jsonl", first + b"[]\n", "line 2"),
        ("episodes.jsonl", first.replace(b'"height": 8', b'"height": "8"'), "line 1"),
        ("episodes.jsonl", second, "gaps"),
        ("episodes.jsonl", b"", "episodes"),
        ("preferences.jsonl", b'{"better": 1, "wor', "line 1"),
        ("preferences.jsonl", b'{"better": 0, "source": "human", "worse": 2}', "from 0 to 1"),
        ("preferences.jsonl", b'{"better": 1, "source": "human", "worse": 1}', "different"),
    ):
        (folder / name).write_bytes(content)
        with pytest.raises(BadInput, match=found):
            PreparedCorpus.load(folder)
        (folder / name).write_bytes(files[name])
    assert PreparedCorpus.load(folder).choices == (CorpusChoice(0, 1, "human"),)
    (folder / "preferences.jsonl").unlink()
    with pytest.raises(BadInput, match=r"preferences\.jsonl"):  # never trained without them silently
        PreparedCorpus.load(folder)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        prepare_list(tmp_path / "file" / "corpus", rollout("a"))
    with pytest.raises(BadInput, match="1 no label"):
        prepare_list(tmp_path / "none", replace(rollout("a"), outcomes=()))
    assert len(prepare_list(tmp_path / "none", rollout("a"), storage="video").rows) == 1  # nothing stood in the way


# Preferences


def compared() -> list[Record]:
    """Episodes a, b, c, other and last are kept in this order; b beats a, c beats b, and a beats b."""
    return [
        rollout("a"),
        rollout("b", Outcome("human", success=False, progress=0.5)),
        Preference("a", "b", "b", "human", why="closer", by="somebody"),
        Preference("a", "b", "tie", "human"),
        rollout("unlabelled", Outcome("model", success=True)),
        Preference("unlabelled", "a", "a", "human"),
        Preference("c", "b", "a", "simulator"),  # c comes later
        rollout("c", Outcome("human", success=True)),
        rollout("other", instruction="do that"),
        Preference("other", "a", "a", "human"),
        Preference("b", "c", "b", "model"),
        rollout("last", instruction="Do it!"),
        Preference("a", "b", "a", "rule"),
    ]


CHOICES = (CorpusChoice(1, 0, "human"), CorpusChoice(2, 1, "simulator"), CorpusChoice(0, 1, "rule"))
SKIPPED = {
    "label source not taken: model": 1,
    "preference: a tie": 1,
    "preference: an episode that is not in the corpus": 1,
    "preference: different instructions": 1,
    "preference: label source not taken: model": 1,
}


@pytest.mark.parametrize("workers", [0, 1])
def test_preferences_between_kept_episodes_are_kept(tmp_path: Path, workers: int) -> None:
    corpus = prepare([CorpusPart("lab", list_dataset(compared()))], tmp_path / "corpus", PLAN, workers=workers)
    assert [row.id for row in corpus.rows] == ["a", "b", "c", "other", "last"]
    assert corpus.choices == CHOICES
    assert count_skipped(tmp_path / "corpus") == SKIPPED
    assert b"somebody" not in b"".join(path.read_bytes() for path in (tmp_path / "corpus").iterdir())


def test_preferences_stay_within_a_split_and_a_dataset() -> None:
    lab, elsewhere = (CorpusPart(name, list_dataset([])) for name in ("lab", "elsewhere"))

    def row(id: str, split: str = "train", source: str = "lab") -> CorpusRow:
        nothing = np.zeros(1, np.float32)
        return CorpusRow(id, source, "do it", "outcome", False, nothing, nothing, split=split)

    rows = [row("a"), row("b"), row("x", "held-out"), row("y", "held-out"), row("z", source="elsewhere")]
    said = [Preference(*names, "human") for names in ("aba", "axa", "yxb", "azb")]
    skipped: Counter[str] = Counter()
    heard = [*((lab, preference) for preference in said), (elsewhere, said[0])]
    choices = match_preferences(heard, rows, skipped, NOT_A_MODEL)
    assert choices == [CorpusChoice(0, 1, "human"), CorpusChoice(2, 3, "human")]
    assert skipped == {"preference: across splits": 1, "preference: an episode that is not in the corpus": 2}
    assert not match_preferences(heard[:1], [*rows, row("b")], skipped, NOT_A_MODEL)
    assert skipped["preference: an id that several episodes have"] == 1


def test_preferences_are_part_of_the_identity(tmp_path: Path) -> None:
    said = Preference("a", "b", "a", "human")
    others = ((), (said,), (said, said), (replace(said, verdict="b"),), (replace(said, source="simulator"),))
    same = ((replace(said, verdict="tie"),), (Preference("b", "a", "b", "human"),))
    found = [
        prepare_list(tmp_path / str(at), rollout("a"), rollout("b"), *choices).identity
        for at, choices in enumerate((*others, *same))
    ]
    assert len(set(found)) == 5 and found[5:] == found[:2]


def test_preferences_survive_a_kill(tmp_path: Path) -> None:
    """Killed after they are written and before the folder has its name."""
    script = f"""
import os, signal, sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS / "training")!r}, {str(TESTS.parent / "tools")!r}]
from pathlib import Path
from demerit.training import prepared
from test_prepared import PLAN, compared, prepare_list
write = prepared.write_atomic
def kill(path, content):
    write(path, content)
    if path.name == "preferences.jsonl":
        os.kill(os.getpid(), signal.SIGKILL)
prepared.write_atomic = kill
prepare_list(Path({str(tmp_path)!r}) / "corpus", *compared())
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "corpus").exists()
    assert (tmp_path / "corpus.partial" / "preferences.jsonl").exists()
    corpus = prepare_list(tmp_path / "corpus", *compared())
    assert corpus.choices == CHOICES
    assert count_skipped(tmp_path / "corpus") == SKIPPED


def test_a_corpus_keeps_the_marks_of_its_episodes(tmp_path: Path) -> None:
    one, other = rollout("a"), rollout("b")
    corpus = prepare_list(tmp_path / "corpus", one)
    seen = collect_seen(PreparedCorpus.load(tmp_path / "corpus").rows)
    assert seen.complete and seen.has(replace(one, id="renamed")) and not seen.has(other)
    old = [replace(row, marks=()) for row in corpus.rows]  # prepared by an earlier version
    assert not collect_seen(old).complete and hash_rows(old) == hash_rows(corpus.rows)
