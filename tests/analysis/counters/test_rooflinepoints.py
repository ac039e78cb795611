from __future__ import annotations

import pytest

from tests.analysis.counters.builders import counters, launch
from tests.analysis.counters.test_roofline import GHZ, dram, fp32
from warplens.analysis.counters import roofline, roofline_points
from warplens.errors import UsageError

#: Of `fp32`: 132 multiprocessors × 128 lanes × 2 operations at 1 GHz; of `dram`: 1,000 B a cycle at 2 GHz.
PEAK = 2 * 132 * 128 * GHZ
BANDWIDTH = 2e12


def l2(bytes_per_s: float) -> dict[str, float]:
    """Peak 200 sectors of 32 B a cycle at 1 GHz: 6.4 TB/s."""
    return {
        "lts__lts2xbar_cycles_active.sum.per_second": bytes_per_s / 32,
        "lts__lts2xbar_cycles_active.sum.peak_sustained": 200.0,
        "lts__cycles_elapsed.avg.per_second": GHZ,
    }


def l1(bytes_per_s: float) -> dict[str, float]:
    """Peak 132 lines of 128 B a cycle at 1 GHz: 16.9 TB/s."""
    return {
        "l1tex__lsu_writeback_active_mem_lgds.sum.per_second": bytes_per_s / 128,
        "l1tex__lsu_writeback_active_mem_lgds.sum.peak_sustained": 132.0,
        "l1tex__cycles_elapsed.avg.per_second": GHZ,
    }


def test_the_lowest_roof_is_what_a_kernel_can_achieve_at_most() -> None:
    # 2 TFLOP/s at 2 FLOP/B of DRAM (half of its bandwidth) and 0.4 FLOP/B of L2 (78 % of that).
    kernel = launch(**fp32(ffma=1000.0), **dram(1e12), **l2(5e12), **l1(5e12))

    point = roofline_points(counters(kernel)).points.row(0, named=True)

    assert (point["precision"], point["flops_per_s"]) == ("fp32", 2000 * GHZ)
    assert (point["dram_intensity"], point["l2_intensity"], point["l1_intensity"]) == (2.0, 0.4, 0.4)
    assert point["roof"] == "l2"
    assert point["roof_share"] == pytest.approx(5e12 / 6.4e12)
    assert point["distance_share"] == pytest.approx(1 - 5e12 / 6.4e12)
    assert point["roof_flops_per_s"] == pytest.approx(0.4 * 6.4e12)
    assert point["roof_flops_per_s"] == pytest.approx(
        min(PEAK, 2.0 * BANDWIDTH, 0.4 * 6.4e12, 0.4 * 132 * 128 * GHZ), rel=1e-9
    )


def test_a_copy_has_a_distance_but_no_place_in_the_chart() -> None:
    found = roofline_points(
        counters(launch("copy", **fp32(), **dram(1.8e12)), launch("add", **fp32(fadd=1.0), **dram(1e9)))
    )

    copy = next(row for row in found.points.to_dicts() if row["name"] == "copy")
    assert (copy["precision"], copy["dram_intensity"], copy["roof"], copy["roof_share"]) == (None, None, "dram", 0.9)
    assert found.placed["name"].to_list() == ["add"]


def test_launches_of_a_kernel_are_one_point_sized_by_their_time() -> None:
    found = roofline_points(counters(*(launch(ns=ns, **fp32(ffma=100.0), **dram(1e12)) for ns in (100.0, 300.0))))

    assert found.points.select("launches", "total_ns").rows() == [(2, 400.0)]


def test_roofs_are_those_that_a_kernel_stands_under_with_where_they_come_from() -> None:
    slow = {**fp32(ffma=100.0), "sm__cycles_elapsed.avg.per_second": 0.5 * GHZ}
    found = roofline_points(counters(launch("a", **fp32(ffma=100.0), **dram(1e12)), launch("b", **slow, **dram(1e12))))

    assert found.roofs.select("roof", "precision", "peak", "least_peak", "points").rows() == [
        ("compute", "fp32", PEAK, PEAK / 2, 2),
        ("dram", None, BANDWIDTH, BANDWIDTH, 2),
    ]
    assert "peak rate per cycle × clock" in found.roofs["source"][0]


