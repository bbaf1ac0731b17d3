"""After a kill at any moment, nothing reported as durable is lost, and the same command resumes."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demerit.data.formats import open_dataset
from demerit.models import load_model
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, score
from fakes.paths import TESTS
from fakes.processes import running

KILLER = TESTS / "fakes" / "kill_imports.py"


@pytest.fixture(scope="module")
def many_videos(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough files that an import takes a while."""
    folder = tmp_path_factory.mktemp("many") / "videos"
    folder.mkdir()
    clips = sorted(sample.glob("*.mp4"))
    for i in range(120):
        shutil.copyfile(clips[i % len(clips)], folder / f"clip-{i:03d}.mp4")
    return folder


# A whole import takes about two seconds, so most kills hit one.
@pytest.mark.parametrize(
    ("mode", "kills"),
    [
        ("in place", 8),
        pytest.param("in place", 40, marks=pytest.mark.slow),
        pytest.param("copy", 30, marks=pytest.mark.slow),
    ],
)
def test_kill_at_random_moments(many_videos: Path, tmp_path: Path, mode: str, kills: int) -> None:
    command = [sys.executable, KILLER, f"videos:{many_videos}", tmp_path / "set", str(kills), "0.15", mode]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(run.stdout)
    assert "lost" not in result, result
    assert result["killed"] > kills / 4, "the kills must hit running imports"
    assert 0 < result["before_last"] <= 120
    assert result["last"] == 0, result
    assert result["there"] == result["distinct"] == 120
    assert result["left"] == []


SLOW_SCORE = """
import time, sys
from demerit import open_dataset, load_model; from demerit.models import score as job
from pathlib import Path
job.COMMIT_SECONDS = 0.0
model = load_model("clock")
fast = model.score
def slow(episodes):
    print("one more", flush=True)
    time.sleep(0.03)
    return fast(episodes)
model.score = slow
print("ready", flush=True)
job.score(job.ScoreJob(model, open_dataset(sys.argv[1]), Path(sys.argv[2]), batch=1, workers=0))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_scoring_resumes(many_videos: Path, tmp_path: Path, how: signal.Signals) -> None:
    out = tmp_path / "rewards"
    done: list[int] = []
    for count in (5, 15, 10):
        command = [sys.executable, "-c", SLOW_SCORE, f"videos:{many_videos}", str(out)]
        with running(command, stderr=subprocess.DEVNULL) as run:
            assert run.stdout is not None
            for _ in range(1 + count):
                assert run.stdout.readline()
            time.sleep(0.02)
            run.send_signal(how)
            run.wait()
        done.append(len(RewardStore(out)))
    assert 0 < done[0] <= done[1] <= done[2] < 120
    assert done[2] > done[0]
    model = load_model("clock")
    rest = score(ScoreJob(model, open_dataset(f"videos:{many_videos}"), out, workers=0))
    assert rest.kept == done[2]
    assert rest.scored == 120 - done[2]
    assert len(RewardStore(out)) == len(list(RewardStore(out))) == 120
