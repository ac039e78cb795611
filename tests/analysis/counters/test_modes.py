"""Ranges, graphs, clusters and sparse products, captured on an H200: what may be said of them, and what not."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import polars as pl
import pytest

from warplens.analysis.counters import (
    counter_notes,
    counters_summary,
    group_launches,
    kernel_bounds,
    launch_occupancy,
    next_sections,
    roofline,
)
from warplens.profile.counters import KernelCounters
from warplens.readers import read_counters

DATA = Path(__file__).resolve().parents[2] / "readers" / "data" / "counter_modes"

TENSOR_PIPE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"


@cache
def report(mode: str) -> KernelCounters:
    return read_counters(DATA / f"{mode}.ncu-rep.xz")


@pytest.mark.parametrize("mode", ["ranges", "graph", "nvtx_ranges", "app_ranges"])
def test_several_kernels_as_one_have_no_launch_configuration(mode: str) -> None:
    counters = report(mode)
    assert "launch__block_size" in counters.metrics.columns, "ncu states that of one of the kernels"

    occupancy = launch_occupancy(counters)

    stated = ("theoretical_share", "limiter", "waves", "tail_share", "cluster_blocks", "inconsistent")
    assert occupancy.select(stated).null_count().row(0) == (counters.launches.height,) * len(stated)


@pytest.mark.parametrize("mode", ["ranges", "app_ranges"])
def test_a_range_below_the_roofs_is_not_said_to_wait(mode: str) -> None:
    """The time between its kernels is in its shares; only a trace could tell the two apart."""
    bounds = kernel_bounds(report(mode))

    assert bounds["bound"].to_list() == ["unknown", "unknown"]
    assert "several-kernels-as-one" in [note.code for note in counter_notes(report(mode))]


def test_a_graph_that_fills_the_tensor_pipe_is_bound_by_it() -> None:
    assert kernel_bounds(report("graph")).select("bound", "unit").unique().rows() == [("compute", "tensor")]


def test_ranges_without_names_are_told_apart() -> None:
    summary = counters_summary(report("ranges"))

    assert summary["name"].to_list() == ["range #1", "range #0"], "the second holds twice as many kernels"
    assert summary["launches"].to_list() == [1, 1]
    assert counters_summary(report("nvtx_ranges"))["name"].to_list() == ["range step"]


def test_nodes_of_a_graph_that_was_launched_twice_are_three_groups_of_two() -> None:
    groups = group_launches(report("graph_nodes")).groups

    assert groups["launches"].to_list() == [2, 2, 2]


def test_ranges_are_not_asked_for_by_name_in_the_next_run() -> None:
    assert next_sections(report("ranges")).command is None


def test_clusters_fit_less_often_than_their_blocks() -> None:
    """45 clusters of 8 blocks fit on 132 multiprocessors that hold 3 of these blocks each: 360 of 396."""
    row = launch_occupancy(report("clusters")).row(0, named=True)

    assert (row["cluster_blocks"], row["cluster_max_active"], row["blocks_per_sm"]) == (8, 45, 3)
    assert row["theoretical_share"] == row["reported_share"] == 0.375
    assert row["cluster_share"] == pytest.approx(0.375 * 360 / 396)
    assert row["waves"] == pytest.approx(1056 / 360)
    assert row["achieved_share"] == pytest.approx(row["cluster_share"], abs=0.01)
    (note,) = (note for note in counter_notes(report("clusters")) if note.code == "clusters")
    assert "34 % occupancy" in note.text


def test_dense_and_sparse_products_have_roofs_of_their_own() -> None:
    found = roofline(report("products")).filter((pl.col("precision") == "tensor") & (pl.col("level") == "dram"))

    assert found.select("format", "sparse").rows() == [("bf16", False), ("bf16", True)]
    pipe = report("products").values(TENSOR_PIPE).to_list()
    assert [100 * share for share in found["roof_share"]] == pytest.approx(pipe, rel=1e-9)
    assert min(pipe) > 98.0


def test_without_counts_of_instructions_a_total_is_measured_against_dense_products_where_it_can_be() -> None:
    counters = report("products")
    totals = [name for name in counters.metrics.columns if not name.startswith("sm__ops_path_tensor_op_")]
    metrics = counters.metrics.select(totals)
    found = roofline(KernelCounters(counters.capture, counters.session, counters.launches, metrics))

    tensor = found.filter((pl.col("precision") == "tensor") & (pl.col("level") == "dram"))
    dense, sparse = tensor.to_dicts()
    # A total's peak is that of wgmma with sparsity, twice that without; these kernels used mma, which reaches less.
    assert (dense["sparse"], dense["roof_share"]) == (None, pytest.approx(0.6602, abs=1e-4))
    assert (sparse["sparse"], sparse["roof_share"]) == (None, pytest.approx(0.989, abs=1e-3))
