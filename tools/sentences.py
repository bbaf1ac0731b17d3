"""A grammar of robot instructions with their meaning, to train the text tower (`distil_words`).

A clause knows what is moved, where it goes and which of twenty pairs of opposites it names. Opposites are listed here
because a sentence model hardly tells "open the drawer" from "close the drawer".
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

# Pairs of opposites, in the order of the vector's last components: +1 names the first word, -1 the second.
OPPOSITES = (
    "open/close in/out onto/off lift/lower left/right forward/backward up/down push/pull start/stop clockwise/counter "
    "fold/unfold attach/detach pour/scoop clean/scribble upright/tipped near/away hold/release "
    "the-left-one/the-right-one the-front-one/the-back-one the-top-one/the-bottom-one"
).split()
_SIGN = {word: (i, 1 - 2 * j) for i, pair in enumerate(OPPOSITES) for j, word in enumerate(pair.split("/"))}

# Verbs that need nothing but an object; "*" is the object, names after "=" are the opposites they name.
_PLAIN = """
open *=open;pull * open=open pull;close *=close;shut *=close;push * shut=close push;push * closed=close push
lift *=lift;pick up *=lift hold;pick * up=lift hold;raise *=lift;lower *=lower;put down *=lower release
put * down=lower release;set * down=lower release;push *=push;pull *=pull;shove *=push;drag *=pull;press *=push
press down *=push down;press * down=push down;turn on *=start;turn * on=start;switch on *=start;start *=start
turn off *=stop;turn * off=stop;switch off *=stop;stop *=stop;fold *=fold;fold up *=fold;unfold *=unfold;wrap *=fold
unwrap *=unfold;roll up *=fold;unroll *=unfold;spread *=unfold;cover *=fold;uncover *=unfold;plug in *=attach in
unplug *=detach out;stack *=attach onto;unstack *=detach off;connect *=attach;disconnect *=detach;hang up *=attach
hang *=attach;unhang *=detach;screw in *=clockwise attach;unscrew *=counter detach;tighten *=clockwise attach
loosen *=counter detach;lock *=clockwise close;unlock *=counter open;turn * clockwise=clockwise
turn * counterclockwise=counter;rotate * counter clockwise=counter;rotate * clockwise=clockwise;turn *=;rotate *=
twist *=;spin *=;wipe *=clean;clean *=clean;sweep *=clean;scrub *=clean;dust *=clean;wash *=clean;erase *=clean
scribble on *=scribble;draw on *=scribble;write on *=scribble;empty *=out;fill *=in;pour out *=pour out
pour *=pour;scoop *=scoop lift;stir *=;shake *=;squeeze *=;touch *=;reach *=;poke *=;grab *=hold;grasp *=hold
hold *=hold
take *=hold;release *=release;let go of *=release;drop *=release lower;flip *=tipped;flip * over=tipped
tip over *=tipped;knock over *=tipped;turn * over=tipped;turn * upside down=tipped;stand * up=upright
put * upright=upright;stand * upright=upright;straighten *=upright;set * upright=upright;arrange *=;separate *=detach
put * together=attach;take * apart=detach;assemble *=attach;disassemble *=detach;cut *=;hit *=push;hammer *=push down
remove *=off out;take off *=off;put on *=onto;insert *=in attach;take out *=out;pull out *=out pull;push in *=in push
pull * out=out pull;push * in=in push;slide * open=open;slide * shut=close;move *=;transfer *=;fit *=attach
throw *=release
zip up *=close;unzip *=open;tie *=attach;untie *=detach;seal *=close;unseal *=open;extend *=forward;retract *=backward
bring * here=near;hand over *=release;swing * open=open;move past *=;go around *=;load *=in;unload *=out;pack *=in
unpack *=out
"""
_CARRY = "put place set move bring carry transfer lay slide take lift get deliver drop=release push=push shove=push"
_CARRY += " pull=pull drag=pull stack=attach insert=in fit=attach hang=attach sweep=clean roll throw=release return"
_PLACES = """
in=in;into=in;inside=in;in=in;on=onto;onto=onto;on top of=onto;on=onto;over=onto;to=near;to=near;next to=near
beside=near
near=near;close to=near;under=down;underneath=down;below=down;above=up;behind=backward;in front of=forward
to the left of=left;to the right of=right;to the left side of=left;to the right side of=right;on the left side of=left
on the right side of=right;away from=away;towards=near;against=near;between=;across=;around=;past=away;at=near
in the middle of=;at the edge of=;through=in;at the back of=backward;at the front of=forward;at the top of=up
at the bottom of=down
"""
_AWAY = """
take * out of=out;remove * out of=out;take * out from=out;pull * out of=out pull;take * off=off;remove * off=off
lift * off=off lift;take * from=off out;remove * from=off out;pick * from=lift off out;pick up * from=lift off out
lift * out of=out lift;get * out of=out;unplug * from=out detach;detach * from=detach off;unhang * from=detach off
push * off=off push;pour * out of=pour out;drag * out of=out pull;slide * out of=out;scoop * out of=scoop out
take * down from=down off;pull * off=off pull;sweep * off=off clean;pull * away from=away pull;empty * from=out
move * out of=out;move * off=off;bring * out of=out;scoop * from=scoop out;unload * from=out
"""
_WAYS = """
to the left=left;left=left;to the right=right;right=right;to the left side=left;to the right side=right
leftwards=left;rightwards=right;forward=forward;forwards=forward;to the front=forward;straight ahead=forward
backward=backward;backwards=backward;back=backward;to the back=backward;up=up;upwards=up;higher=up;down=down
downwards=down;lower=down;closer=near;towards you=near;towards the robot=near backward;nearer=near;away=away
further away=away;away from the robot=away forward;farther=away;sideways=;to the middle=;to the center=;to the corner=
to the edge=;slightly to the left=left;slightly to the right=right;a little to the left=left;a little to the right=right
diagonally=;from left to right=right;from right to left=left;from the left to the right=right
from the right to the left=left;to the other side=;to the top=up;to the bottom=down
"""
# The first object is a tool or cover that moves, the second stays: the order of the words decides which is which.
_WITH = """
cover @ with *=fold onto;wipe @ with *=clean;fill @ with *=in;clean @ with *=clean;push @ with *=push;pull @ with *=pull
hit @ with *=push;stir @ with *=;use * to wipe @=clean;use * to clean @=clean;use * to push @=push;use * to pull @=pull
use * to stir @=;use * to cover @=fold onto;use * to open @=open;use * to close @=close;dust @ with *=clean
take * and push @ with it=push;take * and pull @ with it=pull;attach * to @=attach;connect * to @=attach
pour * into @=pour in;pour * on @=pour onto;pour the contents of * into @=pour in;pour from * into @=pour in
stack * on @=attach onto;stack * on top of @=attach onto;plug * into @=attach in;screw * onto @=clockwise attach onto
wrap * around @=fold;tie * to @=attach;press * against @=push;lean * against @=upright;close @ with *=close
"""
_BOTH = "pick up * and=lift;lift * and=lift;take * and=;grab * and=hold;pick * and=lift;get * and=;open * and=open"

_THINGS = """
cup mug bowl plate pot pan lid bottle spoon fork knife spatula ladle whisk tray glass jar can kettle teapot thermos
flask
towel cloth napkin sponge brush dish soap detergent sachet packet bag box basket bin carton container lunchbox
tupperware
marker pen pencil sharpie eraser ruler scissors tape glue stapler notebook book paper envelope folder file calculator
phone charger cable cord adapter plug keyboard mouse laptop remote lamp battery headphones usb monitor screen
block cube cylinder ball ring disc peg puck brick lego toy doll duck bunny bear plushie puzzle dice domino coin key
token
apple banana orange lemon lime pear peach grape strawberry watermelon pineapple mango tomato potato carrot cucumber
onion
eggplant corn pepper mushroom broccoli egg bread bun toast butter cheese milk juice water coffee tea sugar salt rice
pasta
cereal candy chocolate cookie cake pizza sandwich hamburger sauce ketchup marshmallow avocado zucchini garlic beetroot
hammer screwdriver wrench pliers drill nail screw bolt nut washer gear clamp rope string wire hook chain stick rod hose
shirt t-shirt jacket coat hoodie sock shoe hat glove scarf trousers jeans dress belt umbrella blanket pillow cushion
curtain sheet hanger backpack suitcase wallet purse watch glasses bracelet toothbrush toothpaste comb tissue bandage
chopsticks straw cork opener tongs grater peeler strainer colander funnel blender toaster scale timer vase flower candle
carrots cups bowls blocks bottles markers plates forks grapes fruits vegetables clothes contents object objects things
rubber-band power-strip coffee-pod tea-bag water-bottle soda-can teddy-bear tennis-ball rubik's-cube paper-towel
dish-cloth
measuring-cup cutting-board extension-cord coffee-cup wine-glass salt-shaker pepper-shaker toy-car glue-stick
wooden-block
vial beaker tube pipette flask syringe rag mop broom dustpan bucket thermometer magnet robot puppet truck train plane
boat
"""
_SPOTS = """
table counter countertop desk shelf floor drawer cabinet cupboard sink stove oven microwave dishwasher fridge
refrigerator
freezer rack dish-rack drying-rack tray plate bowl basket box bin trash-can dustbin bag pot pan cup mug container crate
chair couch sofa bed pillow mat napkin cloth towel board cutting-board stand holder hook hanger peg hole slot socket
goal
target marked-spot net hoop bucket burner toaster coffee-machine coffee-maker washing-machine laundry-basket hamper
window windowsill wall corner platform pad scale saucer lunchbox jar glass vase pencil-case pen-holder cutlery-tray
top-drawer bottom-drawer top-shelf left-burner right-burner middle-shelf conveyor-belt suitcase toolbox dresser
bookshelf
"""
_PARTS = """
drawer door cabinet cupboard window lid box jar bottle fridge oven microwave dishwasher laptop book curtain tap faucet
handle lever knob button switch dial valve latch lock light lamp stove burner toaster kettle fan radio screen panel
cover cap zipper bag case drawer-handle cabinet-door light-switch coffee-machine tape-dispenser armrest seat chair
slider
"""
_COLOURS = "red blue green yellow orange purple pink white black gray grey brown silver golden transparent clear dark"
_KINDS = (
    "small big large little wooden metal plastic glass empty full round square open closed striped toy rubber paper"
)
_KINDS += " upper lower second third first other same tall short long"
_WHICH = {
    "left": "the-left-one",
    "right": "the-right-one",
    "front": "the-front-one",
    "back": "the-back-one",
    "top": "the-top-one",
    "bottom": "the-bottom-one",
}


@dataclass(frozen=True)
class Sentence:
    """An instruction and its meaning: what moves, where it goes ("" is nowhere), the opposites named (-1, 0 or 1)."""

    text: str
    what: str
    where: str
    signs: tuple[float, ...]


@dataclass
class _Clause:
    text: str
    what: str
    where: str = ""
    names: list[str] = field(default_factory=list)


class Grammar:
    """Draws sentences. `rare` are further nouns, so that the tower learns roles and not only our list of things."""

    def __init__(self, rare: Sequence[str], seed: int) -> None:
        """Read the tables."""
        self._rng = random.Random(seed)
        self._rare = list(rare)
        self._plain, self._away, self._with = _table(_PLAIN), _table(_AWAY), _table(_WITH)
        self._places, self._ways, self._both = _table(_PLACES), _table(_WAYS), _table(_BOTH)
        self._carry = [(one.partition("=")[0], one.partition("=")[2].split()) for one in _CARRY.split()]

    def sentence(self) -> Sentence:
        """Draw one sentence of one or two clauses."""
        clauses = [self._clause()]
        if self._chance(0.15):
            clauses.append(self._clause())
        joint = self._rng.choice([" and ", " then ", " and then ", ", then ", ", "])
        text = joint.join(clause.text for clause in clauses)
        last = clauses[-1]
        signs = [0.0] * len(OPPOSITES)
        for clause in clauses:  # what is done last is what remains to be seen
            for name in clause.names:
                axis, sign = _SIGN[name]
                signs[axis] = float(sign)
        return Sentence(self._dressed(text), last.what, last.where, tuple(signs))

    def _clause(self) -> _Clause:
        kinds = (self._make_plain, self._make_carry, self._make_away, self._make_way, self._make_with, self._make_both)
        return self._rng.choices(kinds, weights=(22, 28, 15, 12, 11, 12))[0]()

    def _make_plain(self) -> _Clause:
        verb, names = self._rng.choice(self._plain)
        said, phrase, which = self._noun(_NOUNS["parts"] if self._chance(0.5) else _NOUNS["things"])
        return _Clause(verb.replace("*", said), phrase, "", names + which)

    def _make_carry(self) -> _Clause:
        verb, names = self._rng.choice(self._carry)
        said, phrase, which = self._noun(_NOUNS["things"])
        place, spot, how = self._place()
        source = f"from {self._noun(_NOUNS['spots'])[0]} " if self._chance(0.15) else ""
        return _Clause(f"{verb} {said} {source}{place}", phrase, spot, names + how + which)

    def _make_away(self) -> _Clause:
        verb, names = self._rng.choice(self._away)
        said, phrase, which = self._noun(_NOUNS["things"])
        spot, place, _ = self._noun(_NOUNS["spots"])
        text = f"{verb.replace('*', said)} {spot}"
        if self._chance(0.3):
            further, place, how = self._place()
            return _Clause(f"{text} and {self._rng.choice(['put', 'place', 'set'])} it {further}", phrase, place, how)
        return _Clause(text, phrase, place, names + which)

    def _make_way(self) -> _Clause:
        verb = self._rng.choice("move slide push pull drag shift bring turn nudge put".split())
        way, names = self._rng.choice(self._ways)
        said, phrase, which = self._noun(_NOUNS["things"])
        names = names + [verb] * (verb in _SIGN)
        return _Clause(f"{verb} {said} {way}", phrase, "", names + which)

    def _make_with(self) -> _Clause:
        verb, names = self._rng.choice(self._with)
        said, phrase, which = self._noun(_NOUNS["things"])
        spot, place, _ = self._noun(_NOUNS["spots"] if self._chance(0.5) else _NOUNS["things"])
        return _Clause(verb.replace("*", said).replace("@", spot), phrase, place, names + which)

    def _make_both(self) -> _Clause:
        verb, names = self._rng.choice(self._both)
        said, phrase, which = self._noun(_NOUNS["things"])
        place, spot, how = self._place()
        second = self._rng.choice("put place set move bring carry lay drop".split())
        return _Clause(f"{verb.replace('*', said)} {second} it {place}", phrase, spot, names + how + which)

    def _place(self) -> tuple[str, str, list[str]]:
        relation, names = self._rng.choice(self._places)
        said, phrase, _ = self._noun(_NOUNS["spots"] if self._chance(0.6) else _NOUNS["things"])
        return f"{relation} {said}", phrase, names

    def _noun(self, nouns: list[str]) -> tuple[str, str, list[str]]:
        """Return the words as said, the bare phrase, and the opposites that say which one is meant."""
        rng = self._rng
        noun = rng.choice(self._rare) if self._rare and self._chance(0.25) else rng.choice(nouns)
        words, which, after = [noun], [], ""
        if self._chance(0.35):
            words.insert(0, rng.choice((_COLOURS if self._chance(0.7) else _KINDS).split()))
        if self._chance(0.12):
            side = rng.choice(list(_WHICH))
            which = [_WHICH[side]]
            if self._chance(0.5):
                words.insert(0, side)
            else:
                after = rng.choice([f" on the {side}", f" at the {side}", f" on the {side} side"])
        phrase = " ".join(words)
        article = rng.choices(["the ", "a ", "", "one ", "some "], weights=[80, 8, 8, 2, 2])[0]
        return f"{article}{phrase}{after}", phrase, which

    def _dressed(self, text: str) -> str:
        if self._chance(0.04):
            return "please " + text
        ends = ("slowly", "carefully", "gently", "completely", "again", "with the arm")
        return f"{text} {self._rng.choice(ends)}" if self._chance(0.04) else text

    def _chance(self, share: float) -> bool:
        return self._rng.random() < share


def _table(text: str) -> list[tuple[str, list[str]]]:
    rows = [row for row in text.replace("\n", ";").split(";") if row]
    return [(row.partition("=")[0], row.partition("=")[2].split()) for row in rows]


def _listed(text: str) -> list[str]:
    return [word.replace("-", " ") for word in text.split()]


_NOUNS = {"things": _listed(_THINGS), "spots": _listed(_SPOTS), "parts": _listed(_PARTS)}


def known_words() -> list[str]:
    """Return every word that the grammar can say, sorted."""
    tables = " ".join((_PLAIN, _CARRY, _PLACES, _AWAY, _WAYS, _WITH, _BOTH, _THINGS, _SPOTS, _PARTS, _COLOURS, _KINDS))
    letters = "".join(one if one.isalpha() else " " for one in tables.lower())
    return sorted({word for word in letters.split() if len(word) > 1})
