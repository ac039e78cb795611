"""Work of fused attention: two products forward, five backward, over the pairs of query and key that a mask leaves.

A backward pass computes the scores anew, then the gradients of scores, values, queries and keys: five products to the
forward pass's two, which is the factor 2.5 of the FlashAttention papers. The softmax between them is not counted, as in
`torch.utils.flop_counter`, which in turn counts what a causal mask leaves out: `Work.flops_full` is its figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from warplens.analysis.work.amounts import Work
from warplens.analysis.work.arguments import Arguments, Tensor, UnknownWorkError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMULAS", "unmasked_pairs"]


class _Signature(NamedTuple):
    """Where an attention operator takes what it is asked for; None for what it does not take.

    `heads_first`: whether tensors are [batch, heads, sequence, head size], not [batch, sequence, heads, head size].
    `from_end`: whether a causal mask lets the last query see the last key (FlashAttention since 2.1), not the first
    the first. `sequences`: position of the running lengths of sequences that stand one after the other.
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
}

#: `custom_mask_type` of the memory-efficient kernels: causal from the top left, causal from the bottom right.
_FROM_START, _FROM_END = 1, 2


def unmasked_pairs(queries: int, keys: int, *, from_end: bool, left: int | None = None, right: int = 0) -> int:
    """Pairs of query and key that attention looks at.

    Args:
        queries, keys: lengths of the sequences.
        from_end: whether the last query is level with the last key, not the first query with the first key.
        left: how many keys before its own one a query sees; None for all.
        right: how many keys after its own one a query sees; 0 is a causal mask.
    """
    # Query i sees keys from i + shift − left to i + shift + right, as far as they exist.
    shift = keys - queries if from_end else 0
    upto = _sum_clamped(queries, shift + right + 1, keys)
    return upto if left is None else upto - _sum_clamped(queries, shift - left, keys)


def _sum_clamped(count: int, offset: int, most: int) -> int:
    """Sum over i < count of i + offset, each brought into 0 … most."""
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
        bias = None if signature.bias is None else arguments.optional(signature.bias)
        read = [query, key, value, *([bias] if bias else [])]
        output = batch * heads * queries * value_size
        work = Work("attention", per_pair * pairs, flops_full=per_pair * queries * keys).moving(read)
        if signature.backward:  # reads the output and its gradient, writes those of query, key and value
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
    # Sequences one after the other, [tokens, heads, size] or [1, tokens, heads, size]: their lengths are numbers on the
    # GPU that the profiler does not see. Only if all are as long as the longest is the work known.
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


def _of_autograd_function(arguments: Arguments) -> Work:
    # flash-attn's autograd functions record their tensors only: [batch, sequence, heads, head size].
    return _attention(_Signature(None, False))(arguments)


FORMULAS: Final[dict[str, Callable[[Arguments], Work]]] = {
    **{name: _attention(signature) for name, signature in _SIGNATURES.items()},
    "FlashAttnFunc": _of_autograd_function,
}
