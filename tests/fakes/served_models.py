"""Models for tests of the server: quick, and they wait when told to."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.models.protocol import LiveFrame, LiveReward, example_card


class Brightness:
    """The mean brightness of each frame, plus a hundredth per letter of the instruction. Waits for its gate."""

    def __init__(self, name: str = "brightness", **changes: Any) -> None:
        """The gate is open."""
        self.card = example_card(name=name, **changes)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.calls: list[list[str]] = []
        """the episodes of each call of `score`"""

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Refuse episodes named `bad`."""
        self.calls.append([episode.id for episode in episodes])
        self.entered.release()
        assert self.gate.wait(60)
        return [self._score(episode) for episode in episodes]

    def _score(self, episode: Episode) -> Reward:
        if episode.id == "bad":
            return Reward.unscored(self.card.name, episode.id, "it is bad", {"camera": episode.main_camera})
        at = self.card.wanted(len(episode))
        value = episode.main.take(at).mean(axis=(1, 2, 3)) / 512 + len(episode.instruction) / 100
        return Reward(self.card.name, episode.id, at, value, value / 2, "", {"seconds": episode.main.times()[-1]})

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        """Prefer the brighter end."""
        finals = [[self._score(episode).final for episode in pair] for pair in pairs]
        return [0.5 + (first - second) / 2 for first, second in finals]

    def start(self, instruction: str) -> "_BrightnessRun":
        """Start a live episode: values as in `score`."""
        return _BrightnessRun(self, instruction)


class _BrightnessRun:
    def __init__(self, model: Brightness, instruction: str) -> None:
        self.model, self.instruction, self.count = model, instruction, 0

    def step(self, frame: LiveFrame) -> LiveReward:
        self.model.entered.release()
        assert self.model.gate.wait(60)
        image = frame if isinstance(frame, np.ndarray) else next(iter(frame.values()))
        if image.shape[0] == 1:
            raise RuntimeError("one row is too few")
        self.count += 1
        value = float(np.float32(image.mean() / 512 + len(self.instruction) / 100))
        return LiveReward(value, float(np.float32(value / 2)), self.count / 1000)


class ScoresOnly:
    """Scores, and nothing else."""

    card = example_card(name="scores-only", sees_pixels=False, causal=False)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Return a tenth of the length."""
        return [Reward(self.card.name, one.id, np.array([0]), np.array([len(one) / 100])) for one in episodes]


class ThreadSafeBrightness(Brightness):
    """May be used by several threads at once."""

    thread_safe = True
