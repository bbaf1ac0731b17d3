"""How fast a report of 1,000 episodes and 9 models is written and opens, compared with one of 75, in a real browser.

    python benchmarks/report_page.py        (--small: 100 episodes, written only, without a browser)

Needs Chromium and Playwright (the `dev` extra). The page sets `ready` when it is drawn and reacts to clicks.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from demerit.evaluate.reports import write_page
from fakes.page_fixture import make_large_report, make_report

ROUNDS = 7
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SORT = """() => { const start = performance.now();
document.querySelector('#episodes-table th:nth-child(6) button').click(); return performance.now() - start; }"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    is_small = parser.parse_args().small
    report, frames = make_report(1 if is_small else 3)
    with tempfile.TemporaryDirectory() as folder:
        seconds = {}
        for name, shown, videos in (
            ("small", report, frames),
            ("large", make_large_report(100 if is_small else 1000), {}),
        ):
            start = time.perf_counter()
            path = write_page(shown, Path(folder) / f"{name}.html", videos)
            seconds[path] = time.perf_counter() - start
        opened = {} if is_small else open_pages(list(seconds))
        for path, taken in seconds.items():
            text = f"{path.stem}: {path.stat().st_size / 1e6:.2f} MB, written in {taken:.1f} s"
            print(text + opened.get(path, ""))


def open_pages(paths: list[Path]) -> dict[Path, str]:
    """Open each page several times; return medians as text."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or sys.exit("needs Chromium: apt-get install chromium")
    times: dict[Path, list[tuple[float, float]]] = {path: [] for path in paths}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        for _ in range(ROUNDS):
            for path, taken in times.items():
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                page.goto(path.as_uri())
                while not page.evaluate("performance.getEntriesByName('ready').length"):
                    page.wait_for_timeout(5)
                ready = page.evaluate("performance.getEntriesByName('ready')[0].startTime")
                taken.append((ready, page.evaluate(SORT)))
                page.close()
        browser.close()
    found = {}
    for path, taken in times.items():
        ready, sort = (statistics.median(column) for column in zip(*taken, strict=True))
        found[path] = f", ready after {ready:.0f} ms, sorted in {sort:.0f} ms (medians of {ROUNDS})"
    return found


if __name__ == "__main__":
    main()
