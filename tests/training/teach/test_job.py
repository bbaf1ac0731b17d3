"""teach as a whole, on a fake network."""

import base64
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import demerit
from demerit.data.dataset import Record
from demerit.data.episode import Episode, Outcome, Preference
from demerit.data.formats import open_dataset
from demerit.data.formats.lerobot.writer import write_lerobot
from demerit.data.frames import Frames
from demerit.data.reward import VerdictCounts
from demerit.decide.guarantee import describe_cut
from demerit.errors import BadInput, StoppedByUser, StoreError, UnknownName
from demerit.evaluate.benchmarks.run import recompute
from demerit.evaluate.reports.headline import headline
from demerit.evaluate.reports.report import Report
from demerit.models import Comparer, Online, load_model
from demerit.models.check import check_model
from demerit.models.protocol import Prepares
from demerit.models.reward_store import RewardStore
from demerit.models.score import ScoreJob, score
from demerit.models.taught.model import TaughtModel
from demerit.negatives import load_negative
from demerit.training.teach import TeachConfig, TeachOutcome, features, teach
from demerit.training.teach.job import STOPPED
from demerit.training.teach.report import write_teach_page
from fakes import lesson_data as data
from fakes.coded_episodes import Unreadable
from fakes.fake_network import FakeNetwork

QUICK = TeachConfig(folds=4, rows=12, views=1)


def taught(records: Sequence[Record], out: Path | None = None, **options: object) -> TeachOutcome:
    given = {"network": FakeNetwork(), "config": QUICK, "workers": 0, **options}
    return teach(data.dataset(records), out, **given)  # type: ignore[arg-type]


def finals(outcome: TeachOutcome, episodes: Sequence[Episode]) -> np.ndarray:
    return np.array([reward.final for reward in outcome.model.score(episodes)])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[TeachOutcome, Path]:
    folder = tmp_path_factory.mktemp("taught") / "squares"
    return taught([*data.episodes(6, 6), *data.episodes(2, 2, data.unlabelled, first=20)], folder, risk=0.2), folder


LABELS = [data.dense, data.verdict, data.graded, data.marked, data.with_events]


@pytest.mark.parametrize("labelled", LABELS, ids=lambda one: one.__name__)
def test_every_kind_of_label_teaches(labelled: data.Labelling) -> None:
    outcome = taught(data.episodes(4, 4, labelled))
    good, bad = data.episodes(5, 0, first=30), data.episodes(0, 5, first=30)
    assert finals(outcome, good).min() > finals(outcome, bad).mean() + 0.1
    assert finals(outcome, good).mean() > 0.6


def test_moments_marked_in_a_label_file_teach(tmp_path: Path) -> None:
    """The advised way: add moments to labels.csv, teach again. The middle frame is then known, not interpolated."""
    folder, middle = data.write_videos(tmp_path / "squares", 4, 4), data.FRAMES // 2
    options = {"network": FakeNetwork(), "config": QUICK, "workers": 0}
    flags = teach(open_dataset(str(folder)), **options)  # type: ignore[arg-type]
    header, *rows = (folder / "labels.csv").read_text().splitlines()
    with (folder / "labels.csv").open("w") as file:
        file.write(f"{header},curve\n")
        for row in rows:
            (kind, seed) = row.split(".mp4")[0].split("-")
            truth = data.course(kind == "good", int(seed))
            file.write(f"{row},0:{truth[0]:.3f} {middle}:{truth[middle]:.3f} -1:{truth[-1]:.3f}\n")
    marked = teach(open_dataset(str(folder)), **options)  # type: ignore[arg-type]
    assert [any("0:0 40:0.5" in line for line in one.results.advice) for one in (flags, marked)] == [True, False]
    wrong = data.episodes(0, 5, first=30)
    truth = np.array([data.course(False, seed)[-1] for seed in range(30, 35)])
    errors = [np.abs(finals(one, wrong) - truth).mean() for one in (flags, marked)]
    assert errors[1] < errors[0]


