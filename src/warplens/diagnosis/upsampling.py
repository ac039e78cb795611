"""Maps that are enlarged before a convolution of 1 × 1 makes few channels of many.

Interpolation goes over places and such a convolution over channels. Both are linear, and may change places: the maps
have fewer channels when they are enlarged, and the convolution goes over fewer places.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.headroom.shapes import first_shape, tensors_of, tensors_with_lists
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, Remedy, Variant
from warplens.profile.schema import Bools, Float64s, Int64s

#: Of a finding with this cause.
ENLARGED: Final = Variant(
    "Maps of many channels are enlarged, and a convolution of 1 × 1 makes few of them afterwards",
    "Limited by maps that are enlarged before their channels become few: the convolution first could save {share} of "
    "the time",
)
CHANNELS_FIRST: Final = Remedy(
    "Make the channels few before the maps are enlarged",
    "scores = F.interpolate(head(x), size=size, mode='bilinear')  # not head(F.interpolate(x, size=size))\n"
    "# the same numbers but for rounding, if the head is one convolution of 1 × 1, bias included",
    f"{GAIN}: fewer numbers are interpolated, cast and read, and the product has fewer rows",
)

#: Of a convolution that makes few channels: its channels over those of its input.
_MOST_CHANNELS: Final = 0.5
#: Most casts from the enlarged maps to the convolution: of the maps, its weights and its bias.
_REACH: Final = 6

_Shape = tuple[int, ...]


@once
def enlarged(facts: Facts) -> Float64s:
    """Share saved of the work on such maps, if the convolution comes first; 0 where shapes are not recorded."""
    program = facts.program
    share = np.zeros(facts.work.height)
    if not program.marked("enlarging").any() or not facts.timeline.has_operators:
        return share
    shapes = program.shapes()
    sources = _enlarging_before(facts)
    texts = shapes.gather(np.flatnonzero(sources >= 0)).drop_nulls().unique(maintain_order=True).to_list()
    if not texts:
        return share
    rows = _rows_by_text(shapes, program.is_kernel)
    texts_with = _texts_by_shape(rows)
    casts = program.labelled("copy-cast") & ~program.marked("concatenation")  # which needs the whole maps
    passed = program.marked("enlarging") | program.marked("filling") | casts
    for text in texts:
        maps, weight = (*tensors_of(text), (), ())[:2]
        small = _small_maps(facts, shapes, rows[text], sources, maps) if _makes_few(maps, weight) else None
        if small is None:
            continue
        products = texts_with[maps] & texts_with[weight]
        others = _joined(rows, texts_with[maps] - products)
        if not passed[others].all():
            continue  # something else computes with these maps
        share[others] = 1 - weight[0] / maps[1]
        share[sources[rows[text]][sources[rows[text]] >= 0]] = 1 - weight[0] / maps[1]
        share[_joined(rows, products)] = 1 - math.prod(small) / math.prod(maps)
    return share


def _rows_by_text(shapes: pl.Series, is_kernel: Bools) -> dict[str, Int64s]:
    """Text of operands → the kernels that have it."""
    frame = pl.DataFrame({"text": shapes, "row": np.arange(len(shapes))}).filter(is_kernel).drop_nulls()
    grouped = frame.group_by("text", maintain_order=True).agg("row")
    return dict(zip(grouped["text"], (each.to_numpy() for each in grouped["row"]), strict=True))


def _texts_by_shape(rows: Mapping[str, Int64s]) -> dict[_Shape, set[str]]:
    """Shape → the texts of operands in which a tensor has it, those of lists of tensors included."""
    found: dict[_Shape, set[str]] = {}
    for text in rows:
        for shape in tensors_with_lists(text):
            found.setdefault(shape, set()).add(text)
    return found


def _joined(rows: Mapping[str, Int64s], texts: Iterable[str]) -> Int64s:
    return np.concatenate([np.zeros(0, dtype=np.int64), *(rows[text] for text in texts)])


def _makes_few(maps: _Shape, weight: _Shape) -> bool:
    """Whether a convolution of 1 × 1 with these weights makes few channels of the many of these maps."""
    if len(maps) < 4 or len(weight) != len(maps) or math.prod(weight[2:]) != 1:
        return False
    return weight[1] == maps[1] and weight[0] <= _MOST_CHANNELS * maps[1]


def _enlarging_before(facts: Facts) -> Int64s:
    """For each product, the kernel that enlarges maps right before it, casts left out; −1 for none and other work.

    Of a product of several kernels, the first one has it.
    """
    program = facts.program
    order = program.kernels_in_order()
    enlarging = program.marked("enlarging")[order]
    other = ~program.labelled("copy-cast")[order]
    places = np.arange(len(order))
    before = np.r_[-1, np.maximum.accumulate(np.where(other, places, -1))][: len(order)]
    found = (before >= 0) & (places - before <= _REACH) & program.products[order] & enlarging[before]
    sources = np.full(facts.work.height, -1, dtype=np.int64)
    sources[order[found]] = order[before[found]]
    return sources


def _small_maps(facts: Facts, shapes: pl.Series, convolutions: Int64s, sources: Int64s, maps: _Shape) -> _Shape | None:
    """The maps from which those of these convolutions are enlarged; None unless each convolution has such."""
    before = _kernel_before(facts)[convolutions]
    firsts = convolutions[~np.isin(before, convolutions)]  # a convolution may take several kernels
    enlarging = sources[firsts]
    if (enlarging < 0).any():
        return None
    texts = shapes.gather(enlarging).unique(maintain_order=True).to_list()
    small = [first_shape(text) for text in texts]
    fits = all(each[:2] == maps[:2] and math.prod(each) < math.prod(maps) for each in small)
    return small[0] if small and fits else None


@once
def _kernel_before(facts: Facts) -> Int64s:
    """The kernel before each one in stream order; −1 for the first and for other work."""
    order = facts.program.kernels_in_order()
    before = np.full(facts.work.height, -1, dtype=np.int64)
    before[order[1:]] = order[:-1]
    return before
