"""The false-positive rate at a calibrated threshold, and how late a failure is noticed."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.dataset import Dataset
from demerit.data.episode import Episode
from demerit.data.reward import Reward
from demerit.decide.threshold import conformal_threshold, failures_needed
from demerit.errors import NotApplicable
from demerit.evaluate.benchmarks.benchmark import Benchmark, load_benchmark
from demerit.evaluate.benchmarks.metric_specs import AT_RISK, hold_out_calibration, rate_at_risk, risk_expectations
from demerit.evaluate.benchmarks.results import compute_results
from demerit.evaluate.benchmarks.run import RunOptions, recompute, run_benchmark
from demerit.evaluate.benchmarks.scores import MeasureSettings, Scores
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.success import false_positive_rate
from demerit.evaluate.reports.headline import label
from demerit.evaluate.reports.report import AS_RECORDED, EpisodeLabels, Report
from demerit.models.protocol import example_card
from fakes.coded_episodes import FALL_AT, Listed, Oracle, coded, episode

QUICK = RunOptions(workers=0, settings=MeasureSettings(Resampling(resamples=100)))
FALSE, TRUE = (metric.name for metric in AT_RISK)


def scored(finals: Sequence[float], success: Sequence[bool], tasks: Sequence[str], name: str = "random") -> Scores:
    ids = [str(i) for i in range(len(finals))]
    facts = zip(ids, tasks, success, strict=True)
    rows = [EpisodeLabels(id, task, "other", task, task, success=bool(good)) for id, task, good in facts]
    given = {id: (value, "slept" if math.isnan(value) else "") for id, value in zip(ids, finals, strict=True)}
    rewards = {id: Reward(name, id, [0], [value], why_missing=why) for id, (value, why) in given.items()}
    return Scores({name: example_card(name=name)}, tuple(rows), (), {(name, AS_RECORDED): rewards})


def test_failures_needed_for_a_risk() -> None:
    assert (FALSE, TRUE) == ("false_positive_rate_at_0.05", "true_positive_rate_at_0.05")
    for risk in (0.5, 0.1, 0.05, 0.01):
        assert conformal_threshold(np.zeros(failures_needed(risk)), risk).enough
        assert not conformal_threshold(np.zeros(failures_needed(risk) - 1), risk).enough


def test_guarantee_holds_on_average_for_random_scores() -> None:
    tasks = [f"task {i // 2}" for i in range(80)]  # two failures in each of 40 tasks: 40 to calibrate on
    rates, expected = [], math.nan
    for seed in range(300):
        finals = np.random.default_rng(seed).random(80)
        evidence = scored(finals, [False] * 80, tasks)
        metric = rate_at_risk("false")
        rates.append(metric.tally(metric.select(evidence), "random").measure(Resampling(resamples=2)).value)
        expected = risk_expectations(evidence, "random")[FALSE].value
    assert expected == 2 / 41  # floor(0.05 * 41) of 41
    assert np.mean(rates) == pytest.approx(expected, abs=0.01)  # one rank further would be 1/41 or 3/41


def test_rate_matches_a_second_computation() -> None:
    rng = np.random.default_rng(5)
    tasks = [f"task {i % 30}" for i in range(150)]
    finals, success = rng.random(150), rng.random(150) < 0.4
    evidence = scored(finals, success.tolist(), tasks)
    metric = rate_at_risk("false", 0.1)
    about = metric.select(evidence)
    assert about.calibration is not None and set(about.tasks).isdisjoint(about.calibration.tasks)
    assert len(set(about.calibration.tasks)) == len(set(about.tasks)) == 15
    # the split depends on neither order nor version: another one would give old reports other numbers
    for order in (1, -1):
        turned = scored([0.5] * 6, [False] * 6, list("abcdef")[::order])
        half = hold_out_calibration(turned).calibration
        assert half is not None and sorted(half.tasks) == list("def")
    aside = np.isin(tasks, about.calibration.tasks)
    threshold = conformal_threshold(finals.astype(np.float32)[aside & ~success], 0.1).at
    rest = finals.astype(np.float32)[~aside]
    by_hand = false_positive_rate(rest, success[~aside], threshold, clusters=np.array(tasks)[~aside]).measure()
    found = metric.tally(about, "random").measure()
    assert (found.value, found.low, found.high, found.n) == (by_hand.value, by_hand.low, by_hand.high, by_hand.n)
    assert 0 < found.value < 1


def test_too_few_scored_failures_refuse_the_model() -> None:
    metric = rate_at_risk("false")
    blind = scored([math.nan] * 80, [False] * 80, [f"task {i // 2}" for i in range(80)])
    with pytest.raises(NotApplicable, match=r"0 of the 40 .* takes 19"):
        metric.tally(metric.select(blind), "random")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    options = replace(QUICK, perturbations=False)
    models = [Oracle(), Late()]
    return run_benchmark(load_benchmark("own"), models, coded(20), tmp_path_factory.mktemp("risk"), options)


class Late(Oracle):
    """An oracle that is two frames behind."""

    def __init__(self) -> None:
        super().__init__(name="late")

    def _one(self, one: Episode) -> Reward:
        value = super()._one(one).value
        return Reward(self.card.name, one.id, np.arange(len(value)), np.concatenate([value[:1].repeat(2), value[:-2]]))


def test_oracle_and_controls_at_the_threshold(report: Report) -> None:
    found = {(line.model, line.measure.name): line.measure for line in report.lines if not line.part}
    assert found["oracle", FALSE].value == 0.0 and found["oracle", TRUE].value == 1.0
    assert (found["oracle", FALSE].n, found["oracle", TRUE].n) == (20, 20)
    assert "20 rejected episodes" in found["oracle", FALSE].note
    for control in ("constant", "clock"):
        assert found[control, FALSE].value == found[control, TRUE].value == 0.0
    assert FALSE in report.about.lower_is_better and TRUE not in report.about.lower_is_better
    assert not [warning for warning in report.warnings if "theory" in warning]
    assert recompute(report).as_dict() == report.as_dict()


def test_latency_in_frames(report: Report) -> None:
    found = {line.model: line.measure for line in report.lines if line.measure.name == "failure_latency"}
    assert (found["oracle"].value, found["late"].value) == (0.0, 2.0)
    assert (found["late"].n, found["late"].unit) == (20, "caught events") and FALL_AT + 2 < 18
    for control in ("constant", "clock", "length"):
        assert (found[control].n, found[control].undefined, found[control].unscored) == (0, 20, 0)
    assert "failure_latency" in report.about.lower_is_better


def test_too_few_failures_are_a_warning(tmp_path: Path) -> None:
    report = run_benchmark(load_benchmark("failure-detection"), [Oracle()], coded(6), tmp_path, QUICK)
    assert report.line("oracle", FALSE) is None
    assert any(
        label(FALSE) in warning and label(TRUE) in warning and "at least 19" in warning for warning in report.warnings
    )


def test_threshold_uses_the_validation_split(tmp_path: Path) -> None:
    rows = []
    for task in range(25):
        split = "validation" if task < 10 else "test"
        for kind in ("success", "suboptimal", "failed"):
            one = episode(task, kind)
            rows.append(replace(one, origin=replace(one.origin, split=split)))
    benchmark = Benchmark("risk@1", "none", "any", "here", AT_RISK, (FALSE,))
    report = run_benchmark(benchmark, [Oracle()], Dataset(Listed(rows)), tmp_path, QUICK)
    measure = report.line("oracle", FALSE)
    assert measure is not None and measure.n == 30 and measure.value == 0.0
    assert "20 rejected episodes" in measure.note and "'validation'" in measure.note
    named = replace(QUICK, settings=MeasureSettings(Resampling(resamples=100), "test"))
    other = run_benchmark(benchmark, [Oracle()], Dataset(Listed(rows)), tmp_path, named).line("oracle", FALSE)
    assert other is not None and other.n == 20 and "'test'" in other.note


def test_notes_name_measures_in_words_and_count_one_task_as_a_whole() -> None:
    benchmark = replace(load_benchmark("own"), metrics=AT_RISK, headline=())
    results = compute_results(benchmark, scored([0.2] * 4 + [0.9], [False] * 4 + [True], ["push"] * 5), [])
    (note,) = [warning for warning in results.warnings if "19" in warning]
    assert "_" not in "".join(results.warnings) and "''" not in note and "4 in all" in note
