"""The queue: who gets which item, drafts and answers. Labels reach the dataset folders through `store_labels`."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from demerit.data.episode import Episode
from demerit.data.labels import Outcome, Preference, most_trusted
from demerit.data.store import Store, preference_row
from demerit.errors import BadInput, DemeritError
from demerit.use.annotate.labels import Answer, CompareAnswer, outcome_of, preference_of, read_answer, write_answer
from demerit.use.people.accounts import NotAllowed, Person, record
from demerit.use.people.database import ANSWERS, ASSIGNMENTS, ITEMS, PEOPLE, Database

EXPIRES_AFTER = 30 * 60.0
"""seconds after which an item that was opened and not answered may go to somebody else"""
GOLD_EVERY = 10
"""every tenth item has a known answer, as long as there are such items"""
BREAK_AFTER, BREAK_SECONDS = 50 * 60.0, 5 * 60.0
"""a break is suggested after working this long without a pause of that length"""
MOST_SECONDS = 3600.0
CHECK = "human_check"
"""the tag of test episodes that a person must check, with the value `due`"""


@dataclass(frozen=True)
class NewItem:
    """Something to ask people."""

    kind: str
    dataset: str
    """the demerit folder that labels go to"""
    episode: str
    other: str = ""
    """the second episode of a comparison"""
    urgency: float = 0.0
    gold: Mapping[str, Any] | None = None
    """the known answer"""


@dataclass(frozen=True)
class Assignment:
    """An item that a person is to answer."""

    item: int
    kind: str
    dataset: str
    episode: str
    other: str
    swapped: bool
    """whether the second episode of a comparison is shown first"""
    is_done: bool
    draft: Mapping[str, Any] | None

    @property
    def shown(self) -> tuple[str, ...]:
        """The episodes, from left to right."""
        return (self.other, self.episode) if self.swapped else tuple(filter(None, (self.episode, self.other)))


class Work:
    """The items of an app, and what people answered."""

    def __init__(self, database: Database, seed: int | None = None) -> None:
        self.database = database
        self._random = random.Random(seed)

    def add_items(self, items: Iterable[NewItem], wanted: int = 1) -> int:
        """Add the items that are not there yet; `wanted` people are to answer each. Return how many are new."""
        with self.database.begin() as db:
            known = {tuple(row) for row in db.execute(sa.select(*_KEY))}
            rows = {(item.kind, item.dataset, item.episode, item.other): item for item in items}
            new = [vars(item) | {"wanted": wanted} for key, item in rows.items() if key not in known]
            if new:
                db.execute(sa.insert(ITEMS), new)
        return len(new)

    def next_item(self, person: Person, kind: str) -> Assignment | None:
        """Return the item that this person opened and has not answered, or assign a new one; None = all done."""
        now = time.time()
        with self.database.begin() as db:
            open_ones = _assigned(person).where(ITEMS.c.kind == kind, ~ASSIGNMENTS.c.is_done)
            found = db.execute(open_ones.order_by(ASSIGNMENTS.c.since).limit(1)).first()
            if found is None:
                self.database.queue_up(db)  # two people never get the last place of an item
                self._release(db, kind, now)
                done = db.execute(
                    sa.select(sa.func.count()).where(ASSIGNMENTS.c.person == person.id, ASSIGNMENTS.c.is_done)
                ).scalar_one()
                wants_gold = done % GOLD_EVERY == GOLD_EVERY - 1
                item = self._choose(db, person, kind, wants_gold) or self._choose(db, person, kind, not wants_gold)
                if item is None:
                    return None
                row = {"item": item, "person": person.id, "since": now, "swapped": self._random.random() < 1 / 2}
                db.execute(sa.insert(ASSIGNMENTS).values(row))
                db.execute(sa.update(ITEMS).where(ITEMS.c.id == item).values(given=ITEMS.c.given + 1))
                found = db.execute(_assigned(person).where(ITEMS.c.id == item)).one()
        return _assignment(found)

    def count_left(self, person: Person) -> dict[str, dict[str, int]]:
        """Count, by kind, what this person has answered and what is left for them."""
        mine = sa.select(ASSIGNMENTS.c.item).where(ASSIGNMENTS.c.person == person.id, ASSIGNMENTS.c.is_done)
        opened = sa.select(ASSIGNMENTS.c.item).where(ASSIGNMENTS.c.person == person.id, ~ASSIGNMENTS.c.is_done)
        is_done, is_opened = ITEMS.c.id.in_(mine), ITEMS.c.id.in_(opened)
        is_left = sa.and_(~is_done, sa.or_(is_opened, _IS_OPEN, ITEMS.c.gold.is_not(None)))
        count = [sa.func.sum(sa.case((condition, 1), else_=0)) for condition in (is_done, is_left)]
        with self.database.begin() as db:
            rows = db.execute(sa.select(ITEMS.c.kind, *count).group_by(ITEMS.c.kind).order_by(ITEMS.c.kind)).all()
        return {kind: {"done": int(done), "left": int(left)} for kind, done, left in rows}

    def find(self, person: Person, item: int) -> Assignment:
        """Return an item of this person. Anybody else's does not exist for them."""
        with self.database.begin() as db:
            found = db.execute(_assigned(person).where(ITEMS.c.id == item)).first()
        if found is None:
            raise NotAllowed(404, "There is no such item among yours.")
        return _assignment(found)

    def take(self, person: Person, item: int) -> None:
        """Assign an item to this person, whoever else has it: an owner settles what others disagree about."""
        with self.database.begin() as db:
            if db.execute(sa.select(ITEMS.c.id).where(ITEMS.c.id == item)).first() is None:
                raise NotAllowed(404, "There is no such item.")
            mine = sa.select(ASSIGNMENTS.c.item).where(ASSIGNMENTS.c.item == item, ASSIGNMENTS.c.person == person.id)
            if db.execute(mine).first() is None:
                db.execute(sa.insert(ASSIGNMENTS).values(item=item, person=person.id, since=time.time()))
            record(db, person, "take item", str(item))

    def save_draft(self, person: Person, item: int, draft: Mapping[str, Any]) -> None:
        """Keep an answer that is not finished."""
        self.find(person, item)
        mine = (ASSIGNMENTS.c.item == item, ASSIGNMENTS.c.person == person.id)
        with self.database.begin() as db:
            db.execute(sa.update(ASSIGNMENTS).where(*mine).values(draft=dict(draft)))

    def answer(
        self, person: Person, item: int, id: str, body: Mapping[str, Any], frames: int, seconds: float
    ) -> Assignment:
        """Store an answer; durable when this returns. The same id is stored once, however often it is sent.

        Args:
            person: who answers.
            item: one of theirs.
            id: a UUID that the page has made.
            body: the answer.
            frames: the length of the episode.
            seconds: how long it took.
        """
        found = self.find(person, item)
        answer = write_answer(read_answer(found.kind, body, frames))
        took = min(max(float(seconds), 0.0), MOST_SECONDS)
        mine = (ASSIGNMENTS.c.item == item, ASSIGNMENTS.c.person == person.id)
        with self.database.begin() as db:
            before = db.execute(sa.select(ANSWERS.c.item, ANSWERS.c.person).where(ANSWERS.c.id == id)).first()
            if before is not None and tuple(before) != (item, person.id):
                raise BadInput("id", "a new one", "one of another answer")
            if before is None:
                row = {"id": id, "item": item, "person": person.id, "body": answer, "seconds": took, "at": time.time()}
                db.execute(sa.insert(ANSWERS).values(row))
                record(db, person, "answer", f"item {item}")
            db.execute(sa.update(ASSIGNMENTS).where(*mine).values(is_done=True, draft=None))
        return found

    def newest_answer(self, person: Person, item: int) -> Mapping[str, Any] | None:
        """Return what this person said last about an item."""
        mine = (ANSWERS.c.item == item, ANSWERS.c.person == person.id)
        with self.database.begin() as db:
            found = db.execute(sa.select(ANSWERS.c.body).where(*mine).order_by(ANSWERS.c.number.desc()).limit(1))
            return found.scalar()

    def previous(self, person: Person, item: int | None = None) -> int | None:
        """Return the item that this person answered last, or before `item`; None = there is none."""
        query = sa.select(ANSWERS.c.item, sa.func.max(ANSWERS.c.number)).where(ANSWERS.c.person == person.id)
        with self.database.begin() as db:
            rows = db.execute(query.group_by(ANSWERS.c.item).order_by(sa.func.max(ANSWERS.c.number))).all()
        items = [row[0] for row in rows]
        earlier = items[: items.index(item)] if item in items else items
        return earlier[-1] if earlier else None

    def count_answers(self, dataset: str) -> int:
        """Count the answers about episodes of a dataset that are in its folder."""
        query = sa.select(sa.func.count()).select_from(ANSWERS).join(ITEMS)
        with self.database.begin() as db:
            return int(db.execute(query.where(ITEMS.c.dataset == dataset, ANSWERS.c.is_stored)).scalar_one())

    def prefer(self, dataset: str, episodes: Sequence[str]) -> None:
        """Let some episodes come next, in this order, after those that are urgent for another reason."""
        usual = (ITEMS.c.dataset == dataset, ITEMS.c.kind != "compare", ITEMS.c.urgency < 1)
        with self.database.begin() as db:
            db.execute(sa.update(ITEMS).where(*usual).values(urgency=0.0))
            for place, id in enumerate(episodes):
                new = 1 - (place + 1) / (len(episodes) + 1)
                db.execute(sa.update(ITEMS).where(*usual, ITEMS.c.episode == id).values(urgency=new))

    def needs_break(self, person: Person) -> bool:
        """Whether this person has worked long without a pause."""
        query = sa.select(ANSWERS.c.at).where(
            ANSWERS.c.person == person.id, ANSWERS.c.at > time.time() - 2 * BREAK_AFTER
        )
        with self.database.begin() as db:
            times: list[float] = [time.time(), *db.execute(query.order_by(ANSWERS.c.at.desc())).scalars()]
        begun = times[0]
        for later, earlier in pairwise(times):
            if later - earlier > BREAK_SECONDS:
                break
            begun = earlier
        return times[0] - begun > BREAK_AFTER

    def _release(self, db: sa.Connection, kind: str, now: float) -> None:
        """Take back items that were opened long ago and not answered; drafts stay with those who come back in time."""
        stale = sa.select(ASSIGNMENTS.c.item, ASSIGNMENTS.c.person).join(ITEMS)
        stale = stale.where(ITEMS.c.kind == kind, ~ASSIGNMENTS.c.is_done, ASSIGNMENTS.c.since < now - EXPIRES_AFTER)
        for item, person in db.execute(stale).all():
            mine = (ASSIGNMENTS.c.item == item, ASSIGNMENTS.c.person == person, ~ASSIGNMENTS.c.is_done)
            if db.execute(sa.delete(ASSIGNMENTS).where(*mine, ASSIGNMENTS.c.draft.is_(None))).rowcount:
                db.execute(sa.update(ITEMS).where(ITEMS.c.id == item).values(given=ITEMS.c.given - 1))

    def _choose(self, db: sa.Connection, person: Person, kind: str, is_gold: bool) -> int | None:
        """Choose the most urgent item that is short of people."""
        mine = sa.select(ASSIGNMENTS.c.item).where(ASSIGNMENTS.c.person == person.id)
        open_ones = ITEMS.c.gold.is_not(None) if is_gold else sa.and_(ITEMS.c.gold.is_(None), _IS_OPEN)
        query = sa.select(ITEMS.c.id).where(ITEMS.c.kind == kind, open_ones, ITEMS.c.id.not_in(mine))
        query = query.order_by(ITEMS.c.urgency.desc(), ITEMS.c.id).limit(1)
        found = db.execute(query).scalar()
        return None if found is None else int(found)


