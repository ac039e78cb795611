"""Inputs of the Python interface: a path, a folder, a trace or a live profiler; anything else is a `TypeError`.

Also the two sides of a comparison of traces, each file with its window, checked for comparability.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import ne
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeGuard, runtime_checkable
from weakref import WeakKeyDictionary

from warplens import readers
from warplens.analysis.quality import quality_notes
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window, span_text
from warplens.errors import MissingDataError, UsageError
from warplens.profile import Note, NoteLevel, Trace
from warplens.profile.counters import KernelCounters
from warplens.profile.peaks import with_gpu
from warplens.readers import discover, read_counters
from warplens.readers.shipped import located

if TYPE_CHECKING:
    from warplens.compare.side import Side
    from warplens.report.comparison.numbers import TraceFiles

#: Profiles of a folder that are named in an error message.
_NAMED_PROFILES: Final = 3

#: Name of a live profile in answers.
_LIVE: Final = "torch.profiler"


@runtime_checkable
class LiveProfile(Protocol):
    """The part of `torch.profiler.profile`, after its `with` block, that is used here, without importing torch."""

    def export_chrome_trace(self, path: str) -> Any:
        """Write the recorded trace to a file."""


#: One profile in any supported form.
Profile: TypeAlias = "str | os.PathLike[str] | Trace | Timeline | LiveProfile"

#: One report of hardware counters.
Counters: TypeAlias = "str | os.PathLike[str] | KernelCounters"

_ACCEPTED: Final = "a path, a folder, a Trace, a Timeline or a torch.profiler.profile"

#: A profiler writes its trace only once, so the trace is kept for further calls.
_exported: WeakKeyDictionary[LiveProfile, Trace] = WeakKeyDictionary()


def is_path(value: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether this is a path rather than a profile."""
    return isinstance(value, (str, os.PathLike))


def read(
    profile: Profile,
    *,
    progress: Callable[[str], None] | None = None,
    launch_configuration: bool = True,
    gpu: str | None = None,
) -> Trace:
    """Read a profile: a file (also compressed), a folder with one, `demo:NAME`, or a live profiler.

    Args:
        profile: the profile; a `Trace` is returned unchanged.
        progress: receives the current activity in a few words.
        launch_configuration: whether to read grids, blocks, registers and shared memory of kernels. Without them the
            columns are null, and a large file is read a third faster.
        gpu: name of the GPU that it was recorded on (`H100 PCIe`, `MI300X`), for a profile that does not contain it.
            Its data sheet gives the roofs. All functions here accept the returned trace.

    Raises:
        TypeError: it is not a profile.
        UnreadableInputError: the file is missing, damaged, or not readable by this version.
        UsageError: a folder has several profiles, or the data sheet of the GPU is not known.
    """
    if is_path(profile):
        path = only_profile(profile)
        return readers.read(path, progress=progress, launch_configuration=launch_configuration, gpu=gpu)
    trace = timeline_of(profile, "read").trace
    return trace if gpu is None else with_gpu(trace, gpu)


def timeline_of(profile: Profile, function: str) -> Timeline:
    """The timeline of one profile.

    Args:
        profile: the profile.
        function: name of the called function, for error messages.

    Raises:
        TypeError: it is not a profile.
        UsageError: a folder has several profiles.
        UnreadableInputError: a file cannot be read.
    """
    if isinstance(profile, Timeline):
        return profile
    if isinstance(profile, Trace):
        return Timeline(profile)
    if is_path(profile):
        return Timeline(readers.read(only_profile(profile)))
    if _is_live(profile):
        return Timeline(_live(profile))
    raise _refusal(profile, function)


def one_of(profiles_given: Profile | Sequence[Profile], function: str) -> Profile | None:
    """The profile, if exactly one was given; None if several were.

    Raises:
        TypeError: an element is not a profile.
        UnreadableInputError: there is no such file.
    """
    if _is_one(profiles_given):
        if not _is_profile(profiles_given):
            raise _refusal(profiles_given, function)
        is_several = is_path(profiles_given) and len(discover([located(profiles_given)])) > 1
        return None if is_several else profiles_given  # type: ignore[return-value]
    profiles: list[Any] = list(profiles_given)  # type: ignore[arg-type]
    return one_of(profiles[0], function) if len(profiles) == 1 else None


