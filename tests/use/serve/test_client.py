"""A model on a server is a model like any other, also when the server is busy, restarted or another one."""

import http.client
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import demerit
from demerit import RemoteModel
from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.splits import SeenEpisodes
from demerit.data.video import write_video
from demerit.errors import BadInput, RemoteError, UnknownName
from demerit.models import Comparer, Online, RewardModel, load_model
from demerit.models.check import check_model, make_episodes
from demerit.models.compact.model import Compact
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, score
from demerit.use.serve.client import RemoteEpisode
from demerit.use.serve.server import RewardApp, serve_models
from demerit.web.server import WebServer
from demerit.web.uploads import ServeLimits
from fakes.command import COMMAND, demerit_here, error_sentence
from fakes.processes import running
from fakes.served_models import Brightness, ScoresOnly
from fakes.tiny_network import make_network, random_images

IMAGES = random_images(8, 12, 16)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_network(tmp_path_factory.mktemp("network") / "net", size=32)


def port_of(server: WebServer) -> int:
    return int(server.url.rpartition(":")[2])


def test_a_remote_model_keeps_the_contract(network: Path) -> None:
    local = Compact.from_folder(network)
    with serve_models([local]) as server:
        remote = RemoteModel(server.url)
        assert isinstance(remote, RewardModel) and isinstance(remote, Comparer) and isinstance(remote, Online)
        assert remote.card == local.card
        check_model(remote).raise_if_broken()
        episodes = make_episodes()
        for far, near in zip(remote.score(episodes), local.score(episodes), strict=True):
            assert np.array_equal(far.value, near.value) and np.array_equal(far.success, near.success)
            assert far.given == near.given and far.episode == near.episode
        pairs = [(episodes[0], episodes[1]), (episodes[1], episodes[0])]
        assert remote.prefer(pairs) == local.prefer(pairs)


def test_what_the_model_learned_from_is_known_to_the_client() -> None:
    learned, new = (Episode.from_array(random_images(8, 12, 16, seed=seed), id=str(seed)) for seed in (1, 2))
    model = Brightness()
    model.seen = SeenEpisodes(SeenEpisodes.of([learned]).marks, complete=False)  # type: ignore[attr-defined]
    with serve_models([model]) as server:
        seen = RemoteModel(server.url).seen
    assert seen.has(learned) and not seen.has(new) and not seen.complete


def test_videos_are_sent_as_they_are_and_clips_as_images(network: Path, tmp_path: Path) -> None:
    local = Compact.from_folder(network)
    write_video(tmp_path / "a.mp4", random_images(20, 32, 48))
    whole = Episode.from_video(tmp_path / "a.mp4", "push the cup")
    part = replace(whole, id="part", views={"main": whole.main.select(range(5, 15))})
    gone = replace(whole, id="gone", views={"main": Frames.from_video(tmp_path / "a.mp4")})
    with serve_models([local], limits=ServeLimits(megabytes=1)) as server:
        remote = RemoteModel(server.url)
        for far, near in zip(remote.score([whole, part]), local.score([whole, part]), strict=True):
            assert np.array_equal(far.value, near.value)
        (tmp_path / "a.mp4").unlink()
        large = Episode.from_array(np.zeros((1, 1000, 1000, 3), np.uint8), id="large")
        rewards = remote.score([gone, large, Episode.from_array(IMAGES, id="good")])
        assert [reward.scored for reward in rewards] == [False, False, True]
        assert "accepts at most" in rewards[1].why_missing
        assert np.isnan(remote.prefer([(gone, large)])).all()


def test_signals_and_frame_budgets_reach_the_model() -> None:
    model = Brightness(frame_budget=3)
    episode = Episode.from_array(IMAGES, "push", fps=5)
    with serve_models([model]) as server:
        (far,), (near,) = RemoteModel(server.url).score([episode]), model.score([episode])
        assert far.at.tolist() == [0, 4, 7] and far.given == near.given and np.array_equal(far.value, near.value)


def test_live_episodes_do_not_mix_and_each_frame_is_sent_once() -> None:
    with serve_models([Brightness()]) as server:
        remote = RemoteModel(server.url)
        offline = [Brightness().score([Episode.from_array(IMAGES, "a" * n)])[0].value for n in range(4)]
        runs = [remote.start("a" * n) for n in range(4)]
        live = [[run.step({"front": image, "wrist": image[:2]}) for run in runs] for image in IMAGES]
        assert np.array_equal(np.array(live, float).T, np.array(offline))
        assert [one.familiarity for one in live[-1]] == [len(IMAGES) / 1000] * 4  # the server saw each frame once
        del runs, live
        for _ in range(3):  # episodes that follow use the same connections
            remote.start("next").step(IMAGES[0])
        assert remote._request("GET", "/health")["live"] == 4
        remote.close()