_KEY = (ITEMS.c.kind, ITEMS.c.dataset, ITEMS.c.episode, ITEMS.c.other)
_IS_OPEN = ITEMS.c.given < ITEMS.c.wanted


def _assigned(person: Person) -> sa.Select[Any]:
    columns = (ITEMS.c.id, *_KEY, ASSIGNMENTS.c.swapped, ASSIGNMENTS.c.is_done, ASSIGNMENTS.c.draft)
    return (
        sa.select(*columns).join(ASSIGNMENTS, ASSIGNMENTS.c.item == ITEMS.c.id).where(ASSIGNMENTS.c.person == person.id)
    )


def _assignment(row: Sequence[Any]) -> Assignment:
    item, kind, dataset, episode, other, swapped, is_done, draft = row
    return Assignment(item, kind, dataset, episode, other, bool(swapped) and bool(other), bool(is_done), draft)


# From answers to labels


def store_labels(database: Database) -> int:
    """Write the labels of all answers that are not in their dataset folders yet; return how many answers were written.

    Nothing is lost if it is interrupted: answers are marked after the folder has been written, and writing them again
    changes nothing.
    """
    columns = (ANSWERS.c.number, ITEMS.c.dataset, ITEMS.c.kind, ITEMS.c.episode, ITEMS.c.other)
    waiting = sa.select(*columns).join(ITEMS).where(~ANSWERS.c.is_stored, ITEMS.c.gold.is_(None))
    with database.begin() as db:
        rows = db.execute(waiting.order_by(ITEMS.c.dataset, ANSWERS.c.number)).all()
    failed: dict[str, DemeritError] = {}
    for dataset, group in groupby(rows, key=lambda row: row.dataset):
        found = list(group)
        episodes = {row.episode for row in found if row.kind != "compare"}
        pairs = {(row.episode, row.other) for row in found if row.kind == "compare"}
        waiting_for = _write_labels(database, dataset, episodes, pairs)
        failed |= waiting_for
        numbers = [row.number for row in found if row.kind == "compare" or row.episode not in waiting_for]
        with database.begin() as db:
            db.execute(sa.update(ANSWERS).where(ANSWERS.c.number.in_(numbers)).values(is_stored=True))
    if failed:
        raise next(iter(failed.values()))
    return len(rows)


