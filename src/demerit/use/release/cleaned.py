"""An episode without the people and places behind it: names stand in, moments are coarse, free text is searched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from demerit.data.episode import Edit, Episode, Origin
from demerit.data.labels import Outcome, Preference
from demerit.use.release.clean_signals import CleanSignals
from demerit.use.release.fields import about, is_counted
from demerit.use.release.guesses import common, rare
from demerit.use.release.names import Names
from demerit.use.release.settings import CAME_FROM, Notes

MOST_SUSPECTS = 500
"""kept for the owner to look at; beyond that there is a rule missing"""


@dataclass
class Apart:
    """Names of one sort and the clean ones that stand for them, no two alike."""

    clean: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _alike: Counter[str] = field(default_factory=Counter)
    """counts, so that thousands of one name are not tried one after the other"""

    def add(self, name: str, clean: str) -> None:
        """Number what is taken already."""
        unique = clean
        while unique in self._taken:  # "2024-03" with a bare number behind it would look like a day
            self._alike[clean] += 1
            unique = f"{clean}-n{self._alike[clean] + 1}"
        self._taken.add(unique)
        self.clean[name] = unique


@dataclass
class Cleaner:
    """Cleans one record after the other and counts what it did; the values themselves are never kept here."""

    names: Names
    notes: Notes = "scrub"
    removed: dict[str, Counter[str]] = field(default_factory=dict)
    """where to what to how often"""
    suspects: dict[str, list[str]] = field(default_factory=dict)
    """words that were left and may be names, with some episodes: for the owner, never for the release"""
    signals: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """signal, by its clean name, and what was done to it, to the episodes in which it was"""
    _at: str = ""
    """the episode at hand"""
    _apart: dict[str, Apart] = field(default_factory=dict)
    """what is told apart by its name (an id, a camera, a group ...) to the clean names that are taken"""

    def episode(self, episode: Episode) -> Episode:
        """Clean an episode; its pixels are another matter."""
        self._at = episode.id
        for name in episode.signals:  # now, while it is known whose they are; values are read when asked for
            self._looked_at(self.signal_name(name))
        return Episode(
            id=self._looked_at(self.id(episode.id)),
            instruction=self._instruction(episode.instruction),
            views={self._looked_at(self.camera(camera)): frames for camera, frames in episode.views.items()},
            outcomes=tuple(self._outcome(outcome) for outcome in episode.outcomes),
            origin=self._origin(episode.origin),
            signals=CleanSignals(episode.signals, episode, self),
            edits=tuple(self._edit(edit) for edit in episode.edits),
        )

    def report(self) -> dict[str, dict[str, int]]:
        """Say where what was found how often, the most frequent first."""
        all_of_it = {where: dict(counts.most_common()) for where, counts in self.removed.items()}
        for (name, what), episodes in self.signals.items():
            all_of_it.setdefault(f"signal {name}", {})[what] = len(episodes)
        return dict(sorted(all_of_it.items(), key=lambda item: -sum(item[1].values())))

    def preference(self, preference: Preference) -> Preference:
        """Clean a preference."""
        self._at = preference.a
        return replace(
            preference,
            a=self.id(preference.a),
            b=self.id(preference.b),
            why=self._text(preference.why, "why somebody prefers"),
            by=self._by(preference.by, preference.source, "who prefers"),
        )

    def id(self, id: str) -> str:
        """Clean an id; the same id is always cleaned alike, and two never become one."""
        return self._one_of_many(id, "id")

    def camera(self, name: str) -> str:
        """Clean a camera's name; two never become one."""
        return self._one_of_many(name, "camera name")

    def signal_name(self, name: str) -> str:
        """Clean a signal's name, part by part, as `obs/data/pose` is no path on a disk; two never become one."""
        return self._one_of_many(name, "signal name", "/")

    def _origin(self, origin: Origin) -> Origin:
        texts = {
            name: self._name(getattr(origin, name), f"origin: {name}")
            for name in ("dataset", "revision", "licence", "embodiment")
        }
        self._look_at(self.names.suspects(texts["embodiment"]))
        for name in ("split", "group"):  # days of one month are several groups still
            texts[name] = self._looked_at(self._one_of_many(getattr(origin, name), f"origin: {name}"))
        tags = {}
        for name, value in origin.tags.items():
            if name == CAME_FROM:  # a hash of what an earlier release may have removed
                self._count(f"tag {name}", "fingerprint of an earlier source, removed")
                continue
            shown = self._looked_at(self._one_of_many(name, "tag name"))
            clean = self._tag(name, value, f"tag {shown}")
            if clean:
                tags[shown] = clean
        # The parent may be left out of this release: then its cleaned name is all that there is of it.
        parent = self._looked_at(self.id(origin.parent))
        return Origin(**texts, site=self._stand_in(origin.site, "site"), parent=parent, tags=tags)

    def _tag(self, name: str, value: str, where: str) -> str:
        match about(name, value):
            case "machine":
                self._count(where, "field about machines or addresses, removed")
                return ""
            case "person" | "place":
                return self._stand_in(value, where)
            case "moment":
                coarse = self.names.coarse(value)
                if coarse != value:
                    self._count(where, "date or time, coarsened")
                return coarse
            case "text":
                return self._text(value, where)
            case "thing":
                clean = self._looked_at(self._cleaned(value, where, counted=is_counted(name, value)))
                self._look_at(self.names.suspects(clean))  # a robot, a mug and a policy may be called after somebody
                return clean

    def _outcome(self, outcome: Outcome) -> Outcome:
        events = tuple(
            replace(
                event,
                kind=self._name(event.kind, "failure"),
                note=self._by_whom(event.note, outcome.source, "note of a failure"),
            )
            for event in outcome.events
        )
        note = self._by_whom(outcome.note, outcome.source, "note")
        return replace(outcome, events=events, note=note, by=self._by(outcome.by, outcome.source, "who judged"))

    def _by_whom(self, text: str, source: str, where: str) -> str:
        """Simulators, rules and edits write by formula; what people and models write is free text."""
        return self._text(text, where) if source in ("human", "model") else self._name(text, where)

    def _by(self, by: str, source: str, where: str) -> str:
        return self._stand_in(by, where) if source == "human" else self._name(by, where)

    def _edit(self, edit: Edit) -> Edit:
        return replace(edit, params={name: self._within(value) for name, value in edit.params.items()})

    def _within(self, value: Any) -> Any:
        if isinstance(value, str):
            ids = self._apart["id"].clean if "id" in self._apart else {}
            return ids[value] if value in ids else self._name(value, "parameters of an edit")
        if isinstance(value, Mapping):
            return {name: self._within(inner) for name, inner in value.items()}
        return [self._within(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _stand_in(self, name: str, where: str) -> str:
        if not name:
            return ""
        self._count(where, "name or place, replaced")
        return self.names.fields.get(name.strip().casefold()) or self.names.in_text(name, Counter())

    def _name(self, text: str, where: str) -> str:
        """Clean what may stand in many places alike."""
        return self._looked_at(self._cleaned(text, where))

    def _one_of_many(self, name: str, where: str, between: str = "") -> str:
        """Clean what is told apart by its name: the same name is always cleaned alike, and two never become one."""
        names = self._apart.setdefault(where, Apart())
        if name and name not in names.clean:
            parts = name.split(between) if between else [name]
            names.add(name, between.join(self._cleaned(part, where) for part in parts))
        return names.clean[name] if name else ""

    def _cleaned(self, text: str, where: str, *, counted: bool = False) -> str:
        if not text:
            return text
        found: Counter[str] = Counter()
        clean = self.names.in_name(text, found, counted=counted)
        self._add(where, found)
        return clean

    def _instruction(self, text: str) -> str:
        found: Counter[str] = Counter()
        clean = self.names.in_instruction(text, found)
        self._add("instruction", found)
        self._look_at(self.names.suspects(clean))
        return clean

    def _text(self, text: str, where: str) -> str:
        if not text or self.notes == "keep":
            return text
        if self.notes == "drop":
            self._count(where, "free text, removed")
            return ""
        found: Counter[str] = Counter()
        clean = self.names.in_text(text, found)
        self._add(where, found)
        self._look_at((*rare(clean), *self.names.doubtful(clean)))
        return clean

    def _looked_at(self, clean: str) -> str:
        """Show the owner the common names in an identifier that nobody told, and known ones that are words too."""
        self._look_at((*common(clean), *self.names.doubtful(clean)))
        return clean

    def _look_at(self, words: Iterable[str]) -> None:
        for word in words:
            if word in self.suspects or len(self.suspects) < MOST_SUSPECTS:
                those = self.suspects.setdefault(word, [])
                if len(those) < 3 and self._at not in those:  # noqa: PLR2004
                    those.append(self._at)

    def _count(self, where: str, what: str) -> None:
        self.removed.setdefault(where, Counter())[what] += 1

    def _add(self, where: str, found: Counter[str]) -> None:
        if +found:
            self.removed.setdefault(where, Counter()).update(+found)
