"""Where things are: the repository, real robot data and Chromium where this machine has them."""

import shutil
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
REPO = TESTS.parent
ASSETS = REPO / "src" / "demerit" / "assets"
SHARED = REPO.parent / "shared" / "data"


def find_chromium() -> str | None:
    """Return the program that starts Chromium, None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return str(TESTS / "fakes" / "chromium.sh") if any(map(shutil.which, names)) else None