def count_frames(episode: Episode) -> int:
    """Return the length of an episode; 0 if its recording cannot be read."""
    try:
        return len(episode)
    except DemeritError:
        return 0


def _write_labels(
    database: Database, dataset: str, episodes: set[str], pairs: set[tuple[str, str]]
) -> dict[str, DemeritError]:
    """Write the labels of some episodes; return those that must wait, e.g. because their recording is gone."""
    current = [row for row in read_newest_answers(database) if row.dataset == dataset and row.gold is None]
    about = [row for row in current if (row.episode, row.other) in pairs]
    answered = {(row.episode, row.other, row.name) for row in about}
    new_rows = [_preference(row) for row in about]
    with Store(Path(dataset)).writer() as writer:
        store = Store(Path(dataset))  # read under the lock: what another program adds meanwhile would be lost
        outcomes, tags, failed = _gather_labels(store, current, episodes)
        writer.relabel(outcomes)
        kept = [one for one in store.preferences() if (one.a, one.b, one.by) not in answered or one.source != "human"]
        changed = {} if not pairs else {"preferences": [preference_row(one) for one in (*kept, *new_rows) if one]}
        writer.update(tags, **changed)
    return failed


def _gather_labels(
    store: Store, current: Sequence[sa.Row[Any]], episodes: set[str]
) -> tuple[dict[str, list[Outcome]], dict[str, dict[str, Any]], dict[str, DemeritError]]:
    """Return new labels and tags of some episodes, and why others must wait."""
    outcomes, tags, failed = dict[str, list[Outcome]](), dict[str, dict[str, Any]](), dict[str, DemeritError]()
    for id in sorted(episodes):
        episode = store.episode(id)
        rows = [row for row in current if row.episode == id and row.kind != "compare"]
        proposed, by, frames = proposed_label(episode.outcomes), dict[str, list[Answer]](), count_frames(episode)
        try:
            for row in rows:
                by.setdefault(row.name, []).append(read_answer(row.kind, row.body, frames))
        except DemeritError as error:
            failed[id] = error
            continue
        last_first = sorted(by, key=lambda name: -max(row.number for row in rows if row.name == name))
        made = [outcome_of(name, by[name], proposed, frames) for name in last_first]
        kept = [one for one in episode.outcomes if not (one.source == "human" and one.by in by)]
        outcomes[id] = [*filter(None, made), *kept]
        if any(made) and episode.origin.tags.get(CHECK) == "due":
            tags[id] = {"tags": [*({**episode.origin.tags, CHECK: "done"}).items()]}
    return outcomes, tags, failed


