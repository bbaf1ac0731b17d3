"""`grader` over real HTTP, against a scripted server."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from demerit.data.episode import Episode
from demerit.errors import BadInput, StoreError, UnknownName
from demerit.llm.options import FROM_ENVIRONMENT, variable_of
from demerit.models import load_model
from demerit.models.check import check_model
from demerit.models.grader import DESCRIBE, ChatGrader, GraderConfig
from fakes.chat_server import LOST, NONSENSE, REFUSAL, Faults, Request, ScriptedServer
from fakes.prompted import colour, coloured


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in FROM_ENVIRONMENT:
        monkeypatch.delenv(variable_of(option), raising=False)


def indices_of(request: Request) -> list[int]:
    """The frames shown, read off their colours."""
    reds = [float(np.asarray(Image.open(io.BytesIO(image)))[..., 0].mean()) for image in request.images]
    return [round((red - colour(0)[0]) / 8) for red in reds]


class Judge:
    """A scripted model: the grade rises by one every five frames."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> str:
        self.requests.append(request)
        if request.parts[-1]["text"] == DESCRIBE:
            return "A cup is lifted. ANSWER: 5 would be too much."
        return f"It gets there. ANSWER: {1 + indices_of(request)[-1] // 5}"


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def server(judge: Judge) -> Iterator[ScriptedServer]:
    with ScriptedServer(judge) as running:
        yield running


def grader(server: ScriptedServer, folder: Path, options: str = "", **changes: Any) -> ChatGrader:
    settings = {"url": server.url, "model": "simulated", "cache": str(folder / "answers.sqlite"), **changes}
    model = load_model(f"grader:{options}" if options else "grader", **settings)
    assert isinstance(model, ChatGrader)
    return model


def at_five_fps(id: str = "one", frames: int = 21) -> Episode:
    return coloured(id, frames)


def test_a_whole_episode_gets_one_grade_at_its_last_frame(server: ScriptedServer, judge: Judge, tmp_path: Path) -> None:
    episode = at_five_fps()
    model = grader(server, tmp_path, size=16)
    reward = model.score([episode])[0]
    assert (reward.at.tolist(), reward.value.tolist()) == ([20], [5.0])
    shown = indices_of(judge.requests[0])
    times = episode.main.times()
    assert shown[0] == 0 and shown[-1] == 20
    assert np.all(np.diff(times[shown[:-1]]) >= 0.9)  # one a second, and the true final frame
    assert "Task: put the cup away" in judge.requests[0].text and "Rubric" in judge.requests[0].text
    model.close()


def test_prefixes_are_separate_questions_that_never_see_the_future(
    server: ScriptedServer, judge: Judge, tmp_path: Path
) -> None:
    model = grader(server, tmp_path, "prefixes=4,fps=10", size=16)
    reward = model.score([at_five_fps()])[0]
    assert reward.at.tolist() == [5, 10, 15, 20]
    assert reward.value.tolist() == [2, 3, 4, 5]
    assert sorted(max(indices_of(request)) for request in judge.requests) == [5, 10, 15, 20]
    assert model.card.causal
    model.close()


def test_a_description_comes_first_and_is_kept(server: ScriptedServer, judge: Judge, tmp_path: Path) -> None:
    model = grader(server, tmp_path, "describe=yes", size=16)
    reward = model.score([at_five_fps()])[0]
    assert reward.value.tolist() == [5.0]
    assert reward.given["description"].startswith("A cup is lifted.")
    kept = {answer["about"].split()[0]: answer["answer"] for answer in reward.given["generations"]}
    assert kept == {"description": "A cup is lifted. ANSWER: 5 would be too much.", "grade": "It gets there. ANSWER: 5"}
    graded = judge.requests[-1].body["messages"]
    assert [message["role"] for message in graded] == ["user", "assistant", "user"]
    model.close()


def test_an_answer_without_a_grade_is_unscored(tmp_path: Path) -> None:
    with ScriptedServer(lambda request: "Well done, 5 of 5!") as server:
        model = grader(server, tmp_path)
        reward = model.score([at_five_fps()])[0]
        assert np.isnan(reward.value).all() and "Well done" in reward.why_missing
        (kept,) = reward.given["generations"]
        assert kept["answer"] == "Well done, 5 of 5!" and len(kept["request"]) == 64
        assert kept["why_not"] == reward.why_missing
        no_task = coloured("two", instruction=" ")
        assert np.isnan(model.score([no_task])[0].value).all()
        model.close()


