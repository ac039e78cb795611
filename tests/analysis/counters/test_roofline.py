from __future__ import annotations

import pytest

from tests.analysis.counters.builders import OF_PEAK, counters, launch
from warplens.analysis.counters.roofline import roofline

GHZ = 1e9


def fp32(fadd: float = 0.0, fmul: float = 0.0, ffma: float = 0.0) -> dict[str, float]:
    """Thread instructions a cycle, on 132 multiprocessors with 128 lanes at 1 GHz: peak 33.8 TFLOP/s."""
    work = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
    return {
        work.format("fadd"): fadd,
        work.format("fmul"): fmul,
        work.format("ffma"): ffma,
        "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained": 132 * 128.0,
        "sm__cycles_elapsed.avg.per_second": GHZ,
        "smsp__cycles_elapsed.avg.per_second": GHZ,
    }


def dram(bytes_per_s: float) -> dict[str, float]:
    """Peak 1,000 B a cycle at 2 GHz: 2 TB/s."""
    return {
        "dram__bytes.sum.per_second": bytes_per_s,
        "dram__bytes.sum.peak_sustained": 1000.0,
        "dram__cycles_elapsed.avg.per_second": 2 * GHZ,
    }


def test_a_multiply_add_is_two_operations() -> None:
    found = roofline(counters(launch(**fp32(fadd=100.0, fmul=10.0, ffma=1000.0), **dram(1e11)))).row(0, named=True)

    assert found["flops_per_s"] == 2110 * GHZ
    assert found["peak_flops_per_s"] == 2 * 132 * 128 * GHZ
    assert found["intensity"] == 21.1
    assert found["ridge"] == pytest.approx(33.792e12 / 2e12)


def test_the_side_follows_from_the_intensity_and_not_from_the_distance() -> None:
    far_right = fp32(ffma=100.0)  # 0.2 TFLOP/s at 200 FLOP/B: far below the roof, yet on the compute side
    near_left = fp32(ffma=1000.0)  # 2 TFLOP/s at 1.1 FLOP/B

    right, left = roofline(counters(launch(**far_right, **dram(1e9)), launch(**near_left, **dram(1.8e12)))).to_dicts()

    assert (right["side"], right["roof_share"]) == ("compute", pytest.approx(0.2e12 / 33.792e12))
    assert (left["side"], left["roof_share"]) == ("memory", 0.9)


def test_distance_to_the_roof_is_reached_over_roof() -> None:
    for row in roofline(counters(launch(**fp32(ffma=1000.0), **dram(1.5e12)))).to_dicts():
        assert row["roof_share"] == pytest.approx(row["flops_per_s"] / row["roof_flops_per_s"])


def test_a_copy_has_no_operations_and_still_a_distance_to_its_roof() -> None:
    found = roofline(counters(launch(**fp32(), **dram(1.8e12)))).row(0, named=True)

    assert (found["intensity"], found["side"], found["roof_share"], found["main"]) == (0.0, "memory", 0.9, False)


def test_each_level_of_memory_has_its_own_intensity() -> None:
    caches = {
        "lts__lts2xbar_cycles_active.sum.per_second": 1e11,
        "lts__lts2xbar_cycles_active.sum.peak_sustained": 96.0,
        "lts__cycles_elapsed.avg.per_second": 1.6e9,
        "l1tex__lsu_writeback_active_mem_lgds.sum.per_second": 5e10,
        "l1tex__lsu_writeback_active_mem_lgds.sum.peak_sustained": 132.0,
        "l1tex__cycles_elapsed.avg.per_second": GHZ,
    }

    found = roofline(counters(launch(**fp32(ffma=1000.0), **dram(1e12), **caches)))

    assert found.select("level", "bytes_per_s").rows() == [("dram", 1e12), ("l2", 3.2e12), ("l1", 6.4e12)]
    assert found["peak_bytes_per_s"].to_list() == [2e12, 96 * 32 * 1.6e9, 132 * 128 * GHZ]


def test_tensor_operations_are_counted_against_the_peak_of_their_type() -> None:
    def of(kind: str, rate: float, peak: float) -> dict[str, float]:
        name = f"sm__ops_path_tensor_src_{kind}.sum"
        return {f"{name}.per_second": rate, f"{name}.peak_sustained": peak}

    report = counters(
        launch(**fp32(fadd=1.0), **of("bf16_dst_fp32", 8e14, 1e6), **of("tf32_dst_fp32", 0.0, 5e5), **dram(1e12))
    )

    tensor = roofline(report).filter(main=True).row(0, named=True)

    assert (tensor["precision"], tensor["flops_per_s"], tensor["peak_flops_per_s"]) == ("tensor", 8e14, 1e15)


def test_a_dense_product_is_not_measured_against_the_peak_of_sparse_ones() -> None:
    def of(kind: str, rate: float, peak: float) -> dict[str, float]:
        name = f"sm__ops_path_tensor_{kind}.sum"
        return {f"{name}.per_second": rate, f"{name}.peak_sustained": peak}

    kinds = {
        **of("src_bf16_dst_fp32", 4e14, 1e6),
        **of("op_hgmma_src_bf16_dst_fp32_sparsity_off", 4e14, 5e5),
        **of("op_hgmma_src_bf16_dst_fp32_sparsity_on", 0.0, 1e6),
    }

    tensor = roofline(counters(launch(**fp32(fadd=1.0), **kinds, **dram(1e12)))).filter(main=True).row(0, named=True)

    assert (tensor["flops_per_s"], tensor["peak_flops_per_s"], tensor["roof_share"]) == (4e14, 5e14, 0.8)


def test_tensor_work_that_was_not_counted_is_declared() -> None:
    busy = {f"sm__pipe_tensor_cycles_active{OF_PEAK}": 80.0}

    assert roofline(counters(launch(**fp32(ffma=1.0), **dram(1e12), **busy)))["uncounted_tensor"].to_list() == [True]


def test_without_the_metrics_there_is_no_roofline() -> None:
    assert roofline(counters(launch(), launch(**dram(1e12)))).is_empty()