def _preference(row: sa.Row[Any]) -> Preference | None:
    answer = read_answer(row.kind, row.body, 1)
    assert isinstance(answer, CompareAnswer)
    return preference_of(row.name, answer, row.episode, row.other, bool(row.swapped))


def read_newest_answers(database: Database) -> list[sa.Row[Any]]:
    """Return the newest answer of each person to each item, oldest first, with the item and the person."""
    newest = sa.select(sa.func.max(ANSWERS.c.number)).group_by(ANSWERS.c.item, ANSWERS.c.person)
    mine = sa.and_(ASSIGNMENTS.c.item == ANSWERS.c.item, ASSIGNMENTS.c.person == ANSWERS.c.person)
    answer = (ANSWERS.c.number, ANSWERS.c.item, ANSWERS.c.body, ANSWERS.c.seconds, ASSIGNMENTS.c.swapped)
    query = sa.select(*answer, *_KEY, ITEMS.c.gold, PEOPLE.c.name, PEOPLE.c.role).select_from(ANSWERS)
    query = query.join(ITEMS).join(PEOPLE).join(ASSIGNMENTS, mine).where(ANSWERS.c.number.in_(newest))
    with database.begin() as db:
        return list(db.execute(query.order_by(ANSWERS.c.number)))


def proposed_label(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the label that people are asked to verify: the most trusted one that no person gave."""
    return most_trusted(one for one in outcomes if one.source != "human")
