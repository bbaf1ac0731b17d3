"""The published tables: shapes, spot values, and every printed mean computed again from its parts."""

from decimal import Decimal

import pytest

from demerit.errors import UnknownName
from demerit.evaluate.benchmarks import load_benchmark
from demerit.evaluate.reports.published import PublishedTable, published_table, published_tables
from fakes.paths import ASSETS

# Printed averages that are not the means of the printed parts; the table's notes say so.
DISAGREEING = {"token uncertainty", "VLAC", "RoboReward-4B"}


def mean(table: PublishedTable, model: str, without: set[str]) -> Decimal:
    values = [value for (name, column), value in table.values.items() if name == model and column not in without]
    return sum(values, Decimal(0)) / len(values)


def agrees(printed: Decimal | None, computed: Decimal, digits: int) -> bool:
    # The printed mean was rounded by up to half a unit, and so was each of its parts.
    assert printed is not None
    return abs(printed - computed) <= Decimal(1).scaleb(-digits)


def test_every_file_is_a_table_with_a_source() -> None:
    assert len(published_tables()) == 9
    names = {table.name for table in published_tables()}
    assert names == {path.stem for path in (ASSETS / "published").glob("*.csv")}
    for table in published_tables():
        assert table.source.paper and table.source.place and table.about and table.better in ("lower", "higher")
        assert table.approximate == table.name.startswith("position")
        lines = (ASSETS / "published" / f"{table.name}.csv").read_text().strip().splitlines()
        assert table.size == len(lines) - 1 > 0  # no cell twice


def test_measures_beside_printed_numbers_follow_the_papers() -> None:
    """What demerit shows first on the same data is computed as the printed number is."""
    beside = {table.name: table.beside for table in published_tables() if table.beside}
    for benchmark, measure in beside.values():
        assert load_benchmark(benchmark).headline[0] == measure
    assert beside["position_figure_3"] == ("roboarena@1", "strict_preference_ordering_by_sum")
    assert {name for name in beside if name.startswith("roboreward")} == {f"roboreward_table_{n}" for n in (1, 3, 10)}


def test_overall_error_is_the_mean_of_the_subsets() -> None:
    full, small = published_table("roboreward_table_10"), published_table("roboreward_table_1")
    assert all(agrees(full.value(model, "Overall"), mean(full, model, {"Overall"}), 3) for model in full.models)
    for model in small.models:
        assert all(small.value(model, column) == full.value(model, column) for column in ("Overall", "RoboArena"))
        assert agrees(small.value(model, "OXE subsets"), mean(full, model, {"Overall", "RoboArena"}), 3)


def test_tables_agree_with_each_other() -> None:
    ablation, full = published_table("roboreward_table_3"), published_table("roboreward_table_10")
    for column in ablation.columns:
        assert ablation.value("RoboReward 4B, full data", column) == full.value("RoboReward 4B", column)
    changes = published_table("roboreward_table_2")
    for (model, column), value in changes.values.items():
        if column.endswith(", change"):
            task = column.removesuffix(", change")
            after, before = changes.value(model, task), changes.value("Base policy", task)
            assert after is not None and before is not None and after - before == value
    main, variants = published_table("robometer_table_1"), published_table("robometer_table_2")
    best, column = "Robometer, + failed data", "VOC r, RBM-EVAL-OOD"
    assert main.value("Robometer (RBM-1M)", column) == variants.value(best, column)


def test_failure_detection_averages_are_means_except_where_noted() -> None:
    table = published_table("robometer_table_3")
    off = {m for m in table.models if not agrees(table.value(m, "Average"), mean(table, m, {"Average"}), 2)}
    assert off == DISAGREEING
    assert all(model in " ".join(table.notes) for model in off)


@pytest.mark.parametrize(
    ("name", "model", "column", "value"),
    [
        ("roboreward_table_10", "RoboReward 8B", "UCSD Pick Place", "0.100"),
        ("roboreward_table_10", "Qwen2.5-VL Instruct (3B)", "Austin VIOLA", "2.733"),
        ("roboreward_table_1", "Gemini Robotics-ER 1.5", "OXE subsets", "0.902"),
        ("roboreward_table_2", "RoboReward 8B", "Open drawer", "80"),
        ("robometer_table_1", "RoboDopamine-8B", "Kendall tau_a, RBM-EVAL-OOD", "0.45"),
        ("robometer_table_2", "Robometer, ReWiND architecture", "Kendall tau, LIBERO-90", "-0.14"),
        ("position_figure_3", "ReWind, GVL and Dopamine", "tool use, lowest", "0.52"),
        ("position_figure_4", "GVL, failure texts and videos", "pick/place and push/pull", "8"),
    ],
)
def test_spot_values_with_their_printed_digits(name: str, model: str, column: str, value: str) -> None:
    assert str(published_table(name).value(model, column)) == value


def test_empty_cells_best_cells_and_unknown_names() -> None:
    assert published_table("roboreward_table_2").value("Base policy", "Open drawer, change") is None
    table = published_table("roboreward_table_10")
    assert table.is_best("RoboReward 8B", "Overall") and not table.is_best("RoboReward 4B", "Overall")
    with pytest.raises(UnknownName, match="roboreward_table_10"):
        published_table("roboreward_table_11")
    with pytest.raises(UnknownName, match="RoboArena"):
        table.value("RoboReward 8B", "Roboarena")
