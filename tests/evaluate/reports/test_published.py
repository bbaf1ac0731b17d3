"""The published tables: shapes, ranges, spot values, and every mean computed again from its parts."""

from __future__ import annotations

from decimal import Decimal

import pytest

from demerit.errors import UnknownName
from demerit.evaluate.reports.published import PublishedTable, published_table, published_tables
from fakes.paths import ASSETS

HALF_A_UNIT = {3: Decimal("0.0005"), 2: Decimal("0.005")}
# Printed averages that are not the means of the printed parts; the table's notes say so.
DISAGREEING = {"token uncertainty", "VLAC", "RoboReward-4B"}


def mean(table: PublishedTable, model: str, without: set[str]) -> Decimal:
    values = [value for (name, column), value in table.values.items() if name == model and column not in without]
    return sum(values, Decimal(0)) / len(values)


def agrees(printed: Decimal | None, computed: Decimal, digits: int) -> bool:
    # The printed mean was rounded by up to half a unit, and so was each of its parts.
    assert printed is not None
    return abs(printed - computed) <= 2 * HALF_A_UNIT[digits]


def test_every_table_is_there_once_and_every_file_is_listed() -> None:
    names = [table.name for table in published_tables()]
    folder = ASSETS / "published"
    assert sorted(names) == sorted(path.stem for path in folder.glob("*.csv"))
    assert len(names) == 9


@pytest.mark.parametrize("table", published_tables(), ids=lambda table: table.name)
def test_every_table_says_what_it_is(table: PublishedTable) -> None:
    assert table.source.paper and table.source.place and table.about.endswith(".")
    assert table.better in ("lower", "higher")
    assert table.approximate == table.name.startswith("position")
    lines = (ASSETS / "published" / f"{table.name}.csv").read_text().strip().splitlines()
    assert table.size == len(lines) - 1 > 0  # no cell twice
    assert all(model == model.strip() and "<" not in model for model in table.models)
    assert all(value.is_finite() for value in table.values.values())


@pytest.mark.parametrize(
    ("name", "shape", "low_high"),
    [
        ("roboreward_table_10", (22, 1 + 23, 22 * 24), (0, 4)),
        ("roboreward_table_1", (12, 3, 36), (0, 4)),
        ("roboreward_table_2", (4, 4, 14), (0, 100)),
        ("roboreward_table_3", (3, 2, 6), (0, 4)),
        ("robometer_table_1", (9, 3, 27), (-1, 1)),
        ("robometer_table_2", (4, 6, 24), (-1, 1)),
        ("robometer_table_3", (5, 8, 40), (0, 1)),
    ],
)
def test_shapes_and_ranges(name: str, shape: tuple[int, int, int], low_high: tuple[int, int]) -> None:
    table = published_table(name)
    assert (len(table.models), len(table.columns), table.size) == shape
    assert all(low_high[0] <= value <= low_high[1] for value in table.values.values())


def test_digits_are_kept_as_printed() -> None:
    for value in published_table("roboreward_table_10").values.values():
        assert value.as_tuple().exponent == -3
    assert (
        str(published_table("roboreward_table_3").value("RoboReward 4B, no negative augmentation", "Overall"))
        == "1.450"
    )


def test_the_overall_error_is_the_mean_of_the_23_subsets_for_all_22_models() -> None:
    table = published_table("roboreward_table_10")
    off = [m for m in table.models if not agrees(table.value(m, "Overall"), mean(table, m, {"Overall"}), 3)]
    assert off == []
    overall = [table.value(model, "Overall") for model in table.models]
    assert overall == sorted(value for value in overall if value is not None)


def test_table_1_follows_from_table_10() -> None:
    small, full = published_table("roboreward_table_1"), published_table("roboreward_table_10")
    for model in small.models:
        assert small.value(model, "Overall") == full.value(model, "Overall")
        assert small.value(model, "RoboArena") == full.value(model, "RoboArena")
        assert agrees(small.value(model, "OXE subsets"), mean(full, model, {"Overall", "RoboArena"}), 3)


