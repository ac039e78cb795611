"""The two sides of `warplens compare`, from what the user named: traces, repeats of one, measurements, or counters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.quality import quality_notes
from warplens.analysis.timeline import Timeline
from warplens.cli.memory import reuse_freed_memory
from warplens.cli.messages import progress
from warplens.compare.difference import Side, step_samples
from warplens.compare.surface.reading import side_of, sweep_of
from warplens.errors import MissingDataError, UnreadableInputError, UsageError
from warplens.profile import Note, NoteLevel
from warplens.readers import discover, read
from warplens.readers.counterfiles import discover_both, holds_counters
from warplens.readers.counters import read_counters
from warplens.readers.detect import files_below, kind_of, looks_like_profile, refusal
from warplens.readers.measurements import holds_measurements, read_measurements
from warplens.report.comparison.numbers import TraceFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from warplens.compare.sweep import Cell, Sweep
    from warplens.profile.counters import KernelCounters
    from warplens.profile.measurements import Measurements

__all__ = ["Content", "Found", "find_sides", "load_counters", "load_measurements", "load_traces"]


class Content(Enum):
    """What a side holds. The value says it for people."""

    TRACES = "a trace"
    MEASUREMENTS = "measurements"
    COUNTERS = "counters of Nsight Compute"


@dataclass(frozen=True)
class Found:
    """A side before it is read.

    Attributes:
        path: what the user named.
        content: what it holds.
        files: the files of it to read; several only for traces, each a repeat.
        passed_over: files of a folder of traces that a run may have left, too, and that are no repeats: empty ones,
            measurements, counters.
    """

    path: Path
    content: Content
    files: tuple[Path, ...]
    passed_over: tuple[Path, ...] = ()


#: So many pieces of work do not begin and end at the same nanoseconds by chance.
_COINCIDENCE: Final = 20

#: The setting that tells the sides apart where two files were put together; no workload has one of this name.
_SIDE: Final = "compared side"


def find_sides(baseline: Path, variant: Path) -> tuple[Found, Found]:
    """What the two sides hold, told by content before anything is read in full.

    Raises:
        UsageError: they hold different things, or a folder holds several files that are no repeats.
        UnreadableInputError: there is no such file, or nothing in a folder that could be compared.
    """
    sides = _found(baseline), _found(variant)
    if sides[0].content is not sides[1].content:
        for side in sides:
            if side.path.is_file() and side.content is Content.TRACES and not looks_like_profile(side.path):
                raise refusal(side.path, kind_of(side.path))
        told = " and ".join(f"{side.path.name} holds {side.content.value}" for side in sides)
        raise UsageError(
            f"{told}: give two traces (or folders of repeats), two measurements files, or two reports of counters"
        )
    return sides


def _found(path: Path) -> Found:
    if not path.is_dir():
        if path.is_file() and holds_counters(path):
            return Found(path, Content.COUNTERS, (path,))
        if path.is_file() and holds_measurements(path):
            return Found(path, Content.MEASUREMENTS, (path,))
        return Found(path, Content.TRACES, tuple(discover([path])))
    try:
        traces, counters = discover_both([path])
    except UnreadableInputError:
        measured = [file for file in sorted(files_below(path)) if holds_measurements(file)]
        if not measured:
            raise
        return Found(path, Content.MEASUREMENTS, _only(path, measured, "measurements files"))
    if traces:
        others = [file for file in sorted(files_below(path)) if file not in traces and file not in counters]
        passed_over = [file for file in others if not file.stat().st_size or holds_measurements(file)]
        return Found(path, Content.TRACES, tuple(traces), (*counters, *passed_over))
    return Found(path, Content.COUNTERS, _only(path, counters, "reports of counters"))


def _only(folder: Path, files: Sequence[Path], what: str) -> tuple[Path, ...]:
    if len(files) > 1:
        raise UsageError(f"{folder.name}: the folder holds {len(files)} {what}; name the one to compare")
    return tuple(files)


def load_traces(sides: tuple[Found, Found], window: str, range_name: str | None) -> tuple[TraceFiles, TraceFiles]:
    """Both sides, every repeat with its window; grids of kernels are read, since kernels are matched by them.

    Raises:
        UsageError: a window lies outside of a trace, or a range is not in it; the message names the file.
        UnreadableInputError: a file cannot be read.
    """
    reuse_freed_memory([file for side in sides for file in side.files])
    names = [side.path.resolve().name for side in sides]
    if names[0] == names[1]:
        names = [f"{name} ({role})" for name, role in zip(names, ("baseline", "variant"), strict=True)]
    baseline, variant = (
        _trace_files(name, side.files, window, range_name) for name, side in zip(names, sides, strict=True)
    )
    same = {file.resolve() for file in sides[0].files} & {file.resolve() for file in sides[1].files}
    if same or any(_same_recording(before, after) for before in baseline.files for after in variant.files):
        text = "both sides hold the same file: its times are compared with themselves"
        note = Note("same-file", NoteLevel.WARNING, text, "Record the two sides separately")
        variant = replace(variant, notes=((*variant.notes[0], note), *variant.notes[1:]))
    baseline, variant = (
        replace(side, notes=((*side.notes[0], *_passed_over(name, found)), *side.notes[1:]))
        for name, side, found in zip(names, (baseline, variant), sides, strict=True)
    )
    return baseline, variant


def _same_recording(before: Side, after: Side) -> bool:
    """Whether one file is a copy of the other: no two runs take the same nanoseconds for everything."""
    times = [side.timeline.work.select("start_ns", "end_ns") for side in (before, after)]
    return times[0].height > _COINCIDENCE and times[0].equals(times[1])


def _passed_over(name: str, found: Found) -> Iterator[Note]:
    if found.passed_over:
        first, more = found.passed_over[0].name, len(found.passed_over) - 1
        text = f"the folder holds files that are no traces and were passed over: {first}"
        text += f" and {more} more" if more else ""
        yield Note("passed-over", NoteLevel.WARNING, text, "If a run failed, record it again")


def _trace_files(name: str, paths: tuple[Path, ...], window: str, range_name: str | None) -> TraceFiles:
    files, notes = [], []
    for path in paths:
        with progress(f"reading {path.name}") as tell:
            timeline = Timeline(read(path, progress=tell))
            tell(f"analysing {path.name}")
            try:
                selected = timeline.window(window, range_name)
            except (UsageError, MissingDataError) as error:
                raise type(error)(f"{path.name}: {error}") from error
            side = Side(name if len(paths) == 1 else path.name, timeline, selected)
            _check_times(side, path)
            files.append(side)
            notes.append(quality_notes(timeline, selected))
    return TraceFiles.of(name, files, notes)


def _check_times(side: Side, path: Path) -> None:
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
        text = f"{path.name}: no GPU work of range {side.window.range_name!r} is in its window"
        raise MissingDataError(text) from told
    if side.has_steps:
        raise MissingDataError(f"{path.name}: a step in its window takes no time: choose another window (--window)")
    raise MissingDataError(f"{path.name}: nothing in it takes any time, so that there is nothing to compare")


def load_counters(path: Path) -> KernelCounters:
    """A report of Nsight Compute, or its CSV."""
    with progress(f"reading {path.name}") as tell:
        return read_counters(path, progress=tell)


def load_measurements(
    sides: tuple[Found, Found], where: tuple[str | None, str | None]
) -> tuple[Sweep, tuple[Note, ...]]:
    """The cells of two measurements files, matched by equal settings; what differs between the sides aside.

    Args:
        sides: the files; the same one twice compares cells of it.
        where: for each side the settings of the cells to take (`method=topk,keep=0.1`); None for all.

    Returns:
        A sweep without the name of the file in the settings of its sides, and what limits the comparison. Rounds of
        different files are not paired: they were not taken in turns.

    Raises:
        UsageError: no cell has these settings, or no cells of the two sides match.
    """
    chosen = [side_of(text) if text is not None else {} for text in where]
    first, second = (side.files[0] for side in sides)
    with progress(f"reading {first.name}") as tell:
        baseline = read_measurements(first)
        same_file = first.resolve() == second.resolve()
        if same_file and all(chosen):
            return sweep_of(baseline, chosen[0], chosen[1]), ()
        tell(f"reading {second.name}")
        variant = baseline if same_file else read_measurements(second)
    merged = _merged(baseline, variant)
    try:
        found = sweep_of(merged, {_SIDE: "baseline", **chosen[0]}, {_SIDE: "variant", **chosen[1]})
    except UsageError as error:  # which file a cell is from is a setting here, and none of the user's
        text = str(error).replace(f"{_SIDE}=baseline", first.name).replace(f"{_SIDE}=variant", second.name)
        raise UsageError(text) from error
    notes = tuple(_of_files(baseline, variant, same_file=same_file and not any(chosen)))
    return _without_side(found, paired=found.paired and same_file), notes


def _of_files(baseline: Measurements, variant: Measurements, *, same_file: bool) -> Iterator[Note]:
    """What makes two measurements files hard to compare."""
    if same_file:
        text = "both sides hold the same cells: their times are compared with themselves"
        yield Note("same-file", NoteLevel.WARNING, text, "Choose cells: --baseline-where, --variant-where")
    names = [str((file.environment.get("device") or {}).get("name") or "") for file in (baseline, variant)]
    if all(names) and names[0] != names[1]:
        text = f"the GPUs differ: {names[0]} and {names[1]}"
        yield Note("different-gpu", NoteLevel.WARNING, text, "Measure both sides on the same GPU")


def _merged(baseline: Measurements, variant: Measurements) -> Measurements:
    """Both files as one, each cell with the setting `_SIDE`."""
    if baseline.workload != variant.workload:
        raise UsageError(
            f"{baseline.source} holds measurements of {baseline.workload}, {variant.source} of {variant.workload}: "
            "there is nothing to compare"
        )
    cells = [
        file.cells.with_columns(pl.lit(name).alias(_SIDE))
        for file, name in ((baseline, "baseline"), (variant, "variant"))
    ]
    moved = {
        name: pl.concat([
            getattr(baseline, name), getattr(variant, name).with_columns(pl.col("cell") + baseline.cells.height)
        ])
        for name in ("samples", "phases")
    }  # fmt: skip
    return replace(
        baseline,
        source=baseline.source if baseline.source == variant.source else f"{baseline.source} and {variant.source}",
        settings=(_SIDE, *dict.fromkeys((*baseline.settings, *variant.settings))),
        cells=pl.concat(cells, how="diagonal_relaxed"),
        details=(*baseline.details, *variant.details),
        samples=moved["samples"],
        phases=moved["phases"],
        sweep=None,
    )


def _without_side(sweep: Sweep, *, paired: bool) -> Sweep:
    points = tuple(
        replace(point, baseline=_unpaired(point.baseline, paired), variant=_unpaired(point.variant, paired))
        for point in sweep.points
    )
    return replace(sweep, baseline=_own(sweep.baseline), variant=_own(sweep.variant), points=points, paired=paired)


def _own(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != _SIDE}


def _unpaired(cell: Cell | None, paired: bool) -> Cell | None:
    if cell is None or paired:
        return cell
    wall, gpu = (samples and replace(samples, paired=False) for samples in (cell.wall, cell.gpu))
    return replace(cell, wall=wall, gpu=gpu)