def timelines_of(profiles_given: Profile | Sequence[Profile], function: str) -> list[Timeline]:
    """The timelines of one profile, of several in a sequence, or of all in a folder.

    Raises:
        TypeError: an element is not a profile.
        UsageError: the sequence is empty.
        UnreadableInputError: a file cannot be read.
    """
    profiles: list[Any] = [profiles_given] if _is_one(profiles_given) else list(profiles_given)  # type: ignore[arg-type]
    if not profiles:
        raise UsageError(f"warplens.{function}() was given no profile")
    for profile in profiles:  # before gigabytes are read
        if not _is_profile(profile):
            raise _refusal(profile, function)
    return [timeline for profile in profiles for timeline in _each(profile, function)]


def are_paths(value: Any) -> bool:
    """Whether this is a path, or a non-empty sequence of paths."""
    return is_path(value) or (isinstance(value, Sequence) and bool(value) and all(map(is_path, value)))


def paths_of(paths: Any) -> list[Path]:
    """The profiles at a path or at several paths; folders are searched.

    Raises:
        UnreadableInputError: there is no such file, or a folder has no profile.
    """
    return discover([located(paths)] if is_path(paths) else paths)


def counters_of(counters: Counters, function: str) -> KernelCounters:
    """The report of hardware counters, read if a path is given.

    Raises:
        TypeError: it is neither a path nor counters.
        UnreadableInputError: it cannot be read.
    """
    if isinstance(counters, KernelCounters):
        return counters
    if is_path(counters):
        return read_counters(located(counters))
    raise TypeError(f"warplens.{function}() takes a path to counters or KernelCounters, not {type(counters).__name__}")


def only_profile(path: str | os.PathLike[str]) -> Path:
    """The profile at a path, or the only one in a folder.

    Raises:
        UsageError: the folder has several profiles.
        UnreadableInputError: there is none.
    """
    path = located(path)
    profiles = discover([path])
    if len(profiles) > 1:
        listed = ", ".join(str(profile.relative_to(path)) for profile in profiles[:_NAMED_PROFILES])
        more = f" and {len(profiles) - _NAMED_PROFILES} more" if len(profiles) > _NAMED_PROFILES else ""
        raise UsageError(
            f"{path.name or path}: the folder holds {len(profiles)} profiles ({listed}{more}), and this command takes "
            "one. Name it, or use `warplens report` for all of them"
        )
    return profiles[0]


@dataclass(frozen=True)
class Selection:
    """A profile, its selected window, and notes on the limits of its numbers."""

    timeline: Timeline
    window: Window
    notes: tuple[Note, ...]

    @property
    def source(self) -> str:
        """The name of the file."""
        return self.timeline.trace.capture.source


def selected(timeline: Timeline, window: Window | str = "steady", range_name: str | None = None) -> Selection:
    """A window of a profile with notes on its quality; the window may be a specification for `Timeline.window`.

    Raises:
        UsageError: the window lies outside of the profile, or there is no such range.
    """
    part = timeline.window(window, range_name) if isinstance(window, str) else window
    return Selection(timeline, part, (*_empty(timeline, part), *quality_notes(timeline, part)))


def chosen(profile: Profile, function: str, window: str, range_name: str | None) -> Selection:
    """The window of a profile that the arguments of a function select. Errors as of `timeline_of` and `selected`."""
    return selected(timeline_of(profile, function), window, range_name)


def _empty(timeline: Timeline, window: Window) -> Iterator[Note]:
    """A note if an explicitly chosen window has no GPU work, with the span of the GPU work."""
    if window.kind != "explicit" or not timeline.work.height or timeline.work_in(window).height:
        return
    worked = span_text(int(timeline.work["start_ns"][0]), int(timeline.work["end_ns"].to_numpy().max()))
    inside = f" inside {window.range_name!r}" if window.range_name is not None else ""
    text = f"No GPU work begins in this window{inside}; the GPU worked within {worked}"
    yield Note("empty-window", NoteLevel.WARNING, text, f"Ask for a part of it: --window {worked}")


def _is_live(value: object) -> TypeGuard[LiveProfile]:
    return isinstance(value, LiveProfile) and not isinstance(value, type)


def _is_profile(value: object) -> bool:
    return is_path(value) or isinstance(value, (Trace, Timeline)) or _is_live(value)


def _is_one(value: object) -> bool:
    return _is_profile(value) or not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray))


