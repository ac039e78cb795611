"""The work of any operator, by its name; formulas of norms, softmax, reductions, sorts, pools and resampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from warplens.analysis.work.amounts import Arguments, Tensor, UnknownWorkError, Work
from warplens.analysis.work.elementwise import FORMULAS as ELEMENTWISE
from warplens.analysis.work.products import FORMULAS as PRODUCTS
from warplens.analysis.work.products import per_dimension

# FLOPs for each element. Normalisation: mean (1), difference (1), square and sum (2), scaling (1), weight and bias (2);
# without a mean, square and sum (2), scaling (1), weight (1). Backward: the two sums over the row (3), the gradient of
# the input (5), of weight and bias (3).
_NORM_FLOPS, _RMS_FLOPS, _NORM_BACKWARD_FLOPS = 7, 4, 11
#: Largest, difference, exponential, sum, quotient.
_SOFTMAX_FLOPS: Final = 5
#: Product with the gradient, sum, difference, product.
_SOFTMAX_BACKWARD_FLOPS: Final = 4


def _norm(flops: int, *parameters: int) -> Callable[[Arguments], Work]:
    """A norm that reads input 0 and the parameters at these positions, and writes as many elements as the input."""

    def formula(arguments: Arguments) -> Work:
        inputs = arguments.tensor(0)
        work = Work("normalization", flops * inputs.elements).moving([inputs, *arguments.present(*parameters)])
        return work.writing(inputs.elements, inputs.type)

    return formula


def _norm_backward(*read: int) -> Callable[[Arguments], Work]:
    """A norm's backward pass: reads these positions (gradient, input, …), writes gradients of input and parameters."""

    def formula(arguments: Arguments) -> Work:
        gradient, inputs = arguments.tensor(read[0]), arguments.tensor(read[1])
        parameters = arguments.present(*read[2:])
        work = Work("normalization", _NORM_BACKWARD_FLOPS * gradient.elements)
        work = work.moving([gradient, inputs, *parameters, *parameters])
        return work.writing(inputs.elements, inputs.type)

    return formula


def _norm_into(flops: int, *, added: bool) -> Callable[[Arguments], Work]:
    """Norms of inference engines: (out, input, weight), or (input, residual, weight) where both are updated."""

    def formula(arguments: Arguments) -> Work:
        first, second, weight = (arguments.tensor(position) for position in range(3))
        work = Work("normalization", flops * first.elements).moving([first, second, weight])
        return work.moving([first, second]) if added else work

    return formula


def _softmax(arguments: Arguments) -> Work:
    inputs = arguments.tensor(0)
    # softmax(self, dim, half_to_float): in half precision it may write float
    result = "float" if arguments.flag(2) else inputs.type
    return Work("softmax", _SOFTMAX_FLOPS * inputs.elements).moving([inputs]).writing(inputs.elements, result)


def _softmax_backward(arguments: Arguments) -> Work:
    gradient, output = arguments.tensor(0), arguments.tensor(1)
    work = Work("softmax", _SOFTMAX_BACKWARD_FLOPS * output.elements).moving([gradient, output])
    return work.writing(output.elements, output.type)


def _reduction(flops: int, dimensions: int | None = 1, result: str | None = None) -> Callable[[Arguments], Work]:
    """A reduction that reads the input once. `dimensions`: position of the reduced dimensions; None if all are."""

    def formula(arguments: Arguments) -> Work:
        inputs = arguments.tensor(0)
        work = Work("reduction", flops * inputs.elements).moving([inputs])
        return work.writing(_result_elements(arguments, inputs, dimensions), result or inputs.type)

    return formula


