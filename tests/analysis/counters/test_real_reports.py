"""The analyses on real reports, against what Nsight Compute itself says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

from tests.analysis.counters.builders import SHARED, needs_reports
from warplens.analysis.counters.bounds import kernel_bounds
from warplens.analysis.counters.memoryaccess import warp_stalls
from warplens.analysis.counters.occupancy import (
    CONFIGURATIONS,
    launch_configurations,
    launch_occupancy,
    theoretical_occupancy,
)
from warplens.analysis.counters.roofline import roofline
from warplens.analysis.counters.speedoflight import instruction_mix, speed_of_light, throughput_breakdown
from warplens.readers import read_counters

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters

pytestmark = needs_reports

REPORTS = (
    "h200_deit448_bs8.ncu-rep",
    "h200_topk_reduction.raw.csv",
    "gb200_full_set.ncu-rep",
    "a10g_sgemm_4.ncu-rep",
    "a10g_sgemm_5.ncu-rep",
    "a100_tiny_2021.ncu-rep",
)
#: Nsight Compute 2020.3 counts what would fit into the largest carve-out; later ones, into the configured one.
LARGEST_CARVE_OUT = "a100_tiny_2021.ncu-rep"

CURVES = {
    "registers_per_thread": "launch__occupancy_per_register_count",
    "threads_per_block": "launch__occupancy_per_block_size",
}


def report(name: str) -> KernelCounters:
    return read_counters(SHARED / name, instances=() if name.endswith("csv") else (*CURVES.values(), _OPCODES))


_OPCODES = "sass__inst_executed_per_opcode"


@pytest.mark.parametrize("name", REPORTS)
def test_occupancy_and_block_limits_are_those_of_nsight_compute(name):
    counters = report(name)
    occupancy = launch_occupancy(counters)
    limits = {"registers": "registers", "warps": "warps", "blocks": "blocks", "barriers": "barriers"}
    if name != LARGEST_CARVE_OUT:
        limits["shared_memory"] = "shared_mem"

    assert occupancy["inconsistent"].null_count() == occupancy.height
    told = occupancy["reported_share"].is_not_null() & occupancy["theoretical_share"].is_not_null()
    assert told.sum() >= occupancy.height - 1  # one launch of a10g_sgemm_4 failed
    assert (occupancy["theoretical_share"] - occupancy["reported_share"]).abs().max() < 1e-6
    for ours, theirs in limits.items():
        reported = counters.values(f"launch__occupancy_limit_{theirs}").cast(pl.Float64)
        if reported.null_count() < reported.len():
            assert (occupancy[f"{ours}_blocks"] - reported).abs().max() == 0
    limiting = pl.DataFrame(
        [
            counters.values(f"launch__occupancy_limit_{limit}").cast(pl.Float64)
            for limit in ("registers", "warps", "blocks")
        ]
    )
    least = limiting.select(pl.min_horizontal(pl.all())).to_series()
    assert ((occupancy["blocks_per_sm"] <= least) | least.is_null()).all()


@pytest.mark.parametrize("name", ["h200_deit448_bs8.ncu-rep", "a10g_sgemm_4.ncu-rep", "gb200_full_set.ncu-rep"])
@pytest.mark.parametrize("varied", CURVES)
def test_occupancy_at_other_configurations_is_that_of_nsight_compute(name, varied):
    counters = report(name)
    curve = counters.instances[CURVES[varied]].select("launch", pl.col("key", "value").cast(pl.Int64))
    points = launch_configurations(counters).join(curve, on="launch").filter(pl.col("key") > 0)
    if varied == "registers_per_thread":
        points = points.filter(pl.col("key") <= 255)
    varying = points.with_columns(pl.col("key").alias(varied), carveout_bytes=pl.lit(None, dtype=pl.Int64))

    ours = theoretical_occupancy(varying.select(column.name for column in CONFIGURATIONS.columns))

    assert points.height > 60
    assert ours["warps_per_sm"].equals(points["value"], check_names=False)


@pytest.mark.parametrize("name", [name for name in REPORTS if name != "a100_tiny_2021.ncu-rep"])
def test_the_busiest_part_makes_up_the_throughput(name):
    counters = report(name)
    sol = speed_of_light(counters)
    busiest = throughput_breakdown(counters).group_by("launch", "side").agg(pl.col("share").max())

    for side in ("compute", "memory"):
        joined = sol.join(busiest.filter(side=side), on="launch").drop_nulls(f"{side}_share")
        assert joined.height >= sol.height - 1
        assert (joined["share"] - joined[f"{side}_share"]).abs().max() < 1e-9


def test_a_csv_export_names_the_same_parts_as_its_report():
    by_report = throughput_breakdown(report("h200_deit448_bs8.ncu-rep"))
    by_export = throughput_breakdown(report("h200_deit448_bs8.raw.csv"))

    assert by_report.filter(pl.col("share") > 0.001).height > 300
    busiest = [frame.unique(["launch", "side"], keep="first", maintain_order=True) for frame in (by_report, by_export)]
    assert busiest[0].select("launch", "side", "unit").equals(busiest[1].select("launch", "side", "unit"))


@pytest.mark.parametrize(
    "name", ["h200_deit448_bs8.ncu-rep", "a10g_sgemm_4.ncu-rep", "a10g_sgemm_5.ncu-rep", "gb200_full_set.ncu-rep"]
)
def test_bounds_agree_with_nsight_computes_own_rule(name):
    counters = report(name)
    said = pl.col("message")
    rule = counters.rules.filter(pl.col("rule") == "SOLBottleneck").with_columns(
        expected=pl.when(said.str.contains("too small"))
        .then(pl.lit("small"))
        .when(said.str.contains("latency issues"))
        .then(pl.lit("latency"))
        .when(said.str.contains("Memory is more"))
        .then(pl.lit("memory"))
        .when(said.str.contains("Compute is more"))
        .then(pl.lit("compute"))
        .when(said.str.contains("well-balanced|greater than 80"))
        .then(pl.lit("memory or compute"))
    )
    judged = kernel_bounds(counters).join(rule.drop_nulls("expected"), on="launch")

    assert judged.height >= 3
    for bound, expected in judged.select("bound", "expected").rows():
        assert bound in expected


def test_stall_shares_are_those_of_the_latency_of_an_instruction():
    counters = report("h200_deit448_bs8.ncu-rep")
    cycles = warp_stalls(counters).group_by("launch", maintain_order=True).agg(pl.col("cycles").sum())

    latency = counters.values("smsp__average_warp_latency_per_inst_issued.ratio").cast(pl.Float64)
    # The states are counted in other passes than the latency.
    assert ((cycles["cycles"] - latency).abs() / latency).median() < 0.1


def test_roofs_are_those_of_the_device():
    roofs = roofline(report("h200_deit448_bs8.ncu-rep")).filter(precision="fp32", level="dram")

    # H200 data sheet: 67 TFLOP/s FP32 at 1.98 GHz, 4.8 TB/s.
    assert roofs["peak_flops_per_s"].median() == pytest.approx(67e12, rel=0.02)
    assert roofs["peak_bytes_per_s"].median() == pytest.approx(4.8e12, rel=0.02)
    assert set(roofs["side"]) == {"memory"}
    share = speed_of_light(report("h200_deit448_bs8.ncu-rep"))["dram_share"]
    assert (roofs["roof_share"] - share).abs().max() < 0.01


def test_all_levels_of_the_roofline_are_there_in_a_full_set():
    roofs = roofline(report("gb200_full_set.ncu-rep"))

    assert set(roofs["level"]) == {"dram", "l2", "l1"}
    assert set(roofs["precision"]) == {"fp64", "fp32", "fp16", "tensor"}


def test_the_mix_of_instructions_adds_up():
    counters = report("h200_deit448_bs8.ncu-rep")
    mix = instruction_mix(counters)

    executed = mix.group_by("launch", maintain_order=True).agg(pl.col("instructions").sum(), pl.col("share").sum())
    assert executed["instructions"].equals(counters.values("inst_executed").cast(pl.Float64), check_names=False)
    assert executed["share"].to_list() == pytest.approx([1.0] * 30)
