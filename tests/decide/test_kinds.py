"""Kinds of failure from a chat model, over real HTTP."""

from typing import Any

import numpy as np
import pytest

from demerit.data.episode import Episode
from demerit.decide.detector import Detection
from demerit.decide.kinds import FRAMES, ask_kinds
from demerit.llm import ChatClient, Endpoint
from fakes.chat_server import Faults, Request, ScriptedServer


def test_only_failures_are_asked_about_and_only_known_kinds_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    answers = {"pour tea": "spill", "fold it": "a made-up kind"}
    asked: list[str] = []

    def author(request: Request) -> dict[str, Any]:
        task = next(name for name in (*answers, "stack it") if name in request.text)
        asked.append(task)
        return {"kind": answers[task]}

    frames = np.zeros((20, 16, 16, 3), np.uint8)
    alarms = {"pour tea": 7, "stack it": None, "fold it": 3}
    judged = [
        (Episode.from_array(frames, task, id=task), Detection(task, frame, 0.6, 0.5, went_wrong_at=frame))
        for task, frame in alarms.items()
    ]
    with ScriptedServer(author, Faults()) as server, ChatClient(Endpoint(server.url, "scripted"), None) as client:
        found = ask_kinds(judged, client)
    assert [one.kind for _, one in found] == ["spill", "", ""]
    assert sorted(asked) == ["fold it", "pour tea"] and FRAMES == 8
    assert [episode.id for episode, _ in found] == list(alarms)
