"""The file of answers: several processes, kill -9, Ctrl-C, damage."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demerit.errors import StoreError
from demerit.llm import ChatClient, ChatRequest, Endpoint, Message
from demerit.llm import cache as cache_module
from demerit.llm.cache import Cache, Reply
from fakes.judge.faults import Faults
from fakes.judge.server import Request, ScriptedServer

REPLY = Reply("text", "stop", "", 3, 4, False)

ASKER = """
import sys
from pathlib import Path
from demerit.llm import ChatRequest, ChatClient, Endpoint, Message

url, cache, first, last, concurrency = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
with ChatClient(Endpoint(url, "simulated", key_env=""), cache, concurrency=concurrency) as chat:
    for place, said in chat.ask_all(ChatRequest((Message.user(f"question {i}"),)) for i in range(first, last)):
        print(said.text if not said.why_not else said.why_not, flush=True)
"""


def echo(request: Request) -> str:
    return f"answer to {request.text}"


def asker(url: str, cache: Path, first: int, last: int, concurrency: int = 8) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ASKER, url, str(cache), *map(str, (first, last, concurrency))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def whole(path: Path) -> set[str]:
    """Check the file with SQLite's own check and return its answers."""
    db = sqlite3.connect(path)
    try:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return {row[0] for row in db.execute("SELECT text FROM answers")}
    finally:
        db.close()


def test_an_answer_stays_as_it_was_first(tmp_path: Path) -> None:
    one, two = Cache(tmp_path / "deep" / "c.sqlite"), Cache(tmp_path / "deep" / "c.sqlite")
    one.put("k", REPLY, "m", 0.1, "")
    two.put("k", Reply("other", "stop", "", 0, 0, True), "m", None, "")
    assert one.get("k") == two.get("k") == REPLY and len(two) == 1 and two.get("other") is None
    one.close()
    assert one.get("k") == REPLY, "it opens again"
    one.close(), two.close()


def test_a_question_is_claimed_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Cache(tmp_path / "c.sqlite"), Cache(tmp_path / "c.sqlite")
    claim = one.claim("k", 60)
    assert claim and not two.claim("k", 60) and not one.claim("k", 60)
    one.release("k", "somebody else")
    assert not two.claim("k", 60)
    one.release("k", claim)
    claim = two.claim("k", 0.0)
    assert claim
    taken = one.claim("k", 60)
    assert taken, "its time was up"
    assert not two.renew("k", claim, 60) and one.renew("k", taken, 60)
    two.release("k", claim)
    assert not two.claim("k", 60), "a claim that was lost cannot be given up"
    one.put("k", REPLY, "m", None, "")
    assert not two.claim("k", 60), "an answered question cannot be claimed"
    monkeypatch.setattr(cache_module.os, "getpid", lambda: 2**22 + 1)
    dead = Cache(tmp_path / "c.sqlite")
    assert dead.claim("j", 1000)
    dead._pid = 0
    monkeypatch.undo()
    assert two.claim("j", 60), "its process is gone"
    for each in (one, two):
        each.close()
    assert dead._connection is not None
    dead._connection.close()


def test_what_is_no_cache_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    path.write_bytes(b"this is no database at all, not even a little" * 50)
    with pytest.raises(StoreError, match="the cache cannot be used"):
        Cache(path)
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE mine (a)")
    other.commit()
    with pytest.raises(StoreError, match="somebody else's SQLite file"):
        Cache(tmp_path / "other.sqlite")
    other.execute("PRAGMA user_version = 9")
    other.close()
    with pytest.raises(StoreError, match="format 9"):
        Cache(tmp_path / "other.sqlite")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be made"):
        Cache(tmp_path / "file" / "c.sqlite")


