"""Servers under attack: honest clients beside hostile connections, malformed requests, hostile videos.

    python benchmarks/hostile.py [--small] [--part doors|malformed|videos]

1. 16 honest clients work alone for 10 seconds, for a minute beside 1,000 hostile connections of eight kinds, and alone
   again, on `serve` and on `annotate`. Bars: p95 at most twice as long, memory at most 200 MB more, nothing lost.
2. 10,000 malformed requests to each of `serve`, `annotate` and `arena`: no status of 500 or more, no traceback.
3. 200 hostile videos to `serve`: its memory stays flat. What a decoder takes is limited and measured apart.

Real processes on this machine, each allowed 1,024 descriptors; what is compared is measured in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import random
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from annotate import RobotRater, make_set
from demerit.data.episode import Episode
from demerit.data.video import write_video
from demerit.use.serve.client import RemoteModel
from demerit.use.serve.wire import encode_frame, join_message

TOKEN = "a token of some length"
DESCRIPTORS = 1024
MOST_MEGABYTES, MOST_SLOWER, FLAT_MEGABYTES = 200, 2.0, 50
THINK = {"serve": 0.2, "annotate": 2.0}
"""seconds between two turns of an honest client: a robot's frames, a person's answers"""
RECONNECT = 5.0
"""seconds until a hostile connection that was closed comes back, on average"""


# Servers


class ServerProcess:
    """A demerit command as a process; its log goes to a file."""

    def __init__(self, folder: Path, pattern: str, *command: str) -> None:
        self.log = folder / "log.txt"
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        environment = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        limit = (DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "demerit", *command, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=self.log.open("wb"),
            text=True,
            env=environment,
        )
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, limit)
        assert self.process.stdout is not None
        while not (found := re.search(pattern, line := self.process.stdout.readline())):
            assert line, f"the server did not start: {self.log.read_text()}"
        self.link = found[0]
        self.url = re.match(r"http://[^/\s]+", self.link)[0]  # type: ignore[index]
        self.place = (self.url.removeprefix("http://").partition(":")[0], int(self.url.rpartition(":")[2]))

    def megabytes(self) -> float:
        """Resident memory of the server itself, without its decoders."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def children_megabytes(self) -> float:
        """Resident memory of its decoders."""
        total = 0.0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                with suppress(OSError, IndexError):
                    total += int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{child}/status").read_text())[0]) / 1024
        return total


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[ServerProcess]:
    (folder / "token.txt").write_text(TOKEN)
    words = ("serve", "serve:InstantModel", "--token-file", str(folder / "token.txt"), *options)
    with ended(ServerProcess(folder, r"http://[\d.]+:\d+", *words)) as server:
        yield server


@contextmanager
def annotating(folder: Path, episodes: int) -> Iterator[ServerProcess]:
    words = ("annotate", str(make_set(folder, episodes)), "--no-browser", "--no-teach", "--tasks", "verify")
    with ended(ServerProcess(folder, r"http\S+/enter/\S+", *words, "--overlap", "3")) as server:
        yield server


@contextmanager
def in_arena(folder: Path) -> Iterator[ServerProcess]:
    (folder / "policies.yaml").write_text("a: maple\nb: tulip\n")
    words = ("arena", "serve", str(folder / "arena"), "--policies", str(folder / "policies.yaml"))
    with ended(ServerProcess(folder, r"http\S+/enter/\S+", *words)) as server:
        yield server


@contextmanager
def ended(server: ServerProcess) -> Iterator[ServerProcess]:
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.communicate()


# Honest clients


def robots(server: ServerProcess, count: int) -> list[Callable[[], None]]:
    """Half of the clients follow live episodes, half send episodes to score."""
    images = np.zeros((8, 64, 64, 3), np.uint8)
    works: list[Callable[[], None]] = []
    for number in range(count):
        model = RemoteModel(server.url, token=TOKEN)
        if number % 2:
            run = model.start("push")
            works.append(lambda run=run: run.step(images[0]) and None)  # type: ignore[misc]
        else:
            episode = Episode.from_array(images, "push", id=str(number))

            def score(model: RemoteModel = model, episode: Episode = episode) -> None:
                assert len(model.score([episode])[0].value) == 1

            works.append(score)
    return works


