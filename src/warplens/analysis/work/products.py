"""Work of matrix products, attention, convolutions and recurrent networks.

Products take 2·M·N·K FLOPs, of complex numbers 8·M·N·K, and move each matrix once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from warplens.analysis.work.amounts import Arguments, Tensor, UnknownWorkError, Work, broadcast, promoted

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


def _multiply_add(tensor: Tensor) -> int:
    """FLOPs of a multiply-add: complex numbers take four real products and four real sums."""
    return 8 if tensor.is_complex else 2


def _product(left: Tensor, right: Tensor, batch: tuple[int, ...], result: str | None) -> Work:
    """`[…, M, K] × […, K, N]`, once for each item of the batch."""
    (rows, inner), columns = left.shape[-2:], right.shape[-1]
    if right.shape[-2] != inner:
        raise UnknownWorkError("the shapes of a product's operands do not fit")
    pairs = math.prod(batch)
    work = Work("gemm", _multiply_add(left) * pairs * rows * inner * columns).moving((left, right))
    return work.writing(pairs * rows * columns, result)


def _matmul(arguments: Arguments, first: int = 0, result: str | None = None) -> Work:
    left, right = arguments.matrix(first, 1), arguments.matrix(first + 1, 1)
    kind = result or promoted([left, right])
    rows = Tensor((1, *left.shape), left.type, left.stored) if len(left.shape) == 1 else left
    columns = Tensor((*right.shape, 1), right.type, right.stored) if len(right.shape) == 1 else right
    if len(columns.shape) == 2 and len(rows.shape) > 2:  # one matrix for the whole batch: a single product
        rows = Tensor((math.prod(rows.shape[:-1]), rows.shape[-1]), rows.type, rows.stored)
    return _product(rows, columns, broadcast(rows.shape[:-2], columns.shape[:-2]), kind)


def _batched(arguments: Arguments) -> Work:
    """bmm: one product for each item of the batch, which both operands have."""
    for position in (0, 1):
        arguments.matrix(position, 3)
    return _matmul(arguments)


def _with_summand(arguments: Arguments) -> Work:
    """addmm, baddbmm, addmv: beta · input + alpha · (left × right)."""
    work = _matmul(arguments, 1)
    return work if arguments.value(3) in ("0", "0.", "0.0") else work.moving(arguments.present(0))


def _linear(arguments: Arguments) -> Work:
    inputs, weight = arguments.matrix(0, 1), arguments.matrix(1, 1)
    outputs = weight.shape[0] if len(weight.shape) == 2 else 1
    rows = math.prod(inputs.shape[:-1])
    work = Work("gemm", _multiply_add(inputs) * rows * inputs.shape[-1] * outputs).moving((inputs, weight))
    return work.moving(arguments.present(2)).writing(rows * outputs, promoted([inputs, weight]))


def _scaled(arguments: Arguments) -> Work:
    # _scaled_mm(self, mat2, scale_a, scale_b, bias?, scale_result?, out_dtype?, use_fast_accum); two elements of fp4
    # share one byte, so that its recorded inner size is half of the true one.
    left, right = arguments.matrix(0), arguments.matrix(1)
    result = _SCALAR_TYPES.get(arguments.integer(6) or -1, left.type)
    packed = 2 if left.type == "c10::Float4_e2m1fn_x2" else 1
    work = _product(left, right, (), result)
    return Work("gemm", packed * work.flops, work.bytes, work.untyped).moving(arguments.present(2, 3, 4))


def _grouped(arguments: Arguments) -> Work:
    # Rows (or the inner dimension) are distributed over the groups; every row is multiplied with exactly one of the
    # matrices.
    left, right = arguments.matrix(0), arguments.matrix(1)
    (rows, inner), columns = left.shape[-2:], right.shape[-1]
    groups = 1
    if len(left.shape) == 3 and len(right.shape) == 3:
        groups = left.shape[0]
    elif len(left.shape) == 2 and len(right.shape) == 2:  # one product for each part of the inner dimension
        offsets = next((tensor for tensor in arguments.present(4, 2) if len(tensor.shape) == 1), None)
        if offsets is None:
            raise UnknownWorkError("the number of groups was not recorded")
        work = Work("gemm", 2 * rows * inner * columns).moving((left, right))
        return work.writing(offsets.elements * rows * columns, left.type)
    work = Work("gemm", 2 * groups * rows * inner * columns).moving((left, right))
    return work.writing(groups * rows * columns, left.type)


def _dot(arguments: Arguments) -> Work:
    left, right = arguments.tensor(0), arguments.tensor(1)
    return Work("gemm", _multiply_add(left) * left.elements).moving((left, right)).writing(1, left.type)


def _outer(arguments: Arguments) -> Work:
    left, right = arguments.tensor(0), arguments.tensor(1)
    size = left.elements * right.elements
    one_product = 6 if left.is_complex or right.is_complex else 1  # four real products and two sums
    return Work("gemm", one_product * size).moving((left, right)).writing(size, promoted([left, right]))


def _product_into(arguments: Arguments) -> Work:
    """Products of inference engines: (out, left, right, scales …)."""
    out, left, right = arguments.matrix(0), arguments.matrix(1), arguments.matrix(2)
    return _product(left, right, (), out.type).moving(arguments.present(3, 4, 5))


# --- Work of fused attention ---
#
# A backward pass recomputes the scores, then the gradients of scores, values, queries and keys: five products to the
# forward pass's two, which is the factor 2.5 of the FlashAttention papers. The softmax between them is not counted, as
# in `torch.utils.flop_counter`, which however counts what a causal mask leaves out: `Work.flops_full` is its figure.


class _Signature(NamedTuple):
    """Positions of an attention operator's arguments; None for arguments it does not have.

    `heads_first`: whether tensors are [batch, heads, sequence, head size], not [batch, sequence, heads, head size].
    `from_end`: whether a causal mask aligns the last query with the last key (FlashAttention since 2.1), not the first
    with the first. `sequences`: position of the cumulative lengths of packed sequences.
    """

    causal: int | None
    heads_first: bool
    from_end: bool = False
    query: int = 0
    bias: int | None = None
    sequences: int | None = None
    mask_type: int | None = None
    windows: int | None = None

    @property
    def backward(self) -> bool:
        """Whether the gradient of the output comes first."""
        return self.query == 1


#: From native_functions.yaml of PyTorch, and flash_attn_interface.py of flash-attn.
_SIGNATURES: Final = {
    "aten::scaled_dot_product_attention": _Signature(5, True, bias=3),
    "aten::_scaled_dot_product_flash_attention": _Signature(4, True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Signature(4, True),
    "aten::_scaled_dot_product_efficient_attention": _Signature(6, True, bias=3),
    "aten::_scaled_dot_product_cudnn_attention": _Signature(6, True, bias=3),
    "aten::_scaled_dot_product_fused_attention_overrideable": _Signature(5, True, bias=3),
    "aten::_flash_attention_forward": _Signature(8, False, from_end=True, sequences=3, windows=11),
    "aten::_efficient_attention_forward": _Signature(None, False, bias=3, sequences=4, mask_type=9),
    "aten::_cudnn_attention_forward": _Signature(10, True, bias=3, sequences=4),
    "aten::_scaled_dot_product_flash_attention_backward": _Signature(11, True, query=1),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Signature(7, True, query=1),
    "aten::_scaled_dot_product_efficient_attention_backward": _Signature(11, True, query=1, bias=4),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Signature(14, True, query=1),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _Signature(13, True, query=1, bias=4),
    "aten::_flash_attention_backward": _Signature(11, False, from_end=True, query=1, sequences=6, windows=15),
    "aten::_efficient_attention_backward": _Signature(None, False, query=1, bias=4, sequences=6, mask_type=14),
    "aten::_cudnn_attention_backward": _Signature(14, True, query=1, sequences=9),
    "flash_attn::_flash_attn_forward": _Signature(5, False, from_end=True, windows=6),
    "flash_attn::_flash_attn_backward": _Signature(11, False, from_end=True, query=1, windows=12),
    "flash_attn::_flash_attn_varlen_forward": _Signature(9, False, from_end=True, sequences=3, windows=10),
    "flash_attn::_flash_attn_varlen_backward": _Signature(15, False, from_end=True, query=1, sequences=9, windows=16),
    "FlashAttnFunc": _Signature(None, False),  # an autograd function: only its tensors are recorded
}

#: `custom_mask_type` of the memory-efficient kernels: causal from the top left, causal from the bottom right.
_FROM_START, _FROM_END = 1, 2


def unmasked_pairs(queries: int, keys: int, *, from_end: bool, left: int | None = None, right: int = 0) -> int:
    """Pairs of query and key that are not masked.

    Args:
        queries, keys: lengths of the sequences.
        from_end: whether the last query is aligned with the last key, not the first query with the first key.
        left: number of keys before its own that a query attends to; None for all.
        right: number of keys after its own that a query attends to; 0 is a causal mask.
    """
    # Query i attends to keys from i + shift − left to i + shift + right, as far as they exist.
    shift = keys - queries if from_end else 0
    pairs = _sum_clamped(queries, shift + right + 1, keys)
    return pairs if left is None else pairs - _sum_clamped(queries, shift - left, keys)


def _sum_clamped(count: int, offset: int, most: int) -> int:
    """Sum over i < count of i + offset, each clamped to 0 … most."""
    rising = max(0, -offset)  # before, terms are 0
    full = min(count, max(0, most - offset))  # from here on, terms are `most`
    between = max(0, full - rising)
    first = rising + offset
    return between * first + between * (between - 1) // 2 + max(0, count - max(full, rising)) * most


def _attention(signature: _Signature) -> Callable[[Arguments], Work]:
    def formula(arguments: Arguments) -> Work:
        query, key, value = (arguments.matrix(signature.query + offset, 3) for offset in range(3))
        batch, heads, queries, size = _sizes(arguments, query, signature, 0)
        _, _, keys, _ = _sizes(arguments, key, signature, 1)
        value_size = value.shape[-1]
        pairs = _pairs(arguments, signature, queries, keys)
        products = (3 * size + 2 * value_size) if signature.backward else size + value_size
        per_pair = 2 * batch * heads * products
        read = [query, key, value, *arguments.present(signature.bias)]
        output = batch * heads * queries * value_size
        work = Work("attention", per_pair * pairs, flops_full=per_pair * queries * keys).moving(read)
        if signature.backward:  # reads the output and its gradient, writes the gradients of query, key and value
            return work.moving([query, key, value]).writing(2 * output, query.type)
        return work.writing(output, query.type)

    return formula


def _sizes(arguments: Arguments, tensor: Tensor, signature: _Signature, side: int) -> tuple[int, int, int, int]:
    """Batch, heads, length and head size of a query (side 0) or key (side 1)."""
    shape = tensor.shape
    lengths = None if signature.sequences is None else arguments.optional(signature.sequences + side)
    if len(shape) == 4 and lengths is None:
        batch, heads, length, size = shape if signature.heads_first else (shape[0], shape[2], shape[1], shape[3])
        return batch, heads, length, size
    if signature.heads_first and signature.sequences is None:  # no dimension for the batch
        return 1, *shape[-3:]  # type: ignore[return-value]
    # Packed sequences, [tokens, heads, size] or [1, tokens, heads, size]: their lengths are numbers on the GPU that the
    # profiler does not record. The work is known only if all are as long as the longest.
    if lengths is None or signature.sequences is None or len(lengths.shape) != 1:
        raise UnknownWorkError("lengths of the sequences are not recorded")
    tokens, heads, size = shape[-3:]
    count = lengths.shape[0] - 1
    longest = arguments.integer(signature.sequences + 2 + side)
    if longest is None or longest < 0 or count * longest != tokens:
        raise UnknownWorkError("lengths of the sequences are not recorded")
    return count, heads, longest, size


def _pairs(arguments: Arguments, signature: _Signature, queries: int, keys: int) -> int:
    causal, from_end = False, signature.from_end
    if signature.causal is not None:
        causal = bool(arguments.flag(signature.causal))
    elif signature.mask_type is not None:
        kind = arguments.integer(signature.mask_type)
        causal, from_end = kind in (_FROM_START, _FROM_END), kind == _FROM_END
    left = right = None
    if signature.windows is not None:
        left, right = (arguments.integer(signature.windows + side) for side in (0, 1))
        left, right = (None if end is None or end < 0 else end for end in (left, right))
    if not causal and left is None and right is None:
        return queries * keys
    reach = 0 if causal else queries + keys if right is None else right
    return unmasked_pairs(queries, keys, from_end=from_end, left=left, right=reach)


# --- Work of convolutions ---
#
# FLOPs are 2 · batch · output channels · output size · (input channels / groups) · filter size: what
# `torch.utils.flop_counter` counts. An implementation by Fourier transform or Winograd computes less.

Ints = tuple[int, ...]


class _Convolution(NamedTuple):
    """Positions of a forward convolution's arguments; None for arguments it does not have."""

    bias: int | None
    padding: int
    stride: int
    dilation: int | None
    groups: int | None
    transposed: bool | int = False
    output_padding: int | None = None


