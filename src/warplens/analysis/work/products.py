"""Work of matrix products: 2·M·N·K FLOPs, both operands read once, the result written once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from warplens.analysis.work.amounts import Work
from warplens.analysis.work.arguments import Arguments, Tensor, UnknownWorkError, broadcast, promoted

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMULAS"]

#: PyTorch's numbers of types (`c10::ScalarType`), as concrete inputs hold them.
_SCALAR_TYPES: Final = {
    3: "int",
    5: "c10::Half",
    6: "float",
    7: "double",
    15: "c10::BFloat16",
    23: "c10::Float8_e5m2",
    24: "c10::Float8_e4m3fn",
}


def _product(left: Tensor, right: Tensor, batch: tuple[int, ...], result: str | None) -> Work:
    """`[…, M, K] × […, K, N]` of so many pairs."""
    (rows, inner), columns = left.shape[-2:], right.shape[-1]
    if right.shape[-2] != inner:
        raise UnknownWorkError("the shapes of a product's operands do not fit")
    pairs = math.prod(batch)
    work = Work("gemm", 2 * pairs * rows * inner * columns).moving((left, right))
    return work.writing(pairs * rows * columns, result)


def _matmul(arguments: Arguments, first: int = 0, result: str | None = None) -> Work:
    left, right = arguments.matrix(first, 1), arguments.matrix(first + 1, 1)
    kind = result or promoted([left, right])
    rows = Tensor((1, *left.shape), left.type, left.stored) if len(left.shape) == 1 else left
    columns = Tensor((*right.shape, 1), right.type, right.stored) if len(right.shape) == 1 else right
    if len(columns.shape) == 2 and len(rows.shape) > 2:  # one matrix for all of the batch: a single product
        rows = Tensor((math.prod(rows.shape[:-1]), rows.shape[-1]), rows.type, rows.stored)
    return _product(rows, columns, broadcast(rows.shape[:-2], columns.shape[:-2]), kind)


def _with_summand(arguments: Arguments) -> Work:
    """addmm, baddbmm, addmv: beta · input + alpha · (left × right)."""
    work = _matmul(arguments, 1)
    added = arguments.optional(0)
    if added is None or arguments.value(3) in ("0", "0.", "0.0"):
        return work
    return work.moving([added])


def _linear(arguments: Arguments) -> Work:
    inputs, weight = arguments.matrix(0, 1), arguments.matrix(1, 1)
    outputs = weight.shape[0] if len(weight.shape) == 2 else 1
    rows = math.prod(inputs.shape[:-1])
    work = Work("gemm", 2 * rows * inputs.shape[-1] * outputs).moving((inputs, weight))
    bias = arguments.optional(2)
    return work.moving([bias] if bias else []).writing(rows * outputs, promoted([inputs, weight]))


def _scaled(arguments: Arguments) -> Work:
    # _scaled_mm(self, mat2, scale_a, scale_b, bias?, scale_result?, out_dtype?, use_fast_accum); two elements of fp4
    # stand in one byte, so that its recorded inner size is half of the true one.
    left, right = arguments.matrix(0), arguments.matrix(1)
    result = _SCALAR_TYPES.get(arguments.integer(6) or -1, left.type)
    packed = 2 if left.type == "c10::Float4_e2m1fn_x2" else 1
    work = _product(left, right, (), result)
    scales = [tensor for tensor in map(arguments.optional, (2, 3, 4)) if tensor is not None]
    return Work("gemm", packed * work.flops, work.bytes, work.untyped).moving(scales)


def _integers(arguments: Arguments) -> Work:
    return _matmul(arguments, result="int")


def _grouped(arguments: Arguments) -> Work:
    # Rows (or the inner dimension) are dealt out to the groups; every row meets exactly one of the matrices.
    left, right = arguments.matrix(0), arguments.matrix(1)
    (rows, inner), columns = left.shape[-2:], right.shape[-1]
    groups = 1
    if len(left.shape) == 3 and len(right.shape) == 3:
        groups = left.shape[0]
    elif len(left.shape) == 2 and len(right.shape) == 2:  # one product for each part of the inner dimension
        offsets = next((t for t in map(arguments.optional, (4, 2)) if t is not None and len(t.shape) == 1), None)
        if offsets is None:
            raise UnknownWorkError("the number of groups was not recorded")
        work = Work("gemm", 2 * rows * inner * columns).moving((left, right))
        return work.writing(offsets.elements * rows * columns, left.type)
    work = Work("gemm", 2 * groups * rows * inner * columns).moving((left, right))
    return work.writing(groups * rows * columns, left.type)


def _dot(arguments: Arguments) -> Work:
    left, right = arguments.tensor(0), arguments.tensor(1)
    return Work("gemm", 2 * left.elements).moving((left, right)).writing(1, left.type)


def _outer(arguments: Arguments) -> Work:
    left, right = arguments.tensor(0), arguments.tensor(1)
    size = left.elements * right.elements
    return Work("gemm", size).moving((left, right)).writing(size, promoted([left, right]))


def _written_first(arguments: Arguments) -> Work:
    """Products of inference engines: (out, left, right, scales …)."""
    out, left, right = arguments.matrix(0), arguments.matrix(1), arguments.matrix(2)
    work = _product(left, right, (), out.type)
    scales = [tensor for tensor in map(arguments.optional, (3, 4, 5)) if tensor is not None]
    return work.moving(scales)


FORMULAS: Final[dict[str, Callable[[Arguments], Work]]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::matmul", "aten::mv"), _matmul),
    **dict.fromkeys(
        ("aten::addmm", "aten::addmm_", "aten::_addmm_activation", "aten::baddbmm", "aten::baddbmm_"), _with_summand
    ),
    **dict.fromkeys(("aten::addmv", "aten::addmv_"), _with_summand),
    "aten::linear": _linear,
    "aten::_scaled_mm": _scaled,
    "aten::_int_mm": _integers,
    **dict.fromkeys(("aten::_grouped_mm", "aten::_scaled_grouped_mm"), _grouped),
    **dict.fromkeys(("aten::dot", "aten::vdot"), _dot),
    **dict.fromkeys(("aten::outer", "aten::ger"), _outer),
    "_C::cutlass_scaled_mm": _written_first,
}
