"""The two sides of a comparison, their launches per step, the cost of a launch on the host, and the bound of a side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.api import api_kinds
from warplens.analysis.categories import categories_of
from warplens.analysis.hostpace import HostCalls, HostPace, host_pace
from warplens.analysis.intervals import Intervals, clip, complement, measure_before, total, union
from warplens.analysis.ranges import projected_spans
from warplens.analysis.timebudget import IDLE_CAUSES
from warplens.compare.shift import Samples
from warplens.profile.schema import Int64s

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.compare.difference import SideWall
    from warplens.compare.work import KernelChanges


#: Causes of idle time in which the host was issuing the next work, or the GPU about to start it. It decreases if the
#: host issues faster, or fewer launches.
ISSUE_CAUSES: Final = ("launch", "graph-launch", "start-latency")

#: Causes of idle time in which the host did not issue work.
HOST_CAUSES: Final = ("synchronization", "refill", "allocation", "blocking-copy", "host", "profiler")

_REST: Final = tuple(cause for cause in IDLE_CAUSES if cause not in (*ISSUE_CAUSES, *HOST_CAUSES))

#: Bounds of a step: `gpu` (the GPU is busy nearly all the time), `host-issue` (it waits for launches), `host` (it waits
#: while the host does something else), `waiting` (it waits for other work or an unknown reason), `none` (no GPU work).
BOUNDS: Final = ("gpu", "host-issue", "host", "waiting", "none")

#: Below this idle share a step is bound by the GPU: the profiler itself adds idle time, and removing less than a fifth
#: of the wall time would not make a step much faster.
_IDLE_SHARE: Final = 0.20


@dataclass(frozen=True)
class SideLaunches:
    """The launches of one side, per step."""

    kernels: float  #: kernels, including those of graphs
    graph_kernels: float  #: kernels replayed by graphs
    hides_kernels: bool  #: whether CUDA graphs were traced as a whole, so that their kernels are not counted
    #: calls on the host that issue GPU work (kernels, copies, fills, graphs), of all threads; 0 if no calls were
    #: recorded
    calls: float
    #: host time of those calls and of the program's work before each. Threads of a process that take turns share the
    #: time between their calls, so that no time counts twice. None if no calls were recorded.
    issue_ns: float | None
    graph_launches: float  #: calls that launch a CUDA graph
    #: of the busiest launching thread, from the first step's begin to the last one's end; None if no launching call was
    #: recorded
    pace: HostPace | None
    #: busy_share, issue_share, host_share, waiting_share: shares of the wall time in which the GPU worked, waited for
    #: the host to issue work, waited while the host did something else, and waited for other work or for reasons
    #: unknown; they add up to 1
    busy_share: float
    issue_share: float
    host_share: float
    waiting_share: float
    bound: str  #: one of `BOUNDS`

    @property
    def host_ns_per_launch(self) -> float | None:
        """Mean cost of a launching call on the host."""
        return self.issue_ns / self.calls if self.issue_ns is not None and self.calls else None

    @property
    def queue_empty_share(self) -> float | None:
        """Share of the time in which the queue was empty: all launched work had started."""
        return self.pace.queue_empty_share if self.pace else None

    @property
    def behind_share(self) -> float | None:
        """Share of the work for which the GPU was already waiting."""
        return self.pace.behind_share if self.pace else None


@dataclass(frozen=True)
class LaunchChange:
    """The launches of both sides.

    The change of the host time for launching is split exactly into that of launches on one side only and that of
    launches on both sides.
    """

    baseline: SideLaunches
    variant: SideLaunches
    #: added_host_ns, removed_host_ns: host time per step of the kernels that only the variant, and only the baseline,
    #: launches; None if no calls were recorded
    added_host_ns: float | None
    removed_host_ns: float | None
    #: added, removed: number of those launches per step
    added: float
    removed: float

    @property
    def kernels_change(self) -> float | None:
        """Change of kernels per step; None if CUDA graphs hide some."""
        if self.baseline.hides_kernels or self.variant.hides_kernels:
            return None
        return self.variant.kernels - self.baseline.kernels

    @property
    def calls_change(self) -> float:
        """Change of launching calls per step."""
        return self.variant.calls - self.baseline.calls

    @property
    def issue_change_ns(self) -> float | None:
        """Change of the host time of launches per step."""
        return _difference(self.variant.issue_ns, self.baseline.issue_ns)

    @property
    def added_cost_ns(self) -> float | None:
        """Host time per step of added launches minus that of removed launches."""
        return _difference(self.added_host_ns, self.removed_host_ns)

    @property
    def pace_cost_ns(self) -> float | None:
        """Change of the host time per step of the launches on both sides."""
        return _difference(self.issue_change_ns, self.added_cost_ns)

    @property
    def added_ns_per_launch(self) -> float | None:
        """Mean host time of an added kernel launch; None if there are none."""
        return self.added_host_ns / self.added if self.added_host_ns is not None and self.added else None

    @property
    def removed_ns_per_launch(self) -> float | None:
        """Mean host time of a removed kernel launch; None if there are none."""
        return self.removed_host_ns / self.removed if self.removed_host_ns is not None and self.removed else None


def _difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second


def launch_change(
    baseline: Side, variant: Side, walls: tuple[SideWall, SideWall], kernels: KernelChanges
) -> LaunchChange:
    """The launches of both sides, by their wall times (`side_wall`) and their matched kernels."""
    sides = _side(baseline, walls[0]), _side(variant, walls[1])
    added, removed = (kernels.table.filter(pl.col("change") == change) for change in ("added", "removed"))
    calls_known = all(side.issue_ns is not None for side in sides)
    return LaunchChange(
        *sides,
        added_host_ns=float(added["variant_host_ns_per_step"].sum()) if calls_known else None,
        removed_host_ns=float(removed["baseline_host_ns_per_step"].sum()) if calls_known else None,
        added=float(added["variant_launches_per_step"].sum()),
        removed=float(removed["baseline_launches_per_step"].sum()),
    )


def _side(side: Side, wall: SideWall) -> SideLaunches:
    """What the host of one side does per step: kernels, calls and graph launches, its pace, and what bounds it."""
    work = side.work.select("kind", "row", "api_row", "process")
    kernels = work.filter(pl.col("kind") == "kernel")
    is_graph = api_kinds(side.timeline.trace.api_calls["name"]) == "graph-launch"
    calls = work["api_row"].drop_nulls().unique()
    by_graph = is_graph.gather(kernels["api_row"]).fill_null(value=False)
    is_node = side.timeline.trace.kernels["graph_node"].gather(kernels["row"]).is_not_null()
    issuing, (starts, ends) = side.issue_ns, side.step_times
    shares = [_share(wall, causes) for causes in (ISSUE_CAUSES, HOST_CAUSES, _REST)]
    busy = float(wall.busy_ns / wall.wall_ns) if wall.wall_ns else 0.0
    return SideLaunches(
        kernels=kernels.height / side.repeats,
        graph_kernels=int((by_graph | is_node).sum()) / side.repeats,
        hides_kernels=bool((work["kind"] == "graph").any()),
        calls=calls.len() / side.repeats,
        issue_ns=None if issuing is None else int(issuing.sum()) / side.repeats,
        graph_launches=int(is_graph.gather(calls).sum()) / side.repeats,
        pace=host_pace(side.timeline, replace(side.window, start_ns=int(starts[0]), end_ns=int(ends[-1]))),
        busy_share=busy,
        issue_share=shares[0],
        host_share=shares[1],
        waiting_share=shares[2],
        bound=_bound(bool(side.work.height), shares),
    )


def _share(wall: SideWall, causes: tuple[str, ...]) -> float:
    idle = sum(time_ns for (group, part), time_ns in wall.parts.items() if group == "idle" and part in causes)
    return float(idle / wall.wall_ns) if wall.wall_ns else 0.0


def _bound(has_work: bool, shares: list[float]) -> str:
    if not has_work:
        return "none"
    if sum(shares) < _IDLE_SHARE:
        return "gpu"
    return ("host-issue", "host", "waiting")[shares.index(max(shares))]


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


# --- One side of a comparison: a profile, its window, and the steps of its work --------------------------------------
# All numbers are per step, so that profiles with different numbers of steps can be compared. A window without steps
# counts as one repetition.

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
