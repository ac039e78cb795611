"""What holds of every question alike: which rows a window selects, and what nothing and an unknown grouping give."""

from __future__ import annotations

import pytest

from tests.analysis.builders import copy, kernel, launch, nvtx, trace
from warplens.analysis.api import API_CALLS, BLOCKING_CALLS, api_statistics, blocking_calls, synchronization_statistics
from warplens.analysis.kernels import COPIES, KERNELS, copy_statistics, kernel_statistics
from warplens.analysis.launches import LAUNCHES, launch_statistics
from warplens.analysis.ranges import range_statistics
from warplens.analysis.streams import CONCURRENCY, OVERLAPS, STREAMS, concurrency, copy_overlap, stream_statistics
from warplens.analysis.timeline import Timeline
from warplens.errors import UsageError

#: A range launches a kernel (5 ns) and a copy (3 ns); after it, another launches a kernel (9 ns) and a copy (1 ns).
TIMELINE = Timeline(
    trace(
        [kernel(20, 25, correlation=1), kernel(60, 69, correlation=2)],
        [launch(2, 4, 1), launch(5, 6, 3, "cudaMemcpyAsync"), launch(50, 53, 2), launch(54, 58, 4, "cudaMemcpyAsync")],
        [nvtx(0, 10, "attention")],
        copies=[copy(30, 33, correlation=3), copy(70, 71, correlation=4)],
    )
)
NOTHING = Timeline(trace())

#: Each question, the column that adds up, and its sum over the range and over the time from 50 ns on.
SUMS = {
    kernel_statistics: ("total_ns", 5, 9),
    launch_statistics: ("kernel_total_ns", 5, 9),
    stream_statistics: ("busy_ns", 5 + 3, 9 + 1),
    copy_statistics: ("total_ns", 3, 1),
    api_statistics: ("total_ns", 2 + 1, 3 + 4),
}


@pytest.mark.parametrize("question", SUMS, ids=lambda question: question.__name__)
def test_what_was_launched_inside_the_range_or_begins_in_the_window_counts(question):
    column, inside, later = SUMS[question]

    assert question(TIMELINE, TIMELINE.window("all", "attention"))[column].sum() == inside
    assert question(TIMELINE, TIMELINE.window("50ns:100ns"))[column].sum() == later


@pytest.mark.parametrize(
    ("question", "table"),
    [
        (kernel_statistics, KERNELS), (launch_statistics, LAUNCHES.by("name", "api")), (stream_statistics, STREAMS),
        (concurrency, CONCURRENCY), (copy_overlap, OVERLAPS), (copy_statistics, COPIES),
        (api_statistics, API_CALLS.by("name", "kind")), (blocking_calls, BLOCKING_CALLS),
        (synchronization_statistics, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_of_nothing_there_is_an_empty_table_of_the_declared_columns(question, table):
    found = question(NOTHING, NOTHING.window("all"))

    assert found.height == 0
    assert table is None or found.schema == table.schema


@pytest.mark.parametrize(
    ("question", "by", "said"),
    [
        (kernel_statistics, "colour", r"'colour'; choose one of name, full_name, category"),
        (copy_statistics, "stream", "copies cannot be grouped by 'stream'"),
        (launch_statistics, (), "launches cannot be grouped by"),
        (launch_statistics, ("colour",), "launches cannot be grouped by"),
        (api_statistics, ("colour",), "API calls cannot be grouped by colour"),
        (range_statistics, "thread", "tree, name or full_name"),
    ],
)
def test_an_unknown_grouping_is_refused(question, by, said):
    with pytest.raises(UsageError, match=said):
        question(TIMELINE, TIMELINE.window("all"), by=by)
