"""Labels that people vouch for, the whole way: a chat model writes them, people check them in a browser, and what is
measured and learned from is exactly what was accepted or corrected."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demerit.cli.export import leave_out_rejected
from demerit.data.dataset import Dataset
from demerit.data.episode import TRAINED_SOURCES, Check, Episode, Origin, Outcome, with_check
from demerit.data.formats import open_dataset
from demerit.data.importing import import_dataset
from demerit.data.splits import LabelSelection
from demerit.data.store import Store
from demerit.data.summary import summarize
from demerit.errors import BadInput
from demerit.evaluate.benchmarks import RunOptions, load_benchmark, load_data, run_benchmark
from demerit.llm import ChatClient, Endpoint
from demerit.negatives.relabel import RelabelConfig, relabel
from demerit.people.annotate.team import count_accepted
from demerit.people.annotate.work import draw_sample, make_items, store_labels
from demerit.people.database import Database
from demerit.training.prepared import CorpusPart, count_skipped, hash_labels, prepare
from demerit.training.teach.data import gather_data
from demerit.training.vlm.config import RoboRewardTrainConfig, VLMCorpusPlan
from demerit.use.release import ReleaseConfig, release
from fakes.chat_server import ScriptedServer
from fakes.coded_episodes import Listed
from fakes.people import ServedApp, run_app
from fakes.relabel_author import author, originals_apart

PLAN = VLMCorpusPlan(RoboRewardTrainConfig(most_frames=8))


@pytest.fixture
def relabelled(tmp_path: Path) -> Store:
    """Two originals of a test split and two of a training split, each with two commands and a clip."""
    pairs = zip(originals_apart(tmp_path, 4), ("test", "test", "train", "train"), strict=True)
    episodes = [replace(one, origin=replace(one.origin, split=split)) for one, split in pairs]
    config = RelabelConfig(size=32, grades=(1, 2), clips=(3,), split="source")
    with ScriptedServer(author) as server, ChatClient(Endpoint(server.url, "simulated", key_env="")) as client:
        relabel(Dataset(Listed(episodes), "listed"), tmp_path / "made", client, config)
    return Store(tmp_path / "made")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedApp]:
    database = Database(f"sqlite:///{tmp_path}/work.db")
    with run_app(database, tmp_path / "cache") as app:
        yield app
    database.close()


def measured(folder: Path, **options: Any) -> dict[str, int | None]:
    """Return the grades by which the test split is measured."""
    benchmark = replace(load_benchmark("own@1"), splits=("test",))
    return {one.id: one.grade for one in load_data(benchmark, str(folder), RunOptions(**options)).labels}


def check_in_browser(page: Any, served: ServedApp, plan: dict[str, Check]) -> None:
    """Answer everything as planned, by keys alone; corrections say that it succeeded."""
    for _ in plan:
        page.goto(f"{served.url}/work/verify")
        page.wait_for_selector("body[data-ready]")
        here, (episode,) = page.url, page.evaluate("window.demerit.facts.names")
        keys = {"accepted": "a", "corrected": "s5", "rejected": "r"}[plan[episode]]
        for key in keys:
            page.keyboard.press(key)
        if plan[episode] == "rejected":
            page.keyboard.type("another object")
        if plan[episode] != "accepted":
            page.keyboard.press("Enter")
        page.wait_for_url(lambda url, here=here: url != here)


@pytest.mark.slow
def test_what_people_accept_and_correct_is_measured_and_learned_and_nothing_else(
    relabelled: Store, served: ServedApp, browser: Any, tmp_path: Path
) -> None:
    episodes = list(relabelled.episodes())
    folder, before = relabelled.root, hash_labels(open_dataset(str(relabelled.root)))
    with pytest.raises(BadInput, match="unverified"):
        measured(folder)
    assert len(measured(folder, unverified=True)) == 6
    fates: tuple[Check, ...] = ("accepted", "corrected", "rejected")
    tests = [episode.id for episode in episodes if episode.check == "due"]
    trained = [episode.id for episode in episodes if episode.origin.split == "train"]
    plan: dict[str, Check] = {id: fates[place % 3] for place, id in enumerate([*tests, *trained])}

    served.app.work.add_items(make_items(relabelled, ["verify"]))
    page = browser.new_context().new_page()
    page.goto(f"{served.url}/enter/{served.app.accounts.make_link('owner', served.app.accounts.ensure_owner('ada'))}")
    page.goto(f"{served.url}/work/verify")
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#rubric dt").count() == 5
    page.click("#reasons summary")
    assert page.is_visible("#reasons blockquote")  # what the validator said
    check_in_browser(page, served, plan)
    page.goto(f"{served.url}/team")
    assert "4 of 12" in page.inner_text("#accepted")
    page.context.close()
    served.app.stop()

    after = {episode.id: episode for episode in Store(folder).episodes()}
    assert {id: episode.check for id, episode in after.items()} == plan
    for id, episode in after.items():
        assert episode.origin.tags["human_check_by"] == "ada" and episode.origin.tags["human_check_at"]
        was = next(one for one in episodes if one.id == id)
        assert [one for one in episode.outcomes if one.source != "human"] == list(was.outcomes)  # nothing is lost
        assert (episode.labels == ()) == (plan[id] == "rejected") == ("human_check_why" in episode.origin.tags)
    right = {
        id: 5 if plan[id] == "corrected" else after[id].outcomes[-1].grade for id in after if plan[id] != "rejected"
    }

    assert measured(folder) == measured(folder, unverified=True) == {id: right[id] for id in tests if id in right}
    dataset = open_dataset(str(folder))
    corpus = prepare([CorpusPart("made", dataset)], tmp_path / "corpus", PLAN, workers=0)
    assert {row.id: row.grade for row in corpus.rows} == {id: right[id] for id in trained if id in right}
    assert count_skipped(tmp_path / "corpus")["rejected by a person"] == 2
    taught = gather_data(dataset, selection=LabelSelection(TRAINED_SOURCES, use_test_split=True))
    assert {id: label.grade for id, label in taught.labels.items()} == right
    assert hash_labels(dataset) != before  # what was prepared from the labels before is not used again
    assert dict(summarize(dataset).checks) == dict.fromkeys(fates, 4)
    kept, rejected = leave_out_rejected(dataset)
    assert rejected == 4 and {episode.id for episode in kept} == right.keys()
    release(dataset, tmp_path / "released", ReleaseConfig(licence="CC-BY-4.0"))
    assert len(Store(tmp_path / "released")) == len(right)


# Without a browser


def labelled(make_episode: Any, id: str, check: Check, *outcomes: Outcome, split: str = "test") -> Episode:
    episode = replace(make_episode(id), outcomes=outcomes, origin=Origin(split=split))
    return with_check(episode, check, "ada" if check else "", "2026-01-01", "why not")


MODEL, EDIT, HUMAN = Outcome("model", grade=1, by="m"), Outcome("edit", grade=2), Outcome("human", grade=3, by="ada")
ALL = (MODEL, EDIT, HUMAN)


@pytest.mark.parametrize(
    ("check", "holds"),
    [("", ALL), ("due", ALL), ("accepted", ALL), ("corrected", (HUMAN,)), ("rejected", ())],
)
def test_labels_that_hold(make_episode: Any, tmp_path: Path, check: Check, holds: tuple[Outcome, ...]) -> None:
    episode = labelled(make_episode, "a", check, *ALL)
    assert episode.labels == holds and episode.outcome == (HUMAN if holds else None)
    import_dataset(Dataset(Listed([episode])), tmp_path / "set")
    stored = Store(tmp_path / "set")
    assert stored.episode("a").outcomes == ALL and stored.episode("a").labels == holds
    assert stored.columns(["grade"]).to_pydict() == {"grade": [3 if holds else None]}
    with stored.writer() as writer:  # a later label of a model is kept, and holds no more than the others
        writer.relabel({"a": [*episode.outcomes, Outcome("model", grade=5, by="n")]})
    assert len(Store(stored.root).episode("a").outcomes) == 4
    assert Store(stored.root).columns(["grade"]).to_pydict() == {"grade": [3 if holds else None]}
    # the source does not know what people said: a later import keeps it
    import_dataset(Dataset(Listed([replace(episode, origin=Origin(split="test"))])), stored.root)
    assert Store(stored.root).episode("a").check == check


def test_a_word_of_somebody_else_is_no_check(make_episode: Any) -> None:
    tags = {"human_check": "looks fine to me"}
    assert replace(make_episode("a"), origin=Origin(tags=tags)).check == "due"


def test_the_report_says_how_many_labels_nobody_checked(make_episode: Any, tmp_path: Path) -> None:
    episodes = [labelled(make_episode, f"e{i}", "due" if i < 3 else "accepted", HUMAN) for i in range(5)]
    dataset = Dataset(Listed([*episodes, labelled(make_episode, "gone", "rejected", HUMAN)]))
    for unverified, count in ((False, 2), (True, 5)):
        options = RunOptions(unverified=unverified, controls=False, perturbations=False, workers=0)
        report = run_benchmark(load_benchmark("own@1"), ["clock"], dataset, tmp_path / str(count), options)
        assert len(report.episodes) == count
        assert any("3 of 5" in caution for caution in report.cautions) == unverified
        assert any("1 episode" in warning and "rejected" in warning for warning in report.warnings)
        assert any("3 episodes" in warning for warning in report.warnings) != unverified


def test_a_sample_has_every_subset_and_grade_in_proportion_and_stays_the_same(make_episode: Any) -> None:
    episodes = []
    for place in range(120):
        origin = Origin(tags={"subset": "large" if place % 4 else "small"})
        outcome = Outcome("model", grade=1 + place % 3, by="m")
        episodes.append(replace(make_episode(f"e{place}"), outcomes=(outcome,), origin=origin))
    drawn = draw_sample(episodes, 24)
    counts: dict[tuple[str, int | None], int] = {}
    for episode in episodes:
        if episode.id in drawn:
            key = (episode.origin.tags["subset"], episode.outcomes[0].grade)
            counts[key] = counts.get(key, 0) + 1
    assert counts == {("small", g): 2 for g in (1, 2, 3)} | {("large", g): 6 for g in (1, 2, 3)}
    answered = [with_check(replace(one, outcomes=(HUMAN, *one.outcomes)), "accepted", "ada") for one in episodes]
    assert draw_sample(reversed(answered), 24) == drawn != draw_sample(episodes, 24, seed=1)
    assert len(draw_sample(episodes, 500)) == 120 and draw_sample([], 5) == set()


def test_only_the_sample_is_asked_and_its_agreement_has_an_interval(relabelled: Store, served: ServedApp) -> None:
    assert served.app.work.add_items(make_items(relabelled, ["verify", "mark"], sample=5)) == 5
    me = served.enter_owner("ada")
    for place in range(5):
        item = me.next_item("verify")
        assert item is not None
        facts = me.get(f"/items/{item}").text
        assert "What the grades mean" in facts
        answer = me.answer(item, verdict="reject", note="no") if place else me.answer(item, **shown(served, item))
        assert answer.status_code == 200
    assert me.next_item("verify") is None
    accepted = count_accepted(served.app.database)
    assert (accepted.hits, accepted.n) == (1, 5) and accepted.low < 0.2 < accepted.high


def shown(served: ServedApp, item: int) -> dict[str, Any]:
    with served.app.database.begin() as db:
        dataset, id = db.exec_driver_sql(f"SELECT dataset, episode FROM items WHERE id = {item}").one()
    label = next(one for one in Store(dataset).episode(id).outcomes)
    return {"verdict": "accept", "success": label.success, "grade": label.grade, "progress": label.progress}


def test_a_correction_that_repeats_the_label_accepts_it(relabelled: Store, served: ServedApp) -> None:
    served.app.work.add_items(make_items(relabelled, ["verify"]))
    me = served.enter_owner("ada")
    item = me.next_item("verify")
    assert item is not None
    assert me.answer(item, verdict="correct", grade=shown(served, item)["grade"]).status_code == 200
    accepted = count_accepted(served.app.database)
    assert (accepted.hits, accepted.n) == (1, 1)


def test_one_rejection_among_several_people_waits_for_an_owner(relabelled: Store, served: ServedApp) -> None:
    served.app.stop()  # the pages go on; what they store is written below, one step at a time
    id = next(episode.id for episode in relabelled.episodes() if episode.check == "due")
    served.app.work.add_items([one for one in make_items(relabelled, ["verify"]) if one.episode == id], wanted=3)
    raters = [served.join_rater(name) for name in ("ben", "eve")]
    item = raters[0].next_item("verify")
    assert item is not None and raters[1].next_item("verify") == item
    raters[0].answer(item, **shown(served, item))
    raters[1].answer(item, verdict="reject", note="no")

    def state() -> Check:
        store_labels(served.app.database)
        return Store(relabelled.root).episode(id).check

    assert state() == "due"
    owner = served.enter_owner("ada")
    assert id in owner.get("/disagreements").text
    owner.post(f"/disagreements/{item}")
    owner.answer(item, verdict="reject", note="no")
    assert state() == "rejected"
