"""The arena over real HTTP: a trial step by step, blind and resumable; ranking, export, the relay, what is refused."""

import io
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from demerit.data.formats import open_dataset
from demerit.data.labels import Preference
from demerit.data.video import write_video
from demerit.models import load_model
from demerit.use.arena.app import CHECKLIST, ArenaApp
from demerit.use.arena.export import export_roboarena
from demerit.use.arena.results import compute_results, make_dump, write_dump
from demerit.use.arena.trials import Trials
from demerit.use.people.database import Database
from demerit.use.people.guard import PeopleServer
from fakes.people import PASSWORD, Browser

JUDGEMENT = {
    "verdict": "first",
    "feedback": "the second dropped it",
    "first_success": True,
    "second_success": False,
    "first_progress": 1.0,
    "second_progress": 0.25,
}


@dataclass
class Arena:
    app: ArenaApp
    url: str
    browsers: ExitStack
    folder: Path

    def site(self, name: str) -> Browser:
        browser, link = Browser(self.url), self.app.accounts.make_link("site")
        self.browsers.enter_context(browser.http)
        browser.post(f"/join/{link}", name=name, password=PASSWORD)
        browser.get("/")
        return browser

    def owner(self) -> Browser:
        browser = Browser(self.url)
        self.browsers.enter_context(browser.http)
        browser.get("/enter/" + self.app.accounts.make_link("owner", self.app.accounts.ensure_owner("me")))
        return browser

    def video(self, brightness: int = 100) -> bytes:
        path = self.folder / f"{brightness}.mp4"
        if not path.exists():
            write_video(path, np.full((6, 32, 32, 3), brightness, np.uint8))
        return path.read_bytes()


def photo() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def arena(database: Database, tmp_path: Path) -> Iterator[Arena]:
    app = ArenaApp(database, tmp_path / "uploads", [load_model("motion")])
    app.trials.set_policies({"alpha": "", "beta": "", "gamma": ""})
    with PeopleServer(app.guard.app) as server, ExitStack() as browsers:
        app.start()
        try:
            yield Arena(app, server.url, browsers, tmp_path)
        finally:
            app.stop()


def start(site: Browser) -> str:
    return str(site.get("/trial").url).rpartition("/")[2]


def upload(site: Browser, trial: str, part: str, content: bytes, camera: str = "left", piece: int = 700) -> int:
    state = site.send("POST", f"/trials/{trial}/uploads", part=part, camera=camera, size=len(content)).json()
    sent, id = 0, state["id"]
    while not state["is_complete"]:
        at = state["received"]
        answer = put(site, id, at, content[at : at + piece])
        assert answer.status_code == 200, answer.text
        state, sent = answer.json(), sent + 1
    return sent


def put(site: Browser, id: str, start: int, content: bytes) -> Any:
    return site.http.put(
        f"/uploads/{id}/{start}", content=content, headers={"x-csrf": site.csrf, "accept": "application/json"}
    )


def step_of(site: Browser, trial: str) -> str:
    found = re.search('data-step="(\\w+)"', site.get(f"/trials/{trial}").text)
    assert found is not None
    return found[1]


def run_trial(arena: Arena, site: Browser, judgement: dict[str, Any] | None = None, brightness: int = 100) -> str:
    trial = start(site)
    upload(site, trial, "photo", photo())
    ticked = [True] * len(CHECKLIST)
    assert site.send("POST", f"/trials/{trial}/describe", instruction="lift the cup", checklist=ticked).json() == {
        "step": "first"
    }
    upload(site, trial, "first", arena.video(brightness))
    assert site.send("POST", f"/trials/{trial}/reset").json() == {"step": "second"}
    upload(site, trial, "second", arena.video(brightness + 1))
    assert site.send("POST", f"/trials/{trial}/judge", **(judgement or JUDGEMENT)).json() == {"step": "done"}
    return trial


def test_a_trial_goes_step_by_step_and_comes_back_after_every_interruption(arena: Arena) -> None:
    site = arena.site("Lab A")
    trial = start(site)
    assert step_of(site, trial) == "describe" and start(site) == trial
    assert site.send("POST", f"/trials/{trial}/judge", **JUDGEMENT).status_code == 409
    refused = site.send("POST", f"/trials/{trial}/describe", instruction="lift", checklist=[True] * len(CHECKLIST))
    assert refused.status_code == 400 and "photo" in refused.json()["error"]
    upload(site, trial, "photo", photo())
    for body in (
        {"instruction": " ", "checklist": [True] * 3},
        {"instruction": "lift", "checklist": [True, False, True]},
    ):
        assert site.send("POST", f"/trials/{trial}/describe", **body).status_code == 400
    assert site.http.get(f"/trials/{trial}/photo").content == photo()
    run_trial(arena, site)
    assert step_of(site, trial) == "done" and start(site) != trial


