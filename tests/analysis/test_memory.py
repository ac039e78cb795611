from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.analysis.builders import allocation, copy, kernel, memset, nvtx, trace
from tests.analysis.work.programs import block, operator, program
from tests.shipped import of_others
from warplens.analysis.allocator import (
    ALLOCATIONS,
    MEMORY_EVENTS,
    AllocatorUse,
    MemoryUse,
    allocations,
    memory_timeline,
    memory_use,
)
from warplens.analysis.kernels import copy_statistics
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Step, Window
from warplens.readers import read

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


def test_the_peak_and_the_edges_of_the_window():
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


def test_where_nothing_grew_the_peak_stood_at_the_begin():
    (use,) = memory_use(GROWING, Window(30, 50, "explicit", "")) or ()

    assert (use.begin_bytes, use.end_bytes, use.peak_bytes, use.peak_ns) == (350, 100, 350, 30)


def test_a_window_without_events_still_knows_what_is_allocated():
    (use,) = memory_use(GROWING, Window(70, 80, "explicit", "")) or ()

    assert (use.begin_bytes, use.end_bytes, use.peak_bytes, use.allocations, use.releases) == (150, 150, 150, 0, 0)


def test_memory_released_without_having_been_seen_allocated_stood_there_before():
    timeline = Timeline(
        trace(memory=[allocation(20, 10, address=1), allocation(30, -400, address=9), allocation(40, 5, address=9)])
    )

    (use,) = memory_use(timeline, WINDOW) or ()

    assert (use.unseen_bytes, use.begin_bytes, use.peak_bytes, use.end_bytes) == (400, 400, 410, 15)


def test_devices_and_kinds_of_memory_are_kept_apart():
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


def test_the_timeline_gives_the_amount_after_each_event():
    events = memory_timeline(GROWING, WINDOW)

    assert events.schema == MEMORY_EVENTS.schema
    assert events.select("time_ns", "delta_bytes", "allocated_bytes").rows() == [
        (20, 250, 350),
        (40, -250, 100),
        (60, 50, 150),
    ]


def test_memory_that_was_not_recorded_is_unknown_rather_than_zero():
    unrecorded = Timeline(trace(kernels=[kernel(0, 10)]))

    assert memory_use(unrecorded, WINDOW) is None
    assert memory_timeline(unrecorded, WINDOW) is None


def test_recorded_memory_without_any_event_is_nothing():
    assert memory_use(Timeline(trace(memory=[])), WINDOW) == ()


ALL = Window(0, 1_000, "all", "everything")

# From pageable memory 100 bytes in 10 ns and 300 in 30 ns, from pinned memory 800 in 20 ns; 64 bytes filled in 4 ns.
MOVES = Timeline(
    trace(
        copies=[
            copy(0, 10, "host-to-device", 100, source="pageable"),
            copy(100, 130, "host-to-device", 300, source="pageable"),
            copy(200, 220, "host-to-device", 800, source="pinned"),
        ],
        memsets=[memset(300, 304, 64)],
    )
)


def test_copies_are_told_apart_by_the_memory_on_both_sides():
    rows = (
        copy_statistics(MOVES, ALL).select("kind", "direction", "source_memory", "destination_memory", "calls").rows()
    )

    assert rows == [
        ("copy", "host-to-device", "pageable", "device", 2),
        ("copy", "host-to-device", "pinned", "device", 1),
        ("memset", None, None, "device", 1),
    ]


def test_times_and_sizes_are_exact():
    pageable = copy_statistics(MOVES, ALL).row(0, named=True)

    assert (pageable["total_ns"], pageable["mean_ns"], pageable["median_ns"]) == (40, 20.0, 20.0)
    assert (pageable["min_ns"], pageable["max_ns"]) == (10, 30)
    assert pageable["stdev_ns"] == pytest.approx(200**0.5)
    assert (pageable["total_bytes"], pageable["mean_bytes"], pageable["min_bytes"], pageable["max_bytes"]) == (
        400,
        200.0,
        100,
        300,
    )
    assert pageable["share"] == 40 / 64


def test_directions_can_be_taken_together():
    together = copy_statistics(MOVES, ALL, by="direction")

    assert together.select("kind", "direction", "source_memory", "calls", "total_ns", "total_bytes").rows() == [
        ("copy", "host-to-device", None, 3, 60, 1_200),
        ("memset", None, None, 1, 4, 64),
    ]


