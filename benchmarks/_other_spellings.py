"""The same kinds of private words in other sentences and spellings, written after the rules, which they never mended.

Rules and the first texts (`_planted_spans`) have one author, and the rules were mended by what the first texts showed:
what is found there flatters them. These tell better what a stranger's notes would lose.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from _planted_spans import HELD_OUT_CITIES, HELD_OUT_NAMES, LABS, STREETS, SURNAMES, Kind

FRAMES = (
    "bad grasp, {x} bumped into the table",
    "{x} will know why {it} {happened}",
    "no idea what happened here, maybe {x}?",
    "second try after lunch with {x} watching, {it} {happened}",
    "ok except that {it} {happened}. btw {x} wants these clips",
    "{it} {happened}, cf. {x}",
    "Was this {x} again? {It} {happened}",
    "{x}: {it} {happened}, otherwise good",
    "do not use, {x} is visible in the mirror",
    "{It} {happened} / {x} / low battery",
)
ABOUT_PLACES = (
    "filmed over in {x}, {it} {happened}",
    "{it} {happened}, the {x} setup has a better light",
    "old table from {x}; {it} {happened}",
    "{x}, second camera: {it} {happened}",
    "before we left {x} {it} {happened} as well",
)
ABOUT_FILES = (
    "{it} {happened}, raw data: {x}",
    "uploaded via {x} - {it} {happened}",
    "{x} has the unblurred version, {it} {happened}",
    "{it} {happened} (ckpt {x})",
    "crashed on {x}, so {it} {happened}",
)
Words = tuple[str, tuple[str, ...]]


def kind(forms: Sequence[str], frames: Sequence[str], telling: Callable[[dict[str, str]], tuple[str, ...]]) -> Kind:
    """Make a kind from spellings with gaps for names and numbers; `telling` says which gaps tell."""

    def make(rng: random.Random) -> Words:
        first, last = rng.choice(HELD_OUT_NAMES), rng.choice(SURNAMES)
        plain = "".join(char for char in last.lower() if char.isalpha())
        gaps = {
            "first": first, "small": first.lower(), "last": last, "small_last": last.lower(), "f": first[0],
            "account": rng.choice((f"{first[0]}{plain}", f"{plain}{first[0]}", f"{first}{plain[:2]}")).lower(),
            "lab": rng.choice(LABS), "street": rng.choice(STREETS), "city": rng.choice(HELD_OUT_CITIES),
            "n": str(rng.randint(101, 899)), "d": str(rng.randint(11, 28)), "h": str(rng.randint(13, 21)),
            "m": str(rng.randint(11, 58)), "lat": f"{rng.uniform(20, 60):.3f}", "lon": f"{rng.uniform(20, 60):.3f}",
        }  # fmt: skip
        gaps["small_lab"], gaps["small_city"], gaps["small_street"] = (
            gaps[name].lower() for name in ("lab", "city", "street")
        )
        return rng.choice(forms).format(**gaps), telling(gaps)

    return Kind(make, tuple(frames))


def _telling(*forms: str) -> Callable[[dict[str, str]], tuple[str, ...]]:
    return lambda gaps: tuple(form.format(**gaps) for form in forms)


_first, _both = _telling("{first}"), _telling("{first}", "{last}")


KINDS = {
    "first name": kind(("{first}", "{first} (intern)", "{first}&co"), FRAMES, _first),
    "full name": kind(("{first} {last}", "{last}, {first}", "{first} von {last}"), FRAMES, _both),
    "first name in small letters": kind(("{small}", "our intern {small}", "{small} + guest"), FRAMES, _first),
    "full name in small letters": kind(("{small} {small_last}", "{small_last} {small}"), FRAMES, _both),
    "telephone number": kind(
        ("555 0{n}", "tel. 5550{n}", "ext {n}4", "001 617 555 0{n}"), FRAMES, _telling("0{n}", "5550{n}", "{n}4")
    ),
    "user name": kind(
        ("{account}", "{account}'s account", "slack: {account}", "ssh {account}", "wandb {account}"),
        ABOUT_FILES,
        _telling("{account}"),
    ),
    "path with a user name": kind(
        ("D:/captures/{account}/a", "drive/MyDrive/{account}/x", "/work/{account}/ckpt", "smb://nas/{account}",
         "{account}/robot-set", "lab_share:{account}/set.zip"),
        ABOUT_FILES,
        _telling("{account}"),
    ),
    "lab": kind(
        ("{lab} group", "{small_lab}", "the lab of {lab}", "{lab}-Lab", "institute {small_lab}"),
        ABOUT_PLACES,
        _telling("{lab}"),
    ),
    "room": kind(
        ("R{n}", "hall {n}", "the {d}th floor", "B{n}.2", "room nr {n}"),
        ABOUT_PLACES,
        _telling("R{n}", "{n}", "{d}th", "B{n}"),
    ),
    "street": kind(
        ("{street} Street {d}", "corner of {small_street} and main", "{small_street} court {d}", "via {street} {d}"),
        ABOUT_PLACES,
        _telling("{street}"),
    ),
    "city": kind(("{city}", "{city}-Nord", "near {city}"), ABOUT_PLACES, _telling("{city}")),
    "city in small letters": kind(("{small_city}", "downtown {small_city}"), ABOUT_PLACES, _telling("{city}")),
    "position on the globe": kind(
        ("{lat}N {lon}E", "geo:{lat},{lon}", "({lat}, {lon})", "gps {lat} {lon}"),
        ABOUT_PLACES,
        _telling("{lat}"),
    ),
    "day": kind(
        ("2024-3-{d}", "{d}-Mar-2024", "24/03/{d}", "March {d} '24", "{d}. März 2024", "the {d}th"),
        FRAMES,
        _telling("3-{d}", "{d}-Mar", "03/{d}", "March {d}", "{d}. März", "{d}th"),
    ),
    "hour alone": kind(
        ("{h}h{m}", "{h}.{m} Uhr", "{h}:{m} CET", "{h}{m} hours"), FRAMES,
        _telling("{h}h{m}", "{h}.{m}", "{h}:{m}", "{h}{m}"),
    ),
}  # fmt: skip

HARMLESS = (
    "Cloth snagged on the corner.", "Looks good to me.", "Shaky camera, blurry frames.", "Ketchup everywhere.",
    "Zipper did not close.", "Screwdriver slid under the mat.", "Two-finger grasp failed, suction worked.",
    "Spatula bent; eggs on the floor.", "Misaligned by 2 degrees.", "Peg tilted, jammed in the hole.",
    "Finger tips worn.", "Kettle still hot. Waited.", "Depth is noisy near the window.", "Greasy lid.",
    "Policy oscillates around the goal.", "Emergency stop pressed.", "Scissors opened the bag.",
    "Whisk tangled in the cable.", "Bread crumbled.", "Mug handle hidden.", "toothpaste squeezed onto the brush",
    "the avocado rolled under the colander", "wrench too heavy for the gripper", "saw the tongs slip twice",
    "the dishwasher rack got stuck", "a lasagna tray and a parmesan shaker", "quinoa spilled",
    "lidar dropout for 3 frames", "the velcro strap came loose", "hex key stuck in the bolt",
    "the crate wobbles when pushed", "motor 3 overheated after 20 min", "torque limit at joint 5",
    "80/20 frame in the way", "v2.1 firmware", "fails 3 out of 10", "see episode 12 for the same thing",
    "moved 5 cm to the left at frame 40", "battery at 10%", "exposure 1/60",
)  # fmt: skip
"""notes about nothing private, written after the rules as well"""
