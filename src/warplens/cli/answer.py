"""Selects the window of a profile by path, and prints answers in each of the four formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from mimetypes import MimeTypes
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window, time_ns
from warplens.answers.inputs import Selection, only_profile, selected
from warplens.cli.memory import REPORT, TABLE, share_that_fits
from warplens.cli.options import TABLE_ROWS, Format
from warplens.cli.process import State, answering, note, one_line, progress, reuse_freed_memory
from warplens.errors import UsageError
from warplens.profile import Capture, Note, NoteLevel
from warplens.readers import read
from warplens.report import text as fmt
from warplens.writing import harmless

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from warplens.answers.results import Answer as FromPython
    from warplens.report.brief import Line
    from warplens.report.document import Document, Table
    from warplens.report.terminal import Marked

_TAGS = {NoteLevel.BLOCKING: "missing", NoteLevel.WARNING: "caution", NoteLevel.INFO: "note"}


def head(selection: Selection) -> list[str]:
    """The first lines of an answer: the file with its recorder, and the window."""
    window = selection.window
    of_range = f", work launched inside {window.range_name!r}" if window.range_name is not None else ""
    description = f"{fmt.duration(window.duration_ns)}, {window.how}{of_range}"
    return [recorded_by(selection.timeline.trace.capture), f"window: {description}"]


def select(path: Path, window: str, range_name: str | None, *, launch_configuration: bool = False) -> Selection:
    """Read one profile, or the only one of a folder, and find the window in it.

    Grids and blocks of kernels (`launch_configuration`) take longer to read.

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


def with_measured_step(timeline: Timeline, window: Window, step_time: str | None) -> Timeline:
    """The profile, with the host's pace of a step time that was measured without a profiler (`--step-time`), if any.

    Raises:
        UsageError: it is no time with a unit, or cannot be that of the steps of the window.
    """
    if step_time is None:
        return timeline
    if step_time.strip()[-1:].isdigit():
        raise UsageError(f"--step-time: {step_time!r} has no unit (use ns, us, ms or s, for example 12.5ms)")
    from warplens.diagnosis.unprofiled import with_step_time

    return with_step_time(timeline, window, time_ns(step_time, "--step-time"))


def recorded_by(capture: Capture, *, devices: bool = False) -> str:
    """A file in one line: its name, the tool that recorded it, and with `devices` the GPUs."""
    parts = (capture.source, fmt.recorded_with(capture), fmt.gpu_names(capture) if devices else "")
    return " · ".join(part for part in parts if part)


def checked_folder(folder: Path) -> Path:
    """The folder, if files can be written to it; it need not exist. Checked before minutes of analysis.

    Raises:
        UsageError: it is a file, named like one, or `-`, or it is not writable.
    """
    if str(folder) == "-":
        raise UsageError("reports are not written to standard output: name a folder with --output")
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise UsageError(f"{existing.name} is a file, but reports are written to a folder: name another with --output")
    if _names_file(folder):
        raise UsageError(f"{folder.name} names one file, but several are written: name a folder with --output")
    try:
        TemporaryFile(dir=existing).close()
    except OSError as error:
        raise UsageError(
            f"{folder}: nothing can be written there ({error.strerror}); name another folder with --output"
        ) from None
    return folder


def _names_file(path: Path) -> bool:
    """Whether a path that is no folder has the suffix of a file, such as `.html` or `.pdf`."""
    from warplens.report.write import form_named

    # The suffixes that Python knows, not those of the machine.
    return form_named(path) is not None or (not path.is_dir() and MimeTypes().guess_type(path.name)[0] is not None)


def checked_target(output: Path, inputs: Iterable[Path] = (), form: Format = "table") -> Path:
    """The folder or single file (by its suffix) for documents, if it can be written.

    Raises:
        UsageError: it is not writable, or one of the input files, or not of the format that was asked for.
    """
    from warplens.report.write import REPORT_FORMATS, form_named

    named = form_named(output)
    if form not in ("table", named):
        raise UsageError(f"--output writes {named or 'html, md and json'}, but --format says {form}: give one of them")
    if named is None:
        if _names_file(output):
            suffixes = ", ".join(f".{form}" for form in REPORT_FORMATS)
            raise UsageError(f"{output}: a file is written as {suffixes}: name such a file, or a folder")
        return checked_folder(output)
    _refuse_inputs(output, inputs)
    checked_folder(output.parent)
    return output


def _refuse_inputs(output: Path, inputs: Iterable[Path]) -> None:
    if output.exists() and any(path.exists() and output.samefile(path) for path in inputs):
        raise UsageError(f"{output.name} is read, and would be written over: name another with --output")


def checked_file(output: Path, inputs: Iterable[Path] = ()) -> Path:
    """The file, if its folder exists. Checked before an hour of measuring.

    Raises:
        UsageError: it is a folder, or `-`, or one of the input files, or its folder does not exist.
    """
    _refuse_inputs(output, inputs)
    if str(output) == "-":
        raise UsageError("this is not written to standard output: name a file with --output")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UsageError(f"{output.name}: the output must be a file in a folder that exists")
    return output


@dataclass(frozen=True)
class Part:
    """The displayed content of an answer about one source."""

    head: Sequence[str] = ()  #: lines on source and window; the first is the heading in Markdown
    verdict: Sequence[str] = ()
    lines: Sequence[str] = ()  #: further sentences
    notes: Sequence[str] = ()  #: limits of the answer (`note_lines`)
    #: preformatted passages: lines for a terminal, and as Markdown
    entries: Sequence[tuple[Sequence[str | Marked], str]] = ()
    tables: Sequence[Table] = ()  #: with their limits for display
    closing: Sequence[str] = ()  #: sentences below the tables
    command: str | None = None  #: a command line to copy, at the end


