"""Reads the paths of a command: profiles, counter reports, the grid of profiles, and the run that they are ranks of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warplens.analysis.timeline import Timeline
from warplens.cli.answer import with_measured_step
from warplens.cli.memory import REPORT, share_that_fits
from warplens.cli.process import State, note, progress, reuse_freed_memory
from warplens.errors import UnreadableInputError, UsageError
from warplens.readers import discover_both, read, read_counters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl

    from warplens.analysis.window import Window
    from warplens.diagnosis import Diagnosis
    from warplens.diagnosis.across import RunDiagnosis
    from warplens.profile.counters import KernelCounters
    from warplens.report.counters.numbers import CounterNumbers, Joined
    from warplens.report.overview.numbers import Numbers
    from warplens.studies.grid.cells import CellName, Unplaced

#: With at least this many combinations of model and context, profiles form a grid without further options.
_CELLS_OF_A_GRID: Final = 2

#: For larger files (half a million kernels) launch configurations are not read: they take a third more time, and only
#: serve to check whether kernels fill the GPU. The diagnosis lists this as not checked; `warplens diagnose` checks it.
_LAUNCH_CONFIGURATION_BYTES: Final = 64 << 20


@dataclass(frozen=True, eq=False)
class Profiles:
    """The profiles that could be read, in the order given, and the errors of the others."""

    paths: tuple[Path, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    unreadable: tuple[UnreadableInputError, ...] = ()


@dataclass(frozen=True)
class GridRequest:
    """Options about a grid of models × contexts."""

    cells: Mapping[str, CellName]  #: by name of the profile
    timings: pl.DataFrame | None = None  #: times that the programs measured themselves
    batch: int | None = None  #: sequences in a batch

    @property
    def is_explicit(self) -> bool:
        """Whether any option was given, so that it is an error if there is no grid."""
        return bool(self.cells) or self.timings is not None or self.batch is not None


@dataclass(frozen=True)
class Cells:
    """The cells of a grid that profiles belong to."""

    named: Mapping[str, CellName]  #: by path of the profile
    unplaced: tuple[Unplaced, ...]  #: profiles without a cell


@dataclass(frozen=True, eq=False)
class Reading:
    """The contents of the paths of a command."""

    profiles: Profiles
    window: Callable[[Timeline], Window]  #: finds the requested window of a profile
    counters: Sequence[KernelCounters]  #: reports of hardware counters
    counter_paths: Sequence[Path]  #: of these reports
    joined: tuple[tuple[Joined, ...], ...]  #: for each profile its counter reports; () if there are none
    cells: Cells | None  #: the grid of the profiles, if they form one
    unreadable: tuple[UnreadableInputError, ...]  #: errors of all files that could not be read

    @property
    def counted(self) -> KernelCounters | None:
        """The counters for the diagnosis, if there is exactly one report and one profile."""
        return self.counters[0] if len(self.counters) == len(self.profiles.timelines) == 1 else None

    @cached_property
    def counter_numbers(self) -> list[CounterNumbers]:
        """Every analysis of the counter reports, joined with the traces."""
        from warplens.report.counters.numbers import examine_counters

        all_joined = list(chain.from_iterable(self.joined))
        with progress("analysing counters"):
            return [
                examine_counters(report, [joined for joined in all_joined if joined.source == report.capture.source])
                for report in self.counters
            ]


def read_all(
    paths: Sequence[Path],
    window: str,
    range_name: str | None,
    grid: GridRequest | None = None,
    step_time: str | None = None,
) -> Reading:
    """Read these files and all files of these folders. `step_time` was measured without a profiler.

    Raises:
        UnreadableInputError: nothing could be read.
        UsageError: a window lies outside of a profile, there is no such range, a requested grid does not exist, or the
            step time is not that of one profile.
    """
    grid = grid or GridRequest({})
    trace_paths, counter_paths = discover_both(paths)
    cells = find_cells(trace_paths, grid) if trace_paths or grid.is_explicit else None
    counter_paths, counters, unreadable_counters = _read_counter_reports(counter_paths)
    if not trace_paths and not counters:
        raise unreadable_counters[0]
    profiles = Profiles()
    if trace_paths:
        steady = window == "steady" and range_name is None
        profiles = read_profiles(trace_paths, launch_configuration=bool(counters), steady=steady)
    if not profiles.timelines and not counters:
        raise profiles.unreadable[0]
    window_of = _window(window, range_name)
    if step_time is not None and len(profiles.timelines) != 1:
        raise UsageError("--step-time is about one profile: name it")
    timed = [with_measured_step(timeline, window_of(timeline), step_time) for timeline in profiles.timelines]
    profiles = replace(profiles, timelines=tuple(timed))
    joined = _join_all(profiles, counters, window_of)
    return Reading(
        profiles, window_of, counters, counter_paths, joined, cells, (*profiles.unreadable, *unreadable_counters)
    )


def examined(reading: Reading, diagnoses: Sequence[Diagnosis] = ()) -> list[Numbers]:
    """Every analysis of every profile, joined with counters; with the diagnoses, if they are computed already."""
    if not reading.profiles.timelines:
        return []
    from warplens.report.overview.numbers import examine

    with progress("analysing") as tell:
        numbers = []
        for timeline, diagnosis in zip_longest(reading.profiles.timelines, diagnoses):
            tell(f"analysing {timeline.trace.capture.source}")
            numbers.append(examine(timeline, reading.window(timeline), counters=reading.counted, diagnosis=diagnosis))
        if reading.joined:
            numbers = [
                replace(profile, joined=joined_reports)
                for profile, joined_reports in zip(numbers, reading.joined, strict=True)
            ]
        return numbers


def read_profiles(paths: Sequence[Path], *, launch_configuration: bool = False, steady: bool = False) -> Profiles:
    """Read all profiles; one that cannot be read does not stop the others.

    Args:
        launch_configuration: whether to read grids and blocks of large files, too, to match kernels with counters.
        steady: whether only steady steps are needed, so that a part of a single profile suffices if memory is short.
    """
    shares = [share_that_fits(path, REPORT, steady=steady and len(paths) == 1) for path in paths]
    reuse_freed_memory(paths)
    read_paths, timelines, unreadable = [], [], []
    with progress("reading") as tell:
        for number, (path, share) in enumerate(zip(paths, shares, strict=True), start=1):
            tell(f"reading {path.name}" + (f" ({number} of {len(paths)})" if len(paths) > 1 else ""))
            small = not path.is_file() or path.stat().st_size <= _LAUNCH_CONFIGURATION_BYTES
            configured = launch_configuration or small
            try:
                trace = read(path, progress=tell, launch_configuration=configured, share=share, gpu=State.gpu)
                timelines.append(Timeline(trace))
                read_paths.append(path)
            except UnreadableInputError as error:
                unreadable.append(error)
    return Profiles(tuple(read_paths), tuple(timelines), tuple(unreadable))


def _read_counter_reports(
    paths: Sequence[Path],
) -> tuple[list[Path], list[KernelCounters], list[UnreadableInputError]]:
    if not paths:
        return [], [], []
    from warplens.analysis.counters.speedoflight import OPCODES

    read_paths, reports, unreadable = [], [], []
    for path in paths:
        with progress(f"reading {path.name}") as tell:
            try:
                reports.append(read_counters(path, instances=(OPCODES,), progress=tell))
                read_paths.append(path)
            except UnreadableInputError as error:
                unreadable.append(error)
    return read_paths, reports, unreadable


def _window(spec: str, range_name: str | None) -> Callable[[Timeline], Window]:
    def of(timeline: Timeline) -> Window:
        try:
            return timeline.window(spec, range_name)
        except UsageError as error:
            raise UsageError(f"{timeline.trace.capture.source}: {error}") from error

    return of


def _join_all(
    profiles: Profiles, counters: Sequence[KernelCounters], window: Callable[[Timeline], Window]
) -> tuple[tuple[Joined, ...], ...]:
    """For each profile its counter reports; of several profiles, only reports that have a kernel in common with it."""
    if not counters:
        return ()
    from warplens.report.counters.numbers import join_counters

    with progress("joining counters and traces"):
        by_profile = tuple(
            tuple(join_counters(report, timeline, window(timeline)) for report in counters)
            for timeline in profiles.timelines
        )
    if len(by_profile) == 1:
        return by_profile
    return tuple(tuple(joined for joined in reports if joined.matches) for reports in by_profile)


def run_in(reading: Reading) -> RunDiagnosis | None:
    """The diagnosis of the run, if the profiles are the ranks of one."""
    if len(reading.profiles.timelines) < 2:
        return None
    from warplens.ranks import one_run

    with progress("looking for ranks of one run"):
        return one_run(reading.profiles.timelines, reading.window)


#: Files of a run with a report of their own, equal to `overview.document.MOST_PARTS`, which is imported only for
#: drawing. Analysing and drawing a file takes some tenths of a second.
_IN_FULL: Final = 24


def limited_to_full_reports(reading: Reading, run: RunDiagnosis | None) -> tuple[Reading, RunDiagnosis | None]:
    """Limit a run of many files to `_IN_FULL` files for single reports: those of late ranks and of the lowest ranks.

    The diagnosis of the run still covers all of them. A note says that files are left out.
    """
    if run is None or len(reading.profiles.timelines) <= _IN_FULL:
        return reading, run
    late = run.run.result.late
    ranks = sorted(run.origin, key=lambda rank: (rank not in late, rank))
    kept = sorted(dict.fromkeys(run.origin[rank][0] for rank in ranks[:_IN_FULL]))
    new_index = {file: index for index, file in enumerate(kept)}
    profiles = reading.profiles
    note(
        f"{len(kept)} of {len(profiles.timelines)} files are told one by one: those of late ranks and of the lowest "
        "ranks; what is said of the run rests on all. Report on fewer files for others."
    )
    shown = replace(
        profiles,
        paths=tuple(profiles.paths[file] for file in kept),
        timelines=tuple(profiles.timelines[file] for file in kept),
    )
    origin = {rank: (new_index[file], part) for rank, (file, part) in run.origin.items() if file in new_index}
    joined = tuple(reading.joined[file] for file in kept) if reading.joined else ()
    return replace(reading, profiles=shown, joined=joined), replace(run, origin=origin)


def find_cells(paths: Sequence[Path], request: GridRequest) -> Cells | None:
    """The grid cells of these profiles; None if they form no grid and none was requested.

    Raises:
        UsageError: a grid was requested, but no profile has a cell; or a named profile does not exist.
    """
    from warplens.studies.grid.cells import assign_cells

    cells, unplaced = assign_cells(map(str, paths), request.cells)
    if request.is_explicit and not cells:
        raise UsageError(f"no profile is of a cell of a grid. {unplaced[0].source}: {unplaced[0].reason}")
    combinations = {(cell.model, cell.context) for cell in cells.values()}
    if not request.is_explicit and len(combinations) < _CELLS_OF_A_GRID:
        return None
    return Cells(cells, unplaced)