def _result_elements(arguments: Arguments, inputs: Tensor, position: int | None) -> int:
    """Elements of a reduction's result; 0 where the reduced dimensions were not recorded."""
    if position is None or position >= len(arguments):
        return 1
    single = arguments.integer(position)
    reduced = arguments.integers(position) if single is None else (single,)
    if reduced is None:
        return 0 if arguments.value(position) is None and len(arguments) > position + 1 else 1
    if not reduced:
        return 1
    reduced_dimensions = {dimension % len(inputs.shape) for dimension in reduced if inputs.shape}
    return math.prod(size for dimension, size in enumerate(inputs.shape) if dimension not in reduced_dimensions)


def _extreme(arguments: Arguments) -> Work:
    # max(self), max(self, dim, keepdim) → values and indices, max(self, other)
    second = arguments.optional(1)
    inputs = arguments.tensor(0)
    if second is not None:
        work = Work("elementwise", inputs.elements).moving([inputs, second])
        return work.writing(max(inputs.elements, second.elements), inputs.type)
    work = Work("reduction", inputs.elements).moving([inputs])
    if len(arguments) == 1:
        return work.writing(1, inputs.type)
    result_elements = _result_elements(arguments, inputs, 1)
    return work.writing(result_elements, inputs.type).writing(result_elements, "long int")


def _scan(arguments: Arguments) -> Work:
    inputs = arguments.tensor(0)
    return Work("reduction", inputs.elements).moving([inputs]).writing(inputs.elements, inputs.type)


def _loss(arguments: Arguments) -> Work:
    # nll_loss_forward(self, target, weight, reduction, ignore_index) picks one element of each row
    inputs, target = arguments.tensor(0), arguments.tensor(1)
    work = Work("reduction", target.elements).moving([target])
    return work.writing(target.elements, inputs.type)


def _loss_backward(arguments: Arguments) -> Work:
    # nll_loss_backward(grad_output, self, target, …) fills a gradient with zeros but for one element of each row
    inputs, target = arguments.tensor(1), arguments.tensor(2)
    return Work("reduction", target.elements).moving([target]).writing(inputs.elements, inputs.type)


def _ranking(arguments: Arguments) -> Work:
    # topk(self, k, dim, …) and sort(self, dim, …) give values and indices; comparisons are no FLOPs.
    inputs = arguments.tensor(0)
    return Work("sort-topk", 0).moving([inputs]).writing(inputs.elements, inputs.type).writing(inputs.elements, _INDEX)


def _top(arguments: Arguments) -> Work:
    inputs, count, dimension = arguments.tensor(0), arguments.integer(1), arguments.integer(2)
    if count is None or count < 0 or dimension is None or not inputs.shape:
        raise UnknownWorkError("how many elements are kept was not recorded")
    kept_elements = inputs.elements // max(1, inputs.shape[dimension % len(inputs.shape)]) * count
    return Work("sort-topk", 0).moving([inputs]).writing(kept_elements, inputs.type).writing(kept_elements, _INDEX)


_INDEX: Final = "long int"


class _Pool(NamedTuple):
    """Positions of a pool's arguments (kernel, stride, padding; dilation) and whether it gives indices, too."""

    dimensions: int
    dilation: int | None
    ceil: int
    indices: bool = False


