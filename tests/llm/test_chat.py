"""The client over real HTTP: what is asked, what comes back, what it costs, and that the key stays where it is."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture
from pydantic import BaseModel

from demerit.errors import BadInput, StoreError
from demerit.llm import ChatClient, ChatImage, ChatRequest, Endpoint, Message, pacing, tokens
from fakes.judge.faults import Faults
from fakes.judge.server import Request, ScriptedServer

KEY = "sk-very-secret-0123456789"


class Answer(BaseModel):
    words: int


def count_words(request: Request) -> dict[str, int]:
    return {"words": len(request.text.split("\n")[0].split())}


def question(text: str = "how many words", **more: object) -> ChatRequest:
    return ChatRequest((Message.user(text),), Answer, **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are waited for in hundredths of a second."""
    monkeypatch.setattr(pacing, "FIRST_WAIT", 0.02)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def client(server: ScriptedServer, cache: Path | None = None, **more: object) -> ChatClient:
    return ChatClient(Endpoint(server.url, "simulated", price_in=1.0, price_out=4.0), cache, **more)  # type: ignore[arg-type]


def test_one_question() -> None:
    with ScriptedServer(count_words, key=KEY) as server, client(server) as chat:
        said = chat.ask(question())
        assert said.parsed == Answer(words=3)
        assert (said.why_not, said.kind, said.text) == ("", "", '{"words": 3}')
        assert said.usage.tokens_out == 4 and not said.usage.estimated and not said.usage.cached
        assert said.cost == pytest.approx((said.usage.tokens_in + 4 * 4) / 1e6)
        again = chat.ask(question(tag="another tag"))
        assert again.parsed == said.parsed and again.usage.cached and again.cost == 0
        spent = chat.spent
        assert (spent.requests, spent.answers, spent.from_cache, spent.cost) == (1, 1, 1, said.cost)
        assert spent.by_tag[""].tokens_out == 4
        assert server.billed.total() == 1


def test_what_is_sent() -> None:
    """Parts in order, pictures as they are, the schema both as a format and in words."""
    seen: list[Request] = []

    def look(request: Request) -> dict[str, int]:
        seen.append(request)
        return {"words": 0}

    pixels = np.zeros((20, 30, 3), np.uint8)
    pixels[..., 0] = 200
    images = ChatImage.of(pixels, "png"), ChatImage.of(pixels)
    ask = ChatRequest((Message.system("be brief"), Message.user("a", images[0], "b", images[1])), Answer, 0.8, 7, 99)
    with ScriptedServer(look) as server, client(server) as chat:
        assert not chat.ask(ask).why_not
    (request,) = seen
    kinds = [part["type"] for part in request.parts]
    assert kinds == ["text", "text", "image_url", "text", "image_url", "text"]
    assert request.images == [image.data for image in images]
    red = np.asarray(Picture.open(io.BytesIO(request.images[0])))[0, 0]
    assert red.tolist() == [200, 0, 0]
    body = request.body
    assert (body["temperature"], body["seed"], body["max_tokens"], body["model"]) == (0.8, 7, 99, "simulated")
    assert body["response_format"]["json_schema"]["strict"] is True
    assert body["response_format"]["json_schema"]["schema"]["additionalProperties"] is False
    assert '"words"' in body["messages"][-1]["content"]


def test_the_cache_key_covers_everything_that_changes_an_answer() -> None:
    class Other(BaseModel):
        words: float

    pixels = np.zeros((4, 4, 3), np.uint8)
    here = Endpoint("http://localhost:1/v1", "m")
    start = Message.user("ab", "c"), Message.user(ChatImage.of(pixels, "png"))
    base = ChatRequest(start, Answer)
    others = [
        ChatRequest((Message.user("a", "bc"), start[1]), Answer),
        ChatRequest((Message.system("ab", "c"), start[1]), Answer),
        ChatRequest((start[0], Message.user(ChatImage.of(pixels + 1, "png"))), Answer),
        ChatRequest((start[1], start[0]), Answer),
        ChatRequest(start, Other),
        ChatRequest(start),
        ChatRequest(start, Answer, temperature=None),
        ChatRequest(start, Answer, temperature=0.8),
        ChatRequest(start, Answer, sample=1),
        ChatRequest(start, Answer, max_tokens=5),
    ]
    keys = [base.key(here), *(ask.key(here) for ask in others)]
    keys += [base.key(Endpoint("http://localhost:1/v1", "n")), base.key(Endpoint("http://elsewhere/v1", "m"))]
    assert len(set(keys)) == len(keys)
    assert base.key(Endpoint("http://localhost:2/v1", "m", price_in=3)) == base.key(here)
    assert ChatRequest(start, Answer, tag="x").key(here) == base.key(here)


