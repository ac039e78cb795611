"""The forward pass of a training step that nobody annotated, from the backward pass that it leads to.

Between one backward pass and the next, the operators whose gradients the latter computes mark the forward pass: it
lasts from the first of them to the last on their thread. Besides, an operator that bears a sequence number without
being backward work ran with gradients enabled, which the optimizer and other bookkeeping do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.forest import NO_RANGE

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline

__all__ = ["forward_pass"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def forward_pass(timeline: Timeline) -> Bools:
    """For each row of `Trace.ranges` whether it lies in a forward pass that is inferred in this way.

    Nothing is inferred where no backward operator is linked to a forward one: then the profile holds no training.
    """
    ranges = timeline.trace.ranges
    found = np.zeros(ranges.height, dtype=np.bool_)
    if not timeline.has_operators:
        return found
    links, tree = timeline.autograd, timeline.operators
    backward = np.flatnonzero(links.forward_of != NO_RANGE)
    forward = links.forward_of[backward]
    backward, forward = backward[~links.in_backward[forward]], forward[~links.in_backward[forward]]
    if not len(forward):
        return found
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    process, thread = (ranges[column].to_numpy().astype(np.int64) for column in ("process", "thread"))
    outermost = tree.forest.outermost_match(np.where(tree.is_operator, np.arange(1, len(start) + 1), 0)) - 1
    places = np.unique(np.stack((process[forward], thread[forward])), axis=1).T
    for pid, tid in places.tolist():
        mine = (process[forward] == pid) & (thread[forward] == tid)
        roots = np.unique(outermost[forward[mine]])
        begins = np.sort(start[backward[mine]])
        roots = roots[np.argsort(start[roots], kind="stable")]
        # Forward operators with the same number of backward ones before them belong to one pass.
        cuts = np.flatnonzero(np.diff(np.searchsorted(begins, start[roots]))) + 1
        firsts, lasts = np.r_[0, cuts], np.r_[cuts, len(roots)] - 1
        here = np.flatnonzero((process == pid) & (thread == tid))
        span = np.searchsorted(start[roots[firsts]], start[here], side="right") - 1
        inside = (span >= 0) & (end[here] <= end[roots[lasts]][np.maximum(span, 0)])
        found[here[inside]] = True
    found[_with_gradients(timeline)] = True
    return found & ~links.in_backward


def _with_gradients(timeline: Timeline) -> Int64s:
    numbered = timeline.trace.operators.filter((pl.col("sequence") >= 0) & ~(pl.col("forward_thread").fill_null(0) > 0))
    rows: Int64s = numbered["range"].to_numpy()
    return rows
