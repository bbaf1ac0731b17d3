"""What to ask people about a dataset folder, and the queue: who gets which item, drafts and answers.

Labels reach the dataset folders through `store_labels`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from demerit.data.dataset import Dataset, annotated_folder
from demerit.data.episode import Check, Episode, Outcome, Preference, most_trusted, with_check
from demerit.data.importing import import_dataset
from demerit.data.splits import seed_of
from demerit.data.store import Store, preference_row
from demerit.errors import BadInput, DemeritError
from demerit.people.accounts import NotAllowed, Person, record
from demerit.people.annotate.labels import Answer, outcome_of, preference_of, read_answer, write_answer
from demerit.people.database import ANSWERS, ASSIGNMENTS, ITEMS, PEOPLE, Database

EXPIRES_AFTER = 30 * 60.0
"""seconds after which an item that was opened and not answered may go to somebody else"""
GOLD_EVERY = 10
"""every tenth item has a known answer, as long as there are such items"""
BREAK_AFTER, BREAK_SECONDS = 50 * 60.0, 5 * 60.0
"""a break is suggested after working this long without a pause of that length"""
MOST_SECONDS = 3600.0
CHECKS: Mapping[str, Check] = {"accept": "accepted", "correct": "corrected", "reject": "rejected"}
"""what an answer to verify makes of the labels"""

DUE, MODEL_LABEL = 2.0, 1.0
"""urgency: test labels that a person must check come first, then labels of models"""


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


Assignment = sa.Row[Any]
"""an item that a person is to answer: item, kind, dataset, episode, other, swapped (whether the other episode of a
comparison is shown first), is_done, draft"""


def list_shown(assignment: Assignment) -> tuple[str, ...]:
    """Return the episodes of an item, from left to right."""
    shown = (assignment.other, assignment.episode) if assignment.swapped else (assignment.episode, assignment.other)
    return tuple(filter(None, shown))


def open_folder(dataset: Dataset, on_progress: Callable[[int], None] = lambda seen: None) -> Store:
    """Return the demerit folder that labels go to: the dataset itself, or one beside it that refers to its videos."""
    if isinstance(dataset.reader, Store):
        return dataset.reader
    folder = annotated_folder(dataset.address)
    import_dataset(dataset, folder, on_progress=lambda progress: on_progress(progress.seen))
    return Store(folder)


def make_items(
    store: Store,
    kinds: Sequence[str],
    pairs: int | None = None,
    gold: int = 0,
    seed: int = 0,
    sample: int | None = None,
) -> Iterator[NewItem]:
    """List what to ask: each episode that no person has labelled or rejected, and pairs of one instruction.

    `kinds` are verify, compare and mark, or some of them. There are as many comparisons as episodes, or as `pairs`
    says. To check raters, `gold` episodes that a person has labelled are asked again. With `sample`, only that many
    labels are to be verified, and nothing else is asked.
    """
    folder, episodes = str(store.root), list(store.episodes())
    if sample is not None:
        kinds, drawn = ["verify"], draw_sample(episodes, sample, seed)
        episodes = [episode for episode in episodes if episode.id in drawn]
    for episode in episodes:
        if episode.check == "rejected":
            continue
        label = next((label for label in episode.outcomes if label.source == "human"), None)
        if label is not None:
            facts = {name: getattr(label, name) for name in ("success", "grade") if getattr(label, name) is not None}
            if gold > 0 and facts and "verify" in kinds:
                gold -= 1
                yield NewItem("verify", folder, episode.id, gold=facts)
            continue
        if "verify" in kinds and ("mark" not in kinds or proposed_label(episode.outcomes) is not None):
            yield NewItem("verify", folder, episode.id, urgency=_urgency(episode))  # without a label, Mark asks for one
        if "mark" in kinds:
            yield NewItem("mark", folder, episode.id)
    if "compare" in kinds:
        for a, b in islice(_pairs(episodes, seed), len(episodes) if pairs is None else pairs):
            yield NewItem("compare", folder, a, b)


def draw_sample(episodes: Iterable[Episode], count: int, seed: int = 0) -> set[str]:
    """Draw so many labels to verify: each subset and grade in proportion. The same ones again, whoever has answered."""
    ordered = []
    for episode in episodes:
        label, origin = proposed_label(episode.outcomes), episode.origin
        if label is not None:
            subset = origin.tags.get("subset") or origin.dataset
            ordered.append(
                (subset, str(label.grade), str(label.success), seed_of(seed, "sample", episode.id), episode.id)
            )
    ordered.sort()
    size = min(count, len(ordered))
    return {ordered[(2 * place + 1) * len(ordered) // (2 * size)][-1] for place in range(size)}


def _urgency(episode: Episode) -> float:
    if episode.check == "due":
        return DUE
    proposed = proposed_label(episode.outcomes)
    return MODEL_LABEL if proposed is not None and proposed.source == "model" else 0.0


def _pairs(episodes: Sequence[Episode], seed: int) -> Iterator[tuple[str, str]]:
    """Yield pairs of one instruction at random, every episode about equally often."""
    shuffle, seen = random.Random(seed).shuffle, set[tuple[str, str]]()
    by_task: dict[str, list[str]] = {}
    for episode in episodes:
        by_task.setdefault(episode.instruction, []).append(episode.id)
    while True:
        before = len(seen)
        for ids in by_task.values():
            shuffle(ids)
            for a, b in zip(ids[::2], ids[1::2], strict=False):
                pair = (min(a, b), max(a, b))
                if pair not in seen:
                    seen.add(pair)
                    yield pair
        if len(seen) == before:
            return


class Work:
    """The items of an app, and what people answered."""

    def __init__(self, database: Database, seed: int | None = None) -> None:
        self.database = database
        self._random = random.Random(seed)

    def add_items(self, items: Iterable[NewItem], wanted: int = 1) -> int:
        """Add the items that are not there yet; `wanted` people are to answer each. Return how many are new."""
        with self.database.begin() as db:
            present = {tuple(row) for row in db.execute(sa.select(*_KEY))}
            rows = {(item.kind, item.dataset, item.episode, item.other): item for item in items}
            new = [vars(item) | {"wanted": wanted} for key, item in rows.items() if key not in present]
            if new:
                db.execute(sa.insert(ITEMS), new)
        return len(new)

    def next_item(self, person: Person, kind: str) -> Assignment | None:
        """Return the item that this person opened and has not answered, or assign a new one; None = all done."""
        now = time.time()
        with self.database.begin() as db:
            open_ones = _assigned(person).where(ITEMS.c.kind == kind, ~ASSIGNMENTS.c.is_done, ~_has_verdict(person))
            row = db.execute(open_ones.order_by(ASSIGNMENTS.c.since).limit(1)).first()
            if row is None:
                self.database.queue_up(db)  # two people never get the last place of an item
                self._release(db, kind, now)
                done = db.execute(
                    sa.select(sa.func.count()).where(ASSIGNMENTS.c.person == person.id, ASSIGNMENTS.c.is_done)
                ).scalar_one()
                wants_gold = done % GOLD_EVERY == GOLD_EVERY - 1
                item = self._choose(db, person, kind, wants_gold) or self._choose(db, person, kind, not wants_gold)
                if item is None:
                    return None
                values = {"item": item, "person": person.id, "since": now, "swapped": self._random.random() < 1 / 2}
                db.execute(sa.insert(ASSIGNMENTS).values(values))
                db.execute(sa.update(ITEMS).where(ITEMS.c.id == item).values(given=ITEMS.c.given + 1))
                row = db.execute(_assigned(person).where(ITEMS.c.id == item)).one()
        return row

    def count_left(self, person: Person) -> dict[str, dict[str, int]]:
        """Count, by kind, what this person has answered and what is left for them. What to begin with comes first.

        Labels that can be verified come first. Without them, episodes to mark come first.
        """
        mine = sa.select(ASSIGNMENTS.c.item).where(ASSIGNMENTS.c.person == person.id, ASSIGNMENTS.c.is_done)
        opened = sa.select(ASSIGNMENTS.c.item).where(ASSIGNMENTS.c.person == person.id, ~ASSIGNMENTS.c.is_done)
        is_done, is_opened = sa.or_(ITEMS.c.id.in_(mine), _has_verdict(person)), ITEMS.c.id.in_(opened)
        is_left = sa.and_(~is_done, sa.or_(is_opened, _IS_OPEN, ITEMS.c.gold.is_not(None)))
        count = [sa.func.sum(sa.case((condition, 1), else_=0)) for condition in (is_done, is_left)]
        with self.database.begin() as db:
            rows = db.execute(sa.select(ITEMS.c.kind, *count).group_by(ITEMS.c.kind)).all()
        counts = {kind: {"done": int(done), "left": int(left)} for kind, done, left in rows}
        order = ("verify", "mark", "compare") if counts.get("verify", {}).get("left") else ("mark", "verify", "compare")
        return {kind: counts[kind] for kind in order if kind in counts}

    def find(self, person: Person, item: int) -> Assignment:
        """Return an item of this person. Anybody else's does not exist for them."""
        with self.database.begin() as db:
            row = db.execute(_assigned(person).where(ITEMS.c.id == item)).first()
        if row is None:
            raise NotAllowed(404, "There is no such item among yours.")
        return row

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

    def answer(self, person: Person, item: int, id: str, body: Mapping[str, Any], frames: int, seconds: float) -> None:
        """Store the answer `body` to one of this person's items; durable when this returns.

        The page has made the `id`: it is stored once, however often it is sent. `frames` is the episode's length.
        """
        answer = write_answer(read_answer(self.find(person, item).kind, body, frames))
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

    def newest_answer(self, person: Person, item: int) -> Mapping[str, Any] | None:
        """Return what this person said last about an item."""
        mine = (ANSWERS.c.item == item, ANSWERS.c.person == person.id)
        with self.database.begin() as db:
            newest = sa.select(ANSWERS.c.body).where(*mine).order_by(ANSWERS.c.number.desc()).limit(1)
            return db.execute(newest).scalar()

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
        query = query.where(~_has_verdict(person))
        query = query.order_by(ITEMS.c.urgency.desc(), ITEMS.c.id).limit(1)
        id = db.execute(query).scalar()
        return None if id is None else int(id)


