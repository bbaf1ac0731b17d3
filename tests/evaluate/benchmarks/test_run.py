"""Benchmarks end to end: controls score what theory says, an oracle everything, and a report recomputes itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.labels import Outcome
from demerit.errors import BadInput, UnknownName
from demerit.evaluate.benchmarks.benchmark import BENCHMARKS, Benchmark, load_benchmark
from demerit.evaluate.benchmarks.data import SHUFFLED, frame_order
from demerit.evaluate.benchmarks.episode_metrics import AUROC, OVER_REWARD
from demerit.evaluate.benchmarks.run import RunOptions, load_data, recompute, run_benchmark
from demerit.evaluate.benchmarks.scores import ALWAYS_A, CONTROLS, MeasureSettings
from demerit.evaluate.metrics import Resampling
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
    for measure, best in {
        "auroc": 1.0,
        "over_reward_rate": 0.0,
        "average_precision_of_success": 1.0,
        "best_f1_of_success": 1.0,
        "preference_ordering_by_final": 1.0,
        "preference_ordering_by_sum": 1.0,
        "preference_ordering_by_mean": 1.0,
        "judgement_agreement": 1.0,
        "kendall_ordered": 1.0,
        "mae": 0.0,
        "mae_group_wise": 0.0,
        "progress_error": 0.0,
        "progress_correlation_spearman": 1.0,
        "failure_caught": 1.0,
        "failure_caught_placebo": 0.0,
        "voc_pearson": 1.0,
        "voc_spearman": 1.0,
        "voc_pearson_shuffled": 1.0,
        "right_instruction_accuracy": 1.0,
        "instruction_diagonal_share": 1.0,
    }.items():
        assert value(report, "oracle", measure) == pytest.approx(best, abs=1e-6), measure
    assert all("is clear of all 6 controls" in sentence for sentence in report.verdicts["oracle"])


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
    assert any(
        "The control clock scores 1.000 in auroc where theory says 0.500" in warning for warning in report.warnings
    )


def test_unscored_is_counted_and_explained(report: Report) -> None:
    measure = report.line("forgetful", "auroc")
    assert measure is not None and (measure.n, measure.unscored) == (4 * TASKS - 4, 4)
    assert any(
        warning.startswith("forgetful left 4 of 48 episodes") and "it slept (4)" in warning
        for warning in report.warnings
    )


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
    bare = replace(read, lines=(), comparisons=(), verdicts={})
    again = recompute(bare)
    assert again.as_dict() == read.as_dict()
    again.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "report.json").read_bytes()


def test_second_run_scores_nothing(tmp_path: Path) -> None:
    seen: list[int] = []
    benchmark = load_benchmark("gvl-voc@1")
    first = run_benchmark(benchmark, [Oracle()], coded(3), tmp_path, QUICK)
    again = run_benchmark(
        benchmark, [Oracle()], coded(3), tmp_path, QUICK, lambda what, progress: seen.append(progress.scored)
    )
    assert set(seen) == {0}
    assert first.as_dict()["lines"] == again.as_dict()["lines"]


def test_shuffled_frames_use_true_time(tmp_path: Path) -> None:
    report = run_benchmark(load_benchmark("gvl-voc"), [Oracle()], coded(2), tmp_path, QUICK)
    reward = report.rewards_of("oracle", SHUFFLED)["0/success-0"]
    order = frame_order(SHUFFLED, "0/success-0", 18)
    assert sorted(order) == list(range(18)) and list(order) != list(range(18)) and order[0] == 0
    np.testing.assert_allclose(reward.value, order / 17, atol=1e-6)


def test_counting_frames_shows_nothing(tmp_path: Path) -> None:
    report = run_benchmark(load_benchmark("gvl-voc"), ["clock", Oracle()], coded(4), tmp_path, QUICK)
    said = " ".join(report.verdicts["clock"])
    assert "is clear of" not in said
    assert "voc_pearson: 1.000 by construction, counting frames; it has shown nothing here." in said
    assert any("the control clock (1.000) is left aside" in entry for entry in report.verdicts["oracle"])


def test_incomparable_values_are_refused(tmp_path: Path) -> None:
    model = Oracle(name="normalised", comparable=False)
    report = run_benchmark(load_benchmark("own"), [model], coded(3), tmp_path, QUICK)
    assert report.line("normalised", "auroc") is None
    assert report.line("normalised", "preference_ordering_by_sum") is None
    assert value(report, "normalised", "voc_pearson") == pytest.approx(1.0)
    refusal = next(text for text in report.warnings if text.startswith("normalised: "))
    assert "auroc" in refusal and "over_reward_rate" in refusal and "voc_pearson" not in refusal
    assert report.verdicts["normalised"][0] == "auroc: not measured for this model."


def test_missing_labels_are_a_warning(tmp_path: Path) -> None:
    bare = [replace(episode(task, "success"), outcomes=()) for task in range(3)]
    report = run_benchmark(load_benchmark("own"), [Oracle()], Dataset(Listed(bare)), tmp_path, QUICK)
    assert not [line for line in report.lines if line.measure.name in ("auroc", "mae", "failure_caught")]
    assert any("auroc" in warning and "accepted and rejected episodes" in warning for warning in report.warnings)
    assert report.about.headline and report.line("oracle", report.about.headline[0]) is not None
    assert value(report, "oracle", "voc_pearson") == pytest.approx(1.0)


def test_labels_by_models_are_ignored(tmp_path: Path) -> None:
    opinion = [replace(episode(task, "success"), outcomes=(Outcome("model", success=True),)) for task in range(2)]
    gathered = load_data(load_benchmark("own"), Dataset(Listed(opinion)), QUICK)
    assert {entry.success for entry in gathered.labels} == {None}


def test_grades_calibrate_on_a_held_out_split(tmp_path: Path) -> None:
    rows = []
    for task in range(6):
        split = "val" if task < 3 else "test"
        for kind in ("success", "suboptimal", "failed"):
            one = episode(task, kind)
            rows.append(replace(one, origin=replace(one.origin, split=split, group="")))
    half = Oracle(name="half", high=2.0)  # by its range it would grade a success 3; cuts put that right
    options = replace(QUICK, settings=MeasureSettings(Resampling(resamples=50), "val"))
    benchmark = load_benchmark("roborewardbench")
    plain = run_benchmark(benchmark, [half], Dataset(Listed(rows)), tmp_path, QUICK)
    fitted = run_benchmark(benchmark, [half], Dataset(Listed(rows)), tmp_path, options)
    assert value(plain, "half", "mae_group_wise") > 0.5
    assert value(fitted, "half", "mae_group_wise") == 0.0
    measure = fitted.line("half", "mae")
    assert measure is not None and measure.n == 9 and "fitted on the split 'val'" in measure.note
    assert recompute(fitted).as_dict() == fitted.as_dict()


def test_every_benchmark_runs_on_coded_episodes(tmp_path: Path) -> None:
    for name in BENCHMARKS:
        report = run_benchmark(load_benchmark(name), [Oracle()], coded(3), tmp_path / name, QUICK)
        unlabelled = (
            "mae_roboarena",
            "mae_group_wise_without_roboarena",
            "matched_pairs",
        )  # the coded episodes lack their labels
        wanted = [entry for entry in load_benchmark(name).headline if entry not in unlabelled]
        assert set(wanted) <= set(report.about.headline), name
        assert recompute(report).as_dict() == report.as_dict()


def test_own_benchmark(tmp_path: Path) -> None:
    def cups() -> Benchmark:
        return Benchmark(
            name="cups@2",
            claim="Tells picked cups from others in the coded kitchen.",
            data="coded cups",
            get="https://example.org/cups",
            metrics=(AUROC, OVER_REWARD),
            headline=("auroc",),
        )

    BENCHMARKS.add("cups@1", lambda: replace(cups(), name="cups@1"))
    BENCHMARKS.add("cups@2", cups)
    try:
        assert load_benchmark("cups").name == "cups@2"
        report = run_benchmark(load_benchmark("cups"), [Oracle()], coded(3), tmp_path, QUICK)
        assert value(report, "oracle", "auroc") == 1.0
        assert recompute(report).as_dict() == report.as_dict()
    finally:
        BENCHMARKS._added.clear()


def test_missing_data_names_its_source() -> None:
    with pytest.raises(BadInput, match=r"roboarena@1: expected --data PATH with a RoboArena dump .*huggingface"):
        load_data(load_benchmark("roboarena@1"), "")
    with pytest.raises(BadInput, match="demerit simulate DIR"):
        load_data(load_benchmark("metaworld-bad@1"), "")
    with pytest.raises(UnknownName, match="Did you mean 'roboarena@1'"):
        load_benchmark("roboarenas@1")


def test_controls_given_as_models_are_still_rivals(tmp_path: Path) -> None:
    benchmark = load_benchmark("failure-detection")
    with pytest.raises(BadInput, match="each model once"):
        run_benchmark(benchmark, ["clock", "clock"], coded(2), tmp_path, QUICK)
    report = run_benchmark(benchmark, ["clock", Oracle()], coded(4), tmp_path, QUICK)
    assert "clock" not in report.controls and [card.name for card in report.cards][:2] == ["clock", "oracle"]
    assert "shown nothing" in report.verdicts["clock"][1]
    assert "all 6 controls" in report.verdicts["oracle"][1]


def test_labels_come_from_the_most_trusted_source() -> None:
    mixed = replace(
        episode(1, "failed"),
        outcomes=(Outcome("rule", success=True, grade=5), Outcome("human", success=False, note="dropped it", by="Ann")),
    )
    row = load_data(load_benchmark("own"), Dataset(Listed([mixed]))).labels[0]
    assert (row.success, row.grade, row.note) == (False, 5, "dropped it")
    assert row.vouched_by == "human (Ann), rule"
    assert (row.context, row.task) == ("pick up the cup number 1 (session 1)", "pick up the cup number 1")


def test_settings_round_trip() -> None:
    settings = MeasureSettings(Resampling(resamples=7, seed=3, alone="rows", level=0.9), "val")
    assert MeasureSettings.from_facts(settings.as_facts()) == settings
