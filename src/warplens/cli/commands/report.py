"""`warplens report`: the main job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from warplens.analysis.grid.gridcells import parse_cell
from warplens.cli.edge import UNUSABLE, answering
from warplens.cli.messages import complain, one_line, progress
from warplens.cli.options import RangeOption, WindowOption, words_option
from warplens.cli.reporting import (
    DEFAULT_FOLDER,
    Counters,
    GridRequest,
    Profiles,
    checked_folder,
    find_cells,
    join_all,
    read_counter_reports,
    read_profiles,
    write_counter_reports,
    write_grid,
    write_overview,
)
from warplens.errors import UnreadableInputError, UsageError
from warplens.readers.counterfiles import discover_both
from warplens.readers.timings import read_timings
from warplens.report.write import REPORT_FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.report.counters.numbers import Joined
    from warplens.report.write import ReportFormat

__all__ = ["report"]


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            show_default=False,
            help="Profiles, reports of hardware counters, and folders that are searched for them.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            show_default=False,
            help=f"Folder to write to, ./{DEFAULT_FOLDER} unless named. Without it, json alone is printed instead.",
        ),
    ] = None,
    formats: Annotated[
        str,
        words_option("--format", "-f", words=REPORT_FORMATS, meaning="What to write, joined by commas.", several=True),
    ] = ",".join(REPORT_FORMATS),
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    cells: Annotated[
        list[str] | None,
        typer.Option(
            "--cell",
            metavar="NAME=MODEL,CONTEXT[,MODE]",
            show_default=False,
            help="Cell of the grid that a profile is of, where its name does not tell. May be repeated.",
        ),
    ] = None,
    timings: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV", show_default=False, help="Times that the programs measured themselves, for the grid."
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, show_default=False, help="Sequences in a batch, for the grid; FLOP rates need it."
        ),
    ] = None,
) -> None:
    """Report on your profiles: where the GPU time went, and why.

    Profiles whose names tell a model and a context length (small_ctx512.sqlite) form a grid; from two cells on, a
    second document answers questions about models and contexts. Reports of Nsight Compute get a document of their own,
    and what they say of the kernels of a profile stands in its report as well.
    """
    wanted = cast("list[ReportFormat]", formats.split(","))
    grid = GridRequest(dict(map(parse_cell, cells or ())), read_timings(timings) if timings else None, batch)
    to_stdout = output is None and wanted == ["json"] and not grid.is_explicit
    folder = checked_folder(output or DEFAULT_FOLDER)
    found, counter_paths = discover_both(paths)
    cells_found = find_cells(found, grid) if found or grid.is_explicit else None
    counters = read_counter_reports(counter_paths) if counter_paths else Counters()
    profiles = _read(found, counters)
    of_timeline = _window(window, range_name)
    joined = join_all(profiles, counters, of_timeline)
    if to_stdout:
        _print_json(profiles, of_timeline, counters, joined)
    else:
        written = write_overview(profiles, of_timeline, folder, wanted, joined) if profiles.timelines else []
        if cells_found is not None:
            written += write_grid(profiles, cells_found, grid, folder, wanted)
        if counters.reports:
            written += write_counter_reports(counters, joined, folder, wanted)
        with answering() as stdout:
            stdout.write("".join(f"{one_line(path)}\n" for path in written))
    unreadable = (*profiles.unreadable, *counters.unreadable)
    for error in unreadable:
        complain(f"{error} (the report is on the other profiles)")
    if unreadable:
        raise typer.Exit(UNUSABLE)


def _read(paths: Sequence[Path], counters: Counters) -> Profiles:
    """The profiles; none where there are none, or none can be read but there are counters to report on."""
    if not paths:
        if not counters.reports:
            raise counters.unreadable[0]
        return Profiles((), ())
    try:
        return read_profiles(paths, launch_configuration=bool(counters.reports))
    except UnreadableInputError as error:
        if not counters.reports:
            raise
        return Profiles((), (), (error,))


def _window(spec: str, range_name: str | None) -> Callable[[Timeline], Window]:
    def of(timeline: Timeline) -> Window:
        try:
            return timeline.window(spec, range_name)
        except UsageError as error:
            raise UsageError(f"{timeline.trace.capture.source}: {error}") from error

    return of


def _print_json(
    profiles: Profiles,
    window: Callable[[Timeline], Window],
    counters: Counters,
    joined: Sequence[Sequence[Joined]],
) -> None:
    """One object: on the profiles, with what the counters say of them; on the counters where there is no profile."""
    with progress("analysing"):
        text = _profiles_json(profiles, window, joined) if profiles.timelines else _counters_json(counters)
    with answering() as stdout:
        stdout.flush()
        stdout.buffer.write(text + b"\n")


def _profiles_json(
    profiles: Profiles, window: Callable[[Timeline], Window], joined: Sequence[Sequence[Joined]]
) -> bytes:
    from warplens.report.overview.numbers import examine  # noqa: PLC0415  written reports do it themselves
    from warplens.report.write import report_json  # noqa: PLC0415

    examined = [examine(timeline, window(timeline)) for timeline in profiles.timelines]
    if joined:
        examined = [replace(numbers, joined=tuple(beside)) for numbers, beside in zip(examined, joined, strict=True)]
    return report_json(examined)


def _counters_json(counters: Counters) -> bytes:
    from warplens.report.counters.numbers import examine_counters  # noqa: PLC0415
    from warplens.report.counters.write import counters_json  # noqa: PLC0415

    return counters_json([examine_counters(report) for report in counters.reports])
