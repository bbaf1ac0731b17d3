"""Bad behaviour in a prompt: failure descriptions, images of failed rollouts, images with values per step.

Descriptions are distilled from people's remarks by one request per task and set of remarks. Where there
are none, as in a simulator, the recorded kinds of failure replace them, and the result records this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from demerit.data.episode import Episode
from demerit.data.frames import Indices, spread
from demerit.data.labels import Event, Outcome
from demerit.data.taxonomy import kind
from demerit.errors import UnknownName, UnreadableVideo
from demerit.llm import ChatClient, ChatImage, ChatRequest, ChatResponse, Message
from demerit.models.gvl.config import GVLConfig
from demerit.models.gvl.library import AllowedExamples
from demerit.models.gvl.prompt import (
    PromptPart,
    encode_frames,
    failure_label,
    fill_prompt,
    reference_label,
    shuffle,
)

MAX_REMARKS = 12
MAX_EPISODES_READ = 200
"""a simulator records the same few kinds of failure again and again"""
MAX_REMARK_LENGTH = 600
"""characters; one long story must not crowd out the others"""
MAX_FAILURES = 3
MAX_FAILURE_LENGTH = 200
MAX_TOKENS = 600
MAX_CACHED_EXAMPLES = 512
"""sets of encoded example frames kept in memory; the same examples serve many rollouts"""

RemarkSource = Literal["people", "records", ""]


class Failures(BaseModel):  # its docstring and fields are sent to the model: do not edit
    """The answer: ways in which attempts go wrong."""

    failures: list[str]


@dataclass(frozen=True)
class Remarks:
    """What is known to go wrong at a rollout's task, from unrelated rollouts."""

    task: str
    texts: tuple[str, ...]
    source: RemarkSource
    """people in their own words, or recorded kinds of failure"""
    episodes: tuple[str, ...] = ()
    """ids of the rollouts that the remarks are about"""

    def request(self) -> ChatRequest:
        """Ask for failure descriptions."""
        remarks = "\n".join(f"- {text}" for text in self.texts)
        text = fill_prompt("feedback", task=self.task, remarks=remarks, count=MAX_FAILURES)
        return ChatRequest((Message.user(text),), Failures, temperature=0.0, max_tokens=MAX_TOKENS, tag="feedback")


@dataclass(frozen=True)
class FailureDescriptions:
    """Failure descriptions, or the reason why there are none."""

    failures: tuple[str, ...]
    source: RemarkSource = ""
    why_not: str = ""


@dataclass(frozen=True)
class PromptContext:
    """The parts of a prompt that show bad behaviour, and where they come from."""

    parts: tuple[PromptPart, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)
    """for `Reward.given`: the descriptions, the rollouts shown, and what was lacking"""


def gather_remarks(allowed: AllowedExamples) -> Remarks:
    """Collect different remarks on the task, the same task's first."""
    task = allowed.episode.instruction
    written = _first_different(islice(allowed.remarks(), MAX_EPISODES_READ))
    if written:
        return Remarks(task, tuple(written), "people", tuple(dict.fromkeys(written.values())))
    recorded = _first_different(
        (episode.id, _describe_event(event))
        for episode in islice(allowed.where(lambda episode: bool(_events(episode))), MAX_EPISODES_READ)
        for event in _events(episode)
    )
    return Remarks(task, tuple(recorded), "records" if recorded else "", tuple(dict.fromkeys(recorded.values())))


def describe_failures(client: ChatClient, remarks: Iterable[Remarks]) -> dict[Remarks, FailureDescriptions]:
    """Distil each set of remarks; equal sets are asked about once."""
    wanted = list(dict.fromkeys(remarks))
    found = {said: FailureDescriptions((), "", "there are no remarks on a task like this") for said in wanted}
    asked = [said for said in wanted if said.texts]
    for index, response in client.ask_all([said.request() for said in asked]):
        found[asked[index]] = _read_failures(response, asked[index].source)
    return found


