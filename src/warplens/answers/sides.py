"""The two sides of a comparison of traces: each file with its window, checked for what cannot be compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from warplens.analysis.quality import quality_notes
from warplens.analysis.timeline import Timeline
from warplens.compare.difference.host import Side, step_samples
from warplens.errors import MissingDataError, UsageError
from warplens.profile import Note, NoteLevel
from warplens.report.comparison.numbers import TraceFiles

#: So many pieces of work do not begin and end at the same nanoseconds by chance.
_COINCIDENCE: Final = 20


def trace_side(name: str, timelines: Iterable[Timeline], window: str, range_name: str | None) -> TraceFiles:
    """One side: every repeat with its window. Grids of kernels must have been read, since kernels are matched by them.

    Args:
        name: what people call the side.
        timelines: its repeats, read one by one as they are asked for.
        window, range_name: part of each, as `Timeline.window` takes it.

    Raises:
        UsageError: a window lies outside of a trace, or a range is not in it; the message names the file.
        MissingDataError: a step, or the window without steps, takes no time.
    """
    files, notes = [], []
    for timeline in timelines:
        source = timeline.trace.capture.source
        try:
            selected = timeline.window(window, range_name)
        except (UsageError, MissingDataError) as error:
            raise type(error)(f"{source}: {error}") from error
        side = Side(source, timeline, selected)
        _check_times(side, source)
        files.append(side)
        notes.append(quality_notes(timeline, selected))
    if len(files) == 1:
        files = [replace(files[0], name=name)]
    return TraceFiles.of(name, files, notes)


def both_sides(baseline: TraceFiles, variant: TraceFiles, *, same_file: bool = False) -> tuple[TraceFiles, TraceFiles]:
    """The sides, with a note where both hold the same recording."""
    if same_file or any(_same_recording(before, after) for before in baseline.files for after in variant.files):
        text = "both sides are the same file"
        note = Note("same-file", NoteLevel.WARNING, text, "Record the two sides separately")
        variant = replace(variant, notes=((*variant.notes[0], note), *variant.notes[1:]))
    return baseline, variant


def _same_recording(before: Side, after: Side) -> bool:
    """Whether one file is a copy of the other: no two runs take the same nanoseconds for everything."""
    times = [side.timeline.work.select("start_ns", "end_ns") for side in (before, after)]
    return times[0].height > _COINCIDENCE and times[0].equals(times[1])


def _check_times(side: Side, source: str) -> None:
    """Refuse what has no length, in words that name the file.

    Raises:
        MissingDataError: a step, or the window without steps, takes no time.
    """
    try:
        step_samples(side)
    except UsageError as error:
        told = error
    else:
        return
    if side.window.range_name is not None:
        text = f"{source}: no GPU work of range {side.window.range_name!r} is in its window"
        raise MissingDataError(text) from told
    if side.has_steps:
        raise MissingDataError(f"{source}: a step in its window takes no time: choose another window (--window)")
    raise MissingDataError(f"{source}: nothing in it takes any time, so that there is nothing to compare")
