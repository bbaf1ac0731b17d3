"""What a repair of an instruction may change: spelling, the form of a word, articles and the like. Nothing else.

A repaired original is published as a success at its new words, so that whatever is not certainly the same is turned
down, and the old words stay: that costs a misspelt instruction, and the other way would cost a wrong label.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from demerit.data.instructions import normalize_instruction
from demerit.negatives.relabel.spelling import is_known, is_plural, is_same_word, stems
from demerit.negatives.relabel.wording import verbs

COME_AND_GO = frozenset("a an the is are be of and then please it them".split())
"""words that a repair may add and drop"""
ONE_FORM = {"into": "in", "onto": "on", "towards": "toward", "centre": "center", "grey": "gray"}
NUMBERS = frozenset(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand first second third "
    "fourth fifth last all both half quarter once twice thrice no not never none without".split()
)
"""words that stay as they are, letter by letter: "seconds" is no form of "second", and "tne" may be "the" or "ten" """
_SIDE = "left|right|front|back|side|top|bottom|middle|center"
_TO_A_SIDE = re.compile(rf"\bto (?=(?:the )?(?:{_SIDE})(?: (?:of|and|then|side)\b|$))")
"""the "to" that "push it left" does without"""
_AROUND_A_WORD = "\"'`.,;:!?()[]{}"


def wrong_repair(original: str, repaired: str) -> str:
    """Check that repaired words mean what the original means; empty, or the reason why nobody can be sure.

    Word by word and in order: whatever has a digit stays as it is, and so do names and words of other scripts; a known
    word may take another form of itself, an unknown one may become a known one that it is a slip of; articles and a few
    words like them come and go.
    """
    if not repaired.strip() or not repaired.isprintable():
        return "it is not one line of text"
    if _counted(original) != _counted(repaired):
        return f"the numbers changed ({_said(_counted(original))} became {_said(_counted(repaired))})"
    before, after = _words(original), _words(repaired)
    for one, other in (("it", "them"), ("them", "it")):
        if one in before and other in after and one not in after and other not in before:
            return f"{one} became {other}"
    if len(after) > 1.5 * len(before) + 3 or 2 * len(after) < len(before):
        return f"it has {len(after)} words for {len(before)}"
    if _is_aligned(before, after, _names(original)):
        return ""
    for mine, yours, what in ((before, after, "lost"), (after, before, "added")):
        odd = [word for word in mine if word not in COME_AND_GO and not _has_same(word, yours, what == "added")]
        if odd:
            return f"{', '.join(dict.fromkeys(odd))} {'was' if len(set(odd)) == 1 else 'were'} {what}"
    for one in before:
        more = [other for other in after if other not in before and (is_plural(other, one) or is_plural(one, other))]
        if more:
            return f"{one} became {more[0]}"
    return "its words come in another order, or another number of times"


def _is_aligned(before: Sequence[str], after: Sequence[str], names: frozenset[str]) -> bool:
    """Whether the two can be laid side by side: every word has its own, in order, or may come and go."""
    reached = {(0, 0)}
    for i in range(len(before) + 1):
        for j in range(len(after) + 1):
            if (i, j) not in reached:
                continue
            mine, yours = before[i : i + 2], after[j : j + 2]
            if _comes_and_goes(before, i):
                reached.add((i + 1, j))
            if _comes_and_goes(after, j):
                reached.add((i, j + 1))
            if mine and yours and _may_become(mine[0], yours[0], names) and _is_as_many(before, i, after, j):
                reached.add((i + 1, j + 1))
            if mine and "".join(yours) == mine[0]:  # "dishrack" and "dish rack"
                reached.add((i + 1, j + 2))
            if yours and "".join(mine) == yours[0]:
                reached.add((i + 2, j + 1))
    return (len(before), len(after)) in reached


def _is_as_many(before: Sequence[str], i: int, after: Sequence[str], j: int) -> bool:
    """Whether a word that gained or lost its plural is a verb, or stands behind a number which says how many."""
    if not (is_plural(before[i], after[j]) or is_plural(after[j], before[i])):
        return True
    counted = i > 0 and (before[i - 1] in NUMBERS or before[i - 1].isnumeric())
    return counted or not verbs().isdisjoint((before[i], after[j]))


def _comes_and_goes(words: Sequence[str], place: int) -> bool:
    if place == len(words):
        return False
    return words[place] in COME_AND_GO or (words[place] == "up" and place > 0 and "pick" in stems(words[place - 1]))


def _may_become(before: str, after: str, names: frozenset[str] = frozenset()) -> bool:
    if before == after:
        return True
    return before not in names and NUMBERS.isdisjoint((before, after)) and is_same_word(before, after)


def _has_same(word: str, others: Sequence[str], is_new: bool) -> bool:
    return any(_may_become(other, word) if is_new else _may_become(word, other) for other in others)


def _words(text: str) -> list[str]:
    """The words in lower case, in one form each where grammar allows several."""
    said = " ".join(ONE_FORM.get(word, word) for word in normalize_instruction(text).split())
    return _TO_A_SIDE.sub("", said).split()


def _counted(text: str) -> list[str]:
    """Everything with a digit in it, sign, point and unit and all, in order."""
    pieces = (piece.strip(_AROUND_A_WORD) for piece in text.casefold().split())
    return [piece for piece in pieces if any(letter.isnumeric() for letter in piece)]


def _names(text: str) -> frozenset[str]:
    """Unknown words with a capital inside a sentence: somebody or something is called so."""
    found = re.findall(r"(?<!^)(?<![.!?:] )\b[A-Z][a-z]+\b", text)
    return frozenset(word.lower() for word in found if not is_known(word.lower()))


def _said(numbers: Sequence[str]) -> str:
    return ", ".join(numbers) or "none"
