"""Matches the kernel launches of two sides, in stages, by slots of a step."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.categories import OTHER, categories_of
from warplens.analysis.frames import numbered, sum_by
from warplens.analysis.kernel_names import PRODUCTS
from warplens.compare.places import RangePaths, range_paths
from warplens.compare.side import Side
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Float64s, Int64s
from warplens.profile.spelling import spelled_for_all_tools
from warplens.profile.trace import LAUNCH_SIZE

#: Most pairs for matching by order. A step of a large model launches some ten thousand kernels; windows without steps
#: have more, and no repeating order.
_MOST: Final = 50_000


def in_order(left: Float64s, right: Float64s) -> Int64s | None:
    """The largest set of pairs whose positions, each of shape (n,), ascend on both sides.

    Indices of the pairs, by position; None if there are too many for one step. Source of the method: C. Schensted,
    Longest increasing and decreasing subsequences, Canad. J. Math. 13 (1961).
    """
    if len(left) > _MOST:
        return None
    order = np.lexsort((-right, left))  # descending on the right, so that of equal left positions at most one is taken
    values = right[order].tolist()
    tails: list[float] = []  # the smallest last value of an ascending sequence of each length
    ends: list[int] = []  # and its position
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
# A slot is the same launch in every step of the window, so that steps can be averaged kernel by kernel, and two sides
# matched launch by launch. A launch that does not occur in every step is a slot that is empty in some steps.

KINDS: Final = table(
    "comparison: kinds of launches",
    "One kind of launch of a side: a kernel at a place with a shape. `warplens.compare.matching`.",
    Column("identity", pl.String, "the kernel's full name in a spelling that both sides share"),
    "full_name name category",
    column("path", dtype=pl.Int64, help="position in `Slots.places.paths`", kind="count"),
    (Column(name, pl.Int32, f"{name[:-2]}, {name[-1]}") for name in LAUNCH_SIZE),
)

#: `distinct` uses a table of all values up to the largest, which needs no sorting, if its length is at most this factor
#: times the number of values, plus `_TABLE_LEAST`.
_TABLE_FACTOR: Final = 4
_TABLE_LEAST: Final = 1 << 20


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of one side, sorted by their position in the step."""

    kinds: pl.DataFrame  #: `KINDS`
    places: RangePaths  #: the range paths
    kind: Int64s  #: shape (m,), row of each slot in `kinds`
    place: Float64s  #: shape (m,), mean position of each slot in the launch order of the step
    #: launches, total_ns, host_ns: shape (m,), launches of each slot in all steps, their total duration, and the cost
    #: of launching them on the host
    launches: Int64s
    total_ns: Int64s
    host_ns: Int64s
    #: slot, step, time_ns: shape (n,), slot, step and duration of each kernel
    slot: Int64s
    step: Int64s
    time_ns: Int64s
    steps: int  #: number of steps
    knows_host: bool  #: whether launching calls were recorded, so that `host_ns` is known


def slots_of(side: Side, *, respelled: bool = False) -> Slots:
    """The kernels of the side's steps, as slots.

    `respelled`: another tool wrote the names of the other side, so that both need a common spelling.
    """
    places = range_paths(side.timeline)
    is_kernel = np.flatnonzero((side.work["kind"] == "kernel").to_numpy())
    launched = side.work.select("row", "start_ns", "end_ns", "launch_start_ns", "range")[is_kernel]
    step = side.step_of_work[is_kernel]
    # Sorted by launch, the order of the program, since streams may run kernels in another order; then by start, since
    # nodes of a graph share their launch.
    order = np.lexsort(
        (launched["start_ns"].to_numpy(), launched.select(pl.coalesce("launch_start_ns", "start_ns")).to_series(), step)
    )
    launched, step = launched[order], step[order]
    kernels = side.timeline.trace.kernels.select("full_name", "name", *LAUNCH_SIZE)[launched["row"].to_numpy()]
    kernels = kernels.with_columns(pl.Series("path", places.of_work(launched)))
    kinds, kind = numbered(kernels, kernels.columns)
    # By the codes of their names, so that equal changes keep their order.
    by_name = kinds.select(pl.arg_sort_by(pl.col("full_name").to_physical(), "path", *LAUNCH_SIZE)).to_series()
    kinds, kind = kinds[by_name], by_name.arg_sort().to_numpy().astype(np.int64)[kind]
    occurrence = rank_within(step * max(kinds.height, 1) + kind)
    most_occurrences = int(occurrence.max(initial=0)) + 1
    slot, slot_keys = distinct(kind * most_occurrences + occurrence)
    launches = np.bincount(slot, minlength=len(slot_keys))
    position = np.bincount(slot, weights=_rank(step), minlength=len(slot_keys)) / np.maximum(launches, 1)
    time_ns = (launched["end_ns"] - launched["start_ns"]).to_numpy()
    issuing = side.issue_ns
    host_ns = np.zeros(len(order), dtype=np.int64) if issuing is None else issuing[is_kernel][order]
    by_position = np.argsort(position, kind="stable")
    new_index = np.empty(len(slot_keys), dtype=np.int64)
    new_index[by_position] = np.arange(len(slot_keys))
    return Slots(
        _described(kinds, respelled),
        places,
        (slot_keys // most_occurrences)[by_position],
        position[by_position],
        launches[by_position],
        sum_by(slot, time_ns, len(slot_keys))[by_position],
        sum_by(slot, host_ns, len(slot_keys))[by_position],
        new_index[slot],
        step,
        time_ns,
        side.repeats,
        issuing is not None,
    )


def _described(kinds: pl.DataFrame, respelled: bool) -> pl.DataFrame:
    names = kinds["full_name"].cast(pl.String)
    identity = pl.Series([spelled_for_all_tools(name) for name in names], dtype=pl.String) if respelled else names
    return KINDS.conform(kinds.with_columns(identity=identity, category=categories_of(kinds["full_name"])))


def distinct(values: Int64s) -> tuple[Int64s, Int64s]:
    """For each value (at least 0) its index among the distinct ones, and the distinct values in ascending order."""
    size = int(values.max(initial=-1)) + 1
    if size > _TABLE_FACTOR * len(values) + _TABLE_LEAST:
        distinct_values, index = np.unique(values, return_inverse=True)
        return index.reshape(-1).astype(np.int64), distinct_values
    seen = np.zeros(size, dtype=np.bool_)
    seen[values] = True
    positions = np.cumsum(seen) - 1
    return positions[values], np.flatnonzero(seen)


def _rank(groups: Int64s) -> Int64s:
    """The position of each row within its run of equal groups; the groups are ascending."""
    if not len(groups):
        return groups
    begins = np.r_[True, groups[1:] != groups[:-1]]
    starts = np.flatnonzero(begins)
    ranks: Int64s = np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))
    return ranks


