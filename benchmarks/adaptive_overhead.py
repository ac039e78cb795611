"""Overhead of choosing at run time: `python -m benchmarks.adaptive_overhead [--store]`. Needs PyTorch.

Calls of an identity module, directly and through `AdaptiveModule`, alternate; the difference is the overhead. The
fastest of many rounds counts, since other work on the machine only adds to a call. The choice for a new shape, which is
made once, is timed separately.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from benchmarks.measure import machine
from warplens.studies.policies.adaptive import AdaptiveModule
from warplens.studies.policies.choosing import Policy, Side
from warplens.studies.policies.fitting import PointTimes, fit_points

RESULTS = Path(__file__).parent / "results"

CALLS, ROUNDS = 2_000, 200
CHOICES = 200


class Nothing(nn.Module):
    """Returns its input: a call takes PyTorch's own overhead of calling a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input."""
        return x


def policy() -> Policy:
    """A policy as large as that of the token-reduction grid: two sizes, five batches, two executions."""
    points = [
        PointTimes(
            {"input_size": size, "batch": batch, "execution": execution},
            (max(3.4e6, 1e6 * batch * (size / 448) ** 2.8), max(4.0e6, 0.4e6 * batch * (size / 448) ** 2.8)),
        )
        for size in (224, 448)
        for batch in (1, 2, 4, 8, 16)
        for execution in ("eager", "graph")
    ]
    return fit_points(
        points, sides=[Side("baseline", {"method": "none"}), Side("variant", {"method": "topk"})],
        axes=("input_size", "batch", "execution"), source="benchmark", workload="benchmark",
        environment={"device": {"name": "CPU"}},
    )  # fmt: skip


def seconds(call: Callable[[torch.Tensor], object], x: torch.Tensor, calls: int) -> float:
    """Mean time of a call in seconds."""
    start = time.perf_counter()
    for _ in range(calls):
        call(x)
    return (time.perf_counter() - start) / calls


def measured() -> dict[str, Any]:
    """All figures, in microseconds."""
    fitted, plain = policy(), Nothing().eval()
    module = AdaptiveModule(plain, Nothing(), fitted).eval()
    x = torch.zeros(4, 3, 224, 224)
    direct, adaptive = [], []
    for _ in range(ROUNDS):
        direct.append(seconds(plain, x, CALLS))
        adaptive.append(seconds(module, x, CALLS))
    on_grid, between = {"input_size": 448, "batch": 4}, {"input_size": 320, "batch": 3}
    return {
        "module_call_us": min(direct) * 1e6,
        "adaptive_call_us": min(adaptive) * 1e6,
        "overhead_us": (min(adaptive) - min(direct)) * 1e6,
        "new_shape_measured_us": min(seconds(lambda _, at=at: fitted.choose(**at, execution="eager"), x, CHOICES)
                                     for at in [on_grid] * 20) * 1e6,
        "new_shape_interpolated_us": min(seconds(lambda _, at=at: fitted.choose(**at, execution="eager"), x, CHOICES)
                                         for at in [between] * 20) * 1e6,
    }  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """The result as a Markdown table."""
    figures = result["figures"]
    rows = [
        ("a call of a module that does nothing", figures["module_call_us"]),
        ("the same through `AdaptiveModule`", figures["adaptive_call_us"]),
        ("**overhead of a call**", figures["overhead_us"]),
        ("once for a new shape that was measured", figures["new_shape_measured_us"]),
        ("once for a new shape between measured ones", figures["new_shape_interpolated_us"]),
    ]
    lines = ["| | µs |", "|---|--:|", *(f"| {what} | {value:.2f} |" for what, value in rows)]
    return "\n".join(lines) + (f"\n\n{result['machine']}; fastest of {ROUNDS} rounds of {CALLS:,} calls.\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adaptive_overhead")
    parser.add_argument("--store", action="store_true", help="keep the result in benchmarks/results")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder to store in")
    options = parser.parse_args()
    where = f"{machine()}, Python {platform.python_version()}, PyTorch {torch.__version__}"
    result = {"machine": where, "figures": measured()}
    print(table(result))
    if options.store:
        (options.out / "adaptive_overhead.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
        (options.out / "adaptive_overhead.md").write_text(table(result), "utf-8")


if __name__ == "__main__":
    main()
