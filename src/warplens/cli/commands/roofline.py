"""`warplens roofline`: kernels under the roofs of their GPU, as a table and as a chart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import polars as pl
import typer

from warplens.analysis.counters.roofline import LEVELS, PRECISIONS
from warplens.analysis.counters.rooflinepoints import roofline_points
from warplens.cli.answer import most_rows
from warplens.cli.edge import answering
from warplens.cli.messages import note, one_line, progress
from warplens.cli.options import Format, FormatOption, LimitOption
from warplens.errors import UsageError
from warplens.readers.counters import read_counters
from warplens.report.counters.roofline import numbered_points, roof_lines, roofline_table, why_no_chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.counters.rooflinepoints import Roofline
    from warplens.profile import Capture

__all__ = ["roofline"]

_PICTURES: Final = (".png", ".svg")
_CHARTS: Final = (".html", *_PICTURES)

#: What may stand behind the number of a roof, for people.
_UNITS: Final = {"G": 1e9, "T": 1e12, "P": 1e15}

_ROOFS: Final = (*PRECISIONS, *LEVELS)


def roofline(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH…", show_default=False, help="Reports of Nsight Compute: .ncu-rep, or their CSV."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="Write the chart: .html, .png or .svg by its suffix.",
        ),
    ] = None,
    ceiling: Annotated[
        list[str] | None,
        typer.Option(
            "--ceiling",
            metavar="ROOF=RATE",
            show_default=False,
            help="Use this roof, a measured one for instance: dram=4.2T (bytes/s), fp32=60T (FLOP/s). Repeatable.",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """Kernels under the roofs of their GPU: how far from what it could do.

    A row is a group of launches of the same kernel with the same grid and block. Operations and bytes are counted, at
    each level of memory (DRAM, L2, L1); roofs are the peaks in the report unless you state others.
    """
    _check(output, paths)
    ceilings = dict(map(_parse_ceiling, ceiling or ()))
    reports = []
    for path in paths:
        with progress(f"reading {path.name}") as tell:
            counters = read_counters(path, progress=tell)
            reports.append((counters.capture, roofline_points(counters, ceilings)))
    if output is not None:
        with progress("drawing"):
            _write(output, reports)
        with answering() as stdout:
            stdout.write(f"{one_line(output)}\n")
        return
    if form is Format.JSON:
        _show_json(reports, limit)
    elif form is Format.CSV:
        _show_csv(reports, limit)
    else:
        _show_for_people(reports, form, limit)


def _check(output: Path | None, paths: Sequence[Path]) -> None:
    """Refuse what cannot be written now, not after large reports were read."""
    if output is None:
        return
    suffix = output.suffix.lower()
    if suffix not in _CHARTS:
        raise UsageError(f"{output.name}: a chart is written as {', '.join(_CHARTS)}; name such a file")
    if suffix in _PICTURES and len(paths) > 1:
        raise UsageError(f"{output.name}: a picture holds the chart of one report; name one, or write .html")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{output.name}: there is no folder {output.parent.name} to write it to")


def _parse_ceiling(text: str) -> tuple[str, float]:
    roof, _, rate = text.partition("=")
    number, factor = (rate[:-1], _UNITS[rate[-1:].upper()]) if rate[-1:].upper() in _UNITS else (rate, 1.0)
    try:
        value = float(number) * factor
    except ValueError:
        value = 0.0
    if roof not in _ROOFS or not 0 < value < float("inf"):
        raise UsageError(f"{text!r} is no roof: write one of {', '.join(_ROOFS)}, =, and a rate such as 4.2T")
    return roof, value


def _write(output: Path, reports: Sequence[tuple[Capture, Roofline]]) -> None:
    from warplens.report.counters.roofline import roofline_document, roofline_figure  # noqa: PLC0415

    suffix = output.suffix.lower()
    if suffix == ".html":
        from warplens.report.html import render_html  # noqa: PLC0415  Jinja and Vega are for pages alone

        output.write_text(render_html(roofline_document(reports)), "utf-8")
        return
    capture, found = reports[0]
    figure = roofline_figure(found, numbered_points(found))
    if figure is None:
        raise UsageError(f"{capture.source}: {why_no_chart(found)}")
    if suffix == ".svg":
        output.write_text(figure.chart.svg(figure.alt), "utf-8")
    else:
        output.write_bytes(figure.chart.png(figure.alt))


def _show_json(reports: Sequence[tuple[Capture, Roofline]], limit: int | None) -> None:
    from warplens.report.jsonout import envelope  # noqa: PLC0415  the other formats do without

    data = {
        "reports": [{"source": capture.source, "roofs": found.roofs} for capture, found in reports],
        "rows": _rows(reports, most_rows(Format.JSON, limit)),
    }
    warnings = [f"{capture.source}: {reason}" for capture, found in reports if (reason := why_no_chart(found))]
    text = envelope("roofline", [capture.source for capture, _ in reports], data, warnings)
    with answering() as stdout:
        stdout.flush()
        stdout.buffer.write(text + b"\n")


def _rows(reports: Sequence[tuple[Capture, Roofline]], most: int | None) -> pl.DataFrame:
    return pl.concat(
        (found.points if most is None else found.points.head(most)).select(
            pl.lit(capture.source).alias("source"), pl.all()
        )
        for capture, found in reports
    )


def _show_csv(reports: Sequence[tuple[Capture, Roofline]], limit: int | None) -> None:
    for capture, found in reports:
        for line in (_head(capture), *_lines(found)):
            note(line)
    with answering() as stdout:
        stdout.write(_rows(reports, most_rows(Format.CSV, limit)).write_csv())


def _show_for_people(reports: Sequence[tuple[Capture, Roofline]], form: Format, limit: int | None) -> None:
    from warplens.report.markdown import escaped  # noqa: PLC0415
    from warplens.report.terminal import print_table  # noqa: PLC0415  Rich is for terminals alone

    markdown = form is Format.MD
    for capture, found in reports:
        table = roofline_table(numbered_points(found), limit=most_rows(form, limit))
        with answering() as stdout:
            if markdown:
                lines = [f"## {escaped(_head(capture))}", *map(escaped, _lines(found))]
                stdout.write("\n\n".join(lines) + "\n\n")
            else:
                stdout.write("".join(f"{one_line(line)}\n" for line in (_head(capture), *_lines(found))) + "\n")
            print_table(table, "md" if markdown else "table", stdout)


def _head(capture: Capture) -> str:
    devices = ", ".join(dict.fromkeys(device.name for device in capture.devices))
    parts = [capture.source, f"{capture.tool} {capture.tool_version or ''}".strip(), devices]
    return " · ".join(part for part in parts if part)


def _lines(found: Roofline) -> list[str]:
    reason = why_no_chart(found)
    return [*roof_lines(found), *([f"caution: {reason}"] if reason else [])]