def rank_within(groups: Int64s) -> Int64s:
    """For each row the number of rows of the same group before it."""
    order = np.argsort(groups, kind="stable")
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = _rank(groups[order])
    return ranks


# --- Matching of launches in stages, from the strictest to the loosest ------------------------------------------------
# Each stage takes the launches that the stages before left over, groups them by the columns that it compares, and
# matches the launches of a group in order: the first with the first, the second with the second. The last stages
# compare uninformative names, and therefore also require the same position in the step: between the same two launches
# that are matched already and have the same order on both sides. Launches left over at the end are on one side only.

#: The columns that each stage compares, by what the launches have in common, the strictest first.
_STAGES: Final = {
    "name, range, shape": ("identity", "place_name", *LAUNCH_SIZE),
    "name, range": ("identity", "place_name"),
    "name, shape": ("identity", *LAUNCH_SIZE),
    "name": ("identity",),
    "short name, range": ("name", "place_name", "category"),
}
#: The stages that also require the same order of launches, with the columns that they compare.
_ORDERED_STAGES: Final = {"short name, order": ("name",), "category, order": ("category",)}

#: The names of all stages.
MATCHES: Final = (*_STAGES, *_ORDERED_STAGES)


@dataclass(frozen=True, eq=False)
class Matching:
    """Matched slots."""

    #: baseline, variant: shape (m,), the slots of each pair
    baseline: Int64s
    variant: Int64s
    stage: Int64s  #: shape (m,), index in `MATCHES`