@dataclass(frozen=True)
class Answer:
    """The answer of a command, for all formats."""

    command: str  #: name of the command and of the JSON schema
    source: str | Sequence[str] | None  #: file names without folders
    parts: Sequence[Part]  #: the displayed content, one part per source
    rows: pl.DataFrame  #: exact rows for CSV
    data: Callable[[], Mapping[str, Any]]  #: makes `data` of the JSON, exact
    warnings: Sequence[Note | str] = ()  #: limits of the answer, for the JSON

    def json(self) -> bytes:
        """The answer as one JSON object."""
        from warplens.report.jsonout import envelope

        return envelope(self.command, self.source, self.data(), self.warnings)


def answered(answer: FromPython, part: Part, most: int | None) -> Answer:
    """The answer of the Python interface as that of its command, with notes and at most so many rows of its tables."""
    rows = answer.frame if most is None else answer.frame.head(most)
    part = replace(part, notes=note_lines(answer.notes), tables=limited(answer.tables, most))
    source = answer.source if isinstance(answer.source, str) else list(answer.source)
    return Answer(answer.command, source, [part], rows, answer.data, [*answer.notes, *answer.problems])


def most_rows(form: Format, limit: int | None) -> int | None:
    """The number of rows to print, None for all: `limit` (0 for all), or the default of the format."""
    if limit is None:
        limit = TABLE_ROWS if form in ("table", "md") else 0
    return limit or None


def limited(tables: Iterable[Table], most: int | None) -> tuple[Table, ...]:
    """The tables limited to this number of rows, except those without a limit, whose rows add up to a total."""
    return tuple(table if table.limit is None else replace(table, limit=most) for table in tables)


def note_lines(notes: Iterable[Note], *, all_of_them: bool = False) -> list[str]:
    """Notes that limit an answer, one line each; notes of level INFO only with `all_of_them`."""
    return [
        f"{_TAGS[note.level]}: {note.text}" + (f" ({note.remedy})" if note.remedy else "")
        for note in notes
        if all_of_them or note.level is not NoteLevel.INFO
    ]


def emit(answer: Answer, form: Format) -> None:
    """Print the answer to standard output; notes go to standard error if the format cannot hold them."""
    if form == "json":
        print_json(answer.json())
    elif form == "csv":
        for part in answer.parts:
            for line in (*part.head, *part.verdict, *part.lines, *part.notes):
                note(line)
        with answering() as stdout:
            stdout.write(harmless(answer.rows).write_csv())
    else:
        for part in answer.parts:
            (_emit_markdown if form == "md" else _emit_text)(part)


def give(answer: Answer, form: Format, target: Path | None, document: Callable[[], Document]) -> None:
    """Print the answer, or write it as a document and JSON to the target, a folder or one file."""
    if target is None:
        emit(answer, form)
        return
    from warplens.report.write import write_document

    with progress("writing"):
        written = write_document(document(), target, ("html", "md", "json"), answer.command, answer.json)
    print_lines(written)


def print_json(text: bytes) -> None:
    """Print one JSON object and nothing else."""
    with answering() as stdout:
        stdout.flush()
        stdout.buffer.write(text + b"\n")


def print_lines(lines: Iterable[object]) -> None:
    """Print lines of an answer, such as the files that were written."""
    from warplens.report.terminal import print_prose

    with answering() as stdout:
        print_prose(map(one_line, lines), stdout)


def print_brief(*parts: Sequence[Line] | Table) -> None:
    """Print lines of an answer with their labels, and tables, in colour on a terminal."""
    from warplens.report.document import Table
    from warplens.report.terminal import print_labelled, print_table

    with answering() as stdout:
        for part in parts:
            print_table(part, stdout) if isinstance(part, Table) else print_labelled(part, stdout)


def _emit_text(part: Part) -> None:
    """Writes a part of an answer as text: head and notes apart, then verdict, passages, tables and what comes next."""
    from warplens.report.terminal import print_prose, print_table

    print_lines(part.head)
    for line in part.notes:
        note(line)
    passages: list[Sequence[str | Marked]] = [[one_line(line) for line in (*part.verdict, *part.lines)]]
    passages += [lines for lines, _ in part.entries]
    with answering() as stdout:
        for passage in filter(None, passages):
            stdout.write("\n")
            print_prose(passage, stdout)
        for table in part.tables:
            stdout.write("\n")
            print_table(table, stdout)
        if part.closing:
            stdout.write("\n")
            print_prose(map(one_line, part.closing), stdout)
        if part.command is not None:
            stdout.write(f"    {one_line(part.command)}\n")


def _emit_markdown(part: Part) -> None:
    from warplens.report.markdown import escaped, markdown_table

    paragraphs = [f"## {escaped(part.head[0])}", *map(escaped, part.head[1:])] if part.head else []
    paragraphs += [f"**{escaped(line)}**" for line in part.verdict] + [escaped(line) for line in part.lines]
    paragraphs += [f"> {escaped(line)}" for line in part.notes] + [markdown for _, markdown in part.entries]
    with answering() as stdout:
        stdout.write("".join(f"{paragraph}\n\n" for paragraph in paragraphs))
        for table in part.tables:
            stdout.write(f"**{escaped(table.caption)}**\n\n{markdown_table(table)}\n\n")
        stdout.write("".join(f"{escaped(line)}\n\n" for line in part.closing))
        if part.command is not None:
            stdout.write(f"    {one_line(part.command)}\n")
