"""The document on counters as files in a folder: `counters.html`, `counters.md` with `images/`, `counters.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.report.counters.data import counters_data
from warplens.report.counters.document import counters_document
from warplens.report.counters.numbers import compared_with_first
from warplens.report.jsonout import envelope
from warplens.report.write import REPORT_FORMATS, write_document

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from warplens.analysis.counters.comparison import Comparison
    from warplens.report.counters.numbers import CounterNumbers
    from warplens.report.write import ReportFormat

__all__ = ["counters_json", "write_counters"]


def write_counters(
    reports: Sequence[CounterNumbers],
    folder: Path,
    formats: Collection[ReportFormat] = REPORT_FORMATS,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write one document on all reports of counters.

    Args:
        reports: at least one.
        folder: where the files go; made if need be. Files of an earlier document there are replaced.
        formats: which of `REPORT_FORMATS` to write.
        progress: is told what is being done, in a few words.

    Returns:
        The files to open, in the order of `REPORT_FORMATS`; images are not among them.
    """
    comparisons = compared_with_first(reports)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    if set(formats) - {"json"}:
        progress("drawing the counters")
        written = write_document(counters_document(reports, comparisons), folder, formats, "counters")
    if "json" in formats:
        path = folder / "counters.json"
        path.write_bytes(counters_json(reports, comparisons))
        written.append(path)
    return written


def counters_json(reports: Sequence[CounterNumbers], comparisons: Sequence[Comparison] | None = None) -> bytes:
    """`counters.json`: every table of every report in full (schema `warplens.counters-report/1`)."""
    found = compared_with_first(reports) if comparisons is None else comparisons
    warnings = list(dict.fromkeys(note for numbers in reports for note in numbers.notes))
    sources = [numbers.capture.source for numbers in reports]
    return envelope("counters-report", sources, counters_data(reports, found), warnings)
