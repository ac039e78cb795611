"""The time budget: every part measured by hand on small traces, and no nanosecond lost on random ones."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import AUTOGRAD_THREAD, call, copy, graph, kernel, launch, memset, nvtx, trace
from tests.analysis.random_traces import GEMM, NCCL, TIME, US, any_trace
from warplens.analysis.timebudget import TimeBudget, time_budgets
from warplens.analysis.timeline import Timeline
from warplens.profile import Trace


def _budget(profile: Trace, spec: str = "all", range_name: str | None = None) -> TimeBudget:
    timeline = Timeline(profile)
    (budget,) = time_budgets(timeline, timeline.window(spec, range_name))
    return budget


def _parts(budget: TimeBudget) -> dict[str, int]:
    return dict(zip(budget.parts["part"], budget.parts["time_ns"], strict=True))


def test_overlapping_kernels_are_counted_once_for_the_one_that_began_first():
    profile = trace([kernel(0, 10, GEMM), kernel(5, 15, "softmax_warp_forward", stream=8)], window_ns=(0, 15))
    assert _parts(_budget(profile)) == {"gemm": 10, "softmax": 5}


def test_communication_counts_only_where_no_compute_hides_it():
    profile = trace([kernel(0, 10, NCCL, stream=8), kernel(2, 6, GEMM)], window_ns=(0, 10))
    budget = _budget(profile)
    assert _parts(budget) == {"gemm": 4, "communication": 6}
    assert budget.group_ns("communication") == 6


def test_copies_count_only_where_nothing_else_hides_them():
    profile = trace([kernel(0, 10, GEMM)], copies=[copy(8, 14)], memsets=[memset(14, 15)], window_ns=(0, 15))
    assert _parts(_budget(profile)) == {"gemm": 10, "host-to-device": 4, "memset": 1}


def test_a_graph_traced_as_a_whole_is_busy_and_its_inside_hidden():
    budget = _budget(trace([kernel(0, 2, GEMM)], graph_launches=[graph(2, 10)], window_ns=(0, 10)))
    assert budget.idle_ns == 0
    assert budget.group_ns("graph") == 8


def test_work_that_reaches_into_the_window_counts_with_its_part_inside():
    profile = trace([kernel(0, 10, GEMM), kernel(18, 30, GEMM)], [])
    assert _parts(_budget(profile, "5ns:20ns"))["gemm"] == 5 + 2


def test_each_device_has_a_budget_of_its_own():
    timeline = Timeline(trace([kernel(0, 10, GEMM, device=0), kernel(4, 6, GEMM, device=1)], window_ns=(0, 10)))
    budgets = time_budgets(timeline, timeline.window("all"))
    assert [(budget.device, budget.busy_ns) for budget in budgets] == [(0, 10), (1, 2)]


def test_a_device_that_is_busy_throughout_the_window_has_a_budget():
    timeline = Timeline(trace([kernel(0, 100, GEMM, device=1), kernel(40, 50, GEMM)]))
    budgets = time_budgets(timeline, timeline.window("45ns:60ns"))
    assert [(budget.device, budget.busy_ns) for budget in budgets] == [(0, 5), (1, 15)]


def test_a_window_without_work_has_no_budget():
    timeline = Timeline(trace([kernel(0, 10)], window_ns=(0, 100)))
    assert time_budgets(timeline, timeline.window("50ns:60ns")) == ()


def test_the_budget_of_a_range_covers_the_spans_of_its_instances():
    profile = trace(
        [
            kernel(10, 20, GEMM, correlation=1),
            kernel(25, 30, GEMM, correlation=2),
            kernel(100, 110, GEMM, correlation=3),
        ],
        [launch(0, 1, 1), launch(2, 3, 2), launch(4, 5, 3)],
        [nvtx(0, 3, "forward"), nvtx(4, 6, "forward")],
    )
    budget = _budget(profile, range_name="forward")
    assert budget.duration_ns == (30 - 10) + (110 - 100)
    assert _parts(budget)["gemm"] == 25


def test_a_thread_that_launches_waits_for_the_thread_that_is_inside_cuda():
    api = [
        launch(-9 * US, -8 * US, 3, thread=AUTOGRAD_THREAD),
        call(12 * US, 40 * US, "cudaStreamSynchronize", 7),
        launch(50 * US, 60 * US, 2, thread=AUTOGRAD_THREAD),
    ]
    kernels = [
        kernel(-7 * US, -6 * US, GEMM, correlation=3),
        kernel(0, 10 * US, GEMM, correlation=1),
        kernel(60 * US, 70 * US, GEMM, correlation=2),
    ]
    budget = _budget(trace(kernels, [launch(-5 * US, -2 * US, 1), *api], window_ns=(0, 70 * US)))
    assert _parts(budget)["synchronization"] == 28 * US


def test_without_api_calls_the_cause_is_unknown_and_the_coverage_says_so():
    budget = _budget(trace([kernel(0, 10, GEMM), kernel(40, 50, GEMM)], window_ns=(0, 50)))
    assert _parts(budget)["unknown"] == 30
    assert budget.attributed_share == 0


def test_every_gap_is_listed_with_its_main_cause():
    kernels = [kernel(0, 10 * US, GEMM, correlation=1), kernel(60 * US, 70 * US, GEMM, correlation=2)]
    budget = _budget(trace(kernels, [launch(-5, -4, 1), launch(50 * US, 56 * US, 2)], window_ns=(0, 70 * US)))
    (gap,) = budget.gaps.frame().rows(named=True)
    assert (gap["start_ns"], gap["end_ns"], gap["main_cause"]) == (10 * US, 60 * US, "launch")
    assert gap["launch_ns"] + gap["start-latency_ns"] == 50 * US


@given(any_trace(), st.tuples(TIME, st.integers(1, 300 * US)))
def test_the_parts_sum_to_the_window_exactly(profile, span):
    timeline = Timeline(profile)
    windows = [timeline.window("all"), timeline.window("steady")]
    if span[0] < windows[0].end_ns and span[0] + span[1] > windows[0].start_ns:
        windows.append(timeline.window(f"{span[0]}:{span[0] + span[1]}"))
    for window in windows:
        for budget in time_budgets(timeline, window):
            assert budget.duration_ns == window.duration_ns
            assert budget.parts["time_ns"].sum() == window.duration_ns
            assert (budget.parts["time_ns"] > 0).all()
            gaps = budget.gaps.frame()
            assert (
                gaps.select(
                    pl.sum_horizontal(pl.selectors.ends_with("_ns") - pl.selectors.by_name("start_ns", "end_ns"))
                )
                .to_series()
                .to_list()
                == (gaps["end_ns"] - gaps["start_ns"]).to_list()
            )


@given(any_trace())
def test_busy_time_is_the_set_of_instants_at_which_anything_runs(profile):
    timeline = Timeline(profile)
    window = timeline.window("all")
    ops = sorted((row["start_ns"], row["end_ns"]) for row in timeline.work.iter_rows(named=True))
    reach, busy = window.start_ns, 0
    for start, end in ops:
        busy += max(0, end - max(start, reach))
        reach = max(reach, end)
    assert time_budgets(timeline, window)[0].busy_ns == busy


def test_an_empty_gap_frame_keeps_its_columns():
    budget = _budget(trace([kernel(0, 10, GEMM)], window_ns=(0, 10)))
    assert budget.gaps.frame().height == 0
    assert budget.attributed_share is None


@pytest.mark.parametrize("group", ["compute", "idle"])
def test_shares_are_of_the_split_time(group):
    budget = _budget(trace([kernel(0, 25, GEMM)], [], window_ns=(0, 100)))
    expected = {"compute": 0.25, "idle": 0.75}[group]
    assert budget.parts.filter(pl.col("group") == group)["share"].sum() == expected
