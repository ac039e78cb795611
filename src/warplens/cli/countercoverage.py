"""What a trace adds to reports of counters: each joined with the same window of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.analysis.timeline import Timeline
from warplens.cli.messages import progress
from warplens.readers import read
from warplens.report.counters.numbers import Joined, join_counters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from warplens.profile.counters import KernelCounters

__all__ = ["join_trace"]


def join_trace(
    reports: Sequence[KernelCounters], trace: Path, window: str, ncu_version: str | None
) -> tuple[Joined, ...]:
    """Each report with the same window of this trace."""
    with progress(f"reading {trace.name}") as tell:
        timeline = Timeline(read(trace, progress=tell))
        selected = timeline.window(window)
        return tuple(join_counters(report, timeline, selected, ncu_version) for report in reports)
