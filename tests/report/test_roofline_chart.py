"""The roofline chart: what is drawn, where, and what is left to the table."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.report.sample import HOSTILE, roofline_points
from warplens.report.charts.plane import MOST_POINTS, roofline_chart
from warplens.report.theme import light_ink


def layers(points: pl.DataFrame, roofs: pl.DataFrame) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each layer's mark with its data."""
    spec = roofline_chart(points, roofs).spec(light_ink, "words")
    return [(layer["mark"], spec["datasets"][layer["data"]["name"]]) for layer in spec["layer"]]


def drawn_points(points: pl.DataFrame, roofs: pl.DataFrame) -> list[dict[str, Any]]:
    return next(
        marks for mark, marks in layers(points, roofs) if mark["type"] == "point" and marks and "beyond" in marks[0]
    )


def test_each_kernel_stands_once_for_each_level_at_its_own_intensity() -> None:
    points, roofs = roofline_points()

    marks = [mark for mark in drawn_points(points, roofs) if mark["number"] == 2]

    assert [mark["level"] for mark in marks] == ["DRAM", "L2", "L1"]
    row = points.filter(number=2).row(0, named=True)
    assert [mark["x"] for mark in marks] == pytest.approx(
        [row[f"{level}_intensity"] for level in ("dram", "l2", "l1")], rel=1e-5
    )
    assert [mark["y"] for mark in marks] == pytest.approx([row["flops_per_s"]] * 3, rel=1e-5)


def test_a_slope_rises_with_its_bandwidth_to_the_highest_roof_of_arithmetic() -> None:
    points, roofs = roofline_points()

    lines = next(marks for mark, marks in layers(points, roofs) if mark["type"] == "line" and "line" in marks[0])

    dram = [mark for mark in lines if mark["line"] == "dram"]
    assert all(mark["y"] / mark["x"] == pytest.approx(4.8e12, rel=1e-4) for mark in dram)
    assert max(mark["y"] for mark in dram) == pytest.approx(8.6e14)
    flat = [mark["y"] for mark in lines if mark["line"].startswith("flat")]
    assert sorted(set(flat)) == [6.7e13, 8.6e14]


def test_ridges_stand_where_slope_and_roof_meet() -> None:
    points, roofs = roofline_points()

    ridges = next(marks for mark, marks in layers(points, roofs) if mark.get("shape") == "diamond")

    assert len(ridges) == 2 * 3
    assert {round(mark["x"], 2) for mark in ridges if mark.get("label")} == {
        round(8.6e14 / 4.8e12, 2),
        round(6.7e13 / 4.8e12, 2),
    }


def test_what_moves_hardly_a_byte_stands_at_the_edge_and_says_so() -> None:
    marks = drawn_points(*roofline_points())

    beyond = [mark for mark in marks if mark["beyond"] == "yes"]
    assert {mark["number"] for mark in beyond} == {38}
    assert {mark["x"] for mark in beyond} == {max(mark["x"] for mark in marks)}
    assert beyond[0]["intensity"].startswith("1.00e+07") or beyond[0]["intensity"].startswith("10,000,000")


def test_a_kernel_without_a_duration_is_drawn() -> None:
    points, roofs = roofline_points()

    assert HOSTILE in next(mark for mark in drawn_points(points, roofs) if mark["number"] == 1)["name"]


def test_many_kernels_are_thinned_to_the_most_expensive() -> None:
    points, roofs = roofline_points()
    many = pl.concat([points] * 20).with_columns(number=pl.int_range(1, 20 * points.height + 1))

    assert max(mark["number"] for mark in drawn_points(many, roofs)) == MOST_POINTS