#: From native_functions.yaml of PyTorch: input and weight always come first.
_CONVOLUTIONS: Final = {
    **dict.fromkeys(("aten::conv1d", "aten::conv2d", "aten::conv3d"), _Convolution(2, 4, 3, 5, 6)),
    **dict.fromkeys(
        ("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"), _Convolution(2, 4, 3, 5, 8, 6, 7)
    ),
    **dict.fromkeys(
        ("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"),
        _Convolution(2, 4, 3, 7, 6, True, 5),
    ),
    "aten::cudnn_convolution": _Convolution(None, 2, 3, 4, 5),
    "aten::cudnn_convolution_transpose": _Convolution(None, 2, 4, 5, 6, True, 3),
    "aten::cudnn_convolution_relu": _Convolution(2, 4, 3, 5, 6),
    "aten::cudnn_convolution_add_relu": _Convolution(4, 6, 5, 7, 8),
    **dict.fromkeys(("aten::miopen_convolution", "aten::miopen_depthwise_convolution"), _Convolution(2, 3, 4, 5, 6)),
    "aten::miopen_convolution_transpose": _Convolution(2, 3, 5, 6, 7, True, 4),
    "aten::miopen_convolution_relu": _Convolution(2, 4, 3, 5, 6),
    **dict.fromkeys(("aten::_slow_conv2d_forward", "aten::thnn_conv2d"), _Convolution(3, 5, 4, None, None)),
    **dict.fromkeys(("aten::_conv_depthwise2d", "aten::conv_depthwise3d"), _Convolution(3, 5, 4, 6, None)),
    **dict.fromkeys(("aten::slow_conv_dilated2d", "aten::slow_conv_dilated3d"), _Convolution(3, 5, 4, 6, None)),
}


