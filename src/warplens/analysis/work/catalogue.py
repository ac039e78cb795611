"""Which formula belongs to which operator, and why an operator without one has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warplens.analysis.work import attention, convolution, elementwise, movement, products, rows, updates
from warplens.analysis.work.arguments import Arguments, UnknownWorkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.analysis.work.amounts import Work

__all__ = ["FORMULAS", "NO_FORMULA", "work_of"]

#: Name of an operator → how much work it is.
FORMULAS: Final[dict[str, Callable[[Arguments], Work]]] = {
    **elementwise.FORMULAS,
    **rows.FORMULAS,
    **movement.FORMULAS,
    **updates.FORMULAS,
    **products.FORMULAS,
    **convolution.FORMULAS,
    **attention.FORMULAS,
}

NO_FORMULA: Final = "there is no formula for it"

#: What tensors and sizes cannot tell, by the beginning of a name.
_BEYOND_FORMULAS: Final = (
    (("triton_", "triton::"), "generated code, whose name does not say what it computes"),
    (("nccl:", "c10d::", "record_param_comms", "symm_mem::", "rccl:", "gloo:"), "communication"),
    (("CompiledFxGraph", "## Call CompiledFxGraph", "Torch-Compiled Region"), "generated code"),
    (("aten::index", "aten::_index_put", "aten::masked_select", "aten::nonzero"), "depends on values not recorded"),
)


def work_of(
    name: str, shapes: str | None, types: str | None, strides: str | None = None, values: str | None = None
) -> Work | str:
    """The modelled work of an operator, or in words why it has none.

    Args:
        name: as recorded (`aten::addmm`).
        shapes, types, strides, values: the JSON lists of the table `operators`; None for what was not recorded.

    >>> work_of("aten::mm", "[[2, 3], [3, 4]]", '["float", "float"]').flops
    48
    """
    formula = FORMULAS.get(name)
    if formula is None:
        reasons = (reason for beginnings, reason in _BEYOND_FORMULAS if name.startswith(beginnings))
        return next(reasons, NO_FORMULA)
    try:
        return formula(Arguments(shapes, types, strides, values))
    except UnknownWorkError as missing:
        return str(missing)
