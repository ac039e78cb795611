"""Two reports of hardware counters as a document of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.report.counters.comparison import comparison_lines, comparison_section
from warplens.report.document import Document

if TYPE_CHECKING:
    from warplens.analysis.counters.comparison import Comparison

__all__ = ["counter_document"]


def counter_document(found: Comparison) -> Document:
    """The document on two reports of Nsight Compute."""
    return Document(
        title=f"Comparison: {found.after} against {found.before}",
        lead=". ".join(comparison_lines(found)) + ".",
        sections=(comparison_section([found]),),
        meta=(("Baseline", found.before), ("Variant", found.after)),
    )