def test_bandwidth_is_bytes_over_the_time_with_a_copy_in_flight():
    # Two copies share the link for 10 of 20 ns; another device has a link of its own.
    timeline = Timeline(
        trace(
            copies=[
                copy(0, 15, size=150, stream=1),
                copy(5, 20, size=150, stream=2),
                copy(0, 20, size=100, device=1),
            ]
        )
    )

    row = copy_statistics(timeline, ALL).row(0, named=True)

    assert (row["busy_ns"], row["bandwidth_bytes_per_s"]) == (40, 400 / 40 * 1e9)


def test_a_copy_that_took_no_time_has_no_bandwidth():
    row = copy_statistics(Timeline(trace(copies=[copy(5, 5)])), ALL).row(0, named=True)

    assert (row["busy_ns"], row["bandwidth_bytes_per_s"], row["share"]) == (0, None, None)


def test_unrecorded_kinds_of_memory_stay_unknown():
    timeline = Timeline(trace(copies=[copy(0, 10, source=None, destination=None), copy(20, 25)]))

    rows = copy_statistics(timeline, ALL).select("source_memory", "calls", "busy_ns").rows()

    assert rows == [(None, 1, 10), ("pageable", 1, 5)]


# 1,000 bytes stood there before the recording. In the window: 300 more, 200 more (the peak: 1,500), then 300 of them
# and 400 of the old ones less, then 100 more.
EVENTS = [
    block(20, 300, address=1, allocated=1300),
    block(40, 200, address=2, allocated=1500),
    block(60, -300, address=1, allocated=1200),
    block(70, -400, address=9, allocated=800),
    block(80, 100, address=1, allocated=900),
]
OPERATORS = [
    operator(15, 30, "aten::mm"),
    operator(18, 25, "aten::empty"),
    operator(35, 50, "autograd::engine::evaluate_function: MmBackward0"),
    operator(38, 45, "aten::t"),
]


def recorded(events=EVENTS, operators=OPERATORS) -> Timeline:
    return program(operators, [kernel(0, 10)], [], allocations=events)


def allocator(timeline, window=WINDOW):
    found = allocations(timeline, window)
    assert found is not None
    return found


def test_the_peak_and_the_edges_of_the_window_of_the_allocator():
    assert allocator(recorded()).use == (
        AllocatorUse(
            process=1,
            device=0,
            begin_bytes=1000,
            end_bytes=900,
            peak_bytes=1500,
            peak_ns=40,
            reserved_bytes=10_000,
            most_reserved_bytes=10_000,
            allocations=3,
            releases=2,
            allocated_bytes=600,
            unseen_bytes=1000,
            mismatches=0,
        ),
    )


def test_what_is_held_but_not_in_use_is_cached_or_fragmented():
    (use,) = allocator(recorded()).use

    assert use.idle_bytes == 10_000 - 1500
    assert use.known_share == pytest.approx(500 / 1500)


def test_where_nothing_grew_the_peak_stood_at_the_begin_of_the_allocator():
    (use,) = allocator(recorded(), Window(50, 75, "explicit", "")).use

    assert (use.begin_bytes, use.end_bytes, use.peak_bytes, use.peak_ns) == (1500, 800, 1500, 50)


def test_a_window_before_all_events_knows_what_stood_there():
    (use,) = allocator(recorded(), Window(0, 10, "explicit", "")).use

    assert (use.begin_bytes, use.end_bytes, use.peak_bytes, use.unseen_bytes) == (1000, 1000, 1000, 1000)


def test_memory_at_the_peak_belongs_to_the_operator_that_computes_not_to_the_one_that_allocates():
    alive = allocator(recorded()).alive_at_peak

    assert alive.select("operator", "phase", "from_before", "blocks", "bytes").rows() == [
        (None, "none", True, None, 1000),
        ("aten::mm", "none", False, 1, 300),
        ("aten::t", "backward", False, 1, 200),
    ]
    assert alive["bytes"].sum() == 1500
    assert alive["share"].sum() == pytest.approx(1.0)


def test_a_block_released_before_the_peak_is_not_alive_at_it():
    events = [
        block(20, 100, address=1, allocated=100),
        block(30, -100, address=1, allocated=0),
        block(40, 70, address=1, allocated=70),
        block(50, 80, address=2, allocated=150),
    ]

    alive = allocator(recorded(events, [])).alive_at_peak

    assert alive.select("operator", "blocks", "bytes").rows() == [(None, 2, 150)]


