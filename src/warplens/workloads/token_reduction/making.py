"""The methods of a cell: one module a location, made from shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.workloads.token_reduction.ats import ATS
from warplens.workloads.token_reduction.choosing import EViT, RandomChoice, TopK
from warplens.workloads.token_reduction.dynamicvit import DynamicViT
from warplens.workloads.token_reduction.schedule import compounded_chain, merges, topk_chain
from warplens.workloads.token_reduction.tome import ToMe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.workloads.sizes import ViTSize
    from warplens.workloads.token_reduction.base import Reduction

__all__ = ["reductions"]


def reductions(
    method: str,
    size: ViTSize,
    input_size: int,
    locations: Sequence[int],
    shares: Sequence[float],
    visualisation: bool = True,
) -> dict[int, Reduction]:
    """The reduction at each location.

    Args:
        method: of `settings.METHODS`.
        size: widths of the model.
        input_size: side of the images.
        locations: blocks, in rising order.
        shares: share of the tokens that each keeps.
        visualisation: for TopK, EViT and their fused forms; see there.
    """
    patches = size.patches(input_size)
    made: list[Reduction]
    if method == "none":
        return {}
    if method == "topk":
        made = [TopK(share, visualisation) for share in shares]
    elif method == "evit":
        made = [EViT(share, visualisation) for share in shares]
    elif method in ("topk-fused", "evit-fused"):
        from warplens.workloads.token_reduction.fused import FusedEViT, FusedTopK  # noqa: PLC0415  loads Triton

        made = [(FusedTopK if method == "topk-fused" else FusedEViT)(share, visualisation) for share in shares]
    elif method == "random":
        made = [RandomChoice(share) for share in shares]
    elif method == "tome":
        made = [ToMe(merged, size.d_head) for merged in merges(patches, shares)]
    elif method == "dynamicvit":
        made = [DynamicViT(size.width, kept) for kept in compounded_chain(patches, shares)]
    elif method == "ats":
        made = [ATS(points) for points in topk_chain(patches, shares)]
    else:
        raise ValueError(f"no token reduction is called {method!r}")
    return dict(zip(locations, made, strict=True))
