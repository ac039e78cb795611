"""What a terminal or a pipe gets: tables, sentences and the answer in five lines, fitted to the width that there is.

A terminal gets colour (unless `NO_COLOR` is set) and lines that end where its width ends: sentences are wrapped between
words, and of a table that is too wide columns stay away, which is said: those that it is not about, from the right. A
file or a program gets everything, in lines as long as they are.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Final, Literal, TextIO, TypeAlias

from warplens.report import text as fmt
from warplens.report.markdown import markdown_table
from warplens.writing import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from warplens.profile.schema import Column
    from warplens.report.brief import Line
    from warplens.report.document import Table


TableFormat: TypeAlias = Literal["table", "csv", "md"]

#: Where output goes to a file or a program there is no width to fit, so that nothing is cut.
_NO_TERMINAL_WIDTH: Final = 1000

#: A column of text may be folded to this width, but not to less: names in narrower ones cannot be read.
_LEAST_TEXT: Final = 24

#: Columns that a table is about: what changed, where the time went, and how much of the whole that is.
_ABOUT: Final[tuple[Callable[[Column], bool], ...]] = (
    lambda column: column.title == "Change",
    lambda column: column.kind == "duration_ns",
    lambda column: column.name == "share",
)

#: Up to so many columns of text after the first stay as well, where the first says the same in several rows.
_TELLING: Final = 1

#: What stands between two columns, and at the edges.
_GAP: Final = 3

#: Width of the labels of the five lines.
_LABEL: Final = 12

#: Tones of lines and severities of findings → style.
_STYLES: Final = {"critical": "bold red", "warning": "yellow", "info": "green", "good": "green", "quiet": "dim"}

#: Styles of what begins a line: caution, severity of a finding, remedy.
_BEGINS: Final = (
    (re.compile(r"verdict: .*"), "bold"),
    (re.compile(r"\d+\. [\w-]+: critical\b"), _STYLES["critical"]),
    (re.compile(r"\d+\. [\w-]+: warning\b"), _STYLES["warning"]),
    (re.compile(r"\d+\. [\w-]+: info\b"), _STYLES["info"]),
    (re.compile(r" *do: "), "bold cyan"),
    (re.compile(r"(caution|missing): "), _STYLES["warning"]),
)

#: What stands between a command and what it answers.
_COMMENT: Final = "  # "

#: What begins an entry of a list.
_NUMBERED: Final = re.compile(r" *\d+\. ")

#: A number and its unit stay in one line.
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|[kMGT]?B|[MGTP]?FLOP)\b|%)")


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream, or whoever reads it wants the same (`FORCE_COLOR`)."""
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def width_of(stream: TextIO) -> int | None:
    """The columns of a terminal; None for a file or a program, which have no width."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


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
    return harmless(table.shown().select(table.keys)).write_csv()


def _console(stream: TextIO) -> Console:
    from rich import console

    class Screen(console.Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command line ends quietly then; Rich would end the process with 1

    screen = Screen(file=stream, highlight=False, markup=False, emoji=False)
    screen.width = width_of(stream) or _NO_TERMINAL_WIDTH
    return screen


def _print_for_people(table: Table, stream: TextIO) -> None:
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
    kept = _fitting(table.columns, rows, screen.width, table.order)
    columns = [table.columns[place] for place in kept]
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, header_style=style.Style(dim=True))
    for column in columns:
        numeric = fmt.is_numeric(column.kind)
        grid.add_column(
            text.Text(column.title), justify="right" if numeric else "left", no_wrap=numeric, overflow="fold"
        )
    for row in rows:
        # Text objects, not strings: brackets in a name are no markup.
        cells = ((row[place], table.columns[place]) for place in kept)
        grid.add_row(*(text.Text(cell, style=_style(cell, column)) for cell, column in cells))
    screen.print(grid)
    if shown.height < table.rows.height:
        shown_of = f"{fmt.count(shown.height)} of {fmt.count(table.rows.height)} rows; --limit 0 shows all"
        screen.print(text.Text(shown_of, style="dim"))
    if absent := [column.title for place, column in enumerate(table.columns) if place not in kept]:
        screen.print(text.Text(f"not shown in {screen.width} columns: {', '.join(absent)}", style="dim"))


def _fitting(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, order: str | None = None
) -> list[int]:
    """The places of the columns that fit the width; text may be folded, numbers may not; the first always stays.

    What a table is about goes last: the columns that tell its rows apart, the one by which they stand (`order`), its
    change, its first time, and its share. Columns in which nothing is known go first.
    """
    from rich.cells import cell_len

    def needed(place: int) -> int:
        column = columns[place]
        natural = max(cell_len(column.title), *(cell_len(row[place]) for row in rows))
        return (natural if fmt.is_numeric(column.kind) else min(natural, _LEAST_TEXT)) + _GAP

    telling = 0
    while telling < min(_TELLING, len(columns) - 1) and len({row[: telling + 1] for row in map(tuple, rows)}) < len(
        rows
    ):
        telling += 1
    names = [place for place in range(1, telling + 1) if not fmt.is_numeric(columns[place].kind)]
    about = [next((place for place, column in enumerate(columns) if is_it(column)), 0) for is_it in _ABOUT]
    left = width - needed(0)
    kept = [0]
    nothing = {place for place in range(len(columns)) if all(row[place] == fmt.MISSING for row in rows)}
    by = [place for place, column in enumerate(columns) if column.name == order]
    usual = [place for place in (*names, *by, *about, *range(len(columns))) if place not in nothing]
    for place in dict.fromkeys([*usual, *sorted(nothing)]):
        if place and (left := left - needed(place)) < 0:
            break
        if place:
            kept.append(place)
    return sorted(kept)


def _style(cell: str, column: Column) -> str:
    return _STYLES.get(cell, "") if column.name == "severity" else ""


def print_prose(lines: Iterable[str], stream: TextIO) -> None:
    """Sentences, each on lines of its own; on a terminal wrapped between words, with what matters in colour."""
    width = width_of(stream)
    if width is None:
        stream.write("".join(f"{line}\n" for line in lines))
        return
    screen = _console(stream)
    for line in lines:
        screen.print(_styled("\n".join(wrapped(line, width)), line), soft_wrap=True)


def wrapped(line: str, width: int, indent: int | None = None) -> list[str]:
    """A line in pieces that fit the width, broken between words and never between a number and its unit.

    Args:
        line: the text; what stands before its first sign stays there.
        width: columns; a word that is longer than a line stays whole.
        indent: of the further pieces; None for that of the first, and of a numbered one for that behind its number.

    A comment stays one in each of its pieces, and that behind a command which leaves no room goes below it, so that
    what is copied runs.
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


