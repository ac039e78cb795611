"""What the launching threads of a window did: how often and how long they waited for the GPU, and how they launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.apikinds import api_kinds, blocks_host
from warplens.analysis.intervals import Intervals, Owned, clip, complement, measure_before, subtract, total, union
from warplens.analysis.launches import LaunchSummary, launch_summary
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["HostLoad", "host_load", "needed_ns"]

Int64s = npt.NDArray[np.int64]

#: A launching call takes 2–10 µs. One that takes longer than this waits for room in the queue of launches, which holds
#: about a thousand: the host is ahead of the GPU, and not at work.
_QUEUE_FULL_NS: Final = 100_000


@dataclass(frozen=True, eq=False)
class HostLoad:
    """The host's side of a window. Only threads that launch GPU work count.

    Attributes:
        launches: how the kernels were launched.
        waits: calls that held a thread until the GPU was done: synchronisations and synchronous copies.
        waited_ns: time of the window in which a thread was inside of a call that waits, and a GPU worked.
        waiting: per process, when that was so, in the whole profile. A call that waits for a GPU without work does
            something else, such as loading code.
        blocked_ns: time inside the window's calls that wait for the GPU by their name, or read a few bytes back, and in
            which no GPU worked: what goes away with the calls, beside the waiting.
        readbacks: copies of a few bytes to the host.
        readback_calls: when the calls that issued those held their threads.
        allocations: calls that obtain or release memory; `allocation_ns` their time.
    """

    launches: LaunchSummary
    waits: int
    waited_ns: int
    waiting: dict[int, Intervals]
    blocked_ns: int
    readbacks: int
    readback_calls: Intervals
    allocations: int
    allocation_ns: int


def host_load(timeline: Timeline, window: Window, readback_bytes: int) -> HostLoad:
    """What the launching threads did.

    Args:
        timeline: the profile.
        window: the part of it that counts; a call belongs to it by its begin.
        readback_bytes: up to this size, a copy to the host is a read-back.
    """
    work = timeline.work_in(window)
    threads = work.select("process", "thread").drop_nulls().unique()
    calls = timeline.api_calls_in(window).select("start_ns", "end_ns", "process", "thread", "correlation", "name")
    kind = api_kinds(calls["name"])
    allocating = calls.filter(kind == "allocation").join(threads, on=["process", "thread"], how="semi")
    waits = calls.filter(_blocks(calls["name"])).join(threads, on=["process", "thread"], how="semi")
    copies = timeline.copies_in(window)
    small = copies.filter((pl.col("direction") == "device-to-host") & (pl.col("bytes") <= readback_bytes))
    reading = calls.filter(kind == "copy").join(small, on=["process", "correlation"], how="semi")
    waiting = _waiting(timeline, threads, work["device"].unique().sort().to_list())
    clipped = [clip(intervals, window.start_ns, window.end_ns) for intervals in waiting.values()]
    return HostLoad(
        launches=launch_summary(timeline, window),
        waits=waits.height,
        waited_ns=max((total(intervals) for intervals in clipped), default=0),
        waiting=waiting,
        blocked_ns=_blocked_ns(pl.concat([waits, reading]), waiting),
        readbacks=small.height,
        readback_calls=union(_intervals(reading)),
        allocations=allocating.height,
        allocation_ns=int((allocating["end_ns"] - allocating["start_ns"]).sum()),
    )


def _blocked_ns(calls: pl.DataFrame, waiting: dict[int, Intervals]) -> int:
    """Time in these calls that is not waiting for a busy GPU."""
    blocked = 0
    for process, intervals in waiting.items():
        inside = union(_intervals(calls.filter(pl.col("process") == process)))
        blocked += total(inside) - total(_both(inside, intervals))
    return blocked


def needed_ns(host: HostLoad, work: pl.DataFrame, parts: Int64s) -> int:
    """Host time that it took to issue this work: from the first launch to the last of each part, less the waits.

    However fast the GPU gets, the work cannot be done sooner. Where several GPUs worked, each counts for itself, as in
    the wall time that this is compared with.

    Args:
        host: when threads waited for the GPU.
        work: columns `device`, `process`, `launch_start_ns`, `launch_end_ns`; nulls where the launch is not known.
        parts: shape (rows,), what is counted from a first to a last launch of its own: a step of a phase, or 0 for all.
    """
    spans = (
        work.select("device", "process", "launch_start_ns", "launch_end_ns")
        .with_columns(part=pl.Series(parts))
        .drop_nulls(["launch_start_ns", "launch_end_ns"])
        .group_by("device", "process", "part")
        .agg(pl.col("launch_start_ns").min().alias("begin"), pl.col("launch_end_ns").max().alias("end"))
    )
    needed = 0
    for process in spans["process"].unique().sort():
        mine = spans.filter(pl.col("process") == process)
        begins, ends = mine["begin"].to_numpy(), mine["end"].to_numpy()
        waiting = host.waiting.get(process, Intervals.none())
        needed += int((ends - begins - measure_before(waiting, ends) + measure_before(waiting, begins)).sum())
    return needed


def _waiting(timeline: Timeline, threads: pl.DataFrame, devices: list[int]) -> dict[int, Intervals]:
    """Per process, when one of these threads was inside of a call that waits while one of these devices worked."""
    calls = timeline.trace.api_calls.select("start_ns", "end_ns", "process", "thread", "correlation", "name")
    kind = api_kinds(calls["name"])
    long = (calls["end_ns"] - calls["start_ns"]) > _QUEUE_FULL_NS
    queue_full = kind.is_in(["launch", "graph-launch", "copy", "memset"]) & long
    pageable = (pl.col("source_memory") == "pageable") | (pl.col("destination_memory") == "pageable")
    staged = timeline.trace.copies.filter(pageable.fill_null(value=False)).select("process", "correlation")
    found = pl.concat(
        [
            calls.filter(_blocks(calls["name"]) | queue_full),
            calls.filter(kind == "copy").join(staged, on=["process", "correlation"], how="semi"),
        ]
    ).join(threads, on=["process", "thread"], how="semi")
    busy = [timeline.busy(device) for device in devices]
    working = (
        union(Intervals(*(np.concatenate(edges) for edges in zip(*busy, strict=True)))) if busy else Intervals.none()
    )
    return {
        process: _both(union(_intervals(found.filter(pl.col("process") == process))), working)
        for process in threads["process"].unique().sort()
    }


def _blocks(names: pl.Series) -> pl.Series:
    """Whether each of these functions waits for the GPU by its name."""
    blocking = pl.Series([blocks_host(name) for name in name_categories(names)], dtype=pl.Boolean)
    return blocking.gather(names.to_physical())


def _both(first: Intervals, second: Intervals) -> Intervals:
    """The time that two disjoint sets have in common."""
    if not len(first.starts):
        return first
    pieces = Owned(*first, np.zeros(len(first.starts), dtype=np.int64))
    common = subtract(pieces, complement(second, int(first.starts[0]), int(first.ends.max())))
    return Intervals(common.starts, common.ends)


def _intervals(calls: pl.DataFrame) -> Intervals:
    return Intervals(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())
