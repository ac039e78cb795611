"""Where in the program each piece of GPU work comes from: its operators, module and Python function.

Work of the forward pass comes from where it was launched. Work of the backward pass is launched by autograd's thread,
which knows nothing of modules: it comes from where the forward operator ran whose gradient it computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from warplens.analysis.forest import NO_RANGE

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline

__all__ = ["Places", "places"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Places:
    """Arrays alongside `Timeline.work`, or a part of it; rows that do not exist are `NO_RANGE`.

    Attributes:
        duration_ns: of the work.
        is_kernel: whether it is a kernel.
        range: row of the innermost range that the work was launched in.
        operator: row (of `Trace.ranges`) of the innermost operator that launched it.
        backward: whether that operator is part of the backward pass.
        forwards: the forward operators that backward work belongs to: first that of the innermost backward operator,
            then, where that one ran inside the backward pass itself, its own; and so on.
        module: row (of `Trace.python_functions`) of the module that it comes from.
        function: row (of `Trace.python_functions`) of the Python function that it comes from.
    """

    duration_ns: Int64s
    is_kernel: npt.NDArray[np.bool_]
    range: Int64s
    operator: Int64s
    backward: npt.NDArray[np.bool_]
    forwards: tuple[Int64s, ...]
    module: Int64s
    function: Int64s

    def part(self, rows: slice | Int64s) -> Places:
        """The same of some of the work."""
        return Places(
            self.duration_ns[rows],
            self.is_kernel[rows],
            self.range[rows],
            self.operator[rows],
            self.backward[rows],
            tuple(forward[rows] for forward in self.forwards),
            self.module[rows],
            self.function[rows],
        )

    @property
    def linked(self) -> npt.NDArray[np.bool_]:
        """Which backward work has a known forward operator."""
        if not self.forwards:
            return np.zeros(len(self.backward), dtype=np.bool_)
        linked: npt.NDArray[np.bool_] = self.backward & (self.forwards[0] != NO_RANGE)
        return linked

    @property
    def origin(self) -> Int64s:
        """The operator of the forward pass that work comes from: for backward work the last of `forwards`."""
        origin = np.where(self.backward, NO_RANGE, self.operator)
        for forward in self.forwards:
            origin = np.where(forward != NO_RANGE, forward, origin)
        return origin


def places(timeline: Timeline) -> Places:
    """Where all GPU work of a profile comes from."""
    work = timeline.work
    tree, links, frames = timeline.operators, timeline.autograd, timeline.python
    held = work["range"].fill_null(NO_RANGE).to_numpy()
    operator = tree.of(held)
    backward = np.r_[links.in_backward, False][operator]
    forwards = tuple(links.forward_chain(np.where(backward, operator, NO_RANGE)))

    module = np.full(work.height, NO_RANGE, dtype=np.int64)
    function = module.copy()
    if timeline.trace.python_functions.height:
        known = np.flatnonzero(work["launch_start_ns"].is_not_null().to_numpy())
        process = work["process"].to_numpy().astype(np.int64)[known]
        thread = work["thread"].to_numpy()[known].astype(np.int64)
        launched = work["launch_start_ns"].to_numpy()[known].astype(np.int64)
        calls = [np.full(work.height, NO_RANGE, dtype=np.int64)]
        calls[0][known] = frames.running(process, thread, launched)
        calls.extend(_running_at(timeline, forward) for forward in forwards)
        waiting = calls[0].copy()
        waiting[known] = frames.waiting(process, thread, launched)
        for call in calls:
            module = np.where(module == NO_RANGE, np.r_[frames.enclosing_module, NO_RANGE][call], module)
        for call in (*calls, waiting):
            function = np.where(function == NO_RANGE, np.r_[frames.enclosing_function, NO_RANGE][call], function)
    return Places(
        (work["end_ns"] - work["start_ns"]).to_numpy(),
        (work["kind"] == "kernel").to_numpy(),
        held,
        operator,
        backward,
        forwards,
        module,
        function,
    )


def _running_at(timeline: Timeline, operators: Int64s) -> Int64s:
    """The Python call in which each of these operators began."""
    ranges = timeline.trace.ranges
    found = np.full(len(operators), NO_RANGE, dtype=np.int64)
    known = np.flatnonzero(operators != NO_RANGE)
    rows = operators[known]
    found[known] = timeline.python.running(
        ranges["process"].to_numpy()[rows].astype(np.int64),
        ranges["thread"].to_numpy()[rows].astype(np.int64),
        ranges["start_ns"].to_numpy()[rows],
    )
    return found
