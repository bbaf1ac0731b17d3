"""Fixtures that many tests use."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partialmethod
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from demerit.data.episode import Episode
from demerit.data.video import write_video
from fakes.drawn_sample import make_sample
from fakes.paths import SHARED, find_chromium

# `make test` draws the same examples on every machine. `make fuzz` draws new ones.
SLOW_MACHINE = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
settings.register_profile("test", derandomize=True, deadline=None, database=None, suppress_health_check=SLOW_MACHINE)
settings.register_profile("fuzz", max_examples=500, deadline=None, print_blob=True, suppress_health_check=SLOW_MACHINE)
settings.load_profile(os.environ.get("DEMERIT_TEST_PROFILE", "test"))

# Triton's interpreter runs kernels without a GPU. It is chosen when triton is imported, which other packages do.
os.environ["TRITON_INTERPRET"] = "1"

# The consoles of the command line keep the COLUMNS that they are made with. Made without, they read it at every table.
os.environ.pop("COLUMNS", None)
import_module("demerit.cli.bars")

# A shell starts background jobs with SIGINT ignored, and their children inherit that. Tests that send Ctrl-C to a child
# need the default handler.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def ordinary_schedule() -> Iterator[None]:
    """No test leaves its process with real-time priority: all others on the machine would wait."""
    yield
    assert not hasattr(os, "sched_getscheduler") or os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.fixture(scope="session", autouse=True)
def one_worker() -> Iterator[None]:
    """Start one worker process, not one per core, where no test says how many: starting it is most of its work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """No test cuts the power: what was written is there for all processes, also after a kill, without a wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_passwords() -> Iterator[None]:
    """Hash passwords with argon2's least work, not a tenth of a second and 64 MB for each person who joins."""
    if find_spec("argon2") is None:  # not in the environments of LeRobot and Rerun
        yield
        return
    from argon2 import PasswordHasher

    with pytest.MonkeyPatch.context() as patch:
        least = partialmethod(PasswordHasher.__init__, time_cost=1, memory_cost=8, parallelism=1)
        patch.setattr(PasswordHasher, "__init__", least)
        yield


@pytest.fixture
def real_passwords(monkeypatch: pytest.MonkeyPatch, quick_passwords: None) -> None:
    """Hash passwords in this test as users' passwords are."""
    from argon2 import PasswordHasher

    monkeypatch.setattr(PasswordHasher, "__init__", vars(PasswordHasher)["__init__"].func)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drawn dataset: 15 videos with labels. Do not write into it."""
    return make_sample(tmp_path_factory.mktemp("sample") / "blocks")


@pytest.fixture(scope="session")
def made_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `demerit demo demo` makes. Do not write into it."""
    from fakes.command import demerit_here

    home = tmp_path_factory.mktemp("home")
    made = demerit_here("demo", "demo", cwd=home)
    assert made.returncode == 0, made.stderr
    return home / "demo"


@pytest.fixture
def finished_demo(made_demo: Path, tmp_path: Path) -> None:
    """A finished demo in the test's folder: `demerit demo demo`, run there, finds everything made."""
    shutil.copytree(made_demo, tmp_path / "demo")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real robot data, where this machine has it."""
    if not SHARED.is_dir():
        pytest.skip(f"no real robot data at {SHARED}")
    return SHARED


@pytest.fixture
def make_video(tmp_path: Path) -> Callable[..., Path]:
    """Write a small video of noise; the same seed gives the same one."""

    def make(name: str = "clip.mp4", frames: int = 12, seed: int = 0) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        images = np.random.default_rng(seed).integers(0, 255, (frames, 32, 48, 3), dtype=np.uint8)
        write_video(path, images)
        return path

    return make


@pytest.fixture
def make_episode(make_video: Callable[..., Path]) -> Callable[..., Episode]:
    """Make an episode of a small video."""

    def make(id: str = "one", frames: int = 12, seed: int = 0) -> Episode:
        return Episode.from_video(make_video(f"{id}.mp4", frames, seed), f"do {id}", id=id)

    return make


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server of this test process."""
    from fakes.postgres import find_programs, run_server  # not in the environments of LeRobot and Rerun

    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with run_server(programs) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty database for people's work, of each kind."""
    from demerit.people.database import Database
    from fakes.postgres import create_database

    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/work.db" if is_file else create_database(request.getfixturevalue("postgres"))
    found = Database(url)
    yield found
    found.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright; tests that use it are slow ones."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="no Playwright here: pip install playwright")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with driver.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=flags)
        yield opened
        opened.close()
