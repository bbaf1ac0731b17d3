"""The scoring job: a model, a dataset, and rewards on disk. Resumable."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.dataset import Dataset
from demerit.data.decode import Decoders, LoadedEpisode, OnFrames, load_ahead
from demerit.data.episode import Episode, safe_name
from demerit.data.frames import Indices, spread
from demerit.data.reward import Reward
from demerit.data.splits import seen_by
from demerit.data.store import Store
from demerit.errors import BadInput, BadReward, DemeritError, RemoteError, UnreadableVideo
from demerit.models.protocol import ModelCard, Prepares, RewardModel
from demerit.models.reward_store import (
    NOT_SCORED,
    RewardStore,
    RewardWriter,
    ScoredDataset,
    scored_fingerprint,
)
from demerit.models.score_summary import ShownEpisode

COMMIT_SECONDS = 2.0
# Abort if the first 20 episodes all fail.
ABORT_AFTER = 20


@dataclass
class ScoreProgress:
    """Progress of a scoring job; updated in place after every batch."""

    expected: int | None
    """episodes in the dataset; None = unknown before reading"""
    scored: int = 0
    unscored: int = 0
    kept: int = 0
    """scored by an earlier run and unchanged"""
    stale: int = 0
    """scored again because the episode or the model has changed"""
    frames: int = 0
    """frames with a value"""
    seconds: float = 0.0
    reading: dict[str, tuple[int, int]] = field(default_factory=dict)
    """frames read and frames to read, of long episodes that are being scored"""
    reasons: Counter[str] = field(default_factory=Counter)
    """why episodes are unscored"""
    episodes: dict[str, ShownEpisode] = field(default_factory=dict)
    """every episode of the job by id, also the kept ones"""

    @property
    def seen(self) -> int:
        """Episodes done so far."""
        return self.scored + self.unscored + self.kept

    @property
    def position(self) -> float:
        """Episodes done so far, with the read shares of those being scored."""
        return self.seen + sum(read / total for read, total in self.reading.values())


@dataclass(frozen=True)
class ScoreJob:
    """What to score, with what, and where to."""

    model: RewardModel
    dataset: Dataset
    out: Path
    frames: int | None = None
    """frames to score per episode, spread evenly; None = what the model asks for"""
    batch: int = 8
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """decoding processes; 0 = decode in this process"""
    retry: bool = False
    """retry what an earlier run could not score"""
    limit: int | None = None
    """score only the first N episodes"""

    def __post_init__(self) -> None:
        """Validate the numbers."""
        for name, least in (("frames", 1), ("batch", 1), ("workers", 0), ("limit", 1)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise BadInput(name, f"a number, {least} or more", number)
        if self.frames is not None and self.model.card.reads_signals:
            raise BadInput("frames", f"none, because {self.model.card.name} reads signals at every frame", self.frames)


EpisodeScorer = Callable[[ScoreJob, Iterator[tuple[Episode, str]], OnFrames], Generator[list[Reward], None, None]]
"""takes episodes with their fingerprints; yields their rewards in groups, in any order"""


def score_here(
    job: ScoreJob, episodes: Iterator[tuple[Episode, str]], on_frames: OnFrames
) -> Generator[list[Reward], None, None]:
    """Score batch by batch in this process."""
    scorer = BatchScorer(job.model, job.frames, job.batch, job.workers)
    return scorer.score((episode for episode, _ in episodes), on_frames)


def score(
    job: ScoreJob,
    on_progress: Callable[[ScoreProgress], None] = lambda progress: None,
    on_stored: Callable[[Reward], None] = lambda reward: None,
    scorer: EpisodeScorer = score_here,
    commit_seconds: float | None = None,
) -> ScoreProgress:
    """Score what is not scored yet. After an interruption, run it again to resume.

    Args:
        job: what to score.
        on_progress: called after every group of rewards.
        on_stored: gets every new reward once it is on disk.
        scorer: who scores the episodes.
        commit_seconds: rewards are written when this much time has passed (None = 2 seconds); 0 = each group at once.
    """
    card = job.model.card
    header = {"dataset": job.dataset.name, "address": job.dataset.address, "frames": job.frames}
    store = RewardStore.open_or_create(job.out, card, header)
    progress = ScoreProgress(job.dataset.expected())
    started = last_commit = time.monotonic()
    between = COMMIT_SECONDS if commit_seconds is None else commit_seconds
    waiting: list[tuple[Reward, str]] = []
    fingerprints: dict[str, str] = {}

    def on_frames(id: str, read: int, total: int) -> None:
        progress.reading[id] = (read, total)
        progress.seconds = time.monotonic() - started
        on_progress(progress)

    with store.writer(card) as writer:
        scored = scorer(job, _select_episodes(job, store, progress, fingerprints), on_frames)
        try:
            for rewards in scored:
                for reward in rewards:
                    waiting.append((reward, fingerprints.pop(reward.episode)))
                    _count(progress, reward)
                progress.reading.clear()
                _check_failures(progress, card, waiting)
                progress.seconds = time.monotonic() - started
                on_progress(progress)
                # nothing is written while everything fails, so that a run with a better set-up starts afresh
                if time.monotonic() - last_commit >= between and (progress.scored or progress.kept):
                    _commit(writer, waiting, on_stored)
                    last_commit = time.monotonic()
        except BadReward:
            waiting.clear()
            raise
        finally:
            scored.close()
            _commit(writer, waiting, on_stored)
    progress.seconds = time.monotonic() - started
    on_progress(progress)
    return progress


def score_missing(
    dataset: Dataset,
    model: RewardModel,
    folder: Path | None = None,
    on_progress: Callable[[ScoreProgress], None] = lambda progress: None,
    **options: Any,
) -> ScoredDataset:
    """Score what is not scored yet and join the dataset with its rewards.

    Args:
        dataset: the episodes.
        model: the model.
        folder: of the rewards; None = next to the dataset.
        on_progress: called after every batch.
        options: other fields of `ScoreJob`.
    """
    where = rewards_folder(dataset, model.card.name, options.get("frames")) if folder is None else folder
    score(ScoreJob(model, dataset, where, **options), on_progress)
    return ScoredDataset(dataset, RewardStore(where))


def rewards_folder(dataset: Dataset, model: str, frames: int | None = None) -> Path:
    """Return the default folder for rewards: inside a demerit dataset folder, next to any other dataset."""
    name = safe_name(model) + ("" if frames is None else f"+{frames}frames")
    if isinstance(dataset.reader, Store):
        return dataset.reader.root / "rewards" / name
    path = Path(dataset.address.partition(":")[2])
    return path.parent / f"{path.name}.demerit" / "rewards" / name


def _select_episodes(
    job: ScoreJob, store: RewardStore, progress: ScoreProgress, fingerprints: dict[str, str]
) -> Iterator[tuple[Episode, str]]:
    """Yield the episodes to score now, with their fingerprints, and keep these by id."""
    seen, card = seen_by(job.model), job.model.card
    for episode in islice(job.dataset, job.limit):
        progress.episodes[episode.id] = ShownEpisode.of(episode, seen.has(episode))
        fingerprint = scored_fingerprint(episode, card)
        why = store.why_stale(episode, card, fingerprint)
        progress.stale += why not in ("", NOT_SCORED)
        if not why and (store.on_record()[episode.id].is_scored or not job.retry):
            progress.kept += 1
            continue
        fingerprints[episode.id] = fingerprint
        yield episode, fingerprint


class BatchScorer:
    """Decodes and scores episodes, batch by batch."""

    def __init__(self, model: RewardModel, frames: int | None = None, batch: int = 8, workers: int = 0) -> None:
        """See the fields of `ScoreJob`."""
        self.model, self.frames, self.batch, self.workers = model, frames, batch, workers
        self._chosen: dict[str, Indices] = {}

    def score(
        self, episodes: Iterable[Episode], on_frames: OnFrames, decoders: Decoders | None = None
    ) -> Generator[list[Reward], None, None]:
        """Yield the rewards of each batch, in order. `decoders`: running decoding processes to use."""
        for batch in self._load(map(self._subsample, episodes), on_frames, decoders):
            yield [self._of_whole_episode(reward) for reward in _score_batch(self.model, batch)]

    def _load(
        self, episodes: Iterator[Episode], on_frames: OnFrames, decoders: Decoders | None
    ) -> Iterator[list[LoadedEpisode]]:
        """Yield batches with the frames the model needs decoded."""
        model = self.model
        wanted = getattr(model, "wanted", model.card.wanted)  # a model may choose frames by their times
        load = partial(load_ahead, episodes, wanted, self.batch, self.workers, decoders=decoders)
        if isinstance(model, Prepares):
            return load(model.looks_at, model.prepare, on_frames)
        if model.card.sees_pixels and not getattr(model, "reads_files", False):
            return load()
        return iter(lambda: [LoadedEpisode(episode) for episode in islice(episodes, self.batch)], [])

    def _subsample(self, episode: Episode) -> Episode:
        if self.frames is None:
            return episode
        try:
            chosen = {name: spread(len(view), self.frames) for name, view in episode.views.items()}
        except UnreadableVideo:
            return episode  # reported with its reason when it is decoded
        self._chosen[episode.id] = chosen[episode.main_camera]
        views = {name: view.select(chosen[name]) for name, view in episode.views.items()}
        return replace(episode, views=views, outcomes=(), signals={})

    def _of_whole_episode(self, reward: Reward) -> Reward:
        """Map indices of the chosen frames back to frames of the episode."""
        chosen = self._chosen.pop(reward.episode, None)
        return reward if chosen is None else replace(reward, at=chosen[reward.at])


def _score_batch(model: RewardModel, batch: list[LoadedEpisode]) -> list[Reward]:
    """Score a batch; an error affects only its own episode."""
    name = model.card.name
    good = [loaded.episode for loaded in batch if not loaded.error]
    rewards = {reward.episode: reward for reward in score_together(model, good)}
    rewards |= {item.episode.id: Reward.unscored(name, item.episode.id, item.error) for item in batch if item.error}
    return [rewards[loaded.episode.id] for loaded in batch]


def score_together(model: RewardModel, episodes: list[Episode]) -> list[Reward]:
    """Score episodes in one call and check the rewards; an error leaves only its own episode unscored.

    Raises RemoteError when the model's server cannot be reached.
    """
    if not episodes:
        return []
    try:
        rewards = model.score(episodes)
        if len(rewards) != len(episodes):
            raise BadReward(model.card.name, episodes[0].id, f"{len(rewards)} rewards for {len(episodes)} episodes")
        for reward, episode in zip(rewards, episodes, strict=True):
            model.card.check(reward, episode)
        return list(rewards)
    except RemoteError:
        raise  # no fault of an episode
    except Exception as error:  # third-party code may raise anything
        if len(episodes) == 1:
            reason = str(error) if isinstance(error, DemeritError) else f"{type(error).__name__}: {error}"
            return [Reward.unscored(model.card.name, episodes[0].id, reason)]
        return [reward for episode in episodes for reward in score_together(model, [episode])]


def _count(progress: ScoreProgress, reward: Reward) -> None:
    if reward.scored:
        progress.scored += 1
        progress.frames += int(np.sum(~np.isnan(reward.value)))
    else:
        progress.unscored += 1
        progress.reasons[reward.why_missing] += 1


def _check_failures(progress: ScoreProgress, card: ModelCard, waiting: list[tuple[Reward, str]]) -> None:
    if progress.scored == 0 and progress.kept == 0 and progress.unscored >= ABORT_AFTER:
        reason, _ = progress.reasons.most_common(1)[0]
        waiting.clear()  # a run with a better set-up starts afresh
        raise BadInput(card.name, "episodes that it can score", f"{progress.unscored} that it cannot, e.g. {reason}")


def _commit(writer: RewardWriter, waiting: list[tuple[Reward, str]], on_stored: Callable[[Reward], None]) -> None:
    writer.commit(waiting)
    for reward, _ in waiting:
        on_stored(reward)
    waiting.clear()