def test_a_report_without_the_metrics_has_points_without_a_place() -> None:
    found = roofline_points(counters(launch()))

    assert found.points["roof_share"].to_list() == [None]
    assert found.placed.is_empty()
    assert found.roofs.is_empty()


def test_a_measured_roof_takes_the_place_of_the_reports() -> None:
    report = counters(launch(**fp32(ffma=1000.0), **dram(1e12)))

    found = roofline_points(report, {"dram": 1.25e12})

    point = found.points.row(0, named=True)
    assert (point["dram_share"], point["ridge"]) == (0.8, pytest.approx(PEAK / 1.25e12))
    assert found.roofs.select("roof", "source").rows()[1] == ("dram", "given by the user")
    assert "given by the user" not in found.roofs["source"][0]
    with pytest.raises(UsageError, match="there is no roof hbm"):
        roofline(report, {"hbm": 1.0})


def rates(source: str, per_s: float, peak: float, sparsity: str = "", op: str = "") -> dict[str, float]:
    """Operations of one kind on the tensor cores; peak a cycle."""
    name = f"sm__ops_path_tensor_{op}src_{source}_dst_fp32{sparsity}.sum"
    return {f"{name}.per_second": per_s, f"{name}.peak_sustained": peak}


CLOCK = {"sm__cycles_elapsed.avg.per_second": GHZ}


def tensor(*parts: dict[str, float], capability: tuple[int, int] = (8, 0)) -> dict[str, object]:
    metrics = {key: value for part in (*parts, CLOCK, dram(1e9)) for key, value in part.items()}
    found = roofline(counters(launch(capability=capability, **metrics)))
    return found.row(0, named=True)


def test_a_dense_product_is_not_measured_against_the_peak_of_a_sparse_one() -> None:
    row = tensor(rates("bf16", 900e9, 2000.0))

    assert (row["precision"], row["format"], row["sparse"]) == ("tensor", "bf16", None)
    assert row["peak_flops_per_s"] == 1000 * GHZ


def test_operations_above_the_dense_peak_are_sparse() -> None:
    row = tensor(rates("bf16", 1500e9, 2000.0))

    assert (row["sparse"], row["roof_share"]) == (True, 0.75)


def test_gpus_before_sparsity_and_types_without_it_have_one_peak() -> None:
    assert tensor(rates("fp16", 900e9, 2000.0), capability=(7, 0))["peak_flops_per_s"] == 2000 * GHZ
    fp64 = {key.replace("_dst_fp32", ""): value for key, value in rates("fp64", 900e9, 2000.0).items()}
    assert tensor(fp64)["peak_flops_per_s"] == 2000 * GHZ


def test_a_total_and_its_parts_are_counted_once() -> None:
    parts = (
        rates("bf16", 900e9, 2000.0),
        rates("bf16", 900e9, 1000.0, "_sparsity_off"),
        rates("bf16", 0.0, 2000.0, "_sparsity_on"),
    )

    row = tensor(*parts)

    assert (row["flops_per_s"], row["peak_flops_per_s"], row["sparse"]) == (900e9, 1000 * GHZ, False)


def test_the_peak_is_that_of_the_instruction_of_the_type_used_most() -> None:
    parts = (
        rates("bf16", 500e9, 2000.0),
        rates("bf16", 500e9, 600.0, "_sparsity_off", "op_hmma_"),
        rates("bf16", 0.0, 1000.0, "_sparsity_off", "op_hgmma_"),
        rates("fp16", 10e9, 2000.0),
        rates("fp16", 10e9, 1000.0, "_sparsity_off", "op_hgmma_"),
    )

    row = tensor(*parts, capability=(9, 0))

    assert (row["flops_per_s"], row["peak_flops_per_s"], row["format"]) == (510e9, 600 * GHZ, "bf16")
