"""Words and columns that all sections of a grid document share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warplens.report import format as fmt
from warplens.report.document import Paragraph, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CELL_COLUMNS", "between", "cell_title", "counted", "majority", "unanswered"]

CELL_COLUMNS = (
    TableColumn("model", "Model", "text", "Size of the model."),
    TableColumn("context", "Context", "count", "Context length in tokens."),
    TableColumn("mode", "Profile of", "text", "What one step of the profiled program does."),
)


def cell_title(row: dict[str, Any]) -> str:
    """How a sentence names a cell: `small at context 512`."""
    return f"{row['model']} at context {row['context']}"


def between(values: Iterable[float | None], kind: fmt.Kind) -> str:
    """`x`, or `x to y` where the least and the greatest differ as people read them."""
    known = [value for value in values if value is not None]
    if not known:
        return fmt.MISSING
    least, greatest = fmt.value(min(known), kind), fmt.value(max(known), kind)
    return least if least == greatest else f"{least} to {greatest}"


def counted(count: int, what: str) -> str:
    """`1 profile`, `3 profiles`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def majority(count: int, total: int, what: str) -> str:
    """`all 12 cells`, `9 of 12 cells`, `the one cell`."""
    if total == 1:
        return f"the one {what}" if count else f"no {what}"
    return f"all {total} {what}s" if count == total else f"{count} of {total} {what}s"


def unanswered(question: str) -> Paragraph:
    """What stands in the place of an answer that no profile gives."""
    return Paragraph(f"No profile of the grid answers ({question}); “What is answered” says what to run.")
