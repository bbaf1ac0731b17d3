"""Which licences may stand in one release. A help to see trouble early, and no legal advice.

The table is short and strict: what it does not know may be released alone, and mixes with nothing. Every episode keeps
its own licence; a release as a whole is under the strictest of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from demerit.errors import BadInput

FREE, NAMED, ALIKE, NONCOMMERCIAL, NONCOMMERCIAL_ALIKE, UNCHANGED = (
    "no conditions",
    "name the authors",
    "share alike",
    "not commercial",
    "not commercial, share alike",
    "no changes",
)


@dataclass(frozen=True)
class Licence:
    """A licence of the table."""

    name: str
    terms: str
    hub: str
    """how the hub's dataset cards spell it"""


TABLE: dict[str, Licence] = {
    one.name.lower(): one
    for one in (
        Licence("CC0-1.0", FREE, "cc0-1.0"),
        Licence("PDDL-1.0", FREE, "pddl"),
        Licence("Unlicense", FREE, "unlicense"),
        Licence("MIT", NAMED, "mit"),
        Licence("ISC", NAMED, "isc"),
        Licence("BSD-2-Clause", NAMED, "bsd-2-clause"),
        Licence("BSD-3-Clause", NAMED, "bsd-3-clause"),
        Licence("Apache-2.0", NAMED, "apache-2.0"),
        Licence("CC-BY-3.0", NAMED, "cc-by-3.0"),
        Licence("CC-BY-4.0", NAMED, "cc-by-4.0"),
        Licence("ODC-By-1.0", NAMED, "odc-by"),
        Licence("CDLA-Permissive-2.0", NAMED, "cdla-permissive-2.0"),
        Licence("CC-BY-SA-4.0", ALIKE, "cc-by-sa-4.0"),
        Licence("ODbL-1.0", ALIKE, "odbl"),
        Licence("CDLA-Sharing-1.0", ALIKE, "cdla-sharing-1.0"),
        Licence("GPL-3.0", ALIKE, "gpl-3.0"),
        Licence("CC-BY-NC-4.0", NONCOMMERCIAL, "cc-by-nc-4.0"),
        Licence("CC-BY-NC-SA-4.0", NONCOMMERCIAL_ALIKE, "cc-by-nc-sa-4.0"),
        Licence("CC-BY-ND-4.0", UNCHANGED, "cc-by-nd-4.0"),
        Licence("CC-BY-NC-ND-4.0", UNCHANGED, "cc-by-nc-nd-4.0"),
    )
}
SPELLINGS = {
    "cc0": "cc0-1.0",
    "cc-zero": "cc0-1.0",
    "pddl": "pddl-1.0",
    "apache": "apache-2.0",
    "apache-2": "apache-2.0",
    "apache2": "apache-2.0",
    "apache2.0": "apache-2.0",
    "bsd-3": "bsd-3-clause",
    "bsd-2": "bsd-2-clause",
    "cc-by": "cc-by-4.0",
    "cc-by-sa": "cc-by-sa-4.0",
    "cc-by-nc": "cc-by-nc-4.0",
    "cc-by-nc-sa": "cc-by-nc-sa-4.0",
    "odc-by": "odc-by-1.0",
    "odbl": "odbl-1.0",
}
CLOSED = frozenset({"all-rights-reserved", "proprietary", "closed", "internal", "confidential", "none", "unknown"})
"""words that people write where there is no licence to share"""
GOES_INTO = {
    FREE: {FREE, NAMED, ALIKE, NONCOMMERCIAL, NONCOMMERCIAL_ALIKE},
    NAMED: {NAMED, ALIKE, NONCOMMERCIAL, NONCOMMERCIAL_ALIKE},
    NONCOMMERCIAL: {NONCOMMERCIAL, NONCOMMERCIAL_ALIKE},
    ALIKE: set(),
    NONCOMMERCIAL_ALIKE: set(),
    UNCHANGED: set(),
}
"""what may become part of a whole under which terms; a licence always goes with itself"""


def spelt(licence: str) -> str:
    """Write a licence's name as the table does; one that the table does not have stays as it is."""
    words = re.sub(r"[\s_]+", "-", licence.strip().lower())
    words = re.sub(r"-(licen[cs]e|international)\b", "", words.removeprefix("the-"))
    found = TABLE.get(SPELLINGS.get(words, words))
    return found.name if found else licence.strip()


def whole_licence(counts: Mapping[str, int], changed: bool = False) -> str:
    """Return the licence of a release whose episodes have these licences, or refuse with what to do.

    Args:
        counts: licence, as the episodes say it, to their number; empty = nobody says.
        changed: whether episodes were edited or their pixels written anew.
    """
    names: Counter[str] = Counter()
    for licence, count in counts.items():
        names[spelt(licence)] += count
    _refuse_unsaid(names)
    known = {name: TABLE.get(name.lower()) for name in names}
    strict = [name for name, one in known.items() if one is not None and one.terms == UNCHANGED]
    if strict and changed:
        todo = "leave the edits, masks, --materialize and --format lerobot away, or ask the authors"
        raise BadInput("licence", f"one that allows changes ({todo})", f"{strict[0]}, {names[strict[0]]} episodes")
    for whole in names:
        if all(goes_with(part, whole) for part in names):
            return whole
    raise BadInput("licences", _advice(names), ", ".join(f"{name} ({count})" for name, count in names.most_common()))


def goes_with(part: str, whole: str) -> bool:
    """Whether episodes under `part` may be released in a whole under `whole`."""
    if spelt(part) == spelt(whole):
        return True
    one, other = (TABLE.get(spelt(name).lower()) for name in (part, whole))
    return one is not None and other is not None and other.terms in GOES_INTO[one.terms]


def hub_name(licence: str) -> str:
    """How dataset cards spell it: `other` for what they have no word for."""
    known = TABLE.get(spelt(licence).lower())
    return known.hub if known else "other"


def _refuse_unsaid(names: Counter[str]) -> None:
    silent = sum(count for name, count in names.items() if not name)
    if silent:
        raise BadInput(
            "licence",
            "one for every episode (--licence NAME records yours where nobody says, --where leaves episodes out)",
            f"none for {silent} of {sum(names.values())} episodes",
        )
    for name, count in names.items():
        if re.sub(r"[\s_]+", "-", name.lower()) in CLOSED:
            raise BadInput("licence", "one that allows sharing (ask whoever recorded them)", f"{name!r}, {count} times")


def _advice(names: Iterable[str]) -> str:
    first = max(names, key=len)
    return f"licences that may stand in one release (release each apart, e.g. --where 'licence={first}')"
