"""Which fields of an episode are about people, places, machines or moments, told by the words in their names."""

from __future__ import annotations

import re
from typing import Literal

About = Literal["person", "place", "machine", "moment", "text", "thing"]

WORDS: dict[About, frozenset[str]] = {
    "machine": frozenset(
        "email mail phone host hostname ip mac serial path file filename folder dir directory url uri".split()
    ),
    "person": frozenset(
        """person people user username author annotator evaluator operator teleoperator collector rater labeler labeller
        subject participant owner worker student judge""".split()
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
    for kind, words in WORDS.items():
        if parts & words:
            return kind
    return "text" if len(value.split()) >= MANY_WORDS else "thing"


def is_clock(signal: str) -> bool:
    """Whether a signal is a clock: absolute times say when somebody was in the room."""
    return bool(_parts(signal) & CLOCKS)


def is_on_globe(signal: str) -> bool:
    """Whether a signal is a position on the globe."""
    return bool(_parts(signal) & GLOBE)


def _parts(field: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", field).lower()))