def test_failures_with_progress_teach_and_nothing_is_called_a_success() -> None:
    def called_failures(success: bool, truth: np.ndarray) -> Outcome:
        return Outcome("human", success=False, curve=truth)  # some got to the end

    outcome = taught(data.episodes(4, 4, called_failures), risk=0.3)
    calibration = outcome.results.calibration
    assert calibration.threshold is None and "no success is labelled" in calibration.note
    assert not any("record the others" in advice for advice in outcome.results.advice)
    assert outcome.model.score(data.episodes(1, 0, first=40))[0].verdict.reason == "no threshold"


def test_successes_alone_teach_and_the_advice_is_to_label_failures() -> None:
    outcome = taught(data.episodes(4, 0))
    assert finals(outcome, data.episodes(5, 0, first=30)).mean() > 0.7
    assert finals(outcome, data.episodes(0, 5, first=30)).mean() < 0.6
    assert "failures" in outcome.results.advice[0]
    assert outcome.results.answer.kind == "not yet measurable"
    assert outcome.model.config.threshold is None and outcome.results.measure("auroc") is None


def test_a_model_that_is_not_trusted_says_so_with_every_reward(tmp_path: Path) -> None:
    outcome = taught(data.episodes(3, 3, data.verdict), out=tmp_path / "early")
    assert not outcome.results.answer.is_trusted
    loaded = TaughtModel.from_folder(tmp_path / "early", FakeNetwork())
    assert loaded.card.hash() == outcome.model.card.hash()
    for model in (loaded, outcome.model):
        counts = VerdictCounts.of(model.score(data.episodes(1, 0, first=40)))
        assert counts.warnings[-1] == f"model not yet trusted: {outcome.results.title}"
    path = tmp_path / "early" / "model.json"
    path.write_text(path.read_text().replace('"caution"', '"an older file has none"'))
    older = TaughtModel.from_folder(tmp_path / "early", FakeNetwork())
    assert older.card.hash() == loaded.card.hash()  # it is no part of what the model is
    assert not older.score(data.episodes(1, 0, first=40))[0].caution


def test_a_value_is_called_progress_only_where_progress_was_taught() -> None:
    flags, curves = (taught(data.episodes(4, 4, *labelled)) for labelled in ((data.verdict,), ()))
    assert flags.model.card.quantity == "score: above 0.5 is more like your successes"
    assert curves.model.card.quantity == "progress"
    assert "quantity" not in curves.model.config.taught_on  # as in models of earlier versions
    measured = flags.results.report.line(flags.model.card.name, "over_reward_above_half")
    assert measured is not None and measured.known
    assert any("No progress is labelled" in note for note in flags.results.notes)
    assert not any("No progress is labelled" in note for note in curves.results.notes)


def test_one_line_says_which_number_decides(model: tuple[TeachOutcome, Path]) -> None:
    outcome = model[0]
    threshold = outcome.results.calibration.threshold
    line = describe_cut(outcome.model)
    assert line.startswith(f"called a success where the probability of success reaches {threshold:.2f} (At most 20.0%")
    assert line.endswith(f"the value by itself ({outcome.model.card.quantity}, 0 to 1) is no verdict")
    assert outcome.results.cut == line


def redraw(episode: Episode, id: str, change: Callable[[np.ndarray], np.ndarray]) -> Episode:
    images = episode.main.take(np.arange(len(episode))).astype(int)
    drawn = Frames.from_array(np.clip(change(images), 0, 255).astype(np.uint8))
    return replace(episode, id=id, views={"main": drawn}, origin=replace(episode.origin, group=""))


def copy_of(episode: Episode, number: int) -> Episode:
    """The same video, encoded again."""
    noise = np.random.default_rng(number).integers(-4, 5, len(episode))[:, None, None, None]
    return redraw(episode, f"{episode.id}-{number}", lambda images: images + noise)


