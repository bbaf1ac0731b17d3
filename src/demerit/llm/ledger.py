"""The money: what was spent, what is in flight, and whether one more request fits the budget."""

from __future__ import annotations

import threading
from dataclasses import replace

from demerit.errors import BadInput
from demerit.llm.answers import Spending, TagSpending, Usage
from demerit.llm.asks import Endpoint


class Ledger:
    """Counts for one client, from many threads.

    Every request is reserved at its estimate before it is sent, so that spent + in flight never passes the budget. A
    request that does not fit waits for the ones in flight to be settled, which mostly cost less than reserved; only
    when nothing is in flight and it still does not fit is the budget spent, and then for good.
    """

    def __init__(self, endpoint: Endpoint, budget: float | None) -> None:
        """Refuse a budget that could not be kept."""
        if budget is not None and not 0 <= budget < float("inf"):
            raise BadInput("budget", "dollars, 0 or more", budget)
        if budget is not None and endpoint.cost(1, 1) is None:
            raise BadInput("budget", "price_in and price_out of the endpoint with it", "no prices")
        self._endpoint, self.budget = endpoint, budget
        priced = None if endpoint.cost(1, 1) is None else 0.0
        self._sum = Spending(cost=priced, unsure_cost=priced)
        self._reserved = 0.0
        self._worst = 1.0
        """the largest ratio of counted to estimated tokens so far: a server that counts more is believed"""
        self._change = threading.Condition()
        self.stopped = ""

    def snapshot(self) -> Spending:
        """Everything up to now."""
        with self._change:
            return replace(self._sum, by_tag=dict(self._sum.by_tag))

    def stop(self, why: str) -> None:
        """Send nothing any more, for this reason; the first reason stays."""
        with self._change:
            self.stopped = self.stopped or why
            self._change.notify_all()

    def reserve(self, tokens_in: int, tokens_out: int, leaving: threading.Event) -> float | str:
        """Put a request's estimate aside and return it, or the reason why nothing may be sent."""
        with self._change:
            while True:
                if self.stopped or leaving.is_set():
                    return self.stopped or "interrupted"
                need = self._endpoint.cost(tokens_in * self._worst, tokens_out) or 0.0
                spent = (self._sum.cost or 0.0) + (self._sum.unsure_cost or 0.0)
                if self.budget is None or spent + self._reserved + need <= self.budget:
                    self._reserved += need
                    self._add(requests=1)
                    return need
                if self._reserved <= 0:
                    self.stopped = (
                        f"the budget of ${self.budget:.4f} is used up (${spent:.4f} spent, "
                        f"the next request may cost ${need:.4f})"
                    )
                    return self.stopped
                self._change.wait(0.5)

    def settle(self, reserved: float, estimated_in: int, usage: Usage, tag: str) -> float | None:
        """Book an answer at what the server counted; returns its cost."""
        cost = self._endpoint.cost(usage.tokens_in, usage.tokens_out)
        with self._change:
            if not usage.estimated and estimated_in:
                self._worst = max(self._worst, usage.tokens_in / estimated_in)
            self._add(answers=1, estimated=int(usage.estimated), tokens_in=usage.tokens_in, tokens_out=usage.tokens_out)
            self._sum = replace(self._sum, cost=_plus(self._sum.cost, cost))
            old = self._sum.by_tag.get(tag, TagSpending())
            self._sum.by_tag[tag] = TagSpending(
                old.answers + 1,
                old.tokens_in + usage.tokens_in,
                old.tokens_out + usage.tokens_out,
                _plus(old.cost, cost),
            )
            self._release(reserved)
        return cost

    def withdraw(self, reserved: float) -> None:
        """Give back the reservation of a request that was never sent."""
        with self._change:
            self._add(requests=-1)
            self._release(reserved)

    def failed(self, reserved: float, unsure: bool) -> None:
        """Give a reservation back, or keep it as spent where the server may have billed a broken-off request."""
        with self._change:
            if unsure:
                kept = None if self._sum.unsure_cost is None else reserved
                self._sum = replace(self._sum, unsure_cost=_plus(self._sum.unsure_cost, kept))
                self._add(unsure=1)
            self._release(reserved)

    def count(self, **counts: int) -> None:
        """Add to the plain counts."""
        with self._change:
            self._add(**counts)

    def _add(self, **counts: int) -> None:
        self._sum = replace(self._sum, **{name: getattr(self._sum, name) + more for name, more in counts.items()})

    def _release(self, reserved: float) -> None:
        self._reserved = max(0.0, self._reserved - reserved)
        # Adding and taking away floats leaves dust, and dust in flight would be waited for.
        if self._reserved < 1e-12:  # noqa: PLR2004
            self._reserved = 0.0
        self._change.notify_all()


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
