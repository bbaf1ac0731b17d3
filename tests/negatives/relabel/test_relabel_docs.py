"""The blocks of docs/counterfactuals.md run as printed, on a free port."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.paths import REPO

PAGE = (REPO / "docs" / "counterfactuals.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.M | re.S)


@pytest.mark.slow
def test_every_block_runs(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    given = {**os.environ, "PATH": path, "NO_COLOR": "1", "DEMERIT_CHAT_CACHE": str(tmp_path / "answers.sqlite")}
    script = "trap 'kill $!' EXIT\nset -e\n" + "".join(blocks("bash")).replace("8767", port)
    # Its output goes to a file: a pipe would stay open as long as the judge in the background has it.
    with open(tmp_path / "said", "w+") as said:
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=given, stdout=said, stderr=said, timeout=200, check=False
        )
        said.seek(0)
        text = said.read()
    assert done.returncode == 0, text
    assert "2 originals" in text and "labels of 2 originals, 2 originals kept" in text
    assert '"candidates"' in (tmp_path / "counterfactuals" / "relabelled.jsonl").read_text("utf-8")
    for block in blocks("python"):
        subprocess.run([sys.executable, "-c", block], check=True, env=given)
