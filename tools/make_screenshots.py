"""Take the screenshots of report and leaderboard that the documentation shows.

    python tools/make_screenshots.py bench/own/report.json [--out docs/images]

The page is the `report.html` beside the file; if there is none, one without videos is written.
Needs `pip install playwright` and a Chromium (Debian: `apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from demerit.evaluate.reports import Report, build_leaderboard, write_page

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SHOTS: dict[str, dict[str, Any]] = {
    "report-desktop": {"viewport": {"width": 1280, "height": 900}},
    "report-phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True},
    "report-dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
}


def main() -> None:
    """Parse and shoot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    wanted = parser.parse_args()
    wanted.out.mkdir(parents=True, exist_ok=True)
    report = Report.read(wanted.report)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = wanted.report.with_suffix(".html")
        page = page if page.exists() else write_page(report, Path(folder) / "report.html")
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, options in SHOTS.items():
            # The dark picture shows another part of the page: the player and its curves.
            shoot(browser, page, wanted.out / f"{name}.png", options, at_player="dark" in name)
        board = build_leaderboard([report], Path(folder) / "site")
        shoot(browser, board, wanted.out / "leaderboard.png", SHOTS["report-desktop"])
        browser.close()


def shoot(browser: Browser, file: Path, picture: Path, options: dict[str, Any], at_player: bool = False) -> None:
    """Open a page and save what a person would see."""
    page = browser.new_context(**options).new_page()
    page.goto(file.resolve().as_uri())
    page.wait_for_timeout(600)
    if at_player:
        page.locator("#examples").evaluate("element => element.scrollIntoView({behavior: 'instant'})")
        page.locator("#player-chart").click(position={"x": 420, "y": 80})
        page.wait_for_timeout(500)
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(picture, optimize=True)
    page.context.close()
    print(f"{picture}: {picture.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