def _pool(signature: _Pool) -> Callable[[Arguments], Work]:
    """A pool over windows (input, kernel, stride, padding …): one operation for each element of each window."""

    def formula(arguments: Arguments) -> Work:
        inputs = arguments.matrix(0, signature.dimensions + 1)
        space = signature.dimensions
        kernel = per_dimension(arguments.integers(1), space, least=1)
        stride = per_dimension(arguments.integers(2) or kernel, space, least=1)
        padding = per_dimension(arguments.integers(3), space)
        dilation = (1,) * space
        if signature.dilation is not None:
            dilation = per_dimension(arguments.integers(signature.dilation), space, least=1)
        rounding = [step - 1 if arguments.flag(signature.ceil) else 0 for step in stride]
        sides = [  # with rounding up, the last window still begins within the input
            max(0, min((size + 2 * p - d * (k - 1) - 1 + r) // s, (size + p - 1) // s) + 1)
            for size, k, s, p, d, r in zip(
                inputs.shape[-space:], kernel, stride, padding, dilation, rounding, strict=True
            )
        ]
        results = math.prod(inputs.shape[:-space]) * math.prod(sides)
        work = Work("reduction", results * math.prod(kernel)).moving([inputs]).writing(results, inputs.type)
        return work.writing(results, _INDEX) if signature.indices else work

    return formula


def _adaptive_pool(*, indices: bool) -> Callable[[Arguments], Work]:
    """A pool to a given size (input, size): every element of the input counts once."""

    def formula(arguments: Arguments) -> Work:
        inputs, sides = arguments.tensor(0), arguments.integers(1)
        if not sides or len(sides) >= len(inputs.shape) or min(sides) < 0:
            raise UnknownWorkError("the size of the result was not recorded")
        results = math.prod(inputs.shape[: -len(sides)]) * math.prod(sides)
        work = Work("reduction", inputs.elements).moving([inputs]).writing(results, inputs.type)
        return work.writing(results, _INDEX) if indices else work

    return formula


def _pool_backward(indices: int | None) -> Callable[[Arguments], Work]:
    """(grad_output, input, …): reads the gradient and the indices, writes a gradient as large as the input."""

    def formula(arguments: Arguments) -> Work:
        gradient, inputs = arguments.tensor(0), arguments.tensor(1)
        read = [gradient, *arguments.present(indices)]
        return Work("reduction", gradient.elements).moving(read).writing(inputs.elements, inputs.type)

    return formula


def _resampling(size: int, taps: int) -> Callable[[Arguments], Work]:
    """upsample_*(input, output_size, …), and their gradients (grad_output, output_size, input_size, …).

    Args:
        size: position of the result's size: of its sides, or of all its dimensions.
        taps: elements of the source that each result is the weighted sum of, in each dimension; 1 is a copy.
    """

    def formula(arguments: Arguments) -> Work:
        source, sides = arguments.tensor(0), arguments.integers(size)
        if not sides or len(sides) > len(source.shape) or min(sides) < 0:
            raise UnknownWorkError("the size of the result was not recorded")
        results = math.prod(source.shape[: len(source.shape) - len(sides)]) * math.prod(sides)
        weighted = 2 * taps ** (len(source.shape) - 2) if taps > 1 else 0
        work = Work("elementwise", weighted * (results if size == 1 else source.elements))
        return work.moving([source]).writing(results, source.type)

    return formula


#: Operators that change the size of images, and the taps of a dimension.
_RESAMPLED: Final = {
    **{f"{name}{d}d": 1 for name in ("upsample_nearest", "_upsample_nearest_exact") for d in (1, 2, 3)},
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa"), 2),
    **dict.fromkeys(("upsample_bicubic2d", "_upsample_bicubic2d_aa"), 4),
}

_ROWS: Final[dict[str, Callable[[Arguments], Work]]] = {
    "aten::native_layer_norm": _norm(_NORM_FLOPS, 2, 3),
    "aten::native_group_norm": _norm(_NORM_FLOPS, 1, 2),
    **dict.fromkeys(
        (
            "aten::native_batch_norm",
            "aten::cudnn_batch_norm",
            "aten::miopen_batch_norm",
            "aten::_batch_norm_with_update",
        ),
        _norm(_NORM_FLOPS, 1, 2, 3, 4),
    ),
    **dict.fromkeys(("aten::_fused_rms_norm", "aten::rms_norm"), _norm(_RMS_FLOPS, 2)),
    "aten::native_layer_norm_backward": _norm_backward(0, 1, 5, 6),
    "aten::_fused_rms_norm_backward": _norm_backward(0, 1, 4),
    "aten::native_group_norm_backward": _norm_backward(0, 1, 4),
    "aten::native_batch_norm_backward": _norm_backward(0, 1, 2),
    **dict.fromkeys(("aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward"), _norm_backward(1, 0, 2)),
    "_C::rms_norm": _norm_into(_RMS_FLOPS, added=False),
    "_C::fused_add_rms_norm": _norm_into(_RMS_FLOPS + 1, added=True),
    **dict.fromkeys(("aten::_softmax", "aten::_log_softmax"), _softmax),
    **dict.fromkeys(("aten::_softmax_backward_data", "aten::_log_softmax_backward_data"), _softmax_backward),
    **dict.fromkeys(
        ("aten::sum", "aten::mean", "aten::prod", "aten::amax", "aten::amin", "aten::nansum"), _reduction(1)
    ),
    **dict.fromkeys(("aten::argmax", "aten::argmin"), _reduction(1, 1, _INDEX)),
    **dict.fromkeys(("aten::any", "aten::all"), _reduction(0, 1, "bool")),
    **dict.fromkeys(("aten::norm", "aten::linalg_vector_norm"), _reduction(2, 2)),
    **dict.fromkeys(("aten::var", "aten::std", "aten::var_mean", "aten::std_mean"), _reduction(4)),
    **dict.fromkeys(("aten::max", "aten::min"), _extreme),
    **dict.fromkeys(("aten::cumsum", "aten::cumsum_", "aten::cumprod", "aten::_logcumsumexp"), _scan),
    **dict.fromkeys(("aten::nll_loss_forward", "aten::nll_loss2d_forward"), _loss),
    **dict.fromkeys(("aten::nll_loss_backward", "aten::nll_loss2d_backward"), _loss_backward),
    "aten::topk": _top,
    "aten::sort": _ranking,
    **{f"aten::max_pool{d}d_with_indices": _pool(_Pool(d, 4, 5, indices=True)) for d in (2, 3)},
    **{f"aten::avg_pool{d}d": _pool(_Pool(d, None, 4)) for d in (2, 3)},
    **{f"aten::_adaptive_avg_pool{d}d": _adaptive_pool(indices=False) for d in (2, 3)},
    **{f"aten::adaptive_max_pool{d}d": _adaptive_pool(indices=True) for d in (2, 3)},
    **{f"aten::max_pool{d}d_with_indices_backward": _pool_backward(7) for d in (2, 3)},
    **{f"aten::adaptive_max_pool{d}d_backward": _pool_backward(2) for d in (2, 3)},
    **{f"aten::avg_pool{d}d_backward": _pool_backward(None) for d in (2, 3)},
    **{f"aten::_adaptive_avg_pool{d}d_backward": _pool_backward(None) for d in (2, 3)},
    **{
        f"aten::{name}{suffix}": _resampling(size, taps)
        for name, taps in _RESAMPLED.items()
        for suffix, size in (("", 1), ("_backward", 2))
    },
}


#: Name of an operator → formula of its work.
FORMULAS: Final[dict[str, Callable[[Arguments], Work]]] = {**ELEMENTWISE, **_ROWS, **PRODUCTS}

NO_FORMULA: Final = "there is no formula for it"
#: Arguments of such generated kernels are their inputs and outputs.
BYTES_ONLY: Final = "generated code: bytes known from its arguments, FLOPs not"

#: Work that tensors and sizes do not determine, by prefix of the name.
_BEYOND_FORMULAS: Final = (
    (("triton_poi_", "triton_red_", "triton_per_"), BYTES_ONLY),
    (("triton_", "triton::"), "generated code, whose name does not say what it computes"),
    (("nccl:", "c10d::", "record_param_comms", "symm_mem::", "rccl:", "gloo:"), "communication"),
    (("CompiledFxGraph", "## Call CompiledFxGraph", "Torch-Compiled Region"), "generated code"),
    (("aten::index", "aten::_index_put", "aten::masked_select", "aten::nonzero"), "depends on values not recorded"),
)


def work_of(
    name: str, shapes: str | None, types: str | None, strides: str | None = None, values: str | None = None
) -> Work | str:
    """The modelled work of an operator, or the reason why it has none.

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
    except UnknownWorkError as error:
        return str(error)
