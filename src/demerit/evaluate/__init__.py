"""Models measured: metrics with intervals, benchmarks, reports."""
