"""What came back: `ChatResponse`, its `Usage`, and the sums `Spending` and `Estimate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer."""

    tokens_in: int = 0
    tokens_out: int = 0
    estimated: bool = False
    """the server gave no count; these are ours (see `tokens`)"""
    cached: bool = False
    """read from the cache: nothing was sent and nothing billed now"""


@dataclass(frozen=True)
class ChatResponse:
    """One answer, or the reason why there is none."""

    text: str
    """what the model wrote, also where it could not be read; empty where it wrote nothing"""
    parsed: BaseModel | None
    """the answer as the schema wants it; None without a schema and wherever `why_not` says something"""
    why_not: str
    """empty, or `kind: reason`, the kind being refused, unreadable, cut off, failed or not asked"""
    usage: Usage
    cost: float | None
    """dollars billed now: 0 from the cache, None without prices"""

    @property
    def kind(self) -> str:
        """The kind of failure, for counting; empty for a good answer."""
        return self.why_not.split(":")[0]

    @classmethod
    def nothing(cls, why_not: str) -> ChatResponse:
        """No answer came, for this reason."""
        return cls("", None, why_not, Usage(), 0.0)


@dataclass(frozen=True)
class TagSpending:
    """What one tag cost so far."""

    answers: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0


@dataclass(frozen=True)
class Spending:
    """What a client did and paid since it was made."""

    requests: int = 0
    """sent, refused and failed ones included"""
    answers: int = 0
    """answers that came over the wire, each billed once"""
    from_cache: int = 0
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: int = 0
    """answers whose tokens the server did not count: ours are estimates"""
    cost: float | None = None
    """dollars for `answers`; None without prices"""
    unsure: int = 0
    """requests that broke off; the server may have billed them, and the budget counts them at their estimate"""
    unsure_cost: float | None = None
    by_tag: dict[str, TagSpending] = field(default_factory=dict)

    def __str__(self) -> str:
        """Say it in one line."""
        price = "no prices given" if self.cost is None else f"${self.cost:.4f}"
        if self.estimated:
            price += f" ({self.estimated} answers estimated)"
        line = f"{self.answers} answers and {self.from_cache} from the cache, {self.requests} requests"
        line += f" ({self.retries} of them again), {self.tokens_in} tokens in, {self.tokens_out} out, {price}"
        if self.unsure:
            most = "" if self.unsure_cost is None else f", at most about ${self.unsure_cost:.4f}"
            line += f"; {self.unsure} broken-off requests may have been billed too{most}"
        return line


@dataclass(frozen=True)
class Estimate:
    """What asking would cost, found without sending anything."""

    asks: int
    cached: int
    """already answered, or asked twice in this list: free"""
    images: int
    tokens_in: int
    tokens_out: int
    """the most that may be written: every answer as long as its `max_tokens` allows"""
    cost: float | None
    """dollars, with `tokens_out` as long as allowed; None without prices"""

    def __str__(self) -> str:
        """Say it in one line, with the rule."""
        price = "unknown without prices" if self.cost is None else f"at most about ${self.cost:.2f}"
        return (
            f"{self.asks} asks, {self.cached} of them free (cached or doubled); about {self.tokens_in} tokens in "
            f"({self.images} images), at most {self.tokens_out} out; {price}. Estimated: text at 3 bytes a token, an "
            "image at the larger of 85 + 170 per 512-pixel tile and one token per 28x28 pixels."
        )
