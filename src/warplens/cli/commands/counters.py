"""`warplens counters`: what Nsight Compute's counters say of each kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import polars as pl
import typer

from warplens.analysis.counters.notes import counter_notes
from warplens.analysis.counters.summary import SUMMARY_KEYS, counters_summary
from warplens.cli.answer import most_rows
from warplens.cli.edge import answering
from warplens.cli.messages import note, one_line, progress
from warplens.cli.options import Format, FormatOption, LimitOption, group_by
from warplens.profile import NoteLevel
from warplens.readers.counters import read_counters
from warplens.report.counterwords import with_words
from warplens.report.document import Table, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.profile.counters import KernelCounters

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
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """What bounds each kernel, and why: from the counters of Nsight Compute.

    A row is a group of launches of the same kernel with the same grid and block, with medians over them. Shares are of
    the peak, inside the kernel: they say nothing about the time between kernels.
    """
    asked = metric or []
    reports = [_read(path) for path in paths]
    summaries = [counters_summary(report, by, asked) for report in reports]
    if form is Format.JSON:
        _show_json(reports, summaries, by, limit)
    elif form is Format.CSV:
        _show_csv(reports, summaries, limit)
    else:
        _show_for_people(reports, summaries, asked, form, limit)


def _read(path: Path) -> KernelCounters:
    with progress(f"reading {path.name}") as tell:
        return read_counters(path, progress=tell)


def _show_json(
    reports: Sequence[KernelCounters], summaries: Sequence[pl.DataFrame], by: str, limit: int | None
) -> None:
    from warplens.report.jsonout import envelope  # noqa: PLC0415  the other formats do without

    data = {
        "by": by,
        "reports": [_facts(report) for report in reports],
        "rows": _rows(reports, summaries, limit, Format.JSON),
    }
    notes = [item for report in reports for item in counter_notes(report)]
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


def _show_csv(reports: Sequence[KernelCounters], summaries: Sequence[pl.DataFrame], limit: int | None) -> None:
    for report in reports:
        for line in (_head(report), *_note_lines(report)):
            note(line)
    rows = _rows(reports, summaries, limit, Format.CSV)
    flat = rows.select(pl.exclude("evidence", "fault_evidence")).with_columns(pl.col("co_limiters").list.join(" "))
    with answering() as stdout:
        stdout.write(flat.write_csv())


def _show_for_people(
    reports: Sequence[KernelCounters],
    summaries: Sequence[pl.DataFrame],
    asked: Sequence[str],
    form: Format,
    limit: int | None,
) -> None:
    from warplens.report.markdown import escaped  # noqa: PLC0415
    from warplens.report.terminal import print_table  # noqa: PLC0415  Rich is for terminals alone

    markdown = form is Format.MD
    for report, summary in zip(reports, summaries, strict=True):
        columns = (*_COLUMNS[:-1], *(TableColumn(name, name, "number") for name in asked), _COLUMNS[-1])
        table = Table(
            "counters", "Kernels", columns, with_words(summary), most_rows(form, limit), empty="No kernel was profiled."
        )
        with answering() as stdout:
            if markdown:
                lines = [f"## {escaped(_head(report))}", *(f"> {escaped(line)}" for line in _note_lines(report))]
                stdout.write("\n\n".join(lines) + "\n\n")
            else:
                stdout.write(f"{one_line(_head(report))}\n")
                stdout.flush()
                for line in _note_lines(report):
                    note(line)
                stdout.write("\n")
            print_table(table, "md" if markdown else "table", stdout)


def _head(report: KernelCounters) -> str:
    capture = report.capture
    devices = ", ".join(dict.fromkeys(device.name for device in capture.devices))
    parts = [capture.source, f"{capture.tool} {capture.tool_version or ''}".strip(), devices]
    return " · ".join(part for part in parts if part)


def _note_lines(report: KernelCounters) -> Iterator[str]:
    tags = {NoteLevel.BLOCKING: "missing", NoteLevel.WARNING: "caution", NoteLevel.INFO: "note"}
    for item in counter_notes(report):
        yield f"{tags[item.level]}: {item.text}" + (f" ({item.remedy})" if item.remedy else "")
