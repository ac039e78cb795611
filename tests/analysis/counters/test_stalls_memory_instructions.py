from __future__ import annotations

import pytest

from tests.analysis.counters.builders import counters, launch
from warplens.analysis.counters.memoryaccess import STALL_REASONS, memory_access, top_stalls, warp_stalls
from warplens.analysis.counters.speedoflight import instruction_use

STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SAMPLED = "smsp__pcsamp_warps_issue_stalled_{}"
OP = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"


def test_stalls_are_shares_of_the_cycles_between_two_instructions() -> None:
    cycles = {"long_scoreboard": 6.0, "wait": 2.0, "selected": 1.0, "not_selected": 1.0}

    found = warp_stalls(counters(launch(**{STALLED.format(name): value for name, value in cycles.items()})))

    assert found.select("reason", "share").rows() == [
        ("long_scoreboard", 0.6),
        ("wait", 0.2),
        ("not_selected", 0.1),
        ("selected", 0.1),
    ]


def test_a_warp_that_issues_or_could_is_not_stalled() -> None:
    report = counters(
        launch(**{STALLED.format("selected"): 5.0, STALLED.format("not_selected"): 4.0, STALLED.format("wait"): 1.0})
    )

    assert top_stalls(report)["reason"].to_list() == ["wait"]


def test_samples_stand_in_where_cycles_were_not_counted() -> None:
    sampled = {
        SAMPLED.format("barrier"): 90.0,
        SAMPLED.format("selected"): 30.0,
        SAMPLED.format("barrier_not_issued"): 90.0,
    }

    found = top_stalls(counters(launch(**sampled), launch(**{STALLED.format("wait"): 1.0})))

    assert found.select("launch", "reason", "share").rows() == [(0, "barrier", 0.75), (1, "wait", 1.0)]


def test_a_handful_of_samples_says_nothing() -> None:
    assert top_stalls(counters(launch(**{SAMPLED.format("barrier"): 5.0, SAMPLED.format("wait"): 1.0}))).is_empty()


def test_names_that_two_versions_give_to_one_state_are_one() -> None:
    found = top_stalls(counters(launch(**{SAMPLED.format("no_instructions"): 200.0})))

    assert found["reason"].to_list() == ["no_instruction"]
    assert "no_instruction" in STALL_REASONS


def test_names_of_nvprof_are_not_used() -> None:
    assert not {"memory_throttle", "execution_dependency", "memory_dependency"} & set(STALL_REASONS)


def test_sectors_for_each_request() -> None:
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


def test_wasted_sectors_of_the_access_pattern_come_first() -> None:
    metrics = {"memory_l2_theoretical_sectors_global": 800.0, "memory_l2_theoretical_sectors_global_ideal": 200.0}

    assert memory_access(counters(launch(**metrics)))["global_wasted_share"].to_list() == [0.75]


def test_bank_conflicts_are_wavefronts_beyond_the_ideal() -> None:
    metrics = {
        "memory_l1_wavefronts_shared": 32_000.0,
        "memory_l1_wavefronts_shared_ideal": 1000.0,
        "l1tex__cycles_elapsed.avg": 500.0,
    }

    found = memory_access(counters(launch(**metrics))).row(0, named=True)

    assert (found["shared_conflict_ways"], found["shared_conflict_share"]) == (32.0, 31 / 32)
    assert found["conflict_cycles_share"] == pytest.approx(31_000 / (500 * 132))


def test_a_kernel_that_reads_everything_once_is_streaming_and_its_hit_rate_no_grade() -> None:
    metrics = {
        OP.format("requests", "ld"): 100.0,
        OP.format("sectors", "ld"): 1600.0,
        "dram__bytes_read.sum": 51_200.0,
        "l1tex__t_sector_hit_rate.pct": 0.0,
    }

    found = memory_access(counters(launch(**metrics), launch(**metrics | {"dram__bytes_read.sum": 5120.0})))

    assert found["streaming"].to_list() == [True, False]
    assert found["l1_hit_share"].to_list() == [0.0, 0.0]


def test_active_threads_come_from_the_ratio_or_from_the_counts() -> None:
    ratio = {"smsp__thread_inst_executed_per_inst_executed.ratio": 24.0}
    counts = {"thread_inst_executed": 1600.0, "inst_executed": 100.0, "thread_inst_executed_true": 800.0}

    found = instruction_use(counters(launch(**ratio), launch(**counts), launch(block=(48, 1, 1))))

    assert found["threads_per_instruction"].to_list() == [24.0, 16.0, None]
    assert found["predicated_threads_per_instruction"].to_list() == [None, 8.0, None]
    assert found["full_warp_threads"].to_list() == [32.0, 32.0, 24.0]
