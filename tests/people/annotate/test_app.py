"""The annotation app over real HTTP: coming in, answering, what others cannot see, what another site cannot do."""

import re
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from demerit.data.episode import Outcome
from demerit.data.store import Store
from demerit.errors import StoreError
from demerit.people.annotate.app import LARGEST_ANSWER
from demerit.people.annotate.work import NewItem, make_items
from demerit.people.database import Database
from fakes.people import PASSWORD, ServedApp, make_folder, run_app
from fakes.postgres import create_database


@pytest.fixture
def served(database: Database, tmp_path: Path) -> Iterator[ServedApp]:
    store = make_folder(tmp_path)
    with run_app(database, tmp_path / "cache") as found:
        found.app.work.add_items(make_items(store, ["verify", "compare", "mark"]), wanted=2)
        yield found


def test_an_answer_reaches_the_dataset_folder(served: ServedApp, tmp_path: Path) -> None:
    me = served.enter_owner()
    item = me.next_item("verify")
    assert item is not None
    answer = me.answer(item, verdict="correct", success=False, grade=1)
    assert answer.status_code == 200 and answer.json() == {"next": "/work/verify"}
    served.app.stop()  # writes what is waiting
    labels = [
        one for episode in Store(tmp_path / "set").episodes() for one in episode.outcomes if one.source == "human"
    ]
    assert [(one.by, one.grade) for one in labels] == [("me", 1)]


def test_what_the_model_thought_is_folded_away(served: ServedApp) -> None:
    me = served.enter_owner()
    item = me.next_item("verify")
    page = me.get(f"/items/{item}")
    folded = re.findall("<details id=.reasons.>.*?</details>", page.text, re.DOTALL)
    assert page.status_code == 200 and len(folded) == 1 and "the cup stays" in folded[0]


def test_videos_come_in_parts(served: ServedApp) -> None:
    me = served.enter_owner()
    item = me.next_item("compare")
    for place in (0, 1):
        part = me.http.get(f"/items/{item}/{place}/0.mp4", headers={"range": "bytes=0-9"})
        assert (part.status_code, len(part.content)) == (206, 10)
        assert me.http.get(f"/items/{item}/{place}/0.jpg").content[:2] == b"\xff\xd8"
    assert me.http.get(f"/items/{item}/2/0.mp4").status_code == 404
    assert me.http.get(f"/items/{item}/0/7.mp4").status_code == 404


def test_a_draft_is_there_after_a_reload_and_gone_after_the_answer(served: ServedApp) -> None:
    me = served.enter_owner()
    item = me.next_item("mark")
    assert item is not None
    me.send("PUT", f"/items/{item}/draft", points=[[1, 0.5]])
    assert '"points": [[1, 0.5]]' in me.get(f"/items/{item}").text
    me.answer(item, success=True)
    assert '"draft": null' in me.get(f"/items/{item}").text


def test_large_drafts_and_answers_and_long_numbers_are_refused(served: ServedApp) -> None:
    me = served.enter_owner()
    item = me.next_item("mark")
    large = "x" * LARGEST_ANSWER
    assert me.send("PUT", f"/items/{item}/draft", note=large).status_code == 413
    assert me.answer(item, success=True, note=large).status_code == 413
    for path in ("/items/{}", "/items/{}/curve", f"/items/{item}/{{}}/0.jpg", f"/items/{item}/0/{{}}.mp4"):
        assert me.get(path.format("9" * 5000)).status_code == 404


def test_every_route_is_closed_to_strangers_and_to_raters_it_is_not_for(served: ServedApp) -> None:
    owner, ada, stranger = served.enter_owner(), served.join_rater("Ada"), served.visit()
    items = {kind: owner.next_item(kind) for kind in ("verify", "compare", "mark")}
    for (method, path), roles in served.app.guard.roles.items():
        if "anybody" in roles:
            continue
        for kind, item in items.items():
            where = path.replace("{item:number}", str(item)).replace("{kind}", kind)
            where = re.sub(r"\{\w+:number\}", "0", where)
            refused = stranger.http.request(method, where, headers={"accept": "application/json"})
            assert refused.status_code == 401, where
            if "{item" in path:
                assert ada.send(method, where, verdict="accept").status_code == 404, where
            elif "rater" not in roles:
                assert ada.send(method, where).status_code == 404, where


def test_a_change_without_the_token_of_the_session_is_refused(served: ServedApp) -> None:
    me = served.enter_owner()
    item = me.next_item("verify")
    sent = {"id": str(uuid.uuid4()), "body": {"verdict": "correct", "grade": 3}}
    for headers in ({}, {"x-csrf": "guessed"}, {"x-csrf": me.csrf, "origin": "http://evil.example"}):
        answer = me.http.post(f"/items/{item}/answer", json=sent, headers=headers)
        assert answer.status_code == 403, headers
    assert me.send("POST", f"/items/{item}/answer", **sent).status_code == 200


