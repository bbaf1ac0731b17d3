"""A trial, step by step: two hidden policies in random order, a photo to match, rollouts, a blind judgement.

Nobody but owners learns which policy was which before they close the evaluation.
"""

from __future__ import annotations

import random
import re
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any, Literal, cast, get_args

import sqlalchemy as sa

from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.video import VideoClip
from demerit.errors import BadInput
from demerit.people.accounts import NotAllowed, Person, record
from demerit.people.arena.uploads import DAY, Uploads
from demerit.people.database import AUDIT, PEOPLE, POLICIES, TRIALS, Database

Step = Literal["describe", "first", "reset", "second", "judge", "done"]
STEPS: tuple[Step, ...] = get_args(Step)
ROLLOUTS = ("first", "second")
LONGEST_TEXT = 4000
FASTEST = 60.0
"""seconds; nobody runs two rollouts and judges them in less, or one in half of it"""
TOO_FAST = "set aside: no time for two rollouts passed"
SENT_TWICE = "set aside: a video was sent twice"
TRIALS_A_DAY = 200
"""of a site"""
SLACK = 2
"""trials that a pair may have more than the least compared one, and still be next"""
CLOSE, OPEN, CLOSED = "close evaluation", "open evaluation", "The evaluation is closed. Thank you!"
ADDRESS, CODE_WORD = re.compile("wss?://.+"), re.compile(r"\w[\w-]{0,39}")
HALF, CONTRADICTION = 0.5, 0.3
"""partial scores that differ by more, against the preference, are looked at"""


