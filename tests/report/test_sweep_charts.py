"""The charts of a sweep: every cell in its place, in both themes, with names that try to become markup."""

from __future__ import annotations

import polars as pl
import pytest

from tests.report.sample import HOSTILE
from warplens.report.charts import regime_chart, speedup_chart
from warplens.report.charts.plane import MOST_ROWS
from warplens.report.theme import css_ink, light_ink


def cells(rows: int = 2, columns: int = 3) -> pl.DataFrame:
    """Rows × columns cells, the last without a figure."""
    count = rows * columns
    return pl.DataFrame(
        {
            "row": [HOSTILE if place == 0 else f"size {place}" for place in range(rows) for _ in range(columns)],
            "column": [str(2**place) for _ in range(rows) for place in range(columns)],
            "speedup": [0.5 + place / 2 for place in range(count - 1)] + [None],
            "verdict": ["slower", "undecided", *["faster"] * (count - 3), None],
            "detail": [f"detail {place}" for place in range(count)],
            "baseline": ["launch-bound"] * (count - 1) + [None],
            "variant": ["gpu-bound"] * (count - 1) + ["unknown"],
            "baseline_detail": ["host"] * count,
            "variant_detail": [None] * count,
        }
    )


def marks(spec) -> list[dict]:
    """The data of the first layer."""
    return spec["datasets"][spec["layer"][0]["data"]["name"]]


def test_faster_is_cool_slower_is_warm_and_unknown_is_neither():
    drawn = marks(speedup_chart(cells(), "batch").spec(css_ink, "grid"))
    assert [mark["fill"] for mark in drawn[:3]] == ["var(--idle-2)", "var(--gemm)", "var(--gemm)"]
    assert drawn[-1]["fill"] == "var(--track)"
    assert [mark["text"] for mark in drawn] == ["0.50×", "1× ?", "1.50×", "2×", "2.50×", "–"]


def test_the_further_from_one_the_stronger():
    drawn = marks(speedup_chart(cells(), "batch").spec(css_ink, "grid"))
    strength = [mark["opacity"] for mark in drawn[1:5]]
    assert strength == sorted(strength)
    assert max(strength) <= 0.55


def test_a_cell_stands_below_its_column_and_beside_its_row():
    drawn = marks(speedup_chart(cells(), "batch").spec(css_ink, "grid"))
    assert [mark["x"] for mark in drawn[:3]] == [mark["x"] for mark in drawn[3:]]
    assert len({mark["y0"] for mark in drawn[:3]}) == 1
    assert drawn[0]["y1"] < drawn[3]["y0"]


def test_the_baseline_stands_above_the_variant():
    drawn = marks(regime_chart(cells(), "batch").spec(css_ink, "grid"))
    assert [mark["text"] for mark in drawn[:2]] == ["host", "GPU"]
    assert drawn[0]["y1"] == drawn[1]["y0"]
    assert [mark["text"] for mark in drawn[-2:]] == ["–", "?"]


def test_no_more_rows_are_drawn_than_can_be_read():
    drawn = marks(speedup_chart(cells(rows=MOST_ROWS + 5), "batch").spec(css_ink, "grid"))
    assert len({mark["y0"] for mark in drawn}) == MOST_ROWS


@pytest.mark.parametrize("chart", [speedup_chart, regime_chart])
def test_it_becomes_a_picture_in_which_names_are_text(chart):
    text = chart(cells(), "batch").svg("grid")
    assert "<img" not in text
    assert "batch 1" in text
    assert light_ink("gemm") in text
