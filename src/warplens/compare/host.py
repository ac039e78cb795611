"""The two sides of a comparison, launches per step, what each costs the host, and what limits a side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.api import api_kinds
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


#: Idle time in which the host was issuing the next work, or the GPU about to start it: it goes away where the host
#: issues faster, or less.
ISSUE_CAUSES: Final = ("launch", "graph-launch", "start-latency")

#: Idle time in which the host did something else than to issue work.
HOST_CAUSES: Final = ("synchronization", "refill", "allocation", "blocking-copy", "host", "profiler")

_REST: Final = tuple(cause for cause in IDLE_CAUSES if cause not in (*ISSUE_CAUSES, *HOST_CAUSES))

#: What limits a step: `gpu` (it works nearly all the time), `host-issue` (it waits for launches), `host` (it waits
#: while the host does something else), `waiting` (for other work, or nobody knows), `none` (no GPU work at all).
BOUNDS: Final = ("gpu", "host-issue", "host", "waiting", "none")

#: A GPU that is idle for less of the time is busy as far as a step's limit goes: a profiler alone adds idle time, and a
#: cause of a fifth of the wall time is the least that could make a step much faster.
_IDLE_SHARE: Final = 0.20


@dataclass(frozen=True)
class SideLaunches:
    """How one side's step is launched. Counts are per step."""

    kernels: float  #: kernels that run, those of graphs included; `graph_kernels` those that a graph replays
    graph_kernels: float
    #: whether CUDA graphs were traced as a whole: then there are more kernels, nobody knows how many
    hides_kernels: bool
    #: calls on the host that issue GPU work (kernels, copies, fills, graphs), of all threads; 0 where no calls were
    #: recorded
    calls: float
    #: what those calls cost the host: themselves and the program's work before each. Threads of a process that take
    #: turns share the time between their calls, and none is counted twice. None where no calls were recorded.
    issue_ns: float | None
    graph_launches: float  #: … of which launch a CUDA graph
    pace: HostPace | None  #: what the busiest launching thread did; None where no launching call was recorded
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
        """Mean cost of a launching call to the host."""
        return self.issue_ns / self.calls if self.issue_ns is not None and self.calls else None

    @property
    def queue_empty_share(self) -> float | None:
        """Share of the time in which nothing was launched that had not started."""
        return self.pace.queue_empty_share if self.pace else None

    @property
    def behind_share(self) -> float | None:
        """Share of the work that found the GPU waiting for it."""
        return self.pace.behind_share if self.pace else None


@dataclass(frozen=True)
class LaunchChange:
    """The launches of both sides.

    The change of the host's time for launching is split without remainder into that of launches that only one side has,
    and that of the launches of both.
    """

    baseline: SideLaunches
    variant: SideLaunches
    #: added_host_ns, removed_host_ns: what the kernels that only the variant launches cost its host per step, and what
    #: those that only the baseline launches cost its own; None where no calls were recorded
    added_host_ns: float | None
    removed_host_ns: float | None
    #: added, removed: their number per step
    added: float
    removed: float

    @property
    def kernels_change(self) -> float | None:
        """Kernels that the variant's step has more; None where CUDA graphs hide some."""
        if self.baseline.hides_kernels or self.variant.hides_kernels:
            return None
        return self.variant.kernels - self.baseline.kernels

    @property
    def calls_change(self) -> float:
        """Launching calls that the variant's step has more."""
        return self.variant.calls - self.baseline.calls

    @property
    def issue_change_ns(self) -> float | None:
        """Host time per step that the variant's launches take more."""
        if self.baseline.issue_ns is None or self.variant.issue_ns is None:
            return None
        return self.variant.issue_ns - self.baseline.issue_ns

    @property
    def added_cost_ns(self) -> float | None:
        """Host time per step of the kernels that only the variant launches, less that of those that it spares."""
        if self.added_host_ns is None or self.removed_host_ns is None:
            return None
        return self.added_host_ns - self.removed_host_ns

    @property
    def pace_cost_ns(self) -> float | None:
        """Host time per step that the other launches take more (negative: less)."""
        change, added = self.issue_change_ns, self.added_cost_ns
        return None if change is None or added is None else change - added

    @property
    def added_ns_per_launch(self) -> float | None:
        """Mean host time of a kernel launch that only the variant has; None where it has none."""
        return self.added_host_ns / self.added if self.added_host_ns is not None and self.added else None

    @property
    def removed_ns_per_launch(self) -> float | None:
        """Mean host time of a kernel launch that only the baseline has; None where it has none."""
        return self.removed_host_ns / self.removed if self.removed_host_ns is not None and self.removed else None


