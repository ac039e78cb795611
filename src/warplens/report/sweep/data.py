"""A sweep's answers as `data` of the JSON (docs/reference/json.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warplens.compare.crossover import crossing_frame
from warplens.compare.surface import regime_frame
from warplens.report.sweep.breakeven import breakeven_data
from warplens.report.sweep.numbers import point_frame
from warplens.report.sweep.words import answer

if TYPE_CHECKING:
    from warplens.report.sweep.numbers import SweepNumbers

__all__ = ["sweep_data"]


def sweep_data(numbers: SweepNumbers) -> dict[str, Any]:
    """Everything of a sweep's report; frames become lists of rows."""
    sweep, told = numbers.sweep, numbers.confounding
    return {
        "answer": answer(numbers),
        "workload": sweep.workload,
        "environment": dict(sweep.environment),
        "axes": list(sweep.axes),
        "baseline": dict(sweep.baseline),
        "variant": dict(sweep.variant),
        "shared": dict(sweep.shared),
        "paired": sweep.paired,
        "level": numbers.level,
        "margin": numbers.margin,
        "rows": point_frame(numbers),
        "regimes": regime_frame(numbers.regimes, sweep.axes),
        "anomalies": {
            "level": numbers.anomalies.level,
            "untested": list(numbers.anomalies.untested),
            "tests": numbers.anomalies.tests,
        },
        "confounding": {
            "found": [{"settings": list(item.settings), "kind": item.kind, "text": item.text} for item in told.found],
            "axes": told.axes,
            "unvaried": list(told.unvaried),
        },
        "crossovers": {axis: crossing_frame(lines) for axis, lines in numbers.crossovers.items() if lines},
        "no_crossovers": dict(numbers.no_crossovers),
        "breakeven": breakeven_data(numbers),
        "no_breakeven": numbers.no_breakeven,
        "lost": numbers.lost,
    }
