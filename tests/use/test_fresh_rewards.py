"""A model that is taught again keeps its name and gets another card: what it scored before is never taken for new."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from shutil import copytree

import pytest

from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.reward import Reward
from demerit.errors import StaleRewards
from demerit.models.protocol import example_card
from demerit.models.reward_store import MODEL_CHANGED, RewardStore, ScoredDataset
from demerit.models.score import ScoreJob, rewards_folder, score, score_missing
from demerit.use.filter import decide, need_at_least
from demerit.use.view import STALENESS, ViewIndex
from demerit.use.watch.watcher import Watcher
from demerit.use.write.frames import RewardRecipe
from demerit.use.write.job import write_rewards
from fakes.written_rewards import LENGTHS, write_source

EPISODES = len(LENGTHS)


class Constant:
    """Gives every frame the same value, which is what it was taught."""

    def __init__(self, value: float) -> None:
        self.card = example_card(name="my-model", weights_hash=str(value), sees_pixels=False)
        self.value = value

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        return [
            Reward(self.card.name, one.id, range(len(one)), [self.value] * len(one), [self.value] * len(one))
            for one in episodes
        ]


BEFORE, TAUGHT_AGAIN = Constant(0.25), Constant(0.75)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset scored by the model before it was taught again."""
    root = write_source(tmp_path / "set")
    score_missing(open_dataset(str(root)), BEFORE, workers=0)
    return root


def finals(root: Path) -> list[float]:
    return [reward.final for reward in RewardStore(rewards_folder(open_dataset(str(root)), "my-model"))]


def test_freshness_is_of_the_content_and_never_of_the_name(root: Path) -> None:
    dataset = open_dataset(str(root))
    store = RewardStore(rewards_folder(dataset, "my-model"))
    assert all(store.is_fresh(episode, BEFORE.card) for episode in dataset)
    assert {store.why_stale(episode, TAUGHT_AGAIN.card) for episode in dataset} == {MODEL_CHANGED}


def test_score_and_watch_score_again(root: Path, tmp_path: Path) -> None:
    copytree(tmp_path, tmp_path.with_name("copy"))
    watched = tmp_path.with_name("copy") / "set"
    dataset = open_dataset(str(root))
    progress = score(ScoreJob(TAUGHT_AGAIN, dataset, rewards_folder(dataset, "my-model"), workers=0))
    assert (progress.stale, progress.scored, progress.kept) == (EPISODES, EPISODES, 0)
    watcher = Watcher(str(watched), TAUGHT_AGAIN, open_dataset, settle=0, patience=0)
    watcher.look()
    assert watcher.state.scored == EPISODES and {row.value for row in watcher.state.rows} == {0.75}
    assert finals(root) == finals(watched) == [0.75] * EPISODES
    watcher = Watcher(str(watched), TAUGHT_AGAIN, open_dataset, settle=0, patience=0)
    watcher.look()
    assert watcher.state.scored == 0 and len(watcher.state.rows) == EPISODES


def test_view_says_stale(root: Path) -> None:
    score_missing(open_dataset(str(root)), TAUGHT_AGAIN, workers=0, limit=1)
    index = ViewIndex(open_dataset(str(root)))
    assert index.find_stale() == [{place: 2 for place in range(1, EPISODES)}]
    assert index.episode_json(0)["notes"] == []
    assert index.episode_json(1)["notes"] == [f"my-model: {STALENESS[2]}"]


def keep_best(scored: ScoredDataset, dest: Path) -> None:
    decide(scored, [need_at_least("final", 0.5, lambda reward: reward.final)])


def write(scored: ScoredDataset, dest: Path) -> None:
    write_rewards(scored, dest, "sidecar", RewardRecipe())


@pytest.mark.parametrize("use", [keep_best, write, lambda scored, dest: list(scored)])
def test_filter_write_and_compare_refuse_what_is_stale_and_score_it_again_with_the_model(
    root: Path, tmp_path: Path, use: Callable[[ScoredDataset, Path], None]
) -> None:
    use_at = partial(use, dest=tmp_path / "sidecar.parquet")
    half = score_missing(open_dataset(str(root)), TAUGHT_AGAIN, workers=0, limit=1)
    with pytest.raises(StaleRewards) as caught:
        use_at(half)
    assert caught.value.is_model
    use_at(score_missing(open_dataset(str(root)), TAUGHT_AGAIN, workers=0))
    assert finals(root) == [0.75] * EPISODES
