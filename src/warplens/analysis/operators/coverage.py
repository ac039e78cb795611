"""The share of GPU work explained by operators, and the framework's own share of the host time in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from warplens.analysis.intervals import Intervals, clip, total, union
from warplens.analysis.operators.statistics import LEVELS, counted, levels_of_work
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE
from warplens.analysis.window import Window
from warplens.profile.schema import Bools, name_categories

#: Autograd's node that accumulates a gradient; it has no forward operator.
_ACCUMULATION: Final = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class OperatorCoverage:
    """GPU work of the window (summed durations) that operators explain."""

    total_ns: int
    operator_ns: int  #: launched inside operators
    backward_ns: int  #: launched inside operators of the backward pass
    linked_ns: int  #: part of `backward_ns` whose forward operator is known
    #: part of `backward_ns` without a forward operator by its nature: accumulation of gradients, and the work of hooks
    #: there (the all-reduce of data parallelism)
    accumulation_ns: int
    #: the work by the finest of `LEVELS` that names its place in the program: a module (where Python stacks were
    #: recorded), an annotation that is neither a step nor a whole pass, the outermost operator, or `none`. Backward
    #: work counts with its forward operator, and where that is unknown with its own.
    level_ns: Mapping[str, int]
    backward_level_ns: Mapping[str, int]  #: the same of the linked backward work alone

    @property
    def operator_share(self) -> float | None:
        """Share of the GPU time that was launched inside operators; None without GPU work."""
        return self.operator_ns / self.total_ns if self.total_ns else None

    @property
    def linked_share(self) -> float | None:
        """Share of the backward pass's GPU time whose forward operator is known; None without a backward pass."""
        return self.linked_ns / self.backward_ns if self.backward_ns else None


def operator_coverage(timeline: Timeline, window: Window) -> OperatorCoverage:
    """GPU work of the window that belongs to operators, to forward operators, and to parts of the program."""
    work_places = timeline.places.part(timeline.work_rows_in(window))
    levels = levels_of_work(timeline, work_places)

    def spent(selected: Bools) -> int:
        return int(work_places.duration_ns[selected].sum())

    by_level = {name: levels.level == number for number, name in enumerate(LEVELS)}
    return OperatorCoverage(
        total_ns=spent(np.ones(len(levels.level), dtype=np.bool_)),
        operator_ns=spent(work_places.operator != NO_RANGE),
        backward_ns=spent(work_places.backward),
        linked_ns=spent(work_places.linked),
        accumulation_ns=spent(
            work_places.backward & ~work_places.linked & _accumulating(timeline)[work_places.operator]
        ),
        level_ns={name: spent(at_level) for name, at_level in by_level.items()},
        backward_level_ns={name: spent(at_level & work_places.linked) for name, at_level in by_level.items()},
    )


def _accumulating(timeline: Timeline) -> Bools:
    """Mask of the operators that are or lie in autograd's accumulation of gradients; the last entry stands for none."""
    names = timeline.trace.ranges["name"]
    if not names.len():
        return np.zeros(1, dtype=np.bool_)
    by_name = np.array([_ACCUMULATION in text for text in name_categories(names)], dtype=np.int64)
    labels = by_name[names.to_physical().to_numpy()] * timeline.operators.is_operator
    accumulating: Bools = np.r_[timeline.operators.forest.outermost_match(labels) > 0, False]
    return accumulating


@dataclass(frozen=True)
class FrameworkOverhead:
    """Kernel time and framework time of a window."""

    window_ns: int
    busy_ns: int  #: time in which at least one GPU worked
    threads: int  #: threads that ran operators
    host_ns: int  #: time in which they were inside operators, summed over threads
    api_ns: int  #: part of it inside CUDA API calls: launching, copying, waiting

    @property
    def framework_ns(self) -> int:
        """Time inside operators, but outside CUDA: dispatch, shapes, allocation, autograd's bookkeeping."""
        return self.host_ns - self.api_ns

    @property
    def uncovered_ns(self) -> int:
        """Time of the window without GPU work: overhead that kernels do not hide."""
        return self.window_ns - self.busy_ns


def framework_overhead(timeline: Timeline, window: Window) -> FrameworkOverhead | None:
    """Framework overhead of the window's operators; None where the profile holds no operators."""
    if not timeline.has_operators:
        return None
    tree = timeline.operators
    ranges = timeline.trace.ranges
    rows = np.flatnonzero(tree.is_outermost & counted(timeline, window, ranges, tree.forest, timeline.places.operator))
    threads = ranges.select("process", "thread")[rows].n_unique() if len(rows) else 0
    work = timeline.work_in(window)
    busy = total(union(clip(Intervals.of(work), window.start_ns, window.end_ns)))
    return FrameworkOverhead(
        window.duration_ns, busy, threads, int(tree.host_ns[rows].sum()), int(tree.api_ns[rows].sum())
    )
