"""Which instructions may ask for the same thing, and which speak of the same objects.

A video that does what one instruction says must not be called a failure at another that it does as well. Nobody looks
at the video here, so the words decide, and they err on the safe side: a wrong label is worse than a negative that was
not made. Two instructions count as perhaps the same when

- the words that matter are the same set, or one set holds the other: whoever did "pick up the cup and put it on the
  shelf" has picked up the cup;
- the objects of one are all among the other's and nothing contradicts: turning on the toaster may well be pushing the
  toaster's lever, but opening a drawer is not closing it;
- they share an object and one of them is vague: "the golden object" may be the spoon.
"""

from __future__ import annotations

import re
from functools import lru_cache

FILLERS = frozenset(
    "a an the this that these those to of and then it its them one some please can you your robot arm gripper hand "
    "with up from at by for so is are be side using use first finally other slightly back".split()
)
# Each line is one meaning, named by its first word.
ALIKE = """
put place set lay position deposit move bring transfer shift drop leave
pick grab grasp take lift get fetch hold raise
close shut closed
open opened
push press
turn rotate twist spin
wipe clean
in into inside within
on onto upon atop over above
under below beneath underneath
near beside next closer
forward front ahead
backward behind
block cube brick
cup mug
pot pan
bin trash garbage
table counter countertop desk tabletop
marker pen
toy plush plushie plushy doll
cloth towel rag napkin
"""
_MEANING = {word: line.split()[0] for line in ALIKE.strip().splitlines() for word in line.split()}
ACTIONS = frozenset(
    "put pick remove open close push pull turn wipe pour stack unstack fold unfold slide flip stir insert".split()
)
RELATIONS = frozenset("in out on off under near left right forward backward between middle center down away".split())
CONTRARY = (
    ("open", "close"),
    ("left", "right"),
    ("in", "out"),
    ("on", "off"),
    ("forward", "backward"),
    ("push", "pull"),
    ("put", "remove"),
    ("insert", "remove"),
    ("stack", "unstack"),
    ("fold", "unfold"),
)
VAGUE = frozenset("object thing item stuff something everything content".split())
LONGEST_AS_IT_IS = 3


def normalize_instruction(instruction: str) -> str:
    """The words alone: no case, no punctuation, one space."""
    return " ".join(re.findall(r"\w+", instruction.casefold()))


@lru_cache(maxsize=65_536)
def meaning(instruction: str) -> frozenset[str]:
    """The set of words that matter; words that mean the same, and their plurals, are one."""
    text = normalize_instruction(instruction).replace("on top of", "on")
    words = (_singular(word) for word in text.split() if word not in FILLERS)
    return frozenset(_MEANING.get(word, word) for word in words)


@lru_cache(maxsize=65_536)
def objects(instruction: str) -> frozenset[str]:
    """The words that are neither an action nor a relation: what is acted on, and how it looks."""
    return meaning(instruction) - ACTIONS - RELATIONS - VAGUE


def same_task(one: str, other: str) -> bool:
    """Whether a video of the one might also show the other."""
    a, b = meaning(one), meaning(other)
    if a <= b or b <= a:
        return True
    things, others = objects(one), objects(other)
    if things & others and (a | b) & VAGUE:
        return True
    return (things <= others or others <= things) and not _contrary(a, b)


def _contrary(a: frozenset[str], b: frozenset[str]) -> bool:
    """Whether each says something that the other does not, and the two are opposites."""
    mine, yours = a - b, b - a
    return any((x in mine and y in yours) or (y in mine and x in yours) for x, y in CONTRARY)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > LONGEST_AS_IT_IS and word.endswith("s") and not word.endswith("ss") else word
