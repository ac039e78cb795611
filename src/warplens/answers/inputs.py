"""What may be asked about: a path, a folder, a trace, or a live profiler. Anything else is refused at the call.

And the two sides of a comparison of traces: each file with its window, checked for what cannot be compared.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeGuard, runtime_checkable
from weakref import WeakKeyDictionary

from warplens.analysis.quality import quality_notes
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.errors import MissingDataError, UsageError
from warplens.profile import Note, NoteLevel, Trace
from warplens.profile.counters import KernelCounters
from warplens.readers import discover, read, read_counters
from warplens.readers.shipped import located

if TYPE_CHECKING:
    from warplens.compare.host import Side
    from warplens.report.comparison.numbers import TraceFiles

#: Of a folder with several profiles these are named.
_NAMED_PROFILES: Final = 3

#: What a live profile is called in answers.
_LIVE: Final = "torch.profiler"


@runtime_checkable
class LiveProfile(Protocol):
    """`torch.profiler.profile` after its `with` block, as far as it is needed here; torch is not imported for it."""

    def export_chrome_trace(self, path: str) -> Any:
        """Write the recorded trace to a file."""


#: One profile, however it is at hand.
Profile: TypeAlias = "str | os.PathLike[str] | Trace | Timeline | LiveProfile"

#: One report of hardware counters.
Counters: TypeAlias = "str | os.PathLike[str] | KernelCounters"

_ACCEPTED: Final = "a path, a folder, a Trace, a Timeline or a torch.profiler.profile"

#: A profiler writes its trace only once; what it wrote is kept for the next question.
_exported: WeakKeyDictionary[LiveProfile, Trace] = WeakKeyDictionary()


def is_path(given: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether this is a path and not a profile itself."""
    return isinstance(given, (str, os.PathLike))


def timeline_of(given: Profile, asked: str) -> Timeline:
    """The one profile that was given.

    Args:
        given: the profile.
        asked: the function that it was given to, for the message.

    Raises:
        TypeError: it is nothing that holds a profile.
        UsageError: a folder holds several.
        UnreadableInputError: a file cannot be read.
    """
    if isinstance(given, Timeline):
        return given
    if isinstance(given, Trace):
        return Timeline(given)
    if is_path(given):
        return Timeline(read(only_profile(given)))
    if _is_live(given):
        return Timeline(_live(given))
    raise _refusal(given, asked)


def one_of(given: Profile | Sequence[Profile], asked: str) -> Profile | None:
    """The one profile that was given, however it is at hand; None where it is several.

    Raises:
        TypeError: something in it holds no profile.
        UnreadableInputError: there is no such file.
    """
    if _is_one(given):
        if not _is_profile(given):
            raise _refusal(given, asked)
        several = is_path(given) and len(discover([located(Path(given))])) > 1
        return None if several else given  # type: ignore[return-value]
    several_given: list[Any] = list(given)  # type: ignore[arg-type]
    return one_of(several_given[0], asked) if len(several_given) == 1 else None


def timelines_of(given: Profile | Sequence[Profile], asked: str) -> list[Timeline]:
    """The profiles that were given: one, several in a sequence, or all of a folder.

    Raises:
        TypeError: something in it holds no profile.
        UnreadableInputError: a file cannot be read.
    """
    several: list[Any] = [given] if _is_one(given) else list(given)  # type: ignore[arg-type]
    if not several:
        raise UsageError(f"warplens.{asked}() was given no profile")
    for one in several:  # before gigabytes of others are read
        if not _is_profile(one):
            raise _refusal(one, asked)
    return [timeline for one in several for timeline in _each(one, asked)]


def are_paths(given: Any) -> bool:
    """Whether this is a path, or a sequence of nothing but paths."""
    return is_path(given) or (isinstance(given, Sequence) and bool(given) and all(map(is_path, given)))


def paths_of(given: Any) -> list[Path]:
    """The profiles that a path, or a sequence of paths, names; folders are searched.

    Raises:
        UnreadableInputError: there is no such file, or a folder without a profile.
    """
    return discover([Path(given)] if is_path(given) else given)


