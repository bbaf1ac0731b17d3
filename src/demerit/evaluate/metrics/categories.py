"""The category of a task, from the verbs of its instruction: `VERBS`, with exceptions by phrase in `PHRASES`.

A verb counts where a verb can stand: at the start of the instruction or after "and", "then", a comma and the like, so
"put the cutting board in the open drawer" is neither cutting nor opening. An instruction with several steps has the
category of its most complex step. Conventions: a lid lifted off or put on is pick/place; buttons are push/pull,
switches and taps open/close; folding and tying are reorient.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from enum import StrEnum
from itertools import pairwise

from demerit.data.episode import word_forms


class Category(StrEnum):
    """The kind of a task, from the simplest to the most complex; `OTHER` stands outside that order."""

    PICK_PLACE = "pick/place"
    PUSH_PULL = "push/pull"
    OPEN_CLOSE = "open/close"
    STACK = "stack"
    REORIENT = "reorient"
    POUR = "pour"
    TOOL_USE = "tool use"
    OTHER = "other"

    @property
    def complexity(self) -> int:
        """1 (pick/place) to 7 (tool use); 0 for other."""
        return 0 if self is Category.OTHER else list(Category).index(self) + 1


VERBS = {
    Category.PICK_PLACE: (
        "arrange assemble attach bring carry clear collect connect deliver detach disconnect discard drop extract"
        " fetch fish gather get give grab grasp hand hang hold insert lay lift line load lower mount move organize"
        " organise pack park pass pick place plug position put raise rearrange relocate remove replace return seat"
        " separate set shift sort store swap take throw tidy toss transfer transport unhang unload withdraw"
    ),
    Category.PUSH_PULL: "bump click drag nudge poke press pull push roll scoot shove slide tap tug type unplug",
    Category.OPEN_CLOSE: "close cover fasten latch lock open shut switch uncap uncover unlatch unlock unzip zip",
    Category.STACK: "build nest pile stack unstack",
    Category.REORIENT: (
        "align bend bunch capsize coil crease crumple drape flatten flip fold invert knot orient overturn reorient"
        " reverse rotate spin spread stand straighten swivel tie tilt topple turn twist uncoil unfold unravel unroll"
        " untangle untie upend wind wrap wring"
    ),
    Category.POUR: "decant drain drizzle dump empty fill pour refill spill sprinkle tip water",
    Category.TOOL_USE: (
        "brush butter carve chop clean comb crush cut dice draw drill dry dust erase file glue hammer iron ladle"
        " loosen mark mash measure mix mop mow paint peel polish punch rake rinse sand saw scoop scrape screw scrub"
        " sharpen shovel slice solder spoon spray squeegee staple stir sweep tape tighten trim underline unscrew use"
        " vacuum wash whisk wipe write"
    ),
    # Listed so that none is taken for a misspelling of another ("look", "lock"), or because PHRASES names them.
    Category.OTHER: (
        "add approach ask be blow break center centre check come cook count do feed find follow form go have help hit"
        " jump keep kick knock leave look make navigate play point prop reach ring shake sit squeeze start stop strike"
        " swing touch toggle wait walk watch wave"
    ),
}
_ATTACHED = (
    r"(blinds?|curtains?|doors?|drawers?|faucets?|flap|gate|hatch|latch|shutters?|slider|spout|switch(es)?|taps?"
    r"|windows?|zip(per)?)( handle| lever| nozzle)?"
)
_TWISTED = r"(caps?|covers?|dial|faucets?|handle|keys?|knobs?|lever|nozzle|lids?|lock|switch(es)?|taps?|timer|valves?)"
_PUT = r"(put|place|set|lay|add|move|drop|position|arrange)"
_TOOLS = (
    r"(blade|broom|brush|chopper|cloth|comb|drill|duster|eraser|fork|hammer|hook|iron|knife|ladle|mallet|marker|mop"
    r"|napkin|paper towel|peeler|pen|pencil|pestle|rag|rake|roller|ruler|sandpaper|saw|scissors|scraper|screwdriver"
    r"|shovel|spanner|sponge|spoon|squeegee|stick|tissue|tool|towel|whisk|wiper?|wrench)s?"
)
_GRASPERS = r"(chopsticks?|pliers|scoop|spatula|tongs|tweezers)"
_GRAINS = r"(salt|pepper|sugar|spices?|cinnamon|flour|seeds|powder|sprinkles|herbs)"
_STACKABLE = (
    "(?:blocks?|bloks?|bricks?|cubes?|legos?)",
    *(f"{kind}s?" for kind in "bowl book boxe can cup mug plate tray".split()),
)
_POSED = (
    r"(upright|upside|(its|their) (side|back|end|edge|base|head)s?|face ?-?(up|down)|fac(es|ing)|lying|vertical(ly)?"
    r"|horizontal(ly)?|way up|parallel|lies?|lay down|standing|(it|them) (stand|flat))"
)
# The first phrase that matches a step decides. `OBJ` is the verb's object, up to a preposition.
PHRASES = [
    (Category.OTHER, r"close to\b|(return|move|get) (back )?(to )?(the )?(home|start\w*|rest\w*|neutral|initial)\b"),
    (Category.OTHER, r"use OBJ(lids?|covers?|buttons?|handles?|levers?|switch|knobs?)END"),
    (Category.PICK_PLACE, r"switch .*\b(places?|positions?)\b|clean up\b"),
    (Category.STACK, r"(make|form) .*\b(tower|pyramid|stack|pile)\b"),
    (Category.STACK, rf"{_PUT} .*\b(on|onto|atop) (top of )?(the |a )?(\w+ )?(stack|pile|tower)\b"),
    (
        Category.STACK,
        rf"{_PUT} .*\b(on(to)?|atop|over|inside|in) (the )?(top of )?(each other|one another|(the )?others?\b)",
    ),
    (Category.OPEN_CLOSE, r"turn (on|off|of|up|down)\b(?! (its|their|the side|top)\b)|turn .*\b(on|off)$"),
    (Category.OPEN_CLOSE, rf"(turn|rotate|twist|spin|flip|screw|unscrew|tighten|loosen|toggle|wind) OBJ{_TWISTED}END"),
    (Category.OPEN_CLOSE, r"(unscrew|screw|twist) OBJ(bottle|jar|flask|thermos|top)END"),
    (Category.OPEN_CLOSE, r"(push|pull|slide|press|drag|swing|draw|roll) .*\b(open|closed|shut)\b"),
    (Category.OPEN_CLOSE, rf"(push|pull|slide|drag|swing|draw|roll) OBJ({_ATTACHED}|lids?)END"),
    (Category.OPEN_CLOSE, rf"(move|shift|lift|lower|center|centre) OBJ{_ATTACHED}END"),
    (Category.REORIENT, r"roll (up|out)\b|roll .*\b(up|out)$|open up (the )?(crumpled|folded|wrinkled)"),
    (Category.REORIENT, r"roll OBJ(mat|towel|cloth|paper|poster|dough|shirt|napkin|carpet|rug|sleeves?)END"),
    (Category.REORIENT, rf"({_PUT}|leave|make|keep|bring|return|turn|lower|pick|prop|take) .*\b{_POSED}\b"),
    (Category.REORIENT, r"(knock|push|tip) (over\b|.*\bover$|.*\bon(to)? (its|their) side)"),
    (Category.POUR, rf"(shake|add) .*\b{_GRAINS}\b|shake .*\b(onto|over|into|out)\b"),
    (Category.PUSH_PULL, r"(hit|strike) OBJ(keys?|buttons?|bar|switch)END"),
    (Category.TOOL_USE, r"spread .*\b(butter|jam|jelly|sauce|cream|paste|glue|icing|honey|plaster|paint)\b"),
]
_PREPOSITIONS = (
    "about above across against along around at away back backwards? behind below beneath beside between by down for"
    " forwards? from in inside into near next of off on onto out outside over through till towards? under until up upon"
    " using with without"
).split()
_OBJECT_ENDS = (
    _PREPOSITIONS
    + "all again and clockwise closed halfway once open or shut slightly so that then to twice upright".split()
)
_CONNECTIVES = "& after and before by n or then to while whilst".split()
_FILLERS = (
    "again also can could first firstly finally just left let now ok please plese pls plz right should try would you"
).split()
_PREPOSITION, _STOP, _JOIN = ("|".join(words) for words in (_PREPOSITIONS, _OBJECT_ENDS, _CONNECTIVES))
_OBJECT = rf"(?:(?:{_STOP}) )*(?:(?!(?:{_STOP})\b)[\w'-]+ )*?"
_COMPILED = [
    (kind, re.compile(pattern.replace("OBJ", _OBJECT).replace("END", rf"(?=$| (?:{_STOP})\b)")))
    for kind, pattern in PHRASES
]
_CATEGORY_OF = {verb: kind for kind, verbs in VERBS.items() for verb in verbs.split()}
_WITH = r"\b(?:with|using|use) (?:(?!(?:in|on|from|next|and) )[\w-]+ ){0,4}?"
_WITH_TOOL = re.compile(rf"{_WITH}(?:{_TOOLS}|{_GRASPERS})\b(?! (?:in|on|inside|from|next)\b)|\b{_TOOLS}\b.* with it\b")
_WITH_GRASPER = re.compile(rf"{_WITH}{_GRASPERS}\b(?! (?:in|on|inside|next)\b)")
_ON_ITS_LIKE = [
    re.compile(
        rf"\b{kind}(?: from(?: [\w-]+){{1,4}})?(?: ,)?(?: (?:and|then))*(?: {_PUT}\w* (?:it|them|one))?"
        rf" (?:up)?on(?:to)?(?: (?:the )?top)?(?: of)? (?:(?!(?:{_STOP})\b)[\w-]+ ){{0,4}}?{kind}\b"
    )
    for kind in _STACKABLE
]
_WHOSE = r"(?:your|the|its|both|two|one|each|left|right|other|of)"
_BODY = r"(?:robot(?:ic)? )?(?:arms?|hands?|grippers?|fingers?|claws?)"
# "Move the hand to the left" moves the robot; "move the hand soap" and "open the right hand drawer" do not.
_MOVES_BODY = re.compile(
    rf"\b(?:move|raise|lower|lift|stretch|extend|shake|wave|open|close)\w* (?:{_WHOSE} )*{_BODY}"
    rf"(?= (?:,|{_PREPOSITION}|{_JOIN})(?: |$)|$)"
)
_BY_BODY = re.compile(rf"\b(?:(?:use|using|with) )?(?:{_WHOSE} )+{_BODY}\b")


def category(instruction: str) -> Category:
    """Return the category of an English instruction's most complex step; `OTHER` where no verb is known."""
    text = re.sub(r"\b(?:the )?robot\b(?! arm)|[.,;:!?()\[\]\n]+", " , ", instruction.lower().replace("’", "'"))
    text = " ".join(re.findall(r"[\w'&-]+|,", text))
    text = " ".join(_BY_BODY.sub(" , ", _MOVES_BODY.sub(" , ", text)).split())
    kinds = [_step_category(step) for step in _steps(text)]
    if any(phrase.search(text) for phrase in _ON_ITS_LIKE):
        kinds.append(Category.STACK)
    return max(kinds, key=lambda kind: kind.complexity, default=Category.OTHER)