def _forward(signature: _Convolution) -> Callable[[Arguments], Work]:
    def formula(arguments: Arguments) -> Work:
        inputs, weight = arguments.matrix(0, 3), arguments.matrix(1, 3)
        if inputs.is_complex:  # PyTorch makes three of real numbers of it, which are operators of their own
            raise UnknownWorkError("a convolution of complex numbers is counted as those of real ones that it calls")
        transposed = signature.transposed
        if not isinstance(transposed, bool):
            recorded = arguments.flag(transposed)
            if recorded is None:
                raise UnknownWorkError("stride and padding were not recorded")
            transposed = recorded
        output = _output_shape(arguments, signature, inputs.shape, weight.shape, transposed=transposed)
        positions = math.prod(inputs.shape[2:] if transposed else output[2:])
        work = Work("convolution", 2 * inputs.shape[0] * positions * weight.elements)
        read = [inputs, weight, *arguments.present(signature.bias)]
        return work.moving(read).writing(math.prod(output), inputs.type)

    return formula


def _output_shape(
    arguments: Arguments, signature: _Convolution, inputs: Ints, weight: Ints, *, transposed: bool
) -> Ints:
    """Shape of the result of a convolution; raises `UnknownWorkError` if its inputs do not fit."""
    if len(inputs) != len(weight):
        raise UnknownWorkError("an input has another number of dimensions than its weight")
    space = len(inputs) - 2
    filters = weight[2:]
    stride = per_dimension(arguments.integers(signature.stride), space, least=1)
    padding = per_dimension(arguments.integers(signature.padding), space)
    dilation = (1,) * space
    if signature.dilation is not None:
        dilation = per_dimension(arguments.integers(signature.dilation), space, least=1)
    if transposed:
        groups = max(1, arguments.integer(signature.groups) or 1) if signature.groups is not None else 1
        position = signature.output_padding
        extra = per_dimension(arguments.integers(position), space) if position is not None else (0,) * space
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


