from __future__ import annotations

import pytest

from tests.analysis.counters.builders import COMPUTE, MEMORY, OF_PEAK, counters, launch
from warplens.analysis.counters.roofline import roofline, roofline_points
from warplens.analysis.counters.speedoflight import speed_of_light, throughput_breakdown
from warplens.errors import UsageError

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


def test_a_multiply_add_is_two_operations():
    found = roofline(counters(launch(**fp32(fadd=100.0, fmul=10.0, ffma=1000.0), **dram(1e11)))).row(0, named=True)

    assert found["flops_per_s"] == 2110 * GHZ
    assert found["peak_flops_per_s"] == 2 * 132 * 128 * GHZ
    assert found["intensity"] == 21.1
    assert found["ridge"] == pytest.approx(33.792e12 / 2e12)


def test_the_side_follows_from_the_intensity_and_not_from_the_distance():
    far_right = fp32(ffma=100.0)  # 0.2 TFLOP/s at 200 FLOP/B: far below the roof, yet on the compute side
    near_left = fp32(ffma=1000.0)  # 2 TFLOP/s at 1.1 FLOP/B

    right, left = roofline(counters(launch(**far_right, **dram(1e9)), launch(**near_left, **dram(1.8e12)))).to_dicts()

    assert (right["side"], right["roof_share"]) == ("compute", pytest.approx(0.2e12 / 33.792e12))
    assert (left["side"], left["roof_share"]) == ("memory", 0.9)


def test_distance_to_the_roof_is_reached_over_roof():
    for row in roofline(counters(launch(**fp32(ffma=1000.0), **dram(1.5e12)))).to_dicts():
        assert row["roof_share"] == pytest.approx(row["flops_per_s"] / row["roof_flops_per_s"])


def test_a_copy_has_no_operations_and_still_a_distance_to_its_roof():
    found = roofline(counters(launch(**fp32(), **dram(1.8e12)))).row(0, named=True)

    assert (found["intensity"], found["side"], found["roof_share"], found["main"]) == (0.0, "memory", 0.9, False)


def test_each_level_of_memory_has_its_own_intensity():
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


def test_tensor_work_that_was_not_counted_is_declared():
    busy = {f"sm__pipe_tensor_cycles_active{OF_PEAK}": 80.0}

    assert roofline(counters(launch(**fp32(ffma=1.0), **dram(1e12), **busy)))["uncounted_tensor"].to_list() == [True]


def test_without_the_metrics_there_is_no_roofline():
    assert roofline(counters(launch(), launch(**dram(1e12)))).is_empty()


TENSOR = f"sm__pipe_tensor_cycles_active{OF_PEAK}"
SHARED_PIPE = f"sm__pipe_shared_cycles_active{OF_PEAK}"
ISSUE = f"sm__issue_active{OF_PEAK}"
DRAM = f"dram__cycles_active{OF_PEAK}"
L2 = f"lts__t_sectors{OF_PEAK}"


def test_the_busiest_part_of_each_side_is_named():
    report = counters(
        launch(sm=70.0, memory=40.0, **{TENSOR: 70.0, SHARED_PIPE: 70.0, ISSUE: 20.0, DRAM: 40.0, L2: 30.0})
    )

    found = speed_of_light(report).row(0, named=True)

    assert (found["compute_share"], found["compute_unit"]) == (pytest.approx(0.7), "tensor")
    assert (found["memory_share"], found["memory_unit"]) == (0.4, "dram")
    assert (found["pipe_unit"], found["pipe_share"]) == ("tensor", pytest.approx(0.7))


def test_a_part_above_the_throughput_does_not_count_towards_it():
    # lts__throughput counts more parts of L2 than the memory throughput does.
    report = counters(launch(memory=40.0, **{DRAM: 40.0, L2: 55.0}))

    assert throughput_breakdown(report)["unit"].to_list() == ["dram"]


def test_a_report_says_itself_which_parts_count():
    named = {f"breakdown:{MEMORY}": f"{DRAM},{L2}", f"breakdown:{COMPUTE}": ISSUE}
    others = {f"l1tex__lsuin_requests{OF_PEAK}": 39.0, TENSOR: 9.0}
    report = counters(launch(sm=10.0, memory=40.0, **{DRAM: 40.0, L2: 30.0, ISSUE: 10.0}, **named, **others))

    assert throughput_breakdown(report).select("side", "unit", "share").rows() == [
        ("compute", "issue", 0.1),
        ("memory", "dram", 0.4),
        ("memory", "l2", 0.3),
    ]


