"""Words that look like names although nobody told them: by their capitals, by a list, or by what stands beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from demerit.use.release.everyday import STARTERS, is_everyday, is_word
from demerit.use.release.frequent_names import ALSO_WORDS, BRANDS, CITIES, FIRST_NAMES, PRODUCTS, SHOPS, SURNAMES
from demerit.use.release.patterns import LOGIN, NAMED, SIGNED, SPEAKS, TITLE, WORD

SURE = FIRST_NAMES - ALSO_WORDS
"""first names that are no words"""
SURE_CITIES = CITIES - ALSO_WORDS - FIRST_NAMES
SHORTEST_SHOUTED, SHORTEST_UNKNOWN_SHOUTED, SHORTEST_UNKNOWN = 4, 5, 3
"""letters: below them, words in capitals are abbreviations, and unknown small ones nothing to speak of"""
INITIALS = 3
LONGEST_NAME = 4
"""words"""
NEAR = 40
"""characters before a word that can tell whether it begins a sentence"""
LONGEST_SHOUTED = 3
"""words: MARIA DE GARCIA is a name in a text; a longer row of words in capitals is somebody shouting"""
VERB_ENDINGS = ("ed", "ing")
BEHIND_VERBS = frozenset("the a an it all both this that these each every one two three".split())
"""what follows a verb and no name: "mark the box", but "Mark dropped it" """
NEXT = re.compile(r" ([^\W\d_]+(?:['’-][^\W\d_]+)*)")
OURS = re.compile(r"(?:person|site|name)-\d+(?:['’]s)?", re.I)
PRODUCT = re.compile(
    r"(?<![^\W_])(?:"
    + "|".join(
        re.escape(one).replace("'", "['’]").replace(r"\ ", r"\.?\s") for one in sorted(PRODUCTS, key=len, reverse=True)
    )
    + rf"|(?:the|an?)\s(?:{'|'.join(SHOPS)})['’]s"
    + r"|(?:the|an?)\s[^\W\d_]{2,20}(?=\s(?:doll|figurine|puppet|plush|plushie|action\sfigure)s?\b))(?![^\W_])",
    re.I,
)
"""things that are called like somebody; of a doll, whoever it is"""


@dataclass(frozen=True)
class Guess:
    """A word that looks like a name."""

    start: int
    stop: int
    is_city: bool = False


def guesses(text: str, words: frozenset[str]) -> list[Guess]:
    """Find what looks like a name in free text; `words` are what the dataset calls things."""
    return _people({one.start: one for one in (*_beside(text, words), *_by_looks(text, words))}.values(), text)


def surely(text: str) -> list[Guess]:
    """Find people in a text whose words must not change by guess, such as an instruction.

    A common first name with a capital that is no word, a name that is one before a surname, what follows a title.
    """
    found = []
    for match in WORD.finditer(text):
        low, behind = plain(match[0]), NEXT.match(text, match.end())
        surname = behind is not None and behind[1][0].isupper() and _is_surname(plain(behind[1]))
        if (
            match[0][0].isupper()
            and not match[0].isupper()
            and (low in SURE - BRANDS or (low in FIRST_NAMES and surname))
        ):
            found.append(Guess(match.start(), behind.end() if behind is not None and surname else match.end()))
    found += [Guess(match.start(1), match.end(1)) for match in TITLE.finditer(text) if match[1][0].isupper()]
    return _people(found, text)


def _people(found: Iterable[Guess], text: str) -> list[Guess]:
    """Leave out the guesses that begin in the name of a product."""
    products = {place for match in PRODUCT.finditer(text) for place in range(*match.span())}
    return apart(one for one in found if one.start not in products)


def apart(found: Iterable[Guess]) -> list[Guess]:
    """Order guesses; of those that overlap, the first and longest stays."""
    kept: list[Guess] = []
    for one in sorted(found, key=lambda guess: (guess.start, -guess.stop)):
        if not kept or one.start >= kept[-1].stop:
            kept.append(one)
    return kept


def capitals(text: str, words: frozenset[str]) -> Iterator[tuple[re.Match[str], bool]]:
    """Words with a capital that the dataset never writes small, and whether they begin a sentence."""
    for match in WORD.finditer(text):
        word = match[0]
        if (
            not word[0].isupper()
            or (len(word) > 1 and word.isupper())
            or text[match.start() - 1 : match.start()] == "["
        ):
            continue
        if _is_unit(text, match):
            continue
        if not _is_thing(plain(word), words) and plain(word) not in STARTERS:
            yield match, begins(text, match.start())


def begins(text: str, start: int) -> bool:
    """Whether a sentence begins there."""
    before = text[max(0, start - NEAR) : start].rstrip(" \t\"'(*-")
    return not before or before[-1] in ".!?:\n"


def rare(text: str) -> Iterator[str]:
    """Words in small letters that are names, or in no vocabulary: for somebody who knows to look at."""
    for match in WORD.finditer(text):
        low = plain(match[0])
        if match[0][0].islower() and len(low) >= SHORTEST_UNKNOWN and (_is_sure(low) or not is_word(low)):
            yield low


def common(text: str) -> list[str]:
    """Common first names and cities in an identifier, between signs and digits."""
    return [part for part in re.findall(r"[^\W\d_]+", text.lower()) if _is_sure(part)]


def is_somebody(text: str) -> bool:
    """Whether a value is somebody's name: few words, a common first name, and no everyday word in small letters."""
    found = WORD.findall(text)
    if len(found) > LONGEST_NAME or any(word.islower() and is_everyday(word) for word in found):
        return False
    return any(part in SURE for word in found for part in plain(word).split("-"))


