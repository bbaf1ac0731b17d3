"""One request over the network: an answer, or a `Trouble` that says what to do about it.

The SDK's own retries are off, so that nothing is sent twice behind the ledger's back. The whole answer has a time
limit, not only each piece of it: a server that drips a byte a second is late like any other.
"""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from demerit.errors import MissingExtra
from demerit.llm import tokens
from demerit.llm.asks import ChatRequest, Endpoint
from demerit.llm.cache import Reply

if TYPE_CHECKING:
    from openai import OpenAI

_AGAIN = {408, 409, 425, 429}
_SERVER_ERROR = 500
_HOPELESS = {401: "the key is refused", 402: "the account must be paid", 404: "there is no such address or model"}
_NOT_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "LocalProtocolError", "ProxyError")
_SHORTEST_SECRET = 8
_LONGEST_MESSAGE = 300


class Trouble(Exception):
    """A request that brought no answer."""

    def __init__(
        self,
        reason: str,
        *,
        status: int = 0,
        again: bool = True,
        wait: float | None = None,
        unsure: bool = False,
        hopeless: bool = False,
    ) -> None:
        """Take the facts: try again, after how long, was it perhaps billed, will every other request fail too."""
        super().__init__(reason)
        self.reason, self.status, self.again, self.wait = reason, status, again, wait
        self.unsure, self.hopeless = unsure, hopeless


class Wire:
    """A connection to one endpoint, for many threads."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        """Read the key now, so that a missing one is said before anything is prepared."""
        try:
            import openai  # noqa: PLC0415
        except ImportError:
            raise MissingExtra("Asking a language model", "chat") from None
        self._openai, self._timeout = openai, timeout
        self._key = endpoint.key()
        limit = openai.Timeout(timeout, connect=min(timeout, 10.0))
        self._client: OpenAI = openai.OpenAI(
            api_key=self._key or "none", base_url=endpoint.url, max_retries=0, timeout=limit
        )

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def clean(self, text: str) -> str:
        """Take the key out of anything that a server or a library wrote: some repeat it in their errors."""
        if len(self._key) >= _SHORTEST_SECRET:
            text = text.replace(self._key, "[key]")
        # Half a character (JSON can hold one) could neither be stored nor printed.
        return text.encode(errors="replace").decode()

    def send(self, body: dict[str, Any], ask: ChatRequest) -> Reply:
        """Send one request and wait for its whole answer."""
        sdk, deadline = self._openai, time.monotonic() + self._timeout
        create: Any = self._client.chat.completions.with_streaming_response.create
        try:
            with create(**body) as response:
                raw = self._read(response, deadline)
        except sdk.APIStatusError as error:
            raise self._refused(error.status_code, _message(error.body), error.response.headers) from None
        except sdk.APITimeoutError as error:
            sent = type(error.__cause__).__name__ not in _NOT_SENT
            raise Trouble(f"no answer within {self._timeout:g} s", unsure=sent) from None
        except sdk.APIConnectionError as error:
            raise self._broken(error.__cause__ or error) from None
        except Exception as error:
            # What breaks while the answer is read comes straight from the HTTP library, whichever the SDK uses.
            if not type(error).__module__.startswith(("httpx", "httpcore")):
                raise
            raise self._broken(error) from None
        return self._understand(raw, ask)

    def _read(self, response: Any, deadline: float) -> bytes:
        pieces = []
        for piece in response.iter_bytes():
            pieces.append(piece)
            if time.monotonic() > deadline:
                raise Trouble(f"the answer was not complete within {self._timeout:g} s", unsure=True)
        return b"".join(pieces)

    def _broken(self, error: BaseException) -> Trouble:
        name = type(error).__name__
        if "Timeout" in name:
            return Trouble(f"no answer within {self._timeout:g} s", unsure=name not in _NOT_SENT)
        what = self.clean(str(error))[:_LONGEST_MESSAGE] or name
        return Trouble(f"the connection failed ({what})", unsure=name not in _NOT_SENT)

    def _refused(self, status: int, message: str, headers: Mapping[str, str]) -> Trouble:
        said = self.clean(" ".join(message.split()))[:_LONGEST_MESSAGE]
        quota = "insufficient_quota" in message
        hopeless = "the account's quota is used up" if quota else _HOPELESS.get(status, "")
        reason = f"the server answered {status}" + (f", {hopeless}" if hopeless else "") + (f": {said}" if said else "")
        if hopeless:
            return Trouble(reason, status=status, again=False, hopeless=True)
        again = status in _AGAIN or status >= _SERVER_ERROR
        return Trouble(reason, status=status, again=again, wait=retry_after(headers) if again else None)

    def _understand(self, raw: bytes, ask: ChatRequest) -> Reply:
        """Find the answer in a completion, whatever else the server put there."""
        try:
            body = json.loads(raw)
            if "choices" not in body and body.get("error"):
                # Some gateways report their upstream's failure with the status 200.
                inner = body["error"] if isinstance(body["error"], dict) else {}
                code = inner.get("code")
                status = code if isinstance(code, int) else _SERVER_ERROR
                raise self._refused(status, _message(body["error"]), {})
            choice = body["choices"][0]
            message = choice["message"]
            text, refusal = _text(message.get("content")), str(message.get("refusal") or "")
            finish = str(choice.get("finish_reason") or "")
        except (ValueError, LookupError, TypeError, AttributeError):
            start = self.clean(raw[:60].decode(errors="replace"))
            raise Trouble(f"the server's answer is no completion: {start!r}", unsure=True) from None
        counted = _counted(body.get("usage"))
        tokens_in, tokens_out = counted or (tokens.of_ask(ask), tokens.of_text(text))
        return Reply(self.clean(text), finish, self.clean(refusal), tokens_in, tokens_out, counted is None)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, from milliseconds, seconds or a date; None without a usable hint."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, date.timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _message(body: object) -> str:
    """Find the sentence in an error's body, of which there are many shapes."""
    if isinstance(body, dict):
        for name in ("message", "error", "detail"):
            if body.get(name):
                code = f" ({body['code']})" if body.get("code") and name == "message" else ""
                return _message(body[name]) + code
        return json.dumps(body, default=str)
    return str(body or "")


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise TypeError
    return content


def _counted(usage: Any) -> tuple[int, int] | None:
    """The server's count, unless it is missing or cannot be one."""
    if not isinstance(usage, dict):
        return None
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        return None
    return (int(counts[0] or 0), int(counts[1] or 0)) if any(counts) else None