def test_ten_copies_of_two_videos_count_as_two() -> None:
    good, bad = data.episodes(1, 1, data.verdict)
    outcome = taught([copy_of(one, number) for one in (good, bad) for number in range(5)])
    assert len({row.group for row in outcome.results.report.episodes}) == 2
    assert outcome.results.answer.kind == "not yet measurable"
    assert (outcome.results.calibration.failures, outcome.model.config.threshold) == (1, None)


def test_a_copy_with_the_other_label_is_held_out_with_its_original_and_named() -> None:
    episodes = data.episodes(6, 6, data.verdict)
    wrong = replace(copy_of(episodes[0], 1), outcomes=(Outcome("human", success=False),))
    results = taught([*episodes, wrong]).results
    assert {episodes[0].id, wrong.id} <= set(results.doubtful)
    groups = {row.id: row.group for row in results.report.episodes}
    assert groups[wrong.id] == groups[episodes[0].id]


def test_successes_of_one_robot_and_failures_of_another_teach_nothing_sure() -> None:
    episodes = data.episodes(8, 8, data.verdict)
    split = [one if one.outcomes[0].success else redraw(one, one.id, lambda images: 255 - images) for one in episodes]
    assert taught(episodes).model.config.threshold is not None
    outcome = taught(split)
    assert outcome.results.measure("auroc").value > 0.9  # type: ignore[union-attr]
    assert outcome.results.answer.kind == "not yet measurable" and outcome.model.config.threshold is None


def test_black_videos_and_three_episodes_give_no_answer() -> None:
    black = [redraw(one, one.id, np.zeros_like) for one in data.episodes(5, 5, data.verdict)]
    black = [replace(one, views={"main": one.main.select(np.arange(10 + i))}) for i, one in enumerate(black)]
    for episodes in (black, data.episodes(2, 1, data.verdict)):
        outcome = taught(episodes)
        assert outcome.results.answer.kind == "not yet measurable" and outcome.model.config.threshold is None


def test_a_visible_task_is_trusted_if_no_control_sees_it_too_and_an_invisible_one_never() -> None:
    seen = taught(data.episodes(12, 12, data.verdict)).results
    verdict = seen.report.verdict("taught", "auroc")
    assert verdict is not None and seen.answer.low >= 0.8
    assert (seen.answer.kind == "trust it") == verdict.is_better
    episodes = [*data.episodes(12, 0, data.verdict), *data.episodes(0, 12, data.verdict, first=50)]
    hidden = [redraw(one, one.id, lambda images: images * 0 + images[:1]) for one in episodes]
    assert taught(hidden).results.answer.low < 0.6


def test_preferences_alone_teach_an_order() -> None:
    episodes = data.episodes(5, 5, data.unlabelled)
    good, bad = episodes[::2], episodes[1::2]
    choices = [Preference(a.id, b.id, "a", "human") for a, b in zip(good, bad, strict=True)]
    choices += [Preference(b.id, a.id, "b", "human") for a, b in zip(good, bad[1:], strict=False)]
    choices += [Preference(good[0].id, good[1].id, "tie", "human")]
    outcome = taught([*episodes, *choices])
    assert finals(outcome, data.episodes(5, 0, first=30)).mean() > finals(outcome, data.episodes(0, 5, first=30)).mean()
    agreement = outcome.results.measure("judgement_agreement")
    assert agreement is not None and agreement.value > 0.6


def test_figures_are_of_held_out_episodes_beside_controls(model: tuple[TeachOutcome, Path]) -> None:
    results = model[0].results
    report = results.report
    assert {card.name for card in report.cards} >= {"squares", "untaught", "taught-cues", "clock", "change", "motion"}
    area = results.measure("auroc")
    assert area is not None and area.value > 0.8 and area.n == 12
    assert all("left out in fold" in reward.given for reward in report.rewards_of("squares").values())
    assert [line.measure for line in recompute(report).lines] == [line.measure for line in report.lines]


