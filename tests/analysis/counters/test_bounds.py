from __future__ import annotations

import pytest

from tests.analysis.counters.builders import OF_PEAK, counters, launch
from warplens.analysis.counters.bounds import kernel_bounds, kernel_faults
from warplens.analysis.counters.memoryaccess import STALL_REASONS, memory_access, top_stalls, warp_stalls
from warplens.analysis.counters.speedoflight import instruction_use

DRAM = f"dram__cycles_active{OF_PEAK}"
L1 = f"l1tex__data_pipe_lsu_wavefronts{OF_PEAK}"
TENSOR = f"sm__pipe_tensor_cycles_active{OF_PEAK}"
FMA = f"sm__pipe_fma_cycles_active{OF_PEAK}"
ISSUE = f"sm__issue_active{OF_PEAK}"
LSU = f"sm__inst_executed_pipe_lsu{OF_PEAK}"
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SECTORS = "memory_l2_theoretical_sectors_global"
WAVEFRONTS = "memory_l1_wavefronts_shared"

TMA_LOAD = "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum"
TMA_STORE = "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum"
L1_AT_L2 = "lts__t_sectors_srcunit_tex.sum"
DRAM_TOTAL = f"gpu__dram_throughput{OF_PEAK}"
L2_TOTAL = f"lts__throughput{OF_PEAK}"

COALESCED = {SECTORS: 1000.0, f"{SECTORS}_ideal": 1000.0}


def bound(**arguments: object) -> dict[str, object]:
    return kernel_bounds(counters(launch(**arguments))).row(0, named=True)


#: One planted fault each, with counters such as a kernel with it has; and the fault that must be named first.
PLANTED = {
    "uncoalesced": {"sm": 4.0, "memory": 85.0, DRAM: 85.0, SECTORS: 8000.0, f"{SECTORS}_ideal": 1000.0, THREADS: 32.0},
    "bank-conflicts": {
        "sm": 90.0, "memory": 97.0, LSU: 20.0, L1: 97.0, WAVEFRONTS: 32_000.0, f"{WAVEFRONTS}_ideal": 1000.0,
        "l1tex__cycles_elapsed.avg": 250.0, THREADS: 32.0,
    },
    "divergence": {"sm": 80.0, "memory": 2.0, ISSUE: 80.0, THREADS: 1.5, **COALESCED},
    "small-grid": {"grid": 4, "sm": 0.5, "memory": 0.3, ACHIEVED: 12.0},
    "tail": {"grid": 132 * 8 + 8, "sm": 40.0, "memory": 20.0, ACHIEVED: 52.0},
    "partial-warps": {"block": 16, "sm": 70.0, "memory": 10.0, ISSUE: 70.0, THREADS: 16.0, ACHIEVED: 50.0},
}  # fmt: skip

