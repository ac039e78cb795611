"""From a path to the window in question, and from an answer to standard output in each of the four formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from warplens.analysis.timeline import Timeline
from warplens.answers.given import Selection, only_profile, selected
from warplens.cli.edge import State, answering, note, one_line, progress, reuse_freed_memory
from warplens.cli.memory import REPORT, TABLE, share_that_fits
from warplens.cli.options import TABLE_ROWS, Format
from warplens.errors import UsageError
from warplens.profile import Capture, Note, NoteLevel
from warplens.readers import read
from warplens.report import text as fmt
from warplens.writing import harmless

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from warplens.answers.results import Answer as FromPython
    from warplens.report.document import Document, Table

_TAGS = {NoteLevel.BLOCKING: "missing", NoteLevel.WARNING: "caution", NoteLevel.INFO: "note"}


def head(selection: Selection) -> list[str]:
    """The file with its recorder, and the window."""
    window = selection.window
    inside = f", work launched inside {window.range_name!r}" if window.range_name is not None else ""
    length = f"{fmt.duration(window.duration_ns)}, {window.how}{inside}"
    return [recorded_by(selection.timeline.trace.capture), f"window: {length}"]


def select(path: Path, window: str, range_name: str | None, *, launch_configuration: bool = False) -> Selection:
    """Read the one profile that the path names or holds, and find the window in it.

    Args:
        path: a profile, or a folder that holds exactly one.
        window: as `Timeline.window` understands it.
        range_name: only work launched inside ranges of this name; None for all.
        launch_configuration: whether to read grids and blocks of kernels, which takes longer.

    Raises:
        UsageError: the folder holds several profiles, the window lies outside the profile, or there is no such range.
        UnreadableInputError: there is no readable profile.
    """
    profile = only_profile(path)
    peak = REPORT if launch_configuration else TABLE
    share = share_that_fits(profile, peak, steady=window == "steady" and range_name is None)
    reuse_freed_memory([profile])
    with progress(f"reading {profile.name}") as tell:
        trace = read(profile, progress=tell, launch_configuration=launch_configuration, share=share, gpu=State.gpu)
        timeline = Timeline(trace)
        tell(f"analysing {profile.name}")
        return selected(timeline, window, range_name)


def recorded_by(capture: Capture, *, devices: bool = False) -> str:
    """A file in one line: its name, the tool that wrote it, and with `devices` the GPUs."""
    gpus = ", ".join(dict.fromkeys(device.name for device in capture.devices)) if devices else ""
    parts = (capture.source, f"{capture.tool} {capture.tool_version or ''}".strip(), gpus)
    return " · ".join(part for part in parts if part)


def checked_folder(folder: Path) -> Path:
    """The folder, if files can be written to it; it need not exist.

    Raises:
        UsageError: it is a file or named like one, or it may not be written to. Better told now than after minutes of
            analysis.
    """
    from warplens.report.write import form_named

    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise UsageError(f"{existing.name} is a file, but reports are written to a folder: name another with --output")
    if form_named(folder) is not None:
        raise UsageError(f"{folder.name} names one file, but several are written: name a folder with --output")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(
            f"{existing.name or existing}: no permission to write there; name another folder with --output"
        )
    return folder


def checked_target(output: Path, inputs: Iterable[Path] = ()) -> Path:
    """The same of a document that is written to a folder, or to one file where its suffix names the form.

    Raises:
        UsageError: it is one of the files that are read, too.
    """
    from warplens.report.write import form_named

    if form_named(output) is None:
        return checked_folder(output)
    if output.exists() and any(each.exists() and output.samefile(each) for each in inputs):
        raise UsageError(f"{output.name} is read, and would be written over: name another with --output")
    checked_folder(output.parent)
    return output


def checked_file(output: Path) -> Path:
    """The file, if its folder exists: better told now than after an hour of measuring."""
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UsageError(f"{output.name}: the output must be a file in a folder that exists")
    return output


@dataclass(frozen=True)
class Part:
    """What an answer says of one source, for people."""

    head: Sequence[str] = ()  #: what is answered, a line each; the first is the heading in Markdown
    verdict: Sequence[str] = ()
    lines: Sequence[str] = ()  #: further sentences
    notes: Sequence[str] = ()  #: what limits the answer (`note_lines`)
    entries: Sequence[tuple[str, str]] = ()  #: passages that are laid out already: for a terminal, and as Markdown
    tables: Sequence[Table] = ()  #: with the limits that they are shown with
    closing: Sequence[str] = ()  #: sentences below the tables
    command: str | None = None  #: a command line to copy, at the end


@dataclass(frozen=True)
class Answer:
    """What a command found."""

    command: str  #: its name, which names the JSON schema as well
    source: str | Sequence[str] | None  #: where it comes from: names of files without folders
    parts: Sequence[Part]  #: the same for people; several where there are several sources
    rows: pl.DataFrame  #: what CSV holds, exact
    data: Callable[[], Mapping[str, Any]]  #: makes `data` of the JSON, exact
    warnings: Sequence[Note | str] = field(default=())  #: what limits the answer, for the JSON

    def json(self) -> bytes:
        """The answer as one JSON object."""
        from warplens.report.jsonout import envelope

        return envelope(self.command, self.source, self.data(), self.warnings)


def answered(found: FromPython, part: Part, most: int | None) -> Answer:
    """What Python answers as the answer of its command.

    Args:
        found: the answer.
        part: what is said beside its notes and tables.
        most: rows to print, None for all.
    """
    rows = found.frame if most is None else found.frame.head(most)
    part = replace(part, notes=note_lines(found.notes), tables=limited(found.tables, most))
    source = found.source if isinstance(found.source, str) else list(found.source)
    return Answer(found.command, source, [part], rows, found.data, [*found.notes, *found.problems])


def most_rows(form: Format, limit: int | None) -> int | None:
    """How many rows to print, None for all: `limit`, 0 being all, or where there is none what suits the format."""
    if limit is None:
        limit = TABLE_ROWS if form in (Format.TABLE, Format.MD) else 0
    return limit or None


def limited(tables: Iterable[Table], most: int | None) -> tuple[Table, ...]:
    """The tables with so many rows; one without a limit of its own is shown whole, for its rows add up to something."""
    return tuple(table if table.limit is None else replace(table, limit=most) for table in tables)


def note_lines(notes: Iterable[Note], *, all_of_them: bool = False) -> list[str]:
    """Notes that limit an answer, a line each; what is merely good to know stands in reports, or `all_of_them`."""
    return [
        f"{_TAGS[item.level]}: {item.text}" + (f" ({item.remedy})" if item.remedy else "")
        for item in notes
        if all_of_them or item.level is not NoteLevel.INFO
    ]


def emit(answer: Answer, form: Format) -> None:
    """Print the answer to standard output; notes go to standard error, unless the format has a place for them."""
    if form is Format.JSON:
        print_json(answer.json())
    elif form is Format.CSV:
        for part in answer.parts:
            for line in (*part.head, *part.verdict, *part.lines, *part.notes):
                note(line)
        with answering() as stdout:
            stdout.write(harmless(answer.rows).write_csv())
    else:
        for part in answer.parts:
            (_emit_markdown if form is Format.MD else _emit_text)(part)


def give(answer: Answer, form: Format, target: Path | None, document: Callable[[], Document]) -> None:
    """Print the answer, or write it as a document and JSON to the folder, or the one file, that the user named."""
    if target is None:
        emit(answer, form)
        return
    from warplens.report.write import write_document

    with progress("writing"):
        written = write_document(document(), target, ("html", "md", "json"), answer.command, answer.json)
    print_lines(written)


def print_json(text: bytes) -> None:
    """One JSON object and nothing else."""
    with answering() as stdout:
        stdout.flush()
        stdout.buffer.write(text + b"\n")


def print_lines(lines: Iterable[object]) -> None:
    """Lines of an answer, such as the files that were written."""
    from warplens.report.terminal import print_prose

    with answering() as stdout:
        print_prose(map(one_line, lines), stdout)


def _emit_text(part: Part) -> None:
    from warplens.report.terminal import print_prose, print_table

    print_lines(part.head)
    for line in part.notes:
        note(line)
    passages = [[one_line(line) for line in (*part.verdict, *part.lines)]]
    passages += [text.split("\n") for text, _ in part.entries]
    with answering() as stdout:
        for passage in filter(None, passages):
            stdout.write("\n")
            print_prose(passage, stdout)
        for table in part.tables:
            stdout.write("\n")
            print_table(table, "table", stdout)
        if part.closing:
            stdout.write("\n")
            print_prose(map(one_line, part.closing), stdout)
        if part.command is not None:
            stdout.write(f"    {one_line(part.command)}\n")


def _emit_markdown(part: Part) -> None:
    from warplens.report.markdown import escaped
    from warplens.report.terminal import print_table

    paragraphs = [f"## {escaped(part.head[0])}", *map(escaped, part.head[1:])] if part.head else []
    paragraphs += [f"**{escaped(line)}**" for line in part.verdict] + [escaped(line) for line in part.lines]
    paragraphs += [f"> {escaped(line)}" for line in part.notes] + [markdown for _, markdown in part.entries]
    with answering() as stdout:
        stdout.write("".join(f"{paragraph}\n\n" for paragraph in paragraphs))
        for table in part.tables:
            stdout.write(f"**{escaped(table.caption)}**\n\n")
            print_table(table, "md", stdout)
            stdout.write("\n")
        stdout.write("".join(f"{escaped(line)}\n\n" for line in part.closing))
        if part.command is not None:
            stdout.write(f"    {one_line(part.command)}\n")
