"""The allow-list: a released episode is built from the fields named here. Everything else is dropped and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Edit, Episode, Origin
from demerit.data.frames import Frames
from demerit.data.labels import Event, Outcome, Preference
from demerit.errors import BadInput
from demerit.use.release.config import ReleaseConfig, load_hook

VERBATIM_ORIGIN = ("dataset", "revision", "licence", "embodiment", "split")
SIGNALS = ("state", "action", "actions")
"""released by default, if they are numbers"""
TIME_SIGNALS = ("timestamp", "timestamps", "time")
"""begin at zero when they are kept"""


@dataclass
class Numbering:
    """Gives private names public numbers, in the order in which they are first used."""

    form: str
    """a format string for the number"""
    given: dict[str, str] = field(default_factory=dict)
    """private name to public name"""

    def __call__(self, name: str) -> str:
        """Return the public name; empty stays empty."""
        if name and name not in self.given:
            self.given[name] = self.form.format(len(self.given) + 1)
        return self.given[name] if name else ""


@dataclass(frozen=True, eq=False)
class _AllowedSignals(Mapping[str, npt.NDArray[Any]]):
    """Some signals of an episode, read when asked for. Time signals begin at zero."""

    source: Mapping[str, npt.NDArray[Any]]
    names: Mapping[str, str]
    """released name to the source's name"""

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        values = np.asarray(self.source[self.names[name]])
        if self.names[name] in TIME_SIGNALS and values.size and values.dtype.kind in "fiuM":
            values = np.asarray(values - values.flat[0])
            return np.asarray(values / np.timedelta64(1, "s")) if values.dtype.kind == "m" else values
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class ReleaseFields:
    """Builds released episodes and preferences, and remembers what was renamed and dropped."""

    def __init__(self, config: ReleaseConfig, episodes: Iterable[Episode]) -> None:
        """Number the episodes in their order; `config.scrub` is imported here."""
        self.episodes, self.unreleased = Numbering("episode_{:06d}"), Numbering("unreleased_{:06d}")
        self.annotators, self.groups = Numbering("annotator_{}"), Numbering("group_{}")
        for episode in episodes:
            self.episodes(episode.id)
        self.dropped: Counter[str] = Counter()
        """field to the number of episodes or labels that had it"""
        self.texts: set[str] = set()
        """instructions as released, also those that only an edit mentions"""
        self.unused = set(config.replacements)
        """replacements that matched nothing so far"""
        self._config = config
        self._scrub: Callable[[Any], Any] | None = load_hook(config.scrub, "--scrub") if config.scrub else None

    def id(self, id: str) -> str:
        """Return the released id; episodes that are not part of the release get numbers of their own."""
        return self.episodes.given.get(id) or self.unreleased(id)

    def name(self, text: str) -> str:
        """Return a released name (camera, split, kind of failure ...): verbatim unless the owner replaces it."""
        self.unused.discard(text)
        return self._config.replacements.get(text, text)

    def episode(self, episode: Episode) -> Episode:
        """Build the released episode; its frames are still the source's."""
        views: dict[str, Frames] = {self.name(camera): frames for camera, frames in episode.views.items()}
        if len(views) < len(episode.views):
            raise BadInput("--replace", "different names for different cameras", ", ".join(views))
        return Episode(
            id=self.id(episode.id),
            instruction=self._instruction(episode.instruction),
            views=views,
            outcomes=tuple(self._outcome(outcome) for outcome in episode.outcomes),
            origin=self._origin(episode.origin),
            signals=_AllowedSignals(episode.signals, self._signals(episode.signals)),
            edits=tuple(Edit(edit.name, self._params(edit), edit.seed) for edit in episode.edits),
        )

    def preference(self, preference: Preference) -> Preference:
        """Build the released preference."""
        a, b, why = self.id(preference.a), self.id(preference.b), self._note(preference.why)
        return Preference(a, b, preference.verdict, preference.source, why, self._by(preference))

    def _outcome(self, outcome: Outcome) -> Outcome:
        events = tuple(Event(self.name(e.kind), e.first, e.last, self._note(e.note)) for e in outcome.events)
        labels = (outcome.source, outcome.success, outcome.progress, outcome.grade, outcome.curve)
        return Outcome(*labels, events, self._note(outcome.note), self._by(outcome))

    def _by(self, label: Outcome | Preference) -> str:
        return self.annotators(label.by) if label.source == "human" else self.name(label.by)

    def _origin(self, origin: Origin) -> Origin:
        tags = {name: value for name, value in origin.tags.items() if self._config.keeps("tags", name)}
        self.dropped.update(f"tags.{name}" for name in origin.tags if name not in tags)
        site = origin.site if self._config.keeps("site") else ""
        self.dropped["site"] += bool(origin.site) and not site
        texts = {name: self.name(getattr(origin, name)) for name in VERBATIM_ORIGIN}
        parent = self.id(origin.parent) if origin.parent else ""
        return Origin(**texts, site=site, group=self.groups(origin.group), parent=parent, tags=tags)

    def _signals(self, signals: Mapping[str, npt.NDArray[Any]]) -> dict[str, str]:
        default = [name for name in signals if name in SIGNALS and np.asarray(signals[name]).dtype.kind in "fiub"]
        kept = [name for name in signals if name in default or self._config.keeps("signals", name)]
        self.dropped.update(f"signals.{name}" for name in signals if name not in kept)
        return {self.name(name): name for name in kept}

    def _params(self, edit: Edit) -> dict[str, Any]:
        """Return the numbers, and the texts that our own edits write."""
        texts = {"partner": self.id, "words": self._instruction, "was": self._instruction}
        texts |= {"model": self.name, "prompts": self.name}
        kept = {name: value for name, value in edit.params.items() if _is_numeric(value)}
        kept |= {n: texts[n](value) for n, value in edit.params.items() if n in texts and isinstance(value, str)}
        self.dropped.update(f"edits.{name}" for name in edit.params if name not in kept)
        return kept

    def _instruction(self, text: str) -> str:
        released = self.name(text) if text in self._config.replacements else self._scrub_text(text)
        self.texts.add(released)
        return released

    def _note(self, text: str) -> str:
        if not text or self._config.keeps("notes"):
            return self._scrub_text(text)
        self.dropped["notes"] += 1
        return ""

    def _scrub_text(self, text: str) -> str:
        if self._scrub is None or not text:
            return text
        clean = self._scrub(text)
        if not isinstance(clean, str):
            raise BadInput("--scrub", "a text", type(clean).__name__)
        return clean


def _is_numeric(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_numeric(inner) for inner in value)
    return value is None or isinstance(value, bool | int | float)
