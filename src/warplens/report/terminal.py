"""One table on the terminal or in a pipe: for people with Rich or as Markdown, for programs as CSV."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from warplens.report import text as fmt
from warplens.report.markdown import markdown_table

if TYPE_CHECKING:
    from typing import TextIO

    from warplens.report.document import Table


TableFormat: TypeAlias = Literal["table", "csv", "md"]

#: Where output goes to a file or a program there is no width to fit, so that nothing is cut.
_NO_TERMINAL_WIDTH = 1000


def print_table(table: Table, form: TableFormat = "table", stream: TextIO | None = None) -> None:
    """Write the rows of a table, up to its limit, to a stream (standard output if none is given)."""
    stream = stream or sys.stdout
    if form == "csv":
        stream.write(csv_table(table))
    elif form == "md":
        stream.write(markdown_table(table) + "\n")
    else:
        _print_for_people(table, stream)


def csv_table(table: Table) -> str:
    """The displayed columns as CSV: raw numbers in their own units, full names, a header line; up to the limit."""
    return table.shown().select(table.keys).write_csv()


def _print_for_people(table: Table, stream: TextIO) -> None:
    from rich import box, console, style, text
    from rich.table import Table as Grid

    screen = console.Console(file=stream, highlight=False, markup=False, emoji=False)
    if not screen.is_terminal:
        screen.width = _NO_TERMINAL_WIDTH
    shown = table.shown()
    screen.print(text.Text(table.caption, style="bold"))
    if shown.is_empty():
        screen.print(text.Text(table.empty))
        return
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, header_style=style.Style(dim=True))
    for column in table.columns:
        numeric = fmt.is_numeric(column.kind)
        grid.add_column(
            text.Text(column.title), justify="right" if numeric else "left", no_wrap=numeric, overflow="fold"
        )
    for row in shown.iter_rows(named=True):
        # Text objects, not strings: brackets in a name are no markup.
        grid.add_row(*(text.Text(cell) for cell in _cells(row, table)))
    screen.print(grid)
    if shown.height < table.rows.height:
        shown_of = f"{fmt.count(shown.height)} of {fmt.count(table.rows.height)} rows; --limit 0 shows all"
        screen.print(text.Text(shown_of, style="dim"))


def _cells(row: dict[str, Any], table: Table) -> list[str]:
    cells = [
        fmt.name_and_full(row[column.name], row[column.full] if column.full else None, column.kind)[0]
        for column in table.columns
    ]
    return ["  " * row[table.depth] + cells[0], *cells[1:]] if table.depth else cells
