"""The launches of the two sides of a comparison per step, what they cost the host, and the bound of a side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.api import api_kinds
from warplens.analysis.hostpace import HostPace, host_pace
from warplens.analysis.timebudget import IDLE_CAUSES
from warplens.compare.side import Side

if TYPE_CHECKING:
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
