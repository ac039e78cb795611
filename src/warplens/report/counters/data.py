"""The numbers of the document on counters as plain data: `data` of `counters.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warplens.report.counters.comparison import comparison_data
from warplens.report.counters.document import counters_lead
from warplens.report.counters.joined import joined_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.counters.comparison import Comparison
    from warplens.report.counters.numbers import CounterNumbers

__all__ = ["counters_data"]


def counters_data(reports: Sequence[CounterNumbers], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """One entry a report, in the order given, and each report but the first against the first."""
    return {
        "reports": [_report(numbers) for numbers in reports],
        "comparisons": [comparison_data(found) for found in comparisons],
    }


def _report(numbers: CounterNumbers) -> dict[str, Any]:
    counters = numbers.counters
    capture = counters.capture
    return {
        "source": capture.source,
        "answer": counters_lead(numbers),
        "tool": capture.tool,
        "tool_version": capture.tool_version,
        "devices": list(capture.devices),
        "session": counters.session,
        "launches": counters.launches.height,
        "notes": list(numbers.notes),
        "kernels": {"rows": numbers.summary},
        "configurations": {"rows": numbers.configurations},
        "breakdown": {"rows": numbers.breakdown},
        "faults": {"rows": numbers.faults},
        "roofline": {"rows": numbers.roofline.points, "roofs": numbers.roofline.roofs},
        "stalls": {"rows": numbers.stalls},
        "memory_access": {"rows": numbers.memory},
        "instructions": {"rows": numbers.instructions},
        "rules": {"rows": counters.rules},
        "next_run": numbers.next_run,
        "traces": joined_data(numbers.joined) if numbers.joined else None,
    }
