"""What categories, phases and causes are called in a report, and the colours that they keep in all charts."""

from __future__ import annotations

from typing import Final

from warplens.report.chart_theme import category_fill

__all__ = ["category_title", "cause_title", "part_fill", "part_title", "phase_title"]

_CATEGORIES: Final = {
    "gemm": "matrix products (GEMM)",
    "normalization": "normalisation",
    "gather-scatter": "gather, scatter, embedding",
    "sort-topk": "sort and top-k",
    "copy-cast": "copies and casts by kernels",
    "random": "random numbers",
    "triton": "Triton-generated kernels",
    "other": "other kernels",
}

#: For narrow columns.
_SHORT_CATEGORIES: Final = {
    "gemm": "GEMM",
    "normalization": "normalisation",
    "gather-scatter": "gather, scatter",
    "sort-topk": "sort, top-k",
    "copy-cast": "copy, cast",
    "triton": "Triton",
}

_CAUSES: Final = {
    "launch": "waiting for a launch",
    "graph-launch": "waiting for a graph launch",
    "synchronization": "synchronisation",
    "refill": "refill after a synchronisation",
    "allocation": "memory allocation",
    "blocking-copy": "blocking copy",
    "host": "host busy elsewhere",
    "dependency": "waiting for other GPU work",
    "submission": "held back by driver or others",
    "start-latency": "start latency",
    "profiler": "profiler overhead",
    "unknown": "cause not recorded",
}

#: Colour tokens of idle causes. There are more causes than hues that stay apart; the rarest share one.
_CAUSE_FILLS: Final = {
    "launch": "idle-1",
    "graph-launch": "idle-1",
    "synchronization": "idle-3",
    "refill": "idle-3",
    "allocation": "idle-5",
    "blocking-copy": "idle-7",
    "host": "idle-2",
    "dependency": "idle-4",
    "submission": "idle-6",
    "start-latency": "idle-4",
    "profiler": "idle-5",
    "unknown": "idle-6",
}

_GROUP_FILLS: Final = {"copy": "transfer", "graph": "graph", "communication": "communication"}

_PHASES: Final = {"none": "outside of these"}


def category_title(category: str, *, short: bool = False) -> str:
    """A kernel category as people call it; `short` for a column of a table."""
    return (_SHORT_CATEGORIES if short else _CATEGORIES).get(category, category)


def cause_title(cause: str) -> str:
    """A cause of idle time as people call it."""
    return _CAUSES.get(cause, cause)


def phase_title(phase: str) -> str:
    """A phase of a training step; `none` is the work outside of all phases."""
    return _PHASES.get(phase, phase)


def part_title(group: str, part: str) -> str:
    """A part of a time budget as people call it."""
    if group == "idle":
        return cause_title(part)
    if group == "copy":
        return "memory fill" if part == "memset" else f"copy {part.replace('-', ' ')}"
    return category_title(part)


def part_fill(group: str, part: str) -> str:
    """The colour token of a part of a time budget."""
    if group == "idle":
        return _CAUSE_FILLS.get(part, "idle-6")
    return _GROUP_FILLS.get(group) or category_fill(part)
