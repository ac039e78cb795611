"""What the paths of a command hold, read: profiles, their grid, the run that they are the ranks of, counters beside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warplens.analysis.timeline import Timeline
from warplens.cli.edge import State, note, progress, reuse_freed_memory
from warplens.cli.memory import REPORT, share_that_fits
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

#: From so many models × contexts on, profiles are a grid without the user saying so.
_CELLS_OF_A_GRID: Final = 2

#: Of larger files (half a million kernels) grids and blocks are not read: they cost a third more time, for the one
#: question whether kernels fill the GPU. The verdict says that it was not asked, and `warplens diagnose` asks it.
_ALL_OF_IT_BYTES: Final = 64 << 20


@dataclass(frozen=True, eq=False)
class Profiles:
    """The profiles that could be read, in the order given, and what was wrong with the others."""

    paths: tuple[Path, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    unreadable: tuple[UnreadableInputError, ...] = ()


@dataclass(frozen=True)
class GridRequest:
    """What the user said about a grid of models × contexts: cells of profiles, by name, times, sequences in a batch."""

    cells: Mapping[str, CellName]
    timings: pl.DataFrame | None = None
    batch: int | None = None

    @property
    def is_explicit(self) -> bool:
        """Whether anything was said at all, so that no grid would be a disappointment."""
        return bool(self.cells) or self.timings is not None or self.batch is not None


@dataclass(frozen=True)
class Cells:
    """Which profile is of which cell, by its path, and the profiles that are of none."""

    named: Mapping[str, CellName]
    unplaced: tuple[Unplaced, ...]


@dataclass(frozen=True, eq=False)
class Reading:
    """What the paths of a command hold, read."""

    profiles: Profiles
    window: Callable[[Timeline], Window]  #: the part of each that is asked about
    counters: Sequence[KernelCounters]  #: reports of hardware counters
    #: for each profile the reports of counters beside it; () without such reports
    joined: tuple[tuple[Joined, ...], ...]
    cells: Cells | None  #: the grid that the profiles are of; None where they are of none
    unreadable: tuple[UnreadableInputError, ...]  #: why files could not be read

    @property
    def counted(self) -> KernelCounters | None:
        """The counters that the diagnosis rests on: the only report of them, beside the only profile."""
        return self.counters[0] if len(self.counters) == len(self.profiles.timelines) == 1 else None

    @cached_property
    def counter_numbers(self) -> list[CounterNumbers]:
        """Every analysis of the reports of counters, with the traces beside them."""
        from warplens.report.counters.numbers import examine_counters

        joined = [item for beside in self.joined for item in beside]
        with progress("analysing counters"):
            return [
                examine_counters(report, [item for item in joined if item.source == report.capture.source])
                for report in self.counters
            ]


def read_all(paths: Sequence[Path], window: str, range_name: str | None, grid: GridRequest | None = None) -> Reading:
    """Read what these files and folders hold.

    Raises:
        UnreadableInputError: nothing could be read.
        UsageError: a window lies outside of a profile, there is no such range, or no grid where one was asked for.
    """
    grid = grid or GridRequest({})
    found, counter_paths = discover_both(paths)
    cells = find_cells(found, grid) if found or grid.is_explicit else None
    counters, no_counters = _read_counter_reports(counter_paths)
    if not found and not counters:
        raise no_counters[0]
    steady = window == "steady" and range_name is None
    profiles = read_profiles(found, launch_configuration=bool(counters), steady=steady) if found else Profiles()
    if not profiles.timelines and not counters:
        raise profiles.unreadable[0]
    part = _window(window, range_name)
    for timeline in profiles.timelines:
        part(timeline)
    joined = _join_all(profiles, counters, part)
    return Reading(profiles, part, counters, joined, cells, (*profiles.unreadable, *no_counters))


def examined(reading: Reading, found: Sequence[Diagnosis] = ()) -> list[Numbers]:
    """Every analysis of every profile, with the counters beside it.

    Args:
        found: the diagnosis of each, where they are known already.
    """
    from warplens.report.overview.numbers import examine

    with progress("analysing") as tell:
        numbers = []
        for timeline, known in zip_longest(reading.profiles.timelines, found):
            tell(f"analysing {timeline.trace.capture.source}")
            numbers.append(examine(timeline, reading.window(timeline), counters=reading.counted, diagnosis=known))
        if reading.joined:
            numbers = [replace(each, joined=tuple(own)) for each, own in zip(numbers, reading.joined, strict=True)]
        return numbers


def read_profiles(paths: Sequence[Path], *, launch_configuration: bool = False, steady: bool = False) -> Profiles:
    """Read them all; one that cannot be read does not stop the others.

    Args:
        steady: whether the one profile is asked about its steady steps, a part of which does where memory is short.
        launch_configuration: whether to read grids and blocks of large files, too, because kernels are found by them
            in reports of counters.
    """
    shares = [share_that_fits(path, REPORT, steady=steady and len(paths) == 1) for path in paths]
    reuse_freed_memory(paths)
    read_paths, timelines, unreadable = [], [], []
    with progress("reading") as tell:
        for number, (path, share) in enumerate(zip(paths, shares, strict=True), start=1):
            tell(f"reading {path.name}" + (f" ({number} of {len(paths)})" if len(paths) > 1 else ""))
            grids = launch_configuration or not path.is_file() or path.stat().st_size <= _ALL_OF_IT_BYTES
            try:
                trace = read(path, progress=tell, launch_configuration=grids, share=share, gpu=State.gpu)
                timelines.append(Timeline(trace))
                read_paths.append(path)
            except UnreadableInputError as error:
                unreadable.append(error)
    return Profiles(tuple(read_paths), tuple(timelines), tuple(unreadable))


def _read_counter_reports(paths: Sequence[Path]) -> tuple[list[KernelCounters], list[UnreadableInputError]]:
    reports: list[KernelCounters] = []
    unreadable: list[UnreadableInputError] = []
    if not paths:
        return reports, unreadable
    from warplens.analysis.counters.speedoflight import OPCODES

    for path in paths:
        with progress(f"reading {path.name}") as tell:
            try:
                reports.append(read_counters(path, instances=(OPCODES,), progress=tell))
            except UnreadableInputError as error:
                unreadable.append(error)
    return reports, unreadable


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
    """For each profile the reports of counters beside it.

    Of several profiles only those that have a kernel in common with a report: the others are of other programs.
    """
    if not counters:
        return ()
    from warplens.report.counters.numbers import join_counters

    with progress("joining counters and traces"):
        everything = tuple(
            tuple(join_counters(report, timeline, window(timeline)) for report in counters)
            for timeline in profiles.timelines
        )
    if len(everything) == 1:
        return everything
    return tuple(tuple(item for item in beside if item.matches) for beside in everything)


def run_in(reading: Reading) -> RunDiagnosis | None:
    """The diagnosis of the run that these profiles are the ranks of; None where they are not."""
    if len(reading.profiles.timelines) < 2:
        return None
    from warplens.ranks import one_run

    with progress("looking for ranks of one run"):
        return one_run(reading.profiles.timelines, reading.window)


#: Files of a run that are reported on one by one: as many as a page tells (`overview.document.MOST_PARTS`, which is
#: not imported before something is drawn). Analysing and drawing one takes some tenths of a second.
_IN_FULL: Final = 24


def told_in_full(reading: Reading, run: RunDiagnosis | None) -> tuple[Reading, RunDiagnosis | None]:
    """Of a run of very many files those that are told one by one: the late rank, and those of the lowest numbers.

    What the ranks cost each other, and the row of each, rests on all of them; a note says which are left out.
    """
    if run is None or len(reading.profiles.timelines) <= _IN_FULL:
        return reading, run
    from warplens.analysis.ranks.balance import straggler

    late = straggler(run.run.result.waits)
    ranks = sorted(run.origin, key=lambda rank: (rank != late, rank))
    kept = sorted(dict.fromkeys(run.origin[rank][0] for rank in ranks[:_IN_FULL]))
    places = {file: place for place, file in enumerate(kept)}
    profiles = reading.profiles
    note(
        f"{len(kept)} of {len(profiles.timelines)} files are told one by one: the late rank's and those of the lowest "
        "ranks; what is said of the run rests on all. Report on fewer files for others."
    )
    shown = replace(
        profiles,
        paths=tuple(profiles.paths[file] for file in kept),
        timelines=tuple(profiles.timelines[file] for file in kept),
    )
    origin = {rank: (places[file], place) for rank, (file, place) in run.origin.items() if file in places}
    joined = tuple(reading.joined[file] for file in kept) if reading.joined else ()
    return replace(reading, profiles=shown, joined=joined), replace(run, origin=origin)


def find_cells(paths: Sequence[Path], request: GridRequest) -> Cells | None:
    """The cells that these profiles are of; None where they form no grid and the user did not speak of one.

    Raises:
        UsageError: the user spoke of a grid, but no profile is of a cell; or a named cell is of no profile.
    """
    from warplens.studies.grid.cells import assign_cells

    cells, unplaced = assign_cells(map(str, paths), request.cells)
    if request.is_explicit and not cells:
        raise UsageError(f"no profile is of a cell of a grid. {unplaced[0].source}: {unplaced[0].reason}")
    places = {(cell.model, cell.context) for cell in cells.values()}
    if not request.is_explicit and len(places) < _CELLS_OF_A_GRID:
        return None
    return Cells(cells, unplaced)
