"""GPUs on which kernels of several processes run, at the same time or in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.intervals import Intervals, clip, intersection, total, union
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window

#: From this share of the window on, kernels of other processes are no handing over from one to the next.
_SHARED_SHARE: Final = 0.01


@dataclass(frozen=True)
class SharedGpu:
    """A GPU that several processes use. Shares are of the window."""

    device: int
    share_by_process: Mapping[int, float]  #: in which kernels of each process run, the largest first
    together_share: float  #: in which kernels of several processes run at the same time


@once
def shared_gpus(timeline: Timeline, window: Window) -> tuple[SharedGpu, ...]:
    """The GPUs on which kernels of processes run between the first and the last kernel of a busier one.

    Kernels of the busier one between two of another say nothing: two short ones of a helper span the whole program.
    """
    work = timeline.work_in(window).select("kind", "device", "process", "start_ns", "end_ns")
    if work["process"].n_unique() < 2:
        return ()
    found = []
    computing = work.filter(pl.col("kind").is_in(["kernel", "graph"]))
    for (device,), kernels in computing.group_by("device", maintain_order=True):
        busy = {
            int(process): clip(union(Intervals.of(own)), window.start_ns, window.end_ns)
            for (process,), own in kernels.group_by("process", maintain_order=True)
        }
        busy = {process: own for process, own in busy.items() if len(own.starts)}
        before = both = Intervals.none()
        amid = 0
        for _, own in sorted(busy.items(), key=lambda item: total(item[1])):
            amid = max(amid, total(clip(before, int(own.starts[0]), int(own.ends[-1]))))
            both, before = union(both, intersection(before, own)), union(before, own)
        length = max(window.duration_ns, 1)
        if amid > _SHARED_SHARE * length:
            shares = {process: total(own) / length for process, own in busy.items()}
            largest_first = dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))
            found.append(SharedGpu(int(device), largest_first, total(both) / length))
    return tuple(found)
