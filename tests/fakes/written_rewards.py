"""A small LeRobot v3.0 dataset of several files, and models that leave frames unscored."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from demerit.data.episode import Episode, Event, Outcome
from demerit.data.formats import open_dataset
from demerit.data.formats.lerobot.writer import write_lerobot
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.models.protocol import ModelCard, example_card
from demerit.models.reward_store import ScoredDataset
from demerit.models.score import score_missing
from fakes.lerobot_fixture import make_images

LENGTHS = (6, 9, 5, 7)
TASKS = ("open the box", "close the box", "open the box", "close the box")


class ByPlace:
    """Frame t of episode i has the value (t + 1) / (10 + i); `hide` says which frames are unscored."""

    def __init__(self, hide: Callable[[int, int], bool] = lambda i, t: False, name: str = "by-place") -> None:
        self.card: ModelCard = example_card(name=name, sees_pixels=False)
        self.hide = hide

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        return [self._score(episode) for episode in episodes]

    def _score(self, episode: Episode) -> Reward:
        place = int(episode.id[-1])
        values = [np.nan if self.hide(place, t) else (t + 1) / (10 + place) for t in range(len(episode))]
        why = "too dark" if np.isnan(values).any() else ""
        chance = np.full(len(values), 0.9 if place % 2 else 0.1)
        given = {"succeeds": bool(place % 2)}
        return Reward(self.card.name, episode.id, np.arange(len(values)), np.array(values), chance, why, given)


def true_value(place: int, t: int) -> float:
    """Return the value of a frame."""
    return float(np.float32((t + 1) / (10 + place)))


def make_episodes(labelled: bool = True) -> list[Episode]:
    """Four episodes with states and actions; the second fails at frame 3, the third is unlabelled if asked for."""
    made = []
    for place, (length, task) in enumerate(zip(LENGTHS, TASKS, strict=True)):
        events = (Event("drop", 3, 4),) if place == 1 else ()
        outcome = Outcome("human", success=place != 1, events=events)
        known = (outcome,) if labelled or place != 2 else ()
        at = np.arange(length, dtype=np.float32)
        signals = {"state": np.stack([at, at + 10 * place], 1), "action": at[:, None] * np.ones(3, np.float32)}
        frames = Frames.from_array(make_images(length, place), 10.0)
        made.append(Episode(f"made-{place}", task, {"front": frames, "side": frames}, known, signals=signals))
    return made


def write_source(root: Path, labelled: bool = True) -> Path:
    """Write them as LeRobot v3.0, a file per episode."""
    return write_lerobot(make_episodes(labelled), root, data_files_mb=1e-9, video_files_mb=1e-9)


def scored(root: Path, model: ByPlace | None = None) -> ScoredDataset:
    """Score a dataset next to it."""
    return score_missing(open_dataset(str(root)), model or ByPlace(), workers=0)