def _refusal(value: object, function: str) -> TypeError:
    kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return TypeError(f"warplens.{function}() takes {_ACCEPTED}, not {kind}")


def _each(profile: Profile, function: str) -> list[Timeline]:
    if is_path(profile):
        return [Timeline(readers.read(path)) for path in discover([located(profile)])]
    return [timeline_of(profile, function)]


def _live(profiler: LiveProfile) -> Trace:
    """The trace of a profiler, read from the file that it writes."""
    if profiler in _exported:
        return _exported[profiler]
    with tempfile.TemporaryDirectory(prefix="warplens-") as folder:
        path = Path(folder, "trace.json")
        try:
            profiler.export_chrome_trace(str(path))
        except (RuntimeError, AssertionError, AttributeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(
                f"{_LIVE}: the profiler gives no trace ({reason}). Ask after its `with` block has ended, and before "
                "export_chrome_trace is called; or give the path of the file that it wrote"
            ) from error
        trace = readers.read(path)
    _exported[profiler] = trace = replace(trace, capture=replace(trace.capture, source=_LIVE))
    return trace


#: With more work items than this, equal times mean the same recording, not coincidence.
_COINCIDENCE: Final = 20


def trace_side(name: str, timelines: Iterable[Timeline], window: str, range_name: str | None) -> TraceFiles:
    """One side of a comparison: every repeat with its window. Requires launch configurations, to match kernels.

    Args:
        name: display name of the side.
        timelines: its repeats, read one by one on iteration.
        window, range_name: as for `Timeline.window`.

    Raises:
        UsageError: a window lies outside of a trace, or a range is not in it; the message names the file.
        MissingDataError: a step, or the window without steps, takes no time.
    """
    # Imported here, since commands on one profile do not need them.
    from warplens.compare.side import Side
    from warplens.report.comparison.numbers import TraceFiles

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
    """The sides, in the order of recording if the files tell it; with a note if both contain the same recording."""
    baseline, variant = _by_time(baseline, variant)
    if same_file or any(_same_recording(before, after) for before in baseline.files for after in variant.files):
        text = "both sides are the same file"
        note = Note("same-file", NoteLevel.WARNING, text, "Record the two sides separately")
        variant = replace(variant, notes=((*variant.notes[0], note), *variant.notes[1:]))
    return baseline, variant


def _by_time(*sides: TraceFiles) -> tuple[TraceFiles, TraceFiles]:
    """The sides with their files by time, and whether they were taken in turns; unchanged if a time is not known.

    In turns: of each two successive files, one is of either side. Equal times tell no order.
    """
    times = [[side.timeline.trace.capture.began_ns for side in files.files] for files in sides]
    known = [time for side in times for time in side if time is not None]
    baseline, variant = sides
    if len(set(known)) < len(times[0]) + len(times[1]):
        return baseline, variant
    taken = [side for _, side in sorted((time, side) for side in (0, 1) for time in times[side] if time is not None)]
    turns = len(times[0]) == len(times[1]) and all(map(ne, taken[::2], taken[1::2]))

    def ordered(files: TraceFiles, began: list[int | None]) -> TraceFiles:
        by_time = sorted(range(len(began)), key=lambda number: began[number] or 0)
        return replace(
            files,
            files=tuple(files.files[number] for number in by_time),
            notes=tuple(files.notes[number] for number in by_time),
            order="turns" if turns else "known",
        )

    return ordered(baseline, times[0]), ordered(variant, times[1])


def _same_recording(before: Side, after: Side) -> bool:
    """Whether one file is a copy of the other: all work has the same times to the nanosecond."""
    times = [side.timeline.work.select("start_ns", "end_ns") for side in (before, after)]
    return times[0].height > _COINCIDENCE and times[0].equals(times[1])


def _check_times(side: Side, source: str) -> None:
    """Check that steps, or the window without steps, have a duration."""
    from warplens.compare.side import step_samples

    try:
        step_samples(side)
    except UsageError as error:
        if side.window.range_name is not None:
            reason = f"no GPU work of range {side.window.range_name!r} is in its window"
        elif side.has_steps:
            reason = "a step in its window takes no time: choose another window (--window)"
        else:
            reason = "nothing in it takes any time, so that there is nothing to compare"
        raise MissingDataError(f"{source}: {reason}") from error