_KEY = (ITEMS.c.kind, ITEMS.c.dataset, ITEMS.c.episode, ITEMS.c.other)
_IS_OPEN = ITEMS.c.given < ITEMS.c.wanted
_MARKED, _VERIFIED = ITEMS.alias("marked"), ITEMS.alias("verified")


def _assigned(person: Person) -> sa.Select[Any]:
    columns = (ITEMS.c.id.label("item"), *_KEY, ASSIGNMENTS.c.swapped, ASSIGNMENTS.c.is_done, ASSIGNMENTS.c.draft)
    return (
        sa.select(*columns).join(ASSIGNMENTS, ASSIGNMENTS.c.item == ITEMS.c.id).where(ASSIGNMENTS.c.person == person.id)
    )


def _has_verdict(person: Person) -> sa.ColumnElement[bool]:
    """Whether an item asks this person to verify an episode that they have called a success or a failure in Mark."""
    is_verdict = ANSWERS.c.body["success"].as_boolean().is_not(None)
    is_same = (_VERIFIED.c.dataset == _MARKED.c.dataset, _VERIFIED.c.episode == _MARKED.c.episode)
    # Not correlated with the outer query: it is computed once, not for each item.
    marked = sa.select(_VERIFIED.c.id).join(_MARKED, sa.and_(*is_same)).join(ANSWERS, ANSWERS.c.item == _MARKED.c.id)
    marked = marked.where(
        _VERIFIED.c.kind == "verify", _MARKED.c.kind == "mark", ANSWERS.c.person == person.id, is_verdict
    )
    return sa.and_(ITEMS.c.kind == "verify", ITEMS.c.gold.is_(None), ITEMS.c.id.in_(marked))


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
    failures: dict[str, DemeritError] = {}
    for dataset, group in groupby(rows, key=lambda row: row.dataset):
        answers = list(group)
        episodes = {row.episode for row in answers if row.kind != "compare"}
        pairs = {(row.episode, row.other) for row in answers if row.kind == "compare"}
        waiting_for = _write_labels(database, dataset, episodes, pairs)
        failures |= waiting_for
        numbers = [row.number for row in answers if row.kind == "compare" or row.episode not in waiting_for]
        with database.begin() as db:
            db.execute(sa.update(ANSWERS).where(ANSWERS.c.number.in_(numbers)).values(is_stored=True))
    if failures:
        raise next(iter(failures.values()))
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
        updates, failures = _gather_labels(store, current, episodes)
        kept = [
            preference
            for preference in store.preferences()
            if (preference.a, preference.b, preference.by) not in answered or preference.source != "human"
        ]
        tables = {} if not pairs else {"preferences": [preference_row(row) for row in (*kept, *new_rows) if row]}
        tags = {episode.id: episode.origin.tags for episode in updates}
        writer.relabel({episode.id: episode.outcomes for episode in updates}, tags, **tables)
    return failures


