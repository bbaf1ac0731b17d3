"""The card: its numbers, its loaders, the page in a browser, and the page of the documentation."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demerit.data.dataset import Dataset, ListReader
from demerit.data.episode import Episode, Event, Outcome
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.store import Store
from demerit.data.video import VideoClip
from demerit.use.release import ReleaseConfig, release
from demerit.use.release.card import count_tables
from fakes.paths import REPO, find_chromium
from fakes.release_fixture import messy_rollouts
from fakes.tiny_network import make_network

CHROMIUM = find_chromium()
EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 2'>"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def evil_episodes(sample: Path) -> Iterator[Episode]:
    """The drawn sample with a script in every text."""
    for number, episode in enumerate(open_dataset(f"videos:{sample}")):
        outcomes = tuple(replace(outcome, note=EVIL, by=EVIL) for outcome in episode.outcomes)
        origin = replace(episode.origin, licence="MIT", split="test" if number % 3 == 0 else "train")
        text = f"{episode.instruction} {EVIL}" if number < 2 else episode.instruction
        yield replace(episode, instruction=text, outcomes=outcomes, origin=origin)


@pytest.fixture(scope="module")
def card(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("card") / "blocks"
    release(Dataset(ListReader("blocks", list(evil_episodes(sample))), "evil"), dest, ReleaseConfig(keep=("notes",)))
    return dest / "card.html"


def test_every_instruction_is_on_the_card(card: Path) -> None:
    page, readme = card.read_text(), (card.parent / "README.md").read_text()
    for episode in Store(card.parent).episodes():
        assert episode.instruction.replace(EVIL, "") in page
        assert episode.instruction.replace(EVIL, "") in readme
    assert "<script>window.evil" not in page
    assert "<script>" not in readme and "notes" in readme


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")
def test_the_card_in_a_browser(card: Path) -> None:
    driver = pytest.importorskip("playwright.sync_api", reason="no Playwright here: pip install playwright")
    problems: list[str] = []
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or problems.append(request.url))
        page.goto(card.as_uri())
        assert "15 robot episodes (3 successes, 12 failures)" in page.locator(".lead").inner_text()
        done, failed = (
            page.locator(f".charts [title='{title}']").first.bounding_box() for title in ("3 success", "12 failure")
        )
        assert failed["width"] == pytest.approx(4 * done["width"], rel=0.02)
        assert page.evaluate("[...document.querySelectorAll('.sheet img')].every((image) => image.naturalWidth > 600)")
        page.locator("#episodes th", has_text="Outcome").locator("button").click()
        outcomes = page.locator("#episodes tbody td:nth-child(3)").all_inner_texts()
        assert len(outcomes) == 15 and outcomes == sorted(outcomes)
        assert EVIL in page.locator("#instructions table").inner_text()
        assert page.evaluate("window.evil") is None
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") == width
        browser.close()
    assert not problems


def test_counts(make_episode: Any) -> None:
    def one(id: str, success: bool, progress: float, *kinds: str) -> Episode:
        events = tuple(Event(kind, 0, 1) for kind in kinds)
        return replace(make_episode(id), outcomes=(Outcome("human", success, progress, events=events),))

    episodes = [one("a", False, 0.1, "dropped"), one("b", True, 1.0), one("c", False, 0.15, "dropped", "collision")]
    episodes += [one("d", False, 0.99), make_episode("e")]
    tables = {title: rows for title, _, rows in count_tables(episodes, [])}
    assert tables["Kinds of failure"] == [["dropped", 2], ["collision", 1]]
    assert tables["Episodes"] == [["unknown", "none", 1, 3, 1, 5, 60, 0.002]]
    assert tables["Labels"] == [["human", "not named", 4]]
    assert tables["Final progress"][1] == ["0.1 to 0.2", 0, 2, 0]
    assert tables["Final progress"][9] == ["0.9 to 1.0", 1, 1, 0]


def run_loaders(folder: Path, *more: str) -> list[str]:
    """Run the loaders of a card as printed; given `more`, the last one and that."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (folder / "README.md").read_text(), flags=re.M | re.S)
    blocks = ["\n".join((blocks[-1], *more))] if more else blocks
    command = [sys.executable, "-W", "error", "-c"]
    return [
        subprocess.run([*command, block], cwd=folder, capture_output=True, text=True, check=True).stdout
        for block in blocks
    ]


@pytest.mark.parametrize("layout", ["folder", "lerobot"])
def test_the_loaders_run_as_printed(tmp_path: Path, layout: Any) -> None:
    messy = messy_rollouts(tmp_path / "messy", count=2)
    release(open_dataset(messy), tmp_path / "out", ReleaseConfig(licence="MIT", layout=layout))
    printed = run_loaders(tmp_path / "out")
    assert printed[0].startswith("1 failures\n") and "['dropped'] (2, 48, 64, 3)" in printed[0]
    assert printed[1].endswith("20 frames\n")


def test_the_loaders_show_a_part_of_a_file(make_video: Any, tmp_path: Path) -> None:
    path = str(make_video(frames=30))
    frames = Frames(VideoClip(path, 1.0, 2.0)).select([7, 2, 2])
    rest = [Episode("b", "rest", {"main": Frames(VideoClip(path, None, 1.0))}), Episode.from_video(path, id="c")]
    reader = ListReader("x", [Episode("a", "do it", {"main": frames}), *rest])
    release(Dataset(reader, "x"), tmp_path / "out", ReleaseConfig(licence="MIT"))
    (printed,) = run_loaders(tmp_path / "out", "print([int(image.astype(int).sum()) for image in images])")
    assert printed.splitlines()[-1] == str([int(image.astype(int).sum()) for image in frames.all()])


@pytest.mark.slow
def test_the_documentation_runs(tmp_path: Path) -> None:
    """Run every block of docs/sharing.md, with a tiny network in place of the one that ships."""
    pytest.importorskip("huggingface_hub", reason="no hub client here: pip install 'demerit[hub]'")
    text = (REPO / "docs" / "sharing.md").read_text("utf-8")
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
            assert run([sys.executable, "-c", block]).splitlines() == re.findall(r"^print\(.*\)  # (.+)$", block, re.M)
        else:
            for line in block.splitlines():
                if line.startswith("demerit teach"):
                    code = f"{patched}import sys; sys.argv = {line.split()!r}; from demerit.cli import main; main()"
                    run([sys.executable, "-c", code])
                else:
                    run(line, shell=True)
    assert "Anna" not in (tmp_path / "my_better_release" / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (REPO / "docs" / target).exists(), target
