"""Examples of bad behaviour for one rollout: from the same task first, and never from anything that belongs to it.

Nothing but `Library.allowed` makes an `Allowed`, and everything that puts examples or people's words into a prompt
takes an `Allowed`. So what is kin to the evaluated rollout cannot get into its prompt: not the rollout itself (also
under another name, cut or edited), not the other half of its pair, nothing of its session and nothing that its session
was compared with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from demerit.data.dataset import Problem, Record
from demerit.data.episode import Episode
from demerit.data.frames import short_hash
from demerit.data.labels import Outcome, Preference, most_trusted
from demerit.errors import UnreadableVideo

# Words that any two instructions share.
EMPTY_WORDS = frozenset("a an and at by for from in into it its of off on onto or the then to up with".split())
LOW_GRADE = 2


class Library:
    """Episodes and preferences that examples may be taken from."""

    def __init__(self, records: Iterable[Record]) -> None:
        """Sort them by task; no frame is decoded. Problems of a reader are passed over."""
        self._tasks: dict[str, list[Episode]] = {}
        self._partners: dict[str, set[str]] = {}
        self._rejected: set[str] = set()
        self._wordings: dict[str, set[str]] = {}
        self._known_videos: dict[str, frozenset[str]] = {}
        self._reasons: dict[str, list[Preference]] = {}
        self._episodes: dict[str, Episode] = {}
        self._sessions: dict[str, set[str]] = {}
        for record in records:
            if isinstance(record, Episode):
                self._add(record)
            elif not isinstance(record, Problem):
                self._join(record)
        for those in self._tasks.values():
            those.sort(key=lambda one: short_hash(one.id.encode()))  # no order of files, names or behaviours

    def __len__(self) -> int:
        """How many episodes there are."""
        return len(self._episodes)

    def allowed(self, episode: Episode) -> Allowed:
        """Everything that may be shown to whoever judges this episode, nearest task first."""
        return Allowed(self, episode)

    def is_failure(self, episode: Episode) -> bool:
        """Whether somebody vouches that it went wrong: no success, a low grade, or rejected beside another."""
        outcome = _judged(episode)
        if outcome is not None and outcome.success is not None:
            return not outcome.success
        if outcome is not None and outcome.grade is not None:
            return outcome.grade <= LOW_GRADE
        return episode.id in self._rejected

    def is_rejected(self, episode: Episode) -> bool:
        """Whether it lost a comparison."""
        return episode.id in self._rejected

    @cached_property
    def identity(self) -> str:
        """A hash of every word and curve in it: rewards that another library helped to make are stale."""
        facts = sorted(
            repr((one.id, one.instruction, one.origin.group, [_facts(outcome) for outcome in one.outcomes]))
            for those in self._tasks.values()
            for one in those
        )
        pairs = sorted(repr((id, sorted(others))) for id, others in self._partners.items())
        return short_hash(*(text.encode() for text in (*facts, *pairs, *sorted(self._rejected))))

    def _add(self, episode: Episode) -> None:
        task = episode.origin.tags.get("task") or plain(episode.instruction)
        self._tasks.setdefault(task, []).append(episode)
        self._wordings.setdefault(task, set()).add(plain(episode.instruction))
        self._episodes[episode.id] = episode
        if episode.origin.group:
            self._sessions.setdefault(episode.origin.group, set()).add(episode.id)

    def _join(self, preference: Preference) -> None:
        for one, other in ((preference.a, preference.b), (preference.b, preference.a)):
            self._partners.setdefault(one, set()).add(other)
            if preference.better == other and preference.source != "model":
                self._rejected.add(one)
        if preference.why and preference.source == "human":
            self._reasons.setdefault(preference.a, []).append(preference)

    def _kin(self, episode: Episode) -> frozenset[str]:
        """Ids that belong to an episode: its own, what it was made from, its session, and all these were compared with.

        What a session was compared with may carry a curve that was chosen by that comparison, so it is out as well.
        """
        own = self._names(episode) | self._sessions.get(episode.origin.group, set())
        return frozenset(own.union(*(self._partners.get(name, set()) for name in own)))

    def _names(self, episode: Episode) -> set[str]:
        """The episode's id and those of everything that it was made from, as far as the library knows."""
        found, name = {episode.id}, episode.origin.parent
        while name and name not in found:
            found.add(name)
            name = self._episodes[name].origin.parent if name in self._episodes else ""
        return found

    def _videos(self, episode: Episode) -> frozenset[str]:
        if episode.id not in self._known_videos:
            self._known_videos[episode.id] = _videos(episode)
        return self._known_videos[episode.id]

    def _by_nearness(self, instruction: str) -> list[tuple[float, str]]:
        """Tasks with words in common, the same one first (2.0), the rest by the nearest of their wordings."""
        asked = plain(instruction)
        ranked = []
        for task, wordings in self._wordings.items():
            near = 2.0 if asked in wordings else max(similarity(asked, wording) for wording in wordings)
            if near > 0:
                ranked.append((near, task))
        return sorted(ranked, key=lambda pair: (-pair[0], pair[1]))


