"""How fast `demerit view` opens 10,000 episodes with the rewards of three models, in a real browser.

    python benchmarks/view.py        (--small: 200 episodes, without a browser)

Needs Chromium and Playwright (the `dev` extra). The page sets `ready` when the list is drawn and reacts to keys.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from demerit.data.episode import Episode, Event, Outcome
from demerit.data.files import lock_folder
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.parts import PartWriter
from demerit.data.store import EPISODES, FORMAT_NAME, MANIFEST, SCHEMAS, Store, episode_row
from demerit.data.video import write_video
from demerit.models.protocol import example_card
from demerit.models.reward_store import REWARDS, RewardStore
from demerit.use.view import ViewIndex, view_app
from demerit.web.media import EpisodeMedia
from demerit.web.server import WebServer

ROUNDS, FRAMES, MODELS = 7, 100, ("careful", "eager", "clock")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FILTER = """() => { const start = performance.now(); form.elements.q.value = 'number 7'; refresh();
  const taken = performance.now() - start; form.elements.q.value = ''; refresh(); return taken; }"""
END = "() => { list.scrollTop = 1e9; }"
THUMBNAILS = """() => [...document.querySelectorAll('.row')].filter((row) => row.getBoundingClientRect().bottom > 0)
  .every((row) => row.querySelector('img')?.complete)"""


def fill(root: Path, count: int) -> None:
    """Write rows made from one template, and rewards of three models."""
    video = root.parent / "recording.mp4"
    rng = np.random.default_rng(0)
    write_video(video, rng.integers(0, 255, (FRAMES, 96, 128, 3), np.uint8))
    label = Outcome("human", success=True, curve=np.linspace(0, 1, FRAMES), events=(Event("collision", 3, 9),))
    episode = Episode("x", "x", {"main": Frames.from_video(video)}, (label,))
    store = Store.create(root, "ten-thousand")
    table = pa.Table.from_pylist([episode_row(episode, store.root)], EPISODES).take([0] * count)
    ids = [f"set/episode_{i:06d}" for i in range(count)]
    columns = {
        "id": ids,
        "instruction": [f"task number {i}" for i in rng.integers(0, 500, count)],
        "success": [(True, False, None)[i] for i in rng.integers(0, 3, count)],
    }
    for name, values in columns.items():
        field = EPISODES.field(name)
        table = table.set_column(EPISODES.get_field_index(name), field, pa.array(values, field.type))
    with lock_folder(store.root):
        PartWriter(root / MANIFEST, FORMAT_NAME, store.manifest, SCHEMAS).commit({"episodes": table})
    known = {text: replace(episode, instruction=text).fingerprint() for text in set(columns["instruction"])}
    for name in MODELS:
        card = example_card(name=name)
        rewards = RewardStore.open_or_create(root / "rewards" / name, card, {})
        rows = {
            "episode": ids,
            "fingerprint": [known[text] for text in columns["instruction"]],
            "card": [card.hash()] * count,
            "at": [np.arange(FRAMES)] * count,
            "value": list(rng.random((count, FRAMES), np.float32)),
            "success": [None] * count,
            "scored": [True] * count,
            "why_missing": [""] * count,
            "given": ["{}"] * count,
        }
        with lock_folder(rewards.root):
            parts = PartWriter(rewards.root / "rewards.json", "demerit-rewards", rewards.manifest, ["rewards"])
            parts.commit({"rewards": pa.Table.from_pydict(rows, REWARDS)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    is_small = parser.parse_args().small
    count = 200 if is_small else 10_000
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "set"
        fill(root, count)
        start = time.perf_counter()

        def open_index() -> ViewIndex:
            return ViewIndex(open_dataset(str(root)))

        with WebServer(view_app(open_index(), open_index, EpisodeMedia(Path(folder) / "cache"))) as server:
            print(f"{count:,} episodes, {len(MODELS)} models: server ready after {time.perf_counter() - start:.2f} s")
            for path in ("/index.json", "/episodes/7.json", "/media/7.jpg", "/media/7.mp4", "/stale.json"):
                start = time.perf_counter()
                body = urllib.request.urlopen(server.url + path).read()
                print(f"  {path:18s} {1000 * (time.perf_counter() - start):6.0f} ms, {len(body) / 1e6:.2f} MB")
                if path == "/stale.json":
                    assert [len(found) for found in json.loads(body)] == [0] * len(MODELS)
            if not is_small:
                open_page(server.url)


def open_page(url: str) -> None:
    """Open the page several times and print medians."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or sys.exit("needs Chromium: apt-get install chromium")
    taken: dict[str, list[float]] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        for _ in range(ROUNDS):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(url)
            wait(page, "performance.getEntriesByName('ready').length")
            facts = {"list drawn": page.evaluate("performance.getEntriesByName('ready')[0].startTime")}
            wait(page, "player.video.readyState >= 2")
            facts["first video shown"] = page.evaluate("performance.now()")
            facts["filter by words"] = page.evaluate(FILTER)
            start = time.perf_counter()
            page.evaluate(END)
            wait(page, "() => document.querySelector('.row[id^=row-99]')")
            wait(page, THUMBNAILS)
            facts["thumbnails at the other end"] = 1000 * (time.perf_counter() - start)
            for name, value in facts.items():
                taken.setdefault(name, []).append(value)
            page.close()
        browser.close()
    for name, values in taken.items():
        print(f"  {name}: {statistics.median(values):.0f} ms, at most {max(values):.0f} (median of {ROUNDS})")


def wait(page: object, truth: str) -> None:
    while not page.evaluate(truth):  # type: ignore[attr-defined]
        page.wait_for_timeout(5)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
