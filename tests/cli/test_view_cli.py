"""demerit view as a process: it prints its address, answers, and ends cleanly."""

import json
import os
import signal
import subprocess
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from demerit.web.server import WebServer, make_app
from fakes.command import COMMAND, demerit_here, error_sentence
from fakes.viewed_dataset import make_viewed


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_scores_what_is_missing_serves_and_ends(stop: signal.Signals, tmp_path: Path) -> None:
    make_viewed(tmp_path / "set", 3)
    (tmp_path / "temp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temp"), "PYTHONUNBUFFERED": "1"}
    arguments = ["view", str(tmp_path / "set"), "--model", "constant", "--no-browser", "--port", "0"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "http://" in line)
        url = line[line.index("http://") :].split()[0]
        found = json.load(urllib.request.urlopen(f"{url}/index.json", timeout=60))
        assert [model["name"] for model in found["models"]] == ["careful", "eager", "clock", "constant"]
        assert found["final"][3][:2] == [0.5, 0.5]
        assert urllib.request.urlopen(f"{url}/media/1.mp4", timeout=60).read(12)[4:8] == b"ftyp"
        process.send_signal(stop)
        assert process.wait(30) == 0
    assert not list((tmp_path / "temp").iterdir())


def test_taken_port_and_no_dataset_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_viewed(tmp_path / "set", 3)
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    with WebServer(make_app([])) as other:
        port = other.url.rpartition(":")[2]
        sentence = error_sentence(demerit_here("view", tmp_path / "set", "--port", port))
        assert port in sentence and "--port 0" in sentence
    error_sentence(demerit_here("view", tmp_path / "nothing", "--port", "0"))
    assert not opened
