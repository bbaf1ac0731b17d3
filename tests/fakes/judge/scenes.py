"""Words for what can be seen in the scenes of the simulator's tasks; `predicates` grades what is said with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scene:
    """The words for what can be seen in a task's scene."""

    thing: str
    """what the task moves"""
    others: tuple[str, ...]
    """what else stands there and is never moved"""
    contrary: str
    """a goal that is true at the start"""
    half: str
    """the task's own motion, stopped half-way"""


SCENES: dict[str, Scene] = {
    "basketball": Scene("ball", ("hoop", "backboard"), "leave the ball on the table", "lift the ball half way up"),
    "bin-picking": Scene("block", ("bin", "table"), "keep the block in its bin", "carry the block half way over"),
    "button-press": Scene("button", ("box", "table"), "leave the button out", "press the button half way in"),
    "button-press-topdown": Scene("button", ("box", "table"), "leave the button up", "press the button half way down"),
    "coffee-button": Scene("button", ("machine", "mug"), "leave the button out", "press the button half way in"),
    "coffee-pull": Scene("mug", ("machine", "table"), "keep the mug under the machine", "pull the mug half way out"),
    "coffee-push": Scene("mug", ("machine", "table"), "keep the mug in front", "push the mug half way to the machine"),
    "dial-turn": Scene("dial", ("table", "base"), "leave the dial unturned", "turn the dial a quarter way"),
    "door-close": Scene("door", ("cabinet", "table"), "leave the door open", "push the door half way shut"),
    "door-open": Scene("door", ("cabinet", "table"), "leave the door closed", "pull the door half way open"),
    "drawer-close": Scene("drawer", ("cabinet", "table"), "leave the drawer open", "push the drawer half way in"),
    "drawer-open": Scene("drawer", ("cabinet", "table"), "leave the drawer closed", "pull the drawer half way out"),
    "faucet-close": Scene("faucet", ("table", "base"), "leave the faucet open", "turn the faucet half way shut"),
    "faucet-open": Scene("faucet", ("table", "base"), "leave the faucet closed", "turn the faucet half way open"),
    "handle-press": Scene("handle", ("box", "table"), "leave the handle up", "push the handle half way down"),
    "handle-pull": Scene("handle", ("box", "table"), "leave the handle down", "pull the handle half way up"),
    "peg-insert-side": Scene("peg", ("box", "table"), "leave the peg on the table", "push the peg half way in"),
    "peg-unplug-side": Scene("peg", ("box", "table"), "leave the peg in the box", "pull the peg half way out"),
    "pick-place": Scene("puck", ("table", "mark"), "leave the puck on the table", "carry the puck half way there"),
    "plate-slide": Scene("disc", ("net", "table"), "leave the disc outside", "slide the disc half way to the net"),
    "plate-slide-back": Scene("disc", ("net", "table"), "leave the disc in the net", "pull the disc half way out"),
    "push": Scene("puck", ("table", "mark"), "leave the puck where it lies", "push the puck half way to the mark"),
    "soccer": Scene("ball", ("net", "table"), "leave the ball outside", "push the ball half way to the net"),
    "sweep-into": Scene("block", ("hole", "table"), "leave the block beside the hole", "sweep the block half way"),
    "window-close": Scene("window", ("frame", "table"), "leave the window open", "slide the window half way shut"),
    "window-open": Scene("window", ("frame", "table"), "leave the window closed", "slide the window half way open"),
    "assembly": Scene(
        "wrench", ("peg", "table"), "leave the wrench on the table", "lower the wrench half way onto the peg"
    ),
    "box-close": Scene("lid", ("box", "table"), "leave the box open", "bring the lid half way to the box"),
    "button-press-topdown-wall": Scene(
        "button", ("wall", "table"), "leave the button up", "press the button half way down"
    ),
    "button-press-wall": Scene("button", ("wall", "table"), "leave the button out", "press the button half way in"),
    "disassemble": Scene(
        "wrench", ("peg", "table"), "keep the wrench on the peg", "lift the wrench half way up the peg"
    ),
    "door-lock": Scene(
        "latch", ("door", "table"), "leave the door unlocked", "turn the latch of the door half way down"
    ),
    "door-unlock": Scene(
        "latch", ("door", "table"), "leave the door locked", "turn the latch of the door half way open"
    ),
    "hammer": Scene("hammer", ("board", "table"), "leave the nail out", "hammer the nail half way into the board"),
    "hand-insert": Scene(
        "block", ("table", "floor"), "leave the block on the table", "push the block half way into the hole"
    ),
    "handle-press-side": Scene("handle", ("box", "table"), "leave the handle up", "push the handle half way down"),
    "handle-pull-side": Scene("handle", ("box", "table"), "leave the handle down", "pull the handle half way up"),
    "lever-pull": Scene("lever", ("base", "table"), "leave the lever down", "pull the lever half way up"),
    "pick-out-of-hole": Scene(
        "puck", ("table", "mark"), "leave the puck in the hole", "lift the puck half way out of the hole"
    ),
    "pick-place-wall": Scene(
        "puck", ("wall", "table"), "leave the puck before the wall", "carry the puck half way to the wall"
    ),
    "plate-slide-back-side": Scene("disc", ("net", "table"), "leave the disc in the net", "pull the disc half way out"),
    "plate-slide-side": Scene("disc", ("net", "table"), "leave the disc outside", "slide the disc half way to the net"),
    "push-back": Scene(
        "block", ("table", "mark"), "leave the block where it lies", "pull the block half way to the mark"
    ),
    "push-wall": Scene(
        "puck", ("wall", "table"), "leave the puck before the wall", "push the puck half way to the wall"
    ),
    "shelf-place": Scene(
        "block", ("shelf", "table"), "leave the block on the table", "lift the block half way to the shelf"
    ),
    "stick-pull": Scene(
        "stick", ("table", "mark"), "leave the flask where it stands", "pull the flask half way with the stick"
    ),
    "stick-push": Scene(
        "stick", ("table", "mark"), "leave the flask where it stands", "push the flask half way with the stick"
    ),
    "sweep": Scene("block", ("table", "base"), "leave the block on the table", "sweep the block half way to the edge"),
}
"""Of the fifty tasks only `reach` and `reach-wall` have none: nothing is moved there that a command could be about."""
