"""The reward server: what a live frame costs, 64 clients at once, /health, malformed requests and kill -9.

    python benchmarks/serve.py [--small]

Real processes on this machine; both sides of a comparison are measured in the same run, in turns. The rival is the way
of Robometer's server: each frame is a multipart upload of an .npy file (parsed by python-multipart if it is installed,
else by two searches in the body, which is faster than any parser).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.data.video import encode_clip
from demerit.models import load_model
from demerit.models.compact.engine import count_cores
from demerit.models.protocol import LiveReward, example_card
from demerit.use.serve.client import RemoteEpisode, RemoteModel
from demerit.use.serve.wire import encode_frame, join_message

HEIGHT, WIDTH, FRAMES = 240, 320, 20
CLIENTS_PER_PROCESS = 16
DEMERIT = [sys.executable, "-c", "from demerit.cli import main; main()"]


class InstantModel:
    """Takes no time: what remains is the way to it and back. A score of `slow` takes two seconds of Python code."""

    card = example_card(name="instant")

    def start(self, instruction: str) -> InstantModel:
        return self

    def step(self, frame: Any) -> LiveReward:
        return LiveReward(float(frame[0, 0, 0]) / 255)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        until = time.perf_counter() + (2.0 if episodes and episodes[0].id == "slow" else 0.0)
        while time.perf_counter() < until:
            sum(range(1000))
        return [Reward("instant", one.id, np.array([0]), np.array([0.5])) for one in episodes]


def draw_frames(seed: int, count: int = FRAMES) -> np.ndarray:
    rng = np.random.default_rng(seed)
    images = np.repeat(rng.integers(60, 200, (1, HEIGHT, WIDTH, 3), dtype=np.uint8), count, axis=0)
    for at, image in enumerate(images):
        image[80:160, 10 + 12 * at : 60 + 12 * at] = 20 + seed % 200
    return images


def task(client: int) -> str:
    return f"push the {('red', 'blue', 'green')[client % 3]} cup"


@contextmanager
def running(command: Sequence[str], pattern: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process; yield it and what the pattern finds in its first line."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(pattern, line)
        assert found, line
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def serving(model: str, port: int = 0) -> Any:
    return running([*DEMERIT, "serve", model, "--port", str(port)], r"http://[\d.]+:\d+")


def memory_of(process: subprocess.Popen[str]) -> float:
    """Resident megabytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def cpu_seconds_of(process: subprocess.Popen[str]) -> float:
    """User and system time so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def milliseconds(times: Sequence[float]) -> str:
    return f"p50 {np.median(times) * 1e3:.2f} ms, p95 {np.quantile(times, 0.95) * 1e3:.2f} ms"


# --- a live frame


def serve_multipart(name: str) -> None:
    """The rival: a server to which each frame is uploaded as an .npy file in a form."""
    import io

    import uvicorn
    from fastapi import FastAPI, Request

    model = InstantModel() if name.endswith("InstantModel") else load_model(name)
    run, app = model.start("push the red cup"), FastAPI()  # type: ignore[attr-defined]

    async def step(request: Request) -> dict[str, Any]:
        if sys.modules.get("python_multipart"):
            form = await request.form()
            content = await form["frame"].read()  # type: ignore[union-attr]
        else:
            body = await request.body()
            content = body[body.index(b"\r\n\r\n") + 4 : body.rindex(b"\r\n--")]
        frame = np.load(io.BytesIO(content), allow_pickle=False)
        started = time.perf_counter()
        reward = run.step(frame)
        seconds = time.perf_counter() - started
        return {"value": reward.value, "success": reward.success, "seconds": seconds}

    step.__annotations__["request"] = Request
    app.add_api_route("/step", step, methods=["POST"])
    bound = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{bound.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[bound])


def measure_frame(name: str, blocks: int) -> None:
    import io

    with suppress(ImportError):
        import python_multipart  # noqa: F401
    how = "python-multipart" if "python_multipart" in sys.modules else "two searches"
    frames = draw_frames(0)
    rival = [sys.executable, __file__, "--multipart", name]
    with serving(name) as (_, url), running(rival, r"http://[\d.]+:\d+") as (_, rival_url):
        run = RemoteModel(url).start(task(0))
        assert isinstance(run, RemoteEpisode)

        def send(frame: np.ndarray) -> float:
            run.step(frame)
            return run.model_seconds

        def upload(frame: np.ndarray) -> float:
            file = io.BytesIO()
            np.save(file, frame)
            part = b'--x\r\nContent-Disposition: form-data; name="frame"; filename="f.npy"\r\n\r\n'
            body = part + file.getvalue() + b"\r\n--x--\r\n"
            status, content = ask(rival_url, "/step", body, "multipart/form-data; boundary=x")
            assert status == HTTPStatus.OK
            return float(json.loads(content)["seconds"])

        ways: dict[str, Callable[[Any], float]] = {"websocket": send, "multipart": upload}
        over: dict[str, list[float]] = {way: [] for way in ways}
        took: dict[str, list[float]] = {way: [] for way in ways}
        for block in range(blocks + 1):
            for way, step in ways.items():
                for frame in frames:
                    start = time.perf_counter()
                    own = step(frame)
                    if block:  # the first one warms up
                        over[way].append(time.perf_counter() - start - own)
                        took[way].append(own)
    count, title = len(over["multipart"]), name.rpartition(":")[2]
    print(f"\nA live {HEIGHT}x{WIDTH} frame, model {title}, {count} frames each, 20 in turn")
    for way in ways:
        print(f"  {way}: {milliseconds(over[way])} over the model's own time ({milliseconds(took[way])})")
    ratio = np.median(over["websocket"]) / np.median(over["multipart"])
    print(f"  websocket / multipart at p50: {ratio:.2f} (parsed by {how})")


# --- many clients


def follow(model: Any, client: int, expected: np.ndarray, until: float, found: Counter[str]) -> None:
    """Step through the client's episode again and again, and compare each answer."""
    frames = draw_frames(client)
    while time.perf_counter() < until:
        try:
            run = model.start(task(client))
            for frame, value in zip(frames, expected, strict=True):
                answer = run.step(frame).value
                found["mixed-up" if abs(answer - value) > 1e-6 else "right"] += 1
                if time.perf_counter() > until:
                    break
        except Exception as error:  # counted, whatever it is
            found[f"{type(error).__name__}: {error}"] += 1