def test_title_and_table_follow_one_verdict(model: tuple[TeachOutcome, Path]) -> None:
    few = taught(data.episodes(3, 3))
    for results in (model[0].results, few.results):
        name = results.report.cards[0].name
        verdict = results.report.verdict(name, "auroc")
        assert verdict is not None and verdict.resampled == "episodes"
        assert verdict.is_better or results.answer.kind != "trust it"
        assert results.as_dict()["teaching"]["answer"]["kind"] == results.answer.kind
        cell = headline(results.report)["rows"][0]["cells"][0]
        assert cell is not None and cell["answer"] == verdict.answer
        assert results.report.line(name, "over_reward_above_half") is not None
    assert few.results.report.verdict("taught", "auroc").answer == "no evidence yet"  # type: ignore[union-attr]
    assert model[0].results.report.line("squares", "over_reward_above_threshold") is not None  # it has a threshold


def test_the_threshold_keeps_its_guarantee(model: tuple[TeachOutcome, Path]) -> None:
    outcome = model[0]
    calibration = outcome.results.calibration
    assert (calibration.failures, calibration.needed) == (6, 4)
    assert calibration.threshold is not None and "20.0%" in outcome.model.card.about
    reward = outcome.model.score(data.episodes(1, 0, first=40))[0]
    assert reward.success is not None
    assert (reward.given["success from"], reward.given["risk"]) == (calibration.threshold, 0.2)
    assert reward.given["succeeds"] == bool(reward.success[-1] >= calibration.threshold)
    # at most 20% of the 6 failures pass: one
    held_out = outcome.results.report.rewards_of("squares")
    passing = [id for id, one in held_out.items() if id.startswith("bad") and one.success[-1] >= calibration.threshold]  # type: ignore[index]
    assert len(passing) <= 1
    few = taught(data.episodes(3, 3)).results.calibration
    assert few.threshold is not None and (few.risk, few.needed, few.failures) == (0.25, 3, 3)
    fewer = taught(data.episodes(3, 2)).results.calibration
    assert (fewer.threshold, fewer.risk, fewer.needed) == (None, 0.05, 19)


def test_the_folder_loads_as_a_model(model: tuple[TeachOutcome, Path], tmp_path: Path) -> None:
    outcome, folder = model
    loaded = load_model(str(folder), network=FakeNetwork())
    assert loaded.card == outcome.model.card and loaded.card.name == "squares"
    episodes = data.episodes(2, 2, first=30)
    for a, b in zip(loaded.score(episodes), outcome.model.score(episodes), strict=True):
        assert np.array_equal(a.value, b.value)
    assert isinstance(loaded, Comparer) and isinstance(loaded, Online) and isinstance(loaded, Prepares)
    assert loaded.prefer([(episodes[0], episodes[1])])[0] > 0.5
    check_model(loaded).raise_if_broken()
    assert score(ScoreJob(loaded, data.dataset(episodes), tmp_path / "rewards", workers=0)).scored == 4
    assert len(list(RewardStore(tmp_path / "rewards"))) == 4


def test_live_steps_equal_scoring(model: tuple[TeachOutcome, Path]) -> None:
    loaded = model[0].model
    episode = data.episode(True, 33)
    run = loaded.start(episode.instruction)
    live = [run.step(frame) for frame in episode.main.all()]
    (offline,) = loaded.score([episode])
    assert offline.success is not None and np.ptp(offline.success) > 0.1
    assert np.allclose(offline.value, [one.value for one in live], atol=1e-5)
    assert np.allclose(offline.success, [one.success for one in live], atol=1e-5)
    with pytest.raises(BadInput, match="shape"):
        run.step(episode.main.all())


def test_another_network_and_damaged_folders_are_refused(model: tuple[TeachOutcome, Path], tmp_path: Path) -> None:
    folder = model[1]
    with pytest.raises(BadInput, match="network"):
        load_model(str(folder), network=FakeNetwork(seed=1))
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    next(broken.glob("head-*.npz")).unlink()
    with pytest.raises(StoreError):
        load_model(str(broken), network=FakeNetwork())
    facts = json.loads((broken / "model.json").read_text())
    for change, word in (({"stride": 0}, "stride"), ({"cameras": []}, "cameras"), ({"more": 1}, "more")):
        (broken / "model.json").write_text(json.dumps({**facts, **change}))
        with pytest.raises((BadInput, UnknownName), match=word):
            load_model(str(broken), network=FakeNetwork())


