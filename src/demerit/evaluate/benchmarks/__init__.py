"""Benchmarks: data, labels and metrics under one name, and what others have published on them."""
