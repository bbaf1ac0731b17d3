"""How fast a report of 1,000 episodes and 9 models opens, beside one of 150, in a real browser.

    python benchmarks/report_page.py

Needs Chromium and Playwright (the `dev` extra). `ready` is set by the page when it is drawn and answers to clicks.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from playwright.sync_api import sync_playwright

from demerit.evaluate.reports.page import write_page
from fakes.page_fixture import make_large_report, make_report

ROUNDS = 7
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SORT = """() => { const start = performance.now();
document.querySelector('#episodes-table th:nth-child(6) button').click(); return performance.now() - start; }"""


def main() -> None:
    chromium = shutil.which("chromium") or sys.exit("needs Chromium: apt-get install chromium")
    report, frames = make_report()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        start = time.perf_counter()
        small = write_page(report, Path(folder) / "small.html", frames)
        between = time.perf_counter()
        large = write_page(make_large_report(), Path(folder) / "large.html")
        wrote = {small: between - start, large: time.perf_counter() - between}
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        times: dict[Path, list[tuple[float, float]]] = {small: [], large: []}
        for _ in range(ROUNDS):
            for path, taken in times.items():
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                page.goto(path.as_uri())
                page.wait_for_function("performance.getEntriesByName('ready').length")
                ready = page.evaluate("performance.getEntriesByName('ready')[0].startTime")
                taken.append((ready, page.evaluate(SORT)))
                page.close()
        browser.close()
        for path, taken in times.items():
            ready, sort = (statistics.median(column) for column in zip(*taken, strict=True))
            size = path.stat().st_size / 1e6
            row = f"{size:.2f} MB, written in {wrote[path]:.1f} s, ready after {ready:.0f} ms, sorted in {sort:.0f} ms"
            print(f"{path.stem}: {row} (medians of {ROUNDS})")


if __name__ == "__main__":
    main()