@pytest.mark.parametrize(
    "fault", ["timeout", "429", "429-date", "429-bare", "500", "503", "cut", "drop", "garbage", "gateway", "drip"]
)
def test_what_passes_is_tried_again(fault: str) -> None:
    with ScriptedServer(count_words, Faults(script=[fault], retry_after=0.1)) as server:
        with client(server, timeout=0.6) as chat:
            said = chat.ask(question())
            assert said.parsed == Answer(words=3), said.why_not
            assert (server.asked.total(), server.billed.total()) == (2, 1)
            assert (chat.spent.requests, chat.spent.retries, chat.spent.answers) == (2, 1, 1)
            # What broke off after it was sent may be on the bill; what the server refused is not.
            assert chat.spent.unsure == (fault in ("timeout", "cut", "drop", "garbage", "drip"))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("refusal", "refused"), ("nonsense", "unreadable"), ("length", "cut off"), ("empty", "unreadable")],
)
def test_a_useless_answer_is_an_answer_and_is_not_bought_twice(tmp_path: Path, fault: str, kind: str) -> None:
    with ScriptedServer(count_words, Faults(rates={fault: 1.0})) as server:
        for cached in (False, True):
            with client(server, tmp_path / "c.sqlite") as chat:
                said = chat.ask(question())
                assert (said.kind, said.parsed, said.usage.cached) == (kind, None, cached)
        assert server.billed.total() == server.asked.total() == 1


def test_it_gives_up_with_the_reason_and_asks_again_next_time(tmp_path: Path) -> None:
    with ScriptedServer(count_words, Faults(script=["500"] * 3)) as server:
        with client(server, tmp_path / "c.sqlite", tries=3) as chat:
            said = chat.ask(question())
            assert said.why_not == "failed: 3 tries, the last one: the server answered 500: internal error"
            assert chat.ask(question()).parsed == Answer(words=3)


def test_hints_are_followed_by_everybody() -> None:
    times: list[float] = []

    def note(request: Request) -> dict[str, int]:
        times.append(time.monotonic())
        return {"words": 1}

    with ScriptedServer(note, Faults(script=["429"], retry_after=0.8)) as server:
        with client(server, concurrency=1) as chat:
            start = time.monotonic()
            results = [chat.ask(question("a")) for _ in range(1)]
            assert times[0] - start >= 0.8
        with client(server, concurrency=4) as chat:
            chat._pace.not_before = time.monotonic() + 0.5
            start, times[:] = time.monotonic(), []
            results += [said for _, said in chat.ask_all(question(f"q{i}") for i in range(8))]
            assert min(times) - start >= 0.5
        assert not any(said.why_not for said in results)


def test_waiting_as_told_is_no_failed_try() -> None:
    with ScriptedServer(count_words, Faults(script=["429"] * 5, retry_after=0)) as server:
        with client(server, tries=1) as chat:
            assert chat.ask(question()).parsed == Answer(words=3)


def test_a_server_that_wants_hours_is_left_alone() -> None:
    with ScriptedServer(count_words, Faults(script=["429"], retry_after=7200)) as server, client(server) as chat:
        assert chat.ask(question("a")).why_not.startswith("failed: the server asks to wait 7200 s")
        assert chat.ask(question("b")).why_not.startswith("not asked: the server asks to wait 7200 s")
        assert server.asked.total() == 1


def test_a_dead_server_is_noticed() -> None:
    with ScriptedServer(count_words) as server:
        url = server.url
    with ChatClient(Endpoint(url, "simulated"), concurrency=4, tries=2) as chat:
        kinds = [said.kind for _, said in chat.ask_all(question(f"q{i}") for i in range(60))]
        assert len(kinds) == 60 and 12 <= kinds.count("failed") <= 20
        assert chat.stopped.startswith("the last 12 questions all failed (the connection failed (")
        assert chat.spent.unsure == 0, "nothing was sent, so nothing can be billed"


