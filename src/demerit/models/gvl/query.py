"""Asking about rollouts: from episodes to requests, and from answers to a value per frame.

A prompt shows the rollout's instruction and frames, never its labels. Answers are matched by frame number, never by
position. What cannot be read for certain is unscored with a reason.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, WithJsonSchema

from demerit.data.episode import Episode
from demerit.data.frames import Indices
from demerit.errors import DemeritError
from demerit.llm import ChatClient, ChatRequest, ChatResponse, Message
from demerit.models.gvl.config import GVLConfig
from demerit.models.gvl.context import (
    ContextBuilder,
    FailureDescriptions,
    PromptContext,
    Remarks,
    describe_failures,
    gather_remarks,
)
from demerit.models.gvl.library import Library
from demerit.models.gvl.prompt import (
    ANCHOR_LABEL,
    FrameOrder,
    PromptPart,
    choose_frames,
    encode_frames,
    fill_prompt,
    frame_label,
)

MISSING = "missing from the answer"
ONE_FRAME = "it has only one frame, the anchor"
NO_INSTRUCTION = "it has no instruction"
MAX_REASONS = 4


# The docstrings and fields of these two are sent to the model and are part of every cache key: do not edit them.
class FrameAnswer(BaseModel):
    """One picture's entry. The schema that is sent is strict; what comes back is checked entry by entry, here."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"required": ["frame", "description", "percent"], "additionalProperties": False},
    )

    frame: Annotated[Any, WithJsonSchema({"type": "integer"})] = None
    description: Annotated[Any, WithJsonSchema({"type": "string"})] = None
    percent: Annotated[Any, WithJsonSchema({"type": "number"})] = None