def _steps(text: str) -> list[str]:
    """Split into steps, each a verb in its plain form with the words up to the next verb."""
    steps: list[list[str]] = []
    expects_verb = True
    for word, following in pairwise([*text.split(), ","]):
        if word == "," or re.fullmatch(_JOIN, word):
            expects_verb = True
        elif expects_verb and word not in _FILLERS and not word.endswith("ly"):
            expects_verb = False
            is_noun = bool(steps) and re.fullmatch(rf",|{_PREPOSITION}", following) and following not in _PARTICLES
            verb = None if is_noun else _plain_verb(word, first=not steps)
            if verb:
                steps.append([verb])
                continue
        if steps and word != ",":
            steps[-1].append(word)
    return [" ".join(step) for step in steps]


_PARTICLES = ("up", "down", "off", "out", "on", "over")


def _plain_verb(word: str, first: bool) -> str | None:
    """Return the known verb that the word is a form of: wiping, wipe; a first word may be misspelt: pikc, pick."""
    verb_form = next((form for form in word_forms(word) if form in _CATEGORY_OF), None)
    alike = [verb for verb in _CATEGORY_OF if verb[0] == word[0]]
    return verb_form or next(iter(get_close_matches(word, alike, n=1, cutoff=0.75) if first else []), None)


def _step_category(step: str) -> Category:
    verb = step.partition(" ")[0]
    kind = next((kind for kind, phrase in _COMPILED if phrase.match(step)), _CATEGORY_OF[verb])
    if kind is Category.OTHER or verb in ("build", "cover", "fill", "refill", "tie", "wrap"):
        return kind  # "cover it with the cloth": the cloth is a material
    # "pick up the bowl with the spoon" is pick/place, unless the implement is made for grasping.
    tool = _WITH_GRASPER if kind is Category.PICK_PLACE else _WITH_TOOL
    return Category.TOOL_USE if tool.search(step) else kind
