"""The kernels of one side's step as slots: "the second launch of this kernel, in this range, with this grid".

A slot stands for the same launch in every step of the window, so that steps can be averaged kernel by kernel, and two
sides matched launch by launch. A launch that not every step makes is a slot that not every step fills.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.categories import categories_of
from warplens.compare.difference.places import RangePaths, range_paths
from warplens.compare.difference.spelling import spelled

if TYPE_CHECKING:
    from warplens.compare.difference.sides import Side

__all__ = ["KIND_SCHEMA", "SHAPE", "Slots", "distinct", "rank_within", "slots_of", "sum_by"]

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

#: The columns that tell launches of one kernel apart.
SHAPE: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")

#: One row a kind of launch: a kernel at a place with a shape. `identity` is the kernel's full name in a spelling that
#: both sides share, `path` a position in `Slots.places.paths`.
KIND_SCHEMA: Final = pl.Schema(
    {
        "identity": pl.String(),
        "full_name": pl.String(),
        "name": pl.String(),
        "category": pl.String(),
        "path": pl.Int64(),
        **dict.fromkeys(SHAPE, pl.Int32()),
    }
)

#: A table of all values up to the largest finds the distinct ones without sorting, while it stays about so long.
_TABLE_FACTOR: Final = 4
_TABLE_LEAST: Final = 1 << 20


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of one side, in order of their place in the step.

    Attributes:
        kinds: `KIND_SCHEMA`.
        places: the range paths.
        kind: shape (m,), for each slot its row in `kinds`.
        place: shape (m,), its mean position in the step's launch order.
        launches, total_ns, host_ns: shape (m,), its launches over all steps, the sum of their durations, and what
            launching them cost the host.
        slot, step, time_ns: shape (n,), for each kernel its slot, its step and its duration.
        steps: number of steps.
        knows_host: whether launching calls were recorded; without, `host_ns` says nothing.
    """

    kinds: pl.DataFrame
    places: RangePaths
    kind: Int64s
    place: Float64s
    launches: Int64s
    total_ns: Int64s
    host_ns: Int64s
    slot: Int64s
    step: Int64s
    time_ns: Int64s
    steps: int
    knows_host: bool


def slots_of(side: Side, *, respelled: bool = False) -> Slots:
    """The kernels of the side's steps, as slots.

    Args:
        side: the side.
        respelled: whether another tool wrote the other side's names, so that both need one spelling.
    """
    places = range_paths(side.timeline)
    is_kernel = np.flatnonzero((side.work["kind"] == "kernel").to_numpy())
    launched = side.work.select("row", "start_ns", "end_ns", "launch_start_ns", "range")[is_kernel]
    step = side.step_of_work[is_kernel]
    # Launch order is the program's order; streams may run it in another one. Nodes of a graph share their launch.
    order = np.lexsort(
        (launched["start_ns"].to_numpy(), launched.select(pl.coalesce("launch_start_ns", "start_ns")).to_series(), step)
    )
    launched, step = launched[order], step[order]
    kernels = side.timeline.trace.kernels.select("full_name", "name", *SHAPE)[launched["row"].to_numpy()]
    kernels = kernels.with_columns(pl.Series("path", places.of_work(launched)))
    kind, first = _numbered(kernels, ["full_name", "path", *SHAPE])
    occurrence = rank_within(step * max(len(first), 1) + kind)
    most = int(occurrence.max(initial=0)) + 1
    slot, found = distinct(kind * most + occurrence)
    launches = np.bincount(slot, minlength=len(found))
    place = np.bincount(slot, weights=_rank(step), minlength=len(found)) / np.maximum(launches, 1)
    time_ns = (launched["end_ns"] - launched["start_ns"]).to_numpy()
    issuing = side.issue_ns
    host_ns = np.zeros(len(order), dtype=np.int64) if issuing is None else issuing[is_kernel][order]
    by_place = np.argsort(place, kind="stable")
    number = np.empty(len(found), dtype=np.int64)
    number[by_place] = np.arange(len(found))
    return Slots(
        _described(kernels[first], categories_of(kernels["full_name"][first]), respelled),
        places,
        (found // most)[by_place],
        place[by_place],
        launches[by_place],
        sum_by(slot, time_ns, len(found))[by_place],
        sum_by(slot, host_ns, len(found))[by_place],
        number[slot],
        step,
        time_ns,
        side.repeats,
        issuing is not None,
    )


def _described(kinds: pl.DataFrame, categories: pl.Series, respelled: bool) -> pl.DataFrame:
    names = kinds["full_name"].cast(pl.String)
    identity = pl.Series([spelled(name) for name in names], dtype=pl.String) if respelled else names
    kinds = kinds.with_columns(identity.alias("identity"), categories.alias("category"))
    return kinds.select([pl.col(name).cast(dtype) for name, dtype in KIND_SCHEMA.items()])


def _numbered(frame: pl.DataFrame, columns: list[str]) -> tuple[Int64s, Int64s]:
    """For each row the number of its distinct values, and for each number the first row that has them."""
    code, found = np.zeros(frame.height, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for column in columns:
        values = frame[column]
        numbers = (values.to_physical() if values.dtype == pl.Enum else values.fill_null(-1)).cast(pl.Int64).to_numpy()
        if len(numbers) and (numbers == numbers[0]).all():
            continue
        position, of_column = distinct(numbers - int(numbers.min(initial=0)))
        # Renumbered from 0 after each column, so that the product never overflows.
        code, found = distinct(code * len(of_column) + position)
    first = np.full(len(found), frame.height, dtype=np.int64)
    np.minimum.at(first, code, np.arange(frame.height))
    return code, first[: len(found) if frame.height else 0]


def distinct(values: Int64s) -> tuple[Int64s, Int64s]:
    """For each value, none below 0, its position among the distinct ones, and those in ascending order."""
    most = int(values.max(initial=-1)) + 1
    if most > _TABLE_FACTOR * len(values) + _TABLE_LEAST:
        found, position = np.unique(values, return_inverse=True)
        return position.reshape(-1).astype(np.int64), found
    seen = np.zeros(most, dtype=np.bool_)
    seen[values] = True
    positions = np.cumsum(seen) - 1
    return positions[values], np.flatnonzero(seen)


def sum_by(groups: Int64s, amounts: Int64s, count: int) -> Int64s:
    """The exact sum of the amounts of each group, shape (count,)."""
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, groups, amounts)
    return sums


def _rank(groups: Int64s) -> Int64s:
    """The position of each row within its run of equal, ascending groups."""
    if not len(groups):
        return groups
    begins = np.r_[True, groups[1:] != groups[:-1]]
    starts = np.flatnonzero(begins)
    ranks: Int64s = np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))
    return ranks


def rank_within(groups: Int64s) -> Int64s:
    """How many rows of the same group stand before each row."""
    order = np.argsort(groups, kind="stable")
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = _rank(groups[order])
    return ranks