class Trials:
    """The trials of an arena."""

    def __init__(self, database: Database, folder: Path, seed: int | None = None) -> None:
        """`folder` is for photos and videos; the rewards of models are in `rewards` beside it."""
        self.database, self.uploads, self.rewards = database, Uploads(database, folder), folder.parent / "rewards"
        self._random = random.Random(seed)

    # Policies

    def set_policies(self, policies: Mapping[str, str]) -> None:
        """Add policies, name to address or code word; others are retired and keep their results.

        Sites start a policy by its code word where it has no address. A mix would tell them which is which.
        """
        _check_policies(policies)
        with self.database.begin() as db:
            names = set(db.execute(sa.select(POLICIES.c.name)).scalars())
            for name, address in policies.items():
                row = {"address": address, "is_active": True}
                if name in names:
                    db.execute(sa.update(POLICIES).where(POLICIES.c.name == name).values(row))
                else:
                    db.execute(sa.insert(POLICIES).values(name=name, **row))
            is_gone = POLICIES.c.name.not_in(list(policies))
            db.execute(sa.update(POLICIES).where(is_gone).values(is_active=False))

    def policy_now(self, id: str, part: str) -> str:
        """Return the code word or (for the relay alone) the address of a policy whose turn it is; "" if it is not."""
        column = TRIALS.c.first if part == "first" else TRIALS.c.second
        with self.database.begin() as db:
            row = db.execute(sa.select(TRIALS).where(TRIALS.c.id == id)).first()
            query = sa.select(POLICIES.c.address).join(TRIALS, column == POLICIES.c.id).where(TRIALS.c.id == id)
            address = str(db.execute(query).scalar() or "")
            is_closed = self._is_closed(db)
        is_turn = row is not None and part in ROLLOUTS and self._step(row) == part
        return address if is_turn and not is_closed else ""

    # A site's trial

    def start(self, site: Person) -> str:
        """Return the id of the site's open trial, or begin one with a pair that has been compared little."""
        with self.database.begin() as db:
            return self._open_trial(db, site) or self._begin(db, site, *self._choose_pair(db))

    def add_policy(self, site: Person, id: str) -> str:
        """Run one more policy on the scene of an ended trial: its second rollout is the first of a new trial."""
        last = self._row(site, id)
        with self.database.begin() as db:
            if (open_one := self._open_trial(db, site)) is not None:
                return open_one
            if last.ended is None:
                raise NotAllowed(409, "End this trial first.")
            _, second = self._choose_pair(db, last.second, {last.first})
            carried = {"first_progress": last.second_progress, "first_success": last.second_success}
            new = self._begin(db, site, last.second, second, instruction=last.instruction, is_safe=True, **carried)
            self.uploads.carry_over(db, id, "photo", new, "photo")
            self.uploads.carry_over(db, id, "second", new, "first")
        return new

    def find(self, site: Person, id: str) -> dict[str, Any]:
        """Return what a site may know of its trial. Anybody else's does not exist for them.

        `carried` is whether its first rollout was judged in the trial before, `aside` why it does not count.
        """
        row = self._row(site, id)
        aside = row.excluded if row.excluded in (TOO_FAST, SENT_TWICE) else ""
        trial = {"id": id, "step": self._step(row), "instruction": row.instruction, "aside": aside}
        return {**trial, "carried": row.ended is None and row.first_progress is not None}

    def begin_upload(self, site: Person, id: str, part: str, camera: str, size: int) -> dict[str, Any]:
        """Announce a file of the step that a trial is at, or of an earlier rollout."""
        step = self._running_step(site, id)
        is_early = part in ROLLOUTS and STEPS.index(step) < STEPS.index(cast(Step, part))
        if is_early or (part == "photo" and step != "describe"):
            raise NotAllowed(409, f"This trial is at the step {step!r} now: reload the page.")
        return self.uploads.begin(site, id, part, camera, size)

    def describe(self, site: Person, id: str, instruction: str, is_safe: bool) -> None:
        """Say what the robot is to do, and that the safety checklist is done."""
        self._expect(site, id, "describe")
        text = " ".join(instruction.split())
        if not text or len(text) > LONGEST_TEXT:
            raise BadInput("instruction", "a sentence that tells the robot what to do", repr(instruction))
        if not is_safe:
            raise BadInput("safety checklist", "every box ticked", "some are not")
        if self.uploads.path(id, "photo") is None:
            raise BadInput("photo", "a photo of the scene before the first rollout", "none")
        self._change(site, id, instruction=text, is_safe=True)

    def confirm_reset(self, site: Person, id: str) -> None:
        """Say that the scene looks like the photo again."""
        self._expect(site, id, "reset")
        self._change(site, id, is_reset=True)

    def judge(self, site: Person, id: str, given: Mapping[str, Any]) -> None:
        """Judge both rollouts and end the trial. The same judgement sent twice changes nothing."""
        row = self._row(site, id)
        if row.first_progress is not None:  # judged in the trial before, or here already
            before = {"first_progress": row.first_progress, "first_success": row.first_success}
            given = {**given, **before} if row.ended is None else {**before, **given}
        judged = _read_judgement(given)
        if row.ended is not None and all(getattr(row, name) == value for name, value in judged.items()):
            return
        self._expect(site, id, "judge")
        ended = time.time()
        fastest = FASTEST if row.first_progress is None else FASTEST / 2
        aside = TOO_FAST if ended - row.started < fastest else ""
        if any(self.uploads.is_sent_twice(id, part) for part in ROLLOUTS):
            aside = SENT_TWICE
        self._change(site, id, **judged, ended=ended, excluded=aside)

    # For owners

    def close(self, owner: Person, is_closed: bool) -> None:
        """End the evaluation and publish its results, or go on with it and publish nothing."""
        with self.database.begin() as db:
            record(db, owner, CLOSE if is_closed else OPEN)

    def is_closed(self) -> bool:
        """Whether the evaluation has ended, so that its results are public."""
        with self.database.begin() as db:
            return self._is_closed(db)

    def count(self) -> tuple[int, int]:
        """Return how many trials have ended, and at how many sites."""
        numbers = (sa.func.count(TRIALS.c.id), sa.func.count(TRIALS.c.site.distinct()))
        with self.database.begin() as db:
            trials, sites = db.execute(sa.select(*numbers).where(TRIALS.c.ended.is_not(None))).one()
        return trials, sites

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

    def episodes(self) -> list[Episode]:
        """Return the rollouts of the ended trials as episodes `TRIAL/first` and `TRIAL/second`.

        Their videos are strangers': only `uploads.decoder` may open them.
        """
        return [
            Episode(f"{row.id}/{part}", row.instruction, views)
            for row in self.rows()
            for part in ROLLOUTS
            if (
                views := {name: Frames(VideoClip(str(path))) for name, path in self.uploads.files(row.id, part).items()}
            )
        ]

    def version(self) -> tuple[int, int]:
        """Return numbers that differ whenever the ranking may differ; every change of a trial is in the log."""
        with self.database.begin() as db:
            log, policies = (
                db.execute(sa.select(number)).scalar() or 0
                for number in (sa.func.max(AUDIT.c.id), sa.func.count(POLICIES.c.id))
            )
        return log, policies

    def policies(self) -> list[str]:
        """Return the names of all policies."""
        with self.database.begin() as db:
            return list(db.execute(sa.select(POLICIES.c.name).order_by(POLICIES.c.name)).scalars())

    def doubts(self, row: sa.Row[Any]) -> list[str]:
        """Say what an owner should look at before a trial counts."""
        doubts = []
        gap = row.first_progress - row.second_progress
        if (row.verdict == "first" and gap < -CONTRADICTION) or (row.verdict == "second" and gap > CONTRADICTION):
            doubts.append("the scores say the opposite of the preference")
        if row.verdict == "tie" and row.first_success != row.second_success:
            doubts.append("a tie of a success and a failure")
        if any(getattr(row, f"{part}_success") and getattr(row, f"{part}_progress") < HALF for part in ROLLOUTS):
            doubts.append("a success with less than half done")
        return doubts

    # Inside

    def _is_closed(self, db: sa.Connection) -> bool:
        query = sa.select(AUDIT.c.action).where(AUDIT.c.action.in_((CLOSE, OPEN))).order_by(AUDIT.c.id.desc())
        return bool(db.execute(query.limit(1)).scalar() == CLOSE)

    def _open_trial(self, db: sa.Connection, site: Person) -> str | None:
        """Return the site's open trial; from here on, one after the other begins a trial."""
        self.database.queue_up(db)
        mine = (TRIALS.c.site == site.id, TRIALS.c.ended.is_(None))
        return db.execute(sa.select(TRIALS.c.id).where(*mine).order_by(TRIALS.c.started)).scalar()

    def _begin(self, db: sa.Connection, site: Person, first: int, second: int, **columns: Any) -> str:
        if self._is_closed(db):
            raise NotAllowed(409, CLOSED)
        today = (TRIALS.c.site == site.id, TRIALS.c.started > time.time() - DAY)
        if (db.execute(sa.select(sa.func.count(TRIALS.c.id)).where(*today)).scalar() or 0) >= TRIALS_A_DAY:
            raise NotAllowed(429, f"A site may begin {TRIALS_A_DAY} trials a day: go on tomorrow.")
        id = str(uuid.uuid4())
        row = {"id": id, "site": site.id, "first": first, "second": second, "started": time.time(), **columns}
        db.execute(sa.insert(TRIALS).values(row))
        record(db, site, "start trial", id)
        return id

    def _choose_pair(
        self, db: sa.Connection, first: int | None = None, without: Collection[int] = ()
    ) -> tuple[int, int]:
        """Choose at random among the pairs that have been compared little, in random order or with a given first."""
        active = db.execute(sa.select(POLICIES.c.id).where(POLICIES.c.is_active)).scalars()
        pairs = [pair for pair in permutations(set(active) - set(without), 2) if first in (None, pair[0])]
        if not pairs and first is not None:
            raise NotAllowed(409, "There is no other policy for this scene.")
        if not pairs:
            raise BadInput("arena", "two policies or more", "fewer")
        counted = sa.select(TRIALS.c.first, TRIALS.c.second).where(TRIALS.c.excluded == "")
        totals = Counter(frozenset(pair) for pair in db.execute(counted))
        least = min(totals[frozenset(pair)] for pair in pairs)
        return self._random.choice([pair for pair in pairs if totals[frozenset(pair)] <= least + SLACK])

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
        now = self._running_step(site, id)
        if now != step:
            raise NotAllowed(409, f"This trial is at the step {now!r} now: reload the page.")

    def _running_step(self, site: Person, id: str) -> Step:
        step = self._step(self._row(site, id))
        if self.is_closed():
            raise NotAllowed(409, CLOSED)
        return step

    def _change(self, site: Person, id: str, **columns: Any) -> None:
        with self.database.begin() as db:
            db.execute(sa.update(TRIALS).where(TRIALS.c.id == id).values(columns))
            record(db, site, "change trial", f"{id} {', '.join(columns)}")


