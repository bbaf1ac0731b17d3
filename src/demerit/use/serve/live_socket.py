"""The client's end of a WebSocket: sends a message and waits for the answer in the caller's thread.

`websockets.sync` reads in a thread of its own, and waking the caller costs as much as the frame's way to the server.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

READ_BYTES = 65536


class LiveSocket:
    """A connection to a reward server's live episodes. Not for several threads at once."""

    def __init__(self, address: str, headers: Mapping[str, str], timeout: float) -> None:
        """Connect; raises OSError or WebSocketException. `timeout` is for each wait."""
        uri = parse_uri(address)
        self._protocol = ClientProtocol(uri)
        self._socket = socket.create_connection((uri.host, uri.port), timeout)
        try:
            if uri.secure:
                self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=uri.host)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = self._protocol.connect()
            request.headers.update(headers)
            self._protocol.send_request(request)
            while not self._exchange_bytes():
                pass
            if self._protocol.handshake_exc is not None:
                raise self._protocol.handshake_exc
        except BaseException:
            self._socket.close()
            raise

    def ask(self, message: str | bytes) -> bytes:
        """Send a message and return the next one of the server."""
        if isinstance(message, str):
            self._protocol.send_text(message.encode())
        else:
            self._protocol.send_binary(message)
        answer = b""
        while True:
            for event in self._exchange_bytes():
                if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.CONT):
                    answer += event.data
                    if event.fin:
                        return answer

    def close(self) -> None:
        """Close it, without waiting for the server."""
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()

    def _exchange_bytes(self) -> list[object]:
        """Send what is to be sent, wait for bytes, and return the events in them."""
        for data in self._protocol.data_to_send():
            self._socket.sendall(data)
        received = self._socket.recv(READ_BYTES)
        if not received or self._protocol.close_rcvd is not None:
            raise ConnectionClosedError(self._protocol.close_rcvd, None)
        self._protocol.receive_data(received)
        return list(self._protocol.events_received())
