"""The document on hardware counters, put together: one report, or several with a comparison on top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from warplens.report import text as fmt
from warplens.report.counters import hardware
from warplens.report.counters import sections as parts
from warplens.report.counters.comparison import SIDE_BY_SIDE, comparison_data
from warplens.report.counters.joined import coverage_blocks, joined_data
from warplens.report.counters.numbers import CounterNumbers, compared_with_first
from warplens.report.counters.sections import bound_shares
from warplens.report.counters.words import kernel_count
from warplens.report.document import Document, Paragraph, Section, SectionOf, limits, quiet, sections
from warplens.report.jsonout import envelope
from warplens.report.write import REPORT_FORMATS, write_document

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from warplens.analysis.counters.comparison import Comparison
    from warplens.report.write import ReportFormat


#: Bounds named in the answer; a sentence with more of them is no longer read.
_MOST_SHARES: Final = 3

#: In reading order.
_SECTIONS: Final[tuple[SectionOf[CounterNumbers], ...]] = (
    SectionOf("quality", "Before you read the numbers", limits, lambda numbers: numbers.warnings),
    SectionOf("measured", "What was measured", parts.measured),
    SectionOf("coverage-section", "Share of the program", coverage_blocks, lambda numbers: numbers.joined),
    SectionOf("kernels", "Kernels", parts.kernels),
    SectionOf("bounds", "Bounds", parts.bounds),
    SectionOf("faults", lambda numbers: "Faults" if numbers.faults.is_empty() else "Faults and remedies", parts.faults),
    SectionOf("speed-of-light", "Speed of light", hardware.speed_of_light),
    SectionOf("roofline-section", "Roofline", hardware.roofline, lambda numbers: numbers.roofline),
    SectionOf("occupancy", "Occupancy", hardware.occupancy),
    SectionOf("launch", "Launch configuration", hardware.launch),
    SectionOf("stalls", "Warp stalls", hardware.stalls),
    SectionOf("memory", "Memory access", hardware.memory),
    SectionOf("rules", "What Nsight Compute's own rules say", parts.rules),
    SectionOf("next-run", "The next run", parts.next_runs),
    SectionOf("semantics", "What these numbers mean", parts.semantics),
)


def counters_document(reports: Sequence[CounterNumbers], comparisons: Sequence[Comparison] | None = None) -> Document:
    """One document on all reports: the answer, what was measured, then every analysis.

    Args:
        reports: at least one.
        comparisons: each report but the first against the first; made here unless given.
    """
    if len(reports) == 1:
        only = reports[0]
        return Document(fmt.printable(only.capture.source), counters_lead(only), sections(_SECTIONS, only), _meta(only))
    comparisons = compared_with_first(reports) if comparisons is None else comparisons
    each = []
    for position, numbers in enumerate(reports, start=1):
        facts = quiet(" · ".join(f"{label}: {text}" for label, text in _meta(numbers)))
        title, inside = fmt.printable(numbers.capture.source), sections(_SECTIONS, numbers, f"p{position}-")
        each.append(Section(f"p{position}", title, (Paragraph(counters_lead(numbers)), facts), inside))
    return Document(
        title=f"{len(reports)} reports of hardware counters",
        lead=_comparison_lead(comparisons),
        sections=(*sections([SIDE_BY_SIDE], comparisons), *each),
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


# --- The numbers of the document on counters as plain data: `data` of `counters.json` --------------------------------


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


def write_counters(
    reports: Sequence[CounterNumbers],
    folder: Path,
    formats: Collection[ReportFormat] = REPORT_FORMATS,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write one document on all reports as `counters.html`, `counters.md` and `counters.json`; the files to open."""
    comparisons = compared_with_first(reports)
    if set(formats) - {"json"}:
        progress("drawing the counters")
    document = counters_document(reports, comparisons)
    return write_document(document, folder, formats, "counters", lambda: counters_json(reports, comparisons))


def counters_json(reports: Sequence[CounterNumbers], comparisons: Sequence[Comparison] | None = None) -> bytes:
    """`counters.json`: every table of every report in full (schema `warplens.counters-report/1`)."""
    found = compared_with_first(reports) if comparisons is None else comparisons
    warnings = list(dict.fromkeys(note for numbers in reports for note in numbers.notes))
    sources = [numbers.capture.source for numbers in reports]
    return envelope("counters-report", sources, counters_data(reports, found), warnings)
