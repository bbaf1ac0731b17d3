"""The one client for every language and vision-language model behind an OpenAI-compatible address.

    from demerit.llm.client import ChatRequest, ChatClient, Endpoint, Message

    with ChatClient(Endpoint("http://localhost:8000/v1", "qwen"), cache=Path("answers.sqlite")) as chat:
        for number, said in chat.ask_all(asks):
            print(said.parsed or said.why_not)

Every answer that was paid for is cached before it is handed out, so the same command after a crash goes on where it
stopped. What brought no usable answer says why in `ChatResponse.why_not`; nothing is ever made up. An answer that
cannot be read is an answer: it was billed, it stays cached, and it is not asked again (another `sample` would be).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from demerit.errors import BadInput, StoreError
from demerit.llm import tokens
from demerit.llm.answers import ChatResponse, Estimate, Spending, TagSpending, Usage
from demerit.llm.asks import ChatImage, ChatRequest, Endpoint, Message
from demerit.llm.cache import Cache, Reply
from demerit.llm.dialect import Dialect
from demerit.llm.ledger import Ledger
from demerit.llm.pacing import Attempts, Pace
from demerit.llm.reading import read
from demerit.llm.wire import Trouble, Wire

__all__ = [
    "ChatClient",
    "ChatImage",
    "ChatRequest",
    "ChatResponse",
    "Endpoint",
    "Estimate",
    "Message",
    "Spending",
    "TagSpending",
    "Usage",
]

log = logging.getLogger("demerit.llm.client")

CLAIM_SLACK = 60.0
LOOK_AGAIN = (0.02, 0.5)
"""first and longest pause between looks at a question that somebody else is asking"""


class ChatClient:
    """Asks one endpoint, many questions at a time, each at most once."""

    def __init__(
        self,
        endpoint: Endpoint,
        cache: Path | None = None,
        concurrency: int = 8,
        budget: float | None = None,
        timeout: float = 120.0,
        tries: int = 6,
    ) -> None:
        """Prepare; nothing is sent and no key is read before the first question.

        Args:
            endpoint: where, and which model.
            cache: the file of answers; None keeps them only as long as this object.
            concurrency: how many requests may be under way at once.
            budget: dollars that this object may spend; needs prices.
            timeout: seconds for one whole answer.
            tries: how often a request may fail before its question is given up.
        """
        if concurrency < 1 or tries < 1 or timeout <= 0:
            raise BadInput(
                "chat", "concurrency and tries of at least 1, a timeout above 0", (concurrency, tries, timeout)
            )
        self.endpoint, self.concurrency, self._timeout = endpoint, concurrency, timeout
        self._ledger = Ledger(endpoint, budget)
        self._cache = Cache(cache)
        self.notes: list[str] = []
        """what was learnt about the server and is worth showing, each sentence once"""
        self._name = f"{endpoint.url} {endpoint.model}"
        self._dialect = Dialect.first(endpoint, self._cache.dialect(self._name))
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(concurrency)
        self._pace = Pace(self._ledger, tries, concurrency)
        self._wire_made: Wire | None = None

    def __enter__(self) -> ChatClient:
        """Use it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Hang up."""
        self.close()

    def close(self) -> None:
        """Close the connections and the cache."""
        with self._lock:
            if self._wire_made is not None:
                self._wire_made.close()
                self._wire_made = None
        self._cache.close()

    @property
    def spent(self) -> Spending:
        """What was done and paid so far."""
        return self._ledger.snapshot()

    @property
    def stopped(self) -> str:
        """Why nothing is sent any more (the budget, a refused key, a dead server); empty while all is well."""
        return self._ledger.stopped

    def stop(self, why: str) -> None:
        """Send nothing any more, for this reason; what is under way is still waited for and kept."""
        self._ledger.stop(why)

    def estimate(self, asks: Iterable[ChatRequest]) -> Estimate:
        """Say what asking would take, without sending anything or needing a key."""
        count = cached = images = tokens_in = tokens_out = 0
        seen: set[str] = set()
        for ask in asks:
            count += 1
            key = ask.key(self.endpoint)
            if key in seen or self._cache.get(key):
                cached += 1
                continue
            seen.add(key)
            images += sum(isinstance(part, ChatImage) for message in ask.messages for part in message.parts)
            tokens_in += tokens.of_ask(ask)
            tokens_out += ask.max_tokens
        cost = self.endpoint.cost(tokens_in, tokens_out)
        return Estimate(count, cached, images, tokens_in, tokens_out, cost)

    def ask(self, ask: ChatRequest) -> ChatResponse:
        """Ask one question and wait for its answer."""
        return self._answer(ask, threading.Event())

    def ask_all(self, asks: Iterable[ChatRequest]) -> Iterator[tuple[int, ChatResponse]]:
        """Ask many at once; yields each one's place in the list and its answer, as they finish.

        The list is read as there is room, never far ahead, so a generator that decodes images needs little memory.
        Leaving early (an error, Ctrl-C, a `break`) sends nothing more and waits for what is under way, because that
        is paid for; a second Ctrl-C does not wait.
        """
        todo: queue.SimpleQueue[tuple[int, ChatRequest] | None] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, ChatResponse | BaseException]] = queue.SimpleQueue()
        leaving, workers, waiting = threading.Event(), list[threading.Thread](), 0
        try:
            for place, ask in enumerate(asks):
                todo.put((place, ask))
                waiting += 1
                if len(workers) < self.concurrency:
                    workers.append(threading.Thread(target=self._work, args=(todo, done, leaving), daemon=True))
                    workers[-1].start()
                while waiting >= 2 * self.concurrency or not done.empty():
                    waiting -= 1
                    yield _unless_error(done.get())
            while waiting:
                waiting -= 1
                yield _unless_error(done.get())
        finally:
            leaving.set()
            for _ in workers:
                todo.put(None)
            for worker in workers:
                worker.join()

    def _work(
        self,
        todo: queue.SimpleQueue[tuple[int, ChatRequest] | None],
        done: queue.SimpleQueue[tuple[int, ChatResponse | BaseException]],
        leaving: threading.Event,
    ) -> None:
        """Answer what is in the queue until it says that there is no more."""
        while (item := todo.get()) is not None:
            place, ask = item
            try:
                done.put((place, self._answer(ask, leaving)))
            except BaseException as error:
                done.put((place, error))

    def _answer(self, ask: ChatRequest, leaving: threading.Event) -> ChatResponse:
        """Take the answer from the cache, from whoever is asking the same just now, or from the server."""
        key, pause = ask.key(self.endpoint), LOOK_AGAIN[0]
        while not leaving.is_set():
            known = self._cache.get(key)
            if known:
                self._ledger.count(from_cache=1)
                return self._said(ask, known, 0.0, cached=True)
            if self.stopped:
                return ChatResponse.nothing(f"not asked: {self.stopped}")
            claim = self._cache.claim(key, self._timeout + CLAIM_SLACK)
            said = self._ask_server(ask, key, claim, leaving) if claim else None
            if said is not None:
                return said
            leaving.wait(pause)
            pause = min(2 * pause, LOOK_AGAIN[1])
        return ChatResponse.nothing("not asked: interrupted")

    def _ask_server(self, ask: ChatRequest, key: str, claim: str, leaving: threading.Event) -> ChatResponse | None:
        """Try until there is an answer or no hope of one; None when somebody else has taken the question over."""
        so_far = Attempts()
        try:
            while True:
                try:
                    return self._try(ask, key, claim, leaving)
                except Trouble as trouble:
                    delay = so_far.delay(trouble)
                    why = self._pace.give_up(trouble, so_far)
                    if why:
                        return ChatResponse.nothing(f"failed: {why}")
                self._ledger.count(retries=1)
                self._cache.renew(key, claim, delay + self._timeout + CLAIM_SLACK)
                leaving.wait(delay)
        except _Taken:
            return None
        except _Stopped as stop:
            return ChatResponse.nothing(f"{'failed' if so_far.failures else 'not asked'}: {stop}")
        finally:
            self._cache.release(key, claim)

    def _try(self, ask: ChatRequest, key: str, claim: str, leaving: threading.Event) -> ChatResponse:
        """Send one request, in the dialect that the server understands, as far as the money goes."""
        need, wire = tokens.of_ask(ask), self._wire()
        self._pace.hold(leaving)
        with self._slots:
            reserved = self._ledger.reserve(need, ask.max_tokens, leaving)
            if isinstance(reserved, str):
                raise _Stopped(reserved)
            # All this waiting may have taken longer than the claim lasts, and a question is sent by one at a time.
            if not self._cache.renew(key, claim, self._timeout + CLAIM_SLACK):
                self._ledger.withdraw(reserved)
                raise _Taken
            dialect = self._dialect
            body = dialect.write(ask, self.endpoint.model)
            try:
                reply = wire.send(body, ask)
            except Trouble as trouble:
                self._ledger.failed(reserved, trouble.unsure)
                if not self._learn(dialect, trouble, body):
                    self._pace.heed(trouble)
                    raise
            except BaseException:
                # An interrupt or a defect: the request was sent, so it may be billed.
                self._ledger.failed(reserved, unsure=True)
                raise
            else:
                return self._keep(ask, key, reply, reserved, need)
        return self._try(ask, key, claim, leaving)

    def _keep(self, ask: ChatRequest, key: str, reply: Reply, reserved: float, need: int) -> ChatResponse:
        """Book and store an answer. One that cannot be stored is still handed out, but no more are bought."""
        usage = Usage(reply.tokens_in, reply.tokens_out, reply.estimated)
        cost = self._ledger.settle(reserved, need, usage, ask.tag)
        self._pace.answered()
        try:
            self._cache.put(key, reply, self.endpoint.model, cost, ask.tag)
        except StoreError as error:
            self._note(f"An answer could not be kept: {error}")
            self._ledger.stop(f"answers cannot be kept ({error.reason})")
        return self._said(ask, reply, cost, cached=False)

    def _said(self, ask: ChatRequest, reply: Reply, cost: float | None, cached: bool) -> ChatResponse:
        parsed, why_not = read(reply.text, reply.finish, reply.refusal, ask.schema)
        usage = Usage(reply.tokens_in, reply.tokens_out, reply.estimated, cached)
        return ChatResponse(reply.text, parsed, why_not, usage, cost)

    def _learn(self, used: Dialect, trouble: Trouble, body: dict[str, Any]) -> bool:
        """Change the dialect if that is what the server refused; true when the request is worth writing anew."""
        change = used.after(trouble.status, trouble.reason, body, self.endpoint)
        if change is None:
            return False
        with self._lock:
            # Others may have been refused at the same time; the first of them speaks for all.
            if self._dialect == used:
                self._dialect = change[0]
                self._cache.learn(self._name, change[0].facts())
                self._note(f"{self.endpoint.url} ({self.endpoint.model}) {change[1]}.")
        return True

    def _wire(self) -> Wire:
        with self._lock:
            if self._wire_made is None:
                self._wire_made = Wire(self.endpoint, self._timeout)
            return self._wire_made

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
            log.warning(sentence)


class _Taken(Exception):
    """The claim ran out and somebody else asks now."""


class _Stopped(Exception):
    """Nothing may be sent any more; says why."""


def _unless_error(item: tuple[int, ChatResponse | BaseException]) -> tuple[int, ChatResponse]:
    place, said = item
    if isinstance(said, BaseException):
        raise said
    return place, said
