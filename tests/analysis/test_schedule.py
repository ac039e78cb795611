"""Schedules read from profiles: replayed unchanged they give back what was recorded.

The replay against the obvious way to do the same: one call and one piece of work after the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import call, kernel, launch, nvtx, overhead, sync, trace
from tests.analysis.simulator import GAP_NS, LATENCY_NS, Machine, run
from warplens.analysis.recorder import recorded_schedule
from warplens.analysis.replay import RecordedSchedule, Replayed, Schedule, paced, replay
from warplens.analysis.timeline import Timeline
from warplens.profile import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

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


@given(st.lists(_OPERATION, min_size=1, max_size=12), st.integers(2, 4))
def test_a_simulated_program_is_replayed_to_the_nanosecond(operations, steps):
    # Launches at both edges: the latency of an idle GPU and the gap of a busy one are both there to be seen.
    step = [("launch", 50 * US), ("launch", 50 * US), *operations, ("launch", 9 * US), ("synchronize",)]
    profile = run(step, steps)
    timeline = Timeline(profile)
    window = timeline.window("steady")
    found = schedule_of(profile)
    assert found.duration_ns(replay(found.schedule)) == window.duration_ns


def test_what_starting_costs_is_measured_in_the_window():
    found = schedule_of(run([("launch", 50 * US), ("launch", 50 * US), ("synchronize",)]))
    offset = found.schedule.offset_ns - found.schedule.held_ns[found.schedule.call]
    assert set(offset.tolist()) == {LATENCY_NS}
    assert set(found.schedule.gap_ns.tolist()) == {GAP_NS}


def test_a_gpu_bound_program_without_waits_is_replayed():
    found = schedule_of(run([("launch", 90 * US)] * 6, steps=8))
    window = found.window
    assert found.duration_ns(replay(found.schedule)) == window.duration_ns
    assert not found.ends_with_host


def test_a_window_cut_out_anywhere_is_replayed():
    profile = run([("launch", 30 * US), ("pause", 40 * US), ("launch", 20 * US), ("synchronize",)], steps=10)
    found = schedule_of(profile, f"{200 * US}:{600 * US}")
    replayed = found.duration_ns(replay(found.schedule))
    assert replayed == pytest.approx(found.window.duration_ns, rel=0.02)


def test_a_release_that_drains_the_gpu_is_a_wait():
    step = [("launch", 300 * US), ("allocate", 20 * US, "cudaFree"), ("launch", 5 * US), ("synchronize",)]
    found = schedule_of(run(step))
    frees = found.cause == 2
    assert (found.schedule.waits_for[frees] >= 0).all()
    assert set(found.schedule.return_ns[frees].tolist()) == {20 * US}


def test_a_copy_from_pageable_memory_holds_the_host_until_it_is_done():
    step = [("launch", 300 * US), ("blocking_copy", 8 << 20, 400 * US), ("launch", 5 * US), ("synchronize",)]
    profile = run(step)
    found = schedule_of(profile)
    copies = found.cause == 3
    assert found.schedule.waits_for[copies].tolist() == found.schedule.call.searchsorted(copies.nonzero()[0]).tolist()
    assert found.duration_ns(replay(found.schedule)) == pytest.approx(found.window.duration_ns, rel=0.01)


def test_work_that_waited_for_another_stream_is_tied_to_it():
    kernels = [
        kernel(6 * US, 200 * US, correlation=1, stream=7),
        kernel(202 * US, 210 * US, correlation=2, stream=8),
        kernel(300 * US, 310 * US, correlation=3, stream=7),
    ]
    api = [launch(0, 4 * US, 1), launch(5 * US, 9 * US, 2), launch(294 * US, 298 * US, 3)]
    found = schedule_of(trace(kernels, api), "all")
    assert found.schedule.after.tolist() == [-1, 0, 1]
    assert found.schedule.after_gap_ns.tolist() == [0, 2 * US, 1 * US]


def _two_streams(waits: Sequence[int], overlap: bool = False) -> list[int]:
    """What each piece of work waits for where a slow host issues gradients on one stream and their sum on another."""
    kernels, api = [], []
    for step in range(4):
        at, number = step * 1000 * US, 2 * step
        kernels.append(kernel(at + 10 * US, at + 50 * US, correlation=number + 1, stream=7))
        summed = at + 40 * US if overlap and step == 2 else at + 110 * US
        kernels.append(kernel(summed, at + 200 * US, correlation=number + 2, stream=8))
        api += [launch(at, at + 5 * US, number + 1), launch(summed - 10 * US, summed - 5 * US, number + 2)]
        api += [call(at + wait * US, at + (wait + 1) * US, "cudaStreamWaitEvent") for wait in waits]
    return schedule_of(trace(kernels, api), "all").schedule.after.tolist()


def test_work_that_the_host_ordered_behind_another_stream_stays_behind_it():
    assert _two_streams(waits=[60]) == [-1, 0, -1, 2, -1, 4, -1, 6]


def test_without_a_record_of_stream_waits_the_order_that_never_broke_is_kept():
    assert _two_streams(waits=[]) == [-1, 0, 1, 2, 3, 4, 5, 6]
    overlapped = _two_streams(waits=[], overlap=True)
    assert overlapped[1::2] == [-1, -1, -1, -1]  # the second stream was seen not to wait for the first
    assert overlapped[::2] == [-1, 1, 3, 5]


def _after(work: str, **kernels_at: tuple[int, int]) -> dict[str, str | None]:
    """What each kernel waits for, of calls in order: kernels by a letter (capital ones on stream 8), and waits.

    `>` makes an unknown stream wait, `7` and `8` the stream of that number. Each call takes 1 µs, 1 µs after another.

    Args:
        kernels_at: begin and end of each kernel in microseconds.
    """
    kernels, api, waits = [], [], []
    for number, name in enumerate(work):
        at = 2 * number * US
        if name in kernels_at:
            begin, end = kernels_at[name]
            kernels.append(kernel(begin * US, end * US, name, correlation=number, stream=8 if name.isupper() else 7))
            api.append(launch(at, at + US, number))
        else:
            api.append(call(at, at + US, "cudaStreamWaitEvent", number))
            if name.isdigit():
                place = {"stream": int(name)}
                waits.append({**sync(at, at + US, "stream-wait-event", **place), "correlation": number})
    found = schedule_of(trace(kernels, api, synchronizations=waits), "all")
    issued = [name for name in work if name in kernels_at]
    return {name: issued[at] if at >= 0 else None for name, at in zip(issued, found.schedule.after, strict=True)}


@pytest.mark.parametrize("wait", [">", "8"])
def test_a_wait_holds_for_what_was_issued_before_it(wait):
    # B is issued between the wait and C, and runs beside it.
    work = f"a{wait}bC>d"
    found = _after(work, a=(20, 120), b=(121, 221), C=(150, 350), d=(380, 400))
    assert found == {"a": None, "b": None, "C": "a", "d": "C"}


@pytest.mark.parametrize("wait", [">", "7"])
def test_work_waits_for_what_was_issued_before_the_work_ahead_of_it(wait):
    found = _after(f"a>Cb{wait}d", a=(20, 120), C=(121, 221), b=(121, 321), d=(400, 430))
    assert found == {"a": None, "C": "a", "b": None, "d": "C"}


def test_a_wait_of_one_stream_does_not_hold_for_another():
    times = {"a": (20, 30), "B": (50, 60), "c": (80, 90)}
    assert _after("aB8c", **times) == {"a": None, "B": None, "c": None}
    assert _after("aB7c", **times) == {"a": None, "B": None, "c": "B"}


def test_a_wait_that_may_be_another_streams_orders_nothing_issued_earlier():
    # Gradients b and c; the sum D of those before them is issued, and E waits for b, which c does not do for D.
    found = _after("a>Db>Ec", a=(20, 30), D=(50, 60), b=(80, 90), E=(110, 120), c=(140, 150))
    assert found == {"a": None, "D": "a", "b": None, "E": "b", "c": None}


def test_long_pauses_are_stalls_and_short_ones_are_not():
    found = schedule_of(run([("launch", 5 * US), ("pause", 3 * MS), ("launch", 5 * US), ("pause", 20 * US)] * 3))
    assert {int(time) for time in found.stall_ns} == {0, 3 * MS}


def test_pauses_in_which_the_profiler_held_the_host_go_with_it():
    api = [launch(at * MS, at * MS + 5 * US, at + 1) for at in range(3)]
    kernels = [kernel(at * MS + 7 * US, at * MS + 9 * US, correlation=at + 1) for at in range(3)]
    found = schedule_of(trace(kernels, api, profiler_overhead=[overhead(100 * US, 900 * US)]), "all")
    assert found.profiler_ns.tolist() == [0, 800 * US, 0]
    assert found.stall_ns.tolist() == [0, 0, 0]
    assert (found.schedule.pause_ns - paced(found, 1.0, 1.0).schedule.pause_ns).tolist() == [0, 800 * US, 0]


@pytest.mark.parametrize("spec", ["steady", "all"])
def test_without_launching_calls_there_is_no_schedule(spec):
    timeline = Timeline(trace([kernel(0, 10), kernel(40, 50)], []))
    assert recorded_schedule(timeline, timeline.window(spec)) is None


def test_a_window_of_one_range_has_no_schedule():
    timeline = Timeline(trace([kernel(5, 10, correlation=1)], [launch(0, 4, 1)], [nvtx(0, 4, "forward")]))
    assert recorded_schedule(timeline, timeline.window("all", "forward")) is None


def test_the_machine_of_these_tests_keeps_order():
    machine = Machine()
    machine.launch(100 * US)
    machine.launch(1 * US)
    first, second = machine.kernels
    assert second["start_ns"] == first["end_ns"] + GAP_NS


_NEVER = -(10**15)


def step_by_step(schedule: Schedule) -> Replayed:
    """What `replay` computes, without any shortcut."""
    calls, work = len(schedule.pause_ns), len(schedule.call)
    call_starts, call_ends = [0] * calls, [0] * calls
    starts, ends = [0] * work, [0] * work
    host, streams, fresh = schedule.begin_ns, schedule.ready_ns.tolist(), 0
    for number in range(calls):
        begin = host + int(schedule.pause_ns[number])
        while fresh < work and schedule.call[fresh] == number:
            stream, after = int(schedule.stream[fresh]), int(schedule.after[fresh])
            depends = ends[after] + int(schedule.after_gap_ns[fresh]) if after >= 0 else _NEVER
            starts[fresh] = max(
                begin + int(schedule.offset_ns[fresh]), streams[stream] + int(schedule.gap_ns[fresh]), depends
            )
            ends[fresh] = streams[stream] = starts[fresh] + int(schedule.duration_ns[fresh])
            fresh += 1
        host = begin + int(schedule.held_ns[number])
        if (awaited := int(schedule.waits_for[number])) >= 0:
            host = max(host, ends[awaited] + int(schedule.return_ns[number]))
        call_starts[number], call_ends[number] = begin, host
    return Replayed(*(np.array(times, dtype=np.int64) for times in (call_starts, call_ends, starts, ends)))


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    calls = draw(st.integers(1, 14))
    call = sorted(draw(st.lists(st.integers(0, calls - 1), max_size=20)))
    work, streams = len(call), draw(st.integers(1, 3))
    stream = [draw(st.integers(0, streams - 1)) for _ in range(work)]
    after = []
    for number in range(work):
        others = [before for before in range(number) if stream[before] != stream[number]]
        after.append(draw(st.sampled_from([-1, *others])))
    waits_for = []
    for number in range(calls):
        issued = [piece for piece in range(work) if call[piece] <= number]
        waits_for.append(draw(st.sampled_from([-1, -1, *issued])))

    def array(values: list[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    def times(count: int, least: int = 0) -> np.ndarray:
        return array(draw(st.lists(st.integers(least, 50), min_size=count, max_size=count)))

    return Schedule(
        begin_ns=draw(st.integers(-20, 20)),
        pause_ns=times(calls),
        held_ns=times(calls),
        waits_for=array(waits_for),
        return_ns=times(calls, -10),
        call=array(call),
        offset_ns=times(work, -5),
        duration_ns=times(work),
        stream=array(stream),
        gap_ns=times(work, -10),
        after=array(after),
        after_gap_ns=times(work, -5),
        ready_ns=times(streams, -20),
    )


@given(schedules())
def test_the_replay_gives_every_time_that_stepping_through_gives(schedule):
    found, expected = replay(schedule), step_by_step(schedule)
    for name in ("call_starts", "call_ends", "starts", "ends"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name


@given(schedules())
def test_a_shorter_pause_never_makes_anything_later(schedule):
    found = replay(schedule)
    sooner = replay(replace(schedule, pause_ns=schedule.pause_ns // 2))
    assert (sooner.ends <= found.ends).all()
    assert (sooner.call_ends <= found.call_ends).all()


@given(schedules())
def test_work_of_a_stream_keeps_its_order_and_never_overlaps(schedule):
    schedule = replace(schedule, gap_ns=np.abs(schedule.gap_ns))
    found = replay(schedule)
    for stream in range(len(schedule.ready_ns)):
        mine = schedule.stream == stream
        assert (found.starts[mine][1:] >= found.ends[mine][:-1]).all()
