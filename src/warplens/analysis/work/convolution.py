"""Work of convolutions: every output element is a dot product over the filter, padding included.

FLOPs are 2 · batch · output channels · output size · (input channels / groups) · filter size: what
`torch.utils.flop_counter` counts. An implementation by Fourier transform or Winograd computes less.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from warplens.analysis.work.amounts import Work
from warplens.analysis.work.arguments import Arguments, Tensor, UnknownWorkError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMULAS"]

Ints = tuple[int, ...]


class _Signature(NamedTuple):
    """Positions of what a forward convolution takes; None for what it does not."""

    bias: int | None
    padding: int
    stride: int
    dilation: int | None
    groups: int | None
    transposed: bool | int = False
    output_padding: int | None = None


#: From native_functions.yaml of PyTorch: input and weight always come first.
_SIGNATURES: Final = {
    **dict.fromkeys(("aten::conv1d", "aten::conv2d", "aten::conv3d"), _Signature(2, 4, 3, 5, 6)),
    **dict.fromkeys(
        ("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"), _Signature(2, 4, 3, 5, 8, 6, 7)
    ),
    **dict.fromkeys(
        ("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"),
        _Signature(2, 4, 3, 7, 6, True, 5),
    ),
    "aten::cudnn_convolution": _Signature(None, 2, 3, 4, 5),
    "aten::cudnn_convolution_transpose": _Signature(None, 2, 4, 5, 6, True, 3),
    "aten::cudnn_convolution_relu": _Signature(2, 4, 3, 5, 6),
    "aten::cudnn_convolution_add_relu": _Signature(4, 6, 5, 7, 8),
    **dict.fromkeys(("aten::miopen_convolution", "aten::miopen_depthwise_convolution"), _Signature(2, 3, 4, 5, 6)),
    "aten::miopen_convolution_transpose": _Signature(2, 3, 5, 6, 7, True, 4),
    "aten::miopen_convolution_relu": _Signature(2, 4, 3, 5, 6),
    **dict.fromkeys(("aten::_slow_conv2d_forward", "aten::thnn_conv2d"), _Signature(3, 5, 4, None, None)),
    **dict.fromkeys(("aten::_conv_depthwise2d", "aten::conv_depthwise3d"), _Signature(3, 5, 4, 6, None)),
    **dict.fromkeys(("aten::slow_conv_dilated2d", "aten::slow_conv_dilated3d"), _Signature(3, 5, 4, 6, None)),
}


def _forward(signature: _Signature) -> Callable[[Arguments], Work]:
    def formula(arguments: Arguments) -> Work:
        inputs, weight = arguments.matrix(0, 3), arguments.matrix(1, 3)
        transposed = signature.transposed
        if not isinstance(transposed, bool):
            recorded = arguments.flag(transposed)
            if recorded is None:
                raise UnknownWorkError("stride and padding were not recorded")
            transposed = recorded
        output = _output_shape(arguments, signature, inputs.shape, weight.shape, transposed=transposed)
        positions = math.prod(inputs.shape[2:] if transposed else output[2:])
        work = Work("convolution", 2 * inputs.shape[0] * positions * weight.elements)
        bias = None if signature.bias is None else arguments.optional(signature.bias)
        return work.moving([inputs, weight, *([bias] if bias else [])]).writing(math.prod(output), inputs.type)

    return formula


def _output_shape(arguments: Arguments, signature: _Signature, inputs: Ints, weight: Ints, *, transposed: bool) -> Ints:
    if len(inputs) != len(weight):
        raise UnknownWorkError("an input has another number of dimensions than its weight")
    space = len(inputs) - 2
    filters = weight[2:]
    stride = _each(arguments.integers(signature.stride), space, least=1)
    padding = _each(arguments.integers(signature.padding), space)
    dilation = (1,) * space
    if signature.dilation is not None:
        dilation = _each(arguments.integers(signature.dilation), space, least=1)
    if transposed:
        groups = max(1, arguments.integer(signature.groups) or 1) if signature.groups is not None else 1
        position = signature.output_padding
        extra = _each(arguments.integers(position), space) if position is not None else (0,) * space
        sizes = tuple(
            max(0, (size - 1) * s - 2 * p + d * (k - 1) + e + 1)
            for size, s, p, d, k, e in zip(inputs[2:], stride, padding, dilation, filters, extra, strict=True)
        )
        return (inputs[0], weight[1] * groups, *sizes)
    sizes = tuple(
        max(0, (size + 2 * p - d * (k - 1) - 1) // s + 1)
        for size, s, p, d, k in zip(inputs[2:], stride, padding, dilation, filters, strict=True)
    )
    return (inputs[0], weight[0], *sizes)


def _each(recorded: Ints | None, space: int, least: int = 0) -> Ints:
    """One number for each dimension of space; a single one stands for all."""
    if recorded is None or len(recorded) not in (1, space) or min(recorded, default=0) < least:
        raise UnknownWorkError("stride and padding were not recorded")
    return recorded * space if len(recorded) == 1 else recorded


def _backward(arguments: Arguments) -> Work:
    # convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
    # output_padding, groups, output_mask): as much as the forward pass for each of the two gradients wanted.
    wanted = arguments.flags(10)
    transposed = arguments.flag(7)
    gradient, inputs, weight = arguments.matrix(0, 3), arguments.matrix(1, 3), arguments.matrix(2, 3)
    if wanted is None or len(wanted) != 3 or transposed is None:
        raise UnknownWorkError("which gradients were wanted was not recorded")
    return _gradients(gradient, inputs, weight, wanted=wanted, transposed=transposed)


def _gradients(gradient: Tensor, inputs: Tensor, weight: Tensor, *, wanted: tuple[bool, ...], transposed: bool) -> Work:
    positions = math.prod((inputs if transposed else gradient).shape[2:])
    once = 2 * gradient.shape[0] * positions * weight.elements
    work = Work("convolution", (wanted[0] + wanted[1]) * once).moving([gradient])
    if wanted[0]:
        work = work.moving([weight]).writing(inputs.elements, inputs.type)
    if wanted[1]:
        work = work.moving([inputs]).writing(weight.elements, weight.type)
    if len(wanted) > 2 and wanted[2]:
        channels = gradient.shape[1]
        work = work.writing(channels, gradient.type)
    return work


def _both_gradients(arguments: Arguments) -> Work:
    # cudnn_convolution_backward(self, grad_output, weight, …) of PyTorch before 1.11
    inputs, gradient, weight = (arguments.matrix(position, 3) for position in range(3))
    return _gradients(gradient, inputs, weight, wanted=(True, True), transposed=False)


FORMULAS: Final[dict[str, Callable[[Arguments], Work]]] = {
    **{name: _forward(signature) for name, signature in _SIGNATURES.items()},
    **dict.fromkeys(("aten::convolution_backward", "aten::convolution_backward_overrideable"), _backward),
    **dict.fromkeys(("aten::cudnn_convolution_backward", "aten::miopen_convolution_backward"), _both_gradients),
}
