"""How the host's time in operators splits between CUDA calls and the framework, beside what the GPU made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from warplens.analysis.intervals import Intervals, clip, total, union
from warplens.analysis.operators.nodes import counted

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["FrameworkOverhead", "framework_overhead"]


@dataclass(frozen=True)
class FrameworkOverhead:
    """Kernel time against framework time over a window.

    Attributes:
        window_ns: length of the window.
        busy_ns: time of it in which at least one GPU worked.
        threads: threads that ran operators.
        host_ns: time in which they were inside operators, summed over threads.
        api_ns: part of it inside CUDA API calls: launching, copying, waiting.
    """

    window_ns: int
    busy_ns: int
    threads: int
    host_ns: int
    api_ns: int

    @property
    def framework_ns(self) -> int:
        """Time inside operators, but outside of CUDA: dispatch, shapes, allocation, autograd's bookkeeping."""
        return self.host_ns - self.api_ns

    @property
    def uncovered_ns(self) -> int:
        """Time of the window in which no GPU worked: the overhead that kernels do not hide."""
        return self.window_ns - self.busy_ns


def framework_overhead(timeline: Timeline, window: Window) -> FrameworkOverhead | None:
    """The split for the operators of the window; None where the profile holds no operators."""
    if not timeline.has_operators:
        return None
    tree = timeline.operators
    ranges = timeline.trace.ranges
    rows = np.flatnonzero(tree.is_outermost & counted(timeline, window, ranges, tree.forest, timeline.places.operator))
    threads = ranges.select("process", "thread")[rows].n_unique() if len(rows) else 0
    work = timeline.work_in(window)
    ran = Intervals(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
    busy = total(union(clip(ran, window.start_ns, window.end_ns)))
    return FrameworkOverhead(
        window.duration_ns, busy, threads, int(tree.host_ns[rows].sum()), int(tree.api_ns[rows].sum())
    )
