"""`gvl`: any vision-language model behind an OpenAI-compatible server rates the shuffled frames of an episode.

The frames are shown in random order, the first one as an anchor with the value 0, and the model gives each a
percentage; so it cannot simply count upwards. Examples of bad behaviour in the prompt (`gvl:text`, `gvl:video`,
`gvl:dense`) show it what failure is.

A prompt shows the rollout's instruction and frames, never its labels. Answers are matched by frame number, never by
position. What cannot be read for certain is unscored with a reason. A user's own prompt (`gvl:prompt=FILE`) is sent
without a schema, so that the model reads nothing but the user's words.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, WithJsonSchema

from demerit.data.dataset import Record
from demerit.data.episode import Episode
from demerit.data.frames import Indices, short_hash, spread
from demerit.data.reward import GENERATIONS, Reward
from demerit.errors import BadInput, DemeritError
from demerit.llm import ChatClient, ChatRequest, ChatResponse, ScoringEstimate, Spending
from demerit.llm.client import find_json
from demerit.models.gvl.config import (
    FrameOrder,
    GVLConfig,
    ShownParts,
    choose_frames,
    encode_frames,
    prompts_hash,
    write_prompt,
)
from demerit.models.gvl.library import (
    ContextBuilder,
    FailureDescriptions,
    Library,
    PromptContext,
    Remarks,
    describe_failures,
    gather_remarks,
)
from demerit.models.protocol import ModelCard, ShownModel
from demerit.registry import load_attribute

MISSING = "missing from the answer"
ONE_FRAME = "it has only one frame, the anchor"
NO_INSTRUCTION = "it has no instruction"
MAX_REASONS = 4
FRAME_KEYS, PERCENT_KEYS = ("frame", "frame_number"), ("percent", "task_reward")
"""what answers to a user's own prompt may call the number and the percentage of a frame"""
LONGEST_QUOTE = 80
NO_LIST = "unreadable: no JSON list of frames with numbers and percentages"


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
    generations: dict[int, dict[str, str]] = field(default_factory=dict)
    """what came back, by sample"""

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
    prompt: str = field(init=False)
    """with placeholders"""
    _builder: ContextBuilder = field(init=False)

    def __post_init__(self) -> None:
        """Read the prompt; keep encoded examples between calls."""
        self.prompt = self.config.read_prompt()
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
            EpisodeAnswers(episode, context, [None] * count)
            for episode, context in zip(episodes, contexts, strict=True)
        ]
        sent: list[Destination] = []
        for index, response in self.client.ask_all(self.requests(answers, temperature, sent)):
            answer, sample, order = sent[index]
            curve = SampledCurve.of(order, read_ratings(response, len(order)))
            answer.samples[sample] = curve
            answer.generations[sample] = response.record(
                f"sample {sample}", "" if curve.answered else _reasons([curve])
            )
        return answers

    def requests(
        self, answers: Iterable[EpisodeAnswers], temperature: float | None, sent: list[Destination]
    ) -> Iterator[ChatRequest]:
        """Write requests one by one, so that frames are decoded only when they are sent; notes each in `sent`."""
        for answer in answers:
            try:
                for request, sample, order in self._episode_requests(answer, temperature):
                    sent.append((answer, sample, order))
                    yield request
            except DemeritError as error:
                answer.error = str(error)

    def _episode_requests(
        self, answer: EpisodeAnswers, temperature: float | None
    ) -> Iterator[tuple[ChatRequest, int, FrameOrder]]:
        """Write the requests about one episode; every sample shows the same frames in another order."""
        episode, config = answer.episode, self.config
        if not episode.instruction.strip():
            raise DemeritError(NO_INSTRUCTION)
        fingerprint = episode.fingerprint()
        first = choose_frames(len(episode), config.frames, fingerprint)
        if not len(first):
            raise DemeritError(ONE_FRAME)
        at = first.at()
        images = dict(zip(at.tolist(), encode_frames(episode, at, config.size), strict=True))
        schema = None if config.prompt else FrameAnswers
        for sample in range(len(answer.samples)):
            seed = f"{fingerprint} {sample}" if sample else fingerprint
            order = choose_frames(len(episode), config.frames, seed)
            parts: ShownParts = {
                "first_frame": [({}, images[order.anchor])],
                "frame": [({"number": n}, images[index]) for n, index in enumerate(order.order.tolist(), 1)],
                **answer.context[0],
            }
            messages = write_prompt(self.prompt, {"task": episode.instruction.strip(), "count": len(order)}, parts)
            tokens = config.answer_tokens
            yield ChatRequest(messages, schema, temperature, sample, tokens, config.name), sample, order

    def contexts(self, episodes: Sequence[Episode], offline: bool = False) -> list[PromptContext]:
        """Build every episode's context.

        Args:
            episodes: the evaluated ones.
            offline: send nothing; descriptions that are not cached get a placeholder of typical length.
        """
        if self.library is None or self.config.context == "none":
            return [self._builder.build(None, None) for _ in episodes]
        allowed = [self.library.allowed_examples(episode, self.config.same_task) for episode in episodes]
        remarks = [gather_remarks(examples) for examples in allowed]
        described = self._cached_descriptions(remarks) if offline else describe_failures(self.client, remarks)
        return [
            self._builder.build(examples, described[group]) for examples, group in zip(allowed, remarks, strict=True)
        ]

    def description_requests(self, episodes: Sequence[Episode]) -> list[ChatRequest]:
        """The requests for failure descriptions that these episodes' contexts need, each once."""
        if self.library is None or self.config.context == "none":
            return []
        allowed = (self.library.allowed_examples(episode, self.config.same_task) for episode in episodes)
        remarks = dict.fromkeys(map(gather_remarks, allowed))
        return [group.request() for group in remarks if group.texts]

    def _cached_descriptions(self, remarks: Sequence[Remarks]) -> dict[Remarks, FailureDescriptions]:
        different = dict.fromkeys(remarks)
        cached = [group for group in different if group.texts and self.client.estimate([group.request()]).cached]
        return {group: FailureDescriptions(("x" * 100,) * 3) for group in remarks} | describe_failures(
            self.client, cached
        )


