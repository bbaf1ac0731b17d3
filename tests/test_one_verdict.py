"""One stored reward has one verdict: every command, page and answer says the same of it, with the same reason.

The models and videos are real ones: the shipped network, and a model taught on two cameras.
"""

import io
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from demerit.data.episode import Episode, Origin, Outcome
from demerit.data.formats import open_dataset
from demerit.data.frames import Frames
from demerit.data.reward import WARNED, VerdictCounts
from demerit.data.store import Store
from demerit.data.video import write_video
from demerit.decide.detector import Detector, Schedule
from demerit.evaluate.reports.report import Report
from demerit.models import load_model
from demerit.models.reward_store import RewardStore
from demerit.models.score import rewards_folder
from demerit.people.annotate.work import NewItem
from demerit.people.arena.app import CHECKLIST, ArenaApp
from demerit.people.arena.results import make_dump, score_trials
from demerit.people.database import Database
from demerit.training.teach import teach
from demerit.training.teach.data import TeachConfig
from demerit.use.gym import RewardEnv
from demerit.use.serve.client import RemoteModel
from demerit.use.serve.server import serve_models
from demerit.use.view import ViewIndex
from demerit.use.watch.figures import WatchPage
from demerit.use.watch.watcher import Watcher
from demerit.web.media import EpisodeMedia
from demerit.web.server import WebServer
from fakes.command import demerit_here
from fakes.lesson_data import WORDS, episodes, verdict
from fakes.people import PASSWORD, Browser, run_app

CAMERAS = ("left", "right")
JUDGEMENT = {
    "verdict": "first",
    "feedback": "the first one lifts it, the second drops it",
    "first_success": True,
    "second_success": False,
    "first_progress": 1.0,
    "second_progress": 0.25,
}
Verdicts = Mapping[str, tuple[str, str | None]]
"""word and reason by episode"""


