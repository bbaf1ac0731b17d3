"""The card in a real browser, and the page of the documentation, block by block."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.labels import Event, Outcome
from demerit.use.release import Settings, release
from demerit.use.release.card import worth_a_look
from demerit.use.release.charts import failure_chart, outcome_chart, progress_chart
from demerit.use.release.composition import Composition, Group, compose
from fakes.paths import REPO
from fakes.release_fixture import messy_rollouts
from fakes.tiny_network import make_network

ROOT = REPO
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 2'>"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


# How high the letters of the drawings are on the screen, in pixels.
LETTERS = """[...document.querySelectorAll('.plots svg text')].map(
    (one) => parseFloat(getComputedStyle(one).fontSize) * one.getScreenCTM().a)"""


class Evil:
    """The drawn sample with somebody's script in every text."""

    name = "blocks"

    def __init__(self, sample: Path) -> None:
        self.whole = open_dataset(f"videos:{sample}")

    def expected(self) -> int:
        return 15

    def records(self) -> Iterator[Episode]:
        for number, one in enumerate(self.whole):
            said = tuple(replace(outcome, note=EVIL, by=EVIL) for outcome in one.outcomes)
            origin = replace(one.origin, licence="MIT", split="test" if number % 3 == 0 else "train")
            yield replace(one, instruction=f"{one.instruction} {EVIL}" if number < 2 else one.instruction,
                          outcomes=said, origin=origin)  # fmt: skip


@pytest.fixture(scope="module")
def card(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("card") / "out"
    release(Dataset(Evil(sample), "evil"), dest, Settings(notes="keep", name="blocks"))
    return dest / "card.html"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")
def test_the_card_in_a_browser(card: Path, tmp_path: Path) -> None:
    driver = pytest.importorskip("playwright.sync_api", reason="no Playwright here: pip install playwright")
    problems: list[str] = []
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda one: one.url.startswith(("file:", "data:")) or problems.append(one.url))
        page.goto(card.as_uri())
        _look(page, tmp_path)
        for width in (390, 768, 1280):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert 11 <= min(page.evaluate(LETTERS)) <= max(page.evaluate(LETTERS)) <= 18
        page.set_viewport_size({"width": 1280, "height": 900})
        _labels_fit(page)
        browser.close()
    assert not problems


def _look(page: Any, tmp_path: Path) -> None:
    assert page.locator("h1").inner_text() == "blocks"
    assert "15 robot episodes (3 successes, 12 failures)" in page.locator(".lead").inner_text()
    assert "No pixel was changed" in page.locator(".warnings").inner_text()
    # every drawing is there and as large as a drawing is
    for figure in page.locator(".plots svg").all():
        box = figure.bounding_box()
        assert box["width"] > 300 and box["height"] > 30
    assert page.locator(".plots svg").count() == 3
    bar = page.locator("#outcomes svg rect", has_text="all: 12 failure").bounding_box()
    other = page.locator("#outcomes svg rect", has_text="all: 3 success").bounding_box()
    assert bar["width"] == pytest.approx(4 * other["width"], rel=0.02)
    # contact sheets are pictures that decode
    sheets = page.locator(".sheet img")
    assert sheets.count() == 6
    assert page.evaluate("[...document.querySelectorAll('.sheet img')].every((one) => one.naturalWidth > 600)")
    # tables sort
    rows = page.locator("table.list tbody tr")
    assert rows.count() == 15
    header = page.locator("table.list th", has_text="Outcome")
    header.locator("button").click()
    said = page.locator("table.list tbody td:nth-child(3)").all_inner_texts()
    assert said == sorted(said)
    assert page.locator("#privacy .box li").count() == 10
    # whatever a stranger wrote is text
    assert EVIL in page.locator("table.list").inner_text()
    assert page.evaluate("window.evil") is None
    page.screenshot(path=tmp_path / "card.png", full_page=True)
    assert (tmp_path / "card.png").stat().st_size > 100_000


