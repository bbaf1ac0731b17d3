"""The live page in a real browser: it follows the watch, plays clips, fits a phone and runs nothing from the data."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demerit.data.formats import open_dataset
from demerit.use.watch.figures import WatchPage
from demerit.use.watch.watcher import Watcher
from demerit.web.media import EpisodeMedia
from demerit.web.server import WebServer
from fakes.named_values import Named
from fakes.paths import find_chromium
from fakes.tiny_video import put_video

CHROMIUM = find_chromium()
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine: apt-get install chromium", allow_module_level=True)
driver = pytest.importorskip("playwright.sync_api", reason="no Playwright here: pip install playwright")
pytestmark = pytest.mark.slow

EVIL = "</span><script>window.evil = 1</script><img src=x onerror='window.evil = 2'>"


def until(page: Any, expression: str) -> None:
    """Wait for a condition; the page's content policy forbids `wait_for_function`."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(expression)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[tuple[Watcher, str]]:
    """A watch over one failure with an evil instruction and name, and the address of its page."""
    folder = tmp_path / "runs"
    put_video(folder / "<b>a.mp4")
    watcher = Watcher(
        str(folder),
        Named(),
        lambda path: open_dataset(path, instruction=f"{EVIL} 0.3"),
        settle=0.0,
        patience=0.0,
    )
    watcher.look()
    with WebServer(WatchPage(watcher, EpisodeMedia(tmp_path / "media")).app()) as server:
        yield watcher, server.url


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_follows_the_watch_and_plays_a_clip(watch: tuple[Watcher, str], width: int) -> None:
    watcher, url = watch
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page, problems = browser.new_page(viewport={"width": width, "height": 844}), list[Any]()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.goto(url)
        assert page.inner_text("h1") == "Of these 1, watch these 1"
        until(page, "document.querySelector('.watch-list img').naturalWidth > 0")
        assert page.inner_text(".watch-list .id") == "<b>a"
        page.focus(".watch-list button")
        put_video(watcher.root / "b.mp4")
        watcher.look()
        until(page, "document.querySelectorAll('.watch-list li').length == 2")
        assert page.evaluate("document.activeElement.dataset.name") == "<b>a"  # the focus survives
        page.keyboard.press("Enter")
        until(page, "document.querySelector('#clip video').readyState >= 2")
        page.keyboard.press("Escape")
        until(page, "!document.getElementById('clip').open")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("window.evil") is None and problems == []
        browser.close()