class FrameAnswers(BaseModel):
    """The whole answer."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"required": ["frames"], "additionalProperties": False})

    frames: list[FrameAnswer]


class FrameRatings(NamedTuple):
    """The values of one answer, by frame number."""

    value: npt.NDArray[np.float64]
    """0 to 1, NaN = unscored; frame number n is value[n - 1]"""
    why: dict[int, str]
    """the reason for each unscored frame, by its number"""
    ignored: int = 0
    """entries for frames that were never shown"""


@dataclass(frozen=True, eq=False)
class SampledCurve:
    """One answer about one episode, in the order of time."""

    at: Indices
    """the frames that were shown, increasing; the first is the anchor"""
    value: npt.NDArray[np.float64]
    """0 to 1, the anchor 0 by definition, NaN = unscored"""
    why: dict[int, str]
    """the reason for each unscored frame, by its index in the episode"""
    ignored: int = 0
    """entries for frames that were never shown"""

    @property
    def answered(self) -> bool:
        """Whether anything but the anchor has a value."""
        return bool(np.any(~np.isnan(self.value[1:])))

    @property
    def complete(self) -> bool:
        """Whether every frame has a value."""
        return not self.why

    @classmethod
    def of(cls, shown: FrameOrder, ratings: FrameRatings) -> SampledCurve:
        """Put ratings back into the order of time."""
        at = shown.at()
        by_index = {int(index): value for index, value in zip(shown.order, ratings.value, strict=True)}
        value = np.array([by_index.get(int(index), 0.0) for index in at], dtype=np.float64)
        why = {int(shown.order[number - 1]): reason for number, reason in ratings.why.items()}
        return cls(at, value, dict(sorted(why.items())), ratings.ignored)


@dataclass(eq=False)
class EpisodeAnswers:
    """Everything that came back about one episode."""

    episode: Episode
    context: PromptContext
    samples: list[SampledCurve | None]
    error: str = ""
    """why it was not asked about at all"""

    def received_samples(self) -> list[SampledCurve]:
        """The samples that came back, with or without a usable value."""
        return [sample for sample in self.samples if sample is not None]


Destination = tuple[EpisodeAnswers, int, FrameOrder]
"""where a response belongs: the episode, the sample number, and the frames shown"""


@dataclass(eq=False)
class Prompter:
    """Asks one model about rollouts, with one configuration."""

    client: ChatClient
    config: GVLConfig
    library: Library | None = None
    """where examples of bad behaviour come from"""
    _builder: ContextBuilder = field(init=False)

    def __post_init__(self) -> None:
        """Keep encoded examples between calls."""
        self._builder = ContextBuilder(self.config)

    def ask(
        self, episodes: Sequence[Episode], samples: int | None = None, temperature: float | None = None
    ) -> list[EpisodeAnswers]:
        """Ask about each episode.

        Args:
            episodes: their main cameras are shown.
            samples: answers per episode; None = as configured.
            temperature: None = as configured.
        """
        count = self.config.samples if samples is None else samples
        temperature = self.config.temperature if temperature is None else temperature
        contexts = self.contexts(episodes)
        answers = [
            EpisodeAnswers(one, context, [None] * count) for one, context in zip(episodes, contexts, strict=True)
        ]
        sent: list[Destination] = []
        for index, response in self.client.ask_all(self.requests(answers, temperature, sent)):
            answer, sample, shown = sent[index]
            answer.samples[sample] = SampledCurve.of(shown, read_ratings(response, len(shown)))
        return answers

    def requests(
        self, answers: Iterable[EpisodeAnswers], temperature: float | None, sent: list[Destination]
    ) -> Iterator[ChatRequest]:
        """Write requests one by one, so that frames are decoded only when they are sent; notes each in `sent`."""
        for answer in answers:
            try:
                for request, sample, shown in self._episode_requests(answer, temperature):
                    sent.append((answer, sample, shown))
                    yield request
            except DemeritError as error:
                answer.error = str(error)

    def _episode_requests(
        self, answer: EpisodeAnswers, temperature: float | None
    ) -> Iterator[tuple[ChatRequest, int, FrameOrder]]:
        """Write the requests about one episode; every sample shows the same frames in another order."""
        episode, config = answer.episode, self.config
        if not episode.instruction.strip():
            raise _CannotAsk(NO_INSTRUCTION)
        fingerprint = episode.fingerprint()
        first = choose_frames(len(episode), config.frames, fingerprint)
        if not len(first):
            raise _CannotAsk(ONE_FRAME)
        at = first.at()
        images = dict(zip(at.tolist(), encode_frames(episode, at, config.size), strict=True))
        tag = "gvl" if config.context == "none" else f"gvl+{config.context}"
        for sample in range(len(answer.samples)):
            seed = f"{fingerprint} {sample}" if sample else fingerprint
            shown = choose_frames(len(episode), config.frames, seed)
            parts: list[PromptPart] = [fill_prompt("task", task=episode.instruction.strip())]
            parts += [ANCHOR_LABEL, images[shown.anchor], *answer.context.parts]
            parts.append(fill_prompt("frames", count=len(shown)))
            for number, index in enumerate(shown.order.tolist(), 1):
                parts += [frame_label(number), images[index]]
            messages = (Message.system(fill_prompt("system")), Message.user(*parts))
            yield ChatRequest(messages, FrameAnswers, temperature, sample, config.answer_tokens, tag), sample, shown

    def contexts(self, episodes: Sequence[Episode], offline: bool = False) -> list[PromptContext]:
        """Build every episode's context.

        Args:
            episodes: the evaluated ones.
            offline: send nothing; descriptions that are not cached get a placeholder of typical length.
        """
        if self.library is None or self.config.context == "none":
            return [self._builder.build(None, None) for _ in episodes]
        allowed = [self.library.allowed_examples(episode) for episode in episodes]
        remarks = [gather_remarks(examples) for examples in allowed]
        described = self._cached_descriptions(remarks) if offline else describe_failures(self.client, remarks)
        return [self._builder.build(examples, described[said]) for examples, said in zip(allowed, remarks, strict=True)]

    def description_requests(self, episodes: Sequence[Episode]) -> list[ChatRequest]:
        """The requests for failure descriptions that these episodes' contexts need, each once."""
        if self.library is None or self.config.context == "none":
            return []
        remarks = dict.fromkeys(gather_remarks(self.library.allowed_examples(episode)) for episode in episodes)
        return [said.request() for said in remarks if said.texts]

    def _cached_descriptions(self, remarks: Sequence[Remarks]) -> dict[Remarks, FailureDescriptions]:
        different = dict.fromkeys(remarks)
        cached = [said for said in different if said.texts and self.client.estimate([said.request()]).cached]
        return {said: FailureDescriptions(("x" * 100,) * 3) for said in remarks} | describe_failures(
            self.client, cached
        )


