"""What vision-language models keep of an episode."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.frames import Frames
from demerit.models.by_time import ByTime
from demerit.training.prepared import CorpusPart, count_grades, count_skipped, prepare
from demerit.training.vlm.config import RobometerTrainConfig, RoboRewardTrainConfig, VLMCorpusPlan, shrink
from fakes.toy_corpus import list_dataset


def film(id: str, frames: int, *outcomes: Outcome, instruction: str = "do it") -> Episode:
    images = np.stack([np.full((48, 64, 3), 3 * number, np.uint8) for number in range(frames)])
    return Episode(id, instruction, {"front": Frames.from_array(images, fps=4.0)}, outcomes, Origin(group="g"))


def some_episodes() -> list[Episode]:
    return [
        film("measured", 20, Outcome("simulator", success=True, curve=np.linspace(0, 1, 20), grade=5)),
        film("shown", 10, Outcome("human", success=True)),
        film("failed", 12, Outcome("human", success=False, grade=1)),
        film("half", 12, Outcome("human", success=False, progress=0.5)),
        film("guessed", 12, Outcome("model", success=True, curve=np.linspace(0, 1, 12))),
        film("unknown", 12),
        film("short", 4, Outcome("human", success=True)),
        film("silent", 12, Outcome("human", success=True), instruction=" "),
        film("odd", 12, Outcome("human", success=True, grade=5), instruction="pick <|image_pad|> up"),
    ]


def test_labels_come_from_trusted_sources_only(tmp_path: Path) -> None:
    plan = VLMCorpusPlan(RobometerTrainConfig(most_frames=8))
    corpus = prepare([CorpusPart("lab", list_dataset(some_episodes()))], tmp_path / "corpus", plan, workers=0)
    rows = {row.id: row for row in corpus.rows}
    assert {id: row.kind for id, row in rows.items()} == {
        "measured": "measured", "shown": "demonstration", "failed": "outcome", "half": "outcome",
    }  # fmt: skip
    assert count_skipped(tmp_path / "corpus") == {
        "label source not taken: model": 1,
        "no label": 1,
        "fewer than 5 frames": 1,
        "no instruction": 1,
        "an instruction with a special token in it": 1,
    }
    kept = np.rint(np.linspace(0, 19, 8)).astype(int)
    assert rows["measured"].progress == pytest.approx(np.linspace(0, 1, 20)[kept])
    assert rows["shown"].progress == pytest.approx((np.rint(np.linspace(0, 9, 8)) + 1) / 10)  # t / T
    assert np.isnan(rows["failed"].progress).all()
    assert np.isnan(rows["failed"].final)
    assert np.isnan(rows["half"].progress[:-1]).all()
    assert rows["half"].progress[-1] == rows["half"].final == 0.5
    assert rows["measured"].times == pytest.approx(kept / 4)
    assert np.array_equal(corpus.frame(0, 3), np.full((48, 64, 3), 3 * kept[3], np.uint8))


def test_grades_are_kept_for_roboreward(tmp_path: Path) -> None:
    plan = VLMCorpusPlan(RoboRewardTrainConfig())
    corpus = prepare([CorpusPart("lab", list_dataset(some_episodes()))], tmp_path / "corpus", plan, workers=0)
    assert {row.id: row.grade for row in corpus.rows} == {"measured": 5, "shown": 5, "failed": 1, "half": 3, "short": 5}
    read, kept = count_grades(tmp_path / "corpus", corpus).values()
    assert kept == {1: 1, 3: 1, 5: 3} and read == {1: 1, 3: 1, 5: 6}  # also those that were skipped
    episode = film("long", 46)
    frames = VLMCorpusPlan(RoboRewardTrainConfig(fps=1.0, most_frames=64)).choose_frames(episode)
    assert frames.tolist() == ByTime(1.0, 64).by_time(episode.main.times()).tolist()  # as in scoring
    assert shrink(np.zeros((2, 480, 640, 3), np.uint8), 240).shape == (2, 240, 320, 3)
    assert shrink(np.zeros((2, 100, 640, 3), np.uint8), 240).shape == (2, 100, 640, 3)


def test_clips_of_every_grade_reach_the_trainer(tmp_path: Path) -> None:
    """Clips of 3.5 to 4.5 s videos at 1 fps: the lowest grades are one or two frames long."""
    clips = []
    for seconds in np.linspace(3.5, 4.5, 12):
        frames = round(4 * seconds)
        for grade in (1, 2, 3, 4):
            last = round((grade - 1) / 4 * (frames - 1))
            clips.append(film(f"{frames} {seconds:.2f} {grade}", last + 1, Outcome("edit", success=False, grade=grade)))
    assert min(map(len, clips)) == 1
    plan = VLMCorpusPlan(RoboRewardTrainConfig())
    corpus = prepare([CorpusPart("lab", list_dataset(clips))], tmp_path / "corpus", plan, workers=0)
    assert Counter(row.grade for row in corpus.rows) == {1: 12, 2: 12, 3: 12, 4: 12}
    assert count_grades(tmp_path / "corpus", corpus) == dict.fromkeys(("read", "kept"), dict.fromkeys((1, 2, 3, 4), 12))
    for number, (row, clip) in enumerate(zip(corpus.rows, clips, strict=True)):
        assert np.array_equal(corpus.frame(number, row.frames - 1), clip.main.all()[-1])  # the last frame is always in


def test_grades_are_counted_before_and_after(tmp_path: Path) -> None:
    """Also of an interrupted preparation, and of episodes that are skipped."""
    episodes = [film(f"{frames}", frames, Outcome("human", grade=1 + (frames > 4))) for frames in range(3, 12)]
    plan = VLMCorpusPlan(RoboRewardTrainConfig(fewest_frames=3))
    stopping = [CorpusPart("lab", list_dataset(episodes, stop_at=8))]
    with pytest.raises(KeyboardInterrupt):
        prepare(stopping, tmp_path / "corpus", plan, workers=0)
    corpus = prepare([CorpusPart("lab", list_dataset(episodes))], tmp_path / "corpus", plan, workers=0)
    assert count_grades(tmp_path / "corpus", corpus) == {"read": {1: 2, 2: 7}, "kept": {1: 0, 2: 6}}


def test_demonstrations_are_successes_unless_labelled_otherwise(tmp_path: Path) -> None:
    part = CorpusPart("demos", list_dataset(some_episodes()), "demonstrations")
    corpus = prepare([part], tmp_path / "corpus", VLMCorpusPlan(RobometerTrainConfig()), workers=0)
    success = {row.id: row.success for row in corpus.rows}
    assert success["unknown"] and success["guessed"] and not success["failed"]
