"""The operators of each thread as trees, and the origin of GPU work: operators, module, function.

An operator's children are the operators that run inside it on the same thread, regardless of annotations in between.
Its host time has three parts: the operators inside it, the CUDA API calls that it makes itself, and the rest, which is
the framework's own work (dispatch, shape checks, allocation): PyTorch calls that *self CPU time*.

Work of the forward pass comes from where it was launched. Work of the backward pass is launched by autograd's thread,
which knows no modules: it comes from the place of the forward operator whose gradient it computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from warplens.analysis.frames import sum_by
from warplens.analysis.intervals import owned_union
from warplens.analysis.trees import NO_RANGE, Forest, RangeForest, is_operator, look_up, nearest, range_forest
from warplens.analysis.window import AUTOGRAD_ENGINE
from warplens.profile import Trace
from warplens.profile.schema import Bools, Int64s, name_categories, name_labels


@dataclass(frozen=True, eq=False)
class OperatorTree:
    """The operators of a profile. All arrays have one entry for each row of `Trace.ranges`."""

    is_operator: Bools
    enclosing: Int64s  #: for any range, itself or the nearest operator around it on its thread; `NO_RANGE` for none
    forest: Forest  #: each operator's parent among the operators; other ranges are isolated
    host_ns: Int64s  #: duration of each operator
    api_ns: Int64s  #: time in CUDA API calls made inside it, at any depth
    self_ns: Int64s  #: host time that is neither in operators inside it nor in CUDA API calls that it makes itself

    @property
    def is_outermost(self) -> Bools:
        """Mask of the operators that lie in no other operator."""
        outermost: Bools = self.is_operator & (self.forest.parent == NO_RANGE)
        return outermost

    def of(self, ranges: Int64s) -> Int64s:
        """The operator that each of these ranges is or lies in; `NO_RANGE` for none, and for `NO_RANGE`."""
        return look_up(self.enclosing, ranges)


def operator_tree(trace: Trace, ranges: RangeForest) -> OperatorTree:
    """The operators of a profile; `ranges` is the `forest` of its `Timeline`."""
    table = trace.ranges
    is_op = is_operator(table)
    same_thread = table["parent"].fill_null(NO_RANGE).to_numpy()
    enclosing = nearest(same_thread, is_op, np.arange(table.height))
    parent_operator = nearest(same_thread, is_op, same_thread)
    parent = np.where(is_op, parent_operator, NO_RANGE)
    forest = Forest.of(parent)
    host_ns = np.where(is_op, (table["end_ns"] - table["start_ns"]).to_numpy(), 0)
    nested = np.flatnonzero(parent != NO_RANGE)
    children_ns = sum_by(parent[nested], host_ns[nested], table.height)
    api_ns = _direct_api_ns(trace, ranges, enclosing)
    # Clocks are read one after the other: a child recorded as ending after its parent must not make time negative.
    self_ns = np.maximum(host_ns - children_ns - api_ns, 0)
    return OperatorTree(is_op, enclosing, forest, host_ns, forest.inclusive(api_ns), np.where(is_op, self_ns, 0))


def _direct_api_ns(trace: Trace, ranges: RangeForest, enclosing: Int64s) -> Int64s:
    """Time in CUDA API calls made by each operator itself; a nested call is part of its outer call."""
    direct_ns = np.zeros(len(enclosing), dtype=np.int64)
    calls = trace.api_calls.select("start_ns", "end_ns", "process", "thread")
    if not calls.height or not (enclosing != NO_RANGE).any():
        return direct_ns
    for (process, thread), rows in calls.group_by("process", "thread", maintain_order=True):
        pieces = owned_union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        count = len(pieces.starts)
        innermost = ranges.open_on(
            np.full(count, process, dtype=np.int64), np.full(count, thread, dtype=np.int64), pieces.starts
        )
        owner = look_up(enclosing, innermost)
        known = owner != NO_RANGE
        np.add.at(direct_ns, owner[known], (pieces.ends - pieces.starts)[known])
    return direct_ns


# --- Links from backward operators to forward operators ---
#
# Autograd numbers the nodes of its graph: a forward operator carries the number that the next node will get, and the
# backward operator that runs a node carries the node's number and the number of the thread that made it. So several
# forward operators carry one number (`aten::linear` and the `aten::t` inside it), and the one that began last before
# the backward operator made the node. PyTorch draws its own arrows by this rule (`torch/csrc/profiler/kineto_shim` and
# `collection`, "among all ops with same sequence number, the one with largest start time is most likely launching the
# backward op"). Where the profile holds those arrows, they are used first.


@dataclass(frozen=True, eq=False)
class AutogradLinks:
    """Backward operators and their forward operators. All arrays have one entry for each row of `Trace.ranges`."""

    #: row of the forward operator whose gradient a backward operator computes; `NO_RANGE` for none
    forward_of: Int64s
    in_backward: Bools  #: which operators are or lie in a backward operator, linked or not
    #: for each operator the innermost linked backward operator that it is or lies in; `NO_RANGE` for none
    linked: Int64s

    def forward_chain(self, operators: Int64s) -> list[Int64s]:
        """The forward operators of these operators (rows of `Trace.ranges`, or `NO_RANGE`).

        A forward operator may itself run inside the backward pass (activation checkpointing): then the next array holds
        the forward operator of that backward operator, and so on.
        """
        chain = []
        current = self._forward(operators)
        while np.any(current != NO_RANGE):
            chain.append(current)
            current = self._forward(current)
        return chain

    def _forward(self, operators: Int64s) -> Int64s:
        backward = look_up(self.linked, operators)
        return look_up(self.forward_of, backward)


def autograd_links(trace: Trace, tree: OperatorTree) -> AutogradLinks:
    """Links each backward operator of a profile to its forward operator."""
    count = trace.ranges.height
    forward_of = np.full(count, NO_RANGE, dtype=np.int64)
    arrows = trace.autograd_links
    forward_of[arrows["backward"].to_numpy()] = arrows["forward"].to_numpy()
    numbered = _by_sequence(trace)
    rows = numbered["range"].to_numpy()
    unlinked = forward_of[rows] == NO_RANGE
    forward_of[rows[unlinked]] = numbered["forward"].to_numpy()[unlinked]
    _lift_to_engine(trace, tree.forest, forward_of)
    # A forward operator begins before its backward operator: other links, of a damaged profile, could form a cycle.
    starts = trace.ranges["start_ns"].to_numpy()
    linked_rows = np.flatnonzero(forward_of != NO_RANGE)
    forward_of[linked_rows[starts[forward_of[linked_rows]] >= starts[linked_rows]]] = NO_RANGE

    is_backward = forward_of != NO_RANGE
    is_backward[trace.operators.filter(pl.col("forward_thread") > 0)["range"].to_numpy()] = True
    is_backward |= _is_engine_operator(trace) & tree.is_operator
    row = np.arange(1, count + 1)
    in_backward = tree.forest.outermost_match(np.where(is_backward, row, 0)) > 0
    linked = tree.forest.innermost_match(np.where(forward_of != NO_RANGE, row, 0)) - 1
    return AutogradLinks(forward_of, in_backward, linked)


def _is_engine_operator(trace: Trace) -> Bools:
    named: Bools = name_labels(trace.ranges["name"], lambda name: name.startswith(AUTOGRAD_ENGINE)) > 0
    return named


def _lift_to_engine(trace: Trace, forest: Forest, forward_of: Int64s) -> None:
    """Links the engine's operator around a linked one to the same node: it sums what broadcasting had expanded."""
    engine = _is_engine_operator(trace) & (forward_of == NO_RANGE)
    inner = np.flatnonzero(forward_of != NO_RANGE)
    parents = forest.parent[inner]
    is_engine = np.r_[engine, False][parents]
    forward_of[parents[is_engine]] = forward_of[inner[is_engine]]


