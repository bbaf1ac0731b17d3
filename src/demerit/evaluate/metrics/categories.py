"""What kind of task an instruction asks for: seven categories in rising complexity, and "other".

The rules (`category_rules`) work on verbs that stand where a verb can stand: at the start, or after
"and", "then", "to", a comma and the like; so "put the cutting board in the open drawer" is neither cutting nor opening.
In order of precedence:

1. An instruction with several steps has the category of its most complex step.
2. Within a step the first matching line of `RULES` decides: the verb together with its object or with words that it
   needs ("turn the tap" is open/close, "turn the mug" is reorient, "put the bottle upright" is reorient).
3. Otherwise the verb alone decides (`VERBS`).
4. Working on something with an implement is tool use, whatever the verb; using one's hands or arms is not.
5. A block put on a block, or a cup on a cup, is stack, whatever the verb of placing.
6. Only when nothing was recognised, the first verb may be misspelt, in a sentence that is otherwise English.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator

from demerit.data.instructions import word_forms
from demerit.evaluate.metrics.category_rules import (
    ALSO_NOUNS,
    CONNECTIVES,
    FILLERS,
    GRASPERS,
    IMPLEMENTS,
    OBJECT_ENDS,
    PREPOSITIONS,
    RULES,
    STACKABLE,
    VERBS,
    WITH_A_MATERIAL,
    Category,
)

__all__ = ["Category", "category", "category_by", "category_prompt"]

_DEFAULT = {verb: kind for kind, verbs in VERBS.items() for verb in verbs.split()}
_KNOWN = set(_DEFAULT) | {verb for rule in RULES for verb in rule.verbs.split()}
_BODY = r"(?:robot(?:ic)? )?(?:arms?|hands?|grippers?|fingers?|claws?)"
_WHOSE = r"(?:your|the|its|both|two|one|each|left|right|other|of)"
# "Move the hand to the left" is about the robot, "move the hand soap" and "open the right hand drawer" are not.
_BODY_AS_TASK = re.compile(
    rf"\b(?:move|raise|lower|lift|stretch|extend|shake|wave|open|close)\w* (?:{_WHOSE} )*{_BODY}"
    rf"(?= (?:,|{'|'.join(sorted(PREPOSITIONS | CONNECTIVES))})(?: |$)|$)"
)
_BODY_AS_MEANS = re.compile(rf"\b(?:(?:use|using|with) )?(?:{_WHOSE} )+{_BODY}\b")
_WITH = r"\b(?:with|using|use) (?:(?!(?:in|on|from|next|and) )[\w-]+ ){0,4}?"
_WITH_IMPLEMENT = re.compile(rf"{_WITH}{IMPLEMENTS}\b(?! (?:in|on|inside|from|next)\b)")
_WITH_GRASPER = re.compile(rf"{_WITH}{GRASPERS}\b(?! (?:in|on|inside|next)\b)")
_TAKEN_TO_WORK = re.compile(rf"\b{IMPLEMENTS}\b.* with it\b")
_PUTS = re.compile(r"\b(?:put|plac|set|lay|mov|drop|position)\w*\b")
_GRASPS = re.compile(r"\b(?:pick|tak|grab|lift|get|remov|grasp)\w*\b")
_ON = r"\b(?:on(?:to)?|upon|atop)(?: (?:the )?top)?(?: of)?"
_ON_LIKE = tuple((re.compile(rf"{kind}$"), re.compile(rf"{_ON} ((?:[\w-]+ ){{0,4}}?){kind}\b")) for kind in STACKABLE)
_ENGLISH = re.compile(r"\b(?:the|teh|it|an|on|into|with|of|and|some|up|this|that)\b|\b(?:blocks|cups|cubes)\b")
_ALIKE = 0.75  # two swapped letters in a word of four


def category(instruction: str) -> Category:
    """Say what kind of task the words ask for, by the rules of this module.

    Args:
        instruction: One instruction in English; any case, several steps allowed.

    Returns:
        The category of the most complex step; `Category.OTHER` where no step is recognised.
    """
    text = _plain(instruction)
    steps = list(_steps(text))
    found = [_step_category(verb, rest) for verb, rest in steps]
    if not steps and _ENGLISH.search(text):
        found = [_step_category(verb, rest) for verb, rest in _steps(text, misspelt=True)][:1]
    if found and _TAKEN_TO_WORK.search(text):
        found.append(Category.TOOL_USE)
    if _puts_on_its_like(text):
        found.append(Category.STACK)
    return max(found, key=lambda kind: kind.complexity, default=Category.OTHER)


def _plain(instruction: str) -> str:
    """Lower case, one space between words, punctuation as a lone comma, and no mention of the robot's own limbs."""
    text = instruction.lower().replace("’", "'")
    text = re.sub(r"\b(?:the )?robot\b(?! arm)", " , ", text)
    text = re.sub(r"[.,;:!?()\[\]\n]+", " , ", text)
    text = " ".join(re.findall(r"[\w'&-]+|,", text))
    return " ".join(_BODY_AS_MEANS.sub(" , ", _BODY_AS_TASK.sub(" , ", text)).split())


