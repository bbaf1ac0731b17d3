"""Teaching as a whole, on a fake network: what comes of every kind of label, and what is refused with a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import demerit
from demerit.data.dataset import Record
from demerit.data.episode import Episode
from demerit.data.formats import open_dataset
from demerit.data.formats.lerobot.writer import write_lerobot
from demerit.data.frames import Frames
from demerit.data.labels import Outcome, Preference
from demerit.errors import BadInput, DemeritError, StoreError
from demerit.evaluate.benchmarks.run import recompute
from demerit.evaluate.reports.report import Report
from demerit.models import load_model
from demerit.models.check import check_model
from demerit.models.protocol import Comparer, Online, Prepares
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, score
from demerit.models.taught.features import FeatureStream, stream_features, stride_indices
from demerit.training.teach import TeachConfig, TeachOutcome, features, teach
from demerit.training.teach.data import TeachLabel, gather_data
from demerit.training.teach.features import EmbeddedEpisode, choose_stride, frame_budget
from demerit.training.teach.report import write_teach_page
from demerit.training.teach.training_set import group_episodes, move_label, name_tasks
from fakes import lesson_data as data
from fakes.fake_network import FakeNetwork

QUICK = TeachConfig(folds=4, rows=12, views=1)


def taught(records: Sequence[Record], out: Path | None = None, **options: object) -> TeachOutcome:
    given = {"network": FakeNetwork(), "config": QUICK, "workers": 0, **options}
    return teach(data.dataset(records), out, **given)  # type: ignore[arg-type]


def finals(result: TeachOutcome, episodes: Sequence[Episode]) -> np.ndarray:
    return np.array([reward.final for reward in result.model.score(episodes)])


def refused(records: Sequence[Record], **options: object) -> str:
    with pytest.raises(DemeritError) as caught:
        taught(records, **options)
    return str(caught.value)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[TeachOutcome, Path]:
    folder = tmp_path_factory.mktemp("taught") / "squares"
    return taught([*data.episodes(6, 6), *data.episodes(2, 2, data.unlabelled, first=20)], folder, risk=0.2), folder


LABELS = [data.dense, data.verdict, data.graded, data.marked, data.with_events]


@pytest.mark.parametrize("labelled", LABELS, ids=lambda one: one.__name__)
def test_every_kind_of_label_teaches(labelled: data.Labelling) -> None:
    result = taught(data.episodes(4, 4, labelled))
    good, bad = data.episodes(5, 0, first=30), data.episodes(0, 5, first=30)
    assert finals(result, good).min() > finals(result, bad).mean() + 0.1
    assert finals(result, good).mean() > 0.6


def test_successes_alone_teach_and_the_report_says_what_failures_would_add() -> None:
    result = taught(data.episodes(4, 0))
    assert finals(result, data.episodes(5, 0, first=30)).mean() > 0.7
    assert finals(result, data.episodes(0, 5, first=30)).mean() < 0.6
    assert "Label failures" in result.results.advice[0]
    assert result.model.config.threshold is None
    assert "no failure is labelled" in result.results.calibration.note
    assert result.results.title == "Taught, and not yet tested"


def test_preferences_alone_teach_an_order() -> None:
    episodes = data.episodes(5, 5, data.unlabelled)
    good, bad = episodes[::2], episodes[1::2]
    choices = [Preference(a.id, b.id, "a", "human") for a, b in zip(good, bad, strict=True)]
    choices += [Preference(b.id, a.id, "b", "human") for a, b in zip(good, bad[1:], strict=False)]
    choices += [Preference(good[0].id, good[1].id, "tie", "human")]
    result = taught([*episodes, *choices])
    assert finals(result, data.episodes(5, 0, first=30)).mean() > finals(result, data.episodes(0, 5, first=30)).mean()
    measured = result.results.measure("judgement_agreement")
    assert measured is not None
    assert measured.value > 0.6
    assert any("the level of a finished task is not known" in one for one in result.results.advice)


def test_figures_are_of_left_out_episodes_beside_controls(model: tuple[TeachOutcome, Path]) -> None:
    results = model[0].results
    report = results.report
    assert {card.name for card in report.cards} >= {"squares", "untaught", "taught-cues", "clock", "change", "motion"}
    area = results.measure("auroc")
    assert area is not None
    assert area.value > 0.8
    assert area.n == 12
    rewards = report.rewards_of("squares")
    assert all("left out in fold" in one.given for one in rewards.values())
    again = recompute(report)
    assert [line.measure for line in again.lines] == [line.measure for line in report.lines]


def test_success_is_calibrated_and_says_so(model: tuple[TeachOutcome, Path]) -> None:
    result = model[0]
    calibration = result.results.calibration
    assert calibration.failures == 6
    assert calibration.needed == 4
    assert calibration.threshold is not None
    reward = result.model.score(data.episodes(1, 0, first=40))[0]
    assert reward.success is not None
    assert reward.given["success from"] == calibration.threshold
    assert reward.given["succeeds"] == bool(reward.success[-1] >= calibration.threshold)
    assert reward.given["risk"] == 0.2
    assert "At most 20.0% of failures" in result.model.card.about
    # none of the failures that it rests on passes but the share that may: 6 failures, risk 0.2: one
    left_out = result.results.report.rewards_of("squares")
    passing = sum(
        float(one.success[-1]) >= calibration.threshold  # type: ignore[index]
        for id, one in left_out.items()
        if id.startswith("bad")
    )
    assert passing <= 1
    few = taught(data.episodes(3, 3)).results.calibration
    assert few.threshold is None
    assert "needs 19 labelled failures and there are 3. Label 16 more, or ask for --risk 0.25." in few.note


def test_the_folder_is_a_model_like_any_other(model: tuple[TeachOutcome, Path], tmp_path: Path) -> None:
    result, folder = model
    loaded = load_model(str(folder), network=FakeNetwork())
    assert loaded.card == result.model.card
    assert loaded.card.name == "squares"
    episodes = data.episodes(2, 2, first=30)
    for one, two in zip(loaded.score(episodes), result.model.score(episodes), strict=True):
        assert np.array_equal(one.value, two.value)
    assert isinstance(loaded, Comparer)
    assert isinstance(loaded, Online)
    assert isinstance(loaded, Prepares)
    assert loaded.prefer([(episodes[0], episodes[1])])[0] > 0.5
    check_model(loaded).raise_if_broken()
    done = score(ScoreJob(loaded, data.dataset(episodes), tmp_path / "rewards", workers=0))
    assert done.scored == 4
    assert len(list(RewardStore(tmp_path / "rewards"))) == 4


def test_following_live_is_scoring(model: tuple[TeachOutcome, Path]) -> None:
    loaded = model[0].model
    episode = data.episode(True, 33)
    whole = loaded.score([episode])[0].value
    loaded.reset(episode.instruction)
    live = [loaded.step(frame) for frame in episode.main.all()]
    assert np.allclose(whole, live, atol=1e-5)
    with pytest.raises(BadInput, match="shape"):
        loaded.step(episode.main.all())


def test_another_network_and_damage_are_refused(model: tuple[TeachOutcome, Path], tmp_path: Path) -> None:
    _, folder = model
    with pytest.raises(BadInput, match="the network that it was taught on"):
        load_model(str(folder), network=FakeNetwork(seed=1))
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    numbers = next(broken.glob("head-*.npz"))
    numbers.write_bytes(numbers.read_bytes()[:-10])
    with pytest.raises(StoreError, match="copy the folder again"):
        load_model(str(broken), network=FakeNetwork())
    numbers.unlink()
    with pytest.raises(StoreError, match="copy the folder again"):
        load_model(str(broken), network=FakeNetwork())
    facts = json.loads((broken / "model.json").read_text())
    for change, said in (({"stride": 0}, "stride"), ({"cameras": []}, "cameras"), ({"more": 1}, "only the fields")):
        (broken / "model.json").write_text(json.dumps({**facts, **change}))
        with pytest.raises(BadInput, match=said):
            load_model(str(broken), network=FakeNetwork())


def test_what_to_label_next(model: tuple[TeachOutcome, Path]) -> None:
    suggestions = model[0].results.suggestions
    assert {one.episode for one in suggestions} == {"good-20", "good-21", "bad-20", "bad-21"}
    assert all(one.reason and 0 <= one.probability <= 1 for one in suggestions)
    assert taught(data.episodes(3, 3)).results.every_labelled


def test_the_report_is_one_page_and_numbers(model: tuple[TeachOutcome, Path], tmp_path: Path) -> None:
    result, folder = model
    page = (folder / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "http" not in page.split("<body>")[1].replace("http://www.w3.org/2000/svg", "")
    for words in ("How sure its", "Which episodes to label next", "good-20", "taught-cues", "untaught"):
        assert words in page
    report = Report.read(folder / "report.json")
    assert report.about.name == "taught@1"
    facts = json.loads((folder / "report.json").read_text())["teaching"]
    assert facts["calibration"]["failures"] == 6
    assert len(facts["label next"]) == 4
    write_teach_page(result.results, tmp_path / "page.html")  # without videos
    with pytest.raises(BadInput, match="embed"):
        write_teach_page(result.results, tmp_path / "page.html", embed=-1)


def test_nothing_is_looked_at_twice(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    first, second = FakeNetwork(), FakeNetwork()
    before = taught(data.episodes(3, 3), folder, network=first)
    assert first.looked == 6 * data.FRAMES
    after = taught(data.episodes(4, 3), folder, network=second)  # one more was labelled
    assert second.looked == data.FRAMES
    assert after.model.config.taught_on["episodes"] == 7
    assert len(list(folder.glob("head-*.npz"))) == 1
    assert before.model.card.weights_hash != after.model.card.weights_hash
    again = taught(data.episodes(4, 3), folder)
    assert again.model.card == after.model.card


def test_another_model_is_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    taught(data.episodes(2, 2), folder)
    with pytest.raises(StoreError, match="taught on squares:memory, not on other:memory"):
        teach(data.dataset(data.episodes(2, 2), "other"), folder, network=FakeNetwork(), config=QUICK, workers=0)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="nothing is overwritten"):
        taught(data.episodes(2, 2), tmp_path / "thesis")
    (folder / "model.json").write_text('{"format": 1, "kind": "compact"}')
    with pytest.raises(StoreError, match="kind 'compact'"):
        taught(data.episodes(2, 2), folder)
    with pytest.raises(StoreError, match="is a file"):
        taught(data.episodes(2, 2), tmp_path / "thesis" / "thesis.tex")


def test_too_little_is_a_sentence() -> None:
    assert "none labelled" in refused(data.episodes(3, 3, data.unlabelled))
    assert "got 1 labelled and 0 compared" in refused([data.episode(True, 0), data.episode(False, 1, data.unlabelled)])
    assert "none of them a success" in refused(data.episodes(0, 4, data.verdict))
    assert "expected episodes to teach from, got none" in refused([])
    opinion = [replace(one, outcomes=(Outcome("model", success=True),)) for one in data.episodes(2, 2)]
    assert "4 of them with a model's opinion only, which is not a label" in refused(opinion)
    flat = [replace(one, outcomes=(Outcome("human", curve=np.full(24, 0.4)),)) for one in data.episodes(2, 2)]
    assert "curves that are 0.4 at every frame" in refused(flat)
    for sentence, options in (("risk", {"risk": 0.0}), ("limit", {"limit": 0}), ("top", {"cameras": ["top"]})):
        assert sentence in refused(data.episodes(2, 2), **options)


def test_contradictions_are_left_out_or_refused() -> None:
    def twice(number: int) -> list[Episode]:
        one = data.episode(True, number, data.verdict)
        other = replace(one, id=f"again-{number}", outcomes=(Outcome("human", success=False),))
        return [one, other]

    assert "that all contradict another" in refused([*twice(0), *twice(1)])
    result = taught([*data.episodes(3, 3, first=10), *twice(0)])
    assert result.model.config.taught_on["episodes"] == 6
    assert any("2 episodes were skipped because their labels contradict" in one for one in result.results.notes)
    split = replace(data.episode(True, 0), outcomes=(Outcome("human", success=True), Outcome("human", success=False)))
    assert "one human says it succeeded, another that it failed" in refused([split])
    settled = replace(split, outcomes=(Outcome("human", success=True), Outcome("rule", success=False)))
    assert taught([settled, *data.episodes(2, 2, first=5)]).model.config.taught_on["episodes"] == 5
    both = [Preference("good-0", "bad-0", "a", "human"), Preference("good-0", "bad-0", "b", "human")]
    notes = taught([*data.episodes(2, 2), *both]).results.notes
    assert any("each of the two was preferred" in one for one in notes)


class Unreadable:
    """Frames that promise a length and deliver nothing."""

    kind = "array"

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 24

    def times(self) -> np.ndarray:
        return np.arange(24) / 10

    def take(self, indices: Sequence[int]) -> np.ndarray:
        raise demerit.errors.UnreadableVideo(self.name, "it is broken on purpose")

    def identity(self) -> str:
        return self.name

    def describe(self) -> dict[str, object]:
        return {}


def test_unreadable_videos_are_left_out_with_the_reason() -> None:
    def broken(episode: Episode) -> Episode:
        return replace(episode, views={"main": Frames(Unreadable(episode.id))})

    episodes = data.episodes(4, 4)
    result = taught([broken(episodes[0]), *episodes[1:]])
    assert result.model.config.taught_on["episodes"] == 7
    assert any("broken on purpose" in note for note in result.results.notes)
    said = refused([*map(broken, episodes[:5]), *episodes[5:]])
    assert "5 of 8 labelled episodes that cannot, 1 of them because" in said
    wrong = replace(episodes[0], outcomes=(Outcome("human", success=True, curve=np.zeros(7)),))
    notes = taught([wrong, *episodes[1:]]).results.notes
    assert "good-0 was skipped: its curve has 7 values and its video 24 frames." in notes


def test_cameras_are_taught_together() -> None:
    def seen_twice(episode: Episode) -> Episode:
        blank = Frames.from_array(np.random.default_rng(0).integers(0, 255, (24, 16, 16, 3), dtype=np.uint8))
        return replace(episode, views={"top": blank, "side": episode.main})

    episodes = [seen_twice(one) for one in data.episodes(4, 4)]
    result = taught(episodes)
    assert result.model.config.cameras == ("top", "side")
    test = [seen_twice(one) for one in data.episodes(3, 3, first=30)]
    values = finals(result, test)
    assert values[::2].mean() > values[1::2].mean() + 0.2
    lonely = replace(test[0], views={"top": test[0].views["top"]})
    reward = result.model.score([lonely])[0]
    assert not reward.scored
    assert "the camera 'side', which this model was taught with" in reward.why_missing
    result.model.reset("push")
    assert np.isfinite(result.model.step({name: view.take([0])[0] for name, view in test[0].views.items()}))
    with pytest.raises(BadInput, match="an image per camera"):
        result.model.step(test[0].main.take([0])[0])
    one = taught(episodes, cameras=["side"])
    assert one.model.config.cameras == ("side",)
    uneven = replace(episodes[0], views={"top": episodes[0].views["top"].select(range(9)), "side": episodes[0].main})
    assert any("cameras of one length" in note for note in taught([uneven, *episodes[1:]]).results.notes)


def test_many_frames_are_looked_at_in_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "FRAMES_PER_SECOND", 2)
    result = taught(data.episodes(4, 4, data.marked))
    assert result.model.config.stride == 2
    reward = result.model.score([data.episode(True, 33)])[0]
    assert reward.at.tolist() == [*range(0, 24, 2), 23]
    check_model(result.model).raise_if_broken()
    episode = data.episode(True, 33)
    result.model.reset(episode.instruction)
    live = [result.model.step(frame) for frame in episode.main.all()]
    assert np.allclose(np.array(live)[reward.at], reward.value, atol=1e-5)


def test_the_budget_of_frames() -> None:
    assert choose_stride([100] * 10, 1) == 1
    assert choose_stride([2000] * 10, 1) == 3
    assert choose_stride([300] * 40, 2) == 1
    assert choose_stride([200] * 500, 1) == 1
    assert frame_budget(1000) == 2 * frame_budget(500)
    assert stride_indices(7, 3).tolist() == [0, 3, 6]
    assert stride_indices(9, 3).tolist() == [0, 3, 6, 8]
    assert stride_indices(0, 3).tolist() == []


def test_labels_move_to_the_frames_that_were_looked_at() -> None:
    curve = np.full(9, np.nan, dtype=np.float32)
    curve[[1, 4, 8]] = (0.1, 0.5, 1.0)
    label = TeachLabel(curve=curve, events=(demerit.Event("dropped", 4, 5),))
    moved = move_label(label, stride_indices(9, 3), 9)
    assert moved.curve is not None
    assert np.array_equal(moved.curve, np.array([0.1, 0.5, np.nan, 1.0], np.float32), equal_nan=True)
    assert (moved.events[0].first, moved.events[0].last) == (1, 2)


def test_streams_in_pieces_are_streams(tmp_path: Path) -> None:
    """What the head sees does not depend on how many frames come at once, and peeking changes nothing."""
    maker = FakeNetwork()
    images = data.pictures(data.course(True, 0), 0)
    parts = ["tower", "change", "recent", "hidden", "outputs"]
    whole = FeatureStream(maker, "do it", parts)
    tower = whole.embed(maker.prepare(images))
    wanted = whole.follow(tower)
    pieces = FeatureStream(maker, "do it", parts)
    found = []
    for start in range(0, len(tower), 7):
        some = tower[start : start + 7]
        pieces.peek(some) if start else None
        found.append(pieces.follow(some))
    assert np.allclose(np.concatenate(found), wanted, atol=1e-6)
    rows = stream_features(FeatureStream(maker, "do it", parts), tower[stride_indices(24, 5)], 24, 5)
    assert len(rows) == 6


def test_successes_and_failures_are_interleaved() -> None:
    listed = [*data.episodes(3, 0), *data.episodes(0, 3), *data.episodes(1, 1, data.unlabelled, first=9)]
    assert [one.id for one in gather_data(data.dataset(listed)).interleave()] == [
        "good-0", "bad-0", "good-1", "bad-1", "good-2", "bad-2",
    ]  # fmt: skip


def test_labels_that_do_not_fit_together_are_named() -> None:
    odd = replace(data.episode(True, 0), outcomes=(Outcome("human", success=True, progress=0.2),))
    notes = taught([odd, *data.episodes(2, 2, first=5)]).results.notes
    assert "1 episodes are called a success though their progress ends below a half, e.g. good-0." in notes


def test_groups_are_what_was_recorded_together() -> None:
    episodes = data.episodes(3, 1)
    child = replace(episodes[0], id="child", origin=replace(episodes[0].origin, group="", parent="good-1"))
    copy = replace(episodes[2], id="copy", origin=replace(episodes[2].origin, group="elsewhere"))
    alone = data.episode(False, 9)
    those = [EmbeddedEpisode(one, 24, stride_indices(24, 1), {}) for one in (*episodes, child, copy, alone)]
    groups = dict(zip((one.id for one in those), group_episodes(those), strict=True))
    assert groups["good-0"] == groups["child"] == groups["good-1"]  # the same video, the same original
    assert groups["copy"] == groups[episodes[2].id]
    assert len(set(groups.values())) == 4
    names = name_tasks(["open the drawer", "pull the drawer open", "close the drawer"])
    assert names["open the drawer"] == names["pull the drawer open"] != names["close the drawer"]


def test_one_session_is_said_to_be_one() -> None:
    together = [replace(one, origin=replace(one.origin, group="monday")) for one in data.episodes(3, 3)]
    result = taught(together)
    assert any("recorded together" in note for note in result.results.notes)
    assert result.results.measure("auroc") is not None


def test_two_tasks_and_their_words() -> None:
    right = data.episodes(5, 5)
    left = [
        replace(one, id=f"left-{one.id}", instruction="close the drawer",
                views={"main": one.main.select(range(23, -1, -1))},
                outcomes=(data.dense(True, data.course(True, 0)),), origin=replace(one.origin, group=f"left {one.id}"))
        for one in data.episodes(5, 0, first=60)
    ]  # fmt: skip
    result = taught([*right, *left])
    assert result.model.card.reads_instruction
    assert set(result.model.config.taught_on["tasks"]) == {"push the square to the right", "close the drawer"}
    assert result.model.score([right[0]])[0].given["task"] == "as taught"
    other = replace(right[0], instruction="fly")
    assert result.model.score([other])[0].given["task"] == "not among those taught"


def test_real_files_as_users_have_them(tmp_path: Path) -> None:
    """A folder of videos, the same as LeRobot, and the sample that ships."""
    videos = data.write_videos(tmp_path / "videos", 3, 3, blank=2)
    result = teach(videos, tmp_path / "one", network=FakeNetwork(), config=QUICK, workers=2)
    assert result.model.config.taught_on["episodes"] == 6
    assert len(result.results.suggestions) == 2
    assert result.results.report.environment["frames"] == "all"
    write_lerobot(open_dataset(f"videos:{videos}"), tmp_path / "robot")
    again = teach(f"lerobot:{tmp_path / 'robot'}", tmp_path / "two", network=FakeNetwork(), config=QUICK, workers=1)
    assert again.model.config.taught_on["episodes"] == 6
    assert demerit.teach is teach
    sample = Path(demerit.__file__).parent / "assets" / "sample"
    shipped = teach(sample, network=FakeNetwork(), config=QUICK, workers=1)
    assert shipped.model.config.taught_on["episodes"] == 28
    assert shipped.folder is None
