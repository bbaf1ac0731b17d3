"""A real server on a free port: what it answers, refuses and survives."""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from demerit.data.episode import Episode
from demerit.errors import BadInput, UnreadableVideo
from demerit.use.serve.client import LiveSocket
from demerit.use.serve.server import serve_models
from demerit.use.serve.wire import encode_frame, join_message
from demerit.web.doors import ONCE_PER_MINUTE, STRANGER_BYTES
from demerit.web.server import WebServer
from demerit.web.uploads import ServeLimits, UploadDecoder
from fakes.served_models import Brightness, ScoresOnly
from fakes.tiny_network import random_images

BINARY = {"Content-Type": "application/octet-stream"}
IMAGES = random_images(3, 4, 5)
HEADER = {"episodes": [{"id": "a", "instruction": "push", "views": [{"camera": "main", "shape": [3, 4, 5, 3]}]}]}
MANY_VIDEOS = {"views": [{"camera": str(place), "video": 1} for place in range(65)]}
GOOD = join_message(HEADER, [IMAGES])
TOKEN = "a token of some length"


def ask(
    server: WebServer, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, method: str = ""
) -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.request(
        method or ("GET" if body is None else "POST"), path, body, BINARY if headers is None else headers
    )
    response = connection.getresponse()
    content = response.read()
    connection.close()
    is_json = response.headers["Content-Type"] == "application/json"
    return response.status, json.loads(content) if is_json else content, response.headers


def open_live(server: WebServer, query: str = "", **headers: str) -> ClientConnection:
    address = server.url.replace("http", "ws") + f"/live{query}"
    return connect(address, additional_headers=headers, proxy=None, compression=None).__enter__()


def open_raw(server: WebServer, sent: bytes) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    raw = socket.create_connection((host, int(port)), timeout=60)
    raw.sendall(sent)
    return raw


def refused_live(server: WebServer, query: str = "", **headers: str) -> int:
    """Return the status with which a handshake is refused."""
    with pytest.raises(InvalidStatus) as refused:
        open_live(server, query, **headers)
    assert json.loads(refused.value.response.body or b"")["error"]
    return refused.value.response.status_code


def exchange(live: ClientConnection, message: str | bytes) -> Any:
    live.send(message)
    return json.loads(live.recv(60))


@pytest.fixture
def model() -> Brightness:
    return Brightness()


@pytest.fixture
def server(model: Brightness) -> Iterator[WebServer]:
    with serve_models([model], limits=ServeLimits(waiting=2, live=3, megabytes=1, frames=20, pixels=4096)) as server:
        yield server
        model.gate.set()


def test_scores_of_a_binary_body(server: WebServer, model: Brightness) -> None:
    status, answer, _ = ask(server, "/score", GOOD)
    (expected,) = Brightness().score([Episode.from_array(IMAGES, "push", id="a")])
    assert status == 200 and answer["card"] == model.card.hash()
    (reward,) = answer["rewards"]
    assert reward["value"] == expected.value.tolist() and reward["success"] == pytest.approx(expected.success)
    assert (reward["model"], reward["episode"], reward["at"], reward["why_missing"]) == (
        "brightness",
        "a",
        [0, 1, 2],
        "",
    )


def test_comparisons(server: WebServer) -> None:
    two = {
        "episodes": [{**HEADER["episodes"][0], "instruction": text} for text in ("long", "")],
        "pairs": [[0, 1], [1, 1]],
    }
    status, answer, _ = ask(server, "/prefer", join_message(two, [IMAGES, IMAGES]))
    assert status == 200 and answer["first"] == pytest.approx([0.52, 0.5])
    for wrong in (None, [[0]], [[0, 2]], [[0, -1]], [["0", 1]], 3, [0, 1]):
        status, answer, _ = ask(server, "/prefer", join_message({**two, "pairs": wrong}, [IMAGES, IMAGES]))
        assert status == 400 and "pairs" in answer["error"]


