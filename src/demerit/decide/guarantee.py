"""What a threshold promises, as one sentence; and which of a model's numbers decides success."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from demerit.models.protocol import RewardModel


@dataclass(frozen=True)
class Guarantee:
    """At most a share of some episodes is judged wrongly, if they resemble the calibration episodes."""

    share: float
    of: str
    """the episodes and the mistake: `failures are called a success`"""
    n: int
    """calibration episodes"""
    confidence: float | None = None
    """probability that the share holds, over calibration sets; None = it holds on average over them"""
    left_out: int = 0
    """calibration episodes that taught the model and were judged by heads without them: the share is approximate"""

    def __str__(self) -> str:
        """The guarantee as a sentence."""
        sure = "on average" if self.confidence is None else f"{self.confidence:.0%} sure"
        taught = f" {self.left_out} of these taught the model: at worst, twice as many." if self.left_out else ""
        return (
            f"At most {self.share:.1%} of {self.of} ({sure}), if they resemble the {self.n} that it was calibrated on."
            f"{taught}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, with the sentence."""
        return {**asdict(self), "text": str(self)}


def describe_cut(model: RewardModel) -> str:
    """Say in one line which number decides success, and what the value means by itself.

    A model with a threshold has `cut`, such as "the probability of success reaches 0.73" (empty = it has none), and
    `promise`; for any other model there is nothing to say.
    """
    cut, promise = getattr(model, "cut", None), getattr(model, "promise", "")
    if cut is None:
        return ""
    decides = f"called a success where {cut}" if cut else "nothing is called a success"
    return f"{decides} ({promise.removesuffix('.')}); the value by itself ({model.card.meaning}) is no verdict"
