"""Three models that know nothing: what they score is what ignorance scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import short_hash
from demerit.data.reward import Reward
from demerit.errors import BadInput
from demerit.models.protocol import ModelCard


def _card(name: str, causal: bool, about: str, low: float = 0.0, high: float = 1.0) -> ModelCard:
    return ModelCard(
        name=name,
        revision="1",
        licence="Apache-2.0",
        quantity="progress",
        low=low,
        high=high,
        causal=causal,
        comparable=True,
        sees_pixels=False,
        reads_instruction=False,
        about=about,
    )


def _reward(card: ModelCard, episode: Episode, value: npt.NDArray[Any]) -> Reward:
    given = {"frames": len(value), "camera": episode.main_camera, "instruction": False, "pixels": False}
    return Reward(card.name, episode.id, np.arange(len(value), dtype=np.int32), value, given=given)


class Clock:
    """Progress is elapsed time: frame t of T is worth t/T."""

    def __init__(self) -> None:
        """Take nothing."""
        self.card = _card("clock", False, "Elapsed time, t/T. Sees nothing, and knows how long the video is.")

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Count frames."""
        return [_reward(self.card, one, np.arange(1, len(one) + 1) / len(one)) for one in episodes]


class Constant:
    """The same value for every frame of every episode."""

    def __init__(self, value: float | str = 0.5) -> None:
        """`value` from 0 to 1."""
        try:
            self.value = float(value)
        except ValueError:
            raise BadInput("constant", "a number from 0 to 1", repr(value)) from None
        if not 0 <= self.value <= 1:
            raise BadInput("constant", "a number from 0 to 1", self.value)
        name = "constant" if self.value == 0.5 else f"constant-{self.value:g}"  # noqa: PLR2004
        self.card = _card(name, True, f"Always {self.value:g}. Sees nothing.")

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Repeat."""
        return [_reward(self.card, one, np.full(len(one), self.value)) for one in episodes]


class Random:
    """Uniform noise, the same for the same episode id."""

    def __init__(self, seed: int | str = 0) -> None:
        """`seed` picks the noise."""
        try:
            self.seed = int(seed)
        except ValueError:
            raise BadInput("random", "a whole number as its seed", repr(seed)) from None
        name = "random" if self.seed == 0 else f"random-{self.seed}"
        self.card = _card(name, True, "Uniform noise drawn by episode id. Sees nothing.")

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Draw."""
        return [_reward(self.card, one, self._draw(one)) for one in episodes]

    def _draw(self, episode: Episode) -> npt.NDArray[np.float64]:
        seed = int(short_hash(str(self.seed).encode(), episode.id.encode()), 16)
        return np.random.default_rng(seed).random(len(episode))
