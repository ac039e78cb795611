"""Charts: what goes into them, and that each can be drawn for every output."""

from __future__ import annotations

import itertools
import json
import resource
from importlib import import_module
from inspect import isfunction
from pkgutil import walk_packages
from typing import Any
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report import sample
from tests.report.sample import HOSTILE, cells, roofline_points
from warplens import report
from warplens.analysis.categories import CATEGORIES, OTHER
from warplens.errors import UsageError
from warplens.report.charts import bars, overtime, plane
from warplens.report.charts.bars import MOST_ROWS, regime_chart, speedup_chart
from warplens.report.charts.base import _painter
from warplens.report.charts.plane import MOST_POINTS, roofline_chart
from warplens.report.theme import FILLS, PAGE, category_fill, colour, css_ink, light_ink

CHARTS = sample.all_charts()

#: Machado, Oliveira, Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
#: severity 1.0, on linear RGB.
COLOUR_VISION = {
    "all cones": np.eye(3),
    "no red cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue cones": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(hex_colour: str) -> np.ndarray:
    channels = np.array([int(hex_colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2 contrast ratio."""
    luminance = sorted(float(linear(item) @ [0.2126, 0.7152, 0.0722]) for item in (one, other))
    return (luminance[1] + 0.05) / (luminance[0] + 0.05)


def oklab(rgb: np.ndarray) -> np.ndarray:
    cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    axes = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return np.array(axes) @ np.cbrt(np.array(cones) @ rgb)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_fills_and_texts_stand_out_from_their_ground(theme):
    ground = colour("surface", theme)
    assert {token for token in FILLS if contrast(colour(token, theme), ground) < 3} == set()
    assert {token for token in ("ink", "soft", "accent") if contrast(colour(token, theme), ground) < 4.5} == set()
    assert contrast(colour("soft", theme), colour("page", theme)) >= 4.5
    assert contrast(colour("warning", theme), colour("warning-soft", theme)) >= 4.5
    assert contrast(colour("blocking", theme), colour("blocking-soft", theme)) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", COLOUR_VISION)
def test_busy_and_idle_colours_differ_for_everyone(theme, vision):
    seen = {
        token: oklab(np.clip(np.array(COLOUR_VISION[vision]) @ linear(colour(token, theme)), 0, 1)) for token in FILLS
    }
    idle = [token for token in FILLS if token.startswith("idle")]
    busy = [token for token in FILLS if token not in idle]
    # Two patches side by side are told apart from a distance of about 0.02 in OKLab; four times that is comfortable.
    close = [(a, b) for a, b in itertools.product(busy, idle) if np.linalg.norm(seen[a] - seen[b]) < 0.08]
    assert close == []


def test_inks_know_exactly_the_declared_tokens():
    assert {css_ink(token) for token in (*PAGE, *FILLS)} >= {"var(--ink)", "var(--gemm)"}
    for ink in (css_ink, light_ink):
        with pytest.raises(KeyError):
            ink("no-such-token")


def test_every_kernel_category_has_a_colour_of_its_own():
    named = [category for category in CATEGORIES if category != OTHER]
    assert [category_fill(category) for category in named] == named
    assert category_fill("something new") == "other"


def test_the_sample_has_every_chart():
    modules = [import_module(info.name) for info in walk_packages(report.__path__, "warplens.report.")]
    functions = [each for module in modules for each in vars(module).values() if isfunction(each)]
    drawing = {each.__name__ for each in functions if each.__annotations__.get("return") == "Chart"}
    assert {name.removesuffix("_chart") for name in drawing if not name.startswith("_")} == CHARTS.keys()


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_draws_as_an_image_that_holds_its_words(name):
    text = CHARTS[name].svg(f"The {name} chart in words")
    assert text.startswith("<svg")
    assert f"The {name} chart in words" in text
    assert "var(--" not in text
    assert "<img" not in text


def test_a_chart_draws_as_a_bitmap():
    assert CHARTS["budget"].png("words").startswith(b"\x89PNG")


@pytest.mark.parametrize("character", ["\x00", "\x01", "\x1b", "\ufffe", "\uffff"])
def test_names_with_characters_that_xml_refuses_can_be_painted(character):
    name = f"a{character}b"
    parts = sample.budget_parts().with_columns(part=pl.lit(name))
    text = bars.budget_chart(parts).svg(f"words of {name}")
    root = ElementTree.fromstring(text)
    assert root.attrib["aria-label"] == "words of a\N{REPLACEMENT CHARACTER}b"
    assert "a\N{REPLACEMENT CHARACTER}b" in "".join(root.itertext())


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_on_a_page_is_small_and_follows_its_theme(name):
    spec = CHARTS[name].spec(css_ink, "words")
    marks = sum(len(values) for values in spec["datasets"].values())
    assert marks <= 2_000
    text = json.dumps(spec)
    assert "var(--" in text
    assert not any(f'"{value}"' in text for pair in FILLS.values() for value in pair)
    assert "url" not in spec.get("data", {})


def test_the_parts_of_a_budget_stand_end_to_end_and_fill_the_strip():
    spec = CHARTS["budget"].spec(css_ink, "words")
    strip = spec["datasets"][spec["layer"][0]["data"]["name"]]
    edges = [(mark["x0"], mark["x1"]) for mark in strip]
    assert edges[0][0] == 0
    assert edges[-1][1] == pytest.approx(1)
    assert all(left[1] == right[0] for left, right in itertools.pairwise(edges))


def test_each_part_of_a_waterfall_begins_where_the_one_before_it_ends():
    spec = CHARTS["waterfall"].spec(css_ink, "words")
    track, bars = spec["layer"][0], spec["layer"][1]
    assert track["data"] == bars["data"]
    marks = spec["datasets"][bars["data"]["name"]]
    full = 4_167_000 - 90_000 + 20_000 + 443_000
    assert [(mark["x0"], mark["x1"]) for mark in marks] == [
        (0, pytest.approx(4_167_000 / full, abs=1e-5)),
        (pytest.approx(4_077_000 / full, abs=1e-5), pytest.approx(4_167_000 / full, abs=1e-5)),
        (pytest.approx(4_077_000 / full, abs=1e-5), pytest.approx(4_097_000 / full, abs=1e-5)),
        (pytest.approx(4_097_000 / full, abs=1e-5), 1),
        (1, 1),
        (0, 1),
    ]
    numbers = [mark["number"] for mark in marks]
    assert numbers == [
        "4.17 ms", "−2.2 % · −90.0 µs", "+0.5 % · +20.0 µs", "+10.6 % · +443 µs", "0.0 % · 0 ns", "+9.0 % · 4.54 ms"
    ]  # fmt: skip
    colours = [mark["fill"] for mark in marks]
    assert colours[0] == colours[-1], "totals look alike"
    assert len({colours[0], colours[1], colours[2]}) == 3, "more and less differ from each other and from a total"


@pytest.mark.parametrize(("begin", "deltas"), [(0, [5.0, -3.0]), (4, [-6.0, 10.0]), (0, []), (7, [-7.0])])
def test_a_waterfall_of_any_amounts_stays_in_its_frame(begin, deltas):
    parts = pl.DataFrame(
        {"name": [str(place) for place in range(len(deltas))], "delta": deltas},
        schema={"name": pl.String, "delta": pl.Float64},
    )
    end = begin + sum(deltas)
    spec = bars.waterfall_chart(("one", begin), parts, ("other", end), kind="count").spec(css_ink, "words")
    marks = spec["datasets"][spec["layer"][1]["data"]["name"]]
    assert all(0 <= mark["x0"] <= mark["x1"] <= 1 for mark in marks)


def test_busy_bins_hold_exactly_the_busy_time():
    starts, ends = np.array([5, 40, 90]), np.array([15, 60, 130])
    bins = overtime.busy_bins(starts, ends, (0, 100), "GPU 0", bins=7)
    busy = (bins["busy_share"] * (bins["end_ns"] - bins["start_ns"])).sum()
    assert busy == pytest.approx(10 + 20 + 10)
    assert bins["end_ns"][-1] == 100


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 50)), max_size=12), st.integers(1, 40))
def test_each_busy_bin_agrees_with_counting_nanoseconds(pieces, bins):
    running = np.zeros(1000, dtype=bool)
    at, starts, ends = 0, [], []
    for gap, length in pieces:
        if at + gap + length >= 1000:
            break
        starts.append(at + gap)
        at += gap + length
        ends.append(at)
        running[starts[-1] : at] = True
    found = overtime.busy_bins(
        np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64), (100, 900), "GPU", bins=bins
    )
    for begin, end, share in found.select("start_ns", "end_ns", "busy_share").iter_rows():
        assert share == pytest.approx(running[100 + begin : 100 + end].mean())


def test_every_duration_falls_into_one_bin_that_encloses_it():
    durations = pl.Series([0, 1, 999, 1_000, 1_001, 5_000_000])
    bins = plane.log_bins(durations, "kernel")
    assert bins["count"].sum() == 6
    assert bins["share"].sum() == pytest.approx(1)
    holding = bins.filter(pl.col("count") > 0)
    assert holding["from_ns"].to_list()[0] == pytest.approx(1)
    one_microsecond = holding.filter(pl.col("from_ns").is_close(1_000, rel_tol=1e-6))
    assert one_microsecond["count"].item() == 2, "1,000 and 1,001 ns begin a bin; 999 ns ends the one before"


def test_no_durations_make_no_bins():
    assert plane.log_bins(pl.Series([], dtype=pl.Int64), "kernel").is_empty()


def test_steps_beyond_the_limit_are_merged_by_neighbours_with_their_means():
    steps = pl.DataFrame({"index": range(1, 11), "wall_ns": range(10, 110, 10), "busy_ns": [5] * 10}).with_columns(
        (pl.col("index") > 2).alias("in_window")
    )
    merged = overtime.merged_steps(steps, most=4)
    assert merged["label"].to_list() == ["mean of steps 1–3", "mean of steps 4–6", "mean of steps 7–9", "step 10"]
    assert merged["wall_ns"].to_list() == [20, 50, 80, 100]
    assert merged["in_window"].to_list() == [False, True, True, True]


def test_thinning_memory_keeps_every_peak_and_the_end():
    levels = pl.DataFrame(
        {"memory": ["device"] * 10_000, "time_ns": range(10_000), "level_bytes": [1] * 5_000 + [99] + [1] * 4_998 + [7]}
    )
    thin = overtime.thinned_levels(levels, most=100)
    assert thin.height <= 300
    assert thin["level_bytes"].max() == 99
    assert thin["level_bytes"][-1] == 7


def test_copies_of_one_size_and_speed_are_one_dot():
    copies = pl.DataFrame(
        {"direction": ["a"] * 50 + ["b"], "bytes": [1_000] * 50 + [0], "start_ns": [0] * 51, "end_ns": [500] * 51}
    )
    cells = plane.bandwidth_cells(copies)
    assert cells.rows() == [("a", 1_000.0, 2e9, 50)]


def test_charts_of_nothing_can_still_be_drawn():
    empty_steps = pl.DataFrame(
        schema={
            "label": pl.String,
            "position": pl.Int64,
            "wall_ns": pl.Int64,
            "busy_ns": pl.Int64,
            "in_window": pl.Boolean,
        }
    )
    assert overtime.steps_chart(empty_steps).svg("nothing").startswith("<svg")


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


def layers(points: pl.DataFrame, roofs: pl.DataFrame) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each layer's mark with its data."""
    spec = roofline_chart(points, roofs).spec(light_ink, "words")
    return [(layer["mark"], spec["datasets"][layer["data"]["name"]]) for layer in spec["layer"]]


def drawn_points(points: pl.DataFrame, roofs: pl.DataFrame) -> list[dict[str, Any]]:
    return next(
        marks for mark, marks in layers(points, roofs) if mark["type"] == "point" and marks and "beyond" in marks[0]
    )


def test_each_kernel_stands_once_for_each_level_at_its_own_intensity():
    points, roofs = roofline_points()

    marks = [mark for mark in drawn_points(points, roofs) if mark["number"] == 2]

    assert [mark["level"] for mark in marks] == ["DRAM", "L2", "L1"]
    row = points.filter(number=2).row(0, named=True)
    assert [mark["x"] for mark in marks] == pytest.approx(
        [row[f"{level}_intensity"] for level in ("dram", "l2", "l1")], rel=1e-5
    )
    assert [mark["y"] for mark in marks] == pytest.approx([row["flops_per_s"]] * 3, rel=1e-5)


def test_a_slope_rises_with_its_bandwidth_to_the_highest_roof_of_arithmetic():
    points, roofs = roofline_points()

    lines = next(marks for mark, marks in layers(points, roofs) if mark["type"] == "line" and "line" in marks[0])

    dram = [mark for mark in lines if mark["line"] == "dram"]
    assert all(mark["y"] / mark["x"] == pytest.approx(4.8e12, rel=1e-4) for mark in dram)
    assert max(mark["y"] for mark in dram) == pytest.approx(8.6e14)
    flat = [mark["y"] for mark in lines if mark["line"].startswith("flat")]
    assert sorted(set(flat)) == [6.7e13, 8.6e14]


def test_ridges_stand_where_slope_and_roof_meet():
    points, roofs = roofline_points()

    ridges = next(marks for mark, marks in layers(points, roofs) if mark.get("shape") == "diamond")

    assert len(ridges) == 2 * 3
    assert {round(mark["x"], 2) for mark in ridges if mark.get("label")} == {
        round(8.6e14 / 4.8e12, 2),
        round(6.7e13 / 4.8e12, 2),
    }


def test_what_moves_hardly_a_byte_stands_at_the_edge_and_says_so():
    marks = drawn_points(*roofline_points())

    beyond = [mark for mark in marks if mark["beyond"] == "yes"]
    assert {mark["number"] for mark in beyond} == {38}
    assert {mark["x"] for mark in beyond} == {max(mark["x"] for mark in marks)}
    assert beyond[0]["intensity"].startswith("1.00e+07") or beyond[0]["intensity"].startswith("10,000,000")


def test_a_kernel_without_a_duration_is_drawn():
    points, roofs = roofline_points()

    assert HOSTILE in next(mark for mark in drawn_points(points, roofs) if mark["number"] == 1)["name"]


def test_many_kernels_are_thinned_to_the_most_expensive():
    points, roofs = roofline_points()
    many = pl.concat([points] * 20).with_columns(number=pl.int_range(1, 20 * points.height + 1))

    assert max(mark["number"] for mark in drawn_points(many, roofs)) == MOST_POINTS


def test_pictures_are_refused_where_their_runtime_would_end_the_process(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (10, 10) if kind == resource.RLIMIT_NOFILE else (-1, -1))

    with pytest.raises(UsageError, match=r"need 32 open files, and this process may have 10 \(ulimit -n\)"):
        _painter()