def match_slots(baseline: Slots, variant: Slots) -> Matching:
    """Pairs of slots; each slot is in at most one of them."""
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
    """Codes of the kinds of both sides by some columns: equal codes mean equal values."""

    def __init__(self, baseline: Slots, variant: Slots) -> None:
        self._cut = baseline.kinds.height
        self._kinds = pl.concat([_comparable(baseline), _comparable(variant)])
        # Two kernels of unknown category are not alike.
        self.has_category = self._split((self._kinds["category"] != OTHER).to_numpy())

    def of(self, columns: tuple[str, ...]) -> tuple[Int64s, Int64s]:
        """The codes of the kinds of each side by these columns."""
        numbers = self._kinds.select(pl.struct(columns).rank("dense").cast(pl.Int64)).to_series().to_numpy()
        return self._split(numbers)

    def _split(self, values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return values[: self._cut], values[self._cut :]


def _comparable(slots: Slots) -> pl.DataFrame:
    """The kinds with what compares between sides: `place_name`, the path of ranges, and `role`, the short name.

    Products all have one role, since their names depend on sizes and number formats. Sizes that are unknown are −1.
    """
    names = pl.Series("place_name", ["\x1f".join(path) for path in slots.places.paths], dtype=pl.String)
    role = pl.when(pl.col("category").is_in(PRODUCTS)).then(pl.lit("product")).otherwise(pl.col("name").cast(pl.String))
    return slots.kinds.with_columns(names.gather(slots.kinds["path"]), pl.col(LAUNCH_SIZE).fill_null(-1), role=role)


def _in_order(rows: list[Int64s], keys: list[Int64s]) -> tuple[Int64s, Int64s]:
    """Pairs of slots with the same key, in order; `rows` ascend."""
    joint, distinct_keys = distinct(np.concatenate(keys))
    codes = joint[: len(keys[0])], joint[len(keys[0]) :]
    pair_counts = np.minimum(*(np.bincount(code, minlength=len(distinct_keys)) for code in codes))
    # Both sides have the same number of slots of each key; sorted by key, they are aligned.
    chosen = []
    for slots, code in zip(rows, codes, strict=True):
        kept = np.flatnonzero(rank_within(code) < pair_counts[code])
        chosen.append(slots[kept[np.argsort(code[kept], kind="stable")]])
    return chosen[0], chosen[1]


def _without(rows: Int64s, taken: Int64s, side: Slots) -> Int64s:
    left = np.ones(len(side.kind), dtype=np.bool_)
    left[taken] = False
    return rows[left[rows]]


def _anchors(baseline: Slots, variant: Slots, pairs: list[tuple[Int64s, Int64s]]) -> tuple[Float64s, Float64s] | None:
    """The positions of the matched launches that have the same order on both sides."""
    left = baseline.place[np.concatenate([pair[0] for pair in pairs])]
    right = variant.place[np.concatenate([pair[1] for pair in pairs])]
    rows = in_order(left, right)
    return None if rows is None else (left[rows], right[rows])


# --- Whether both sides run the same program --------------------------------------------------------------------------
# A change of a program leaves traces of it: another batch or number format keeps the order of its kernels, whatever
# their sizes and names; a compiler or other passes over memory keep the products. Decision 47 has the measurements.

#: Launches of a sequence whose order is compared.
_SEQUENCE: Final = 8
#: Of two different programs, a smaller part of the launches, and of the sequences, also occurs in the other one.
_FEW_LAUNCHES: Final = 0.2
_FEW_SEQUENCES: Final = 0.1
#: Numbers of products of a step that differ by more than this are not those of one program.
_SAME_PRODUCTS: Final = 0.05


@dataclass(frozen=True)
class Likeness:
    """What the kernels of two sides have in common."""

    #: share of the launches of a step, of the side with fewer, that the other has as well: same kernel, same size
    launches_share: float
    #: share of the sequences of `_SEQUENCE` launches that occur on the other side, of the side with the larger share;
    #: any product is the same as another; 0 for shorter steps
    order_share: float
    products: tuple[float, float]  #: matrix products, convolutions and kernels of attention per step of each side

    @property
    def is_doubtful(self) -> bool:
        """Whether too few launches are the same to be sure that it is one program."""
        return self.launches_share < _FEW_LAUNCHES

    @property
    def is_different(self) -> bool:
        """Whether nothing suggests one program: launches, order and number of products differ.

        False for programs with few products, of which a rewrite may leave nothing.
        """
        fewer, more = sorted(self.products)
        return (
            self.is_doubtful
            and self.order_share < _FEW_SEQUENCES
            and fewer >= _SEQUENCE
            and fewer < (1 - _SAME_PRODUCTS) * more
        )


def likeness(baseline: Slots, variant: Slots) -> Likeness:
    """What the kernels of two sides have in common."""
    sides, codes = (baseline, variant), _Codes(baseline, variant)
    sizes_known = all(side.kinds[LAUNCH_SIZE[0]].null_count() < side.kinds.height for side in sides)
    of_launch, of_order = codes.of(("identity", *(LAUNCH_SIZE if sizes_known else ()))), codes.of(("role",))
    per_step = [side.launches / side.steps for side in sides]
    longest = 1 + max((int(keys.max(initial=0)) for keys in of_launch), default=0)
    rates = [
        np.bincount(keys[side.kind], weights=rate, minlength=longest)
        for keys, side, rate in zip(of_launch, sides, per_step, strict=True)
    ]
    fewest = min(float(rate.sum()) for rate in rates)
    sequences = _sequences([keys[side.kind] for keys, side in zip(of_order, sides, strict=True)])
    return Likeness(
        float(np.minimum(*rates).sum()) / fewest if fewest else 0.0,
        max(float(np.isin(own, other).mean()) if len(own) else 0.0 for own, other in (sequences, sequences[::-1])),
        (_products(baseline), _products(variant)),
    )


def _products(side: Slots) -> float:
    """Products of a step."""
    return int(side.launches[side.kinds["category"].is_in(PRODUCTS).to_numpy()[side.kind]].sum()) / side.steps


def _sequences(rows: list[Int64s]) -> list[Int64s]:
    """The number of each sequence of `_SEQUENCE` successive values of both sides; equal ones have the same number."""
    length = 1
    while length < _SEQUENCE:
        split = len(rows[0][:-length])
        pairs = [(row[:-length], row[length:]) for row in rows]
        size = 1 + max(int(row.max(initial=0)) for row in rows)
        numbers, _ = distinct(np.concatenate([first * size + second for first, second in pairs]))
        rows = [numbers[:split], numbers[split:]]
        length *= 2
    return rows
