"""Every block of the README runs as printed, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import demerit
from demerit.cli import COMMANDS
from demerit.data.video import write_video

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)


def test_it_is_short_and_every_block_has_a_language() -> None:
    assert len(README.splitlines()) <= 80 and len(README.split()) <= 600
    assert {language for language, _ in blocks(README)} <= {"bash", "python", "text"}


def test_files_that_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for script in re.findall(r"benchmarks/\w+\.py", README):
        assert (ROOT / script).exists(), script


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "NO_COLOR": "1"}


def test_commands_of_the_table_exist() -> None:
    rows = [line.split("|")[2] for line in README.splitlines() if line.startswith("| ") and "`" in line]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) > 15
    for name in names:
        assert name in COMMANDS or getattr(demerit, name.removeprefix("demerit."), None), name


def test_the_label_file_is_read(tmp_path: Path) -> None:
    rows = next(block for language, block in blocks(README) if block.startswith("file,instruction"))
    (tmp_path / "labels.csv").write_text(rows)
    for name in re.findall(r"^\w+\.mp4", rows, flags=re.M):
        write_video(tmp_path / name, np.zeros((2, 32, 32, 3), np.uint8), 10.0)
    dataset = demerit.open_dataset(tmp_path)
    assert [episode.outcome.success for episode in dataset if episode.outcome] == [True, False, False]
    assert {episode.instruction for episode in dataset} == {"put the cup on the plate"}


@pytest.mark.slow
@pytest.mark.timeout(900)  # it teaches, with a reader where torch is installed
def test_every_block_runs(tmp_path: Path) -> None:
    python_so_far, output = "", ""
    for language, block in blocks(README):
        if language == "text" and output:  # a part of what the commands above print
            sentences = re.split(r"(?<=[.])\s+|\n(?=[A-Z0-9]|note)", block)
            assert [one for one in sentences if " ".join(one.split()) not in " ".join(output.split())] == []
            output = ""
        elif language == "bash":
            for line in filter(None, (line.split("#")[0].strip() for line in block.splitlines())):
                # What sets itself up is not set up again here: its recipe must exist and make sense.
                command = line.replace("make ", "make -n ", 1) if line.startswith("make ") else line
                folder = ROOT if line.startswith("make ") else tmp_path
                run = subprocess.run(
                    command, shell=True, cwd=folder, env=environment(), capture_output=True, text=True, check=False
                )
                assert run.returncode == 0, f"{line}\n{run.stdout}{run.stderr}"
                if line == "make demo":
                    assert "demerit demo demo" in run.stdout
                    demo = ["demerit", "demo", "demo"]
                    output = subprocess.run(
                        demo, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
                    ).stdout
        elif language == "python":
            python_so_far += block
            run = subprocess.run(
                [sys.executable, "-c", python_so_far],
                cwd=tmp_path,
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode == 0, run.stderr
            assert run.stdout.splitlines() == re.findall(r"^print\(.*\)  # (.+)$", python_so_far, flags=re.M)
