"""What `warplens compare` found, printed in each of the four formats or written as a document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from warplens.cli.answer import most_rows
from warplens.cli.edge import answering
from warplens.cli.messages import note, one_line
from warplens.cli.options import Format
from warplens.profile import NoteLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from warplens.profile import Note
    from warplens.report.document import Document, Table

__all__ = ["Outcome", "show_outcome", "write_outcome"]


@dataclass(frozen=True)
class Outcome:
    """A finished comparison, of whatever the sides are.

    Attributes:
        sources: names of the files.
        head: what was compared, a line each.
        answer: the verdict, a line each.
        notes: what limits the comparison.
        tables: what a terminal shows.
        rows: what CSV holds, exact.
        data: of the JSON, exact.
        document: makes the document; charts are drawn for it alone.
        gate: how the gate ended, a line each; () without a gate.
        failed: whether it failed.
    """

    sources: Sequence[str]
    head: Sequence[str]
    answer: Sequence[str]
    notes: Sequence[Note]
    tables: Sequence[Table]
    rows: pl.DataFrame
    data: Mapping[str, Any]
    document: Callable[[], Document]
    gate: Sequence[str] = ()
    failed: bool = False


def show_outcome(outcome: Outcome, form: Format, limit: int | None) -> None:
    """Print it to standard output; notes go to standard error, unless the format has a place for them."""
    most = most_rows(form, limit)
    if form is Format.JSON:
        text = _json(outcome)
        with answering() as stdout:
            stdout.flush()
            stdout.buffer.write(text + b"\n")
    elif form is Format.CSV:
        for line in (*outcome.head, *outcome.answer, *_note_lines(outcome.notes)):
            note(line)
        with answering() as stdout:
            stdout.write((outcome.rows if most is None else outcome.rows.head(most)).write_csv())
    elif form is Format.MD:
        _show_markdown(outcome, most)
    else:
        _show_for_people(outcome, most)


def write_outcome(outcome: Outcome, folder: Path) -> list[Path]:
    """Write `compare.html`, `compare.md` with its charts and `compare.json`; the files to open."""
    from warplens.report.write import write_document  # noqa: PLC0415  charts and pages are not small

    folder.mkdir(parents=True, exist_ok=True)
    written = write_document(outcome.document(), folder, ("html", "md"), "compare")
    path = folder / "compare.json"
    path.write_bytes(_json(outcome))
    return [*written, path]


def _json(outcome: Outcome) -> bytes:
    from warplens.report.jsonout import envelope  # noqa: PLC0415  the other formats do without

    return envelope("compare", list(outcome.sources), outcome.data, outcome.notes)


def _show_markdown(outcome: Outcome, most: int | None) -> None:
    from warplens.report.markdown import escaped  # noqa: PLC0415  the other formats do without
    from warplens.report.terminal import print_table  # noqa: PLC0415

    title, *rest = outcome.head
    lines = [f"## {escaped(title)}", *map(escaped, rest)]
    lines += [f"**{escaped(line)}**" for line in outcome.answer]
    lines += [f"> {escaped(line)}" for line in _note_lines(outcome.notes)]
    with answering() as stdout:
        stdout.write("\n\n".join(lines) + "\n\n")
        for table in outcome.tables:
            stdout.write(f"**{escaped(table.caption)}**\n\n")
            print_table(_limited(table, most), "md", stdout)
            stdout.write("\n")


def _show_for_people(outcome: Outcome, most: int | None) -> None:
    from warplens.report.terminal import print_table  # noqa: PLC0415  Rich is for terminals alone

    with answering() as stdout:
        stdout.write("".join(f"{one_line(line)}\n" for line in outcome.head))
        stdout.flush()
        for line in _note_lines(outcome.notes):
            note(line)
        stdout.write("\n" + "".join(f"{one_line(line)}\n" for line in outcome.answer))
        for table in outcome.tables:
            stdout.write("\n")
            print_table(_limited(table, most), "table", stdout)


def _limited(table: Table, most: int | None) -> Table:
    """A table without a limit of its own is shown whole: its rows add up to something."""
    return table if table.limit is None else replace(table, limit=most)


def _note_lines(notes: Sequence[Note]) -> Iterator[str]:
    """The notes that limit the answer; what is merely good to know stands in the document."""
    for item in notes:
        if item.level is not NoteLevel.INFO:
            tag = "missing" if item.level is NoteLevel.BLOCKING else "caution"
            yield f"{tag}: {item.text}" + (f" ({item.remedy})" if item.remedy else "")
