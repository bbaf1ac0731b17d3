"""Figures in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.responses import Response

Figure = tuple[str, str, str, Mapping[str, float | None]]
"""name (that of a counter ends with `_total`), what it is, the name of its label or nothing, and the number of each
label; None = unknown, which is left out"""


def send_metrics(text: str | bytes) -> Response:
    """Answer a request of Prometheus."""
    return Response(text, media_type="text/plain; version=0.0.4")


def figures_text(prefix: str, figures: Iterable[Figure]) -> str:
    """Write numbers that are known now."""
    families = []
    for name, about, label, numbers in figures:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(prefix + name, about, labels=[label] if label else [])
        for text, number in numbers.items():
            if number is not None:
                family.add_metric([text] if label else [], number)
        families += [family] if family.samples else []
    return str(generate_latest(SimpleNamespace(collect=lambda: families)).decode())