def _steps(text: str, misspelt: bool = False) -> Iterator[tuple[str, str]]:
    """Each verb that stands where a verb can stand, in its plain form, with the words up to the next one."""
    words = text.split()
    starts: list[tuple[int, str]] = []
    waiting = True
    for i, word in enumerate(words):
        if word == "," or word in CONNECTIVES:
            waiting = True
        elif waiting and not (word in FILLERS or (word.endswith("ly") and word not in _KNOWN)):
            waiting = False
            verb = _nearest(word) if misspelt else _verb(word)
            if verb and not (starts and verb in ALSO_NOUNS and _is_noun(words, i)):
                starts.append((i, verb))
    ends = [i for i, _ in starts[1:]] + [len(words)]
    for (i, verb), end in zip(starts, ends, strict=False):
        yield verb, " ".join(word for word in words[i + 1 : end] if word != ",")


def _is_noun(words: list[str], i: int) -> bool:
    return i + 1 == len(words) or words[i + 1] == "," or words[i + 1] in PREPOSITIONS - {"up", "down", "off", "out"}


def _verb(word: str) -> str | None:
    return next((form for form in word_forms(word) if form in _KNOWN), None)


def _nearest(word: str) -> str | None:
    """The known verb that the word may be a misspelling of; people rarely get the first letter wrong."""
    for form in word_forms(word):
        alike = [verb for verb in _DEFAULT if verb[0] == form[0]]
        if near := difflib.get_close_matches(form, alike, n=1, cutoff=_ALIKE):
            return near[0]
    return None


def _object(rest: str) -> str:
    """The words that the verb acts on, up to a preposition: of "out the top drawer of the desk", "the top drawer"."""
    words = rest.split()
    while words and words[0] in OBJECT_ENDS:
        words = words[1:]
    end = next((i for i, word in enumerate(words) if word in OBJECT_ENDS), len(words))
    return " ".join(words[:end])


def _step_category(verb: str, rest: str) -> Category:
    acted_on = _object(rest)
    for rule in RULES:
        right_object = not rule.object or re.search(rf"\b(?:{rule.object})$", acted_on)
        if verb in rule.verbs.split() and right_object and re.search(rule.said, rest):
            kind = rule.category
            break
    else:
        kind = _DEFAULT.get(verb, Category.OTHER)
    if kind is Category.OTHER or verb in WITH_A_MATERIAL:
        return kind
    # "the bowl with the spoon" is a bowl, not a way of picking it up, unless the thing is made for that.
    means = _WITH_GRASPER if kind is Category.PICK_PLACE else _WITH_IMPLEMENT
    return Category.TOOL_USE if means.search(rest) else kind


def _puts_on_its_like(text: str) -> bool:
    """Whether something is put on a thing of its own kind, also if named a step earlier ("and put it on")."""
    for alone, on_like in _ON_LIKE:
        for match in on_like.finditer(text):
            before = text[: match.start()].strip()
            puts = list(_PUTS.finditer(before))
            if not puts or set(match[1].split()) & OBJECT_ENDS:
                continue
            thing = _object(before[puts[-1].end() :].replace(",", " "))
            if thing in {"it", "them", "one"} and (grasps := list(_GRASPS.finditer(before[: puts[-1].start()]))):
                thing = _object(before[grasps[-1].end() : puts[-1].start()].replace(",", " "))
            if alone.search(thing):
                return True
    return False


_MEANINGS = {
    Category.PICK_PLACE: "grasp things and put them somewhere else, nothing more",
    Category.PUSH_PULL: "push, pull, slide or press a thing without carrying it",
    Category.OPEN_CLOSE: "operate something hinged, sliding or switched: doors, drawers, lids, taps, switches",
    Category.STACK: "build with things: one on top of another of its kind",
    Category.REORIENT: "change how a thing lies or, for cloth and rope, its shape: turn, flip, stand up, fold",
    Category.POUR: "let the contents of one container run or fall out",
    Category.TOOL_USE: "work on something with an implement: wipe, cut, stir, scoop, write, hammer",
    Category.OTHER: "none of these, or not a task at all",
}


def category_prompt(instruction: str) -> str:
    """The question that `category_by` asks."""
    lines = "\n".join(f"- {kind}: {meaning}" for kind, meaning in _MEANINGS.items())
    return (
        "A robot arm was told to do this:\n\n"
        f"<instruction>{instruction}</instruction>\n\n"
        "Sort the instruction into one of these categories, listed from the simplest to the most complex:\n\n"
        f"{lines}\n\n"
        "If there are several steps, choose the most complex of them that the list names. "
        "Reply with the category's name alone, spelt as above."
    )


def category_by(ask: Callable[[str], str], instruction: str) -> Category | None:
    """Let a language model choose the category.

    Args:
        ask: Sends a prompt and gives back the answer's text.
        instruction: The words to be sorted; any language that the model reads.

    Returns:
        The category that the answer names; None where it names none or more than one, because a guess is not a label.
    """
    answer = ask(category_prompt(instruction)).strip().strip("-*`'\"<>. \n").lower()
    answer = re.sub(r"\s*/\s*", "/", answer.removeprefix("category:").strip("*`'\" "))
    return next((kind for kind in Category if answer == kind.value), None)
