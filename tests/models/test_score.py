"""Scoring: everything is scored once, what cannot be is explained, what changed is noticed."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.decode import load_ahead
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.data.store import Store
from demerit.data.video import VideoClip
from demerit.errors import BadEpisode, BadInput
from demerit.models import reward_store
from demerit.models.baselines import Clock
from demerit.models.protocol import ModelCard, example_card
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, ScoreProgress, rewards_folder, score


class Brightness:
    """A model that really looks: the mean brightness of the frames in its budget."""

    def __init__(self, card: ModelCard | None = None) -> None:
        self.card = card or example_card(name="brightness", frame_budget=5)
        self.batches: list[int] = []

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        self.batches.append(len(episodes))
        return [self._one(episode) for episode in episodes]

    def _one(self, episode: Episode) -> Reward:
        at = self.card.wanted(len(episode))
        value = episode.main.take(at).mean(axis=(1, 2, 3)) / 255
        return Reward(self.card.name, episode.id, at, value.astype(np.float32))


def run(model: object, source: Path | Dataset, out: Path, **options: object) -> tuple[ScoreProgress, dict[str, Reward]]:
    dataset = source if isinstance(source, Dataset) else open_dataset(f"videos:{source}")
    progress = score(ScoreJob(model, dataset, out, **options))  # type: ignore[arg-type]
    return progress, {reward.episode: reward for reward in RewardStore(out)}


@pytest.mark.parametrize("workers", [0, 2])
def test_decoding_processes_give_the_same_values(sample: Path, tmp_path: Path, workers: int) -> None:
    progress, rewards = run(Brightness(), sample, tmp_path / "r", workers=workers, batch=4)
    assert (progress.scored, progress.unscored, progress.frames) == (15, 0, 75)
    for episode in open_dataset(f"videos:{sample}"):
        truth = episode.main.take([0, 8, 16, 23, 31]).mean(axis=(1, 2, 3)) / 255
        assert rewards[episode.id].at.tolist() == [0, 8, 16, 23, 31]
        np.testing.assert_allclose(rewards[episode.id].value, truth, rtol=1e-6)


def test_only_new_and_changed_episodes_are_scored(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    for i in range(6):
        make_video(f"v/{i}.mp4", seed=i)
    model = Brightness()
    first, before = run(model, tmp_path / "v", tmp_path / "r", workers=0)
    again, _ = run(model, tmp_path / "v", tmp_path / "r", workers=0)
    assert (first.scored, again.scored, again.kept) == (6, 0, 6)
    make_video("v/3.mp4", seed=99)
    changed, after = run(model, tmp_path / "v", tmp_path / "r", workers=0)
    assert (changed.scored, changed.stale, changed.kept) == (1, 1, 5)
    assert before["3"].value.tolist() != after["3"].value.tolist()
    newer = Brightness(replace(model.card, revision="2"))
    assert run(newer, tmp_path / "v", tmp_path / "r", workers=0)[0].stale == 6


def test_unreadable_videos_are_unscored_with_the_reason(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    for i in range(4):
        make_video(f"v/{i}.mp4", seed=i)
    (tmp_path / "v" / "2.mp4").write_bytes(b"no video at all")
    for workers in (0, 2):
        progress, rewards = run(Brightness(), tmp_path / "v", tmp_path / f"r{workers}", workers=workers)
        assert (progress.scored, progress.unscored) == (3, 1)
        assert rewards["2"].why_missing and len(rewards["2"].value) == 0
    kept, _ = run(Brightness(), tmp_path / "v", tmp_path / "r0", workers=0)
    assert kept.kept == 4
    make_video("v/2.mp4", seed=2)
    mended, rewards = run(Brightness(), tmp_path / "v", tmp_path / "r0", workers=0)
    assert (mended.scored, mended.kept, rewards["2"].scored) == (1, 3, True)


class Moody(Brightness):
    """Fails as third-party code fails."""

    def _one(self, episode: Episode) -> Reward:
        if episode.id == "1":
            raise ZeroDivisionError("in some library")
        if episode.id == "2":
            return Reward(self.card.name, episode.id, [0], [7.0])  # type: ignore[arg-type]
        return super()._one(episode)


def test_an_error_affects_only_its_own_episode(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    for i in range(5):
        make_video(f"v/{i}.mp4", seed=i)
    progress, rewards = run(Moody(), tmp_path / "v", tmp_path / "r", workers=0)
    assert (progress.scored, progress.unscored) == (3, 2)
    assert rewards["1"].why_missing == "ZeroDivisionError: in some library"
    assert "7 is outside [0.0, 1.0]" in rewards["2"].why_missing
    retried, _ = run(Brightness(Moody().card), tmp_path / "v", tmp_path / "r", workers=0, retry=True)
    assert (retried.scored, retried.kept) == (2, 3)


def test_a_model_that_always_fails_is_stopped(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    class Broken(Brightness):
        def _one(self, episode: Episode) -> Reward:
            raise RuntimeError("no weights")

    for i in range(30):
        make_video(f"v/{i}.mp4", frames=2, seed=i)
    with pytest.raises(BadInput, match=r"that it cannot, .*RuntimeError: no weights"):
        run(Broken(), tmp_path / "v", tmp_path / "r", workers=0)
    assert len(RewardStore(tmp_path / "r")) == 0


def test_subsampled_frames_keep_their_indices(sample: Path, tmp_path: Path) -> None:
    _, rewards = run(Clock(), sample, tmp_path / "r", frames=4)
    assert rewards["success-0"].at.tolist() == [0, 10, 21, 31]
    np.testing.assert_allclose(rewards["success-0"].value, [0.25, 0.5, 0.75, 1.0])
    _, rewards = run(Brightness(example_card(name="all")), sample, tmp_path / "r2", frames=3, workers=2)
    first = next(iter(open_dataset(f"videos:{sample}")))
    truth = first.main.take([0, 16, 31]).mean(axis=(1, 2, 3)) / 255
    np.testing.assert_allclose(rewards[first.id].value, truth, rtol=1e-6)


def test_limit_and_wrong_numbers(sample: Path, tmp_path: Path) -> None:
    assert run(Clock(), sample, tmp_path / "r", limit=4)[0].scored == 4
    assert run(Clock(), sample, tmp_path / "r")[0].kept == 4
    for name, value in {"frames": 0, "batch": 0, "workers": -1, "limit": 0}.items():
        with pytest.raises(BadInput, match=name):
            ScoreJob(Clock(), open_dataset(f"videos:{sample}"), tmp_path, **{name: value})  # type: ignore[arg-type]


def test_the_default_rewards_folder(tmp_path: Path, sample: Path) -> None:
    dataset = open_dataset(f"videos:{sample}")
    assert rewards_folder(dataset, "clock") == sample.parent / "blocks.demerit" / "rewards" / "clock"
    assert rewards_folder(dataset, "a/b", 16).name == "a-b+16frames"
    store = Store.create(tmp_path / "set", "set")
    ours = Dataset(store, f"demerit:{store.root}")
    assert rewards_folder(ours, "clock") == store.root / "rewards" / "clock"


def _first_three(length: int) -> np.ndarray:
    return np.arange(3)


class Deadly(VideoClip):
    """A clip on which the decoder dies, as decoders do on some files."""

    def take_into(self, indices: Sequence[int], allocate: object, prepare: object = None) -> np.ndarray:
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError


def test_a_crashing_decoder_affects_only_its_own_episode(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    def episodes() -> list[Episode]:
        good = [Episode.from_video(make_video(f"{i}.mp4", seed=i), id=str(i)) for i in range(8)]
        clip = good[4].main.source
        assert isinstance(clip, VideoClip)
        deadly = replace(good[4], views={"main": Frames(Deadly(clip.path))})
        return [*good[:4], deadly, *good[5:]]

    loaded = [one for batch in load_ahead(episodes(), _first_three, 3, 2) for one in batch]
    assert [one.episode.id for one in loaded] == [str(i) for i in range(8)]
    assert [bool(one.error) for one in loaded] == [i == 4 for i in range(8)]
    assert "signal 11" in loaded[4].error


def test_prefetched_and_other_frames_can_be_read_and_outlive_their_batch(make_episode: Callable[..., Episode]) -> None:
    made = [make_episode(str(i), seed=i) for i in range(5)]
    views = [replace(one, views={"main": one.main.select([5, 4, 3, 2, 1, 0])}) for one in made]
    for workers in (0, 2):
        taken = []
        for batch in load_ahead(views, _first_three, 2, workers):
            taken += [(item.episode.main.identity(), *map(item.episode.main.take, ([2, 0], [5]))) for item in batch]
        for (identity, prefetched, other), view in zip(taken, views, strict=True):
            np.testing.assert_array_equal(prefetched, view.main.take([2, 0]))
            np.testing.assert_array_equal(other, view.main.take([5]))
            assert identity == view.main.identity()


def test_a_reward_is_found_by_its_id(sample: Path, tmp_path: Path) -> None:
    _, rewards = run(Brightness(), sample, tmp_path / "r")
    store = RewardStore(tmp_path / "r")
    for id, reward in rewards.items():
        np.testing.assert_array_equal(store[id].value, reward.value)
    newer = Reward("brightness", id, [0], np.float32([0.25]))
    with store.writer(example_card(name="brightness")) as writer:
        writer.commit([(newer, "")])
    assert store[id].final == 0.25
    with pytest.raises(BadEpisode) as wrong:
        store[f"{id}x"]
    assert repr(id) in str(wrong.value.got)


def test_a_long_job_keeps_few_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_store, "MOST_OPEN_PARTS", 10)
    card, store = Clock().card, RewardStore.open_or_create(tmp_path, Clock().card, {})
    with store.writer(card) as writer:
        for number in range(25):
            writer.commit([(Reward("clock", str(number), np.array([0]), np.array([1.0], np.float32)), "f")])
            assert len(list((tmp_path / "rewards").iterdir())) <= 11
    assert [reward.episode for reward in RewardStore(tmp_path)] == [str(number) for number in range(25)]
