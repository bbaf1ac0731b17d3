"""What a list says of a model before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demerit.errors import DemeritError
from demerit.models import MODELS, load_model
from demerit.models.protocol import ModelCard

EVERY = "all"
"""frames that a model looks at when it has no budget"""


@dataclass(frozen=True)
class Listing:
    """A line of a list of models."""

    quantity: str
    low: float | None
    high: float | None
    causal: bool
    licence: str
    about: str
    frames: str = EVERY
    """how many frames it looks at"""
    extra: str = ""
    """what to install for it: demerit[extra]"""
    verified: str = ""
    """what was checked by us, and what was not"""

    @classmethod
    def of_card(cls, card: ModelCard) -> Listing:
        """Take it from the card of a loaded model."""
        frames = EVERY if card.frame_budget is None else str(card.frame_budget)
        return cls(
            card.quantity,
            card.low,
            card.high,
            card.causal,
            card.licence,
            card.about,
            frames if card.sees_pixels else "none",
        )

    @property
    def range(self) -> str:
        """The range in words."""
        return f"{'-∞' if self.low is None else f'{self.low:g}'} to {'∞' if self.high is None else f'{self.high:g}'}"


def listed(name: str) -> Listing | str:
    """Return a model's line, or the sentence that says why there is none.

    A class with `listing` is believed and not made: large models would have to load their weights, and import the
    libraries of an extra, only to tell what they are.
    """
    try:
        factory: Callable[..., Any] = MODELS.factory(name)
        said = getattr(factory, "listing", None)
        return said if isinstance(said, Listing) else Listing.of_card(load_model(name).card)
    except DemeritError as error:  # an extra or weights that are not installed: the sentence says how
        return str(error)