class AppTransport:
    """The application of a server, without a network."""

    def __init__(self, model: RewardModel) -> None:
        self.client = TestClient(RewardApp([model], ServeLimits(), None).asgi)
        self.asked: list[str] = []

    def request(self, method: str, path: str, headers: dict[str, str], body: list[bytes]) -> tuple[int, bytes]:
        self.asked.append(f"{method} {path.partition('?')[0]}")
        answer = self.client.request(method, path, headers=headers, content=b"".join(body))
        return answer.status_code, answer.content

    def connect(self, path: str, headers: dict[str, str]) -> Any:
        session = self.client.websocket_connect(path, headers=headers)
        session.__enter__()

        def ask(message: str | bytes) -> bytes:
            (session.send_text if isinstance(message, str) else session.send_bytes)(message)  # type: ignore[operator]
            return session.receive_text().encode()

        return SimpleNamespace(ask=ask, close=lambda: session.__exit__(None, None, None))


def test_the_way_to_the_server_can_be_another_one() -> None:
    transport, episode = AppTransport(Brightness()), Episode.from_array(IMAGES, "push")
    with transport.client:
        remote = RemoteModel("http://nowhere.example", transport=transport)
        (far,), (near,) = remote.score([episode]), Brightness().score([episode])
        assert np.array_equal(far.value, near.value)
        assert remote.prefer([(episode, episode)]) == [0.5]
        assert [remote.start("push").step(image).value for image in IMAGES[:1]] == [pytest.approx(near.value[0])]
        remote.close()
    assert transport.asked == ["GET /models", "POST /score", "POST /prefer"]


def test_a_transport_that_fails_is_asked_again_and_then_an_error() -> None:
    calls: list[str] = []

    def fail(method: str, path: str, headers: object, body: object) -> tuple[int, bytes]:
        calls.append(path)
        raise ConnectionError("no way")

    with pytest.raises(RemoteError, match="no way") as lost:
        RemoteModel("http://nowhere.example", patience=0, transport=SimpleNamespace(request=fail))  # type: ignore[arg-type]
    assert lost.value.status == 0 and calls == ["/models"] * 2


def test_a_refused_frame_changes_nothing() -> None:
    with serve_models([Brightness()]) as server:
        run = RemoteModel(server.url).start("push")
        first = run.step(IMAGES[0])
        assert isinstance(run, RemoteEpisode) and 0 < run.model_seconds < 60
        with pytest.raises(BadInput):
            run.step(IMAGES)
        assert run.step(IMAGES[0]).value == first.value
        with pytest.raises(RemoteError) as failed:
            run.step(IMAGES[0][:1])  # the model fails
        assert failed.value.status == 500
        assert run.step(IMAGES[1]).familiarity == 0.003  # the frames before it were sent again


def test_a_live_episode_goes_on_after_a_restart() -> None:
    with serve_models([Brightness()]) as server:
        remote = RemoteModel(server.url)
        run, idle = remote.start("push"), remote.start("idle")
        before = [run.step(image) for image in IMAGES[:5]]
        del idle
    with serve_models([Brightness()], port=port_of(server)):
        after = [run.step(image) for image in IMAGES[5:]]
        assert [one.familiarity for one in before + after] == [n / 1000 for n in range(1, 9)]
        assert remote.start("more").step(IMAGES[0]).familiarity == 0.001
        assert remote.score([Episode.from_array(IMAGES)])[0].scored


def test_a_restart_of_which_the_client_hears_later() -> None:
    """The client tries again until the server is back."""
    with serve_models([Brightness()]) as server:
        run = RemoteModel(server.url).start("push")
        run.step(IMAGES[0])
    found: list[Any] = []
    client = threading.Thread(target=lambda: found.append(run.step(IMAGES[1])))
    client.start()
    with serve_models([Brightness()], port=port_of(server)):
        client.join(60)
    assert found[0].familiarity == 0.002


def test_an_episode_too_long_to_keep_cannot_go_on_after_a_restart() -> None:
    with serve_models([Brightness()]) as server:
        remote = RemoteModel(server.url, history_megabytes=0)
        run = remote.start("push")
        assert [run.step(image).familiarity for image in IMAGES[:3]] == [0.001, 0.002, 0.003]
    with serve_models([Brightness()], port=port_of(server)):
        with pytest.raises(RemoteError) as lost:
            run.step(IMAGES[3])
        assert lost.value.status == 410
        assert remote.start("again").step(IMAGES[0]).familiarity == 0.001


def test_another_model_under_the_same_address_is_noticed() -> None:
    with serve_models([Brightness()]) as server:
        remote = RemoteModel(server.url)
        run = remote.start("push")
        run.step(IMAGES[0])
    with serve_models([Brightness(revision="2")], port=port_of(server)):
        big = Episode.from_array(np.zeros((30, 240, 320, 3), np.uint8))
        for call in (lambda: run.step(IMAGES[1]), lambda: remote.start(""), lambda: remote.score([big])):
            with pytest.raises(RemoteError) as changed:
                call()
            assert changed.value.status == 409


