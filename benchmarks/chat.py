"""How busy the client keeps a server: the share of 32 slots that are in use on average, beside bare threads.

The server runs in its own process, answers every request after a fixed time and measures its own occupancy. Both
sides send the same requests in one run: `ChatClient` (SDK, cache on disk, ledger, parsing) and 32 bare threads with
http.client that send prepared bytes and do nothing with the answers, which is as busy as this machine can keep it.

python benchmarks/chat.py
"""

from __future__ import annotations

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

import numpy as np
from pydantic import BaseModel

from demerit.llm import ChatClient, ChatImage, ChatRequest, Endpoint, Message
from demerit.llm.dialect import Dialect
from fakes.judge.faults import Faults
from fakes.judge.server import Busy, Request, ScriptedServer

SLOTS = 32
WANTED = 0.90
# seconds per answer, images per question, questions, share of faults
ROUNDS = [(0.5, 0, 1500, 0.0), (1.0, 8, 800, 0.0), (2.0, 30, 400, 0.0), (1.0, 8, 800, 0.05)]


class Value(BaseModel):
    """What is asked for."""

    value: float


def serve(pipe: Connection, latency: float, faults: float) -> None:
    def answer(request: Request) -> dict[str, float]:
        return {"value": 0.5}

    kinds = ("429", "500", "cut", "nonsense", "refusal", "length", "slow")
    rates = {kind: faults / len(kinds) for kind in kinds}
    with ScriptedServer(answer, Faults(rates, retry_after=0.1, delay=1.0), latency=latency) as server:
        pipe.send(server.url)
        while pipe.recv() == "measure":
            twice = sum(count - 1 for count in server.billed.values())
            pipe.send((server.busy.share(SLOTS), server.busy.most, server.billed.total(), twice))
            server.busy = Busy()
            server.billed.clear()
            server.asked.clear()


def questions(count: int, images: int) -> list[ChatRequest]:
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(images):
        small = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        frames.append(ChatImage.of(np.kron(small, np.ones((14, 14, 1), np.uint8)).astype(np.uint8)))
    return [ChatRequest((Message.user(f"question {i}", *frames),), Value) for i in range(count)]


def with_chat(url: str, asks: list[ChatRequest], folder: Path) -> str:
    with ChatClient(Endpoint(url, "simulated", key_env=""), folder / "answers.sqlite", SLOTS, timeout=30) as chat:
        said = [said for _, said in chat.ask_all(asks)]
        assert len(said) == len(asks)
        return f"{sum(bool(each.why_not) for each in said)} without a usable answer, {chat.spent.retries} retries"


def with_bare_threads(url: str, asks: list[ChatRequest]) -> None:
    """Send the same bytes with nothing around them; faults are left where they fall."""
    dialect = Dialect("json_schema")
    todo: queue.SimpleQueue[ChatRequest | None] = queue.SimpleQueue()
    for ask in [*asks, *[None] * SLOTS]:
        todo.put(ask)

    def work() -> None:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        while (ask := todo.get()) is not None:
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(dialect.write(ask, "simulated")))
                connection.getresponse().read()
            except (http.client.HTTPException, OSError):
                connection.close()
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(SLOTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    worst = 1.0
    print(f"share of {SLOTS} slots in use on average, from the first request to the end of the last answer")
    for latency, images, count, faults in ROUNDS:
        asks = questions(count, images)
        here, there = multiprocessing.Pipe()
        process = multiprocessing.Process(target=serve, args=(there, latency, faults), daemon=True)
        process.start()
        url = here.recv()
        title = f"{latency:g} s an answer, {images:2d} images, {count} questions, {faults:.0%} faults"
        with tempfile.TemporaryDirectory() as folder:
            for name in ("chat", "bare threads"):
                start = time.perf_counter()
                more = with_chat(url, asks, Path(folder)) if name == "chat" else with_bare_threads(url, asks) or ""
                wall = time.perf_counter() - start
                here.send("measure")
                share, most, billed, twice = here.recv()
                print(
                    f"{title}: {name:12s} {share:6.1%} busy (at most {most}), {wall:5.1f} s, "
                    f"{billed} billed, {twice} twice. {more}"
                )
                if name == "chat":
                    worst = min(worst, share)
        here.send("stop")
        process.join()
    print(f"worst of chat: {worst:.1%}, wanted at least {WANTED:.0%}")
    return 0 if worst >= WANTED else 1


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
