"""Benchmarks end to end: controls score what theory says, an oracle everything, and a report recomputes itself."""

import html
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import pytest

from demerit.data.dataset import NO_INSTRUCTION, Dataset
from demerit.data.episode import NOT_A_MODEL, Episode, Outcome
from demerit.data.reward import Reward
from demerit.errors import BadInput, UnknownName
from demerit.evaluate.benchmarks.benchmark import BENCHMARKS, Benchmark, load_benchmark
from demerit.evaluate.benchmarks.metric_specs import AUROC, OVER_REWARD
from demerit.evaluate.benchmarks.run import RunOptions, load_data, recompute, run_benchmark
from demerit.evaluate.benchmarks.scores import ALWAYS_A, CONTROLS, MeasureSettings
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.reports import write_page
from demerit.evaluate.reports.headline import headline, label, lead
from demerit.evaluate.reports.report import Report
from fakes.coded_episodes import TASKS, Forgetful, Listed, Oracle, coded, episode

QUICK = RunOptions(workers=0, settings=MeasureSettings(Resampling(resamples=200)))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    models = [Oracle(), Forgetful(name="forgetful")]
    return run_benchmark(load_benchmark("own"), models, coded(), tmp_path_factory.mktemp("own"), QUICK)


def value(report: Report, model: str, measure: str, part: str = "") -> float:
    found = report.line(model, measure, part)
    assert found is not None, (model, measure, part)
    return found.value


def test_oracle_scores_best(report: Report) -> None:
    lowest = "over_reward_rate mae mae_group_wise progress_error failure_caught_placebo"
    highest = (
        "auroc average_precision_of_success best_f1_of_success preference_ordering_by_final preference_ordering_by_sum "
        "preference_ordering_by_mean judgement_agreement kendall_ordered progress_correlation_spearman failure_caught "
        "voc_pearson voc_spearman voc_pearson_shuffled right_instruction_accuracy instruction_diagonal_share"
    )
    for best, measures in ((0.0, lowest), (1.0, highest)):
        for measure in measures.split():
            assert value(report, "oracle", measure) == pytest.approx(best, abs=1e-6), measure
    decided = {(one.measure, one.answer) for one in report.decisions if one.model == "oracle"}
    assert decided == {(name, "better") for name in ("auroc", "over_reward_rate", "preference_ordering_by_final")}


def test_controls_score_exactly_what_theory_says(report: Report) -> None:
    assert report.controls == (*CONTROLS, ALWAYS_A)
    for name in ("constant", "clock", "length"):
        for measure in ("auroc", "preference_ordering_by_sum", "preference_ordering_by_final", "judgement_agreement"):
            assert value(report, name, measure) == 0.5, (name, measure)
        assert value(report, name, "over_reward_rate") == 1.0
        assert value(report, name, "right_instruction_accuracy") == 0.5
        assert value(report, name, "kendall_tau_a") == 0.0
    assert value(report, "clock", "voc_pearson") == pytest.approx(1.0)
    assert abs(value(report, "clock", "voc_pearson_shuffled")) < 0.3
    constant = report.line("constant", "voc_pearson")
    assert constant is not None and constant.n == 0 and constant.undefined == 2 * TASKS
    assert value(report, ALWAYS_A, "judgement_agreement") == pytest.approx(8 / 12)
    assert value(report, "constant", "brier") == pytest.approx(0.25)
    assert value(report, "clock", "failure_caught") == 0.0
    assert not [warning for warning in report.warnings if "theory" in warning]


def test_broken_metric_is_noticed_by_its_control(tmp_path: Path) -> None:
    wrong = replace(AUROC, tally_of=lambda scores, finals: AUROC.tally_of(scores, scores.success))
    benchmark = Benchmark("wrong@1", "none", "any", "here", (wrong,), ("auroc",))
    report = run_benchmark(benchmark, [Oracle()], coded(4), tmp_path, QUICK)
    assert any("clock" in warning and "theory says 0.500" in warning for warning in report.warnings)


