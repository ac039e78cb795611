"""Launches per step, what each costs the host, and what limits each side: its host or its GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.apikinds import api_kinds
from warplens.analysis.hostpace import HostPace, host_pace
from warplens.analysis.idle import IDLE_CAUSES

if TYPE_CHECKING:
    from warplens.compare.difference.kernels import KernelChanges
    from warplens.compare.difference.sides import Side
    from warplens.compare.difference.wall import SideWall

__all__ = ["BOUNDS", "HOST_CAUSES", "ISSUE_CAUSES", "LaunchChange", "SideLaunches", "launch_change"]

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
    """How one side's step is launched. Counts are per step.

    Attributes:
        kernels: kernels that run, those of graphs included; `graph_kernels` those that a graph replays.
        hides_kernels: whether CUDA graphs were traced as a whole: then there are more kernels, nobody knows how many.
        calls: calls on the host that issue GPU work (kernels, copies, fills, graphs), of all threads; 0 where no calls
            were recorded.
        issue_ns: what those calls cost the host, all threads together: themselves and the program's work before each;
            None where no calls were recorded.
        graph_launches: … of which launch a CUDA graph.
        pace: what the busiest launching thread did; None where no launching call was recorded.
        busy_share, issue_share, host_share, waiting_share: shares of the wall time in which the GPU worked, waited for
            the host to issue work, waited while the host did something else, and waited for other work or for reasons
            unknown; they add up to 1.
        bound: one of `BOUNDS`.
    """

    kernels: float
    graph_kernels: float
    hides_kernels: bool
    calls: float
    issue_ns: float | None
    graph_launches: float
    pace: HostPace | None
    busy_share: float
    issue_share: float
    host_share: float
    waiting_share: float
    bound: str

    @property
    def host_ns_per_launch(self) -> float | None:
        """Mean cost of a launching call to the host."""
        return self.issue_ns / self.calls if self.issue_ns is not None and self.calls else None

    @property
    def median_host_ns_per_launch(self) -> float | None:
        """Median time from one launching call of the busiest thread to its next, less what held it up in between."""
        return self.pace.host_ns_per_launch[1] if self.pace and self.pace.host_ns_per_launch else None

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

    Attributes:
        baseline, variant: the two sides.
        added_host_ns, removed_host_ns: what the kernels that only the variant launches cost its host per step, and what
            those that only the baseline launches cost its own; None where no calls were recorded.
        added, removed: their number per step.
    """

    baseline: SideLaunches
    variant: SideLaunches
    added_host_ns: float | None
    removed_host_ns: float | None
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
        baseline, variant: the two sides.
        walls: their wall times, as `side_wall` splits them.
        kernels: their kernels, matched.
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