@pytest.mark.parametrize(
    ("formats", "mode", "says"),
    [
        (("json_schema", "json_object"), "json_schema", 0),
        (("json_object",), "json_object", 1),
        ((), "none", 2),
    ],
)
def test_the_schema_mode_falls_back_once_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, formats: tuple[str, ...], mode: str, says: int
) -> None:
    with ScriptedServer(count_words, formats=formats) as server:
        with client(server, tmp_path / "c.sqlite") as chat:
            answers = [said for _, said in chat.ask_all(question(f"q{i}") for i in range(20))]
            assert not [said.why_not for said in answers if said.why_not]
            assert chat._dialect.schema == mode
            assert len(chat.notes) == len([r for r in caplog.records if r.name == "demerit.llm.client"]) == says
            assert all("refuses response_format" in note for note in chat.notes)
        with client(server, tmp_path / "c.sqlite") as chat:
            assert chat._dialect.schema == mode, "the next run knows"
        assert server.billed.total() == 20


def test_other_refusals_are_learnt_too() -> None:
    with ScriptedServer(count_words, refuses=("seed", "max_tokens")) as server, client(server) as chat:
        assert chat.ask(question()).parsed == Answer(words=3)
        assert len(chat.notes) == 2


def test_a_chosen_schema_mode_is_kept() -> None:
    with ScriptedServer(count_words, formats=()) as server:
        with ChatClient(Endpoint(server.url, "simulated", schema_mode="json_schema")) as chat:
            said = chat.ask(question())
            assert said.why_not.startswith(
                "failed: the server answered 400: response_format of type json_schema is not"
            )
        assert server.billed.total() == 0


def test_tokens_that_nobody_counted_are_estimated_and_said() -> None:
    with ScriptedServer(count_words, counts_tokens=False) as server, client(server) as chat:
        said = chat.ask(question())
        assert said.usage.estimated and said.usage.tokens_in == tokens.of_ask(question())
        assert chat.spent.estimated == 1 and "1 answers estimated" in str(chat.spent)


def test_image_tokens() -> None:
    # Worked by hand: 224 x 224 is one tile; 1024 x 1024 shrinks to 768 x 768, four tiles, but has 37 x 37 patches;
    # 4000 x 1000 shrinks to 2048 x 512, four tiles, and has 143 x 36 patches.
    assert tokens.of_image(224, 224) == 85 + 170
    assert tokens.of_image(1024, 1024) == max(85 + 4 * 170, 37 * 37)
    assert tokens.of_image(4000, 1000) == max(85 + 4 * 170, 143 * 36)
    assert tokens.of_text("abc") == 1 and tokens.of_text("é" * 3) == 2


def test_image_sizes_come_from_the_header() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (37, 53, 3), dtype=np.uint8)
    assert ChatImage.of(pixels, "png").size == ChatImage.of(pixels).size == (53, 37)
    buffer = io.BytesIO()
    Picture.fromarray(pixels).save(buffer, "JPEG", progressive=True, exif=b"Exif\x00\x00" + b"x" * 300)
    assert ChatImage(buffer.getvalue()).size == (53, 37)
    with pytest.raises(BadInput, match="PNG or a JPEG"):
        ChatImage(b"GIF89a")
    with pytest.raises(BadInput, match="a whole PNG"):
        _ = ChatImage(b"\x89PNG\r\n\x1a\n").size
    with pytest.raises(BadInput, match="height x width x 3"):
        ChatImage.of(pixels[..., 0])


def test_a_dry_run_sends_nothing_and_needs_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asks = [question("a"), question("b", max_tokens=10), question("a")]
    with ScriptedServer(count_words) as server:
        with client(server, tmp_path / "c.sqlite") as chat:
            chat.ask(asks[0])
    monkeypatch.delenv("OPENAI_API_KEY")
    with ChatClient(
        Endpoint("http://127.0.0.1:9/v1", "simulated", price_in=1, price_out=4), tmp_path / "c.sqlite"
    ) as chat:
        estimate = chat.estimate(asks)
        assert (estimate.asks, estimate.cached, estimate.tokens_out) == (3, 2, 10)
        assert estimate.tokens_in == tokens.of_ask(asks[1])
        assert estimate.cost == pytest.approx((estimate.tokens_in + 40) / 1e6)
        assert "85 + 170 per 512-pixel tile" in str(estimate)
        assert chat.spent.requests == 0


