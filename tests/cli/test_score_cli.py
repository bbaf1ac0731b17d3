"""The score command: what it reads, prints and writes."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demerit import Reward, RewardStore, load_model
from demerit.models.score_summary import ScoreSummary, ShownEpisode, match_scores
from fakes.command import COMMAND, demerit_here, error_sentence


@pytest.fixture
def folder(tmp_path: Path, sample: Path) -> Path:
    shutil.copytree(sample, tmp_path / "blocks")
    (tmp_path / "bare").mkdir()
    for video in sorted(sample.rglob("*.mp4"))[:2]:
        shutil.copy(video, tmp_path / "bare" / video.name)
    for name in ("broken", "torn"):
        (tmp_path / "bare" / f"{name}.mp4").write_text("no video")
    return tmp_path


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_json_and_csv(folder: Path) -> None:
    run = demerit_here("score", "blocks", "bare", "-m", "change", "--json", "--csv", "new/scores.csv", cwd=folder)
    (found,) = json.loads(run.stdout)["models"]
    assert (found["model"], found["episodes"]) == ("change", 19)
    assert [(row["episodes"], row["ids"]) for row in found["unscored"]] == [(2, ["broken", "torn"])]
    rows = read_csv(folder / "new" / "scores.csv")
    stored = {(path, reward.episode): reward for path in found["rewards"] for reward in RewardStore(path)}
    finals = sorted((reward.final, key[1]) for key, reward in stored.items() if reward.scored)
    assert len(stored) == len(rows) == 19 and len(finals) == 17
    assert found["final"]["mean"] == pytest.approx(sum(value for value, _ in finals) / 17)
    assert found["final"]["median"] == pytest.approx(finals[8][0])
    assert found["worst"] == [id for _, id in finals[:5]]
    assert found["success_rate"] is None
    failed = sorted((float(row["final"]), row["id"]) for row in rows if row["label"] == "failure")
    assert len(failed) > 5 and found["highest_failures"] == [id for _, id in failed[:-6:-1]]
    for row in rows:
        place = next(path for path in found["rewards"] if f"{row['dataset'].partition(':')[2]}.demerit" in path)
        reward = stored[place, row["id"]]
        assert row["final"] == (str(reward.final) if reward.scored else "")
        assert row["max"] == (str(float(reward.value.max())) if reward.scored else "")
        assert bool(row["unscored"]) is not reward.scored
        assert (row["label"] in ("success", "failure")) is row["dataset"].endswith("blocks")


def test_a_table_is_complete_where_nobody_reads_what_is_printed(folder: Path) -> None:
    """As in `demerit score ... --csv scores.csv | head -1`, whose reader leaves early."""
    read, write = os.pipe()
    os.close(read)
    words = [*COMMAND, "score", "blocks", "-m", "clock", "-m", "constant", "--workers", "0", "--csv", "scores.csv"]
    run = subprocess.run(words, cwd=folder, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (run.returncode, run.stderr) == (0, "") and len(read_csv(folder / "scores.csv")) == 30


def test_the_table_covers_the_episodes_of_the_call(folder: Path) -> None:
    """Rewards of a folder and of its videos are in one place; a second run prints the kept ones too."""
    first, second = sorted(path.name for path in (folder / "bare").glob("*.mp4") if path.stem not in ("broken", "torn"))
    one = ["score", f"bare/{first}", "-m", "clock", "--instruction", "stack", "--json"]
    assert json.loads(demerit_here(*one, cwd=folder).stdout)["models"][0]["episodes"] == 1
    both = json.loads(demerit_here(*one, f"bare/{second}", cwd=folder).stdout)["models"][0]
    assert [row["instruction"] for row in both["scores"]] == ["stack"] * 2
    assert both["rewards"] == [str((folder / "bare.demerit" / "rewards" / "clock").resolve())]
    assert [reward.episode for reward in RewardStore(both["rewards"][0])] == [Path(first).stem, Path(second).stem]
    assert json.loads(demerit_here(*one, cwd=folder).stdout)["models"][0]["episodes"] == 1
    assert len(RewardStore(both["rewards"][0])) == 2


def test_success_as_the_model_says_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "judge.py").write_text(
        "from dataclasses import replace\n"
        "from demerit.models.baselines import Clock\n"
        "class Judge(Clock):\n"
        "    def score(self, episodes):\n"
        "        rewards = super().score(episodes)\n"
        "        return [replace(r, given={'succeeds': r.episode.startswith('drops')}) for r in rewards]\n"
    )
    monkeypatch.syspath_prepend(folder)
    run = demerit_here("score", "blocks", "-m", "judge:Judge", "--json", cwd=folder)
    (found,) = json.loads(run.stdout)["models"]
    called = [row for row in found["scores"] if row["success"]]
    assert found["success_rate"] == pytest.approx(len(called) / 15) and called


def test_the_number_behind_a_verdict_is_shown(folder: Path) -> None:
    assert "p(success)" not in demerit_here("score", "blocks", "-m", "clock", "--limit", "2", cwd=folder).stdout
    assert "p(success)" in demerit_here("score", "blocks", "-m", "default", "--limit", "2", cwd=folder).stdout


def test_one_reason_for_several_episodes_is_counted_once() -> None:
    reasons = [
        "Episode 'a': expected the camera 'left', got none.",
        "Episode 'b': expected the camera 'left', got none.",
    ]
    reasons += ["/x/c.mp4: cannot be decoded", "/y/d.mp4: cannot be decoded"]
    rewards = [Reward.unscored("m", id, reason) for id, reason in zip("abcd", reasons, strict=True)]
    rows = match_scores(rewards, {id: ShownEpisode("push") for id in "abcd"}, "videos:x")
    assert ScoreSummary(load_model("clock").card, rows).reasons() == {
        "expected the camera 'left', got none": ["a", "b"],
        "cannot be decoded": ["c", "d"],
    }


def test_episodes_that_the_model_learned_from_are_marked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pupil.py").write_text(
        "from demerit import open_dataset\n"
        "from demerit.data.splits import SeenEpisodes\n"
        "from demerit.models.baselines import Clock\n"
        "class Pupil(Clock):\n"
        f"    seen = SeenEpisodes.of(open_dataset({str(folder / 'blocks')!r})[:4])\n"
    )
    monkeypatch.syspath_prepend(folder)
    run = demerit_here("score", "blocks", "-m", "pupil:Pupil", "--json", "--csv", "scores.csv", cwd=folder)
    assert json.loads(run.stdout)["models"][0]["taught"] == 4
    assert [row["taught"] for row in read_csv(folder / "scores.csv")] == ["True"] * 4 + ["False"] * 11
    assert "4 of 15" in demerit_here("score", "blocks", "-m", "pupil:Pupil", cwd=folder).stdout


def test_a_table_of_an_earlier_version_is_replaced(folder: Path) -> None:
    table = folder / "scores.csv"
    table.write_text("model,dataset,id,instruction,label,label_source,final,max,success,success_probability,unscored\n")
    assert demerit_here("score", "blocks", "-m", "clock", "--csv", table, cwd=folder).returncode == 0
    assert len(read_csv(table)) == 15


def test_datasets_of_one_name_with_out(folder: Path) -> None:
    shutil.copytree(folder / "bare", folder / "x" / "bare")
    run = demerit_here("score", "bare", "x/bare", "-m", "clock", "--rewards", "r", "--json", "--limit", "5", cwd=folder)
    (found,) = json.loads(run.stdout)["models"]
    assert found["episodes"] == 5
    assert len(set(found["rewards"])) == 2 and all(Path(path).is_relative_to(folder / "r") for path in found["rewards"])


def test_a_folder_whose_videos_are_all_refused_is_an_error(folder: Path) -> None:
    (folder / "linked").mkdir()
    (folder / "linked" / "away.mp4").symlink_to(next((folder / "blocks").rglob("*.mp4")))
    run = demerit_here("score", "linked", "--model", "clock", cwd=folder)
    assert run.returncode == 1 and "expected an episode to score, got none" in run.stderr
    assert "path leaves the folder" in run.stdout and "0 success" not in run.stdout


def test_the_default_model_needs_no_option(folder: Path) -> None:
    video = next(path for path in sorted((folder / "bare").glob("*.mp4")) if path.stem != "broken")
    run = demerit_here("score", video, "--json", "--workers", "0", cwd=folder)
    assert json.loads(run.stdout)["models"][0]["model"] == "default"


def test_nothing_of_the_user_is_overwritten(folder: Path) -> None:
    labels = folder / "blocks.csv"
    labels.write_text("file,success\na.mp4,true\n")
    assert "blocks.csv" in error_sentence(
        demerit_here("score", "blocks", "-m", "clock", "--csv", "blocks.csv", cwd=folder)
    )
    assert labels.read_text() == "file,success\na.mp4,true\n" and not (folder / "blocks.demerit").exists()
    for _ in range(2):  # its own file may be written again
        assert demerit_here("score", "blocks", "-m", "clock", "--csv", "scores.csv", cwd=folder).returncode == 0
    assert len(read_csv(folder / "scores.csv")) == 15
    assert "--model default" in error_sentence(demerit_here("score", "default", "blocks", cwd=folder))


INTERRUPT = """
import os, signal, sys
from demerit.models import baselines
class Stops(baselines.Clock):
    seen = 0
    def score(self, episodes):
        Stops.seen += 1
        if Stops.seen == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return super().score(episodes)
