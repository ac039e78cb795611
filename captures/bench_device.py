"""Measures the token-reduction table and the language-model grid on this machine's GPU, as far as the time allows.

Needs python3 with torch, and nothing else of Warplens' dependencies. Writes one measurements file a stage
(`warplens.measurements/1`, docs/reference/measurements.md) after each cell, so that what is done is kept.

    python3 captures/bench_device.py OUT                 every stage, in the order below
    python3 captures/bench_device.py OUT --seconds 230   stop before this time is over
    python3 captures/bench_device.py OUT --stages token_reduction lm_grid
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from warplens.workloads.cells import cell_grid, default_device, environment, run_cells, run_cells_in_turns
from warplens.workloads.registry import Plan, document, write_measurements
from warplens.workloads.settings import METHODS, LMCell, TokenReductionCell

SECOND = 10**9

#: Inference steps take milliseconds: there is time for many turns of a few repetitions.
TURNS = Plan.exactly(4, warmup_steps=10)
#: A training step of a large model takes up to seconds.
LONG = Plan(warmup_steps=3, warmup_ns=SECOND // 10, least=10, most=100, fewest=6, precision=0.02, most_ns=3 * SECOND)


@dataclass(frozen=True)
class Stage:
    """One measurements file; with rounds, its cells are measured in turns, so that a slow host affects all alike."""

    workload: str
    plan: Plan
    grids: tuple[dict[str, list[Any]], ...]
    rounds: int = 0

    def cells(self) -> list[Any]:
        """The distinct cells, in the order of the grids."""
        kind: type = LMCell if self.workload == "lm" else TokenReductionCell
        cells: list[Any] = []
        for axes in self.grids:
            cells += [cell for cell in cell_grid(kind, axes)[0] if cell not in cells]
        return cells


PARADOX = {"input_size": [224, 448], "batch": [1, 2, 4, 8, 16], "method": ["none", "topk"], "keep": [0.1]}
CONTEXTS = [128, 256, 512, 1024]

STAGES = {
    "token_reduction": Stage(
        "token-reduction",
        TURNS,
        (
            {"execution": ["eager"], **PARADOX},
            {"execution": ["graph"], **PARADOX},
            {"execution": ["eager", "graph"], **PARADOX, "method": ["none"], "attention": ["fused"]},
        ),
        rounds=40,
    ),
    "lm_grid": Stage(
        "lm",
        LONG,
        ({"size": ["small", "medium", "large"], "context": CONTEXTS, "mode": ["forward", "train"]},),
    ),
    "lm_grid_large": Stage(
        "lm",
        LONG,
        ({"size": ["xl", "2.7B"], "context": CONTEXTS, "mode": ["forward", "train"]},),
    ),
    "token_reduction_methods": Stage(
        "token-reduction",
        TURNS,
        (
            {"input_size": [224], "batch": [1, 16], "method": list(METHODS), "keep": [0.5]},
            {"input_size": [448], "batch": [16], "method": list(METHODS), "keep": [0.5]},
        ),
        rounds=40,
    ),
    "lm_executions": Stage(
        "lm",
        LONG,
        (
            {
                "context": [512], "mode": ["forward", "train"], "precision": ["fp32", "tf32", "bf16"],
                "execution": ["eager", "graph"], "optimizer": ["reference", "torch", "torch-fused"],
            },
            {"context": [512], "mode": ["forward"], "precision": ["tf32", "bf16"], "execution": ["compile"]},
        ),
    ),
}  # fmt: skip


def main() -> None:
    """Runs the stages and prints the result of each cell."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no cell after this time")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = default_device()
    facts = environment(device)
    print(facts, flush=True)
    for name in options.stages:
        stage, command = STAGES[name], f"python3 captures/bench_device.py OUT --stages {name}"
        cells = stage.cells()
        records: list[dict[str, Any]] = []

        def keep() -> None:
            content = document(stage.workload, stage.plan, facts, records, command)  # noqa: B023  called at once
            write_measurements(options.out / f"{name}.json", content)  # noqa: B023

        if stage.rounds and time.monotonic() - began < options.seconds:
            records += run_cells_in_turns(stage.workload, cells, rounds=stage.rounds, plan=stage.plan, device=device)
            keep()
            for record in records:
                print(f"{time.monotonic() - began:6.1f} s {name}: {_line(record)}", flush=True)
            continue
        for cell in cells:
            if time.monotonic() - began > options.seconds:
                print(f"{name}: the time is over, {len(cells) - len(records)} cells are left out", flush=True)
                break
            (record,) = run_cells(stage.workload, [cell], plan=stage.plan, device=device)
            records.append(record)
            keep()
            print(f"{time.monotonic() - began:6.1f} s {name}: {_line(record)}", flush=True)


def _line(record: dict[str, Any]) -> str:
    cell = " ".join(str(value) for value in record["cell"].values())
    if record["status"] != "measured":
        return f"{cell}: {record['status']}, {record['reason'][:120]}"
    latency, gpu = record["latency_ns"], record["gpu_ns"] or {}
    doubts = "; ".join(record["doubts"])
    return (
        f"{cell}: {latency['median'] / 1e6:.3f} ms, gpu {(gpu.get('median') or 0) / 1e6:.3f} ms, "
        f"n {latency['samples']} {doubts}"
    )


if __name__ == "__main__":
    main()
