"""The annotation app and the arena under stress: answers through kill -9, cut uploads, 50 raters at once.

    python benchmarks/annotate.py [--small] [--database postgresql://USER@HOST/NAME]

1. Answers are sent to a server that is killed with SIGKILL at random moments and started again. Each answer that was
   acknowledged must be in the database and, at the end, in the dataset folder; one that was sent twice, once.
2. Uploads to an arena are cut at random bytes and go on; the files that arrive must be the files that were sent.
3. 50 raters answer at once: time of each request.

Without --database the third part uses SQLite too, which is meant for one person.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demerit.data.episode import Episode
from demerit.data.store import Store
from demerit.data.video import write_video


def make_set(folder: Path, count: int) -> Path:
    write_video(folder / "one.mp4", np.random.default_rng(0).integers(0, 255, (20, 48, 64, 3), dtype=np.uint8))
    store = Store.create(folder / "set", "set")
    with store.writer() as writer:
        for number in range(count):
            writer.add(Episode.from_video(folder / "one.mp4", "lift the cup", f"e{number}"))
    return folder / "set"


class AppProcess:
    """`demerit annotate` or `demerit arena serve` as a process, at a port that stays the same."""

    def __init__(self, *command: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.command = [sys.executable, "-m", "demerit", *command, "--port", str(self.port)]
        self.url = f"http://127.0.0.1:{self.port}"
        self.link = ""

    def start(self) -> None:
        environment = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        while not (found := re.search(r"(http\S+/enter/\S+)", line := self.process.stdout.readline())):
            assert line, "the server did not start"
        self.link = found[1]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


class RobotRater:
    """Somebody's browser without a browser."""

    def __init__(self, url: str) -> None:
        import httpx

        self.http = httpx.Client(base_url=url, timeout=10)
        self.csrf, self.errors = "", httpx.TransportError

    def enter(self, link: str, **form: str) -> None:
        answer = (
            self.http.post(link, data=form, follow_redirects=True)
            if form
            else self.http.get(link, follow_redirects=True)
        )
        self.csrf = re.search('name="csrf" content="([^"]+)"', answer.text)[1]  # type: ignore[index]

    def next_item(self) -> int | None:
        answer = self.http.get("/work/verify", follow_redirects=True, headers={"accept": "text/html"})
        found = re.search(r"/items/(\d+)$", str(answer.url))
        return int(found[1]) if found else None

    def send(self, method: str, path: str, **body: Any) -> Any:
        headers = {"x-csrf": self.csrf, "accept": "application/json"}
        answer = self.http.request(method, path, headers=headers, **body)
        answer.raise_for_status()
        return answer.json()


def kill_while_answering(folder: Path, kills: int) -> str:
    dataset = make_set(folder, 20 * kills)
    app, rng = AppProcess("annotate", str(dataset), "--no-browser", "--no-teach", "--tasks", "verify"), random.Random(0)
    acknowledged: dict[str, int] = {}
    sent_twice = 0
    pending: tuple[str, int] | None = None
    for _ in range(kills):
        app.start()
        rater = RobotRater(app.url)
        rater.enter(app.link)
        threading.Timer(rng.uniform(0.05, 0.8), app.kill).start()
        with suppress(rater.errors):
            while True:
                if pending is None:
                    item = rater.next_item()
                    assert item is not None
                    pending = (str(uuid.uuid4()), item)
                else:
                    sent_twice += 1
                id, item = pending
                rater.send(
                    "POST",
                    f"/items/{item}/answer",
                    json={"id": id, "body": {"verdict": "correct", "grade": 1 + item % 5}},
                )
                acknowledged[id], pending = item, None
        app.process.wait()
        rater.http.close()
    app.start()
    app.stop()
    import sqlalchemy as sa

    engine = sa.create_engine(f"sqlite:///{dataset / 'annotate.db'}")
    with engine.connect() as db:
        stored = dict(db.exec_driver_sql("SELECT id, item FROM answers").all())
        episodes = dict(db.exec_driver_sql("SELECT id, episode FROM items").all())
        total = db.exec_driver_sql("SELECT count(*) FROM answers").scalar()
    engine.dispose()
    labelled = {one.id: one.outcome.grade for one in Store(dataset).episodes() if one.outcome is not None}
    lost = [id for id, item in acknowledged.items() if stored.get(id) != item]
    missing = [id for id, item in acknowledged.items() if labelled.get(episodes[item]) != 1 + item % 5]
    doubled = total - len(stored)
    return (
        f"{kills} x kill -9: {len(acknowledged)} answers acknowledged, {sent_twice} sent again after a kill; "
        f"lost {len(lost)}, doubled {doubled}, not in the dataset folder {len(missing)}"
    )


