"""An episode without the people and places behind it: names stand in, moments are coarse, free text is searched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.episode import Edit, Episode, Origin
from demerit.outcome import Outcome, Preference
from demerit.releasing.clocks import seconds_since_start, since_start
from demerit.releasing.fields import about, is_clock, is_on_globe
from demerit.releasing.names import Names
from demerit.releasing.settings import Notes

MOST_SUSPECTS = 200
"""kept for the owner to look at; beyond that there is a rule missing"""
CLOCK = "clock, begins at zero"


@dataclass
class Cleaner:
    """Cleans one record after the other and counts what it did; the values themselves are never kept here."""

    names: Names
    notes: Notes = "scrub"
    removed: dict[str, Counter[str]] = field(default_factory=dict)
    """where to what to how often"""
    suspects: dict[str, list[str]] = field(default_factory=dict)
    """words in instructions that look like names, with some episodes: for the owner, never for the release"""
    signals: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """signal, by its clean name, and what was done to it, to the episodes in which it was"""
    _ids: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _signals: dict[str, str] = field(default_factory=dict)

    def episode(self, episode: Episode) -> Episode:
        """Clean an episode; its pixels are another matter."""
        self._look_at(episode)
        return Episode(
            id=self.id(episode.id),
            instruction=self._name(episode.instruction, "instruction"),
            views={self._name(camera, "camera name"): frames for camera, frames in episode.views.items()},
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
        return replace(
            preference,
            a=self.id(preference.a),
            b=self.id(preference.b),
            why=self._text(preference.why, "why somebody prefers"),
            by=self._by(preference.by, preference.source, "who prefers"),
        )

    def id(self, id: str) -> str:
        """Clean an id; the same id is always cleaned alike, and two never become one."""
        if id not in self._ids:
            self._ids[id] = _unique(self._name(id, "id"), self._taken)
            self._taken.add(self._ids[id])
        return self._ids[id]

    def signal_name(self, name: str) -> str:
        """Clean a signal's name, part by part, as `obs/data/pose` is no path on a disk; two never become one."""
        if name not in self._signals:
            clean = "/".join(self._name(part, "signal name") for part in name.split("/"))
            self._signals[name] = _unique(clean, self._signals.values())
        return self._signals[name]

    def _origin(self, origin: Origin) -> Origin:
        texts = {
            name: self._name(getattr(origin, name), f"origin: {name}")
            for name in ("dataset", "revision", "licence", "embodiment", "split", "group")
        }
        tags = {}
        for name, value in origin.tags.items():
            shown = self._name(name, "tag name")
            clean = self._tag(name, value, f"tag {shown}")
            if clean:
                tags[shown] = clean
        # The parent may be left out of this release: then its cleaned name is all that there is of it.
        parent = self.id(origin.parent) if origin.parent else ""
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
                return self._name(value, where)

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
            return self._ids[value] if value in self._ids else self._name(value, "parameters of an edit")
        if isinstance(value, Mapping):
            return {name: self._within(inner) for name, inner in value.items()}
        return [self._within(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _stand_in(self, name: str, where: str) -> str:
        if not name:
            return ""
        self._count(where, "name or place, replaced")
        return self.names.fields.get(name.strip().casefold()) or self.names.in_text(name, Counter())

    def _name(self, text: str, where: str) -> str:
        if not text:
            return text
        found: Counter[str] = Counter()
        clean = self.names.in_name(text, found)
        self._add(where, found)
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
        return clean

    def _look_at(self, episode: Episode) -> None:
        for word in self.names.suspects(episode.instruction):
            if word in self.suspects or len(self.suspects) < MOST_SUSPECTS:
                those = self.suspects.setdefault(word, [])
                if len(those) < 3:  # noqa: PLR2004
                    those.append(episode.id)

    def _count(self, where: str, what: str) -> None:
        self.removed.setdefault(where, Counter())[what] += 1

    def _add(self, where: str, found: Counter[str]) -> None:
        if +found:
            self.removed.setdefault(where, Counter()).update(+found)


def _unique(name: str, taken: Container[str]) -> str:
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name}-{number}"
    return unique


@dataclass(frozen=True, eq=False)
class CleanSignals(Mapping[str, npt.NDArray[Any]]):
    """Signals under clean names: clocks begin at zero, texts are searched, positions on the globe are gone.

    Values are read when asked for, and not kept.
    """

    whole: Mapping[str, npt.NDArray[Any]]
    episode: Episode
    cleaner: Cleaner

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Read one signal."""
        return self._clean(self._kept[name], name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._kept)

    def __len__(self) -> int:
        """How many signals there are."""
        return len(self._kept)

    @cached_property
    def _kept(self) -> dict[str, str]:
        """Clean name to the name in the source."""
        kept = {}
        for name in self.whole:
            clean = self.cleaner.signal_name(name)
            why = self._why_not(name)
            if why:
                self._note(clean, why)
            else:
                kept[clean] = name
        return kept

    def _why_not(self, name: str) -> str:
        """Say why a signal cannot be part of a release; empty = it can."""
        if is_on_globe(re.sub(r"\d+", " ", name)):  # also gps0 and wgs84
            return "position on the globe, removed"
        values = np.asarray(self.whole[name])
        if values.dtype.kind == "V" or (values.dtype.kind == "O" and not _holds_texts(values)):
            return "bytes that no rule reads, removed"
        if values.dtype.kind in "USO":
            if self.cleaner.notes == "drop":
                return "free text, removed"
            if about(name) in ("machine", "person", "place"):
                return f"text about a {about(name)}, removed"
        return ""

    def _clean(self, name: str, shown: str) -> npt.NDArray[Any]:
        values = np.asarray(self.whole[name])
        if values.dtype.kind in "USO":
            return self._texts(values, name, shown)
        if values.dtype.kind == "M":
            self._note(shown, CLOCK)
            return seconds_since_start(values)
        started = since_start(values, named=is_clock(name))
        if started is None:
            return values
        self._note(shown, CLOCK)
        return started

    def _texts(self, values: npt.NDArray[Any], name: str, shown: str) -> npt.NDArray[Any]:
        """A text of a thousand frames is one text: each is searched once."""
        clean = {text: self._text(text, name) for text in dict.fromkeys(map(_text_of, values.ravel().tolist()))}
        if any(text != cleaned for text, cleaned in clean.items()):
            self._note(shown, "text in which something was found, replaced")
        return np.array([clean[_text_of(one)] for one in values.ravel().tolist()], dtype=str).reshape(values.shape)

    def _text(self, text: str, name: str) -> str:
        names = self.cleaner.names
        if text.strip() == self.episode.instruction.strip():  # many formats repeat it with every frame
            return names.in_name(text, Counter())
        if about(name) == "moment" or re.fullmatch(r"\s*\d+(\.\d*)?\s*", text):
            return names.coarse(text.strip())
        return text if self.cleaner.notes == "keep" else names.in_text(text, Counter())

    def _note(self, shown: str, what: str) -> None:
        self.cleaner.signals.setdefault((shown, what), set()).add(self.episode.id)


def _holds_texts(values: npt.NDArray[Any]) -> bool:
    return all(isinstance(one, str | bytes) for one in values.ravel().tolist())


def _text_of(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
