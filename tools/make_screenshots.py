"""Take the screenshots of reports and of the annotation pages that the documentation shows.

    demerit demo DIR
    python tools/make_screenshots.py DIR [--out docs/images]

The sample is taught once more with labels for the first episodes only, so that the report says what to label next. For
the start page of annotate, its labels are given as a person's answers, and a model is taught with them.
Needs `pip install playwright` and a Chromium (Debian: `apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import demerit
from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Episode
from demerit.people.annotate.app import AnnotateApp
from demerit.people.annotate.work import make_items, open_folder
from demerit.people.database import Database
from demerit.web.server import WebServer

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SHORTEN = (
    "document.querySelectorAll('code.id').forEach((path) => { path.textContent = path.textContent.split('/').pop(); })"
)
"""leaves only the file's name of paths on this machine"""
LABELLED = 12
"""labelled episodes, of all that the demo has"""
ANSWERS = 16
"""episodes that a person has marked when the start page of annotate is shown"""
MARKED = ["0", *["."] * 2, "3", "ArrowLeft", "f", *["ArrowRight"] * 3, "k", "i", "Enter", "e", "End", "2", "e"]
"""what is pressed on the page "mark": some progress, a failure, and from where it is incomplete"""


def main() -> None:
    """Parse and shoot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    wanted = parser.parse_args()
    wanted.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        shoot(browser, wanted.demo / "report" / "report.html", "", wanted.out / "report.png")
        page = teach_some(wanted.demo / "videos", Path(folder) / "my-model")
        shoot(browser, page, "#next", wanted.out / "label_next.png")
        shoot_annotate(browser, wanted.demo / "videos", Path(folder), wanted.out)
        browser.close()


def teach_some(videos: Path, out: Path) -> Path:
    """Teach on some episodes and leave the others unlabelled; return the page of the report."""
    episodes = list(demerit.open_dataset(str(videos)))
    rest = [replace(episode, outcomes=()) for episode in episodes[LABELLED:]]
    demerit.teach(Dataset(ListReader("videos", [*episodes[:LABELLED], *rest]), "videos"), out, use_test_split=True)
    return out / "report.html"


def shoot_annotate(browser: Browser, videos: Path, folder: Path, out: Path) -> None:
    """Save the page "mark" of an unlabelled copy of the sample, and the start page after some answers."""
    truth = {episode.id: episode for episode in demerit.open_dataset(str(videos))}
    shutil.copytree(videos, folder / "videos", ignore=shutil.ignore_patterns("labels.jsonl"))
    store = open_folder(demerit.open_dataset(str(folder / "videos"), instruction="move the block to the other bin"))
    app = AnnotateApp(Database(f"sqlite:///{folder}/work.db"), folder / "browser", teach=[store.root])
    app.work.add_items(make_items(store, ["verify", "mark", "compare"]))
    with WebServer(app.guard.app) as server:
        app.start()
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{server.url}/enter/{app.accounts.make_link('owner', app.accounts.ensure_owner('me'))}")
        me = app.accounts.find(page.context.cookies()[0]["value"])
        assert me is not None
        page.goto(f"{server.url}/work")
        page.wait_for_selector("body[data-ready]")
        for key in MARKED:
            page.keyboard.press(key)
        page.wait_for_timeout(1500)
        save(page.screenshot(), out / "annotate_mark.png")
        for _ in range(ANSWERS):
            asked = app.work.next_item(me, "mark")
            assert asked is not None
            length, body = len(truth[asked.episode]), answer_with(truth[asked.episode])
            app.work.answer(me, asked.item, str(uuid.uuid4()), body, length, 10)
        while (app.teachers[0].lesson or {}).get("answers") != ANSWERS:
            app.teachers[0].notice()
            time.sleep(2)
        page.set_viewport_size({"width": 1180, "height": 630})
        page.goto(server.url)
        save(page.screenshot(), out / "annotate_home.png")
        app.stop()


def answer_with(episode: Episode) -> dict[str, object]:
    """Return the simulator's label as a person's answer."""
    label = episode.outcome
    assert label is not None and label.curve is not None
    points = [[at, round(float(label.curve[at]), 2)] for at in (0, len(episode) // 2, len(episode) - 1)]
    events = [{"kind": event.kind, "first": event.first, "last": event.last} for event in label.events]
    return {"success": label.success, "points": points, "events": events}


def shoot(browser: Browser, page_file: Path, part: str, picture: Path) -> None:
    """Save the first screen of a page, or a part of it."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(page_file.resolve().as_uri())
    page.wait_for_timeout(600)
    page.evaluate(SHORTEN)
    content = page.locator(part).screenshot() if part else page.screenshot()
    save(content, picture)
    page.close()


def save(content: bytes, picture: Path) -> None:
    """Save a screenshot as a small file."""
    Image.open(io.BytesIO(content)).convert("RGB").quantize().save(picture, optimize=True)
    print(f"{picture}: {picture.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
