"""ATS: samples tokens by their significance; how many are left depends on the image."""

from __future__ import annotations

import torch
from torch import Tensor

from warplens.workloads.token_reduction.base import Attended, Reduction, TokenState

__all__ = ["ATS"]


class ATS(Reduction):
    """Adaptive token sampling (Fayyaz et al., 2022, section 3) on the rows of the attention.

    A patch token's significance is the class token's attention to it times the length of its value vector, heads
    summed, normalised over the patch tokens. The cumulated significance is inverted at evenly spaced points
    (2i + 1) / 2K, i = 0 … K − 1: each point takes the token whose cumulated significance is nearest. A token that
    several points take goes on once, so that images of one batch keep different numbers of tokens; shorter ones are
    padded with copies of the class token, which no token attends to.

    Only the sampled tokens' queries go on. To know the longest image of the batch, the host waits for the GPU.

    Args:
        points: K, the most patch tokens that can be left. It is fixed beforehand, not a share of what is there: that
            would depend on the other images of the batch through padding.
    """

    place = "queries"
    needs_weights = True

    def __init__(self, points: int) -> None:
        super().__init__()
        self.points = points

    def queries(self, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        if attended.weights is None:
            raise ValueError("the method decides by attention weights, which fused attention does not give")
        lengths = attended.values[:, :, 1:].norm(dim=-1)
        significance = (attended.weights[:, :, 0, 1:] * lengths).sum(dim=1)
        # Padding has no attention and hence no significance, but a flat stretch of the sum must not take a point.
        significance = significance.to(torch.promote_types(significance.dtype, torch.float32))
        cumulated = (significance / significance.sum(dim=1, keepdim=True)).cumsum(dim=1)
        if state.valid is not None:
            cumulated = cumulated.masked_fill(~state.valid[:, 1:], torch.inf)
        numbers = torch.arange(self.points, device=cumulated.device, dtype=cumulated.dtype)
        places = (2 * numbers + 1) / (2 * self.points)
        taken = (places[None, :, None] - cumulated[:, None, :]).abs().argmin(dim=-1)
        rows, valid = _unique(taken + 1)
        state.valid = valid
        return rows


def _unique(taken: Tensor) -> tuple[Tensor, Tensor]:
    """The class token and each row's indices once, in rising order, padded with the class token to the longest row.

    Args:
        taken: [batch, points], rising in each row, as points along a cumulated sum are.

    Returns:
        Indices [batch, rows], and which of them are no padding.
    """
    first = torch.ones_like(taken, dtype=torch.bool)
    first[:, 1:] = taken[:, 1:] != taken[:, :-1]
    counts = first.sum(dim=1)
    longest = int(counts.max())  # the host needs the shape, and waits for it
    places = first.cumsum(dim=1)
    rows = taken.new_zeros(taken.shape[0], longest + 1)
    # Every index is written to its place; repetitions write the same value again.
    rows.scatter_(1, places, taken)
    valid = torch.arange(longest + 1, device=taken.device)[None, :] <= counts[:, None]
    return rows, valid