def _by_sequence(trace: Trace) -> pl.DataFrame:
    """Rows of backward operators (`range`) with the rows of their forward operators (`forward`)."""
    places = trace.ranges.select("process", "thread", "start_ns").with_row_index("range").cast({"range": pl.Int64})
    numbered = (
        trace.operators.select("range", "sequence", "forward_thread")
        .filter(pl.col("sequence") >= 0)
        .join(places, on="range", how="left", maintain_order="left")
        .with_columns(pl.col("forward_thread").fill_null(0))
    )
    forward = numbered.filter(pl.col("forward_thread") == 0)
    backward = numbered.filter(pl.col("forward_thread") > 0)
    if not forward.height or not backward.height:
        return pl.DataFrame(schema={"range": pl.Int64, "forward": pl.Int64})
    # Autograd's thread numbers and the operating system's are not recorded side by side. A number belongs to the thread
    # whose forward operators carry most of the sequence numbers that backward operators refer to with that number.
    referenced = backward.select("process", "forward_thread", "sequence").unique()
    carried = forward.select("process", "thread", "sequence").unique()
    shared = (
        referenced.join(carried, on=["process", "sequence"])
        .group_by("process", "forward_thread", "thread")
        .len("shared")
    )
    most = shared.sort("shared", "thread", descending=[True, False])
    threads = most.unique(["process", "forward_thread"], keep="first", maintain_order=True).drop("shared")
    keys = ["process", "thread", "sequence"]
    return (
        backward.select("range", "process", "forward_thread", "sequence", "start_ns")
        .join(threads, on=["process", "forward_thread"])
        .sort("start_ns")
        .join_asof(
            forward.select(*keys, "start_ns", pl.col("range").alias("forward")).sort("start_ns"),
            on="start_ns",
            by=keys,
            strategy="backward",
            check_sortedness=False,
        )
        .select("range", "forward")
        .drop_nulls()
    )


