"""Metrics: pure functions from plain arrays to a `Measure` (value, interval, n, unscored), one subject per module.

    measure             what a metric returns
    bootstrap           intervals, clustered by task
    comparison          two models on the same episodes; Holm's correction
    ordering            preference-ordering accuracy, agreement with A/B/tie judgements
    grades              MAE on grades 1..5, from value to grade
    order_correlation   VOC by Pearson and by Spearman
    kendall             tau over failed < suboptimal < successful, success-failure gap
    detection           AUROC, average precision, F1, over-reward rate, false-positive rate
    conformal           a threshold with a promised risk
    calibration         reliability bins, ECE, Brier
    failure_moment      does the reward fall where the failure is?
    instruction         confusion matrix, right against wrong instruction
    controls            what theory says about models that know nothing
    columns             checked arrays, ranks and ratios

Every metric `x(...) -> Measure` stands beside its tally, the counted evidence, which `comparison.compare` takes.
"""

from demerit.evaluate.metrics.bootstrap import Resampling, Tally
from demerit.evaluate.metrics.comparison import Comparison, compare, holm
from demerit.evaluate.metrics.measure import Measure

__all__ = ["Comparison", "Measure", "Resampling", "Tally", "compare", "holm"]
