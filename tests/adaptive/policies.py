"""Policies and modules for tests: sides that say which of them ran."""

from __future__ import annotations

import torch
from torch import nn

from warplens.studies.policies.choosing import Policy, Side
from warplens.studies.policies.fitting import PointTimes, fit_points

SIDES = [Side("method=none", {"method": "none"}), Side("method=topk", {"method": "topk"})]


def policy(device: str = "CPU", axes: tuple[str, ...] = ("batch", "input_size"), **shared: object) -> Policy:
    """The variant pays from batch 8 at size 32, and everywhere at size 64; batches 1 to 32, sizes 32 and 64."""
    points = []
    for batch in (1, 2, 4, 8, 16, 32):
        for size in (32, 64):
            variant = 3e6 if batch >= 8 or size == 64 else 5e6
            values = {"batch": batch, "input_size": size, "execution": "eager"}
            points.append(PointTimes({name: values[name] for name in axes}, (4e6, variant)))
    return fit_points(
        points, sides=SIDES, axes=axes, source="test", workload="test", shared=shared,
        environment={"device": {"name": device}, "versions": {"torch": torch.__version__}},
    )  # fmt: skip


class Adds(nn.Module):
    """Adds a number to what a linear layer over the last dimension gives, so that an output tells who made it."""

    def __init__(self, number: float, size: int = 32, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(size, size)
        self.register_buffer("calls", torch.zeros(()))
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * 0 + self.number


class Scaled(Adds):
    """The same with a weight of its own."""

    def __init__(self, number: float, size: int = 32, seed: int = 0) -> None:
        super().__init__(number, size, seed)
        self.scale = nn.Parameter(torch.ones(size))


def ran(output: torch.Tensor) -> float:
    """The number of the module that made an output."""
    return float(output.detach().flatten()[0])
