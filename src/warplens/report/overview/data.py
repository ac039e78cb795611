"""The numbers of a report as plain data: `data` of `report.json`, schema `warplens.report/1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from warplens.report.jsonout import window_data
from warplens.report.overview.answer import answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.report.overview.numbers import Numbers

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
        "memory": None if numbers.memory is None else {"rows": list(numbers.memory)},
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