def film(episode: Episode, folder: Path, cameras: tuple[str, ...] = CAMERAS) -> Episode:
    """Write an episode as a video per camera; the second camera sees everything mirrored."""
    images = np.kron(episode.main.all()[::2], np.ones((1, 2, 2, 1), dtype=np.uint8))
    views = {}
    for camera in cameras:
        path = folder / f"{episode.id}-{camera}.mp4"
        if not path.exists():
            write_video(path, images if camera == "left" else images[:, :, ::-1])
        views[camera] = Frames.from_video(path)
    return replace(episode, views=views)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model taught with two cameras, on flags alone, with a threshold. It is too weak to be trusted."""
    folder = tmp_path_factory.mktemp("taught")
    store = Store.create(folder / "lesson", "lesson")
    with store.writer() as writer:
        for episode in episodes(7, 7, verdict):
            writer.add(film(episode, folder))
    teach(str(store.root), folder / "model", risk=0.3, workers=0, config=TeachConfig(reader=False))
    return folder / "model"


@dataclass(frozen=True)
class Scene:
    """A dataset and the model that judges it; `verdicts` are those of the rewards that `demerit score` stored."""

    folder: Path
    model: str
    name: str
    """of the model, by its card"""

    @property
    def rewards(self) -> RewardStore:
        return RewardStore(rewards_folder(open_dataset(str(self.folder)), self.name))

    @property
    def verdicts(self) -> Verdicts:
        return {reward.episode: (reward.verdict.word, reward.verdict.reason) for reward in self.rewards}

    @property
    def counts(self) -> dict[str, Any]:
        return VerdictCounts.of(self.rewards).as_dict()

    def run(self, command: str, *words: object) -> Any:
        result = demerit_here(command, self.folder, "--model", self.model, *words)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


def make_scene(folder: Path, model: str, instruction: str = WORDS, cameras: tuple[str, ...] = CAMERAS) -> Scene:
    """Write five new episodes: two successes, two failures and one whose video is broken. Score them."""
    store = Store.create(folder / "new", "new")
    with store.writer() as writer:
        for number, episode in enumerate(episodes(2, 2, verdict, first=20)):
            outcome = (Outcome("human", success=number % 2 == 0, by="us"),)
            origin = Origin(tags={"policy": "old" if number < 2 else "new"})
            filmed = film(episode, folder, cameras)
            writer.add(replace(filmed, instruction=instruction, outcomes=outcome, origin=origin))
        broken = film(replace(episodes(1, 0, first=30)[0], id="broken"), folder, cameras)
        writer.add(replace(broken, instruction=instruction, outcomes=(), origin=Origin(tags={"policy": "new"})))
    for camera in cameras:
        (folder / f"broken-{camera}.mp4").write_bytes(b"no video")
        os.utime(folder / f"broken-{camera}.mp4", (1e9, 1e9))  # complete: a watch does not wait for it
    scene = Scene(store.root, model, load_model(model).card.name)
    scene.run("score")
    return scene


CASES: Mapping[str, Callable[[Path, Path], Scene]] = {
    "default": lambda folder, taught: make_scene(folder, "default"),
    "taught": lambda folder, taught: make_scene(folder, str(taught)),
    "camera missing": lambda folder, taught: make_scene(folder, str(taught), cameras=("left",)),
    "task not taught": lambda folder, taught: make_scene(folder, str(taught), "open the drawer"),
}


@pytest.fixture(scope="module", params=list(CASES))
def scene(request: pytest.FixtureRequest, taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return CASES[request.param](tmp_path_factory.mktemp("scene"), taught)


def read_rows(rows: list[dict[str, Any]], id: str = "id") -> Verdicts:
    return {row[id]: (row["verdict"], row["why_unknown"]) for row in rows}


def test_the_stored_verdicts_are_what_they_should_be(scene: Scene, request: pytest.FixtureRequest) -> None:
    case = request.node.callspec.params["scene"]
    known = {id: said for id, said in scene.verdicts.items() if id != "broken"}
    assert scene.verdicts["broken"] == ("unknown", "not scored") and len(known) == 4
    if case == "taught":
        threshold = json.loads((Path(scene.model) / "model.json").read_text())["threshold"]
        chances = {reward.episode: reward.success[-1] for reward in scene.rewards if reward.success is not None}
        assert known == {id: ("success" if chances[id] >= threshold else "failure", None) for id in known}
        assert len(set(known.values())) == 2
    elif case == "default":  # drawings are unlike everything that it learned from
        assert {reason for _, reason in known.values()} <= {"no threshold", "unfamiliar"}
    else:
        assert set(known.values()) == {("unknown", case)}
    warned = {line.partition(":")[0] for line in scene.counts["warnings"]}
    assert ("model not yet trusted" in warned) == (case != "default")
    assert (case in warned) == (case not in ("default", "taught"))


def test_score_says_it(scene: Scene) -> None:
    (facts,) = json.loads(scene.run("score", "--json"))["models"]
    assert read_rows(facts["scores"]) == scene.verdicts and facts["verdicts"] == scene.counts
    text = scene.run("score")
    assert str(VerdictCounts.of(scene.rewards)) in text
    for line in scene.counts["warnings"]:
        assert line.partition("(")[0] in text


def test_filter_says_it(scene: Scene, tmp_path: Path) -> None:
    facts = json.loads(scene.run("filter", tmp_path / "view", "--min-final", "-9", "--json"))
    lines = (tmp_path / "view" / "decisions.jsonl").read_text().splitlines()
    assert read_rows([json.loads(line) for line in lines], "episode") == scene.verdicts
    assert facts["verdicts"] == scene.counts


def test_filter_by_the_models_verdict_keeps_the_unknown_and_says_why(scene: Scene, tmp_path: Path) -> None:
    by_word = {
        word: [id for id, (said, _) in scene.verdicts.items() if said == word] for word in ("success", "failure")
    }
    words = ("--success", "model", "--dry-run", "--page", tmp_path / "page.html", "--json")
    result = demerit_here("filter", scene.folder, "--model", scene.model, *words)
    if not any(by_word.values()):
        assert result.returncode == 1 and "unknown: " in result.stderr
        return
    facts = json.loads(result.stdout)
    assert facts["dropped_by"]["a failure by the model"] == len(by_word["failure"])
    undecided = {row["reason"].partition(" (")[0] for row in facts["undecided"]}
    assert undecided == {f"unknown: {reason}" for _, reason in scene.verdicts.values() if reason}


def test_watch_says_it(scene: Scene, tmp_path: Path) -> None:
    printed = demerit_here(
        "watch", scene.folder, "--once", "--json", "--rewards", scene.folder.parent / "watched", "--model", scene.model
    )
    assert read_rows([json.loads(line) for line in printed.stdout.splitlines()]) == scene.verdicts
    text = scene.run("watch", "--once")
    assert str(VerdictCounts.of(scene.rewards)) in text
    watcher = Watcher(str(scene.folder), load_model(scene.model), open_dataset, settle=0, patience=0)
    while watcher.look():
        pass
    page = unescape(TestClient(WatchPage(watcher, EpisodeMedia(tmp_path)).app()).get("/body").text)
    assert str(VerdictCounts.of(scene.rewards)) in page
    assert all(line in page for line in scene.counts["warnings"])


def test_compare_says_it(scene: Scene) -> None:
    assert json.loads(scene.run("compare", "--by", "policy", "--json"))["verdicts"] == scene.counts
    assert str(VerdictCounts.of(scene.rewards)) in scene.run("compare", "--by", "policy")


def test_export_says_it_and_refuses_what_was_not_taught(scene: Scene, tmp_path: Path) -> None:
    words = ("export", scene.folder, tmp_path / "r.npz", "--model", scene.model, "--to", "npz", "--json")
    words += ("--unscored", "interpolate,drop-episode")
    result = demerit_here(*words)
    if {reason for _, reason in scene.verdicts.values()} & {"task not taught", "camera missing"}:
        assert result.returncode == 1 and "--anyway" in result.stderr and not (tmp_path / "r.npz").exists()
        result = demerit_here(*words, "--anyway")
    assert json.loads(result.stdout)["verdicts"] == scene.counts


def test_a_detector_says_the_same_in_detect_and_watch_and_never_success(scene: Scene, tmp_path: Path) -> None:
    card, detector = load_model(scene.model).card, tmp_path / "detector.json"
    schedule = Schedule(usual=(0.0,), end=0.6, threshold=0.2, successes=20)
    Detector(scene.model, card.hash(), 0.0, 1.0, True, 0.05, None, {"": schedule}).save(detector)
    facts = json.loads(demerit_here("detect", scene.folder, "--detector", detector, "--json").stdout)
    detected = read_rows(facts["episodes"], "episode")
    watched = demerit_here("watch", scene.folder, "--once", "--json", "--rewards", tmp_path, "--detector", detector)
    assert read_rows([json.loads(line) for line in watched.stdout.splitlines()]) == detected
    assert facts["verdicts"]["success"] == 0 and detected["broken"] == ("unknown", "not scored")
    for id, (word, reason) in scene.verdicts.items():
        if reason in WARNED:  # the values say nothing, so neither does an alarm
            assert detected[id] == (word, reason)
        elif id != "broken":
            assert detected[id] in (("failure", None), ("unknown", "no alarm"))
    text = demerit_here("watch", scene.folder, "--once", "--detector", detector).stdout
    assert f"{facts['verdicts']['success']} success, {facts['verdicts']['failure']} failure" in text
    assert "Success:" not in text


def test_view_says_it(scene: Scene) -> None:
    index = ViewIndex(open_dataset(str(scene.folder)))
    facts = index.as_dict()
    (codes,), (model,) = facts["verdicts"], facts["models"]
    shown = {id: facts["reasons"][code] for id, code in zip(facts["id"], codes, strict=True)}
    assert shown == {reward.episode: str(reward.verdict) for reward in scene.rewards}
    assert str(VerdictCounts.of(scene.rewards)) in json.dumps(model)
    for place, id in enumerate(facts["id"]):
        ((_, text),) = index.episode_json(place)["verdicts"]
        assert text.startswith(shown[id])


def test_bench_says_it(scene: Scene, tmp_path: Path) -> None:
    words = ("--data", scene.folder, "--model", scene.model, "--no-controls", "--set", "resamples=10", "-o", tmp_path)
    result = demerit_here("bench", "own", *words, "--set", "include-seen=true")
    report, printed = Report.read(tmp_path / "report.json"), " ".join(result.stdout.split())
    (card,) = report.cards
    said = {id: reward.verdict for id, reward in report.rewards_of(card.name).items()}
    assert {id: (verdict.word, verdict.reason) for id, verdict in said.items()} == scene.verdicts
    page = unescape((tmp_path / "report.html").read_text("utf-8"))
    for line in scene.counts["warnings"]:
        if not line.startswith("unfamiliar"):  # the report counts guesses
            assert f"{card.name}: {line}" in printed and f"{card.name}: {line}" in page


def test_serve_says_it(scene: Scene) -> None:
    whole = [episode for episode in open_dataset(str(scene.folder)) if episode.id != "broken"]
    with serve_models([load_model(scene.model)]) as server:
        rewards = RemoteModel(server.url).score(whole)
        live = {}
        for episode in whole:
            run = RemoteModel(server.url).start(episode.instruction)
            for t in range(len(episode)):
                answer = run.step({name: view.take([t])[0] for name, view in episode.views.items()})
            live[episode.id] = (answer.verdict.word, answer.verdict.reason)
    expected = {id: said for id, said in scene.verdicts.items() if id != "broken"}
    assert {one.episode: (one.verdict.word, one.verdict.reason) for one in rewards} == expected
    assert live == expected


class PlayedEnv(gymnasium.Env[Any, Any]):
    """Plays the frames of a recorded episode."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"
    action_space = gymnasium.spaces.Discrete(1)

    def __init__(self, episode: Episode) -> None:
        self.images, self.t = {name: view.all() for name, view in episode.views.items()}, 0
        self.observation_space = gymnasium.spaces.Dict(
            {name: gymnasium.spaces.Box(0, 255, images.shape[1:], np.uint8) for name, images in self.images.items()}
        )

    def _look(self) -> dict[str, Any]:
        return {name: images[self.t] for name, images in self.images.items()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._look(), 0.0, False, self.t == len(next(iter(self.images.values()))) - 1, {}


@pytest.mark.filterwarnings("ignore")
def test_an_environment_says_it(scene: Scene) -> None:
    model, said = load_model(scene.model), {}
    for episode in open_dataset(str(scene.folder)):
        if episode.id == "broken":
            continue
        env = RewardEnv(PlayedEnv(episode), model, episode.instruction, camera={name: name for name in episode.views})
        env.reset()
        is_over = False
        while not is_over:
            *_, is_over, info = env.step(0)
        said[episode.id] = (info["demerit"]["verdict"], info["demerit"]["why_unknown"])
    assert said == {id: one for id, one in scene.verdicts.items() if id != "broken"}


def test_annotate_says_it(scene: Scene, tmp_path: Path) -> None:
    model = load_model(scene.model)
    teacher: Any = SimpleNamespace(dataset=scene.folder, score=lambda episode: model.score([episode])[0], notice=print)
    with (
        closing(Database(f"sqlite:///{tmp_path}/work.db")) as database,
        run_app(database, tmp_path / "cache") as served,
    ):
        whole = [id for id in scene.verdicts if id != "broken"]
        served.app.work.add_items([NewItem("mark", str(scene.folder), id) for id in whole])
        owner, shown = served.enter_owner(), {}
        while (item := owner.next_item("mark")) is not None:
            assert owner.answer(item, success=True).status_code == 200
            served.app.teachers = [teacher]
            facts = owner.send("GET", f"/items/{item}/curve").json()
            served.app.teachers = []
            with database.begin() as db:
                id = db.exec_driver_sql(f"SELECT episode FROM items WHERE id = {item}").scalar_one()
            shown[id] = facts["verdict"]
    assert shown == {reward.episode: str(reward.verdict) for reward in scene.rewards if reward.episode in whole}


def test_the_arena_says_it(scene: Scene, tmp_path: Path) -> None:
    model, instruction = load_model(scene.model), next(iter(open_dataset(str(scene.folder)))).instruction
    whole = [episode for episode in open_dataset(str(scene.folder)) if episode.id != "broken"]
    with closing(Database(f"sqlite:///{tmp_path}/work.db")) as database:
        app = ArenaApp(database, tmp_path / "uploads", [model])
        app.trials.set_policies({"old": "maple", "new": "tulip"})
        ids: dict[tuple[str, str], str] = {}
        with WebServer(app.guard.app) as server, ExitStack() as stack:
            site = Browser(server.url)
            stack.enter_context(site.http)
            site.post(f"/join/{app.accounts.make_link('site')}", name="Lab", password=PASSWORD)
            site.get("/")
            for first, second in (whole[:2], whole[2:]):
                trial = str(site.get("/trial").url).rpartition("/")[2]
                send_file(site, trial, "photo", "left", draw_photo())
                site.send(
                    "POST", f"/trials/{trial}/describe", instruction=instruction, checklist=[True] * len(CHECKLIST)
                )
                for part, episode in (("first", first), ("second", second)):
                    for camera in episode.views:
                        send_file(
                            site, trial, part, camera, (scene.folder.parent / f"{episode.id}-{camera}.mp4").read_bytes()
                        )
                    ids[trial, part] = episode.id
                    site.send("POST", f"/trials/{trial}/reset")
                assert site.send("POST", f"/trials/{trial}/judge", **JUDGEMENT).json() == {"step": "done"}
        list(score_trials(app.trials, model))
        shown = {
            ids[row["id"], part]: (facts["verdict"], facts["why_unknown"])
            for row in make_dump(app.trials, [model.card])["trials"]
            for part, facts in row["model_verdicts"][model.card.name].items()
        }
        app.trials.uploads.decoder.close()
    assert shown == {id: said for id, said in scene.verdicts.items() if id != "broken"}


def draw_photo() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(file, "JPEG")
    return file.getvalue()


def send_file(site: Browser, trial: str, part: str, camera: str, content: bytes) -> None:
    state = site.send("POST", f"/trials/{trial}/uploads", part=part, camera=camera, size=len(content)).json()
    headers = {"x-csrf": site.csrf, "accept": "application/json"}
    answer = site.http.put(f"/uploads/{state['id']}/0", content=content, headers=headers)
    assert answer.json()["is_complete"], answer.text
