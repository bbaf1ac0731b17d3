"""Failure descriptions from people's free text: what goes wrong at a task, in a few general sentences.

One question to a model per task and set of remarks, cached like every other. Where nobody wrote anything, as in a
simulator, the kinds of failure that were recorded stand in for the remarks, and the result says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from pydantic import BaseModel

from demerit.data.episode import Episode
from demerit.data.labels import Event
from demerit.data.taxonomy import kind
from demerit.errors import UnknownName
from demerit.llm import ChatClient, ChatRequest, ChatResponse, Message
from demerit.models.gvl.retrieval import Allowed
from demerit.models.gvl.wording import words

MOST_REMARKS = 12
MOST_LOOKED_AT = 200
"""a simulator records the same few kinds of failure over and over"""
LONGEST_REMARK = 600
"""characters; one long story must not crowd out the others"""
MOST_FAILURES = 3
LONGEST_FAILURE = 200
MAX_TOKENS = 600
TAG = "feedback"

Origin = Literal["people", "records", ""]


class Failures(BaseModel):
    """The answer: ways in which attempts go wrong."""

    failures: list[str]


@dataclass(frozen=True)
class Remarks:
    """What one rollout's task is known for, from rollouts that are not its kin."""

    task: str
    texts: tuple[str, ...]
    source: Origin
    """who said so: people in their own words, or recorded kinds of failure"""
    episodes: tuple[str, ...] = ()
    """ids of the rollouts that the remarks are about"""

    def ask(self) -> ChatRequest:
        """Make the question."""
        listed = "\n".join(f"- {text}" for text in self.texts)
        text = words("feedback", task=self.task, remarks=listed, count=MOST_FAILURES)
        return ChatRequest((Message.user(text),), Failures, temperature=0.0, max_tokens=MAX_TOKENS, tag=TAG)


@dataclass(frozen=True)
class Described:
    """Failure descriptions, or the reason why there are none."""

    failures: tuple[str, ...]
    source: Origin = ""
    why_not: str = ""


def gather_remarks(allowed: Allowed) -> Remarks:
    """Collect remarks on the task, the same task's first; what is said twice counts once."""
    task = allowed.episode.instruction
    said = _first_few(islice(allowed.remarks(), MOST_LOOKED_AT))
    if said:
        return Remarks(task, tuple(said), "people", tuple(dict.fromkeys(said.values())))
    recorded = _first_few(
        (one.id, _described(event))
        for one in islice(allowed.where(lambda one: bool(_events(one))), MOST_LOOKED_AT)
        for event in _events(one)
    )
    return Remarks(task, tuple(recorded), "records" if recorded else "", tuple(dict.fromkeys(recorded.values())))


def describe(chat: ChatClient, remarks: Iterable[Remarks]) -> dict[Remarks, Described]:
    """Distil each set of remarks; sets that are equal are asked about once."""
    wanted = list(dict.fromkeys(remarks))
    found = {one: Described((), "", "there are no remarks on this task or one like it") for one in wanted}
    asked = [one for one in wanted if one.texts]
    for number, said in chat.ask_all([one.ask() for one in asked]):
        found[asked[number]] = _read(said, asked[number].source)
    return found


def _read(said: ChatResponse, source: Origin) -> Described:
    if not isinstance(said.parsed, Failures):
        return Described((), "", said.why_not or "the answer has no failures in it")
    lines = (" ".join(one.split())[:LONGEST_FAILURE] for one in said.parsed.failures)
    kept = tuple(dict.fromkeys(line for line in lines if line))[:MOST_FAILURES]
    return Described(kept, source) if kept else Described((), "", "the remarks tell of no failure")


def _first_few(remarks: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Take the first different texts, each with the id of the episode that it is about."""
    found: dict[str, str] = {}
    for id, text in remarks:
        flat = " ".join(text.split())
        found.setdefault(flat if len(flat) <= LONGEST_REMARK else f"{flat[: LONGEST_REMARK - 3]}...", id)
        if len(found) == MOST_REMARKS:
            break
    found.pop("", None)
    return found


def _events(episode: Episode) -> list[Event]:
    return [event for outcome in episode.outcomes if outcome.source != "model" for event in outcome.events]


def _described(event: Event) -> str:
    try:
        definition = kind(event.kind).definition
    except UnknownName:
        return event.kind
    return f"{event.kind}: {definition}"
