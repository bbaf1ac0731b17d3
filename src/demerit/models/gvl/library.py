"""Examples of bad behaviour for one rollout: nearest task first, and never anything related to the rollout.

Only `Library.allowed` makes an `AllowedExamples`, and everything that puts examples or remarks into a prompt takes one.
So nothing related to the evaluated rollout can get into its prompt: not the rollout itself (also renamed, cut or
edited), not the other half of its pair, nothing of its session, and nothing its session was compared with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode
from demerit.data.frames import short_hash
from demerit.data.instructions import task_name
from demerit.data.labels import Outcome, Preference, most_trusted
from demerit.data.splits import videos_of
from demerit.data.store import Store
from demerit.errors import BadInput

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

    def allowed_examples(self, episode: Episode) -> AllowedExamples:
        """Everything that the prompt about this episode may show."""
        return AllowedExamples(self, episode)

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
            repr((episode.id, episode.instruction, episode.origin.group, [_facts(label) for label in episode.outcomes]))
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
        found, id = {episode.id}, episode.origin.parent
        while id and id not in found:
            found.add(id)
            id = self._episodes[id].origin.parent if id in self._episodes else ""
        return found

    def _videos(self, episode: Episode) -> frozenset[str]:
        if episode.id not in self._known_videos:
            self._known_videos[episode.id] = frozenset(videos_of(episode))
        return self._known_videos[episode.id]

    def _nearest_tasks(self, instruction: str) -> list[str]:
        """Tasks that share words with an instruction: the same task first, then by their most similar wording."""
        asked = task_name(instruction)
        ranked = []
        for task, wordings in self._wordings.items():
            near = SAME_TASK if asked in wordings else max(similarity(asked, wording) for wording in wordings)
            if near > 0:
                ranked.append((-near, task))
        return [task for _, task in sorted(ranked)]


@dataclass(frozen=True, eq=False)
class AllowedExamples:
    """What one rollout's prompt may show: iterates nearest task first, then in a fixed random order."""

    library: Library
    episode: Episode

    def __iter__(self) -> Iterator[Episode]:
        """Yield all unrelated episodes."""
        return self.where(lambda episode: True)

    def where(self, wanted: Callable[[Episode], bool]) -> Iterator[Episode]:
        """Yield unrelated episodes that are wanted; `wanted` is asked first, as relations may need to read a file."""
        for task in self.library._nearest_tasks(self.episode.instruction):
            for episode in self.library._tasks[task]:
                if wanted(episode) and not self._is_related(episode):
                    yield episode

    def failures(self, count: int) -> list[Episode]:
        """At most `count` failed attempts, no two of one session."""
        return list(islice(_one_per_session(self.where(self.library.is_failure)), count))

    def with_curve(self, count: int, distilled: bool = True) -> list[tuple[Episode, Outcome]]:
        """At most `count` failed or rejected attempts with a value per step, no two of one session.

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
        found = ((episode, find_curve(episode, distilled)) for episode in _one_per_session(bad))
        return list(islice(((episode, outcome) for episode, outcome in found if outcome is not None), count))

    def remarks(self) -> Iterator[tuple[str, str]]:
        """What people wrote about these episodes, and why they preferred one to another: (id, text)."""
        reasons = self.library._reasons
        for episode in self.where(lambda episode: episode.id in reasons or bool(_notes(episode))):
            yield from ((episode.id, note) for note in _notes(episode))
            for preference in reasons.get(episode.id, []):
                other = self.library._episodes.get(preference.b)
                if other is not None and not self._is_related(other):
                    yield episode.id, preference.why

    def _is_related(self, other: Episode) -> bool:
        if self._related & self.library._ancestors(other):
            return True
        group = self.episode.origin.group
        return bool(group and group == other.origin.group) or bool(self._videos & self.library._videos(other))

    @cached_property
    def _related(self) -> frozenset[str]:
        return self.library._find_related(self.episode)

    @cached_property
    def _videos(self) -> frozenset[str]:
        return frozenset(videos_of(self.episode))


def find_curve(episode: Episode, distilled: bool) -> Outcome | None:
    """Find the outcome with a value per step: of self-distillation, or the most trusted of the others."""
    return most_trusted(
        outcome
        for outcome in episode.outcomes
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
    return [outcome.note for outcome in episode.outcomes if outcome.source == "human" and outcome.note]


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
