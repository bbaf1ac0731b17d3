"""Baselines that do not know the task. A reward model that does not beat them has shown nothing.

`clock`, `constant` and `random` see no pixels; `length` sees only the number of frames; `change` and `motion` measure
how much the image differs from the first frame and how much moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from demerit.data.arrays import Floats
from demerit.data.episode import Episode
from demerit.data.frames import short_hash
from demerit.data.reward import Reward
from demerit.errors import BadInput
from demerit.models.protocol import ModelCard, ShownModel

SIDE = 32
"""images are averaged down to 32 x 32 pixels: cheap, and camera noise averages out"""
LOOKS = 32
"""frames used per episode, spread evenly"""
HALF_WAY_CHANGE = 0.05
"""mean grey difference (0 to 1) that gives 1/2; a moving arm changes a few hundredths of the image"""
HALF_WAY_MOTION = 0.02
HALF_WAY_LENGTH = 100
"""number of frames that gives 1/2"""


class Baseline(ShownModel):
    """A model whose values are one formula per episode."""

    card: ModelCard

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Score each episode."""
        return [self._score_episode(episode) for episode in episodes]

    def values(self, episode: Episode) -> Floats:
        """Return a value for every frame, or for every frame of `card.wanted` when it sees pixels."""
        raise NotImplementedError

    def _score_episode(self, episode: Episode) -> Reward:
        card, value = self.card, self.values(episode)
        at = card.wanted(len(episode)) if card.sees_pixels else np.arange(len(value), dtype=np.int32)
        facts = {
            "frames": len(at),
            "camera": episode.main_camera,
            "instruction": False,
            "pixels": card.sees_pixels,
        }
        return Reward(card.name, episode.id, at, value.astype(np.float32), given=facts)


class Clock(Baseline):
    """Elapsed time: frame t of T has the value t/T."""

    def __init__(self) -> None:
        """No options."""
        self.card = _card("clock", False, "Elapsed time, t/T. Sees nothing, and knows how long the video is.")

    def values(self, episode: Episode) -> Floats:
        """Return t/T."""
        return np.arange(1, len(episode) + 1) / len(episode)


class Constant(Baseline):
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

    def values(self, episode: Episode) -> Floats:
        """Return the constant."""
        return np.full(len(episode), self.value)


class Noise(Baseline):
    """Uniform noise, the same for the same episode id."""

    def __init__(self, seed: int | str = 0) -> None:
        """`seed` selects the noise."""
        try:
            self.seed = int(seed)
        except ValueError:
            raise BadInput("random", "a whole number as its seed", repr(seed)) from None
        name = "random" if self.seed == 0 else f"random-{self.seed}"
        self.card = _card(name, True, "Uniform noise drawn by episode id. Sees nothing.")

    def values(self, episode: Episode) -> Floats:
        """Draw noise by episode id."""
        seed = int(short_hash(str(self.seed).encode(), episode.id.encode()), 16)
        return np.random.default_rng(seed).random(len(episode))


class Change(Baseline):
    """Distance to the first frame: d / (d + 0.05), d the mean absolute grey difference at 32 x 32."""

    def __init__(self) -> None:
        """No options."""
        about = "Distance of the picture to the first frame. Knows no task; any lasting change is progress to it."
        self.card = _card("change", True, about, "change since the first frame", looks=LOOKS)

    def values(self, episode: Episode) -> Floats:
        """Compare with the first frame."""
        grey = small_grey(episode.main.take(self.card.wanted(len(episode))))
        return saturate(np.abs(grey - grey[:1]).mean(axis=(1, 2)), HALF_WAY_CHANGE)


class Motion(Baseline):
    """Motion so far: d / (d + 0.02), d the running mean of the differences between consecutive looks.

    The 32 looks are spread over the whole video, so their distance depends on its length: not causal.
    """

    def __init__(self) -> None:
        """No options."""
        about = "Mean step size so far, between 32 looks. Knows no task; who moves much succeeds, it says."
        self.card = _card("motion", False, about, "mean step size so far", looks=LOOKS)

    def values(self, episode: Episode) -> Floats:
        """Average the steps."""
        grey = small_grey(episode.main.take(self.card.wanted(len(episode))))
        steps = np.abs(np.diff(grey, axis=0)).mean(axis=(1, 2))
        running = np.concatenate([[0.0], np.cumsum(steps) / np.arange(1, len(steps) + 1)])
        return saturate(running, HALF_WAY_MOTION)


class Length(Baseline):
    """Episode length: T / (T + 100) for T frames, the same at every frame."""

    def __init__(self) -> None:
        """No options."""
        about = "The number of frames alone. Sees nothing; it wins where episodes end when they succeed, or go on."
        self.card = _card("length", False, about, "length of the episode")

    def values(self, episode: Episode) -> Floats:
        """Count frames."""
        return np.full(len(episode), float(saturate(len(episode), HALF_WAY_LENGTH)))


def saturate(amount: npt.ArrayLike, half_way: float) -> Floats:
    """Map 0..infinity to 0..1 by x / (x + half_way). Strictly increasing, also in float32 for long videos."""
    x = np.asarray(amount, dtype=np.float64)
    return np.asarray(x / (x + half_way), dtype=np.float64)


def small_grey(images: npt.NDArray[np.uint8]) -> Floats:
    """Turn (n, height, width, 3) images into (n, 32, 32) grey ones from 0 to 1, by area averages."""
    size = (SIDE, SIDE)
    small = [Image.fromarray(image).convert("L").convert("F").resize(size, Image.Resampling.BOX) for image in images]
    return np.stack([np.asarray(image, dtype=np.float64) for image in small]) / 255


def _card(name: str, causal: bool, about: str, quantity: str = "progress", looks: int | None = None) -> ModelCard:
    return ModelCard(
        name=name,
        revision="1",
        licence="Apache-2.0",
        quantity=quantity,
        low=0.0,
        high=1.0,
        causal=causal,
        comparable=True,
        sees_pixels=looks is not None,
        frame_budget=looks,
        reads_instruction=False,
        about=about,
    )
