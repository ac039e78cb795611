"""Where in the program each piece of GPU work comes from: its operators, module and Python function.

Work of the forward pass comes from where it was launched. Work of the backward pass is launched by autograd's thread,
which knows nothing of modules: it comes from where the forward operator ran whose gradient it computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from warplens.analysis.attribution import range_forest
from warplens.analysis.trees import NO_RANGE, nearest
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    import polars as pl

    from warplens.analysis.attribution import RangeForest
    from warplens.analysis.operators.autograd import AutogradLinks, OperatorTree
    from warplens.profile import Trace
    from warplens.profile.schema import Bools, Int64s


@dataclass(frozen=True, eq=False)
class Places:
    """Arrays alongside `Timeline.work`, or a part of it; rows that do not exist are `NO_RANGE`.

    Attributes:
        work: columns `kind`, `start_ns`, `end_ns`, `range` of it.
        operator: row (of `Trace.ranges`) of the innermost operator that launched it.
        backward: whether that operator is part of the backward pass.
        forwards: the forward operators that backward work belongs to: first that of the innermost backward operator,
            then, where that one ran inside the backward pass itself, its own; and so on.
        module: row (of `Trace.python_functions`) of the module that it comes from.
        function: row (of `Trace.python_functions`) of the Python function that it comes from.
    """

    work: pl.DataFrame
    operator: Int64s
    backward: Bools
    forwards: tuple[Int64s, ...]
    module: Int64s
    function: Int64s

    def part(self, rows: slice | Int64s) -> Places:
        """The same of some of the work."""
        return Places(
            self.work[rows],
            self.operator[rows],
            self.backward[rows],
            tuple(forward[rows] for forward in self.forwards),
            self.module[rows],
            self.function[rows],
        )

    @property
    def duration_ns(self) -> Int64s:
        """Of the work."""
        found: Int64s = (self.work["end_ns"] - self.work["start_ns"]).to_numpy()
        return found

    @property
    def is_kernel(self) -> Bools:
        """Whether it is a kernel."""
        found: Bools = (self.work["kind"] == "kernel").to_numpy()
        return found

    @property
    def range(self) -> Int64s:
        """Row of the innermost range that the work was launched in."""
        found: Int64s = self.work["range"].fill_null(NO_RANGE).to_numpy()
        return found

    @property
    def linked(self) -> Bools:
        """Which backward work has a known forward operator."""
        if not self.forwards:
            return np.zeros(len(self.backward), dtype=np.bool_)
        linked: Bools = self.backward & (self.forwards[0] != NO_RANGE)
        return linked

    @property
    def origin(self) -> Int64s:
        """The operator of the forward pass that work comes from: for backward work the last of `forwards`."""
        origin = np.where(self.backward, NO_RANGE, self.operator)
        for forward in self.forwards:
            origin = np.where(forward != NO_RANGE, forward, origin)
        return origin


def places(trace: Trace, work: pl.DataFrame, tree: OperatorTree, links: AutogradLinks, frames: PythonFrames) -> Places:
    """Where all GPU work of a profile (`Timeline.work`) comes from."""
    nowhere = np.broadcast_to(np.int64(NO_RANGE), work.height)  # takes no room
    operator: Int64s = nowhere
    backward: Bools = np.broadcast_to(np.False_, work.height)
    forwards: tuple[Int64s, ...] = ()
    if tree.is_operator.any():
        operator = tree.of(work["range"].fill_null(NO_RANGE).to_numpy())
        backward = np.r_[links.in_backward, False][operator]
        forwards = tuple(links.forward_chain(np.where(backward, operator, NO_RANGE)))

    module = function = nowhere
    if trace.python_functions.height:
        known = np.flatnonzero(work["launch_start_ns"].is_not_null().to_numpy())
        process = work["process"].to_numpy().astype(np.int64)[known]
        thread = work["thread"].to_numpy()[known].astype(np.int64)
        launched = work["launch_start_ns"].to_numpy()[known].astype(np.int64)
        calls = [np.full(work.height, NO_RANGE, dtype=np.int64)]
        calls[0][known] = frames.running(process, thread, launched)
        calls.extend(_running_at(trace.ranges, frames, forward) for forward in forwards)
        waiting = calls[0].copy()
        waiting[known] = frames.waiting(process, thread, launched)
        for call in calls:
            module = np.where(module == NO_RANGE, np.r_[frames.enclosing_module, NO_RANGE][call], module)
        for call in (*calls, waiting):
            function = np.where(function == NO_RANGE, np.r_[frames.enclosing_function, NO_RANGE][call], function)
    return Places(
        work.select("kind", "start_ns", "end_ns", "range"),
        operator,
        backward,
        forwards,
        module,
        function,
    )


def _running_at(ranges: pl.DataFrame, frames: PythonFrames, operators: Int64s) -> Int64s:
    """The Python call in which each of these operators began."""
    found = np.full(len(operators), NO_RANGE, dtype=np.int64)
    known = np.flatnonzero(operators != NO_RANGE)
    rows = operators[known]
    found[known] = frames.running(
        ranges["process"].to_numpy()[rows].astype(np.int64),
        ranges["thread"].to_numpy()[rows].astype(np.int64),
        ranges["start_ns"].to_numpy()[rows],
    )
    return found


# --- The recorded Python calls of each thread ---
#
# A profiler that records Python stacks writes three kinds of calls: functions (`model.py(12): forward`), built-ins
# (`<built-in method linear …>`) and the calls of modules (`nn.Module: Linear_3`), whose number tells instances of a
# class apart. Built-ins and module calls have no source line: what they launch belongs to the function that calls
# them.

_MODULE = "nn.Module: "


def module_name(name: str) -> str | None:
    """`Linear_3` for `nn.Module: Linear_3`; None for a call of anything else."""
    return name.removeprefix(_MODULE) if name.startswith(_MODULE) else None


@dataclass(frozen=True, eq=False)
class PythonFrames:
    """The Python calls of a profile. Arrays have one entry for each row of `Trace.python_functions`.

    Attributes:
        parent: row of the calling function on the same thread; `NO_RANGE` for none.
        enclosing_module: itself or the nearest module around it; `NO_RANGE` for none.
        enclosing_function: itself or the nearest call around it that has a source line; `NO_RANGE` for none.
    """

    parent: Int64s
    is_module: Bools
    enclosing_module: Int64s
    enclosing_function: Int64s
    _threads: RangeForest

    @property
    def module_parent(self) -> Int64s:
        """For each call the nearest module strictly around it; `NO_RANGE` for none."""
        above: Int64s = np.r_[self.enclosing_module, NO_RANGE][self.parent]
        return above

    @property
    def function_parent(self) -> Int64s:
        """For each call the nearest call with a source line strictly around it; `NO_RANGE` for none."""
        above: Int64s = np.r_[self.enclosing_function, NO_RANGE][self.parent]
        return above

    def running(self, process: Int64s, thread: Int64s, when: Int64s) -> Int64s:
        """The innermost call that runs on each thread at that time; `NO_RANGE` for none."""
        return self._threads.open_on(process, thread, when)

    def waiting(self, process: Int64s, thread: Int64s, when: Int64s) -> Int64s:
        """The same, or the call that a waiting thread of the process is in (`Tensor.backward`), where there is none."""
        return self._threads.attribute(process, thread, when)[0]


def python_frames(calls: pl.DataFrame) -> PythonFrames:
    """The Python calls of a profile; `calls` is the table `python_functions` of a `Trace`."""
    parent = calls["parent"].fill_null(NO_RANGE).to_numpy().copy()
    names = name_categories(calls["name"]).to_list()
    codes = calls["name"].to_physical().to_numpy()
    is_module = np.array([name.startswith(_MODULE) for name in names], dtype=np.bool_)[codes]
    has_line = np.array(["): " in name and not name.startswith("<") for name in names], dtype=np.bool_)[codes]
    own = np.arange(calls.height)
    return PythonFrames(
        parent, is_module, nearest(parent, is_module, own), nearest(parent, has_line, own), range_forest(calls)
    )