def test_an_uploaded_video(server: WebServer, make_video: Callable[..., Path]) -> None:
    path = make_video(frames=12)
    status, answer, _ = ask(server, "/score?instruction=push&id=clip", path.read_bytes(), {"Content-Type": "video/mp4"})
    (expected,) = Brightness().score([Episode.from_video(path, "push", id="clip")])
    assert status == 200 and answer["rewards"][0]["value"] == expected.value.tolist()
    assert answer["rewards"][0]["given"] == expected.given


def test_videos_that_cannot_be_decoded_are_unscored(server: WebServer, make_video: Callable[..., Path]) -> None:
    whole, long = make_video(frames=12).read_bytes(), make_video("long.mp4", frames=21).read_bytes()
    make_video("frames.mp4")
    playlist = b"ffconcat version 1.0\nfile frames.mp4\n"
    for video, word in ((b"noise" * 100, "video"), (whole[:900], ""), (long, "20 frames"), (playlist, "video")):
        status, answer, _ = ask(server, "/score", video, {"Content-Type": "video/mp4"})
        (reward,) = answer["rewards"]
        assert status == 200 and reward["value"] == [] and word in reward["why_missing"]
        assert "demerit-upload" not in reward["why_missing"]
    views = [{"camera": "main", "video": len(part)} for part in (whole, b"noise")]
    mixed = {"episodes": [{"id": str(at), "views": [view]} for at, view in enumerate(views)]}
    _, answer, _ = ask(server, "/score", join_message(mixed, [whole, b"noise"]))
    assert [len(reward["value"]) for reward in answer["rewards"]] == [12, 0]
    paired = {**mixed, "pairs": [[0, 0], [0, 1]]}
    assert ask(server, "/prefer", join_message(paired, [whole, b"noise"]))[1]["first"] == [0.5, None]


def test_a_video_that_takes_too_long_and_the_next_one(model: Brightness, make_video: Callable[..., Path]) -> None:
    video = make_video().read_bytes()
    for seconds, scored in ((1e-6, 0), (60, 12)):
        with serve_models([model], limits=ServeLimits(decode_seconds=seconds)) as server:
            _, answer, _ = ask(server, "/score", video, {"Content-Type": "video/mp4"})
        assert len(answer["rewards"][0]["value"]) == scored


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/score?model=other", GOOD, BINARY, 404),
        ("/score?card=0123", GOOD, BINARY, 409),
        ("/score", GOOD, {"Content-Type": "text/plain"}, 415),
        ("/score", GOOD, {}, 415),
        ("/prefer", b"video", {"Content-Type": "video/mp4"}, 415),
        ("/score", GOOD[:-1], BINARY, 400),
        ("/score", GOOD + b"1", BINARY, 400),
        ("/score", b"", BINARY, 400),
        ("/score", bytes(2**20 + 1), BINARY, 413),
        ("/score", None, BINARY, 405),
        ("/nothing", None, BINARY, 404),
        ("/../etc/passwd", None, BINARY, 404),
        ("/score", join_message({"episodes": [MANY_VIDEOS]}, [bytes(65)]), BINARY, 400),
    ],
)
def test_what_is_refused(server: WebServer, path: str, body: bytes, headers: dict[str, str], status: int) -> None:
    found, answer, _ = ask(server, path, body, headers)
    assert found == status and answer["error"]
    assert ask(server, "/score", GOOD)[0] == 200


def test_a_body_without_a_length_is_refused(server: WebServer) -> None:
    status, answer, _ = ask(server, "/score", iter([GOOD]), BINARY)  # type: ignore[arg-type]
    assert status == 411 and answer["error"]