def test_unscored_is_counted_and_explained(report: Report) -> None:
    measure = report.line("forgetful", "auroc")
    assert measure is not None and (measure.n, measure.unscored) == (4 * TASKS - 4, 4)
    assert any("forgetful left 4 of 48" in warning and "it slept (4)" in warning for warning in report.warnings)


def test_parts_and_comparisons(report: Report) -> None:
    assert value(report, "oracle", "auroc", "category: pick/place") == 1.0
    assert {line.part for line in report.lines if line.measure.name == "mae"} >= {"subset: part 0", "subset: part 2"}
    pairs = {(entry.first, entry.second) for entry in report.comparisons if entry.measure == "auroc"}
    assert ("oracle", "forgetful") in pairs and len(pairs) == 3
    best = next(entry for entry in report.comparisons if entry.first == "oracle" and entry.second in CONTROLS)
    assert best.low > 0 and best.p <= best.p_adjusted < 0.2


def test_recomputing_gives_the_same_report(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path / "report.json")
    read = Report.read(tmp_path / "report.json")
    assert read.decisions == report.decisions
    bare = replace(read, lines=(), comparisons=(), verdicts={}, decisions=())
    recompute(bare).write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "report.json").read_bytes()


def test_incomparable_values_are_refused(tmp_path: Path) -> None:
    model = Oracle(name="normalised", comparable=False)
    report = run_benchmark(load_benchmark("own"), [model], coded(3), tmp_path, QUICK)
    assert report.line("normalised", "auroc") is report.line("normalised", "preference_ordering_by_sum") is None
    assert value(report, "normalised", "voc_pearson") == pytest.approx(1.0)
    refusal = next(text for text in report.warnings if text.startswith("normalised: "))
    assert label("auroc") in refusal and label("over_reward_rate") in refusal and "VOC" not in refusal


def test_missing_labels_are_a_warning(tmp_path: Path) -> None:
    bare = [replace(episode(task, "success"), outcomes=()) for task in range(3)]
    report = run_benchmark(load_benchmark("own"), [Oracle()], Dataset(Listed(bare)), tmp_path, QUICK)
    assert not [line for line in report.lines if line.measure.name in ("auroc", "mae", "failure_caught")]
    assert any(label("auroc") in warning and "accepted and rejected episodes" in warning for warning in report.warnings)
    assert report.about.headline and report.line("oracle", report.about.headline[0]) is not None
    assert value(report, "oracle", "voc_pearson") == pytest.approx(1.0)


def test_grades_calibrate_on_a_held_out_split(tmp_path: Path) -> None:
    rows = []
    for task in range(6):
        split = "val" if task < 3 else "test"
        for kind in ("success", "suboptimal", "failed"):
            one = episode(task, kind)
            rows.append(replace(one, origin=replace(one.origin, split=split, group="")))
    half = Oracle(name="half", high=2.0)  # by its range it would grade a success 3; cuts put that right
    options = replace(QUICK, settings=MeasureSettings(Resampling(resamples=50), "val"))
    benchmark = load_benchmark("own:roborewardbench")
    plain = run_benchmark(benchmark, [half], Dataset(Listed(rows)), tmp_path, QUICK)
    fitted = run_benchmark(benchmark, [half], Dataset(Listed(rows)), tmp_path, options)
    assert value(plain, "half", "mae_group_wise") > 0.5
    assert value(fitted, "half", "mae_group_wise") == 0.0
    measure = fitted.line("half", "mae")
    assert measure is not None and measure.n == 9 and "'val'" in measure.note
    assert recompute(fitted).as_dict() == fitted.as_dict()


