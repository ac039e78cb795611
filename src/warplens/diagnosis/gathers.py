"""Rows that are picked from a table: products of picked rows, and passes over rows of which few are picked.

Both are seen from recorded shapes; without them, nothing is found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.headroom.shapes import largest_tensor, sizes_of, tensors_of, tensors_with_lists
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.structure import EMPTY_PRODUCT_NS, backward_work
from warplens.profile.schema import Bools, Float64s, Int64s, texts_where

#: Operators that copy rows of their first input to a result of its own.
_PICKS: Final = ("aten::index", "aten::index_select", "aten::embedding", "aten::gather")
#: `aten::gather` picks whole rows only with this kernel; others pick single numbers.
_WHOLE_ROWS: Final = "vectorized_gather"
#: Products of rows with one matrix: the product of a picked row is the picked row of the product.
_BY_MATRIX: Final = ("aten::mm", "aten::addmm", "aten::linear", "aten::_addmm_activation")
#: Products of rows whose first input is what is added.
_ADDED: Final = ("aten::addmm", "aten::_addmm_activation")
#: Operators whose copy goes to a tensor of another type.
_CASTS: Final = ("aten::_to_copy", "aten::to")
#: Operators whose copy goes to a tensor of its own; any other `aten::copy_` writes into a tensor that may be kept.
_OWN_COPY: Final = (*_CASTS, "aten::clone", "aten::contiguous")
#: Operators that make a view of a part of a tensor, without a kernel.
SLICES: Final = (
    "aten::slice", "aten::select", "aten::narrow", "aten::split", "aten::split_with_sizes", "aten::unbind",
    "aten::diagonal", "aten::unfold",
)  # fmt: skip
#: Most kernels between the pick and the products of its rows: casts, and picks from the same table.
_REACH: Final = 6
#: Most kernels between a pick and the one that reads its result: casts of it, and of weights.
_READER: Final = 4
#: Kernels after which a tensor that they read may be done with; any other may leave a result of the same size.
_CONSUMING: Final = ("reduction", "gather-scatter", "gemm")
#: Numbers of a result that shapes do not tell.
_ANY: Final = -1
#: Least rows picked over rows of the table: below, products of all rows save less than half.
_LEAST_TIMES: Final = 2.0
#: Most rows picked over rows of the table: above, passes over all rows do not cost much more.
_MOST_PICKED: Final = 0.5
#: Bounds of any time.
ANY_TIME: Final = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class ProjectionsOfGatheredRows:
    """Products of picked rows that repeat those of the rows they were picked from."""

    share: Float64s  #: share of each piece of work that goes away if rows are multiplied before they are picked
    work: Bools  #: these products and picks
    multiplied: Bools  #: these products
    products: int  #: of all steps
    times: float  #: how many times each row is multiplied, at least


class _Product(NamedTuple):
    """A product of picked rows."""

    row: int
    many: int  #: rows
    wide: int  #: columns


class _Multiplied(NamedTuple):
    """Picks from one table, and the products of the picked rows."""

    picks: list[int]
    products: list[_Product]
    rows: int  #: of the table
    width: int  #: numbers of each


@dataclass(frozen=True, eq=False)
class PassesOverUngatheredRows:
    """Passes over all rows of tables of which few are picked right after."""

    work: Bools  #: these passes
    share: Float64s  #: share of each piece of work that goes away if rows are picked first
    read: float  #: the largest share of rows that is picked


def _named(facts: Facts) -> pl.Series | None:
    """Name of the innermost operator around each piece; None if the profile has no picks with shapes."""
    timeline = facts.timeline
    if not timeline.has_operators or not facts.work.height:
        return None
    if not set(_PICKS) & set(timeline.trace.ranges["name"].unique().cast(pl.String).to_list()):
        return None
    at = timeline.places.operator[facts.rows]
    names = timeline.trace.ranges["name"].gather(np.maximum(at, 0)).cast(pl.String)
    return names.zip_with(pl.Series(at >= 0), pl.repeat("", len(at), dtype=pl.String, eager=True))


def _picks(facts: Facts, names: pl.Series, shapes: pl.Series) -> Bools:
    """Which kernels pick whole rows."""
    program = facts.program
    picks = names.is_in(_PICKS).to_numpy() & shapes.is_not_null().to_numpy() & program.labelled("gather-scatter")
    elements = np.flatnonzero(picks & (names == "aten::gather").to_numpy())
    texts = program.full_names()
    for row in elements.tolist():
        picks[row] = _WHOLE_ROWS in texts[program.name_codes[row]]
    return np.asarray(picks, dtype=np.bool_)


def _table(name: str, tensors: list[tuple[int, ...]]) -> tuple[int, int] | None:
    """Rows of the table of a pick, and numbers of each; None if there are none, or if it may pick columns."""
    shape = tensors[0] if tensors else ()
    if len(shape) < 2 or not math.prod(shape):
        return None
    width = shape[-1]
    rows = math.prod(shape) // width
    if name == "aten::index_select" and (len(shape) > 2 or rows == width):
        return None
    return rows, width


def _picked(name: str, tensors: list[tuple[int, ...]]) -> int | None:
    """Numbers of the result of a pick; None if its shapes do not tell, as those of lists of indices.

    The dimension of `aten::index_select` is not recorded: for it, they are those of a pick of rows.
    """
    table, *others = tensors
    if name == "aten::index" or not others:
        return None
    if name == "aten::gather":
        return math.prod(others[0]) if others[0][1:] == table[1:] else None
    return math.prod(others[0]) * math.prod(table[1:])


@once
def projected_again(facts: Facts) -> ProjectionsOfGatheredRows | None:
    """Products of rows that were picked right before, from a table of at most half as many rows; None for none."""
    names = _named(facts)
    if names is None:
        return None
    program, shapes = facts.program, facts.program.shapes()
    picks = _picks(facts, names, shapes)
    if not picks.any():
        return None
    own, share, most = program.own_ns, np.zeros(facts.work.height), math.inf
    work, products = np.zeros((2, len(share)), dtype=np.bool_)
    by_size: dict[_Size, list[float]] = {}
    search = _Search(facts, names.to_list(), shapes.to_list(), picks)
    for rows in program.by_step():
        kernels = rows[program.is_kernel[rows]]
        written: dict[int, bool] = {}  # by numbers, whether the last kernel of this size may have left a result
        seen = 0
        for place in np.flatnonzero(picks[kernels]).tolist():
            for row in kernels[seen:place].tolist():
                search.note(row, written)
            seen = place
            found = None if work[kernels[place]] else search.multiplied(kernels, place, written)
            if found is None:
                continue
            together, multiplied, count, width = found
            # Products of all rows are picked instead of the rows: wider ones take longer.
            columns = sum(each.wide for each in multiplied) / len(together)
            shortest = EMPTY_PRODUCT_NS
            freed = [own[row] - max(own[row] * count / many, min(own[row], shortest)) for row, many, _ in multiplied]
            left = 1 - float(own[together].sum()) * max(columns / width - 1, 0.0) / max(float(sum(freed)), 1.0)
            if left <= 0:
                continue
            for (row, many, wide), saved in zip(multiplied, freed, strict=True):
                share[row] = left * saved / max(own[row], 1)
                by_size.setdefault((many, wide, width), []).append(share[row])
                work[row] = products[row] = True
                most = min(most, many / count)
            share[together] = max(1 - columns / width, 0.0)
            work[together] = True
    if not products.any():
        return None
    forward = int(products.sum())
    _with_gradients(facts, search, by_size, share)
    products |= (share > 0) & ~picks
    return ProjectionsOfGatheredRows(share, work | products, products, forward, most)


#: Rows, columns and inner dimension of a product.
_Size = tuple[int, int, int]


class _Search:
    """The search for products of picked rows, with what it reads of each kernel."""

    def __init__(self, facts: Facts, names: list[str], texts: list[str | None], picks: Bools) -> None:
        """Takes operators, shapes and picks by row of `Facts.work`."""
        program = facts.program
        self.names, self.texts, self.picks = names, texts, picks
        self.products, self.copies = program.products, program.labelled("copy-cast")
        self.consuming = program.labelled(*_CONSUMING) & ~picks
        self.convolutions = program.labelled("convolution")
        self.backward = backward_work(facts)

    def size(self, row: int) -> _Size:
        """Of the product of this row; zeros if unknown."""
        sizes = sizes_of("gemm", self.names[row], self.texts[row], None)
        return (int(sizes["m"]), int(sizes["n"]), int(sizes["k"])) if sizes.get("b") == 1 else (0, 0, 0)

    def note(self, row: int, written: dict[int, bool]) -> None:
        """Notes what this kernel read and wrote."""
        written.update(dict.fromkeys(numbers_in(self.texts[row]), not self.consuming[row]))
        if self.convolutions[row]:
            written[_ANY] = True
        elif self.products[row]:
            written[_multiplied_numbers(self.names[row], self.texts[row])] = True

    def multiplied(self, kernels: Int64s, place: int, written: dict[int, bool]) -> _Multiplied | None:
        """The picks from one table from this one on, and the products of the picked rows.

        None if there is no such product, or if it may read another tensor of the same size: one that was written
        before and not consumed, or one that is read together with its result.
        """
        texts, names, piece = self.texts, self.names, int(kernels[place])
        tensors = tensors_of(texts[piece])
        table = _table(names[piece], tensors)
        if table is None:
            return None
        count, width = table
        together, multiplied = [piece], list[_Product]()
        numbers = _picked(names[piece], tensors)
        end = place + 1
        for later in kernels[place + 1 : place + 1 + _REACH].tolist():
            if self.picks[later] and texts[later] == texts[piece] and not multiplied:
                together.append(later)
            elif self.copies[later] and numbers in (None, largest_tensor(texts[later])) and not multiplied:
                numbers = largest_tensor(texts[later])
            elif self.products[later] and names[later] in _BY_MATRIX:
                m, n, k = self.size(later)
                if k != width or numbers not in (None, m * width) or m < _LEAST_TIMES * count:
                    break
                multiplied.append(_Product(later, m, n))
                numbers = m * width
            else:
                break
            end += 1
        if not multiplied or numbers is None or written.get(numbers) or written.get(_ANY):
            return None
        if self._joined(kernels[end:], numbers):
            return None
        return _Multiplied(together, multiplied, count, width)

    def _joined(self, later: Int64s, numbers: int) -> bool:
        """Whether one of these kernels, up to the next pick, reads two tensors of this size."""
        for row in map(int, later):
            if self.picks[row]:
                return False
            if self.backward[row] or self.names[row] == "aten::copy_":
                continue
            if _listed(self.texts[row]).count(numbers) > 1:
                return True
        return False


def _with_gradients(facts: Facts, search: _Search, by_size: dict[_Size, list[float]], share: Float64s) -> None:
    """Adds the products of the backward pass of these products, whose gradients would be added up by row before."""
    backward = search.backward
    if not backward.any() or backward.all():
        return
    forwards, gradients = dict[_Size, int](), dict[_Size, list[int]]()
    for row in np.flatnonzero(facts.program.products).tolist():
        if search.names[row] in _BY_MATRIX:
            size = search.size(row)
            if backward[row]:
                gradients.setdefault(size, []).append(row)
            else:
                forwards[size] = forwards.get(size, 0) + 1
    for (many, wide, width), shares in by_size.items():
        # Other layers may have products of the same sizes.
        mean = sum(shares) / max(forwards.get((many, wide, width), 0), len(shares))
        for size in {(many, width, wide), (width, wide, many), (wide, width, many)}:
            for row in gradients.get(size, ()):
                share[row] = max(share[row], mean)


def _multiplied_numbers(name: str, text: str | None) -> int:
    """Numbers of the result of a product, which its input shapes do not list; 0 if unknown."""
    sizes = sizes_of("gemm", name, text, None)
    return int(sizes.get("b", 0) * sizes.get("m", 0) * sizes.get("n", 0))


def _listed(text: str | None) -> list[int]:
    """Numbers of each tensor in these shapes, those in lists included."""
    return [*map(math.prod, tensors_with_lists(text or ""))]


@lru_cache(maxsize=65_536)
def numbers_in(text: str | None) -> frozenset[int]:
    """The different ones of these numbers."""
    return frozenset(_listed(text))


@once
def unpicked_passes(facts: Facts) -> PassesOverUngatheredRows | None:
    """Passes over all rows of a tensor right before few of them are picked, if nothing else reads it; None for none."""
    if facts.whole is not None:
        whole = unpicked_passes(facts.whole)  # other phases may read it
        if whole is None:
            return None
        return PassesOverUngatheredRows(whole.work[facts.part], whole.share[facts.part], whole.read)
    names = _named(facts)
    if names is None:
        return None
    program, shapes = facts.program, facts.program.shapes()
    picks, passes = _picks(facts, names, shapes), _passes(facts, names)
    reads = program.is_kernel | (program.having("kind", "copy") & ~program.having("label", "host-to-device"))
    if not picks.any() or not passes.any() or (shapes.is_null().to_numpy() & reads).any():
        return None
    texts = shapes.to_list()
    slices = first_shapes(facts, SLICES, *ANY_TIME)
    tables = {row: math.prod(next(iter(tensors_of(texts[row])), ())) for row in np.flatnonzero(picks).tolist()}
    passed = frozenset[int]().union(*map(numbers_in, {texts[row] for row in np.flatnonzero(passes).tolist()}))
    sizes = (set(tables.values()) & passed) - {math.prod(shape) for shape in slices} - {0, 1}
    if not sizes:
        return None
    # All steps together: what one computes, another may read.
    kernels = np.concatenate([rows[reads[rows]] for rows in program.by_step()])
    at: dict[int, list[int]] = {size: [] for size in sizes}
    for place, row in enumerate(kernels.tolist()):
        for size in numbers_in(texts[row]) & sizes:
            at[size].append(place)
    reading = _Reading(facts, names.to_list(), texts, kernels, slices)
    casts, share, read = _casts(facts, names), np.zeros(facts.work.height), 0.0
    for size, places in at.items():
        of_size = {row for row in kernels[places].tolist() if tables.get(row) == size}
        chains = _chains(reading, places, size, passes, casts, of_size)
        first = min((picked[0] for _, picked in chains), default=0)
        for chain, picked in chains:
            part = sum(reading.result(place, first, size) for place in picked) / size
            if part <= _MOST_PICKED:
                share[chain], read = np.maximum(share[chain], 1 - part), max(read, part)
    return PassesOverUngatheredRows(share > 0, share, read) if share.any() else None


def _passes(facts: Facts, names: pl.Series) -> Bools:
    """Which kernels write one result of their own, number by number."""
    own = names.str.starts_with("aten::") & ~names.str.ends_with("_") & (names != "aten::cat")
    written = own.to_numpy() | _copied(facts, names, _OWN_COPY)
    return np.asarray(facts.program.labelled("elementwise", "copy-cast") & written, dtype=np.bool_)


def _copied(facts: Facts, names: pl.Series, outer: tuple[str, ...]) -> Bools:
    """Which pieces `aten::copy_` launched inside one of these operators."""
    timeline = facts.timeline
    at = timeline.places.operator[facts.rows]
    parent = timeline.operators.forest.parent[np.maximum(at, 0)]
    around = timeline.trace.ranges["name"].gather(np.maximum(parent, 0)).cast(pl.String)
    return np.asarray((names == "aten::copy_").to_numpy() & around.is_in(outer).to_numpy() & (parent >= 0))


def _casts(facts: Facts, names: pl.Series) -> Bools:
    """Which pieces copy a tensor to one of another type, as far as types were recorded."""
    same = texts_where(facts.program.recorded("input_types"), _is_same)
    return np.asarray(_copied(facts, names, _CASTS) & ~same, dtype=np.bool_)


def _is_same(types: str) -> bool:
    """Whether the first two of these types are the same."""
    first = json.loads(types)[:2]
    return len(first) == 2 and bool(first[0]) and first[0] == first[1]


def first_shapes(facts: Facts, operators: Sequence[str], begin: int, end: int) -> set[tuple[int, ...]]:
    """Shapes of the first inputs of the operators of these names that start in this time."""
    trace = facts.timeline.trace
    recorded = trace.operators.select("range", pl.col("input_shapes").cast(pl.String)).drop_nulls()
    ranges = trace.ranges.select("start_ns", pl.col("name").cast(pl.String))[recorded["range"]]
    chosen = ranges.select(pl.col("name").is_in(operators) & pl.col("start_ns").is_between(begin, end)).to_series()
    texts = recorded["input_shapes"].filter(chosen).unique().to_list()
    return {next(iter(tensors_of(text)), ()) for text in texts}


class _Reading:
    """What picks leave, told by the kernels after them."""

    def __init__(
        self, facts: Facts, names: list[str], texts: list[str | None], kernels: Int64s, slices: set[tuple[int, ...]]
    ) -> None:
        """Takes operators and shapes by row of `Facts.work`, kernels of all steps in order, and what is sliced."""
        self.names, self.texts, self.kernels = names, texts, kernels
        self.operators = facts.timeline.places.operator[facts.rows]
        self.products = facts.program.products
        self.sliced: dict[int, int] = {}  # by the last side, numbers of the largest tensor that is sliced
        for shape in filter(None, slices):
            self.sliced[shape[-1]] = max(self.sliced.get(shape[-1], 0), math.prod(shape))
        self.first: dict[int, int] = {}  # by numbers, the first place of a tensor that a kernel reads or writes
        for place, row in enumerate(kernels.tolist()):
            for numbers in numbers_in(texts[row]):
                self.first.setdefault(numbers, place)
            if self.products[row]:
                self.first.setdefault(_multiplied_numbers(names[row], texts[row]), place)

    def result(self, place: int, first: int, size: int) -> int:
        """Numbers that the pick at this place leaves, if rows; all of the table if its shapes and reader do not tell.

        Args:
            first: place of the first pick; a tensor of the size of the result must not have been seen before.
            size: numbers of the table.
        """
        row = int(self.kernels[place])
        tensors = tensors_of(self.texts[row])
        table, picked = tensors[0], _picked(self.names[row], tensors)
        if len(table) < 2:
            return size
        if picked is not None and self.names[row] != "aten::index_select":
            return picked
        sides = table[1:]
        if picked is not None and picked // math.prod(sides) in sides:
            return size  # columns may be picked
        for later in self.kernels[place + 1 : place + 1 + _READER].tolist():
            shapes, largest = tensors_of(self.texts[later]), max(numbers_in(self.texts[later]), default=0)
            if self.names[later] == "aten::copy_":
                if largest >= size:
                    return size
                continue  # of the result, or of a weight
            shape = next(iter(shapes[self.names[later] in _ADDED :]), ())
            numbers = math.prod(shape)
            if (
                shape[1:] != sides
                or numbers < largest  # the result may be another of its tensors
                or picked not in (None, numbers)
                or self.sliced.get(sides[-1], 0) > numbers  # it may read a slice of the result
                or self.first[numbers] < first
            ):
                return size
            return min(numbers, size)
        return size


def _chains(
    reading: _Reading, at: list[int], size: int, passes: Bools, casts: Bools, picks: set[int]
) -> list[tuple[Int64s, list[int]]]:
    """The passes of each chain, and the places of the picks from its result; none if anything else may read a result.

    Each chain begins with its only cast, of a tensor that is stored in another type: its result does not replace it.

    Args:
        at: places of the kernels that read or write tensors of this size.
        size: numbers of the table.
        passes, casts, picks: which rows are passes, which of them casts, and which pick from a tensor of this size.
    """
    kernels = reading.kernels
    texts = reading.texts
    names = reading.names
    operators = reading.operators
    chains: list[tuple[list[int], list[int]]] = []
    chain: list[int] = []
    for place in at:
        row = int(kernels[place])
        if row in picks:
            if chain:
                chains.append((chain, []))
                chain = []
            if not chains:
                return []
            chains[-1][1].append(place)
        elif passes[row]:
            if chain and place != chain[-1] + 1:
                if chains:
                    return []  # a pass over an earlier result that nothing picks from
                chain = []
            sizes = _listed(texts[row])
            again = (
                bool(chain) and operators[row] == operators[kernels[chain[-1]]]
            )  # large tensors take several kernels
            if (
                (not again and bool(casts[row]) == bool(chain))
                or max(sizes) > size
                or (sizes.count(size) > 1 and names[row] != "aten::copy_")
            ):
                if chains or chain:
                    return []
                continue
            chain.append(place)
        elif chains:
            return []
        else:
            chain = []
    operations = [[names[row] for row in kernels[places].tolist()] for places, _ in chains]
    if chain or any(one != other for one, other in pairwise(operations)):
        return []  # later passes may read the result of earlier ones
    return [(kernels[places], picked) for places, picked in chains]
