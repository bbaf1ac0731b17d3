"""Finding names, places, moments and addresses in texts, and writing something else in their place.

Rules, not understanding: a known name is found wherever it stands; in free text a word with a capital that the dataset
never writes small is taken for a name. A name that nobody told and that is written small is not found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal

Dates = Literal["month", "year", "drop"]

NAME, LINK, PLACE, PATH, PHONE, DATE, TEXT = (
    "[name]", "[link]", "[place]", "[path]", "[number]", "[date]", "[text removed]",
)  # fmt: skip
SHORTEST_PART = 3
"""letters that a part of a name needs to be looked for on its own"""
MOST_ROUNDS = 8
MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
EARLIEST, LATEST = 946_684_800, 4_102_444_800
"""2000 and 2100 in seconds since 1970: what is between them in a field about time is a moment"""

# Words that begin sentences and are no names; the dataset's own words come on top.
STARTERS = frozenset(
    """
    a about above actually after again all almost also although always an and another any apart around arm as at attempt
    away bad badly because before behind below beside better between block both but by camera can cannot close closed
    clumsy collision completely could did didn do does done down dropped drops during each either end ended episode even
    eventually every everything exactly fail failed fails failure fairly fast few finally fine first for from front
    goal good got grabbed grasp grasped great grip gripper half hand hard has have he her here his hit how however i if
    in incomplete instead into is it its just knocked knocks last later left less lets lifted like looks lost made many
    maybe might missed misses more most moved moves much near nearly needs neither never next nice no nobody none nor
    not nothing now object of off often ok okay on once one only opened opens or other our out over partial partially
    perfect perhaps picked picks place placed places policy poor pretty probably progress pulled pushed put quick quite
    reached reaches really released right robot same second seems several she should since slow slowly so some somehow
    something sometimes somewhat soon started still stopped stops stuck success successful such task than that the their
    them then there these they thing this those though through thus time to too touched towards tried tries trial two
    under unable unclear undone unsafe until up upright us very was we weird well went were what when where which while
    who whole why with within without would wrong yes yet you your
    """.split()
)

_word = re.compile(r"[^\W\d_][^\W_]*(?:['’-][^\W\d_]+)*")
_email = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_link = re.compile(r"\b(?:https?|ftp|s3|gs)://\S+|\bwww\.\S+", re.I)
_path = re.compile(r"(?:/(?:home|users|mnt|media|data|root)/|[A-Z]:\\)[^\s,;]+", re.I)
_address = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I)
_coordinates = re.compile(r"-?\d{1,3}\.\d{4,}\s*[,;/ ]\s*-?\d{1,3}\.\d{4,}")
_phone = re.compile(r"(?<![\w.])(?:\+\d|\(\d|0\d)[\d ()/-]{6,}\d(?![\w.])")
_clock = r"(?:[T_ -]?[0-2]\d[:.-]?[0-5]\d(?:[:.-]?[0-5]\d(?:[.,]\d+)?)?(?:\s?Z|[+-]\d\d:?\d\d)?)?"
_iso = re.compile(rf"(?<!\d)((?:19|20)\d\d)[-_/.]?(0[1-9]|1[0-2])[-_/.]?(?:0[1-9]|[12]\d|3[01]){_clock}(?!\d)")
_slashed = re.compile(r"(?<![\d.])\d{1,2}([/.])\d{1,2}\1((?:19|20)\d\d)(?![\d.])")
_month = "|".join(f"{month}[a-z]*" for month in MONTHS)
_spoken = re.compile(
    rf"\b(?:(\d{{1,2}})(?:st|nd|rd|th)?\.?\s+)?({_month})\.?\s+(?:\d{{1,2}}(?:st|nd|rd|th)?,?\s+)?((?:19|20)\d\d)\b",
    re.I,
)


@dataclass(frozen=True)
class Names:
    """What is known before reading: who and where, and which words this dataset uses for things."""

    known: Mapping[str, str] = field(default_factory=dict)
    """a name or a place to what stands in for it in a text; longer ones win"""
    fields: Mapping[str, str] = field(default_factory=dict)
    """the same for fields that hold nothing but a name: also names that are words in a text"""
    words: frozenset[str] = frozenset()
    """words of this dataset in lower case: with a capital they are no names"""
    dates: Dates = "month"

    def in_name(self, text: str, found: Counter[str]) -> str:
        """Clean an identifier or a short value: known names, addresses and moments."""
        for pattern, kind, instead in (
            (_email, "mail address", NAME),
            (_link, "link", LINK),
            (_path, "path", PATH),
            (_address, "network address", LINK),
            (_coordinates, "coordinates", PLACE),
        ):
            text = _replaced(pattern, text, instead, found, kind)
        text = self._dates_in(text, found)
        return self._known_in(text, found)

    def in_text(self, text: str, found: Counter[str]) -> str:
        """Clean free text: also telephone numbers and whatever looks like a name."""
        for _ in range(MOST_ROUNDS):  # what was glued to a name may be a number on its own
            before, text = text, self._searched(text, found)
            if text == before:
                break
        return text

    def _searched(self, text: str, found: Counter[str]) -> str:
        text = _replaced(_phone, self.in_name(text, found), PHONE, found, "telephone number")
        if any(char.isalpha() and char.lower() == char.upper() for char in text):
            found["text in a script without capitals, removed whole"] += 1
            return TEXT
        return self._suspects_in(text, found)

    def suspects(self, text: str) -> list[str]:
        """List what looks like a name in a text whose words must not change by guess, such as an instruction."""
        return [text[start:stop] for start, stop, begins in self._capitals(text) if not begins]

    def coarse(self, moment: str) -> str:
        """Make a field that holds a moment coarse; what is no moment is given back, if it is no text either."""
        number = _number(moment)
        if number is not None:
            seconds = next((number / unit for unit in (1, 1e3, 1e6, 1e9) if EARLIEST < number / unit < LATEST), None)
            if seconds is None:
                return moment  # a duration, a count: no moment of any calendar
            when = datetime.fromtimestamp(seconds, UTC)
            return self._date(when.year, when.month)
        if not any(char.isdigit() for char in moment):
            return self.in_name(moment, Counter())  # "morning" is no moment either
        coarse = self._dates_in(moment, Counter())
        return coarse if coarse != moment or re.fullmatch(r"(19|20)\d\d(-\d\d)?", moment) else ""

    def _dates_in(self, text: str, found: Counter[str]) -> str:
        # What stood beside a date may make another one with what is left of it; every round is shorter, so it ends.
        changed = True
        while changed:
            before = text
            for pattern in (_iso, _spoken, _slashed):
                text, count = pattern.subn(self._dated, text)
                found["date or time, coarsened"] += count
            changed = text != before
        return text

    def _dated(self, match: re.Match[str]) -> str:
        if match.re is _slashed:  # whose month is it, the first number or the second?
            return self._date(int(match[2]), None)
        if match.re is _spoken:
            return self._date(int(match[3]), MONTHS.index(match[2][:3].lower()) + 1)
        return self._date(int(match[1]), int(match[2]))

    def _date(self, year: int, month: int | None) -> str:
        if self.dates == "drop":
            return DATE
        return str(year) if self.dates == "year" or month is None else f"{year}-{month:02d}"

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        if not self.known:
            return None
        longest_first = sorted(self.known, key=lambda name: (-len(name), name))
        return re.compile(r"(?<![^\W_])(?:" + "|".join(map(re.escape, longest_first)) + r")(?![^\W_])", re.I)

    @cached_property
    def _instead(self) -> dict[str, str]:
        return {name.casefold(): instead for name, instead in self.known.items()}

    def _known_in(self, text: str, found: Counter[str]) -> str:
        if self._pattern is None:
            return text
        text, count = self._pattern.subn(lambda match: self._instead.get(match[0].casefold(), NAME), text)
        found["known name or place"] += count
        return text

    def _suspects_in(self, text: str, found: Counter[str]) -> str:
        spans = self._capitals(text)
        for start, stop, _ in reversed(spans):
            text = text[:start] + NAME + text[stop:]
        found["word that looks like a name"] += len(spans)
        return text

    def _capitals(self, text: str) -> list[tuple[int, int, bool]]:
        """Words with a capital that this dataset never writes small: where, and whether they begin a sentence."""
        spans = []
        for match in _word.finditer(text):
            word, start = match[0], match.start()
            if not word[0].isupper() or (len(word) > 1 and word.isupper()) or text[start - 1 : start] == "[":
                continue
            begins = not text[:start].rstrip(" \t\"'(*-") or text[:start].rstrip(" \t\"'(*-")[-1] in ".!?:\n"
            plain = re.split(r"['’]", word.lower())[0]
            if plain not in self.words and plain not in STARTERS:
                spans.append((start, match.end(), begins))
        return spans


def stand_ins(
    people: Iterable[str], places: Iterable[str], told: Iterable[str], words: frozenset[str], dates: Dates = "month"
) -> Names:
    """Number people and places in the order in which they appear; parts of a name stand for the whole of it.

    A part, or a name of one small word, counts only if the dataset does not use it as a word: a site called "kitchen"
    must not turn every kitchen into a site.
    """
    known: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    told = list(told)
    for kind, listed in (("person", people), ("site", places), ("name", told)):
        for name in dict.fromkeys(text.strip() for text in listed):
            if not any(char.isalnum() for char in name) or name.casefold() in {one.casefold() for one in known}:
                continue
            numbers[kind] += 1
            known[name] = f"{kind}-{numbers[kind]}"
    taken = {name.casefold() for name in known}
    for name, instead in list(known.items()):
        for part in _word.findall(name):
            is_long = len(part) >= SHORTEST_PART and part[0].isupper()
            if is_long and part.lower() not in words | STARTERS and part.casefold() not in taken:
                known[part] = instead
                taken.add(part.casefold())
    given = {name.strip().casefold() for name in told}
    plain = {name for name in known if name.casefold() in words and name.casefold() not in given}
    in_texts = {name: instead for name, instead in known.items() if name not in plain}
    return Names(in_texts, {name.casefold(): instead for name, instead in known.items()}, words, dates)


def words_of(text: str) -> set[str]:
    """Words that a text writes small."""
    return {word for word in _word.findall(text) if word[0].islower()}


def all_words(text: str) -> set[str]:
    """Every word of a text, in lower case."""
    return {word.lower() for word in _word.findall(text)}


def _replaced(pattern: re.Pattern[str], text: str, instead: str, found: Counter[str], kind: str) -> str:
    text, count = pattern.subn(instead, text)
    found[kind] += count
    return text


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
