"""The client over real HTTP: answers, failures, cost, and that the key stays secret."""

import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from demerit.errors import BadInput, MissingExtra, StoreError
from demerit.llm import ChatClient, ChatRequest, Endpoint, Message
from demerit.llm.budget import StoredAnswer
from demerit.llm.client import parse_answer
from fakes.chat_server import Faults, Request, ScriptedServer

KEY = "sk-very-secret-0123456789"


class Count(BaseModel):
    words: int


def count_words(request: Request) -> dict[str, int]:
    return {"words": len(request.text.split("\n")[0].split())}


def question(text: str = "how many words", **more: Any) -> ChatRequest:
    return ChatRequest((Message.user(text),), Count, **more)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def client(server: ScriptedServer, cache: Path | None = None, **more: Any) -> ChatClient:
    return ChatClient(Endpoint(server.url, "simulated", price_in=1.0, price_out=4.0), cache, **more)


def test_one_question_is_paid_once() -> None:
    with ScriptedServer(count_words, key=KEY) as server, client(server) as chat:
        response = chat.ask(question())
        assert (response.parsed, response.why_not, response.text) == (Count(words=3), "", '{"words": 3}')
        spent = chat.spent
        assert spent.tokens_out == 4 and response.cost == pytest.approx((spent.tokens_in + 4 * 4) / 1e6)
        again = chat.ask(question(tag="another tag"))
        assert again.parsed == response.parsed and again.cached and again.cost == 0
        assert (chat.spent.requests, chat.spent.answers, chat.spent.from_cache) == (1, 1, 1)
        assert chat.spent.cost == response.cost and server.billed.total() == 1


@pytest.mark.parametrize("fault", ["timeout", "429", "429-date", "429-bare", "500", "503", "cut", "drop"])
def test_transient_faults_are_retried(fault: str) -> None:
    with ScriptedServer(count_words, Faults(script=[fault], retry_after=0.1)) as server:
        with client(server, timeout=0.5) as chat:
            response = chat.ask(question())
            assert response.parsed == Count(words=3), response.why_not
            assert (server.asked.total(), server.billed.total(), chat.spent.requests) == (2, 1, 1)


@pytest.mark.parametrize("fault", ["garbage", "gateway", "500", "cut"])
def test_a_failed_request_is_asked_again_next_time(tmp_path: Path, fault: str) -> None:
    with ScriptedServer(count_words, Faults(script=[fault])) as server:
        with client(server, tmp_path / "c.sqlite", max_retries=0) as chat:
            assert chat.ask(question()).kind == "failed"
            # A request that broke off after it was sent may be billed; one that the server refused is not.
            assert chat.spent.unsure == (fault != "500")
            assert chat.ask(question()).parsed == Count(words=3)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("refusal", "refused"), ("nonsense", "unreadable"), ("length", "cut off"), ("empty", "unreadable")],
)
def test_a_useless_answer_is_not_bought_twice(tmp_path: Path, fault: str, kind: str) -> None:
    with ScriptedServer(count_words, Faults(rates={fault: 1.0})) as server:
        for cached in (False, True):
            with client(server, tmp_path / "c.sqlite") as chat:
                response = chat.ask(question())
                assert (response.kind, response.parsed, response.cached) == (kind, None, cached)
        assert server.billed.total() == server.asked.total() == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"words": 2}', 2),
        ('Sure!\n```json\n{"words": 2}\n```\nDone.', 2),
        ('<think>{"words": 9}</think>\n```\n{"words": 2}\n```', 2),
        ('```\n{"words": 9}\n```\nNo:\n```\n{"words": 2}\n```', 2),
        ("{'words': 2}", None),
        ('It is {"words": 2}.', None),
        ('{"words": "many"}', None),
        ("[2]", None),
    ],
)
def test_reading_json(text: str, words: int | None) -> None:
    for finish in ("stop", "length"):  # a whole answer at the length limit counts
        parsed, why_not = parse_answer(StoredAnswer(text, finish, "", 1, 1, False), Count)
        assert parsed == (None if words is None else Count(words=words))
        assert bool(why_not) == (words is None)
    assert parse_answer(StoredAnswer(text, "length", "", 1, 1, False), None)[1].startswith("cut off")
    assert parse_answer(StoredAnswer(text, "stop", "", 1, 1, False), None) == (None, "")


