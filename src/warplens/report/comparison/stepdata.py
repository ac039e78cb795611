"""A comparison of traces for programs: `data` of the JSON, and what a terminal shows above its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warplens.report import format as fmt
from warplens.report.comparison.causes import step_answer
from warplens.report.comparison.words import gate_line, needed_text
from warplens.report.counters.comparison import comparison_data
from warplens.report.jsonout import window_data

if TYPE_CHECKING:
    from warplens.compare.difference import SideLaunches
    from warplens.compare.samples import Samples
    from warplens.compare.statistics import Comparison, Regression
    from warplens.report.comparison.numbers import StepNumbers, TraceFiles

__all__ = ["step_data", "step_head", "verdict_data"]


def step_head(numbers: StepNumbers) -> list[str]:
    """What was compared with what."""
    lines = []
    for role, side in (("baseline", numbers.baseline), ("variant", numbers.variant)):
        typical = side.files[side.typical()]
        capture = typical.timeline.trace.capture
        tool = f"{capture.tool} {capture.tool_version or ''}".strip()
        files = f" ({len(side.files)} files)" if len(side.files) > 1 else ""
        window = f"window: {fmt.duration(typical.window.duration_ns)}, {typical.window.how}"
        if typical.window.range_name is not None:
            window += f", range {fmt.printable(typical.window.range_name)}"
        lines.append(f"{role}: {fmt.printable(side.name)}{files} · {tool} · {window}")
    return lines


def step_data(numbers: StepNumbers) -> dict[str, Any]:
    """Every number, exact; tables under `rows`. Changes are variant minus baseline, per step."""
    difference, wall = numbers.difference, numbers.difference.wall
    return {
        "kind": "traces",
        "answer": " ".join(step_answer(numbers)),
        "per": difference.per,
        "baseline": _side(numbers.baseline, numbers.samples[0], difference.launches.baseline),
        "variant": _side(numbers.variant, numbers.samples[1], difference.launches.variant),
        "verdict": verdict_data(numbers.comparison),
        "gate": _gate(numbers.regression, numbers.comparison),
        "explanation": {**_fields(numbers.why), "is_paradox": numbers.why.is_paradox},
        "wall": {
            "baseline_ns": float(wall.baseline.wall_ns),
            "variant_ns": float(wall.variant.wall_ns),
            "change_ns": float(wall.change_ns),
            "residual_ns": float(wall.residual_ns),
        },
        "rows": wall.frame(),
        "kernels": {"rows": numbers.kernels},
        "kernel_places": {"rows": difference.kernels.table},
        "ranges": {"rows": difference.ranges},
        "phases": {"rows": difference.phases},
        "transfers": {"rows": difference.transfers},
        "launch_costs": {
            "calls_change": difference.launches.calls_change,
            "added_cost_ns": difference.launches.added_cost_ns,
            "pace_cost_ns": difference.launches.pace_cost_ns,
        },
        "work": {**_fields(difference.work), "flops_ratio": difference.work.flops_ratio},
        "counters": comparison_data(numbers.counters) if numbers.counters is not None else None,
    }


def _side(side: TraceFiles, samples: Samples, launches: SideLaunches) -> dict[str, Any]:
    return {
        "name": side.name,
        "sources": list(side.sources),
        "typical": side.sources[side.typical()],
        "windows": [window_data(file.window) for file in side.files],
        "step_times_ns": [block.tolist() for block in samples.blocks],
        "launches": {
            **{name: item for name, item in _fields(launches).items() if name != "pace"},
            "host_ns_per_launch": launches.host_ns_per_launch,
            "queue_empty_share": launches.queue_empty_share,
            "behind_share": launches.behind_share,
        },
    }


def verdict_data(found: Comparison) -> dict[str, Any]:
    """The verdict with everything that it rests on."""
    return {**_fields(found), "decided_by": needed_text(found)}


def _gate(found: Regression | None, comparison: Comparison) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "fail_on": found.fail_on,
        "found": found.found,
        "excluded": found.excluded,
        "sentence": gate_line(found, comparison),
    }


def _fields(item: Any) -> dict[str, Any]:
    """The fields of a frozen dataclass; what is inside becomes JSON by itself."""
    return {name: getattr(item, name) for name in item.__dataclass_fields__}