@dataclass(frozen=True, eq=False)
class Places:
    """Origins of GPU work: arrays alongside `Timeline.work`, or a part of it; missing rows are `NO_RANGE`."""

    work: pl.DataFrame  #: its columns `kind`, `start_ns`, `end_ns`, `range`
    operator: Int64s  #: row (of `Trace.ranges`) of the innermost operator that launched it
    backward: Bools  #: whether that operator is part of the backward pass
    #: the forward operators of backward work: first that of the innermost backward operator, then, where that one ran
    #: inside the backward pass itself, its own; and so on
    forwards: tuple[Int64s, ...]
    module: Int64s  #: row (of `Trace.python_functions`) of the module that it comes from
    function: Int64s  #: row (of `Trace.python_functions`) of the Python function that it comes from

    def part(self, rows: slice | Int64s) -> Places:
        """The places of some of the work."""
        forwards = tuple(forward[rows] for forward in self.forwards)
        origin = self.operator[rows], self.backward[rows], forwards, self.module[rows], self.function[rows]
        return Places(self.work[rows], *origin)

    @property
    def duration_ns(self) -> Int64s:
        """Durations of the work."""
        return (self.work["end_ns"] - self.work["start_ns"]).to_numpy()

    @property
    def is_kernel(self) -> Bools:
        """Mask of the work that is a kernel."""
        return (self.work["kind"] == "kernel").to_numpy()

    @property
    def range(self) -> Int64s:
        """Row of the innermost range that the work was launched in."""
        return self.work["range"].fill_null(NO_RANGE).to_numpy()

    @property
    def linked(self) -> Bools:
        """Mask of the backward work with a known forward operator."""
        linked: Bools = self.backward & (self.forwards[0] != NO_RANGE if self.forwards else np.False_)
        return linked

    @property
    def origin(self) -> Int64s:
        """The forward-pass operator of each piece of work: for backward work the last of `forwards`."""
        origin = np.where(self.backward, NO_RANGE, self.operator)
        for forward in self.forwards:
            origin = np.where(forward != NO_RANGE, forward, origin)
        return origin


