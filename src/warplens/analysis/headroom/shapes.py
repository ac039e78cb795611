"""Recorded shapes: sizes for the roofs, sizes that slow kernels down, and rates of a window."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl

from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.roofs import ALIGNED, ITEM, Roofs, Task
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.analysis.work.amounts import ITEM_BYTES, Arguments, UnknownWorkError
from warplens.profile.schema import Bools, Int64s, name_categories, rows_named

#: Products whose two operands are the second and third argument.
_ADDED_PRODUCTS: Final = (
    "aten::addmm", "aten::addmm_", "aten::_addmm_activation", "aten::baddbmm", "aten::baddbmm_", "aten::addmv",
    "aten::addmv_", "_C::cutlass_scaled_mm",
)  # fmt: skip


@lru_cache(maxsize=65_536)
def sizes_of(
    family: str, name: str, shapes: str | None, types: str | None, *, causal: bool = False
) -> dict[str, float]:
    """Sizes by name as in `roofs.Task.sizes`; empty where the shapes do not give them."""
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
    first = 1 if name in _ADDED_PRODUCTS else 0
    left, right = arguments.matrix(first, 1), arguments.matrix(first + 1, 1)
    if name == "aten::linear":
        return {"m": math.prod(left.shape[:-1]), "n": right.shape[0], "k": left.shape[-1], "b": 1}
    rows = left.shape[-2] if len(left.shape) > 1 else 1
    columns = right.shape[-1] if len(right.shape) > 1 else 1
    batch = math.prod(left.shape[:-2])
    if len(right.shape) == 2 and batch > 1:  # one matrix for the whole batch
        rows, batch = rows * batch, 1
    return {"m": rows, "n": columns, "k": left.shape[-1], "b": batch}


def _attention(name: str, arguments: Arguments, *, causal: bool) -> dict[str, float]:
    query, key = (arguments.matrix(("backward" in name) + place, 3) for place in (0, 1))
    batch, *between, size = query.shape if len(query.shape) == 4 else (1, *query.shape)
    # Heads come before or after the sequence; there are fewer of them.
    queries, keys = max(between), max(key.shape[-3:-1])
    later_tensors = (arguments.optional(place) for place in range(3, len(arguments)))
    mask = any(len(tensor.shape) > 2 and tensor.shape[-2:] == (queries, keys) for tensor in later_tensors if tensor)
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


#: Sizes of a tensor in a text of shapes.
_SIZES: Final = re.compile(r"\[(\d[\d, ]*)\]")
#: Operations that read an element at a place given by an index, those that read a part of a tensor, and those that read
#: several elements for one.
_GATHERING: Final = re.compile(r"(?<!unsafe_)index(?!_put)|gather|embedding|nll_loss")
_TAKING_PARTS: Final = re.compile(r"slice|split|unbind|select|narrow")
_OF_SEVERAL: Final = re.compile(r"pool|unsafe_index|slice|split|unbind|select|narrow")
#: Gradients of activations read a gradient and a value.
_OF_TWO: Final = re.compile(r"(threshold|elu|silu|tanh|sigmoid|swish|mish|softplus|dropout)_backward")
#: Operations on a large tensor and on a number for each of its channels.
_PER_CHANNEL: Final = re.compile(r"convolution(?!_backward)|batch_norm")
#: Operations that write a tensor without reading one as large.
_CREATING: Final = re.compile(
    r"arange|full|zeros|ones|empty|fill|rand|bernoulli|eye|scalar_tensor|linspace|iota|expand|dense_backward|slice"
    r"|select|scatter|put|pool|tri[lu]"
)

#: No memory holds as many bytes.
_MOST_BYTES: Final = 10**18


@lru_cache(maxsize=65_536)
def bytes_of_generated(
    name: str, shapes: str | None, types: str | None, numbers: str | None
) -> tuple[int | None, int | None]:
    """Bytes that a kernel of Inductor moves: all of its arguments, which are its inputs and outputs, and at least.

    Its numbers tell how many elements it passes over. Of a larger argument it may read a part: one element at each
    place that an index gives, or several slices.

    Args:
        name: the kernel's, which lists its operations.
        shapes: JSON list of the arguments' shapes.
        types: the list of their types.
        numbers: the list of their values, where they are numbers: sizes of the result and of what is reduced.
    """
    listed = zip(json.loads(shapes or "[]"), json.loads(types or "[]"), strict=False)
    tensors = [(shape, type_) for shape, type_ in listed if isinstance(shape, list) and isinstance(type_, str)]
    tensors = [
        (shape, type_) for shape, type_ in tensors
        if type_ in ITEM_BYTES and all(isinstance(size, int) and size >= 0 for size in shape)
    ]  # fmt: skip
    sizes = [(math.prod(shape), ITEM_BYTES[type_]) for shape, type_ in tensors]
    total = sum(count * item for count, item in sizes)
    passed = [int(text) for text in json.loads(numbers or "[]") if re.fullmatch(r"\d+", str(text))]
    is_pointwise = name.startswith("triton_poi")
    if not 0 < total < _MOST_BYTES:  # a trace may contain wrong shapes
        return None, None
    if len(passed) < (1 if is_pointwise else 2):
        return total, total
    points = math.prod(passed)
    if is_pointwise and not _CREATING.search(name):
        total += _read_and_written(name, [shape for shape, _ in tensors], sizes, points)
    places = points * max(1, sum(type_ in ("int", "long int") for _, type_ in tensors))
    least = total - sum(max(0, count - places) * item for count, item in sizes)
    if _GATHERING.search(name):
        return total if _OF_SEVERAL.search(name) else least, least
    return total, least if _TAKING_PARTS.search(name) else total


def _read_and_written(name: str, shapes: list[list[int]], sizes: list[tuple[int, int]], points: int) -> int:
    """Bytes of the argument that a pointwise kernel must both read and write; 0 where its arguments do not show it.

    Its result is an argument of as many elements as it passes over. So is what it must read: its only argument, both
    operands of an activation's gradient, or what has channels, where all others are vectors.
    """
    large = [points * item for count, item in sizes if count >= points]
    others = [shape for shape, (count, _) in zip(shapes, sizes, strict=True) if count < points]
    if others:
        is_read = bool(_PER_CHANNEL.search(name)) and len(large) == 1 and all(len(shape) < 2 for shape in others)
    else:
        is_read = len(large) == 1 or (len(large) == 2 and bool(_OF_TWO.search(name)))
    return min(large) if is_read else 0


def first_shape(shapes: str | None) -> tuple[int, ...]:
    """The shape of the first input; empty where it was not recorded."""
    return next(iter(tensors_of(shapes)), ())


def tensors_of(shapes: str | None) -> list[tuple[int, ...]]:
    """Shapes of the inputs that are tensors; lists of tensors are left out."""
    items: list[Any] = json.loads(shapes) if shapes else []
    return [tuple(item) for item in items if isinstance(item, list) and item and all(isinstance(s, int) for s in item)]


def tensors_with_lists(shapes: str) -> list[tuple[int, ...]]:
    """Shapes of the inputs that are tensors, and of those in lists of tensors."""
    return [tuple(int(size) for size in sizes.split(",")) for sizes in _SIZES.findall(shapes)]


def misaligned(
    family: str, dtype: str | None, sizes: dict[str, float], *, backward: bool = False, named: bool = False
) -> str | None:
    """The size of a product or attention that is unsuitable for tensor cores, in words; None where all are suitable.

    What counts are sizes that are contiguous in memory. Of a product these are n (the result's), and k or m: k, unless
    the left operand is transposed, as for the gradients of weights. Strides are not recorded, so that k of the backward
    pass counts where m is unsuitable, too, or the kernel's name says so; m alone only where the name says so.

    Args:
        family: the kind of work, as in `roofs.Task`.
        dtype: the format of its operands.
        sizes: as in `roofs.Task.sizes`.
        backward: whether it is a part of the backward pass.
        named: whether the kernel's name tells operands that are not aligned.
    """
    multiple = ALIGNED.get(dtype or "", 0)
    if not multiple:
        return None
    sizes_checked = {"gemm": ("n", "k", "m"), "attention": ("d",), "convolution": ("in", "out")}.get(family, ())
    if family == "convolution" and (sizes.get("groups", 1) > 1 or sizes.get("in", 0) <= 4):
        return None  # depthwise work has no product, and an image has a fixed number of channels
    # Few rows make a vector, not a matrix.
    unsuitable = [name for name in sizes_checked if int(sizes.get(name, 0)) % multiple and sizes[name] > multiple]
    if family == "gemm" and not named and (unsuitable == ["m"] or (backward and unsuitable == ["k"])):
        return None
    return next((f"{name} = {int(sizes[name]):,} is not a multiple of {multiple}" for name in unsuitable), None)


#: Channels of images: grey or coloured ones. Latents have four.
_CHANNELS: Final = (1, 3)
_IMAGE_DIMENSIONS: Final = 4
#: Products of at most this many rows are bound by reading their weights: on an H200 below some 200 FLOPs per byte.
_FEW_ROWS: Final = 64
#: The weights set a floor where such products take at least this share of the products' time.
_MOST: Final = 0.5


@dataclass(frozen=True)
class Rates:
    """Throughput of a window; None where the shapes do not give it."""

    tokens: int | None = None  #: tokens looked up in their embedding in the forward pass
    #: images that the first convolution of each step reads; None where a step may read some of them more than once
    images: int | None = None
    weight_bytes: int | None = None  #: weights read by products of few rows, once per call (decoding)
    weights_ns: int | None = None  #: time to read them at the practical bandwidth


def rates_of(timeline: Timeline, window: Window, groups: pl.DataFrame, roofs: Roofs | None) -> Rates:
    """The rates of a window; `groups` are those of `budget.GROUPS`."""
    weight_bytes = _weights(groups)
    time = None
    if weight_bytes and roofs is not None:
        time = roofs.large_ns(Task("elementwise", None, weight_bytes))
    return Rates(
        _tokens(timeline, window), _images(timeline, window), weight_bytes, None if time is None else round(time)
    )


def _tokens(timeline: Timeline, window: Window) -> int | None:
    """Number of indices into the embedding of tokens, for GPU work in the window.

    It is one of the widest, for those of relative positions, which are looked up once for each pair, have a number for
    each head. Of these it has the most indices: positions are looked up once for all sequences, or as often as tokens,
    and may have more rows.
    """
    names = timeline.trace.ranges["name"]
    if not timeline.has_operators or "aten::embedding" not in name_categories(names):
        return None
    shapes, _ = _forward_operators(timeline, window, (names == "aten::embedding").to_numpy())
    indices_of: dict[tuple[int, ...], int] = {}
    for table, *indices in filter(None, map(tensors_of, shapes)):
        if indices:
            indices_of[table] = indices_of.get(table, 0) + math.prod(indices[0])
    widest = max((table[-1] for table in indices_of), default=0)
    return max((count for table, count in indices_of.items() if table[-1] == widest), default=None)


def _forward_operators(timeline: Timeline, window: Window, selected: Bools) -> tuple[list[str | None], Int64s]:
    """Shapes of the outermost of these operators in the forward pass whose work begins in the window, and its begin."""
    tree, inside = timeline.operators, np.zeros(timeline.work.height, dtype=np.bool_)
    inside[timeline.work_rows_in(window)] = True
    label = np.where(selected & ~timeline.autograd.in_backward, np.arange(1, len(selected) + 1), 0)
    number = np.r_[tree.forest.outermost_match(label), 0][timeline.places.operator]
    operators, first = np.unique(number, return_index=True)  # work is in order of its begin
    operators, first = operators[inside[first]] - 1, first[inside[first]]
    recorded = timeline.trace.operators.select("range", pl.col("input_shapes").cast(pl.String))
    launching = pl.DataFrame({"range": operators}, schema={"range": recorded.schema["range"]})
    shapes = launching.join(recorded, on="range", how="left", maintain_order="left")["input_shapes"]
    return shapes.to_list(), timeline.work["start_ns"].to_numpy()[first]


#: The two operands of a convolution over images.
_Operands: TypeAlias = tuple[tuple[int, ...], ...]


def _images(timeline: Timeline, window: Window) -> int | None:
    """Images that the convolutions of few channels read in the window's steps, each once.

    None where a step may read the same ones again (for several networks, crops, attacks), and where nothing is trained
    and convolutions make such images: a sampler may read its own result.
    """
    if not timeline.has_operators or not window.steps:
        return None
    is_convolution = rows_named(
        timeline.trace.ranges["name"], lambda text: re.match(r"aten::\w*conv(?!\w*backward)", text) is not None
    )
    shapes, begins = _forward_operators(timeline, window, is_convolution)
    operands = [tuple(tensors_of(text)[:2]) for text in shapes]
    over_images = [[len(shape) for shape in pair] == [_IMAGE_DIMENSIONS] * 2 for pair in operands]
    _, step_begins, step_ends = window.step_edges
    reading: list[list[_Operands]] = [
        [operands[place] for place in np.flatnonzero((begins >= begin) & (begins < end)) if over_images[place]]
        for begin, end in zip(step_begins, step_ends, strict=True)
    ]
    made = {weight[0] for step in reading for _, weight in step}
    read = [[pair for pair in step if pair[0][1] in _CHANNELS and min(pair[0][2:]) > 1] for step in reading]
    batches = [_batch(step) for step in read if step]
    rows = timeline.places.operator[timeline.work_rows_in(window)]
    trains = np.r_[timeline.autograd.in_backward, False][rows].any()
    is_made = any(inputs[1] in made for step in read for inputs, _ in step)
    # The begin of the first step may lie behind its first work.
    if None in batches or len(batches) < max(1, len(window.steps) - 1) or (is_made and not trains):
        return None
    return round(sum(filter(None, batches)) / len(batches) * window.step_count)


def _batch(convolutions: Sequence[_Operands]) -> int | None:
    """Images that these convolutions of a step read; None where it may be more than one batch.

    Different weights read the same images (parallel convolutions), or those of another sensor.
    """
    inputs = {images for images, _ in convolutions}
    shown = {images[0] for images in inputs}
    is_one_batch = len(set(convolutions)) == len(convolutions) and len(shown) == 1
    return shown.pop() if is_one_batch and len({images[1] for images in inputs}) == len(inputs) else None


def _weights(groups: pl.DataFrame) -> int | None:
    products = groups.filter((pl.col("category") == "gemm") & pl.col("input_shapes").is_not_null())
    weight_bytes, small_ns = 0.0, 0
    for row in products.iter_rows(named=True):
        sizes = sizes_of("gemm", row["name"], row["input_shapes"], None)
        if sizes and sizes["b"] == 1 and sizes["m"] <= _FEW_ROWS:
            weight_bytes += row["calls"] * sizes["n"] * sizes["k"] * ITEM.get(row["dtype"], 2)
            small_ns += row["measured_ns"]
    product_ns = int(groups.filter(pl.col("category").is_in(PRODUCTS))["measured_ns"].sum())
    return round(weight_bytes) if product_ns and small_ns > _MOST * product_ns else None
