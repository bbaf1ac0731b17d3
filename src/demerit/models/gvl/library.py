"""Examples of bad behaviour for one rollout: nearest task first, and never anything related to the rollout.

Only `Library.allowed` makes an `AllowedExamples`, and everything that puts examples or remarks into a prompt takes one.
So nothing related to the evaluated rollout can get into its prompt: not the rollout itself (also renamed, cut or
edited), not the other half of its pair, nothing of its session, and nothing its session was compared with.

With `same_task`, as in the position paper, they come from the evaluated task alone: rejected and failed rollouts of its
pairs, and people's remarks on them and on the comparisons, also of the evaluated rollout. Only the rollout itself and
remarks on it alone stay out. The prompt then tells about the very comparison that is evaluated: the result is too good.

Bad behaviour in a prompt: failure descriptions, images of failed rollouts, images with values per step.

Descriptions are distilled from people's remarks by one request per task and set of remarks. Where there
are none, as in a simulator, the recorded kinds of failure replace them, and the result records this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode, Event, Outcome, Preference, most_trusted, task_name
from demerit.data.frames import Indices, short_hash, spread
from demerit.data.reward import GENERATIONS, SAME_TASK_EXAMPLES
from demerit.data.splits import videos_of
from demerit.data.store import Store
from demerit.data.taxonomy import UNKNOWN, kind
from demerit.errors import BadInput, UnknownName, UnreadableVideo
from demerit.llm import ChatClient, ChatImage, ChatRequest, ChatResponse, Message
from demerit.models.gvl.config import (
    GVLConfig,
    RepeatedParts,
    ShownParts,
    encode_frames,
    shuffle,
    write_feedback,
)

# Words that any two instructions share.
STOP_WORDS = frozenset("a an and at by for from in into it its of off on onto or the then to up with".split())
LOW_GRADE = 2
SAME_TASK = 2.0
"""similarity of the same task, above that of any other (0 to 1)"""


class Library:
    """Episodes and preferences that examples may come from."""

    def __init__(self, records: Iterable[Record]) -> None:
        """Sort them by task; decodes no frame and skips problems."""
        self._episodes: dict[str, Episode] = {}
        self._tasks: dict[str, list[Episode]] = {}
        self._wordings: dict[str, set[str]] = {}
        self._sessions: dict[str, set[str]] = {}
        self._partners: dict[str, set[str]] = {}
        self._rejected: set[str] = set()
        self._reasons: dict[str, list[Preference]] = {}
        self._known_videos: dict[str, frozenset[str]] = {}
        for record in records:
            if isinstance(record, Episode):
                self._add_episode(record)
            elif not isinstance(record, Problem):
                self._add_preference(record)
        for episodes in self._tasks.values():
            episodes.sort(key=lambda episode: short_hash(episode.id.encode()))  # independent of files and names

    @classmethod
    def open(cls, examples: Library | Iterable[Record] | str | Path) -> Library:
        """Make a library from a dataset folder or from records; a library is returned unchanged."""
        if isinstance(examples, Library):
            return examples
        if isinstance(examples, str | Path):
            folder = Path(examples).expanduser()
            if not Store.is_at(folder):
                raise BadInput("examples", "a demerit folder (make one with demerit import)", str(examples))
            return cls(Store(folder).records())
        return cls(examples)

    def allowed_examples(self, episode: Episode, same_task: bool = False) -> AllowedExamples:
        """Everything that the prompt about this episode may show."""
        return AllowedExamples(self, episode, same_task)

    def is_failure(self, episode: Episode) -> bool:
        """Whether people or a simulator say that it failed: no success, a low grade, or rejected in a comparison."""
        outcome = episode.outcome
        if outcome is not None and outcome.source != "model":
            if outcome.success is not None:
                return not outcome.success
            if outcome.grade is not None:
                return outcome.grade <= LOW_GRADE
        return episode.id in self._rejected

    @cached_property
    def identity(self) -> str:
        """Hash all instructions, labels and curves: rewards made with another library are stale."""
        facts = sorted(
            repr((episode.id, episode.instruction, episode.origin.group, [_facts(label) for label in episode.labels]))
            for episodes in self._tasks.values()
            for episode in episodes
        )
        pairs = sorted(repr((id, sorted(others))) for id, others in self._partners.items())
        return short_hash(*(text.encode() for text in (*facts, *pairs, *sorted(self._rejected))))

    def _add_episode(self, episode: Episode) -> None:
        task = episode.origin.tags.get("task") or task_name(episode.instruction)
        self._tasks.setdefault(task, []).append(episode)
        self._wordings.setdefault(task, set()).add(task_name(episode.instruction))
        self._episodes[episode.id] = episode
        if episode.origin.group:
            self._sessions.setdefault(episode.origin.group, set()).add(episode.id)

    def _add_preference(self, preference: Preference) -> None:
        for id, other in ((preference.a, preference.b), (preference.b, preference.a)):
            self._partners.setdefault(id, set()).add(other)
            if preference.better == other and preference.source != "model":
                self._rejected.add(id)
        if preference.why and preference.source == "human":
            self._reasons.setdefault(preference.a, []).append(preference)

    def _find_related(self, episode: Episode) -> frozenset[str]:
        """Ids that belong to an episode: itself, its ancestors, its session, and all that these were compared with.

        Partners are excluded because their curves may have been chosen by that comparison.
        """
        own = self._ancestors(episode) | self._sessions.get(episode.origin.group, set())
        return frozenset(own.union(*(self._partners.get(id, set()) for id in own)))

    def _ancestors(self, episode: Episode) -> set[str]:
        """The episode's id and the ids of everything it was made from."""
        ids, id = {episode.id}, episode.origin.parent
        while id and id not in ids:
            ids.add(id)
            id = self._episodes[id].origin.parent if id in self._episodes else ""
        return ids

    def _videos(self, episode: Episode) -> frozenset[str]:
        if episode.id not in self._known_videos:
            self._known_videos[episode.id] = frozenset(videos_of(episode))
        return self._known_videos[episode.id]

    def _nearest_tasks(self, instruction: str, same_task: bool) -> list[str]:
        """Tasks that share words with an instruction: the same task first, then by their most similar wording."""
        asked = task_name(instruction)
        ranked = []
        for task, wordings in self._wordings.items():
            near = SAME_TASK if asked in wordings else max(similarity(asked, wording) for wording in wordings)
            if near > (1 if same_task else 0):
                ranked.append((-near, task))
        return [task for _, task in sorted(ranked)]


