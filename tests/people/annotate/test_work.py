"""The queue on SQLite and PostgreSQL: overlap, drafts, repeated answers, gold, and labels in the dataset folder."""

import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from demerit.data.episode import Episode, Outcome, Preference
from demerit.data.formats import open_dataset
from demerit.data.store import Store
from demerit.data.video import write_video
from demerit.errors import BadInput, StoreBusy
from demerit.people.accounts import Accounts, NotAllowed, Person
from demerit.people.annotate import work as module
from demerit.people.annotate.labels import outcome_of
from demerit.people.annotate.work import NewItem, Work, list_shown, make_items, open_folder, store_labels
from demerit.people.database import ANSWERS, ASSIGNMENTS, Database
from fakes.lesson_data import write_videos
from fakes.people import make_folder

ACCEPT = {"verdict": "accept", "success": False, "grade": 2}


def make_person(database: Database, name: str) -> Person:
    accounts = Accounts(database)
    found = accounts.find(accounts.enter(accounts.make_link("owner", accounts.ensure_owner(name))))
    assert found is not None
    return found


def answer(work: Work, person: Person, item: int, body: dict[str, object], frames: int = 8) -> str:
    id = str(uuid.uuid4())
    work.answer(person, item, id, body, frames, 3.0)
    return id


@pytest.fixture
def folder(tmp_path: Path) -> str:
    store = Store.create(tmp_path / "set", "set")
    with store.writer() as writer:
        for i in range(4):
            episode = Episode.from_array(np.full((8, 16, 16, 3), 40 * i, np.uint8), "lift the cup", f"e{i}")
            path = tmp_path / f"{i}.mp4"
            write_video(path, episode.main.take(range(8)))
            video = Episode.from_video(path, "lift the cup", f"e{i}")
            due = replace(video.origin, tags={"human_check": "due", "policy": "p"})
            writer.add(replace(video, outcomes=(Outcome("model", success=i % 2 == 0, grade=2, by="m"),), origin=due))
    return str(tmp_path / "set")


def add_items(work: Work, folder: str, count: int, wanted: int = 1, kind: str = "verify") -> None:
    work.add_items([NewItem(kind, folder, f"e{i}", urgency=float(i)) for i in range(count)], wanted)


def test_the_most_urgent_comes_first_and_an_open_item_comes_again(database: Database, folder: str) -> None:
    work, ada = Work(database), make_person(database, "Ada")
    add_items(work, folder, 3)
    first = work.next_item(ada, "verify")
    assert first is not None and first.episode == "e2"
    assert work.next_item(ada, "verify") == first
    answer(work, ada, first.item, ACCEPT)
    second = work.next_item(ada, "verify")
    assert second is not None and second.episode == "e1"
    assert work.next_item(ada, "mark") is None


def test_adding_items_again_adds_nothing(database: Database, folder: str) -> None:
    work = Work(database)
    items = [NewItem("verify", folder, f"e{i}") for i in range(3)]
    assert (
        work.add_items(items),
        work.add_items(items[:2]),
        work.add_items([*items, NewItem("mark", folder, "e0")]),
    ) == (3, 0, 1)


def test_each_item_goes_to_as_many_people_as_wanted(database: Database, folder: str) -> None:
    work = Work(database)
    people = [make_person(database, f"rater {i}") for i in range(3)]
    add_items(work, folder, 4, wanted=2)
    seen: Counter[str] = Counter()
    for person in people:
        while (found := work.next_item(person, "verify")) is not None:
            seen[found.episode] += 1
            answer(work, person, found.item, ACCEPT)
    assert seen == dict.fromkeys(["e0", "e1", "e2", "e3"], 2)


def test_people_at_the_same_moment_never_exceed_what_is_wanted(database: Database, folder: str) -> None:
    work = Work(database)
    people = [make_person(database, f"rater {i}") for i in range(12)]
    add_items(work, folder, 4, wanted=2)
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda person: work.next_item(person, "verify"), people))
    assert Counter(one.episode for one in found if one is not None) == dict.fromkeys(["e0", "e1", "e2", "e3"], 2)


