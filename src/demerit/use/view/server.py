"""A small web server for pages on this machine.

    with LocalServer({"/": lambda: Reply("<p>hello", "text/html"), **media_routes(media, episode_at)}) as server:
        print(server.url)

A route is a regular expression of a whole path; its groups must be numbers, which the function receives as integers. So
nothing in an address becomes a path: episodes are found by their place. By default only this machine is answered, and
never a request whose `Host` is a foreign name: a web page elsewhere could point its own name here and read along.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from demerit.data.episode import Episode
from demerit.data.frames import short_hash
from demerit.errors import BadInput, DemeritError
from demerit.use.view.media import EpisodeMedia

RANGE = re.compile(r"bytes=(\d*)-(\d*)")
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
IDLE_SECONDS = 60
N = r"(\d{1,9})"
"""a number in a route"""


@dataclass(frozen=True)
class Reply:
    """An answer: a text, bytes, or a file of which the browser may ask for a part."""

    body: str | bytes | Path
    content: str = "text/plain"
    """MIME type"""
    status: int = 200


Route = Callable[..., Reply]
NO_ICON: dict[str, Route] = {"/favicon.ico": lambda: Reply(b"", "image/x-icon")}
"""browsers ask for it"""


def json_reply(facts: Any) -> Reply:
    """Answer with JSON. NaN is refused: JSON has no such number."""
    return Reply(json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":")), "application/json")


def media_routes(media: EpisodeMedia, episode_at: Callable[[int], Episode]) -> dict[str, Route]:
    """Return the routes of episodes by their place: `/media/7.jpg`, `/media/7/12.jpg` (frame 12), `/media/7.mp4`."""

    def thumbnail(place: int, frame: int | None = None) -> Reply:
        return Reply(media.thumbnail(episode_at(place).main, frame), "image/jpeg")

    def video(place: int) -> Reply:
        return Reply(media.video(episode_at(place).main).path, "video/mp4")

    return {f"/media/{N}[.]jpg": thumbnail, f"/media/{N}/{N}[.]jpg": thumbnail, f"/media/{N}[.]mp4": video}


class LocalServer:
    """Serves routes from threads; as a context manager it runs beside the program."""

    def __init__(self, routes: Mapping[str, Route], host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen at once; port 0 = a free one."""
        try:
            self._server = _RouteServer((host, port), _Handler)
        except OSError as error:
            taken = "one that another program uses" if error.errno == errno.EADDRINUSE else error.strerror or error
            raise BadInput(
                f"address {host}:{port}", "a free port of this machine (--port 0 finds one)", taken
            ) from error
        self._server.host = host
        self._server.routes = {re.compile(pattern): route for pattern, route in {**NO_ICON, **routes}.items()}
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def url(self) -> str:
        """The address of the server, without a slash at the end."""
        host = "127.0.0.1" if self._server.host == "0.0.0.0" else self._server.host
        return f"http://{host}:{self._server.server_port}"

    def run(self) -> None:
        """Serve until Ctrl-C or SIGTERM; only in the main thread."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with self, suppress(KeyboardInterrupt):
            self._thread.join()

    def __enter__(self) -> LocalServer:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; requests that are being answered are cut off."""
        self._server.shutdown()
        self._server.server_close()


class _RouteServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    host: str
    routes: Mapping[re.Pattern[str], Route]

    def server_bind(self) -> None:
        """Bind without asking a name server for this machine's name, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_port = self.socket.getsockname()[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: browsers hang up when they scroll on."""

    def answer(self, path: str, host: str) -> Reply:
        """Find the route of a path and call it."""
        if not is_local(host, self.host):
            return Reply(f"Host: expected an address of this machine, got {host!r}.", status=HTTPStatus.FORBIDDEN)
        for pattern, route in self.routes.items():
            if found := pattern.fullmatch(path):
                try:
                    return route(*map(int, found.groups()))
                except DemeritError as error:
                    return Reply(str(error), status=HTTPStatus.NOT_FOUND)
        return Reply(f"There is nothing at {path!r}.", status=HTTPStatus.NOT_FOUND)


def is_local(host: str, own: str) -> bool:
    """Whether a `Host` header names this machine: an IP address, localhost, or the name that the server listens at."""
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() in ("localhost", own.lower())
    return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server: _RouteServer

    def do_GET(self) -> None:
        """Answer with the whole body or the part that is asked for."""
        try:
            reply = self.server.answer(self.path.partition("?")[0], self.headers.get("Host", ""))
            if isinstance(reply.body, Path):
                self._send_file(reply.body, reply)
            else:
                body = reply.body.encode() if isinstance(reply.body, str) else reply.body
                self._send_head(reply, len(body), reply.status, {"Cache-Control": "no-store"})
                self._send(lambda: self.wfile.write(body))
        except OSError:  # the browser hung up, or the file vanished while it was sent
            self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""

    def _send_file(self, path: Path, reply: Reply) -> None:
        with open(path, "rb") as file:
            size, changed = os.fstat(file.fileno()).st_size, os.fstat(file.fileno()).st_mtime_ns
            start, stop, status = 0, size, reply.status
            mark = f'"{short_hash(str(path).encode(), str((size, changed)).encode())}"'
            headers = {"Accept-Ranges": "bytes", "Cache-Control": "no-cache", "ETag": mark}
            if self.headers.get("If-None-Match") == mark:
                self._send_head(reply, 0, HTTPStatus.NOT_MODIFIED, headers)
                return
            if asked := RANGE.fullmatch(self.headers.get("Range", "")):
                start, stop = _read_range(asked[1], asked[2], size)
                if start >= stop:
                    headers["Content-Range"] = f"bytes */{size}"
                    self._send_head(reply, 0, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers)
                    return
                headers["Content-Range"], status = f"bytes {start}-{stop - 1}/{size}", HTTPStatus.PARTIAL_CONTENT
            self._send_head(reply, stop - start, status, headers)
            self._send(lambda: self.connection.sendfile(file, start, stop - start))

    def _send_head(self, reply: Reply, length: int, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        charset = "; charset=utf-8" if isinstance(reply.body, str) else ""
        all_headers = {
            "Content-Type": reply.content + charset,
            "Content-Length": str(length),
            **SAFE_HEADERS,
            **headers,
        }
        for name, value in all_headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, send: Callable[[], object]) -> None:
        if self.command != "HEAD":
            self.wfile.flush()
            send()


def _read_range(first: str, last: str, size: int) -> tuple[int, int]:
    """Return start and stop of a range header; an empty range cannot be satisfied."""
    if not first:
        return (max(0, size - int(last)), size) if last else (0, 0)
    return int(first), min(size, int(last) + 1) if last else size