def _labels_fit(page: Any) -> None:
    """No letter leaves its drawing, however long an instruction is."""
    found = Composition("long")
    for words in ("push the coffee maker's button without moving the mug", "MOVE WWW MMMM to the W", "a" * 90):
        found.tasks[words] = Counter(success=3, failure=2)
    found.parts[("one", "train")] = Group()
    page.set_content(f"<div style='width: 380px'>{outcome_chart(found)}</div>")
    assert page.locator("text").count() == 2 + 2 * 3
    frame = page.locator("svg").bounding_box()
    for text in page.locator("text").all():
        box = text.bounding_box()
        assert box["x"] >= frame["x"] and box["x"] + box["width"] <= frame["x"] + frame["width"]


def test_drawings_stand_alone_and_add_up(card: Path) -> None:
    """The same numbers, read back from the drawing's own titles."""
    import xml.etree.ElementTree as Tree

    for name in ("outcomes", "failures", "progress"):
        drawn = Tree.fromstring((card.parent / "card" / f"{name}.svg").read_text())
        titles = [one.text or "" for one in drawn.iter("{http://www.w3.org/2000/svg}title")]
        counts = {title.rpartition(":")[0]: 0 for title in titles}
        for title in titles:
            counts[title.rpartition(":")[0]] += int(title.rpartition(":")[2].split()[0])
        if name == "outcomes":
            assert counts == {"all": 15, "blocks, test": 5, "blocks, train": 10}
        else:
            assert sum(counts.values()) == (12 if name == "failures" else 15)


def test_nothing_to_draw_is_no_drawing(make_episode: Any) -> None:
    found = compose("none", [make_episode("a")], [])
    assert progress_chart(found) == ""
    assert "1 unknown" in outcome_chart(found)
    assert failure_chart(found).startswith("<svg")


def test_failures_of_every_frequent_kind_are_looked_at(make_episode: Any) -> None:
    def one(id: str, success: bool, *kinds: str) -> Episode:
        events = tuple(Event(kind, 0, 1) for kind in kinds)
        return replace(make_episode(id), outcomes=(Outcome("human", success=success, events=events),))

    those = [one("a", False, "dropped"), one("b", True), one("c", False, "dropped", "collision"), one("d", False)]
    found = compose("x", those, [])
    assert found.failures == {"dropped": 2, "collision": 1}
    assert found.unexplained == 1
    assert [(title, episode.id) for title, episode in worth_a_look(found, those)] == [
        ("success", "b"), ("dropped", "a"), ("collision", "c"), ("failure", "d"),
    ]  # fmt: skip


@pytest.mark.slow
def test_the_documentation_runs(tmp_path: Path) -> None:
    """Every block of docs/sharing.md, as printed, with a tiny network in place of the one that ships."""
    pytest.importorskip("huggingface_hub", reason="no hub client here: pip install 'demerit[hub]'")
    text = (ROOT / "docs" / "sharing.md").read_text("utf-8")
    messy_rollouts(tmp_path / "my_rollouts")
    network = make_network(tmp_path / "network", kind=None)
    patched = (
        "from pathlib import Path; from demerit.models.compact.engine import Engine; "
        f"Engine.shipped = classmethod(lambda cls, threads=None: cls.load(Path({str(network)!r}))); "
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1"}

    def run(command: Any, **more: Any) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, **more
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)
    assert {language for language, _ in blocks} == {"bash", "python"}
    for language, block in blocks:
        if language == "python" and block.startswith("# my_faces.py"):
            (tmp_path / "my_faces.py").write_text(block)
        elif language == "python":
            said = run([sys.executable, "-c", block])
            assert said.splitlines() == re.findall(r"^print\(.*\)  # (.+)$", block, flags=re.M)
        else:
            for line in block.splitlines():
                if line.startswith("demerit teach"):
                    code = f"{patched}import sys; sys.argv = {line.split()!r}; from demerit.cli import main; main()"
                    run([sys.executable, "-c", code])
                else:
                    run(line, shell=True)
    assert "[name]" not in (tmp_path / "my_better_release" / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / "docs" / target).exists(), target