def test_a_judgement_that_is_sent_twice_counts_once_and_cannot_be_changed(arena: Arena) -> None:
    site = arena.site("Lab A")
    trial = run_trial(arena, site)
    assert site.send("POST", f"/trials/{trial}/judge", **JUDGEMENT).status_code == 200
    assert site.send("POST", f"/trials/{trial}/judge", **{**JUDGEMENT, "verdict": "second"}).status_code == 409
    assert [row.verdict for row in arena.app.trials.rows()] == ["first"]


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "both"},
        {"feedback": " "},
        {"first_progress": 2},
        {"first_progress": True},
        {"second_progress": None},
        {"second_success": "yes"},
    ],
)
def test_half_a_judgement_is_refused(arena: Arena, change: dict[str, Any]) -> None:
    site = arena.site("Lab A")
    with pytest.raises(AssertionError):
        run_trial(arena, site, {**JUDGEMENT, **change})
    assert step_of(site, start(site)) == "judge"


def test_an_upload_goes_on_where_it_was_cut(arena: Arena) -> None:
    site, content = arena.site("Lab A"), photo()
    trial = start(site)
    state = site.send("POST", f"/trials/{trial}/uploads", part="photo", size=len(content)).json()
    put(site, state["id"], 0, content[:100])
    assert put(site, state["id"], 0, content[:100]).json()["received"] == 100  # the answer was lost: sent again
    assert put(site, state["id"], 300, content[300:400]).json()["received"] == 100  # a piece too far
    again = site.send("POST", f"/trials/{trial}/uploads", part="photo", size=len(content)).json()
    assert (again["id"], again["received"]) == (state["id"], 100)
    assert put(site, state["id"], 100, content[100:]).json()["is_complete"]
    assert (arena.folder / "uploads" / f"{state['id']}.mp4").read_bytes() == content


def test_files_that_cannot_be_used_are_refused_and_can_be_replaced(arena: Arena) -> None:
    site = arena.site("Lab A")
    trial = start(site)
    for content in (b"not an image", b"#EXTM3U\n/etc/passwd", arena.video()):
        with pytest.raises(AssertionError, match="cannot be used"):
            upload(site, trial, "photo", content)
    upload(site, trial, "photo", photo())
    site.send("POST", f"/trials/{trial}/describe", instruction="lift", checklist=[True] * len(CHECKLIST))
    for content in (b"not a video", b"#EXTM3U\n/etc/passwd", photo()):
        with pytest.raises(AssertionError, match="cannot be used"):
            upload(site, trial, "first", content)
        assert step_of(site, trial) == "first"
    for sent in ({"part": "third", "size": 5}, {"part": "first", "size": 0}, {"part": "first", "size": 10**12}):
        assert site.send("POST", f"/trials/{trial}/uploads", **sent).status_code == 400


def test_a_site_sees_no_name_of_a_policy_and_nothing_of_another_site(arena: Arena) -> None:
    ada, bob = arena.site("Lab A"), arena.site("Lab B")
    trial = start(ada)
    upload(ada, trial, "photo", photo())
    state = ada.send("POST", f"/trials/{trial}/uploads", part="first", size=100).json()
    for method, path in (
        ("GET", f"/trials/{trial}"),
        ("GET", f"/trials/{trial}/photo"),
        ("POST", f"/trials/{trial}/describe"),
        ("POST", f"/trials/{trial}/reset"),
        ("POST", f"/trials/{trial}/judge"),
        ("POST", f"/trials/{trial}/uploads"),
        ("PUT", f"/uploads/{state['id']}/0"),
        ("GET", "/check"),
        ("GET", f"/check/{trial}/first/left.mp4"),
    ):
        sent = {**JUDGEMENT, "part": "photo", "size": 5}
        assert bob.send(method, path, **sent).status_code == 404, path
    for page in (ada.get(f"/trials/{trial}").text, json.dumps(state)):
        assert not re.search("alpha|beta|gamma", page)
    assert trial not in httpx.get(f"{arena.url}/results.json").text


def test_pairs_and_their_order_are_balanced(arena: Arena, database: Database) -> None:
    trials = Trials(database, arena.folder / "other", seed=3)
    seen, first = Counter[frozenset[int]](), Counter[int]()
    with database.begin() as db:
        for _ in range(60):
            pair = trials._choose_pair(db)
            seen[frozenset(pair)] += 1
            first[pair[0]] += 1
    assert len(seen) == 3 and max(first.values()) < 30


