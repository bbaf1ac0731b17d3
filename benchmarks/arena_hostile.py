"""The arena under hostile videos: what the public page and an honest site wait, and the server's memory.

    python benchmarks/arena_hostile.py [--small]

Two sites send videos that are made to exhaust a decoder: one with frames of 4096x4096, each of which is needed to show
the last, then over and over one that declares 60 million samples in a few kB. Meanwhile the public page is read and
another site uploads good videos.
"""

from __future__ import annotations

import argparse
import io
import re
import struct
import tempfile
import threading
import time
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from demerit.data.video import Encoding, write_video
from demerit.people.arena.app import CHECKLIST, ArenaApp
from demerit.people.database import Database
from demerit.web.server import WebServer

PASSWORD = "correct horse"
SAMPLES = 60_000_000
LONG = Encoding(gop=1000)
"""to show the last frame, all before it are decoded"""


class ArenaSite:
    """A site's browser."""

    def __init__(self, app: ArenaApp, url: str, name: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"accept": "application/json"}, timeout=300)
        self.http.post(f"/join/{app.accounts.make_link('site')}", data={"name": name, "password": PASSWORD})
        self.trial = str(self.http.get("/trial", follow_redirects=True).url).rpartition("/")[2]
        page = self.http.get(f"/trials/{self.trial}").text
        self.http.headers["x-csrf"] = re.findall('name="csrf" content="([^"]+)"', page)[0]
        file = io.BytesIO()
        Image.new("RGB", (20, 20)).save(file, "JPEG")
        assert self.upload("photo", file.getvalue()) == 200
        sent = {"instruction": "lift", "checklist": [True] * len(CHECKLIST)}
        self.http.post(f"/trials/{self.trial}/describe", json=sent).raise_for_status()

    def upload(self, part: str, content: bytes, camera: str = "left") -> int:
        """Send a file; return the last status."""
        begun = {"part": part, "camera": camera, "size": len(content)}
        state = self.http.post(f"/trials/{self.trial}/uploads", json=begun).json()
        while True:
            piece = content[state["received"] : state["received"] + 4_000_000]
            answer = self.http.put(f"/uploads/{state['id']}/{state['received']}", content=piece)
            if answer.status_code == 503:  # another file is being checked
                time.sleep(0.2)
                state["received"] = len(content)
                continue
            if answer.status_code != 200 or answer.json()["is_complete"]:
                return answer.status_code
            state["received"] = answer.json()["received"]


def make_bomb(good: bytes) -> bytes:
    """Declare many samples of one byte in a small file."""
    size, times = good.index(b"stsz"), good.index(b"stts")
    bomb = bytearray(good)
    bomb[size + 8 : size + 16] = struct.pack(">II", 1, SAMPLES)
    bomb[times + 12 : times + 16] = struct.pack(">I", SAMPLES)
    return bytes(bomb)


def megabytes() -> float:
    """Return the memory of this process, without its decoders."""
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def measure(seconds: float, frames: int) -> None:
    """Attack for a while; print what others wait."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_video(folder / "good.mp4", np.random.default_rng(0).integers(0, 255, (30, 64, 64, 3), dtype=np.uint8))
        write_video(folder / "huge.mp4", np.broadcast_to(np.uint8(9), (frames, 4096, 4096, 3)), encoding=LONG)
        good, huge = ((folder / f"{name}.mp4").read_bytes() for name in ("good", "huge"))
        bomb = make_bomb(good)
        app = ArenaApp(Database(f"sqlite:///{folder}/arena.db"), folder / "uploads")
        app.trials.set_policies({"a": "maple", "b": "tulip"})
        ended, answers = threading.Event(), []

        def attack(site: ArenaSite) -> None:
            answers.append(site.upload("first", huge, "right"))  # a video like any other, if its decoder is slow
            while not ended.is_set():
                answers.append(site.upload("first", bomb, "wrist"))

        with WebServer(app.guard.app) as server:
            honest = ArenaSite(app, server.url, "honest")
            bad = [ArenaSite(app, server.url, f"hostile {number}") for number in range(2)]
            before = megabytes()
            threads = [threading.Thread(target=attack, args=[site]) for site in bad]
            for thread in threads:
                thread.start()
            pages, uploads, peak, until = [], [], before, time.monotonic() + seconds
            for camera in ("right", "wrist", "left"):
                start = time.monotonic()
                assert honest.upload("first", good, camera) == 200
                uploads.append(time.monotonic() - start)
            while not pages or time.monotonic() < until:
                start = time.monotonic()
                assert httpx.get(server.url).status_code == 200
                pages.append(time.monotonic() - start)
                peak = max(peak, megabytes())
                time.sleep(0.05)
            ended.set()
            for thread in threads:
                thread.join()
        app.stop()
    print(f"hostile uploads: {len(answers)}, refused {answers.count(422)}")
    print(f"the public page: median {1000 * np.median(pages):.0f} ms, slowest {1000 * max(pages):.0f} ms")
    print(f"an honest upload with its check: slowest {max(uploads):.1f} s")
    print(f"memory of the server: {before:.0f} MB before, at most {peak:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    measure(2.0 if small else 30.0, 3 if small else 60)