@pytest.mark.slow
def test_every_benchmark_runs_on_coded_episodes(tmp_path: Path) -> None:
    for name in BENCHMARKS:
        benchmark = load_benchmark(f"own:{name}" if load_benchmark(name).published else name)
        report = run_benchmark(benchmark, [Oracle()], coded(3), tmp_path / name, QUICK)
        # the coded episodes lack the labels of these
        unlabelled = {"mae_roboarena", "mae_group_wise_without_roboarena", "matched_pairs"}
        unlabelled |= {"over_reward_above_threshold"}  # and the oracle has no threshold
        assert set(load_benchmark(name).headline) - unlabelled <= set(report.about.headline), name
        assert recompute(report).as_dict() == report.as_dict()


def test_missing_data_names_its_source() -> None:
    with pytest.raises(BadInput, match=r"roboarena@1: .*--data .*huggingface"):
        load_data(load_benchmark("roboarena@1"), "")
    with pytest.raises(BadInput, match="demerit simulate DIR"):
        load_data(load_benchmark("metaworld-bad@1"), "")
    with pytest.raises(UnknownName, match="Did you mean 'roboarena@1'"):
        load_benchmark("roboarenas@1")


def test_labels_come_from_the_most_trusted_source() -> None:
    outcomes = (Outcome("rule", success=True, grade=5), Outcome("human", success=False, note="dropped it", by="Ann"))
    mixed = replace(episode(1, "failed"), outcomes=outcomes)
    row = load_data(load_benchmark("own"), Dataset(Listed([mixed]))).labels[0]
    assert (row.success, row.grade, row.note) == (False, 5, "dropped it")
    assert row.vouched_by == "human (Ann), rule"
    assert (row.context, row.task) == ("pick up the cup number 1 (session 1)", "pick up the cup number 1")
    opinion = replace(mixed, outcomes=(Outcome("model", success=True),))
    assert load_data(load_benchmark("own"), Dataset(Listed([opinion]))).labels[0].success is None


def test_control_given_as_a_model_is_still_a_rival(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="once"):
        run_benchmark(load_benchmark("gvl-voc"), ["clock", "clock"], coded(2), tmp_path, QUICK)
    for name in ("failure-detection", "gvl-voc"):  # the clock is perfect in the second, by construction
        report = run_benchmark(load_benchmark(name), ["clock", Oracle()], coded(10), tmp_path / name, QUICK)
        assert "clock" not in report.controls and [card.name for card in report.cards][:2] == ["clock", "oracle"]
        assert not any(one.is_better for one in report.decisions if one.model == "clock")
        assert any(one.is_better for one in report.decisions if one.model == "oracle")
    topped = report.verdict("oracle", "voc_pearson")
    assert topped is not None and topped.by_construction == "clock" and not topped.is_better


def one_task(tmp_path: Path, **tags: str) -> Report:
    """Twenty successes and twenty failures of one task, under three instructions."""
    episodes = [episode(0, kind, number) for kind in ("success", "failed") for number in range(20)]
    worded = [f"{('pick up', 'take', 'lift')[i % 3]} the cup number 0" for i in range(40)]
    made = [
        replace(one, instruction=words, origin=replace(one.origin, group="", tags=tags))
        for one, words in zip(episodes, worded, strict=True)
    ]
    return run_benchmark(load_benchmark("own"), [Oracle()], Dataset(Listed(made)), tmp_path, QUICK)


def test_one_task_gets_a_verdict(tmp_path: Path) -> None:
    report = one_task(tmp_path, task="pick cup")
    assert {row.task for row in report.episodes} == {"pick cup"}  # paraphrases are one task
    measure, verdict = report.line("oracle", "auroc"), report.verdict("oracle", "auroc")
    assert measure is not None and (measure.value, measure.clusters, measure.resampled) == (1.0, 40, "episodes")
    pairs = report.line("random", "preference_ordering_by_final")
    assert pairs is not None and pairs.clusters == 40 and pairs.low < 0.5 < pairs.high
    assert verdict is not None and (verdict.answer, verdict.tasks) == ("better", 1)
    assert lead(report).trusted == "oracle"
    assert any("one task" in warning and "40 episodes" in warning for warning in report.warnings)
    assert recompute(report).as_dict() == report.as_dict()


