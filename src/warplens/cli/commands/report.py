"""`warplens report`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from warplens.analysis.grid.gridcells import parse_cell
from warplens.cli.edge import UNUSABLE, answering
from warplens.cli.messages import complain, one_line, progress
from warplens.cli.options import RangeOption, WindowOption, words_option
from warplens.cli.reporting import (
    DEFAULT_FOLDER,
    GridRequest,
    checked_folder,
    find_cells,
    read_profiles,
    write_grid,
    write_overview,
)
from warplens.errors import UsageError
from warplens.readers import discover
from warplens.readers.timings import read_timings
from warplens.report.write import REPORT_FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.cli.reporting import Profiles
    from warplens.report.write import ReportFormat

__all__ = ["report"]


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH", show_default=False, help="Profiles, and folders that are searched for profiles."
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
    second document answers questions about models and contexts.
    """
    wanted = cast("list[ReportFormat]", formats.split(","))
    grid = GridRequest(dict(map(parse_cell, cells or ())), read_timings(timings) if timings else None, batch)
    to_stdout = output is None and wanted == ["json"] and not grid.is_explicit
    folder = checked_folder(output or DEFAULT_FOLDER)
    found = discover(paths)
    cells_found = find_cells(found, grid)
    profiles = read_profiles(found)
    of_timeline = _window(window, range_name)
    if to_stdout:
        _print_json(profiles, of_timeline)
    else:
        written = write_overview(profiles, of_timeline, folder, wanted)
        if cells_found is not None:
            written += write_grid(profiles, cells_found, grid, folder, wanted)
        with answering() as stdout:
            stdout.write("".join(f"{one_line(path)}\n" for path in written))
    for error in profiles.unreadable:
        complain(f"{error} (the report is on the other profiles)")
    if profiles.unreadable:
        raise typer.Exit(UNUSABLE)


def _window(spec: str, range_name: str | None) -> Callable[[Timeline], Window]:
    def of(timeline: Timeline) -> Window:
        try:
            return timeline.window(spec, range_name)
        except UsageError as error:
            raise UsageError(f"{timeline.trace.capture.source}: {error}") from error

    return of


def _print_json(profiles: Profiles, window: Callable[[Timeline], Window]) -> None:
    from warplens.report.overview.numbers import examine  # noqa: PLC0415  written reports do it themselves
    from warplens.report.write import report_json  # noqa: PLC0415

    with progress("analysing"):
        text = report_json([examine(timeline, window(timeline)) for timeline in profiles.timelines])
    with answering() as stdout:
        stdout.flush()
        stdout.buffer.write(text + b"\n")
