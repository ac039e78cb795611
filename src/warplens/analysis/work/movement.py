"""Work of operators that only move elements: copies, concatenation, gathering, scattering, embeddings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from warplens.analysis.work.amounts import Work
from warplens.analysis.work.arguments import Arguments, UnknownWorkError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMULAS"]


def _copied(arguments: Arguments) -> Work:
    # copy_(self, src): every element of the destination is written, the source is read as far as it is stored
    return Work("copy", 0).moving([arguments.tensor(0), arguments.tensor(1)])


def _cloned(arguments: Arguments) -> Work:
    source = arguments.tensor(0)
    return Work("copy", 0).moving([source]).writing(source.elements, source.type)


def _concatenated(arguments: Arguments) -> Work:
    tensors = arguments.tensors(0)
    return Work("copy", 0).moving(tensors).writing(sum(tensor.elements for tensor in tensors), None)


def _gathered(arguments: Arguments) -> Work:
    # gather(self, dim, index): one element for each index
    source, index = arguments.tensor(0), arguments.tensor(2)
    work = Work("gather-scatter", 0).moving([index])
    return work.writing(2 * index.elements, source.type)


def _selected(arguments: Arguments) -> Work:
    # index_select(self, dim, index): whole slices
    source, index, dimension = arguments.tensor(0), arguments.tensor(2), arguments.integer(1)
    if dimension is None or not source.shape:
        raise UnknownWorkError("the dimension that is indexed was not recorded")
    picked = source.elements // max(1, source.shape[dimension % len(source.shape)]) * index.elements
    return Work("gather-scatter", 0).moving([index]).writing(2 * picked, source.type)


def _embedded(arguments: Arguments) -> Work:
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


def _scattered(*, flops: int, index: int = 2, source: int = 3) -> Callable[[Arguments], Work]:
    """scatter_add_(self, dim, index, src) and the like, in place: as many elements as the index has."""

    def formula(arguments: Arguments) -> Work:
        target, places, given = arguments.tensor(0), arguments.tensor(index), arguments.optional(source)
        moving = places.elements if given is None else given.elements
        work = Work("gather-scatter", flops * moving).moving([places, *([given] if given else [])])
        return work.writing((1 + flops) * moving, target.type)

    return formula


FORMULAS: Final[dict[str, Callable[[Arguments], Work]]] = {
    "aten::copy_": _copied,
    **dict.fromkeys(("aten::clone", "aten::flip", "aten::roll"), _cloned),
    **dict.fromkeys(("aten::cat", "aten::_cat"), _concatenated),
    "aten::gather": _gathered,
    "aten::index_select": _selected,
    "aten::embedding": _embedded,
    "aten::embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(("aten::scatter_", "aten::index_copy_"), _scattered(flops=0)),
    **dict.fromkeys(("aten::scatter_add_", "aten::index_add_"), _scattered(flops=1)),
}
