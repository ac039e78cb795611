from __future__ import annotations

from tests.analysis.builders import allocation, kernel, trace
from warplens.analysis.copies import MEMORY_EVENTS, MemoryUse, memory_timeline, memory_use
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window

WINDOW = Window(10, 100, "explicit", "as asked for")

# 100 bytes before the window; inside it up to 350, down to 150; 1,000 more after it.
GROWING = Timeline(
    trace(
        memory=[
            allocation(5, 100, address=1),
            allocation(20, 250, address=2),
            allocation(40, -250, address=2),
            allocation(60, 50, address=3),
            allocation(200, 1_000, address=4),
        ]
    )
)


def test_the_peak_and_the_edges_of_the_window() -> None:
    assert memory_use(GROWING, WINDOW) == (
        MemoryUse(
            process=1,
            device=0,
            memory="device",
            begin_bytes=100,
            end_bytes=150,
            peak_bytes=350,
            peak_ns=20,
            allocations=2,
            releases=1,
            unseen_bytes=0,
        ),
    )


def test_where_nothing_grew_the_peak_stood_at_the_begin() -> None:
    (use,) = memory_use(GROWING, Window(30, 50, "explicit", "")) or ()

    assert (use.begin_bytes, use.end_bytes, use.peak_bytes, use.peak_ns) == (350, 100, 350, 30)


def test_a_window_without_events_still_knows_what_is_allocated() -> None:
    (use,) = memory_use(GROWING, Window(70, 80, "explicit", "")) or ()

    assert (use.begin_bytes, use.end_bytes, use.peak_bytes, use.allocations, use.releases) == (150, 150, 150, 0, 0)


def test_memory_released_without_having_been_seen_allocated_stood_there_before() -> None:
    timeline = Timeline(
        trace(memory=[allocation(20, 10, address=1), allocation(30, -400, address=9), allocation(40, 5, address=9)])
    )

    (use,) = memory_use(timeline, WINDOW) or ()

    assert (use.unseen_bytes, use.begin_bytes, use.peak_bytes, use.end_bytes) == (400, 400, 410, 15)


def test_devices_and_kinds_of_memory_are_kept_apart() -> None:
    timeline = Timeline(
        trace(
            memory=[
                allocation(20, 7),
                allocation(20, 5, memory="pinned"),
                allocation(20, 9, device=1),
                allocation(30, 3),
            ]
        )
    )

    uses = memory_use(timeline, WINDOW) or ()

    assert [(use.device, use.memory, use.peak_bytes) for use in uses] == [
        (0, "device", 10),
        (1, "device", 9),
        (0, "pinned", 5),
    ]


def test_the_timeline_gives_the_amount_after_each_event() -> None:
    events = memory_timeline(GROWING, WINDOW)

    assert events is not None
    assert events.schema == MEMORY_EVENTS.schema
    assert events.select("time_ns", "delta_bytes", "allocated_bytes").rows() == [
        (20, 250, 350),
        (40, -250, 100),
        (60, 50, 150),
    ]


def test_memory_that_was_not_recorded_is_unknown_rather_than_zero() -> None:
    unrecorded = Timeline(trace(kernels=[kernel(0, 10)]))

    assert memory_use(unrecorded, WINDOW) is None
    assert memory_timeline(unrecorded, WINDOW) is None


def test_recorded_memory_without_any_event_is_nothing() -> None:
    assert memory_use(Timeline(trace(memory=[])), WINDOW) == ()
