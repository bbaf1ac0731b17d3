"""Which licences may stand in one release. A help to see trouble early, and no legal advice.

The table is short and strict: what it does not know may be released alone, with a warning, and mixes with nothing.
Every episode keeps its own licence; a release as a whole is under the strictest of them or, where none is stricter than
all the others, under all of them: "Apache-2.0 AND MIT".
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
AND = " AND "
"""between licences that all hold, as SPDX writes it"""
CLOSED = frozenset(
    """
    closed internal confidential proprietary private personal secret restricted embargoed none no not nil null nan na
    n-a tbd tba tbc todo fixme pending unknown undecided undefined unspecified not-specified not-applicable
    not-available not-known not-yet not-set unlicensed unlicenced not-licensed no-licence no-license nolicense nolicence
    without-licence without-license noassertion missing empty copyright copyrighted licence license xxx
    """.split()
)
"""words that people write where there is no licence to share"""
_no = (
    r"(?:not|never|don.?t|cannot|can.?t|forbid\w*|prohibit\w*|(?:without|no)(?!\s(?:restriction|fee|charge|cost|payment"
    r"|attribution|credit|warrant|liabilit|guarantee)))"
)
_sharing = r"(?:redistribut\w*|distribut\w*|shar(?:e|ed|ing)\b|re-?leas\w*|publish\w*|publication|re-?upload\w*)"
# In another clause than the "not", it may be what is allowed: "not for sale, sharing allowed".
_allowed = r"\s(?:is\s|are\s)?(?:allowed|permitted|fine|ok|okay|welcome|encouraged|free)\b"
DENIALS = re.compile(
    rf"""all\ rights?\ reserved | \b(?<!non[- ])(?:confidential|proprietary|unlicen[sc]ed|nda|pending|tb[adc])\b
    | \binternal\ use\b
    | \b{_no}\b [^.;,()]*? \b(?:{_sharing}|permission|licen[sc]e)
    | \b{_no}\b [^.;]*? \b{_sharing}(?!\w|{_allowed})
    | \b(?:(?:re-?)?distribution|sharing|publication)\b [^.;]*? \b(?:forbidden|prohibited|not)\b""",
    re.I | re.X,
)
"""what says that sharing is not allowed, in so many words"""
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
    return AND.join(_parts(licence))


def whole_licence(counts: Mapping[str, int], changed: bool = False) -> str:
    """Return the licence of a release whose episodes have these licences, or refuse with what to do.

    Args:
        counts: licence, as the episodes say it, to their number; empty = nobody says.
        changed: whether episodes were edited or their pixels written anew.
    """
    names: Counter[str] = Counter()
    for licence, count in counts.items():
        for part in _parts(licence):
            names[part] += count
    _refuse_unsaid(names)
    known = {name: TABLE.get(name.lower()) for name in names}
    strict = [name for name, one in known.items() if one is not None and one.terms == UNCHANGED]
    if strict and changed:
        todo = "leave the edits, masks, --materialize and --format lerobot away, or ask the authors"
        raise BadInput("licence", f"one that allows changes ({todo})", f"{strict[0]}, {names[strict[0]]} episodes")
    wholes = [whole for whole in names if all(goes_with(part, whole) for part in names)]
    if not wholes:
        raise BadInput(
            "licences", _advice(names), ", ".join(f"{name} ({count})" for name, count in names.most_common())
        )
    # Several that each take all the others ask for the same kind of thing, in other words: none stands for all.
    return wholes[0] if len(wholes) == 1 else AND.join(sorted(names, key=str.casefold))


def goes_with(part: str, whole: str) -> bool:
    """Whether episodes under `part` may be released in a whole under `whole`."""
    return all(any(_goes(one, other) for other in _parts(whole)) for one in _parts(part))


def doubts(counts: Mapping[str, int]) -> list[str]:
    """Say, a sentence each, which licences the table does not know: what they allow is for a person to read."""
    unknown: Counter[str] = Counter()
    for licence, count in counts.items():
        unknown.update({part: count for part in _parts(licence) if part.lower() not in TABLE})
    return [
        f"The licence {name!r} ({count} {'episode' if count == 1 else 'episodes'}) is none that demerit knows: read "
        f"whether it allows sharing, and add its text to the release."
        for name, count in unknown.most_common()
    ]


def hub_name(licence: str) -> str:
    """How dataset cards spell it: `other` for what they have no word for, and for several at once."""
    known = TABLE.get(spelt(licence).lower())
    return known.hub if known else "other"


def hub_id(licence: str) -> str:
    """An id for dataset cards, beside `other`: small letters, numbers, dots and dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", licence.lower()).strip("-.")


def _goes(one: str, other: str) -> bool:
    if one == other:
        return True
    part, whole = TABLE.get(one.lower()), TABLE.get(other.lower())
    return part is not None and whole is not None and whole.terms in GOES_INTO[part.terms]


def _parts(licence: str) -> list[str]:
    """The licences in one text: several if it says `and` between some that the table knows, all of which hold then."""
    pieces = re.split(r"[\s_-]+and[\s_-]+", licence.strip(), flags=re.I)
    found = [_known(piece) for piece in pieces]
    names = [one.name for one in found if one is not None]
    return sorted(set(names), key=str.casefold) if len(names) == len(pieces) else [licence.strip()]


def _known(licence: str) -> Licence | None:
    words = re.sub(r"-(licen[cs]e|international)\b", "", _dashed(licence).removeprefix("the-"))
    return TABLE.get(SPELLINGS.get(words, words))


def _dashed(licence: str) -> str:
    return re.sub(r"[\s_]+", "-", licence.strip().lower())


def _says_no(licence: str) -> bool:
    words = re.sub(r"[^a-z0-9]+", "-", licence.lower()).strip("-")
    return licence.lower() not in TABLE and (not words or words in CLOSED or DENIALS.search(licence) is not None)


def _refuse_unsaid(names: Counter[str]) -> None:
    silent = sum(count for name, count in names.items() if not name)
    if silent:
        raise BadInput(
            "licence",
            "one for every episode (--licence NAME records yours where nobody says, --where leaves episodes out)",
            f"none for {silent} of {sum(names.values())} episodes",
        )
    for name, count in names.items():
        if _says_no(name):
            advice = "one that allows sharing (ask whoever recorded them; --where leaves episodes out)"
            raise BadInput("licence", advice, f"{name!r}, {count} times")


def _advice(names: Iterable[str]) -> str:
    first = max(names, key=len)
    return f"licences that may stand in one release (release each apart, e.g. --where 'licence={first}')"