def test_an_item_that_nobody_answers_goes_to_somebody_else(
    database: Database, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, ada, bob = Work(database), make_person(database, "Ada"), make_person(database, "Bob")
    add_items(work, folder, 1)
    first = work.next_item(ada, "verify")
    assert first is not None and work.next_item(bob, "verify") is None
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + module.EXPIRES_AFTER + 1)
    second = work.next_item(bob, "verify")
    assert second is not None and second.item == first.item
    with pytest.raises(NotAllowed):
        work.find(ada, first.item)


def test_an_item_with_a_draft_is_kept_for_its_rater(
    database: Database, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, ada, bob = Work(database), make_person(database, "Ada"), make_person(database, "Bob")
    add_items(work, folder, 1)
    first = work.next_item(ada, "verify")
    assert first is not None
    work.save_draft(ada, first.item, {"note": "half a tho"})
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + module.EXPIRES_AFTER + 1)
    assert work.next_item(bob, "verify") is None
    assert work.find(ada, first.item).draft == {"note": "half a tho"}


def test_nobody_reads_or_answers_an_item_that_is_not_theirs(database: Database, folder: str) -> None:
    work, ada, bob = Work(database), make_person(database, "Ada"), make_person(database, "Bob")
    add_items(work, folder, 2)
    mine = work.next_item(ada, "verify")
    assert mine is not None
    for attempt in (
        lambda: work.find(bob, mine.item),
        lambda: work.save_draft(bob, mine.item, {}),
        lambda: answer(work, bob, mine.item, ACCEPT),
        lambda: work.find(ada, 999),
    ):
        with pytest.raises(NotAllowed) as caught:
            attempt()
        assert caught.value.status_code == 404


def test_an_answer_that_is_sent_twice_is_stored_once(database: Database, folder: str) -> None:
    work, ada = Work(database), make_person(database, "Ada")
    add_items(work, folder, 2)
    item = work.next_item(ada, "verify")
    assert item is not None
    id = answer(work, ada, item.item, ACCEPT)
    work.answer(ada, item.item, id, ACCEPT, 8, 3.0)
    other = work.next_item(ada, "verify")
    assert other is not None
    with pytest.raises(BadInput):
        work.answer(ada, other.item, id, ACCEPT, 8, 3.0)
    with database.begin() as db:
        assert db.execute(sa.select(sa.func.count()).select_from(ANSWERS)).scalar() == 1


def test_a_refused_answer_changes_nothing(database: Database, folder: str) -> None:
    work, ada = Work(database), make_person(database, "Ada")
    add_items(work, folder, 1)
    item = work.next_item(ada, "verify")
    assert item is not None
    with pytest.raises(BadInput):
        answer(work, ada, item.item, {"verdict": "perhaps"})
    assert not work.find(ada, item.item).is_done


def test_one_can_go_back_and_answer_again(database: Database, folder: str) -> None:
    work, ada = Work(database), make_person(database, "Ada")
    add_items(work, folder, 3)
    done = []
    for _ in range(3):
        item = work.next_item(ada, "verify")
        assert item is not None
        answer(work, ada, item.item, ACCEPT)
        done.append(item.item)
    assert (
        work.previous(ada) == done[2] and work.previous(ada, done[2]) == done[1] and work.previous(ada, done[0]) is None
    )
    answer(work, ada, done[0], {"verdict": "correct", "grade": 4})
    newest = work.newest_answer(ada, done[0])
    assert newest is not None and newest["grade"] == 4


def test_labels_land_in_the_folder_with_source_and_pseudonym(database: Database, folder: str) -> None:
    work, ada, bob = Work(database), make_person(database, "Ada"), make_person(database, "Bob")
    add_items(work, folder, 4, wanted=2)
    for person, body in ((ada, ACCEPT), (bob, {"verdict": "correct", "success": False, "grade": 1})):
        item = work.next_item(person, "verify")
        assert item is not None and item.episode == "e3"
        answer(work, person, item.item, body)
    assert store_labels(database) == 2 and store_labels(database) == 0
    episode = Store(folder).episode("e3")
    assert [(one.source, one.by, one.success, one.grade) for one in episode.outcomes] == [
        ("human", "Bob", False, 1),
        ("human", "Ada", False, 2),
        ("model", "m", False, 2),
    ]
    assert (episode.check, episode.origin.tags["human_check_by"], episode.origin.tags["policy"]) == (
        "corrected",
        "Bob",
        "p",
    )
    assert Store(folder).episode("e0").origin.tags["human_check"] == "due"