def test_unlabelled_episodes_are_suggested(model: tuple[TeachOutcome, Path]) -> None:
    suggestions = model[0].results.suggestions
    assert {one.episode for one in suggestions} == {"bad-20", "bad-21"}  # from the successes little would be learned
    assert all(one.reason and 0 <= one.probability <= 1 for one in suggestions)
    assert not model[0].results.no_suggestion


def test_every_suggestion_has_pictures_and_a_file_to_open(tmp_path: Path) -> None:
    videos = data.write_videos(tmp_path / "videos", 3, 3, blank=4)
    results = teach(videos, tmp_path / "one", network=FakeNetwork(), config=QUICK, workers=0).results
    assert results.suggestions
    assert {Path(one.video) for one in results.suggestions} <= set(videos.resolve().iterdir())
    section = (tmp_path / "one" / "report.html").read_text("utf-8").split('id="next"')[1].split("</section>")[0]
    films = re.findall(r"data:image/jpeg;base64,([\w+/=]+)", section)
    sizes = [Image.open(io.BytesIO(base64.b64decode(film))).size for film in films]
    assert sizes == [(4 * 112, 112)] * len(results.suggestions)


def test_nothing_is_suggested_that_would_teach_little() -> None:
    copies = [replace(one, id=f"copy-{one.id}", outcomes=()) for one in data.episodes(2, 0)]
    results = taught([*data.episodes(4, 4), *copies]).results
    labelled = taught(data.episodes(3, 3)).results
    assert results.suggestions == labelled.suggestions == ()
    assert results.no_suggestion and labelled.no_suggestion and results.no_suggestion != labelled.no_suggestion


