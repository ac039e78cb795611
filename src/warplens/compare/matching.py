"""Which kernel launch of one side is which of the other: slots of a step, matching in stages."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.categories import OTHER, categories_of
from warplens.analysis.frames import sum_by
from warplens.compare.host import Side
from warplens.compare.places import RangePaths, range_paths
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Float64s, Int64s
from warplens.profile.spelling import spelled_for_all_tools
from warplens.profile.trace import LAUNCH_SIZE

#: One step of a large model launches some ten thousand kernels. Windows that are not divided into steps hold more, and
#: have no order that repeats.
_MOST: Final = 50_000


def in_order(left: Float64s, right: Float64s) -> Int64s | None:
    """The largest set of pairs whose places ascend on both sides.

    Args:
        left, right: shape (n,), the places of the two launches of each pair.

    Returns:
        Rows of the pairs, by place; None where there are too many to be one step.

    Source of the method: C. Schensted, Longest increasing and decreasing subsequences, Canad. J. Math. 13 (1961).
    """
    if len(left) > _MOST:
        return None
    order = np.lexsort((-right, left))  # of pairs at one place on the left, at most one can be taken
    values = right[order].tolist()
    tails: list[float] = []  # the smallest last value of an ascending row of each length
    ends: list[int] = []  # … and where it stands
    before = np.empty(len(values), dtype=np.int64)
    for position, value in enumerate(values):
        length = bisect_left(tails, value)
        before[position] = ends[length - 1] if length else -1
        if length == len(tails):
            tails.append(value)
            ends.append(position)
        else:
            tails[length], ends[length] = value, position
    chain = []
    position = ends[-1] if ends else -1
    while position >= 0:
        chain.append(position)
        position = int(before[position])
    rows: Int64s = order[np.array(chain[::-1], dtype=np.int64)]
    return rows


# --- The kernels of one side's step as slots: "the second launch of this kernel, in this range, with this grid" ------
# A slot stands for the same launch in every step of the window, so that steps can be averaged kernel by kernel, and two
# sides matched launch by launch. A launch that not every step makes is a slot that not every step fills.


KINDS: Final = table(
    "comparison: kinds of launches",
    "One kind of launch of a side: a kernel at a place with a shape. `warplens.compare.matching`.",
    Column("identity", pl.String, "the kernel's full name in a spelling that both sides share"),
    "full_name name category",
    column("path", dtype=pl.Int64, help="position in `Slots.places.paths`", kind="count"),
    (Column(name, pl.Int32, f"{name[:-2]}, {name[-1]}") for name in LAUNCH_SIZE),
)

#: A table of all values up to the largest finds the distinct ones without sorting, while it stays about so long.
_TABLE_FACTOR: Final = 4
_TABLE_LEAST: Final = 1 << 20


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of one side, in order of their place in the step."""

    kinds: pl.DataFrame  #: `KINDS`
    places: RangePaths  #: the range paths
    kind: Int64s  #: shape (m,), for each slot its row in `kinds`
    place: Float64s  #: shape (m,), its mean position in the step's launch order
    #: launches, total_ns, host_ns: shape (m,), its launches over all steps, the sum of their durations, and what
    #: launching them cost the host
    launches: Int64s
    total_ns: Int64s
    host_ns: Int64s
    #: slot, step, time_ns: shape (n,), for each kernel its slot, its step and its duration
    slot: Int64s
    step: Int64s
    time_ns: Int64s
    steps: int  #: number of steps
    knows_host: bool  #: whether launching calls were recorded; without, `host_ns` says nothing


