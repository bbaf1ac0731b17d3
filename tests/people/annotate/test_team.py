"""A team: three raters, agreement, a disagreement that the owner settles, known answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demerit.data.store import Store
from demerit.people.annotate.team import find_disagreements, measure_agreement, read_judgements, summarize_raters
from demerit.people.annotate.work import NewItem, make_items
from demerit.people.database import Database
from fakes.people import Browser, ServedApp, make_folder, run_app


@pytest.fixture
def served(database: Database, tmp_path: Path) -> Iterator[ServedApp]:
    store = make_folder(tmp_path)
    with run_app(database, tmp_path / "cache") as found:
        found.app.work.add_items(make_items(store, ["verify"]), wanted=3)
        yield found


def grade_all(rater: Browser, grades: dict[str, int], served: ServedApp) -> None:
    while (item := rater.next_item("verify")) is not None:
        with served.app.database.begin() as db:
            episode = db.exec_driver_sql(f"SELECT episode FROM items WHERE id = {item}").scalar_one()
        assert (
            rater.answer(item, verdict="correct", grade=grades[episode], success=grades[episode] > 3).status_code == 200
        )


def test_three_raters_disagree_and_the_owner_settles_it(served: ServedApp, tmp_path: Path) -> None:
    same = {"e0": 1, "e1": 5, "e2": 2, "e3": 4}
    for name, grades in (("Ada", same), ("Bob", same), ("Eve", {**same, "e1": 1})):
        grade_all(served.join_rater(name), grades, served)
    judgements = read_judgements(served.app.database)
    (found,) = find_disagreements(judgements)
    assert (found["episode"], found["fields"]) == ("e1", ("success", "grade"))
    raters = {one["name"]: one for one in summarize_raters(judgements)}
    assert raters["Ada"]["answers"] == 4 and raters["Ada"]["seconds"] == 2.5
    assert raters["Ada"]["kappa"]["success"] > raters["Eve"]["kappa"]["success"]
    agreement = measure_agreement(judgements)
    assert 0 < agreement["grade"].value < 1 and agreement["grade"].n == 4

    me = served.enter_owner()
    assert (
        "success or failure: failure; grade: 1" in me.get("/disagreements").text
        and "Krippendorff" in me.get("/team").text
    )
    settled = me.post(f"/disagreements/{found['item']}")
    assert str(settled.url).endswith(f"/items/{found['item']}")
    assert me.answer(found["item"], verdict="correct", grade=5, success=True).status_code == 200
    assert find_disagreements(read_judgements(served.app.database)) == []
    served.app.stop()
    outcomes = Store(tmp_path / "set").episode("e1").outcomes
    assert next((one.by, one.grade) for one in outcomes if one.source == "human") == ("me", 5)
    assert {one.by for one in outcomes if one.source == "human"} == {"me", "Ada", "Bob", "Eve"}


def test_neighbouring_grades_are_no_disagreement(served: ServedApp) -> None:
    same = {"e0": 1, "e1": 5, "e2": 2, "e3": 4}
    grade_all(served.join_rater("Ada"), same, served)
    grade_all(served.join_rater("Bob"), {**same, "e0": 2}, served)
    assert find_disagreements(read_judgements(served.app.database)) == []


def test_known_answers_are_counted_for_each_rater(database: Database, tmp_path: Path) -> None:
    store = make_folder(tmp_path)
    with run_app(database, tmp_path / "cache") as served:
        gold = [NewItem("verify", str(store.root), f"e{i}", gold={"success": True}) for i in range(4)]
        served.app.work.add_items(gold)
        grade_all(served.join_rater("Ada"), {"e0": 5, "e1": 5, "e2": 5, "e3": 1}, served)
        (ada,) = summarize_raters(read_judgements(database))
    assert (ada["gold_right"], ada["gold"]) == (3, 4)
    assert all(label.source == "model" for episode in Store(store.root).episodes() for label in episode.outcomes)


def test_accepting_a_right_proposal_is_a_right_answer(database: Database, tmp_path: Path) -> None:
    store = make_folder(tmp_path)
    with run_app(database, tmp_path / "cache") as served:
        gold = [NewItem("verify", str(store.root), f"e{i}", gold={"success": True}) for i in (0, 1)]
        served.app.work.add_items(gold)
        ada = served.join_rater("Ada")
        for success in (True, False):  # the model's proposals; the second one is wrong
            item = ada.next_item("verify")
            assert item is not None
            assert ada.answer(item, verdict="accept", success=success, grade=2, progress=None).status_code == 200
        (rater,) = summarize_raters(read_judgements(database))
    assert (rater["gold_right"], rater["gold"]) == (1, 2)


def test_an_owner_invites_and_closes_an_account(served: ServedApp) -> None:
    me = served.enter_owner()
    me.get("/team")
    page = me.post("/team/invite", role="rater").text
    link = page.split("<code>")[1].split("</code>")[0]
    assert link.startswith(served.url)
    ada = served.visit()
    ada.post(link.removeprefix(served.url), name="Ada", password="correct horse")
    assert "Ada" in me.get("/team").text and ada.get("/").status_code == 200
    person = next(one.id for one in served.app.accounts.list_people() if one.name == "Ada")
    me.post(f"/team/{person}", active="no")
    assert str(ada.get("/").url).endswith("/login")
    assert "close account" in me.get("/audit").text


def test_nobody_has_answered_yet(served: ServedApp) -> None:
    me = served.enter_owner()
    for path in ("/team", "/disagreements", "/audit", "/teach", "/teach/state"):
        assert me.get(path).status_code == 200