def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c.sqlite")
    cache.put("k", REPLY, "m", None, "")
    code = """
import os, sys
from pathlib import Path
from demerit.llm.cache import Cache, Reply
cache = Cache(Path(sys.argv[1]))
child = os.fork()
for i in range(50):
    cache.put(f"{child == 0} {i}", Reply("text", "stop", "", 3, 4, False), "m", None, "")
if child == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "c.sqlite"], check=False).returncode == 0
    assert len(cache) == 101
    cache.close()


def test_several_processes_pay_once(tmp_path: Path) -> None:
    """Four processes with the same 100 questions, and a server at which half of the answers take a retry."""
    faults = Faults({"500": 0.2, "cut": 0.1})
    with ScriptedServer(echo, faults, latency=0.05) as server:
        runs = [asker(server.url, tmp_path / "c.sqlite", 0, 100) for _ in range(4)]
        outputs = [run.communicate(timeout=100) for run in runs]
        wanted = {f"answer to question {i}" for i in range(100)}
        for run, (out, err) in zip(runs, outputs, strict=True):
            assert run.returncode == 0, err
            assert set(out.split("\n")) == {"", *wanted}
        assert len(server.billed) == 100 and set(server.billed.values()) == {1}
    assert whole(tmp_path / "c.sqlite") == wanted


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_at_any_moment_nothing_reported_is_asked_again(tmp_path: Path, how: signal.Signals) -> None:
    rng, path, reported = random.Random(0), tmp_path / "c.sqlite", set[str]()
    kills, concurrency = 6, 8
    with ScriptedServer(echo, latency=0.02) as server:
        for _ in range(kills):
            run = asker(server.url, path, 0, 1500, concurrency)
            before = server.billed.total()
            while server.billed.total() < before + 3 and run.poll() is None:
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.4))
            run.send_signal(how)
            out, err = run.communicate(timeout=90)
            assert run.returncode != 0, "it must be hit at work"
            # The last line may be half written; the answer behind it is not.
            reported |= {line for line in out.split("\n")[:-1] if line}
            assert reported <= whole(path)
            assert how == signal.SIGKILL or "KeyboardInterrupt" in err
        paid = dict(server.billed)
        assert len(reported) > 20
        run = asker(server.url, path, 0, 200, concurrency)
        out, err = run.communicate(timeout=120)
        assert run.returncode == 0, err
        assert {f"answer to question {i}" for i in range(200)} <= whole(path)
        twice = sum(count - 1 for count in server.billed.values())
        if how == signal.SIGINT:
            assert twice == 0, "Ctrl-C waits for what is paid for"
        else:
            assert twice <= kills * concurrency, "only what was in flight at a kill"
        assert sum(paid.values()) > 0


def test_one_question_is_answered_once_by_threads_of_two_clients(tmp_path: Path) -> None:
    with ScriptedServer(echo, latency=0.1) as server:
        here = Endpoint(server.url, "simulated", key_env="")
        with ChatClient(here, tmp_path / "c.sqlite") as one, ChatClient(here, tmp_path / "c.sqlite") as two:
            first = one.ask_all([ChatRequest((Message.user("a"),))] * 3)
            second = two.ask_all([ChatRequest((Message.user("a"),))] * 3)
            texts = {said.text for _, said in [*first, *second]}
        assert texts == {"answer to a"} and server.billed.total() == 1


def test_a_claim_that_ran_out_while_waiting_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody took the question over while this client waited as told: it takes their answer and pays nothing."""
    ask = ChatRequest((Message.user("a"),))
    with ScriptedServer(echo) as server:
        with ChatClient(Endpoint(server.url, "simulated", key_env=""), tmp_path / "c.sqlite") as chat:
            key, other = ask.key(chat.endpoint), Cache(tmp_path / "c.sqlite")

            def long_wait(leaving: object) -> None:
                with sqlite3.connect(tmp_path / "c.sqlite") as db:
                    db.execute("UPDATE claims SET until = 0")
                db.close()
                assert other.claim(key, 60)
                other.put(key, REPLY, "simulated", None, "")

            monkeypatch.setattr(chat._pace, "hold", long_wait)
            said = chat.ask(ask)
            assert said.text == "text" and said.usage.cached
            assert chat.spent.requests == server.asked.total() == 0
            other.close()


STRESS_KINDS = ("timeout", "429", "429-date", "500", "cut", "nonsense", "refusal", "length", "slow", "garbage")


def test_two_thousand_questions_with_faults(tmp_path: Path) -> None:
    """Nothing lost, nothing billed twice, every failure explained; then the same again for free."""
    faults = Faults({kind: 0.05 / len(STRESS_KINDS) for kind in STRESS_KINDS}, retry_after=0.2, delay=0.2)

    def answer(request: Request) -> str:
        return json.dumps({"value": request.text.split("\n")[0]})

    from pydantic import BaseModel

    class Value(BaseModel):
        value: str

    asks = [ChatRequest((Message.user(f"question {i}"),), Value, tag="stress") for i in range(2000)]
    with ScriptedServer(answer, faults, latency=0.02) as server:
        here = Endpoint(server.url, "simulated", key_env="", price_in=1, price_out=1)
        with ChatClient(here, tmp_path / "c.sqlite", concurrency=32, timeout=3.0) as chat:
            said = dict(chat.ask_all(asks))
            spent = chat.spent
        assert sorted(said) == list(range(2000))
        assert len(server.billed) == 2000 and set(server.billed.values()) == {1}
        bad = {place: each.kind for place, each in said.items() if each.why_not}
        kinds = list(bad.values())
        assert set(kinds) == {"refused", "unreadable", "cut off"}
        # Exactly the faults of content are left, each under its name; every fault of the road was overcome.
        assert kinds.count("refused") == server.faulted["refusal"]
        assert kinds.count("unreadable") == server.faulted["nonsense"]
        assert kinds.count("cut off") == server.faulted["length"]
        assert all(each.parsed == Value(value=f"question {i}") for i, each in said.items() if i not in bad)
        assert set(server.faulted) == set(STRESS_KINDS)
        assert spent.answers == spent.by_tag["stress"].answers == 2000
        assert spent.requests == server.asked.total() == 2000 + spent.retries
        assert spent.unsure == sum(server.faulted[kind] for kind in ("timeout", "cut", "garbage"))
        assert server.busy.most <= 32
        with ChatClient(here, tmp_path / "c.sqlite", concurrency=32) as chat:
            again = dict(chat.ask_all(asks))
            assert chat.spent.requests == 0 and chat.spent.from_cache == 2000
        assert {place: each.why_not for place, each in again.items()} == {p: e.why_not for p, e in said.items()}
    assert len(whole(tmp_path / "c.sqlite")) >= 1900
    assert os.path.getsize(tmp_path / "c.sqlite") < 5e6
