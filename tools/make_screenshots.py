"""Take the screenshots of reports that the documentation shows.

    demerit demo DIR
    python tools/make_screenshots.py DIR [--out docs/images]

The sample is taught once more with labels for the first episodes only, so that the report says what to label next.
Needs `pip install playwright` and a Chromium (Debian: `apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import demerit
from demerit.data.dataset import Dataset, ListReader

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SHORTEN = (
    "document.querySelectorAll('code.id').forEach((path) => { path.textContent = path.textContent.split('/').pop(); })"
)
"""leaves only the file's name of paths on this machine"""
LABELLED = 12
"""labelled episodes, of all that the demo has"""


def main() -> None:
    """Parse and shoot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        shoot(browser, wanted.demo / "report" / "report.html", "", wanted.out / "report.png")
        page = teach_some(wanted.demo / "videos", Path(folder) / "my-model")
        shoot(browser, page, "#next", wanted.out / "label_next.png")
        browser.close()


def teach_some(videos: Path, out: Path) -> Path:
    """Teach on some episodes and leave the others unlabelled; return the page of the report."""
    episodes = list(demerit.open_dataset(str(videos)))
    rest = [replace(episode, outcomes=()) for episode in episodes[LABELLED:]]
    demerit.teach(Dataset(ListReader("videos", [*episodes[:LABELLED], *rest]), "videos"), out, use_test_split=True)
    return out / "report.html"


def shoot(browser: Browser, page_file: Path, part: str, picture: Path) -> None:
    """Save the first screen of a page, or a part of it."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(page_file.resolve().as_uri())
    page.wait_for_timeout(600)
    page.evaluate(SHORTEN)
    content = page.locator(part).screenshot() if part else page.screenshot()
    Image.open(io.BytesIO(content)).convert("RGB").save(picture, optimize=True)
    page.close()
    print(f"{picture}: {picture.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