def test_requests_to_a_foreign_host_name_are_refused(served: ServedApp) -> None:
    assert httpx.get(f"{served.url}/login", headers={"host": "evil.example"}).status_code == 421
    assert httpx.get(f"{served.url}/login", headers={"host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize("name", ["..%2f..%2ferrors.py", "layout.html.j2", "%2e%2e", "people.css%00", "nothing.js"])
def test_static_files_are_only_those_for_browsers(served: ServedApp, name: str) -> None:
    assert httpx.get(f"{served.url}/static/{name}").status_code == 404


def test_pages_forbid_scripts_from_elsewhere(served: ServedApp) -> None:
    me = served.enter_owner()
    policy = me.get("/").headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy


def test_an_instruction_with_html_in_it_is_shown_as_text(database: Database, tmp_path: Path) -> None:
    attack = "</script><img src=x onerror=alert(1)>{{7*7}}"
    store = make_folder(tmp_path, instruction=attack)
    with run_app(database, tmp_path / "cache") as served:
        served.app.work.add_items(make_items(store, ["verify", "compare", "mark"]))
        me = served.enter_owner()
        for kind in ("verify", "compare", "mark"):
            page = me.get(f"/items/{me.next_item(kind)}").text
            assert "<img" not in page and "{{7*7}}" in page


def test_a_wrong_password_and_a_taken_name_get_a_page(served: ServedApp) -> None:
    served.join_rater("Ada")
    other, link = served.visit(), served.app.accounts.make_link("rater")
    assert other.post("/login", name="Ada", password="wrong").status_code == 403
    taken = other.post(f"/join/{link}", name="Ada", password=PASSWORD)
    assert taken.status_code == 400 and "Ada" in taken.text
    assert other.post("/login", name="Ada", password=PASSWORD).status_code == 200


def test_refused_answers_say_what_was_expected(served: ServedApp) -> None:
    me = served.enter_owner()
    item = me.next_item("verify")
    assert item is not None
    for sent in ({}, {"id": "1", "body": {}}, {"id": str(uuid.uuid4()), "body": []}):
        assert me.send("POST", f"/items/{item}/answer", **sent).status_code == 400
    refused = me.answer(item, verdict="perhaps")
    assert refused.status_code == 400 and "accept" in refused.json()["error"]


@pytest.mark.parametrize(
    ("note", "seconds"), [('"\\u0000"', "1"), ('"\\ud800"', "1"), ('"fine"', "NaN"), ('"fine"', "1" + 400 * "0")]
)
def test_what_no_database_can_hold_is_refused_and_stops_nobody_else(
    served: ServedApp, tmp_path: Path, note: str, seconds: str
) -> None:
    me = served.enter_owner()
    item = me.next_item("verify")
    assert item is not None
    body = f'{{"verdict": "correct", "grade": 1, "note": {note}}}'
    sent = f'{{"id": "{uuid.uuid4()}", "body": {body}, "seconds": {seconds}}}'
    headers = {"x-csrf": me.csrf, "accept": "application/json"}
    assert me.http.post(f"/items/{item}/answer", content=sent, headers=headers).status_code == 400
    assert me.http.put(f"/items/{item}/draft", content=f'{{"note": {note}, "x": NaN}}', headers=headers).is_client_error
    assert me.answer(item, verdict="correct", grade=2).status_code == 200
    served.app.stop()
    labels = [one for episode in Store(tmp_path / "set").episodes() for one in episode.outcomes]
    assert [one.grade for one in labels if one.source == "human"] == [2]


@pytest.mark.parametrize("path", ["/items/99999999999999999999", "/enter/%00", "/join/%ff", "/static/%00.js"])
def test_strange_addresses_are_refused(served: ServedApp, path: str) -> None:
    assert served.enter_owner().get(path).is_client_error


def test_a_host_that_is_no_host_is_refused(served: ServedApp) -> None:
    assert served.visit().http.get("/login", headers={"host": "[::1"}).status_code == 421


def test_an_answer_is_sent_again_when_the_database_was_away(postgres: str, tmp_path: Path) -> None:
    url = create_database(postgres)
    store, database = make_folder(tmp_path), Database(url)
    with run_app(database, tmp_path / "cache") as served, psycopg.connect(postgres, autocommit=True) as admin:
        served.app.work.add_items(make_items(store, ["verify"]))
        me = served.enter_owner()
        item, name = me.next_item("verify"), url.rpartition("/")[2]
        sent = {"id": str(uuid.uuid4()), "body": {"verdict": "correct", "grade": 2}, "seconds": 1}
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        refused = [me.send("POST", f"/items/{item}/answer", **sent), me.get("/")]
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert [one.status_code for one in refused] == [503, 503]
        assert not any(name in one.text or "127.0.0.1" in one.text for one in refused)
        assert me.send("POST", f"/items/{item}/answer", **sent).status_code == 200
    database.close()
    labels = [one for episode in Store(store.root).episodes() for one in episode.outcomes if one.source == "human"]
    assert [one.grade for one in labels] == [2]


def test_labels_are_written_after_an_error_nobody_thought_of(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = threading.Event()

    def fail(_: Database) -> int:
        monkeypatch.undo()
        has_failed.set()
        raise RuntimeError("a disk of glass")

    store = make_folder(tmp_path)
    monkeypatch.setattr("demerit.people.annotate.app.store_labels", fail)
    with run_app(database, tmp_path / "cache") as served:
        served.app.work.add_items(make_items(store, ["verify"]))
        assert has_failed.wait(10)
        me = served.enter_owner()
        item = me.next_item("verify")
        assert item is not None and me.answer(item, verdict="correct", grade=3).status_code == 200
    labels = [one for episode in Store(store.root).episodes() for one in episode.outcomes if one.source == "human"]
    assert [one.grade for one in labels] == [3]


@pytest.mark.parametrize("kind", ["verify", "mark"])
def test_a_recording_that_cannot_be_shown_does_not_hold_up_its_rater(
    database: Database, tmp_path: Path, kind: str
) -> None:
    store = make_folder(tmp_path, count=2)
    (tmp_path / "0.mp4").write_bytes((tmp_path / "0.mp4").read_bytes()[:300])
    with run_app(database, tmp_path / "cache") as served:
        served.app.work.add_items([NewItem(kind, str(store.root), id, urgency=-i) for i, id in enumerate(("e0", "e1"))])
        me = served.enter_owner()
        item = me.next_item(kind)
        assert item is not None
        page = me.get(f"/items/{item}")
        assert page.status_code == 200 and "<video" not in page.text
        body = {"verdict": "reject"} if kind == "verify" else {}
        assert me.answer(item, **body, note="it does not play").status_code == 200
        other = me.next_item(kind)
        assert other is not None and other != item and "<video" in me.get(f"/items/{other}").text
    humans = [one for episode in Store(store.root).episodes() for one in episode.outcomes if one.source == "human"]
    assert humans == []


def test_folders_of_the_machine_are_named_to_owners_alone(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = threading.Event()

    def fail(_: Database) -> int:
        has_failed.set()
        raise StoreError("/a/folder", "it is read-only")

    monkeypatch.setattr("demerit.people.annotate.app.store_labels", fail)
    with run_app(database, tmp_path / "cache") as served:
        owner, rater = served.enter_owner(), served.join_rater("Ada")
        assert has_failed.wait(10)
        assert "/a/folder" in owner.get("/").text
        seen = rater.get("/").text
        assert "Answers are kept" in seen and "/a/folder" not in seen


def test_somebody_who_is_logged_in_can_come_in_as_somebody_else(served: ServedApp) -> None:
    browser, link = served.enter_owner(), served.app.accounts.make_link("rater")
    form = {"name": "Ada", "password": PASSWORD}
    assert browser.http.post(f"/join/{link}", data=form).status_code == 303
    assert "Ada" in browser.get("/").text
    assert browser.http.post("/login", data=form).status_code == 303
    foreign = {"origin": "https://evil.example"}
    assert browser.http.post("/login", data=form, headers=foreign).status_code == 403


def test_what_is_accepted_is_what_was_shown(served: ServedApp, tmp_path: Path) -> None:
    me = served.enter_owner()
    item = me.next_item("verify")
    assert item is not None
    with served.app.database.begin() as db:
        episode = db.exec_driver_sql(f"SELECT episode FROM items WHERE id = {item}").scalar_one()
    shown = {"success": episode in ("e0", "e2"), "grade": 2, "progress": None}
    for other in ({**shown, "grade": 5}, {**shown, "success": not shown["success"]}, {}):
        assert me.answer(item, verdict="accept", **other).status_code in (400, 409)
    assert me.answer(item, verdict="accept", **shown).status_code == 200
    served.app.stop()
    with Store(tmp_path / "set").writer() as writer:  # the model changes its mind later: the person did not
        kept = [one for one in Store(tmp_path / "set").episode(episode).outcomes if one.source == "human"]
        writer.relabel({episode: [*kept, Outcome("model", grade=5, by="m")]})
    human = Store(tmp_path / "set").episode(episode).outcomes[0]
    assert (human.source, human.grade, human.success) == ("human", 2, shown["success"])