def _check_policies(policies: Mapping[str, str]) -> None:
    words = [word.lower() for word in policies.values() if not ADDRESS.fullmatch(word)]
    if words and len(words) < len(policies):
        raise BadInput("policies", "an address for each, or a code word for each (a mix tells which is which)", "both")
    names = {name.lower() for name in policies}
    for word in words:
        if not CODE_WORD.fullmatch(word) or word in names or words.count(word) > 1:
            expected = "a ws:// or wss:// address, or a code word of its own that tells nothing"
            raise BadInput("policies", expected, repr(word))


def _read_judgement(given: Mapping[str, Any]) -> dict[str, Any]:
    verdict, feedback = given.get("verdict"), given.get("feedback", "")
    if verdict not in ("first", "second", "tie"):
        raise BadInput("preference", "first, second or tie", repr(verdict))
    if not isinstance(feedback, str) or not feedback.strip() or len(feedback) > LONGEST_TEXT:
        raise BadInput("feedback", f"what you saw, in 1 to {LONGEST_TEXT} characters", repr(feedback)[:100])
    judgement: dict[str, Any] = {"verdict": verdict, "feedback": feedback.strip()}
    for part in ROLLOUTS:
        progress, success = given.get(f"{part}_progress"), given.get(f"{part}_success")
        if isinstance(progress, bool) or not isinstance(progress, int | float) or not 0 <= progress <= 1:
            raise BadInput(f"progress of the {part} rollout", "a number from 0 to 1", repr(progress))
        if not isinstance(success, bool):
            raise BadInput(f"success of the {part} rollout", "true or false", repr(success))
        judgement |= {f"{part}_progress": float(progress), f"{part}_success": success}
    return judgement
