"""Faults that the fake server injects.

A fault depends on the question and on how often it was asked before, not on time: the same questions meet the same
faults however many threads ask them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from demerit.errors import BadInput, UnknownName

TRANSPORT: dict[str, str] = {
    "timeout": "no answer for as long as the client waits",
    "429": "too many requests, wait this many seconds",
    "429-date": "too many requests, wait until this date",
    "429-bare": "too many requests, without a hint",
    "500": "the server broke",
    "503": "overloaded, wait this many seconds",
    "cut": "the connection ends in the middle of the answer",
    "drop": "the connection ends before the answer",
}
"""the answer is lost; the SDK asks again"""
LOST: dict[str, str] = {
    "garbage": "a page that is not a completion, with the status 200",
    "gateway": "an error in the body, with the status 200",
}
"""the answer is lost; the SDK does not ask again"""
CONTENT: dict[str, str] = {
    "nonsense": "an answer that is not what was asked for",
    "refusal": "the model declines",
    "length": "the answer is cut off at max_tokens",
    "empty": "an answer without a word",
}
"""an answer that is billed and useless; the same question gets the same again"""
SLOW = "slow"
KINDS = (*TRANSPORT, *LOST, *CONTENT, SLOW)


@dataclass(frozen=True)
class Faults:
    """Which faults occur, at which rates or in which order."""

    rates: Mapping[str, float] = field(default_factory=dict)
    """share of requests per kind"""
    script: Sequence[str] = ()
    """kinds for the first requests in the order in which they arrive ('' for none), before any rate"""
    seed: int = 0
    retry_after: float = 1.0
    """seconds that a 429 or 503 asks to wait"""
    delay: float = 1.0
    """seconds that `slow` adds"""

    def __post_init__(self) -> None:
        for kind in (*self.rates, *(kind for kind in self.script if kind)):
            if kind not in KINDS:
                raise UnknownName("fault", kind, KINDS)
        if any(rate < 0 for rate in self.rates.values()) or sum(self.rates.values()) > 1:
            raise BadInput("fault rates", "shares that are not negative and add up to at most 1", dict(self.rates))

    @classmethod
    def everything(cls, rate: float, seed: int = 0, retry_after: float = 1.0, delay: float = 1.0) -> Faults:
        """Spread one rate evenly over all kinds but the lost ones."""
        kinds = (*TRANSPORT, *CONTENT, SLOW)
        return cls({kind: rate / len(kinds) for kind in kinds}, seed=seed, retry_after=retry_after, delay=delay)

    def pick(self, question: str, attempt: int, arrival: int) -> str:
        """The fault that this request meets; empty for none. Attempts and arrivals count from 0."""
        if arrival < len(self.script):
            return self.script[arrival]
        fault = self._drawn(question, 0)
        if fault in CONTENT:
            return fault
        again = self._drawn(question, attempt) if attempt else fault
        # What an answer says is settled by the question; only the road to it may differ the second time.
        return "" if again in CONTENT else again

    def _drawn(self, question: str, attempt: int) -> str:
        digest = hashlib.sha256(f"{self.seed} {attempt} {question}".encode()).digest()
        place = int.from_bytes(digest[:8], "little") / 2**64
        for kind, rate in self.rates.items():
            if place < rate:
                return kind
            place -= rate
        return ""