@dataclass(frozen=True, eq=False)
class AllowedExamples:
    """What one rollout's prompt may show: iterates nearest task first, then in a fixed random order."""

    library: Library
    episode: Episode
    same_task: bool = False
    """only of the evaluated task, and all of it but the rollout itself"""

    def __iter__(self) -> Iterator[Episode]:
        """Yield all allowed episodes."""
        return self.where(lambda episode: True)

    def where(self, wanted: Callable[[Episode], bool]) -> Iterator[Episode]:
        """Yield allowed episodes that are wanted; `wanted` is asked first, as relations may need to read a file."""
        for task in self.library._nearest_tasks(self.episode.instruction, self.same_task):
            for episode in self.library._tasks[task]:
                if wanted(episode) and not self._is_related(episode):
                    yield episode

    def failures(self, count: int) -> list[Episode]:
        """At most `count` failed attempts; no two of one session, unless `same_task`, which often is one session."""
        return list(islice(self._vary(self.where(self.library.is_failure)), count))

    def with_curve(self, count: int, distilled: bool = True) -> list[tuple[Episode, Outcome]]:
        """At most `count` failed or rejected attempts with a value per step; sessions as in `failures`.

        Args:
            count: how many at most.
            distilled: use curves of self-distillation; otherwise those of people or a simulator.
        """
        library = self.library
        bad = self.where(
            lambda episode: (
                (episode.id in library._rejected or library.is_failure(episode))
                and find_curve(episode, distilled) is not None
            )
        )
        pairs = ((episode, find_curve(episode, distilled)) for episode in self._vary(bad))
        return list(islice(((episode, outcome) for episode, outcome in pairs if outcome is not None), count))

    def remarks(self) -> Iterator[tuple[str, str]]:
        """What people wrote about these episodes, and why they preferred one to another: (id, text)."""
        reasons = self.library._reasons
        for episode in self.where(lambda episode: episode.id in reasons or bool(_notes(episode))):
            yield from ((episode.id, note) for note in _notes(episode))
            for preference in reasons.get(episode.id, []):
                other = self.library._episodes.get(preference.b)
                if self.same_task or (other is not None and not self._is_related(other)):
                    yield episode.id, preference.why
        if self.same_task:
            yield from ((preference.b, preference.why) for preference in reasons.get(self.episode.id, []))

    def _vary(self, episodes: Iterator[Episode]) -> Iterator[Episode]:
        return episodes if self.same_task else _one_per_session(episodes)

    def _is_related(self, other: Episode) -> bool:
        if self._related & self.library._ancestors(other):
            return True
        group = "" if self.same_task else self.episode.origin.group
        return bool(group and group == other.origin.group) or bool(self._videos & self.library._videos(other))

    @cached_property
    def _related(self) -> frozenset[str]:
        if self.same_task:
            return frozenset(self.library._ancestors(self.episode))
        return self.library._find_related(self.episode)

    @cached_property
    def _videos(self) -> frozenset[str]:
        return frozenset(videos_of(self.episode))


