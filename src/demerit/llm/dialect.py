"""What a server understands of the protocol, learnt from what it refuses.

"OpenAI-compatible" means different things: some refuse `response_format`, some `seed`, some want
`max_completion_tokens`. A refusal is free and names what it is about; the next request leaves that out.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from demerit.llm.asks import ChatRequest, Endpoint, rules_of

_LADDER = ("json_schema", "json_object", "none")
_SCHEMA_WORDS = ("response_format", "json_schema", "json_object", "schema", "structured output", "guided", "grammar")
_REFUSALS = (400, 404, 415, 422, 501)


@dataclass(frozen=True)
class Dialect:
    """How a request to one server is written."""

    schema: str
    """json_schema, json_object or none"""
    seed: bool = True
    length: str = "max_tokens"
    in_words: bool = True
    """the schema is also put into words, for servers that take a response format and ignore it"""

    @classmethod
    def first(cls, endpoint: Endpoint, known: dict[str, Any] | None) -> Dialect:
        """Start with what was learnt before, else with everything the protocol has."""
        mode = endpoint.schema_mode
        start = cls(_LADDER[0] if mode == "auto" else mode, in_words=mode != "json_schema")
        if known is None:
            return start
        learnt = known.get("schema") if mode == "auto" and known.get("schema") in _LADDER else start.schema
        return replace(start, schema=str(learnt), seed=bool(known.get("seed", True)), length=str(known["length"]))

    def facts(self) -> dict[str, Any]:
        """What is worth remembering."""
        return asdict(self)

    def write(self, ask: ChatRequest, model: str) -> dict[str, Any]:
        """Write an ask as the body of a request."""
        messages = [message.wire() for message in ask.messages]
        body: dict[str, Any] = {"model": model, "messages": messages, self.length: ask.max_tokens}
        if ask.temperature is not None:
            body["temperature"] = ask.temperature
        if self.seed:
            body["seed"] = ask.sample
        if ask.schema is None:
            return body
        if self.in_words:
            messages.append({"role": "user", "content": schema_in_words(ask)})
        if self.schema == "json_schema":
            body["response_format"] = _json_schema(ask)
        elif self.schema == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body

    def after(self, status: int, message: str, body: dict[str, Any], endpoint: Endpoint) -> tuple[Dialect, str] | None:
        """How to write it instead, and what to say about that; None when the refusal is about something else."""
        words = message.lower()
        if status not in _REFUSALS:
            return None
        if self.length == "max_tokens" and "max_completion_tokens" in words:
            return replace(self, length="max_completion_tokens"), "wants max_completion_tokens instead of max_tokens"
        format_ = body.get("response_format", {}).get("type")
        if format_ and endpoint.schema_mode == "auto" and any(word in words for word in _SCHEMA_WORDS):
            lower = _LADDER[_LADDER.index(format_) + 1]
            how = "asking in words" if lower == "none" else f"asking for {lower} and in words"
            return replace(self, schema=lower), f"refuses response_format {format_}: {how} instead"
        if "seed" in body and "seed" in words:
            return replace(self, seed=False), "refuses a seed: none is sent"
        return None


def schema_in_words(ask: ChatRequest) -> str:
    """Say what the answer must be, for models whose server does not enforce it."""
    rules = rules_of(ask.schema) if ask.schema else {}
    return f"Answer with one JSON object and nothing else. It must fit this JSON Schema:\n{json.dumps(rules)}"


def _json_schema(ask: ChatRequest) -> dict[str, Any]:
    from openai import pydantic_function_tool  # noqa: PLC0415

    assert ask.schema is not None
    strict = pydantic_function_tool(ask.schema)["function"]["parameters"]
    return {"type": "json_schema", "json_schema": {"name": ask.schema.__name__, "strict": True, "schema": strict}}
