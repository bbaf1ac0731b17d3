"""Stages of a long task, from a chat model."""

from __future__ import annotations

from pydantic import BaseModel, Field

from demerit.errors import BadInput
from demerit.llm import ChatClient, ChatRequest, Message

MOST = 8
ASKED = """A robot is to carry out this instruction: "{instruction}"

Write the stages of it, in order, as instructions to the robot. Each stage ends in a state that a camera can see, and
the last one ends where the whole instruction is fulfilled. Use as few stages as possible, {most} at most. Add nothing
that was not asked for. If the instruction is a single step, repeat it."""


class StageList(BaseModel):
    """The answer."""

    stages: list[str] = Field(min_length=1, max_length=MOST)


def ask_stages(instruction: str, client: ChatClient) -> list[str]:
    """Ask a chat model for the stages of an instruction: what `RewardEnv` takes as several instructions.

    Look at them before you train on them.
    """
    request = ChatRequest((Message.user(ASKED.format(instruction=instruction, most=MOST)),), StageList)
    response = client.ask(request)
    if not isinstance(response.parsed, StageList):
        raise BadInput(f"the chat model at {client.endpoint.host}", "a list of stages", response.why_not)
    stages = [" ".join(stage.split()) for stage in response.parsed.stages]
    if not all(stages):
        raise BadInput(f"the chat model at {client.endpoint.host}", "stages in words", stages)
    return stages
