"""What each launch cost the host: the time from the launch before it, less what else held the thread up.

A launch's cost ends with the end of its call and begins with the end of the thread's call before it that launched
something: the program's own work for this launch (Python, the framework's dispatch) and the call. Time in a
synchronisation, an allocation, a blocking copy, the profiler or a long pause is no cost of launching.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from warplens.analysis.hostcalls import HostCalls
from warplens.analysis.intervals import Intervals, measure_before, union

if TYPE_CHECKING:
    import polars as pl

    from warplens.analysis.timeline import Timeline

__all__ = ["issue_times"]

Int64s = npt.NDArray[np.int64]


def issue_times(timeline: Timeline, work: pl.DataFrame) -> Int64s | None:
    """For each of these rows of `Timeline.work` the nanoseconds that launching it cost the host.

    What one call launches together (the nodes of a CUDA graph) costs once: its first row has the call's cost, the
    others have 0, and so has work without a recorded call. None where no launching call was recorded at all.
    """
    rows = work["api_row"].fill_null(-1).to_numpy()
    known = np.flatnonzero(rows >= 0)
    if not len(known):
        return None
    costs = _cost_of_calls(timeline)
    _, first = np.unique(rows[known], return_index=True)
    times = np.zeros(len(rows), dtype=np.int64)
    times[known[first]] = costs[rows[known[first]]]
    return times


def _cost_of_calls(timeline: Timeline) -> Int64s:
    """For each row of `Trace.api_calls` its cost, 0 where it launched nothing."""
    calls = timeline.trace.api_calls
    costs = np.zeros(calls.height, dtype=np.int64)
    launched = timeline.work.select("process", "thread", "api_row", "launch_start_ns", "launch_end_ns").drop_nulls()
    for (process,), of_process in sorted(launched.partition_by("process", as_dict=True).items()):
        host = HostCalls.of(timeline, process)
        for (thread,), mine in sorted(of_process.partition_by("thread", as_dict=True).items()):
            row, first = np.unique(mine["api_row"].to_numpy(), return_index=True)
            begin, end = (mine[column].to_numpy()[first] for column in ("launch_start_ns", "launch_end_ns"))
            order = np.argsort(begin, kind="stable")
            row, begin, end = row[order], begin[order], end[order]
            since = np.r_[begin[:1], np.minimum(np.maximum.accumulate(end)[:-1], end[1:])]
            states = host.states(thread).values()
            held = union(
                Intervals(
                    np.concatenate([state.starts for state in states]), np.concatenate([state.ends for state in states])
                )
            )
            costs[row] = end - since - (measure_before(held, end) - measure_before(held, since))
    return costs
