"""The guide runs as printed."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from demerit.use.serve.server import serve_models
from fakes.paths import REPO
from fakes.served_models import Brightness

TEXT = (REPO / "docs" / "serve.md").read_text("utf-8")


@pytest.mark.slow
def test_the_documentation_runs(make_video: Callable[..., Path], tmp_path: Path) -> None:
    make_video("videos/a.mp4")
    with serve_models([Brightness()]) as free:
        port = free.url.rpartition(":")[2]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1"}
    (bash, python) = re.findall(r"^```(?:bash|python)\n(.*?)^```$", TEXT, flags=re.M | re.S)
    serve, score, curl = (
        bash.replace("8000", port).replace("serve default", f"serve default --port {port}").splitlines()
    )
    (tmp_path / "block.py").write_text(python.replace("8000", port))
    script = f"set -e\n{serve}\ntrap 'kill $!' EXIT\n{score}\n{curl}\necho\npython block.py\n"
    run = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert '"value":[' in run.stdout
    assert run.stdout.splitlines()[-1] == re.findall(r"^print\(.*\)  # (.+)$", python, flags=re.M)[0]


def test_files_that_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (REPO / "docs" / target).exists(), target