class _CannotAsk(DemeritError):
    """An episode that cannot be asked about."""


def read_ratings(response: ChatResponse, count: int) -> FrameRatings:
    """Match an answer with the `count` frames that were shown."""
    if isinstance(response.parsed, FrameAnswers):
        return align(((entry.frame, entry.percent) for entry in response.parsed.frames), count)
    return _leave_unscored(count, response.why_not)


def align(entries: Iterable[tuple[Any, Any]], count: int) -> FrameRatings:
    """Sort (number, percentage) entries by frame number; what is not certain is unscored.

    Args:
        entries: as the model gave them.
        count: frames shown, numbered from 1.
    """
    listed = [(_frame_number(number), percent) for number, percent in entries]
    times = Counter(number for number, _ in listed)
    doubt = _find_doubt(times, [percent for _, percent in listed], count)
    if doubt:
        return _leave_unscored(count, doubt)
    value, why = np.full(count, np.nan), dict.fromkeys(range(1, count + 1), MISSING)
    for number, given in listed:
        if number is None or not 1 <= number <= count:
            continue
        percent = read_percent(given)
        if times[number] > 1:
            why[number] = f"answered {times[number]} times"
        elif percent is None:
            why[number] = f"no percentage can be read from {repr(given)[:40]}"
        elif not 0 <= percent <= 100:  # noqa: PLR2004
            why[number] = f"{percent:g} is outside 0 to 100"
        else:
            value[number - 1] = percent / 100
            del why[number]
    # Some models repeat the anchor as number 0, which is harmless.
    ignored = sum(1 for number, _ in listed if number is None or not 0 <= number <= count)
    return FrameRatings(value, why, ignored)


def read_percent(given: Any) -> float | None:
    """Read 45, 45.5, "45" or "45 %"; None for anything else, NaN and infinity included."""
    if isinstance(given, str):
        match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*%?\s*", given)
        return float(match[1]) if match else None
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        return None
    return float(given)


def group_reasons(why: Mapping[int, str]) -> str:
    """Describe why frames are unscored: `frames 3, 7: missing from the answer; frame 9: ...`."""
    by_reason: dict[str, list[int]] = {}
    for index, reason in sorted(why.items()):
        by_reason.setdefault(reason, []).append(index)
    groups = [
        f"frame{'s' if len(frames) > 1 else ''} {', '.join(map(str, frames))}: {reason}"
        for reason, frames in list(by_reason.items())[:MAX_REASONS]
    ]
    more = len(by_reason) - MAX_REASONS
    return "; ".join(groups) + (f"; and {more} more reasons" if more > 0 else "")


def mean_and_spread(samples: Sequence[SampledCurve]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Mean, population standard deviation and number of answers per frame, over the samples that have it.

    A frame without an answer is NaN; one answer has no spread, which is NaN as well.
    """
    values = np.stack([sample.value for sample in samples])
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    safe = np.maximum(count, 1)
    mean = np.where(count > 0, np.where(known, values, 0.0).sum(axis=0) / safe, np.nan)
    squares = np.where(known, (values - np.where(np.isnan(mean), 0.0, mean)) ** 2, 0.0).sum(axis=0)
    spread = np.where(count > 1, np.sqrt(squares / safe), np.nan)
    return mean, spread, count


def _leave_unscored(count: int, reason: str) -> FrameRatings:
    return FrameRatings(np.full(count, np.nan), dict.fromkeys(range(1, count + 1), reason))


def _find_doubt(times: Counter[int | None], percents: list[Any], count: int) -> str:
    """Return why the whole answer cannot be trusted; empty if it can."""
    if times[0] and not times[count] and sum(times.values()) == count:
        return f"the answer counts from 0 to {count - 1}, the frames were 1 to {count}"
    known = [value for value in map(read_percent, percents) if value is not None]
    if known and max(known) <= 1 and min(known) >= 0 and any(value % 1 for value in known):
        return "all values are between 0 and 1: percentages or fractions?"
    return ""


def _frame_number(given: Any) -> int | None:
    if isinstance(given, str):
        match = re.fullmatch(r"\s*(?:frame)?\s*#?\s*(\d+)\s*:?\s*", given, re.IGNORECASE)
        return int(match[1]) if match else None
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    return int(given) if math.isfinite(given) and given == int(given) else None
