"""`Arguments`: the recorded inputs of an operator; `Work`: its minimum computation and traffic."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

#: Size of one element, by the type's name as PyTorch's profiler writes it: `at::TypeMeta` prints C++ types, and a
#: 64-bit integer is called differently from one compiler to the next.
ITEM_BYTES: Final = {
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
    "char": 1,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1,
    "c10::Float4_e2m1fn_x2": 1,
    "c10::qint8": 1,
    "c10::quint8": 1,
    "short": 2,
    "short int": 2,
    "unsigned short": 2,
    "short unsigned int": 2,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "int": 4,
    "unsigned int": 4,
    "float": 4,
    "c10::qint32": 4,
    "c10::complex<c10::Half>": 4,
    "long": 8,
    "long int": 8,
    "long long": 8,
    "__int64": 8,
    "unsigned long": 8,
    "long unsigned int": 8,
    "unsigned long long": 8,
    "unsigned __int64": 8,
    "double": 8,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}

_INTEGERS: Final = frozenset(
    {"bool", "unsigned char", "signed char", "char", "short", "short int", "unsigned short", "short unsigned int"}
    | {"int", "unsigned int", "long", "long int", "long long", "__int64"}
    | {"unsigned long", "long unsigned int", "unsigned long long", "unsigned __int64"}
)
_LISTS: Final = frozenset({"TensorList", "Tensor[]", "GenericList"})

#: PyTorch's profiler leaves the shapes of longer lists of tensors out (`kTensorListDisplayLengthLimit`).
_LONGEST_LIST: Final = 30


class UnknownWorkError(Exception):
    """The recorded inputs do not determine an operator's work; the text names the missing information."""


@dataclass(frozen=True)
class Tensor:
    """One tensor among the inputs."""

    shape: tuple[int, ...]
    type: str | None  #: the type's name as recorded; None where it was not recorded
    stored: int  #: number of distinct elements in memory: fewer than in the shape for an expanded tensor (stride 0)

    @property
    def elements(self) -> int:
        """Product of the sizes."""
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int | None:
        """Size of one element; None for an unknown type."""
        return None if self.type is None else ITEM_BYTES.get(self.type)

    @property
    def is_complex(self) -> bool:
        """Whether its elements are complex numbers."""
        return self.type is not None and "complex" in self.type