def test_the_videos_say_where_labels_given_in_a_browser_are(tmp_path: Path) -> None:
    folder = write_videos(tmp_path / "squares", 2, 1)
    store, source = open_folder(open_dataset(str(folder))), open_dataset(str(folder))
    assert source.notes() == []
    with store.writer() as writer:
        writer.relabel({store.ids()[0]: [Outcome("human", success=False, by="Ada")]})
    (note,) = source.notes()
    assert str(store.root) in note and open_dataset(str(store.root)).notes() == []


def test_a_changed_mind_replaces_the_label(database: Database, folder: str) -> None:
    work, ada = Work(database), make_person(database, "Ada")
    add_items(work, folder, 1)
    item = work.next_item(ada, "verify")
    assert item is not None
    for body in (ACCEPT, {"verdict": "correct", "grade": 5}, {"verdict": "reject", "note": "dark"}):
        answer(work, ada, item.item, body)
        store_labels(database)
    assert [one.source for one in Store(folder).episode("e0").outcomes] == ["model"]


def test_verifying_and_marking_become_one_label_of_a_person(database: Database, folder: str) -> None:
    work, ada = Work(database), make_person(database, "Ada")
    for kind, body in (("verify", ACCEPT), ("mark", {"points": [[7, 0.25]], "success": False})):
        work.add_items([NewItem(kind, folder, "e0")])
        item = work.next_item(ada, kind)
        assert item is not None
        answer(work, ada, item.item, body)
        store_labels(database)
    human, model = Store(folder).episode("e0").outcomes
    assert (human.success, human.grade, model.source) == (False, 2, "model")
    assert human.curve is not None and human.curve[7] == 0.25


def test_a_verdict_given_in_mark_is_not_asked_again_of_the_same_person(database: Database, folder: str) -> None:
    work, ada, bob = Work(database), make_person(database, "Ada"), make_person(database, "Bob")
    work.add_items([NewItem(kind, folder, f"e{i}") for kind in ("verify", "mark") for i in range(3)], wanted=2)
    for body in ({"success": True}, {"points": [[7, 0.5]]}):  # the second one is no verdict
        item = work.next_item(ada, "mark")
        assert item is not None
        answer(work, ada, item.item, body)
    assert work.count_left(ada) == {"verify": {"done": 1, "left": 2}, "mark": {"done": 2, "left": 1}}
    first, others = work.next_item(ada, "verify"), work.next_item(bob, "verify")
    assert first is not None and first.episode == "e1" and others is not None and others.episode == "e0"


def test_episodes_without_a_label_are_marked_and_verified_only_if_nothing_else_is_asked(tmp_path: Path) -> None:
    store = make_folder(tmp_path, count=2)
    with store.writer() as writer:
        writer.relabel({"e0": []})
    items = make_items(Store(store.root), ["verify", "mark"])
    assert [(item.kind, item.episode) for item in items] == [("mark", "e0"), ("verify", "e1"), ("mark", "e1")]
    assert [item.episode for item in make_items(Store(store.root), ["verify"])] == ["e0", "e1"]


def test_choices_land_once_for_each_person_and_the_last_counts(database: Database, folder: str) -> None:
    with Store(folder).writer() as writer:
        writer.add(Preference("e0", "e1", "b", "rule", by="r"))
    work = Work(database, seed=1)
    work.add_items([NewItem("compare", folder, "e0", "e1")], wanted=2)
    chosen = {}
    for name in ("Ada", "Bob"):
        person = make_person(database, name)
        item = work.next_item(person, "compare")
        assert item is not None
        for verdict in ("right", "unknown", "left"):
            answer(work, person, item.item, {"verdict": verdict})
            store_labels(database)
        chosen[name] = list_shown(item)[0]
    found = {one.by: one.better for one in Store(folder).preferences()}
    assert found == {"r": "e1", **chosen}


