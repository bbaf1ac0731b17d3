"""`ChatClient`: asks a model behind an OpenAI-compatible address, many requests at a time.

    from demerit.llm import ChatClient, ChatRequest, Endpoint, Message

    with ChatClient(Endpoint("http://localhost:8000/v1", "qwen"), cache=Path("answers.sqlite")) as client:
        for index, response in client.ask_all(requests):
            print(response.parsed or response.why_not)

Each answer is cached before it is handed out, so the same command after a crash resumes where it stopped. If a
request gets no usable answer, `ChatResponse.why_not` is the reason. An unreadable answer was billed too: it stays
cached and is not asked for again (another `sample` is). The openai SDK does the HTTP and the retries.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demerit.errors import BadInput, StoreError
from demerit.llm.budget import AnswerCache, Budget, Estimate, Spending, StoredAnswer
from demerit.llm.request import ChatRequest, Endpoint, count_text_tokens
from demerit.registry import load_attribute

if TYPE_CHECKING:
    from openai import OpenAI
    from pydantic import BaseModel

_FATAL = {401: "the key is refused", 402: "the account must be paid", 404: "there is no such address or model"}
_REFUSED_FORMAT = (400, 422)
_NOT_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout")
_SHORTEST_KEY = 8
_LONGEST_MESSAGE, _LONGEST_QUOTE = 300, 80
_THOUGHTS = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_FENCE = re.compile(r"```\w*\s*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class ChatResponse:
    """One answer, or the reason why there is none."""

    text: str
    """what the model wrote, also if it cannot be read; empty if nothing came"""
    parsed: BaseModel | None
    """the answer as an instance of the schema; None without a schema and whenever `why_not` is set"""
    why_not: str
    """empty, or `kind: reason`; the kind is refused, unreadable, cut off, failed or not asked"""
    cost: float | None = 0.0
    """dollars billed now: 0 from the cache, None without prices"""
    cached: bool = False
    """read from the cache: nothing was sent now"""
    request: str = ""
    """hash of the request, under which the answer is cached"""

    def record(self, about: str, why_not: str = "") -> dict[str, str]:
        """Return what is kept of it in `Reward.given["generations"]`.

        Args:
            about: which question it answers.
            why_not: why the answer cannot be used, where that is not known here.
        """
        return {"about": about, "request": self.request, "answer": self.text, "why_not": self.why_not or why_not}

    @property
    def kind(self) -> str:
        """The kind of failure, for counting; empty for a good answer."""
        return self.why_not.partition(":")[0]


class ChatClient:
    """Asks one endpoint; thread-safe. Equal requests are sent once."""

    def __init__(
        self,
        endpoint: Endpoint,
        cache: Path | None = None,
        concurrency: int = 8,
        budget: float | None = None,
        timeout: float = 120.0,
        max_retries: int = 5,
    ) -> None:
        """Open the cache; nothing is sent and no key is read before the first request.

        Args:
            endpoint: the server and the model.
            cache: the file of answers; None keeps them in memory.
            concurrency: requests in flight at once, over all threads.
            budget: dollars that this client may spend; needs prices.
            timeout: seconds to wait for a server that sends nothing.
            max_retries: how often the SDK repeats a request after a timeout, a lost connection, 408, 409, 429 or 5xx.
        """
        if concurrency < 1 or max_retries < 0 or timeout <= 0:
            got = (concurrency, max_retries, timeout)
            raise BadInput("chat client", "concurrency from 1, max_retries from 0, a timeout above 0", got)
        self.endpoint, self.concurrency = endpoint, concurrency
        self._timeout, self._max_retries = timeout, max_retries
        self._budget = Budget(endpoint, budget)
        self._cache = AnswerCache(cache)
        self._slots = threading.BoundedSemaphore(concurrency)
        self._lock = threading.Lock()
        self._key_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._failures_in_a_row = 0
        self._sdk: OpenAI | None = None

    def __enter__(self) -> ChatClient:
        """Use it in `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the connections and the cache; the next request opens them again."""
        with self._lock:
            if self._sdk is not None:
                self._sdk.close()
                self._sdk = None
        self._cache.close()

    @property
    def spent(self) -> Spending:
        """What was sent and paid so far."""
        return self._budget.spending

    @property
    def stopped(self) -> str:
        """Why nothing more is sent (budget, refused key, dead server); empty while all is well."""
        return self._budget.stopped

    def stop(self, reason: str) -> None:
        """Send nothing more; requests in flight are still awaited and cached."""
        self._budget.stop(reason)

    def estimate(self, requests: Iterable[ChatRequest]) -> Estimate:
        """Estimate the cost of requests without sending anything; needs no key."""
        count = cached = images = tokens_in = tokens_out = 0
        seen: set[str] = set()
        for request in requests:
            count += 1
            key = request.key(self.endpoint)
            if key in seen or self._cache.get(key):
                cached += 1
                continue
            seen.add(key)
            images += len(request.images)
            tokens_in += request.count_tokens()
            tokens_out += request.max_tokens
        return Estimate(count, cached, images, tokens_in, tokens_out, self.endpoint.cost(tokens_in, tokens_out))

    def ask(self, request: ChatRequest) -> ChatResponse:
        """Send one request and wait for the answer."""
        return self._answer(request, threading.Event())

    def ask_all(self, requests: Iterable[ChatRequest]) -> Iterator[tuple[int, ChatResponse]]:
        """Yield (position, response) as answers arrive.

        `requests` is read only as far ahead as there is room. After an interrupt or an early `close`, requests in
        flight are awaited and cached, because they are paid for.
        """
        cancelled = threading.Event()
        waiting: dict[Future[ChatResponse], int] = {}
        with ThreadPoolExecutor(self.concurrency) as pool:
            try:
                for index, request in enumerate(requests):
                    waiting[pool.submit(self._answer, request, cancelled)] = index
                    full = len(waiting) >= 2 * self.concurrency
                    for future in wait(waiting, None if full else 0, FIRST_COMPLETED).done:
                        yield waiting.pop(future), future.result()
                while waiting:
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        yield waiting.pop(future), future.result()
            finally:
                cancelled.set()
                for future in waiting:
                    future.cancel()

    def _answer(self, request: ChatRequest, cancelled: threading.Event) -> ChatResponse:
        """Take the answer from the cache or from the server; threads with equal requests wait for each other."""
        key = request.key(self.endpoint)
        with self._lock:
            key_lock = self._key_locks[key]
        with key_lock:
            answer = self._cache.get(key)
            if answer is not None:
                self._budget.count_cached()
                return _respond(request, key, answer, 0.0, cached=True)
            sdk = self._connect()
            with self._slots:
                return self._buy(sdk, request, key, cancelled)

    def _buy(self, sdk: OpenAI, request: ChatRequest, key: str, cancelled: threading.Event) -> ChatResponse:
        """Send a request within the budget, and cache the answer."""
        estimated_in = request.count_tokens()
        reserved = self._budget.reserve(estimated_in, request.max_tokens, cancelled)
        if isinstance(reserved, str):
            return ChatResponse("", None, f"not asked: {reserved}", request=key)
        try:
            answer = self._send(sdk, request)
        except _RequestError as error:
            self._budget.fail(reserved, error.maybe_billed)
            self._count_failure(error)
            return ChatResponse(error.answer, None, f"failed: {error}", request=key)
        except BaseException:
            self._budget.fail(reserved, maybe_billed=1)
            raise
        self._failures_in_a_row = 0
        cost = self._budget.settle(reserved, estimated_in, answer)
        try:
            self._cache.put(key, answer, self.endpoint.model, cost, request.tag)
        except StoreError as error:
            # This answer is still handed out, but no more are bought.
            self._budget.stop(f"answers cannot be stored ({error.reason})")
        return _respond(request, key, answer, cost, cached=False)

    def _send(self, sdk: OpenAI, request: ChatRequest) -> StoredAnswer:
        """Send one request, retried by the SDK, and read the completion."""
        import openai  # noqa: PLC0415

        body = request.body(self.endpoint)
        completion: Any = None
        try:
            completion = sdk.chat.completions.create(**body)
            choice = completion.choices[0]
            text, refusal = self._clean(choice.message.content or ""), self._clean(choice.message.refusal or "")
        except openai.APIStatusError as error:
            raise self._status_error(error, request) from None
        except openai.APIConnectionError as error:  # a timeout is one too
            attempts = 0 if type(error.__cause__).__name__ in _NOT_SENT else self._max_retries + 1
            reason = self._clean(f"{error} {error.__cause__ or ''}".strip())
            raise _RequestError(f"{reason} ({self._max_retries} retries)", maybe_billed=attempts) from None
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # such as a proxy's page with status 200
            content = self._clean(getattr(error, "doc", "") if completion is None else _write_plainly(completion))
            reason = f"the server did not send a completion{f' but {_quote(content)}' if content else ''}"
            raise _RequestError(reason, maybe_billed=1, answer=content) from None
        counted = _counted_tokens(completion.usage)
        tokens_in, tokens_out = counted or (request.count_tokens(), count_text_tokens(text))
        return StoredAnswer(text, str(choice.finish_reason or ""), refusal, tokens_in, tokens_out, counted is None)

    def _status_error(self, error: Any, request: ChatRequest) -> _RequestError:
        """Describe an HTTP error status."""
        message = self._clean(" ".join(str(error).split()))[:_LONGEST_MESSAGE]
        status, mode = error.status_code, self.endpoint.schema_mode
        fatal = "the account's quota is used up" if error.code == "insufficient_quota" else _FATAL.get(status, "")
        if fatal:
            return _RequestError(f"{fatal}: {message}", fatal=True)
        if status in _REFUSED_FORMAT and request.schema is not None and mode != "none":
            message += f" (if the server cannot do schema_mode={mode}, try json_object or none)"
        return _RequestError(message)

    def _count_failure(self, error: _RequestError) -> None:
        """Stop after an error that every request will meet, or when a long row of requests failed."""
        if error.fatal:
            self._budget.stop(str(error))
            return
        with self._lock:
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= max(3 * self.concurrency, 10):
                self._budget.stop(f"the last {self._failures_in_a_row} requests all failed ({error})")

    def _connect(self) -> OpenAI:
        with self._lock:
            if self._sdk is None:
                sdk = load_attribute("openai:OpenAI", "asking a language model")
                timeout = load_attribute("openai:Timeout", "asking a language model")
                limit = timeout(self._timeout, connect=min(self._timeout, 10.0))
                options = {"max_retries": self._max_retries, "timeout": limit}
                self._sdk = sdk(api_key=self.endpoint.key() or "none", base_url=self.endpoint.url, **options)
            return self._sdk

    def _clean(self, text: str) -> str:
        """Remove the key, which some servers repeat, and halves of characters, which cannot be stored."""
        key = self.endpoint.key()
        if len(key) >= _SHORTEST_KEY:
            text = text.replace(key, "[key]")
        return text.encode(errors="replace").decode()


class _RequestError(Exception):
    """A request without an answer: `fatal` if all others would fail too, `maybe_billed` attempts may cost money.

    `answer` is what the server sent instead of a completion.
    """

    def __init__(self, reason: str, *, fatal: bool = False, maybe_billed: int = 0, answer: str = "") -> None:
        super().__init__(reason)
        self.fatal, self.maybe_billed, self.answer = fatal, maybe_billed, answer


def parse_answer(answer: StoredAnswer, schema: type[BaseModel] | None) -> tuple[BaseModel | None, str]:
    """Return the answer as the schema wants it, or the reason why not. Nothing is repaired."""
    if answer.refusal or answer.finish == "content_filter":
        return None, f"refused: {_quote(answer.refusal or answer.text or 'filtered by the server')}"
    reason = ""
    if schema is not None:
        try:
            return schema.model_validate_json(find_json(answer.text)), ""
        except ValueError as error:
            reason = f"unreadable: {_first_error(error)} in {_quote(answer.text)}"
    if answer.finish == "length":
        return None, "cut off: the answer reached max_tokens"
    return None, reason if answer.text.strip() else "unreadable: the answer is empty"


def find_json(text: str) -> str:
    """Return the part of an answer that should be JSON: the last fenced block, else all but <think> sections."""
    text = _THOUGHTS.sub("", text)
    blocks = _FENCE.findall(text)
    return (blocks[-1] if blocks else text).strip()


def _respond(request: ChatRequest, key: str, answer: StoredAnswer, cost: float | None, *, cached: bool) -> ChatResponse:
    parsed, why_not = parse_answer(answer, request.schema)
    return ChatResponse(answer.text or answer.refusal, parsed, why_not, cost, cached, key)


def _write_plainly(sent: Any) -> str:
    """Write what a server sent instead of a completion: a text, or JSON that the SDK took for one."""
    is_object = hasattr(sent, "model_dump_json")
    return str(sent.model_dump_json(warnings=False, exclude_none=True) if is_object else sent)


def _counted_tokens(usage: Any) -> tuple[int, int] | None:
    """The server's count; None if it is missing or makes no sense."""
    counts = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
    plausible = all(type(count) is int and count >= 0 for count in counts) and any(counts)
    return (counts[0] or 0, counts[1] or 0) if plausible else None


def _first_error(error: Any) -> str:
    """The first problem of a pydantic ValidationError."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ": ".join([*(str(step) for step in first["loc"]), first["msg"]])


def _quote(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= _LONGEST_QUOTE else flat[: _LONGEST_QUOTE - 3] + "...")