class Arguments:
    """The inputs of one operator by position, as in its signature.

    Args:
        shapes, types, strides, values: the JSON lists of the table `operators`; None for what was not recorded.
    """

    def __init__(self, shapes: str | None, types: str | None, strides: str | None, values: str | None) -> None:
        self._shapes = _json_list(shapes)
        self._types = _json_list(types)
        self._strides = _json_list(strides)
        self._values = _json_list(values)
        if not self._shapes:
            raise UnknownWorkError("shapes were not recorded")

    def __len__(self) -> int:
        return len(self._shapes)

    def optional(self, position: int) -> Tensor | None:
        """The tensor at this position; None for a number, or an optional tensor left out."""
        if position >= len(self._shapes):
            return None
        shape, type_ = self._shapes[position], _item_or_none(self._types, position)
        if not isinstance(shape, list) or any(not isinstance(size, int) for size in shape):
            return None
        if (self._types and type_ not in ITEM_BYTES) or (not self._types and not shape):
            return None
        return _tensor(shape, type_, _item_or_none(self._strides, position))

    def present(self, *positions: int | None) -> list[Tensor]:
        """The tensors among these optional ones; None stands for an argument that an operator does not have."""
        found = (self.optional(position) for position in positions if position is not None)
        return [tensor for tensor in found if tensor is not None]

    def tensor(self, position: int) -> Tensor:
        """The tensor at this position.

        Raises:
            UnknownWorkError: there is none.
        """
        result = self.optional(position)
        if result is None:
            raise UnknownWorkError("the shape of an input was not recorded")
        return result

    def matrix(self, position: int, least: int = 2) -> Tensor:
        """The tensor at this position, which must have at least `least` dimensions."""
        result = self.tensor(position)
        if len(result.shape) < least:
            raise UnknownWorkError("an input has fewer dimensions than its operator needs")
        return result

    def holds_shapes(self, position: int) -> bool:
        """Whether there is a list of tensors at this position whose shapes were recorded."""
        return bool(self._nested(position))

    def is_list(self, position: int) -> bool:
        """Whether a list of tensors is at this position."""
        return _item_or_none(self._types, position) in _LISTS or bool(self._nested(position))

    def tensors(self, position: int) -> list[Tensor]:
        """The tensors of the list at this position; their type is not recorded.

        Raises:
            UnknownWorkError: there is no list, or it was too long for its shapes to be recorded.
        """
        nested = self._nested(position)
        if not nested:
            raise UnknownWorkError(f"shapes of lists of more than {_LONGEST_LIST} tensors are not recorded")
        strides = _item_or_none(self._strides, position) or []
        return [_tensor(shape, None, _item_or_none(strides, number)) for number, shape in enumerate(nested)]

    def _nested(self, position: int) -> list[list[int]]:
        shape = _item_or_none(self._shapes, position)
        if isinstance(shape, list) and shape and all(isinstance(inner, list) for inner in shape):
            return shape
        return []

    def value(self, position: int) -> str | None:
        """The text of the scalar at this position; None where it was not recorded or left at None."""
        text = _item_or_none(self._values, position)
        return text if isinstance(text, str) and text not in ("", "None") else None

    def integer(self, position: int) -> int | None:
        """The integer at this position; None where it was not recorded."""
        text = self.value(position)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def flag(self, position: int) -> bool | None:
        """The truth value at this position; None where it was not recorded."""
        return {"true": True, "1": True, "false": False, "0": False}.get((self.value(position) or "").lower())

    def integers(self, position: int) -> tuple[int, ...] | None:
        """The list of integers at this position; None where it was not recorded."""
        text = self.value(position)
        if text is None or not text.startswith("["):
            return None
        try:
            return tuple(int(part) for part in text.strip("[]").split(",") if part.strip())
        except ValueError:
            return None

    def flags(self, position: int) -> tuple[bool, ...] | None:
        """The list of truth values at this position; None where it was not recorded."""
        text = self.value(position)
        if text is None or not text.startswith("["):
            return None
        return tuple(part.strip().lower() in ("true", "1") for part in text.strip("[]").split(",") if part.strip())


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an elementwise result of these inputs."""
    length = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
    # A size of 1 broadcasts to any other, also to 0.
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def promoted(tensors: list[Tensor]) -> str | None:
    """The type of an elementwise result: the widest one of the highest kind; tensors without dimensions yield.

    This is PyTorch's rule of type promotion as far as sizes are concerned (docs: torch.result_type).
    """
    if any(tensor.type is None for tensor in tensors):
        return None
    dimensioned = [tensor for tensor in tensors if tensor.shape] or tensors
    kind = max(_type_rank(tensor) for tensor in dimensioned)
    if any(_type_rank(tensor) > kind for tensor in tensors):
        dimensioned = [tensor for tensor in tensors if _type_rank(tensor) > kind]
        kind = max(_type_rank(tensor) for tensor in dimensioned)
    return max((t for t in dimensioned if _type_rank(t) == kind), key=lambda tensor: tensor.item_bytes or 0).type


def _type_rank(tensor: Tensor) -> int:
    if tensor.type == "bool":
        return 0
    if tensor.type in _INTEGERS:
        return 1
    return 3 if tensor.is_complex else 2


def _tensor(shape: list[int], type_: str | None, strides: Any) -> Tensor:
    if min(shape, default=0) < 0:
        raise UnknownWorkError("a recorded size is negative")
    elements = math.prod(shape)
    if shape and strides == []:  # only sparse and nested tensors have no strides
        raise UnknownWorkError("an input is sparse, and how many of its elements are stored was not recorded")
    if not isinstance(strides, list) or len(strides) != len(shape) or not elements:
        return Tensor(tuple(shape), type_, elements)
    stored = math.prod([size for size, stride in zip(shape, strides, strict=True) if stride != 0])
    return Tensor(tuple(shape), type_, stored)


def _item_or_none(items: list[Any], position: int) -> Any:
    return items[position] if position < len(items) else None


@lru_cache(maxsize=65_536)
def _parsed(text: str) -> list[Any]:
    try:
        items = json.loads(text)
    except ValueError:
        return []
    return items if isinstance(items, list) else []


def _json_list(text: str | None) -> list[Any]:
    return [] if text is None else _parsed(text)


#: Families of modelled operators, in the order of presentation.
FAMILIES: Final = (
    "gemm",
    "convolution",
    "attention",
    "recurrence",
    "normalization",
    "softmax",
    "elementwise",
    "reduction",
    "gather-scatter",
    "sort-topk",
    "copy",
    "optimizer",
)

#: Families whose FLOPs are those of matrix products: the usual subject of FLOP counters, and the work of tensor cores.
MATMUL_FAMILIES: Final = ("gemm", "convolution", "attention", "recurrence")


@dataclass(frozen=True)
class Work:
    """The minimum work of an operator, regardless of its kernels."""

    family: str  #: one of `FAMILIES`
    flops: int  #: floating-point operations, a multiply-add being two; masked-out work is not counted
    bytes: int = 0  #: every input element read once and every output element written once, of the tensors of known type
    untyped: int = 0  #: elements moved whose type was not recorded
    flops_full: int | None = None  #: as `flops`, including masked-out work; None if there is no mask

    def moving(self, tensors: Iterable[Tensor]) -> Work:
        """The same work plus the traffic of these tensors."""
        known, untyped = moved(tensors)
        return replace(self, bytes=self.bytes + known, untyped=self.untyped + untyped)

    def writing(self, elements: int, type_: str | None) -> Work:
        """The same work plus the traffic of this many elements of this type."""
        size = ITEM_BYTES.get(type_) if type_ is not None else None
        if size is None:
            return replace(self, untyped=self.untyped + elements)
        return replace(self, bytes=self.bytes + elements * size)


def moved(tensors: Iterable[Tensor]) -> tuple[int, int]:
    """Bytes of the stored elements of tensors of known type, and the number of those of unknown type."""
    known = untyped = 0
    for tensor in tensors:
        if tensor.item_bytes is None:
            untyped += tensor.stored
        else:
            known += tensor.stored * tensor.item_bytes
    return known, untyped