def raters(server: ServerProcess, count: int, stored: list[str]) -> list[Callable[[], None]]:
    """Each opens the page of an item and answers it; `stored` gets the ids of answers that were acknowledged."""
    owner = RobotRater(server.url)
    owner.enter(server.link)
    works: list[Callable[[], None]] = []
    for number in range(count):
        page = owner.http.post("/team/invite", data={"csrf": owner.csrf, "role": "rater"}).text
        rater = RobotRater(server.url)
        link = re.search(r"<code>(http\S+/join/\S+)</code>", page)[1]  # type: ignore[index]
        rater.enter(link, name=f"rater {number}", password="correct horse")

        def answer(rater: RobotRater = rater) -> None:
            item, id = rater.next_item(), str(uuid.uuid4())
            sent = {"id": id, "body": {"verdict": "correct", "grade": 3}, "seconds": 2}
            rater.send("POST", f"/items/{item}/answer", json=sent)
            stored.append(id)

        works.append(answer)
    return works


def work_for(works: list[Callable[[], None]], seconds: float, think: float) -> tuple[list[float], list[str]]:
    """Let every client work; return the seconds of each turn, and what failed."""
    times: list[float] = []
    failed: list[str] = []
    end = time.monotonic() + seconds

    def run(work: Callable[[], None]) -> None:
        while time.monotonic() < end:
            began = time.perf_counter()
            try:
                work()
            except Exception as error:
                failed.append(repr(error))
            times.append(time.perf_counter() - began)
            time.sleep(think)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, failed


# Hostile connections

Kind = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Any]


async def be_silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    """Connect and say nothing."""


async def drip_headers(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode())
    for number in range(60):
        writer.write(f"X-{number}: {number}\r\n".encode())
        await asyncio.sleep(1)


