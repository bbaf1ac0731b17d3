"""Rules on plans and commands, checked by code so that no model is trusted with them.

Each check returns "" or the reason for the rejection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np

from demerit.data.arrays import Floats32
from demerit.data.episode import content_words, normalize_instruction, objects
from demerit.models.compact.engine import PARTS, TextEncoder
from demerit.negatives.relabel.prompts import FailurePlan, read_prompt

MOST_WORDS, FEWEST_WORDS = 24, 2
SAME_OBJECT_GRADES = (3, 4)
"""grades whose command must be about an object of the original instruction"""
NO_GRIPPER_GRADES = (2, 3, 4)
"""grades whose command must not be about the gripper itself"""
META = re.compile(
    r"\b(?:grad(?:e|es|ed|ing)|rat(?:ed|ing|ings)|rubrics?|rewards?|rewarded|credits?(?! cards?\b)|partial success"
    r"|scored|scoring|(?:a|the|its|your|this|full|high|low|top|total|final) scores?|scores? (?:of )?\d"
    r"|scores?(?=\s*[:=])"
    r"|[0-5] ?/ ?5|out of (?:5|five|10|ten|100|a hundred)|(?:full|extra|bonus|\d) points?"
    r"|fail(?:s|ed|ing|ures?)?|succe(?:ed|eds|eded|ss|sses|ssful|ssfully)|counterfactual"
    r"|(?:the|this) (?:video|task|command|instruction|episode)|original (?:task|command|instruction))\b",
    re.IGNORECASE,
)
_OWN = r"(?:(?:the|its|your|a|both|robot|robotic|robot's|arm|arm's|metal|parallel|end|two) )+"
GRIPPER = re.compile(
    r"\b(?:releas(?:e|es|ed|ing)|un(?:grasp|grip|clench|clamp)\w*|let(?:ting)? (?:\w+ ){0,3}go"
    rf"|(?:open|clos|shut|loosen|tighten|unclench|relax|spread)\w* {_OWN}"
    r"(?:grippers?|fingers?|grip|grasp|claws?|jaws?|pincers?|effector"
    r"|hands?(?! (?:drawer|door|towel|side|mixer|saw))(?!-))"
    r"|los(?:e|ing) (?:its|the|your) (?:grip|grasp|hold)"
    r"|without (?:touching|contact)|not (?:in contact|touching)|stop touching)\b",
    re.IGNORECASE,
)
SECOND_SENTENCE = re.compile(r"[.!?;:]\s+\S|://")
NO_DEMAND = frozenset("somewhere eventually now just simply surface down".split())
"""words that add no demand: who put something on a plate has put it down"""

# Two commands are paraphrases when all parts of their text vectors are near. Chosen on pairs of both kinds: "put the
# cup on the plate" and "place the mug on top of the plate" are at 0.88, 3.4, 0.4 and 0.5; "... on the red plate" is 4.8
# away in where, "... next to the plate" 4.1 in signs, "open" 5.5 from "close".
SENTENCE_COSINE = 0.87
PART_DISTANCES = {"what": 3.5, "where": 4.0, "signs": 2.7}
AMOUNTS = frozenset(
    "half quarter halfway partly fully completely entirely almost nearly slightly twice thrice again not never without "
    "no all both every each only one two three four five six seven eight nine ten first second third last".split()
)
"""words that the text vectors miss"""
MOST_EXTRA_WORDS = 2
"""content words by which paraphrases may differ in number; more is another demand"""


def check_command(command: str, grade: int, original: str, others: Mapping[int, str]) -> str:
    """Check one command.

    Args:
        command: as the model wrote it.
        grade: the intended grade.
        original: the instruction that the video fulfils.
        others: accepted commands of the same video, by grade.
    """
    words = command.split()
    if not FEWEST_WORDS <= len(words) <= MOST_WORDS:
        return f"it has {len(words)} words; {FEWEST_WORDS} to {MOST_WORDS} are allowed"
    if not command.isascii() or not command.isprintable():
        return "it is not one line of plain ASCII"
    if re.search(r"[\"{}()\[\]<>*#|\\]", command):
        return "it contains quotation marks, brackets or mark-up"
    if SECOND_SENTENCE.search(command):
        return "it is more than one sentence"
    if re.search(r"\bor\b", command, re.IGNORECASE):
        return "it offers a choice ('or'), which cannot be graded"
    if not is_imperative(command):
        return f"it does not begin with a verb, but with {words[0]!r}"
    if match := META.search(command):
        return f"it mentions {match.group().lower()!r}, which is not part of a robot's command"
    if grade in NO_GRIPPER_GRADES and (match := GRIPPER.search(command)):
        return f"it is about the gripper itself ({match.group().lower()!r})"
    if grade in SAME_OBJECT_GRADES and objects(original) and not objects(original) & objects(command):
        return f"it is not about an object of the original ({', '.join(sorted(objects(original)))})"
    return _check_repetition(command, original, others)


def check_closeness(accepted: Mapping[int, float], grade: int, value: float) -> str:
    """Check that closeness (percent) grows strictly with the grade, given that of the accepted commands."""
    for other, closeness in sorted(accepted.items()):
        if (other < grade and closeness >= value) or (other > grade and closeness <= value):
            return f"it is {value:g}% fulfilled and grade {other} {closeness:g}%: the grades are not in order"
    return ""


def check_plan(plan: FailurePlan, grades: Sequence[int]) -> str:
    """Check that there is one idea per grade, that they differ, and that closeness grows and stays below 100."""
    planned = sorted(idea.grade for idea in plan.ideas)
    if planned != list(grades):
        return f"it has ideas for the grades {planned}, not for {list(grades)}"
    ideas = sorted(plan.ideas, key=lambda idea: idea.grade)
    if any(not idea.idea.strip() for idea in ideas):
        return "an idea is empty"
    if len({normalize_instruction(idea.idea) for idea in ideas}) < len(ideas):
        return "two ideas are the same"
    steps = [idea.closeness for idea in ideas]
    if any(later <= earlier for earlier, later in pairwise(steps)) or steps[-1] >= 100:  # noqa: PLR2004
        return f"closeness does not grow with the grade, below 100 ({', '.join(f'{step:g}' for step in steps)})"
    return ""


def is_imperative(command: str) -> bool:
    """Whether it begins with a verb of the list that comes with the prompts."""
    first = re.match(r"[A-Za-z]+", command)
    return first is not None and first.group().lower() in _verbs()


def is_paraphrase(first: str, second: str) -> bool:
    """Whether two commands ask for the same in other words, by the shipped text vectors."""
    amounts = [AMOUNTS & set(normalize_instruction(text).split()) for text in (first, second)]
    extra = abs(len(content_words(first)) - len(content_words(second)))
    a, b = _vector(first), _vector(second)
    if amounts[0] != amounts[1] or extra > MOST_EXTRA_WORDS or a is None or b is None:
        return False
    x, y = a[PARTS["sentence"]], b[PARTS["sentence"]]
    cosine = float(x @ y / max(float(np.linalg.norm(x) * np.linalg.norm(y)), 1e-6))
    distances = {part: float(np.linalg.norm(a[PARTS[part]] - b[PARTS[part]])) for part in PART_DISTANCES}
    return cosine >= SENTENCE_COSINE and all(distances[part] <= most for part, most in PART_DISTANCES.items())


def _check_repetition(command: str, original: str, others: Mapping[int, str]) -> str:
    """Check that it asks for something that neither the original nor another command asks for."""
    plain = normalize_instruction(command)
    if plain == normalize_instruction(original):
        return "it is the original"
    # "down" is a demand unless the original puts something somewhere.
    ignored = NO_DEMAND if "put" in content_words(original) else NO_DEMAND - {"down"}
    if content_words(command) - ignored <= content_words(original):
        return "the original entails it: it asks for nothing that the original does not ask for"
    if is_paraphrase(command, original):
        return "it is a paraphrase of the original"
    for grade, other in others.items():
        if plain == normalize_instruction(other):
            return f"it is the command of grade {grade} again"
        if is_paraphrase(command, other):
            return f"it is a paraphrase of the command of grade {grade}"
    return ""


@cache
def _verbs() -> frozenset[str]:
    return frozenset(read_prompt("verbs").split())


@lru_cache(maxsize=4096)
def _vector(command: str) -> Floats32 | None:
    return _text_encoder().vector(command)


@cache
def _text_encoder() -> TextEncoder:
    # Loaded directly: the engine would load the image network too.
    return TextEncoder.load(Path(str(files("demerit"))) / "assets" / "compact" / "words.npz")