@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_budget_is_never_passed(tmp_path: Path, concurrency: int) -> None:
    asks = [question(f"question number {i}", max_tokens=50) for i in range(200)]
    budget = 0.005
    with ScriptedServer(count_words, latency=0.005) as server:
        for _ in range(2):
            with client(server, tmp_path / "c.sqlite", concurrency=concurrency, budget=budget) as chat:
                said = dict(chat.ask_all(asks))
                spent = chat.spent
                assert sorted(said) == list(range(200)), "every question gets its answer or its reason"
                left = [each.why_not for each in said.values() if each.why_not]
                assert left and all(why.startswith("not asked: the budget of $0.0050 is used up") for why in left)
                # It stopped because the next one might not have fitted, and no sooner.
                need = (tokens.of_ask(asks[0]) + 1 + 200) / 1e6
                assert budget - need < (spent.cost or 0) <= budget
                assert sum(each.cost or 0 for each in said.values()) == pytest.approx(spent.cost)
        assert server.billed.total() == len(server.billed) == 200 - len(left), "the second run paid for other questions"


def test_broken_off_requests_count_against_the_budget() -> None:
    with ScriptedServer(count_words, Faults(rates={"cut": 1.0})) as server:
        with client(server, budget=0.001, tries=100) as chat:
            said = chat.ask(question(max_tokens=100))
            assert said.why_not.startswith("failed: the budget of $0.0010 is used up")
            assert chat.spent.unsure >= 1 and (chat.spent.unsure_cost or 0) <= 0.001 and chat.spent.cost == 0


def test_a_server_that_counts_more_is_believed() -> None:
    def dear(request: Request) -> dict[str, object]:
        message = {"role": "assistant", "content": '{"words": 1}'}
        usage = {"prompt_tokens": 5000, "completion_tokens": 1}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}

    with ScriptedServer(dear) as server, client(server, concurrency=1, budget=0.0225) as chat:
        list(chat.ask_all(question(f"q{i}", max_tokens=1) for i in range(20)))
        assert chat.spent.answers == 4 and (chat.spent.cost or 0) <= 0.0225


def test_a_budget_needs_prices() -> None:
    with pytest.raises(BadInput, match="price_in and price_out"):
        ChatClient(Endpoint("http://localhost/v1", "m"), budget=1.0)
    with pytest.raises(BadInput, match="0 or more"):
        ChatClient(Endpoint("http://localhost/v1", "m", price_in=1, price_out=1), budget=-1.0)


