"""The guide runs as printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from demerit.web.server import WebServer, make_app
from fakes.paths import REPO

TEXT = (REPO / "docs" / "view.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("finished_demo")
def test_the_documentation_runs(tmp_path: Path) -> None:
    with WebServer(make_app([])) as free:
        port = free.url.rpartition(":")[2]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    found = re.findall(r"^```(bash|python)\n(.*?)^```$", TEXT, flags=re.M | re.S)
    bash, python = ("".join(code for name, code in found if name == kind) for kind in ("bash", "python"))
    lines = bash.replace("8010", port).replace("--no-browser &", f"--no-browser --port {port} > said.txt &")
    lines = re.sub(
        r"(view .*&).*\n",
        r"\1\ntrap 'kill $!' EXIT\nuntil grep -q http said.txt; do kill -0 $!; sleep 0.2; done\n",
        lines,
    )
    (tmp_path / "block.py").write_text(python)
    script = f"set -e\n{lines}python block.py\n"
    run = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == re.findall(r"^ *print\(.*\)  # (.+)$", python, flags=re.M)[0]
    index, episode = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("index", "episode"))
    assert len(index["id"]) == 16 and len(index["models"]) == 2
    assert episode["episode"]["id"] == index["id"][3] and episode["curves"]["events"] is not None
    assert (tmp_path / "last_frame.jpg").read_bytes()[:2] == b"\xff\xd8"
    assert (tmp_path / "my_page" / "index.html").is_file()
    assert len(list((tmp_path / "my_videos").glob("*.mp4"))) == 16