def test_memory_allocated_inside_an_annotation_belongs_to_it_where_no_operator_was_open():
    timeline = recorded([block(20, 300, address=1, allocated=300)], [{**operator(0, 90, "step"), "kind": "push-pop"}])

    alive = allocator(timeline).alive_at_peak

    assert alive["operator"].to_list() == ["step"]


def test_totals_that_the_profile_does_not_state_are_summed():
    events = [{**row, "allocated_bytes": None, "reserved_bytes": None} for row in EVENTS]

    (use,) = allocator(recorded(events)).use

    # Only the 400 bytes released without having been seen allocated must have stood there before.
    assert (use.begin_bytes, use.peak_bytes, use.end_bytes) == (400, 900, 300)
    assert (use.reserved_bytes, use.idle_bytes, use.mismatches) == (None, None, 0)


def test_a_lost_event_shows_as_a_total_that_is_not_the_sum():
    lost = [EVENTS[0], *EVENTS[2:]]

    (use,) = allocator(recorded(lost)).use

    assert use.mismatches == 3
    assert use.peak_bytes == 1300


def test_each_step_has_its_own_churn_and_peak():
    window = Window(10, 100, "steady", "", (Step(1, 10, 50), Step(2, 50, 100)))

    steps = allocator(recorded(), window).steps

    assert steps.drop("process", "device").rows() == [(1, 2, 0, 500, 0, 1500), (2, 1, 2, 100, 700, 1500)]


def test_the_timeline_gives_the_amounts_after_each_event():
    events = allocator(recorded(), Window(30, 70, "explicit", "")).timeline

    assert events.schema == ALLOCATIONS.schema
    assert events.select("time_ns", "delta_bytes", "allocated_bytes").rows() == [(40, 200, 1500), (60, -300, 1200)]


def test_host_memory_is_kept_apart_and_holds_nothing_back():
    events = [*EVENTS, block(50, 8, address=5, allocated=8, reserved=0, device=None)]

    gpu, host = allocator(recorded(events)).use

    assert (gpu.device, gpu.peak_bytes) == (0, 1500)
    assert (host.device, host.peak_bytes, host.reserved_bytes, host.idle_bytes) == (None, 8, None, None)


def test_allocations_that_were_not_recorded_are_unknown_rather_than_zero():
    unrecorded = Timeline(trace(kernels=[kernel(0, 10)], ranges=[nvtx(0, 5, "step")]))

    assert allocations(unrecorded, WINDOW) is None


def test_recorded_allocations_without_any_event_are_nothing():
    empty = recorded([])

    assert allocator(empty).use == ()
    assert allocator(empty).alive_at_peak.is_empty()


@pytest.mark.parametrize(
    "name", ["h200_lm_small_train.json.gz", "tracelens_h100_qwen0p5b.json.gz", "tracelens_mi300_qwen0p5b.json.gz"]
)
def test_the_totals_of_real_traces_are_the_sums_of_their_events(name):
    path = of_others(f"kineto/{name}")
    timeline = Timeline(read(path))
    window = timeline.window("all")

    for use in allocator(timeline, window).use:
        home = pl.col("device").eq_missing(pl.lit(use.device, dtype=pl.Int32))
        events = timeline.trace.allocations.filter(home).sort("time_ns", maintain_order=True)
        # From the trace's own totals alone, and from the events alone, block by block.
        assert use.mismatches == 0
        assert use.peak_bytes == max(events["allocated_bytes"].max(), use.begin_bytes)
        assert use.end_bytes == use.begin_bytes + events["delta_bytes"].sum()
        alive: dict[int, int] = {}
        level = peak = unseen = 0
        for delta, address in events.select("delta_bytes", "address").rows():
            if delta > 0:
                alive[address] = delta
            elif alive.pop(address, None) is None:
                unseen += delta
            level += delta
            if level > peak:
                peak, known, gone = level, sum(alive.values()), unseen
        if peak:
            assert use.peak_bytes - use.begin_bytes == peak
            assert use.unseen_bytes == use.begin_bytes + gone == use.peak_bytes - known
    alive_frame = allocator(timeline, window).alive_at_peak
    shares = alive_frame.group_by("device").agg(pl.col("share").sum())["share"].to_numpy()
    assert np.allclose(shares, 1.0)