def places(trace: Trace, work: pl.DataFrame, tree: OperatorTree, links: AutogradLinks, frames: PythonFrames) -> Places:
    """The origin of all GPU work of a profile (`Timeline.work`)."""
    no_rows = np.broadcast_to(np.int64(NO_RANGE), work.height)  # takes no memory
    operator: Int64s = no_rows
    backward: Bools = np.broadcast_to(np.False_, work.height)
    forwards: tuple[Int64s, ...] = ()
    if tree.is_operator.any():
        operator = tree.of(work["range"].fill_null(NO_RANGE).to_numpy())
        backward = np.r_[links.in_backward, False][operator]
        forwards = tuple(links.forward_chain(np.where(backward, operator, NO_RANGE)))

    module = function = no_rows
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
            module = np.where(module == NO_RANGE, look_up(frames.enclosing_module, call), module)
        for call in (*calls, waiting):
            function = np.where(function == NO_RANGE, look_up(frames.enclosing_function, call), function)
    work_columns = work.select("kind", "start_ns", "end_ns", "range")
    return Places(work_columns, operator, backward, forwards, module, function)


def _running_at(ranges: pl.DataFrame, frames: PythonFrames, operators: Int64s) -> Int64s:
    """The Python call in which each of these operators began."""
    calls = np.full(len(operators), NO_RANGE, dtype=np.int64)
    known = np.flatnonzero(operators != NO_RANGE)
    rows = operators[known]
    calls[known] = frames.running(
        ranges["process"].to_numpy()[rows].astype(np.int64),
        ranges["thread"].to_numpy()[rows].astype(np.int64),
        ranges["start_ns"].to_numpy()[rows],
    )
    return calls


# --- The recorded Python calls of each thread ---
#
# A profiler that records Python stacks writes three kinds of calls: functions (`model.py(12): forward`), built-ins
# (`<built-in method linear …>`) and the calls of modules (`nn.Module: Linear_3`), whose number identifies the instance
# of a class. Built-ins and module calls have no source line: their launches belong to the function that calls them.

_MODULE = "nn.Module: "


def module_name(name: str) -> str | None:
    """`Linear_3` for `nn.Module: Linear_3`; None for a call of anything else."""
    return name.removeprefix(_MODULE) if name.startswith(_MODULE) else None


@dataclass(frozen=True, eq=False)
class PythonFrames:
    """The Python calls of a profile. Arrays have one entry for each row of `Trace.python_functions`."""

    parent: Int64s  #: row of the calling function on the same thread; `NO_RANGE` for none
    is_module: Bools
    enclosing_module: Int64s  #: itself or the nearest module around it; `NO_RANGE` for none
    enclosing_function: Int64s  #: itself or the nearest call around it that has a source line; `NO_RANGE` for none
    _threads: RangeForest

    @property
    def module_parent(self) -> Int64s:
        """For each call the nearest module strictly around it; `NO_RANGE` for none."""
        return look_up(self.enclosing_module, self.parent)

    @property
    def function_parent(self) -> Int64s:
        """For each call the nearest call with a source line strictly around it; `NO_RANGE` for none."""
        return look_up(self.enclosing_function, self.parent)

    def running(self, process: Int64s, thread: Int64s, when: Int64s) -> Int64s:
        """The innermost call that runs on each thread at that time; `NO_RANGE` for none."""
        return self._threads.open_on(process, thread, when)

    def waiting(self, process: Int64s, thread: Int64s, when: Int64s) -> Int64s:
        """As `running`; where there is none, the call (`Tensor.backward`) of a waiting thread of the process."""
        return self._threads.attribute(process, thread, when)[0]


def python_frames(calls: pl.DataFrame) -> PythonFrames:
    """The Python calls of a profile; `calls` is the table `python_functions` of a `Trace`."""
    parent = calls["parent"].fill_null(NO_RANGE).to_numpy().copy()
    names = name_categories(calls["name"]).to_list()
    codes = calls["name"].to_physical().to_numpy()
    is_module = np.array([name.startswith(_MODULE) for name in names], dtype=np.bool_)[codes]
    has_line = np.array(["): " in name and not name.startswith("<") for name in names], dtype=np.bool_)[codes]
    all_rows = np.arange(calls.height)
    return PythonFrames(
        parent,
        is_module,
        nearest(parent, is_module, all_rows),
        nearest(parent, has_line, all_rows),
        range_forest(calls),
    )
