"""Operators, modules and Python functions with their host time, their GPU time, and that of their backward pass.

GPU figures count the work that begins in the window. Host figures count the operators whose first GPU work does, and
those without any that begin in it themselves: so a step has all of its operators, however far the host runs ahead.

Inclusive times never count a thing twice: an operator inside another one of the same name adds nothing to the name's
host or GPU time. (`torch.profiler`'s tables add both.) `aten::mm` runs in the forward pass, and again to compute its
own gradient: that work is GPU time and backward time of `aten::mm`, and once in its total.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.intervals import Intervals, clip, total, union
from warplens.analysis.operators.program import (
    LEVELS,
    OPERATORS,
    Nodes,
    by_group,
    by_path,
    counted,
    finished,
    levels_of_work,
    module_rows,
    python_rows,
)
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE
from warplens.analysis.window import Window
from warplens.errors import UsageError
from warplens.profile.schema import Bools, name_categories

#: Autograd's node that adds a gradient to the parameter's; it has no forward operator.
_ACCUMULATION: Final = "torch::autograd::AccumulateGrad"

#: What makes a row.
GROUPINGS: Final = ("name", "shapes", "tree", "module", "python")


@dataclass(frozen=True)
class OperatorCoverage:
    """How much of the window's GPU work (summed durations) the operators explain."""

    total_ns: int
    operator_ns: int  #: launched inside operators
    backward_ns: int  #: launched inside operators of the backward pass
    linked_ns: int  #: part of `backward_ns` whose forward operator is known
    #: part of `backward_ns` that belongs to no forward operator by its nature: adding gradients up, and what hooks on
    #: that launch (the all-reduce of data parallelism)
    accumulation_ns: int
    #: the work by the finest `LEVELS` that names its place in the program: a module (where Python stacks were
    #: recorded), an annotation of the user that is neither a step nor a whole pass, the outermost operator, or `none`.
    #: Backward work counts with its forward operator, and where that is unknown with its own.
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


def operators_by(timeline: Timeline, window: Window, by: str = "name") -> pl.DataFrame:
    """Operators and what encloses them (`OPERATORS`), most GPU time (forward and backward) first.

    Args:
        window: the part of it to look at.
        by: `name`; `shapes` (name, input shapes and types); `tree` (path of names, parents before children);
            `module` (`torch.nn` modules as a tree, and the best other place where there is none, see `level`);
            `python` (function with source line, by the time of what it launched itself).

    Raises:
        UsageError: `by` is none of these.
    """
    if by not in GROUPINGS:
        raise UsageError(f"operators cannot be grouped by {by!r}; use {', '.join(GROUPINGS)}")
    if not timeline.has_operators:
        return OPERATORS.empty()
    work = timeline.work_in(window)
    total_ns = int((work["end_ns"] - work["start_ns"]).sum())
    if by == "module":
        return finished(module_rows(timeline, window), total_ns)
    if by == "python":
        return finished(python_rows(timeline, window), total_ns)
    return finished(_operator_rows(timeline, window, by), total_ns)


def operator_coverage(timeline: Timeline, window: Window) -> OperatorCoverage:
    """How much of the window's GPU work belongs to operators, to forward operators, and to parts of the program."""
    found = timeline.places.part(timeline.work_rows_in(window))
    levels = levels_of_work(timeline, found)

    def spent(selected: Bools) -> int:
        return int(found.duration_ns[selected].sum())

    by_level = {name: levels.level == number for number, name in enumerate(LEVELS)}
    return OperatorCoverage(
        total_ns=spent(np.ones(len(levels.level), dtype=np.bool_)),
        operator_ns=spent(found.operator != NO_RANGE),
        backward_ns=spent(found.backward),
        linked_ns=spent(found.linked),
        accumulation_ns=spent(found.backward & ~found.linked & _accumulating(timeline)[found.operator]),
        level_ns={name: spent(mine) for name, mine in by_level.items()},
        backward_level_ns={name: spent(mine & found.linked) for name, mine in by_level.items()},
    )


def _accumulating(timeline: Timeline) -> Bools:
    """Which operators are or lie in autograd's accumulation of gradients; the last entry answers for none."""
    names = timeline.trace.ranges["name"]
    if not names.len():
        return np.zeros(1, dtype=np.bool_)
    by_name = np.array([_ACCUMULATION in text for text in name_categories(names)], dtype=np.int64)
    labels = by_name[names.to_physical().to_numpy()] * timeline.operators.is_operator
    accumulating: Bools = np.r_[timeline.operators.forest.outermost_match(labels) > 0, False]
    return accumulating


def _operator_rows(timeline: Timeline, window: Window, by: str) -> pl.DataFrame:
    nodes = _operator_nodes(timeline, window)
    wanted = timeline.operators.is_operator
    names = timeline.trace.ranges["name"]
    if by == "shapes":
        return _by_shapes(timeline, nodes, wanted)
    code = names.to_physical().cast(pl.Int64).to_numpy()
    table = (by_path if by == "tree" else by_group)(nodes, code, wanted)
    return table.with_columns(name_categories(names).cast(pl.String).gather(table["code"]).alias("name"))


def _by_shapes(timeline: Timeline, nodes: Nodes, wanted: Bools) -> pl.DataFrame:
    ranges, recorded = timeline.trace.ranges, timeline.trace.operators
    keys = ["name", "input_shapes", "input_types"]
    operators = (
        ranges.select("name")[np.flatnonzero(wanted)]
        .with_columns(pl.Series("range", np.flatnonzero(wanted)))
        .join(recorded.select("range", *keys[1:]), on="range", how="left", maintain_order="left")
        .with_columns(pl.struct(keys).rank("dense").cast(pl.Int64).alias("code"))
    )
    code = np.zeros(ranges.height, dtype=np.int64)
    code[operators["range"].to_numpy()] = operators["code"].to_numpy()
    table = by_group(nodes, code, wanted)
    labels = operators.select("code", pl.col(keys).cast(pl.String)).unique("code")
    return table.join(labels, on="code", how="left", maintain_order="left")


def _operator_nodes(timeline: Timeline, window: Window) -> Nodes:
    tree = timeline.operators
    found = timeline.places.part(timeline.work_rows_in(window))
    return Nodes(
        tree.forest,
        counted(timeline, window, timeline.trace.ranges, tree.forest, timeline.places.operator) & tree.is_operator,
        tree.host_ns,
        found.duration_ns,
        found.is_kernel,
        found.operator,
        found.forwards,
        tree.api_ns,
        tree.self_ns,
    )


@dataclass(frozen=True)
class FrameworkOverhead:
    """Kernel time against framework time over a window."""

    window_ns: int
    busy_ns: int  #: time of it in which at least one GPU worked
    threads: int  #: threads that ran operators
    host_ns: int  #: time in which they were inside operators, summed over threads
    api_ns: int  #: part of it inside CUDA API calls: launching, copying, waiting

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