def launch_change(
    baseline: Side, variant: Side, walls: tuple[SideWall, SideWall], kernels: KernelChanges
) -> LaunchChange:
    """How both sides' steps are launched.

    Args:
        walls: their wall times, as `side_wall` splits them.
    """
    sides = _side(baseline, walls[0]), _side(variant, walls[1])
    added, removed = (kernels.table.filter(pl.col("change") == change) for change in ("added", "removed"))
    known = all(side.issue_ns is not None for side in sides)
    return LaunchChange(
        *sides,
        added_host_ns=float(added["variant_host_ns_per_step"].sum()) if known else None,
        removed_host_ns=float(removed["baseline_host_ns_per_step"].sum()) if known else None,
        added=float(added["variant_launches_per_step"].sum()),
        removed=float(removed["baseline_launches_per_step"].sum()),
    )


def _side(side: Side, wall: SideWall) -> SideLaunches:
    work = side.work.select("kind", "row", "api_row", "process")
    kernels = work.filter(pl.col("kind") == "kernel")
    is_graph = api_kinds(side.timeline.trace.api_calls["name"]) == "graph-launch"
    calls = work["api_row"].drop_nulls().unique()
    by_graph = is_graph.gather(kernels["api_row"]).fill_null(value=False)
    node = side.timeline.trace.kernels["graph_node"].gather(kernels["row"]).is_not_null()
    issuing = side.issue_ns
    shares = [_share(wall, causes) for causes in (ISSUE_CAUSES, HOST_CAUSES, _REST)]
    busy = float(wall.busy_ns / wall.wall_ns) if wall.wall_ns else 0.0
    return SideLaunches(
        kernels=kernels.height / side.repeats,
        graph_kernels=int((by_graph | node).sum()) / side.repeats,
        hides_kernels=bool((work["kind"] == "graph").any()),
        calls=calls.len() / side.repeats,
        issue_ns=None if issuing is None else int(issuing.sum()) / side.repeats,
        graph_launches=int(is_graph.gather(calls).sum()) / side.repeats,
        pace=_pace(side),
        busy_share=busy,
        issue_share=shares[0],
        host_share=shares[1],
        waiting_share=shares[2],
        bound=_bound(bool(side.work.height), shares),
    )


def _pace(side: Side) -> HostPace | None:
    """The host's pace from the first step's begin to the last one's end."""
    starts, ends = side.step_times
    return host_pace(side.timeline, replace(side.window, start_ns=int(starts[0]), end_ns=int(ends[-1])))


def _share(wall: SideWall, causes: tuple[str, ...]) -> float:
    spent = sum(time for (group, part), time in wall.parts.items() if group == "idle" and part in causes)
    return float(spent / wall.wall_ns) if wall.wall_ns else 0.0


def _bound(has_work: bool, shares: list[float]) -> str:
    if not has_work:
        return "none"
    if sum(shares) < _IDLE_SHARE:
        return "gpu"
    return ("host-issue", "host", "waiting")[shares.index(max(shares))]


# --- What each launch cost the host: the time from the launch before it, less what else held the thread up -----------
# A launch's cost ends with the end of its call and begins with the end of the call before it that launched something:
# the program's own work for this launch (Python, the framework's dispatch) and the call. Where threads take turns, as
# the backward pass does with the rest of a step, that is the call before it of any thread of the process: while one
# launches, the other waits for it. Time in a synchronization, an allocation, a blocking copy, the profiler or a long
# pause is no cost of launching, nor is what the program did before the part that counts.


def issue_times(timeline: Timeline, work: pl.DataFrame, since_ns: int | None = None) -> Int64s | None:
    """For each of these rows of `Timeline.work` the nanoseconds, from `since_ns` on, that launching it cost the host.

    What one call launches together (the nodes of a CUDA graph) costs once: its first row has the call's cost, the
    others have 0, and so has work without a recorded call. None where no launching call was recorded at all.
    """
    rows = work["api_row"].fill_null(-1).to_numpy()
    known = np.flatnonzero(rows >= 0)
    if not len(known):
        return None
    costs = _cost_of_calls(timeline, since_ns)
    _, first = np.unique(rows[known], return_index=True)
    times = np.zeros(len(rows), dtype=np.int64)
    times[known[first]] = costs[rows[known[first]]]
    return times