def test_health_answers_and_a_full_queue_refuses_while_the_model_computes(server: WebServer, model: Brightness) -> None:
    model.gate.clear()
    waiting = [threading.Thread(target=ask, args=(server, "/score", GOOD)) for _ in range(3)]
    waiting[0].start()
    model.entered.acquire()
    for thread in waiting[1:]:
        thread.start()
    while ask(server, "/health")[1]["models"]["brightness"]["waiting"] < 2:  # answers each time
        pass
    status, answer, headers = ask(server, "/score", GOOD)
    assert status == 429 and answer["error"] and int(headers["Retry-After"]) > 0
    assert ask(server, "/health")[1]["models"]["brightness"]["busy_seconds"] > 0
    model.gate.set()
    for thread in waiting:
        thread.join(60)
    assert ask(server, "/score", GOOD)[0] == 200


def test_the_deadline(model: Brightness) -> None:
    model.gate.clear()
    with serve_models([model], limits=ServeLimits(deadline=0.05)) as server:
        assert ask(server, "/score", GOOD)[0] == 504
        model.gate.set()


def test_the_deadline_holds_for_sending_and_decoding_too(
    model: Brightness, make_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[threading.Event] = []

    def decode(self: UploadDecoder, video: object, budget: object, prepare: object, stop: threading.Event) -> None:
        stops.append(stop)
        assert stop.wait(60)

    monkeypatch.setattr(UploadDecoder, "decode", decode)
    half = f"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(GOOD)}\r\n\r\nhalf".encode()
    with serve_models([model], limits=ServeLimits(deadline=0.2)) as server:
        status, answer, _ = ask(server, "/score", make_video().read_bytes(), {"Content-Type": "video/mp4"})
        assert status == 504 and answer["error"] and stops[0].is_set()
        with open_raw(server, half) as raw:
            assert raw.recv(12).endswith(b" 504")


def test_work_stops_when_the_client_is_gone(
    server: WebServer, model: Brightness, make_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, stopped = threading.Event(), threading.Event()

    def decode(self: UploadDecoder, video: object, budget: object, prepare: object, stop: threading.Event) -> None:
        started.set()
        assert stop.wait(60)
        stopped.set()
        raise UnreadableVideo("the file", "nobody waits for it any more")

    monkeypatch.setattr(UploadDecoder, "decode", decode)
    video = make_video().read_bytes()
    head = f"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: video/mp4\r\nContent-Length: {len(video)}\r\n\r\n"
    with open_raw(server, head.encode() + video):
        assert started.wait(60)
    assert stopped.wait(60) and not model.calls
    while "499" not in ask(server, "/metrics")[1].decode():  # counted, and its memory is free
        pass
    assert ask(server, "/score", GOOD)[0] == 200


def test_requests_that_have_arrived_are_answered_before_the_end(model: Brightness) -> None:
    model.gate.clear()
    answers: list[int] = []
    server = serve_models([model])
    with server:
        client = threading.Thread(target=lambda: answers.append(ask(server, "/score", GOOD)[0]))
        client.start()
        model.entered.acquire()
        server._server.should_exit = True  # what SIGTERM does
        with pytest.raises(OSError):
            while True:  # until it takes no new ones
                ask(server, "/health")
        model.gate.set()
    client.join(60)
    assert answers == [200]


def test_live_episodes(server: WebServer) -> None:
    frames = [encode_frame(image) for image in IMAGES]
    (expected,) = Brightness().score([Episode.from_array(IMAGES, "push", id="a")])
    with open_live(server) as one, open_live(server) as two:
        assert exchange(one, '{"start": "push"}') == {} and exchange(two, '{"start": ""}') == {}
        found = [(exchange(one, frame), exchange(two, frame)) for frame in frames]
        assert [a["value"] for a, _ in found] == pytest.approx(expected.value)
        assert [b["value"] for _, b in found] == pytest.approx(expected.value - 0.04, abs=1e-6)
        assert [a["familiarity"] for a, _ in found] == [0.001, 0.002, 0.003]
        exchange(one, '{"start": "push"}')  # the next episode of this connection
        assert exchange(one, encode_frame({"front": IMAGES[0], "wrist": IMAGES[1]}))["familiarity"] == 0.001


def test_clients_that_vanish_leave_nothing_behind(
    server: WebServer, model: Brightness, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ONCE_PER_MINUTE, "_passed", {})
    place = server.url.removeprefix("http://")
    host, _, port = place.partition(":")
    length = f"Content-Length: {len(GOOD)}\r\nContent-Type: application/octet-stream\r\n\r\n"
    head = f"POST /score HTTP/1.1\r\nHost: x\r\n{length}".encode()
    live = LiveSocket(f"ws://{place}/live", {}, 60)
    live.ask('{"start": "push"}')
    model.gate.clear()

    def step() -> None:
        with pytest.raises(ConnectionError):
            live.ask(encode_frame(IMAGES[0]))

    client = threading.Thread(target=step)
    client.start()
    model.entered.acquire()  # the model computes the frame
    for sent in (head + GOOD[:-1], head + GOOD, head[:30], b"\0garbage\r\n\r\n"):
        with socket.create_connection((host, int(port))) as gone:
            gone.sendall(sent)
    live._socket.shutdown(socket.SHUT_RDWR)
    client.join(60)
    model.gate.set()
    while ask(server, "/health")[1]["live"]:
        pass
    assert ask(server, "/score", GOOD)[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_wrong_live_messages_get_a_sentence_and_change_nothing(server: WebServer) -> None:
    good = encode_frame(IMAGES[0])
    with open_live(server) as live:
        assert exchange(live, good)["status"] == 400  # nothing is started
        exchange(live, '{"start": "push"}')
        first = exchange(live, good)
        for wrong in ("", "{}", '{"start": 1}', "[", b"", good[:-1], good + b"1", b"\xff" * 9, encode_frame({})):
            answer = exchange(live, wrong)
            assert answer["status"] == 400 and answer["error"]
        assert exchange(live, good)["value"] == first["value"]
        assert exchange(live, encode_frame(IMAGES[0][:1]))["status"] == 500  # the model fails: the episode is over
        assert exchange(live, good)["status"] == 400


def test_the_first_live_message_is_small_and_does_not_come_late(model: Brightness) -> None:
    with serve_models([model], limits=ServeLimits(deadline=0.2)) as server:
        for first in (json.dumps({"start": "x" * STRANGER_BYTES}), bytes(STRANGER_BYTES + 1), None):
            with open_live(server) as live:
                if first is not None:
                    live.send(first)
                with pytest.raises(ConnectionClosedError):
                    live.recv(60)
        with open_live(server) as live:
            exchange(live, '{"start": ""}')
            large = np.zeros((200, 200, 3), np.uint8)
            assert "value" in exchange(live, encode_frame(large))


def test_live_connections_are_limited_and_not_for_web_pages(server: WebServer) -> None:
    sockets = [open_live(server) for _ in range(3)]
    for query, status in (("", 429), ("?model=other", 404), ("?card=0", 409)):
        assert refused_live(server, query) == status
    for one in sockets:
        one.close()
    while ask(server, "/health")[1]["live"]:
        pass
    assert refused_live(server, Origin="http://evil.example") == 403


def test_models_that_only_score() -> None:
    with serve_models([ScoresOnly(), Brightness(), Brightness("feels", reads_signals=True)]) as server:
        status, answer, _ = ask(server, "/models")
        assert status == 200 and [(one["prefers"], one["live"]) for one in answer["models"]] == [
            (False, False),
            (True, True),
            (True, False),  # a live episode has no signals
        ]
        assert ask(server, "/score", GOOD)[0] == 404  # which of the two?
        assert ask(server, "/score?model=scores-only", GOOD)[1]["rewards"][0]["value"] == pytest.approx([0.03])
        assert ask(server, "/prefer?model=scores-only", GOOD)[0] == 400
        assert refused_live(server, "?model=scores-only") == refused_live(server, "?model=feels") == 400


def test_a_misspelt_instruction_is_refused_and_not_scored_as_none(server: WebServer) -> None:
    status, answer, _ = ask(server, "/score?instructon=push", GOOD)
    assert status == 400 and "'instruction'" in answer["error"]


def test_a_token_guards_everything_but_health(model: Brightness) -> None:
    with serve_models([model], token=TOKEN) as server:
        for path, body in (("/models", None), ("/metrics", None), ("/score", GOOD), ("/prefer", GOOD)):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN[:-1]}):
                status, answer, _ = ask(server, path, body, {**BINARY, **headers})
                assert status == 401 and answer["error"]
        assert refused_live(server) == 401
        assert ask(server, "/health")[0] == 200
        assert ask(server, "/score", GOOD, {**BINARY, "Authorization": f"Bearer {TOKEN}"})[0] == 200


def test_a_page_elsewhere_cannot_use_a_server_without_a_token_by_its_own_name(server: WebServer) -> None:
    for path in ("/health", "/models", "/metrics", "/docs"):
        assert ask(server, path, headers={"Host": "evil.example"})[0] == 421
        assert ask(server, path, headers={"Host": "localhost"})[0] == 200


def test_the_documentation_loads_nothing(server: WebServer) -> None:
    status, text, headers = ask(server, "/docs")
    assert status == 200 and headers["Content-Type"].startswith("text/plain")
    assert all(word in text.decode() for word in ("/score", "/prefer", "WS /live", "big-endian"))
    assert ask(server, "/redoc")[0] == 404 and ask(server, "/openapi.json")[0] == 200


@pytest.mark.parametrize(
    ("host", "token", "what"),
    [
        ("0.0.0.0", None, "token"),
        ("::", None, "token"),
        ("example.org", None, "token"),
        ("127.0.0.1", "short", "token"),
    ],
)
def test_no_server_beyond_this_machine_without_a_token(model: Brightness, host: str, token: str, what: str) -> None:
    with pytest.raises(BadInput) as refused:
        serve_models([model], host=host, token=token)
    assert refused.value.what == what


def test_addresses_and_names_that_are_taken(server: WebServer, model: Brightness) -> None:
    with pytest.raises(BadInput, match="free"):
        serve_models([model], port=int(server.url.rpartition(":")[2]))
    with pytest.raises(BadInput, match="different names"):
        serve_models([model, Brightness()])


def test_metrics(server: WebServer) -> None:
    ask(server, "/score", GOOD)
    ask(server, "/score", b"")
    ask(server, "/some/path", None)
    with open_live(server) as live:
        exchange(live, '{"start": ""}')
        exchange(live, encode_frame(IMAGES[0]))
        _, text, _ = ask(server, "/metrics")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    assert found["demerit_requests_total", "/score", "200"] == found["demerit_requests_total", "/score", "400"] == 1
    assert found["demerit_requests_total", "other", "404"] == 1
    assert found["demerit_live_frames_total", "brightness"] == found["demerit_live_connections",] == 1
    assert found["demerit_waiting", "brightness"] == 0


@pytest.mark.slow
def test_requests_drawn_from_the_api_description_never_break_it(server: WebServer) -> None:
    import schemathesis  # slow to import

    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    assert set(schema.raw_schema["paths"]) == {"/health", "/metrics", "/models", "/score", "/prefer"}
    for operation in schema.get_all_operations():

        @settings(max_examples=25)
        @given(operation.ok().as_strategy())
        def call(case: schemathesis.Case) -> None:
            assert case.call().status_code < 500

        call()
    assert ask(server, "/score", GOOD)[0] == 200


def test_noise_never_breaks_it(server: WebServer) -> None:
    rng = np.random.default_rng(0)
    with open_live(server) as live:
        exchange(live, '{"start": "push"}')
        for _ in range(60):
            noisy = bytearray(GOOD)
            for place in rng.integers(0, 150, 3):
                noisy[place] = rng.integers(256)
            assert ask(server, "/score", bytes(noisy))[0] in (200, 400)
            frame = bytearray(encode_frame(IMAGES[0]))
            frame[rng.integers(0, 20)] = rng.integers(256)
            assert exchange(live, bytes(frame)).get("status", 200) in (200, 400)
    assert ask(server, "/score", GOOD)[0] == 200
