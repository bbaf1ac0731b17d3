"""What code can check, so that no model is trusted with it: commands and plans; `repairs` checks instructions.

Each check returns an empty text, or the reason for the rejection as a sentence without a full stop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from demerit.data.instructions import content_words, normalize_instruction, objects
from demerit.negatives.relabel.answers import Plan
from demerit.negatives.relabel.paraphrase import paraphrases
from demerit.negatives.relabel.wording import verbs

MOST_WORDS, FEWEST_WORDS = 24, 2
MUST_KEEP_THE_THING = (3, 4)
"""grades whose command is about the same thing as the original"""
NO_CONTROL = (2, 3, 4)
"""grades whose command must not speak of the gripper's own workings"""
META = re.compile(
    r"\b(?:grad(?:e|es|ed|ing)|rat(?:ed|ing|ings)|rubrics?|rewards?|rewarded|credits?(?! cards?\b)|partial success"
    r"|scored|scoring|(?:a|the|its|your|this|full|high|low|top|total|final) scores?|scores? (?:of )?\d"
    r"|scores?(?=\s*[:=])"
    r"|[0-5] ?/ ?5|out of (?:5|five|10|ten|100|a hundred)|(?:full|extra|bonus|\d) points?"
    r"|fail(?:s|ed|ing|ures?)?|succe(?:ed|eds|eded|ss|sses|ssful|ssfully)|counterfactual"
    r"|(?:the|this) (?:video|task|command|instruction|episode)|original (?:task|command|instruction))\b",
    re.IGNORECASE,
)
_OF_ITS_OWN = r"(?:(?:the|its|your|a|both|robot|robotic|robot's|arm|arm's|metal|parallel|end|two) )+"
CONTROL = re.compile(
    r"\b(?:releas(?:e|es|ed|ing)|un(?:grasp|grip|clench|clamp)\w*|let(?:ting)? (?:\w+ ){0,3}go"
    rf"|(?:open|clos|shut|loosen|tighten|unclench|relax|spread)\w* {_OF_ITS_OWN}"
    r"(?:grippers?|fingers?|grip|grasp|claws?|jaws?|pincers?|effector"
    r"|hands?(?! (?:drawer|door|towel|side|mixer|saw))(?!-))"
    r"|los(?:e|ing) (?:its|the|your) (?:grip|grasp|hold)"
    r"|without (?:touching|contact)|not (?:in contact|touching)|stop touching)\b",
    re.IGNORECASE,
)
SECOND_SENTENCE = re.compile(r"[.!?;:]\s+\S|://")
SAYS_NOTHING = frozenset("somewhere eventually now just simply surface down".split())
"""words that whoever does the rest of a command has done as well: what is put on a plate was put down"""


def wrong_command(command: str, grade: int, original: str, others: Mapping[int, str]) -> str:
    """Check one command.

    Args:
        command: as the model wrote it.
        grade: what it is meant for.
        original: the instruction that the video does.
        others: accepted commands of the same video, by grade.
    """
    said = command.split()
    if not FEWEST_WORDS <= len(said) <= MOST_WORDS:
        return f"it has {len(said)} words, and {FEWEST_WORDS} to {MOST_WORDS} are allowed"
    if not command.isascii() or not command.isprintable():
        return "it is not one line of plain ASCII"
    if re.search(r"[\"{}()\[\]<>*#|\\]", command):
        return "it carries quotation marks, brackets or mark-up"
    if SECOND_SENTENCE.search(command):
        return "it is more than one sentence"
    if re.search(r"\bor\b", command, re.IGNORECASE):
        return "it leaves a choice ('or'), which nobody can grade"
    if not is_imperative(command):
        return f"it does not begin with a verb, but with {said[0]!r}"
    if found := META.search(command):
        return f"it speaks of {found.group().lower()!r}, which a robot is not told"
    if grade in NO_CONTROL and (found := CONTROL.search(command)):
        return f"it is about the gripper's own workings ({found.group().lower()!r})"
    if grade in MUST_KEEP_THE_THING and objects(original) and not objects(original) & objects(command):
        return f"it is not about the thing of the original ({', '.join(sorted(objects(original)))})"
    return _repeats(command, original, others)


def is_imperative(command: str) -> bool:
    """Whether it begins with a verb that a robot can be told: one of the list that comes with the prompts."""
    first = re.match(r"[A-Za-z]+", command)
    return first is not None and first.group().lower() in verbs()


def wrong_ladder(closeness: Mapping[int, float], grade: int, value: float) -> str:
    """Check that the end of the video comes strictly closer from grade to grade.

    Args:
        closeness: of the commands that were accepted, by grade, in percent.
        grade: of the one to check.
        value: its closeness.
    """
    for other, known in sorted(closeness.items()):
        if (other < grade and known >= value) or (other > grade and known <= value):
            return f"it is {value:g}% fulfilled and grade {other} {known:g}%: the grades are not in order"
    return ""


def wrong_plan(plan: Plan, grades: Sequence[int]) -> str:
    """Check that there is one idea for each grade, that they differ, and that they come closer to done."""
    got = sorted(idea.grade for idea in plan.ideas)
    if got != list(grades):
        return f"it has ideas for the grades {got}, not for {list(grades)}"
    ideas = sorted(plan.ideas, key=lambda idea: idea.grade)
    if any(not idea.idea.strip() for idea in ideas):
        return "an idea is empty"
    if len({normalize_instruction(idea.idea) for idea in ideas}) < len(ideas):
        return "two ideas are the same"
    steps = [idea.closeness for idea in ideas]
    if any(later <= earlier for earlier, later in pairwise(steps)) or steps[-1] >= 100:  # noqa: PLR2004
        return f"its closeness does not grow from grade to grade, below 100 ({', '.join(f'{one:g}' for one in steps)})"
    return ""


def _repeats(command: str, original: str, others: Mapping[int, str]) -> str:
    """Check that it says something that neither the original nor another command says."""
    same = normalize_instruction(command)
    if same == normalize_instruction(original):
        return "it is the original"
    if _asked(command, original) <= content_words(original):
        return "the original entails it: it asks for nothing that the original does not ask for"
    if paraphrases(command, original):
        return "it is a paraphrase of the original"
    for grade, other in others.items():
        if same == normalize_instruction(other):
            return f"it is the command of grade {grade} again"
        if paraphrases(command, other):
            return f"it is a paraphrase of the command of grade {grade}"
    return ""


def _asked(command: str, original: str) -> frozenset[str]:
    """The words of a command that ask for something; "down" does unless the original puts something somewhere."""
    done = SAYS_NOTHING if "put" in content_words(original) else SAYS_NOTHING - {"down"}
    return content_words(command) - done
