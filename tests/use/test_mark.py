"""Marks while a robot runs: real keys in a terminal, a real server, logs that survive kill -9."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demerit.cli.renamed import translate_words
from demerit.data.formats.marks import read_log
from demerit.errors import BadInput, WriteError
from demerit.use.mark import KEYS, REPEAT, KeyReader, MarkLog, mark_app
from demerit.web.server import WebServer
from fakes.command import COMMAND, demerit_here, error_sentence
from fakes.processes import running
from fakes.terminal import Terminal, in_terminal

TOKEN = "a token of some length"
RECORDER = """
import signal, sys, time
ints = []
signal.signal(signal.SIGINT, lambda *_: ints.append(1))
print("recording", len(sys.stdin.read()), *sys.argv[1:], flush=True)
while not ints:
    time.sleep(0.01)
time.sleep(0.2)  # a second Ctrl-C would have come by now
print("stopped", len(ints), flush=True)
sys.exit(7)
"""


def words_of(log: Path) -> list[str]:
    return [json.loads(line)["mark"] for line in log.read_text().splitlines()]


def run_mark(cwd: Path, *words: str):
    return in_terminal([*COMMAND, "mark", *words], cwd=cwd, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"})


def press(terminal: Terminal, key: str) -> None:
    terminal.type(key)
    terminal.read_until(f": {KEYS[key]} (")


# In a terminal


def test_keys_become_marks_and_the_terminal_is_as_before(tmp_path: Path) -> None:
    with run_mark(tmp_path, "--name", "Ada") as terminal:
        before = terminal.modes()
        terminal.read_until("u undo")
        terminal.type("x\x1b[C\x1bOSS")  # unknown, arrow right, F4, then an s with caps lock
        assert "1 success" in terminal.read_until("; last: success)")
        for key in "fu r":
            press(terminal, key)
        terminal.read_until("; last: success event retake)")
        terminal.type("\x03")
        assert terminal.wait() == 0 and terminal.modes() == before
    log = tmp_path / "marks.jsonl"
    assert words_of(log) == ["success", "failure", "undo", "event", "retake"]
    marks, problems = read_log(log)
    assert [(mark.word, mark.by) for mark in marks] == [("success", "Ada"), ("event", "Ada"), ("retake", "Ada")]
    assert not problems


def test_a_command_keeps_its_output_and_its_exit_code_and_gets_ctrl_c_once(tmp_path: Path) -> None:
    words = ["--log", "a.jsonl", "--while", sys.executable, "-c", RECORDER, "--name", "--threshold", "--while"]
    with run_mark(tmp_path, *words) as terminal:
        terminal.read_until("u undo")
        # its stdin is empty, its words are its own, and stdout has no word of ours
        assert terminal.run.stdout.readline() == "recording 0 --name --threshold --while\n"
        press(terminal, "s")
        terminal.type("q")  # nothing, while the command runs
        press(terminal, "f")
        terminal.type("\x03")
        assert terminal.run.stdout.read() == "stopped 1\n"
        assert terminal.wait() == 7
    assert words_of(tmp_path / "a.jsonl") == ["success", "failure"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_command_and_its_death_is_the_exit_code(tmp_path: Path, number: signal.Signals) -> None:
    code = "import time; print('recording', flush=True); time.sleep(600)"
    with run_mark(tmp_path, "--while", sys.executable, "-c", code) as terminal:
        assert terminal.run.stdout.readline() == "recording\n"
        terminal.run.send_signal(number)
        assert terminal.wait() == 128 + number


def test_the_last_verdict_is_waited_for_when_the_command_has_ended(tmp_path: Path) -> None:
    with run_mark(tmp_path, "--while", sys.executable, "-c", "raise SystemExit(3)") as terminal:
        terminal.read_until("exit code 3")
        press(terminal, "f")
        terminal.type("q")
        assert terminal.wait() == 3
    assert words_of(tmp_path / "marks.jsonl") == ["failure"]


def test_kill_9_loses_no_press_that_was_shown_and_ends_no_recorder(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with run_mark(tmp_path, "--while", sys.executable, "-c", code) as terminal:
        recorder = int(terminal.run.stdout.readline())
        try:
            for key in "sf r":
                press(terminal, key)
            terminal.run.kill()
            terminal.wait()
            os.kill(recorder, 0)  # it is there
        finally:
            os.kill(recorder, signal.SIGKILL)
    assert words_of(tmp_path / "marks.jsonl") == ["success", "failure", "event", "retake"]


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_at_most_the_press_that_was_being_written(tmp_path: Path) -> None:
    rng, log, keys = random.Random(0), tmp_path / "marks.jsonl", "sf r" * 5
    for turn in range(10):
        before = read_log(log)[0] if log.exists() else []
        with run_mark(tmp_path) as terminal:
            terminal.read_until("u undo")
            terminal.type(keys)
            shown = rng.randrange(1, len(keys))
            for key in keys[:shown]:
                terminal.read_until(f": {KEYS[key]} (")
            terminal.run.kill()
            terminal.wait()
        marks, problems = read_log(log)
        added = [mark.word for mark in marks[len(before) :]]
        assert marks[: len(before)] == before and len(problems) <= turn + 1
        assert len(added) >= shown and added == [KEYS[key] for key in keys[: len(added)]]


def test_what_cannot_be_done_is_one_sentence_and_touches_no_file(tmp_path: Path) -> None:
    (tmp_path / "labels.jsonl").write_text('{"file": "a.mp4", "success": true}\n')
    with running([*COMMAND, "mark"], cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        said = run.communicate(timeout=120)[1]
        assert run.returncode == 1 and said.startswith("demerit: ") and said.count("\n") == 1
    logs = (["--log", name] for name in ("marks.csv", "labels.jsonl", "no/marks.jsonl"))
    for words in (["ls"], ["--while"], ["--host", "0.0.0.0"], ["--name", "x" * 99], *logs):
        error_sentence(demerit_here("mark", "--port", "0", *words, cwd=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["labels.jsonl"]
    assert (tmp_path / "labels.jsonl").read_text().count("\n") == 1
    said = demerit_here("mark", "--port", "0", "--while", "no-such-recorder", cwd=tmp_path)
    assert said.returncode == 1 and "no-such-recorder" in said.stderr.splitlines()[-1]


def test_the_words_of_the_command_are_not_taken_for_old_spellings() -> None:
    words = ["mark", "--while", "record", "--threshold", "1", "--cameras", "a,b"]
    assert translate_words(words, pytest.fail) == words


# Keys


@given(st.binary(max_size=30))
def test_any_bytes_are_keys_and_no_escape_sequence_is(content: bytes) -> None:
    keys = list(KeyReader().read(content, 0.0))
    assert all(len(key) == 1 and key == key.lower() for key in keys)
    assert not list(KeyReader().read(b"\x1b[1;5C\x1bOS\x1bs\x1b[F\x1b[15~\x1b", 0.0))


@given(st.lists(st.tuples(st.sampled_from("sfu"), st.floats(0, 2)), max_size=20))
def test_a_key_that_is_held_down_counts_once(presses: list[tuple[str, float]]) -> None:
    reader, now, last, expected, found = KeyReader(), 100.0, ("", 0.0), [], []
    for key, pause in presses:
        now += pause
        if key != last[0] or now - last[1] >= REPEAT:
            expected.append(key)
        last = (key, now)
        found += reader.read(key.encode(), now)
    assert found == expected


# The log


def test_a_log_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "marks.jsonl"
    first = MarkLog(path, "Ada")
    assert first.add("undo") is None and first.add("success") and first.add("failure")
    path.write_bytes(path.read_bytes()[:-20])
    shown = []
    second = MarkLog(path, "Bo", shown.append)
    assert second.add("undo") is None  # it reaches only its own run
    second.add("retake", "Cy")
    assert second.add("undo") is None  # Cy's
    second.add("event")
    marks, problems = read_log(path)
    assert [(mark.word, mark.by) for mark in marks] == [("success", "Ada"), ("retake", "Cy"), ("event", "Bo")]
    assert [problem.kind for problem in problems] == ["malformed line"]
    assert shown == second.marks == marks[1:]


def test_a_full_disk_is_said_and_nothing_counts_as_marked(tmp_path: Path) -> None:
    path = tmp_path / "marks.jsonl"
    path.symlink_to("/dev/full")
    log = MarkLog(path, "Ada")
    with pytest.raises(WriteError):
        log.add("success")
    assert log.marks == []
    with WebServer(mark_app(log, None)) as server:
        assert httpx.post(f"{server.url}/mark", json={"mark": "success"}).status_code == 507


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        MarkLog(tmp_path / "marks.jsonl", "x" * 100)


# HTTP


def test_http_calls_are_marks(tmp_path: Path) -> None:
    log = MarkLog(tmp_path / "marks.jsonl", "Ada")
    with WebServer(mark_app(log, None)) as server, httpx.Client(base_url=server.url) as client:
        answer = client.post("/mark", json={"mark": "failure"})
        assert answer.status_code == 200 and answer.json()["mark"] == "failure" and answer.json()["by"] == "Ada"
        assert client.post("/mark", json={"mark": "success", "by": "Bo"}).json()["by"] == "Bo"
        assert client.post("/mark", json={"mark": "undo"}).status_code == 200
        refused = {
            409: {"json": {"mark": "undo"}},
            400: {"json": {"mark": "sucess"}},
            415: {"content": '{"mark": "success"}', "headers": {"Content-Type": "text/plain"}},
            413: {"json": {"mark": "success", "by": "x" * 5000}},
            421: {"json": {"mark": "success"}, "headers": {"Host": "evil.example"}},
        }
        for status, request in refused.items():
            answer = client.post("/mark", **request)
            assert answer.status_code == status and answer.json()["error"]
        for body in (b"", b"[]", b"\xff", b"[" * 4000):
            sent = client.post("/mark", content=body, headers={"Content-Type": "application/json"})
            assert sent.status_code == 400
        assert client.get("/mark").status_code == 405
    assert [(mark.word, mark.by) for mark in read_log(log.path)[0]] == [("success", "Bo")]


def test_a_token_is_demanded_if_there_is_one(tmp_path: Path) -> None:
    log = MarkLog(tmp_path / "marks.jsonl", "Ada")
    with WebServer(mark_app(log, TOKEN), names=None, has_token=True) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert httpx.post(f"{server.url}/mark", json={"mark": "success"}, headers=headers).status_code == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert httpx.post(f"{server.url}/mark", json={"mark": "success"}, headers=right).status_code == 200
    assert len(log.marks) == 1


def test_the_server_of_the_command_runs_beside_the_recorder(tmp_path: Path) -> None:
    command = [*COMMAND, "mark", "--port", "0", "--while", sys.executable, "-c", RECORDER]
    with running(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as run:
        address = next(found[1] for line in run.stderr if (found := re.search(r"POST (http\S+)", line)))
        assert run.stdout.readline().startswith("recording 0")
        assert httpx.post(address, json={"mark": "success"}).status_code == 200
        run.send_signal(signal.SIGINT)
        assert run.stdout.read() == "stopped 1\n" and run.wait(120) == 7
    assert words_of(tmp_path / "marks.jsonl") == ["success"]
