"""A dataset joined with one model's stored rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.errors import StaleRewards
from demerit.models.protocol import ModelCard, RewardModel
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, ScoreProgress, rewards_folder, scored_fingerprint
from demerit.models.score import score as score_dataset

NOT_SCORED = "not scored yet"


@dataclass(frozen=True)
class ScoredDataset:
    """Episodes with their rewards, in the dataset's order."""

    dataset: Dataset
    store: RewardStore

    @property
    def card(self) -> ModelCard:
        """The card of the model."""
        return self.store.card

    def __iter__(self) -> Iterator[tuple[Episode, Reward]]:
        """Yield every episode and its reward. One that was never scored is unscored, with that reason.

        Raises StaleRewards at an episode that has changed since it was scored.
        """
        card, on_record = self.card, self.store.on_record()
        stored, early = iter(self.store), dict[str, Reward]()
        for episode in self.dataset:
            row = on_record.get(episode.id)
            if row is None:
                yield episode, Reward.unscored(card.name, episode.id, NOT_SCORED)
                continue
            if (row.fingerprint, row.card) != (scored_fingerprint(episode, card), card.hash()):
                raise StaleRewards(self.store.root, episode.id, is_model=row.card != card.hash())
            while episode.id not in early:  # nearly always the next one
                reward = next(stored)
                early[reward.episode] = reward
            yield episode, early.pop(episode.id)


def score_missing(
    dataset: Dataset,
    model: RewardModel,
    folder: Path | None = None,
    on_progress: Callable[[ScoreProgress], None] = lambda progress: None,
    **options: Any,
) -> ScoredDataset:
    """Score what is not scored yet, as `demerit score` does, and join it.

    Args:
        dataset: the episodes.
        model: the model.
        folder: of the rewards; None = next to the dataset.
        on_progress: called after every batch.
        options: other fields of `ScoreJob`.
    """
    where = rewards_folder(dataset, model.card.name, options.get("frames")) if folder is None else folder
    score_dataset(ScoreJob(model, dataset, where, **options), on_progress)
    return ScoredDataset(dataset, RewardStore(where))
