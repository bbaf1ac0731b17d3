"""Which fields of an episode are about people, places, machines or moments, told by the words in their names."""

from __future__ import annotations

import re
from typing import Literal

from demerit.releasing.everyday import is_everyday
from demerit.releasing.guesses import is_somebody

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
NOT_BY_PEOPLE = frozenset(
    """caused blocked followed preceded sorted grouped scaled divided multiplied triggered limited bounded indexed keyed
    ordered offset shifted rotated""".split()
)
"""what stands before "by" where nobody did it"""
FULL = frozenset({"first", "last", "full", "family", "given"})
PERHAPS_PEOPLE = frozenset({"contact", "contacts", "credit", "credits"})
"""about somebody if no everyday word stands in it: a contact may be a finger's"""
THINGS = frozenset(
    """policy model checkpoint robot embodiment gripper camera task object skill scene simulator simulation environment
    env dataset verb action category method algorithm benchmark subset suite policies""".split()
)
"""whose values are what the dataset calls things, whatever they look like"""
PROSE = 3
"""everyday words in small letters that make the value of a field about people a text"""
MANY_WORDS = 5
"""a value of this many words is text, whatever its field is called"""
GLOBE = frozenset(
    """gps gnss glonass rtk navsat navsatfix nmea wgs wgs84 utm ecef geo geodetic geohash geolocation latitude longitude
    lat lon lng latlon latlng latlong lonlat lla llh gpslat gpslon""".split()
)
CLOCKS = frozenset("time timestamp timestamps stamp epoch clock datetime utc gmt unix posix walltime".split())


def about(field: str, value: str = "") -> About:
    """Say what a field is about, by its name and, for lack of better, by how much stands in it."""
    parts = _parts(field)
    kind = "person" if _says_by_whom(field) else next((kind for kind, words in WORDS.items() if parts & words), None)
    if kind is not None:
        return "text" if kind == "person" and _is_prose(value) else kind
    if len(value.split()) >= MANY_WORDS:
        return "text"
    if is_of_things(field):
        return "thing"
    is_contact = bool(parts & PERHAPS_PEOPLE) and not all(map(is_everyday, re.findall(r"[^\W\d_]+", value)))
    return "person" if is_contact or is_somebody(value) else "thing"


def is_of_things(field: str) -> bool:
    """Whether a field's values are what the dataset calls things: a policy, a robot, an object."""
    return any(part in THINGS or part.removesuffix("s") in THINGS for part in _parts(field))


def _says_by_whom(field: str) -> bool:
    """Whether a field says by whom: "recorded_by" is about somebody, and no moment."""
    *before, last = re.split(r"[^a-z0-9]+", _spaced(field))
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
    return set(re.split(r"[^a-z0-9]+", _spaced(field)))


def _spaced(field: str) -> str:
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", field).lower()
