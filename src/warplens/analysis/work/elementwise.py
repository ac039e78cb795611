"""Work of elementwise operators: each input element read once, each output element written once.

A result element costs as many FLOPs as the textbook formula has operations; an elementary function (exp, sqrt, tanh)
counts as one. Inputs that are broadcast are read once at their own size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from warplens.analysis.work.amounts import Arguments, Tensor, UnknownWorkError, Work, broadcast, promoted


class _Rule(NamedTuple):
    """FLOPs per result element, and the number of leading arguments that are inputs (a later tensor is an output)."""

    flops: int
    inputs: int
    truth: bool = False


def _rules(inputs: int, **flops: int) -> dict[str, _Rule]:
    return {name: _Rule(count, inputs) for name, count in flops.items()}


#: Operators of the namespace `aten`, without the underscore of in-place variants.
PER_ELEMENT: Final[dict[str, _Rule]] = {
    **_rules(
        1, abs=1, neg=1, exp=1, exp2=1, expm1=1, log=1, log2=1, log10=1, log1p=1, sqrt=1, rsqrt=1, reciprocal=1, sin=1,
        cos=1, tan=1, tanh=1, asin=1, acos=1, atan=1, sinh=1, cosh=1, erf=1, erfc=1, erfinv=1, ceil=1, floor=1, round=1,
        trunc=1, frac=1, sign=1, sgn=1, relu=1, relu6=2, sigmoid=4, silu=5, mish=6, gelu=5, hardswish=4, hardsigmoid=4,
        hardtanh=2, leaky_relu=2, elu=3, celu=3, softplus=3, log_sigmoid_forward=3, square=1, nan_to_num=1,
        bitwise_not=0, i0=1, lgamma=1, digamma=1, conj_physical=1, real=0,
    ),
    **_rules(
        2, add=1, sub=1, rsub=1, mul=1, div=1, true_divide=1, floor_divide=2, remainder=3, fmod=3, pow=1, atan2=1,
        maximum=1, minimum=1, fmax=1, fmin=1, hypot=4, bitwise_and=0, bitwise_or=0, bitwise_xor=0, xlogy=2, logaddexp=4,
        __lshift__=0, __rshift__=0, bitwise_left_shift=0, bitwise_right_shift=0, mse_loss=2, l1_loss=2,
        smooth_l1_loss=4, huber_loss=4, prelu=2, _prelu_kernel=2, clamp_min=1, clamp_max=1,
        threshold_backward=1, sigmoid_backward=3, tanh_backward=3, silu_backward=9, gelu_backward=10,
        leaky_relu_backward=2, hardtanh_backward=2, hardswish_backward=4, hardsigmoid_backward=2, elu_backward=3,
        softplus_backward=4, native_dropout_backward=2, mish_backward=10, log_sigmoid_backward=4,
    ),
    **_rules(
        3, clamp=2, addcmul=3, addcdiv=3, lerp=3, where=0, masked_fill=0, threshold=1,
        mse_loss_backward=3, l1_loss_backward=2, smooth_l1_loss_backward=4, huber_loss_backward=4,
        binary_cross_entropy=5,
    ),
    **{name: _Rule(1, 2, truth=True) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: _Rule(0, 2, truth=True) for name in ("logical_and", "logical_or", "logical_xor")},
    **{name: _Rule(0, 1, truth=True) for name in ("logical_not", "isnan", "isinf", "isfinite", "isneginf", "isposinf")},
    "tril": _Rule(0, 1),
    "triu": _Rule(0, 1),
}  # fmt: skip

#: Random numbers and constants: nothing is read.
_WRITTEN_ONLY: Final = (
    "fill_", "zero_", "uniform_", "normal_", "random_", "exponential_", "bernoulli_", "cauchy_", "log_normal_",
    "geometric_",
)  # fmt: skip

#: Losses that return one number, unless their fourth argument (`reduction`) is 0.
_LOSSES: Final = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})

_GLU_FLOPS, _GLU_BACKWARD_FLOPS = 5, 8


def _per_element(name: str, rule: _Rule, *, in_place: bool) -> Callable[[Arguments], Work]:
    def formula(arguments: Arguments) -> Work:
        inputs = [t for t in map(arguments.optional, range(rule.inputs)) if t is not None]
        if not inputs:
            raise UnknownWorkError("the shape of an input was not recorded")
        shape = broadcast(*(tensor.shape for tensor in inputs))
        if name in _LOSSES and arguments.value(2) != "0":
            work = Work("elementwise", rule.flops * math.prod(shape) + math.prod(shape)).moving(inputs)
            return work.writing(1, promoted(inputs))
        work = Work("elementwise", rule.flops * math.prod(shape)).moving(inputs)
        if in_place:
            return work.moving([inputs[0]])
        if rule.truth:
            return work.writing(math.prod(shape), "bool")
        return work.writing(math.prod(shape), _result_type(name, arguments, inputs))

    return formula


def _result_type(name: str, arguments: Arguments, inputs: list[Tensor]) -> str | None:
    """The type of the result: that of an output tensor among the arguments, else by promotion."""
    rule = PER_ELEMENT[name]
    outputs = [tensor for tensor in map(arguments.optional, range(rule.inputs, len(arguments))) if tensor is not None]
    if outputs:
        return outputs[-1].type
    if name in ("where", "masked_fill", "native_dropout_backward"):  # one of the inputs is a mask
        inputs = [tensor for tensor in inputs if tensor.type != "bool"] or inputs
    return promoted(inputs)


def _write_only(arguments: Arguments) -> Work:
    return Work("elementwise", 0).moving([arguments.tensor(0)])


def _dropout(arguments: Arguments) -> Work:
    # native_dropout(input, p, train): the result and a mask of one byte for each element
    inputs = arguments.tensor(0)
    work = Work("elementwise", 2 * inputs.elements).moving([inputs])
    return work.writing(inputs.elements, inputs.type).writing(inputs.elements, "bool")


def _glu(arguments: Arguments) -> Work:
    inputs = arguments.tensor(0)
    half = inputs.elements // 2
    return Work("elementwise", _GLU_FLOPS * half).moving([inputs]).writing(half, inputs.type)


def _glu_backward(arguments: Arguments) -> Work:
    gradient, inputs = arguments.tensor(0), arguments.tensor(1)
    work = Work("elementwise", _GLU_BACKWARD_FLOPS * gradient.elements).moving([gradient, inputs])
    return work.writing(inputs.elements, inputs.type)


def _gated(function: int) -> Callable[[Arguments], Work]:
    """`act(first half) · second half` of inference engines: (out, input)."""

    def formula(arguments: Arguments) -> Work:
        out, inputs = arguments.tensor(0), arguments.tensor(1)
        return Work("elementwise", (function + 1) * out.elements).moving([out, inputs])

    return formula


def _copy(arguments: Arguments) -> Work:
    # copy_(self, src): every element of the destination is written, the stored elements of the source are read
    return Work("copy", 0).moving([arguments.tensor(0), arguments.tensor(1)])


def _clone(arguments: Arguments) -> Work:
    source = arguments.tensor(0)
    return Work("copy", 0).moving([source]).writing(source.elements, source.type)


def _concatenate(arguments: Arguments) -> Work:
    tensors = arguments.tensors(0)
    return Work("copy", 0).moving(tensors).writing(sum(tensor.elements for tensor in tensors), None)


def _gather(arguments: Arguments) -> Work:
    # gather(self, dim, index): one element for each index
    source, index = arguments.tensor(0), arguments.tensor(2)
    work = Work("gather-scatter", 0).moving([index])
    return work.writing(2 * index.elements, source.type)


def _index_select(arguments: Arguments) -> Work:
    # index_select(self, dim, index): whole slices
    source, index, dimension = arguments.tensor(0), arguments.tensor(2), arguments.integer(1)
    if dimension is None or not source.shape:
        raise UnknownWorkError("the dimension that is indexed was not recorded")
    picked = source.elements // max(1, source.shape[dimension % len(source.shape)]) * index.elements
    return Work("gather-scatter", 0).moving([index]).writing(2 * picked, source.type)


def _embedding(arguments: Arguments) -> Work:
    weight, index = arguments.matrix(0), arguments.tensor(1)
    picked = index.elements * math.prod(weight.shape[1:])
    return Work("gather-scatter", 0).moving([index]).writing(2 * picked, weight.type)


def _embedding_backward(arguments: Arguments) -> Work:
    # embedding_dense_backward(grad_output, indices, num_weights, …): a gradient for every row of the table
    gradient, index, rows = arguments.matrix(0, 1), arguments.tensor(1), arguments.integer(2)
    if rows is None or rows < 0:
        raise UnknownWorkError("the number of embeddings was not recorded")
    work = Work("gather-scatter", gradient.elements).moving([gradient, index])
    return work.writing(rows * gradient.shape[-1], gradient.type)


def _index_put(arguments: Arguments) -> Work:
    # _index_put_impl_(self, indices, values, accumulate, …): the indices are lists, whose shapes are not recorded
    target, values = arguments.tensor(0), arguments.tensor(2)
    added = int(bool(arguments.flag(3)))
    return (
        Work("gather-scatter", added * values.elements)
        .moving([values])
        .writing((1 + added) * values.elements, target.type)
    )


def _embedding_bag(arguments: Arguments) -> Work:
    # _embedding_bag(weight, indices, offsets, …): a row for each index is read, one for each bag is written
    weight, index, offsets = arguments.matrix(0), arguments.tensor(1), arguments.tensor(2)
    width = math.prod(weight.shape[1:])
    work = Work("gather-scatter", index.elements * width).moving([index, offsets])
    return work.writing((index.elements + offsets.elements) * width, weight.type)


def _embedding_bag_backward(arguments: Arguments) -> Work:
    # (grad, indices, offset2bag, bag_size, maximum_indices, num_weights, …): a gradient for every row of the table
    gradient, index, rows = arguments.matrix(0, 1), arguments.tensor(1), arguments.integer(5)
    if rows is None or rows < 0:
        raise UnknownWorkError("the number of embeddings was not recorded")
    width = gradient.shape[-1]
    work = Work("gather-scatter", index.elements * width).moving([gradient, index])
    return work.writing(rows * width, gradient.type)


def _scatter(flops: int, *, in_place: bool) -> Callable[[Arguments], Work]:
    """scatter_add_(self, dim, index, src) and the like: as many elements as the index has.

    Those that make a result copy all of the first input to it before.
    """

    def formula(arguments: Arguments) -> Work:
        target, index, source = arguments.tensor(0), arguments.tensor(2), arguments.optional(3)
        element_count = index.elements if source is None else source.elements
        work = Work("gather-scatter", flops * element_count).moving([index, *([source] if source else [])])
        work = work.writing((1 + flops) * element_count, target.type)
        return work if in_place else work.moving([target]).writing(target.elements, target.type)

    return formula


# --- Work of operators on whole lists of tensors ---
#
# The type of the tensors in a list is not recorded, and the shapes only of lists of at most thirty: see `Arguments`.

#: FLOPs for each parameter of a whole step, counted in the update formulas of PyTorch's documentation:
#: Adam: weight decay 1, first moment 3, second moment 4, root and its correction 2, epsilon 1, quotient and step 3.
_ADAM_FLOPS, _SGD_FLOPS, _ADAGRAD_FLOPS = 14, 6, 8


def _foreach(flops: int, inputs: int) -> Callable[[Arguments], Work]:
    def formula(arguments: Arguments) -> Work:
        first = arguments.tensors(0)
        other_tensors = [
            t for position in range(1, inputs) if arguments.is_list(position) for t in arguments.tensors(position)
        ]
        elements = sum(tensor.elements for tensor in first)
        return Work("optimizer", flops * elements).moving([*first, *other_tensors]).writing(elements, None)

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
        state_tensors: list[Tensor] = []
        for position in range(2, 2 + states):
            # The list may be empty, such as the momentum of an optimizer without it.
            state_tensors.extend(arguments.tensors(position) if arguments.holds_shapes(position) else [])
        work = Work("optimizer", flops * sum(tensor.elements for tensor in parameters))
        return work.moving([*parameters, *gradients, *state_tensors, *parameters, *state_tensors])

    return formula


#: Elementwise operators that exist for lists.
_OF_LISTS: Final = (
    "add", "sub", "mul", "div", "pow", "sqrt", "rsqrt", "reciprocal", "neg", "abs", "exp", "log", "sign", "clamp_min",
    "clamp_max", "maximum", "minimum", "addcmul", "addcdiv", "lerp",
)  # fmt: skip

FORMULAS: Final[dict[str, Callable[[Arguments], Work]]] = {
    **{f"aten::{name}": _per_element(name, rule, in_place=False) for name, rule in PER_ELEMENT.items()},
    **{f"aten::{name}_": _per_element(name, rule, in_place=True) for name, rule in PER_ELEMENT.items()},
    **{f"aten::{name}": _write_only for name in _WRITTEN_ONLY},
    "aten::native_dropout": _dropout,
    "aten::glu": _glu,
    "aten::glu_backward": _glu_backward,
    "_C::silu_and_mul": _gated(PER_ELEMENT["silu"].flops),
    "_C::gelu_and_mul": _gated(PER_ELEMENT["gelu"].flops),
    "aten::copy_": _copy,
    **dict.fromkeys(("aten::clone", "aten::flip", "aten::roll"), _clone),
    **dict.fromkeys(("aten::cat", "aten::_cat"), _concatenate),
    "aten::gather": _gather,
    "aten::index_select": _index_select,
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(("aten::_index_put_impl_", "aten::index_put_"), _index_put),
    "aten::_embedding_bag": _embedding_bag,
    "aten::_embedding_bag_dense_backward": _embedding_bag_backward,
    **{
        f"aten::{name}{mark}": _scatter(flops, in_place=bool(mark))
        for name, flops in (("scatter", 0), ("index_copy", 0), ("scatter_add", 1), ("index_add", 1))
        for mark in ("", "_")
    },
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
