"""Which licences a release may combine. A check for obvious conflicts, not legal advice.

Licences are SPDX ids (`packaging.licenses`); `LicenseRef-NAME` stands for the owner's own terms. The table below is
short and strict: a licence that it does not know may be released alone, with a warning. Every episode keeps its own
licence; the release as a whole has the strictest, or all of them ("Apache-2.0 AND MIT") where none is strictest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from demerit.errors import BadInput

FREE, NAMED, ALIKE = "no conditions", "name the authors", "share alike"
NONCOMMERCIAL, NONCOMMERCIAL_ALIKE, UNCHANGED = "not commercial", "not commercial, share alike", "no changes"
TERMS = {
    **dict.fromkeys(("CC0-1.0", "PDDL-1.0", "Unlicense"), FREE),
    **dict.fromkeys(("MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "CC-BY-3.0", "CC-BY-4.0"), NAMED),
    **dict.fromkeys(("ODC-By-1.0", "CDLA-Permissive-2.0"), NAMED),
    **dict.fromkeys(("CC-BY-SA-4.0", "ODbL-1.0", "CDLA-Sharing-1.0", "GPL-3.0-only", "GPL-3.0-or-later"), ALIKE),
    "CC-BY-NC-4.0": NONCOMMERCIAL,
    "CC-BY-NC-SA-4.0": NONCOMMERCIAL_ALIKE,
    **dict.fromkeys(("CC-BY-ND-4.0", "CC-BY-NC-ND-4.0"), UNCHANGED),
}
GOES_INTO = {
    FREE: {FREE, NAMED, ALIKE, NONCOMMERCIAL, NONCOMMERCIAL_ALIKE},
    NAMED: {NAMED, ALIKE, NONCOMMERCIAL, NONCOMMERCIAL_ALIKE},
    NONCOMMERCIAL: {NONCOMMERCIAL, NONCOMMERCIAL_ALIKE},
}
"""terms of a part to the terms that the whole may have; a licence always goes with itself"""
HUB_NAMES = {"PDDL-1.0": "pddl", "ODC-By-1.0": "odc-by", "ODbL-1.0": "odbl", "GPL-3.0-only": "gpl-3.0"}
"""where dataset cards do not use the SPDX id in lower case"""
FROM_HUB = {hub: spdx for spdx, hub in HUB_NAMES.items()}
AND = " AND "


def parse_licence(text: str) -> str:
    """Return the SPDX expression; empty stays empty, anything else is refused."""
    if not text.strip():
        return ""
    given = AND.join(FROM_HUB.get(part.strip().lower(), part) for part in text.replace("-and-", AND).split(AND))
    try:
        return str(canonicalize_license_expression(given))
    except InvalidLicenseExpression:
        expected = "an SPDX id such as CC-BY-4.0, or LicenseRef-NAME for your own terms (--where skips episodes)"
        raise BadInput("licence", expected, repr(text)) from None


def combine_licences(counts: Mapping[str, int], changed: bool = False) -> str:
    """Return the licence of the whole release, or refuse with what to do.

    Args:
        counts: SPDX expression of episodes to their number; empty = no licence.
        changed: whether episodes were edited or pixels changed.
    """
    if counts.get(""):
        expected = "one for every episode (--licence NAME fills gaps, --where skips episodes)"
        raise BadInput("licence", expected, f"none for {counts['']} of {sum(counts.values())} episodes")
    names: Counter[str] = Counter()
    for licence, count in counts.items():
        names.update(dict.fromkeys(_parts(licence), count))
    unchanged = [name for name in names if TERMS.get(name) == UNCHANGED]
    if unchanged and changed:
        expected = "one that allows changes (release without edits, masks and --format lerobot)"
        raise BadInput("licence", expected, f"{unchanged[0]}, {names[unchanged[0]]} episodes")
    wholes = [whole for whole in names if all(_goes_into(part, whole) for part in names)]
    if not wholes:
        listed = ", ".join(f"{name} ({count})" for name, count in names.most_common())
        one = max(names, key=len)
        expected = f"licences that may be combined (release them separately, e.g. --where 'licence={one}')"
        raise BadInput("licences", expected, listed)
    return wholes[0] if len(wholes) == 1 else AND.join(sorted(names, key=str.casefold))


def licence_doubts(counts: Mapping[str, int]) -> list[str]:
    """Name licences whose terms the table does not know, a sentence each."""
    unknown = {part: count for licence, count in counts.items() for part in _parts(licence) if part not in TERMS}
    return [
        f"demerit does not know the terms of {name} ({count} episodes): check that it allows sharing, and add its text."
        for name, count in unknown.items()
    ]


def hub_licence(licence: str) -> dict[str, str]:
    """Return the licence fields of a hub's dataset card."""
    if licence in TERMS:
        return {"license": HUB_NAMES.get(licence, licence.lower())}
    return {"license": "other", "license_name": licence.lower().replace(" ", "-")}


def _goes_into(part: str, whole: str) -> bool:
    return part == whole or TERMS.get(whole, "unknown") in GOES_INTO.get(TERMS.get(part, ""), set())


def _parts(licence: str) -> list[str]:
    return [licence] if " OR " in licence or "(" in licence else licence.split(AND)
