"""Finding names, places, moments and addresses in texts, and writing something else in their place.

Rules, not understanding: a known name is found wherever it stands; in free text a word with a capital that the dataset
never writes small is taken for a name. A name that nobody told and that is written small is found only if it is a
common one, or stands where somebody is named ("ask ..."). `benchmarks/scrubbing.py` measures how many are missed.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal

from demerit.use.release import patterns
from demerit.use.release.everyday import is_everyday, is_word
from demerit.use.release.guesses import Guess, capitals, guesses, plain, rare, surely
from demerit.use.release.patterns import MONTHS

Dates = Literal["month", "year", "drop"]

NAME, LINK, PLACE, PATH, PHONE, DATE, TEXT = (
    "[name]", "[link]", "[place]", "[path]", "[number]", "[date]", "[text removed]",
)  # fmt: skip
MOST_ROUNDS = 8
LARGEST_ANGLE = 3.2
"""two numbers with many digits that are both smaller may be metres or radians as well as degrees"""
EARLIEST, LATEST = 946_684_800, 4_102_444_800
"""2000 and 2100 in seconds since 1970: what is between them in a field about time is a moment"""
DATED = (
    *(patterns.EPOCH, patterns.STAMPED, patterns.ISO, patterns.LOOSE, patterns.SPOKEN, patterns.SLASHED),
    *(patterns.SHORT_ISO, patterns.SHORT_SPOKEN),
)
COARSE = re.compile(r"(?<![\w.-])(?:19|20)\d\d(?:-\d\d)?(?![\w-])|\[date\]")
"""what is left of a date"""
UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3130-\u318f\u3400-\u9fff"
    r"\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""letters of scripts with no space between words, or none behind a name: Chinese, Japanese, Korean, Thai, Burmese"""


