"""Pictures and videos for a browser, and the server that sends them."""

import http.client
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.video import VideoClip
from demerit.errors import BadInput, UnreadableVideo
from demerit.use.view.media import EpisodeMedia
from demerit.use.view.server import LocalServer, Reply, json_reply, media_routes
from fakes.page_fixture import shading_frames
from fakes.tiny_video import write_video

GREYS = np.broadcast_to((2 + 3.5 * np.arange(40)).astype(np.uint8)[:, None, None, None], (40, 48, 64, 3))


def shades(frames: Frames) -> np.ndarray:
    return frames.all().mean(axis=(1, 2, 3))


def picture(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def recorded(path: Path, **options: object) -> Frames:
    write_video(path, np.ascontiguousarray(GREYS), **options)
    return Frames.from_video(path)


@pytest.fixture
def media(tmp_path: Path) -> EpisodeMedia:
    return EpisodeMedia(tmp_path / "cache")


def test_plain_mp4_is_not_copied(tmp_path: Path, media: EpisodeMedia) -> None:
    frames = recorded(tmp_path / "a.mp4", bf="0")
    video = media.video(frames)
    assert video.path == tmp_path / "a.mp4" and not list(media.cache.iterdir())
    assert np.allclose(video.times, np.arange(40) / 10)


@pytest.mark.parametrize("case", ["segment", "rotated", "edited", "array", "other codec", "matroska"])
def test_everything_else_becomes_a_clip_with_the_same_frames(case: str, tmp_path: Path, media: EpisodeMedia) -> None:
    frames = recorded(tmp_path / "a.mp4")
    path = str(tmp_path / "a.mp4")
    if case == "segment":
        frames = Frames(VideoClip(path, 1.0, 3.0))
    elif case == "rotated":
        frames = Frames(VideoClip(path, rotate=90))
    elif case == "edited":
        frames = frames.select([*range(30), *range(29, 0, -1)])
    elif case == "array":
        frames = shading_frames(33, (65, 47))  # sides of odd length
    else:
        name, codec = {"other codec": ("b.mp4", "mpeg4"), "matroska": ("b.mkv", "libx264")}[case]
        frames = recorded(tmp_path / name, codec=codec)
    video = media.video(frames)
    assert video.path.parent == media.cache
    shown = Frames.from_video(video.path)
    assert len(shown) == len(video.times) == len(frames)
    assert np.abs(shades(shown) - shades(frames)).max() < 1.7  # less than half of the step from frame to frame
    assert np.allclose(shown.times(), video.times, atol=1e-4) and np.allclose(video.times, frames.times(), atol=1e-4)
    assert media.video(shown).path == video.path  # itself a video that plays as it is


def test_replaced_recording_gets_a_new_clip(tmp_path: Path, media: EpisodeMedia) -> None:
    segment = Frames(VideoClip(str(tmp_path / "a.mp4"), 1.0, 3.0))
    recorded(tmp_path / "a.mp4")
    first = media.video(segment)
    write_video(tmp_path / "a.mp4", np.ascontiguousarray(255 - GREYS))
    second = media.video(segment)
    assert first.path != second.path and shades(Frames.from_video(second.path))[0] > 200


def test_thumbnail_shows_the_frame(tmp_path: Path, media: EpisodeMedia) -> None:
    frames = recorded(tmp_path / "a.mp4")
    for at, grey in ((None, GREYS[-1, 0, 0, 0]), (7, GREYS[7, 0, 0, 0])):
        assert abs(np.asarray(picture(media.thumbnail(frames, at).read_bytes())).mean() - grey) < 2
    wide = Frames.from_array(np.zeros((1, 600, 800, 3), np.uint8))
    assert picture(media.thumbnail(wide).read_bytes()).size == (192, 144)
    with pytest.raises(BadInput):
        media.thumbnail(frames, 40)
    with pytest.raises(UnreadableVideo):
        media.thumbnail(Frames(VideoClip(str(tmp_path / "gone.mp4"))))


def test_threads_make_a_clip_once(tmp_path: Path, media: EpisodeMedia, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr("demerit.use.view.media._write_clip", lambda _, __, path: (made.append(path), path.touch()))
    threads = [threading.Thread(target=media.video, args=(shading_frames(8),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


# The server


@pytest.fixture
def server(tmp_path: Path, media: EpisodeMedia) -> Iterator[LocalServer]:
    episodes = [
        Episode("plain", "push", {"main": recorded(tmp_path / "a.mp4", bf="0")}),
        Episode("../../etc/passwd", "pull", {"main": shading_frames(8)}),
        Episode("gone", "lift", {"main": Frames(VideoClip(str(tmp_path / "gone.mp4")))}),
    ]

    def episode_at(place: int) -> Episode:
        if place >= len(episodes):
            raise BadInput("place", "0 to 2", place)
        return episodes[place]

    def fail() -> Reply:
        raise BadInput("x", "a", "b")

    routes = {"/": lambda: Reply("ü", "text/html"), "/facts": lambda: json_reply({"a": [1, None]}), "/fail": fail}
    with LocalServer({**routes, **media_routes(media, episode_at)}) as running:
        yield running


def ask(server: LocalServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_routes_answer(server: LocalServer) -> None:
    status, headers, body = ask(server, "/?q=1")
    assert (status, headers["Content-Type"], body.decode()) == (200, "text/html; charset=utf-8", "ü")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert ask(server, "/facts")[2] == b'{"a":[1,null]}'
    assert ask(server, "/fail")[0] == 404
    status, headers, body = ask(server, "/media/1.jpg")
    assert (status, headers["Content-Type"]) == (200, "image/jpeg") and picture(body).size == (120, 90)
    assert ask(server, "/media/1/0.jpg")[2] != body
    assert ask(server, "/media/0.mp4", "HEAD")[2] == b""


def test_parts_of_a_video(server: LocalServer, tmp_path: Path) -> None:
    whole = (tmp_path / "a.mp4").read_bytes()
    size = len(whole)
    assert ask(server, "/media/0.mp4")[2] == whole
    for asked, start, stop in (("0-99", 0, 100), ("100-", 100, size), ("-50", size - 50, size), ("9-999999", 9, size)):
        status, headers, body = ask(server, "/media/0.mp4", Range=f"bytes={asked}")
        assert (status, body) == (206, whole[start:stop])
        assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
    for asked in (f"{size}-", "-0", "-", "5-4"):
        assert ask(server, "/media/0.mp4", Range=f"bytes={asked}")[0] == 416
    assert ask(server, "/media/0.mp4", Range="bytes=0-1,4-5")[2] == whole


def test_unchanged_file_is_not_sent_again(server: LocalServer, tmp_path: Path) -> None:
    mark = ask(server, "/media/0.mp4")[1]["ETag"]
    assert ask(server, "/media/0.mp4", If_None_Match=mark)[0] == 304
    (tmp_path / "a.mp4").write_bytes((tmp_path / "a.mp4").read_bytes() + b"1")
    assert ask(server, "/media/0.mp4", If_None_Match=mark)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "localhost.evil"])
def test_foreign_host_is_refused(server: LocalServer, host: str) -> None:
    assert ask(server, "/", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:9"])
def test_own_host_is_answered(server: LocalServer, host: str) -> None:
    assert ask(server, "/", Host=host)[0] == 200


@pytest.mark.parametrize(
    "path", ["/media/9.jpg", "/media/-1.jpg", "/media/..%2f..%2fetc", "/etc/passwd", f"/media/{'9' * 5000}.mp4"]
)
def test_no_address_leads_to_a_file(server: LocalServer, path: str) -> None:
    assert ask(server, path)[0] == 404


def test_missing_video_says_why(server: LocalServer) -> None:
    for path in ("/media/2.mp4", "/media/2.jpg"):
        status, _, body = ask(server, path)
        assert status == 404 and b"gone.mp4: there is no such file" in body


def test_taken_port_is_a_sentence(server: LocalServer) -> None:
    with pytest.raises(BadInput) as caught:
        LocalServer({}, port=urlsplit(server.url).port)
    assert "another program" in str(caught.value.got)