def counters_of(given: Counters, asked: str) -> KernelCounters:
    """The report of hardware counters that was given.

    Raises:
        TypeError: it is neither a path nor counters.
        UnreadableInputError: it cannot be read.
    """
    if isinstance(given, KernelCounters):
        return given
    if is_path(given):
        return read_counters(Path(given))
    raise TypeError(f"warplens.{asked}() takes a path to counters or KernelCounters, not {type(given).__name__}")


def only_profile(path: str | os.PathLike[str]) -> Path:
    """The profile that a path names, or the only one in the folder that it names.

    Raises:
        UsageError: the folder holds several.
        UnreadableInputError: there is none.
    """
    path = located(Path(path))
    found = discover([path])
    if len(found) > 1:
        named = ", ".join(str(profile.relative_to(path)) for profile in found[:_NAMED_PROFILES])
        more = f" and {len(found) - _NAMED_PROFILES} more" if len(found) > _NAMED_PROFILES else ""
        raise UsageError(
            f"{path.name}: the folder holds {len(found)} profiles ({named}{more}), and this command takes one. "
            "Name it, or use `warplens report` for all of them"
        )
    return found[0]


@dataclass(frozen=True)
class Selection:
    """A profile, the window of it that was asked for, and what to know before its numbers."""

    timeline: Timeline
    window: Window
    notes: tuple[Note, ...]

    @property
    def source(self) -> str:
        """The name of the file."""
        return self.timeline.trace.capture.source


def selected(timeline: Timeline, window: Window | str = "steady", range_name: str | None = None) -> Selection:
    """The window of a profile, found already or as `Timeline.window` understands it, with the notes on its quality.

    Raises:
        UsageError: the window lies outside of the profile, or there is no such range.
    """
    part = timeline.window(window, range_name) if isinstance(window, str) else window
    return Selection(timeline, part, (*_empty(timeline, part), *quality_notes(timeline, part)))


def _empty(timeline: Timeline, window: Window) -> Iterator[Note]:
    """That the window, as asked for, holds no GPU work, and where there is some."""
    if window.kind != "explicit" or not timeline.work.height or timeline.work_in(window).height:
        return
    begin, end = int(timeline.work["start_ns"][0]), int(timeline.work["end_ns"].to_numpy().max())
    inside = f" inside {window.range_name!r}" if window.range_name is not None else ""
    text = f"No GPU work begins in this window{inside}; the GPU worked from {begin} ns to {end} ns"
    yield Note(
        "empty-window", NoteLevel.WARNING, text, f"Ask for a part of it: --window {begin / 1e9:.3f}s:{end / 1e9:.3f}s"
    )


def _is_live(given: object) -> TypeGuard[LiveProfile]:
    return isinstance(given, LiveProfile) and not isinstance(given, type)


def _is_profile(given: object) -> bool:
    return is_path(given) or isinstance(given, (Trace, Timeline)) or _is_live(given)


def _is_one(given: object) -> bool:
    return _is_profile(given) or not isinstance(given, Sequence) or isinstance(given, (bytes, bytearray))


def _refusal(given: object, asked: str) -> TypeError:
    kind = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    return TypeError(f"warplens.{asked}() takes {_ACCEPTED}, not {kind}")


def _each(given: Profile, asked: str) -> list[Timeline]:
    if is_path(given):
        return [Timeline(read(path)) for path in discover([Path(given)])]
    return [timeline_of(given, asked)]


def _live(profiler: LiveProfile) -> Trace:
    """What a profiler has recorded, by way of the file that it writes.

    Raises:
        UsageError: it has recorded nothing, or has given its trace away already.
    """
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
        trace = read(path)
    _exported[profiler] = trace = replace(trace, capture=replace(trace.capture, source=_LIVE))
    return trace


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
    # Commands on one profile start without what compares two.
    from warplens.compare.host import Side
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
    from warplens.compare.host import step_samples

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
