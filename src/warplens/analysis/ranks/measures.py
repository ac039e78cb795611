"""The time of one rank by kind, for the window and for each step; and the ranks of a trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.frames import numbered, select_rows
from warplens.analysis.intervals import Intervals, measure_before, union, without
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import edges_of
from warplens.profile import Note, NoteLevel, Trace
from warplens.profile.columns import column, table
from warplens.profile.schema import Bools, Column, Int64s
from warplens.profile.trace import TABLES

#: The measured times; the first five sum to the sixth, and exposed and overlapped to `communication_ns`.
TIMES: Final = (
    Column("compute_ns", pl.Int64, "at least one kernel runs that is no communication"),
    Column(
        "graph_ns",
        pl.Int64,
        "inside CUDA graphs that were traced as a whole, outside of those kernels",
        title="In graphs",
    ),
    column("exposed_ns", help="communication that neither compute nor such a graph hides"),
    column("copy_ns"),
    column("idle_ns"),
    column("duration_ns", help="length; the five times before sum to it", title="Window"),
    column("communication_ns", help="a communication kernel runs: exposed and overlapped"),
    column("overlapped_ns"),
)
TIME_COLUMNS: Final = tuple(time.name for time in TIMES)

STEP_TIMES: Final = table(
    "steps of one rank",
    "One step, in the file's own clock.",
    "step in_window start_ns end_ns",
    [time for time in TIMES if time.name == "duration_ns"],
    [time for time in TIMES if time.name != "duration_ns"],
    step="number of the step, counted from 1 over all steps found in the file",
)


@dataclass(frozen=True, eq=False)
class BusyTime:
    """Activity of one GPU over the whole profile; each a set of disjoint intervals."""

    compute: Intervals  #: a kernel ran that is not communication
    hidden: Intervals  #: a CUDA graph traced as a whole ran, and none of those kernels
    communication: Intervals  #: a communication kernel ran, whatever else did
    exposed: Intervals  #: a communication kernel ran, and neither compute nor a graph
    busy: Intervals  #: anything ran


def communication_rows(timeline: Timeline) -> Int64s:
    """The rows of the table of kernels that are communication, by their names."""
    return np.flatnonzero((categories_of(timeline.trace.kernels["full_name"]) == "communication").to_numpy())


def busy_time(timeline: Timeline, device: int) -> BusyTime:
    """Activity of one device, by the priorities of `warplens.analysis.timebudget`."""
    trace = timeline.trace
    on_device = (trace.kernels["device"] == device).to_numpy()
    is_communication = np.zeros(trace.kernels.height, dtype=np.bool_)
    is_communication[communication_rows(timeline)] = True
    times = trace.kernels.select("start_ns", "end_ns")
    compute = union(Intervals.of(select_rows(times, on_device & ~is_communication)))
    graphs = union(Intervals.of(select_rows(trace.graph_launches, trace.graph_launches["device"] == device)))
    working = union(compute, graphs)
    communication = union(Intervals.of(select_rows(times, on_device & is_communication)))
    return BusyTime(
        compute=compute,
        hidden=without(graphs, compute),
        communication=communication,
        exposed=without(communication, working),
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
        measured = measure_before(intervals, np.concatenate((starts, ends)))
        return measured[len(starts) :] - measured[: len(starts)]

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
        `STEP_TIMES`, in order of time.
    """
    numbers, starts, ends = edges_of(timeline.steps.steps)
    times = times_between(busy, starts, ends).with_columns(
        pl.Series("step", numbers),
        pl.Series("in_window", [number in window_steps for number in numbers.tolist()], dtype=pl.Boolean),
        pl.Series("start_ns", starts),
        pl.Series("end_ns", ends),
    )
    return STEP_TIMES.conform(times)


#: Columns that hold row numbers of another table (or of their own): table → column → target table.
_POINTERS = {
    "ranges": {"parent": "ranges"},
    "operators": {"range": "ranges"},
    "autograd_links": {"forward": "ranges", "backward": "ranges"},
    "python_functions": {"parent": "python_functions"},
    "collectives": {"kernel": "kernels"},
}

#: Tables whose rows are meaningless without the row that they point to.
_OWNED = ("operators", "autograd_links", "collectives")


def split_ranks(trace: Trace) -> tuple[tuple[int | None, int | None, Trace], ...]:
    """The ranks of a trace: process, device and tables of each, by device and process.

    There is one for each process and GPU that ran kernels or graphs. With one rank, the trace is returned whole;
    process and device are None where nothing ran. Work of a process on another GPU without any kernel there (a stray
    context, a copy) belongs to no rank; a note gives its amount. Host tables are divided by process alone, so that two
    GPUs of one process share its host side.
    """
    homes = pl.concat([trace.kernels.select("process", "device"), trace.graph_launches.select("process", "device")])
    distinct, _ = numbered(homes, ("process", "device"))
    pairs = distinct.sort("device", "process").rows()
    if len(pairs) <= 1:
        return ((*(pairs[0] if pairs else (None, None)), trace),)
    stray = sum(
        frame.select("process", "device").join(distinct, on=["process", "device"], how="anti").height
        for frame in (trace.copies, trace.memsets)
    )
    if stray:
        note = Note(
            "work-outside-ranks",
            NoteLevel.INFO,
            f"{stray} copies and fills ran on a GPU where their process ran no kernel; they belong to no rank.",
        )
        trace = replace(trace, capture=replace(trace.capture, notes=(*trace.capture.notes, note)))
    return tuple((process, device, _part(trace, process, device)) for process, device in pairs)


def _part(trace: Trace, process: int, device: int) -> Trace:
    kept_rows: dict[str, Int64s] = {}
    for name in TABLES:
        if name not in _OWNED:
            kept_rows[name] = np.flatnonzero(_belongs(getattr(trace, name), process, device))
    frames: dict[str, Any] = {name: getattr(trace, name)[rows] for name, rows in kept_rows.items()}
    for name in _OWNED:
        frames[name] = getattr(trace, name)
    for name, pointers in _POINTERS.items():
        for pointer, target in pointers.items():
            renumbered = _renumbered(frames[name][pointer], kept_rows[target], getattr(trace, target).height)
            frames[name] = frames[name].with_columns(renumbered.alias(pointer))
        if name in _OWNED:
            frames[name] = frames[name].drop_nulls(list(pointers))
    capture = trace.capture
    devices = tuple(candidate for candidate in capture.devices if candidate.ordinal == device)
    return Trace(replace(capture, devices=devices), **frames)


def _belongs(frame: pl.DataFrame, process: int, device: int) -> Bools:
    condition = pl.lit(True)
    if "process" in frame.columns:
        condition = condition & (pl.col("process") == process)
    if "device" in frame.columns:
        condition = condition & (pl.col("device").is_null() | (pl.col("device") == device))
    mask: Bools = frame.select(condition.alias("mine") if frame.width else condition)["mine"].to_numpy()
    return np.broadcast_to(mask, (frame.height,)) if len(mask) != frame.height else mask


def _renumbered(pointer: pl.Series, kept_rows: Int64s, height: int) -> pl.Series:
    """Row numbers of the whole table as row numbers of its kept rows; null where the row is not kept."""
    new_row = np.full(height + 1, -1, dtype=np.int64)
    new_row[kept_rows] = np.arange(len(kept_rows))
    new_rows = new_row[pointer.fill_null(height).to_numpy()]
    return pl.Series(pointer.name, new_rows).replace(-1, None)
