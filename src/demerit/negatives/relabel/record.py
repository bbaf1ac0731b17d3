"""Everything that came of one original: what was accepted, and every rejected candidate with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Stage = Literal["clean", "analyse", "plan", "command", "clip"]
Checker = Literal["", "code", "model", "answer"]
"""who turned it down: a rule in code, the strict reader, or nobody could read the answer"""


@dataclass(frozen=True)
class Candidate:
    """Something that a model proposed, or a cut, and what became of it."""

    stage: Stage
    text: str
    """the words; for a clip the last frame that is kept, as text"""
    grade: int = 0
    round: int = 0
    reason: str = ""
    """why it was turned down; empty when it was accepted"""
    checked_by: Checker = ""
    verdict: Mapping[str, Any] | None = None
    """what the strict reader said, where it was asked"""
    fresh: bool = True
    """whether it is the first of its stage and grade: what there would be without any check"""

    @property
    def accepted(self) -> bool:
        """Whether it passed everything."""
        return not self.reason


@dataclass(frozen=True)
class Record:
    """One original, settled."""

    original: str
    """its id"""
    fingerprint: str
    """of what the model saw: other pixels or words are another original"""
    instruction: str
    words: str
    """the instruction with its spelling repaired"""
    model: str
    prompts: str
    analysis: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    candidates: tuple[Candidate, ...] = field(default=())
    split: str = ""
    """where its labels are"""

    @property
    def commands(self) -> dict[int, Candidate]:
        """The accepted commands by grade."""
        return {one.grade: one for one in self.candidates if one.stage == "command" and one.accepted}

    @property
    def clips(self) -> dict[int, Candidate]:
        """The accepted clips by grade."""
        return {one.grade: one for one in self.candidates if one.stage == "clip" and one.accepted}

    @property
    def rejected(self) -> list[Candidate]:
        """Everything that was turned down."""
        return [one for one in self.candidates if not one.accepted]

    def as_facts(self) -> dict[str, Any]:
        """Write it as JSON can hold it."""
        return asdict(self)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Record:
        """Read it back."""
        candidates = tuple(Candidate(**one) for one in facts["candidates"])
        return cls(**{**facts, "candidates": candidates})
