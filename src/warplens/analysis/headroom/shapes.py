"""Sizes of operators from their recorded shapes, as the roofs ask for them, and which of them keep kernels slow."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any, Final

from warplens.analysis.roofs import ALIGNED
from warplens.analysis.work.amounts import ITEM_BYTES, Arguments, UnknownWorkError

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


def last_sizes(shapes: str | None) -> tuple[int, ...]:
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