@dataclass(frozen=True)
class Names:
    """What is known before reading: who and where, and which words this dataset uses for things."""

    known: Mapping[str, str] = field(default_factory=dict)
    """a name or a place to what stands in for it in a text; longer ones win"""
    fields: Mapping[str, str] = field(default_factory=dict)
    """the same for fields that hold nothing but a name: also names that are words in a text"""
    also_words: Mapping[str, str] = field(default_factory=dict)
    """known names that are words as well: replaced in free text if they have a capital, else shown to the owner"""
    words: frozenset[str] = frozenset()
    """words of this dataset in lower case: with a capital they are no names"""
    dates: Dates = "month"

    def in_name(self, text: str, found: Counter[str], counted: bool = False) -> str:
        """Clean an identifier or a short value: known names, addresses and moments.

        Args:
            text: what to clean.
            found: counts what was found, by kind.
            counted: whether the name of its field says that it is a seed, a version, a hash: then numbers stay.
        """
        for pattern, kind, instead in (
            (patterns.EMAIL, "mail address", NAME),
            (patterns.LINK, "link", LINK),
            (patterns.PATH, "path", PATH),
        ):
            text = _replaced(pattern, text, instead, found, kind)
        if counted:
            return self._known_in(text, found)
        text = _replaced(patterns.ADDRESS, text, LINK, found, "network address")
        text = _replaced(patterns.DEGREES, text, PLACE, found, "coordinates")
        text = _filtered(patterns.PAIR, text, PLACE, found, "coordinates", _is_on_globe)
        text = self._dates_in(text, found)
        return self._known_in(text, found)

    def in_instruction(self, text: str, found: Counter[str]) -> str:
        """Clean what models read: as an identifier, and who is surely somebody; no word is lost by a guess."""
        return self._without(self.in_name(text, found), surely, found)

    def in_text(self, text: str, found: Counter[str]) -> str:
        """Clean free text: also telephone numbers and whatever looks like a name."""
        text = unicodedata.normalize("NFC", text)  # an accent on its own would end a word
        for _ in range(MOST_ROUNDS):  # what was glued to a name may be a number on its own
            before, text = text, self._searched(text, found)
            if text == before:
                break
        return text

    def _searched(self, text: str, found: Counter[str]) -> str:
        text = self._also_words_in(self.in_name(text, found), found)
        text = _filtered(patterns.SPELT_MAIL, text, NAME, found, "mail address", lambda match: not is_word(match[1]))
        for pattern, kind, instead in (
            (patterns.ACCOUNT, "account", NAME),
            (patterns.SITE, "link", LINK),
            (patterns.FILE, "path", PATH),
            (patterns.HOST, "host", LINK),
            (patterns.STREET, "room or street", PLACE),
            (patterns.ROOM, "room or street", PLACE),
            (patterns.SHORT_YEAR, "date or time, removed", DATE),
            (patterns.DAY, "date or time, removed", DATE),
            (patterns.WEEKDAY, "date or time, removed", DATE),
            (patterns.HOUR, "date or time, removed", DATE),
            (patterns.PHONE, "telephone number", PHONE),
            (patterns.INITIALS, "initials", NAME),
        ):
            text = _replaced(pattern, text, instead, found, kind)
        if any(char.isalpha() and char.lower() == char.upper() for char in text):
            found["text in a script without capitals, removed whole"] += 1
            return TEXT
        return self._suspects_in(text, found)

    def suspects(self, text: str) -> list[str]:
        """List what looks like a name in a text whose words must not change by guess, such as an instruction."""
        guessed = (word[0] for word, begins in capitals(text, self.words) if not begins or not is_everyday(word[0]))
        return list(dict.fromkeys((*guessed, *rare(text), *self.doubtful(text))))

    def doubtful(self, text: str) -> list[str]:
        """List known names that are words as well, where they stand in a text and nothing was replaced."""
        if not self.also_words:
            return []
        known = {name.casefold() for name in self.also_words}
        return [word for word in patterns.WORD.findall(text) if word.casefold() in known or plain(word) in known]

    def coarse(self, moment: str) -> str:
        """Make a field that holds a moment coarse; what is no moment is given back, if it is no text either."""
        coarse = self._dates_in(moment, Counter())
        if coarse != moment:
            return self._without_company(coarse)
        number = _number(moment)
        if number is not None:
            seconds = next((number / unit for unit in (1, 1e3, 1e6, 1e9) if EARLIEST < number / unit < LATEST), None)
            if seconds is None:
                return moment  # a duration, a count: no moment of any calendar
            when = datetime.fromtimestamp(seconds, UTC)
            return self._date(when.year, when.month)
        if not any(char.isdigit() for char in moment):
            clean = self.in_text(moment, Counter())  # "morning" is no moment; who wrote it there is none at all
            return clean if NAME not in clean and _is_plain(clean) else ""
        month = re.fullmatch(r"((?:19|20)\d\d)-(0[1-9]|1[0-2])", moment)
        return self._date(int(month[1]), int(month[2])) if month else ""

    def _without_company(self, coarse: str) -> str:
        """Search what stands beside coarse dates as free text; if it may still say who or when, only they are kept."""
        clean = self.in_text(coarse, Counter())
        beside = COARSE.sub(" ", clean)
        if _is_plain(beside) and not any(char.isdigit() for char in beside):
            return clean
        return " ".join(dict.fromkeys(COARSE.findall(coarse)))

    def _dates_in(self, text: str, found: Counter[str]) -> str:
        # What stood beside a date may make another one with what is left of it; every step is shorter, so it ends.
        changed = True
        while changed:
            before = text
            for pattern in DATED:
                match = pattern.search(text)
                while match is not None:
                    coarse = self._dated(match)
                    if coarse == match[0]:
                        match = pattern.search(text, match.end())
                        continue
                    text = text[: match.start()] + coarse + text[match.end() :]
                    found["date or time, coarsened"] += 1
                    match = pattern.search(text, match.start())
            changed = text != before
        return text

    def _dated(self, match: re.Match[str]) -> str:
        given = match.groupdict()
        if match.re is patterns.EPOCH:
            when = datetime.fromtimestamp(int(given["seconds"]), UTC)
            return given["letters"] + self._date(when.year, when.month)
        if match.re is patterns.SLASHED:  # whose month is it, the first number or the second?
            return self._date(int(given["year"]), None)
        year, month = int(given["year"]), given["month"]
        century = 2000 if year < 100 else 0  # noqa: PLR2004 - robots' data of the last century have four digits
        return self._date(century + year, int(month) if month.isdigit() else 1 + MONTHS.index(month[:3].lower()))

    def _date(self, year: int, month: int | None) -> str:
        if self.dates == "drop":
            return DATE
        return str(year) if self.dates == "year" or month is None else f"{year}-{month:02d}"

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        if not self.known:
            return None
        return re.compile("|".join(_bounded(name) for name in _longest_first(self._instead_of)), re.I)

    @cached_property
    def _instead_of(self) -> dict[str, str]:
        """Known names, an accented letter as one character and as two: a file name often has it as two."""
        return {
            unicodedata.normalize(form, name): instead
            for name, instead in self.known.items()
            for form in ("NFC", "NFD")
        }

    @cached_property
    def _instead(self) -> dict[str, str]:
        return {name.casefold(): instead for name, instead in self._instead_of.items()}

    @cached_property
    def _also_words(self) -> re.Pattern[str] | None:
        names = [name for name in self.also_words if name[:1].isupper()]
        return re.compile("|".join(map(_bounded, _longest_first(names)))) if names else None

    def _also_words_in(self, text: str, found: Counter[str]) -> str:
        if self._also_words is None:
            return text
        text, count = self._also_words.subn(lambda match: self.also_words[match[0]], text)
        found["known name or place"] += count
        return text

    def _known_in(self, text: str, found: Counter[str]) -> str:
        if self._pattern is None:
            return text
        text, count = self._pattern.subn(lambda match: self._instead.get(match[0].casefold(), NAME), text)
        found["known name or place"] += count
        return text

    def _suspects_in(self, text: str, found: Counter[str]) -> str:
        return self._without(text, lambda some: guesses(some, self.words), found)

    def _without(self, text: str, find: Callable[[str], list[Guess]], found: Counter[str]) -> str:
        spans = find(text)
        for one in reversed(spans):
            text = text[: one.start] + (PLACE if one.is_city else NAME) + text[one.stop :]
        found["word that looks like a name"] += len(spans)
        return text


