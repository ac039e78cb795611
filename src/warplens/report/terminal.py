"""Output to a terminal or a pipe: tables, sentences and the answer in five lines.

A terminal gets colour (unless `NO_COLOR` is set) and lines of its width: sentences are wrapped between words, and a
table that is too wide loses its less important columns, which are listed below it. A file or a program gets all
columns, in lines of any length.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TextIO

from warplens.report import text as fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from warplens.diagnosis.findings import Severity
    from warplens.profile.schema import Column
    from warplens.report.brief import Line
    from warplens.report.document import Table


#: Width of tables for a file or a program, large enough that nothing is cut.
_NO_TERMINAL_WIDTH: Final = 1000

#: A column of text is folded to this width at least: names in narrower ones are hard to read.
_LEAST_TEXT: Final = 24

#: Predicates of the most important columns: the change, the first time, and the share.
_IMPORTANT: Final[tuple[Callable[[Column], bool], ...]] = (
    lambda column: column.name.startswith(("change_", "delta_")),
    lambda column: column.kind == "duration_ns",
    lambda column: column.name == "share",
)

#: At most this many columns of text after the first are kept if the first does not distinguish all rows.
_MOST_KEY_COLUMNS: Final = 1

#: Characters between two columns.
_GAP: Final = 3

#: Width of the labels of the five lines.
_LABEL: Final = 12

#: Style of each tone of a line, each severity of a finding, a verdict and a remedy.
_STYLES: Final = {
    "critical": "bold red", "warning": "yellow", "info": "green", "good": "green", "quiet": "dim", "verdict": "bold",
    "do": "bold cyan",
}  # fmt: skip

#: Labels of lines that limit an answer.
_CAUTIONS: Final = ("caution: ", "missing: ")

#: Separates a command from its comment.
_COMMENT: Final = "  # "

#: The begin of a numbered list entry.
_NUMBERED: Final = re.compile(r" *\d+\. ")

#: The space between a number and its unit, which must stay on one line.
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|[kMGT]?B|[MGTP]?FLOP)\b|%)")


@dataclass(frozen=True)
class Marked:
    """A line of prose that begins with a mark in a style of its own."""

    mark: str
    rest: str
    tone: Severity | Literal["verdict", "do"]

    def __str__(self) -> str:
        return f"{self.mark}{self.rest}"


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal, or to be treated as one (`FORCE_COLOR`)."""
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def width_of(stream: TextIO) -> int | None:
    """The width of a terminal in columns; None for a file or a program."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def _console(stream: TextIO) -> Console:
    from rich import console

    class Screen(console.Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command line handles it quietly; Rich would exit with status 1

    screen = Screen(file=stream, highlight=False, markup=False, emoji=False)
    screen.width = width_of(stream) or _NO_TERMINAL_WIDTH
    return screen


def print_table(table: Table, stream: TextIO) -> None:
    """Write the rows of a table, up to its limit."""
    from rich import box, style, text
    from rich.table import Table as Grid

    screen = _console(stream)
    shown = table.shown()
    screen.print(text.Text(table.caption, style="bold"))
    if shown.is_empty():
        screen.print(text.Text(table.empty))
        return
    rows = [[text for text, _ in table.texts(row)] for row in shown.iter_rows(named=True)]
    for row, depth in zip(rows, shown[table.depth] if table.depth else (), strict=False):
        row[0] = "  " * depth + row[0]
    kept_indices = _fitting(table.columns, rows, screen.width, table.order)
    columns = [table.columns[index] for index in kept_indices]
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, header_style=style.Style(dim=True))
    for column in columns:
        numeric = fmt.is_numeric(column.kind)
        grid.add_column(
            text.Text(column.title), justify="right" if numeric else "left", no_wrap=numeric, overflow="fold"
        )
    for row in rows:
        # Text objects, since Rich would take brackets in a string as markup.
        cells = ((row[index], table.columns[index]) for index in kept_indices)
        grid.add_row(*(text.Text(cell, style=_style(cell, column)) for cell, column in cells))
    screen.print(grid)
    if shown.height < table.rows.height:
        row_count = f"{fmt.count(shown.height)} of {fmt.count(table.rows.height)} rows; --limit 0 shows all"
        screen.print(text.Text(row_count, style="dim"))
    if hidden := [column.title for index, column in enumerate(table.columns) if index not in kept_indices]:
        screen.print(text.Text(f"not shown in {screen.width} columns: {', '.join(hidden)}", style="dim"))


def _fitting(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, order: str | None = None
) -> list[int]:
    """The indices of the columns that fit the width. Text may be folded, numbers may not; the first column is kept.

    The most important columns are dropped last: those that distinguish the rows, the one the rows are sorted by
    (`order`), the change, the first time, and the share. Columns without any value are dropped first.
    """
    from rich.cells import cell_len

    def needed(index: int) -> int:
        column = columns[index]
        natural = max(cell_len(column.title), *(cell_len(row[index]) for row in rows))
        least = min(_LEAST_TEXT, width // 3) if index in key_columns else _LEAST_TEXT  # leaves room for a number
        return (natural if fmt.is_numeric(column.kind) else min(natural, least)) + _GAP

    keys = 0
    while keys < min(_MOST_KEY_COLUMNS, len(columns) - 1) and len({row[: keys + 1] for row in map(tuple, rows)}) < len(
        rows
    ):
        keys += 1
    key_columns = [index for index in range(1, keys + 1) if not fmt.is_numeric(columns[index].kind)]
    important = [
        next((index for index, column in enumerate(columns) if is_important(column)), 0) for is_important in _IMPORTANT
    ]
    room = width - needed(0)
    kept = [0]
    empty = {index for index in range(len(columns)) if all(row[index] == fmt.MISSING for row in rows)}
    sorted_by = [index for index, column in enumerate(columns) if column.name == order]
    preferred = [index for index in (*key_columns, *sorted_by, *important, *range(len(columns))) if index not in empty]
    for index in dict.fromkeys([*preferred, *sorted(empty)]):
        if index and (room := room - needed(index)) < 0:
            break
        if index:
            kept.append(index)
    return sorted(kept)


def _style(cell: str, column: Column) -> str:
    return _STYLES.get(cell, "") if column.name == "severity" else ""


def print_prose(lines: Iterable[str | Marked], stream: TextIO) -> None:
    """Write sentences, each on its own lines; on a terminal wrapped between words and styled."""
    width = width_of(stream)
    if width is None:
        stream.write("".join(f"{line}\n" for line in lines))
        return
    screen = _console(stream)
    for line in lines:
        screen.print(_styled("\n".join(wrapped(str(line), width)), line), soft_wrap=True)


def wrapped(line: str, width: int, indent: int | None = None) -> list[str]:
    """A line in pieces that fit the width, broken between words and never between a number and its unit.

    Every piece of a comment begins with `#`. If a command and its comment do not fit in one line, the comment goes
    below the command, so that copied lines still run.

    Args:
        line: the text; its indentation is kept.
        width: columns; a word that is longer is not broken.
        indent: of the further pieces; None for that of the line, or of the text after the number in a numbered line.
    """
    begin = len(line) - len(line.lstrip())
    if indent is None and (number := _NUMBERED.match(line)):
        indent = number.end()
    command, mark, comment = line.partition(_COMMENT)
    if mark and command.strip() and len(line) > width:
        return [*wrapped(command, width, indent), *wrapped(f"{' ' * begin}# {comment.strip()}", width)]
    further = f"{' ' * begin}# " if line.lstrip().startswith("# ") else " " * (begin if indent is None else indent)
    pieces = textwrap.wrap(
        _UNIT.sub("\u00a0", line),
        max(width, len(further) + 20),
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return [piece.replace("\u00a0", " ") for piece in pieces] or [""]


def _styled(shown: str, line: str | Marked) -> Text:
    """A wrapped line with the style of its mark, or of the label of a caution."""
    from rich.text import Text

    text = Text(shown)
    if isinstance(line, Marked):
        text.stylize(_STYLES[line.tone], 0, len(line.mark))
    elif label := next((label for label in _CAUTIONS if line.startswith(label)), ""):
        text.stylize(_STYLES["warning"], 0, len(label))
    return text


def print_labelled(lines: Iterable[Line], stream: TextIO) -> None:
    """Write the answer in five lines: labels on the left, text on the right, code on separate lines for copying."""
    width = width_of(stream)
    if width is None:
        stream.write(brief_text(lines))
        return
    from rich.text import Text

    screen = _console(stream)
    for line in lines:
        label, *rest = _rows(line, width)
        style = _STYLES.get(line.tone, "")
        screen.print(Text.assemble((label[:_LABEL], "bold"), (label[_LABEL:], style)), soft_wrap=True)
        text_rows = len(wrapped(f"{line.label:<{_LABEL}}{line.text}", width, _LABEL)) if line.text else 1
        for number, row in enumerate(rest, start=1):
            screen.print(Text(row, style=style if number < text_rows else "cyan"), soft_wrap=True)


def brief_text(lines: Iterable[Line], width: int | None = None) -> str:
    """The answer in five lines as plain text, wrapped if a width is given."""
    return "".join(f"{row}\n" for line in lines for row in _rows(line, width))


def _commands(code: Iterable[str], width: int | None) -> Iterator[str]:
    """Commands with their comments; if one of them does not fit in a row, all comments go below their commands."""
    commands = list(code)
    if width is None or all(_LABEL + len(command) <= width for command in commands):
        yield from commands
        return
    for commented in commands:
        command, mark, comment = commented.partition(_COMMENT)
        yield command.rstrip()
        if mark:
            yield from (_COMMENT + piece.strip() for piece in wrapped(comment, width - _LABEL - len(_COMMENT)))


def _rows(line: Line, width: int | None) -> Iterator[str]:
    """A line as rows: its text, then its code. Commands (lines without text) are not wrapped."""
    code = list(line.code if line.text else _commands(line.code, width))
    margin = " " * _LABEL
    text = line.text or (code.pop(0) if code else "")
    first = f"{line.label:<{_LABEL}}{text}"
    if width is None or not line.text:
        yield from (first, *(margin + code_line for code_line in code))
        return
    yield from wrapped(first, width, _LABEL)
    for code_line in code:
        yield from wrapped(margin + code_line, width, _LABEL + 2)