def cut_uploads(folder: Path, cuts: int) -> str:
    (folder / "policies.yaml").write_text("a: maple\nb: tulip\n")
    app, rng = (
        AppProcess("arena", "serve", str(folder / "arena"), "--policies", str(folder / "policies.yaml")),
        random.Random(1),
    )
    app.start()
    owner = RobotRater(app.url)
    owner.enter(app.link)
    page = owner.http.post("/sites/invite", data={"csrf": owner.csrf}).text
    site = RobotRater(app.url)
    link = re.search(r"<code>(http\S+/join/\S+)</code>", page)[1]  # type: ignore[index]
    site.enter(link, name="site", password="correct horse")
    trial = str(site.http.get("/trial", follow_redirects=True).url).rpartition("/")[2]
    image = io.BytesIO()
    Image.fromarray(np.random.default_rng(2).integers(0, 255, (600, 600, 3), dtype=np.uint8)).save(image, "PNG")
    content, again, files, done = image.getvalue(), 0, 0, 0
    while done < cuts:
        state = site.send("POST", f"/trials/{trial}/uploads", json={"part": "photo", "size": len(content)})
        while not state["is_complete"]:
            start = state["received"]
            piece = content[start : start + 200_000]
            if done < cuts and rng.random() < 0.7:
                cut_request(app, site, f"/uploads/{state['id']}/{start}", piece, rng.randrange(len(piece) + 1))
                done += 1
                if rng.random() < 0.1:
                    app.kill()
                    app.start()
                now = site.send("POST", f"/trials/{trial}/uploads", json={"part": "photo", "size": len(content)})
                again += start + len(piece) - now["received"] if now["received"] > start else len(piece)
                state = now
            else:
                state |= site.send("PUT", f"/uploads/{state['id']}/{start}", content=piece)
        arrived = (folder / "arena" / "uploads" / f"{state['id']}.mp4").read_bytes()
        assert arrived == content, "the file that arrived is another one"
        files += 1
        content = content[:-12] + bytes([files % 256]) + content[-12:]  # another size: the next one starts over
    app.stop()
    site.http.close()
    owner.http.close()
    said = f"{done} cut uploads: {files} files arrived whole and unchanged"
    return f"{said}; {again / max(done, 1) / 1000:.0f} kB of pieces of 200 kB sent again per cut"


def cut_request(app: AppProcess, site: RobotRater, path: str, piece: bytes, at: int) -> None:
    """Send the head of a request and some of its body, then hang up."""
    cookies = "; ".join(f"{name}={value}" for name, value in site.http.cookies.items())
    head = f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1:{app.port}\r\nCookie: {cookies}\r\nX-CSRF: {site.csrf}\r\n"
    with suppress(OSError), socket.create_connection(("127.0.0.1", app.port), timeout=5) as raw:
        raw.sendall(f"{head}Content-Length: {len(piece)}\r\n\r\n".encode() + piece[:at])
        if at == len(piece):
            raw.recv(100)


def answer_at_once(folder: Path, database: str, raters: int, seconds: float) -> str:
    dataset = make_set(folder, 4000)
    extra = ["--database", database] if database else []
    app = AppProcess(
        "annotate", str(dataset), "--no-browser", "--no-teach", "--tasks", "verify", "--overlap", "3", *extra
    )
    app.start()
    owner = RobotRater(app.url)
    owner.enter(app.link)
    times: list[tuple[str, float]] = []
    failed: list[str] = []
    people = []
    for number in range(raters):
        page = owner.http.post("/team/invite", data={"csrf": owner.csrf, "role": "rater"}).text
        rater = RobotRater(app.url)
        link = re.search(r"<code>(http\S+/join/\S+)</code>", page)[1]  # type: ignore[index]
        rater.enter(link, name=f"rater {number}", password="correct horse")
        people.append(rater)
    end = time.monotonic() + seconds

    def work(rater: RobotRater, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < end:
            try:
                began = time.perf_counter()
                item = rater.next_item()
                times.append(("page", time.perf_counter() - began))
                time.sleep(rng.uniform(1, 3))  # a person looks for longer
                began = time.perf_counter()
                sent = {"id": str(uuid.uuid4()), "body": {"verdict": "correct", "grade": 3}, "seconds": 2}
                rater.send("POST", f"/items/{item}/answer", json=sent)
                times.append(("answer", time.perf_counter() - began))
            except Exception as error:
                failed.append(repr(error))

    threads = [threading.Thread(target=work, args=(rater, seed)) for seed, rater in enumerate(people)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rater in [*people, owner]:
        rater.http.close()
    app.stop()
    labelled = sum(one.outcome is not None for one in Store(dataset).episodes())
    said = []
    for what in ("page", "answer"):
        found = np.array([took for kind, took in times if kind == what]) * 1000
        said.append(f"{what} p50 {np.median(found):.0f} ms, p95 {np.percentile(found, 95):.0f} ms ({len(found)})")
    name = "PostgreSQL" if database else "SQLite"
    said.append(f"{len(failed)} errors {failed[:1]}; {labelled} episodes labelled")
    return f"{raters} raters at once, {name}: {'; '.join(said)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="seconds instead of minutes; the figures mean nothing")
    parser.add_argument("--database", default="", metavar="URL", help="an empty PostgreSQL database for the third part")
    parser.add_argument("--part", choices=["kill", "cut", "load"], help="one part only")
    given = parser.parse_args()
    kills, cuts, raters, seconds = (2, 4, 3, 2.0) if given.small else (200, 100, 50, 60.0)
    with tempfile.TemporaryDirectory() as name:
        for part in ("kill", "cut", "load"):
            if given.part in (None, part):
                folder = Path(name) / part
                folder.mkdir()
                if part == "kill":
                    print(kill_while_answering(folder, kills), flush=True)
                elif part == "cut":
                    print(cut_uploads(folder, cuts), flush=True)
                else:
                    print(answer_at_once(folder, given.database, raters, seconds), flush=True)


if __name__ == "__main__":
    main()
