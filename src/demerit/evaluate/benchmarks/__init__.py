"""Benchmarks: episodes, labels and metrics under one name; `run_benchmark` scores models on one and returns a report.

`benchmark` holds the definition and the built-in ones, `metric_specs` their metrics.
"""

from demerit.evaluate.benchmarks.benchmark import BENCHMARKS, Benchmark, load_benchmark
from demerit.evaluate.benchmarks.run import RunOptions, load_data, recompute, run_benchmark, write_generations
from demerit.evaluate.benchmarks.scores import BenchmarkData, MeasureSettings, MetricSpec, Scores, labels_of

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
    "write_generations",
]
