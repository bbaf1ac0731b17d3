"""Metrics: pure functions from plain arrays to a `Tally`, whose `measure()` returns a `Measure` (value, interval, n).

    from demerit.evaluate.metrics.success import auroc
    auroc(scores, success, clusters=tasks).measure(Resampling(resamples=2000))

`bootstrap` has measures, intervals and comparisons of two models; `ranking`, `success`, `grades`, `failure_moment`
have the metrics; `controls` has what models without knowledge must score. `rater_agreement` measures people,
`policy_ranking` ranks policies by people's verdicts.
"""

from demerit.evaluate.metrics.bootstrap import Comparison, Measure, Resampling, Tally, compare, holm
from demerit.evaluate.metrics.categories import Category, category

__all__ = ["Category", "Comparison", "Measure", "Resampling", "Tally", "category", "compare", "holm"]