def test_a_dead_server_is_noticed() -> None:
    with ScriptedServer(count_words) as server:
        url = server.url
    with ChatClient(Endpoint(url, "simulated"), concurrency=4, max_retries=1) as chat:
        kinds = [response.kind for _, response in chat.ask_all(question(f"q{i}") for i in range(60))]
        assert len(kinds) == 60 and 12 <= kinds.count("failed") <= 20
        assert "the last 12 requests all failed" in chat.stopped
        assert chat.spent.unsure == 0, "nothing was sent, so nothing can be billed"


def test_a_refused_schema_mode_says_what_to_try() -> None:
    with ScriptedServer(count_words, formats=()) as server, client(server) as chat:
        assert "schema_mode=json_schema" in chat.ask(question()).why_not
        with ChatClient(Endpoint(server.url, "simulated", schema_mode="none")) as other:
            assert other.ask(question()).parsed == Count(words=3)


def test_an_estimate_sends_nothing_and_needs_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requests = [question("a"), question("b", max_tokens=10), question("a")]
    with ScriptedServer(count_words) as server, client(server, tmp_path / "c.sqlite") as chat:
        chat.ask(requests[0])
    monkeypatch.delenv("OPENAI_API_KEY")
    here = Endpoint("http://127.0.0.1:9/v1", "simulated", price_in=1, price_out=4)
    with ChatClient(here, tmp_path / "c.sqlite") as chat:
        estimate = chat.estimate(requests)
        assert (estimate.requests, estimate.cached, estimate.tokens_out) == (3, 2, 10)
        assert estimate.tokens_in == requests[1].count_tokens()
        assert estimate.cost == pytest.approx((estimate.tokens_in + 40) / 1e6)
        assert chat.spent.requests == 0


@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_budget_is_never_exceeded(tmp_path: Path, concurrency: int) -> None:
    requests = [question(f"question number {i}", max_tokens=50) for i in range(100)]
    budget = 0.0025
    with ScriptedServer(count_words, latency=0.005) as server:
        for _ in range(2):
            with client(server, tmp_path / "c.sqlite", concurrency=concurrency, budget=budget) as chat:
                responses = dict(chat.ask_all(requests))
                spent = chat.spent.cost or 0
                assert sorted(responses) == list(range(100)), "every request gets an answer or a reason"
                left = [response for response in responses.values() if response.why_not]
                assert left and {response.kind for response in left} == {"not asked"} and "budget" in chat.stopped
                # It stopped because the next request might not have fitted, and not earlier.
                assert budget - (requests[0].count_tokens() + 1 + 200) / 1e6 < spent <= budget
                assert sum(response.cost or 0 for response in responses.values()) == pytest.approx(spent)
        assert server.billed.total() == len(server.billed) == 100 - len(left), "the second run paid for other requests"


def test_broken_requests_count_against_the_budget() -> None:
    with ScriptedServer(count_words, Faults(rates={"cut": 1.0})) as server:
        with client(server, budget=0.001, max_retries=0) as chat:
            kinds = [chat.ask(question(f"q{i}", max_tokens=100)).kind for i in range(10)]
            assert kinds[0] == "failed" and kinds[-1] == "not asked"
            assert 0 < (chat.spent.unsure_cost or 0) <= 0.001 and chat.spent.cost == 0


def test_token_counts_of_the_server_raise_later_estimates_and_missing_ones_are_estimated() -> None:
    def dear(request: Request) -> dict[str, object]:
        message = {"role": "assistant", "content": '{"words": 1}'}
        usage = {"prompt_tokens": 5000, "completion_tokens": 1}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}

    with ScriptedServer(dear) as server, client(server, concurrency=1, budget=0.0225) as chat:
        list(chat.ask_all(question(f"q{i}", max_tokens=1) for i in range(20)))
        assert chat.spent.answers == 4 and (chat.spent.cost or 0) <= 0.0225
    with ScriptedServer(count_words, counts_tokens=False) as server, client(server) as chat:
        chat.ask(question())
        assert chat.spent.estimated == 1 and chat.spent.tokens_in == question().count_tokens()