def _gather_labels(
    store: Store, current: Sequence[sa.Row[Any]], episodes: set[str]
) -> tuple[list[Episode], dict[str, DemeritError]]:
    """Return some episodes with their new labels and checks, and why others must wait."""
    updates, failures = list[Episode](), dict[str, DemeritError]()
    for id in sorted(episodes):
        episode = store.episode(id)
        rows = [row for row in current if row.episode == id and row.kind != "compare"]
        by, frames = dict[str, list[Answer]](), count_frames(episode)
        try:
            for row in rows:
                by.setdefault(row.name, []).append(read_answer(row.kind, row.body, frames))
        except DemeritError as error:
            failures[id] = error
            continue
        last_first = sorted(by, key=lambda name: -max(row.number for row in rows if row.name == name))
        labels = [outcome_of(name, by[name], frames) for name in last_first]
        kept = [outcome for outcome in episode.outcomes if not (outcome.source == "human" and outcome.by in by)]
        labelled = replace(episode, outcomes=(*filter(None, labels), *kept))
        updates.append(_settle_check(labelled, rows))
    return updates, failures


def _settle_check(episode: Episode, rows: Sequence[sa.Row[Any]]) -> Episode:
    """Record what people made of an episode's labels: the last owner decides, and without one, all who were asked.

    Where some accept what others reject, it stays due. A person's own mark of an episode that is due is a correction.
    """
    verdicts = [row for row in rows if row.kind == "verify"]
    deciding = [row for row in verdicts if row.role == "owner"][-1:] or verdicts
    states = {CHECKS[row.body["verdict"]] for row in deciding}
    if not states and episode.check == "due" and any(label.source == "human" for label in episode.outcomes):
        states = {"corrected"}
    if "rejected" in states and len(states) > 1:
        return with_check(episode, "due")
    if not states:
        return episode
    state: Check = "corrected" if "corrected" in states else states.pop()
    last = (deciding or rows)[-1]
    at = datetime.fromtimestamp(last.at, UTC).isoformat(timespec="seconds")
    return with_check(episode, state, last.name, at, last.body.get("note", "").strip())


