"""Measures what choosing by a policy costs on this machine's GPU, at shapes that the policy has never seen, too.

DeiT-B with and without top-k token reduction, eager and as CUDA graphs. First both sides are measured at the shapes of
the fit, and a policy is fitted; then both sides and `AdaptiveModule` take turns at these shapes and at others between
them. Needs python3 with torch and numpy, and nothing else of Warplens' dependencies. Writes into OUT:

    policy.json              the policy
    policy_fit.json          measurements that it was fitted to (`warplens.measurements/1`)
    policy_check.json        measurements of both sides and of the adaptive module; `method` is `adaptive` (through
                             `AdaptiveModule`), `adaptive-in-place` (graphs whose input is written to directly) or
                             `recaptured` (the plain graph of the chosen side once more: what another capture of the
                             same work alone changes, for its tensors lie elsewhere)
    policy_check_summary.json  for each shape what was chosen, and how much slower than the best side that was

    python3 captures/policy_check.py OUT                       about four minutes
    python3 captures/policy_check.py OUT --rounds 10           quicker
    python3 captures/policy_check.py OUT --policy policy.json  a policy that was fitted before, on such a machine
    python3 captures/policy_check.py OUT --policy policy.json --executions graph    the graphs alone
    python3 captures/policy_check.py OUT --device cpu --rounds 2 --model tiny --precision fp32 --locations 1 2 \
        --sizes 16 32 --other-sizes 24 --batches 1 2 4 --other-batches 3    whether it runs, without a GPU
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch

from warplens.studies.policies.adaptive import AdaptiveModule, shared_names, tie
from warplens.studies.policies.choosing import Policy, Side
from warplens.studies.policies.files import read_policy, write_policy
from warplens.studies.policies.fitting import PointTimes, fit_points
from warplens.workloads.cells import default_device, environment, figures
from warplens.workloads.launching import as_graph, model_dtype, precision
from warplens.workloads.measurement import measure_in_turns
from warplens.workloads.registry import Plan, Program, document, write_measurements
from warplens.workloads.samples import median_interval, round_medians
from warplens.workloads.settings import VIT_SIZES
from warplens.workloads.token_reduction.methods import reductions
from warplens.workloads.vision import VisionTransformer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from warplens.compare.shift import Samples

KEEP = 0.1
SIDES = (Side("method=none", {"method": "none"}), Side("method=topk", {"method": "topk", "keep": KEEP}))
METHODS = ("none", "topk")
AXES = ("input_size", "batch", "execution")

PER_ROUND = 4

#: What is summed up: of the choice, by the times of the two sides; of the module, by its own times.
FIGURES = (
    "choice_regret",
    "adaptive_regret",
    "adaptive_in_place_regret",
    "recaptured_regret",
    "adaptive_overhead",
    "adaptive_in_place_overhead",
    "recaptured_overhead",
)

#: What runs the chosen side, beside the two sides themselves.
CHOSEN = ("adaptive", "adaptive-in-place", "recaptured")


@dataclass(frozen=True)
class Shape:
    """One point of the grid; `held_out` if it is not used in the fit."""

    input_size: int
    batch: int
    execution: str
    held_out: bool

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `Policy.choose`."""
        return {"input_size": self.input_size, "batch": self.batch, "execution": self.execution}


