"""The teach command: real processes, real files, a tiny network, kills and Ctrl-C."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demerit.cli.teach import quote_model
from fakes import lesson_data as data
from fakes.command import demerit_here, error_sentence
from fakes.paths import TESTS
from fakes.tiny_network import make_network

# Teaches slowly and prints its progress: 0.1 s per episode, 0.3 s per fold.
SLOW = """
import sys, time
from fakes.fake_network import FakeNetwork
import demerit
from demerit.training.teach import TeachConfig

class Slow(FakeNetwork):
    def features(self, images, first):
        time.sleep(0.1)
        return super().features(images, first)

def show(stage, done, total):
    print(stage, done, flush=True)
    time.sleep(0.3 if stage.startswith("cross") else 0)

config = TeachConfig(folds=4, rows=8, views=0)
outcome = demerit.teach(sys.argv[1], sys.argv[2], network=Slow(), config=config, workers=0, on_progress=show)
print("STOPPED", outcome.stopped, flush=True)
"""


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data.write_videos(tmp_path_factory.mktemp("lesson") / "squares", 6, 6, blank=4)


def start(videos: Path, out: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SLOW, str(videos), str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def until(run: subprocess.Popen[str], line: str) -> None:
    assert run.stdout is not None
    for found in run.stdout:
        if found.startswith(line):
            return
    raise AssertionError(f"never said {line!r}: {run.stderr.read() if run.stderr else ''}")


def finished(run: subprocess.Popen[str]) -> str:
    out, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    return out


def loads(out: Path) -> bool:
    from demerit.models import load_model
    from fakes.fake_network import FakeNetwork

    model = load_model(str(out), network=FakeNetwork())
    return model.score([data.episode(True, 40)])[0].scored


def test_the_model_argument_can_be_pasted() -> None:
    for folder in (Path("my-model"), Path("models/for monday"), Path("/models/o'clock")):
        (argument,) = shlex.split(quote_model(folder))
        assert Path(argument) == folder and "/" in argument


@pytest.mark.slow
def test_a_killed_run_resumes_and_leaves_a_whole_model(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    lines = ["extracting features 3", "extracting features 8", "cross-validating 1", "cross-validating 3"]
    for line in lines:
        run = start(videos, out)
        until(run, line)
        run.kill()
        run.communicate()
        if (out / "model.json").exists():
            assert loads(out)
    assert len(list((tmp_path / "model.teaching").glob("*.npz"))) >= 12
    assert "STOPPED \n" in finished(start(videos, out))
    assert loads(out) and (out / "report.html").is_file() and not list(out.glob("*.part"))
    for delay in (0.0, 0.3, 0.6):  # now there is a model to replace
        run = start(videos, out)
        until(run, "extracting features 12")
        time.sleep(delay)
        run.kill()
        run.communicate()
        assert loads(out)


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_done(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    run = start(videos, out)
    until(run, "extracting features 8")
    run.send_signal(signal.SIGINT)
    assert "interrupted after" in finished(run) and loads(out)
    facts = json.loads((out / "model.json").read_text())
    assert 7 <= facts["taught_on"]["episodes"] < 12
    assert "interrupted" in facts["lesson"]["stopped"]
    run = start(videos, out)
    until(run, "cross-validating 2")
    run.send_signal(signal.SIGINT)
    assert "only some folds" in finished(run) and loads(out) and (out / "report.html").is_file()
    assert json.loads((out / "model.json").read_text())["taught_on"]["episodes"] == 12


@pytest.mark.slow
def test_the_documentation_runs(videos: Path, tmp_path: Path) -> None:
    """The first and the last block of docs/teaching.md, with a tiny network; the others need signals."""
    text = (TESTS.parent / "docs" / "teaching.md").read_text("utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)
    assert [language for language, _ in found] == ["bash", "bash", "text", "python"]
    network = make_network(tmp_path / "network", kind=None)
    patched = (
        "from pathlib import Path; from demerit.models.compact.engine import Engine; "
        f"Engine.load_shipped = classmethod(lambda cls, threads=None: cls.load(Path({str(network)!r}))); "
    )
    for name in ("my_videos", "new_episodes"):
        (tmp_path / name).symlink_to(videos)
    for line in found[0][1].splitlines():
        code = f"{patched}import sys; sys.argv = {line.split()!r}; from demerit.cli import main; main()"
        run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
    code = patched + "\n" + found[-1][1]
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[1].startswith("auroc: ")


def test_teach_then_score_recompute_and_bench(videos: Path, tmp_path: Path) -> None:
    network = make_network(tmp_path / "network", kind=None)
    run = demerit_here("teach", videos, "-o", "mine", "--network", network, "--risk", "0.2", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "--model ./mine" in run.stdout
    scored = demerit_here("score", videos, "--model", f"./mine:{network}", "--rewards", "rewards", cwd=tmp_path)
    assert "mine: 16 scored" in scored.stdout, scored.stdout + scored.stderr
    again = demerit_here("teach", videos, "-o", "mine", "--network", network, "--json", cwd=tmp_path)
    facts = json.loads(again.stdout)
    assert facts["calibration"]["failures"] == 6
    assert facts["label next"]
    assert all(f"{one['episode']}: " in run.stdout and one["video"] in run.stdout for one in facts["label next"][:5])
    assert demerit_here("bench", "--recompute", "mine/report.json", cwd=tmp_path).returncode == 0
    bench = ("bench", "own", "--data", videos, "-m", f"./mine:{network}", "--set", "as-recorded=true", "--limit", "6",
             "--set", "resamples=50")  # fmt: skip
    assert demerit_here(*bench, cwd=tmp_path).returncode == 1  # its own training set
    benched = demerit_here(*bench, "--set", "include-seen=true", cwd=tmp_path)
    assert benched.returncode == 0, benched.stderr


def test_wrong_arguments_are_one_sentence(videos: Path, tmp_path: Path) -> None:
    network = make_network(tmp_path / "network", kind=None)
    for arguments, word in (
        (("nowhere",), "exist"),
        ((videos, "--risk", "2"), "risk"),
        ((videos, "--camera", "top"), "main"),
    ):
        run = demerit_here("teach", *arguments, "-o", "new", "--network", network, cwd=tmp_path)
        assert word in error_sentence(run)
