"""Which fields of an episode are about people, places, machines or moments, told by the words in their names."""

from __future__ import annotations

import re
from typing import Literal

from demerit.use.release.everyday import is_everyday
from demerit.use.release.guesses import is_somebody

About = Literal["person", "place", "machine", "moment", "text", "thing"]

WORDS: dict[About, frozenset[str]] = {
    "machine": frozenset(
        """email mail phone telephone host hostname ip mac serial path file filename folder dir directory url uri wifi
        ssid bssid machine computer workstation pc server timezone password passwd secret credential credentials
        """.split()
    ),
    "person": frozenset(
        """person people user username author annotator evaluator operator teleoperator collector rater labeler labeller
        subject participant owner worker student judge creator recorder demonstrator demonstrators experimenter uploader
        contributor maintainer supervisor researcher scientist engineer technician tester reviewer assistant intern
        investigator volunteer login account initials surname nickname firstname lastname fullname who whom
        authors annotators evaluators operators collectors participants users creators contributors""".split()
    ),
    "place": frozenset(
        """location site lab laboratory room building address city country street institution university company
        organization organisation affiliation gps latitude longitude lat lon""".split()
    ),
    "moment": frozenset("time timestamp date datetime day created recorded modified started ended when".split()),
    "text": frozenset(
        "note notes comment comments feedback description remark remarks why reason rationale check".split()
    ),
}
"""in order: the first that fits wins, and what is about machines goes"""
KNOWN = frozenset(WORDS["machine"] | WORDS["person"] | WORDS["place"])
ENDINGS = ("id", "ids", "name", "names", "no", "nr", "number", "email", "code", "key")
"""what is glued to a word that says what a field is about: operatorid"""
NOT_BY_PEOPLE = frozenset(
    """caused blocked followed preceded sorted grouped scaled divided multiplied triggered limited bounded indexed keyed
    ordered offset shifted rotated""".split()
)
"""what stands before "by" where nobody did it"""
FULL = frozenset({"first", "last", "full", "family", "given"})
PERHAPS_PEOPLE = frozenset({"contact", "contacts", "credit", "credits"})
"""about somebody if no everyday word stands in it: a contact may be a finger's"""
THINGS = frozenset(
    """policy model checkpoint robot embodiment gripper camera task subtask object skill scene simulator simulation
    environment env dataset verb action category method algorithm benchmark subset suite policies body link joint geom
    mesh""".split()
)
"""whose values are what the dataset calls things, whatever they look like"""
MEASURES = frozenset("length format model policy checkpoint type kind count size".split())
"""what makes a thing of whatever stands before it, as the last word: a path's length is no path"""
NUMBERS = frozenset({"num", "n", "nr", "count"})
"""the same as the first word: num_workers"""
OF_SCENES = frozenset(
    "target goal object start end initial final source destination drop pick place grasp receptacle container".split()
)
"""whose location is in a scene, if an everyday word says where"""
DOERS = frozenset(
    """policy model robot gripper simulator simulation script rule rules planner oracle controller random gravity
    automatic scripted algorithm program""".split()
)
"""what does things and is nobody"""
MODELS = re.compile(
    r"(?:act|dp|bc|o[134])(?:[-_ ](?:v?\d{1,3}|policy|mini|chunk\w{0,10}))?"
    r"|(?:pi[-_]?0|gpt|openvla|octo|diffusion|smolvla|tinyvla|cogact|gr00t|groot|rt[-_]?[12x]|llama|qwen|gemini|gemma|"
    r"internvl|llava|deepseek|mistral|vlm|vla|claude(?=[-_ ]?\d|[-_ ](?:opus|sonnet|haiku)))"
    r"(?:[-_.:/ ]?v?\d[\w.:/-]*|[-_.:/ ](?:fast|policy|mini|base|small|large|droid|oft|ft|pro|flash|opus|sonnet|haiku)"
    r"[\w.:/-]*)?"
)
"""policies and models that generate, drive and judge, as a whole value in small letters"""
PROSE = 3
"""everyday words in small letters that make the value of a field about people a text"""
MANY_WORDS = 5
"""a value of this many words is text, whatever its field is called"""
GLOBE = frozenset(
    """gps gnss glonass rtk navsat navsatfix nmea wgs utm ecef geo geodetic geohash geolocation latitude longitude lat
    lon lng latlon latlng latlong lonlat lla llh gpslat gpslon""".split()
)
_sideways = frozenset(
    "acc accel acceleration vel velocity speed jerk force torque err error dist distance gain".split()
)
NOT_ON_GLOBE = {"lat": _sideways, "lon": _sideways, "geo": frozenset("mean std dist distance error err loss".split())}
"""short words that are something else before these: lateral acceleration, a geometric mean"""
CLOCKS = frozenset(
    """time timestamp timestamps stamp epoch clock datetime utc gmt unix posix walltime date dates day ymd ymdhm ymdhms
    filetime dotnet""".split()
)
COUNTED = frozenset(
    """seed seeds step steps hash hashes checksum sha md crc digest version versions ver sw fw software firmware
    build revision rev commit count counts counter tick ticks index indices idx""".split()
)
"""whose numbers may look like moments and are none"""
CODE = re.compile(
    r"v?\d[\d.+_-]*(?:[-.]?(?:a|b|rc|dev|post|alpha|beta)\.?\d{0,6})?|(?:0x|sha\d{1,3}:)?[0-9a-f]{6,128}", re.I
)
"""a number, a version, a hash"""
IDS = frozenset("id ids uid uids uuid uuids".split())
"""the same among numbers; an id that is text is as often made of the moment"""


