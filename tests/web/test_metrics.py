"""Figures as Prometheus reads them."""

from prometheus_client.parser import text_string_to_metric_families

from demerit.web.metrics import figures_text


def test_figures_with_and_without_labels() -> None:
    text = figures_text(
        "demerit_x_",
        [
            ("seen_total", "Seen.", "", {"": 3}),
            ("kinds", "By kind.", "kind", {'a"b\\\n': 1, "c": None}),
            ("unknown", "Not known.", "", {"": None}),
        ],
    )
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {"demerit_x_seen", "demerit_x_kinds"} and families["demerit_x_seen"].type == "counter"
    assert [(sample.name, sample.labels, sample.value) for sample in families["demerit_x_kinds"].samples] == [
        ("demerit_x_kinds", {"kind": 'a"b\\\n'}, 1.0)
    ]