class Models:
    """Both sides at each input size, with one set of weights, and images for them."""

    def __init__(self, model: str, device: str, precision_name: str, locations: Sequence[int]) -> None:
        self.model, self.device, self.precision, self.locations = model, device, precision_name, locations
        self.dtype = model_dtype(precision_name)
        self._sides: dict[int, dict[str, torch.nn.Module]] = {}
        self._images: dict[tuple[int, int], torch.Tensor] = {}

    def sides(self, input_size: int) -> dict[str, torch.nn.Module]:
        """The model without and with the reduction."""
        if input_size not in self._sides:
            size, shares = VIT_SIZES[self.model], (KEEP,) * len(self.locations)
            made = {}
            for method in METHODS:
                torch.manual_seed(0)
                with torch.device(self.device):
                    by_block = reductions(method, size, input_size, self.locations, shares, True)
                    made[method] = VisionTransformer(size, input_size, by_block).to(self.dtype).eval()
            tie(made["none"], made["topk"], shared_names(made["none"], made["topk"], "equal"))
            self._sides[input_size] = made
        return self._sides[input_size]

    def images(self, shape: Shape) -> torch.Tensor:
        """Random images of a shape, from a fixed seed."""
        key = (shape.input_size, shape.batch)
        if key not in self._images:
            side = shape.input_size
            self._images[key] = torch.randn(shape.batch, 3, side, side, dtype=self.dtype, device=self.device)
        return self._images[key]

    def step(self, call: Callable[[Any], object], images: torch.Tensor, graph: bool = False) -> Callable[[], object]:
        """A forward pass in inference mode."""

        @torch.inference_mode()
        def step() -> object:
            with precision(self.precision, self.device, graph=graph):
                return call(images)

        return step


@dataclass(frozen=True)
class Task:
    """A step to measure in turns."""

    shape: Shape
    method: str
    step: Callable[[], object]
    details: dict[str, Any]