def per_dimension(recorded: Ints | None, space: int, least: int = 0) -> Ints:
    """One number per spatial dimension; a single one holds for all."""
    if recorded is None or len(recorded) not in (1, space) or min(recorded, default=0) < least:
        raise UnknownWorkError("stride and padding were not recorded")
    return recorded * space if len(recorded) == 1 else recorded


def _backward(arguments: Arguments) -> Work:
    # convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
    # output_padding, groups, output_mask): as much as the forward pass for each of the two gradients wanted.
    needed = arguments.flags(10)
    transposed = arguments.flag(7)
    gradient, inputs, weight = arguments.matrix(0, 3), arguments.matrix(1, 3), arguments.matrix(2, 3)
    if needed is None or len(needed) != 3 or transposed is None:
        raise UnknownWorkError("which gradients were wanted was not recorded")
    return _gradients(gradient, inputs, weight, needed=needed, transposed=transposed)


def _gradients(gradient: Tensor, inputs: Tensor, weight: Tensor, *, needed: tuple[bool, ...], transposed: bool) -> Work:
    positions = math.prod((inputs if transposed else gradient).shape[2:])
    once = 2 * gradient.shape[0] * positions * weight.elements
    work = Work("convolution", (needed[0] + needed[1]) * once).moving([gradient])
    if needed[0]:
        work = work.moving([weight]).writing(inputs.elements, inputs.type)
    if needed[1]:
        work = work.moving([inputs]).writing(weight.elements, weight.type)
    if len(needed) > 2 and needed[2]:
        channels = gradient.shape[1]
        work = work.writing(channels, gradient.type)
    return work