def test_the_order_of_a_comparison_is_random_and_recorded(database: Database, folder: str) -> None:
    work = Work(database, seed=0)
    work.add_items([NewItem("compare", folder, "e0", f"x{i}") for i in range(60)])
    ada, left = make_person(database, "Ada"), Counter[bool]()
    while (item := work.next_item(ada, "compare")) is not None:
        left[list_shown(item)[0] == "e0"] += 1
        answer(work, ada, item.item, {"verdict": "unknown"})
    assert min(left.values()) > 15
    with database.begin() as db:
        swapped = db.execute(sa.select(ASSIGNMENTS.c.swapped)).scalars().all()
    assert Counter(map(bool, swapped)) == {True: left[False], False: left[True]}


def test_every_tenth_item_has_a_known_answer_and_becomes_no_label(database: Database, folder: str) -> None:
    work, ada = Work(database), make_person(database, "Ada")
    work.add_items([NewItem("verify", folder, f"x{i}") for i in range(20)])
    work.add_items([NewItem("verify", folder, f"e{i}", gold={"success": False}) for i in range(2)])
    seen = []
    while (item := work.next_item(ada, "verify")) is not None:
        seen.append(item.episode)
        answer(work, ada, item.item, ACCEPT)
    assert len(seen) == 22 and seen[9].startswith("e") and seen[19].startswith("e")
    with database.begin() as db:  # the episodes x0 ... are in no folder
        db.execute(sa.update(ANSWERS).where(ANSWERS.c.item <= 20).values(is_stored=True))
    assert store_labels(database) == 0


def test_a_break_is_due_after_long_work_and_not_after_a_pause(
    database: Database, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, ada = Work(database), make_person(database, "Ada")
    work.add_items([NewItem("verify", folder, f"x{i}") for i in range(60)])
    clock = [module.time.time()]
    monkeypatch.setattr(module.time, "time", lambda: clock[0])
    due = []
    for minutes in [1] * 55 + [7, 1]:
        clock[0] += 60 * minutes
        item = work.next_item(ada, "verify")
        assert item is not None
        due.append(work.needs_break(ada))
        answer(work, ada, item.item, ACCEPT)
    assert due.index(True) == 51 and due[51:55] == [True] * 4 and due[55:] == [False, False]


def test_gold_items_are_episodes_that_a_person_has_labelled(tmp_path: Path) -> None:
    store = make_folder(tmp_path)
    with store.writer() as writer:
        labels = {f"e{i}": [Outcome("human", success=i > 1, grade=i + 1, by="Eve")] for i in range(3)}
        writer.relabel(labels)
    items = list(make_items(Store(store.root), ["verify", "mark"], gold=2))
    assert [(one.kind, one.episode, one.gold) for one in items] == [
        ("verify", "e0", {"success": False, "grade": 1}),
        ("verify", "e1", {"success": False, "grade": 2}),
        ("verify", "e3", None),
        ("mark", "e3", None),
    ]


def test_every_pair_is_asked_once_and_every_episode_is_in_one(tmp_path: Path) -> None:
    store = make_folder(tmp_path, count=6)
    pairs = [(one.episode, one.other) for one in make_items(store, ["compare"])]
    assert len(set(pairs)) == len(pairs) == 6 and all(a < b for a, b in pairs)
    assert {id for pair in pairs for id in pair} == {f"e{i}" for i in range(6)}


def test_no_other_program_writes_between_reading_labels_and_writing_them(
    database: Database, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, ada = Work(database), make_person(database, "Ada")
    add_items(work, folder, 1)
    item = work.next_item(ada, "verify")
    assert item is not None
    answer(work, ada, item.item, ACCEPT)
    tried = []

    def write_meanwhile(*given: Any) -> Outcome | None:
        with pytest.raises(StoreBusy), Store(folder).writer():
            pass
        tried.append(True)
        return outcome_of(*given)

    monkeypatch.setattr(module, "outcome_of", write_meanwhile)
    store_labels(database)
    assert tried == [True]
