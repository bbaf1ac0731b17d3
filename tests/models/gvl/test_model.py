"""GVL over real HTTP, against a scripted server."""

import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from demerit import import_dataset, open_dataset
from demerit.cli import app
from demerit.data.dataset import Dataset
from demerit.data.episode import Outcome, Preference
from demerit.data.frames import short_hash, spread
from demerit.errors import BadInput, StoreError, UnknownName
from demerit.evaluate.reports.report import About, Report, ScoredUnder
from demerit.llm.options import FROM_ENVIRONMENT, variable_of
from demerit.models import load_model
from demerit.models.check import check_model
from demerit.models.gvl import GVLConfig
from demerit.models.gvl.library import Library
from demerit.models.gvl.model import GVL, EpisodeAnswers
from demerit.models.score import score_missing
from fakes.chat_server import Faults, Request, ScriptedServer
from fakes.prompted import Watcher, colour, coloured, entries, failed, frames_to_rate, gvl, images_of, is_feedback
from fakes.prompted import close_models as _close_models  # noqa: F401


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in FROM_ENVIRONMENT:
        monkeypatch.delenv(variable_of(option), raising=False)


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
def server(watcher: Watcher) -> Iterator[ScriptedServer]:
    with ScriptedServer(watcher) as running:
        yield running


def test_the_request_holds_the_right_frames_as_rgb(server: ScriptedServer, watcher: Watcher, tmp_path: Path) -> None:
    episode = coloured("one", frames=25)
    reward = gvl(server, tmp_path, frames=8, size=16).score([episode])[0]
    pictures = images_of(watcher.requests[0])
    wanted = spread(25, 8).tolist()
    assert [one.role for one in pictures] == ["anchor", *["frame"] * 7]
    assert pictures[0].index == 0
    assert [one.number for one in pictures[1:]] == list(range(1, 8))
    order = [one.index for one in pictures[1:]]
    assert sorted(order) == wanted[1:] and order != wanted[1:]
    for one in pictures:
        assert one.mode == "RGB" and one.size == (16, 12)
        assert np.abs(np.subtract(one.rgb, colour(one.index))).max() <= 2
    # the scripted model reads time off the colour: aligned by number, the values rise again
    assert reward.at.tolist() == wanted
    assert reward.value == pytest.approx(np.array(wanted) * 0.04, abs=1e-6)


def test_the_order_depends_on_what_is_seen_only(server: ScriptedServer, watcher: Watcher, tmp_path: Path) -> None:
    model = gvl(server, tmp_path, samples=2, frames=12)
    one = coloured("one")
    model.score([one, coloured("two", blue=90)])
    asked = len(watcher.requests)
    model.score([replace(one, id="another name", outcomes=(failed("it dropped it"),))])
    assert len(watcher.requests) == asked == 4, "the same pixels and words are the same question: nothing is sent"
    orders = {tuple(picture.index for picture in frames_to_rate(request).values()) for request in watcher.requests}
    assert len(orders) == 4, "every sample and every episode has an order of its own"


def test_labels_never_reach_the_prompt(server: ScriptedServer, watcher: Watcher, tmp_path: Path) -> None:
    marked = coloured("one", outcomes=(failed("SECRET NOTE", curve=np.full(20, 0.1)),))
    other = coloured("other", blue=90, outcomes=(failed("the cup fell"),))
    preference = Preference("one", "other", "b", "human", why="SECRET REASON")
    gvl(server, tmp_path, "dense", examples=[marked, other, preference]).score([marked])
    gvl(server, tmp_path, "text", examples=[marked, coloured("third", blue=120)]).score([marked])
    assert watcher.requests
    assert not any("SECRET" in request.text for request in watcher.requests)
    assert {one.blue for request in watcher.about_rollouts for one in images_of(request)} <= set(range(36, 45))


