"""Long videos are read window by window: the same rewards, bounded memory, progress within an episode."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data import decode
from demerit.data.dataset import Dataset, ListReader
from demerit.data.decode import load_ahead
from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.video import VideoClip, write_video
from demerit.errors import DemeritError
from demerit.models import load_model
from demerit.models.compact import Compact, Engine
from demerit.models.protocol import RewardModel
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, ScoreProgress, score
from demerit.models.taught.features import stride_indices
from fakes.paths import REPO

LENGTH, WINDOW = 150, 64


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "long.mp4"
    images = np.random.default_rng(0).integers(0, 255, (LENGTH, 6, 8, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
    write_video(path, images)
    return path


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make windows small; the workers are told the size with each request."""
    monkeypatch.setattr(decode, "WINDOW", WINDOW)
    monkeypatch.setattr("demerit.models.compact.model.AT_ONCE", WINDOW)
    monkeypatch.setattr("demerit.models.taught.model.AT_ONCE", WINDOW)


def make_episodes(video: Path) -> list[Episode]:
    frames = Frames(VideoClip(str(video)))
    whole = Episode("whole", "open it", {"main": frames, "wrist": frames.select(np.arange(LENGTH)[::-1])})
    there_and_back = np.concatenate([np.arange(100), np.arange(100)[::-1], np.full(30, 7)])
    edited = {name: view.select(there_and_back) for name, view in whole.views.items()}
    short = {name: view.select(np.arange(9)) for name, view in whole.views.items()}
    return [whole, replace(whole, id="edited", views=edited), replace(whole, id="short", views=short)]


def score_all(
    model: RewardModel, episodes: Sequence[Episode], out: Path, workers: int
) -> tuple[RewardStore, list[tuple[float, dict[str, tuple[int, int]]]]]:
    seen = []

    def remember(progress: ScoreProgress) -> None:
        seen.append((progress.position, dict(progress.reading)))

    score(ScoreJob(model, Dataset(ListReader("long", list(episodes)), ""), out, batch=2, workers=workers), remember)
    return RewardStore(out), seen


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cameras", ["main", "all"])
def test_windows_change_no_reward_and_report_progress(
    video: Path, engine: Engine, tmp_path: Path, workers: int, cameras: str
) -> None:
    model, episodes = Compact(cameras, engine=engine), make_episodes(video)
    stored, seen = score_all(model, episodes, tmp_path / "rewards", workers)
    for found, expected in zip(stored, model.score(episodes), strict=True):
        assert np.array_equal(found.value, expected.value)
        assert found.success is not None and expected.success is not None
        assert np.array_equal(found.success, expected.success)
    positions = [position for position, _ in seen]
    assert positions == sorted(positions)
    assert any(0 < position < 1 for position in positions)
    total = LENGTH * (2 if cameras == "all" else 1)
    assert {"whole": (WINDOW, total)} in [reading for _, reading in seen]
    assert seen[-1] == (3, {})


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_taught_model_decodes_only_its_frames_and_scores_the_same(video: Path, tmp_path: Path, workers: int) -> None:
    folder = shutil.copytree(REPO / "tests" / "golden" / "taught", tmp_path / "taught")
    facts = json.loads((folder / "model.json").read_text("utf-8"))
    (folder / "model.json").write_text(json.dumps({**facts, "stride": 2}), "utf-8")
    model, episodes = load_model(str(folder)), make_episodes(video)[:1]
    stored, seen = score_all(model, episodes, tmp_path / "rewards", workers)
    (found,), (expected,) = list(stored), model.score(episodes)
    at = stride_indices(LENGTH, 2)
    assert np.array_equal(found.at, at)
    assert np.array_equal(found.value, expected.value)
    assert {"whole": (WINDOW, len(at))} in [reading for _, reading in seen]


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("workers", [0, 1])
def test_only_a_window_is_in_memory(video: Path, engine: Engine, workers: int) -> None:
    model = Compact(engine=engine)
    (whole, *_) = make_episodes(video)
    stream = load_ahead([whole], model.card.wanted, 1, workers, model.looks_at, model.prepare, lambda *_: None)
    for (loaded,) in stream:
        source = loaded.episode.main.source
        assert isinstance(source, decode._StreamedFrames)
        expected = whole.main.take_prepared(range(LENGTH), model.prepare)
        assert np.array_equal(source.take(range(LENGTH)), expected)
        assert np.array_equal(source.take([149, 3, 64, 64]), expected[[149, 3, 64, 64]])
        assert len(source.images) <= WINDOW
        assert len(loaded.episode.main) == LENGTH


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_video_that_breaks_later_is_unscored_with_the_reason(
    video: Path, engine: Engine, tmp_path: Path, workers: int
) -> None:
    content = bytearray(video.read_bytes())
    middle = content.index(b"mdat") + int(0.7 * (len(content) - content.index(b"mdat")))
    content[middle : middle + len(content) // 8] = bytes(len(content) // 8)
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(content)
    whole, _, short = make_episodes(video)
    bad = replace(whole, id="bad", views={"main": Frames(VideoClip(str(broken)))})
    with pytest.raises(DemeritError):
        bad.main.all()
    bad_reward, good_reward = score_all(Compact(engine=engine), [bad, short], tmp_path / "rewards", workers)[0]
    assert not bad_reward.scored
    assert "broken.mp4" in bad_reward.why_missing
    assert good_reward.scored
