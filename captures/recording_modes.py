"""A small training loop in Python, for captures with Python's own stacks."""

from __future__ import annotations

import torch
from torch import nn


def norms(parameters: list[nn.Parameter]) -> list[float]:
    """Reads the norms back one by one."""
    return [parameter.grad.norm().item() for parameter in parameters]


def main() -> None:
    """Six steps of a small MLP, from cudaProfilerStart to Stop."""
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.GELU())]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(256, 512, device="cuda")

    def step() -> None:
        loss = model(x).square().mean()
        loss.backward()
        norms(list(model.parameters()))
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for _ in range(6):
        torch.cuda.nvtx.range_push("step")
        step()
        torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