@pytest.mark.parametrize(
    ("url", "model", "says"),
    [
        ("https://user:hunter22@host/v1", "m", "without a user, a password"),
        ("https://host/v1?key=hunter22", "m", "without a user, a password or a query"),
        ("host/v1", "m", "https://host/v1"),
        ("https://host/v1", "", "the name of a model"),
    ],
)
def test_bad_endpoints_are_refused(url: str, model: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        Endpoint(url, model)
    assert "hunter22" not in str(caught.value)


def test_a_missing_key_is_said_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with ChatClient(Endpoint("https://api.example.com/v1", "m")) as chat:
        with pytest.raises(BadInput, match="OPENAI_API_KEY"):
            chat.ask(question())
        assert chat.spent.requests == 0


def test_the_key_is_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in the cache, the logs (all of them, at their loudest), the answers, the errors or any representation."""
    caplog.set_level(logging.DEBUG)

    def tell(request: Request) -> dict[str, object]:
        message = {"role": "assistant", "content": f'{{"words": 1}} {KEY}', "refusal": None}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": None}

    said = []
    shown = []
    for wanted in (KEY, "another-key-entirely"):
        with ScriptedServer(tell, Faults(script=["cut", "500"]), key=wanted) as server:
            with client(server, tmp_path / f"{wanted[:3]}.sqlite") as chat:
                said += [chat.ask(question(f"q{i}")) for i in range(3)]
                shown += [repr(chat), repr(vars(chat)), repr(chat.endpoint), str(chat.spent), chat.stopped, *chat.notes]
                files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert said[0].parsed == Answer(words=1) and "[key]" in said[0].text
    assert "the key is refused: Incorrect API key provided: [key]" in said[3].why_not
    assert said[4].why_not.startswith("not asked: the server answered 401"), "the other questions are not even sent"
    captured = capfd.readouterr()
    for text in (repr(said), *shown, caplog.text, captured.out, captured.err, repr(caplog.records)):
        assert KEY not in text
    assert {"openai", "httpcore2"} <= {record.name.split(".")[0] for record in caplog.records}, "the loudest were heard"
    assert b"words" in files and KEY.encode() not in files


def test_half_a_character_does_no_harm(tmp_path: Path) -> None:
    with ScriptedServer(lambda _: '{"words": 1} \ud800 \x00') as server, client(server, tmp_path / "c.sqlite") as chat:
        assert chat.ask(question()).parsed == Answer(words=1)
        assert chat.ask(question()).usage.cached


def test_concurrency_is_bounded_also_over_threads() -> None:
    with ScriptedServer(count_words, latency=0.03) as server, client(server, concurrency=4) as chat:
        asks = [[question(f"{t} {i}") for i in range(15)] for t in range(3)]
        threads = [threading.Thread(target=lambda mine=mine: list(chat.ask_all(mine))) for mine in asks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.busy.most == 4 and server.billed.total() == 45


def test_the_list_is_read_as_there_is_room() -> None:
    read = 0

    def asks() -> object:
        nonlocal read
        for i in range(1000):
            read += 1
            yield question(f"q{i}")

    with ScriptedServer(count_words, latency=0.01) as server, client(server, concurrency=4) as chat:
        answers = chat.ask_all(asks())  # type: ignore[arg-type]
        for done, _ in enumerate(answers, 1):
            assert read - done < 8 + 1
            if done == 20:
                break
        answers.close()  # type: ignore[attr-defined]
        assert read < 40 and server.billed.total() == len(chat._cache) < 40, "what was under way was kept"


def test_equal_questions_at_once_are_one() -> None:
    with ScriptedServer(count_words, latency=0.1) as server, client(server, concurrency=8) as chat:
        said = [said for _, said in chat.ask_all([question()] * 16)]
        assert [each.parsed for each in said] == [Answer(words=3)] * 16
        assert server.billed.total() == 1
        assert sum(not each.usage.cached for each in said) == 1


def test_an_error_in_the_list_comes_out() -> None:
    def asks() -> object:
        yield question()
        raise RuntimeError("the video is broken")

    with ScriptedServer(count_words) as server, client(server) as chat:
        with pytest.raises(RuntimeError, match="the video is broken"):
            list(chat.ask_all(asks()))  # type: ignore[arg-type]


def test_an_answer_that_cannot_be_kept_is_handed_out_and_no_more_are_bought(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(count_words) as server, client(server) as chat:

        def full(*_: object) -> None:
            raise StoreError("answers", "the cache cannot be used (database or disk is full)")

        monkeypatch.setattr(chat._cache, "put", full)
        assert chat.ask(question("one")).parsed == Answer(words=1)
        assert chat.ask(question("two")).why_not.startswith("not asked: answers cannot be kept")
        assert server.billed.total() == 1 and len(chat.notes) == 1


def test_without_the_extra_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from demerit.errors import MissingExtra

    monkeypatch.setitem(sys.modules, "openai", None)
    with (
        ChatClient(Endpoint("http://localhost:9/v1", "m")) as chat,
        pytest.raises(MissingExtra, match=r"demerit\[chat\]"),
    ):
        chat.ask(ChatRequest((Message.user("hello"),)))


def test_free_text() -> None:
    with ScriptedServer(lambda request: json.dumps(request.body.get("response_format"))) as server:
        with client(server) as chat:
            said = chat.ask(ChatRequest((Message.user("hello"),)))
            assert (said.text, said.parsed, said.why_not) == ("null", None, "")
