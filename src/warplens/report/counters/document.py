"""The document on hardware counters, put together: one report, or several with a comparison on top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warplens.report import format as fmt
from warplens.report.counters.comparison import comparison_section
from warplens.report.counters.hardwaresections import (
    launch_section,
    memory_section,
    occupancy_section,
    speed_of_light_section,
    stalls_section,
)
from warplens.report.counters.joined import coverage_section
from warplens.report.counters.numbers import compared_with_first
from warplens.report.counters.roofline import roofline_section
from warplens.report.counters.sections import (
    bound_shares,
    bounds_section,
    faults_section,
    kernels_section,
    measured_section,
    next_section,
    quality_section,
    rules_section,
    semantics_section,
)
from warplens.report.counters.words import kernel_count
from warplens.report.document import Document, Paragraph, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.counters.comparison import Comparison
    from warplens.report.counters.numbers import CounterNumbers

__all__ = ["counters_document", "counters_lead"]

#: Bounds named in the answer; a sentence with more of them is no longer read.
_MOST_SHARES: Final = 3

_BEFORE_ROOFLINE = (kernels_section, bounds_section, faults_section, speed_of_light_section)
_AFTER_ROOFLINE = (occupancy_section, launch_section, stalls_section, memory_section)


def counters_document(reports: Sequence[CounterNumbers], comparisons: Sequence[Comparison] | None = None) -> Document:
    """One document on all reports: the answer, what was measured, then every analysis.

    Args:
        reports: at least one.
        comparisons: each report but the first against the first; made here unless given.
    """
    if len(reports) == 1:
        only = reports[0]
        return Document(fmt.printable(only.capture.source), counters_lead(only), _sections(only, ""), _meta(only))
    comparisons = compared_with_first(reports) if comparisons is None else comparisons
    parts = []
    for position, numbers in enumerate(reports, start=1):
        facts = Paragraph(" · ".join(f"{label}: {text}" for label, text in _meta(numbers)), quiet=True)
        lead = Paragraph(counters_lead(numbers))
        parts.append(
            Section(
                f"p{position}",
                fmt.printable(numbers.capture.source),
                (lead, facts),
                _sections(numbers, f"p{position}-"),
            )
        )
    return Document(
        title=f"{len(reports)} reports of hardware counters",
        lead=_comparison_lead(comparisons),
        sections=(comparison_section(comparisons), *parts),
    )


def counters_lead(numbers: CounterNumbers) -> str:
    """The answer in two sentences: what bounds the profiled time, and what the most expensive kernel is held by."""
    summary = numbers.summary
    if summary.is_empty():
        return "The report holds no profiled kernel."
    measured = numbers.measured
    shares = bound_shares(numbers)
    if not shares:
        return f"{measured}, none of which has a duration: they failed, or it was not collected."
    total = fmt.duration(float(summary["total_ns"].sum()))
    split = ", ".join(f"{fmt.share(share)} {title}" for title, share in shares[:_MOST_SHARES])
    first = summary.row(0, named=True)
    name = fmt.shorten_kernel(first["full_name"])
    return (
        f"{measured} took {total}: {split}. The most expensive, {name} ({fmt.share(first['share'])} of that time), is "
        f"{first['verdict']}: {first['reason']}."
    )


def _sections(numbers: CounterNumbers, at: str) -> tuple[Section, ...]:
    joined = (coverage_section(numbers.joined, at),) if numbers.joined else ()
    rules = rules_section(numbers, at)
    return (
        quality_section(numbers, at),
        measured_section(numbers, at),
        *joined,
        *(section(numbers, at) for section in _BEFORE_ROOFLINE),
        roofline_section(numbers.roofline, at),
        *(section(numbers, at) for section in _AFTER_ROOFLINE),
        *((rules,) if rules is not None else ()),
        next_section(numbers, at),
        semantics_section(numbers, at),
    )


def _meta(numbers: CounterNumbers) -> tuple[tuple[str, str], ...]:
    capture = numbers.capture
    gpus = ", ".join(dict.fromkeys(device.name for device in capture.devices))
    tool = " ".join(part for part in (capture.tool, capture.tool_version) if part)
    return (*((("GPU", gpus),) if gpus else ()), ("Recorded with", tool), ("Profiled", numbers.measured))


def _comparison_lead(comparisons: Sequence[Comparison]) -> str:
    found = [item for item in comparisons if not item.groups.is_empty()]
    if not found:
        return "These reports have no kernel in common; each has a part of its own below."
    best = max(found, key=lambda item: item.groups.height)
    ratios = best.groups.drop_nulls("time_ratio")
    sources = f"{fmt.printable(best.after)} and {fmt.printable(best.before)}"
    text = f"{sources} have {kernel_count(best.groups.height)} in common."
    if ratios.is_empty():
        return text
    before, after = (float((ratios[f"duration_ns_{side}"]).sum()) for side in ("before", "after"))
    changed = int(best.groups["bound_changed"].sum())
    what = f"the bound of {kernel_count(changed)}" if changed else "no bound"
    return (
        f"{text} A launch of each takes {fmt.duration(after)} in all, {fmt.duration(before)} before "
        f"(ratio {fmt.number(after / before)}); {what} changed."
    )
