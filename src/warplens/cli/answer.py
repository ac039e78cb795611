"""A table as the answer to a command, in each of the four formats."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from warplens.cli.edge import answering
from warplens.cli.messages import note, one_line
from warplens.cli.options import TABLE_ROWS, Format
from warplens.profile import NoteLevel
from warplens.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl

    from warplens.cli.selection import Selection
    from warplens.report.document import Table

__all__ = ["Answer", "most_rows", "show"]


@dataclass(frozen=True)
class Answer:
    """What a command found.

    Attributes:
        command: its name, which names the JSON schema as well.
        selection: the profile and window that the numbers speak of.
        rows: every number, exact; `data.rows` of the JSON, and the CSV.
        tables: the same for people, one or several.
        facts: sentences that belong above the table, coverage among them.
        data: what else the JSON holds beside `window` and `rows`.
    """

    command: str
    selection: Selection
    rows: pl.DataFrame
    tables: tuple[Table, ...]
    facts: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


def most_rows(form: Format, limit: int | None) -> int | None:
    """How many rows to print; None for all.

    Args:
        form: the format, which decides where the user did not.
        limit: what the user asked for; 0 for all, None for nothing.
    """
    if limit is None:
        limit = TABLE_ROWS if form in (Format.TABLE, Format.MD) else 0
    return limit or None


def show(answer: Answer, form: Format, limit: int | None) -> None:
    """Print the answer to standard output; notes go to standard error, unless the format has a place for them.

    Args:
        answer: what to print.
        form: how.
        limit: the most rows; 0 for all, None for what suits the format.
    """
    most = most_rows(form, limit)
    if form is Format.JSON:
        _show_json(answer, most)
    elif form is Format.CSV:
        _to_stderr([*_head(answer), *_note_lines(answer)])
        with answering() as stdout:
            stdout.write((answer.rows if most is None else answer.rows.head(most)).write_csv())
    elif form is Format.MD:
        _show_markdown(answer, most)
    else:
        _show_for_people(answer, most)


def _show_json(answer: Answer, most: int | None) -> None:
    from warplens.report.jsonout import envelope, window_data  # noqa: PLC0415  the other formats do without

    rows = answer.rows if most is None else answer.rows.head(most)
    data = {"window": window_data(answer.selection.window), **answer.data, "rows": rows}
    text = envelope(answer.command, answer.selection.timeline.trace.capture.source, data, answer.selection.notes)
    with answering() as stdout:
        stdout.flush()
        stdout.buffer.write(text + b"\n")


def _show_markdown(answer: Answer, most: int | None) -> None:
    from warplens.report.markdown import escaped  # noqa: PLC0415  the other formats do without
    from warplens.report.terminal import print_table  # noqa: PLC0415

    source, *rest = _head(answer)
    with answering() as stdout:
        lines = [f"## {escaped(source)}", *map(escaped, rest), *(f"> {escaped(line)}" for line in _note_lines(answer))]
        stdout.write("\n\n".join(lines) + "\n\n")
        for table in answer.tables:
            stdout.write(f"**{escaped(table.caption)}**\n\n")
            print_table(replace(table, limit=most), "md", stdout)
            stdout.write("\n")


def _show_for_people(answer: Answer, most: int | None) -> None:
    from warplens.report.terminal import print_table  # noqa: PLC0415  Rich is for terminals alone

    with answering() as stdout:
        stdout.write("".join(f"{one_line(line)}\n" for line in _head(answer)))
        stdout.flush()
        _to_stderr(_note_lines(answer))
        for table in answer.tables:
            stdout.write("\n")
            print_table(replace(table, limit=most), "table", stdout)


def _head(answer: Answer) -> Iterator[str]:
    capture, window = answer.selection.timeline.trace.capture, answer.selection.window
    tool = f"{capture.tool} {capture.tool_version or ''}".strip()
    yield f"{capture.source} · {tool}"
    inside = f", work launched inside {window.range_name!r}" if window.range_name is not None else ""
    yield f"window: {fmt.duration(window.duration_ns)}, {window.how}{inside}"
    yield from answer.facts


def _note_lines(answer: Answer) -> Iterator[str]:
    """The notes that limit the answer; what is merely good to know stands in the report."""
    for item in answer.selection.notes:
        if item.level is not NoteLevel.INFO:
            tag = "missing" if item.level is NoteLevel.BLOCKING else "caution"
            yield f"{tag}: {item.text}" + (f" ({item.remedy})" if item.remedy else "")


def _to_stderr(lines: Any) -> None:
    for line in lines:
        note(line)
