"""Where things are: the repository, and real robot data where this machine has it."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
REPO = TESTS.parent
ASSETS = REPO / "src" / "demerit" / "assets"
SHARED = REPO.parent / "shared" / "data"
