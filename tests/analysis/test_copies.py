from __future__ import annotations

import pytest

from tests.analysis.builders import copy, memset, trace
from warplens.analysis.copies import COPIES, copy_statistics
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.errors import UsageError

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


def test_copies_are_told_apart_by_the_memory_on_both_sides() -> None:
    rows = (
        copy_statistics(MOVES, ALL).select("kind", "direction", "source_memory", "destination_memory", "calls").rows()
    )

    assert rows == [
        ("copy", "host-to-device", "pageable", "device", 2),
        ("copy", "host-to-device", "pinned", "device", 1),
        ("memset", None, None, "device", 1),
    ]


def test_times_and_sizes_are_exact() -> None:
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


def test_directions_can_be_taken_together() -> None:
    together = copy_statistics(MOVES, ALL, by="direction")

    assert together.select("kind", "direction", "source_memory", "calls", "total_ns", "total_bytes").rows() == [
        ("copy", "host-to-device", None, 3, 60, 1_200),
        ("memset", None, None, 1, 4, 64),
    ]


def test_bandwidth_is_bytes_over_the_time_with_a_copy_in_flight() -> None:
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


def test_a_copy_that_took_no_time_has_no_bandwidth() -> None:
    row = copy_statistics(Timeline(trace(copies=[copy(5, 5)])), ALL).row(0, named=True)

    assert (row["busy_ns"], row["bandwidth_bytes_per_s"], row["share"]) == (0, None, None)


def test_unrecorded_kinds_of_memory_stay_unknown() -> None:
    timeline = Timeline(trace(copies=[copy(0, 10, source=None, destination=None), copy(20, 25)]))

    rows = copy_statistics(timeline, ALL).select("source_memory", "calls", "busy_ns").rows()

    assert rows == [(None, 1, 10), ("pageable", 1, 5)]


def test_only_copies_that_begin_in_the_window_count() -> None:
    assert copy_statistics(MOVES, Window(100, 200, "explicit", "as asked for"))["calls"].to_list() == [1]


def test_the_frame_has_the_declared_schema_even_without_copies() -> None:
    empty = copy_statistics(Timeline(trace()), ALL)

    assert (empty.height, empty.schema) == (0, COPIES.schema)


def test_an_unknown_grouping_is_refused() -> None:
    with pytest.raises(UsageError, match="copies cannot be grouped by 'stream'"):
        copy_statistics(MOVES, ALL, by="stream")  # type: ignore[arg-type]
