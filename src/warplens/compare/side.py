"""The sides of a comparison: profile, window and the work of its steps, their durations, and the cost of a launch.

All numbers are per step, so that profiles with different numbers of steps can be compared. A window without steps
counts as one repetition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.hostpace import HostCalls
from warplens.analysis.intervals import Intervals, clip, complement, measure_before, total, union
from warplens.analysis.ranges import projected_spans
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.compare.shift import Samples
from warplens.profile.schema import Int64s

#: If more than this share of the window lies between steps, a step lasts until the next one begins: what the program
#: does in between (loading data, logging) is part of every repetition. So do the steps of the side it is compared with:
#: else a share just below on one side and just above on the other would be a difference of its own.
_GAP_SHARE: Final = 0.01
#: Up to this share, a step's time hardly depends on whether gaps count, and the last step need not be left out.
_LEAST_GAP_SHARE: Final = 0.001


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two profiles that are compared."""

    name: str  #: display name (`baseline`, or the name of the file)
    timeline: Timeline
    window: Window  #: from `timeline.window(...)`

    @property
    def has_steps(self) -> bool:
        """Whether numbers are per step rather than per window."""
        return bool(self.window.steps)

    @property
    def repeats(self) -> int:
        """The number of repetitions: the steps of the window, or 1."""
        return max(len(self.window.steps), 1)

    @cached_property
    def step_times(self) -> Intervals:
        """Begin and end of each repetition, in order."""
        if not self.window.steps:
            return Intervals(np.array([self.window.start_ns]), np.array([self.window.end_ns]))
        edges = np.array([(step.start_ns, step.end_ns) for step in self.window.steps], dtype=np.int64)
        return Intervals(edges[:, 0], edges[:, 1])

    @cached_property
    def gaps(self) -> Intervals:
        """The times between the end of a step and the begin of the next."""
        steps = union(self.step_times)
        if not len(steps.starts):
            return Intervals.none()
        return complement(steps, int(steps.starts[0]), int(steps.ends[-1]))

    @property
    def gap_share(self) -> float:
        """The share of the window that lies between steps."""
        return total(self.gaps) / max(self.window.duration_ns, 1)

    @property
    def has_gaps(self) -> bool:
        """Whether the time between steps counts as part of the steps."""
        return self.gap_share > _GAP_SHARE

    @cached_property
    def work_rows(self) -> Int64s:
        """The rows of `Timeline.work` that begin in the window's steps, or in the window if it has no steps."""
        return self._rows_and_steps[0]

    @cached_property
    def step_of_work(self) -> Int64s:
        """For each of `work_rows` the index of its step among the window's steps; 0 without steps."""
        return self._rows_and_steps[1]

    @cached_property
    def work(self) -> pl.DataFrame:
        """The rows `work_rows` of `Timeline.work`."""
        return self.timeline.work[self.work_rows]

    @cached_property
    def issue_ns(self) -> Int64s | None:
        """For each row of `work` the cost of its launch on the host (`issue_times`)."""
        return issue_times(self.timeline, self.work, self.window.start_ns)

    @cached_property
    def _rows_and_steps(self) -> tuple[Int64s, Int64s]:
        rows = np.arange(self.timeline.work.height)[self.timeline.work_rows_in(self.window)]
        if not self.window.steps:
            return rows, np.zeros(len(rows), dtype=np.int64)
        begun = self.timeline.work["start_ns"].to_numpy()[rows]
        starts, ends = self.step_times
        step = np.searchsorted(starts, begun, side="right") - 1
        inside = (step >= 0) & (begun < ends[np.maximum(step, 0)])
        return rows[inside], step[inside]


def step_samples(side: Side, *, with_gaps: bool | None = None) -> Samples:
    """The duration of each step of the window, as one block.

    A step lasts from its begin to its end. `with_gaps`, it lasts until the next one begins, and the last step, whose
    end is then unknown, is left out if there are others, and any gaps to speak of. A window without steps gives one
    duration, its length. For a range, the duration of a step is the time of the range's spans on the GPU until the next
    step begins; steps without any are left out.

    Args:
        side: the side.
        with_gaps: whether the time between steps counts; None if that is for this side alone to say (`has_gaps`).

    Raises:
        UsageError: the window has no length, or its range takes no time.
    """
    if side.window.range_name is not None:
        times = range_times(side, side.window.range_name)
        return Samples.of([times[times > 0]])
    starts, ends = _measured_steps(side, with_gaps)
    return Samples.of([ends - starts])


def _measured_steps(side: Side, with_gaps: bool | None) -> Intervals:
    """Begin and end of each step that is measured (`step_samples`)."""
    starts, ends = side.step_times
    counted = side.has_gaps if with_gaps is None else with_gaps and side.gap_share > _LEAST_GAP_SHARE
    return Intervals(starts[:-1], starts[1:]) if counted and len(starts) > 1 else Intervals(starts, ends)


