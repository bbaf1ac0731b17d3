"""The first look at what is to be released: licences, names, the dataset's own words, and whether splits leak."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from demerit.data.dataset import Dataset, Problem
from demerit.data.episode import Episode
from demerit.data.labels import Preference
from demerit.data.splits import Leak, describe_leaks, find_leaks
from demerit.data.store import episode_row
from demerit.data.taxonomy import kinds
from demerit.errors import BadInput, UnknownName, UnreadableVideo
from demerit.use.release import patterns
from demerit.use.release.everyday import is_everyday
from demerit.use.release.fields import about, is_of_things
from demerit.use.release.layouts import check_fits_lerobot
from demerit.use.release.licences import doubts, spelt, whole_licence
from demerit.use.release.names import Names, all_words, words_of
from demerit.use.release.settings import EVERY_CAMERA, Settings
from demerit.use.release.stand_ins import stand_ins

YES_OR_NO = {True: "yes", False: "no", None: ""}
REFUSED = ("video", "recording", "original")
"""leaks that are never meant; one task in two splits may be, and is said on the card"""


@dataclass(frozen=True, eq=False)
class Survey:
    """What is to be released, as it is before anything is removed."""

    episodes: tuple[Episode, ...]
    preferences: tuple[Preference, ...]
    licence: str
    doubts: tuple[str, ...]
    """about licences, a sentence each"""
    names: Names
    leaks: tuple[Leak, ...]
    left_out: int
    """episodes whose videos cannot be read"""
    plan: str
    """changes when the episodes, their labels or the settings do: what a run that was killed may go on with.

    A hash of everything that is to be removed, so it is for the owner alone: whoever has it can test guesses."""


def survey(dataset: Dataset, settings: Settings) -> Survey:
    """Read everything once, and refuse what must not be released before a byte is written. Decodes next to nothing."""
    episodes, preferences, left_out = _chosen(dataset, settings)
    if not episodes:
        raise BadInput(dataset.address or dataset.name, "at least one episode to release", "none")
    _check_cameras(episodes, settings)
    if settings.layout == "lerobot":
        check_fits_lerobot(episodes, settings)
    licences = Counter(one.origin.licence for one in episodes)
    licence = whole_licence(licences, changed=settings.encodes or any(one.edits for one in episodes))
    leaks = find_leaks(episodes)
    grave = [leak for leak in leaks if leak.kind in REFUSED]
    if grave and not settings.allow_leaks:
        advice = "splits that share no video, recording or original (--allow-leaks releases them with a warning)"
        raise BadInput("splits", advice, describe_leaks(grave)[0].removeprefix("Splits leak: ").rstrip("."))
    return Survey(
        episodes=episodes,
        preferences=preferences,
        licence=licence,
        doubts=tuple(doubts(licences)),
        names=known_names(episodes, preferences, settings),
        leaks=tuple(leaks),
        left_out=left_out,
        plan=_plan(episodes, preferences, settings),
    )


def known_names(episodes: Iterable[Episode], preferences: Iterable[Preference], settings: Settings) -> Names:
    """Collect who and where from the fields that hold nothing else, and the dataset's words for things."""
    people: dict[str, None] = {}
    places: dict[str, None] = {}
    words = {word for kind in kinds() for text in (kind.name, kind.definition, *kind.examples) for word in text.split()}
    labels: set[str] = set()
    for episode in episodes:
        words |= words_of(episode.instruction) | all_words(" ".join(episode.instruction.split()[:1]))
        for label in (episode.origin.embodiment, episode.origin.dataset, *episode.views):
            labels |= _vouched(label, of_things=True)
        places |= {episode.origin.site: None}
        people |= {outcome.by: None for outcome in episode.outcomes if outcome.source == "human"}
        for name, value in episode.origin.tags.items():
            match about(name, value):
                case "person":
                    people |= {value: None}
                case "place":
                    places |= {value: None}
                case "thing":
                    words |= _vouched(value, is_of_things(name))
    people |= {one.by: None for one in preferences if one.source == "human"}
    return stand_ins(people, places, settings.names, frozenset(words | labels), settings.dates, frozenset(labels))


def _vouched(value: str, of_things: bool) -> set[str]:
    """Words of a value that are no names, and what a thing is called in one word.

    A field that nobody knows may hold a name, and "Kowalczyk mug" is a thing after somebody: neither vouches for it.
    """
    found = patterns.WORD.findall(value)
    if not of_things or len(found) > 1:
        found = [word for word in found if is_everyday(word) or word[1:] != word[1:].lower() or not word.isalpha()]
    return {word.lower() for word in found}


def _chosen(dataset: Dataset, settings: Settings) -> tuple[tuple[Episode, ...], tuple[Preference, ...], int]:
    episodes: dict[str, Episode] = {}
    preferences = []
    left_out = 0
    for record in dataset.records():
        if isinstance(record, Preference):
            preferences.append(record)
        else:
            licence = spelt(record.origin.licence or settings.licence)
            one = replace(record, origin=replace(record.origin, licence=licence))
            if all(_column(one, name) == value for name, value in settings.where.items()):
                if _is_readable(dataset, one):
                    episodes[one.id] = one
                else:
                    left_out += 1
    kept = [one for one in preferences if one.a in episodes and one.b in episodes]
    return tuple(episodes.values()), tuple(kept), left_out


def _is_readable(dataset: Dataset, episode: Episode) -> bool:
    try:
        for frames in episode.views.values():
            frames.identity(), frames.times()
    except UnreadableVideo as error:
        dataset.report(Problem("unreadable video", episode.id, f"{error.path}: {error.reason}", kept=False))
        return False
    return True


def _column(episode: Episode, name: str) -> str:
    """An episode's value in one of the columns to choose by, as text: yes and no for truth, empty for unknown."""
    if name in ("id", "instruction"):
        return str(getattr(episode, name))
    if name in ("success", "grade", "vouched_by"):
        outcome = episode.outcome
        value = None if outcome is None else getattr(outcome, "source" if name == "vouched_by" else name)
        return YES_OR_NO.get(value, str(value)) if name == "success" else "" if value is None else str(value)
    return str(getattr(episode.origin, name))


def _check_cameras(episodes: Iterable[Episode], settings: Settings) -> None:
    cameras = {camera for one in episodes for camera in one.views}
    for mask in settings.masks:
        if mask.camera not in (EVERY_CAMERA, *cameras):
            raise UnknownName("camera to mask", mask.camera, cameras)


def _plan(episodes: Iterable[Episode], preferences: Iterable[Preference], settings: Settings) -> str:
    digest = hashlib.sha256(settings.digest())
    for episode in episodes:
        row = episode_row(replace(episode, signals={}), Path("/"))
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    for preference in preferences:
        digest.update(json.dumps(vars(preference), sort_keys=True).encode())
    return digest.hexdigest()[:32]