#: What a kernel is bound by, and the fault that must be named first: its counters, and what is judged of them.
JUDGED = {
    "a streaming copy at the bandwidth of memory is healthy": (
        {"sm": 5.0, "memory": 91.0, DRAM: 91.0, "l1tex__t_sector_hit_rate.pct": 0.0, **COALESCED},
        {"bound": "memory", "unit": "dram", "unit_share": 0.91, "at_roof": True, "healthy": True, "fault": None},
    ),
    "a matrix product at the peak of the tensor pipe is healthy at low occupancy": (
        {"registers": 168, "block": 128, "sm": 88.0, "memory": 45.0, TENSOR: 88.0, DRAM: 45.0, ACHIEVED: 12.0,
         THREADS: 32.0},
        {"bound": "compute", "unit": "tensor", "healthy": True, "fault": None},
    ),
    "multiply-adds that fill the issue slots are bound by their pipe": (
        {"sm": 98.0, "memory": 1.0, ISSUE: 98.0, FMA: 95.0, THREADS: 32.0},
        {"bound": "compute", "unit": "fma", "unit_share": pytest.approx(0.95), "healthy": True},
    ),
    "issue slots full of mixed instructions are no proof of health": (
        {"sm": 88.0, "memory": 30.0, ISSUE: 88.0, FMA: 41.0, THREADS: 32.0},
        {"unit": "issue", "at_roof": True, "healthy": None},
    ),
    "a full load-store pipe is memory, not compute": (
        {"sm": 97.8, "memory": 97.7, LSU: 97.8, L1: 97.7}, {"bound": "memory", "unit": "l1", "balanced": True},
    ),
    "a full tensor pipe is the bound although L1, which feeds it, is a little fuller": (
        {"sm": 93.4, "memory": 94.6, TENSOR: 93.4, L1: 94.6, THREADS: 32.0},
        {"bound": "compute", "unit": "tensor", "unit_share": pytest.approx(0.934), "balanced": True, "healthy": True},
    ),
    "L1 is the bound where the arithmetic is not full": (
        {"sm": 78.0, "memory": 97.0, TENSOR: 78.0, L1: 97.0}, {"bound": "memory"},
    ),
    "DRAM is the bound where the arithmetic is not full": (
        {"sm": 78.0, "memory": 97.0, TENSOR: 78.0, DRAM: 97.0}, {"bound": "memory"},
    ),
    "of the throughputs of the levels, the total shows which is the bound where its parts were not collected": (
        {"sm": 5.0, "memory": 91.24, DRAM_TOTAL: 91.23, L2_TOTAL: 40.0}, {"bound": "memory", "unit": "dram"},
    ),
    "L2 is the bound where its throughput is the total": (
        {"sm": 5.0, "memory": 91.24, DRAM_TOTAL: 30.0, L2_TOTAL: 91.24}, {"bound": "memory", "unit": "l2"},
    ),
    "L1 is the bound where L2 and DRAM are below the total": (
        {"sm": 5.0, "memory": 91.24, DRAM_TOTAL: 30.0, L2_TOTAL: 40.0}, {"bound": "memory", "unit": "l1"},
    ),
    "without the throughput of L2, the level cannot be said": (
        {"sm": 5.0, "memory": 91.24, DRAM_TOTAL: 30.0}, {"bound": "memory", "unit": None, "unit_share": 0.9124},
    ),
    "a few scattered loads beside what TMA moves are no fault": (
        {"sm": 4.0, "memory": 85.0, DRAM: 85.0, SECTORS: 8000.0, f"{SECTORS}_ideal": 1000.0, TMA_LOAD: 90_000.0,
         TMA_STORE: 2000.0}, {"bound": "memory", "fault": None, "healthy": True},
    ),
    "nor are they beside what L2 hands to L1, where TMA was not counted": (
        {"sm": 4.0, "memory": 85.0, DRAM: 85.0, SECTORS: 8000.0, f"{SECTORS}_ideal": 1000.0, L1_AT_L2: 100_000.0},
        {"fault": None},
    ),
    "full device memory is the bound beside a full pipe": (
        {"sm": 93.4, "memory": 94.6, TENSOR: 93.4, DRAM: 94.6}, {"unit": "dram"},
    ),
    "without the metrics that would show waste, health cannot be said": (
        {"sm": 5.0, "memory": 91.0, DRAM: 91.0}, {"healthy": None},
    ),
    "where compute alone was collected, memory may be busy": (
        {"sm": 54.4, "memory": None, ACHIEVED: 62.0}, {"bound": "unknown", "unit": None},
    ),
    "where memory alone was collected, compute may be busy": (
        {"sm": None, "memory": 54.4, ACHIEVED: 62.0}, {"bound": "unknown", "unit": None},
    ),
    "low throughputs on a full grid are latency, with the longest wait": (
        {"sm": 20.0, "memory": 30.0, ACHIEVED: 90.0, STALLED.format("long_scoreboard"): 30.0,
         STALLED.format("selected"): 1.0, STALLED.format("wait"): 4.0},
        {"bound": "latency", "unit": None, "stall": "long_scoreboard", "stall_share": pytest.approx(30 / 35)},
    ),
    "a grid of less than a wave is too small to say": (
        {"grid": 66, "sm": 3.0, "memory": 4.0},
        # of the room for 1,056 blocks, and of the unused peak
        {"bound": "small", "fault": "small-grid", "fault_gain_share": pytest.approx((1 - 66 / 1056) * 0.96)},
    ),
    "a persistent kernel of few blocks that fills its pipe is not small": (
        {"grid": 128, "registers": 168, "block": 384, "sm": 85.0, "memory": 40.0, TENSOR: 85.0}, {"bound": "compute"},
    ),
    "low throughput of a launch that hides its configuration is unknown": (
        {"registers": None, "sm": 3.0, "memory": 4.0}, {"bound": "unknown"},
    ),
    "without throughputs the bound is unknown": ({}, {"bound": "unknown"}),
    **{fault: (counters, {"fault": fault}) for fault, counters in PLANTED.items()},
    "half of the sectors are wasted, but memory is hardly used: less than a tenth is no fault": (
        {"sm": 70.0, "memory": 15.0, FMA: 70.0, SECTORS: 2000.0, f"{SECTORS}_ideal": 1000.0}, {"fault": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kernel", JUDGED)
def test_a_kernel_is_judged_by_its_counters(kernel):
    arguments, judged = JUDGED[kernel]
    found = bound(**arguments)

    assert {name: found[name] for name in judged} == judged


@pytest.mark.parametrize(
    ("limiter", "arguments", "achieved"),
    [
        ("registers", {"registers": 255, "block": 128}, 12.4),
        ("shared-memory", {"dynamic_shared": 100 * 1024, "block": 128}, 12.4),
        ("blocks", {"block": 32}, 49.0),
        ("barriers", {"block": 64, "barriers": 16}, 12.4),
    ],
)
def test_low_occupancy_is_at_fault_with_its_limiter(limiter, arguments, achieved):
    occupied = kernel_bounds(counters(launch(**arguments)))
    assert occupied["fault"].to_list() == [None]  # without throughputs nothing says that it waits

    found = bound(**arguments, sm=15.0, memory=20.0, **{ACHIEVED: achieved})

    assert (found["bound"], found["fault"], found["occupancy_limiter"]) == ("latency", "occupancy", limiter)


def test_low_occupancy_of_a_kernel_at_its_roof_is_no_fault():
    assert kernel_faults(
        counters(launch(registers=255, sm=90.0, memory=10.0, **{TENSOR: 90.0, ACHIEVED: 12.0}))
    ).is_empty()


def test_occupancy_that_contradicts_itself_is_not_blamed():
    claimed = {"sm__maximum_warps_per_active_cycle_pct": 100.0, ACHIEVED: 48.0}

    found = bound(registers=64, sm=15.0, memory=20.0, **claimed)

    assert found["fault"] is None
    assert found["inconsistent"] is not None


def test_the_evidence_is_the_numbers_that_decide():
    found = bound(sm=20.0, memory=30.0, **{ACHIEVED: 90.0})

    assert [item["name"] for item in found["evidence"]] == [
        "compute_share",
        "memory_share",
        "waves",
        "theoretical_share",
        "achieved_share",
    ]


SAMPLED = "smsp__pcsamp_warps_issue_stalled_{}"
OP = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"


def test_stalls_are_shares_of_the_cycles_between_two_instructions():
    cycles = {"long_scoreboard": 6.0, "wait": 2.0, "selected": 1.0, "not_selected": 1.0}

    found = warp_stalls(counters(launch(**{STALLED.format(name): value for name, value in cycles.items()})))

    assert found.select("reason", "share").rows() == [
        ("long_scoreboard", 0.6),
        ("wait", 0.2),
        ("not_selected", 0.1),
        ("selected", 0.1),
    ]


def test_a_warp_that_issues_or_could_is_not_stalled():
    report = counters(
        launch(**{STALLED.format("selected"): 5.0, STALLED.format("not_selected"): 4.0, STALLED.format("wait"): 1.0})
    )

    assert top_stalls(report)["reason"].to_list() == ["wait"]


def test_samples_stand_in_where_cycles_were_not_counted():
    sampled = {
        SAMPLED.format("barrier"): 90.0,
        SAMPLED.format("selected"): 30.0,
        SAMPLED.format("barrier_not_issued"): 90.0,
    }

    found = top_stalls(counters(launch(**sampled), launch(**{STALLED.format("wait"): 1.0})))

    assert found.select("launch", "reason", "share").rows() == [(0, "barrier", 0.75), (1, "wait", 1.0)]


def test_a_handful_of_samples_says_nothing():
    assert top_stalls(counters(launch(**{SAMPLED.format("barrier"): 5.0, SAMPLED.format("wait"): 1.0}))).is_empty()


def test_names_that_two_versions_give_to_one_state_are_one():
    found = top_stalls(counters(launch(**{SAMPLED.format("no_instructions"): 200.0})))

    assert found["reason"].to_list() == ["no_instruction"]
    assert "no_instruction" in STALL_REASONS


def test_names_of_nvprof_are_not_used():
    assert not {"memory_throttle", "execution_dependency", "memory_dependency"} & set(STALL_REASONS)


def test_sectors_for_each_request():
    metrics = {
        OP.format("requests", "ld"): 100.0,
        OP.format("sectors", "ld"): 3200.0,
        OP.format("requests", "st"): 50.0,
        OP.format("sectors", "st"): 200.0,
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 4.0,
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio": 32.0,
    }

    found = memory_access(counters(launch(**metrics))).row(0, named=True)

    assert (found["global_load_sectors_per_request"], found["global_store_sectors_per_request"]) == (32.0, 4.0)
    # 3,200 sectors with 4 of 32 bytes used, 200 with all: 2,800 of 3,400 are more than needed.
    assert found["global_wasted_share"] == pytest.approx(2800 / 3400)


def test_wasted_sectors_of_the_access_pattern_come_first():
    metrics = {"memory_l2_theoretical_sectors_global": 800.0, "memory_l2_theoretical_sectors_global_ideal": 200.0}

    assert memory_access(counters(launch(**metrics)))["global_wasted_share"].to_list() == [0.75]


def test_sectors_that_tma_moves_are_needed_and_count_among_all():
    metrics = {SECTORS: 800.0, f"{SECTORS}_ideal": 200.0, TMA_LOAD: 1000.0, TMA_STORE: 600.0}

    found = memory_access(counters(launch(**metrics), launch(**metrics | {L1_AT_L2: 6000.0})))

    assert found["tma_sectors"].to_list() == [1600.0, 1600.0]
    assert found["global_wasted_share"].to_list() == [600 / 2400, 600 / 6000]


def test_sectors_that_l1_holds_do_not_reach_l2_and_are_wasted_nevertheless():
    metrics = {SECTORS: 800.0, f"{SECTORS}_ideal": 200.0, L1_AT_L2: 100.0}

    assert memory_access(counters(launch(**metrics)))["global_wasted_share"].to_list() == [0.75]


def test_bank_conflicts_are_wavefronts_beyond_the_ideal():
    metrics = {
        "memory_l1_wavefronts_shared": 32_000.0,
        "memory_l1_wavefronts_shared_ideal": 1000.0,
        "l1tex__cycles_elapsed.avg": 500.0,
    }

    found = memory_access(counters(launch(**metrics))).row(0, named=True)

    assert (found["shared_conflict_ways"], found["shared_conflict_share"]) == (32.0, 31 / 32)
    assert found["conflict_cycles_share"] == pytest.approx(31_000 / (500 * 132))


def test_a_kernel_that_reads_everything_once_is_streaming_and_its_hit_rate_no_grade():
    metrics = {
        OP.format("requests", "ld"): 100.0,
        OP.format("sectors", "ld"): 1600.0,
        "dram__bytes_read.sum": 51_200.0,
        "l1tex__t_sector_hit_rate.pct": 0.0,
    }

    found = memory_access(counters(launch(**metrics), launch(**metrics | {"dram__bytes_read.sum": 5120.0})))

    assert found["streaming"].to_list() == [True, False]
    assert found["l1_hit_share"].to_list() == [0.0, 0.0]


def test_active_threads_come_from_the_ratio_or_from_the_counts():
    ratio = {"smsp__thread_inst_executed_per_inst_executed.ratio": 24.0}
    counts = {"thread_inst_executed": 1600.0, "inst_executed": 100.0, "thread_inst_executed_true": 800.0}

    found = instruction_use(counters(launch(**ratio), launch(**counts), launch(block=(48, 1, 1))))

    assert found["threads_per_instruction"].to_list() == [24.0, 16.0, None]
    assert found["predicated_threads_per_instruction"].to_list() == [None, 8.0, None]
    assert found["full_warp_threads"].to_list() == [32.0, 32.0, 24.0]
