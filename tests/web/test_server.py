"""The one server: parts of files, host names, safe headers, TLS beyond this machine, sizes, signals."""

import http.client
import io
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.video import VideoClip
from demerit.errors import BadInput
from demerit.web.media import EpisodeMedia, media_routes
from demerit.web.server import WebServer, make_app
from fakes.page_fixture import shading_frames
from fakes.tiny_video import write_video


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    write_video(tmp_path / "a.mp4", np.zeros((40, 48, 64, 3), np.uint8), bf="0")
    episodes = [
        Episode("plain", "push", {"main": Frames.from_video(tmp_path / "a.mp4")}),
        Episode("../../etc/passwd", "pull", {"main": shading_frames(8)}),
        Episode("gone", "lift", {"main": Frames(VideoClip(str(tmp_path / "gone.mp4")))}),
    ]

    def episode_at(place: int) -> Episode:
        if place >= len(episodes):
            raise BadInput("place", "0 to 2", place)
        return episodes[place]

    def fail(request: Request) -> Response:
        raise BadInput("x", "a", "b")

    routes = [
        Route("/", lambda request: HTMLResponse("ü")),
        Route("/facts", lambda request: JSONResponse({"a": [1, None]})),
        Route("/fail", fail),
    ]
    with WebServer(make_app([*routes, *media_routes(EpisodeMedia(tmp_path / "cache"), episode_at)])) as running:
        yield running


def ask(server: WebServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.title(): value for name, value in answer.getheaders()}, body


def test_routes_answer(server: WebServer) -> None:
    status, headers, body = ask(server, "/?q=1")
    assert (status, headers["Content-Type"], body.decode()) == (200, "text/html; charset=utf-8", "ü")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert ask(server, "/facts")[2] == b'{"a":[1,null]}'
    assert ask(server, "/fail")[0] == 404
    status, headers, body = ask(server, "/media/1.jpg")
    assert (status, headers["Content-Type"]) == (200, "image/jpeg") and Image.open(io.BytesIO(body)).size == (120, 90)
    assert ask(server, "/media/1/0.jpg")[2] != body
    assert ask(server, "/media/0.mp4", "HEAD")[2] == b""


def test_parts_of_a_video(server: WebServer, tmp_path: Path) -> None:
    whole = (tmp_path / "a.mp4").read_bytes()
    size = len(whole)
    assert ask(server, "/media/0.mp4")[2] == whole
    for asked, start, stop in (("0-99", 0, 100), ("100-", 100, size), ("-50", size - 50, size), ("9-999999", 9, size)):
        status, headers, body = ask(server, "/media/0.mp4", Range=f"bytes={asked}")
        assert (status, body) == (206, whole[start:stop])
        assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
    for asked in (f"{size}-", "-0", "-", "5-4"):
        assert ask(server, "/media/0.mp4", Range=f"bytes={asked}")[0] in (400, 416)
    status, _, body = ask(server, "/media/0.mp4", Range="bytes=0-1,4-5")
    assert status == 206 and whole[:2] in body and whole[4:6] in body


def test_unchanged_file_is_not_sent_again(server: WebServer, tmp_path: Path) -> None:
    mark = ask(server, "/media/0.mp4")[1]["Etag"]
    assert ask(server, "/media/0.mp4", If_None_Match=mark)[0] == 304
    (tmp_path / "a.mp4").write_bytes((tmp_path / "a.mp4").read_bytes() + b"1")
    assert ask(server, "/media/0.mp4", If_None_Match=mark)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "localhost.evil"])
def test_foreign_host_is_refused(server: WebServer, host: str) -> None:
    assert ask(server, "/", Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:9"])
def test_own_host_is_answered(server: WebServer, host: str) -> None:
    assert ask(server, "/", Host=host)[0] == 200


@pytest.mark.parametrize(
    "path", ["/media/9.jpg", "/media/-1.jpg", "/media/..%2f..%2fetc", "/etc/passwd", f"/media/{'9' * 5000}.mp4"]
)
def test_no_address_leads_to_a_file(server: WebServer, path: str) -> None:
    assert ask(server, path)[0] == 404


def test_missing_video_says_why(server: WebServer) -> None:
    for path in ("/media/2.mp4", "/media/2.jpg"):
        status, _, body = ask(server, path)
        assert status == 404 and b"gone.mp4: there is no such file" in body


def test_taken_port_is_a_sentence(server: WebServer) -> None:
    with pytest.raises(BadInput) as caught:
        WebServer(make_app([]), port=urlsplit(server.url).port)
    assert "another program" in str(caught.value.got)
