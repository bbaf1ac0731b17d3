"""How busy the chat client keeps a server: the share of 32 slots in use on average, beside bare threads.

The fake server runs in its own process, answers after a fixed time and measures its occupancy. The same requests are
sent by `ChatClient` (SDK, cache on disk, budget, parsing) and by 32 bare threads that send prepared bytes and ignore
the answers, which is as busy as this machine can keep the server.

python benchmarks/chat.py
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import queue
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="one round of seconds, without a threshold")
    OPTIONS = parser.parse_args()  # before the imports that need extras: --help works without them

import numpy as np
from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from demerit.llm import ChatClient, ChatImage, ChatRequest, Endpoint, Message
from fakes.chat_server import Busy, Faults, ScriptedServer

SLOTS = 32
WANTED = 0.90
# seconds per answer, images per request, requests, share of faults
ROUNDS = [(0.5, 0, 1500, 0.0), (1.0, 8, 800, 0.0), (2.0, 30, 400, 0.0), (1.0, 8, 800, 0.05)]
SMALL = [(0.1, 1, 100, 0.0)]
FAULTS = ("429", "500", "cut", "nonsense", "refusal", "length", "slow")


class Rating(BaseModel):
    """The answer."""

    value: float


def serve(pipe: Connection, latency: float, rate: float) -> None:
    faults = Faults({kind: rate / len(FAULTS) for kind in FAULTS}, retry_after=0.1, delay=1.0)
    with ScriptedServer(lambda request: {"value": 0.5}, faults, latency=latency) as server:
        pipe.send(server.url)
        while pipe.recv() == "measure":
            twice = sum(count - 1 for count in server.billed.values())
            pipe.send((server.busy.share(SLOTS), server.busy.most, server.billed.total(), twice))
            server.busy = Busy()
            server.billed.clear()
            server.asked.clear()


def make_requests(count: int, images: int) -> list[ChatRequest]:
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(images):
        small = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        frames.append(ChatImage.encode(np.kron(small, np.ones((14, 14, 1), np.uint8)).astype(np.uint8)))
    return [ChatRequest((Message.user(f"question {i}", *frames),), Rating) for i in range(count)]


def ask_with_client(endpoint: Endpoint, requests: list[ChatRequest], folder: Path) -> str:
    with ChatClient(endpoint, folder / "answers.sqlite", SLOTS, timeout=30) as client:
        responses = [response for _, response in client.ask_all(requests)]
    assert len(responses) == len(requests)
    return f"{sum(bool(response.why_not) for response in responses)} without a usable answer"


def ask_with_threads(endpoint: Endpoint, requests: list[ChatRequest]) -> str:
    """Send the same bytes from bare threads; faults are ignored."""
    todo: queue.SimpleQueue[ChatRequest | None] = queue.SimpleQueue()
    for request in [*requests, *[None] * SLOTS]:
        todo.put(request)

    def work() -> None:
        connection = http.client.HTTPConnection(urlsplit(endpoint.url).netloc)
        while (request := todo.get()) is not None:
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(request.body(endpoint)))
                connection.getresponse().read()
            except (http.client.HTTPException, OSError):
                connection.close()
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(SLOTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ""


def main(small: bool) -> int:
    worst = 1.0
    print(f"share of {SLOTS} slots in use on average, from the first request to the end of the last answer")
    for latency, images, count, faults in SMALL if small else ROUNDS:
        requests = make_requests(count, images)
        here, there = multiprocessing.Pipe()
        process = multiprocessing.Process(target=serve, args=(there, latency, faults), daemon=True)
        process.start()
        endpoint = Endpoint(here.recv(), "simulated", key_env="")
        title = f"{latency:g} s an answer, {images:2d} images, {count} requests, {faults:.0%} faults"
        with tempfile.TemporaryDirectory() as folder:
            for name in ("client", "bare threads"):
                start = time.perf_counter()
                is_client = name == "client"
                more = (
                    ask_with_client(endpoint, requests, Path(folder))
                    if is_client
                    else ask_with_threads(endpoint, requests)
                )
                wall = time.perf_counter() - start
                here.send("measure")
                share, most, billed, twice = here.recv()
                print(
                    f"{title}: {name:12s} {share:6.1%} busy (at most {most}), {wall:5.1f} s, "
                    f"{billed} billed, {twice} twice. {more}"
                )
                worst = min(worst, share) if is_client else worst
        here.send("stop")
        process.join()
    print(f"worst of the client: {worst:.1%}, wanted at least {WANTED:.0%}")
    return 0 if small or worst >= WANTED else 1


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main(OPTIONS.small))
