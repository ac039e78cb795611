"""The operators of each thread as trees, with the host time of each.

An operator's children are the operators that run inside it on the same thread, whatever annotation stands in between.
Its host time has three parts: the operators inside it, the CUDA API calls that it makes itself, and the rest, which is
the framework's own work (dispatch, shape checks, allocation): PyTorch calls that *self CPU time*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from warplens.analysis.attribution import NO_RANGE, RangeForest, is_operator
from warplens.analysis.forest import Forest, nearest
from warplens.analysis.intervals import owned_union

if TYPE_CHECKING:
    from warplens.profile import Trace

__all__ = ["OperatorTree", "operator_tree"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OperatorTree:
    """The operators of a profile. All arrays have one entry for each row of `Trace.ranges`.

    Attributes:
        is_operator: which ranges are operators.
        enclosing: for any range itself or the nearest operator around it on its thread; `NO_RANGE` for none.
        forest: each operator's parent among the operators; other ranges stand alone.
        host_ns: duration of each operator.
        api_ns: time in CUDA API calls made inside it, at any depth.
        self_ns: host time that is neither in operators inside it nor in CUDA API calls that it makes itself.
    """

    is_operator: npt.NDArray[np.bool_]
    enclosing: Int64s
    forest: Forest
    host_ns: Int64s
    api_ns: Int64s
    self_ns: Int64s

    @property
    def is_outermost(self) -> npt.NDArray[np.bool_]:
        """Which operators lie in no other one."""
        outermost: npt.NDArray[np.bool_] = self.is_operator & (self.forest.parent == NO_RANGE)
        return outermost

    def of(self, ranges: Int64s) -> Int64s:
        """The operator that each of these ranges is or lies in; `NO_RANGE` for none, and for `NO_RANGE`."""
        operators: Int64s = np.r_[self.enclosing, NO_RANGE][ranges]
        return operators


def operator_tree(trace: Trace, ranges: RangeForest) -> OperatorTree:
    """The operators of a profile; `ranges` is the `forest` of its `Timeline`."""
    table = trace.ranges
    mine = is_operator(table)
    same_thread = table["parent"].fill_null(NO_RANGE).to_numpy()
    enclosing = nearest(same_thread, mine, np.arange(table.height))
    above = nearest(same_thread, mine, same_thread)
    parent = np.where(mine, above, NO_RANGE)
    forest = Forest.of(parent)
    host = np.where(mine, (table["end_ns"] - table["start_ns"]).to_numpy(), 0)
    in_children = np.zeros(table.height, dtype=np.int64)
    nested = np.flatnonzero(parent != NO_RANGE)
    np.add.at(in_children, parent[nested], host[nested])
    api = _direct_api_ns(trace, ranges, enclosing)
    # Clocks are read one after the other: a child that was written to end after its parent must not make time negative.
    own = np.maximum(host - in_children - api, 0)
    return OperatorTree(mine, enclosing, forest, host, forest.inclusive(api), np.where(mine, own, 0))


def _direct_api_ns(trace: Trace, ranges: RangeForest, enclosing: Int64s) -> Int64s:
    """Time in CUDA API calls that each operator makes itself; a call made inside another one is part of that one."""
    spent = np.zeros(len(enclosing), dtype=np.int64)
    calls = trace.api_calls.select("start_ns", "end_ns", "process", "thread")
    if not calls.height or not len(enclosing):
        return spent
    for (process, thread), rows in calls.group_by("process", "thread", maintain_order=True):
        pieces = owned_union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        count = len(pieces.starts)
        held = ranges.open_on(
            np.full(count, process, dtype=np.int64), np.full(count, thread, dtype=np.int64), pieces.starts
        )
        owner = np.r_[enclosing, NO_RANGE][held]
        known = owner != NO_RANGE
        np.add.at(spent, owner[known], (pieces.ends - pieces.starts)[known])
    return spent
