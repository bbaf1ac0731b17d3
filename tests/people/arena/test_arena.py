"""The arena over real HTTP: a trial step by step, blind and resumable; ranking, export, the relay, what is refused."""

import copy
import io
import json
import re
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from demerit.data.episode import Preference
from demerit.data.formats import open_dataset
from demerit.data.video import write_video
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.reward_store import RewardStore
from demerit.people.accounts import Person
from demerit.people.arena.app import CHECKLIST, CONNECTIONS, ArenaApp
from demerit.people.arena.results import (
    MOST,
    compute_results,
    export_roboarena,
    make_dump,
    read_dump,
    score_trials,
    write_dump,
)
from demerit.people.arena.trials import ROLLOUTS, SENT_TWICE, SLACK, TOO_FAST, Trials
from demerit.people.arena.uploads import LIMITS
from demerit.people.database import Database
from demerit.web.server import WebServer
from demerit.web.uploads import CALL, UploadDecoder
from fakes.command import demerit_here, error_sentence
from fakes.people import PASSWORD, Browser
from fakes.served_models import Brightness

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

    def person(self, name: str) -> Person:
        found = self.app.accounts.find(self.site(name).http.cookies["demerit_session"])
        assert found is not None
        return found

    def owner(self) -> Browser:
        browser = Browser(self.url)
        self.browsers.enter_context(browser.http)
        browser.get("/enter/" + self.app.accounts.make_link("owner", self.app.accounts.ensure_owner("me")))
        return browser

    def video(self) -> bytes:
        """A video of another colour each time: the same one twice would be set aside."""
        path, number = self.folder / "new.mp4", next(NEW)
        colour = np.array([number % 16, number // 16 % 16, number // 256], np.uint8) * 16
        write_video(path, np.broadcast_to(colour, (6, 32, 32, 3)))
        return path.read_bytes()


NEW = count()
ONE_DATABASE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""for tests of what no database decides"""


def photo(colour: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20 * len(colour), 20), colour).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def decoder() -> Iterator[UploadDecoder]:
    """One decoder for all tests: its process takes a second to start."""
    shared = UploadDecoder(LIMITS, processes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "close", lambda: None)
        yield shared
    shared.close()


@pytest.fixture
def arena(
    database: Database, tmp_path: Path, decoder: UploadDecoder, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Arena]:
    monkeypatch.setattr("demerit.people.arena.trials.FASTEST", 0.0)
    app = ArenaApp(database, tmp_path / "uploads", [load_model("motion")])
    app.trials.uploads.decoder = decoder
    app.trials._random.seed(3)
    app.trials.set_policies({"alpha": "maple", "beta": "tulip", "gamma": "onion"})
    with WebServer(app.guard.app) as server, ExitStack() as browsers:
        app.start()
        try:
            yield Arena(app, server.url, browsers, tmp_path)
        finally:
            app.stop()


def read_frames(content: bytes) -> Any:
    with av.open(io.BytesIO(content)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


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


def describe(site: Browser) -> str:
    """Go to the first rollout."""
    trial = start(site)
    upload(site, trial, "photo", photo())
    sent = {"instruction": "lift the cup", "checklist": [True] * len(CHECKLIST)}
    assert site.send("POST", f"/trials/{trial}/describe", **sent).json() == {"step": "first"}
    return trial


def run_trial(
    arena: Arena,
    site: Browser,
    judgement: dict[str, Any] | None = None,
    first: bytes | None = None,
    second: bytes | None = None,
) -> str:
    trial = describe(site)
    upload(site, trial, "first", first or arena.video())
    assert site.send("POST", f"/trials/{trial}/reset").json() == {"step": "second"}
    upload(site, trial, "second", second or arena.video())
    assert site.send("POST", f"/trials/{trial}/judge", **(judgement or JUDGEMENT)).json() == {"step": "done"}
    return trial


def test_a_trial_goes_step_by_step_and_comes_back_after_every_interruption(arena: Arena) -> None:
    site = arena.site("Lab A")
    trial = start(site)
    assert step_of(site, trial) == "describe" and start(site) == trial
    assert site.send("POST", f"/trials/{trial}/judge", **JUDGEMENT).status_code == 409
    refused = site.send("POST", f"/trials/{trial}/describe", instruction="lift", checklist=[True] * len(CHECKLIST))
    assert refused.status_code == 400 and "photo" in refused.json()["error"]
    upload(site, trial, "photo", photo("blue"))
    upload(site, trial, "photo", photo())  # another one, before the trial goes on
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
    for sent in (
        *({"part": "third", "size": 5}, {"part": "first", "size": 0}, {"part": "first", "size": 10**12}),
        *({"part": "first", "camera": "top", "size": 5}, {"part": "first", "camera": "log", "size": 10**9}),
    ):
        assert site.send("POST", f"/trials/{trial}/uploads", **sent).status_code == 400


def test_a_site_sees_no_name_of_a_policy_and_nothing_of_another_site(arena: Arena) -> None:
    ada, bob = arena.site("Lab A"), arena.site("Lab B")
    trial = describe(ada)
    state = ada.send("POST", f"/trials/{trial}/uploads", part="first", size=100).json()
    for method, path in (
        ("GET", f"/trials/{trial}"),
        ("GET", f"/trials/{trial}/photo"),
        ("POST", f"/trials/{trial}/describe"),
        ("POST", f"/trials/{trial}/reset"),
        ("POST", f"/trials/{trial}/judge"),
        ("POST", f"/trials/{trial}/another"),
        ("GET", f"/trials/{trial}/first/left.mp4"),
        ("GET", f"/check/{trial}/first/log"),
        ("POST", "/evaluation"),
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


def test_the_next_pair_is_any_of_those_that_were_compared_little(arena: Arena, database: Database) -> None:
    trials, site = Trials(database, arena.folder / "other", seed=3), arena.person("Lab A")
    possible = []
    with database.begin() as db:
        for _ in range(SLACK + 2):
            possible.append({frozenset(trials._choose_pair(db)) for _ in range(60)})
            trials._begin(db, site, 1, 2)
    assert [len(pairs) for pairs in possible] == [3] * (SLACK + 1) + [2]


def test_nothing_tells_which_policy_was_which_before_the_owner_closes_the_evaluation(arena: Arena) -> None:
    site, owner = arena.site("Lab A"), arena.owner()
    trial = run_trial(arena, site)
    pages = [httpx.get(arena.url), httpx.get(f"{arena.url}/results.json"), site.get("/"), site.get(f"/trials/{trial}")]
    assert [page.status_code for page in pages] == [200, 404, 200, 200]
    assert not re.search(f"alpha|beta|gamma|{trial}", "".join(page.text for page in pages[:3]))
    open_one = describe(site)
    owner.post("/evaluation", state="closed")
    page = httpx.get(arena.url).text
    assert "alpha" in page and httpx.get(f"{arena.url}/results.json").json()["trials"][0]["id"] == trial
    assert site.send("POST", f"/trials/{open_one}/uploads", part="first", size=5).status_code == 409
    assert arena.site("Lab B").http.get("/trial").status_code == 409
    assert "evaluation is closed" in site.get(f"/trials/{open_one}").text
    owner.post("/evaluation", state="open")
    assert "alpha" not in httpx.get(arena.url).text and step_of(site, open_one) == "first"
    assert site.post("/evaluation", state="closed").status_code == 404


@ONE_DATABASE
def test_every_policy_has_the_same_page(arena: Arena) -> None:
    words, pages = {"alpha": "maple", "beta": "tulip", "gamma": "onion"}, set()
    site = arena.site("Lab A")
    for _ in range(6):
        trial = describe(site)
        page = site.get(f"/trials/{trial}").text
        (word,) = [word for word in words.values() if word in page]
        pages.add(page.replace(trial, "").replace(word, ""))
        with arena.app.database.begin() as db:
            db.exec_driver_sql(f"UPDATE trials SET ended = started WHERE id = '{trial}'")
    assert len(pages) == 1
    for mixed in (
        {"alpha": "ws://127.0.0.1:1", "beta": "tulip"},
        {"alpha": "tulip", "beta": "tulip"},
        {"alpha": "beta", "beta": "tulip"},
        {"alpha": "", "beta": "tulip"},
    ):
        with pytest.raises(BadInput):
            arena.app.trials.set_policies(mixed)


@ONE_DATABASE
def test_with_addresses_nothing_that_a_site_sees_comes_back_in_another_trial(arena: Arena) -> None:
    arena.app.trials.set_policies({name: f"ws://127.0.0.1:{port}" for port, name in enumerate(("alpha", "beta"), 1)})
    site, pages, ran = arena.site("Lab A"), set(), set()
    for _ in range(8):
        trial = describe(site)
        page = site.get(f"/trials/{trial}").text
        assert f"/trials/{trial}/policy/first" in page
        pages.add(page.replace(trial, ""))
        with arena.app.database.begin() as db:
            ran.add(db.exec_driver_sql(f"SELECT first FROM trials WHERE id = '{trial}'").scalar_one())
            db.exec_driver_sql(f"UPDATE trials SET ended = started WHERE id = '{trial}'")
    assert len(ran) == 2 and len(pages) == 1


@ONE_DATABASE
def test_nobody_is_shown_what_the_container_of_a_video_says(arena: Arena) -> None:
    """A video may name its policy as its title, its comment or the name of its track."""
    site, secret, videos = arena.site("Lab A"), "policy-alpha-7", {}
    for part in ROLLOUTS:
        with (
            av.open(io.BytesIO(arena.video())) as source,
            av.open(
                path := str(arena.folder / part), "w", format="mp4", options={"movflags": "use_metadata_tags"}
            ) as to,
        ):
            to.metadata.update({name: secret for name in ("title", "comment", "encoder", "location", "robot")})
            same = to.add_stream_from_template(source.streams.video[0])
            same.metadata["handler_name"] = secret
            for packet in filter(lambda packet: packet.size, source.demux(video=0)):
                packet.stream = same
                to.mux(packet)
        videos[part] = Path(path).read_bytes()
        assert videos[part].count(secret.encode()) >= 3
    trial, owner = run_trial(arena, site, first=videos["first"], second=videos["second"]), arena.owner()
    owner.get("/check")
    owner.post("/evaluation", state="closed")
    shown = [httpx.get(arena.url).content, httpx.get(f"{arena.url}/results.json").content]
    export_roboarena(arena.app.trials, arena.folder / "dump")
    exported = [path.read_bytes() for path in (arena.folder / "dump").rglob("*.mp4")]
    assert len(exported) == 2
    for part in ROLLOUTS:
        served = [
            site.http.get(f"/trials/{trial}/{part}/left.mp4").content,
            owner.http.get(f"/check/{trial}/{part}/left.mp4").content,
        ]
        assert all(np.array_equal(read_frames(video), read_frames(videos[part])) for video in served)
        shown += served
    assert not [content for content in shown + exported if secret.encode() in content]


@ONE_DATABASE
def test_a_server_that_cannot_open_files_keeps_what_was_sent(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    site, content = arena.site("Lab A"), photo()
    trial = start(site)
    state = site.send("POST", f"/trials/{trial}/uploads", part="photo", size=len(content)).json()
    with monkeypatch.context() as patch:
        patch.setattr("demerit.web.uploads.CALL", "import a_library_that_is_not_there  # {pipe}")
        patch.setattr(arena.app.trials.uploads, "decoder", UploadDecoder(LIMITS, processes=1))
        answer = put(site, state["id"], 0, content)
        assert answer.status_code == 503 and str(arena.folder) not in answer.text
    assert put(site, state["id"], len(content), b"").json()["is_complete"]  # the page tries again


@ONE_DATABASE
def test_a_video_that_a_full_disk_cannot_hold_is_kept_and_asked_for_again(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = arena.site("Lab A")
    trial, video = describe(site), arena.video()
    state = site.send("POST", f"/trials/{trial}/uploads", part="first", camera="left", size=len(video)).json()
    full = "import errno, os\ndef full(file): raise OSError(errno.{number}, 'no')\nos.fsync = full\n"
    for number in ("ENOSPC", "EDQUOT"):
        with monkeypatch.context() as patch:
            patch.setattr("demerit.web.uploads.CALL", full.replace("{number}", number) + CALL)
            patch.setattr(arena.app.trials.uploads, "decoder", UploadDecoder(LIMITS, processes=1))
            answer = put(site, state["id"], 0, video)
            assert answer.status_code == 503 and str(arena.folder) not in answer.text
    assert put(site, state["id"], len(video), b"").json()["is_complete"]  # the page tries again


@ONE_DATABASE
def test_a_whole_video_is_final_and_a_part_waits_for_its_step(arena: Arena) -> None:
    site = arena.site("Lab A")
    trial, video = describe(site), arena.video()
    begin = f"/trials/{trial}/uploads"
    for part in ("second", "photo"):
        assert site.send("POST", begin, part=part, size=5).status_code == 409
    upload(site, trial, "first", video)
    refused = site.send("POST", begin, part="first", size=len(video) + 1)
    assert refused.status_code == 409 and step_of(site, trial) == "reset"
    assert np.array_equal(*map(read_frames, (site.http.get(f"/trials/{trial}/first/left.mp4").content, video)))
    assert site.send("POST", begin, part="first", size=len(video)).json()["is_complete"]
    assert site.send("POST", begin, part="second", size=5).status_code == 409  # the scene is not reset yet


def test_trials_that_cannot_be_real_are_set_aside_with_the_reason(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, video = arena.site("Lab A"), arena.video()
    run_trial(arena, site, first=video)
    again = run_trial(arena, site, second=video)
    assert "does not count" in site.get(f"/trials/{again}").text
    same = arena.video()
    run_trial(arena, site, first=same, second=same)
    monkeypatch.setattr("demerit.people.arena.trials.FASTEST", 60.0)
    run_trial(arena, site)
    assert [row.excluded for row in arena.app.trials.rows()] == ["", SENT_TWICE, SENT_TWICE, TOO_FAST]
    results = compute_results(make_dump(arena.app.trials))
    assert results["trials"] == 1 and results["excluded"] == {SENT_TWICE: 2, TOO_FAST: 1}


def test_a_site_has_quotas(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demerit.people.arena.trials.TRIALS_A_DAY", 1)
    monkeypatch.setattr("demerit.people.arena.uploads.BYTES_A_DAY", 10_000)
    site = arena.site("Lab A")
    trial = describe(site)
    assert site.send("POST", f"/trials/{trial}/uploads", part="first", size=9_900).status_code == 429
    for size in (5_000, 6_000, 7_000):  # another try takes the place of the last one
        assert site.send("POST", f"/trials/{trial}/uploads", part="first", size=size).status_code == 200
    with arena.app.database.begin() as db:
        db.exec_driver_sql("UPDATE trials SET ended = started")
    assert site.http.get("/trial").status_code == 429
    assert arena.site("Lab B").http.get("/trial").status_code == 303


@ONE_DATABASE
def test_while_a_file_is_checked_nobody_waits(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def check(path: Path) -> None:
        entered.set()
        assert leave.wait(60)

    ada, bob = arena.site("Lab A"), arena.site("Lab B")
    first, second = start(ada), start(bob)
    monkeypatch.setattr(arena.app.trials.uploads.decoder, "check_photo", check)
    monkeypatch.setattr("demerit.people.arena.uploads.CHECKS", 1)
    slow = threading.Thread(target=upload, args=(ada, first, "photo", photo()))
    slow.start()
    try:
        assert entered.wait(60)
        assert httpx.get(arena.url).status_code == 200
        state = bob.send("POST", f"/trials/{second}/uploads", part="photo", size=len(photo())).json()
        assert put(bob, state["id"], 0, photo()[:100]).json()["received"] == 100
        assert put(bob, state["id"], 100, photo()[100:]).status_code == 503  # the page tries again
    finally:
        leave.set()
        slow.join()
    assert put(bob, state["id"], len(photo()), b"").json()["is_complete"]


@ONE_DATABASE
def test_a_log_is_kept_with_the_trial_and_the_site_sees_its_videos(arena: Arena) -> None:
    site, log = arena.site("Lab A"), b"\x00any bytes"
    trial, videos = describe(site), {part: arena.video() for part in ("first", "second")}
    upload(site, trial, "first", log, "log")
    assert step_of(site, trial) == "first"
    upload(site, trial, "first", videos["first"])
    site.send("POST", f"/trials/{trial}/reset")
    upload(site, trial, "second", videos["second"])
    page = site.get(f"/trials/{trial}").text
    for part, video in videos.items():
        assert f"/trials/{trial}/{part}/left.mp4" in page
        shown = site.http.get(f"/trials/{trial}/{part}/left.mp4").content
        assert np.array_equal(read_frames(shown), read_frames(video))
    assert site.http.get(f"/trials/{trial}/first/log.mp4").status_code == 404
    site.send("POST", f"/trials/{trial}/judge", **JUDGEMENT)
    owner = arena.owner()
    assert f"/check/{trial}/first/log" in owner.get("/check").text
    answer = owner.http.get(f"/check/{trial}/first/log")
    assert answer.content == log and answer.headers["content-disposition"].startswith("attachment")
    export_roboarena(arena.app.trials, arena.folder / "dump")
    (path,) = (arena.folder / "dump").rglob("log")
    assert path.read_bytes() == log and len(list(open_dataset(f"roboarena:{arena.folder / 'dump'}"))) == 2


def test_more_policies_on_one_scene_are_compared_with_the_one_before(arena: Arena) -> None:
    site = arena.site("Lab A")
    trial = run_trial(arena, site)
    seconds = {"verdict": "first", "feedback": "slower", "second_success": True, "second_progress": 0.5}
    for _ in range(2):
        new = str(site.post(f"/trials/{trial}/another").url).rpartition("/")[2]
        assert new != trial and step_of(site, new) == "reset"
        site.send("POST", f"/trials/{new}/reset")
        upload(site, new, "second", arena.video())
        assert "scored it in the trial before" in site.get(f"/trials/{new}").text
        for _ in range(2):  # sent twice, it counts once
            answer = site.send("POST", f"/trials/{new}/judge", **seconds)
            assert answer.json() == {"step": "done"}, answer.text
        trial = new
    rows = arena.app.trials.rows()
    assert [row.excluded for row in rows] == ["", "", ""] and {row.instruction for row in rows} == {"lift the cup"}
    for before, after in pairwise(rows):
        assert (before.second, before.second_progress) == (after.first, after.first_progress)
        assert after.second not in (before.first, before.second)
    assert export_roboarena(arena.app.trials, arena.folder / "dump") == 3
    arena.app.trials.set_policies({rows[-1].first_name: "maple", rows[-1].second_name: "tulip"})
    assert site.send("POST", f"/trials/{trial}/another").status_code == 409


@ONE_DATABASE
def test_files_that_a_killed_server_left_are_removed_at_the_next_start(arena: Arena) -> None:
    site = arena.site("Lab A")
    trial, folder = start(site), arena.folder / "uploads"
    state = site.send("POST", f"/trials/{trial}/uploads", part="photo", size=len(photo())).json()
    put(site, state["id"], 0, photo()[:50])
    (folder / f"{uuid.uuid4()}.mp4").write_bytes(b"left")
    arena.app.trials.uploads.remove_left_over()
    assert [path.stem for path in folder.iterdir()] == [state["id"]]


def change_leaves(value: Any, odd: Any) -> Iterator[Any]:
    """Yield copies of a JSON value in which one part is odd or missing."""
    yield odd
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if isinstance(value, dict):
            yield {name: one for name, one in value.items() if name != key}
        for changed in change_leaves(inner, odd):
            copied = copy.copy(value)
            copied[key] = changed
            yield copied


def test_broken_dumps_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"first": {"verdict": "unknown", "why_unknown": "no threshold", "detail": "", "caution": "blurred"}}
    scores = {"models": {"m": {"first": 0.5, "second": None}}, "model_verdicts": {"m": said}}
    row = {"id": "1", "first": "a", "second": "b", "verdict": "first", "site": "s", "excluded": "", **scores}
    dump = {"format": "demerit-arena", "version": 1, "policies": ["a", "b"], "trials": [row]}
    assert compute_results(dump)["trials"] == 1
    for odd in (None, [], {}, "x", -1, 1e300, True, ["x"], {"x": {}}):
        for broken in change_leaves(dump, odd):
            if isinstance(broken, dict):
                with suppress(BadInput):
                    compute_results(broken)
    whole = json.dumps(dump).encode()
    for content in (b"", whole[:-9], b"\x89PNG\x00\xff", b"[1]", b"null", b"9" * 5000, b"[" * 5000, whole[:9]):
        (path := tmp_path / "dump.json").write_bytes(content)
        with pytest.raises(BadInput):
            compute_results(read_dump(path))
    path.write_bytes(whole)
    assert compute_results(read_dump(path))["trials"] == 1
    monkeypatch.setitem(MOST, "bytes", 10)
    assert "10 bytes" in error_sentence(demerit_here("arena", "results", path))
    assert "arena's folder" in error_sentence(demerit_here("arena", "results", tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()


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
        upsets = {3: order[1], 4: "tie"} if abs(first - second) == 1 else {}
        verdict = upsets.get(met[frozenset((first, second))], order[0])
        run_trial(arena, site, {**JUDGEMENT, "verdict": verdict})
    results = compute_results(make_dump(arena.app.trials))
    assert len(met) == 3 and max(met.values()) - min(met.values()) <= SLACK + 1
    assert results["ranking"] is not None and (results["trials"], results["sites"]) == (18, 2)
    assert [one.policy for one in results["ranking"].standings] == ["alpha", "beta", "gamma"]
    owner = arena.owner()
    owner.get("/check")
    owner.post("/evaluation", state="closed")
    page = httpx.get(arena.url).text
    assert "alpha" in page and "18 blind comparisons at 2 sites" in page

    dump = write_dump(make_dump(arena.app.trials))
    again = compute_results(json.loads(dump))
    assert repr(again["ranking"]) == repr(results["ranking"]) and write_dump(json.loads(dump)) == dump

    excluded = make_dump(arena.app.trials)["trials"][0]["id"]
    owner.post(f"/check/{excluded}", reason="the camera fell over")
    assert compute_results(make_dump(arena.app.trials))["excluded"] == {"the camera fell over": 1}

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
    assert "motion" in compute_results(make_dump(arena.app.trials))["agreement"]


def test_a_model_that_was_taught_again_scores_every_trial_again(arena: Arena) -> None:
    trial = run_trial(arena, arena.site("Lab A"))
    trials, before, after = arena.app.trials, Brightness(), Brightness(revision="2")
    assert [reward.episode for reward in score_trials(trials, before)] == [f"{trial}/first", f"{trial}/second"]
    assert list(score_trials(trials, before)) == []
    (row,) = make_dump(trials)["trials"]
    assert set(row["models"]["brightness"]) == {"first", "second"}
    (row,) = make_dump(trials, [after.card])["trials"]  # the scores are the old model's
    assert (
        "brightness" not in row["models"]
        and "brightness" not in compute_results(make_dump(trials, [after.card]))["agreement"]
    )
    assert len(list(score_trials(trials, after))) == 2 and after.calls == [[f"{trial}/first"], [f"{trial}/second"]]
    (row,) = make_dump(trials, [after.card])["trials"]
    assert set(row["models"]["brightness"]) == {"first", "second"}
    said = row["model_verdicts"]["brightness"]["first"]
    assert (said["verdict"], said["why_unknown"]) == ("unknown", "no threshold")
    counts = compute_results(json.loads(write_dump(make_dump(trials))))["verdicts"]["brightness"]
    assert str(counts) == "0 success, 0 failure, 2 unknown (no threshold)"
    assert {reward.episode for reward in RewardStore(trials.rewards / "brightness")} == {
        id for call in after.calls for id in call
    }


def test_pages_show_what_models_say_with_their_verdicts(arena: Arena) -> None:
    run_trial(arena, arena.site("Lab A"))
    for _ in range(200):
        if (page := arena.owner().get("/check").text).count("unknown: no threshold") == 2:
            break
        arena.app._scorer.join(0.1)
    assert "motion: first 0.000, unknown: no threshold; second 0.000, unknown: no threshold" in page
    owner = arena.owner()
    assert "no threshold" not in httpx.get(arena.url).text
    owner.post("/evaluation", state="closed")
    page = httpx.get(arena.url).text
    assert "2 unknown (no threshold)" in page and "too few decided trials (1 of 10)" in page


def test_a_database_with_scores_of_an_earlier_version_opens(database: Database, tmp_path: Path) -> None:
    with database.begin() as db:
        db.exec_driver_sql(
            "CREATE TABLE model_scores (trial VARCHAR(36), part VARCHAR(6), model VARCHAR(200), value FLOAT)"
        )
        db.exec_driver_sql("INSERT INTO model_scores VALUES ('a', 'first', 'motion', 0.5)")
    trials = Trials(Database(database.name) if database.is_file else database, tmp_path / "uploads")
    assert make_dump(trials)["trials"] == []


def test_doubtful_trials_are_shown_to_the_owner(arena: Arena) -> None:
    odd = {**JUDGEMENT, "verdict": "second", "first_progress": 1.0, "second_progress": 0.1}
    run_trial(arena, arena.site("Lab A"), odd)
    (row,) = arena.app.trials.rows()
    doubts = arena.app.trials.doubts(row)
    assert any("opposite" in doubt for doubt in doubts)
    assert "opposite" in arena.owner().get("/check").text
    run_trial(arena, arena.site("Lab B"), {**JUDGEMENT, "first_progress": 0.3})
    assert any("less than half" in doubt for doubt in arena.app.trials.doubts(arena.app.trials.rows()[1]))


@ONE_DATABASE
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
        where = arena.url.replace("http", "ws") + f"/trials/{start(site)}/policy/"

        def refuse(part: str, **more: Any) -> None:
            with pytest.raises(InvalidStatus), connect(where + part, **more):
                pass

        for part in ("first", "second", "photo"):
            refuse(part)
        trial = describe(site)
        refuse("second")
        refuse("first", origin="https://elsewhere.example")
        page = site.get(f"/trials/{trial}").text
        assert where + "first" in page and "127.0.0.1:1" not in page.replace(arena.url.removeprefix("http://"), "")
        robots = [stack.enter_context(connect(where + "first")) for _ in range(CONNECTIONS)]
        for robot in robots:
            robot.send(b"frame")
            assert bytes(robot.recv(timeout=30)).split(b":")[1] == b"frame"
        refuse("first")
        robots.pop().close()
        for _ in range(100):
            if arena.app._connected[trial] < CONNECTIONS:
                break
            arena.app._scorer.join(0.1)
        robots.append(stack.enter_context(connect(where + "first", origin=arena.url)))  # type: ignore[arg-type]
        upload(site, trial, "first", arena.video())
        for robot in robots:  # the turn has ended
            with pytest.raises(ConnectionClosed):
                robot.recv(timeout=30)
        refuse("first")


@ONE_DATABASE
def test_texts_with_html_in_them_are_shown_as_text(arena: Arena) -> None:
    attack = "<img src=x onerror=alert(1)>"
    run_trial(arena, arena.site("Lab A"), {**JUDGEMENT, "feedback": attack})
    page = arena.owner().get("/check").text
    assert attack not in page and "&lt;img" in page
