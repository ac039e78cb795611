"""Calls and durations of kernels, counted by hand."""

from __future__ import annotations

import statistics
from collections import defaultdict

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import Row, kernel, trace
from warplens.analysis.kernels import (
    GROUPINGS,
    KERNEL_GROUPS,
    KERNELS,
    category_coverage,
    statistics_of,
    tensor_core_use,
    time_by_class,
)
from warplens.analysis.timeline import Timeline

SGEMM = "ampere_sgemm_128x64_tn"
HGEMM = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = "void at::native::elementwise_kernel<128, 2, at::native::CUDAFunctor_add<float> >(int)"
COPY = "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"


def lasting(*durations: int, name: str = SGEMM, full_name: str | None = None, stream: int = 7) -> list[Row]:
    """One kernel after another, of these durations."""
    return [
        kernel(1_000 * i, 1_000 * i + duration, name, full_name=full_name, stream=stream)
        for i, duration in enumerate(durations)
    ]


def tabled(*kernels: Row, by: str = "name") -> pl.DataFrame:
    return statistics_of(trace(kernels).kernels, by)


def test_the_durations_of_a_kernel_are_summed_up():
    (row,) = tabled(*lasting(10, 40, 20, 30)).to_dicts()

    assert row == {
        "name": SGEMM,
        "full_name": SGEMM,
        "category": "gemm",
        "library": "cublas",
        "precision": "fp32",
        "tensor_cores": False,
        "calls": 4,
        "total_ns": 100,
        "mean_ns": 25.0,
        "median_ns": 25.0,
        "min_ns": 10,
        "max_ns": 40,
        "stdev_ns": pytest.approx(12.909944487358056),  # √(500 / 3): of a sample, as nsys has it
        "share": 1.0,
    }


def test_a_single_call_has_no_spread():
    (row,) = tabled(*lasting(17)).to_dicts()

    assert (row["mean_ns"], row["median_ns"], row["min_ns"], row["max_ns"], row["stdev_ns"]) == (
        17.0,
        17.0,
        17,
        17,
        0.0,
    )


def test_the_most_expensive_kernel_comes_first_and_ties_go_by_the_alphabet():
    table = tabled(*lasting(5, name="b"), *lasting(5, name="a"), *lasting(9, 9, name="c"))

    assert table["name"].to_list() == ["c", "a", "b"]
    assert table["share"].to_list() == pytest.approx([18 / 28, 5 / 28, 5 / 28])


def test_a_short_name_of_several_kernels_has_no_full_name_and_the_class_of_the_longest():
    kernels = [
        *lasting(10, 10, name="elementwise_kernel", full_name=ADD),
        *lasting(5, name="elementwise_kernel", full_name=COPY),
    ]

    (row,) = tabled(*kernels).to_dicts()
    variants = tabled(*kernels, by="full_name")

    assert (row["name"], row["full_name"], row["category"], row["calls"]) == (
        "elementwise_kernel",
        None,
        "elementwise",
        3,
    )
    assert variants.select("name", "full_name", "category", "total_ns").rows() == [
        ("elementwise_kernel", ADD, "elementwise", 20),
        ("elementwise_kernel", COPY, "copy-cast", 5),
    ]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("category", [("gemm", 2, 3, 60), ("elementwise", 1, 1, 7)]),
        ("library", [("cublas", 2, 3, 60), ("at-native", 1, 1, 7)]),
        ("precision", [("fp32", 2, 3, 37), ("fp16", 1, 1, 30)]),
        ("tensor_cores", [(False, 2, 3, 37), (True, 1, 1, 30)]),
        ("stream", [(7, 2, 3, 60), (13, 1, 1, 7)]),
        ("device", [(0, 3, 4, 67)]),
    ],
)
def test_kernels_are_grouped_by_what_they_are_and_where_they_ran(by, expected):
    kernels = [
        *lasting(10, 20),
        *lasting(30, name=HGEMM),
        *lasting(7, name="elementwise_kernel", full_name=ADD, stream=13),
    ]

    table = tabled(*kernels, by=by)

    assert table.columns == [by, *KERNEL_GROUPS.names]
    assert table.select(by, "kernels", "calls", "total_ns").rows() == expected
    assert table["share"].sum() == pytest.approx(1.0)


def test_what_no_name_reveals_is_a_group_of_its_own():
    table = tabled(*lasting(10), *lasting(4, name="my_kernel"), by="library")

    assert table.select("library", "total_ns").rows() == [("cublas", 10), (None, 4)]


@pytest.mark.parametrize("by", GROUPINGS)
def test_no_kernels_give_an_empty_table_of_the_declared_columns(by):
    table = tabled(by=by)

    assert table.is_empty()
    assert table.columns == (KERNELS.names if by in ("name", "full_name") else [by, *KERNEL_GROUPS.names])


def test_kernels_that_take_no_time_have_no_share():
    (row,) = tabled(*lasting(0, 0)).to_dicts()

    assert (row["calls"], row["total_ns"], row["share"]) == (2, 0, None)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**9)), max_size=40))
def test_statistics_equal_those_of_the_standard_library(calls):
    durations = defaultdict(list)
    for name, duration in calls:
        durations[name].append(duration)

    table = tabled(*(kernel(i, i + duration, name) for i, (name, duration) in enumerate(calls)))

    assert set(table["name"]) == set(durations)
    for row in table.to_dicts():
        own = durations[row["name"]]
        assert (row["calls"], row["total_ns"], row["min_ns"], row["max_ns"]) == (len(own), sum(own), min(own), max(own))
        assert row["mean_ns"] == pytest.approx(statistics.mean(own))
        assert row["median_ns"] == pytest.approx(statistics.median(own))
        assert row["stdev_ns"] == pytest.approx(statistics.stdev(own) if len(own) > 1 else 0.0, rel=1e-11, abs=1e-6)


def test_coverage_tells_how_much_time_has_a_name_that_tells():
    timeline = Timeline(
        trace([*lasting(60), *lasting(30, name="my_kernel"), *lasting(10, name="nvjet_something_unheard_of")])
    )

    coverage = category_coverage(time_by_class(timeline, timeline.window("all")))

    assert (coverage.total_ns, coverage.categorised_ns, coverage.precision_ns) == (100, 70, 60)
    assert (coverage.category_share, coverage.precision_share) == (0.7, 0.6)


def test_tensor_core_use_is_a_matter_of_the_products_alone():
    timeline = Timeline(
        trace(
            [
                *lasting(40, name=HGEMM),
                *lasting(30, name=SGEMM),
                *lasting(10, name="fused_moe_kernel"),
                *lasting(20, name="elementwise_kernel", full_name=ADD),
            ]
        )
    )

    use = tensor_core_use(time_by_class(timeline, timeline.window("all")))

    assert (use.total_ns, use.product_ns) == (100, 80)
    assert (use.tensor_core_ns, use.vector_ns, use.unknown_ns) == (40, 30, 10)


def test_without_kernels_there_are_no_shares():
    timeline = Timeline(trace([]))
    window = timeline.window("all")

    assert category_coverage(time_by_class(timeline, window)).category_share is None
    assert category_coverage(time_by_class(timeline, window)).precision_share is None
