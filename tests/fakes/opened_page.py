"""A page in one file, opened in a real browser: it makes no request, fits the screen, and axe finds nothing serious."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DESKTOP = {"viewport": {"width": 1400, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@contextmanager
def open_page(browser: Any, path: Path, **options: Any) -> Iterator[Any]:
    """Open a file and check it; close it afterwards."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe: pip install axe-playwright-python"
    )
    problems: list[str] = []
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("request", lambda one: problems.append(one.url) if not one.url.startswith(("file:", "data:")) else None)
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(path.as_uri())
    yield page
    assert page.evaluate("document.documentElement.scrollWidth") == options["viewport"]["width"]
    found = axe.Axe().run(page).response["violations"]
    assert not [one["nodes"][0]["html"] for one in found if one["impact"] in ("serious", "critical")]
    context.close()
    assert not problems