class ContextBuilder:
    """Builds contexts; keeps encoded example frames in memory."""

    def __init__(self, config: GVLConfig) -> None:
        """Take what to show."""
        self.config = config
        self._images: dict[tuple[str, bytes], list[ChatImage]] = {}

    def build(self, allowed: AllowedExamples | None, described: FailureDescriptions | None) -> PromptContext:
        """Build the context of one rollout."""
        kind = self.config.context
        if kind == "none" or allowed is None:
            return PromptContext((), {"context": "none"})
        parts: list[PromptPart] = []
        given: dict[str, Any] = {"context": kind}
        lacking: list[str] = []
        if kind == "dense":
            parts += self._references(allowed, given, lacking)
        parts += _descriptions(described, given, lacking)
        if kind in ("video", "dense"):
            parts += self._failure_frames(allowed, given, lacking)
        if lacking:
            given["lacking"] = lacking
        return PromptContext(tuple(parts), given)

    def _references(self, allowed: AllowedExamples, given: dict[str, Any], lacking: list[str]) -> list[PromptPart]:
        found = []
        for episode, outcome in allowed.with_curve(self.config.shown_examples, not self.config.measured):
            curve = np.asarray(outcome.curve, dtype=np.float64)
            at = _frames_with_value(episode, outcome, self.config.example_frames)
            images = self._encode(episode, at) if len(curve) == _length(episode) else None
            if images is not None:
                found.append((episode, outcome, 100 * curve[at], images))
        if not found:
            lacking.append("values per step of a rejected rollout")
            return []
        given["references"] = [
            {"episode": episode.id, "curve": outcome.by or outcome.source} for episode, outcome, *_ in found
        ]
        parts: list[PromptPart] = [fill_prompt("references")]
        for example, (_, _, percents, images) in enumerate(found, 1):
            for number, (percent, image) in enumerate(zip(percents.tolist(), images, strict=True), 1):
                parts += [reference_label(example, number, round(percent)), image]
        return parts

    def _failure_frames(self, allowed: AllowedExamples, given: dict[str, Any], lacking: list[str]) -> list[PromptPart]:
        shown = []
        for episode in allowed.failures(self.config.shown_examples):
            length = _length(episode)
            images = (
                self._encode(episode, failing_frames(episode, length, self.config.example_frames)) if length else None
            )
            if images is not None:
                shown.append((episode.id, images))
        if not shown:
            lacking.append("pictures of a failed rollout")
            return []
        given["failures shown"] = [id for id, _ in shown]
        parts: list[PromptPart] = [fill_prompt("failure_frames")]
        for example, (_, images) in enumerate(shown, 1):
            for number, image in enumerate(images, 1):
                parts += [failure_label(example, number), image]
        return parts

    def _encode(self, episode: Episode, at: Indices) -> list[ChatImage] | None:
        """Encode frames of an example; None if they cannot be decoded."""
        key = (episode.id, at.tobytes())
        if key not in self._images:
            if len(self._images) >= MAX_CACHED_EXAMPLES:
                self._images.clear()
            try:
                self._images[key] = encode_frames(episode, at, self.config.size)
            except UnreadableVideo:
                return None
        return self._images[key]


def failing_frames(episode: Episode, length: int, count: int) -> Indices:
    """Choose frames that show the failure: from the first recorded event on, else all but the first frame."""
    firsts = [event.first for outcome in episode.outcomes for event in outcome.events if event.first < length]
    start = min(firsts, default=min(1, length - 1))
    return (start + spread(length - start, count)).astype(np.int32)


def _descriptions(
    described: FailureDescriptions | None, given: dict[str, Any], lacking: list[str]
) -> Iterator[PromptPart]:
    if described is None or not described.failures:
        lacking.append(f"failure descriptions: {described.why_not if described else 'not asked for'}")
        return
    given["failure descriptions"] = list(described.failures)
    given["described by"] = described.source
    yield fill_prompt("failures", failures="\n".join(f"{n}. {text}" for n, text in enumerate(described.failures, 1)))


def _frames_with_value(episode: Episode, outcome: Outcome, count: int) -> Indices:
    """Spread over the frames with a value, in an order that does not follow time."""
    known = np.flatnonzero(~np.isnan(np.asarray(outcome.curve)))
    return shuffle(known[spread(len(known), count)].astype(np.int32), episode.id)


def _read_failures(response: ChatResponse, source: RemarkSource) -> FailureDescriptions:
    if not isinstance(response.parsed, Failures):
        return FailureDescriptions((), "", response.why_not)
    lines = (" ".join(text.split())[:MAX_FAILURE_LENGTH] for text in response.parsed.failures)
    kept = tuple(dict.fromkeys(line for line in lines if line))[:MAX_FAILURES]
    return FailureDescriptions(kept, source) if kept else FailureDescriptions((), "", "the remarks name no failure")


def _first_different(remarks: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Take the first different texts, each with the id of its episode."""
    found: dict[str, str] = {}
    for id, text in remarks:
        flat = " ".join(text.split())
        found.setdefault(flat if len(flat) <= MAX_REMARK_LENGTH else f"{flat[: MAX_REMARK_LENGTH - 3]}...", id)
        if len(found) == MAX_REMARKS:
            break
    found.pop("", None)
    return found


def _events(episode: Episode) -> list[Event]:
    return [event for outcome in episode.outcomes if outcome.source != "model" for event in outcome.events]


def _describe_event(event: Event) -> str:
    try:
        return f"{event.kind}: {kind(event.kind).definition}"
    except UnknownName:
        return event.kind


def _length(episode: Episode) -> int:
    try:
        return len(episode)
    except UnreadableVideo:
        return 0