def gpu_work_samples(side: Side, *, with_gaps: bool | None = None) -> Samples | None:
    """The time in which the GPU computed in each step of `step_samples`, as one block; a mean over the devices.

    As in `WallSplit.gpu_change_share`, computing is kernels other than communication, and CUDA graphs with hidden
    kernels; concurrent ones count once. None for a range, whose step times are GPU times already, and if a step
    computes nothing.
    """
    timeline, window = side.timeline, side.window
    devices = timeline.devices_in(window)
    if window.range_name is not None or not devices:
        return None
    starts, ends = _measured_steps(side, with_gaps)
    communicates = (categories_of(timeline.trace.kernels["full_name"]) == "communication").to_numpy()
    by_device = []
    for device in devices:
        work = timeline.work_on(device)
        kind, row = work["kind"], work["row"].to_numpy()
        computes = (kind == "graph").to_numpy()
        kernels = np.flatnonzero((kind == "kernel").to_numpy())
        computes[kernels] = ~communicates[row[kernels]]
        busy = union(Intervals.of(work.filter(computes)))
        by_device.append(measure_before(busy, ends) - measure_before(busy, starts))
    times = np.mean(by_device, axis=0)
    return Samples.of([times]) if (times > 0).all() else None


def range_times(side: Side, name: str) -> npt.NDArray[np.float64]:
    """For each step the summed spans of a range until the next step begins, as a mean over the devices (ns)."""
    timeline, window = side.timeline, side.window
    edges = np.r_[window.start_ns, side.step_times.starts[1:], window.end_ns]
    rows = timeline.range_rows(name)
    by_device = []
    for device in timeline.devices_in(window):
        spans = union(clip(projected_spans(timeline, rows, device), window.start_ns, window.end_ns))
        by_device.append(np.diff(measure_before(spans, edges)))
    if not by_device:
        return np.zeros(side.repeats)
    times: npt.NDArray[np.float64] = np.mean(by_device, axis=0)
    return times


# --- The cost of each launch on the host ------------------------------------------------------------------------------
# The cost of a launch is the time from the end of the launching call before it to the end of its own call: the
# program's work for this launch (Python, the framework's dispatch) and the call. The call before it may be of any
# thread of the process: if threads take turns, as for the backward pass, one waits while the other launches. Time in a
# synchronization, an allocation, a blocking copy, the profiler or a long pause is not part of the cost, nor is time
# before the window.


def issue_times(timeline: Timeline, work: pl.DataFrame, since_ns: int | None = None) -> Int64s | None:
    """The cost of launching each of these rows of `Timeline.work` on the host, in ns, from `since_ns` on.

    If one call launches several rows (the nodes of a CUDA graph), the first row has the cost of the call and the others
    have 0. Work without a recorded call has 0. None if no launching call was recorded at all.
    """
    rows = work["api_row"].fill_null(-1).to_numpy()
    with_call = np.flatnonzero(rows >= 0)
    if not len(with_call):
        return None
    costs = _cost_of_calls(timeline, since_ns)
    _, first = np.unique(rows[with_call], return_index=True)
    times = np.zeros(len(rows), dtype=np.int64)
    times[with_call[first]] = costs[rows[with_call[first]]]
    return times


def _cost_of_calls(timeline: Timeline, since_ns: int | None) -> Int64s:
    """The cost of each row of `Trace.api_calls`; 0 if it launched nothing."""
    calls = timeline.trace.api_calls
    costs = np.zeros(calls.height, dtype=np.int64)
    launched = timeline.work.select("process", "thread", "api_row", "launch_start_ns", "launch_end_ns").drop_nulls()
    for (process,), of_process in sorted(launched.partition_by("process", as_dict=True).items()):
        host = HostCalls.of(timeline, process)
        row, first = np.unique(of_process["api_row"].to_numpy(), return_index=True)
        thread, begin, end = (
            of_process[column].to_numpy()[first] for column in ("thread", "launch_start_ns", "launch_end_ns")
        )
        order = np.argsort(end, kind="stable")
        row, thread, begin, end = row[order], thread[order], begin[order], end[order]
        since = np.r_[begin[:1], end[:-1]]
        if since_ns is not None:
            since = np.maximum(since, np.minimum(begin, since_ns))
        for thread_id in np.unique(thread).tolist():
            of_thread = thread == thread_id
            starts, ends = zip(*host.states(thread_id).values(), strict=True)
            excluded = union(Intervals(np.concatenate(starts), np.concatenate(ends)))
            excluded_ns = measure_before(excluded, end[of_thread]) - measure_before(excluded, since[of_thread])
            costs[row[of_thread]] = end[of_thread] - since[of_thread] - excluded_ns
    return costs
