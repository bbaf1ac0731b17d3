"""A trial, step by step: two hidden policies in random order, a photo to match, rollouts, a blind judgement."""

from __future__ import annotations

import filecmp
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from demerit.errors import BadInput
from demerit.use.arena.tables import MODEL_SCORES, POLICIES, TRIALS
from demerit.use.arena.uploads import PARTS, Uploads
from demerit.use.people.accounts import NotAllowed, Person, record
from demerit.use.people.database import AUDIT, PEOPLE, Database

Step = Literal["describe", "first", "reset", "second", "judge", "done"]
LONGEST_TEXT = 4000
FASTEST = 60.0
"""seconds; nobody runs two rollouts and judges them in less"""
HALF, CONTRADICTION = 0.5, 0.3
"""partial scores that differ by more, against the preference, are looked at"""


@dataclass(frozen=True)
class Trial:
    """What a site sees of its trial: no names of policies."""

    id: str
    step: Step
    instruction: str


class Trials:
    """The trials of an arena."""

    def __init__(self, database: Database, folder: Path, seed: int | None = None) -> None:
        """`folder` is for photos and videos."""
        self.database, self.uploads = database, Uploads(database, folder)
        self._random = random.Random(seed)

    # Policies

    def set_policies(self, policies: Mapping[str, str]) -> None:
        """Add policies, name to address; those that are not among them are retired and keep their results."""
        with self.database.begin() as db:
            known = set(db.execute(sa.select(POLICIES.c.name)).scalars())
            for name, address in policies.items():
                row = {"address": address, "is_active": True}
                if name in known:
                    db.execute(sa.update(POLICIES).where(POLICIES.c.name == name).values(row))
                else:
                    db.execute(sa.insert(POLICIES).values(name=name, **row))
            gone = POLICIES.c.name.not_in(list(policies))
            db.execute(sa.update(POLICIES).where(gone).values(is_active=False))

    def address_now(self, id: str, part: str) -> str:
        """Return the address of the policy whose turn it is in a trial, for the relay alone; empty if it is not."""
        column = TRIALS.c.first if part == "first" else TRIALS.c.second
        with self.database.begin() as db:
            row = db.execute(sa.select(TRIALS).where(TRIALS.c.id == id)).first()
            query = sa.select(POLICIES.c.address).join(TRIALS, column == POLICIES.c.id).where(TRIALS.c.id == id)
            address = str(db.execute(query).scalar() or "")
        is_turn = row is not None and part in ("first", "second") and self._step(row) == part
        return address if is_turn else ""

    # A site's trial

    def start(self, site: Person) -> Trial:
        """Return the site's open trial, or begin one with the pair that has been compared least."""
        with self.database.begin() as db:
            mine = (TRIALS.c.site == site.id, TRIALS.c.ended.is_(None))
            found = db.execute(sa.select(TRIALS.c.id).where(*mine).order_by(TRIALS.c.started)).scalar()
            if found is None:
                self.database.queue_up(db)
                first, second = self._choose_pair(db)
                found = str(uuid.uuid4())
                row = {"id": found, "site": site.id, "first": first, "second": second, "started": time.time()}
                db.execute(sa.insert(TRIALS).values(row))
                record(db, site, "start trial", found)
        return self.find(site, found)

    def find(self, site: Person, id: str) -> Trial:
        """Return a trial of this site. Anybody else's does not exist for them."""
        row = self._row(site, id)
        return Trial(id, self._step(row), row.instruction)

    def describe(self, site: Person, id: str, instruction: str, is_safe: bool) -> Trial:
        """Say what the robot is to do, and that the safety checklist is done."""
        self._expect(site, id, "describe")
        text = " ".join(instruction.split())
        if not text or len(text) > LONGEST_TEXT:
            raise BadInput("instruction", "a sentence that tells the robot what to do", repr(instruction))
        if not is_safe:
            raise BadInput("safety checklist", "every box ticked", "some are not")
        if self.uploads.path(id, "photo") is None:
            raise BadInput("photo", "a photo of the scene before the first rollout", "none")
        return self._change(site, id, instruction=text, is_safe=True)

    def confirm_reset(self, site: Person, id: str) -> Trial:
        """Say that the scene looks like the photo again."""
        self._expect(site, id, "reset")
        return self._change(site, id, is_reset=True)

    def judge(self, site: Person, id: str, given: Mapping[str, Any]) -> Trial:
        """Judge both rollouts and end the trial. The same judgement sent twice changes nothing."""
        row = self._row(site, id)
        judged = _read_judgement(given)
        if row.ended is not None and all(getattr(row, name) == value for name, value in judged.items()):
            return self.find(site, id)
        self._expect(site, id, "judge")
        return self._change(site, id, **judged, ended=time.time())

    # For owners

    def exclude(self, owner: Person, id: str, reason: str) -> None:
        """Leave a trial out of the ranking, with a reason that is published; without one, let it count again."""
        with self.database.begin() as db:
            db.execute(sa.update(TRIALS).where(TRIALS.c.id == id).values(excluded=" ".join(reason.split())))
            record(db, owner, "exclude trial" if reason.strip() else "include trial", f"{id} {reason}".strip())

    def rows(self) -> list[sa.Row[Any]]:
        """Return the ended trials with the names of site and policies, oldest first."""
        first, second = POLICIES.alias(), POLICIES.alias()
        names = (PEOPLE.c.name.label("site_name"), first.c.name.label("first_name"), second.c.name.label("second_name"))
        query = sa.select(TRIALS, *names).join(PEOPLE).join(first, TRIALS.c.first == first.c.id)
        query = query.join(second, TRIALS.c.second == second.c.id).where(TRIALS.c.ended.is_not(None))
        with self.database.begin() as db:
            return list(db.execute(query.order_by(TRIALS.c.ended, TRIALS.c.id)))

    def version(self) -> tuple[int, int, int]:
        """Return numbers that differ whenever the results may differ; every change of a trial is in the log."""
        numbers = (sa.func.max(AUDIT.c.id), sa.func.count(MODEL_SCORES.c.trial), sa.func.count(POLICIES.c.id))
        with self.database.begin() as db:
            found = [db.execute(sa.select(number)).scalar() or 0 for number in numbers]
        return found[0], found[1], found[2]

    def policies(self) -> list[str]:
        """Return the names of all policies."""
        with self.database.begin() as db:
            return list(db.execute(sa.select(POLICIES.c.name).order_by(POLICIES.c.name)).scalars())

    def doubts(self, row: sa.Row[Any]) -> list[str]:
        """Say what an owner should look at before a trial counts."""
        found = []
        if row.ended - row.started < FASTEST:
            found.append(f"it took {row.ended - row.started:.0f} seconds")
        gap = row.first_progress - row.second_progress
        if (row.verdict == "first" and gap < -CONTRADICTION) or (row.verdict == "second" and gap > CONTRADICTION):
            found.append("the scores say the opposite of the preference")
        if row.verdict == "tie" and row.first_success != row.second_success:
            found.append("a tie of a success and a failure")
        if any(getattr(row, f"{part}_success") and getattr(row, f"{part}_progress") < HALF for part in PARTS[1:]):
            found.append("a success with less than half done")
        videos = [self.uploads.path(row.id, part) for part in ("first", "second")]
        if videos[0] and videos[1] and filecmp.cmp(videos[0], videos[1], shallow=False):
            found.append("both rollouts are the same file")
        return found

    # Inside

    def _choose_pair(self, db: sa.Connection) -> tuple[int, int]:
        active = list(db.execute(sa.select(POLICIES.c.id).where(POLICIES.c.is_active)).scalars())
        if len(active) < 2:  # noqa: PLR2004
            raise BadInput("arena", "two policies or more", len(active))
        done = Counter(frozenset(pair) for pair in db.execute(sa.select(TRIALS.c.first, TRIALS.c.second)))
        pairs = list(combinations(active, 2))
        self._random.shuffle(pairs)
        pair = list(min(pairs, key=lambda pair: done[frozenset(pair)]))
        self._random.shuffle(pair)
        return pair[0], pair[1]

    def _row(self, site: Person, id: str) -> sa.Row[Any]:
        with self.database.begin() as db:
            row = db.execute(sa.select(TRIALS).where(TRIALS.c.id == id, TRIALS.c.site == site.id)).first()
        if row is None:
            raise NotAllowed(404, "There is no such trial among yours.")
        return row

    def _step(self, row: sa.Row[Any]) -> Step:
        steps: Iterable[tuple[Step, bool]] = (
            ("done", row.ended is not None),
            ("describe", not row.is_safe),
            ("first", self.uploads.path(row.id, "first") is None),
            ("reset", not row.is_reset),
            ("second", self.uploads.path(row.id, "second") is None),
        )
        return next((step for step, is_now in steps if is_now), "judge")

    def _expect(self, site: Person, id: str, step: Step) -> None:
        now = self._step(self._row(site, id))
        if now != step:
            raise NotAllowed(409, f"This trial is at the step {now!r} now: reload the page.")

    def _change(self, site: Person, id: str, **columns: Any) -> Trial:
        with self.database.begin() as db:
            db.execute(sa.update(TRIALS).where(TRIALS.c.id == id).values(columns))
            record(db, site, "change trial", f"{id} {', '.join(columns)}")
        return self.find(site, id)


def _read_judgement(given: Mapping[str, Any]) -> dict[str, Any]:
    verdict, feedback = given.get("verdict"), given.get("feedback", "")
    if verdict not in ("first", "second", "tie"):
        raise BadInput("preference", "first, second or tie", repr(verdict))
    if not isinstance(feedback, str) or not feedback.strip() or len(feedback) > LONGEST_TEXT:
        raise BadInput("feedback", f"what you saw, in 1 to {LONGEST_TEXT} characters", repr(feedback)[:100])
    found: dict[str, Any] = {"verdict": verdict, "feedback": feedback.strip()}
    for part in ("first", "second"):
        progress, success = given.get(f"{part}_progress"), given.get(f"{part}_success")
        if isinstance(progress, bool) or not isinstance(progress, int | float) or not 0 <= progress <= 1:
            raise BadInput(f"progress of the {part} rollout", "a number from 0 to 1", repr(progress))
        if not isinstance(success, bool):
            raise BadInput(f"success of the {part} rollout", "true or false", repr(success))
        found |= {f"{part}_progress": float(progress), f"{part}_success": success}
    return found
