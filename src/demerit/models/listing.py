"""What `demerit list models` shows about a model, without loading it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demerit.errors import DemeritError
from demerit.models import MODELS, load_model
from demerit.models.protocol import ModelCard

EVERY = "all"
"""shown when a model has no frame budget"""


@dataclass(frozen=True)
class Listing:
    """One model's entry."""

    quantity: str
    low: float | None
    high: float | None
    causal: bool
    licence: str
    about: str
    frames: str = EVERY
    """frames used per episode"""
    extra: str = ""
    """install demerit[extra] for it"""
    verified: str = ""
    """what was reproduced, and what was not"""

    @classmethod
    def of_card(cls, card: ModelCard) -> Listing:
        """Make an entry from the card of a loaded model."""
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
        """The range as text."""
        return f"{'-∞' if self.low is None else f'{self.low:g}'} to {'∞' if self.high is None else f'{self.high:g}'}"


NOT_LOADED = {
    "calibrated": Listing(
        quantity="calibrated value of another model",
        low=0.0,
        high=1.0,
        causal=False,
        licence="that of the other model",
        about="A model with calibrated values. Needs a folder made by `demerit calibrate`: calibrated:DIR.",
        frames="as the other model",
    ),
    "gvl": Listing(
        quantity="progress",
        low=0.0,
        high=1.0,
        causal=False,
        licence="that of the model behind the server",
        about="Any vision-language model behind an OpenAI-compatible server (DEMERIT_CHAT_URL, DEMERIT_CHAT_MODEL) "
        "rates shuffled frames; with bad behaviour in the prompt: gvl:dense,examples=DIR.",
        frames="16",
        extra="chat",
    ),
}
"""models that cannot be made without an argument, or imported without an extra"""


def describe_model(name: str) -> Listing | DemeritError:
    """Return a model's entry, or the error when it cannot be loaded.

    A class with a `listing` attribute is not instantiated: large models would have to load their weights.
    """
    if name in NOT_LOADED:
        return NOT_LOADED[name]
    try:
        factory: Callable[..., Any] = MODELS.factory(name)
        known = getattr(factory, "listing", None)
        return known if isinstance(known, Listing) else Listing.of_card(load_model(name).card)
    except DemeritError as error:  # an extra or weights that are not installed
        return error
