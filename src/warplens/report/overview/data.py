"""The numbers of a report as plain data: `data` of `report.json`, schema `warplens.report/1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from warplens.analysis.work import work_statistics
from warplens.report.counters.joined import joined_data
from warplens.report.diagnosis.data import diagnosis_data
from warplens.report.jsonout import window_data
from warplens.report.overview.answer import answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.allocator import Allocations
    from warplens.analysis.work import ModelledWork
    from warplens.report.overview.numbers import Numbers, OperatorNumbers

__all__ = ["overview_data", "report_data"]


def report_data(profiles: Sequence[Numbers]) -> dict[str, Any]:
    """`data` of `report.json`: one entry of `overview_data` a profile, in the order given."""
    return {"profiles": [overview_data(numbers) for numbers in profiles]}


def overview_data(numbers: Numbers) -> dict[str, Any]:
    """Everything that the report on one profile states, every table in full, with exact numbers.

    Tables are objects with `rows`; times are nanoseconds, sizes bytes, shares 0–1. Null is what was not recorded.
    """
    capture = numbers.capture
    return {
        "source": capture.source,
        "answer": answer(numbers),
        "capture": {
            "format": capture.format,
            "tool": capture.tool,
            "tool_version": capture.tool_version,
            "schema_version": capture.schema_version,
            "devices": list(capture.devices),
            "window_ns": list(capture.window_ns),
            "recorded": sorted(capture.recorded),
        },
        "window": window_data(numbers.window),
        "notes": list(numbers.notes),
        "diagnosis": diagnosis_data(numbers.diagnosis) if numbers.diagnosis else None,
        "budget": {"devices": [_budget(budget) for budget in numbers.budgets]},
        "steps": {"rows": numbers.steps},
        "phases": {"rows": numbers.phases},
        "kernels": {"rows": numbers.kernels},
        "categories": {"coverage": numbers.category_coverage, "rows": numbers.categories},
        "precisions": {"tensor_cores": numbers.tensor_core_use, "rows": numbers.precisions},
        "ranges": {"coverage": numbers.range_coverage, "rows": numbers.ranges},
        "launches": {"summary": numbers.launch_summary, "rows": numbers.launches},
        "copies": {"rows": numbers.copies, "overlap": numbers.copy_overlap},
        "api": {
            "rows": numbers.api,
            "blocking": numbers.blocking,
            "synchronizations": numbers.synchronizations,
        },
        "streams": {"rows": numbers.streams, "concurrency": numbers.concurrency},
        "graphs": {"summary": numbers.graph_summary, "rows": numbers.graphs},
        "operators": _operators(numbers.operators),
        "work": _work(numbers.work),
        "memory": None if numbers.memory is None else {"rows": list(numbers.memory)},
        "allocator": _allocator(numbers.allocations),
        "counters": joined_data(numbers.joined) if numbers.joined else None,
    }


def _operators(operators: OperatorNumbers | None) -> dict[str, Any] | None:
    if operators is None:
        return None
    return {
        "coverage": operators.coverage,
        "overhead": operators.overhead,
        "rows": operators.names,
        "modules": {"rows": operators.modules},
    }


def _work(work: ModelledWork | None) -> dict[str, Any] | None:
    if work is None:
        return None
    return {
        "coverage_share": work.coverage_share,
        "flops": work.flops,
        "matmul_flops": work.matmul_flops,
        "peak_sources": list(work.peak_sources),
        "rows": work_statistics(work),
        "unmodelled": {"rows": work.unmodelled},
    }


def _allocator(found: Allocations | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "rows": list(found.use),
        "alive_at_peak": {"rows": found.alive_at_peak},
        "steps": {"rows": found.steps},
    }


def _budget(budget: Any) -> dict[str, Any]:
    return {
        "device": budget.device,
        "duration_ns": budget.duration_ns,
        "busy_ns": budget.busy_ns,
        "idle_ns": budget.idle_ns,
        "hidden_ns": budget.group_ns("graph"),
        "attributed_share": budget.attributed_share,
        "rows": budget.parts.with_columns(pl.col("group").cast(pl.String)),
    }
