"""A dataset joined with stored rewards: order, missing rows, and what has changed since."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import StaleRewards
from demerit.models import load_model
from demerit.models.protocol import ModelCard, example_card
from demerit.models.reward_store import NOT_SCORED, RewardStore, ScoredDataset
from demerit.models.score import score_missing


def make_episodes(count: int) -> list[Episode]:
    images = np.arange(count, dtype=np.uint8).repeat(4 * 4 * 4 * 3).reshape(count, 4, 4, 4, 3)
    return [Episode.from_array(images[i], "lift the cup", f"e{i}") for i in range(count)]


def test_rewards_come_in_the_order_of_the_dataset_whatever_the_order_of_the_rows(tmp_path: Path) -> None:
    episodes = make_episodes(5)
    backwards = Dataset.from_episodes(episodes[::-1])
    score_missing(backwards, load_model("clock"), tmp_path, workers=0)
    scored = ScoredDataset(Dataset.from_episodes(episodes), RewardStore(tmp_path))
    assert [(episode.id, reward.episode) for episode, reward in scored] == [(f"e{i}", f"e{i}") for i in range(5)]
    assert all(reward.final == 1.0 for _, reward in scored)


def test_only_what_is_missing_is_scored(tmp_path: Path) -> None:
    episodes, done = make_episodes(4), list[int]()
    score_missing(Dataset.from_episodes(episodes[:3]), load_model("clock"), tmp_path, workers=0)
    after = score_missing(
        Dataset.from_episodes(episodes), load_model("clock"), tmp_path, lambda p: done.append(p.scored), workers=0
    )
    assert done[-1] == 1 and [reward.scored for _, reward in after] == [True] * 4


def test_what_rewards_have_in_common_is_in_memory_once(tmp_path: Path) -> None:
    """A benchmark keeps a dozen rewards of each episode."""
    for name in ("clock", "constant"):
        score_missing(Dataset.from_episodes(make_episodes(2)), load_model(name), tmp_path / name, workers=0)
    clock, constant = (list(RewardStore(tmp_path / name)) for name in ("clock", "constant"))
    rewards = [*clock, *constant]
    assert {id(reward.at) for reward in rewards} == {id(clock[0].at)} and clock[0].at.tolist() == [0, 1, 2, 3]
    assert not clock[0].at.flags.writeable
    assert [id(reward.episode) for reward in clock] == [id(reward.episode) for reward in constant]
    assert len({id(reward.given) for reward in rewards}) == len({str(reward.given) for reward in rewards}) < 4
    other = Reward("clock", "e0", np.array([0, 1, 3]), np.zeros(3))
    assert other.at.tolist() == [0, 1, 3]


def test_an_episode_that_was_never_scored_is_unscored_with_the_reason(tmp_path: Path) -> None:
    episodes = make_episodes(3)
    score_missing(Dataset.from_episodes([episodes[1]]), load_model("clock"), tmp_path, workers=0)
    rewards = [reward for _, reward in ScoredDataset(Dataset.from_episodes(episodes), RewardStore(tmp_path))]
    assert [reward.why_missing for reward in rewards] == [NOT_SCORED, "", NOT_SCORED]


def test_an_episode_that_changed_after_it_was_scored_is_an_error(tmp_path: Path) -> None:
    episodes = make_episodes(3)
    scored = score_missing(Dataset.from_episodes(episodes), load_model("clock"), tmp_path, workers=0)
    episodes[1] = replace(episodes[1], instruction="drop the cup")
    stream = iter(ScoredDataset(Dataset.from_episodes(episodes), scored.store))
    assert next(stream)[0].id == "e0"
    with pytest.raises(StaleRewards) as caught:
        next(stream)
    assert (caught.value.episode, caught.value.is_model) == ("e1", False)


def test_rows_of_an_earlier_version_of_the_model_are_an_error(tmp_path: Path) -> None:
    class NewerClock:
        def __init__(self) -> None:
            self.old = load_model("clock")
            self.card: ModelCard = replace(self.old.card, weights_hash="newer")
            self.score = self.old.score

    episodes = make_episodes(2)
    score_missing(Dataset.from_episodes(episodes), load_model("clock"), tmp_path, workers=0)
    newer = score_missing(Dataset.from_episodes(episodes[:1]), NewerClock(), tmp_path, workers=0)
    with pytest.raises(StaleRewards) as caught:
        list(ScoredDataset(Dataset.from_episodes(episodes), newer.store))
    assert (caught.value.episode, caught.value.is_model) == ("e1", True)


def test_rewards_are_read_while_a_writer_replaces_the_files(tmp_path: Path) -> None:
    card = example_card(name="clock")

    def write(*ids: str) -> None:
        with RewardStore.open_or_create(tmp_path / "r", card, {}).writer(card) as writer:
            for id in ids:  # a file each, merged at the end
                writer.commit([(Reward("clock", id, np.array([0]), np.array([0.5])), f"of {id}")])

    write("a", "b")
    early, reading = RewardStore(tmp_path / "r"), RewardStore(tmp_path / "r")
    rows = iter(reading)
    first = next(rows).episode
    for number in range(40):
        write(str(number))
    assert not all((early.root / part.file).exists() for part in early.manifest.tables["rewards"])
    assert first == "a" and [reward.episode for reward in rows] == ["b"]  # as of when it was opened
    assert len(early.on_record()) == len(list(early)) == 42 and early["39"].final == 0.5
