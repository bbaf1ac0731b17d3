"""Instruction text in English: words, word forms, objects, and whether two instructions may ask for the same task.

A video of one task must never be labelled a failure at another task that it also completes. The video is not
looked at here, so `same_task` is conservative: a missing negative is better than a wrong label. Two instructions may be
the same task when

- their content words are equal, or one set contains the other: "pick up the cup and put it on the shelf" includes
  "pick up the cup";
- the objects of one are all among those of the other and nothing contradicts: turning on the toaster may be pushing its
  lever, but opening a drawer is not closing it;
- they share an object and one of them is vague: "the golden object" may be the spoon.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

FILLERS = frozenset(
    "a an the this that these those to of and then it its them one some please can you your robot arm gripper hand "
    "with up from at by for so is are be side using use first finally other slightly back".split()
)
# Each line is one meaning, named by its first word.
SYNONYMS = """
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
_MEANING = {word: line.split()[0] for line in SYNONYMS.strip().splitlines() for word in line.split()}
ACTIONS = frozenset(
    "put pick remove open close push pull turn wipe pour stack unstack fold unfold slide flip stir insert".split()
)
RELATIONS = frozenset("in out on off under near left right forward backward between middle center down away".split())
OPPOSITES = (
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
SHORTEST_PLURAL = 4


def normalize_instruction(instruction: str) -> str:
    """The words of an instruction: lower case, no punctuation, single spaces. Equal results mean the same text."""
    return " ".join(re.findall(r"\w+", instruction.casefold()))


def plain_words(text: str) -> list[str]:
    """The words of a text in lower case and without accents; punctuation and underscores only separate."""
    if not text.isascii():
        text = "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    return re.findall(r"[^\W_]+", text.lower())


def word_forms(word: str) -> list[str]:
    """The word, then the words it may be inflected from: wiping -> wipe, cutting -> cut, pushes -> push."""
    forms = [word]
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            stem = word[: -len(ending)]
            forms += [stem, stem + "e"] + ([stem[:-1]] if stem[-1] == stem[-2:-1] else [])
    return forms


def task_name(instruction: str) -> str:
    """The instruction as a task name: case, spacing and final punctuation do not make another task."""
    return " ".join(instruction.lower().split()).rstrip(".!")


@lru_cache(maxsize=65_536)
def content_words(instruction: str) -> frozenset[str]:
    """The words that carry meaning, in the singular, one for all synonyms."""
    text = normalize_instruction(instruction).replace("on top of", "on")
    words = (_singular(word) for word in text.split() if word not in FILLERS)
    return frozenset(_MEANING.get(word, word) for word in words)


@lru_cache(maxsize=65_536)
def objects(instruction: str) -> frozenset[str]:
    """The content words that are neither an action nor a relation: objects and their looks."""
    return content_words(instruction) - ACTIONS - RELATIONS - VAGUE


def same_task(first: str, second: str) -> bool:
    """Whether a video of the first instruction might also show the second."""
    a, b = content_words(first), content_words(second)
    if a <= b or b <= a:
        return True
    objects_a, objects_b = objects(first), objects(second)
    if objects_a & objects_b and (a | b) & VAGUE:
        return True
    return (objects_a <= objects_b or objects_b <= objects_a) and not _contradict(a - b, b - a)


def _contradict(only_a: frozenset[str], only_b: frozenset[str]) -> bool:
    return any((x in only_a and y in only_b) or (y in only_a and x in only_b) for x, y in OPPOSITES)


def _singular(word: str) -> str:
    return word[:-1] if len(word) >= SHORTEST_PLURAL and word.endswith("s") and not word.endswith("ss") else word
