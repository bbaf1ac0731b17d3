"""Whether two words are one: the same, another spelling, another form.

A word counts as known when the text tower that ships has it whole (11,500 words, a robot's kitchen among them), as a
form of such a word, as two of them run together, or behind a part that turns its meaning round ("unclip"). A known word
is never taken for a slip of another: "bowl" is no misspelt "ball", however near it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from string import ascii_lowercase

from demerit.data.instructions import plain_words
from demerit.negatives.relabel.paraphrase import tower

SLIPS = ((4, 1), (8, 2))
"""(letters, slips): a word of at most so many letters may have so many wrong; a longer one has three"""
MOST_SLIPS = 3
SHORTEST_STEM, SHORTEST_HALF = 3, 3
TURNED_BY = ("un", "de", "dis", "re", "mis", "non", "over", "under", "pre")
"""what turns a verb round or changes what is done: "unclip" is no misspelt "clip" """
_SHORT_STEM = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")
"""one syllable that doubles its last letter before -ed and -ing: "tap", "tapping"; "taping" is of "tape" """
_HISSES = re.compile(r".*(?:s|x|z|ch|sh|o)")


@lru_cache(maxsize=65_536)
def is_known(word: str) -> bool:
    """Whether it is a word of English that ships with the toolkit, to the best of our knowledge."""
    if any(tower().knows(stem) for stem in stems(word)):
        return True
    if any(tower().knows(stem) for part in TURNED_BY if word.startswith(part) for stem in stems(word[len(part) :])):
        return True
    halves = ((word[:cut], word[cut:]) for cut in range(SHORTEST_HALF, len(word) - SHORTEST_HALF + 1))
    return any(tower().knows(first) and tower().knows(second) for first, second in halves)


@lru_cache(maxsize=65_536)
def is_same_word(before: str, after: str) -> bool:
    """Whether a word may have become another by a repair: a form of it, or what a misspelt one was meant to be.

    Args:
        before: as it was written, in lower case.
        after: as it stands in the repaired text, in lower case.
    """
    if before == after or (plain_words(before) == plain_words(after) != []):
        return True
    if not (before.isascii() and after.isascii()) or not is_known(after):
        return False  # names and other scripts: nobody here can tell what they may be spelt like
    if is_known(before):
        return not stems(before).isdisjoint(stems(after))
    wrong = slips(before, after)
    most = next((most for letters, most in SLIPS if len(before) <= letters), MOST_SLIPS)
    # "botle" is a bottle and no battle: two slips do not count where one leads to another word.
    return wrong <= most and (wrong == 1 or not any(map(tower().knows, _one_slip_away(before))))


@lru_cache(maxsize=65_536)
def stems(word: str) -> frozenset[str]:
    """The words that it may be a form of, by the rules of English spelling; itself is one."""
    return frozenset({word, *(stem for stem in _stems(word) if len(stem) >= SHORTEST_STEM)})


def is_plural(one: str, other: str) -> bool:
    """Whether one word is the other with a plural's ending (or a verb with the ending of "she picks")."""
    return one.endswith("s") and one != other and other in stems(one)


def slips(one: str, other: str) -> int:
    """How many letters are missing, too many, wrong or swapped with the next, at least."""
    last: list[int] = []
    row = list(range(len(other) + 1))
    for place, letter in enumerate(one, start=1):
        before, last, row = last, row, [place]
        for column, wanted in enumerate(other, start=1):
            least = min(last[column] + 1, row[column - 1] + 1, last[column - 1] + (letter != wanted))
            if place > 1 and column > 1 and letter == other[column - 2] and one[place - 2] == wanted:
                least = min(least, before[column - 2] + 1)
            row.append(least)
    return row[-1]


def _one_slip_away(word: str) -> Iterator[str]:
    for place in range(len(word) + 1):
        first, rest = word[:place], word[place:]
        yield first + rest[1:]
        yield first + rest[1:2] + rest[:1] + rest[2:]
        for letter in ascii_lowercase:
            yield first + letter + rest
            yield first + letter + rest[1:]


def _stems(word: str) -> Iterator[str]:
    if word.endswith("s"):
        stem = word[:-1]
        if not _HISSES.fullmatch(stem) or stem.endswith("o"):
            yield stem
        if word.endswith("es") and _HISSES.fullmatch(word[:-2]):
            yield word[:-2]
        if word.endswith("ies"):
            yield word[:-3] + "y"
        if word.endswith("ves"):
            yield from (word[:-3] + "f", word[:-3] + "fe")
    if word.endswith("ied"):
        yield word[:-3] + "y"
    for ending in ("ed", "ing"):
        stem = word.removesuffix(ending)
        if stem == word or stem.endswith("e"):
            continue
        if not _SHORT_STEM.fullmatch(stem):
            yield stem
        if len(stem) > SHORTEST_STEM and stem[-1] == stem[-2]:
            yield stem[:-1]
        yield stem + "e"
