"""The watch command: --once for cron, JSON lines, alarms, and the page of a running watch."""

import json
import os
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from demerit.decide.detector import Detector, Schedule
from demerit.models import load_model
from fakes.command import COMMAND, demerit_here, error_sentence
from fakes.processes import running
from fakes.tiny_video import put_video

NAMED = ("--model", "fakes.named_values:Named")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Six complete videos and one that is no video."""
    for name in range(6):
        os.utime(put_video(tmp_path / "runs" / f"{name}.mp4"), (1e9 + name, 1e9 + name))
    (tmp_path / "runs" / "bad.mp4").write_text("no video")
    os.utime(tmp_path / "runs" / "bad.mp4", (1e9, 1e9))
    return tmp_path / "runs"


def test_once_scores_what_is_there_and_a_second_run_nothing(runs: Path) -> None:
    words = ("watch", runs, "--once", "--model", "clock", "--json", "--metrics", runs.parent / "m.prom")
    first = [json.loads(line) for line in demerit_here(*words).stdout.splitlines()]
    assert {row["id"]: row["value"] for row in first} == {**dict.fromkeys("012345", 1.0), "bad": None}
    assert demerit_here(*words).stdout == ""
    assert "demerit_watch_episodes 7.0\n" in (runs.parent / "m.prom").read_text()
    told = demerit_here("watch", runs, "--once", "--model", "clock").stdout
    assert "Of these 7, watch these 1: bad" in told


def test_cameras_found_by_their_names_are_said_once_and_can_be_turned_off(tmp_path: Path) -> None:
    for name in ("cam_high/0", "cam_low/0", "cam_high/1", "cam_low/1"):
        os.utime(put_video(tmp_path / f"{name}.mp4"), (1e9, 1e9))
    note, off = "2 episodes with the cameras cam_high, cam_low", ("--with", "pair-cameras=false")
    for words in (("watch", "--once", "--json"), ("score", "--json"), ("inspect", "--json")):
        model = () if words[0] == "inspect" else ("--model", "clock")
        run = demerit_here(words[0], tmp_path, *words[1:], *model)
        assert run.stderr.count(note) == 1 and note not in run.stdout
        assert note not in demerit_here(words[0], tmp_path, *words[1:], *model, *off).stderr
    run = demerit_here("inspect", tmp_path, "--json", *off)
    assert json.loads(run.stdout)["episodes"] == 4


def test_an_alarm_is_an_exit_code(runs: Path) -> None:
    words = ("watch", runs, "--once", *NAMED, "--alarm", "success<0.5 over 6", "--exit-on-alarm")
    assert demerit_here(*words, "--instruction", "lift 0.9").returncode == 0
    assert demerit_here(*words, "--instruction", "lift 0.3").returncode == 3
    unknown = ("watch", runs, "--once", "--model", "clock", "--alarm", "success<0.5 over 6", "--exit-on-alarm")
    assert demerit_here(*unknown).returncode == 0  # a model without a threshold says nothing about success


def test_a_detector_judges_with_its_own_model(runs: Path, tmp_path: Path) -> None:
    schedule = Schedule(usual=(0.0, 0.0, 0.9), end=0.9, threshold=0.1, successes=20)
    card = load_model("clock").card
    Detector("clock", card.hash(), 0.0, 1.0, True, 0.05, None, {"": schedule}).save(tmp_path / "detector.json")
    words = ("watch", runs, "--once", "--json", "--detector", tmp_path / "detector.json")
    rows = [json.loads(line) for line in demerit_here(*words).stdout.splitlines()]
    assert {(row["id"], row["success"], row["frame"]) for row in rows} == {
        *((name, False, 2) for name in "012345"),
        ("bad", None, None),
    }
    error_sentence(demerit_here(*words, "--model", "random"))
    text = demerit_here("watch", runs, "--once", "--detector", tmp_path / "detector.json").stdout
    assert "Failure: 100% (95%: 61 to 100), 6 of 6." in text and "Success:" not in text
    refused = error_sentence(demerit_here(*words, "--alarm", "success<0.5 over 6"))
    assert "failure>0.5 over 20" in refused
    alarm = ("--alarm", "failure>0.5 over 6", "--exit-on-alarm")
    assert demerit_here(*words, *alarm).returncode == 3


def test_a_webhook_that_is_down_is_said_and_everything_is_scored(runs: Path) -> None:
    words = ("--alarm", "success<0.5 over 6", "--webhook", "http://127.0.0.1:9/secret", "--instruction", "lift 0.3")
    run = demerit_here("watch", runs, "--once", *NAMED, *words)
    assert run.returncode == 0 and "127.0.0.1: 1 not delivered" in run.stderr and "secret" not in run.stderr
    assert "7 scored now" in run.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["absent"],
        ["runs", "--alarm", "speed<1 over 3"],
        ["runs", "--exit-on-alarm"],
        ["runs", "--webhook", "http://x/"],
        ["runs", "--alarm", "value<1 over 3", "--webhook", "file:///x"],
        ["runs", "--model", "absent"],
    ],
)
def test_bad_input_is_one_sentence(runs: Path, words: list[str]) -> None:
    error_sentence(demerit_here("watch", *words, "--once", cwd=runs.parent))


def test_once_fails_where_nothing_can_be_written(runs: Path) -> None:
    (runs.parent / "file").write_text("in the way")
    run = demerit_here("watch", runs, "--once", "--model", "clock", "--rewards", runs.parent / "file")
    assert run.returncode == 1 and "--rewards" in run.stderr


def test_metrics_that_cannot_be_written_are_said_after_everything_is_scored(runs: Path) -> None:
    run = demerit_here("watch", runs, "--once", "--model", "clock", "--metrics", runs / "0.mp4" / "m.prom")
    assert run.returncode == 1 and "m.prom" in run.stderr
    assert demerit_here("watch", runs, "--once", "--model", "clock", "--json").stdout == ""  # all were scored


@pytest.mark.slow
def test_a_running_watch_shows_a_new_episode(runs: Path) -> None:
    with running([*COMMAND, "watch", str(runs), "--model", "clock", "--port", "0", "--settle", "0"]) as run:
        assert run.stdout is not None
        url = re.search(r"http://\S+", run.stdout.readline())
        assert url is not None
        for _ in range(7):
            run.stdout.readline()
        put_video(runs / "new.mp4")
        assert ": 1.000 unknown: no threshold" in run.stdout.readline()
        with urllib.request.urlopen(f"{url[0]}/metrics") as reply:
            assert "demerit_watch_episodes 8.0\n" in reply.read().decode()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(f"{url[0]}/metrics", headers={"Host": "evil.example"}))
        refused.value.close()
        assert refused.value.code == 421
        run.terminate()
        assert run.wait() == 130  # as Ctrl-C: everything is saved
