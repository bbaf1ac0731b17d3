"""A policy server as openpi has it: metadata first, then an answer to each observation, in msgpack over a WebSocket."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any

import msgpack
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

METADATA = {"policy": "noise", "action_horizon": 4}


def encode(value: Any) -> Any:
    """Arrays and numbers with a type as openpi's own client and server send them."""
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return value


def decode(facts: dict[Any, Any]) -> Any:
    if b"__ndarray__" in facts:
        return np.ndarray(buffer=facts[b"data"], dtype=np.dtype(facts[b"dtype"]), shape=facts[b"shape"])
    if b"__npgeneric__" in facts:
        return np.dtype(facts[b"dtype"]).type(facts[b"data"])
    return facts


class PolicyServer:
    """What it was asked, and what it answers: a function of the observation, or bytes or a text as they are."""

    def __init__(self, infer: Callable[[dict[str, Any]], Any], api_key: str | None = None) -> None:
        self.infer, self.api_key = infer, api_key
        self.asked: list[dict[str, Any]] = []
        self.connections = 0
        self.hangs_up_after: int | None = None
        """answers on one connection"""
        self.metadata: bytes = msgpack.packb(METADATA)

    def check(self, connection: ServerConnection, request: Request) -> Response | None:
        if self.api_key is None or request.headers.get("Authorization") == f"Api-Key {self.api_key}":
            return None
        return connection.respond(401, "no key\n")

    def handle(self, connection: ServerConnection) -> None:
        self.connections += 1
        connection.send(self.metadata)
        answered = 0
        for message in connection:
            if answered == self.hangs_up_after:
                return
            self.asked.append(msgpack.unpackb(message, object_hook=decode))
            try:
                answer = self.infer(self.asked[-1])
            except Exception:  # as openpi's server does
                connection.send(traceback.format_exc())
                connection.close(1011, "Internal server error. Traceback included in previous frame.")
                return
            connection.send(answer if isinstance(answer, bytes | str) else msgpack.packb(answer, default=encode))
            answered += 1


@contextmanager
def serve_policy(
    infer: Callable[[Mapping[str, Any]], Any], port: int = 0, **options: Any
) -> Iterator[tuple[PolicyServer, str]]:
    """Serve until the block ends; yield the server and its address."""
    policy = PolicyServer(infer, **options)

    def handle(connection: ServerConnection) -> None:
        try:
            policy.handle(connection)
        except ConnectionClosed:
            pass

    with serve(
        handle, "127.0.0.1", port, compression=None, max_size=None, process_request=policy.check, close_timeout=0.1
    ) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield policy, f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()
