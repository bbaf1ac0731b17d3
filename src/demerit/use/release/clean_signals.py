"""Signals of an episode without the people, places and moments behind them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from demerit.data.episode import Episode
from demerit.use.release.clocks import seconds_since_start, since_start
from demerit.use.release.everyday import is_everyday
from demerit.use.release.fields import about, is_clock, is_counted, is_of_things, is_on_globe

if TYPE_CHECKING:
    from demerit.use.release.cleaned import Cleaner

CLOCK = "clock, begins at zero"


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
        if is_on_globe(name):
            return "position on the globe, removed"
        values = np.asarray(self.whole[name])
        if values.dtype.kind == "V" or (values.dtype.kind == "O" and not _holds_texts(values)):
            return "bytes that no rule reads, removed"
        if values.dtype.kind in "USO":
            if self.cleaner.notes == "drop":
                return "free text, removed"
            if about(name) in ("machine", "person", "place") and not _is_in_scene(name, values):
                return f"text about a {about(name)}, removed"
        return ""

    def _clean(self, name: str, shown: str) -> npt.NDArray[Any]:
        values = np.asarray(self.whole[name])
        if values.dtype.kind in "USO":
            return self._texts(values, name, shown)
        if values.dtype.kind == "M":
            self._note(shown, CLOCK)
            return seconds_since_start(values)
        if is_counted(name):
            return values
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
            return names.in_instruction(text, Counter())
        if is_counted(name, text):
            return names.in_name(text, Counter(), counted=True)
        if about(name) == "moment" or re.fullmatch(r"\s*\d+(\.\d*)?\s*", text):
            return names.coarse(text.strip())
        if self.cleaner.notes == "keep":
            return text
        is_thing = about(name) == "place" or (about(name) == "thing" and is_of_things(name))
        return names.in_instruction(text, Counter()) if is_thing else names.in_text(text, Counter())

    def _note(self, shown: str, what: str) -> None:
        self.cleaner.signals.setdefault((shown, what), set()).add(self.episode.id)


def _holds_texts(values: npt.NDArray[Any]) -> bool:
    return all(isinstance(one, str | bytes) for one in values.ravel().tolist())


def _is_in_scene(name: str, values: npt.NDArray[Any]) -> bool:
    """Whether texts about a site are about one of a simulator's ("grip_site"): everyday words, joined by signs."""
    texts = set(map(_text_of, values.ravel().tolist()))
    words = [re.findall(r"[^\W\d_]+", text) for text in texts]
    return (
        re.search(r"(?<![^\W_])site(?![^\W_])", name, re.I) is not None
        and about(name) == "place"
        and all(len(some) > 1 and all(word.islower() and is_everyday(word) for word in some) for some in words)
    )


def _text_of(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