@dataclass(frozen=True, eq=False)
class Allowed:
    """What one rollout's prompt may draw on. Iterate over it: nearest task first, then in a fixed random order."""

    library: Library
    episode: Episode

    def __iter__(self) -> Iterator[Episode]:
        """Yield the episodes that are not kin, nearest task first."""
        return self.where(lambda episode: True)

    def where(self, wanted: Callable[[Episode], bool]) -> Iterator[Episode]:
        """Yield those that are wanted. Asking first is cheap, telling kin may need a look at a file."""
        for _, task in self.library._by_nearness(self.episode.instruction):
            for one in self.library._tasks[task]:
                if wanted(one) and not self._is_kin(one):
                    yield one

    def failures(self, count: int) -> list[Episode]:
        """Failed attempts, at most `count`, no two of one session."""
        return list(islice(_one_a_group(self.where(self.library.is_failure)), count))

    def with_curve(self, count: int, distilled: bool = True) -> list[tuple[Episode, Outcome]]:
        """Failed or rejected attempts with a value per step, at most `count`, no two of one session.

        Args:
            count: how many at most.
            distilled: take curves of self-distillation; otherwise those that were measured or given by people.
        """
        library = self.library
        found = self.where(
            lambda one: (library.is_rejected(one) or library.is_failure(one)) and curve_of(one, distilled) is not None
        )
        pairs = ((one, curve_of(one, distilled)) for one in _one_a_group(found))
        return list(islice(((one, outcome) for one, outcome in pairs if outcome is not None), count))

    def remarks(self) -> Iterator[tuple[str, str]]:
        """What people wrote about these episodes and why they chose between two of them: (id, text)."""
        reasons = self.library._reasons
        for one in self.where(lambda one: one.id in reasons or bool(_notes(one))):
            yield from ((one.id, note) for note in _notes(one))
            for preference in reasons.get(one.id, []):
                other = self.library._episodes.get(preference.b)
                if other is not None and not self._is_kin(other):
                    yield one.id, preference.why

    def is_same_task(self, other: Episode) -> bool:
        """Whether another episode is of the task that this one was told."""
        task = other.origin.tags.get("task") or plain(other.instruction)
        return plain(self.episode.instruction) in self.library._wordings.get(task, set())

    def _is_kin(self, other: Episode) -> bool:
        if self._kin & self.library._names(other):
            return True
        group = self.episode.origin.group
        return bool(group and group == other.origin.group) or bool(self._videos & self.library._videos(other))

    @cached_property
    def _kin(self) -> frozenset[str]:
        return self.library._kin(self.episode)

    @cached_property
    def _videos(self) -> frozenset[str]:
        return _videos(self.episode)


def curve_of(episode: Episode, distilled: bool) -> Outcome | None:
    """Find the account with a value per step: of self-distillation, or the most trusted of the others."""
    return most_trusted(
        outcome
        for outcome in episode.outcomes
        if outcome.curve is not None
        and is_distilled(outcome) == distilled
        and (distilled or outcome.source != "model")
        and bool(np.any(~np.isnan(outcome.curve)))
    )


def is_distilled(outcome: Outcome) -> bool:
    """Whether an account was made by self-distillation."""
    return outcome.source == "model" and outcome.by.startswith("gvl ")


def plain(instruction: str) -> str:
    """Write an instruction without what does not make it another task: case, spaces, the full stop."""
    return " ".join(instruction.lower().split()).rstrip(".!")


def similarity(one: str, other: str) -> float:
    """Shared words over all words (Jaccard), little words left out: 0 to 1."""
    a, b = _words(one), _words(other)
    return len(a & b) / len(a | b) if a | b else 0.0


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower())) - EMPTY_WORDS


def _videos(episode: Episode) -> frozenset[str]:
    """Identify the videos behind an episode: a cut, reversed or renamed copy has the same."""
    found = set()
    for frames in episode.views.values():
        try:
            found.add(frames.source.identity())
        except UnreadableVideo:
            continue
    return frozenset(found)


def _notes(episode: Episode) -> list[str]:
    return [outcome.note for outcome in episode.outcomes if outcome.source == "human" and outcome.note]


def _one_a_group(episodes: Iterable[Episode]) -> Iterator[Episode]:
    seen: set[str] = set()
    for one in episodes:
        group = one.origin.group or one.id
        if group not in seen:
            seen.add(group)
            yield one


def _judged(episode: Episode) -> Outcome | None:
    """The most trusted account that is no model's opinion."""
    outcome = episode.outcome
    return None if outcome is None or outcome.source == "model" else outcome


def _facts(outcome: Outcome) -> tuple[object, ...]:
    curve = b"" if outcome.curve is None else outcome.curve.tobytes()
    events = [(one.kind, one.first, one.last) for one in outcome.events]
    return (outcome.source, outcome.by, outcome.success, outcome.grade, outcome.note, repr(events), short_hash(curve))
