"""Maps that are enlarged before a convolution of 1 × 1 makes few channels of many.

Interpolation goes over places and such a convolution over channels. Both are linear, and may change places: the maps
have fewer channels when they are enlarged, and the convolution goes over fewer places.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from warplens.analysis.frames import once
from warplens.analysis.headroom.shapes import first_shape, tensors_of
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, Remedy
from warplens.profile.schema import Float64s, Int64s

#: Of a finding with this cause.
ENLARGED_TITLE: Final = "Maps of many channels are enlarged, and a convolution of 1 × 1 makes few of them afterwards"
ENLARGED_HEADLINE: Final = (
    "Limited by maps that are enlarged before their channels become few: the convolution first could save {share} of "
    "the time"
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
    program, share = facts.program, np.zeros(facts.work.height)
    if not program.marked("enlarging").any() or not facts.timeline.has_operators:
        return share
    shapes = program.shapes()
    texts = shapes.filter(program.products & program.is_kernel).drop_nulls().unique().to_list()
    for text in texts:
        maps, weight = (*tensors_of(text), (), ())[:2]
        if not _makes_few(maps, weight):
            continue
        sources = _enlarging_before(facts, np.flatnonzero((shapes == text).fill_null(value=False).to_numpy()), maps)
        with_maps = [each for each in shapes.drop_nulls().unique() if maps in tensors_of(each)]
        on_maps = shapes.is_in(with_maps).fill_null(value=False).to_numpy() & program.is_kernel
        with_weight = [each for each in with_maps if weight in tensors_of(each)]
        products = on_maps & shapes.is_in(with_weight).fill_null(value=False).to_numpy()
        passed = program.marked("enlarging") | program.marked("filling") | program.labelled("copy-cast")
        if sources is None or (on_maps & ~products & ~passed).any():
            continue  # something else computes with these maps
        share[on_maps & ~products] = 1 - weight[0] / maps[1]
        share[sources] = 1 - weight[0] / maps[1]
        share[products] = 1 - math.prod(first_shape(shapes[int(sources[0])])) / math.prod(maps)
    return share


def _makes_few(maps: _Shape, weight: _Shape) -> bool:
    """Whether a convolution of 1 × 1 with these weights makes few channels of the many of these maps."""
    if len(maps) < 4 or len(weight) != len(maps) or math.prod(weight[2:]) != 1:
        return False
    return weight[1] == maps[1] and weight[0] <= _MOST_CHANNELS * maps[1]


def _enlarging_before(facts: Facts, convolutions: Int64s, maps: _Shape) -> Int64s | None:
    """The kernels that make the maps, by enlarging, one before each convolution; None unless each has one."""
    program, shapes = facts.program, facts.program.shapes()
    order = program.order[program.in_order(program.is_kernel)]
    enlarging, casts = program.marked("enlarging"), program.labelled("copy-cast")
    found = []
    for place in np.flatnonzero(np.isin(order, convolutions)).tolist():
        if order[place - 1] in convolutions:
            continue  # a convolution of several kernels
        back = order[max(place - _REACH, 0) : place][::-1]
        others = np.flatnonzero(~casts[back])
        source = int(back[others[0]]) if len(others) else -1
        small = first_shape(shapes[source]) if source >= 0 and enlarging[source] else ()
        if small[:2] != maps[:2] or math.prod(small) >= math.prod(maps):
            return None
        found.append(source)
    return np.array(found, dtype=np.int64) if found else None