def _longest_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (-len(name), name))


def _bounded(name: str) -> str:
    """A name as an expression, between other signs than letters and digits where its script has spaces."""
    before, behind = (
        r"" if UNSPACED.match(char) else sign for char, sign in ((name[0], r"(?<![^\W_])"), (name[-1], r"(?![^\W_])"))
    )
    return before + re.escape(name) + behind


def words_of(text: str) -> set[str]:
    """Words that a text writes small."""
    return {word for word in patterns.WORD.findall(text) if word[0].islower()}


def all_words(text: str) -> set[str]:
    """Every word of a text, in lower case."""
    return {word.lower() for word in patterns.WORD.findall(text)}


def _replaced(pattern: re.Pattern[str], text: str, instead: str, found: Counter[str], kind: str) -> str:
    text, count = pattern.subn(instead, text)
    found[kind] += count
    return text


def _filtered(
    pattern: re.Pattern[str],
    text: str,
    instead: str,
    found: Counter[str],
    kind: str,
    wanted: Callable[[re.Match[str]], bool],
) -> str:
    """Replace those matches that are wanted."""
    found[kind] += sum(map(wanted, pattern.finditer(text)))
    return pattern.sub(lambda match: instead if wanted(match) else match[0], text)


def _is_on_globe(pair: re.Match[str]) -> bool:
    """Whether two numbers can be a place on land; a hand's position in metres and joints' angles are nearer to zero."""
    north, east = (abs(float(number)) for number in (pair[1], pair[2]))
    return max(north, east) > LARGEST_ANGLE and min(north, east) <= 90 and max(north, east) <= 180  # noqa: PLR2004


def _is_plain(text: str) -> bool:
    """Whether nothing but words of the language stands in a text."""
    return all(is_word(word.lower()) for word in patterns.WORD.findall(text))


def _number(text: str) -> float | None:
    if "_" in text:  # Python reads 20240305_142210 as one number
        return None
    try:
        return float(text)
    except ValueError:
        return None
