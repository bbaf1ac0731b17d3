"""Options of `gvl`, from Python, from the name (`gvl:dense,samples=3`) or from the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from demerit.errors import BadInput
from demerit.llm import ChatOptions

CONTEXT_KINDS = ("none", "text", "video", "dense")
"""bad behaviour in the prompt; each kind includes the one before it"""
IDENTITY = (
    *("context", "samples", "frames", "size", "temperature", "max_tokens"),
    *("shown_examples", "example_frames", "measured", "model"),
)
"""options that change the answers; they are part of the card's hash, so their names must not change"""
TOKENS_PER_FRAME, TOKENS_BASE = 80, 1000
_MINIMUM = {"samples": 1, "frames": 2, "size": 16, "max_tokens": 0, "shown_examples": 1, "example_frames": 1}


@dataclass(frozen=True, kw_only=True)
class GVLConfig(ChatOptions):
    """Every option of a prompted model."""

    WHO: ClassVar[str] = "gvl"
    BARE: ClassVar[str] = "context"

    context: str = "none"
    """bad behaviour in the prompt: none, text, video or dense"""
    samples: int = 1
    """answers per episode; several give a mean and a spread"""
    frames: int = 16
    """frames of an episode, the anchor included"""
    size: int = 256
    """longer side of an image in pixels, at most"""
    temperature: float | None = 0.6
    """'none' leaves it to the server: some models accept only their own"""
    max_tokens: int = 0
    """longest answer; 0 = 1000 plus 80 per frame. Models that think before they answer need more"""
    examples: str = ""
    """a demerit folder with the episodes and preferences that examples come from"""
    shown_examples: int = 2
    """other rollouts shown as images, and as many with values"""
    example_frames: int = 4
    """images of each example"""
    measured: bool = False
    """dense only: use values per step from people or a simulator instead of self-distillation"""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.context not in CONTEXT_KINDS:
            raise BadInput("context", f"one of {', '.join(CONTEXT_KINDS)}", repr(self.context))
        for name, least in _MINIMUM.items():
            if getattr(self, name) < least:
                raise BadInput(name, f"a number from {least} on", getattr(self, name))
        if self.temperature is not None and not self.temperature >= 0:
            raise BadInput("temperature", "0 or more", self.temperature)

    @property
    def answer_tokens(self) -> int:
        """The longest answer in tokens."""
        return self.max_tokens or TOKENS_BASE + TOKENS_PER_FRAME * self.frames

    @property
    def identity(self) -> dict[str, Any]:
        """The options that change the answers."""
        return {name: getattr(self, name) for name in IDENTITY}
