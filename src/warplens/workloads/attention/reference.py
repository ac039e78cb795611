"""The slow, obvious reference: attention and its gradients in float64, a block of query rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

__all__ = ["Reference", "reference"]

#: Query rows at a time: bounds the float64 scores of one block to 8 · 512 · seq_len bytes per head.
_ROWS: Final = 512


@dataclass(frozen=True)
class Reference:
    """Output and, if asked for, gradients; float64, [heads, seq_len, head_dim].

    Attributes:
        out: softmax(q kᵀ · scale + mask) v.
        d_q, d_k, d_v: gradients of Σ out ∘ d_out; None without `d_out`.
    """

    out: torch.Tensor
    d_q: torch.Tensor | None = None
    d_k: torch.Tensor | None = None
    d_v: torch.Tensor | None = None


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float, d_out: torch.Tensor | None = None
) -> Reference:
    """Attention of [heads, seq_len, head_dim] inputs by the formulas, in float64 on the inputs' device.

    The gradients are the derivatives written out (dS = P ∘ (dP − rowsum(P ∘ dP))), not another framework's.
    """
    import torch  # noqa: PLC0415

    q, k, v = q.detach().double(), k.detach().double(), v.detach().double()
    seq_len = q.shape[1]
    out = torch.empty_like(q)
    d_q, d_k, d_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    columns = torch.arange(seq_len, device=q.device)
    for first in range(0, seq_len, _ROWS):
        rows = slice(first, min(first + _ROWS, seq_len))
        scores = q[:, rows] @ k.transpose(1, 2) * scale
        if causal:
            scores.masked_fill_(columns[None, :] > columns[rows, None], float("-inf"))
        p = torch.softmax(scores, dim=-1)
        out[:, rows] = p @ v
        if d_out is not None:
            d_o = d_out[:, rows].detach().double()
            d_v += p.transpose(1, 2) @ d_o
            d_p = d_o @ v.transpose(1, 2)
            d_s = p * (d_p - (p * d_p).sum(-1, keepdim=True)) * scale
            d_q[:, rows] = d_s @ k
            d_k += d_s.transpose(1, 2) @ q[:, rows]
    return Reference(out, d_q, d_k, d_v) if d_out is not None else Reference(out)
