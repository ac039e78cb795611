from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.analysis.builders import kernel, nvtx, trace
from tests.analysis.work.programs import block, operator, program
from warplens.analysis.allocator import (
    ALLOCATIONS,
    AllocatorUse,
    alive_at_peak,
    allocator_steps,
    allocator_timeline,
    allocator_use,
)
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Step, Window
from warplens.readers import read

WINDOW = Window(10, 100, "explicit", "as asked for")

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


def test_the_peak_and_the_edges_of_the_window() -> None:
    assert allocator_use(recorded(), WINDOW) == (
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


def test_what_is_held_but_not_in_use_is_cached_or_fragmented() -> None:
    (use,) = allocator_use(recorded(), WINDOW) or ()

    assert use.idle_bytes == 10_000 - 1500
    assert use.known_share == pytest.approx(500 / 1500)


def test_where_nothing_grew_the_peak_stood_at_the_begin() -> None:
    (use,) = allocator_use(recorded(), Window(50, 75, "explicit", "")) or ()

    assert (use.begin_bytes, use.end_bytes, use.peak_bytes, use.peak_ns) == (1500, 800, 1500, 50)


def test_a_window_before_all_events_knows_what_stood_there() -> None:
    (use,) = allocator_use(recorded(), Window(0, 10, "explicit", "")) or ()

    assert (use.begin_bytes, use.end_bytes, use.peak_bytes, use.unseen_bytes) == (1000, 1000, 1000, 1000)


def test_memory_at_the_peak_belongs_to_the_operator_that_computes_not_to_the_one_that_allocates() -> None:
    alive = alive_at_peak(recorded(), WINDOW)

    assert alive is not None
    assert alive.select("operator", "phase", "from_before", "blocks", "bytes").rows() == [
        (None, "none", True, None, 1000),
        ("aten::mm", "none", False, 1, 300),
        ("aten::t", "backward", False, 1, 200),
    ]
    assert alive["bytes"].sum() == 1500
    assert alive["share"].sum() == pytest.approx(1.0)


def test_a_block_released_before_the_peak_is_not_alive_at_it() -> None:
    events = [
        block(20, 100, address=1, allocated=100),
        block(30, -100, address=1, allocated=0),
        block(40, 70, address=1, allocated=70),
        block(50, 80, address=2, allocated=150),
    ]

    alive = alive_at_peak(recorded(events, []), WINDOW)

    assert alive is not None
    assert alive.select("operator", "blocks", "bytes").rows() == [(None, 2, 150)]


def test_memory_allocated_inside_an_annotation_belongs_to_it_where_no_operator_was_open() -> None:
    timeline = recorded([block(20, 300, address=1, allocated=300)], [{**operator(0, 90, "step"), "kind": "push-pop"}])

    alive = alive_at_peak(timeline, WINDOW)

    assert alive is not None
    assert alive["operator"].to_list() == ["step"]


def test_totals_that_the_profile_does_not_state_are_summed() -> None:
    events = [{**row, "allocated_bytes": None, "reserved_bytes": None} for row in EVENTS]

    (use,) = allocator_use(recorded(events), WINDOW) or ()

    # Only the 400 bytes released without having been seen allocated must have stood there before.
    assert (use.begin_bytes, use.peak_bytes, use.end_bytes) == (400, 900, 300)
    assert (use.reserved_bytes, use.idle_bytes, use.mismatches) == (None, None, 0)


def test_a_lost_event_shows_as_a_total_that_is_not_the_sum() -> None:
    lost = [EVENTS[0], *EVENTS[2:]]

    (use,) = allocator_use(recorded(lost), WINDOW) or ()

    assert use.mismatches == 3
    assert use.peak_bytes == 1300


def test_each_step_has_its_own_churn_and_peak() -> None:
    window = Window(10, 100, "steady", "", (Step(1, 10, 50), Step(2, 50, 100)))

    steps = allocator_steps(recorded(), window)

    assert steps is not None
    assert steps.drop("process", "device").rows() == [(1, 2, 0, 500, 0, 1500), (2, 1, 2, 100, 700, 1500)]


def test_the_timeline_gives_the_amounts_after_each_event() -> None:
    events = allocator_timeline(recorded(), Window(30, 70, "explicit", ""))

    assert events is not None
    assert events.schema == ALLOCATIONS.schema
    assert events.select("time_ns", "delta_bytes", "allocated_bytes").rows() == [(40, 200, 1500), (60, -300, 1200)]


def test_host_memory_is_kept_apart_and_holds_nothing_back() -> None:
    events = [*EVENTS, block(50, 8, address=5, allocated=8, reserved=0, device=None)]

    gpu, host = allocator_use(recorded(events), WINDOW) or ()

    assert (gpu.device, gpu.peak_bytes) == (0, 1500)
    assert (host.device, host.peak_bytes, host.reserved_bytes, host.idle_bytes) == (None, 8, None, None)


def test_allocations_that_were_not_recorded_are_unknown_rather_than_zero() -> None:
    unrecorded = Timeline(trace(kernels=[kernel(0, 10)], ranges=[nvtx(0, 5, "step")]))

    assert allocator_use(unrecorded, WINDOW) is None
    assert allocator_timeline(unrecorded, WINDOW) is None
    assert alive_at_peak(unrecorded, WINDOW) is None
    assert allocator_steps(unrecorded, WINDOW) is None


def test_recorded_allocations_without_any_event_are_nothing() -> None:
    empty = recorded([])

    assert allocator_use(empty, WINDOW) == ()
    alive = alive_at_peak(empty, WINDOW)
    assert alive is not None
    assert alive.is_empty()


@pytest.mark.parametrize(
    "name", ["h200_lm_small_train.json.gz", "tracelens_h100_qwen0p5b.json.gz", "tracelens_mi300_qwen0p5b.json.gz"]
)
def test_the_totals_of_real_traces_are_the_sums_of_their_events(name: str) -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "kineto" / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand")
    timeline = Timeline(read(path))
    window = timeline.window("all")

    for use in allocator_use(timeline, window) or ():
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
    alive_frame = alive_at_peak(timeline, window)
    assert alive_frame is not None
    shares = alive_frame.group_by("device").agg(pl.col("share").sum())["share"].to_numpy()
    assert np.allclose(shares, 1.0)
