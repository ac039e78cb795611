"""The replay against the obvious way to do the same: one call and one piece of work after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from warplens.analysis.replay import Replayed, Schedule, replay

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


@settings(max_examples=400, deadline=None)
@given(schedules())
def test_the_replay_gives_every_time_that_stepping_through_gives(schedule: Schedule) -> None:
    found, expected = replay(schedule), step_by_step(schedule)
    for name in ("call_starts", "call_ends", "starts", "ends"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name


@settings(max_examples=100, deadline=None)
@given(schedules())
def test_a_shorter_pause_never_makes_anything_later(schedule: Schedule) -> None:
    found = replay(schedule)
    sooner = replay(replace(schedule, pause_ns=schedule.pause_ns // 2))
    assert (sooner.ends <= found.ends).all()
    assert (sooner.call_ends <= found.call_ends).all()


@settings(max_examples=100, deadline=None)
@given(schedules())
def test_work_of_a_stream_keeps_its_order_and_never_overlaps(schedule: Schedule) -> None:
    schedule = replace(schedule, gap_ns=np.abs(schedule.gap_ns))
    found = replay(schedule)
    for stream in range(len(schedule.ready_ns)):
        mine = schedule.stream == stream
        assert (found.starts[mine][1:] >= found.ends[mine][:-1]).all()