def about(field: str, value: str = "") -> About:
    """Say what a field is about, by its name and, for lack of better, by what stands in it."""
    parts = _parts(field)
    kind = "person" if _says_by_whom(field) else next((kind for kind, words in WORDS.items() if parts & words), None)
    if kind is not None and not _is_thing_after_all(field, kind, value):
        return "text" if kind == "person" and _is_prose(value) else kind
    if len(value.split()) >= MANY_WORDS:
        return "text"
    if kind is not None or is_of_things(field):
        return "thing"
    is_contact = bool(parts & PERHAPS_PEOPLE) and not all(map(is_everyday, re.findall(r"[^\W\d_]+", value)))
    return "person" if is_contact or is_somebody(value) else "thing"


def is_of_things(field: str) -> bool:
    """Whether a field's values are what the dataset calls things: a policy, a robot, an object."""
    return any(part in THINGS or part.removesuffix("s") in THINGS for part in _parts(field))


def is_counted(field: str, value: str | None = None) -> bool:
    """Whether a number is none of a calendar, by the name of its field: a seed, a step, a hash, a version.

    Args:
        field: the name of a field or a signal.
        value: a text, in which has to be nothing but a number or a code; None = its type says that it is a number.
    """
    parts = _parts(field)
    words = COUNTED | IDS if value is None else COUNTED
    is_code = value is None or CODE.fullmatch(value.strip()) is not None
    return is_code and bool(parts & words) and not parts & (CLOCKS | WORDS["moment"])


def _is_thing_after_all(field: str, kind: About, value: str) -> bool:
    """Whether a field that seems to be about somebody or somewhere is about a thing."""
    in_order, words = _in_order(field), re.findall(r"[^\W\d_]+", value)
    if kind in ("person", "place", "machine") and not is_somebody(value) and _is_measure(in_order):
        return True
    is_plain = bool(words) and value == value.lower() and all(map(is_everyday, words))
    match kind:
        case "person":
            low = value.strip()
            is_subject = set(in_order) & WORDS["person"] == {"subject"} and is_plain and value.strip().isalpha()
            return is_subject or low in DOERS or MODELS.fullmatch(low) is not None
        case "place":
            return is_plain and "location" in in_order and bool(set(in_order) & OF_SCENES)
        case "machine":  # "washing machine"; a computer has a name of one word
            return is_plain and len(value.split()) > 1 and _parts(field) & WORDS["machine"] == {"machine"}
    return False


def _is_measure(in_order: list[str]) -> bool:
    return in_order[-1] in MEASURES or (len(in_order) > 1 and in_order[0] in NUMBERS)


def _says_by_whom(field: str) -> bool:
    """Whether a field says by whom: "recorded_by" is about somebody, and no moment."""
    *before, last = _in_order(field)
    return (last == "by" and not set(before) & NOT_BY_PEOPLE) or (last == "name" and bool(set(before) & FULL))


def _is_prose(value: str) -> bool:
    return sum(word.islower() and is_everyday(word) for word in value.split()) >= PROSE


def is_clock(signal: str) -> bool:
    """Whether a signal is a clock: absolute times say when somebody was in the room."""
    return bool(_parts(signal) & CLOCKS)


def is_on_globe(signal: str) -> bool:
    """Whether a signal is a position on the globe."""
    return bool(_parts(signal) & GLOBE)


def _parts(field: str) -> set[str]:
    """The words of a field's name, also those that something is glued to; numbers do not count."""
    in_order = _in_order(field)
    parts = {
        word
        for word, behind in zip(in_order, [*in_order[1:], ""], strict=True)
        if behind not in NOT_ON_GLOBE.get(word, ())
    }
    return parts | {word.removesuffix(ending) for word in parts - KNOWN for ending in ENDINGS} & KNOWN


def _in_order(field: str) -> list[str]:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", field).lower()
    return [word for word in re.split(r"[^a-z]+", spaced) if word] or [""]