def test_without_the_description_that_was_asked_for_there_is_no_grade(tmp_path: Path) -> None:
    with ScriptedServer(lambda request: "" if request.parts[-1]["text"] == DESCRIBE else "ANSWER: 5") as server:
        model = grader(server, tmp_path, "describe=yes", size=16)
        reward = model.score([at_five_fps()])[0]
        assert np.isnan(reward.value).all() and "description" in reward.why_missing
        model.close()


def test_a_prompt_of_ones_own_is_another_model(server: ScriptedServer, judge: Judge, tmp_path: Path) -> None:
    own = tmp_path / "mine.txt"
    own.write_text('Did the robot do {task}? {"braces": {}} stay. End with ANSWER: and 1 to 5.')
    model, plain = grader(server, tmp_path, f"prompt={own}", size=16), grader(server, tmp_path, size=16)
    model.score([at_five_fps()])
    assert 'Did the robot do put the cup away? {"braces": {}} stay.' in judge.requests[0].text
    assert model.card.hash() != plain.card.hash() and model.card.name == f"{plain.card.name}-mine"
    for text, named in {"no place for it": "task", "{task} and {frames}": "frames", " \n": "empty"}.items():
        own.write_text(text)
        with pytest.raises(BadInput, match=named):
            grader(server, tmp_path, f"prompt={own}")
    with pytest.raises(StoreError):
        grader(server, tmp_path, "prompt=nowhere.txt")
    model.close()


@pytest.mark.parametrize("fault", [*LOST, "nonsense", "empty", "refusal", "length"])
def test_what_is_not_a_completion_is_kept_and_gives_no_grade(fault: str, tmp_path: Path) -> None:
    """A server that sends a page, other JSON, nothing, a refusal or half an answer."""
    with ScriptedServer(lambda request: "ANSWER: 5", Faults(rates={fault: 1.0})) as server:
        model = grader(server, tmp_path, size=16)
        reward = model.score([at_five_fps()])[0]
        model.close()
    assert not reward.scored and "\n" not in reward.why_missing
    (kept,) = reward.given["generations"]
    sent = {"garbage": "Bad gateway", "gateway": "upstream overloaded", "nonsense": NONSENSE, "refusal": REFUSAL}
    assert sent.get(fault, "") in kept["answer"] and bool(kept["answer"]) == (fault != "empty")


class RawServer(ScriptedServer):
    """Sends one JSON value, whatever is asked."""

    def __init__(self, sent: Any) -> None:
        super().__init__(lambda request: "")
        self.sent = sent

    def completion(self, request: Request, fault: str) -> dict[str, Any]:
        return self.sent


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"choices": []}, "choices"),
        ({"choices": [{}]}, "choices"),
        ({"choices": [{"message": {"content": [1]}}]}, "message"),
        ({"choices": "ANSWER: 5"}, "ANSWER: 5"),
        ({"error": "ANSWER: 5"}, "ANSWER: 5"),
        ({}, ""),
        (["ANSWER: 5"], "ANSWER: 5"),
        ("ANSWER: 5", "ANSWER: 5"),
        (5, "5"),
        (None, ""),
    ],
)
def test_other_json_is_no_completion(sent: Any, kept: str, tmp_path: Path) -> None:
    with RawServer(sent) as server:
        model = grader(server, tmp_path, size=16)
        reward = model.score([at_five_fps()])[0]
        model.close()
    assert not reward.scored and reward.why_missing.startswith("failed: the server did not send a completion")
    assert kept in reward.given["generations"][0]["answer"]


def test_reasoning_models_get_room_and_no_temperature(server: ScriptedServer, judge: Judge, tmp_path: Path) -> None:
    for name, reasons in (("gpt-5-mini", True), ("o3", True), ("qwen3-vl-8b", False), ("gpt-4o", False)):
        model = grader(server, tmp_path, model=name, size=16)
        assert model.config.reasons == reasons
        model.score([at_five_fps(name)])
        body = judge.requests[-1].body
        assert ("temperature" not in body) == reasons and (body["max_tokens"] > 1000) == reasons
        model.close()
    assert GraderConfig(model="gpt-5", family="plain").reasons is False


def test_it_follows_the_protocol_and_names_the_chat_model(server: ScriptedServer, tmp_path: Path) -> None:
    model = grader(server, tmp_path, "prefixes=3", model="org/Some-VL 8B", size=16)
    assert re.fullmatch(r"grader-[\w.-]+-3-prefixes", model.card.name)
    check_model(model).raise_if_broken()
    found = model.estimate([at_five_fps(str(number)) for number in range(20)])
    assert (found.episodes, found.estimate.requests) == (20, 60)
    model.close()
    with pytest.raises(UnknownName):
        GraderConfig.read("prefix=3", {})
    with pytest.raises(BadInput):
        GraderConfig.read("dense", {})
