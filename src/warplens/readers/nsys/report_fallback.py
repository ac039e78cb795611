"""Which way a report is read: by this package's own reader, or, where that does not know it, by an installed `nsys`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from warplens.profile import Note, NoteLevel, Trace

#: Copying and unpacking files gives them times in any order, some seconds apart; a report that was recorded again is
#: minutes younger than the export of the earlier one.
_AGE_S = 60.0

_EXPORTS, _REPORTS = (".sqlite",), (".nsys-rep", ".qdrep")


def read_nsys_rep(
    path: Path, known_as: Path, report: Callable[[str], None], launch_configuration: bool = True
) -> Trace:
    """The trace that a report of Nsight Systems holds; a note says so where an installed nsys had to convert it.

    Args:
        path: the report on disk.
        known_as: the file that the user named; `path` may be unpacked from it.
        report: told in a few words what is being done.
        launch_configuration: whether to read how kernels were launched.

    Raises:
        UnreadableInputError: the report is damaged; or it is stored in a way that only nsys knows, and there is no nsys
            that can convert it.
    """
    from warplens.readers.nsys.report import read_nsys_report
    from warplens.readers.nsys.report_container import NotUnderstoodError

    try:
        return read_nsys_report(path, known_as, report, launch_configuration)
    except NotUnderstoodError as error:
        reason = error.reason
    from warplens.readers.nsys.conversion import converted
    from warplens.readers.nsys.export import read_nsys_sqlite

    report(f"{known_as.name}: {reason}")
    trace = read_nsys_sqlite(converted(path, known_as, report), known_as, report, launch_configuration)
    text = f"The report was converted by the installed nsys, because {reason}."
    note = Note("converted-report", NoteLevel.INFO, text, None)
    return replace(trace, capture=replace(trace.capture, notes=(*trace.capture.notes, note)))


def with_note_on_age(trace: Trace, path: Path) -> Trace:
    """The trace, with a note where the export beside a report is older than it, and so of an earlier recording.

    Args:
        trace: what was read.
        path: the file that the user named, a report or an export; others are left as they are.
    """
    if path.suffix in _EXPORTS:
        exports, reports = [path], [path.with_suffix(suffix) for suffix in _REPORTS]
    elif path.suffix in _REPORTS:
        exports, reports = [path.with_suffix(suffix) for suffix in _EXPORTS], [path]
    else:
        return trace
    export, report = _written(exports), _written(reports)
    if export is None or report is None or export + _AGE_S >= report:
        return trace
    if path.suffix in _EXPORTS:
        text = f"The report beside it ({path.stem}.nsys-rep) is newer than this export: it is another recording."
        note = Note("older-export", NoteLevel.WARNING, text, "Give the report itself, or export it again")
    else:
        text = f"The export beside it ({path.stem}.sqlite) is older than this report: it is of another recording."
        note = Note("older-export", NoteLevel.INFO, text, "Remove the export, or make it again")
    return replace(trace, capture=replace(trace.capture, notes=(*trace.capture.notes, note)))


def _written(files: list[Path]) -> float | None:
    """When the newest of these files was written; None if none of them is there."""
    try:
        return max((file.stat().st_mtime for file in files if file.is_file()), default=None)
    except OSError:
        return None