def read_ratings(response: ChatResponse, count: int) -> FrameRatings:
    """Match an answer with the `count` frames that were shown."""
    if isinstance(response.parsed, FrameAnswers):
        return align(((entry.frame, entry.percent) for entry in response.parsed.frames), count)
    entries = None if response.why_not else read_entries(response.text)
    if entries is None:
        return _leave_unscored(count, response.why_not or f"{NO_LIST} in {response.text[:LONGEST_QUOTE]!r}")
    return align(entries, count)


def read_entries(text: str) -> list[tuple[Any, Any]] | None:
    """Read (number, percentage) entries from an answer without a schema; None if it holds no list of entries.

    The JSON is a list of objects, or an object that holds such a list; see `FRAME_KEYS` and `PERCENT_KEYS`.
    """
    try:
        answer = json.loads(find_json(text))
    except (ValueError, RecursionError):
        return None
    lists = [value for value in answer.values() if isinstance(value, list)] if isinstance(answer, dict) else [answer]
    if len(lists) != 1 or not isinstance(lists[0], list) or not all(isinstance(entry, dict) for entry in lists[0]):
        return None
    return [(_first_known(entry, FRAME_KEYS), _first_known(entry, PERCENT_KEYS)) for entry in lists[0]]


def _first_known(entry: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((entry[name] for name in names if name in entry), None)


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
    for number, rating in listed:
        if number is None or not 1 <= number <= count:
            continue
        percent = read_percent(rating)
        if times[number] > 1:
            why[number] = f"answered {times[number]} times"
        elif percent is None:
            why[number] = f"no percentage can be read from {repr(rating)[:40]}"
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
    is_known = ~np.isnan(values)
    count = is_known.sum(axis=0)
    safe = np.maximum(count, 1)
    mean = np.where(count > 0, np.where(is_known, values, 0.0).sum(axis=0) / safe, np.nan)
    squares = np.where(is_known, (values - np.where(np.isnan(mean), 0.0, mean)) ** 2, 0.0).sum(axis=0)
    spread = np.where(count > 1, np.sqrt(squares / safe), np.nan)
    return mean, spread, count


def _leave_unscored(count: int, reason: str) -> FrameRatings:
    return FrameRatings(np.full(count, np.nan), dict.fromkeys(range(1, count + 1), reason))


def _find_doubt(times: Counter[int | None], percents: list[Any], count: int) -> str:
    """Return why the whole answer cannot be trusted; empty if it can."""
    if times[0] and not times[count] and sum(times.values()) == count:
        return f"the answer counts from 0 to {count - 1}, the frames were 1 to {count}"
    values = [value for value in map(read_percent, percents) if value is not None]
    if values and max(values) <= 1 and min(values) >= 0 and any(value % 1 for value in values):
        return "all values are between 0 and 1: percentages or fractions?"
    return ""


def _frame_number(value: Any) -> int | None:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(?:frame)?\s*#?\s*(\d+)\s*:?\s*", value, re.IGNORECASE)
        return int(match[1]) if match else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if math.isfinite(value) and value == int(value) else None


ESTIMATED_FROM = 8
"""episodes that an estimate looks at"""
DIGITS = 4
_EXAMPLES = {
    "none": "no examples",
    "text": "descriptions of failures",
    "video": "descriptions and pictures of failures",
    "dense": "descriptions and pictures of failures and values per step",
}


class GVL(ShownModel):
    """Progress of shuffled frames, as a vision-language model sees it."""

    def __init__(
        self,
        options: str = "",
        *,
        examples: Library | Iterable[Record] | str | Path | None = None,
        client: ChatClient | None = None,
        **changes: Any,
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            options: as in `gvl:dense,samples=3,examples=my_set` (see `GVLConfig`).
            examples: where examples of bad behaviour come from; needed for every context but none.
            client: the client to use; None makes or shares one by the options (url, model, cache ...).
            **changes: options by name.
        """
        load_attribute("openai:OpenAI", "the model 'gvl'")  # one error now instead of one per episode
        if client is not None:
            changes = {**changes, "model": client.endpoint.model}
        self.config = config = GVLConfig.read(options, changes)
        self.library: Library | None = None
        if config.same_task and config.context == "none":
            raise BadInput("option same_task of gvl", "a context with examples: text, video or dense", "none")
        if config.context != "none":
            examples = config.examples if examples is None else examples
            if examples == "":
                expected = f"a demerit folder with failed rollouts: gvl:{config.context},examples=FOLDER"
                raise BadInput(f"gvl:{config.context}", expected, "none")
            self.library = Library.open(examples)
        self.client = config.client() if client is None else client
        self.prompter = Prompter(self.client, config, self.library)
        self.card = _make_card(config, self.prompter.prompt, self.library)

    def score(self, episodes: Sequence[Episode]) -> list[Reward]:
        """Ask about each episode; what is not answered, or not readably, is unscored with the reason."""
        return [self._make_reward(answers) for answers in self.prompter.ask(episodes)]

    def estimate(self, episodes: Iterable[Episode]) -> ScoringEstimate:
        """Estimate the cost of scoring without sending anything: looks at a few episodes and scales up."""
        batch = list(episodes)
        sample = [batch[index] for index in spread(len(batch), ESTIMATED_FROM)]
        contexts = self.prompter.contexts(sample, offline=True)
        answers = [
            EpisodeAnswers(episode, context, [None] * self.config.samples)
            for episode, context in zip(sample, contexts, strict=True)
        ]
        requests = [*self.prompter.requests(answers, self.config.temperature, [])]
        cost = self.client.estimate([*requests, *self.prompter.description_requests(sample)])
        return ScoringEstimate.scaled(cost, len(batch), len(sample))

    def close(self) -> None:
        """Close the connections; the next request opens them again."""
        self.client.close()

    @property
    def spent(self) -> Spending:
        """What the client sent and paid so far; models may share a client."""
        return self.client.spent

    def _make_reward(self, answers: EpisodeAnswers) -> Reward:
        name, episode, received = self.card.name, answers.episode, answers.received_samples()
        samples = [sample for sample in received if sample.answered]
        facts = self._given(answers)
        if answers.error or not samples:
            return Reward.unscored(name, episode.id, answers.error or _reasons(received), facts)
        mean, deviation, count = mean_and_spread(samples)
        facts |= {"answers": len(samples), "ignored entries": sum(sample.ignored for sample in samples)}
        if len(samples) < len(answers.samples):
            facts["unanswered"] = [_reasons([sample]) for sample in received if not sample.answered]
        if self.config.samples > 1:
            facts |= _describe_spread(deviation, count, len(samples))
        at = samples[0].at
        missing = {
            int(index): "; ".join(
                dict.fromkeys(sample.why[int(index)] for sample in samples if int(index) in sample.why)
            )
            for index in at[np.isnan(mean)]
        }
        return Reward(name, episode.id, at, mean.astype(np.float32), None, group_reasons(missing), facts)

    def _given(self, answers: EpisodeAnswers) -> dict[str, Any]:
        received = answers.received_samples()
        return {
            "camera": answers.episode.main_camera,
            "frames": len(received[0].at) if received else 0,
            "instruction": bool(answers.episode.instruction.strip()),
            "pixels": True,
            "image size": self.config.size,
            "anchor": "the first frame, 0 by definition",
            "model": self.client.endpoint.model,
            "temperature": self.config.temperature,
            "samples": self.config.samples,
            "prompt": self.config.name_prompt(self.prompter.prompt),
            **answers.context[1],
            GENERATIONS: [
                *answers.context[1].get(GENERATIONS, ()),
                *(answers.generations[sample] for sample in sorted(answers.generations)),
            ],
        }


def _make_card(config: GVLConfig, prompt: str, library: Library | None) -> ModelCard:
    identity = [config.identity, prompts_hash(prompt), library.identity if library is not None else ""]
    examples = _EXAMPLES[config.context]
    if config.same_task:
        examples += " of the evaluated task itself, which tell about the pair to judge, so that results are too good"
    several = f"the mean of {config.samples} answers" if config.samples > 1 else "one answer"
    return ModelCard(
        name=config.name,
        revision=f"{config.model} {config.name_prompt(prompt)}",
        licence="that of the model behind the server",
        quantity="progress",
        low=0.0,
        high=1.0,
        causal=False,
        comparable=True,
        frame_budget=config.frames,
        weights_hash=short_hash(json.dumps(identity, sort_keys=True).encode()),
        about=(
            f"Percentages by a vision-language model for {config.frames} shuffled frames of at most {config.size} "
            f"pixels, {several}, {examples}. Not causal: all frames are in one prompt. Comparable "
            "between episodes, as 0 is the first frame and 100 the task done in each; an episode that starts half "
            "done is misjudged."
        ),
    )


def _reasons(samples: Sequence[SampledCurve]) -> str:
    """Return why no sample has a value."""
    reasons: dict[str, None] = {}
    for sample in samples:
        different = set(sample.why.values())
        reasons[different.pop() if len(different) == 1 else group_reasons(sample.why)] = None
    return "; ".join(reasons) or "nothing was asked"


def _describe_spread(deviation: Any, count: Any, samples: int) -> dict[str, Any]:
    """How far the samples are apart: standard deviation per frame (None with fewer than two) and its mean."""
    numbers = deviation[1:][~np.isnan(deviation[1:])]
    facts: dict[str, Any] = {
        "spread": round(float(numbers.mean()), DIGITS) if numbers.size else None,
        "spread per frame": [None if np.isnan(value) else round(float(value), DIGITS) for value in deviation],
    }
    if bool(np.any(count < samples)):
        facts["answers per frame"] = count.tolist()
    return facts
