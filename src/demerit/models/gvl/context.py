"""What a prompt shows of bad behaviour: nothing, words, words and pictures, or those and values per step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.data.frames import Indices, spread
from demerit.data.labels import Outcome
from demerit.errors import BadInput, UnreadableVideo
from demerit.llm import ChatImage
from demerit.models.gvl.feedback import Described
from demerit.models.gvl.frames import pictures, shuffled
from demerit.models.gvl.retrieval import Allowed
from demerit.models.gvl.wording import Label, words

Part = str | ChatImage
Kind = Literal["none", "text", "video", "dense"]
"""each holds what the one before it holds"""
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_KEPT = 512
"""sets of encoded example frames that are kept: the same examples serve many rollouts"""


@dataclass(frozen=True)
class ContextConfig:
    """How much bad behaviour is shown."""

    kind: Kind = "none"
    examples: int = 2
    """other rollouts shown in pictures, and as many with values"""
    frames: int = 4
    """pictures of each"""
    size: int = 256
    """pixels of the longer side, at most"""
    distilled: bool = True
    """values per step come from self-distillation; otherwise from people or a simulator"""

    def __post_init__(self) -> None:
        """Refuse what is no context."""
        if self.kind not in KINDS:
            raise BadInput("context", f"one of {', '.join(KINDS)}", repr(self.kind))
        for name, number in (("examples", self.examples), ("example frames", self.frames), ("size", self.size)):
            if number < 1:
                raise BadInput(name, "a number from 1 on", number)

    @property
    def has_text(self) -> bool:
        """Whether failure descriptions are in it."""
        return self.kind != "none"

    @property
    def has_video(self) -> bool:
        """Whether pictures of failures are in it."""
        return self.kind in ("video", "dense")

    @property
    def has_values(self) -> bool:
        """Whether values per step are in it."""
        return self.kind == "dense"


@dataclass(frozen=True)
class Context:
    """The parts of one rollout's prompt that tell of bad behaviour, and what they were made of."""

    parts: tuple[Part, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)
    """for `Reward.given`: which words, which other rollouts, and what could not be had"""


class ContextMaker:
    """Builds contexts; encoded example frames are kept, as the same examples serve many rollouts."""

    def __init__(self, recipe: ContextConfig) -> None:
        """Take what to show."""
        self.recipe = recipe
        self._kept: OrderedDict[tuple[str, bytes], list[ChatImage]] = OrderedDict()

    def make(self, allowed: Allowed | None, described: Described | None) -> Context:
        """Build the context of one rollout from what it may draw on."""
        recipe = self.recipe
        if not recipe.has_text or allowed is None:
            return Context((), {"context": recipe.kind} if not recipe.has_text else {"context": "none"})
        parts: list[Part] = []
        given: dict[str, Any] = {"context": recipe.kind}
        lacking: list[str] = []
        if recipe.has_values:
            parts += self._references(allowed, given, lacking)
        parts += _failures(described, given, lacking)
        if recipe.has_video:
            parts += self._failure_frames(allowed, given, lacking)
        if lacking:
            given["lacking"] = lacking
        return Context(tuple(parts), given)

    def _references(self, allowed: Allowed, given: dict[str, Any], lacking: list[str]) -> list[Part]:
        found = []
        for episode, outcome in allowed.with_curve(self.recipe.examples, self.recipe.distilled):
            at = _valued(episode, outcome, self.recipe.frames)
            images = self._pictures(episode, at) if len(_curve(outcome)) == _length(episode) else None
            if images is not None:
                found.append((episode, outcome, at, images))
        if not found:
            lacking.append("values per step of a rejected rollout")
            return []
        given["references"] = [{"episode": one.id, "curve": outcome.by or outcome.source} for one, outcome, *_ in found]
        parts: list[Part] = [words("references")]
        for example, (_, outcome, at, images) in enumerate(found, 1):
            for number, (index, image) in enumerate(zip(at.tolist(), images, strict=True), 1):
                percent = round(100 * float(_curve(outcome)[index]))
                parts += [str(Label("reference", number, example, percent)), image]
        return parts

    def _failure_frames(self, allowed: Allowed, given: dict[str, Any], lacking: list[str]) -> list[Part]:
        shown = [
            (episode, images)
            for episode in allowed.failures(self.recipe.examples)
            if (images := self._failing(episode)) is not None
        ]
        if not shown:
            lacking.append("pictures of a failed rollout")
            return []
        given["failures shown"] = [episode.id for episode, _ in shown]
        parts: list[Part] = [words("failure_frames")]
        for example, (_, images) in enumerate(shown, 1):
            for number, image in enumerate(images, 1):
                parts += [str(Label("failure", number, example)), image]
        return parts

    def _failing(self, episode: Episode) -> list[ChatImage] | None:
        length = _length(episode)
        return self._pictures(episode, failing_frames(episode, length, self.recipe.frames)) if length else None

    def _pictures(self, episode: Episode, at: Indices) -> list[ChatImage] | None:
        """Encode frames of an example, or nothing when they cannot be decoded: another one is shown then."""
        key = (episode.id, at.tobytes())
        if key not in self._kept:
            try:
                self._kept[key] = pictures(episode, at, self.recipe.size)
            except UnreadableVideo:
                return None
        self._kept.move_to_end(key)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]


def failing_frames(episode: Episode, length: int, count: int) -> Indices:
    """Choose frames in which the failure can be seen: from the first recorded event on, else all but the first."""
    firsts = [event.first for outcome in episode.outcomes for event in outcome.events if event.first < length]
    start = min(firsts, default=min(1, length - 1))
    return (start + spread(length - start, count)).astype(np.int32)


def _failures(described: Described | None, given: dict[str, Any], lacking: list[str]) -> Iterator[Part]:
    if described is None or not described.failures:
        lacking.append(f"failure descriptions: {described.why_not if described else 'not asked for'}")
        return
    given["failure descriptions"] = list(described.failures)
    given["described by"] = described.source
    yield words("failures", failures="\n".join(f"{n}. {text}" for n, text in enumerate(described.failures, 1)))


def _valued(episode: Episode, outcome: Outcome, count: int) -> Indices:
    """Spread over the frames that have a value, in an order that says nothing about time."""
    known = np.flatnonzero(~np.isnan(_curve(outcome)))
    return shuffled(known[spread(len(known), count)].astype(np.int32), episode.id)


def _curve(outcome: Outcome) -> npt.NDArray[np.float32]:
    return np.empty(0, np.float32) if outcome.curve is None else outcome.curve


def _length(episode: Episode) -> int:
    try:
        return len(episode)
    except UnreadableVideo:
        return 0
