"""Rows that are picked from a table: products of picked rows, and passes over rows of which few are picked.

Both are seen from recorded shapes; without them, nothing is found.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.headroom.shapes import largest_tensor, sizes_of, tensors_of
from warplens.analysis.kernel_names import PRODUCTS
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.structure import EMPTY_PRODUCT_NS, backward_work
from warplens.profile.schema import Bools, Float64s, Int64s

#: Operators that copy rows of their first input to a result of its own.
_PICKS: Final = ("aten::index", "aten::index_select", "aten::embedding", "aten::gather")
#: `aten::gather` picks whole rows only with this kernel; others pick single numbers.
_WHOLE_ROWS: Final = "vectorized_gather"
#: Products of rows with one matrix: the product of a picked row is the picked row of the product.
_BY_MATRIX: Final = ("aten::mm", "aten::addmm", "aten::linear", "aten::_addmm_activation")
#: Operators whose copy goes to a tensor of its own; any other `aten::copy_` writes into a tensor that may be kept.
_OWN_COPY: Final = ("aten::_to_copy", "aten::to", "aten::clone", "aten::contiguous")
#: Operators that make a view of a part of a tensor, without a kernel.
_SLICES: Final = ("aten::slice", "aten::select", "aten::narrow")
#: Most kernels between the pick and the products of its rows: casts, and picks from the same table.
_REACH: Final = 6
#: Most kernels between a pick and the one that reads its result.
_READER: Final = 4
#: Kernels that leave a result as large as what they read, which a later product may read.
_KEEPING: Final = ("elementwise", "copy-cast", "normalization", "softmax", "random")
#: Least rows picked over rows of the table: below, products of all rows save less than half.
_LEAST_TIMES: Final = 2.0
#: Most rows picked over rows of the table: above, passes over all rows do not cost much more.
_MOST_PICKED: Final = 0.5
#: The sizes of one tensor in the text of an operator's shapes, lists of tensors included.
_SIZES: Final = re.compile(r"\[(\d[\d, ]*)\]")


@dataclass(frozen=True, eq=False)
class Projected:
    """Products of picked rows that repeat those of the rows they were picked from."""

    share: Float64s  #: share of each piece of work that goes away if rows are multiplied before they are picked
    work: Bools  #: these products and picks
    multiplied: Bools  #: these products
    products: int  #: of all steps
    times: float  #: how many times each row is multiplied, at least


@dataclass(frozen=True, eq=False)
class Unpicked:
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


def _picked(name: str, tensors: list[tuple[int, ...]]) -> int | None:
    """Numbers of the result of a pick; None if its shapes do not tell, as those of lists of indices."""
    table, *others = tensors
    if name == "aten::index" or not others:
        return None
    indices = math.prod(others[0])
    if name == "aten::embedding":
        return indices * table[-1]
    if name == "aten::gather":
        return indices
    return None if len(table) != 2 else indices * table[-1]


@once
def projected_again(facts: Facts) -> Projected | None:
    """Products of rows that were picked right before, from a table of at most half as many rows; None for none."""
    names = _named(facts)
    if names is None:
        return None
    program, shapes = facts.program, facts.program.shapes()
    picks = _picks(facts, names, shapes)
    own, share, most = program.own_ns, np.zeros(facts.work.height), math.inf
    work, products = np.zeros((2, len(share)), dtype=np.bool_)
    by_size: dict[tuple[int, int, int], list[float]] = {}
    for rows in program.by_step() if picks.any() else ():
        kernels = rows[program.is_kernel[rows]]
        for place in np.flatnonzero(picks[kernels]).tolist():
            found = None if work[kernels[place]] else _multiplied(facts, names, shapes, picks, kernels, place)
            if found is None:
                continue
            together, multiplied, count, width = found
            # Products of all rows are picked instead of the rows: wider ones take longer.
            columns = sum(wide for *_, wide in multiplied) / len(together)
            shortest = EMPTY_PRODUCT_NS
            freed = [own[row] - max(own[row] * count / many, min(own[row], shortest)) for row, many, _ in multiplied]
            left = 1 - float(own[together].sum()) * max(columns / width - 1, 0.0) / max(float(sum(freed)), 1.0)
            if left <= 0:
                continue
            for (row, many, wide), saved in zip(multiplied, freed, strict=True):
                share[row] = left * saved / max(own[row], 1)
                by_size.setdefault((many, width, wide), []).append(share[row])
                work[row] = products[row] = True
                most = min(most, many / count)
            share[together] = max(1 - columns / width, 0.0)
            work[together] = True
    if not products.any():
        return None
    forward = int(products.sum())
    _with_gradients(facts, names, shapes, by_size, share)
    products |= (share > 0) & ~picks
    return Projected(share, work | products, products, forward, most)


def _multiplied(
    facts: Facts, names: pl.Series, shapes: pl.Series, picks: Bools, kernels: Int64s, place: int
) -> tuple[list[int], list[tuple[int, int, int]], int, int] | None:
    """This pick and those beside it from the same table, the products of the picked rows, and the table's sides.

    Of each product, its row, rows and columns. None if there is no such product, or if it may read another tensor of
    the same size: one that was written before and not summed up, or one that is read together with its result.
    """
    program, piece = facts.program, int(kernels[place])
    products, copies = program.labelled(*PRODUCTS), program.labelled("copy-cast")
    tensors = tensors_of(shapes[piece])
    if not tensors or len(tensors[0]) < 2 or not math.prod(tensors[0]):
        return None
    width, together, multiplied = tensors[0][-1], [piece], list[tuple[int, int, int]]()
    count, numbers, end = math.prod(tensors[0]) // width, _picked(names[piece], tensors), place + 1
    for later in kernels[place + 1 : place + 1 + _REACH].tolist():
        if picks[later] and shapes[later] == shapes[piece] and not multiplied:
            together.append(later)
        elif copies[later] and numbers in (None, largest_tensor(shapes[later])) and not multiplied:
            numbers = largest_tensor(shapes[later])
        elif products[later] and names[later] in _BY_MATRIX:
            m, n, k = _key(sizes_of("gemm", names[later], shapes[later], None))
            if k != width or numbers not in (None, m * width) or m < _LEAST_TIMES * count:
                break
            multiplied.append((later, m, n))
            numbers = m * width
        else:
            break
        end += 1
    if not multiplied or numbers is None:
        return None
    before = next((row for row in kernels[:place][::-1].tolist() if numbers in _numbers(shapes[row])), None)
    if before is not None and (program.labelled(*_KEEPING)[before] or picks[before]):
        return None
    ahead = kernels[end:]
    ahead = ahead[: next((at for at, row in enumerate(ahead) if picks[row]), len(ahead))]
    readers = ahead[~backward_work(facts)[ahead]].tolist()
    if any(_listed(shapes[row]).count(numbers) > 1 for row in readers if names[row] != "aten::copy_"):
        return None
    return together, multiplied, count, width


def _with_gradients(
    facts: Facts, names: pl.Series, shapes: pl.Series, by_size: dict[tuple[int, int, int], list[float]], share: Float64s
) -> None:
    """Adds the products of the backward pass of these products, whose gradients would be added up by row before."""
    backward = backward_work(facts)
    if not backward.any() or backward.all():
        return
    rows = np.flatnonzero(facts.program.labelled(*PRODUCTS) & names.is_in(_BY_MATRIX).to_numpy())
    sizes = {int(row): sizes_of("gemm", names[int(row)], shapes[int(row)], None) for row in rows}
    for (many, width, wide), shares in by_size.items():
        forwards = [row for row in sizes if not backward[row] and _key(sizes[row]) == (many, wide, width)]
        # Other layers may have products of the same sizes.
        mean = sum(shares) / max(len(forwards), len(shares))
        for row, size in sizes.items():
            m, n, k = _key(size)
            if backward[row] and ((m, n, k) == (many, width, wide) or (k == many and {m, n} == {width, wide})):
                share[row] = max(share[row], mean)


def _key(sizes: dict[str, float]) -> tuple[int, int, int]:
    """Rows, columns and inner dimension of a product; zeros if unknown."""
    return (int(sizes["m"]), int(sizes["n"]), int(sizes["k"])) if sizes.get("b") == 1 else (0, 0, 0)


def _listed(text: str | None) -> list[int]:
    """Numbers of each tensor in these shapes, those in lists included."""
    return [math.prod(map(int, sizes.split(","))) for sizes in _SIZES.findall(text or "")]


@lru_cache(maxsize=65_536)
def _numbers(text: str | None) -> frozenset[int]:
    """The different ones of these numbers."""
    return frozenset(_listed(text))


@once
def unpicked_passes(facts: Facts) -> Unpicked | None:
    """Passes over all rows of a tensor right before few of them are picked, if nothing else reads it; None for none."""
    if facts.whole is not None:
        whole = unpicked_passes(facts.whole)  # other phases may read it
        return None if whole is None else Unpicked(whole.work[facts.part], whole.share[facts.part], whole.read)
    names = _named(facts)
    if names is None:
        return None
    program, shapes = facts.program, facts.program.shapes()
    picks, passes = _picks(facts, names, shapes), _passes(facts, names)
    if not picks.any() or not passes.any():
        return None
    numbers = {text: _numbers(text) for text in shapes.drop_nulls().unique().to_list()}
    texts = shapes.to_list()
    tables = {row: math.prod(next(iter(tensors_of(texts[row])), ())) for row in np.flatnonzero(picks).tolist()}
    unknown = shapes.is_null().to_numpy() & program.is_kernel
    share, read = np.zeros(facts.work.height), 0.0
    steps = [rows for rows in program.by_step() if not unknown[rows].any()]
    passed = frozenset[int]().union(*(numbers.get(text, ()) for text in {texts[row] for row in np.flatnonzero(passes)}))
    for size in (set(tables.values()) & passed) - _sliced_sizes(facts) - {1}:
        of_size = {text for text, sizes in numbers.items() if size in sizes}
        for rows in steps:
            kernels = rows[program.is_kernel[rows]]
            at = [place for place, row in enumerate(kernels.tolist()) if texts[row] in of_size]
            for chain, picked in _chains(kernels, at, passes, {row for row in tables if tables[row] == size}, names):
                counts = [_of_result(names, texts, kernels, place, size) for place in picked]
                part = sum(count or size for count in counts) / size
                if part <= _MOST_PICKED:
                    share[chain], read = np.maximum(share[chain], 1 - part), max(read, part)
    return Unpicked(share > 0, share, read) if share.any() else None


def _passes(facts: Facts, names: pl.Series) -> Bools:
    """Which kernels write one result of their own, number by number."""
    timeline = facts.timeline
    at = timeline.places.operator[facts.rows]
    parent = timeline.operators.forest.parent[np.maximum(at, 0)]
    outer = timeline.trace.ranges["name"].gather(np.maximum(parent, 0)).cast(pl.String)
    copied = (names == "aten::copy_").to_numpy() & outer.is_in(_OWN_COPY).to_numpy() & (parent >= 0)
    own = names.str.starts_with("aten::") & ~names.str.ends_with("_") & (names != "aten::cat")
    return np.asarray(facts.program.labelled("elementwise", "copy-cast") & (own.to_numpy() | copied), dtype=np.bool_)


def _sliced_sizes(facts: Facts) -> set[int]:
    """Numbers of the tensors of which the program takes slices."""
    trace = facts.timeline.trace
    ranges = trace.ranges.with_row_index("range").select(
        pl.col("range").cast(pl.UInt32), pl.col("name").cast(pl.String).is_in(_SLICES).alias("slices")
    )
    shapes = trace.operators.select(pl.col("range").cast(pl.UInt32), pl.col("input_shapes").cast(pl.String))
    texts = ranges.filter("slices").join(shapes, on="range")["input_shapes"].drop_nulls().unique().to_list()
    return {math.prod(next(iter(tensors_of(text)), ())) for text in texts}


def _chains(
    kernels: Int64s, at: list[int], passes: Bools, picks: set[int], names: pl.Series
) -> list[tuple[Int64s, list[int]]]:
    """The passes of each chain, and the places of the picks from its result; none if anything else reads a result.

    Args:
        kernels: rows of a step, in order.
        at: places in it of the kernels that read or write tensors of this size.
        passes, picks: which rows are passes, and which pick from a tensor of this size.
        names: of the operator of each row.
    """
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
            chain.append(place)
        elif chains:
            return []
        else:
            chain = []
    operations = [names.gather(kernels[places]).to_list() for places, _ in chains]
    if chain or any(one != other for one, other in pairwise(operations)):
        return []  # later passes may read the result of earlier ones
    return [(kernels[places], picked) for places, picked in chains]


def _of_result(names: pl.Series, texts: list[str | None], kernels: Int64s, place: int, size: int) -> int | None:
    """Numbers of the result of the pick at this place, told by its shapes or by the next reader; None if unknown."""
    row = int(kernels[place])
    tensors = tensors_of(texts[row])
    known = _picked(names[row], tensors)
    if known is not None:
        return known
    table = tensors[0]
    for later in kernels[place + 1 : place + 1 + _READER].tolist():
        for shape in tensors_of(texts[later]):
            if shape[1:] == table[1:] and len(table) > 1 and math.prod(shape) < size:
                return math.prod(shape)
    return None
