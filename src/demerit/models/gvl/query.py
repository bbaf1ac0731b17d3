"""Asking about rollouts: from episodes to questions, and from answers back to a value per frame.

What a prompt tells of the rollout itself is its instruction and its pictures. Its labels are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import Indices
from demerit.errors import DemeritError
from demerit.llm import ChatClient, ChatRequest, Message
from demerit.models.gvl.answer import FrameAnswers, Reading, read
from demerit.models.gvl.context import Context, ContextMaker, Part
from demerit.models.gvl.feedback import Described, Remarks, describe, gather_remarks
from demerit.models.gvl.frames import Shown, choose, pictures
from demerit.models.gvl.retrieval import Library
from demerit.models.gvl.settings import GVLConfig
from demerit.models.gvl.wording import Label, words

ONE_FRAME = "it has one frame, the anchor, and nothing else to judge"
NO_INSTRUCTION = "it has no instruction, so there is no task to be achieved"


@dataclass(frozen=True, eq=False)
class Sample:
    """One answer about one episode, in the order of time."""

    at: Indices
    """the frames that were shown, growing; the first is the anchor"""
    value: npt.NDArray[np.float64]
    """0 to 1, the anchor 0 by definition, NaN = unscored"""
    why: dict[int, str]
    """the reason for each unscored frame, by its index in the episode"""
    ignored: int = 0
    """entries for pictures that were never shown"""

    @property
    def answered(self) -> bool:
        """Whether anything but the anchor has a value."""
        return bool(np.any(~np.isnan(self.value[1:])))

    @property
    def complete(self) -> bool:
        """Whether every frame has a value."""
        return not self.why

    @classmethod
    def of(cls, shown: Shown, reading: Reading) -> Sample:
        """Put a reading back into the order of time."""
        at = shown.at()
        by_index = {int(index): value for index, value in zip(shown.order, reading.value, strict=True)}
        value = np.array([by_index.get(int(index), 0.0) for index in at], dtype=np.float64)
        why = {int(shown.order[number - 1]): reason for number, reason in reading.why.items()}
        return cls(at, value, dict(sorted(why.items())), reading.ignored)


@dataclass(eq=False)
class Asked:
    """Everything that came back about one episode."""

    episode: Episode
    context: Context
    samples: list[Sample | None]
    error: str = ""
    """why it was not asked about at all"""

    def answered(self) -> list[Sample]:
        """The samples, those without a usable value included."""
        return [sample for sample in self.samples if sample is not None]


@dataclass(eq=False)
class Prompter:
    """Asks one model about rollouts, in one way."""

    chat: ChatClient
    settings: GVLConfig
    library: Library | None = None
    """where examples of bad behaviour come from"""
    _maker: ContextMaker = field(init=False)

    def __post_init__(self) -> None:
        """Keep encoded examples from one call to the next."""
        self._maker = ContextMaker(self.settings.recipe())

    def ask(
        self, episodes: Sequence[Episode], samples: int | None = None, temperature: float | None = None
    ) -> list[Asked]:
        """Ask about each episode, several times each.

        Args:
            episodes: whose main cameras are shown.
            samples: answers per episode; None = as set.
            temperature: None = as set.
        """
        count = self.settings.samples if samples is None else samples
        warmth = self.settings.temperature if temperature is None else temperature
        contexts = self.contexts(episodes)
        asked = [Asked(one, context, [None] * count) for one, context in zip(episodes, contexts, strict=True)]
        places: list[tuple[Asked, int, Shown]] = []
        for place, said in self.chat.ask_all(self.stream(asked, warmth, places)):
            one, sample, shown = places[place]
            one.samples[sample] = Sample.of(shown, read(said, len(shown)))
        return asked

    def asks(self, asked: Asked, temperature: float | None) -> Iterator[tuple[ChatRequest, int, Shown]]:
        """Write the questions about one episode; every sample shows the same frames in another order."""
        episode, settings = asked.episode, self.settings
        if not episode.instruction.strip():
            raise _Unaskable(NO_INSTRUCTION)
        fingerprint = episode.fingerprint()
        first = choose(len(episode), settings.frames, fingerprint)
        if not len(first):
            raise _Unaskable(ONE_FRAME)
        at = first.at()
        shots = dict(zip(at.tolist(), pictures(episode, at, settings.size), strict=True))
        for sample in range(len(asked.samples)):
            shown = choose(len(episode), settings.frames, f"{fingerprint} {sample}" if sample else fingerprint)
            parts: list[Part] = [words("task", task=episode.instruction.strip())]
            parts += [str(Label("anchor")), shots[shown.anchor], *asked.context.parts]
            parts.append(words("frames", count=len(shown)))
            for number, index in enumerate(shown.order.tolist(), 1):
                parts += [str(Label("frame", number)), shots[index]]
            messages = (Message.system(words("system")), Message.user(*parts))
            ask = ChatRequest(messages, FrameAnswers, temperature, sample, settings.longest, self.tag)
            yield ask, sample, shown

    @property
    def tag(self) -> str:
        """What the answers are booked under."""
        return "gvl" if self.settings.context == "none" else f"gvl+{self.settings.context}"

    def contexts(self, episodes: Sequence[Episode], offline: bool = False) -> list[Context]:
        """Build every episode's context.

        Args:
            episodes: the evaluated ones.
            offline: send nothing: descriptions that are not in the cache are stood in for by blank ones.
        """
        if self.library is None or not self._maker.recipe.has_text:
            return [self._maker.make(None, None) for _ in episodes]
        allowed = [self.library.allowed(one) for one in episodes]
        remarks = [gather_remarks(one) for one in allowed]
        described = self._known(remarks) if offline else describe(self.chat, remarks)
        return [self._maker.make(one, described[said]) for one, said in zip(allowed, remarks, strict=True)]

    def feedback_asks(self, episodes: Sequence[Episode]) -> list[ChatRequest]:
        """The questions about people's remarks that these episodes' contexts need, each once."""
        if self.library is None or not self._maker.recipe.has_text:
            return []
        remarks = dict.fromkeys(gather_remarks(self.library.allowed(one)) for one in episodes)
        return [one.ask() for one in remarks if one.texts]

    def _known(self, remarks: Sequence[Remarks]) -> dict[Remarks, Described]:
        cached = [one for one in dict.fromkeys(remarks) if one.texts and self.chat.estimate([one.ask()]).cached]
        return {one: Described(("x" * 100,) * 3) for one in remarks} | describe(self.chat, cached)

    def stream(
        self, asked: list[Asked], temperature: float | None, places: list[tuple[Asked, int, Shown]]
    ) -> Iterator[ChatRequest]:
        """Write questions as there is room for them: frames are decoded no earlier than they are sent."""
        for one in asked:
            try:
                for ask, sample, shown in self.asks(one, temperature):
                    places.append((one, sample, shown))
                    yield ask
            except DemeritError as error:
                one.error = str(error)


class _Unaskable(DemeritError):
    """An episode that no question can be asked about."""


def grouped(why: dict[int, str], most: int = 4) -> str:
    """Say why frames are unscored: `frames 3, 7: missing from the answer; frame 9: ...`."""
    by_reason: dict[str, list[int]] = {}
    for index, reason in sorted(why.items()):
        by_reason.setdefault(reason, []).append(index)
    said = [
        f"frame{'s' if len(frames) > 1 else ''} {', '.join(map(str, frames))}: {reason}"
        for reason, frames in list(by_reason.items())[:most]
    ]
    more = len(by_reason) - most
    return "; ".join(said) + (f"; and {more} more reasons" if more > 0 else "")


def mean_and_spread(samples: Sequence[Sample]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Mean, population standard deviation and number of answers of each frame, over the samples that have it.

    A frame that no sample has is NaN; one sample has no spread, which is NaN as well.
    """
    values = np.stack([sample.value for sample in samples])
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    safe = np.maximum(count, 1)
    mean = np.where(count > 0, np.where(known, values, 0.0).sum(axis=0) / safe, np.nan)
    squares = np.where(known, (values - np.where(np.isnan(mean), 0.0, mean)) ** 2, 0.0).sum(axis=0)
    spread = np.where(count > 1, np.sqrt(squares / safe), np.nan)
    return mean, spread, count
