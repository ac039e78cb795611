"""What recorded shapes tell: sizes as the roofs ask for them, which of them keep kernels slow, and rates."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.roofs import ALIGNED, ITEM, Roofs, Task
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.analysis.work.amounts import ITEM_BYTES, Arguments, UnknownWorkError
from warplens.profile.schema import name_categories

#: Where the two operands of a product stand.
_SECOND_ON: Final = (
    "aten::addmm", "aten::addmm_", "aten::_addmm_activation", "aten::baddbmm", "aten::baddbmm_", "aten::addmv",
    "aten::addmv_", "_C::cutlass_scaled_mm",
)  # fmt: skip


@lru_cache(maxsize=65_536)
def sizes_of(
    family: str, name: str, shapes: str | None, types: str | None, *, causal: bool = False
) -> dict[str, float]:
    """Sizes by name as `roofs.Task` holds them; empty where the shapes do not tell."""
    try:
        arguments = Arguments(shapes, types, None, None)
        if family == "gemm":
            return _product(name, arguments)
        if family == "attention":
            return _attention(name, arguments, causal=causal)
        if family == "convolution":
            return _convolution(name, arguments)
    except (UnknownWorkError, IndexError, ValueError):
        pass
    return {}


def _product(name: str, arguments: Arguments) -> dict[str, float]:
    first = 1 if name in _SECOND_ON else 0
    left, right = arguments.matrix(first, 1), arguments.matrix(first + 1, 1)
    if name == "aten::linear":
        return {"m": math.prod(left.shape[:-1]), "n": right.shape[0], "k": left.shape[-1], "b": 1}
    rows = left.shape[-2] if len(left.shape) > 1 else 1
    columns = right.shape[-1] if len(right.shape) > 1 else 1
    batch = math.prod(left.shape[:-2])
    if len(right.shape) == 2 and batch > 1:  # one matrix for all of the batch
        rows, batch = rows * batch, 1
    return {"m": rows, "n": columns, "k": left.shape[-1], "b": batch}


def _attention(name: str, arguments: Arguments, *, causal: bool) -> dict[str, float]:
    query, key = (arguments.matrix(("backward" in name) + place, 3) for place in (0, 1))
    batch, *between, size = query.shape if len(query.shape) == 4 else (1, *query.shape)
    # Heads stand before or after the sequence; there are fewer of them.
    queries, keys = max(between), max(key.shape[-3:-1])
    further = (arguments.optional(place) for place in range(3, len(arguments)))
    mask = any(len(tensor.shape) > 2 and tensor.shape[-2:] == (queries, keys) for tensor in further if tensor)
    return {
        "b": batch, "h": min(between), "q": queries, "s": keys, "d": size, "causal": causal,
        "mask": mask and keys != size,
    }  # fmt: skip


def _convolution(name: str, arguments: Arguments) -> dict[str, float]:
    first = 1 if "backward" in name else 0
    inputs, weight = arguments.matrix(first, 3), arguments.matrix(first + 1, 3)
    groups = max(1, inputs.shape[1] // max(1, weight.shape[1]))
    return {
        "b": inputs.shape[0], "in": inputs.shape[1], "out": weight.shape[0], "side": inputs.shape[-1],
        "kernel": weight.shape[-1], "groups": groups,
    }  # fmt: skip


@lru_cache(maxsize=65_536)
def largest_tensor(shapes: str | None) -> int:
    """Elements of the largest tensor among the inputs; 0 where no shape was recorded."""
    return max((math.prod(shape) for shape in tensors_of(shapes)), default=0)


@lru_cache(maxsize=65_536)
def bytes_of_all(shapes: str | None, types: str | None) -> int | None:
    """Bytes of all tensors named: what a generated kernel, whose arguments are inputs and outputs alike, moves."""
    listed = json.loads(types) if types else []
    total = 0
    for shape, type_ in zip(json.loads(shapes) if shapes else [], listed, strict=False):
        if (
            isinstance(shape, list)
            and isinstance(type_, str)
            and type_ in ITEM_BYTES
            and all(isinstance(size, int) for size in shape)
        ):
            total += math.prod(shape) * ITEM_BYTES[type_]
    return total or None


def first_shape(shapes: str | None) -> tuple[int, ...]:
    """The shape of the first input; empty where it was not recorded."""
    return next(iter(tensors_of(shapes)), ())


def tensors_of(shapes: str | None) -> list[tuple[int, ...]]:
    """The shapes of the inputs that are tensors, lists of tensors left out."""
    items: list[Any] = json.loads(shapes) if shapes else []
    return [tuple(item) for item in items if isinstance(item, list) and item and all(isinstance(s, int) for s in item)]


def misaligned(family: str, dtype: str | None, sizes: dict[str, float]) -> str | None:
    """Which size of a product or attention is no multiple of what tensor cores like, in words; None for none."""
    multiple = ALIGNED.get(dtype or "", 0)
    if not multiple:
        return None
    wanted = {"gemm": ("n", "k", "m"), "attention": ("d",), "convolution": ("in", "out")}.get(family, ())
    if family == "convolution" and (sizes.get("groups", 1) > 1 or sizes.get("in", 0) <= 4):
        return None  # depthwise work has no product, and the few channels of an image are what they are
    for name in wanted:
        size = int(sizes.get(name, 0))
        # Few rows are a vector's, not a matrix's.
        if size % multiple and size > multiple:
            return f"{name} = {size:,} is not a multiple of {multiple}"
    return None


#: Convolutions of at most so many channels read images.
_MOST_CHANNELS: Final = 4
#: Products of at most so many rows read their weights for little work: on an H200 below some 200 FLOP a byte.
_FEW_ROWS: Final = 64
#: The weights are a floor where such products have most of the products' time.
_MOST: Final = 0.5


@dataclass(frozen=True)
class Rates:
    """What a window got through; None where the shapes do not tell."""

    tokens: int | None = None  #: looked up in the largest embedding of the forward pass
    images: int | None = None  #: read by convolutions of a few channels in the forward pass
    weight_bytes: int | None = None  #: weights that products of few rows read, each call once (decoding)
    weights_ns: int | None = None  #: reading them at the practical bandwidth


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
    reading = (pl.col("category") == "convolution") & ~pl.col("name").str.contains("backward")
    first = groups.filter(reading & pl.col("input_shapes").is_not_null() & (pl.col("recomputation_loss_ns") == 0))
    inputs = ((first_shape(shapes), calls) for shapes, calls in first.select("input_shapes", "calls").rows())
    read = sum(calls * shape[0] for shape, calls in inputs if len(shape) > 3 and shape[1] <= _MOST_CHANNELS)
    return round(read) or None


def _weights(groups: pl.DataFrame) -> int | None:
    products = groups.filter((pl.col("category") == "gemm") & pl.col("input_shapes").is_not_null())
    moved, spent = 0.0, 0
    for row in products.iter_rows(named=True):
        sizes = sizes_of("gemm", row["name"], row["input_shapes"], None)
        if sizes and sizes["b"] == 1 and sizes["m"] <= _FEW_ROWS:
            moved += row["calls"] * sizes["n"] * sizes["k"] * ITEM.get(row["dtype"], 2)
            spent += row["measured_ns"]
    whole = int(groups.filter(pl.col("category").is_in(["gemm", "attention", "convolution"]))["measured_ns"].sum())
    return round(moved) if whole and spent > _MOST * whole else None