def test_instructions_are_tasks_where_no_task_is_named(tmp_path: Path) -> None:
    assert len({row.task for row in one_task(tmp_path).episodes}) == 3


def test_headline_and_card_of_a_report_agree(report: Report, tmp_path: Path) -> None:
    bare = [replace(episode(task, "success"), outcomes=()) for task in range(12)]
    models = [Oracle(), Forgetful(name="forgetful")]
    unlabelled = run_benchmark(load_benchmark("own"), models, Dataset(Listed(bare)), tmp_path, QUICK)
    for one in (report, unlabelled):
        found = lead(one)
        verdict = one.verdict("oracle", found.measure)
        assert verdict is not None and found.answer == verdict.answer == "better"
        assert found.trusted == ("oracle" if one is report else "")  # nothing says who tells success from failure
        assert any(sentence.endswith(verdict.words) for sentence in one.verdicts["oracle"])
        cell = next(
            cell for cell in headline(one)["rows"][0]["cells"] if cell and cell["measure"].name == found.measure
        )
        assert cell["answer"] == verdict.answer
        assert not verdict.by_construction  # a clock is perfect in the order of frames: no measure to conclude from


def test_absolute_over_reward_stands_beside_the_relative_one(report: Report, tmp_path: Path) -> None:
    assert value(report, "oracle", "over_reward_above_half") == pytest.approx(0.5)  # the suboptimal end at 128 / 255
    assert value(report, "clock", "over_reward_above_half") == 1.0
    assert value(report, "constant", "over_reward_above_half") == 0.0
    assert report.verdict("oracle", "over_reward_above_half") is None  # the constant would win
    assert report.line("oracle", "over_reward_above_threshold") is None
    assert report.line("length", "over_reward_above_half") is None  # a length is not a progress

    class Strict(Oracle):
        def _one(self, one: Episode) -> Reward:
            reward = super()._one(one)
            return replace(reward, given={"succeeds": bool(reward.final > 0.9)})

    models = [Strict(name="strict"), Oracle(name="wide", high=2.0)]
    found = run_benchmark(load_benchmark("own"), models, coded(3), tmp_path, QUICK)
    measure = found.line("strict", "over_reward_above_threshold")
    assert measure is not None and (measure.value, measure.n, measure.counts["successes above"]) == (0.0, 6, 6)
    assert found.line("wide", "over_reward_above_half") is None
    assert any("wide" in text and label("over_reward_above_half") in text for text in found.warnings)


def test_own_benchmark(tmp_path: Path) -> None:
    cups = Benchmark("cups@2", "Tells picked cups from others.", "coded cups", "here", (AUROC, OVER_REWARD), ("auroc",))
    try:
        for name in ("cups@1", "cups@2"):
            BENCHMARKS.add(name, lambda name=name: replace(cups, name=name))
        assert load_benchmark("cups").name == "cups@2"
        report = run_benchmark(load_benchmark("cups"), [Oracle()], coded(3), tmp_path, QUICK)
        assert value(report, "oracle", "auroc") == 1.0
        assert recompute(report).as_dict() == report.as_dict()
    finally:
        BENCHMARKS._added.clear()


