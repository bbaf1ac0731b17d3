"""The owner's private file beside a release: what undoes the stand-ins, and what tells whether a release is the same.

A plan is a hash of what is removed, so a release says it only together with a salt that is kept here: the owner can
tell whether this very release is there already, and nobody else can test a guess.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from demerit.errors import StoreError
from demerit.use.release.cleaned import Cleaner


def salt_for(key: Path, plan: str) -> str:
    """Draw what nobody can guess; a private file of this very plan keeps its own, as its release may lie elsewhere."""
    kept = kept_in(key, "salt") if kept_in(key, "plan") == plan else None
    return kept or secrets.token_hex(16)


def salted(plan: str, salt: str) -> str:
    """What a release may say of its plan."""
    return hmac.digest(salt.encode(), plan.encode(), "sha256").hex()[:32]


def private_facts(plan: str, salt: str, cleaner: Cleaner, sources: Mapping[str, str]) -> bytes:
    """Write down what is never part of the release.

    Args:
        plan: of this release, without the salt.
        salt: of the plan that the release itself says.
        cleaner: which has cleaned everything.
        sources: ids in the source to fingerprints there.
    """
    facts = {
        "about": "PRIVATE: who and what stands behind the names of the release. Do not share this file.",
        "plan": plan,
        "salt": salt,
        "stand_ins": dict(cleaner.names.fields),
        "look_at": {
            "words in texts, ids and names of things that may be people or places and were left as they are (name them "
            "with --names)": dict(sorted(cleaner.suspects.items()))
        },
        "fingerprints_of_sources": {cleaner.id(one): fingerprint for one, fingerprint in sources.items()},
    }
    return (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode()


def refuse_other(key: Path, plans: set[str | None]) -> None:
    """A private file may be replaced by a run of the same plan, or if the run that wrote it never came to an end."""
    plan = kept_in(key, "plan")
    if key.exists() and (plan is None or plan not in plans):
        raise StoreError(key, "it is there from another release and would be lost; move it or choose another folder")


def kept_in(path: Path, name: str) -> str | None:
    """Read one text from a file of ours; None = there is none that can be read."""
    try:
        value = json.loads(path.read_text("utf-8")).get(name)
    except (OSError, ValueError, AttributeError):
        return None
    return value if isinstance(value, str) else None