def _styled(shown: str, line: str) -> Text:
    from rich.text import Text

    text = Text(shown)
    for pattern, style in _BEGINS:
        if (found := pattern.match(line)) is not None:
            text.stylize(style, 0, min(found.end(), len(shown)))
            break
    return text


def print_brief(lines: Iterable[Line], stream: TextIO) -> None:
    """The answer: labels on the left, what they tell on the right, code on lines of its own, ready to be copied."""
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
        sentence = len(wrapped(f"{line.label:<{_LABEL}}{line.text}", width, _LABEL)) if line.text else 1
        for place, row in enumerate(rest, start=1):
            screen.print(Text(row, style=style if place < sentence else "cyan"), soft_wrap=True)


def brief_text(lines: Iterable[Line], width: int | None = None) -> str:
    """The same as plain text, for a file or a program; of a width, where one is given."""
    return "".join(f"{row}\n" for line in lines for row in _rows(line, width))


def _commands(code: Iterable[str], width: int | None) -> Iterator[str]:
    """Commands with what each answers behind it; below it where one of them would not fit into a row."""
    given = list(code)
    if width is None or all(_LABEL + len(each) <= width for each in given):
        yield from given
        return
    for each in given:
        command, mark, why = each.partition(_COMMENT)
        yield command.rstrip()
        if mark:
            yield from (_COMMENT + piece.strip() for piece in wrapped(why, width - _LABEL - len(_COMMENT)))


def _rows(line: Line, width: int | None) -> Iterator[str]:
    """A line as rows: its text, then its code. What is to be copied whole, a command, is never broken."""
    code = list(line.code if line.text else _commands(line.code, width))
    margin = " " * _LABEL
    text = line.text or (code.pop(0) if code else "")
    first = f"{line.label:<{_LABEL}}{text}"
    yield from [first] if width is None or not line.text else wrapped(first, width, _LABEL)
    for each in code:
        whole = width is None or not line.text
        yield from [margin + each] if whole else wrapped(margin + each, width or 0, _LABEL + 2)