def test_entries_that_cannot_be_read_are_unscored(tmp_path: Path) -> None:
    perfect = {n: 10 * n for n in range(1, 8)}
    said = entries({**{n: value for n, value in perfect.items() if n != 3}, 2: 140, 99: 5})
    watcher = Watcher(lambda request, shown: said)
    with ScriptedServer(watcher) as server:
        reward = gvl(server, tmp_path, frames=8).score([coloured("one")])[0]
    shown = {number: image.index for number, image in frames_to_rate(watcher.requests[0]).items()}
    value = dict(zip(reward.at.tolist(), reward.value.tolist(), strict=True))
    for number, index in shown.items():
        assert value[index] == pytest.approx(np.nan if number in (2, 3) else perfect[number] / 100, nan_ok=True)
    assert "missing" in reward.why_missing and "140" in reward.why_missing
    assert reward.given["ignored entries"] == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("refusal", "refused"),
        ("nonsense", "unreadable"),
        ("empty", "unreadable"),
        ("length", "cut off"),
        ("garbage", "failed"),
        ("gateway", "failed"),
    ],
)
def test_an_unusable_answer_leaves_the_episode_unscored(fault: str, kind: str, tmp_path: Path) -> None:
    with ScriptedServer(Watcher(), Faults(script=[fault])) as server:
        reward = gvl(server, tmp_path).score([coloured("one")])[0]
    assert not reward.scored and len(reward.at) == 0, "the anchor's 0 alone is not a score"
    assert reward.why_missing.startswith(kind)


def test_an_unusable_answer_among_others_is_listed(tmp_path: Path) -> None:
    with ScriptedServer(Watcher(), Faults(script=["refusal"])) as server:
        reward = gvl(server, tmp_path, samples=2, concurrency=1).score([coloured("one")])[0]
    assert reward.scored and not reward.why_missing and reward.given["answers"] == 1
    assert reward.given["unanswered"][0].startswith("refused")
    assert reward.given["spread"] is None, "one answer has no spread"
    examples = [coloured("x", blue=90, outcomes=(failed("the cup fell"),))]
    with ScriptedServer(Watcher(), Faults(script=["refusal"])) as server:
        reward = gvl(server, tmp_path, "text", examples=examples).score([coloured("two", blue=70)])[0]
    assert reward.scored and "refused" in reward.given["lacking"][0]


def test_several_samples_give_mean_and_spread(tmp_path: Path) -> None:
    def noisy(request: Any, shown: Any) -> Any:
        rated = {n: image for n, image in shown.items() if request.seed != 2 or image.index != 19}
        return entries({n: 4 * image.index + 5 * request.seed for n, image in rated.items()})

    with ScriptedServer(Watcher(noisy)) as server:
        reward = gvl(server, tmp_path, "none,samples=3", frames=6).score([coloured("one")])[0]
    added = np.array([0.0, 0.05, 0.10])
    assert reward.value[1:-1] == pytest.approx(0.04 * reward.at[1:-1] + added.mean(), abs=1e-6)
    assert reward.value[[0, -1]] == pytest.approx([0, 0.76 + added[:2].mean()], abs=1e-6)
    assert reward.given["spread per frame"][1:] == pytest.approx([added.std()] * 4 + [added[:2].std()], abs=1e-4)
    assert reward.given["answers per frame"] == [3, 3, 3, 3, 3, 2]
    assert reward.given["samples"] == reward.given["answers"] == 3


def test_episodes_that_cannot_be_asked_about(server: ScriptedServer, watcher: Watcher, tmp_path: Path) -> None:
    rewards = gvl(server, tmp_path).score([coloured("a", frames=1), coloured("b", instruction="  "), coloured("c")])
    assert [reward.scored for reward in rewards] == [False, False, True]
    assert "one frame" in rewards[0].why_missing and "no instruction" in rewards[1].why_missing
    assert len(watcher.requests) == 1


def test_the_conformance_check(server: ScriptedServer, tmp_path: Path) -> None:
    assert check_model(gvl(server, tmp_path, samples=2)).broken == []


def test_the_card_covers_what_changes_answers(server: ScriptedServer, tmp_path: Path) -> None:
    plain = gvl(server, tmp_path)
    card = gvl(server, tmp_path, frames=9, size=99, samples=3).card
    assert (card.name, card.frame_budget, card.causal, card.comparable) == ("gvl", 9, False, True)
    assert "simulated" in card.revision
    examples = [coloured("other", outcomes=(failed("it fell"),))]
    more = [*examples, coloured("third", outcomes=(failed("it broke"),))]
    cards = [
        plain.card,
        card,
        gvl(server, tmp_path, model="another").card,
        gvl(server, tmp_path, temperature=0.1).card,
        *(gvl(server, tmp_path, context, examples=examples).card for context in ("text", "video", "dense")),
        gvl(server, tmp_path, "text", examples=more).card,
    ]
    assert len({one.hash() for one in cards}) == len(cards), "whatever changes the answers makes another model"
    assert [one.name for one in cards[4:7]] == ["gvl+text", "gvl+video", "gvl+dense"]
    same = gvl(server, tmp_path, concurrency=3, price_in=1.0, price_out=2.0, timeout=5.0, schema_mode="none")
    assert same.card == plain.card, "where it runs and what it costs does not"