def test_a_launch_that_failed_is_unknown_not_zero():
    found = speed_of_light(counters(launch(ns=float("nan"), sm=float("nan"), memory=None), launch(sm=0.0))).to_dicts()

    assert (found[0]["duration_ns"], found[0]["compute_share"], found[0]["memory_share"]) == (None, None, None)
    assert (found[1]["compute_share"], found[1]["compute_unit"]) == (0.0, None)


def test_a_report_without_metrics_gives_a_row_a_launch():
    assert speed_of_light(counters(launch(ns=None), launch(ns=None))).height == 2


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


def test_the_lowest_roof_is_what_a_kernel_can_achieve_at_most():
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


def test_a_copy_has_a_distance_but_no_place_in_the_chart():
    found = roofline_points(
        counters(launch("copy", **fp32(), **dram(1.8e12)), launch("add", **fp32(fadd=1.0), **dram(1e9)))
    )

    copy = next(row for row in found.points.to_dicts() if row["name"] == "copy")
    assert (copy["precision"], copy["dram_intensity"], copy["roof"], copy["roof_share"]) == (None, None, "dram", 0.9)
    assert found.placed["name"].to_list() == ["add"]


def test_launches_of_a_kernel_are_one_point_sized_by_their_time():
    found = roofline_points(counters(*(launch(ns=ns, **fp32(ffma=100.0), **dram(1e12)) for ns in (100.0, 300.0))))

    assert found.points.select("launches", "total_ns").rows() == [(2, 400.0)]


def test_roofs_are_those_that_a_kernel_stands_under_with_where_they_come_from():
    slow = {**fp32(ffma=100.0), "sm__cycles_elapsed.avg.per_second": 0.5 * GHZ}
    found = roofline_points(counters(launch("a", **fp32(ffma=100.0), **dram(1e12)), launch("b", **slow, **dram(1e12))))

    assert found.roofs.select("roof", "precision", "peak", "least_peak", "points").rows() == [
        ("compute", "fp32", PEAK, PEAK / 2, 2),
        ("dram", None, BANDWIDTH, BANDWIDTH, 2),
    ]
    assert "peak rate per cycle × clock" in found.roofs["source"][0]


def test_a_report_without_the_metrics_has_points_without_a_place():
    found = roofline_points(counters(launch()))

    assert found.points["roof_share"].to_list() == [None]
    assert found.placed.is_empty()
    assert found.roofs.is_empty()


def test_a_measured_roof_takes_the_place_of_the_reports():
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


#: What a kernel did on the tensor cores, on GPUs of which capability, and what is told of it.
PRODUCTS = {
    "a dense product is not measured against the peak of a sparse one": (
        [rates("bf16", 900e9, 2000.0)], (8, 0),
        {"precision": "tensor", "format": "bf16", "sparse": None, "peak_flops_per_s": 1000 * GHZ},
    ),
    "operations above the dense peak are sparse": (
        [rates("bf16", 1500e9, 2000.0), rates("tf32", 0.0, 500.0)], (8, 0), {"sparse": True, "roof_share": 0.75},
    ),
    "GPUs before sparsity have one peak": (
        [rates("fp16", 900e9, 2000.0)], (7, 0), {"peak_flops_per_s": 2000 * GHZ},
    ),
    "types without sparsity have one peak": (
        [{key.replace("_dst_fp32", ""): value for key, value in rates("fp64", 900e9, 2000.0).items()}], (8, 0),
        {"peak_flops_per_s": 2000 * GHZ},
    ),
    "a total and its parts are counted once": (
        [
            rates("bf16", 900e9, 2000.0), rates("bf16", 900e9, 1000.0, "_sparsity_off"),
            rates("bf16", 0.0, 2000.0, "_sparsity_on"),
        ],
        (8, 0), {"flops_per_s": 900e9, "peak_flops_per_s": 1000 * GHZ, "sparse": False, "roof_share": 0.9},
    ),
    "the peak is that of the instruction of the type used most": (
        [
            rates("bf16", 500e9, 2000.0), rates("bf16", 500e9, 600.0, "_sparsity_off", "op_hmma_"),
            rates("bf16", 0.0, 1000.0, "_sparsity_off", "op_hgmma_"), rates("fp16", 10e9, 2000.0),
            rates("fp16", 10e9, 1000.0, "_sparsity_off", "op_hgmma_"),
        ],
        (9, 0), {"flops_per_s": 510e9, "peak_flops_per_s": 600 * GHZ, "format": "bf16"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("product", PRODUCTS)
def test_tensor_operations_are_held_against_the_peak_of_their_kind(product):
    parts, capability, told = PRODUCTS[product]
    row = tensor(*parts, capability=capability)

    assert {name: row[name] for name in told} == told