@pytest.mark.parametrize("wrong", [{"budget": 1.0}, {"budget": -1.0, "p": 1}, {"concurrency": 0}, {"timeout": 0}])
def test_bad_budgets_and_limits(wrong: dict[str, Any]) -> None:
    price = wrong.pop("p", None)  # a budget needs prices
    with pytest.raises(BadInput):
        ChatClient(Endpoint("http://localhost/v1", "m", price_in=price, price_out=price), **wrong)


def test_a_missing_key_is_reported_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with ChatClient(Endpoint("https://api.example.com/v1", "m")) as chat:
        with pytest.raises(BadInput, match="OPENAI_API_KEY"):
            chat.ask(question())
        assert chat.spent.requests == 0


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with ChatClient(Endpoint("http://localhost:9/v1", "m")) as chat, pytest.raises(MissingExtra) as caught:
        chat.ask(question())
    assert caught.value.extra == "chat"


def test_the_key_is_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in the cache, the logs at their loudest, the answers, the errors or any representation."""
    caplog.set_level(logging.DEBUG)

    def repeat_key(request: Request) -> dict[str, object]:
        message = {"role": "assistant", "content": f'```\n{{"words": 1}}\n``` {KEY}', "refusal": None}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": None}

    responses, shown = [], []
    for wanted in (KEY, "another-key-entirely"):
        with ScriptedServer(repeat_key, Faults(script=["cut", "500"]), key=wanted) as server:
            with client(server, tmp_path / f"{wanted[:3]}.sqlite") as chat:
                responses += [chat.ask(question(f"q{i}")) for i in range(3)]
                shown += [repr(chat), repr(vars(chat)), repr(chat.endpoint), str(chat.spent), chat.stopped]
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert responses[0].parsed == Count(words=1) and "[key]" in responses[0].text
    assert responses[3].why_not.startswith("failed: the key is refused") and "[key]" in responses[3].why_not
    assert responses[4].kind == "not asked", "the other requests are not sent"
    captured = capfd.readouterr()
    for text in (repr(responses), *shown, caplog.text, captured.out, captured.err, repr(caplog.records)):
        assert KEY not in text
    assert "openai" in {record.name.split(".")[0] for record in caplog.records}, "the loudest logs were heard"
    assert b"words" in files and KEY.encode() not in files


def test_concurrency_is_bounded_over_threads() -> None:
    with ScriptedServer(count_words, latency=0.03) as server, client(server, concurrency=4) as chat:
        requests = [[question(f"{t} {i}") for i in range(15)] for t in range(3)]
        threads = [threading.Thread(target=lambda mine=mine: list(chat.ask_all(mine))) for mine in requests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.busy.most == 4 and server.billed.total() == 45


def test_requests_are_read_only_as_there_is_room() -> None:
    read = 0

    def requests() -> Iterator[ChatRequest]:
        nonlocal read
        for i in range(1000):
            read += 1
            yield question(f"q{i}")

    with ScriptedServer(count_words, latency=0.01) as server, client(server, concurrency=4) as chat:
        answers: Any = chat.ask_all(requests())
        for done in range(1, 21):
            next(answers)
            assert read - done <= 8
        answers.close()
        assert read < 40 and server.billed.total() == len(chat._cache) < 40, "requests in flight were cached"


def test_equal_requests_at_once_are_sent_once() -> None:
    with ScriptedServer(count_words, latency=0.1) as server, client(server, concurrency=8) as chat:
        responses = [response for _, response in chat.ask_all([question()] * 16)]
        assert [response.parsed for response in responses] == [Count(words=3)] * 16
        assert server.billed.total() == 1 == sum(not response.cached for response in responses)


def test_an_answer_that_cannot_be_stored_is_handed_out_and_no_more_are_bought(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreError("answers", "disk full")

    with ScriptedServer(count_words) as server, client(server) as chat:
        monkeypatch.setattr(chat._cache, "put", fail)
        assert chat.ask(question("one")).parsed == Count(words=1)
        assert chat.ask(question("two")).kind == "not asked" and server.billed.total() == 1