def test_the_report_is_one_page_without_requests(model: tuple[TeachOutcome, Path], tmp_path: Path) -> None:
    outcome, folder = model
    page = (folder / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "http" not in page.split("<body>")[1].replace("http://www.w3.org/2000/svg", "")
    for name in ("bad-20", "taught-cues", "untaught"):
        assert name in page
    assert Report.read(folder / "report.json").about.name == "taught@1"
    facts = json.loads((folder / "report.json").read_text())["teaching"]
    assert facts["calibration"]["failures"] == 6 and len(facts["label next"]) == 2
    write_teach_page(outcome.results, tmp_path / "page.html")  # without videos
    with pytest.raises(BadInput, match="embed"):
        write_teach_page(outcome.results, tmp_path / "page.html", embed=-1)


def test_features_are_extracted_once(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    first, second = FakeNetwork(), FakeNetwork()
    before = taught(data.episodes(3, 3), folder, network=first)
    assert first.looked == 6 * data.FRAMES
    after = taught(data.episodes(4, 3), folder, network=second)  # one more is labelled
    assert second.looked == data.FRAMES and after.model.config.taught_on["episodes"] == 7
    assert len(list(folder.glob("head-*.npz"))) == 1
    assert before.model.card.weights_hash != after.model.card.weights_hash
    assert taught(data.episodes(4, 3), folder).model.card == after.model.card


def test_other_folders_are_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    taught(data.episodes(2, 2), folder)
    with pytest.raises(StoreError, match="squares:memory"):
        teach(data.dataset(data.episodes(2, 2), "other"), folder, network=FakeNetwork(), config=QUICK, workers=0)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("x")
    (folder / "model.json").write_text('{"format": 1, "kind": "compact"}')
    for out in (tmp_path / "thesis", tmp_path / "thesis" / "thesis.tex", folder):
        with pytest.raises(StoreError):
            taught(data.episodes(2, 2), out)


@pytest.mark.parametrize(
    ("options", "word"), [({"risk": 0.0}, "risk"), ({"limit": 0}, "limit"), ({"cameras": ["top"]}, "top")]
)
def test_wrong_options_are_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        taught(data.episodes(2, 2), **options)


def test_unreadable_episodes_are_skipped_with_the_reason() -> None:
    def break_video(episode: Episode) -> Episode:
        return replace(episode, views={"main": Frames(Unreadable(episode.id, 24))})

    episodes = data.episodes(4, 4)
    outcome = taught([break_video(episodes[0]), *episodes[1:]])
    assert outcome.model.config.taught_on["episodes"] == 7
    assert any("broken on purpose" in note for note in outcome.results.notes)
    with pytest.raises(BadInput, match="5 of 8"):
        taught([*map(break_video, episodes[:5]), *episodes[5:]])
    wrong = replace(episodes[0], outcomes=(Outcome("human", success=True, curve=np.zeros(7)),))
    assert any("7 values" in note for note in taught([wrong, *episodes[1:]]).results.notes)


def test_several_cameras_are_taught_together() -> None:
    def add_camera(episode: Episode) -> Episode:
        blank = Frames.from_array(np.random.default_rng(0).integers(0, 255, (24, 16, 16, 3), dtype=np.uint8))
        return replace(episode, views={"top": blank, "side": episode.main})

    episodes = [add_camera(one) for one in data.episodes(4, 4)]
    outcome = taught(episodes)
    assert outcome.model.config.cameras == ("top", "side")
    test = [add_camera(one) for one in data.episodes(3, 3, first=30)]
    values = finals(outcome, test)
    assert values[::2].mean() > values[1::2].mean() + 0.2
    run = outcome.model.start("push")
    assert np.isfinite(float(run.step({name: view.take([0])[0] for name, view in test[0].views.items()})))
    with pytest.raises(BadInput, match="per camera"):
        run.step(test[0].main.take([0])[0])
    assert taught(episodes, cameras=["side"]).model.config.cameras == ("side",)
    uneven = replace(episodes[0], views={"top": episodes[0].views["top"].select(range(9)), "side": episodes[0].main})
    assert any("one length" in note for note in taught([uneven, *episodes[1:]]).results.notes)


def two_cameras(episodes: Sequence[Episode], *lacking: str) -> list[Episode]:
    """Add a camera `top` that sees nothing to `side`; episodes whose number is in `lacking` have one camera only."""
    rng, found = np.random.default_rng(0), []
    for episode in episodes:
        blank = Frames.from_array(rng.integers(0, 255, (data.FRAMES, 16, 16, 3), dtype=np.uint8))
        views = {"top": blank, "side": episode.main}
        found.append(
            replace(episode, views={name: views[name] for name in views if f"{episode.id} {name}" not in lacking})
        )
    return found


def test_an_episode_with_some_cameras_is_taught_and_scored_with_those() -> None:
    lacking = ("good-0 top", "bad-0 top", "good-1 side")
    outcome = taught(two_cameras(data.episodes(5, 5), *lacking))
    assert outcome.model.config.cameras == ("top", "side") and outcome.model.config.taught_on["episodes"] == 10
    held_out = outcome.results.report.rewards_of("taught")
    assert held_out["good-1"].scored and held_out["good-1"].given["missing cameras"] == ["side"]
    both = two_cameras(data.episodes(4, 4, first=30))
    side = [replace(one, views={"side": one.views["side"]}) for one in both]
    values = finals(outcome, side)
    assert values[::2].min() > values[1::2].max()
    for reward, missing in zip(outcome.model.score([both[0], side[0]]), (None, ["top"]), strict=True):
        assert reward.given.get("missing cameras") == missing
        assert (reward.given["succeeds"] is None) == (missing is not None)  # no guarantee without a camera
    other = outcome.model.score([replace(both[0], views={"front": both[0].main})])[0]
    assert not other.scored and "'side'" in other.why_missing
    assert str(other.verdict) == "unknown: camera missing (top, side)"


def test_a_live_episode_with_some_cameras_is_as_scored() -> None:
    outcome = taught(two_cameras(data.episodes(4, 4)))
    whole = two_cameras(data.episodes(1, 0, first=30))[0]
    for names in (("top", "side"), ("side",)):
        one = replace(whole, views={name: whole.views[name] for name in names})
        run = outcome.model.start(one.instruction)
        frames = [{name: view.take([i])[0] for name, view in one.views.items()} for i in range(data.FRAMES)]
        live = [float(run.step(frame)) for frame in frames]
        assert live == pytest.approx(outcome.model.score([one])[0].value, abs=1e-5)
    with pytest.raises(BadInput, match="side"):
        run.step({"top": whole.views["top"].take([0])[0]})


def test_cameras_of_most_episodes_are_used() -> None:
    episodes = two_cameras(data.episodes(4, 4))
    few = [replace(one, views={"side": one.views["side"]}) for one in episodes[:4]]
    outcome = taught([*few, *episodes[4:]])
    assert outcome.model.config.cameras == ("side",)
    assert any("4 of 8" in note and "top" in note for note in outcome.results.notes)
    top = [replace(one, views={"top": one.views["top"]}) for one in episodes[4:]]
    with pytest.raises(BadInput, match=r"side \(4\), top \(4\)"):
        taught([*few, *top])


def test_the_report_says_which_camera_helped(tmp_path: Path) -> None:
    outcome = taught(two_cameras(data.episodes(6, 6), "bad-0 top"), tmp_path / "model")
    figures = {figure.cameras: figure for figure in outcome.results.cameras}
    assert list(figures) == [("top",), ("side",), ("top", "side")]
    assert [figure.episodes for figure in figures.values()] == [11, 12, 11]
    assert figures["side",].auroc > 0.8 > figures["top",].auroc
    written = json.loads((tmp_path / "model" / "report.json").read_text())["teaching"]["cameras"]
    assert [one["auroc"] for one in written] == [figure.auroc for figure in figures.values()]
    assert 'id="cameras"' in (tmp_path / "model" / "report.html").read_text()
    assert taught(data.episodes(3, 3)).results.cameras == ()


def test_a_stride_limits_the_number_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "FRAMES_PER_SECOND", 2)
    outcome = taught(data.episodes(4, 4, data.marked))
    assert outcome.model.config.stride == 2
    episode = data.episode(True, 33)
    reward = outcome.model.score([episode])[0]
    assert reward.at.tolist() == [*range(0, 24, 2), 23]
    check_model(outcome.model).raise_if_broken()
    run = outcome.model.start(episode.instruction)
    live = [run.step(frame) for frame in episode.main.all()]
    assert np.allclose(np.array(live, float)[reward.at], reward.value, atol=1e-5)


def test_two_tasks_are_told_apart_by_instruction() -> None:
    right = data.episodes(5, 5)
    left = [
        replace(one, id=f"left-{one.id}", instruction="close the drawer",
                views={"main": one.main.select(range(23, -1, -1))},
                outcomes=(data.dense(True, data.course(True, 0)),), origin=replace(one.origin, group=f"left {one.id}"))
        for one in data.episodes(5, 0, first=60)
    ]  # fmt: skip
    outcome = taught([*right, *left])
    assert outcome.model.card.reads_instruction
    assert set(outcome.model.config.taught_on["tasks"]) == {"push the square to the right", "close the drawer"}
    assert outcome.model.score([right[0]])[0].given["task"] == "as taught"
    other = replace(right[0], instruction="fly")
    assert outcome.model.score([other])[0].given["task"] == "not among those taught"


@pytest.mark.slow
def test_videos_lerobot_and_the_sample_teach(tmp_path: Path) -> None:
    videos = data.write_videos(tmp_path / "videos", 3, 3, blank=4)
    outcome = teach(videos, tmp_path / "one", network=FakeNetwork(), config=QUICK, workers=2)
    assert outcome.model.config.taught_on["episodes"] == 6 and outcome.results.suggestions
    write_lerobot(open_dataset(f"videos:{videos}"), tmp_path / "robot")
    again = teach(f"lerobot:{tmp_path / 'robot'}", tmp_path / "two", network=FakeNetwork(), config=QUICK, workers=1)
    assert again.model.config.taught_on["episodes"] == 6
    sample = Path(demerit.__file__).parent / "assets" / "sample"
    shipped = demerit.teach(sample, network=FakeNetwork(), config=QUICK, workers=1)
    assert shipped.model.config.taught_on["episodes"] == 12 and shipped.folder is None  # the rest is its test split


def stop_at_cross_validation(stage: str, done: int, total: int) -> None:
    if stage == "cross-validating":
        raise KeyboardInterrupt


def test_an_interrupted_run_keeps_a_finished_model(tmp_path: Path) -> None:
    out = tmp_path / "model"
    taught(data.episodes(6, 6), out, risk=0.2)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(StoppedByUser):
        taught(data.episodes(7, 7), out, risk=0.2, on_progress=stop_at_cross_validation)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert not taught(data.episodes(7, 7), out, risk=0.2).stopped


def test_an_interrupted_first_run_does_not_deny_its_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("demerit.training.teach.job.cross_validate", stop)
    stopped = taught(data.episodes(6, 6), tmp_path / "model")
    assert stopped.stopped and stopped.model.config.taught_on["failures"] == 6
    said = f"{stopped.results.text} {stopped.results.calibration.note}"
    assert "failure is labelled" not in said and "held out" in said


def test_an_interrupted_run_does_not_ask_for_labels_that_exist(tmp_path: Path) -> None:
    stopped = taught(data.episodes(6, 6), tmp_path / "model", on_progress=stop_at_cross_validation)
    calibration = stopped.results.calibration
    assert stopped.stopped and 0 < calibration.failures < 6 and calibration.threshold is None
    assert f"{calibration.failures} of 6 labelled" in calibration.note and "Label" not in calibration.note


def stop_early(episode: Episode) -> Episode:
    """A recording that ends where the square arrives, or would have."""
    return replace(episode, views={name: frames.select(np.arange(21)) for name, frames in episode.views.items()})


def test_recordings_that_stop_when_the_task_is_done_are_judged_by_their_last_frames() -> None:
    lesson, new = data.episodes(5, 5, data.verdict), data.episodes(6, 6, first=40)
    going_on, stopped = taught(lesson), taught([stop_early(one) for one in lesson])
    assert going_on.model.head.blend < stopped.model.head.blend == 1
    assert STOPPED in stopped.results.notes and STOPPED not in going_on.results.notes
    values, good = finals(stopped, [stop_early(one) for one in new]), [bool(one.labels[0].success) for one in new]
    assert values[good].min() > 0.5 > values[np.logical_not(good)].max()
    curves = taught(
        [
            stop_early(replace(one, outcomes=(Outcome("human", grade=5 if one.labels[0].success else 2),)))
            for one in lesson
        ]
    )
    assert curves.model.head.blend == going_on.model.head.blend  # only where flags are all that is known


def test_variants_teach_but_their_originals_are_measured() -> None:
    """Another pace changes the length: a control that knows only this would seem worse than it is."""
    lesson = data.episodes(4, 4, data.verdict)
    variants = [load_negative(name).make_with_seed(one, 0) for one in lesson for name in ("hold", "recolour")]

    def measured(episodes: Sequence[Episode]) -> set[str]:
        found = taught(episodes)
        assert found.model.config.taught_on["episodes"] == len(episodes)
        return {row.id for row in found.results.report.episodes}

    assert measured([*lesson, *variants]) == {one.id for one in lesson}
    assert measured(variants) == {one.id for one in variants}


def test_what_was_left_out_of_teaching_is_no_reward_of_an_edit() -> None:
    """They share a video: another pace has other frames."""
    lesson = data.episodes(4, 4, data.verdict)
    edits = [load_negative(name).make_with_seed(one, 0) for one in lesson for name in ("pace", "hold")]
    model = taught([*edits, *lesson]).model
    for one in lesson:
        reward = model.left_out(one)
        assert (reward is not None) == one.outcomes[0].success
        assert reward is None or reward.at[-1] == len(one) - 1
    assert all(model.left_out(edit) is None for edit in edits)
