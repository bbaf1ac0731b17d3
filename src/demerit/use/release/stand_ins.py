"""Who stands in for whom: known people and places are numbered, and those whose names are words as well set apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from demerit.use.release import patterns
from demerit.use.release.everyday import STARTERS, is_everyday, is_word
from demerit.use.release.names import Dates, Names

SHORTEST_PART = 3
"""letters that a part of a name needs to be looked for on its own"""


def stand_ins(
    people: Iterable[str],
    places: Iterable[str],
    told: Iterable[str],
    words: frozenset[str],
    dates: Dates = "month",
    labels: frozenset[str] = frozenset(),
) -> Names:
    """Number people and places in the order in which they appear; parts of a name stand for the whole of it.

    A name that is also a word is not looked for everywhere, unless it was told: a site called "kitchen" must not turn
    every kitchen into a site. That an instruction names somebody (`words`) makes no word of a person's name that is in
    no vocabulary; that the dataset, its robot or a camera (`labels`, which are in `words` too) is called so does.
    """
    numbered: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    told = list(told)
    for kind, listed in (("person", people), ("site", places), ("name", told)):
        for name in dict.fromkeys(text.strip() for text in listed):
            if not any(char.isalnum() for char in name) or name.casefold() in {one.casefold() for one in numbered}:
                continue
            numbers[kind] += 1
            numbered[name] = f"{kind}-{numbers[kind]}"
    given = {name.strip().casefold() for name in told}
    known: dict[str, str] = {}
    also_words: dict[str, str] = {}
    fields = {name.casefold(): instead for name, instead in numbered.items()}
    for name, instead in numbered.items():
        if name.casefold() in given:
            known[name] = instead
        elif (
            sum(char.isalpha() for char in name) > 1
        ):  # "3" is somebody in a field about people, and a number elsewhere
            (also_words if _is_also_word(name, instead, words, labels) else known)[name] = instead
    taken = set(fields)
    for name, instead in numbered.items():
        for part in _parts(name, is_site=instead.startswith("site")):
            low = part.casefold()
            if low in taken:
                continue
            is_word_too = is_everyday(low) or _is_also_word(part, instead, words, labels)
            (also_words if is_word_too else known)[part] = instead
            taken.add(low)
            fields[low] = instead
    return Names(known, fields, also_words, words, dates)


def _parts(name: str, is_site: bool) -> list[str]:
    """Words of a name that are looked for on their own; in small letters those of people that are no words at all."""
    found = [part for part in patterns.WORD.findall(name.partition("@")[0]) if len(part) >= SHORTEST_PART]
    return [
        part
        for part in found
        if part.casefold() not in STARTERS and (part[0].isupper() or not (is_site or is_word(part.casefold())))
    ]


def _is_also_word(name: str, instead: str, words: frozenset[str], labels: frozenset[str]) -> bool:
    low = name.casefold()
    if low in words:
        return instead.startswith("site") or low in labels or is_word(low)
    return name.islower() and is_everyday(low)