def main() -> None:
    """Fits the policy, measures its choices, and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=30, help="turns of each in either stage")
    parser.add_argument("--policy", type=Path, help="use this one, fit none")
    parser.add_argument("--model", default="deit-b16", choices=sorted(VIT_SIZES))
    parser.add_argument("--device", default=None)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--locations", type=int, nargs="+", default=[3, 6, 9])
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 448], help="of the fit")
    parser.add_argument("--other-sizes", type=int, nargs="*", default=[320, 384], help="that only the check has")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="of the fit")
    parser.add_argument("--other-batches", type=int, nargs="*", default=[3, 6, 12], help="that only the check has")
    parser.add_argument("--executions", nargs="+", default=["eager", "graph"], choices=["eager", "graph"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = options.device or default_device()
    facts = environment(device)
    models = Models(options.model, device, options.precision, options.locations)
    shared = {"model": options.model, "keep": KEEP, "precision": options.precision, "attention": "explicit"}
    run = Run(models, shared, facts, options.rounds, options.out)
    sizes, batches = sorted(options.sizes + options.other_sizes), sorted(options.batches + options.other_batches)
    executions = tuple(options.executions) if device.startswith("cuda") else ("eager",)
    shapes = [
        Shape(size, batch, execution, size in options.other_sizes or batch in options.other_batches)
        for size, batch, execution in product(sizes, batches, executions)
    ]

    if options.policy:
        policy = read_policy(options.policy)
    else:
        fitted = [shape for shape in shapes if not shape.held_out]
        times = run.measured([task for shape in fitted for task in plain_tasks(models, shape)], "policy_fit")
        policy = fitted_policy(fitted, times, facts, shared)
        write_policy(policy, options.out / "policy.json")
    print(f"rule {policy.rule}, margin {policy.margin:.1%}; {policy.regret}", flush=True)
    tasks = [task for shape in shapes for task in plain_tasks(models, shape)]
    tasks += adaptive_tasks(models, policy, shapes)
    summarise(shapes, run.measured(tasks, "policy_check"), tasks, options.out)


def plain_tasks(models: Models, shape: Shape) -> list[Task]:
    """Both sides at a shape."""
    tasks = []
    for method, module in models.sides(shape.input_size).items():
        graph = shape.execution == "graph"
        step = models.step(module, models.images(shape), graph)
        tasks.append(Task(shape, method, as_graph(step, models.device) if graph else step, {}))
    return tasks


def adaptive_tasks(models: Models, policy: Policy, shapes: Sequence[Shape]) -> list[Task]:
    """The adaptive module at every shape: one module per input size, since positional embeddings have a fixed size."""
    tasks = []
    for input_size in dict.fromkeys(shape.input_size for shape in shapes):
        sides = models.sides(input_size)
        module = AdaptiveModule(sides["none"], sides["topk"], policy).eval()
        own = [shape for shape in shapes if shape.input_size == input_size]
        graphs = [tuple(models.images(shape).shape) for shape in own if shape.execution == "graph"]
        with precision(models.precision, models.device, graph=True):
            graphed = module.graphed(graphs) if graphs else None
        for shape in own:
            images = models.images(shape)
            explained = module.explain(images, execution=shape.execution)
            details = {"side": explained.side, "reason": explained.reason}
            if shape.execution == "eager" or graphed is None:
                tasks.append(Task(shape, "adaptive", models.step(module, images), details))
            else:
                own_input = graphed.recorded[images.shape].input
                tasks.append(Task(shape, "adaptive", partial(graphed, images), details))
                tasks.append(Task(shape, "adaptive-in-place", partial(graphed, own_input), details))
                again = models.step(sides[explained.side.removeprefix("method=")], images, graph=True)
                tasks.append(Task(shape, "recaptured", as_graph(again, models.device), details))
    return tasks


class Run:
    """Measures tasks in turns and stores the times."""

    def __init__(self, models: Models, shared: dict[str, Any], facts: dict[str, Any], rounds: int, out: Path) -> None:
        self.models, self.shared, self.facts, self.rounds, self.out = models, shared, facts, rounds, out

    def measured(self, tasks: Sequence[Task], name: str) -> dict[tuple[Shape, str], list[int]]:
        """Wall times of all tasks; also written into a measurements file."""
        plan = Plan.exactly(PER_ROUND, warmup_steps=10)
        print(f"{name}: {len(tasks)} steps in turns, {self.rounds} rounds", flush=True)
        programs = [
            Program(
                task.step, items=task.shape.batch, unit="image", launch=task.shape.execution,
                details={**task.details, "held_out": task.shape.held_out},
            )
            for task in tasks
        ]  # fmt: skip
        taken = measure_in_turns(
            programs, device=self.models.device, rounds=self.rounds, per_round=PER_ROUND, warmup_steps=plan.warmup_steps
        )
        records = []
        for task, program, measured in zip(tasks, programs, taken, strict=True):
            cell = {**self.shared, **task.shape.settings, "method": task.method}
            records.append({"cell": cell, "status": "measured", **figures(program, measured, plan)})
        command = f"python3 captures/policy_check.py OUT --rounds {self.rounds}"
        write_measurements(self.out / f"{name}.json", document("token-reduction", plan, self.facts, records, command))
        return {(task.shape, task.method): list(one.wall_ns) for task, one in zip(tasks, taken, strict=True)}


def medians(times: Sequence[int]) -> list[int]:
    """The median of each round."""
    return round_medians(times, len(times) // PER_ROUND)


def fitted_policy(
    shapes: Sequence[Shape], times: dict[tuple[Shape, str], list[int]], facts: dict[str, Any], shared: dict[str, Any]
) -> Policy:
    """The policy for these shapes."""
    points = []
    for shape in shapes:
        own = tuple(times[shape, method] for method in METHODS)
        points.append(PointTimes(shape.settings, tuple(median(one) for one in own), comparable(own)))
    return fit_points(
        points, sides=SIDES, axes=AXES, source="policy_fit.json", workload="token-reduction",
        shared={name: shared[name] for name in ("model", "precision", "attention")}, environment=facts,
    )  # fmt: skip


def comparable(times: Sequence[Sequence[int]]) -> tuple[Samples, ...]:
    """The samples of both sides; empty if the comparison cannot be imported here, so that only medians decide."""
    try:
        from warplens.compare.shift import Samples
    except ImportError:
        return ()
    starts = [range(0, len(own), PER_ROUND) for own in times]
    blocks = ([own[at : at + PER_ROUND] for at in places] for own, places in zip(times, starts, strict=True))
    return tuple(Samples.of(each, paired=True) for each in blocks)


def summarise(
    shapes: Sequence[Shape], times: dict[tuple[Shape, str], list[int]], tasks: Sequence[Task], out: Path
) -> None:
    """Prints and stores, for each shape, the chosen side and how much slower it was than the best one."""
    details = {(task.shape, task.method): task.details for task in tasks}
    rows = []
    for shape in shapes:
        sides = {method: median(medians(times[shape, method])) for method in METHODS}
        best = min(sides, key=lambda method: sides[method])
        chosen = details[shape, "adaptive"]["side"].removeprefix("method=")
        row = {
            **shape.settings,
            "held_out": shape.held_out,
            "reason": details[shape, "adaptive"]["reason"],
            **{f"{method}_ns": time for method, time in sides.items()},
            "chosen": chosen,
            "best": best,
            "choice_regret": sides[chosen] / sides[best] - 1,
        }
        for method in CHOSEN:
            if (shape, method) in times:
                own, key = medians(times[shape, method]), method.replace("-", "_")
                row[f"{key}_ns"] = median(own)
                # Round by round, so that what slowed the machine down is in both.
                row[f"{key}_regret"], row[f"{key}_regret_interval"] = excess(own, medians(times[shape, best]))
                row[f"{key}_overhead"], row[f"{key}_overhead_interval"] = excess(own, medians(times[shape, chosen]))
        rows.append(row)
        print(line(row), flush=True)
    totals = {}
    for name, some in {
        "all": rows,
        "seen": [row for row in rows if not row["held_out"]],
        "held out": [row for row in rows if row["held_out"]],
        "eager": [row for row in rows if row["execution"] == "eager"],
        "graph": [row for row in rows if row["execution"] == "graph"],
    }.items():
        totals[name] = {"cells": len(some), **{figure: worst_and_mean(some, figure) for figure in FIGURES}}
        print(name, json.dumps(totals[name]), flush=True)
    (out / "policy_check_summary.json").write_text(
        json.dumps({"totals": totals, "rows": rows}, indent=1) + "\n", "utf-8"
    )


def worst_and_mean(rows: Sequence[dict[str, Any]], figure: str) -> dict[str, float] | None:
    """Worst and mean of a figure over shapes; also the greatest lower end of an interval (`worst_certain`)."""
    values = [row[figure] for row in rows if figure in row]
    if not values:
        return None
    certain = [interval[0] for row in rows if (interval := row.get(f"{figure}_interval"))]
    summary = {"worst": max(values), "mean": sum(values) / len(values)}
    return summary | ({"worst_certain": max(certain)} if certain else {})


def excess(times: Sequence[int], others: Sequence[int]) -> tuple[float, tuple[float, float] | None]:
    """Relative excess of one time over another: the median over the rounds, and its 95 % interval."""
    ratios = sorted(one / other - 1 for one, other in zip(times, others, strict=True))
    return median(ratios), median_interval(ratios, 0.95)  # type: ignore[arg-type, return-value]


def line(row: dict[str, Any]) -> str:
    """A shape in a line."""
    times = " ".join(
        f"{name} {row[f'{name}_ns'] / 1e6:.3f}"
        for name in (*METHODS, *(method.replace("-", "_") for method in CHOSEN))
        if f"{name}_ns" in row
    )
    held_out = " (held out)" if row["held_out"] else ""
    return (
        f"{row['input_size']} × {row['batch']} {row['execution']}{held_out}: {times} ms; "
        f"{row['reason']} {row['chosen']}, best {row['best']}: choice {row['choice_regret']:+.1%}, "
        f"adaptive {row['adaptive_regret']:+.1%}"
    )


if __name__ == "__main__":
    main()