def _both_gradients(arguments: Arguments) -> Work:
    # cudnn_convolution_backward(self, grad_output, weight, …) of PyTorch before 1.11
    inputs, gradient, weight = (arguments.matrix(position, 3) for position in range(3))
    return _gradients(gradient, inputs, weight, needed=(True, True), transposed=False)


# --- Work of recurrent networks ---
#
# FLOPs are those of the products with the weights: 2 · time steps · batch · elements of the weights, for each of the
# gradients of inputs and weights again. The cells' elementwise work is not counted.


class _Recurrence(NamedTuple):
    """Positions of a recurrent operator's arguments; None for arguments it does not have."""

    mode: int  #: followed by the hidden size
    projection: int | None  #: size of a projected output; 0 for none
    layers: int
    bidirectional: int
    mask: int | None = None  #: which gradients are wanted, in a backward pass; that of the weights comes last


#: From native_functions.yaml of PyTorch: the input always comes first.
_RECURRENCES: Final = {
    "aten::_cudnn_rnn": _Recurrence(6, 8, 9, 13),
    "aten::_cudnn_rnn_backward": _Recurrence(10, 12, 13, 17, 21),
    "aten::miopen_rnn": _Recurrence(5, None, 7, 11),
    "aten::miopen_rnn_backward": _Recurrence(10, None, 12, 16, 20),
}
#: Number of gates by mode (`cudnnRNNMode_t`): a plain network with ReLU or tanh, LSTM, GRU.
_GATES: Final = {0: 1, 1: 1, 2: 4, 3: 3}


