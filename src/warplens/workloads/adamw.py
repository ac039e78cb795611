"""AdamW as the CS336 assignment defines it: one tensor after another, nothing fused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

__all__ = ["ReferenceAdamW"]


class ReferenceAdamW(torch.optim.Optimizer):
    """Decay first, then the two moments, then the update.

    As in the reference, the default of the look-up `state.get("m", zeros)` is evaluated in every step: two fills of a
    tensor that are thrown away. Tensors without a gradient are skipped. 16 launches a tensor on a GPU.

    Args:
        parameters: what to optimise.
        lr: learning rate.
        betas: decay of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: share of a weight, times `lr`, that it loses in a step.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override, unused-ignore]
        """Updates every parameter that has a gradient."""
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g, state = p.grad, self.state[p]
                t = state.get("t", 0) + 1
                p.sub_(lr * group["weight_decay"] * p)
                m = beta1 * state.get("m", torch.zeros_like(p)) + (1 - beta1) * g
                v = beta2 * state.get("v", torch.zeros_like(p)) + (1 - beta2) * g**2
                scaled_lr = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
                p.sub_(scaled_lr * m / (v.sqrt() + group["eps"]))
                state["t"], state["m"], state["v"] = t, m, v
