"""The demo: once, again, and interrupted."""

import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from demerit.cli import demo as command
from demerit.cli.demo import DemoResult, run_demo
from demerit.cli.demo_page import describe_demo
from demerit.errors import StoreError
from demerit.evaluate.benchmarks.run import recompute
from demerit.evaluate.reports.headline import Lead
from demerit.evaluate.reports.report import Report
from demerit.training.teach.report import taught_benchmark
from fakes.command import COMMAND, demerit
from fakes.processes import running


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a demo, and what was printed. Do not write into it."""
    home = tmp_path_factory.mktemp("home")
    run = demerit("demo", cwd=home)
    assert run.returncode == 0, run.stderr
    return home / "demo", run.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_output_names_results_and_pages(made: tuple[Path, str]) -> None:
    folder, printed = made
    assert "6 successes and 6 failures" in printed and "untaught" in printed
    for page in ("report/report.html", "taught/report.html"):
        assert str((folder / page).resolve()) in printed
        assert (folder / page).stat().st_size > 50_000
    commands = [line.split()[1] for line in printed.splitlines() if line.startswith("  demerit ")]
    assert commands == ["teach", "score", "bench"]


def test_teaching_helps_and_the_report_recomputes(made: tuple[Path, str]) -> None:
    report = Report.read(made[0] / "report" / "report.json")
    taught, before, cue = (report.line(name, "auroc") for name in ("taught", "default", "change"))
    assert taught is not None and before is not None and cue is not None
    assert taught.value > 0.9 and taught.value > before.value + 0.2 and taught.value > cue.value + 0.2
    assert {one.split for one in report.episodes} == {"test"}
    assert report.about.claim != taught_benchmark().claim  # nothing is held out in turns
    assert len(report.episodes) == taught.clusters == 16
    assert recompute(report).as_dict() == report.as_dict()


def test_the_page_has_strips_a_table_and_videos(made: tuple[Path, str]) -> None:
    page = (made[0] / "report" / "report.html").read_text("utf-8")
    assert page.count('class="reel"') == 4
    assert 'href="../taught/report.html"' in page
    answer = run_demo(made[0]).answer
    assert ('tag good">trust' in page) == answer.is_trusted
    assert len(re.findall(r'id="clip-\d+"', page)) == 16
    assert not re.findall(r'(?:src|href)="https?:', page)


def test_a_second_run_changes_nothing(made: tuple[Path, str]) -> None:
    folder, printed = made
    before = contents(folder)
    again = run_demo(folder)
    assert contents(folder) == before
    assert not again.seconds
    run = demerit("demo", folder, cwd=folder.parent)
    assert run.stdout.splitlines()[3:] == printed.splitlines()[3:]


def test_a_copy_of_a_finished_demo_is_finished(made: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(made[0], tmp_path / "moved")
    result = run_demo(tmp_path / "moved")
    assert not result.seconds
    assert result.answer.title in describe_demo(result.report, result.taught_report, result.answer).text


def test_the_demo_trusts_the_taught_model_only_if_its_own_report_does(made: tuple[Path, str]) -> None:
    result = run_demo(made[0])
    assert result.answer.headline in (made[0] / "taught" / "report.html").read_text("utf-8")
    assert " ".join(result.answer.title.split()) in " ".join(made[1].split())
    assert ("✓ trust" in made[1]) == result.answer.is_trusted
    assert result.answer.kind == "label more" and not describe(result, result.report).trusted
    sure = tuple(replace(one, reward=replace(one.reward, given={})) for one in result.report.rewards)
    trusted = describe(result, replace(result.report, rewards=sure))
    assert trusted.trusted == "taught" and trusted.title == describe(result, result.report).title


def describe(result: DemoResult, report: Report) -> Lead:
    return describe_demo(report, result.taught_report, result.answer)


def test_a_folder_with_other_videos_is_refused(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "labels.jsonl").write_text('{"file": "mine.mp4"}\n')
    with pytest.raises(StoreError):
        run_demo(tmp_path)
    assert [path.name for path in (tmp_path / "videos").iterdir()] == ["labels.jsonl"]
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        run_demo(tmp_path / "file")


@pytest.mark.slow
@pytest.mark.parametrize(("made", "count"), [("videos/*.mp4", 3), ("taught.teaching/*.npz", 5)])
def test_an_interrupted_demo_resumes(tmp_path: Path, made: str, count: int) -> None:
    """Interrupted while the sample is copied, and while features are extracted."""
    with running([*COMMAND, "demo"], cwd=tmp_path, stderr=subprocess.PIPE) as run:
        while len(list((tmp_path / "demo").glob(made))) < count:
            assert run.poll() is None
            time.sleep(0.005)
        run.send_signal(signal.SIGINT)
        _, stderr = run.communicate()
    assert run.returncode == 130
    assert "interrupted" in stderr and 'File "' not in stderr
    assert not (tmp_path / "demo" / "demo.json").exists()
    assert demerit("demo", cwd=tmp_path).returncode == 0
    assert (tmp_path / "demo" / "demo.json").exists()


def test_a_browser_is_opened_only_where_there_is_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    assert not command.can_open()
    monkeypatch.setenv("DISPLAY", ":0")
    assert command.can_open()
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 22 10.0.0.2 22")
    assert not command.can_open()


def test_the_next_commands_call_the_program_as_this_run_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "demerit"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(program), "demo"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.name_program() == str(program)
    monkeypatch.setenv("PATH", str(program.parent))
    assert command.name_program() == "demerit"