def _recurrent(signature: _Recurrence) -> Callable[[Arguments], Work]:
    """The formula for the work of a recurrent network with this signature."""

    def formula(arguments: Arguments) -> Work:
        """Work of the forward pass, or of the backward pass if the signature has a mask of gradients."""
        inputs = arguments.matrix(0)  # [time steps, batch, size], or [tokens, size] of packed sequences
        gates = _GATES.get(-1 if (mode := arguments.integer(signature.mode)) is None else mode)
        hidden, layers = arguments.integer(signature.mode + 1), arguments.integer(signature.layers)
        bidirectional = arguments.flag(signature.bidirectional)
        projection = 0 if signature.projection is None else arguments.integer(signature.projection)
        wanted = (True,) if signature.mask is None else arguments.flags(signature.mask)
        sizes = (hidden or 0, layers or 0, projection or 0)
        if gates is None or bidirectional is None or not wanted or min(sizes) < 0 or not (hidden and layers):
            raise UnknownWorkError("the size of the network was not recorded")
        directions, tokens, output = 1 + bidirectional, math.prod(inputs.shape[:-1]), projection or hidden
        read = inputs.shape[-1] + (layers - 1) * directions * output  # widths of all layers' inputs
        one_output = gates * hidden * output + (hidden * output if projection else 0)
        weights = directions * (gates * hidden * read + layers * one_output)
        work = Work("recurrence", 2 * tokens * weights).moving([inputs])
        work = work.writing(weights + tokens * directions * output, inputs.type)
        if signature.mask is None:
            return work
        # The output and its gradient are read, the gradients of the input and of the weights are written.
        again = 1 + wanted[-1]
        moved = tokens * directions * output + inputs.elements + wanted[-1] * weights
        return replace(work, flops=again * work.flops).writing(moved, inputs.type)

    return formula


FORMULAS: Final[dict[str, Callable[[Arguments], Work]]] = {
    **dict.fromkeys(("aten::mm", "aten::matmul", "aten::mv"), _matmul),
    "aten::bmm": _batched,
    **dict.fromkeys(("aten::addmm", "aten::addmm_", "aten::_addmm_activation"), _with_summand),
    **dict.fromkeys(("aten::baddbmm", "aten::baddbmm_", "aten::addmv", "aten::addmv_"), _with_summand),
    "aten::linear": _linear,
    "aten::_scaled_mm": _scaled,
    "aten::_int_mm": partial(_matmul, result="int"),
    **dict.fromkeys(("aten::_grouped_mm", "aten::_scaled_grouped_mm"), _grouped),
    **dict.fromkeys(("aten::dot", "aten::vdot"), _dot),
    **dict.fromkeys(("aten::outer", "aten::ger"), _outer),
    "_C::cutlass_scaled_mm": _product_into,
    **{name: _forward(signature) for name, signature in _CONVOLUTIONS.items()},
    **dict.fromkeys(("aten::convolution_backward", "aten::convolution_backward_overrideable"), _backward),
    **dict.fromkeys(("aten::cudnn_convolution_backward", "aten::miopen_convolution_backward"), _both_gradients),
    **{name: _attention(signature) for name, signature in _SIGNATURES.items()},
    **{name: _recurrent(signature) for name, signature in _RECURRENCES.items()},
}