async def drip_body(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n".encode())
    for _number in range(60):
        writer.write(b"x")
        await asyncio.sleep(1)


async def send_much(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    for _number in range(600):
        writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)


async def smuggle(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    for _number in range(600):
        writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)


async def open_socket(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    head = "Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    writer.write(f"GET /live HTTP/1.1\r\n{head}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
    for _number in range(600):  # half of a message of 64 MB
        writer.write((b"\x82\xff" + struct.pack(">Q", 64_000_000) + b"mask" if not _number else b"") + bytes(65536))
        await writer.drain()
        await asyncio.sleep(0.1)


async def send_garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    while True:
        writer.write(os.urandom(4096))
        await writer.drain()
        await asyncio.sleep(0.2)


async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    """Ask again and again, and leave the answers."""
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    for _number in range(600):
        writer.write(b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        await writer.drain()
        await asyncio.sleep(1)


KINDS: tuple[Kind, ...] = (
    be_silent,
    drip_headers,
    drip_body,
    send_much,
    smuggle,
    open_socket,
    send_garbage,
    read_nothing,
)


def attack(place: tuple[str, int], path: str, count: int, seconds: float) -> None:
    """Keep so many hostile connections open; one that is closed comes back after a second. A process of its own."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)

    logging.disable()  # asyncio counts what was sent to closed connections
    rng, opened = random.Random(0), [0]
    end = time.monotonic() + seconds

    async def be_hostile(kind: Kind) -> None:
        while time.monotonic() < end:
            with suppress(OSError, TimeoutError):
                reader, writer = await asyncio.wait_for(asyncio.open_connection(*place), 10)
                try:
                    opened[0] += 1
                    await kind(reader, writer, path)
                    await reader.read()  # until it is closed
                finally:
                    writer.transport.abort()
            await asyncio.sleep(rng.uniform(0.5, 1.5) * RECONNECT)

    async def run() -> None:
        tasks = [asyncio.create_task(be_hostile(kind)) for kind in islice(cycle(KINDS), count)]
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1)
        print(f"{opened[0]} hostile connections opened", flush=True)
        os._exit(0)  # also if one of them did not hear it

    asyncio.run(run())


def measure_doors(name: str, server: ServerProcess, works: list[Callable[[], None]], path: str, small: bool) -> None:
    hostile, quiet_seconds, seconds = (40, 1.0, 3.0) if small else (1000, 10.0, 60.0)
    quiet, failed_quiet = work_for(works, quiet_seconds, THINK[name])
    before, peak, is_over = server.megabytes(), [0.0], threading.Event()

    def sample() -> None:
        while not is_over.wait(0.25):
            peak[0] = max(peak[0], server.megabytes())

    sampler = threading.Thread(target=sample)
    sampler.start()
    attacker = multiprocessing.get_context("spawn").Process(target=attack, args=(server.place, path, hostile, seconds))
    attacker.start()
    time.sleep(min(2.0, seconds / 2))  # until the connections are there
    loud, failed = work_for(works, seconds - 4 if seconds > 4 else seconds / 2, THINK[name])
    attacker.join()
    is_over.set()
    sampler.join()
    again, failed_again = work_for(works, quiet_seconds, THINK[name])
    quiet, failed_quiet = [*quiet, *again], [*failed_quiet, *failed_again]
    slower = float(np.quantile(loud, 0.95) / np.quantile(quiet, 0.95))
    more = peak[0] - before
    lines = len(server.log.read_text().splitlines())
    print(
        f"{name}, {len(works)} honest clients beside {hostile} hostile connections for {seconds:g} s: p50 "
        f"{np.median(quiet) * 1e3:.1f} -> {np.median(loud) * 1e3:.1f} ms, p95 {np.quantile(quiet, 0.95) * 1e3:.1f} -> "
        f"{np.quantile(loud, 0.95) * 1e3:.1f} ms ({slower:.2f} times; {judge(slower <= MOST_SLOWER)}); memory "
        f"{before:.0f} -> {peak[0]:.0f} MB ({more:+.0f}; {judge(more <= MOST_MEGABYTES)}); {len(quiet)} and "
        f"{len(loud)} turns, failed {len(failed_quiet)} and {len(failed)} ({judge(not failed + failed_quiet)}) "
        f"{failed[:1]}; {lines} lines of log",
        flush=True,
    )


def judge(is_good: bool) -> str:
    return "held" if is_good else "MISSED"


# Malformed requests

WORDS = [
    "0",
    "-1",
    "9" * 5000,
    "%00",
    "..%2f..%2fetc%2fpasswd",
    "é",
    "a" * 3000,
    "NaN",
    "{}",
    "None",
    "%ff%fe",
    "1e999",
]
VALUES: list[Any] = [
    None,
    True,
    -1,
    2**70,
    1e308,
    "",
    "x" * 5000,
    "\ud800",
    [],
    {},
    [[]],
    {"a": {"a": []}},
    float("nan"),
]
PATHS = {
    "serve": ["/score", "/prefer", "/models", "/metrics", "/health", "/live", "/docs", "/openapi.json"],
    "annotate": [
        *("/", "/login", "/logout", "/work/W", "/items/1", "/items/W", "/items/1/draft", "/items/1/answer", "/team"),
        *(
            "/items/1/curve",
            "/team/invite",
            "/team/W",
            "/disagreements/W",
            "/audit",
            "/join/W",
            "/enter/W",
            "/static/W",
        ),
        *("/items/1/W/0.mp4", "/items/1/0/W.jpg", "/teach/state"),
    ],
    "arena": [
        *("/", "/login", "/results.json", "/trial", "/trials/W", "/trials/W/describe", "/trials/W/judge", "/check"),
        *(
            "/trials/W/uploads",
            "/uploads/W/W",
            "/check/W",
            "/check/W/first/left.mp4",
            "/sites/invite",
            "/trials/W/photo",
        ),
        *("/trials/W/policy/first", "/trials/W/reset"),
    ],
}


def malformed(name: str, rng: random.Random, secret: str) -> tuple[bytes, bool]:
    """Make one request that is wrong somewhere, and say whether it is whole; half have the token or a session."""
    path = rng.choice(PATHS[name]).replace("W", rng.choice(WORDS))
    query = rng.choice(["", "", "?model=W", "?card=W&instruction=W", "?id=W", "?" + "a&" * 500])
    path += query.replace("W", rng.choice(WORDS))
    method = rng.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "X" * 40])
    if name == "serve" and rng.random() < 0.5:
        message = bytearray(
            rng.choice(
                [
                    encode_frame(np.zeros((2, 2, 3), np.uint8)),
                    join_message({"episodes": [{"views": [{"camera": "a", rng.choice(VIEW): rng.choice(VALUES)}]}]}),
                    join_message(
                        {"episodes": [{"views": [GOOD_VIEW]}], "pairs": [[0, rng.choice([0, 2**70])]]}, [b"12"]
                    ),
                ]
            )
        )
        for _ in range(rng.randrange(3)):
            message[rng.randrange(len(message))] = rng.randrange(256)
        body = bytes(message)
    else:
        facts = {rng.choice(FIELDS): rng.choice(VALUES) for _ in range(3)}
        form = "&".join(f"{rng.choice(FIELDS)}={rng.choice(WORDS)}" for _ in range(3))
        text = rng.choice([json.dumps(facts), form, "[" * 20_000, json.dumps(facts)[:-2]])
        body = rng.choice([text.encode("utf-8", "surrogatepass"), os.urandom(200), b""])
    headers = [f"Host: {rng.choice(['localhost'] * 9 + ['evil.example', '[', ''])}", "Connection: close"]
    headers += [secret] if rng.random() < 0.5 else []
    headers.append(f"Content-Type: {rng.choice(['application/octet-stream', 'video/mp4', 'application/json', 'é'])}")
    headers.append(f"Accept: {rng.choice(['text/html', 'application/json', ''])}")
    length = rng.choice([len(body)] * 8 + [-1, 10**30, len(body) + 5, "x"])
    headers += [f"Content-Length: {length}"] if rng.random() < 0.9 else ["Transfer-Encoding: chunked"]
    if rng.random() < 0.1:
        key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13"
        headers += [f"Upgrade: websocket\r\n{key}", "Connection: Upgrade"]
    if rng.random() < 0.05:
        headers.append(
            rng.choice(["X: " + "y" * 20_000, "no colon", "Cookie: demerit_session=" + "é" * 50, "Range: bytes=9-1"])
        )
    version = rng.choice(["HTTP/1.1"] * 20 + ["HTTP/1.0", "HTTP/9", ""])
    raw = "\r\n".join([f"{method} {path} {version}", *headers, "", ""]).encode("latin-1", "replace") + body
    if rng.random() < 0.05:
        return raw[: rng.randrange(len(raw))], False
    return raw, length != len(body) + 5 and "Transfer-Encoding: chunked" not in headers


VIEW = ["shape", "at", "times", "length", "video", "camera"]
GOOD_VIEW = {"camera": "a", "video": 2}
FIELDS = ["name", "password", "csrf", "role", "active", "id", "body", "seconds", "verdict", "part", "camera", "size"]


def ask_raw(place: tuple[str, int], sent: bytes, is_whole: bool) -> str:
    """Return the status, or how the connection ended."""
    try:
        with socket.create_connection(place, timeout=30 if is_whole else 0.05) as raw:
            raw.sendall(sent)
            found = re.match(rb"HTTP/1\.1 (\d{3})", raw.recv(65536))
            return found[1].decode() if found else "closed"
    except TimeoutError:
        return "no answer" if is_whole else "waits for the rest"
    except OSError:
        return "closed"


def measure_malformed(name: str, server: ServerProcess, secret: str, count: int) -> None:
    rng, before = random.Random(0), server.megabytes()
    found = Counter(ask_raw(server.place, *malformed(name, rng, secret)) for _ in range(count))
    broken = sum(number for status, number in found.items() if status.startswith("5") or status == "no answer")
    log = server.log.read_text()
    print(
        f"{name}, {count} malformed requests: {dict(found.most_common())}; 5xx or no answer {broken} "
        f"({judge(not broken)}); tracebacks {log.count('Traceback')} ({judge('Traceback' not in log)}); memory "
        f"{before:.0f} -> {server.megabytes():.0f} MB; {len(log.splitlines())} lines of log",
        flush=True,
    )


# Hostile videos


def make_videos(folder: Path, count: int) -> Iterator[tuple[str, bytes]]:
    """Make videos that declare too much, end early, or point elsewhere."""
    rng = random.Random(0)
    write_video(folder / "good.mp4", np.random.default_rng(0).integers(0, 255, (30, 48, 64, 3), dtype=np.uint8))
    good = (folder / "good.mp4").read_bytes()
    secret = folder / "secret.mp4"
    secret.write_bytes(good)

    def patch(tag: bytes, offset: int, value: bytes) -> bytes:
        at = good.index(tag) + offset
        return good[:at] + value + good[at + len(value) :]

    def big() -> bytes:
        return struct.pack(">I", rng.choice([60_000_000, 2**31 - 1, 2**32 - 1, 10**9]))

    def side() -> bytes:
        return struct.pack(">HH", rng.choice([4096, 16384, 65535]), rng.choice([4096, 16384, 65535]))

    def flip() -> bytes:
        noisy = bytearray(good)
        for _ in range(rng.randrange(1, 60)):
            noisy[rng.randrange(len(noisy))] = rng.randrange(256)
        return bytes(noisy)

    makers: dict[str, Callable[[], bytes]] = {
        "sample count": lambda: patch(b"stsz", 12, big()),
        "time table": lambda: patch(b"stts", 8, struct.pack(">III", 1, rng.choice([60_000_000, 2**32 - 1]), 1)),
        "declared size": lambda: patch(b"avc1", 28, side()),
        "chunk table": lambda: patch(b"stsc", 8, big()),
        "box size": lambda: patch(rng.choice([b"moov", b"trak", b"mdia", b"stbl", b"mdat"]), -4, big()),
        "truncated": lambda: good[: rng.randrange(len(good))],
        "flipped bytes": flip,
        "raw frames": lambda: b"YUV4MPEG2 W%d H%d F25:1\nFRAME\n" % (rng.choice([4096, 60000]), 60000),
        "picture": lambda: b"P6 65535 65535 255\n" + bytes(100),
        "ffconcat": f"ffconcat version 1.0\nfile {secret}\n".encode,
        "hls": f"#EXTM3U\n#EXTINF:10,\nfile://{secret}\n#EXT-X-ENDLIST\n".encode,
        "hls by network": lambda: b"#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:9/a.ts\n",
        "dash": f"<MPD><Period><AdaptationSet><BaseURL>file://{secret}</BaseURL></AdaptationSet></Period></MPD>".encode,
        "sdp": lambda: b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\nm=video 9 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n",
        "reference": lambda: patch(b"url ", 4, struct.pack(">I", 0)),
        "4096x4096": lambda: large_video(folder),
    }
    for name, make in islice(cycle(makers.items()), count):
        yield name, make()


def large_video(folder: Path) -> bytes:
    path = folder / "large.mp4"
    if not path.exists():
        write_video(path, np.zeros((8, 4096, 4096, 3), np.uint8))
    return path.read_bytes()


def measure_videos(folder: Path, small: bool) -> None:
    import httpx

    count = 16 if small else 200
    videos = list(make_videos(folder, count))
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "video/mp4"}
    limits = ("--set", "decode-seconds=5", "--set", "megabytes=64")
    with serving(folder, *limits) as server, httpx.Client(base_url=server.url, timeout=120) as client:
        client.post("/score", content=(folder / "good.mp4").read_bytes(), headers=headers)
        before, peak, children, is_over = server.megabytes(), [0.0], [0.0], threading.Event()

        def sample() -> None:
            while not is_over.wait(0.02):
                peak[0] = max(peak[0], server.megabytes())
                children[0] = max(children[0], server.children_megabytes())

        sampler = threading.Thread(target=sample)
        sampler.start()
        ends: Counter[str] = Counter()
        slowest, told = ("", 0.0), 0
        for name, video in videos:
            began = time.perf_counter()
            answer = client.post("/score", content=video, headers=headers)
            slowest = max(slowest, (name, time.perf_counter() - began), key=lambda one: one[1])
            scored = answer.status_code == 200 and bool(answer.json()["rewards"][0]["value"])
            ends["scored" if scored else f"unscored ({answer.status_code})"] += 1
            told += str(folder) in answer.text or tempfile.gettempdir() in answer.text
        is_over.set()
        sampler.join()
        after = client.get("/health").status_code
    more = peak[0] - before
    print(
        f"serve, {count} hostile videos: {dict(ends)}, then /health {after}; memory of the server {before:.0f} -> "
        f"{peak[0]:.0f} MB ({judge(more <= FLAT_MEGABYTES)}), of its decoders at most {children[0]:.0f} MB; slowest "
        f"{slowest[0]} {slowest[1]:.1f} s; answers that tell a folder {told} ({judge(not told)})",
        flush=True,
    )


# All of it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="seconds instead of minutes; the figures mean nothing")
    parser.add_argument("--part", choices=["doors", "malformed", "videos"], help="one part only")
    given = parser.parse_args()
    honest, requests = (4, 150) if given.small else (16, 10_000)
    with tempfile.TemporaryDirectory() as name:

        def room(part: str) -> Path:
            folder = Path(name) / part
            folder.mkdir()
            return folder

        if given.part in (None, "doors"):
            with serving(room("serve")) as server:
                measure_doors("serve", server, robots(server, honest), "/score", given.small)
            folder, stored = room("annotate"), list[str]()
            with annotating(folder, 400 if given.small else 4000) as server:
                measure_doors("annotate", server, raters(server, honest, stored), "/login", given.small)
            print(f"annotate: {len(stored)} answers acknowledged, lost {len(lost_answers(folder, stored))}", flush=True)
        if given.part in (None, "malformed"):
            with serving(room("malformed")) as server:
                measure_malformed("serve", server, f"Authorization: Bearer {TOKEN}", requests)
            for kind, start in (("annotate", lambda at: annotating(at, 20)), ("arena", in_arena)):
                with start(room(f"malformed-{kind}")) as server:
                    rater = RobotRater(server.url)
                    rater.enter(server.link)
                    cookie = "; ".join(f"{name}={value}" for name, value in rater.http.cookies.items())
                    measure_malformed(kind, server, f"Cookie: {cookie}\r\nX-CSRF: {rater.csrf}", requests)
        if given.part in (None, "videos"):
            measure_videos(room("videos"), given.small)


def lost_answers(folder: Path, stored: list[str]) -> set[str]:
    import sqlalchemy as sa

    engine = sa.create_engine(f"sqlite:///{folder / 'set' / 'annotate.db'}")
    with engine.connect() as db:
        found = {id for (id,) in db.exec_driver_sql("SELECT id FROM answers")}
    engine.dispose()
    return set(stored) - found


if __name__ == "__main__":
    main()
