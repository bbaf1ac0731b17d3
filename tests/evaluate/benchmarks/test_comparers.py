"""Models that compare two episodes: asked in both orders, kept in the report, measured again without them."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demerit.data.episode import Episode
from demerit.evaluate.benchmarks.benchmark import load_benchmark
from demerit.evaluate.benchmarks.run import RunOptions, recompute, run_benchmark
from demerit.evaluate.benchmarks.scores import ALWAYS_A, MeasureSettings
from demerit.evaluate.metrics import Resampling
from demerit.evaluate.metrics.ranking import both_orders_agreement
from demerit.evaluate.reports.report import Report
from fakes.coded_episodes import TASKS, Oracle, coded

QUICK = RunOptions(workers=0, perturbations=False, settings=MeasureSettings(Resampling(resamples=100)))
MEASURE = "both_orders_agreement"


def task_of(one: Episode) -> int:
    return int(one.id.partition("/")[0])


class Chooser(Oracle):
    """Names the better one; in every second task it cannot resist the first."""

    swayed = False

    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        return [self._choice(*pair) for pair in pairs]

    def _choice(self, first: Episode, second: Episode) -> float:
        assert not first.outcomes and not second.outcomes, "a model must not see the labels"
        if self.swayed and task_of(first) % 2:
            return 0.9
        ends = [episode.main.take([len(episode) - 1])[0, 0, 0, 0] for episode in (first, second)]
        return 0.8 if ends[0] > ends[1] else 0.2


class Swayed(Chooser):
    swayed = True


class First(Oracle):
    def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
        return [1.0] * len(pairs)


class Troubled(Chooser):
    """Fails on one task, cannot tell in another, and gives no probability in a third, one way round only."""

    def _choice(self, first: Episode, second: Episode) -> float:
        if task_of(first) == 1:
            raise RuntimeError("it broke")
        wrong = {2: math.nan, 3: 1.7}.get(task_of(first)) if "failed" in first.id else None
        return super()._choice(first, second) if wrong is None else wrong


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    kinds = {"chooser": Chooser, "swayed": Swayed, "first": First, "troubled": Troubled, "plain": Oracle}
    models: list[Any] = [kind(name=name) for name, kind in kinds.items()]
    out = tmp_path_factory.mktemp("comparers")
    return run_benchmark(load_benchmark("own"), models, coded(), out, replace(QUICK, batch=5))


def test_agreement_in_both_orders(report: Report) -> None:
    found = {line.model: line.measure for line in report.lines if line.measure.name == MEASURE}
    assert set(found) == {"chooser", "swayed", "first", "troubled", ALWAYS_A}  # nothing is asked of the others
    assert (
        found["chooser"].value == 1.0 and found["swayed"].value == 0.75
    )  # half of the tasks right both ways, half one way only
    assert found["first"].value == found[ALWAYS_A].value == 0.5
    assert (found["chooser"].n, found["chooser"].counts["human ties"]) == (TASKS, TASKS)
    for name, turned in (("chooser", 0), ("first", TASKS), ("swayed", TASKS // 2)):
        assert f"{turned} of {TASKS} pairs" in found[name].note
    assert not [warning for warning in report.warnings if "theory" in warning or MEASURE in warning]


def test_agreement_matches_the_metric(report: Report) -> None:
    verdicts = {(pair.a, pair.b): pair.verdict for pair in report.preferences}
    mine = [pair for pair in report.choices if pair.model == "swayed"]
    assert len(mine) == TASKS
    leaning = [(np.sign(answer.p_first - 0.5) + np.sign(0.5 - answer.p_swapped)) / 2 for answer in mine]
    tasks = [answer.a.partition("/")[0] for answer in mine]
    said = [verdicts[answer.a, answer.b] for answer in mine]
    again = both_orders_agreement(leaning, said, clusters=tasks).measure(Resampling(resamples=100))
    measure = report.line("swayed", MEASURE)
    assert measure is not None
    assert (measure.value, measure.n, measure.ties) == (again.value, again.n, again.ties)


def test_failing_pairs_are_counted_alone(report: Report) -> None:
    measure = report.line("troubled", MEASURE)
    assert measure is not None and (measure.value, measure.n, measure.unscored) == (1.0, TASKS - 3, 3)
    reasons = {pair.a.partition("/")[0]: pair.why_missing for pair in report.choices if pair.why_missing}
    assert reasons == {"1": "RuntimeError: it broke", "2": "it could not tell", "3": "1.7 is not a probability"}
    half = next(pair for pair in report.choices if pair.model == "troubled" and "2/" in pair.a[:2])
    assert math.isnan(half.p_first) != math.isnan(half.p_swapped)  # the other order was answered, and is kept
    assert any(warning.startswith(f"troubled left 3 of {TASKS} pairs") for warning in report.warnings)


def test_answers_are_in_the_file(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path / "report.json")
    read = Report.read(tmp_path / "report.json")
    again = recompute(replace(read, lines=(), comparisons=(), verdicts={}))
    assert again.as_dict() == read.as_dict() == report.as_dict()
    facts = json.loads((tmp_path / "report.json").read_text())
    del facts["choices"]
    old = Report.from_dict(facts)
    assert old.choices == () and recompute(old).line("first", MEASURE) is None


def test_comparers_see_chosen_frames_and_are_asked_only_if_needed(tmp_path: Path) -> None:
    seen: list[int] = []

    class Counting(First):
        def prefer(self, pairs: Sequence[tuple[Episode, Episode]]) -> list[float]:
            seen.extend(len(episode) for pair in pairs for episode in pair)
            return super().prefer(pairs)

    run_benchmark(load_benchmark("own:roboarena"), [Counting()], coded(3), tmp_path, replace(QUICK, frames=4))
    assert seen == [4] * 12
    seen.clear()
    report = run_benchmark(load_benchmark("failure-detection"), [Counting()], coded(3), tmp_path / "f", QUICK)
    assert seen == [] and report.choices == ()
