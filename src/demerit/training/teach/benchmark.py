"""The questions that a lesson's report answers, about episodes that were left out."""

from __future__ import annotations

from demerit.evaluate.benchmarks.benchmark import Benchmark
from demerit.evaluate.benchmarks.curve_questions import MOMENT, TRUTH
from demerit.evaluate.benchmarks.evidence import Evidence, Floats
from demerit.evaluate.benchmarks.question import Question
from demerit.evaluate.benchmarks.questions import CALIBRATION, DETECTION, GRADES, JUDGEMENT, RANKED
from demerit.evaluate.metrics import Tally
from demerit.evaluate.metrics.ordering import ordering_tally


def taught() -> Benchmark:
    """Return the benchmark behind a taught model's report; its rewards are those of left-out episodes."""
    return Benchmark(
        name="taught@1",
        claim="How good a model taught on some of these episodes is on the others: every value comes from a head that "
        "had not seen the episode, nor any that was recorded with it. It says nothing about other robots, tasks or "
        "cameras.",
        data="the report.json that demerit teach wrote",
        get="demerit teach DATASET -o MODEL",
        questions=(*DETECTION, *TRUTH, PAIRS, *JUDGEMENT, *GRADES, *CALIBRATION, *MOMENT),
        headline=("auroc", "over_reward_rate", "progress_error", "judgement_agreement"),
    )


def _pairs(evidence: Evidence, finals: Floats) -> Tally:
    """Count pairs within one instruction; elsewhere intervals rest on recordings, and here a pair crosses two."""
    return ordering_tally(finals, evidence.scores[0], evidence.contexts, how="final")


PAIRS = Question(
    "preference_ordering_by_final",
    numbers=lambda evidence, model: evidence.finals(model),
    counting=_pairs,
    needs=RANKED,
)