def test_the_full_mixture_of_table_3_is_the_4b_model_of_table_10() -> None:
    ablation, full = published_table("roboreward_table_3"), published_table("roboreward_table_10")
    for column in ablation.columns:
        assert ablation.value("RoboReward 4B, full data", column) == full.value("RoboReward 4B", column)


def test_table_2_changes_are_from_the_base_policy() -> None:
    table = published_table("roboreward_table_2")
    for (model, column), value in table.values.items():
        if column.endswith(", change"):
            task = column.removesuffix(", change")
            after, before = table.value(model, task), table.value("Base policy", task)
            assert after is not None and before is not None and after - before == value
    assert table.value("Base policy", "Open drawer, change") is None


def test_robometers_best_ablation_is_its_main_result() -> None:
    main, ablation = published_table("robometer_table_1"), published_table("robometer_table_2")
    for model, variant in [
        ("Robometer (RBM-1M)", "Robometer, + failed data"),
        ("ReWiND (RBM-1M)", "Robometer, ReWiND architecture"),
    ]:
        assert main.value(model, "VOC r, RBM-EVAL-OOD") == ablation.value(variant, "VOC r, RBM-EVAL-OOD")
        assert main.value(model, "Kendall tau_a, RBM-EVAL-OOD") == ablation.value(variant, "Kendall tau, RBM-EVAL-OOD")


def test_failure_detection_averages_are_means_except_where_noted() -> None:
    table = published_table("robometer_table_3")
    off = {m for m in table.models if not agrees(table.value(m, "Average"), mean(table, m, {"Average"}), 2)}
    assert off == DISAGREEING
    assert all(model in " ".join(table.notes) for model in off)


@pytest.mark.parametrize(
    ("name", "model", "column", "value"),
    [
        ("roboreward_table_10", "RoboReward 8B", "UCSD Pick Place", "0.100"),
        ("roboreward_table_10", "GPT-5 (2025-08-07)", "Tokyo PR2 Tabletop Manipulation", "0.918"),
        ("roboreward_table_10", "Gemini 3 Pro (Preview)", "Berkeley RPT", "0.395"),
        ("roboreward_table_10", "Gemini 2.5 Pro", "Stanford HYDRA", "0.495"),
        ("roboreward_table_10", "Qwen2.5-VL Instruct (3B)", "Austin VIOLA", "2.733"),
        ("roboreward_table_1", "Gemini Robotics-ER 1.5", "OXE subsets", "0.902"),
        ("roboreward_table_2", "RoboReward 8B", "Open drawer", "80"),
        ("roboreward_table_3", "RoboReward 4B, no negative clipping", "RoboArena", "0.813"),
        ("robometer_table_1", "RoboDopamine-8B", "Kendall tau_a, RBM-EVAL-OOD", "0.45"),
        ("robometer_table_1", "Robometer (RoboReward data)", "VOC r, RBM-EVAL-OOD", "0.93"),
        ("robometer_table_2", "Robometer, ReWiND architecture", "Kendall tau, LIBERO-90", "-0.14"),
        ("robometer_table_3", "RoboReward-4B", "stir pot", "0.95"),
        ("position_figure_3", "ReWind, GVL and Dopamine", "tool use, lowest", "0.52"),
        ("position_figure_4", "GVL, failure texts and videos", "pick/place and push/pull", "8"),
    ],
)
def test_spot_values(name: str, model: str, column: str, value: str) -> None:
    assert str(published_table(name).value(model, column)) == value


def test_the_source_prints_in_one_line() -> None:
    line = str(published_table("position_figure_3").source)
    assert "arXiv:2606.01036" in line and line.endswith("Figure 3 and section 3.2")
    assert "arXiv" not in str(published_table("robometer_table_1").source)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="roboreward_table_10"):
        published_table("roboreward_table_11")
    with pytest.raises(UnknownName, match="RoboArena"):
        published_table("roboreward_table_10").value("RoboReward 8B", "Roboarena")