def plain(word: str) -> str:
    """A word in small letters without what is behind its apostrophe."""
    return re.split(r"['’]", word.lower())[0]


def _by_looks(text: str, words: frozenset[str]) -> Iterator[Guess]:
    for match, at_start in capitals(text, words):
        low = plain(match[0])
        if low in BRANDS or (at_start and (is_everyday(low) or _is_verb(low, text, match.end()))):
            continue
        yield Guess(match.start(), _shouted_surname(text, match, words), low in SURE_CITIES)
    for match in WORD.finditer(text):
        word, low = match[0], plain(match[0])
        owns = word.endswith(("'s", "’s")) and _is_nobodys(low, words)
        if word[0].islower() and (_is_sure(low) or owns):
            yield Guess(match.start(), _surname(text, match.end(), words), low in SURE_CITIES)
        elif word.isupper() and len(word) >= SHORTEST_SHOUTED and (_is_sure(low) or _is_unknown_shout(low, words)):
            yield Guess(match.start(), _shouted_surname(text, match, words), low in SURE_CITIES)


def _beside(text: str, words: frozenset[str]) -> Iterator[Guess]:
    """Words where somebody is named that are no everyday ones, and initials."""
    for pattern in (TITLE, NAMED, SPEAKS, LOGIN, SIGNED):
        for match in pattern.finditer(text):
            word, start, stop = match[1], match.start(1), match.end(1)
            if OURS.fullmatch(word) or text[start - 1 : start] == "[":
                continue
            if word.isupper():
                is_name = 1 < len(word) <= INITIALS and not is_word(word.lower())
            else:
                is_name = _is_nobodys(word, words) or (pattern is TITLE and plain(word) not in STARTERS)
            if is_name:
                yield Guess(start, _surname(text, stop, words))


def _surname(text: str, stop: int, words: frozenset[str]) -> int:
    """Where a name ends that is followed by another small word which is none of the language."""
    following = NEXT.match(text, stop)
    if following is None or not following[1].islower():
        return stop
    is_name = following[1] in SURNAMES - words or _is_nobodys(following[1], words)
    return following.end() if is_name else stop


def _is_surname(low: str) -> bool:
    return low in SURNAMES or not is_everyday(low)


def _shouted_surname(text: str, first: re.Match[str], words: frozenset[str]) -> int:
    """Where a name ends that goes on in capitals: Maria GARCIA, MARIA GARCIA."""
    if first[0].isupper() and re.search(r"[A-Z]{2} $", text[max(0, first.start() - NEAR) : first.start()]):
        return first.end()  # in the midst of a row of capitals
    row: list[re.Match[str]] = []
    following = NEXT.match(text, first.end())
    while following is not None and following[1].isupper() and len(row) <= LONGEST_SHOUTED:
        row.append(following)
        following = NEXT.match(text, following.end())
    stop = first.end()
    for one in row if len(row) < LONGEST_SHOUTED else ():
        low = plain(one[1])
        if len(low) < SHORTEST_SHOUTED or low in words | STARTERS or low.endswith(VERB_ENDINGS):
            break
        stop = one.end()
    return stop


def _is_nobodys(word: str, words: frozenset[str]) -> bool:
    """Whether a word is in no vocabulary and does not look like a verb; digits at its end do not count."""
    low = plain(word).rstrip("0123456789_.-")
    if low.endswith(VERB_ENDINGS) or _is_thing(low, words):
        return False
    return len(low) >= SHORTEST_UNKNOWN and (_is_sure(low) or not all(map(is_word, re.split(r"[\W\d_]+", low))))


def _is_unknown_shout(low: str, words: frozenset[str]) -> bool:
    return len(low) >= SHORTEST_UNKNOWN_SHOUTED and low not in words and low.isalpha() and not is_word(low)


def _is_sure(low: str) -> bool:
    return any(part in SURE or part in SURE_CITIES for part in low.split("-"))


def _is_thing(low: str, words: frozenset[str]) -> bool:
    """Whether the dataset uses it as a word; that an instruction names somebody makes no thing of them."""
    return low in words and not _is_sure(low)


def _is_unit(text: str, match: re.Match[str]) -> bool:
    """Whether a single letter stands behind a number ("12 N") or in a pair ("F/T")."""
    around = (
        text[max(0, match.start() - NEAR) : match.start()].rstrip()[-1:],
        text[match.start() - 1 : match.start()],
        text[match.end() : match.end() + 1],
    )
    return len(match[0]) == 1 and (around[0].isdigit() or "/" in around[1:])


def _is_verb(low: str, text: str, stop: int) -> bool:
    following = WORD.match(text, stop + 1)
    return low in ALSO_WORDS and following is not None and following[0].lower() in BEHIND_VERBS