def slots_of(side: Side, *, respelled: bool = False) -> Slots:
    """The kernels of the side's steps, as slots.

    Args:
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
    kernels = side.timeline.trace.kernels.select("full_name", "name", *LAUNCH_SIZE)[launched["row"].to_numpy()]
    kernels = kernels.with_columns(pl.Series("path", places.of_work(launched)))
    kind, first = _numbered(kernels, ["full_name", "path", *LAUNCH_SIZE])
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
    identity = pl.Series([spelled_for_all_tools(name) for name in names], dtype=pl.String) if respelled else names
    kinds = kinds.with_columns(identity.alias("identity"), categories.alias("category"))
    return KINDS.conform(kinds)


def _numbered(frame: pl.DataFrame, columns: list[str]) -> tuple[Int64s, Int64s]:
    """For each row the number of its distinct values, and for each number the first row that has them."""
    code, found = np.zeros(frame.height, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for name in columns:
        values = frame[name]
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


# --- Which kernel launch of one side is which launch of the other: in stages, from the surest to the loosest ---------
# A launch is matched once. Each stage takes what the ones before it left over, groups it by what the stage compares,
# and matches the launches of a group in order: the first with the first, the second with the second. The last stages
# compare names that say little, and so ask for the same place in the step, too: between the same two launches that are
# matched already and stand in the same order on both sides. What is left over at the end exists on one side only.


#: What the launches of a match have in common, the surest first → the columns that the stage compares.
_STAGES: Final = {
    "name, range, shape": ("identity", "place_name", *LAUNCH_SIZE),
    "name, range": ("identity", "place_name"),
    "name, shape": ("identity", *LAUNCH_SIZE),
    "name": ("identity",),
    "short name, range": ("name", "place_name", "category"),
}
#: The stages that follow the order of launches → the columns that they compare beside it.
_ORDERED_STAGES: Final = {"short name, order": ("name",), "category, order": ("category",)}

#: What the launches of a match have in common, the surest first.
MATCHES: Final = (*_STAGES, *_ORDERED_STAGES)


@dataclass(frozen=True, eq=False)
class Matching:
    """Matched slots."""

    #: baseline, variant: shape (m,), the slots of each pair
    baseline: Int64s
    variant: Int64s
    stage: Int64s  #: shape (m,), position in `MATCHES`


def match_slots(baseline: Slots, variant: Slots) -> Matching:
    """Pairs of slots, no slot in more than one of them."""
    sides = (baseline, variant)
    rest = [np.arange(len(side.kind)) for side in sides]
    codes = _Codes(baseline, variant)
    pairs: list[tuple[Int64s, Int64s]] = []
    for columns in _STAGES.values():
        keys = codes.of(columns)
        pairs.append(_in_order(rest, [keys[n][side.kind[rest[n]]] for n, side in enumerate(sides)]))
        rest = [_without(rest[n], pairs[-1][n], sides[n]) for n in (0, 1)]
    anchors = _anchors(baseline, variant, pairs) if all(map(len, rest)) else None
    if anchors is not None:
        rest = [rows[codes.has_category[n][sides[n].kind[rows]]] for n, rows in enumerate(rest)]
    for columns in _ORDERED_STAGES.values():
        if anchors is None:
            break
        keys = codes.of(columns)
        segments = [np.searchsorted(anchors[n], side.place[rest[n]]) for n, side in enumerate(sides)]
        width = max(int(key.max(initial=0)) for key in keys) + 1
        pairs.append(
            _in_order(rest, [segments[n] * width + keys[n][side.kind[rest[n]]] for n, side in enumerate(sides)])
        )
        rest = [_without(rest[n], pairs[-1][n], sides[n]) for n in (0, 1)]
    return Matching(
        np.concatenate([pair[0] for pair in pairs]),
        np.concatenate([pair[1] for pair in pairs]),
        np.repeat(np.arange(len(pairs)), [len(pair[0]) for pair in pairs]),
    )


class _Codes:
    """Numbers for what the kinds of both sides have in some columns: the same number for the same values."""

    def __init__(self, baseline: Slots, variant: Slots) -> None:
        self._cut = baseline.kinds.height
        self._kinds = pl.concat([_with_place_name(baseline), _with_place_name(variant)])
        # That two kernels are both of no known category does not make them alike.
        self.has_category = self._split((self._kinds["category"] != OTHER).to_numpy())

    def of(self, columns: tuple[str, ...]) -> tuple[Int64s, Int64s]:
        """For the kinds of each side the number of their values in these columns."""
        numbers = self._kinds.select(pl.struct(columns).rank("dense").cast(pl.Int64)).to_series().to_numpy()
        return self._split(numbers)

    def _split(self, values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return values[: self._cut], values[self._cut :]


def _with_place_name(slots: Slots) -> pl.DataFrame:
    """The kinds with the name of their place, which both sides can have."""
    names = pl.Series("place_name", ["\x1f".join(path) for path in slots.places.paths], dtype=pl.String)
    return slots.kinds.with_columns(names.gather(slots.kinds["path"]), pl.col(LAUNCH_SIZE).fill_null(-1))


def _in_order(rows: list[Int64s], keys: list[Int64s]) -> tuple[Int64s, Int64s]:
    """The slots of both sides with the same key, the first with the first, and so on; `rows` ascend."""
    joint, found = distinct(np.concatenate(keys))
    codes = joint[: len(keys[0])], joint[len(keys[0]) :]
    both = np.minimum(*(np.bincount(code, minlength=len(found)) for code in codes))
    # Sorted by key, what is left on either side lies one to one: as many of each key, in their order.
    chosen = []
    for slots, code in zip(rows, codes, strict=True):
        kept = np.flatnonzero(rank_within(code) < both[code])
        chosen.append(slots[kept[np.argsort(code[kept], kind="stable")]])
    return chosen[0], chosen[1]


def _without(rows: Int64s, taken: Int64s, side: Slots) -> Int64s:
    left = np.ones(len(side.kind), dtype=np.bool_)
    left[taken] = False
    return rows[left[rows]]


def _anchors(baseline: Slots, variant: Slots, pairs: list[tuple[Int64s, Int64s]]) -> tuple[Float64s, Float64s] | None:
    """The places of the matched launches that stand in the same order on both sides."""
    left = baseline.place[np.concatenate([pair[0] for pair in pairs])]
    right = variant.place[np.concatenate([pair[1] for pair in pairs])]
    rows = in_order(left, right)
    return None if rows is None else (left[rows], right[rows])