def test_an_estimate_sends_nothing(server: ScriptedServer, watcher: Watcher, tmp_path: Path) -> None:
    examples = [coloured(f"x{i}", blue=90 + i, outcomes=(failed(f"it fell {i}"),)) for i in range(4)]
    model = gvl(server, tmp_path, "video", examples=examples, frames=6, samples=2, price_in=2.0, price_out=8.0)
    found = model.estimate(coloured(f"e{i}", blue=i) for i in range(20))
    assert watcher.requests == [] and (found.episodes, found.looked_at) == (20, 8)
    # Every episode: 2 samples of 6 frames and 2 examples of 4 images; one more request for each set of remarks.
    assert found.estimate.images == 20 * 2 * (6 + 2 * 4) and found.estimate.requests >= 40
    assert found.estimate.cost is not None and found.estimate.cost > 0
    model.score([coloured("e0", blue=0)])
    again = model.estimate([coloured("e0", blue=0)]).estimate
    assert (again.requests, again.cached) == (3, 3), "what is cached is free, its context included"
    assert model.spent.answers == 3 and model.estimate([]).estimate.requests == 0


def test_contents_of_each_context(server: ScriptedServer, watcher: Watcher, tmp_path: Path) -> None:
    curve = np.full(20, np.nan)
    curve[[0, 6, 12, 19]] = [0, 0.3, 0.2, 0.05]
    distilled = Outcome("model", curve=curve, by="gvl simulated")
    examples = [
        coloured("bad", blue=90, outcomes=(failed("the cup fell off the table"), distilled)),
        coloured("good", blue=130, outcomes=(Outcome("human", success=True),)),
        Preference("bad", "good", "b", "human"),
    ]
    found = {}
    for context in ("none", "text", "video", "dense"):
        watcher.requests.clear()
        reward = gvl(server, tmp_path, context, examples=Library(examples)).score([coloured("one")])[0]
        request = watcher.about_rollouts[0]
        found[context] = (request.text, [one for one in images_of(request) if one.blue > 80], reward.given)
        assert reward.given["context"] == context
    assert "dropped" not in found["none"][0] and found["none"][1] == []
    for context in ("text", "video", "dense"):
        text, pictures, given = found[context]
        assert "1. The cup is dropped." in text and "2. The robot stops half-way." in text
        assert given["failure descriptions"] == ["The cup is dropped.", "The robot stops half-way."]
        assert given["described by"] == "people" and "lacking" not in given
        assert {abs(one.blue - 90) <= 2 for one in pictures} <= {True}
    assert found["text"][1] == []
    assert [one.role for one in found["video"][1]] == ["failure"] * 4
    values = {one.index: one.percent for one in found["dense"][1] if one.role == "reference"}
    assert values == {0: 0, 6: 30, 12: 20, 19: 5}
    assert found["dense"][2]["references"] == [{"episode": "bad", "curve": "gvl simulated"}]
    assert found["dense"][2]["failures shown"] == ["bad"]


