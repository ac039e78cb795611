"""Which kernel launch of one side is which launch of the other: in stages, from the surest to the loosest.

A launch is matched once. Each stage takes what the ones before it left over, groups it by what the stage compares, and
matches the launches of a group in order: the first with the first, the second with the second. The last stages compare
names that say little, and so ask for the same place in the step, too: between the same two launches that are matched
already and stand in the same order on both sides. What is left over at the end exists on one side only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.categories import OTHER
from warplens.compare.difference.alignment import in_order
from warplens.compare.difference.slots import SHAPE, distinct, rank_within

if TYPE_CHECKING:
    from warplens.compare.difference.slots import Slots

__all__ = ["MATCHES", "Matching", "match_slots"]

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

#: What the launches of a match have in common, the surest first → the columns that the stage compares.
_STAGES: Final = {
    "name, range, shape": ("identity", "place_name", *SHAPE),
    "name, range": ("identity", "place_name"),
    "name, shape": ("identity", *SHAPE),
    "name": ("identity",),
    "short name, range": ("name", "place_name", "category"),
}
#: The stages that follow the order of launches → the columns that they compare beside it.
_ORDERED_STAGES: Final = {"short name, order": ("name",), "category, order": ("category",)}

#: What the launches of a match have in common, the surest first.
MATCHES: Final = (*_STAGES, *_ORDERED_STAGES)


@dataclass(frozen=True, eq=False)
class Matching:
    """Matched slots.

    Attributes:
        baseline, variant: shape (m,), the slots of each pair.
        stage: shape (m,), position in `MATCHES`.
    """

    baseline: Int64s
    variant: Int64s
    stage: Int64s


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
    return slots.kinds.with_columns(names.gather(slots.kinds["path"]), pl.col(SHAPE).fill_null(-1))


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
