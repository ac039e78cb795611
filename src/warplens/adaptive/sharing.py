"""One set of weights for all sides, which differ in what they compute and not in what they know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

__all__ = ["Share", "shared_names", "tie"]

#: Which weights of a side become the baseline's: those of the same name that are equal, all of the same name, shape,
#: type and device, or none.
Share: TypeAlias = Literal["equal", "all", "none"]


def shared_names(baseline: nn.Module, side: nn.Module, share: Share) -> list[str]:
    """Names of the parameters and buffers of a side that can be the baseline's own."""
    if share == "none":
        return []
    own = dict(_tensors(baseline))
    return [name for name, tensor in _tensors(side) if name in own and _fits(own[name], tensor, share)]


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _fits(own: torch.Tensor, other: torch.Tensor, share: Share) -> bool:
    if own is other:
        return True
    alike = own.shape == other.shape and own.dtype == other.dtype and own.device == other.device
    if not alike or isinstance(own, torch.nn.Parameter) != isinstance(other, torch.nn.Parameter):
        return False
    return share == "all" or (not own.is_meta and torch.equal(own, other))


def tie(baseline: nn.Module, side: nn.Module, names: Sequence[str]) -> None:
    """Make the side's tensors of these names the baseline's own."""
    for name in names:
        path, _, last = name.rpartition(".")
        source, target = baseline.get_submodule(path), side.get_submodule(path)
        if last in source._parameters:
            target._parameters[last] = source._parameters[last]
        else:
            target._buffers[last] = source._buffers[last]
