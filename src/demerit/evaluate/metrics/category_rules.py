"""The words and rules that sort instructions into task categories: data for `demerit.evaluate.metrics.categories`.

What the categories mean where people differ: lids lifted off or put on are pick/place, covering and uncovering are
open/close; buttons are push/pull, switches and taps open/close; folding, spreading and tying change a soft object's
pose: reorient.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Category(StrEnum):
    """The kind of a task, listed from the simplest to the most complex; `OTHER` stands outside that order."""

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
        """1 (pick/place) to 7 (tool use); 0 for other, which has no place in the order."""
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
    # Known not to be any of the above; listed so that none is taken for a misspelling of one ("look", "lock").
    Category.OTHER: (
        "approach ask avoid bake balance be blow boil break calibrate call catch check chew circle come cook count"
        " crack dance detect do drive eat explain explore face feed feel find fly follow go grind guide have help hit"
        " hop hover identify ignore jump kick knead know light listen locate look meet navigate need pat pause pet"
        " play point pop reach read ride ring run say scan scratch search see shake show sing sit sleep smell speak"
        " squeeze start stay step stop strike swing taste tear tell test think touch track travel visit wait walk"
        " watch wave wear work"
    ),
}
# These are as often things as deeds: away from the start they count as verbs only before what could be their object.
ALSO_NOUNS = set(
    "brush butter clean click comb cover cut dice drain drill dry dust empty file fold glue hammer hand iron"
    " ladle lay line lock mark measure mix mop mount nest open pack paint park pile place press punch rake roll"
    " sand saw scoop screw set slice spoon spray stack stand staple switch tap tape tie tip turn vacuum wash water"
    " wind zip".split()
)
PREPOSITIONS = set(
    "about above across against along around at away back backward backwards behind below beneath beside between"
    " by down for forward forwards from in inside into near next of off on onto out outside over through till"
    " toward towards under until up upon using with without".split()
)
# The object of a verb ends before any of these.
OBJECT_ENDS = PREPOSITIONS | set(
    "all again and closed halfway once open or shut slightly so that then to twice upright where which while".split()
)
CONNECTIVES = set("& after and before by n or then to while whilst".split())
FILLERS = set(
    "again also can could first firstly finally i just kindly lastly left let now ok okay plese pleas please pls plz"
    " right should try would you".split()
)

# Parts that stay attached: moving one opens or closes something. Whole appliances are absent, they can be pushed about.
ATTACHED = (
    r"(?:blinds?|curtains?|doors?|drawers?|faucets?|flap|gate|hatch|latch|shutters?|slider|spout|switch|switches|taps?"
    r"|windows?|zip|zipper|(?:faucet|tap|door) (?:handle|lever|nozzle))"
)
TWISTED = (
    r"(?:caps?|covers?|dial|faucets?|handle|keys?|knobs?|lever|nozzle|lids?|lock|switch|switches|taps?|timer|valves?)"
)
POSED = (
    r"\b(?:upright|upside|(?:its|their) (?:side|back|end|edge|base|head)s?|face ?-?(?:up|down)|fac(?:es|ing)|lying"
    r"|vertical(?:ly)?|horizontal(?:ly)?|way up|parallel|lies?|lay down|standing|(?:it|them) (?:stand|flat))\b"
)
GRAINS = r"\b(?:salt|pepper|sugar|spices?|cinnamon|flour|seeds|powder|sprinkles|herbs)\b"
SPREADS = (
    r"\b(?:butter|jam|jelly|sauce|cream|paste|glue|nutella|mayo|mustard|icing|frosting|hummus|honey|plaster|paint)\b"
)
IMPLEMENTS = (
    r"(?:blade|broom|brush|chopper|chopsticks?|cleaver|cloth|comb|drill|duster|eraser|fork|hammer|hook|iron"
    r"|knife|ladle|mallet|marker|mop|napkin|paper towel|peeler|pen|pencil|pestle|pliers|rag|rake|roller"
    r"|ruler|sandpaper|saw|scissors|scoop|scraper|screwdriver|shovel|spanner|spatula|sponge|spoon|squeegee"
    r"|stick|tissue|tongs|tool|towel|tweezers|whisk|wipe|wiper|wrench)s?"
)
GRASPERS = r"(?:chopsticks?|pliers|scoop|spatula|tongs|tweezers)"
BUILDING = r"(?:blocks?|bloks?|bricks?|cubes?|cuboids?|legos?)"
STACKABLE = (
    BUILDING,
    "bowls?",
    "books?",
    "box(?:es)?",
    "cans?",
    "crates?",
    "cups?",
    "mugs?",
    "plates?",
    "tins?",
    "trays?",
)
WITH_A_MATERIAL = set("build cover fill make refill tie wrap".split())
NOT_TOOLS = r"(?:lids?|covers?|buttons?|handles?|levers?|switch|knobs?)"


@dataclass(frozen=True)
class Rule:
    """A step is of this category when its verb is listed, its object ends as asked and the words asked for are said."""

    category: Category
    verbs: str
    object: str = ""
    said: str = ""


PLACING = "put place set lay leave make keep position move bring return turn lower pick prop take"
RULES = (
    Rule(Category.OTHER, "close", said=r"^to\b"),
    Rule(
        Category.OTHER,
        "return move get",
        said=r"^(?:back )?(?:to )?(?:the )?(?:home|start\w*|rest\w*|neutral|initial)\b",
    ),
    Rule(Category.OTHER, "use using", object=NOT_TOOLS),
    Rule(Category.PICK_PLACE, "switch", said=r"\b(?:places?|positions?)\b"),
    Rule(Category.PICK_PLACE, "clean", said=r"^up\b"),
    Rule(Category.STACK, "make form", said=r"\b(?:tower|pyramid|stack|pile)\b"),
    Rule(
        Category.STACK,
        "put place set add lay move drop",
        said=r"\b(?:on|onto|atop) (?:top of )?(?:the |a )?(?:\w+ )?(?:stack|pile|tower)\b",
    ),
    Rule(
        Category.STACK,
        "put place set lay arrange",
        said=r"\b(?:on(?:to)?|atop|over|inside|in) (?:(?:the )?top of )?(?:each other|one another)\b",
    ),
    Rule(Category.STACK, "put place set lay", said=r"\bon (?:the )?top of (?:the )?(?:others?|(?:other )?ones?)\b"),
    Rule(Category.OPEN_CLOSE, "turn", said=r"^(?:on|off|of|up|down)\b(?! (?:its|their|the side|top)\b)"),
    Rule(Category.OPEN_CLOSE, "turn", said=r"\b(?:on|off)$"),
    Rule(Category.OPEN_CLOSE, "turn rotate twist spin flip screw unscrew tighten loosen toggle wind", object=TWISTED),
    Rule(Category.OPEN_CLOSE, "unscrew screw twist", object=r"(?:bottle|jar|flask|thermos|top)"),
    Rule(Category.OPEN_CLOSE, "push pull slide press drag swing draw roll", said=r"\b(?:open|closed|shut)\b"),
    Rule(Category.OPEN_CLOSE, "push pull slide drag swing draw roll", object=rf"(?:{ATTACHED}|lids?)"),
    Rule(Category.OPEN_CLOSE, "move shift lift lower center centre", object=ATTACHED),
    Rule(Category.REORIENT, "roll", said=r"^(?:up|out)\b|\b(?:up|out)$"),
    Rule(Category.REORIENT, "roll", object=r"(?:mat|towel|cloth|paper|poster|dough|shirt|napkin|carpet|rug|sleeves?)"),
    Rule(Category.REORIENT, "open", said=r"^up (?:the )?(?:crumpled|folded|wrinkled)"),
    Rule(Category.REORIENT, PLACING, said=POSED),
    Rule(Category.REORIENT, "knock push tip", said=r"\bover$|^over\b|\bon(?:to)? (?:its|their) side"),
    Rule(Category.POUR, "shake", said=rf"{GRAINS}|\b(?:onto|over|into|out)\b"),
    Rule(Category.POUR, "add", said=GRAINS),
    Rule(Category.PUSH_PULL, "hit strike", object=r"(?:keys?|buttons?|bar|switch)"),
    Rule(Category.TOOL_USE, "spread", said=SPREADS),
)
