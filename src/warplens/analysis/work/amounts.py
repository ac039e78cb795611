"""`Work`: what one operator has to compute and to move at least."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from warplens.analysis.work.arguments import ITEM_BYTES, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FAMILIES", "MATMUL_FAMILIES", "Work", "moved"]

#: Kinds of modelled operators, in the order in which people expect to read them.
FAMILIES: Final = (
    "gemm",
    "convolution",
    "attention",
    "normalization",
    "softmax",
    "elementwise",
    "reduction",
    "gather-scatter",
    "copy",
    "optimizer",
)

#: Families whose FLOPs are those of matrix products: what FLOP counters usually count, and what tensor cores do.
MATMUL_FAMILIES: Final = ("gemm", "convolution", "attention")


@dataclass(frozen=True)
class Work:
    """The least that an operator has to do, whatever its kernels really do.

    Attributes:
        family: one of `FAMILIES`.
        flops: floating-point operations, a multiply-add being two; what a mask leaves out is not counted.
        bytes: every input element read once and every output element written once, of the tensors of known type.
        untyped: elements moved whose type was not recorded.
        flops_full: as `flops`, with what a mask leaves out; the same where there is no mask.
    """

    family: str
    flops: int
    bytes: int = 0
    untyped: int = 0
    flops_full: int | None = None

    def moving(self, tensors: Iterable[Tensor]) -> Work:
        """The same work that also moves these tensors."""
        known, untyped = moved(tensors)
        return replace(self, bytes=self.bytes + known, untyped=self.untyped + untyped)

    def writing(self, elements: int, type_: str | None) -> Work:
        """The same work that also moves so many elements of this type."""
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