baselines.Clock = Stops
from demerit.cli import main
main()
"""


def test_ctrl_c_keeps_what_was_scored(folder: Path) -> None:
    command = [sys.executable, "-c", INTERRUPT, "score", "blocks", "-m", "clock", "--batch", "2"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 130 and "Traceback" not in run.stderr
    kept = len(RewardStore(folder / "blocks.demerit" / "rewards" / "clock"))
    assert kept == 4 and "resume" in run.stderr
    assert "4 were scored already" in demerit_here("score", "blocks", "-m", "clock", cwd=folder).stdout


def test_ctrl_c_while_a_pool_starts_a_thread_ends_the_program(folder: Path) -> None:
    """The thread is running and its pool does not know it: nobody tells it to end."""
    starts = """
import threading
from concurrent.futures import ThreadPoolExecutor
from demerit.models import baselines
start, pool = threading.Thread.start, ThreadPoolExecutor(1)
def start_interrupted(thread):
    start(thread)
    raise KeyboardInterrupt
class Stops(baselines.Clock):
    def score(self, episodes):
        threading.Thread.start = start_interrupted
        return pool.submit(list, episodes).result()
baselines.Clock = Stops
from demerit.cli import main
main()
"""
    command = [sys.executable, "-c", starts, "score", "blocks", "-m", "clock"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 130 and "interrupted" in run.stderr and "Traceback" not in run.stderr