def _cost_of_calls(timeline: Timeline, since_ns: int | None) -> Int64s:
    """For each row of `Trace.api_calls` its cost, 0 where it launched nothing."""
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
        for mine in (thread == one for one in np.unique(thread)):
            states = host.states(int(thread[mine][0])).values()
            held = union(
                Intervals(
                    np.concatenate([state.starts for state in states]), np.concatenate([state.ends for state in states])
                )
            )
            inside = measure_before(held, end[mine]) - measure_before(held, since[mine])
            costs[row[mine]] = end[mine] - since[mine] - inside
    return costs


# --- One side of a comparison: a profile, the part of it that counts, and how its work divides into steps ------------
# Everything is told per step, so that profiles with different numbers of steps can be held against each other. A window
# without steps counts as one repetition.


#: Where steps leave more of the window's time than this between them, a step lasts until the next one begins: what the
#: program does in between (loading data, logging) is part of every repetition.
_GAP_SHARE: Final = 0.01


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two profiles that are compared."""

    name: str  #: what people call it (`baseline`, a file's name)
    timeline: Timeline
    window: Window  #: the part of it that counts, from `timeline.window(...)`

    @property
    def has_steps(self) -> bool:
        """Whether numbers are per step; else they are per window."""
        return bool(self.window.steps)

    @property
    def repeats(self) -> int:
        """How many repetitions the window holds: its steps, or itself."""
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
        """The time from each step's end to the next step's begin, where there is any."""
        steps = union(self.step_times)
        if not len(steps.starts):
            return Intervals.none()
        return complement(steps, int(steps.starts[0]), int(steps.ends[-1]))

    @property
    def has_gaps(self) -> bool:
        """Whether the time between steps is worth counting."""
        return total(self.gaps) > _GAP_SHARE * max(self.window.duration_ns, 1)

    @cached_property
    def work_rows(self) -> Int64s:
        """The rows of `Timeline.work` that begin in the window's steps; all of the window's without steps."""
        return self._rows_and_steps[0]

    @cached_property
    def step_of_work(self) -> Int64s:
        """For each of `work_rows` the position of its step among the window's steps; 0 without steps."""
        return self._rows_and_steps[1]

    @cached_property
    def work(self) -> pl.DataFrame:
        """Those rows."""
        return self.timeline.work[self.work_rows]

    @cached_property
    def issue_ns(self) -> Int64s | None:
        """For each row of `work` what launching it cost the host; None where no launching call was recorded."""
        return issue_times(self.timeline, self.work, self.window.start_ns)

    @cached_property
    def _rows_and_steps(self) -> tuple[Int64s, Int64s]:
        rows = np.arange(self.timeline.work.height)[self.timeline.work_rows_in(self.window)]
        if not self.window.steps:
            return rows, np.zeros(len(rows), dtype=np.int64)
        begun = self.timeline.work["start_ns"].to_numpy()[rows]
        starts, ends = self.step_times
        place = np.searchsorted(starts, begun, side="right") - 1
        inside = (place >= 0) & (begun < ends[np.maximum(place, 0)])
        return rows[inside], place[inside]


def step_samples(side: Side) -> Samples:
    """How long each step of the window took, as one block.

    A step lasts from its begin to its end. Where the program does much between steps, it lasts until the next one
    begins, and the last one, of which nobody knows what followed, is left out if others remain. A window without steps
    gives one duration, its length. Of a range, a step's time is that of the range's spans on the GPU that begin with
    the step, as its parts are; steps in which it takes none are left out.

    Raises:
        UsageError: the window has no length, or its range takes no time.
    """
    if side.window.range_name is not None:
        spent = _range_times(side, side.window.range_name)
        return Samples.of([spent[spent > 0]])
    starts, ends = side.step_times
    if side.has_gaps and len(starts) > 1:
        return Samples.of([np.diff(starts)])
    return Samples.of([ends - starts])


def _range_times(side: Side, name: str) -> npt.NDArray[np.float64]:
    """For each step the summed spans of a range until the next one begins; their mean over the devices."""
    timeline, window = side.timeline, side.window
    edges = np.r_[window.start_ns, side.step_times.starts[1:], window.end_ns]
    rows = timeline.range_rows(name)
    spent = []
    for device in timeline.work_in(window)["device"].unique().sort():
        spans = union(clip(projected_spans(timeline, rows, device), window.start_ns, window.end_ns))
        spent.append(np.diff(measure_before(spans, edges)))
    if not spent:
        return np.zeros(side.repeats)
    times: npt.NDArray[np.float64] = np.mean(spent, axis=0)
    return times
