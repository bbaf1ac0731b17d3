"""The file of answers: several processes, kill -9, Ctrl-C, damage."""

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demerit.errors import StoreError
from demerit.llm.budget import AnswerCache, StoredAnswer
from fakes.chat_server import Faults, Request, ScriptedServer

ANSWER = StoredAnswer("text", "stop", "", 3, 4, False)
ASKER = """
import sys
from pathlib import Path
from demerit.llm import ChatClient, ChatRequest, Endpoint, Message

url, cache, first, last, concurrency = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
with ChatClient(Endpoint(url, "simulated", key_env=""), cache, concurrency=concurrency) as client:
    for _, response in client.ask_all(ChatRequest((Message.user(f"question {i}"),)) for i in range(first, last)):
        print(response.text or response.why_not, flush=True)
"""


def echo(request: Request) -> str:
    return f"answer to {request.text}"


def start_asking(url: str, cache: Path, last: int, concurrency: int = 8) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ASKER, url, str(cache), "0", str(last), str(concurrency)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stored_texts(path: Path) -> set[str]:
    """Check the file with SQLite's own check and return its answers."""
    db = sqlite3.connect(path)
    try:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return {row[0] for row in db.execute("SELECT text FROM answers")}
    finally:
        db.close()


def test_the_first_answer_stays(tmp_path: Path) -> None:
    first, second = AnswerCache(tmp_path / "deep" / "c.sqlite"), AnswerCache(tmp_path / "deep" / "c.sqlite")
    first.put("k", ANSWER, "m", 0.1, "")
    second.put("k", StoredAnswer("other", "stop", "", 0, 0, True), "m", None, "")
    assert first.get("k") == second.get("k") == ANSWER and len(second) == 1 and second.get("other") is None
    first.close()
    assert first.get("k") == ANSWER, "it opens again"
    first.close(), second.close()


def test_files_of_older_versions_are_read(tmp_path: Path) -> None:
    """They have two more tables, and their answers are still paid for."""
    columns = "key TEXT PRIMARY KEY, model TEXT NOT NULL, text TEXT NOT NULL, finish TEXT NOT NULL, refusal TEXT"
    columns += " NOT NULL, tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, estimated INTEGER NOT NULL"
    with sqlite3.connect(tmp_path / "c.sqlite") as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"CREATE TABLE answers ({columns}, cost REAL, tag TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID")
        db.execute("CREATE TABLE claims (key TEXT PRIMARY KEY)")
        db.execute("CREATE TABLE dialects (endpoint TEXT PRIMARY KEY)")
        db.execute("INSERT INTO answers VALUES ('k', 'm', 'text', 'stop', '', 3, 4, 0, 0.1, '', 0.0)")
        db.execute("PRAGMA user_version = 1")
    db.close()
    cache = AnswerCache(tmp_path / "c.sqlite")
    assert cache.get("k") == ANSWER
    cache.put("j", ANSWER, "m", None, "")
    assert len(cache) == 2
    cache.close()


def test_files_that_are_not_a_cache_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"this is not a database" * 50)
    for name, command in (("other", "CREATE TABLE mine (a)"), ("newer", "PRAGMA user_version = 9")):
        db = sqlite3.connect(tmp_path / name)
        db.execute(command)
        db.close()
    for path in ("text", "other", "newer", "text/c.sqlite"):
        with pytest.raises(StoreError) as caught:
            AnswerCache(tmp_path / path)
        assert caught.value.path == str(tmp_path / path)


@pytest.mark.slow
def test_several_processes_share_a_file(tmp_path: Path) -> None:
    with ScriptedServer(echo, Faults({"500": 0.1}), latency=0.02) as server:
        runs = [start_asking(server.url, tmp_path / "c.sqlite", 40) for _ in range(3)]
        outputs = [run.communicate() for run in runs]
    wanted = {f"answer to question {i}" for i in range(40)}
    for run, (out, err) in zip(runs, outputs, strict=True):
        assert run.returncode == 0, err
        assert set(out.split("\n")) == {"", *wanted}
    assert stored_texts(tmp_path / "c.sqlite") == wanted


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_was_reported_is_never_bought_again(tmp_path: Path, how: signal.Signals) -> None:
    rng, path, reported = random.Random(0), tmp_path / "c.sqlite", set[str]()
    kills, concurrency = 2, 8
    with ScriptedServer(echo, latency=0.02) as server:
        for _ in range(kills):
            run = start_asking(server.url, path, 1500, concurrency)
            before = server.billed.total()
            while server.billed.total() < before + 3 and run.poll() is None:
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.3))
            run.send_signal(how)
            out, err = run.communicate()
            assert run.returncode != 0, "it must be hit at work"
            # The last line may be half written; the answer behind it is not.
            reported |= {line for line in out.split("\n")[:-1] if line}
            assert reported <= stored_texts(path)
            assert how == signal.SIGKILL or "KeyboardInterrupt" in err
        assert reported
        out, err = start_asking(server.url, path, 100, concurrency).communicate()
        assert {f"answer to question {i}" for i in range(100)} <= stored_texts(path), err
        twice = sum(count - 1 for count in server.billed.values())
        # Ctrl-C waits for what is paid for; kill -9 loses at most what was in flight.
        assert twice <= (0 if how == signal.SIGINT else kills * concurrency)
