"""What `report` and `demo` share: read the profiles, write the report, and further documents on what was given."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warplens.analysis.grid.gridcells import assign_cells
from warplens.analysis.timeline import Timeline
from warplens.cli.memory import reuse_freed_memory
from warplens.cli.messages import progress
from warplens.errors import UnreadableInputError, UsageError
from warplens.readers import read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl

    from warplens.analysis.grid.gridcells import CellName, Unplaced
    from warplens.analysis.window import Window
    from warplens.profile.counters import KernelCounters
    from warplens.report.counters.numbers import Joined
    from warplens.report.write import ReportFormat

__all__ = [
    "DEFAULT_FOLDER",
    "Cells",
    "Counters",
    "GridRequest",
    "Profiles",
    "checked_folder",
    "find_cells",
    "join_all",
    "read_counter_reports",
    "read_profiles",
    "write_counter_reports",
    "write_grid",
    "write_overview",
]

#: Where reports go unless the user says otherwise.
DEFAULT_FOLDER: Final = Path("warplens-report")

#: From so many models × contexts on, profiles are a grid without the user saying so.
_CELLS_OF_A_GRID: Final = 2

#: Of larger files (half a million kernels) grids and blocks are not read: they cost a third more time, for the one
#: question whether kernels fill the GPU. The verdict says that it was not asked, and `warplens diagnose` asks it.
_ALL_OF_IT_BYTES: Final = 64 << 20


@dataclass(frozen=True, eq=False)
class Profiles:
    """The profiles that could be read, in the order given, and what was wrong with the others."""

    paths: tuple[Path, ...]
    timelines: tuple[Timeline, ...]
    unreadable: tuple[UnreadableInputError, ...] = ()


@dataclass(frozen=True, eq=False)
class Counters:
    """The reports of hardware counters that could be read, in the order given, and what was wrong with the others."""

    reports: tuple[KernelCounters, ...] = ()
    unreadable: tuple[UnreadableInputError, ...] = ()


@dataclass(frozen=True)
class GridRequest:
    """What the user said about a grid of models × contexts.

    Attributes:
        cells: the cells of profiles whose names do not tell them, by name.
        timings: the program's own times (`warplens.readers.timings`).
        batch: sequences in a batch.
    """

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


def checked_folder(folder: Path) -> Path:
    """The folder, if files can be written to it; it need not exist.

    Raises:
        UsageError: it is a file, or it may not be written to. Better told now than after minutes of analysis.
    """
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise UsageError(f"{existing.name} is a file, but reports are written to a folder: name another with --output")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(
            f"{existing.name or existing}: no permission to write there; name another folder with --output"
        )
    return folder


def read_profiles(paths: Sequence[Path], *, launch_configuration: bool = False) -> Profiles:
    """Read them all. One that cannot be read does not stop the others.

    Args:
        paths: of the profiles.
        launch_configuration: whether to read grids and blocks of large files, too, because kernels are found by them
            in reports of counters.

    Raises:
        UnreadableInputError: none can be read.
    """
    reuse_freed_memory(paths)
    read_paths, timelines, unreadable = [], [], []
    with progress("reading") as tell:
        for number, path in enumerate(paths, start=1):
            tell(f"reading {path.name}" + (f" ({number} of {len(paths)})" if len(paths) > 1 else ""))
            try:
                grids = launch_configuration or not path.is_file() or path.stat().st_size <= _ALL_OF_IT_BYTES
                timelines.append(Timeline(read(path, progress=tell, launch_configuration=grids)))
            except UnreadableInputError as error:
                unreadable.append(error)
            else:
                read_paths.append(path)
    if not timelines:
        raise unreadable[0]
    return Profiles(tuple(read_paths), tuple(timelines), tuple(unreadable))


def read_counter_reports(paths: Sequence[Path]) -> Counters:
    """Read all reports of hardware counters. One that cannot be read does not stop the others."""
    from warplens.readers.counters import read_counters  # noqa: PLC0415  most reports are on traces alone

    reports, unreadable = [], []
    for path in paths:
        with progress(f"reading {path.name}") as tell:
            try:
                reports.append(read_counters(path, progress=tell))
            except UnreadableInputError as error:
                unreadable.append(error)
    return Counters(tuple(reports), tuple(unreadable))


def join_all(
    profiles: Profiles, counters: Counters, window: Callable[[Timeline], Window]
) -> tuple[tuple[Joined, ...], ...]:
    """For each profile the reports of counters beside it.

    Of several profiles only those that have a kernel in common with a report: the others are of other programs.
    """
    if not counters.reports:
        return ()
    from warplens.report.counters.numbers import join_counters  # noqa: PLC0415

    with progress("joining counters and traces"):
        everything = [
            tuple(join_counters(report, timeline, window(timeline)) for report in counters.reports)
            for timeline in profiles.timelines
        ]
    if len(everything) == 1:
        return (everything[0],)
    return tuple(tuple(item for item in beside if item.matches) for beside in everything)


def write_counter_reports(
    counters: Counters, joined: Sequence[Sequence[Joined]], folder: Path, formats: Sequence[ReportFormat]
) -> list[Path]:
    """Write the document on hardware counters: `counters.html`, `counters.md`, `counters.json`; the files to open."""
    from warplens.report.counters.numbers import examine_counters  # noqa: PLC0415
    from warplens.report.counters.write import write_counters  # noqa: PLC0415

    with progress("analysing counters") as tell:
        examined = [
            examine_counters(
                report, [item for beside in joined for item in beside if item.source == report.capture.source]
            )
            for report in counters.reports
        ]
        return write_counters(examined, folder, formats, tell)


def write_overview(
    profiles: Profiles,
    window: Callable[[Timeline], Window],
    folder: Path,
    formats: Sequence[ReportFormat],
    joined: Sequence[Sequence[Joined]] = (),
) -> list[Path]:
    """Write the report on the profiles; the files to open."""
    from warplens.report.write import write_report  # noqa: PLC0415  the document's modules are not small

    with progress("analysing") as tell:
        found = [(timeline, window(timeline)) for timeline in profiles.timelines]
        return write_report(found, folder, formats, tell, joined)


def find_cells(paths: Sequence[Path], request: GridRequest) -> Cells | None:
    """The cells that these profiles are of; None where they form no grid and the user did not speak of one.

    Raises:
        UsageError: the user spoke of a grid, but no profile is of a cell; or a named cell is of no profile.
    """
    cells, unplaced = assign_cells(map(str, paths), request.cells)
    if request.is_explicit and not cells:
        raise UsageError(f"no profile is of a cell of a grid. {unplaced[0].source}: {unplaced[0].reason}")
    places = {(cell.model, cell.context) for cell in cells.values()}
    if not request.is_explicit and len(places) < _CELLS_OF_A_GRID:
        return None
    return Cells(cells, unplaced)


def write_grid(
    profiles: Profiles, cells: Cells, request: GridRequest, folder: Path, formats: Sequence[ReportFormat]
) -> list[Path]:
    """Write the grid document as `grid.html`, `grid.md` and `grid.json`; the files to open."""
    from warplens.analysis.grid.answers import GridCell, answer_grid  # noqa: PLC0415  few reports are on a grid
    from warplens.report.grid.document import grid_document  # noqa: PLC0415
    from warplens.report.write import write_document  # noqa: PLC0415

    with progress("answering the questions of the grid") as tell:
        grid = answer_grid(
            (
                GridCell(cell.model, cell.context, cell.mode, path.name, timeline, cell.batch)
                for path, timeline in zip(profiles.paths, profiles.timelines, strict=True)
                if (cell := cells.named.get(str(path))) is not None
            ),
            timings=request.timings,
            batch=request.batch,
            unplaced=cells.unplaced,
        )
        tell("drawing the grid")
        folder.mkdir(parents=True, exist_ok=True)
        written = write_document(grid_document(grid), folder, formats, "grid")
        if "json" in formats:
            written.append(_write_grid_json(grid, folder / "grid.json"))
    return written


def _write_grid_json(grid: Any, path: Path) -> Path:
    from warplens.report.grid.document import grid_data  # noqa: PLC0415
    from warplens.report.jsonout import envelope  # noqa: PLC0415

    warnings = [f"{cell.source}: {reason}" for cell in grid.cells for reason in (*cell.invalid, *cell.notes)]
    path.write_bytes(envelope("grid", [cell.source for cell in grid.cells], grid_data(grid), warnings))
    return path
