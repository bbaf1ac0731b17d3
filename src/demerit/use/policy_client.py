"""A policy on a server that speaks openpi's WebSocket protocol: the source of action chunks for `pick_chunk`.

The server sends its metadata when a client connects. Then each observation is answered by a dictionary with `actions`.
Both are msgpack. An array is {b"__ndarray__": true, b"data": bytes, b"dtype": "<f4", b"shape": [50, 7]}, and a number
with a type {b"__npgeneric__": true, b"data": 1.5, b"dtype": "<f4"}. A text is an error. Nothing is unpickled.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from websockets.exceptions import InvalidStatus

from demerit.errors import BadInput, DemeritWarning, MissingExtra, RemoteError
from demerit.use.serve.client import MOST_MESSAGE, LiveSocket, keep_asking
from demerit.use.serve.wire import NUMBERS

try:
    import msgpack
except ModuleNotFoundError as missing:
    raise MissingExtra("The client of policy servers", "openpi") from missing

DTYPE = re.compile(r"[<>=|]?[biuf][1248]")
"""numbers alone: no object, no text, no structure"""
FAILED = 500
CHUNK_SHAPE = 2
"""dimensions of a chunk: steps and joints"""
MOST_SAID = 300
"""characters of a server's own words in an error"""


class PolicyClient:
    """Asks a policy server for action chunks. One question at a time; not for several threads at once."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        patience: float = 30.0,
        timeout: float = 120.0,
        most_bytes: int = 16 * MOST_MESSAGE,
    ) -> None:
        """Connect and read the server's metadata.

        Args:
            url: `ws://HOST:PORT` or `wss://HOST:PORT`.
            api_key: what the server asks for, if it does.
            patience: seconds to try again while the server cannot be reached or is busy.
            timeout: seconds to wait for an answer. The first one of a policy that compiles takes longest.
            most_bytes: the largest message that is accepted.
        """
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0
        except (ValueError, AttributeError):
            is_good = False
        if not is_good:
            raise BadInput("policy server", "an address such as ws://127.0.0.1:8000", repr(url))
        self.url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self.patience, self._timeout, self._most = patience, timeout, most_bytes
        self._headers = {"Authorization": f"Api-Key {api_key}"} if api_key else {}
        self._line: LiveSocket | None = None
        self.metadata: dict[str, Any] = {}
        """what the server says of itself"""
        keep_asking(self._connect, self.url, patience, self.close)

    def infer(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """Send an observation; return the policy's answer, as `actions` and what else it says.

        After a lost connection it is sent again, so a policy may be asked twice.
        """
        message = pack_message(observation)
        return keep_asking(lambda: self._ask(message), self.url, self.patience, self.close)

    def sample_chunks(self, observation: Mapping[str, Any], count: int) -> list[npt.NDArray[Any]]:
        """Ask for several chunks for the same observation, each an array of (steps, joints).

        Warns if they are all the same: then the policy does not sample, and there is nothing to pick.
        """
        if count < 1:
            raise BadInput("count", "1 chunk or more", count)
        chunks = [self._read_chunk(self.infer(observation)) for _ in range(count)]
        if len({chunk.shape for chunk in chunks}) > 1:
            shapes = ", ".join(sorted({str(chunk.shape) for chunk in chunks}))
            raise RemoteError(self.url, FAILED, f"chunks of different shapes: {shapes}")
        if count > 1 and all(np.array_equal(chunks[0], chunk) for chunk in chunks):
            warning = f"The policy at {self.url} gave the same chunk {count} times: it does not sample."
            warnings.warn(warning, DemeritWarning, stacklevel=2)
        return chunks

    def close(self) -> None:
        """Close the connection; the next question opens a new one."""
        if self._line is not None:
            self._line.close()
        self._line = None

    def _connect(self) -> None:
        try:
            line = LiveSocket(self.url, self._headers, self._timeout, self._most)
        except InvalidStatus as refused:
            status = refused.response.status_code
            raise RemoteError(self.url, status, "it refuses the connection") from refused
        try:
            self.metadata = self._read(line)
        except BaseException:
            line.close()
            raise
        self._line = line

    def _ask(self, message: bytes) -> dict[str, Any]:
        if self._line is None:
            self._connect()
        line, self._line = self._line, None
        assert line is not None
        try:
            line.send(message)
            answer = self._read(line)
        except BaseException:  # an answer that comes later must not be taken for that to another question
            line.close()
            raise
        self._line = line
        return answer

    def _read(self, line: LiveSocket) -> dict[str, Any]:
        is_text, content = line.receive()
        if is_text:  # openpi's server sends the traceback of what went wrong
            said = content.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
            raise RemoteError(self.url, FAILED, f"the policy failed ({said[-1][:MOST_SAID]})")
        try:
            return unpack_message(content)
        except BadInput as error:
            raise RemoteError(self.url, FAILED, f"not as a policy server does ({error})") from error

    def _read_chunk(self, answer: Mapping[str, Any]) -> npt.NDArray[Any]:
        actions = answer.get("actions")
        if isinstance(actions, np.ndarray) and actions.ndim == CHUNK_SHAPE and actions.size:
            if np.isfinite(actions).all():
                return actions
            raise RemoteError(self.url, FAILED, "its actions are not all finite numbers")
        got = f"shape {actions.shape}" if isinstance(actions, np.ndarray) else f"only {', '.join(answer) or 'nothing'}"
        raise RemoteError(self.url, FAILED, f"expected actions of shape (steps, joints), got {got}")


def pack_message(content: Mapping[str, Any]) -> bytes:
    """Make a message: dictionaries, lists, texts, numbers and arrays of numbers."""
    try:
        packed: bytes = msgpack.packb(dict(content), default=_pack_array)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(
            "observation", "texts, numbers, arrays of numbers, lists and dictionaries of them", error
        ) from None
    return packed


def unpack_message(message: bytes) -> dict[str, Any]:
    """Read a message; refuse what is no dictionary of texts, numbers, arrays of numbers, lists and dictionaries."""
    try:
        content = msgpack.unpackb(message, object_hook=_unpack_array, ext_hook=_refuse_extension)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise BadInput("message", "msgpack with arrays as openpi sends them", error or type(error).__name__) from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise BadInput("message", "a dictionary with names", type(content).__name__)
    return content


def _pack_array(value: object) -> dict[bytes, Any]:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in NUMBERS:
        if isinstance(value, np.generic):
            return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    raise TypeError(f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__)


def _unpack_array(facts: dict[Any, Any]) -> Any:
    if b"__ndarray__" not in facts and b"__npgeneric__" not in facts:
        return facts
    data, name = facts[b"data"], facts[b"dtype"]
    if not isinstance(name, str) or not DTYPE.fullmatch(name):
        raise ValueError(f"the dtype {name!r:.40}")
    dtype = np.dtype(name)
    if b"__npgeneric__" in facts:
        if not isinstance(data, bool | int | float):
            raise ValueError(f"{type(data).__name__} as a number")
        return dtype.type(data)
    shape = facts[b"shape"]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("a shape that is no list of sizes")
    if not isinstance(data, bytes) or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"data that do not fill an array of shape {shape!s:.60}")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"the extension type {code}")
