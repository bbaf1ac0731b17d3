"""Benchmarks: episodes, labels and metrics under one name; `run_benchmark` scores models on one and returns a report.

`benchmark` holds the definition, `catalogue` the built-in ones, `episode_metrics` and `curve_metrics` their metrics.
"""

from demerit.evaluate.benchmarks.benchmark import BENCHMARKS, Benchmark, load_benchmark
from demerit.evaluate.benchmarks.data import BenchmarkData, labels_of
from demerit.evaluate.benchmarks.run import RunOptions, load_data, recompute, run_benchmark
from demerit.evaluate.benchmarks.scores import MeasureSettings, MetricSpec, Scores

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "BenchmarkData",
    "MeasureSettings",
    "MetricSpec",
    "RunOptions",
    "Scores",
    "labels_of",
    "load_benchmark",
    "load_data",
    "recompute",
    "run_benchmark",
]
