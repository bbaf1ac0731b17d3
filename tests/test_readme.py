"""Every block of the README runs as printed, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)


def test_it_is_short_and_every_block_has_a_language() -> None:
    assert len(README.splitlines()) <= 120
    assert {language for language, _ in blocks(README)} <= {"bash", "python", "text"}


def test_files_that_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for script in re.findall(r"benchmarks/\w+\.py", README):
        assert (ROOT / script).exists(), script


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "NO_COLOR": "1"}


@pytest.mark.slow
def test_every_block_runs(tmp_path: Path) -> None:
    python_so_far = ""
    for language, block in blocks(README):
        if language == "bash":
            for line in filter(None, (line.split("#")[0].strip() for line in block.splitlines())):
                # What sets itself up is not set up again here: its recipe must exist and make sense.
                command = line.replace("make ", "make -n ", 1) if line.startswith("make ") else line
                folder = ROOT if line.startswith("make ") else tmp_path
                run = subprocess.run(
                    command, shell=True, cwd=folder, env=environment(), capture_output=True, text=True, check=False
                )
                assert run.returncode == 0, f"{line}\n{run.stdout}{run.stderr}"
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
