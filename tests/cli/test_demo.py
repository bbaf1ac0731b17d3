"""The demo, as a stranger runs it: once, again, and interrupted."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from demerit.cli import demo as command
from demerit.cli.demo import run_demo
from demerit.cli.demo.strips import PICTURES, WIDTH, chosen, strips
from demerit.cli.demo.words import headline
from demerit.data.frames import Frames
from demerit.errors import StoreError
from demerit.evaluate.benchmarks.run import recompute
from demerit.evaluate.reports.report import EpisodeLabels, Report
from fakes.processes import running

COMMAND = [sys.executable, "-c", "from demerit.cli import main; main()"]


def demerit(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(
        [*COMMAND, *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a demo, and what was printed. Do not write into it."""
    home = tmp_path_factory.mktemp("stranger")
    run = demerit("demo", cwd=home)
    assert run.returncode == 0, run.stderr
    return home / "demo", run.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_says_what_was_done_and_where_to_look(made: tuple[Path, str]) -> None:
    folder, printed = made
    for words in (
        "Taught with 6 successes and 6 failures",
        "untaught",
        "are few",
        "✓ trust",
        "teaching",
        " s, scoring",
    ):
        assert words in printed
    for page in ("report/report.html", "taught/report.html"):
        assert str((folder / page).resolve()) in printed
        assert (folder / page).stat().st_size > 50_000
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("  demerit ")] == [
        "teach",
        "score",
        "bench",
    ]


def test_teaching_helps_and_the_numbers_follow_from_the_file(made: tuple[Path, str]) -> None:
    report = Report.read(made[0] / "report" / "report.json")
    taught, before, cue = (report.line(name, "auroc") for name in ("taught", "default", "change"))
    assert taught is not None and before is not None and cue is not None
    assert taught.value > 0.9 and taught.value > before.value + 0.2 and taught.value > cue.value + 0.2
    assert {one.split for one in report.episodes} == {"test"}
    assert len(report.episodes) == taught.clusters == 16
    assert recompute(report).as_dict() == report.as_dict()


def test_the_page_shows_strips_the_table_and_the_lesson(made: tuple[Path, str]) -> None:
    page = (made[0] / "report" / "report.html").read_text("utf-8")
    assert page.count('class="reel"') == 4
    assert "climbs and falls" in page
    assert 'href="../taught/report.html"' in page
    assert 'tag good">trust' in page
    assert len(re.findall(r'id="clip-\d+"', page)) == 16
    assert not re.findall(r'(?:src|href)="https?:', page)


def test_a_second_run_is_quick_and_changes_nothing(made: tuple[Path, str]) -> None:
    folder, printed = made
    before, started = contents(folder), time.monotonic()
    again = run_demo(folder)
    assert time.monotonic() - started < 5
    assert contents(folder) == before
    assert not again.seconds
    run = demerit("demo", folder, cwd=folder.parent)
    assert "left as it is" in run.stdout
    assert run.stdout.splitlines()[3:] == printed.splitlines()[3:]


def test_every_step_can_be_done_by_hand(made: tuple[Path, str], tmp_path: Path) -> None:
    run = demerit("bench", "--recompute", made[0] / "report" / "report.json", cwd=tmp_path)
    assert "The same numbers as in the file." in run.stdout, run.stderr
    assert "12 episodes" in demerit("inspect", made[0] / "lesson", cwd=tmp_path).stdout
    assert "28 episodes" in demerit("inspect", made[0] / "videos", cwd=tmp_path).stdout


def test_a_copy_of_a_finished_demo_is_finished(made: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(made[0], tmp_path / "moved")
    result = run_demo(tmp_path / "moved")
    assert not result.seconds
    assert headline(result.report, result.lesson).trusted == "taught"


def test_a_folder_with_other_videos_is_refused(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "labels.jsonl").write_text('{"file": "mine.mp4"}\n')
    with pytest.raises(StoreError, match="choose another folder"):
        run_demo(tmp_path)
    assert [path.name for path in (tmp_path / "videos").iterdir()] == ["labels.jsonl"]
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        run_demo(tmp_path / "file")


@pytest.mark.slow
@pytest.mark.parametrize(("made", "count"), [("videos/*.mp4", 3), ("taught.teaching/*.npz", 5)])
def test_ctrl_c_is_one_sentence_and_the_next_run_goes_on(tmp_path: Path, made: str, count: int) -> None:
    """While the sample is laid out, and while the lesson looks at it."""
    with running([*COMMAND, "demo"], cwd=tmp_path, stderr=subprocess.PIPE) as run:
        late = time.monotonic() + 90
        while len(list((tmp_path / "demo").glob(made))) < count:
            assert time.monotonic() < late
            time.sleep(0.005)
        run.send_signal(signal.SIGINT)
        _, stderr = run.communicate(timeout=60)
    assert run.returncode == 130
    # hit while a compiled module is being imported, that module may print a bare heading of its own; no frame of ours
    assert 'File "' not in stderr
    assert "the same command goes on" in stderr
    assert not (tmp_path / "demo" / "demo.json").exists()
    assert demerit("demo", cwd=tmp_path).returncode == 0
    assert (tmp_path / "demo" / "demo.json").exists()


def test_a_browser_is_opened_only_where_there_is_a_screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    assert not command.can_open()
    monkeypatch.setenv("DISPLAY", ":0")
    assert command.can_open()
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 22 10.0.0.2 22")
    assert not command.can_open()
    # A browser that never returns holds up nobody.
    monkeypatch.setenv("BROWSER", "sleep 20 #%s")
    monkeypatch.setattr(command, "PATIENCE", 0.3)
    started = time.monotonic()
    command.open_in_browser(tmp_path / "page.html")
    assert time.monotonic() - started < 10


def test_the_episodes_on_show_tell_a_story(made: tuple[Path, str]) -> None:
    report = Report.read(made[0] / "report" / "report.json")
    titles = dict(chosen(report))
    done, undone = titles["Done: the reward climbs"], titles["Done, then undone: it climbs and falls"]
    assert done.success and undone.success is False
    assert isinstance(undone, EpisodeLabels) and undone.curve is not None
    assert undone.curve.max() > undone.curve[-1] + 0.3
    assert len({one.id for one in titles.values()}) == 4


def test_curves_stand_under_their_pictures(made: tuple[Path, str]) -> None:
    report = Report.read(made[0] / "report" / "report.json")
    frames = {one.id: Frames.from_array(np.zeros((one.frames, 8, 8, 3), np.uint8)) for one in report.episodes}
    for strip in strips(report, frames):
        for curve in strip.curves:
            xs = [float(point.split(",")[0]) for point in curve.points.split()]
            assert xs[0] == WIDTH / PICTURES / 2
            assert xs[-1] == WIDTH - WIDTH / PICTURES / 2
        assert all(0 <= mark.left and mark.left + mark.width <= 100 for mark in strip.marks)