def test_models_are_measured_by_models_only_when_asked_and_the_report_says_so(tmp_path: Path) -> None:
    episodes = list(coded())
    by = ("x, validated by y", "x")
    said = [
        replace(one, outcomes=(replace(one.outcomes[0], source="model", by=by[n]),))
        for n, one in enumerate(episodes[:2])
    ]
    data = Dataset(Listed([*episodes[2:], *said]), "mixed")
    plain, asked = (
        run_benchmark(
            load_benchmark("own"), [Oracle()], data, tmp_path / str(len(sources)), replace(QUICK, sources=sources)
        )
        for sources in (NOT_A_MODEL, (*NOT_A_MODEL, "model:validated"))
    )
    labelled = [{row.id for row in report.episodes if row.success is not None} for report in (plain, asked)]
    assert labelled[1] - labelled[0] == {said[0].id} and said[1].id not in labelled[1]
    assert plain.cautions == [] and "label sources" not in plain.environment
    assert next(sentence for sentence in asked.cautions if "labels of models" in sentence).startswith("1 of ")
    assert asked.environment["label sources"] == "human, simulator, rule, edit, model:validated"
    assert not plain.is_same_run(asked)
    page = write_page(asked, tmp_path / "page.html").read_text("utf-8")
    assert asked.cautions[0] in html.unescape(page) and 'role="alert"' in page
    asked.write(tmp_path / "report.json")
    assert Report.read(tmp_path / "report.json").cautions == asked.cautions


def test_a_split_to_calibrate_on_has_more_than_one_name(tmp_path: Path) -> None:
    episodes = [replace(one, origin=replace(one.origin, split=("val", "test")[n % 2])) for n, one in enumerate(coded())]
    settings = replace(QUICK.settings, calibrate_on="validation")
    loaded = load_data(load_benchmark("own"), Dataset(Listed(episodes), "two"), replace(QUICK, settings=settings))
    report = run_benchmark(load_benchmark("own"), [Oracle()], loaded, tmp_path, replace(QUICK, settings=settings))
    found = report.line("oracle", "auroc")
    assert found is not None and found.n == sum(
        row.split == "test" and row.success is not None for row in loaded.labels
    )


def test_problems_of_the_data_come_before_what_is_not_measured(sample: Path, tmp_path: Path) -> None:
    for video in sample.glob("*.mp4"):
        shutil.copy(video, tmp_path)
    made = run_benchmark(load_benchmark("own"), ["clock"], tmp_path, tmp_path / "out", QUICK)
    assert NO_INSTRUCTION in made.warnings[0] and any("not measured" in text for text in made.warnings[1:])


def test_a_verdict_of_counts_names_whole_numbers(report: Report, tmp_path: Path) -> None:
    measure = report.line("oracle", "over_reward_above_half")
    assert measure is not None
    (sentence,) = [text for text in report.verdicts["oracle"] if f"of {measure.n} {measure.unit}" in text]
    assert f" {round(measure.value * measure.n)} of {measure.n} {measure.unit}" in sentence
    own = load_benchmark("own")  # a measure that is no share stays a number
    error = replace(own.metric("progress_error"), has_controls=False)
    made = run_benchmark(replace(own, metrics=(error,), headline=(error.name,)), ["clock"], coded(3), tmp_path, QUICK)
    assert f"{value(made, 'clock', error.name):.3f}" in made.verdicts["clock"][0]


def test_a_video_is_scanned_once_however_often_its_frames_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_episode: Callable[..., Episode]
) -> None:
    """More videos than times of frames are kept for: loading and scoring them twice opens each of them once."""
    made = make_episode()
    episodes = []
    for number in range(70):
        path = shutil.copy(made.main.source.describe()["path"], tmp_path / f"copy-{number}.mp4")
        one = Episode.from_video(path, f"task {number % 2}", id=str(number))
        episodes.append(replace(one, outcomes=(Outcome("human", success=number % 4 < 2),)))
    opened, av_open = Counter[str](), av.open

    def count(path: str, **options: Any) -> Any:
        opened[path] += 1
        return av_open(path, **options)

    monkeypatch.setattr(av, "open", count)
    options = replace(QUICK, controls=False)
    report = run_benchmark(
        load_benchmark("own"), ["clock", "length"], Dataset(Listed(episodes), "x"), tmp_path, options
    )
    assert {scored.perturbation for scored in report.rewards} == {"as recorded", "shuffled"}
    assert opened == {str(tmp_path / f"copy-{number}.mp4"): 1 for number in range(70)}
