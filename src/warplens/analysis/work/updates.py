"""Work of operators on whole lists of tensors: the `_foreach_` operators and the fused optimizers.

The type of the tensors in a list is not recorded, and the shapes only of lists of at most thirty: see `Arguments`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warplens.analysis.work.amounts import Work
from warplens.analysis.work.arguments import Arguments, Tensor
from warplens.analysis.work.elementwise import PER_ELEMENT

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMULAS"]

#: FLOPs for each parameter of a whole step, counted in the update formulas of PyTorch's documentation:
#: Adam: weight decay 1, first moment 3, second moment 4, root and its correction 2, epsilon 1, quotient and step 3.
_ADAM_FLOPS, _SGD_FLOPS, _ADAGRAD_FLOPS = 14, 6, 8


def _foreach(flops: int, inputs: int) -> Callable[[Arguments], Work]:
    def formula(arguments: Arguments) -> Work:
        first = arguments.tensors(0)
        others = [
            t for position in range(1, inputs) if arguments.is_list(position) for t in arguments.tensors(position)
        ]
        elements = sum(tensor.elements for tensor in first)
        return Work("optimizer", flops * elements).moving([*first, *others]).writing(elements, None)

    return formula


def _foreach_norm(arguments: Arguments) -> Work:
    tensors = arguments.tensors(0)
    work = Work("optimizer", 2 * sum(tensor.elements for tensor in tensors)).moving(tensors)
    return work.writing(len(tensors), None)


def _foreach_copy(arguments: Arguments) -> Work:
    return Work("optimizer", 0).moving([*arguments.tensors(0), *arguments.tensors(1)])


def _foreach_zero(arguments: Arguments) -> Work:
    return Work("optimizer", 0).moving(arguments.tensors(0))


def _fused(flops: int, states: int) -> Callable[[Arguments], Work]:
    """(parameters, gradients, states …): all are read, parameters and states are written."""

    def formula(arguments: Arguments) -> Work:
        parameters, gradients = arguments.tensors(0), arguments.tensors(1)
        held: list[Tensor] = []
        for position in range(2, 2 + states):
            held.extend(_optional_list(arguments, position))
        work = Work("optimizer", flops * sum(tensor.elements for tensor in parameters))
        return work.moving([*parameters, *gradients, *held, *parameters, *held])

    return formula


def _optional_list(arguments: Arguments, position: int) -> list[Tensor]:
    """The tensors of a list that may be empty, such as the momentum of an optimizer that has none."""
    return arguments.tensors(position) if arguments.holds_shapes(position) else []


#: Elementwise operators that exist for lists.
_OF_LISTS: Final = (
    "add", "sub", "mul", "div", "pow", "sqrt", "rsqrt", "reciprocal", "neg", "abs", "exp", "log", "sign", "clamp_min",
    "clamp_max", "maximum", "minimum", "addcmul", "addcdiv", "lerp",
)  # fmt: skip

FORMULAS: Final[dict[str, Callable[[Arguments], Work]]] = {
    **{
        f"aten::_foreach_{name}{mark}": _foreach(PER_ELEMENT[name].flops, PER_ELEMENT[name].inputs)
        for name in _OF_LISTS
        for mark in ("", "_")
    },
    "aten::_foreach_norm": _foreach_norm,
    "aten::_foreach_copy_": _foreach_copy,
    "aten::_foreach_zero_": _foreach_zero,
    **dict.fromkeys(("aten::_fused_adam_", "aten::_fused_adamw_"), _fused(_ADAM_FLOPS, 3)),
    "aten::_fused_sgd_": _fused(_SGD_FLOPS, 1),
    "aten::_fused_adagrad_": _fused(_ADAGRAD_FLOPS, 1),
}