def test_two_sites_and_three_policies_from_invitation_to_ranking(arena: Arena) -> None:
    sites = [arena.site("Lab A"), arena.site("Lab B")]
    names = dict(enumerate("alpha beta gamma".split(), start=1))
    met = Counter[frozenset[int]]()
    for number in range(18):
        site = sites[number % 2]
        trial = start(site)
        with arena.app.database.begin() as db:
            first, second = db.exec_driver_sql(f"SELECT first, second FROM trials WHERE id = '{trial}'").one()
        met[frozenset((first, second))] += 1
        order = ("first", "second") if names[first] < names[second] else ("second", "first")
        verdict = {3: order[1], 4: "tie"}.get(met[frozenset((first, second))], order[0])
        run_trial(arena, site, {**JUDGEMENT, "verdict": verdict}, brightness=100 + number)
    results = compute_results(make_dump(arena.app.trials))
    assert set(met.values()) == {6}
    assert results.ranking is not None and (results.trials, results.sites) == (18, 2)
    assert [one.policy for one in results.ranking.standings] == ["alpha", "beta", "gamma"]
    page = httpx.get(arena.url).text
    assert "alpha" in page and "18 blind comparisons at 2 sites" in page

    dump = write_dump(make_dump(arena.app.trials))
    again = compute_results(json.loads(dump))
    assert repr(again.ranking) == repr(results.ranking) and write_dump(json.loads(dump)) == dump

    excluded = make_dump(arena.app.trials)["trials"][0]["id"]
    owner = arena.owner()
    owner.get("/check")
    owner.post(f"/check/{excluded}", reason="the camera fell over")
    assert compute_results(make_dump(arena.app.trials)).excluded == {"the camera fell over": 1}

    count = export_roboarena(arena.app.trials, arena.folder / "dump")
    records = list(open_dataset(f"roboarena:{arena.folder / 'dump'}").records())
    assert count == 17 and sum(isinstance(one, Preference) for one in records) == 17
    assert {one.origin.tags["policy"] for one in records if not isinstance(one, Preference)} == set(names.values())
    verdicts = Counter(one.verdict for one in records if isinstance(one, Preference))
    rows = [row for row in arena.app.trials.rows() if not row.excluded]
    assert verdicts == Counter({"first": "a", "second": "b", "tie": "tie"}[row.verdict] for row in rows)


def test_reward_models_score_trials_as_they_end(arena: Arena) -> None:
    run_trial(arena, arena.site("Lab A"))
    arena.app._new.set()
    for _ in range(200):
        (row,) = make_dump(arena.app.trials)["trials"]
        if len(row["models"].get("motion", {})) == 2:
            break
        arena.app._scorer.join(0.1)
    assert set(row["models"]["motion"]) == {"first", "second"}
    assert "motion" in compute_results(make_dump(arena.app.trials)).agreement


def test_doubtful_trials_are_shown_to_the_owner(arena: Arena) -> None:
    odd = {**JUDGEMENT, "verdict": "second", "first_progress": 1.0, "second_progress": 0.1}
    run_trial(arena, arena.site("Lab A"), odd)
    (row,) = arena.app.trials.rows()
    doubts = arena.app.trials.doubts(row)
    assert any("opposite" in doubt for doubt in doubts) and any("seconds" in doubt for doubt in doubts)
    assert "opposite" in arena.owner().get("/check").text
    run_trial(arena, arena.site("Lab B"), {**JUDGEMENT, "first_progress": 0.3})
    assert any("less than half" in doubt for doubt in arena.app.trials.doubts(arena.app.trials.rows()[1]))


def test_the_relay_reaches_the_policy_whose_turn_it_is_and_no_other(arena: Arena) -> None:
    def answer(name: str) -> Any:
        def run(connection: ServerConnection) -> None:
            for message in connection:
                connection.send(name.encode() + b":" + (message if isinstance(message, bytes) else message.encode()))

        return run

    with ExitStack() as stack:
        addresses = {}
        for name in ("alpha", "beta", "gamma"):
            server = stack.enter_context(serve(answer(name), "127.0.0.1", 0))
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            addresses[name] = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        arena.app.trials.set_policies(addresses)
        site = arena.site("Lab A")
        trial = start(site)
        where = arena.url.replace("http", "ws") + f"/trials/{trial}/policy/"
        for part in ("first", "second", "photo"):
            with connect(where + part) as robot, pytest.raises(ConnectionClosed):
                robot.recv(timeout=10)
        upload(site, trial, "photo", photo())
        site.send("POST", f"/trials/{trial}/describe", instruction="lift", checklist=[True] * len(CHECKLIST))
        with connect(where + "first") as robot:
            robot.send(b"frame")
            assert str(robot.recv(timeout=10)).split(":")[1].startswith("frame")
        with connect(where + "second") as robot, pytest.raises(ConnectionClosed):
            robot.recv(timeout=10)


def test_texts_with_html_in_them_are_shown_as_text(arena: Arena) -> None:
    attack = "<img src=x onerror=alert(1)>"
    run_trial(arena, arena.site("Lab A"), {**JUDGEMENT, "feedback": attack})
    page = arena.owner().get("/check").text
    assert attack not in page and "&lt;img" in page