def test_settings_from_the_name_and_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"DEMERIT_CHAT_URL.*DEMERIT_CHAT_MODEL"):
        load_model("gvl")
    for name, value in {"URL": "http://localhost:1/v1", "MODEL": "some-model", "PRICE_IN": "1.5"}.items():
        monkeypatch.setenv(f"DEMERIT_CHAT_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = load_model("gvl:samples=3, frames=5")
    assert isinstance(model, GVL) and model.client.endpoint.model == "some-model"
    assert (model.config.samples, model.config.frames, model.config.price_in) == (3, 5, 1.5)
    assert (tmp_path / "demerit").is_dir()
    model.close()
    for name in ("samples=many", "sampels=3", "pictures", "frames=1", "text", f"text,examples={tmp_path}"):
        with pytest.raises((BadInput, UnknownName)):
            load_model(f"gvl:{name}")


def test_two_contexts_in_one_bench_run(
    server: ScriptedServer, watcher: Watcher, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [
        "bench",
        "own",
        "--data",
        str(sample),
        "--out",
        str(tmp_path / "out"),
        "--limit",
        "2",
        "--set",
        "embed=0",
    ]
    command += ["--set", "as-recorded=true", "--no-controls", "--set", "resamples=10", "--workers", "0"]
    command += ["--model", "gvl:frames=3", "--model", f"gvl:text,frames=3,examples={tmp_path / 'store'}"]
    import_dataset(open_dataset(str(sample)), tmp_path / "store")
    lost = CliRunner().invoke(app, command)
    assert lost.exit_code == 1 and "DEMERIT_CHAT_URL" in lost.output
    for variable, value in (("URL", server.url), ("MODEL", "simulated"), ("CACHE", str(tmp_path / "answers"))):
        monkeypatch.setenv(f"DEMERIT_CHAT_{variable}", value)
    dry = CliRunner().invoke(app, [*command, "--dry-run"])
    assert dry.exit_code == 0 and not watcher.requests, dry.output
    run = CliRunner().invoke(app, command, env={"COLUMNS": "400"})
    assert run.exit_code == 0, run.output
    assert run.output.count("Requests:") == 1, "both models share one client"
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [card["name"] for card in report["cards"]] == ["gvl", "gvl+text"]
    written = (tmp_path / "out" / "generations.jsonl").read_text()
    lines = [json.loads(line) for line in written.splitlines()]
    assert Counter((line["model"], line["about"]) for line in lines) == {
        ("gvl", "sample 0"): 2, ("gvl+text", "sample 0"): 2, ("gvl+text", "failure descriptions"): 2
    }  # fmt: skip
    assert {line["episode"] for line in lines} == {episode["id"] for episode in report["episodes"]}
    assert all('"frames"' in line["answer"] for line in lines if line["about"] == "sample 0")
    assert "generations.jsonl" in (tmp_path / "out" / "report.html").read_text()
    assert "failure descriptions" in written and '"answer"' not in json.dumps(report), "not in the report itself"
    sent = len(watcher.requests)
    assert CliRunner().invoke(app, command).exit_code == 0 and len(watcher.requests) == sent
    assert (tmp_path / "out" / "generations.jsonl").read_text() == written, "a run that resumes has the same answers"


def test_models_of_one_server_share_client_cache_and_budget(server: ScriptedServer, tmp_path: Path) -> None:
    limits = {"price_in": 1.0, "price_out": 1.0, "budget": 0.5}
    plain = gvl(server, tmp_path, **limits)
    examples = [coloured("bad", blue=90, outcomes=(failed("it fell"),))]
    other = gvl(server, tmp_path, "text", examples=examples, **limits)
    assert plain.client is other.client
    assert gvl(server, tmp_path, **{**limits, "budget": 0.6}).client is not plain.client
    plain.client.stop("the budget is used up")
    assert not other.score([coloured("one")])[0].scored
    assert gvl(server, tmp_path, **limits).client is not plain.client, "a stopped client is not handed out again"


def test_cards_and_prompts_stay_as_they_are() -> None:
    """Stored rewards are found by the cards' hashes, and paid answers by what is sent."""
    examples = [coloured("other", outcomes=(failed("it fell"),)), coloured("third", blue=90, outcomes=(failed("x"),))]
    hashes = {"none": "d672b167663a79b4cd0a257a7ce5ad8f", "dense": "79c4b072ae3512f0708cff642cdf9a0c"}
    texts = {"none": "0fef227352d077603733bb78dd0f8497", "dense": "658a8047361afcd1daa685f27c762883"}
    for context, wanted in hashes.items():
        model = GVL(context, url="http://localhost:1/v1", model="mm", cache="off", examples=examples, samples=2)
        assert model.card.hash() == wanted
        episode = coloured("one", blue=30)
        answers = [EpisodeAnswers(episode, one, [None]) for one in model.prompter.contexts([episode], offline=True)]
        (request,) = model.prompter.requests(answers, 0.6, [])
        parts = [part for message in request.messages for part in (message.role, *message.parts)]
        sent = [part.encode() if isinstance(part, str) else b"an image" for part in parts]
        assert short_hash(*sent) == texts[context]


OWN = """System:
You rate.
---
Task: {task}. The start: {first_frame}
---
Beware of {failure}, {number}.
---
Look at {count} frames. Answer with a list of {"frame_number": 1, "task_reward": 50}.
Frame {number}: {frame}
"""


@pytest.mark.parametrize("form", ["list", "fenced", "object"])
def test_a_prompt_of_ones_own(form: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(OWN)

    def rate(request: Request) -> str:
        requests.append(request)
        if is_feedback(request):
            return '{"failures": ["a fall"]}'
        indices = [round((float(red) - 10) / 8) for red in reds_of(request)[1:]]
        said = json.dumps([{"frame_number": n, "task_reward": 4 * index} for n, index in enumerate(indices, 1)])
        return {"list": said, "fenced": f"Here:\n```json\n{said}\n```", "object": f'{{"rewards": {said}}}'}[form]

    requests: list[Request] = []
    examples = [coloured("x", blue=90, outcomes=(failed("the cup fell"),))]
    with ScriptedServer(rate) as server:
        model = gvl(server, tmp_path, f"text,prompt={path}", examples=examples, frames=8, size=16)
        reward = model.score([coloured("one", frames=25)])[0]
        wanted = spread(25, 8).tolist()
        assert reward.at.tolist() == wanted and reward.value == pytest.approx(np.array(wanted) * 0.04, abs=1e-6)
        asked = requests[-1]
        assert "response_format" not in asked.body and len(asked.body["messages"]) == 2, "no word but the user's"
        texts = ["You rate.", "Task: put the cup away. The start:", "Beware of a fall, 1.", "Look at 7 frames."]
        assert all(text in asked.text for text in texts)
        plain = gvl(server, tmp_path, "text", examples=examples, frames=8, size=16)
        assert model.card.name == "gvl+text+mine" and plain.card.name == "gvl+text"
        assert reward.given["prompt"].startswith("mine.txt ") and reward.given["prompt"] in model.card.revision
        path.write_text(OWN + "Be quick.")
        changed = gvl(server, tmp_path, f"text,prompt={path}", examples=examples, frames=8, size=16)
        assert len({model.card.hash(), plain.card.hash(), changed.card.hash()}) == 3, "stored rewards become stale"


def reds_of(request: Request) -> list[float]:
    return [float(np.asarray(Image.open(io.BytesIO(image)))[..., 0].mean()) for image in request.images]


@pytest.mark.parametrize("said", ["Frame 1: 50%", "[1, 2]", '{"a": [], "b": []}', "{}", "7", "[" * 5000, "null"])
def test_an_answer_to_ones_own_prompt_that_is_no_list_of_frames(said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(OWN)
    with ScriptedServer(lambda request: said) as server:
        reward = gvl(server, tmp_path, f"prompt={path}", frames=4).score([coloured("one")])[0]
    assert not reward.scored and reward.why_missing.startswith("unreadable")
    assert [(one["answer"], one["why_not"]) for one in reward.given["generations"]] == [(said, reward.why_missing)]


def test_same_task_needs_examples(server: ScriptedServer, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="same_task"):
        gvl(server, tmp_path, same_task=True)


def arena_session() -> list[Any]:
    """Two rollouts of one task in one session, and a task like it elsewhere."""
    curve = Outcome("model", curve=np.linspace(0, 0.5, 20), by="gvl simulated")
    good = coloured("good", blue=60, group="s", outcomes=(Outcome("human", success=True, note="on good"),))
    bad = coloured("bad", blue=90, group="s", outcomes=(failed("on bad"), curve))
    other = coloured("other", blue=120, instruction="put the cup down", outcomes=(failed("on other"), curve))
    return [good, bad, other, Preference("good", "bad", "a", "human", why="why good won")]


@pytest.mark.parametrize(
    ("evaluated", "same_task", "remarks", "blues"),
    [
        ("good", False, ["on other"], {60, 120}),
        ("good", True, ["on bad", "why good won"], {60, 90}),
        ("bad", True, ["on good", "why good won"], {90}),
    ],
)
def test_examples_of_the_same_task_are_those_of_the_paper(
    evaluated: str, same_task: bool, remarks: list[str], blues: set[int], server: ScriptedServer, watcher: Watcher,
    tmp_path: Path,
) -> None:  # fmt: skip
    records = arena_session()
    model = gvl(server, tmp_path, "dense", examples=records, same_task=same_task, frames=4)
    episode = next(one for one in records if one.id == evaluated)
    reward = model.score([episode])[0]
    (feedback,) = [request.text for request in watcher.requests if is_feedback(request)]
    everything = ["on good", "on bad", "on other", "why good won"]
    assert sorted(text for text in everything if text in feedback) == remarks
    (asked,) = watcher.about_rollouts
    found = {min(blues, key=lambda blue: abs(blue - one.blue)) for one in images_of(asked)}
    assert found == blues and all(min(abs(one.blue - blue) for blue in blues) < 5 for one in images_of(asked))
    assert reward.given["examples"] == ("of the same task" if same_task else "unrelated")
    assert ("same-task" in model.card.name) == same_task == ("evaluated task" in model.card.about)
    shown = [one["episode"] for one in reward.given.get("references", [])] + reward.given.get("failures shown", [])
    assert evaluated not in shown, "never the rollout itself"
    report = Report(About("arena@1", "none"), (model.card,), (), (), rewards=(ScoredUnder(reward),))
    assert [model.card.name in caution for caution in report.cautions] == [True] * same_task


def test_raw_answers_are_kept_beside_the_rewards(tmp_path: Path) -> None:
    episodes = [coloured(id, blue=blue) for id, blue in (("one", 40), ("two", 70), ("three", 100))]
    examples = [coloured("x", blue=200, outcomes=(failed("the cup fell"),))]
    said = {40: "nonsense {", 70: "", 100: json.dumps(entries({1: 10, 2: 20}))}

    def answer(request: Request, shown: Any) -> str:
        return said[min(said, key=lambda blue: abs(blue - shown[1].blue))]

    with ScriptedServer(Watcher(answer)) as server:
        model = gvl(server, tmp_path, "text,frames=3", examples=examples)
        scored = score_missing(Dataset.from_episodes(episodes), model, tmp_path / "rewards", workers=0)
        rewards = {reward.episode: reward for reward in scored.store}
        kept = {(id, one["about"]): one for id, one in scored.store.generations()}
        assert {id: kept[id, "sample 0"]["answer"] for id in ("one", "two", "three")} == {
            episode.id: text for episode, text in zip(episodes, said.values(), strict=True)
        }
        assert all("The cup is dropped." in kept[id, "failure descriptions"]["answer"] for id in rewards)
        assert [reward.scored for reward in rewards.values()] == [False, False, True]
        assert all(reward.why_missing for reward in rewards.values() if not reward.scored)
        assert not any("generations" in reward.given for reward in rewards.values()), "they do not bloat rewards"
        said[70] = "now nonsense"
        model = gvl(server, tmp_path, "text,frames=3", examples=examples, cache="off")
        again = score_missing(Dataset.from_episodes(episodes), model, tmp_path / "rewards", workers=0, retry=True)
        newest = {(id, one["about"]): one["answer"] for id, one in again.store.generations()}
        assert newest["two", "sample 0"] == "now nonsense" and len(newest) == 6, "a new attempt replaces the old one"
        assert newest["three", "sample 0"] == said[100]


@pytest.mark.parametrize("cache", ["{}/file/answers.sqlite", "~nobody-of-that-name/answers.sqlite", "{}/a\0b/answers"])
def test_a_cache_file_that_cannot_be_made(tmp_path: Path, cache: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="DEMERIT_CHAT_CACHE"):
        GVLConfig(cache=cache.format(tmp_path)).cache_file()


def test_remarks_are_distilled_once_and_cached(tmp_path: Path) -> None:
    watcher = Watcher()
    examples = [coloured("x", blue=90, outcomes=(failed("  the cup\n fell  "),), group="s"), coloured("y", blue=110)]
    examples += [coloured("z", blue=130, outcomes=(failed("the cup fell"),), group="s")]
    with ScriptedServer(watcher) as server:
        model = gvl(server, tmp_path, "text", examples=examples)
        model.score([coloured(f"e{i}", blue=i) for i in range(5)])
        asked = [one for one in watcher.requests if is_feedback(one)]
        assert len(asked) == 1 and asked[0].text.count("the cup fell") == 1
        assert asked[0].body["temperature"] == 0
        gvl(server, tmp_path, "video", examples=examples).score([coloured("e9", blue=9)])
    assert sum(map(is_feedback, watcher.requests)) == 1, "another context has the same descriptions"
