"""`warplens counters`: what Nsight Compute's counters say of each kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import polars as pl
import typer

from warplens.analysis.counters.notes import counter_notes
from warplens.analysis.counters.summary import SUMMARY_KEYS, counters_summary
from warplens.cli.answer import most_rows
from warplens.cli.countercomparison import check_comparison, parse_pairs, show_comparison
from warplens.cli.countercoverage import join_trace
from warplens.cli.edge import answering
from warplens.cli.messages import note, one_line, progress
from warplens.cli.options import Format, FormatOption, LimitOption, WindowOption, group_by
from warplens.profile import NoteLevel
from warplens.readers.counters import read_counters
from warplens.report.counters.joined import coverage_lines, coverage_tables, joined_data, next_run_lines
from warplens.report.counterwords import with_words
from warplens.report.document import Table, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from warplens.profile import Note
    from warplens.profile.counters import KernelCounters
    from warplens.report.counters.numbers import Joined

__all__ = ["counters"]

_COLUMNS = (
    TableColumn("name", "Kernel", "kernel", full="full_name"),
    TableColumn("launches", "Launches", "count"),
    TableColumn("duration_ns", "Time", "duration_ns"),
    TableColumn("compute_share", "Compute", "share"),
    TableColumn("memory_share", "Memory", "share"),
    TableColumn("theoretical_share", "Occupancy", "share"),
    TableColumn("achieved_share", "achieved", "share"),
    TableColumn("limited_by", "limited by", "text"),
    TableColumn("top_stall", "Top stall", "text"),
    TableColumn("verdict", "Bound", "text"),
    TableColumn("reason", "Why", "text"),
)


def counters(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH…", show_default=False, help="Reports of Nsight Compute: .ncu-rep, or their CSV."),
    ],
    by: Annotated[str, group_by(*SUMMARY_KEYS)] = "group",
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", metavar="NAME", show_default=False, help="Show this metric, too. Repeatable."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", "-t", metavar="FILE", show_default=False, help="A trace of the same program: what was covered?"
        ),
    ] = None,
    window: WindowOption = "steady",
    ncu_version: Annotated[
        str | None,
        typer.Option(
            "--ncu-version",
            metavar="VERSION",
            show_default=False,
            help="Of the ncu for the next run; else the report's.",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Put the reports side by side, each against the first.")
    ] = False,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            "--pair",
            metavar="BEFORE=AFTER",
            show_default=False,
            help="Compare these kernels, though their names differ. Repeatable.",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """What bounds each kernel, and why: from the counters of Nsight Compute.

    A row is a group of launches of the same kernel with the same grid and block, with medians over them. Shares are of
    the peak, inside the kernel: they say nothing about the time between kernels. With a trace of the same program,
    the kernels are found in its window again: how much of the time they stand for, which promises most, and the command
    that would show the rest. With --compare, what changed from the first report to each of the others.
    """
    asked = metric or []
    check_comparison(len(paths), compare, pair or [], trace is not None)
    pairs = parse_pairs(pair or [])
    reports = [_read(path) for path in paths]
    if compare:
        show_comparison(reports, pairs, asked, form, limit)
        return
    summaries = [counters_summary(report, by, asked) for report in reports]
    joined = join_trace(reports, trace, window, ncu_version) if trace else ()
    if form is Format.JSON:
        _show_json(reports, summaries, joined, by, limit)
    elif form is Format.CSV:
        _show_csv(reports, summaries, joined, limit)
    else:
        _show_for_people(reports, summaries, joined, asked, form, limit)


def _read(path: Path) -> KernelCounters:
    with progress(f"reading {path.name}") as tell:
        return read_counters(path, progress=tell)


def _show_json(
    reports: Sequence[KernelCounters],
    summaries: Sequence[pl.DataFrame],
    joined: Sequence[Joined],
    by: str,
    limit: int | None,
) -> None:
    from warplens.report.jsonout import envelope  # noqa: PLC0415  the other formats do without

    data = {
        "by": by,
        "reports": [_facts(report) for report in reports],
        "rows": _rows(reports, summaries, limit, Format.JSON),
        **(joined_data(joined) if joined else {}),
    }
    notes = [item for report in reports for item in _notes(report, bool(joined))]
    text = envelope("counters", [report.capture.source for report in reports], data, list(dict.fromkeys(notes)))
    with answering() as stdout:
        stdout.flush()
        stdout.buffer.write(text + b"\n")


def _facts(report: KernelCounters) -> dict[str, object]:
    capture = report.capture
    return {
        "source": capture.source,
        "tool_version": capture.tool_version,
        "devices": capture.devices,
        "launches": report.launches.height,
        "session": report.session,
    }


def _rows(
    reports: Sequence[KernelCounters], summaries: Sequence[pl.DataFrame], limit: int | None, form: Format
) -> pl.DataFrame:
    """The rows of all reports, each with its source, in words as well."""
    most = most_rows(form, limit)
    return pl.concat(
        with_words(summary if most is None else summary.head(most)).select(
            pl.lit(report.capture.source).alias("source"), pl.all()
        )
        for report, summary in zip(reports, summaries, strict=True)
    )


def _show_csv(
    reports: Sequence[KernelCounters],
    summaries: Sequence[pl.DataFrame],
    joined: Sequence[Joined],
    limit: int | None,
) -> None:
    for number, report in enumerate(reports):
        covered = coverage_lines(joined[number]) if joined else ()
        for line in (_head(report), *_note_lines(report, bool(joined)), *covered):
            note(line)
    rows = _rows(reports, summaries, limit, Format.CSV)
    flat = rows.select(pl.exclude("evidence", "fault_evidence")).with_columns(pl.col("co_limiters").list.join(" "))
    with answering() as stdout:
        stdout.write(flat.write_csv())


def _show_for_people(
    reports: Sequence[KernelCounters],
    summaries: Sequence[pl.DataFrame],
    joined: Sequence[Joined],
    asked: Sequence[str],
    form: Format,
    limit: int | None,
) -> None:
    from warplens.report.markdown import escaped  # noqa: PLC0415
    from warplens.report.terminal import print_table  # noqa: PLC0415  Rich is for terminals alone

    markdown = form is Format.MD
    most = most_rows(form, limit)
    for number, (report, summary) in enumerate(zip(reports, summaries, strict=True)):
        columns = (*_COLUMNS[:-1], *(TableColumn(name, name, "number") for name in asked), _COLUMNS[-1])
        table = Table("counters", "Kernels", columns, with_words(summary), most, empty="No kernel was profiled.")
        notes = list(_note_lines(report, bool(joined)))
        with answering() as stdout:
            if markdown:
                lines = [f"## {escaped(_head(report))}", *(f"> {escaped(line)}" for line in notes)]
                stdout.write("\n\n".join(lines) + "\n\n")
            else:
                stdout.write(f"{one_line(_head(report))}\n")
                stdout.flush()
                for line in notes:
                    note(line)
                stdout.write("\n")
            print_table(table, "md" if markdown else "table", stdout)
            if joined:
                _show_joined(joined[number], markdown, most, stdout)


def _show_joined(joined: Joined, markdown: bool, most: int | None, stdout: TextIO) -> None:
    """Coverage, ranking and the next run, under the table of a report."""
    from warplens.report.markdown import escaped  # noqa: PLC0415
    from warplens.report.terminal import print_table  # noqa: PLC0415

    as_line = escaped if markdown else one_line
    between = "\n\n" if markdown else "\n"
    stdout.write("\n" + "".join(as_line(line) + between for line in coverage_lines(joined)))
    for table in coverage_tables(joined, most):
        stdout.write(f"\n**{escaped(table.caption)}**\n\n" if markdown else "\n")
        print_table(table, "md" if markdown else "table", stdout)
    stdout.write("\n" + "".join(as_line(line) + between for line in next_run_lines(joined)))
    if joined.next_run.command is not None:
        stdout.write(f"    {one_line(joined.next_run.command)}\n")


def _head(report: KernelCounters) -> str:
    capture = report.capture
    devices = ", ".join(dict.fromkeys(device.name for device in capture.devices))
    parts = [capture.source, f"{capture.tool} {capture.tool_version or ''}".strip(), devices]
    return " · ".join(part for part in parts if part)


def _notes(report: KernelCounters, with_trace: bool) -> Iterator[Note]:
    """The notes on a report; that its coverage is unknown only where no trace tells it."""
    return (item for item in counter_notes(report) if not (with_trace and item.code == "coverage-unknown"))


def _note_lines(report: KernelCounters, with_trace: bool) -> Iterator[str]:
    tags = {NoteLevel.BLOCKING: "missing", NoteLevel.WARNING: "caution", NoteLevel.INFO: "note"}
    for item in _notes(report, with_trace):
        yield f"{tags[item.level]}: {item.text}" + (f" ({item.remedy})" if item.remedy else "")
