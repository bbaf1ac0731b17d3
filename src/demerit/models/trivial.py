"""Three trivial models that look clever: how much the picture changed, how much moved, how long it took.

None of them knows the task. A reward model that does not beat them has shown nothing, however high its score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.models.protocol import ModelCard

SIDE = 32
"""pictures are averaged down to so many pixels a side: cheap, and camera noise averages out"""
LOOKS = 32
"""how many frames, spread over the episode, are looked at"""
HALF_WAY_CHANGE = 0.05
"""the mean grey difference (0 to 1) that is worth 1/2; a moving arm changes a few hundredths of the picture"""
HALF_WAY_MOTION = 0.02
HALF_WAY_LENGTH = 100
"""the number of frames that is worth 1/2"""

Floats = npt.NDArray[np.float64]


def _card(name: str, quantity: str, causal: bool, sees_pixels: bool, about: str) -> ModelCard:
    return ModelCard(
        name=name,
        revision="1",
        licence="Apache-2.0",
        quantity=quantity,
        low=0.0,
        high=1.0,
        causal=causal,
        comparable=True,
        sees_pixels=sees_pixels,
        frame_budget=LOOKS if sees_pixels else None,
        reads_instruction=False,
        about=about,
    )


def saturated(amount: npt.ArrayLike, half_way: float) -> Floats:
    """Map 0..infinity to 0..1 by x / (x + half_way): keeps every order, and float32 still tells long videos apart."""
    x = np.asarray(amount, dtype=np.float64)
    return np.asarray(x / (x + half_way), dtype=np.float64)


def small_grey(images: npt.NDArray[np.uint8]) -> Floats:
    """Turn (n, height, width, 3) pictures into (n, 32, 32) grey ones from 0 to 1, each pixel the mean of its area."""
    size = (SIDE, SIDE)
    small = [Image.fromarray(one).convert("L").convert("F").resize(size, Image.Resampling.BOX) for one in images]
    return np.stack([np.asarray(one, dtype=np.float64) for one in small]) / 255


def _look(card: ModelCard, episode: Episode) -> tuple[npt.NDArray[np.int32], Floats]:
    at = card.wanted(len(episode))
    return at, small_grey(episode.main.take(at))


def _reward(card: ModelCard, episode: Episode, at: npt.NDArray[np.int32], value: Floats) -> Reward:
    given: dict[str, Any] = {"frames": len(at), "camera": episode.main_camera, "instruction": False}
    return Reward(card.name, episode.id, at, value.astype(np.float32), given={**given, "pixels": card.sees_pixels})


class Change:
    """How far the picture is from the first one: d / (d + 0.05), d the mean absolute grey difference at 32 x 32."""

    def __init__(self) -> None:
        """Take nothing."""
        about = "Distance of the picture to the first frame. Knows no task; any lasting change is progress to it."
        self.card = _card("change", "change since the first frame", True, True, about)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Compare with the first frame."""
        return [self._one(episode) for episode in episodes]

    def _one(self, episode: Episode) -> Reward:
        at, grey = _look(self.card, episode)
        away = np.abs(grey - grey[:1]).mean(axis=(1, 2))
        return _reward(self.card, episode, at, saturated(away, HALF_WAY_CHANGE))


class Motion:
    """How much moved so far: d / (d + 0.02), d the running mean of the differences from one look to the next.

    The looks are spread over the whole video, so a longer video has longer steps: it is not causal and says so.
    """

    def __init__(self) -> None:
        """Take nothing."""
        about = "Mean step size so far, between 32 looks. Knows no task; who moves much succeeds, it says."
        self.card = _card("motion", "mean step size so far", False, True, about)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Average the steps."""
        return [self._one(episode) for episode in episodes]

    def _one(self, episode: Episode) -> Reward:
        at, grey = _look(self.card, episode)
        steps = np.abs(np.diff(grey, axis=0)).mean(axis=(1, 2))
        # nothing has moved before the first step
        running = np.concatenate([[0.0], np.cumsum(steps) / np.arange(1, len(steps) + 1)])
        return _reward(self.card, episode, at, saturated(running, HALF_WAY_MOTION))


class Length:
    """How long the episode is: T / (T + 100) for T frames, the same at every frame."""

    def __init__(self) -> None:
        """Take nothing."""
        about = "The number of frames alone. Sees nothing; it wins where episodes end when they succeed, or go on."
        self.card = _card("length", "length of the episode", False, False, about)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Count frames."""
        return [self._one(episode) for episode in episodes]

    def _one(self, episode: Episode) -> Reward:
        count = len(episode)
        at = np.arange(count, dtype=np.int32)
        return _reward(self.card, episode, at, np.full(count, float(saturated(count, HALF_WAY_LENGTH))))