def _preference(row: sa.Row[Any]) -> Preference | None:
    answer = read_answer(row.kind, row.body, 1)
    return preference_of(row.name, answer, row.episode, row.other, bool(row.swapped))


def read_newest_answers(database: Database) -> list[sa.Row[Any]]:
    """Return the newest answer of each person to each item, oldest first, with the item and the person."""
    newest = sa.select(sa.func.max(ANSWERS.c.number)).group_by(ANSWERS.c.item, ANSWERS.c.person)
    mine = sa.and_(ASSIGNMENTS.c.item == ANSWERS.c.item, ASSIGNMENTS.c.person == ANSWERS.c.person)
    answer = (ANSWERS.c.number, ANSWERS.c.item, ANSWERS.c.body, ANSWERS.c.seconds, ANSWERS.c.at, ASSIGNMENTS.c.swapped)
    query = sa.select(*answer, *_KEY, ITEMS.c.gold, PEOPLE.c.name, PEOPLE.c.role).select_from(ANSWERS)
    query = query.join(ITEMS).join(PEOPLE).join(ASSIGNMENTS, mine).where(ANSWERS.c.number.in_(newest))
    with database.begin() as db:
        return list(db.execute(query.order_by(ANSWERS.c.number)))


def proposed_label(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the label that people are asked to verify: the most trusted one that no person gave."""
    return most_trusted(outcome for outcome in outcomes if outcome.source != "human")
