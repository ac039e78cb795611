"""Rows that are picked from a table: products of picked rows, and passes over rows of which few are picked.

Both are seen from recorded shapes; without them, nothing is found.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.headroom.shapes import sizes_of, tensors_of
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
    return picks


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
    picks, products, copies = _picks(facts, names, shapes), program.labelled(*PRODUCTS), program.labelled("copy-cast")
    own, share, found, most = program.own_ns, np.zeros(facts.work.height), 0, math.inf
    seen = np.zeros(len(share), dtype=np.bool_)
    by_size: dict[tuple[int, int, int], list[float]] = {}
    for rows in program.by_step() if picks.any() else ():
        kernels = rows[program.is_kernel[rows]]
        for place in np.flatnonzero(picks[kernels]).tolist():
            piece = int(kernels[place])
            tensors = tensors_of(shapes[piece])
            if seen[piece] or not tensors or len(tensors[0]) < 2:
                continue
            width, together = tensors[0][-1], [piece]
            count, numbers = math.prod(tensors[0]) // max(width, 1), _picked(names[piece], tensors)
            multiplied: list[tuple[int, float, float]] = []  # row, rows of the product, columns
            for later in kernels[place + 1 : place + 1 + _REACH].tolist():
                size = max(_numbers(shapes[later]), default=0)
                if picks[later] and shapes[later] == shapes[piece] and not multiplied:
                    together.append(later)
                elif copies[later] and numbers in (None, size) and not multiplied:
                    numbers = size or None
                elif products[later] and names[later] in _BY_MATRIX:
                    sizes = sizes_of("gemm", names[later], shapes[later], None)
                    if sizes.get("b") != 1 or sizes["k"] != width or numbers not in (None, sizes["m"] * width):
                        break
                    if sizes["m"] < _LEAST_TIMES * count:
                        break
                    multiplied.append((later, sizes["m"], sizes["n"]))
                else:
                    break
            if not multiplied:
                continue
            # Products of all rows are picked instead of the rows: wider ones take longer.
            picking, columns = float(own[together].sum()), sum(part[2] for part in multiplied) / len(together)
            freed = np.array([
                own[row] * min(1 - count / many, 1 - EMPTY_PRODUCT_NS / max(int(own[row]), EMPTY_PRODUCT_NS))
                for row, many, _ in multiplied
            ])  # fmt: skip
            left = max(1 - picking * max(columns / width - 1, 0.0) / max(float(freed.sum()), 1.0), 0.0)
            if not left:
                continue
            for (row, many, wide), saved in zip(multiplied, freed.tolist(), strict=True):
                share[row] = left * saved / max(int(own[row]), 1)
                by_size.setdefault((int(many), width, int(wide)), []).append(share[row])
                most = min(most, many / count)
            share[together] = max(1 - columns / width, 0.0)
            seen[[*together, *(part[0] for part in multiplied)]] = True
            found += len(multiplied)
    if not found:
        return None
    _with_gradients(facts, names, shapes, by_size, share)
    work = seen | (share > 0)
    return Projected(share, work, work & products, found, most)


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
    return int(sizes.get("m", 0)), int(sizes.get("n", 0)), int(sizes.get("k", 0))


def _numbers(text: str | None) -> set[int]:
    """Numbers of each tensor in these shapes, those in lists included."""
    return {math.prod(map(int, sizes.split(","))) for sizes in _SIZES.findall(text or "")}


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
    for size in set(tables.values()) - _sliced_sizes(facts) - {1}:
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
