"""How much a window got through, and the floor that the weights set: what shapes tell of the program itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from warplens.analysis.headroom.shapes import sizes_of, tensors_of
from warplens.analysis.roofs import Task
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from warplens.analysis.roofs import Roofs
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

#: Convolutions of at most so many channels read images.
_MOST_CHANNELS: Final = 4
#: Products of at most so many rows read their weights for little work: on an H200 below some 200 FLOP a byte.
_FEW_ROWS: Final = 64
#: The weights are a floor where such products have most of the products' time.
_MOST: Final = 0.5


@dataclass(frozen=True)
class Rates:
    """What a window got through; None where the shapes do not tell.

    Attributes:
        tokens: looked up in the largest embedding of the forward pass.
        images: read by convolutions of a few channels in the forward pass.
        weight_bytes: weights that products of few rows read, each call once (decoding).
        weights_ns: reading them at the practical bandwidth.
    """

    tokens: int | None = None
    images: int | None = None
    weight_bytes: int | None = None
    weights_ns: int | None = None


def rates_of(timeline: Timeline, window: Window, groups: pl.DataFrame, roofs: Roofs | None) -> Rates:
    """The rates of a window; `groups` are those of `budget.GROUPS`."""
    weight_bytes = _weights(groups)
    time = None
    if weight_bytes and roofs is not None:
        time = roofs.large_ns(Task("elementwise", None, weight_bytes))
    return Rates(_tokens(timeline, window), _images(groups), weight_bytes, None if time is None else round(time))


def _tokens(timeline: Timeline, window: Window) -> int | None:
    """Indices into the embedding with the most rows, whose GPU work lies in the window."""
    names = timeline.trace.ranges["name"]
    if not timeline.has_operators or "aten::embedding" not in name_categories(names):
        return None
    tree, links = timeline.operators, timeline.autograd
    wanted = (names == "aten::embedding").to_numpy() & ~links.in_backward
    label = np.where(wanted, np.arange(1, names.len() + 1), 0)
    held = np.r_[tree.forest.outermost_match(label), 0][timeline.places.operator[timeline.work_rows_in(window)]]
    rows = np.unique(held[held > 0]) - 1
    shapes = timeline.trace.operators.filter(pl.col("range").is_in(rows))["input_shapes"].cast(pl.String).to_list()
    found: dict[int, int] = {}
    for table, *indices in filter(None, map(tensors_of, shapes)):
        if indices:
            found[table[0]] = found.get(table[0], 0) + math.prod(indices[0])
    return found[max(found)] if found else None


def _images(groups: pl.DataFrame) -> int | None:
    count = 0.0
    reading = (pl.col("category") == "convolution") & ~pl.col("name").str.contains("backward")
    for shapes, calls in _forward(groups, reading):
        inputs = next(iter(tensors_of(shapes)), ())
        if len(inputs) > 3 and inputs[1] <= _MOST_CHANNELS:
            count += calls * inputs[0]
    return round(count) or None


def _weights(groups: pl.DataFrame) -> int | None:
    products = groups.filter((pl.col("category") == "gemm") & pl.col("input_shapes").is_not_null())
    moved, spent = 0.0, 0
    for row in products.iter_rows(named=True):
        sizes = sizes_of("gemm", row["name"], row["input_shapes"], None)
        if sizes and sizes["b"] == 1 and sizes["m"] <= _FEW_ROWS:
            moved += row["calls"] * sizes["n"] * sizes["k"] * _ITEM.get(row["dtype"], 2)
            spent += row["measured_ns"]
    whole = int(groups.filter(pl.col("category").is_in(["gemm", "attention", "convolution"]))["measured_ns"].sum())
    return round(moved) if whole and spent > _MOST * whole else None


_ITEM: Final = {"fp32": 4, "tf32": 4, "fp64": 8, "fp8": 1, "int8": 1}


def _forward(groups: pl.DataFrame, condition: pl.Expr) -> list[tuple[str, float]]:
    first = groups.filter(condition & pl.col("input_shapes").is_not_null() & (pl.col("recomputation_loss_ns") == 0))
    return first.select("input_shapes", "calls").rows()
