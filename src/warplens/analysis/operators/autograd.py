"""Which forward operator each backward operator belongs to.

Autograd numbers the nodes of its graph: a forward operator bears the number that the next node will get, and the
backward operator that runs a node bears the node's number and the number of the thread that made it. So several forward
operators bear one number (`aten::linear` and the `aten::t` inside it), and the one that began last before the backward
operator made the node: this is the rule by which PyTorch draws its own arrows (`torch/csrc/profiler/kineto_shim` and
`collection`, "among all ops with same sequence number, the one with largest start time is most likely launching the
backward op"). Where the profile holds those arrows, they are used first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.forest import NO_RANGE, Forest
from warplens.analysis.phasenames import AUTOGRAD_ENGINE
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from warplens.analysis.operators.tree import OperatorTree
    from warplens.profile import Trace

__all__ = ["AutogradLinks", "autograd_links"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AutogradLinks:
    """Backward operators and their forward operators. All arrays have one entry for each row of `Trace.ranges`.

    Attributes:
        forward_of: row of the forward operator that a backward operator runs the gradient of; `NO_RANGE` for none.
        in_backward: which operators are or lie in a backward operator, linked or not.
        linked: for each operator the innermost linked backward operator that it is or lies in; `NO_RANGE` for none.
    """

    forward_of: Int64s
    in_backward: npt.NDArray[np.bool_]
    linked: Int64s

    def forward_chain(self, operators: Int64s) -> list[Int64s]:
        """The forward operators that these operators (rows of `Trace.ranges`, or `NO_RANGE`) work for.

        A forward operator may itself run inside the backward pass (activation checkpointing): then the next array
        holds the forward operator of that backward operator, and so on.
        """
        chain = []
        current = self._forward(operators)
        while np.any(current != NO_RANGE):
            chain.append(current)
            current = self._forward(current)
        return chain

    def _forward(self, operators: Int64s) -> Int64s:
        backward = np.r_[self.linked, NO_RANGE][operators]
        forward: Int64s = np.r_[self.forward_of, NO_RANGE][backward]
        return forward


def autograd_links(trace: Trace, tree: OperatorTree) -> AutogradLinks:
    """Links each backward operator of a profile to its forward operator."""
    count = trace.ranges.height
    forward_of = np.full(count, NO_RANGE, dtype=np.int64)
    arrows = trace.autograd_links
    forward_of[arrows["backward"].to_numpy()] = arrows["forward"].to_numpy()
    numbered = _by_sequence(trace)
    rows = numbered["range"].to_numpy()
    fresh = forward_of[rows] == NO_RANGE
    forward_of[rows[fresh]] = numbered["forward"].to_numpy()[fresh]
    _lift_to_engine(trace, tree.forest, forward_of)

    is_backward = forward_of != NO_RANGE
    is_backward[_backward_rows(trace)] = True
    is_backward |= _named_by_engine(trace) & tree.is_operator
    row = np.arange(1, count + 1)
    in_backward = tree.forest.outermost_match(np.where(is_backward, row, 0)) > 0
    linked = tree.forest.innermost_match(np.where(forward_of != NO_RANGE, row, 0)) - 1
    return AutogradLinks(forward_of, in_backward, linked)


def _backward_rows(trace: Trace) -> Int64s:
    mine = trace.operators.filter(pl.col("forward_thread") > 0)
    rows: Int64s = mine["range"].to_numpy()
    return rows


def _named_by_engine(trace: Trace) -> npt.NDArray[np.bool_]:
    names = trace.ranges["name"]
    if not names.len():
        return np.zeros(0, dtype=np.bool_)
    by_name = np.array([text.startswith(AUTOGRAD_ENGINE) for text in name_categories(names)], dtype=np.bool_)
    named: npt.NDArray[np.bool_] = by_name[names.to_physical().to_numpy()]
    return named


def _lift_to_engine(trace: Trace, forest: Forest, forward_of: Int64s) -> None:
    """The engine's operator around a linked one works for the same node: it sums what broadcasting had expanded."""
    engine = np.flatnonzero(_named_by_engine(trace) & (forward_of == NO_RANGE))
    wanted = np.zeros(len(forward_of), dtype=np.bool_)
    wanted[engine] = True
    inner = np.flatnonzero(forward_of != NO_RANGE)
    above = forest.parent[inner]
    direct = (above != NO_RANGE) & wanted[np.maximum(above, 0)]
    forward_of[above[direct]] = forward_of[inner[direct]]


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
    threads = _forward_threads(forward, backward)
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


def _forward_threads(forward: pl.DataFrame, backward: pl.DataFrame) -> pl.DataFrame:
    """Autograd's numbers of threads (`forward_thread`) with the operating system's (`thread`).

    The two are not recorded side by side. A number belongs to the thread whose forward operators bear most of the
    sequence numbers that backward operators ask that number for.
    """
    shared = (
        backward.select("process", "forward_thread", "sequence")
        .unique()
        .join(forward.select("process", "thread", "sequence").unique(), on=["process", "sequence"])
        .group_by("process", "forward_thread", "thread")
        .agg(pl.len().alias("shared"))
    )
    return (
        shared.sort("shared", "thread", descending=[True, False])
        .unique(["process", "forward_thread"], keep="first", maintain_order=True)
        .select("process", "forward_thread", "thread")
    )
