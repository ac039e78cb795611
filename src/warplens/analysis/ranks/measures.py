"""Where one rank's time went, in a handful of numbers: for the window and for each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.intervals import Intervals, Owned, measure_before, subtract, union
from warplens.analysis.spread import conform

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline

__all__ = [
    "STEP_TIME_SCHEMA",
    "TIME_COLUMNS",
    "BusyTime",
    "busy_time",
    "communication_rows",
    "step_times",
    "times_between",
]

Int64s = npt.NDArray[np.int64]

#: One row a step of one rank. Times are in nanoseconds of the file's own clock.
STEP_TIME_SCHEMA: Final = pl.Schema(
    {
        "step": pl.Int64(),  # counted from 1 over all steps found in the file
        "in_window": pl.Boolean(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "duration_ns": pl.Int64(),
        "compute_ns": pl.Int64(),
        "graph_ns": pl.Int64(),
        "exposed_ns": pl.Int64(),
        "copy_ns": pl.Int64(),
        "idle_ns": pl.Int64(),
        "communication_ns": pl.Int64(),
        "overlapped_ns": pl.Int64(),
    }
)

#: The measured times; the first five sum to the sixth, and the last two of them to `communication_ns`.
TIME_COLUMNS: Final = (
    "compute_ns",
    "graph_ns",
    "exposed_ns",
    "copy_ns",
    "idle_ns",
    "duration_ns",
    "communication_ns",
    "overlapped_ns",
)


@dataclass(frozen=True, eq=False)
class BusyTime:
    """When one GPU did what, over the whole profile; each a set of disjoint intervals.

    Attributes:
        compute: a kernel ran that is not communication.
        hidden: a CUDA graph traced as a whole ran, and none of those kernels.
        communication: a communication kernel ran, whatever else did.
        exposed: a communication kernel ran, and neither compute nor a graph.
        busy: anything ran.
    """

    compute: Intervals
    hidden: Intervals
    communication: Intervals
    exposed: Intervals
    busy: Intervals


def communication_rows(timeline: Timeline) -> Int64s:
    """The rows of the table of kernels that are communication, judged by their names."""
    return np.flatnonzero((categories_of(timeline.trace.kernels["full_name"]) == "communication").to_numpy())


def busy_time(timeline: Timeline, device: int) -> BusyTime:
    """When one device did what, by the priorities of `warplens.analysis.timebudget`."""
    trace = timeline.trace
    mine = (trace.kernels["device"] == device).to_numpy()
    talks = np.zeros(trace.kernels.height, dtype=np.bool_)
    talks[communication_rows(timeline)] = True
    compute = _covered(trace.kernels, mine & ~talks)
    graphs = _covered(trace.graph_launches, (trace.graph_launches["device"] == device).to_numpy())
    working = _joined(compute, graphs)
    communication = _covered(trace.kernels, mine & talks)
    return BusyTime(
        compute=compute,
        hidden=_without(graphs, compute),
        communication=communication,
        exposed=_without(communication, working),
        busy=timeline.busy(device),
    )


def times_between(busy: BusyTime, starts: Int64s, ends: Int64s) -> pl.DataFrame:
    """The times of each interval `[start, end)`, exact nanoseconds.

    `compute_ns` + `graph_ns` + `exposed_ns` + `copy_ns` (copies and fills that nothing hides) + `idle_ns` is
    `duration_ns`. `communication_ns` is `exposed_ns` + `overlapped_ns`: communication that compute (or a graph whose
    inside is hidden) covers.

    Returns:
        A row an interval with `TIME_COLUMNS`.
    """

    def inside(intervals: Intervals) -> Int64s:
        return measure_before(intervals, ends) - measure_before(intervals, starts)

    compute, hidden, exposed = inside(busy.compute), inside(busy.hidden), inside(busy.exposed)
    communication, working, duration = inside(busy.communication), inside(busy.busy), ends - starts
    return pl.DataFrame(
        {
            "compute_ns": compute,
            "graph_ns": hidden,
            "exposed_ns": exposed,
            "copy_ns": working - compute - hidden - exposed,
            "idle_ns": duration - working,
            "duration_ns": duration,
            "communication_ns": communication,
            "overlapped_ns": communication - exposed,
        },
        schema=dict.fromkeys(TIME_COLUMNS, pl.Int64),
    )


def step_times(timeline: Timeline, busy: BusyTime, window_steps: frozenset[int]) -> pl.DataFrame:
    """The times of every step of the profile, warm-up included.

    Args:
        timeline: the rank's profile.
        busy: `busy_time` of its device.
        window_steps: the steps that lie in the analysed window.

    Returns:
        `STEP_TIME_SCHEMA`, in order of time.
    """
    steps = timeline.steps.steps
    starts = np.array([step.start_ns for step in steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in steps], dtype=np.int64)
    places = [step.index for step in steps]
    told = times_between(busy, starts, ends).with_columns(
        pl.Series("step", places, dtype=pl.Int64),
        pl.Series("in_window", [place in window_steps for place in places], dtype=pl.Boolean),
        pl.Series("start_ns", starts),
        pl.Series("end_ns", ends),
    )
    return conform(told, STEP_TIME_SCHEMA)


def _covered(frame: pl.DataFrame, which: npt.NDArray[np.bool_]) -> Intervals:
    return union(Intervals(frame["start_ns"].to_numpy()[which], frame["end_ns"].to_numpy()[which]))


def _joined(one: Intervals, other: Intervals) -> Intervals:
    return union(Intervals(np.concatenate((one.starts, other.starts)), np.concatenate((one.ends, other.ends))))


def _without(intervals: Intervals, covered: Intervals) -> Intervals:
    left = subtract(Owned(*intervals, np.zeros(len(intervals.starts), dtype=np.int64)), covered)
    return Intervals(left.starts, left.ends)