def find_curve(episode: Episode, distilled: bool) -> Outcome | None:
    """Find the outcome with a value per step: of self-distillation, or the most trusted of the others."""
    return most_trusted(
        outcome
        for outcome in episode.labels
        if outcome.curve is not None
        and is_distilled(outcome) == distilled
        and (distilled or outcome.source != "model")
        and bool(np.any(~np.isnan(outcome.curve)))
    )


def is_distilled(outcome: Outcome) -> bool:
    """Whether an outcome was made by self-distillation."""
    return outcome.source == "model" and outcome.by.startswith("gvl ")


def similarity(a: str, b: str) -> float:
    """Shared words over all words (Jaccard) without stop words: 0 to 1."""
    first, second = (set(re.findall(r"\w+", text.lower())) - STOP_WORDS for text in (a, b))
    return len(first & second) / len(first | second) if first | second else 0.0


def _notes(episode: Episode) -> list[str]:
    return [outcome.note for outcome in episode.labels if outcome.source == "human" and outcome.note]


def _one_per_session(episodes: Iterable[Episode]) -> Iterator[Episode]:
    seen: set[str] = set()
    for episode in episodes:
        session = episode.origin.group or episode.id
        if session not in seen:
            seen.add(session)
            yield episode


def _facts(outcome: Outcome) -> tuple[object, ...]:
    curve = b"" if outcome.curve is None else outcome.curve.tobytes()
    events = [(event.kind, event.first, event.last) for event in outcome.events]
    return (outcome.source, outcome.by, outcome.success, outcome.grade, outcome.note, repr(events), short_hash(curve))


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
        text = write_feedback(self.task, remarks, MAX_FAILURES)
        return ChatRequest((Message.user(text),), Failures, temperature=0.0, max_tokens=MAX_TOKENS, tag="feedback")


@dataclass(frozen=True)
class FailureDescriptions:
    """Failure descriptions, or the reason why there are none."""

    failures: tuple[str, ...]
    source: RemarkSource = ""
    why_not: str = ""
    generations: tuple[Mapping[str, str], ...] = ()
    """the model's answer, as it is kept with the reward"""


PromptContext = tuple[ShownParts, dict[str, Any]]
"""what a prompt shows of bad behaviour; and for `Reward.given`: the descriptions, the rollouts shown, and what was
lacking"""


def gather_remarks(allowed: AllowedExamples) -> Remarks:
    """Collect different remarks on the task, the same task's first."""
    task = allowed.episode.instruction
    texts = _first_different(islice(allowed.remarks(), MAX_EPISODES_READ))
    if texts:
        return Remarks(task, tuple(texts), "people", tuple(dict.fromkeys(texts.values())))
    recorded = _first_different(
        (episode.id, _describe_event(event))
        for episode in islice(allowed.where(lambda episode: bool(_events(episode))), MAX_EPISODES_READ)
        for event in _events(episode)
    )
    return Remarks(task, tuple(recorded), "records" if recorded else "", tuple(dict.fromkeys(recorded.values())))