def run_clients(url: str, clients: Sequence[int], expected: np.ndarray, seconds: float) -> Counter[str]:
    counts: list[Counter[str]] = [Counter() for _ in clients]
    models = [load_model("default")] * len(clients) if url == "here" else [RemoteModel(url) for _ in clients]
    until = time.perf_counter() + seconds
    threads = [
        threading.Thread(target=follow, args=(model, client, expected[client], until, count))
        for model, client, count in zip(models, clients, counts, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts, start=Counter())


def measure_clients(clients: int, seconds: float) -> None:
    model = load_model("default")
    expected = np.zeros((clients, FRAMES))
    for client in range(clients):
        run = model.start(task(client))  # type: ignore[attr-defined]
        expected[client] = [run.step(frame).value for frame in draw_frames(client)]
    assert len(np.unique(expected[:, -1])) == clients, "every client has its own answers"
    cores = count_cores()

    def in_process(threads: int) -> tuple[float, float]:
        """Return frames per second, and milliseconds of CPU time per frame."""
        started = time.process_time()
        frames = run_clients("here", range(threads), expected, seconds / 4)["right"]
        return frames / (seconds / 4), (time.process_time() - started) * 1e3 / frames

    before = [in_process(1), in_process(cores)]
    with tempfile.TemporaryDirectory() as folder, serving("default") as (server, url):
        np.save(Path(folder) / "expected.npy", expected)
        groups = [
            range(clients)[start : start + CLIENTS_PER_PROCESS] for start in range(0, clients, CLIENTS_PER_PROCESS)
        ]
        command = [sys.executable, __file__, "--clients", url, str(seconds), f"{folder}/expected.npy"]
        processes = [
            subprocess.Popen([*command, *map(str, group)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
            for group in groups
        ]
        for process in processes:  # all are ready
            assert process.stdout is not None
            process.stdout.readline()
        found: Counter[str] = Counter()
        started = cpu_seconds_of(server)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            found += Counter(json.loads(process.communicate()[0]))
        server_cpu, memory = cpu_seconds_of(server) - started, memory_of(server)
    after = [in_process(1), in_process(cores)]
    (alone, _), (side_by_side, own_cpu) = np.mean([before, after], axis=0)
    right, mixed_up, clients_cpu = (found.pop(kind, 0) for kind in ("right", "mixed-up", "cpu seconds"))
    rate = right / seconds
    print(f"\n{clients} clients in {len(groups)} processes for {seconds:g} s, model default, {HEIGHT}x{WIDTH}")
    print(f"  {right} right answers, {mixed_up} mixed-up, {sum(found.values())} errors; server {memory:.0f} MB")
    print(f"  {rate:.1f} frames/s; in process {alone:.1f} by one thread ({rate / alone:.0%}),", end=" ")
    print(f"{side_by_side:.1f} by {cores} threads ({rate / side_by_side:.0%}); in-process runs before and after")
    each = [own_cpu, server_cpu * 1e3 / right, clients_cpu * 1e3 / right]
    print(f"  CPU time per frame: in process {each[0]:.2f} ms, server {each[1]:.2f} ms, client {each[2]:.2f} ms")
    for kind, count in found.most_common(5):
        print(f"  {kind} x {count}")


def be_clients(url: str, seconds: str, file: str, *clients: str) -> None:
    """A process of clients: waits for a line, then starts."""
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.process_time()
    found = run_clients(url, [int(client) for client in clients], np.load(file), float(seconds))
    print(json.dumps({**found, "cpu seconds": time.process_time() - started}))


# --- /health, malformed requests, kill -9


def ask(url: str, path: str, body: bytes | None = None, kind: str = "application/octet-stream") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, body, {"Content-Type": kind})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def measure_health() -> None:
    header = {"episodes": [{"id": "slow", "views": [{"camera": "main", "shape": [1, 1, 1, 3]}]}]}
    with serving("serve:InstantModel") as (_, url):
        ask(url, "/health")
        busy = threading.Thread(target=ask, args=(url, "/score", join_message(header, [bytes(3)])))
        start = time.perf_counter()
        busy.start()
        times = []
        while busy.is_alive():
            began = time.perf_counter()
            status, content = ask(url, "/health")
            if json.loads(content)["models"]["instant"]["busy_seconds"]:
                times.append(time.perf_counter() - began)
            assert status == 200
            time.sleep(0.02)
        took = time.perf_counter() - start
    print(f"\n/health while a model runs Python code for {took:.1f} s, asked {len(times)} times")
    print(f"  {milliseconds(times)}, worst {max(times) * 1e3:.1f} ms")


def malformed(rng: np.random.Generator, good: bytes) -> bytes:
    """Break a message: bytes changed, cut, added, or noise."""
    broken = bytearray(good)
    match int(rng.integers(5)):
        case 0:
            for place in rng.integers(0, min(len(broken), 300), int(rng.integers(1, 8))):
                broken[place] = int(rng.integers(256))
        case 1:
            del broken[int(rng.integers(len(broken))) :]
        case 2:
            broken += rng.bytes(int(rng.integers(1, 50)))
        case 3:
            broken = bytearray(rng.bytes(int(rng.integers(0, 400))))
        case 4:
            place = int(rng.integers(4, 150))
            broken[place:place] = rng.choice([b"9" * 30, b"null", b"-1", b"[[[[", b'"../../etc/passwd"', b"1e999"])
    return bytes(broken)


def measure_malformed(count: int) -> None:
    rng = np.random.default_rng(0)
    images = draw_frames(1, 2)[:, :24, :32]
    header = {"episodes": [{"id": "a", "instruction": "x", "views": [{"camera": "main", "shape": list(images.shape)}]}]}
    good, frame, video = join_message(header, [images]), encode_frame(images[0]), encode_clip(images)
    statuses: Counter[int] = Counter()
    silent = 0
    with serving("default") as (server, url):
        model = RemoteModel(url)
        started = time.perf_counter()
        memory = []
        live = model.connect()
        model.ask(live, '{"start": "push"}')
        for number in range(count):
            if number % (count // 10) == 0:
                memory.append(memory_of(server))
            match number % 4:
                case 0:
                    status, content = ask(url, "/score", malformed(rng, good))
                case 1:
                    status, content = ask(url, "/prefer", malformed(rng, good))
                case 2 if number % 40 == 2:
                    status, content = ask(url, "/score", malformed(rng, video), "video/mp4")
                case 2:
                    wrong = rng.choice(["/score?model=%00", "/score?card=1", "/prefer?card=1", "/x", "/models?model=a"])
                    status, content = ask(url, str(wrong), malformed(rng, good), "text/plain")
                case _:
                    content = live.ask(malformed(rng, frame))
                    status = json.loads(content).get("status", 200)
            statuses[status] += 1
            silent += status >= 400 and not json.loads(content).get("error")
        memory.append(memory_of(server))
        seconds = time.perf_counter() - started
        works = model.score([Episode.from_array(images)])[0].scored
    print(f"\n{count} malformed requests and live messages in {seconds:.0f} s")
    print(f"  statuses {dict(sorted(statuses.items()))}; 5xx: {sum(n for s, n in statuses.items() if s >= 500)}")
    print(
        f"  refused without a sentence: {silent}; a good request afterwards: {'answered' if works else 'not answered'}"
    )
    said = f"{memory[1]:.0f} MB after a tenth, {memory[-1]:.0f} MB at the end, at most {max(memory):.0f} MB"
    print(f"  server memory: {said}")


def measure_kill(clients: int) -> None:
    model = load_model("default")
    going: list[str] = []
    barrier = threading.Barrier(clients + 1)

    def follow_through(url: str, client: int) -> None:
        own = model.start(task(client))  # type: ignore[attr-defined]
        run = RemoteModel(url, patience=120).start(task(client))
        for at, frame in enumerate(draw_frames(client)):
            if at == FRAMES // 2:
                barrier.wait()
            same = run.step(frame).value == own.step(frame).value
            if not same:
                going.append("other values")
                return
        going.append("the same values")

    with serving("default") as (server, url):
        threads = [threading.Thread(target=follow_through, args=(url, client)) for client in range(clients)]
        for thread in threads:
            thread.start()
        barrier.wait()
        server.send_signal(signal.SIGKILL)
        server.wait()
    started = time.perf_counter()
    with serving("default", int(url.rpartition(":")[2])):
        up = time.perf_counter() - started
        for thread in threads:
            thread.join()
        took = time.perf_counter() - started
    print(f"\nkill -9 in the middle of {clients} live episodes, the server is back after {up:.1f} s")
    print(f"  went on with {dict(Counter(going))}; all done {took - up:.1f} s after that")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="few frames, clients and requests")
    parser.add_argument("--multipart", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("--clients", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.multipart:
        with suppress(ImportError):
            import python_multipart  # noqa: F401
        serve_multipart(options.multipart)
    elif options.clients:
        be_clients(*options.clients)
    else:
        small = options.small
        measure_frame("serve:InstantModel", 1 if small else 50)
        measure_frame("default", 1 if small else 25)
        measure_health()
        measure_malformed(40 if small else 10_000)
        measure_kill(2 if small else 8)
        measure_clients(4 if small else 64, 2 if small else 60)


if __name__ == "__main__":
    main()