def test_a_busy_server_is_asked_again() -> None:
    model = Brightness()
    model.gate.clear()
    episode = Episode.from_array(IMAGES)
    with serve_models([model], limits=ServeLimits(waiting=1)) as server:
        remotes = [RemoteModel(server.url) for _ in range(4)]
        clients = [threading.Thread(target=remote.score, args=([episode],)) for remote in remotes]
        for client in clients:
            client.start()
        model.entered.acquire()
        while b'status="429"' not in _metrics(remotes[0]):
            pass
        impatient = RemoteModel(server.url, patience=0)
        with pytest.raises(RemoteError) as refused:
            impatient.score([episode])
        assert refused.value.status == 429
        model.gate.set()
        for client in clients:
            client.join(60)
        assert remotes[0].score([episode])[0].scored


def _metrics(remote: RemoteModel) -> bytes:
    connection = http.client.HTTPConnection(remote.url.removeprefix("http://"))
    connection.request("GET", "/metrics")
    found = connection.getresponse().read()
    connection.close()
    return found


def test_a_server_that_cannot_be_reached_and_wrong_addresses() -> None:
    with serve_models([Brightness()]) as server:
        pass
    with pytest.raises(RemoteError) as lost:
        RemoteModel(server.url, patience=0)
    assert lost.value.status == 0
    for wrong in ("ftp://host", "http://", "host:8000", "http://[::1", "http://host:port"):
        with pytest.raises(BadInput):
            RemoteModel(wrong)


def test_models_by_name_and_what_they_can_do() -> None:
    with serve_models([ScoresOnly(), Brightness()]) as server:
        with pytest.raises(UnknownName) as unknown:
            RemoteModel(server.url)
        assert unknown.value.known == ["brightness", "scores-only"]
        plain = load_model(f"{server.url}/scores-only")
        assert not isinstance(plain, Online) and not isinstance(plain, Comparer)
        check_model(plain).raise_if_broken()
        assert isinstance(RemoteModel(server.url, "brightness"), Online)


def test_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "a token of some length"
    with serve_models([Brightness()], token=token) as server:
        for wrong in (None, "wrong"):
            with pytest.raises(RemoteError) as refused:
                RemoteModel(server.url, token=wrong)
            assert refused.value.status == 401
        assert RemoteModel(server.url, token=token).start("").step(IMAGES[0]).familiarity
        monkeypatch.setenv("DEMERIT_TOKEN", token)
        assert RemoteModel(server.url).score([Episode.from_array(IMAGES)])[0].scored


def test_a_job_whose_server_is_gone_stops_and_can_be_resumed(make_video: Callable[..., Path], tmp_path: Path) -> None:
    dataset = demerit.open_dataset(make_video("videos/a.mp4").parent)
    with serve_models([Brightness()]) as server:
        remote = RemoteModel(server.url, patience=0)
    with pytest.raises(RemoteError):
        score(ScoreJob(remote, dataset, tmp_path / "out"))
    assert not len(RewardStore(tmp_path / "out"))
    with serve_models([Brightness()], port=port_of(server)):
        assert score(ScoreJob(remote, dataset, tmp_path / "out")).scored == 1


def test_the_score_command_takes_an_address(make_video: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_video("videos/a.mp4").parent
    make_video("videos/b.mp4", seed=1)
    with serve_models([Brightness()]) as server:
        run = demerit_here("score", folder, "--model", server.url, "--rewards", tmp_path / "far")
        assert run.returncode == 0, run.stderr
    near = Brightness().score(list(demerit.open_dataset(folder)))
    for far, expected in zip(RewardStore(next((tmp_path / "far").rglob("rewards.json")).parent), near, strict=True):
        assert far.model == "brightness" and np.array_equal(far.value, expected.value)


@contextmanager
def serving(network: Path, port: int = 0) -> Iterator[tuple[Any, str]]:
    with running([*COMMAND, "serve", str(network), "--port", str(port)]) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://[^ ]+:(\d+)", line)
        assert found, line
        yield process, found[0]


@pytest.mark.slow
def test_kill_9_and_restart_in_the_middle(network: Path) -> None:
    images, local = random_images(40, 48, 64), Compact.from_folder(network)
    expected = local.start("push the cup")
    with serving(network) as (process, url):
        run = RemoteModel(url, patience=60).start("push the cup")
        for image in images[:20]:
            assert run.step(image) == expected.step(image)
        process.kill()
        process.wait()
    with serving(network, int(url.rpartition(":")[2])) as (process, _):
        for image in images[20:]:
            assert run.step(image) == expected.step(image)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)
    run._model.patience = 0  # type: ignore[attr-defined]
    with pytest.raises(RemoteError) as lost:
        run.step(images[0])
    assert lost.value.status == 0


@pytest.mark.slow
def test_the_command_refuses_with_a_sentence(network: Path, tmp_path: Path) -> None:
    for options in (["--host", "0.0.0.0"], ["--token-file", tmp_path / "none"], ["--set", "deadline=0"]):
        run = subprocess.run([*COMMAND, "serve", network, *options], capture_output=True, text=True, check=False)
        assert error_sentence(run)
