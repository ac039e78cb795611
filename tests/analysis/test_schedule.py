"""Schedules read from profiles: replayed unchanged they give back what was recorded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.builders import kernel, launch, nvtx, trace
from tests.analysis.simulator import GAP_NS, LATENCY_NS, Machine, run
from warplens.analysis.recorder import recorded_schedule
from warplens.analysis.replay import RecordedSchedule, replay
from warplens.analysis.timeline import Timeline
from warplens.profile import Trace

US = 1_000
MS = 1_000_000


def schedule_of(profile: Trace, spec: str = "steady") -> RecordedSchedule:
    timeline = Timeline(profile)
    found = recorded_schedule(timeline, timeline.window(spec))
    assert found is not None
    return found


_TIMES = st.integers(1, 200).map(lambda time: time * US)
_OPERATION = st.one_of(
    st.tuples(st.just("pause"), st.integers(1, 90).map(lambda time: time * US)),
    st.tuples(st.just("launch"), _TIMES),
    st.tuples(st.just("launch"), _TIMES, st.just(8)),
    st.just(("synchronize",)),
    st.tuples(st.just("allocate"), _TIMES),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_OPERATION, min_size=1, max_size=12), st.integers(2, 4))
def test_a_simulated_program_is_replayed_to_the_nanosecond(operations: list[tuple[Any, ...]], steps: int) -> None:
    # Launches at both edges: the latency of an idle GPU and the gap of a busy one are both there to be seen.
    step = [("launch", 50 * US), ("launch", 50 * US), *operations, ("launch", 9 * US), ("synchronize",)]
    profile = run(step, steps)
    timeline = Timeline(profile)
    window = timeline.window("steady")
    found = schedule_of(profile)
    assert found.duration_ns(replay(found.schedule)) == window.duration_ns


def test_what_starting_costs_is_measured_in_the_window() -> None:
    found = schedule_of(run([("launch", 50 * US), ("launch", 50 * US), ("synchronize",)]))
    offset = found.schedule.offset_ns - found.schedule.held_ns[found.schedule.call]
    assert set(offset.tolist()) == {LATENCY_NS}
    assert set(found.schedule.gap_ns.tolist()) == {GAP_NS}


def test_a_gpu_bound_program_without_waits_is_replayed() -> None:
    found = schedule_of(run([("launch", 90 * US)] * 6, steps=8))
    window = found.window
    assert found.duration_ns(replay(found.schedule)) == window.duration_ns
    assert found.tail_ns is None


def test_a_window_cut_out_anywhere_is_replayed() -> None:
    profile = run([("launch", 30 * US), ("pause", 40 * US), ("launch", 20 * US), ("synchronize",)], steps=10)
    found = schedule_of(profile, f"{200 * US}:{600 * US}")
    replayed = found.duration_ns(replay(found.schedule))
    assert replayed == pytest.approx(found.window.duration_ns, rel=0.02)


def test_a_release_that_drains_the_gpu_is_a_wait() -> None:
    step = [("launch", 300 * US), ("allocate", 20 * US, "cudaFree"), ("launch", 5 * US), ("synchronize",)]
    found = schedule_of(run(step))
    frees = found.cause == 2
    assert (found.schedule.waits_for[frees] >= 0).all()
    assert set(found.schedule.return_ns[frees].tolist()) == {20 * US}


def test_a_copy_from_pageable_memory_holds_the_host_until_it_is_done() -> None:
    step = [("launch", 300 * US), ("blocking_copy", 8 << 20, 400 * US), ("launch", 5 * US), ("synchronize",)]
    profile = run(step)
    found = schedule_of(profile)
    copies = found.cause == 3
    assert found.schedule.waits_for[copies].tolist() == found.schedule.call.searchsorted(copies.nonzero()[0]).tolist()
    assert found.duration_ns(replay(found.schedule)) == pytest.approx(found.window.duration_ns, rel=0.01)


def test_work_that_waited_for_another_stream_is_tied_to_it() -> None:
    kernels = [
        kernel(6 * US, 200 * US, correlation=1, stream=7),
        kernel(202 * US, 210 * US, correlation=2, stream=8),
        kernel(300 * US, 310 * US, correlation=3, stream=7),
    ]
    api = [launch(0, 4 * US, 1), launch(5 * US, 9 * US, 2), launch(294 * US, 298 * US, 3)]
    found = schedule_of(trace(kernels, api), "all")
    assert found.schedule.after.tolist() == [-1, 0, -1]
    assert found.schedule.after_gap_ns.tolist() == [0, 2 * US, 0]


def test_long_pauses_are_stalls_and_short_ones_are_not() -> None:
    found = schedule_of(run([("launch", 5 * US), ("pause", 3 * MS), ("launch", 5 * US), ("pause", 20 * US)] * 3))
    assert {int(time) for time in found.stall_ns} == {0, 3 * MS}


@pytest.mark.parametrize("spec", ["steady", "all"])
def test_without_launching_calls_there_is_no_schedule(spec: str) -> None:
    timeline = Timeline(trace([kernel(0, 10), kernel(40, 50)], []))
    assert recorded_schedule(timeline, timeline.window(spec)) is None


def test_a_window_of_one_range_has_no_schedule() -> None:
    timeline = Timeline(trace([kernel(5, 10, correlation=1)], [launch(0, 4, 1)], [nvtx(0, 4, "forward")]))
    assert recorded_schedule(timeline, timeline.window("all", "forward")) is None


def test_the_machine_of_these_tests_keeps_order() -> None:
    machine = Machine()
    machine.launch(100 * US)
    machine.launch(1 * US)
    first, second = machine.kernels
    assert second["start_ns"] == first["end_ns"] + GAP_NS
