"""Stages from a chat model, over real HTTP."""

from typing import Any

import pytest

from demerit.errors import BadInput
from demerit.llm import ChatClient, Endpoint
from demerit.use.gym.decompose import ask_stages
from fakes.chat_server import Faults, Request, ScriptedServer


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")


def ask(answer: dict[str, Any], **faults: Any) -> list[str]:
    def author(request: Request) -> dict[str, Any]:
        assert "make tea" in request.text
        return answer

    with ScriptedServer(author, Faults(**faults)) as server:
        with ChatClient(Endpoint(server.url, "scripted"), None) as client:
            return ask_stages("make tea", client)


def test_stages_come_in_order() -> None:
    assert ask({"stages": ["fill the  kettle", " heat it"]}) == ["fill the kettle", "heat it"]


@pytest.mark.parametrize("stages", [[], [" "], ["a", ""], ["too long"] * 9, [3]])
def test_an_answer_without_usable_stages_is_refused(stages: list[Any]) -> None:
    with pytest.raises(BadInput):
        ask({"stages": stages})


def test_a_refusal_is_no_stage() -> None:
    with pytest.raises(BadInput, match="refused"):
        ask({"stages": ["unused"]}, rates={"refusal": 1.0})