def describe_failures(client: ChatClient, remarks: Iterable[Remarks]) -> dict[Remarks, FailureDescriptions]:
    """Distil each set of remarks; equal sets are asked about once."""
    wanted = list(dict.fromkeys(remarks))
    descriptions = {group: FailureDescriptions((), "", "there are no remarks on a task like this") for group in wanted}
    asked = [group for group in wanted if group.texts]
    for index, response in client.ask_all([group.request() for group in asked]):
        descriptions[asked[index]] = _read_failures(response, asked[index].source)
    return descriptions


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
            return {}, {"context": "none"}
        parts: dict[str, RepeatedParts] = {}
        facts: dict[str, Any] = {"context": kind, "examples": SAME_TASK_EXAMPLES if allowed.same_task else "unrelated"}
        lacking: list[str] = []
        if kind == "dense":
            parts["reference_frame"] = self._references(allowed, facts, lacking)
        parts["failure"] = _descriptions(described, facts, lacking)
        if kind in ("video", "dense"):
            parts["failure_frame"] = self._failure_frames(allowed, facts, lacking)
        if lacking:
            facts["lacking"] = lacking
        if described is not None:
            facts[GENERATIONS] = described.generations
        return parts, facts

    def _references(self, allowed: AllowedExamples, facts: dict[str, Any], lacking: list[str]) -> RepeatedParts:
        references = []
        for episode, outcome in allowed.with_curve(self.config.shown_examples, not self.config.measured):
            curve = np.asarray(outcome.curve, dtype=np.float64)
            at = _frames_with_value(episode, outcome, self.config.example_frames)
            images = self._encode(episode, at) if len(curve) == _length(episode) else None
            if images is not None:
                references.append((episode, outcome, 100 * curve[at], images))
        if not references:
            lacking.append("values per step of a rejected rollout")
            return []
        facts["references"] = [
            {"episode": episode.id, "curve": outcome.by or outcome.source} for episode, outcome, *_ in references
        ]
        return [
            ({"example": example, "number": number, "percent": round(percent)}, image)
            for example, (_, _, percents, images) in enumerate(references, 1)
            for number, (percent, image) in enumerate(zip(percents.tolist(), images, strict=True), 1)
        ]

    def _failure_frames(self, allowed: AllowedExamples, facts: dict[str, Any], lacking: list[str]) -> RepeatedParts:
        examples = []
        for episode in allowed.failures(self.config.shown_examples):
            length = _length(episode)
            images = (
                self._encode(episode, failing_frames(episode, length, self.config.example_frames)) if length else None
            )
            if images is not None:
                examples.append((episode.id, images))
        if not examples:
            lacking.append("pictures of a failed rollout")
            return []
        facts["failures shown"] = [id for id, _ in examples]
        return [
            ({"example": example, "number": number}, image)
            for example, (_, images) in enumerate(examples, 1)
            for number, image in enumerate(images, 1)
        ]

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
    firsts = [event.first for outcome in episode.labels for event in outcome.events if event.first < length]
    start = min(firsts, default=min(1, length - 1))
    return (start + spread(length - start, count)).astype(np.int32)


def _descriptions(described: FailureDescriptions | None, facts: dict[str, Any], lacking: list[str]) -> RepeatedParts:
    if described is None or not described.failures:
        lacking.append(f"failure descriptions: {described.why_not if described else 'not asked for'}")
        return []
    facts["failure descriptions"] = list(described.failures)
    facts["described by"] = described.source
    return [({"number": number}, text) for number, text in enumerate(described.failures, 1)]


def _frames_with_value(episode: Episode, outcome: Outcome, count: int) -> Indices:
    """Spread over the frames with a value, in an order that does not follow time."""
    indices = np.flatnonzero(~np.isnan(np.asarray(outcome.curve)))
    return shuffle(indices[spread(len(indices), count)].astype(np.int32), episode.id)


def _read_failures(response: ChatResponse, source: RemarkSource) -> FailureDescriptions:
    answers = (response.record("failure descriptions"),)
    if not isinstance(response.parsed, Failures):
        return FailureDescriptions((), "", response.why_not, answers)
    lines = (" ".join(text.split())[:MAX_FAILURE_LENGTH] for text in response.parsed.failures)
    kept = tuple(dict.fromkeys(line for line in lines if line))[:MAX_FAILURES]
    why_not = "" if kept else "the remarks name no failure"
    return FailureDescriptions(kept, source if kept else "", why_not, answers)


def _first_different(remarks: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Take the first different texts, each with the id of its episode."""
    texts: dict[str, str] = {}
    for id, text in remarks:
        flat = " ".join(text.split())
        texts.setdefault(flat if len(flat) <= MAX_REMARK_LENGTH else f"{flat[: MAX_REMARK_LENGTH - 3]}...", id)
        if len(texts) == MAX_REMARKS:
            break
    texts.pop("", None)
    return texts


def _events(episode: Episode) -> list[Event]:
    events = (event for outcome in episode.labels if outcome.source != "model" for event in outcome.events)
    return [event for event in events if event.kind != UNKNOWN]


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
